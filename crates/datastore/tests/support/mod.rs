//! A thread that empties the first-write log of an open volume.

use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use strongroom_datastore::file::{End, FileDisk};
use strongroom_io::Thread;
use strongroom_memory::{BufferPool, CHUNK_BYTES};
use strongroom_ring::Ring;

/// Ends when it is dropped, with an empty log; channels are to be gone by then.
pub struct Destaging {
    disk: Arc<FileDisk>,
    thread: Option<JoinHandle<()>>,
}

impl Destaging {
    pub fn of(disk: &Arc<FileDisk>) -> Self {
        disk.expect_destager(true);
        let shared = Arc::clone(disk);
        let thread = std::thread::spawn(move || {
            let ring = Ring::new(64).unwrap();
            let pool = BufferPool::new(CHUNK_BYTES).unwrap();
            let thread = Thread { pool, reactor: Rc::new(ring.clone()) };
            let Some(mut destager) = shared.destager(&thread).unwrap() else { return };
            destager.poll();
            while destager.ended().is_none() {
                ring.wait(None).unwrap();
                destager.poll();
            }
        });
        Self { disk: Arc::clone(disk), thread: Some(thread) }
    }
}

impl Drop for Destaging {
    fn drop(&mut self) {
        self.disk.end_destaging(End::Empty);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}
