//! Threads that are started before there is work for them.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno as Raw;
use strongroom_io::{Errno, IoError, Reactor, Waker};
use thiserror::Error;

use crate::error::RingError;
use crate::ring::Ring;

/// Threads that are started before a sandbox closes, each with its own ring. Frontends run their
/// queues and connections on them. Clones share them.
///
/// After [`Self::start`] no more threads and rings are made. An idle lane sleeps in its ring, so
/// that work that the kernel leaves to the ring's thread, such as releasing a file's lock, is done
/// at once; only a job or this work wakes it.
///
/// Dropping the last clone ends the idle threads and waits for them; a busy thread ends after its
/// job.
#[derive(Clone)]
pub struct Lanes {
    crew: Arc<Crew>,
}

/// No lane is idle. Contains the job.
#[derive(Error)]
#[error("no thread is free for the job")]
pub struct Busy<J>(pub J);

/// A job that runs, or has run, on a lane. Dropping it detaches the job and discards its result.
#[derive(Debug)]
pub struct Job<T> {
    end: Receiver<thread::Result<T>>,
    /// The result, if it has been received and not yet returned.
    ended: Option<thread::Result<T>>,
}

/// The panic message of a job that a lane took but never began.
const LOST: &str = "the event loop of the job's thread failed";

/// The state that the clones of a [`Lanes`] share.
struct Crew {
    roster: Arc<Roster>,
    threads: Vec<Option<JoinHandle<()>>>,
}

/// The idle lanes.
#[derive(Default)]
struct Roster(Mutex<Idle>);

#[derive(Default)]
struct Idle {
    seats: Vec<Seat>,
    /// The wakers to wake when the next lane becomes idle.
    waiting: Vec<Arc<Waker>>,
    /// Set when the lanes end: a lane that finishes its job ends instead of becoming idle.
    closed: bool,
}

/// How to reach a sleeping lane.
#[derive(Clone)]
struct Seat {
    index: usize,
    orders: Sender<Order>,
    waker: Arc<Waker>,
}

enum Order {
    Work(Work),
    End,
}

/// A job; it returns the closure that sends its result to the waiting thread.
type Work = Box<dyn FnOnce(&Ring) -> Box<dyn FnOnce()> + Send>;

impl Lanes {
    /// Starts `count` threads, named `name-0` and so on, with rings of [depth](Ring::new) `depth`.
    /// All of them are idle when it returns.
    pub fn start(name: &str, count: usize, depth: usize) -> Result<Self, RingError> {
        let mut crew = Crew { roster: Arc::default(), threads: Vec::with_capacity(count) };
        let (start, started) = channel();
        for index in 0..count {
            let (roster, start) = (Arc::clone(&crew.roster), start.clone());
            let lane = thread::Builder::new().name(format!("{name}-{index}"));
            let thread = lane.spawn(move || run_lane(&roster, index, depth, &start)).map_err(no_thread)?;
            crew.threads.push(Some(thread));
        }
        drop(start);
        for _ in 0..count {
            started.recv().unwrap_or(Err(RingError::Thread(Errno(Raw::IO.raw_os_error()))))?;
        }
        Ok(Self { crew: Arc::new(crew) })
    }

    /// Runs a job on an idle lane. Returns the job in [`Busy`] if there is none.
    ///
    /// The job has the lane's ring to itself until it ends. It must remove what it opens, registers
    /// and watches there, and return only after its requests have ended. If a job panics, the lane
    /// cleans up after it, which takes until the kernel is done with the job's requests.
    pub fn run<T, J>(&self, job: J) -> Result<Job<T>, Busy<J>>
    where
        T: Send + 'static,
        J: FnOnce(&Ring) -> T + Send + 'static,
    {
        let Some(seat) = self.crew.roster.idle().seats.pop() else {
            return Err(Busy(job));
        };
        let (result, end) = channel();
        let work: Work = Box::new(move |ring| {
            // After a panic, unwinding has dropped the job's values; the ring is cleaned up
            // separately.
            let ended = catch_unwind(AssertUnwindSafe(|| job(ring)));
            Box::new(move || {
                // It fails if the job was detached.
                let _ = result.send(ended);
            })
        });
        // An idle lane takes orders. If its ring has failed just now, the job ends as if it had
        // panicked.
        let _ = seat.orders.send(Order::Work(work));
        seat.waker.wake();
        Ok(Job { end, ended: None })
    }

