//! A stage's queue of file operations.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use strongroom_io::{DataFile, FileDone, FileIo, FileQueue, FileToken, IoError};

use crate::file::OpenFile;
use crate::operation::{Inbox, Operation};
use crate::ring::Core;

/// File operations of one stage, executed by the thread's ring.
///
/// Dropping it discards results that were not polled. Submitted operations may be done or not, and
/// the ring keeps their buffers and files until the kernel has released them. A file without other
/// users is released with the queue; its `flock` can be free some milliseconds later (12 seen), so
/// the next owner waits for it. The next owner must not wait on this thread while its ring is idle:
/// if a kernel worker did an operation, the operation and its file are freed by work that the
/// kernel leaves to the ring's thread, which does it in its next [`crate::Ring::wait`].
pub struct RingFileQueue {
    core: Rc<RefCell<Core>>,
    inbox: Rc<Inbox>,
    files: Vec<Rc<OpenFile>>,
}

impl RingFileQueue {
    pub(crate) fn new(core: Rc<RefCell<Core>>) -> Self {
        Self {
            core,
            inbox: Rc::new(Inbox { done: RefCell::default(), open: Cell::new(true) }),
            files: Vec::new(),
        }
    }
}

impl FileQueue for RingFileQueue {
    fn register(&mut self, file: Arc<dyn DataFile>) -> Result<FileToken, IoError> {
        let file = self.core.borrow_mut().uring.open(file)?;
        self.files.push(file);
        Ok(FileToken((self.files.len() - 1) as u32))
    }

    fn submit(&mut self, io: FileIo) {
        let file = self.files.get(io.file.0 as usize);
        match Operation::begin(&self.inbox, file, io.tag, io.operation) {
            Ok(operation) => self.core.borrow_mut().send(operation),
            Err(done) => self.core.borrow_mut().deliver(&self.inbox, done),
        }
    }

    fn kick(&mut self) {
        self.core.borrow_mut().kick();
    }

    fn poll(&mut self, done: &mut Vec<FileDone>) {
        self.core.borrow_mut().fetch(&self.inbox, done);
    }
}

impl Drop for RingFileQueue {
    fn drop(&mut self) {
        let mut core = self.core.borrow_mut();
        core.close(&self.inbox);
        self.files.clear();
        core.uring.release_places();
    }
}
