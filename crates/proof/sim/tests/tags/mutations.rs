//! The stage with one of its rules broken, simulated at its files and the disk below. Each must be
//! caught.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use strongroom_datastore::file::storage::StoredFile;
use strongroom_io::{DataFile, Disk, FileIo, FileOperation, FileToken, Io, Reactor, Request, Sealed};
use strongroom_sim::{SimFs, SimReactor};

use super::faulty::FaultyDisk;
use super::interposed::{Between, Fate, Interposed};
use super::volume::{PRESENCE, TAGS};

/// The broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A region's mark is written but not durable when the region is written.
    MarkNotDurable,
    /// A region is written while its mark is still on its way.
    MarkNotAwaited,
    /// Marks are never written.
    NoMarks,
    /// A flush leaves the tags in the device's cache.
    TagsNotSynced,
    /// A flush leaves pages of tags in memory.
    TagsNotWritten,
    /// A flush leaves the data in the device's cache, and clears marks.
    DataNotSynced,
    /// The presence of tag pages is never written.
    PresenceNotSaid,
    /// It is written, but not durably.
    PresenceNotDurable,
    /// It is not cleared for discarded pages.
    PresenceKeptByDiscard,
    /// Syncs of the sidecar overlap on a file system that acknowledges some of them early.
    SyncsSideBySide,
}

impl Rule {
    /// The reactor of a thread that breaks it on this sidecar.
    pub fn over(self, below: SimReactor, sidecar: Arc<dyn StoredFile>, said: SaidAt) -> Rc<dyn Reactor> {
        let told = Arc::new(AtomicU32::new(0));
        let make = move || Broken {
            rule: self,
            sidecar: Arc::clone(&sidecar),
            is_sidecar: false,
            told: Arc::clone(&told),
            said: said.clone(),
        };
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
    /// The last written number of present tag pages.
    told: Arc<AtomicU32>,
    said: SaidAt,
}

/// The moments at which the presence of tag pages was written: there are few in a life, and random
/// cuts seldom fall between them.
#[derive(Clone)]
pub struct SaidAt {
    pub fs: SimFs,
    pub moments: Arc<Mutex<Vec<usize>>>,
}

/// How many bits are set in the sectors of a page.
fn bits_of(page: &[u8]) -> u32 {
    page.chunks(512).flat_map(|sector| &sector[16..]).map(|byte| byte.count_ones()).sum()
}

impl Between for Broken {
    fn registers(&mut self, file: &Arc<dyn DataFile>, _token: FileToken) {
        self.is_sidecar = std::ptr::addr_eq(file.as_any(), self.sidecar.as_any());
    }

    fn submits(&mut self, mut io: FileIo) -> Fate {
        if !self.is_sidecar {
            return Fate::Done(io);
        }
        if let FileOperation::Write { offset: PRESENCE..TAGS, .. } = io.operation {
            self.said.moments.lock().push(self.said.fs.moments());
        }
        match (&mut io.operation, self.rule) {
            (FileOperation::Write { offset: ..PRESENCE, durable, .. }, Rule::MarkNotDurable)
            | (FileOperation::Write { offset: PRESENCE..TAGS, durable, .. }, Rule::PresenceNotDurable) => {
                *durable = false;
            }
            (FileOperation::Write { offset: ..PRESENCE, durable: true, .. }, Rule::MarkNotAwaited) => {
                return Fate::DoneLater(io);
            }
            (FileOperation::Write { offset: ..PRESENCE, durable: true, .. }, Rule::NoMarks)
            | (FileOperation::SyncData, Rule::TagsNotSynced)
            | (FileOperation::Write { offset: TAGS.., .. }, Rule::TagsNotWritten)
            | (FileOperation::Write { offset: PRESENCE..TAGS, .. }, Rule::PresenceNotSaid) => {
                return Fate::Ends(io, Ok(()));
            }
            (FileOperation::Write { offset: PRESENCE..TAGS, from, .. }, Rule::PresenceKeptByDiscard) => {
                let bits = bits_of(from.bytes());
                if self.told.fetch_max(bits, Ordering::Relaxed) > bits {
                    return Fate::Ends(io, Ok(()));
                }
            }
            _ => {}
        }
        Fate::Done(io)
    }
}
