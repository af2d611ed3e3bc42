//! The stage with one of its rules broken, as its files and the disk below see it. Each has to be caught.

use std::rc::Rc;
use std::sync::Arc;

use strongroom_datastore::file::storage::StoredFile;
use strongroom_io::{DataFile, Disk, FileIo, FileOperation, FileToken, Io, Reactor, Request, Sealed};
use strongroom_sim::SimReactor;

use super::faulty::FaultyDisk;
use super::interposed::{Between, Fate, Interposed};

/// Which rule is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A region's mark is written, and not durable, when the region is written.
    MarkNotDurable,
    /// A region is written while its mark is still on its way.
    MarkNotAwaited,
    /// Marks are never written.
    NoMarks,
    /// A flush leaves the tags in the device's cache.
    TagsNotSynced,
    /// A flush leaves pages of tags in memory.
    TagsNotWritten,
    /// A flush leaves the data in the device's cache, and takes marks away.
    DataNotSynced,
    /// What is discarded keeps its tags.
    TagsKeptByDiscard,
    /// Syncs of the sidecar run beside each other where the file system acknowledges some of them early.
    SyncsSideBySide,
}

/// Where tags begin in their file; what is before are marks.
const TAGS: u64 = 1 << 20;

impl Rule {
    /// The reactor of a thread that breaks it on this sidecar.
    pub fn over(self, below: SimReactor, sidecar: Arc<dyn StoredFile>) -> Rc<dyn Reactor> {
        let make = move || Broken { rule: self, sidecar: Arc::clone(&sidecar), is_sidecar: false };
        Rc::new(Interposed { below, make })
    }

    /// The disk below, for the rule about it.
    pub fn below(self, below: Arc<dyn Disk<Sealed>>) -> Arc<dyn Disk<Sealed>> {
        let submits = move |io: Io<Sealed>| match (&io.request, self) {
            (Request::Flush, Rule::DataNotSynced) => Err(io.end(Ok(()))),
            _ => Ok(io),
        };
        Arc::new(FaultyDisk { below, submits: Arc::new(submits) })
    }
}

struct Broken {
    rule: Rule,
    sidecar: Arc<dyn StoredFile>,
    is_sidecar: bool,
}

impl Between for Broken {
    fn registers(&mut self, file: &Arc<dyn DataFile>, _token: FileToken) {
        self.is_sidecar = std::ptr::addr_eq(Arc::as_ptr(file), Arc::as_ptr(&self.sidecar));
    }

    fn submits(&mut self, mut io: FileIo) -> Fate {
        if !self.is_sidecar {
            return Fate::Done(io);
        }
        match (&mut io.operation, self.rule) {
            (FileOperation::Write { durable, .. }, Rule::MarkNotDurable) => *durable = false,
            (FileOperation::Write { durable: true, .. }, Rule::MarkNotAwaited) => {
                return Fate::DoneLater(io);
            }
            (FileOperation::Write { durable: true, .. }, Rule::NoMarks)
            | (FileOperation::SyncData, Rule::TagsNotSynced)
            | (FileOperation::Write { offset: TAGS.., .. }, Rule::TagsNotWritten)
            | (FileOperation::Punch { .. } | FileOperation::Zero { .. }, Rule::TagsKeptByDiscard) => {
                return Fate::Ends(io, Ok(()));
            }
            _ => {}
        }
        Fate::Done(io)
    }
}
