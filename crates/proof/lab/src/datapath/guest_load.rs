//! Guests that load disks which are served over vhost-user, and take little of the processor for
//! it.
//!
//! Each queue has a thread, as a guest's processor has. It submits all that it may, tells the
//! device of it once, takes all answers that are there, and sleeps until it is called if there are
//! none; what it asks of the device is what Linux's driver asks. The one who waits for the threads
//! watches the server meanwhile.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use strongroom_types::SECTOR_BYTES;
use thiserror::Error;

use super::queue_load::{Asked, Phase, Progress, QueueLoad};
use crate::latency::Latencies;
use crate::vhost_user::front_end::{FrontEnd, FrontEndError, Settings};
use crate::vhost_user::guest::Pages;
use crate::vhost_user::prepared::PreparedError;

/// How often a signal is looked for.
const SIGNAL_PERIOD: Duration = Duration::from_millis(200);
/// For the last answers, after nothing more is asked for.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// To write a disk once.
const FILL_TIMEOUT: Duration = Duration::from_secs(600);

/// Why a server cannot be loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The front end.
    #[error(transparent)]
    FrontEnd(#[from] FrontEndError),
    /// A queue.
    #[error(transparent)]
    Queue(#[from] PreparedError),
    /// A disk that is smaller than one request.
    #[error("the disk has {0} bytes, too few for one request")]
    Small(u64),
    /// The server went away.
    #[error("the server went away")]
    Gone,
    /// Nothing was answered for too long.
    #[error("requests were not answered within {DRAIN_TIMEOUT:?}")]
    Stalled,
    /// What the two sides tell each other by.
    #[error("an event cannot be told: {0}")]
    Event(#[from] Errno),
    /// A person wants it to end.
    #[error("a signal asked for the end")]
    Signal,
}

/// In which order a disk is gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// At random, any block at any time.
    Random,
    /// One block after another, from the start again behind the end. Each queue has a part of the
    /// disk.
    Sequential,
}

/// What is asked of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// In which order.
    pub order: Order,
    /// How many of a hundred requests are reads, at random.
    pub reads_percent: u8,
    /// How much each transfers, in bytes.
    pub block_bytes: u32,
    /// Requests of each queue that are in flight.
    pub depth: u16,
}

/// What guests are like.
#[derive(Clone, Copy, Debug)]
pub struct Guests {
    /// Queues of each.
    pub queues: u16,
    /// What their memory consists of.
    pub pages: Pages,
    /// How long a queue's thread looks for answers before it sleeps.
    pub spin: Duration,
}

/// What a run found.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// Requests that were answered while it was counted.
    pub operations: u64,
    /// What they transferred.
    pub bytes: u64,
    /// How long it was counted.
    pub elapsed: Duration,
    /// Of each request.
    pub latencies: Latencies,
    /// Processor time of the guests' threads.
    pub client_cpu: Duration,
    /// How often the device was kicked.
    pub kicks: u64,
    /// How often a thread slept.
    pub sleeps: u64,
}

impl Loaded {
    fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.elapsed = self.elapsed.max(other.elapsed);
        self.latencies.add(&other.latencies);
        self.client_cpu += other.client_cpu;
        self.kicks += other.kicks;
        self.sleeps += other.sleeps;
    }
}

/// Guests, each with a disk.
pub struct GuestLoad {
    front_ends: Vec<FrontEnd>,
    queues: Vec<QueueLoad>,
    pattern: Pattern,
    spin: Duration,
    stop: Arc<AtomicBool>,
}

