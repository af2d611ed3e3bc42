//! A queue: a lane that moves requests between a ring and the disk.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;
use rustix::io::Errno;
use strongroom_io::{IoError, Reactor, Thread, Waker};
use strongroom_memory::{BufferPool, GuestMemory};
use strongroom_ring::{
    ENDS_POLLED_BYTES_MAX, ENDS_POLLED_MAX, Interest, Job, Lanes, Ready, Ring, WatchToken,
};
use thiserror::Error;

use super::device::Device;
use super::in_flight::InFlightArea;
use super::protocol::{STAGE_MEMORY_BYTES, feature};
use super::spinning::Spinning;
use super::split_ring::{Layout, RingError, SplitRing};
use super::transfers::{Transfers, Unfinished};

/// The most requests that are taken from the ring before they are sent to the disk: so the disk
/// begins with the first ones while later ones are encrypted. At most as many completions are
/// polled at once, so that the driver learns of them before later ones are decrypted.
const REQUESTS_TAKEN_MAX: usize = ENDS_POLLED_MAX;

/// The bytes of content after which taken requests are sent to the disk.
const BYTES_TAKEN_MAX: u64 = ENDS_POLLED_BYTES_MAX as u64;

/// The reasons why a queue does not run.
#[derive(Debug, Error)]
pub enum QueueError {
    /// The guest's ring is invalid.
    #[error("the guest's queue is broken: {0}")]
    Ring(#[from] RingError),
    /// The disk or the event loop failed.
    #[error("the queue cannot be served: {0}")]
    Io(#[from] IoError),
    /// There is no memory.
    #[error(transparent)]
    Memory(#[from] strongroom_memory::PoolError),
    /// There is no thread.
    #[error("no thread is free for the queue")]
    NoLane,
    /// The file for kicks is not usable as an eventfd.
    #[error("the file for kicks cannot be read: {0}")]
    Kick(Errno),
}

/// The eventfd that interrupts the driver. The front end changes it while the queue runs, so that a
/// guest can mask its interrupts without a pause.
#[derive(Debug, Default)]
pub struct CallFile(Mutex<Option<Arc<OwnedFd>>>);

impl CallFile {
    /// Sets the eventfd that interrupts the driver; `None` masks it. The driver is interrupted once
    /// right away, because it may have missed the interrupts of answers that came while the front
    /// end used another file. QEMU begins with its own file, and exchanges it when the rings run;
    /// requests that were in flight when a worker was killed are answered right between the two.
    pub fn set(&self, file: Option<Arc<OwnedFd>>) {
        *self.0.lock() = file;
        self.call();
    }

    fn call(&self) {
        if let Some(file) = &*self.0.lock() {
            signal(file);
        }
    }

    /// The file.
    pub fn get(&self) -> Option<Arc<OwnedFd>> {
        self.0.lock().clone()
    }
}

/// The parameters of a queue. To change any of them, the thread is ended first.
pub struct QueueSetup {
    /// The queue's number.
    pub index: usize,
    /// The disk.
    pub device: Arc<Device>,
    /// The features that the driver agreed on.
    pub features: u64,
    /// The guest's memory.
    pub memory: Arc<GuestMemory>,
    /// Where the ring is.
    pub layout: Layout,
    /// The first entry to take, unless the in-flight area knows better.
    pub next_available: u16,
    /// The area that records requests in flight.
    pub in_flight: Option<Arc<InFlightArea>>,
    /// The eventfd that signals new entries.
    pub kick: Arc<OwnedFd>,
    /// The eventfd that signals used entries to the driver.
    pub call: Arc<CallFile>,
    /// The eventfd that tells the front end that the queue is broken.
    pub error: Option<Arc<OwnedFd>>,
}

/// A queue that runs.
pub struct Queue {
    /// Set when the queue is asked to end.
    stopping: Arc<OnceLock<Unfinished>>,
    waker: Arc<Waker>,
    job: Job<u16>,
    next_available: u16,
}

impl Queue {
    /// Starts a queue. Requests that are already in its ring, or were in flight when a predecessor
    /// ended, are served at once.
    pub fn start(setup: QueueSetup, lanes: &Lanes) -> Result<Self, QueueError> {
        let stopping = Arc::new(OnceLock::new());
        let (started, start) = sync_channel(1);
        let next_available = setup.next_available;
        let job = {
            let stopping = Arc::clone(&stopping);
            lanes.run(move |ring| run(&setup, ring, &stopping, &started))
        };
        let job = job.map_err(|_| QueueError::NoLane)?;
        match start.recv() {
            Ok(Ok(waker)) => Ok(Self { stopping, waker, job, next_available }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(QueueError::NoLane),
        }
    }

    /// Takes no more from the ring, answers the requests that were taken, and ends. Returns the
    /// entry at which to continue. `unfinished` decides about requests that wait for room.
    pub fn stop(self, unfinished: Unfinished) -> u16 {
        // This consumes the queue, so it cannot be set already.
        let _ = self.stopping.set(unfinished);
        self.waker.wake();
        self.job.join().unwrap_or_else(|_| {
            tracing::error!("a queue's thread panicked");
            self.next_available
        })
    }
}

fn run(
    setup: &QueueSetup,
    ring: &Ring,
    stopping: &OnceLock<Unfinished>,
    started: &SyncSender<Result<Arc<Waker>, QueueError>>,
) -> u16 {
    let mut runner = match Runner::new(setup, ring) {
        Ok(runner) => runner,
        Err(error) => {
            let _ = started.send(Err(error));
            return setup.next_available;
        }
    };
    let _ = started.send(Ok(runner.event_loop.waker()));
    // A predecessor may have been killed after it published answers and before it called the
    // driver.
    runner.call.call();
    if let Err(error) = runner.serve(stopping) {
        tracing::error!(queue = setup.index, %error, "the queue stops");
        if let Some(file) = &setup.error {
            signal(file);
        }
    }
    // A queue that ends by itself is broken, and is not resumed.
    runner.drain(stopping.get().copied().unwrap_or(Unfinished::Failed));
    runner.event_loop.unwatch(runner.token);
    runner.ring.next_available()
}

struct Runner {
    event_loop: Ring,
    token: WatchToken,
    kick: Arc<OwnedFd>,
    call: Arc<CallFile>,
    ring: SplitRing,
    transfers: Transfers,
    indirect: bool,
    ready: Vec<Ready>,
    /// The account of waits only for the driver, while nothing is in the disk.
    driver_waits: Spinning,
    /// The account of waits for the disk, and perhaps the driver.
    disk_waits: Spinning,
    /// When the wait before the next turn ended.
    woken: Option<Instant>,
}

impl Runner {
    fn new(setup: &QueueSetup, event_loop: &Ring) -> Result<Self, QueueError> {
        let event_index = setup.features & feature::RING_EVENT_IDX != 0;
        let in_flight = setup.in_flight.as_ref().map(|area| (area, setup.index));
        let ring = SplitRing::new(&setup.memory, setup.layout, setup.next_available, event_index, in_flight)?;
        if ring.replayed() > 0 {
            tracing::info!(queue = setup.index, requests = ring.replayed(), "doing again what was in flight");
        }
        let event_loop = event_loop.clone();
        let pool = BufferPool::new(STAGE_MEMORY_BYTES)?;
        let thread = Thread { pool, reactor: Rc::new(event_loop.clone()) };
        let channel = setup.device.open_channel(&thread)?;
        Ok(Self {
            token: event_loop.watch(&*setup.kick, Interest::READABLE)?,
            event_loop,
            kick: Arc::clone(&setup.kick),
            call: Arc::clone(&setup.call),
            ring,
            transfers: Transfers::new(Arc::clone(&setup.device), setup.features, channel),
            indirect: setup.features & feature::RING_INDIRECT_DESC != 0,
            ready: Vec::new(),
            driver_waits: Spinning::default(),
            disk_waits: Spinning::default(),
            woken: None,
        })
    }

    fn serve(&mut self, stopping: &OnceLock<Unfinished>) -> Result<(), QueueError> {
        while stopping.get().is_none() {
            if self.turn()? {
                continue;
            }
            let (begun, is_quiet) = (Instant::now(), self.transfers.is_quiet());
            if self.spins_to_work(begun, is_quiet)? {
                continue;
            }
            // If there is no room, the end of a request wakes us, and the next kick would be
            // useless.
            if self.transfers.has_room() && self.ring.listen()? {
                continue;
            }
            self.event_loop.wait(None)?;
            let now = Instant::now();
            self.waits(is_quiet).slept(now.saturating_duration_since(begun));
            self.woken = Some(now);
            self.take_kick()?;
        }
        Ok(())
    }

    /// The account of waits only for the driver, or for the disk.
    fn waits(&mut self, is_quiet: bool) -> &mut Spinning {
        if is_quiet { &mut self.driver_waits } else { &mut self.disk_waits }
    }

    /// Polls for work before the queue sleeps, if that pays, and does it. Returns whether there was
    /// any.
    fn spins_to_work(&mut self, begun: Instant, is_quiet: bool) -> Result<bool, QueueError> {
        let Some(window) = self.waits(is_quiet).window() else { return Ok(false) };
        // The driver may still be asked to kick, from the sleep before.
        self.ring.be_quiet()?;
        while begun.elapsed() < window {
            if self.event_loop.has_arrived() || self.transfers.has_room() && self.ring.look_for_new()? {
                let now = Instant::now();
                let after = now.saturating_duration_since(begun);
                self.woken = Some(now);
                // The kernel may have reported an unrelated event, or none.
                if self.turn()? {
                    self.waits(is_quiet).found(after);
                    return Ok(true);
                }
                break;
            }
            std::hint::spin_loop();
        }
        self.waits(is_quiet).missed();
        Ok(false)
    }

    /// Does all work that needs no wait. Returns whether there was any.
    fn turn(&mut self) -> Result<bool, QueueError> {
        let mut taken = false;
        let woken = self.woken.take();
        let mut left = REQUESTS_TAKEN_MAX;
        while left > 0
            && self.transfers.unsent_bytes() < BYTES_TAKEN_MAX
            && self.transfers.has_room()
            && let Some(head) = self.ring.take()?
        {
            if !taken {
                self.ring.be_quiet()?;
                self.transfers.set_now(woken.unwrap_or_else(Instant::now));
            }
            taken = true;
            left -= 1;
            self.transfers.start(&mut self.ring, head, self.indirect)?;
        }
        let moved = self.transfers.advance(&mut self.ring)?;
        if self.ring.publish()? {
            self.call.call();
        }
        Ok(taken || moved)
    }

    fn take_kick(&mut self) -> Result<(), QueueError> {
        self.event_loop.take_ready(&mut self.ready);
        if self.ready.drain(..).count() == 0 {
            return Ok(());
        }
        match rustix::io::read(&*self.kick, &mut [0_u8; 8]) {
            Ok(8) | Err(Errno::AGAIN | Errno::INTR) => {}
            // A file at its end is always ready and never signals anything.
            Ok(_) => return Err(QueueError::Kick(Errno::INVAL)),
            Err(errno) => return Err(QueueError::Kick(errno)),
        }
        self.event_loop.rearm(self.token, Interest::READABLE);
        Ok(())
    }

    /// Answers the requests that were taken, as far as possible, and waits until the disk is done.
    /// It does not wait for room.
    fn drain(&mut self, unfinished: Unfinished) {
        self.transfers.give_up(unfinished);
        loop {
            let moved = self.transfers.advance(&mut self.ring);
            if matches!(self.ring.publish(), Ok(true)) {
                self.call.call();
            }
            let moved = match moved {
                Ok(moved) => moved,
                Err(error) => {
                    tracing::debug!(%error, "an answer has no place");
                    true
                }
            };
            if self.transfers.is_quiet() {
                return;
            }
            // If the event loop fails, the ring itself waits for the kernel when it is dropped.
            if !moved && self.event_loop.wait(None).is_err() {
                return;
            }
        }
    }
}

/// Adds one to an eventfd that does not block. A full one is readable already.
fn signal(file: &OwnedFd) {
    let _ = rustix::io::write(file, &1_u64.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn calls(file: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(file, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    #[test]
    fn who_exchanges_the_file_is_called_by_the_new_one() {
        let file = || Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
        let (masked, guests) = (file(), file());
        let call = CallFile::default();
        call.set(Some(Arc::clone(&masked)));
        // The guest is told of an answer in between by the next file.
        call.call();
        assert!(calls(&masked) > 0);
        call.set(Some(Arc::clone(&guests)));
        assert_eq!(calls(&guests), 1);
        call.set(None);
        call.call();
        assert_eq!(calls(&guests), 0);
    }
}
