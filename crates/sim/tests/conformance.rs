//! The file volume on simulated files passes the suite that every disk must pass: completions in any order, some of them late.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use strongroom_datastore::file::*;
use strongroom_io::conformance::{Conformance, EventLoop};
use strongroom_io::{Allocation, Channel, Disk, IoError, Limits, Sealed, Thread};
use strongroom_memory::{BufferPool, CHUNK_BYTES};
use strongroom_sim::SimFs;
use strongroom_types::{Extent, VolumeSize};

/// A volume with a thread that empties its first-write log.
struct Destaged {
    disk: Arc<FileDisk>,
    thread: Option<JoinHandle<()>>,
}

impl Destaged {
    fn over(disk: Arc<FileDisk>, fs: &SimFs) -> Self {
        disk.expect_destager(true);
        let (shared, fs) = (Arc::clone(&disk), fs.clone());
        let thread = std::thread::spawn(move || {
            let reactor = fs.reactor(0).unwrap();
            let pool = BufferPool::new(CHUNK_BYTES).unwrap();
            let thread = Thread { pool, reactor: reactor.reactor() };
            let Some(mut destager) = shared.destager(&thread).unwrap() else { return };
            destager.poll();
            while destager.ended().is_none() {
                reactor.sleep(Duration::from_secs(60)).unwrap();
                destager.poll();
            }
        });
        Self { disk, thread: Some(thread) }
    }
}

impl Drop for Destaged {
    fn drop(&mut self) {
        self.disk.end_destaging(End::Empty);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Disk<Sealed> for Destaged {
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

fn suite(fs: &SimFs, provisioning: Provisioning) -> Conformance<Sealed> {
    let (count, seeds) = (AtomicU64::new(0), AtomicU64::new(0));
    let (volumes, threads) = (fs.clone(), fs.clone());
    let suite = Conformance::<Sealed>::new(move || {
        let path = PathBuf::from(format!("/ds/vm{}", count.fetch_add(1, Ordering::Relaxed)));
        let size = VolumeSize::new((5 << 20) + 512).unwrap();
        let protection = Protection::Unencrypted;
        create_on(
            &volumes,
            &path,
            &CreateOptions { size, provisioning, protection, log_bytes: None, integrity: false },
        )
        .unwrap();
        let lock_wait = Duration::ZERO;
        let options = OpenOptions { protection, access: Access::ReadWrite, lock_wait, least_generation: 0 };
        Destaged::over(open_on(&volumes, &path, &options).unwrap().disk, &volumes)
    });
    suite.event_loops(move || threads.reactor(seeds.fetch_add(1, Ordering::Relaxed)))
}

#[test]
fn thin() {
    if let Err(failure) = suite(&SimFs::new(1), Provisioning::Thin).run() {
        panic!("{failure}");
    }
}

#[test]
fn thick() {
    if let Err(failure) = suite(&SimFs::new(2), Provisioning::Thick).run() {
        panic!("{failure}");
    }
}
