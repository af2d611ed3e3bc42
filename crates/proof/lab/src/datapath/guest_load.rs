//! Guests that load disks over vhost-user with little processor time.
//!
//! Each queue has a thread, like a guest's processor. It submits as many requests as allowed,
//! notifies the device once, takes all available answers, and sleeps until it is called if there
//! are none, like Linux's driver. The thread that waits for them watches the server meanwhile.

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
use crate::vhost_user::prepared::{Lengths, PreparedError};

/// The period of checking for a signal.
const SIGNAL_PERIOD: Duration = Duration::from_millis(200);
/// The time for the last answers after the last request.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// The time to write a disk once.
const FILL_TIMEOUT: Duration = Duration::from_secs(600);

/// Why loading a server failed.
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
    /// An eventfd.
    #[error("an event cannot be told: {0}")]
    Event(#[from] Errno),
    /// Stopped by a signal.
    #[error("a signal asked for the end")]
    Signal,
}

/// The order of access to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// At random, any block at any time.
    Random,
    /// One block after another, wrapping at the end. Each queue has a part of the disk.
    Sequential,
}

/// The pattern of requests to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The order.
    pub order: Order,
    /// The percentage of reads, chosen at random.
    pub reads_percent: u8,
    /// Bytes transferred by each request.
    pub block_bytes: u32,
    /// Requests of each queue that are in flight.
    pub depth: u16,
}

/// The properties of guests.
#[derive(Clone, Copy, Debug)]
pub struct Guests {
    /// Queues of each guest.
    pub queues: u16,
    /// The pages of their memory.
    pub pages: Pages,
    /// How long a queue's thread polls for answers before it sleeps.
    pub spin: Duration,
    /// How long their requests are.
    pub lengths: Lengths,
}

/// A moment of a run, at which the load goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The warm-up is over, and nothing is counted yet.
    Warm,
    /// The counted time is over, but what is answered meanwhile still counts, with its time.
    Ending,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// Requests answered in the counted time.
    pub operations: u64,
    /// Bytes that they transferred.
    pub bytes: u64,
    /// The counted time.
    pub elapsed: Duration,
    /// The latencies of the requests.
    pub latencies: Latencies,
    /// Processor time of the guests' threads.
    pub client_cpu: Duration,
    /// The number of kicks.
    pub kicks: u64,
    /// The number of times a thread slept.
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
    interval: Duration,
    stop: Arc<AtomicBool>,
}

impl GuestLoad {
    /// Guests for all connected front ends. `stop` ends a run early.
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
                let queue = front_end.prepare(index, pattern.block_bytes, guests.lengths)?;
                let blocks = disk_blocks / shares;
                let first_block = u64::from(index) % shares * blocks;
                queues.push(QueueLoad::new(queue, first_block, blocks, queues.len() as u64)?);
            }
        }
        Ok(Self { front_ends, queues, pattern, spin: guests.spin, interval: Duration::ZERO, stop })
    }

    /// Has [`Self::run`] send this many requests a second on each queue, if so many are answered.
    pub fn pace(&mut self, per_second: f64) {
        self.interval = Duration::from_secs_f64(1.0 / per_second);
    }

    /// Connects to the server at `socket`.
    pub fn connect(socket: &Path, pattern: Pattern, guests: Guests) -> Result<FrontEnd, FrontEndError> {
        FrontEnd::connect(socket, settings(pattern, guests))
    }

    /// Loads the disks for `warm_up`, which is not counted, and then for `duration`, which is.
    /// `at_edge` is called at the beginning and the end of the counted time.
    pub fn run<T>(
        &mut self,
        warm_up: Duration,
        duration: Duration,
        at_edge: &mut dyn FnMut() -> T,
    ) -> Result<(Loaded, [T; 2]), LoadError> {
        self.run_beside(warm_up, duration, &mut |_| {}, at_edge)
    }

    /// The same, with `beside` called beside the load.
    pub fn run_beside<T>(
        &mut self,
        warm_up: Duration,
        duration: Duration,
        beside: &mut dyn FnMut(Moment),
        at_edge: &mut dyn FnMut() -> T,
    ) -> Result<(Loaded, [T; 2]), LoadError> {
        let asked = Asked { interval: self.interval, ..Asked::of(self.pattern, u64::MAX) };
        self.drive(asked, &mut |watch| {
            watch.wait(warm_up)?;
            beside(Moment::Warm);
            watch.enter(Phase::Counted);
            let first = at_edge();
            watch.wait(duration)?;
            beside(Moment::Ending);
            watch.enter(Phase::Over);
            let edges = [first, at_edge()];
            watch.until_ended(DRAIN_TIMEOUT)?;
            Ok(edges)
        })
    }

    /// Writes each block of the disks once or, with `stride` above 1, the first of every `stride`
    /// blocks.
    pub fn fill(&mut self, stride: u64) -> Result<(), LoadError> {
        let pattern = Pattern { order: Order::Sequential, reads_percent: 0, ..self.pattern };
        let asked = Asked { stride, ..Asked::of(pattern, self.blocks_max().div_ceil(stride)) };
        self.drive(asked, &mut |watch| watch.until_ended(FILL_TIMEOUT)).map(drop)
    }

    /// Reads all of the disks once, in order.
    pub fn read_all(&mut self) -> Result<(), LoadError> {
        let pattern = Pattern { order: Order::Sequential, reads_percent: 100, ..self.pattern };
        let asked = Asked::of(pattern, self.blocks_max());
        self.drive(asked, &mut |watch| watch.until_ended(FILL_TIMEOUT)).map(drop)
    }

    /// Reads the first block of each disk.
    pub fn read_first(&mut self) -> Result<(), LoadError> {
        let pattern = Pattern { order: Order::Sequential, reads_percent: 100, depth: 1, ..self.pattern };
        let asked = Asked::of(pattern, 1);
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
                        // The counter does not overflow.
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
                // A queue's error is more specific than the end of the threads.
                (Ok(_) | Err(LoadError::Gone), Some(error)) => Err(error.into()),
                (watched, _) => watched.map(|edges| (all, edges)),
            }
        })
    }

    /// The guests' front ends.
    pub fn front_ends(&self) -> &[FrontEnd] {
        &self.front_ends
    }
}

/// The settings of a Linux guest on a disk of QEMU's: contents are contiguous, like the buffers of
/// a program with direct I/O.
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

    /// Moves all threads to a phase, including sleeping ones.
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

    /// Waits up to `timeout`; returns `true` if a thread has ended.
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
