//! A thread's file queues with an interposer, which can let operations fail, or report them as
//! done.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use strongroom_io::{
    DataFile, FileDone, FileIo, FileOperation, FileQueue, FileToken, IoError, Reactor, Waker,
};

/// The fate of an operation.
pub enum Fate {
    /// It is done, in this form.
    Done(FileIo),
    /// It ends with this result, and is not done.
    Ends(FileIo, Result<(), IoError>),
    /// It ends at once, and is done later; it must have no buffer that the submitter waits for.
    DoneLater(FileIo),
}

/// Decides for the operations of one queue.
pub trait Between {
    /// Called for each file of the queue, before any operation on it.
    fn registers(&mut self, _file: &Arc<dyn DataFile>, _token: FileToken) {}

    /// Decides the fate of an operation.
    fn submits(&mut self, io: FileIo) -> Fate;

    /// Called with the completion of an operation that was done; may change it.
    fn ended(&mut self, _done: &mut FileDone) {}

    /// Called when all completions have been passed to `ended`.
    fn polls(&mut self) {}
}

/// The tag of the first operation that the submitter does not wait for.
const FORGOTTEN: u64 = 1 << 40;

/// A reactor whose file queues each get a `Between` from `make`.
pub struct Interposed<R, M> {
    pub below: R,
    pub make: M,
}

impl<R: Reactor, B: Between + 'static, M: Fn() -> B> Reactor for Interposed<R, M> {
    fn file_queue(&self) -> Result<Box<dyn FileQueue>, IoError> {
        Ok(Box::new(InterposedQueue {
            below: self.below.file_queue()?,
            between: (self.make)(),
            ended: Vec::new(),
            forgotten: BTreeSet::new(),
            next_forgotten: FORGOTTEN,
        }))
    }

    fn wake_at(&self, deadline: Instant) {
        self.below.wake_at(deadline);
    }

    fn waker(&self) -> Arc<Waker> {
        self.below.waker()
    }
}

struct InterposedQueue<B> {
    below: Box<dyn FileQueue>,
    between: B,
    /// Operations that ended without being done.
    ended: Vec<FileDone>,
    forgotten: BTreeSet<u64>,
    next_forgotten: u64,
}

impl<B: Between> FileQueue for InterposedQueue<B> {
    fn register(&mut self, file: Arc<dyn DataFile>) -> Result<FileToken, IoError> {
        let token = self.below.register(Arc::clone(&file))?;
        self.between.registers(&file, token);
        Ok(token)
    }

    fn submit(&mut self, io: FileIo) {
        match self.between.submits(io) {
            Fate::Done(io) => self.below.submit(io),
            Fate::Ends(FileIo { tag, operation, .. }, result) => {
                let buffer = match operation {
                    FileOperation::Read { into: buffer, .. } | FileOperation::Write { from: buffer, .. } => {
                        Some(buffer)
                    }
                    _ => None,
                };
                self.ended.push(FileDone { tag, result, buffer });
            }
            Fate::DoneLater(mut io) => {
                self.ended.push(FileDone { tag: io.tag, result: Ok(()), buffer: None });
                // The submitter may use the tag again before this ends.
                io.tag = self.next_forgotten;
                self.next_forgotten += 1;
                self.forgotten.insert(io.tag);
                self.below.submit(io);
            }
        }
    }

    fn kick(&mut self) {
        self.below.kick();
    }

    fn poll(&mut self, done: &mut Vec<FileDone>) {
        done.append(&mut self.ended);
        let mut below = Vec::new();
        self.below.poll(&mut below);
        self.between.polls();
        for mut ended in below {
            if !self.forgotten.remove(&ended.tag) {
                self.between.ended(&mut ended);
                done.push(ended);
            }
        }
    }
}
