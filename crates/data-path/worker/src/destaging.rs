//! A thread that brings first writes from a layer's log to the layer, as long as the volume is
//! served.

use std::rc::Rc;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use strongroom_datastore::file::{Destager, End, FileDisk};
use strongroom_io::{Errno, IoError, Thread};
use strongroom_memory::{BufferPool, CHUNK_BYTES};
use strongroom_ring::{Job, Lanes, Ring, RingError};
use thiserror::Error;

/// Operations of a destager in flight.
const DEPTH: usize = 64;

/// The reasons why first writes cannot be brought to the layer.
#[derive(Debug, Error)]
pub enum DestagingError {
    /// There is no thread, or no event loop for it.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The layer cannot be opened for destaging.
    #[error("the volume's first-write log cannot be emptied: {0}")]
    Open(#[from] IoError),
}

/// One thread for the top, one for the layer below it while that is completed, and one for a merge
/// of two layers further below.
const LANES: usize = 3;

/// Starts the threads for this, before the sandbox is closed.
pub fn lanes() -> Result<Lanes, RingError> {
    Lanes::start("destage", LANES, DEPTH)
}

/// The destaging of one layer.
pub struct Destaging {
    disk: FileDisk,
    /// The running work, taken by the call that ends it.
    job: Mutex<Option<Work>>,
}

enum Work {
    Lane(Job<Result<(), IoError>>),
    Thread(JoinHandle<Result<(), IoError>>),
}

impl Destaging {
    /// Begins on a lane of [`lanes`]. Does nothing if the layer has no log.
    pub fn on(disk: &FileDisk, lanes: &Lanes) -> Result<Self, DestagingError> {
        let shared = disk.clone();
        let job = match disk.log_size_and_use() {
            None => None,
            Some(_) => {
                disk.expect_destager(true);
                let job = lanes.run(move |ring: &Ring| destage(&shared, ring)).map_err(|_| {
                    // There is a lane for each layer that takes writes, or took them until a
                    // snapshot was made.
                    IoError::Device(Errno(rustix::io::Errno::BUSY.raw_os_error()))
                })?;
                Some(Work::Lane(job))
            }
        };
        Ok(Self { disk: disk.clone(), job: Mutex::new(job) })
    }

    /// Begins on a separate thread, for the first destaging of an open layer.
    pub fn on_own_thread(disk: &FileDisk) -> Result<Self, DestagingError> {
        let shared = disk.clone();
        let job = match disk.log_size_and_use() {
            None => None,
            Some(_) => {
                disk.expect_destager(true);
                let thread = std::thread::Builder::new().name("destage".to_owned()).spawn(move || {
                    let ring = Ring::new(DEPTH).map_err(|error| {
                        tracing::error!(%error, "there is no event loop to empty a volume's first-write log with");
                        IoError::Device(Errno(rustix::io::Errno::NOMEM.raw_os_error()))
                    })?;
                    destage(&shared, &ring)
                });
                let failed = |error: std::io::Error| {
                    let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN);
                    IoError::Device(Errno(errno.raw_os_error()))
                };
                Some(Work::Thread(thread.map_err(failed)?))
            }
        };
        Ok(Self { disk: disk.clone(), job: Mutex::new(job) })
    }

    /// Ends it. [`End::Empty`] waits until all writes are in the layer; no writes may be submitted
    /// any more. After an error the records stay in the log, where the next process to open the
    /// volume finds them.
    pub fn end(self, end: End) -> Result<(), IoError> {
        self.end_job(end)
    }

    fn end_job(&self, end: End) -> Result<(), IoError> {
        let Some(job) = self.job.lock().take() else { return Ok(()) };
        self.disk.end_destaging(end);
        let ended = match job {
            Work::Lane(job) => job.join(),
            Work::Thread(thread) => thread.join(),
        };
        ended.unwrap_or(Err(IoError::Closed))
    }
}

impl Drop for Destaging {
    fn drop(&mut self) {
        // After an error the records stay in the log, and a warning was logged.
        let _ = self.end_job(End::Empty);
    }
}

/// Destages until it is asked to end. Does nothing if the layer has no log.
pub(crate) fn destage(disk: &FileDisk, ring: &Ring) -> Result<(), IoError> {
    let open = || -> Result<Option<Destager>, IoError> {
        let pool = BufferPool::new(CHUNK_BYTES).map_err(|_| IoError::NoSpace)?;
        disk.destager(&Thread { pool, reactor: Rc::new(ring.clone()) })
    };
    let opened = open();
    disk.expect_destager(false);
    if let Err(error) = opened {
        tracing::error!(%error, "the first-write log cannot be emptied");
    }
    let Some(mut destager) = opened? else { return Ok(()) };
    loop {
        destager.poll();
        if let Some(ended) = destager.ended() {
            return ended;
        }
        ring.wait(None)?;
    }
}
