//! A thread's queues that break one rule of the datastore on purpose.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use strongroom_io::{DataFile, FileDone, FileIo, FileOperation, FileToken, Reactor};
use strongroom_sim::SimReactor;

use super::interposed::{Between, Fate, Interposed};
use super::mutations::{Mutation, Rule};

/// The owner of the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    Guest,
    Destager,
}

impl Mutation {
    /// The reactor of a thread that breaks the rule.
    pub fn over(&self, below: SimReactor, whose: Whose) -> Rc<dyn Reactor> {
        let mutation = self.clone();
        let make = move || BrokenQueue {
            mutation: mutation.clone(),
            whose,
            zeroing: BTreeSet::new(),
            swallows: 0,
            files: Vec::new(),
            pages: BTreeMap::new(),
        };
        Rc::new(Interposed { below, make })
    }
}

/// A thread's queue that interferes with its operations.
struct BrokenQueue {
    mutation: Mutation,
    whose: Whose,
    /// Zeroings in flight.
    zeroing: BTreeSet<u64>,
    /// The number of upcoming flushes that belong to zeroings.
    swallows: usize,
    /// The names of its files.
    files: Vec<(FileToken, String)>,
    /// Wrongly written pages of the record of discards, by tag.
    pages: BTreeMap<u64, Vec<u8>>,
}

impl Between for BrokenQueue {
    fn registers(&mut self, file: &Arc<dyn DataFile>, token: FileToken) {
        self.files.push((token, self.mutation.shared.name_of(file)));
    }

    fn submits(&mut self, mut io: FileIo) -> Fate {
        let name = self.files.iter().find(|(token, _)| *token == io.file).map(|(_, name)| name.clone());
        let name = name.unwrap_or_default();
        let is = |prefix: &str| name.starts_with(prefix);
        let Mutation { rule, shared } = &self.mutation;
        match (&mut io.operation, *rule, self.whose) {
            (FileOperation::SyncData, Rule::DiscardRecordNotDurable, _)
            | (FileOperation::Write { .. }, Rule::DiscardRecordForgotten, _)
                if is("discards-") =>
            {
                return Fate::Ends(io, Ok(()));
            }
            (FileOperation::Write { offset, from, .. }, Rule::DiscardRecordsOverwrite, _)
                if is("discards-") =>
            {
                let page = from.bytes().to_vec();
                if let Some(before) = shared.pages.lock().insert((name, *offset), page.clone()) {
                    from.bytes_mut().copy_from_slice(&before);
                    self.pages.insert(io.tag, page);
                }
            }
            (FileOperation::Read { into, .. }, Rule::ReadStopsAtTop, _)
                if is("layer-") && *shared.top.lock() != name =>
            {
                into.bytes_mut().fill(0);
                return Fate::Ends(io, Ok(()));
            }
            (FileOperation::SyncData, Rule::FlushForgetsLayer, Whose::Guest) if is("layer-") => {
                return Fate::Ends(io, Ok(()));
            }
            (FileOperation::SyncData, Rule::FlushForgetsLog, Whose::Guest) if is("log-") => {
                return Fate::Ends(io, Ok(()));
            }
            (FileOperation::SyncData, Rule::FlushForgetsLowerLayer, Whose::Guest)
                if is("layer-") && *shared.top.lock() != name =>
            {
                return Fate::Ends(io, Ok(()));
            }
            (FileOperation::SyncData, Rule::DestagedBeforeLogIsDurable, Whose::Destager) if is("log-") => {
                return Fate::Ends(io, Ok(()));
            }
            (FileOperation::SyncData, Rule::TrimmedBeforeLayerIsDurable, Whose::Destager) if is("layer-") => {
                return Fate::Ends(io, Ok(()));
            }
            (FileOperation::Write { durable, .. }, Rule::TailNotDurable, Whose::Destager) if is("log-") => {
                *durable = false;
            }
            (FileOperation::Punch { .. }, Rule::ClearsNotDestaged, Whose::Destager) => {
                return Fate::Ends(io, Ok(()));
            }
            (FileOperation::SyncData, Rule::FlushWithoutSync, _) => return Fate::Ends(io, Ok(())),
            (FileOperation::SyncData, Rule::DurableZeroWithoutSync, _) if self.swallows > 0 => {
                self.swallows -= 1;
                return Fate::Ends(io, Ok(()));
            }
            (FileOperation::Write { durable, .. }, Rule::DurableWriteWithoutSync, _) => *durable = false,
            (FileOperation::Punch { .. } | FileOperation::Zero { .. }, Rule::DurableZeroWithoutSync, _) => {
                self.zeroing.insert(io.tag);
            }
            (FileOperation::Punch { .. } | FileOperation::Zero { .. }, Rule::ZeroAcknowledgedEarly, _) => {
                return Fate::DoneLater(io);
            }
            _ => {}
        }
        Fate::Done(io)
    }

    fn polls(&mut self) {
        self.swallows = 0;
    }

    fn ended(&mut self, done: &mut FileDone) {
        if let (Some(page), Some(buffer)) = (self.pages.remove(&done.tag), &mut done.buffer) {
            buffer.bytes_mut().copy_from_slice(&page);
        }
        if self.zeroing.remove(&done.tag) {
            self.swallows += 1;
        }
        let was_sync = done.buffer.is_none();
        if self.mutation.rule == Rule::StickyFailureForgotten && was_sync && done.result.is_err() {
            // The kernel would report success to a second call.
            done.result = Ok(());
        }
    }
}
