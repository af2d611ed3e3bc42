//! An event loop whose files lie on a cluster.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use strongroom_io::{FileQueue, IoError, Reactor, Waker};

use crate::queue::RbdQueue;

/// A thread's event loop for stages whose files are images; the thread sleeps as the loop below
/// does.
pub struct RbdReactor {
    below: Rc<dyn Reactor>,
    depth: usize,
}

impl RbdReactor {
    /// Over the thread's own loop; each queue has about `depth` operations under way.
    pub fn new(below: Rc<dyn Reactor>, depth: usize) -> Self {
        Self { below, depth }
    }
}

impl Reactor for RbdReactor {
    fn file_queue(&self) -> Result<Box<dyn FileQueue>, IoError> {
        Ok(Box::new(RbdQueue::new(self.below.waker(), self.depth)))
    }

    fn wake_at(&self, deadline: Instant) {
        self.below.wake_at(deadline);
    }

    fn waker(&self) -> Arc<Waker> {
        self.below.waker()
    }
}
