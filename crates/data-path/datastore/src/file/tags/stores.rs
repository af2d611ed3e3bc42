//! The writes of pages of tags that a channel makes room with. One can still be under way when its
//! request, and even its channel, has ended.

use std::any::Any;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;

use parking_lot::Mutex;
use strongroom_io::{
    DataFile, FileDone, FileIo, FileOperation, FileQueue, FileToken, IoError, Reactor, Thread,
};

use super::disk::Shared;
use super::pages::PageSlot;

/// A channel's queue for them.
pub(super) struct Stores {
    queue: Box<dyn FileQueue>,
    token: FileToken,
    file: Arc<StoresFile>,
    under_way: usize,
}

impl Stores {
    pub fn open(shared: &Arc<Shared>, thread: &Thread) -> Result<Self, IoError> {
        let mut queue = shared.sync_order.queue_without_syncs(&*shared.file, thread)?;
        let file = Arc::new(StoresFile { shared: Arc::clone(shared), left: Mutex::default() });
        Ok(Self { token: queue.register(Arc::clone(&file) as _)?, queue, file, under_way: 0 })
    }

    pub fn submit(&mut self, tag: u64, operation: FileOperation) {
        self.queue.submit(FileIo { tag, file: self.token, operation });
        self.under_way += 1;
    }

    /// Sends what was submitted. Most channels never write a page themselves.
    pub fn kick(&mut self) {
        if self.under_way > 0 {
            self.queue.kick();
        }
    }

    pub fn poll(&mut self, done: &mut Vec<FileDone>) {
        if self.under_way > 0 {
            let before = done.len();
            self.queue.poll(done);
            self.under_way -= done.len() - before;
        }
    }

    /// Leaves a page whose write is under way when the channel is dropped.
    pub fn leave(&self, slot: PageSlot) {
        self.file.left.lock().push(slot);
    }
}

/// The file of one channel's writes. Operations under way keep it alive even after the channel is
/// dropped. So when this is dropped, the writes that were left have ended, and cannot overwrite
/// later ones. Their pages count as not written, and another channel writes them again.
struct StoresFile {
    shared: Arc<Shared>,
    left: Mutex<Vec<PageSlot>>,
}

impl fmt::Debug for StoresFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoresFile").field("left", &self.left).finish_non_exhaustive()
    }
}

impl DataFile for StoresFile {
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.shared.file.as_fd()
    }

    fn as_any(&self) -> &dyn Any {
        self.shared.file.as_any()
    }

    fn queue(&self, reactor: &Rc<dyn Reactor>) -> Result<Box<dyn FileQueue>, IoError> {
        self.shared.file.queue(reactor)
    }
}

impl Drop for StoresFile {
    fn drop(&mut self) {
        let left = std::mem::take(self.left.get_mut());
        if left.is_empty() {
            return;
        }
        let mut state = self.shared.state();
        left.into_iter().for_each(|slot| state.end_storing(slot, false));
        state.unsynced = true;
        state.wake_all();
    }
}
