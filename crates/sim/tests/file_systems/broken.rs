//! A thread's queues that break a promise on purpose, to be caught.

use std::sync::Arc;
use std::time::Instant;

use strongroom_io::{
    DataFile, FileDone, FileIo, FileOperation, FileQueue, FileToken, IoError, Reactor, Waker,
};
use strongroom_ring::Ring;

/// Which promise is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A flush is acknowledged without fdatasync.
    FlushWithoutSync,
    /// A durable write is written as any other.
    DurableWriteWithoutSync,
    /// The device forgets its last flush: not the queues, the replay breaks this one.
    DeviceForgetsFlush,
}

pub struct Broken {
    ring: Ring,
    rule: Rule,
}

impl Broken {
    pub fn new(ring: Ring, rule: Rule) -> Self {
        Self { ring, rule }
    }
}

impl Reactor for Broken {
    fn file_queue(&self) -> Result<Box<dyn FileQueue>, IoError> {
        Ok(Box::new(BrokenQueue { below: self.ring.file_queue()?, rule: self.rule, ended: Vec::new() }))
    }

    fn wake_at(&self, deadline: Instant) {
        self.ring.wake_at(deadline);
    }

    fn waker(&self) -> Arc<Waker> {
        self.ring.waker()
    }
}

struct BrokenQueue {
    below: Box<dyn FileQueue>,
    rule: Rule,
    /// Acknowledged without being done.
    ended: Vec<FileDone>,
}

impl FileQueue for BrokenQueue {
    fn register(&mut self, file: Arc<dyn DataFile>) -> Result<FileToken, IoError> {
        self.below.register(file)
    }

    fn submit(&mut self, mut io: FileIo) {
        match (&mut io.operation, self.rule) {
            (FileOperation::SyncData, Rule::FlushWithoutSync) => {
                self.ended.push(FileDone { tag: io.tag, result: Ok(()), buffer: None });
                return;
            }
            (FileOperation::Write { durable, .. }, Rule::DurableWriteWithoutSync) => *durable = false,
            _ => {}
        }
        self.below.submit(io);
    }

    fn kick(&mut self) {
        self.below.kick();
    }

    fn poll(&mut self, done: &mut Vec<FileDone>) {
        done.append(&mut self.ended);
        self.below.poll(done);
    }
}
