//! A thread's queues that break a promise on purpose; the tests must catch them.

use std::rc::Rc;

use strongroom_io::{FileIo, FileOperation, Reactor};
use strongroom_ring::Ring;

use super::interposed::{Between, Fate, Interposed};

/// The broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A flush is acknowledged without fdatasync.
    FlushWithoutSync,
    /// A durable write is written like any other.
    DurableWriteWithoutSync,
    /// The device forgets its last flush. The replay breaks this rule, not the queues.
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
            (FileOperation::SyncData | FileOperation::Sync, Rule::FlushWithoutSync)
            // Of a durable write that changed the file system's map.
            | (FileOperation::Sync, Rule::DurableWriteWithoutSync) => return Fate::Ends(io, Ok(())),
            (FileOperation::Write { durable, .. }, Rule::DurableWriteWithoutSync) => *durable = false,
            _ => {}
        }
        Fate::Done(io)
    }
}
