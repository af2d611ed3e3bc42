//! The stage with one of its rules broken, as its files and the disk below see it. Each has to be caught.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use strongroom_datastore::file::storage::StoredFile;
use strongroom_io::{
    Allocation, Channel, DataFile, Disk, Done, FileDone, FileIo, FileOperation, FileQueue, FileToken, Io,
    IoError, Limits, Reactor, Request, Sealed, Thread, Waker,
};
use strongroom_sim::SimReactor;
use strongroom_types::Extent;

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
}

/// Where tags begin in their file; what is before are marks.
const TAGS: u64 = 1 << 20;

pub struct Broken {
    below: SimReactor,
    rule: Rule,
    sidecar: Arc<dyn StoredFile>,
}

impl Broken {
    pub fn new(below: SimReactor, rule: Rule, sidecar: Arc<dyn StoredFile>) -> Self {
        Self { below, rule, sidecar }
    }
}

impl Reactor for Broken {
    fn file_queue(&self) -> Result<Box<dyn FileQueue>, IoError> {
        Ok(Box::new(BrokenQueue {
            below: self.below.file_queue()?,
            rule: self.rule,
            sidecar: Arc::clone(&self.sidecar),
            is_sidecar: false,
            ended: Vec::new(),
            forgotten: BTreeSet::new(),
        }))
    }

    fn wake_at(&self, deadline: Instant) {
        self.below.wake_at(deadline);
    }

    fn waker(&self) -> Arc<Waker> {
        self.below.waker()
    }
}

struct BrokenQueue {
    below: Box<dyn FileQueue>,
    rule: Rule,
    sidecar: Arc<dyn StoredFile>,
    is_sidecar: bool,
    ended: Vec<FileDone>,
    forgotten: BTreeSet<u64>,
}

impl FileQueue for BrokenQueue {
    fn register(&mut self, file: Arc<dyn DataFile>) -> Result<FileToken, IoError> {
        self.is_sidecar = std::ptr::addr_eq(Arc::as_ptr(&file), Arc::as_ptr(&self.sidecar));
        self.below.register(file)
    }

    fn submit(&mut self, mut io: FileIo) {
        if !self.is_sidecar {
            return self.below.submit(io);
        }
        let tag = io.tag;
        let acknowledge = |buffer| FileDone { tag, result: Ok(()), buffer };
        match (&mut io.operation, self.rule) {
            (FileOperation::Write { durable, .. }, Rule::MarkNotDurable) if *durable => *durable = false,
            (FileOperation::Write { durable, .. }, Rule::MarkNotAwaited) if *durable => {
                self.ended.push(acknowledge(None));
                io.tag |= 1 << 40;
                self.forgotten.insert(io.tag);
            }
            (FileOperation::Write { durable: true, .. }, Rule::NoMarks) => {
                return self.ended.push(acknowledge(None));
            }
            (FileOperation::SyncData, Rule::TagsNotSynced) => return self.ended.push(acknowledge(None)),
            (FileOperation::Write { offset: TAGS.., .. }, Rule::TagsNotWritten) => {
                return self.ended.push(acknowledge(None));
            }
            (FileOperation::Punch { .. } | FileOperation::Zero { .. }, Rule::TagsKeptByDiscard) => {
                return self.ended.push(acknowledge(None));
            }
            _ => {}
        }
        self.below.submit(io);
    }

    fn kick(&mut self) {
        self.below.kick();
    }

    fn poll(&mut self, done: &mut Vec<FileDone>) {
        done.append(&mut self.ended);
        let mut below = Vec::new();
        self.below.poll(&mut below);
        done.extend(below.into_iter().filter(|ended| !self.forgotten.remove(&ended.tag)));
    }
}

/// The disk below, for rules about it.
pub struct BrokenDisk {
    pub below: Arc<dyn Disk<Sealed>>,
    pub rule: Rule,
}

impl Disk<Sealed> for BrokenDisk {
    fn limits(&self) -> Limits {
        self.below.limits()
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Sealed>>, IoError> {
        let below = self.below.open(thread, depth)?;
        Ok(Box::new(BrokenChannel { below, rule: self.rule, ended: Vec::new() }))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        self.below.allocation(extent, report)
    }
}

struct BrokenChannel {
    below: Box<dyn Channel<Sealed>>,
    rule: Rule,
    ended: Vec<Done<Sealed>>,
}

impl Channel<Sealed> for BrokenChannel {
    fn submit(&mut self, io: Io<Sealed>) {
        match (&io.request, self.rule) {
            (Request::Flush, Rule::DataNotSynced) => self.ended.push(io.end(Ok(()))),
            _ => self.below.submit(io),
        }
    }

    fn kick(&mut self) {
        self.below.kick();
    }

    fn poll(&mut self, done: &mut Vec<Done<Sealed>>) {
        self.below.poll(done);
        done.append(&mut self.ended);
    }
}