    /// The count of lanes that are idle now.
    pub fn idle(&self) -> usize {
        self.crew.roster.idle().seats.len()
    }

    /// Wakes `waker` once, as soon as a lane is idle.
    pub fn wake_when_idle(&self, waker: &Arc<Waker>) {
        let mut idle = self.crew.roster.idle();
        if idle.seats.is_empty() {
            idle.waiting.push(Arc::clone(waker));
        } else {
            waker.wake();
        }
    }
}

impl<T> Job<T> {
    /// Waits for the end of the job. Returns its result, or the payload of its panic. The lane is
    /// idle again by then.
    pub fn join(self) -> thread::Result<T> {
        self.ended.unwrap_or_else(|| self.end.recv().unwrap_or_else(|_| Err(Box::new(LOST))))
    }

    /// Returns whether the job has ended; [`Self::join`] does not wait then.
    pub fn poll_end(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = match self.end.try_recv() {
                Ok(ended) => Some(ended),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => Some(Err(Box::new(LOST))),
            };
        }
        self.ended.is_some()
    }
}

impl Roster {
    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.0.lock()
    }

    /// Marks a lane as idle. Returns `false` if the lane must end instead.
    fn rest(&self, seat: &Seat) -> bool {
        let mut idle = self.idle();
        if idle.closed {
            return false;
        }
        idle.seats.push(seat.clone());
        idle.waiting.drain(..).for_each(|waker| waker.wake());
        true
    }

    /// Removes a lane from the idle ones, so that it gets no more work.
    fn dismiss(&self, seat: &Seat) {
        self.idle().seats.retain(|other| other.index != seat.index);
    }
}

/// The main function of a lane's thread.
fn run_lane(roster: &Roster, index: usize, depth: usize, start: &Sender<Result<(), RingError>>) {
    let ring = match Ring::new(depth) {
        Ok(ring) => ring,
        Err(error) => {
            // Another lane's failure may have closed the channel.
            let _ = start.send(Err(error));
            return;
        }
    };
    let (orders, received) = channel();
    let seat = Seat { index, orders, waker: ring.waker() };
    let goes_on = roster.rest(&seat);
    let _ = start.send(Ok(()));
    if goes_on && let Err(error) = serve(roster, &seat, &received, &ring) {
        tracing::error!(index, %error, "a thread's event loop failed, and the thread ends");
        roster.dismiss(&seat);
    }
}

/// Runs jobs until the lane must end.
fn serve(roster: &Roster, seat: &Seat, received: &Receiver<Order>, ring: &Ring) -> Result<(), IoError> {
    loop {
        let work = match received.try_recv() {
            Ok(Order::Work(work)) => work,
            Ok(Order::End) | Err(TryRecvError::Disconnected) => return Ok(()),
            Err(TryRecvError::Empty) => {
                ring.wait(None)?;
                continue;
            }
        };
        let deliver = work(ring);
        let quiet = ring.quiet();
        // Do this before delivering the result, so that a thread that has joined a job finds an
        // idle lane.
        let goes_on = quiet.is_ok() && roster.rest(seat);
        // An unwanted result is dropped here; if its destructor panics, the lane must survive.
        let _ = catch_unwind(AssertUnwindSafe(deliver));
        quiet?;
        if !goes_on {
            return Ok(());
        }
    }
}

fn no_thread(error: std::io::Error) -> RingError {
    RingError::Thread(Errno(Raw::from_io_error(&error).unwrap_or(Raw::IO).raw_os_error()))
}

impl Drop for Crew {
    fn drop(&mut self) {
        let mut idle = self.roster.idle();
        idle.closed = true;
        let seats = std::mem::take(&mut idle.seats);
        drop(idle);
        for seat in &seats {
            let _ = seat.orders.send(Order::End);
            seat.waker.wake();
        }
        // This is never the current thread, which would not be idle.
        for thread in seats.iter().filter_map(|seat| self.threads.get_mut(seat.index)?.take()) {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lanes({} of {} idle)", self.idle(), self.crew.threads.len())
    }
}

impl<J> fmt::Debug for Busy<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Busy")
    }
}