impl GuestLoad {
    /// Guests for all that have connected already. `stop` ends a run early.
    pub fn new(
        front_ends: Vec<FrontEnd>,
        pattern: Pattern,
        guests: Guests,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, LoadError> {
        let mut queues = Vec::new();
        for front_end in &front_ends {
            let disk_bytes = front_end.disk().sectors * SECTOR_BYTES;
            let disk_blocks = disk_bytes / u64::from(pattern.block_bytes);
            if disk_blocks == 0 {
                return Err(LoadError::Small(disk_bytes));
            }
            let shares = match pattern.order {
                Order::Random => 1,
                Order::Sequential => u64::from(guests.queues).min(disk_blocks),
            };
            for index in 0..guests.queues {
                let queue = front_end.prepare(index, pattern.block_bytes)?;
                let blocks = disk_blocks / shares;
                let first_block = u64::from(index) % shares * blocks;
                queues.push(QueueLoad::new(queue, first_block, blocks, queues.len() as u64)?);
            }
        }
        Ok(Self { front_ends, queues, pattern, spin: guests.spin, stop })
    }

    /// Connects to the server at `socket`.
    pub fn connect(socket: &Path, pattern: Pattern, guests: Guests) -> Result<FrontEnd, FrontEndError> {
        FrontEnd::connect(socket, settings(pattern, guests))
    }

    /// Loads the disks for `warm_up`, which is not counted, and then for `duration`, which is.
    /// `at_edge` is called when that begins, and when it ends.
    pub fn run<T>(
        &mut self,
        warm_up: Duration,
        duration: Duration,
        at_edge: &mut dyn FnMut() -> T,
    ) -> Result<(Loaded, [T; 2]), LoadError> {
        let asked = Asked { pattern: self.pattern, stride: 1, count_max: u64::MAX };
        self.drive(asked, &mut |watch| watch.through(warm_up, duration, at_edge))
    }

    /// Writes each block of the disks once, or of `stride` blocks that follow each other only the
    /// first.
    pub fn fill(&mut self, stride: u64) -> Result<(), LoadError> {
        let pattern = Pattern { order: Order::Sequential, reads_percent: 0, ..self.pattern };
        let asked = Asked { pattern, stride, count_max: self.blocks_max().div_ceil(stride) };
        self.drive(asked, &mut |watch| watch.until_ended(FILL_TIMEOUT)).map(drop)
    }

    /// Reads the first block of each disk.
    pub fn read_first(&mut self) -> Result<(), LoadError> {
        let pattern = Pattern { order: Order::Sequential, reads_percent: 100, depth: 1, ..self.pattern };
        let asked = Asked { pattern, stride: 1, count_max: 1 };
        self.drive(asked, &mut |watch| watch.until_ended(DRAIN_TIMEOUT)).map(drop)
    }

    fn blocks_max(&self) -> u64 {
        self.queues.iter().map(|queue| queue.blocks).max().unwrap_or(0)
    }

    fn drive<T>(
        &mut self,
        asked: Asked,
        through: &mut dyn FnMut(&Watch<'_>) -> Result<T, LoadError>,
    ) -> Result<(Loaded, T), LoadError> {
        let ended = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?;
        let progress = Progress { phase: AtomicU8::new(Phase::WarmUp as u8), ended };
        let spin = self.spin;
        let Self { front_ends, queues, stop, .. } = self;
        let calls: Vec<OwnedFd> = queues
            .iter()
            .map(|queue| queue.call.try_clone())
            .collect::<Result<_, _>>()
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))?;
        let watch = Watch { front_ends, calls: &calls, progress: &progress, stop };
        thread::scope(|scope| {
            let threads: Vec<_> = queues
                .iter_mut()
                .map(|queue| {
                    let progress = &progress;
                    scope.spawn(move || {
                        let counted = queue.drive(asked, spin, progress);
                        // A count that does not overflow.
                        let _ = rustix::io::write(&progress.ended, &1_u64.to_ne_bytes());
                        counted
                    })
                })
                .collect();
            let watched = through(&watch);
            if watched.is_err() {
                watch.enter(Phase::Abandoned);
            }
            let mut all = Loaded::default();
            let mut failed = None;
            for thread in threads {
                match thread.join() {
                    Ok(Ok(counted)) => all.add(&counted),
                    Ok(Err(error)) => failed = Some(error),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            match (watched, failed) {
                // A queue says more than that the threads have ended.
                (Ok(_) | Err(LoadError::Gone), Some(error)) => Err(error.into()),
                (watched, _) => watched.map(|edges| (all, edges)),
            }
        })
    }

    /// What the guests were agreed on with.
    pub fn front_ends(&self) -> &[FrontEnd] {
        &self.front_ends
    }
}

/// A guest as Linux is on a disk of QEMU's: contents lie side by side, as buffers of a program that
/// asks for direct I/O do.
fn settings(pattern: Pattern, guests: Guests) -> Settings {
    let queue_size = (2 * pattern.depth).next_power_of_two().max(128);
    Settings {
        splits_regions: false,
        slot_content_bytes: u64::from(pattern.block_bytes),
        pages: guests.pages,
        queue_size,
        ..Settings::new(guests.queues, pattern.depth)
    }
}

struct Watch<'run> {
    front_ends: &'run [FrontEnd],
    calls: &'run [OwnedFd],
    progress: &'run Progress,
    stop: &'run AtomicBool,
}

impl Watch<'_> {
    fn through<T>(
        &self,
        warm_up: Duration,
        duration: Duration,
        at_edge: &mut dyn FnMut() -> T,
    ) -> Result<[T; 2], LoadError> {
        self.wait(warm_up)?;
        self.enter(Phase::Counted);
        let first = at_edge();
        self.wait(duration)?;
        self.enter(Phase::Over);
        let edges = [first, at_edge()];
        self.until_ended(DRAIN_TIMEOUT)?;
        Ok(edges)
    }

    /// Waits until all threads have ended.
    fn until_ended(&self, within: Duration) -> Result<(), LoadError> {
        let start = Instant::now();
        let mut ended = 0;
        while ended < self.calls.len() {
            if start.elapsed() > within {
                return Err(LoadError::Stalled);
            }
            if self.look(SIGNAL_PERIOD)? {
                rustix::io::read(&self.progress.ended, &mut [0_u8; 8])?;
                ended += 1;
            }
        }
        Ok(())
    }

    /// All threads go on to a phase, those that sleep too.
    fn enter(&self, phase: Phase) {
        self.progress.phase.store(phase as u8, Ordering::Release);
        if phase != Phase::Counted {
            for call in self.calls {
                let _ = rustix::io::write(call, &1_u64.to_ne_bytes());
            }
        }
    }

    fn wait(&self, duration: Duration) -> Result<(), LoadError> {
        let until = Instant::now() + duration;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            if self.look(left.min(SIGNAL_PERIOD))? {
                return Err(LoadError::Gone);
            }
        }
    }

    /// Waits for so long at most; `true` if a thread has ended.
    fn look(&self, timeout: Duration) -> Result<bool, LoadError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(LoadError::Signal);
        }
        let mut files = vec![PollFd::new(&self.progress.ended, PollFlags::IN)];
        let sockets = self.front_ends.iter().map(FrontEnd::socket);
        files.extend(sockets.map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::RDHUP)));
        let timeout =
            Timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: timeout.subsec_nanos().into() };
        match poll(&mut files, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if files[1..].iter().any(|file| !file.revents().is_empty()) {
            return Err(LoadError::Gone);
        }
        Ok(!files[0].revents().is_empty())
    }
}
