//! Completes the layer below the top, which took writes until a snapshot was made.
//!
//! This runs concurrently with the clients, on a separate thread: it brings the first-write log to
//! the layer, settles tags after a crash, and makes everything durable. Then the layer never
//! changes again, and the supervisor records that.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use strongroom_datastore::file::chain::LowerFlushes;
use strongroom_datastore::file::tags::TagsDisk;
use strongroom_datastore::file::{End, FileDisk};
use strongroom_io::{Disk, Errno, Io, IoError, Request, Sealed, Thread, Waker};
use strongroom_memory::{BufferPool, CHUNK_BYTES};
use strongroom_ring::{Job, Lanes, Ring};

use crate::condition::Completion;
use crate::destaging::destage;

/// Memory for reading blocks whose tags must be settled.
const POOL_BYTES: usize = 4 * CHUNK_BYTES;

/// The polling interval for what has no event: until the tags are settled, until nothing is read
/// from the log, and until the work begins.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The layer below the top, while it is not complete.
pub struct ClosingLayer {
    /// Its own blocks, with its log.
    pub layer: FileDisk,
    /// The blocks through the stage of its tags.
    pub blocks: Arc<dyn Disk<Sealed>>,
    /// That stage, if it has tags.
    pub tags: Option<TagsDisk>,
    /// The flushes that the stage above sends to it.
    pub flushes: Arc<LowerFlushes>,
}

/// The work of completing it.
pub struct Closing {
    shared: Arc<Shared>,
    job: Mutex<Option<Job<()>>>,
}

struct Shared {
    layer: ClosingLayer,
    stop: AtomicBool,
    outcome: Mutex<Completion>,
    told: Arc<Waker>,
}

impl Closing {
    /// Begins on a lane after a delay. `told` is called when the layer is complete or cannot be
    /// completed.
    pub fn begin(
        layer: ClosingLayer,
        after: Duration,
        lanes: &Lanes,
        told: Arc<Waker>,
    ) -> Result<Self, IoError> {
        let stop = AtomicBool::new(false);
        let shared = Arc::new(Shared { layer, stop, outcome: Mutex::new(Completion::UnderWay), told });
        let work = Arc::clone(&shared);
        shared.layer.layer.expect_destager(true);
        shared.layer.layer.hold_destaging(false);
        // Request this before the work begins, so that it cannot override a later request to end at
        // once.
        shared.layer.layer.end_destaging(End::Empty);
        let job = lanes.run(move |ring: &Ring| work.run(after, ring));
        let job = job.map_err(|_| IoError::Device(Errno(rustix::io::Errno::BUSY.raw_os_error())))?;
        Ok(Self { shared, job: Mutex::new(Some(job)) })
    }

    /// A view of the progress, for another thread.
    pub fn watch(&self) -> ClosingWatch {
        ClosingWatch(Arc::clone(&self.shared))
    }

    /// Whether a flush of the layer has failed, which a successor would not know.
    pub fn has_failed_flush(&self) -> bool {
        // A complete layer has nothing left to flush, and its tags no longer take flushes.
        let is_complete = *self.shared.outcome.lock() == Completion::Complete;
        let ClosingLayer { layer, tags, .. } = &self.shared.layer;
        !is_complete && (layer.has_failed_flush() || tags.as_ref().is_some_and(TagsDisk::has_failed_flush))
    }

    /// Stops the work, and leaves the rest to a successor. Returns the state that the successor
    /// must know.
    pub fn end(&self) -> ClosingEnd {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.layer.layer.end_destaging(End::Now);
        let joined = self.job.lock().take().is_none_or(|job| job.join().is_ok());
        let ClosingLayer { layer, tags, .. } = &self.shared.layer;
        let is_complete = *self.shared.outcome.lock() == Completion::Complete;
        ClosingEnd {
            is_complete,
            log_in_order: joined && !layer.has_failed_flush(),
            log_index: layer.log_index().filter(|_| joined),
            tags_in_order: is_complete || tags.as_ref().is_some_and(TagsDisk::close),
        }
    }
}

/// A view of the progress of the work.
pub struct ClosingWatch(Arc<Shared>);

impl ClosingWatch {
    /// The progress.
    pub fn outcome(&self) -> Completion {
        self.0.outcome.lock().clone()
    }

    /// The layer's stage of tags, if it has any.
    pub fn tags(&self) -> Option<&TagsDisk> {
        self.0.layer.tags.as_ref()
    }
}

impl std::fmt::Debug for ClosingWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ClosingWatch({:?})", self.outcome())
    }
}

/// The state in which the work was stopped.
#[derive(Debug)]
pub struct ClosingEnd {
    /// Whether the layer is complete.
    pub is_complete: bool,
    /// Whether the log's records are known to be durable.
    pub log_in_order: bool,
    /// The log's index, if it is known.
    pub log_index: Option<OwnedFd>,
    /// Whether the tags were closed in order.
    pub tags_in_order: bool,
}

impl Shared {
    fn run(&self, after: Duration, ring: &Ring) {
        let completed = self.delay(after, ring).and_then(|()| self.complete(ring));
        let outcome = match completed {
            Ok(true) => Completion::Complete,
            Ok(false) => return,
            Err(error) => {
                tracing::error!(%error, "the layer below the top cannot be completed; it is tried again when the volume is opened anew");
                Completion::Failed { reason: error.to_string() }
            }
        };
        *self.outcome.lock() = outcome;
        self.told.wake();
    }

    /// Waits, unless it is stopped.
    fn delay(&self, after: Duration, ring: &Ring) -> Result<(), IoError> {
        let until = Instant::now() + after;
        while !self.stop.load(Ordering::SeqCst)
            && let left = until.saturating_duration_since(Instant::now())
            && !left.is_zero()
        {
            ring.wait(Some(left.min(LOOK_EVERY)))?;
        }
        Ok(())
    }

    /// Returns `false` if it was stopped before it was done.
    fn complete(&self, ring: &Ring) -> Result<bool, IoError> {
        let ClosingLayer { layer, blocks, tags, flushes } = &self.layer;
        destage(layer, ring)?;
        let pool = BufferPool::new(POOL_BYTES).map_err(|_| IoError::NoSpace)?;
        let mut channel = blocks.open(&Thread { pool, reactor: Rc::new(ring.clone()) }, 2)?;
        let mut done = Vec::new();
        while tags.as_ref().is_some_and(|tags| tags.counts().unsettled_regions > 0) {
            if self.stop.load(Ordering::SeqCst) {
                return Ok(false);
            }
            channel.kick();
            channel.poll(&mut done);
            ring.wait(Some(LOOK_EVERY))?;
        }
        channel.submit(Io { tag: 0, request: Request::Flush });
        channel.kick();
        loop {
            channel.poll(&mut done);
            if let Some(done) = done.pop() {
                done.result?;
                break;
            }
            ring.wait(None)?;
        }
        drop(channel);
        // The log's file loses its content once the layer is complete.
        while layer.is_log_being_read() && !self.stop.load(Ordering::SeqCst) {
            ring.wait(Some(LOOK_EVERY))?;
        }
        if self.stop.load(Ordering::SeqCst) {
            return Ok(false);
        }
        flushes.end_all();
        match tags {
            Some(tags) if !tags.close() => Err(IoError::FlushFailed),
            _ => Ok(true),
        }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.end();
    }
}
