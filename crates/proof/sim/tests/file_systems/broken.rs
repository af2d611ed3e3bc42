//! A thread's queues that break a promise on purpose, to be caught.

use std::rc::Rc;

use strongroom_io::{FileIo, FileOperation, Reactor};
use strongroom_ring::Ring;

use super::interposed::{Between, Fate, Interposed};

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

impl Rule {
    /// The reactor of a thread that breaks it.
    pub fn over(self, below: Ring) -> Rc<dyn Reactor> {
        Rc::new(Interposed { below, make: move || Broken(self) })
    }
}

struct Broken(Rule);

impl Between for Broken {
    fn submits(&mut self, mut io: FileIo) -> Fate {
        match (&mut io.operation, self.0) {
            (FileOperation::SyncData, Rule::FlushWithoutSync) => return Fate::Ends(io, Ok(())),
            (FileOperation::Write { durable, .. }, Rule::DurableWriteWithoutSync) => *durable = false,
            _ => {}
        }
        Fate::Done(io)
    }
}
