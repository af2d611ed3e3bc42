//! How the suite's threads sleep: as the threads that they represent would.

use std::rc::Rc;
use std::time::Duration;

use crate::error::IoError;
use crate::reactor::{EventLoop, IdleReactor, Reactor};

/// An event loop for disks that need no files.
pub struct IdleLoop {
    reactor: Rc<IdleReactor>,
}

impl IdleLoop {
    /// A loop for the calling thread.
    pub fn new() -> Result<Self, IoError> {
        Ok(Self { reactor: Rc::new(IdleReactor::new()?) })
    }
}

impl EventLoop for IdleLoop {
    fn reactor(&self) -> Rc<dyn Reactor> {
        Rc::clone(&self.reactor) as Rc<dyn Reactor>
    }

    fn sleep(&self, at_most: Duration) -> Result<(), IoError> {
        self.reactor.sleep(at_most)
    }
}
