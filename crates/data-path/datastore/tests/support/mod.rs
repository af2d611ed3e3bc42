//! A volume whose first-write log is emptied by a thread on the test's event loop.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a test fails by panicking; not every test needs all of it"
)]

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use strongroom_datastore::file::{End, FileDisk};
use strongroom_io::conformance::EventLoop;
use strongroom_io::{Allocation, Channel, Disk, IoError, Limits, Sealed, Thread};
use strongroom_memory::{BufferPool, CHUNK_BYTES};
use strongroom_types::Extent;

/// It is so long that only a wake-up ends it.
const SLEEP: Duration = Duration::from_secs(86_400);

/// A thread that empties the log. When dropped, it ends with an empty log; all channels must be
/// closed before.
pub struct Destaging {
    disk: Arc<FileDisk>,
    thread: Option<JoinHandle<()>>,
}

impl Destaging {
    pub fn of<L: EventLoop>(
        disk: &Arc<FileDisk>,
        event_loop: impl FnOnce() -> Result<L, IoError> + Send + 'static,
    ) -> Self {
        disk.expect_destager(true);
        let shared = Arc::clone(disk);
        let thread = std::thread::spawn(move || {
            let event_loop = event_loop().unwrap();
            let pool = BufferPool::new(CHUNK_BYTES).unwrap();
            let thread = Thread { pool, reactor: event_loop.reactor() };
            let Some(mut destager) = shared.destager(&thread).unwrap() else { return };
            destager.poll();
            while destager.ended().is_none() {
                event_loop.sleep(SLEEP).unwrap();
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

/// A volume, or a stage over it, with the thread that empties its log.
pub struct Destaged<D> {
    pub disk: D,
    pub destaging: Destaging,
}

impl<D: Disk<Sealed>> Disk<Sealed> for Destaged<D> {
    fn limits(&self) -> Limits {
        self.disk.limits()
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Sealed>>, IoError> {
        self.disk.open(thread, depth)
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        self.disk.allocation(extent, report)
    }
}
