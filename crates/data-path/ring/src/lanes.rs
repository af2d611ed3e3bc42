//! Threads that are there before their work is.

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

/// Threads made before a sandbox closes, each with a ring of its own, for frontends to run their
/// queues and connections on. Clones share them.
///
/// After [`Self::start`] no thread and no ring is made any more. An idle lane sleeps in its ring,
/// so that what the kernel leaves to the ring's thread, such as the end of a file's lock, is done
/// at once; nothing else wakes it.
///
/// Dropping the last clone ends the idle threads, and waits for them; a busy one ends after its
/// job.
#[derive(Clone)]
pub struct Lanes {
    crew: Arc<Crew>,
}

/// No lane is idle; here is the job back.
#[derive(Error)]
#[error("no thread is free for the job")]
pub struct Busy<J>(pub J);

/// A job that runs on a lane, or has run. Dropping it lets the job go on, and forgets its result.
#[derive(Debug)]
pub struct Job<T> {
    end: Receiver<thread::Result<T>>,
    /// What has been received and not been asked for yet.
    ended: Option<thread::Result<T>>,
}

/// What a job is said to have panicked with that a lane took and never began.
const LOST: &str = "the event loop of the job's thread failed";

/// What the clones of a [`Lanes`] share.
struct Crew {
    roster: Arc<Roster>,
    threads: Vec<Option<JoinHandle<()>>>,
}

/// Which lanes are idle.
#[derive(Default)]
struct Roster(Mutex<Idle>);

#[derive(Default)]
struct Idle {
    seats: Vec<Seat>,
    /// Who wants to know of the next lane that becomes idle.
    waiting: Vec<Arc<Waker>>,
    /// No lane becomes idle any more: it ends instead.
    closed: bool,
}

/// How a lane is reached while it sleeps.
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

/// A job and, once it has been done, how its result reaches the thread that waits for it.
type Work = Box<dyn FnOnce(&Ring) -> Box<dyn FnOnce()> + Send>;

impl Lanes {
    /// Starts `count` threads, named `name-0` and so on, with rings of [depth](Ring::new) `depth`.
    /// When it returns, all of them are idle.
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

    /// Runs a job on an idle lane; the job comes back if there is none.
    ///
    /// The lane's ring is the job's until it ends: what it opens, registers and watches there, it
    /// takes down again, and so it does not return before its requests have. Whatever a job that
    /// panics leaves behind is taken down after it, and costs the lane only the time until the
    /// kernel is done with it.
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
            // What the job owned went down with it, and the ring is cleared of what it left there.
            let ended = catch_unwind(AssertUnwindSafe(|| job(ring)));
            Box::new(move || {
                // Nobody may want to know.
                let _ = result.send(ended);
            })
        });
        // A lane takes orders for as long as it is idle; should its ring have failed just now, the
        // job ends as one that panicked.
        let _ = seat.orders.send(Order::Work(work));
        seat.waker.wake();
        Ok(Job { end, ended: None })
    }

    /// How many lanes are idle now.
    pub fn idle(&self) -> usize {
        self.crew.roster.idle().seats.len()
    }

    /// Wakes `waker` once when a lane is idle, at once if one is.
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
    /// Waits for the end of the job: what it returned, or what it panicked with. The lane is idle
    /// again then.
    pub fn join(self) -> thread::Result<T> {
        self.ended.unwrap_or_else(|| self.end.recv().unwrap_or_else(|_| Err(Box::new(LOST))))
    }

    /// Takes up the end of the job, if it has come: [`Self::join`] does not wait then.
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

    /// Counts a lane among the idle ones; `false` if it is to end instead.
    fn rest(&self, seat: &Seat) -> bool {
        let mut idle = self.idle();
        if idle.closed {
            return false;
        }
        idle.seats.push(seat.clone());
        idle.waiting.drain(..).for_each(|waker| waker.wake());
        true
    }

    /// Gives a lane no more work.
    fn dismiss(&self, seat: &Seat) {
        self.idle().seats.retain(|other| other.index != seat.index);
    }
}

/// A lane's thread, from its first to its last.
fn run_lane(roster: &Roster, index: usize, depth: usize, start: &Sender<Result<(), RingError>>) {
    let ring = match Ring::new(depth) {
        Ok(ring) => ring,
        Err(error) => {
            // Nobody listens any more after another lane's failure.
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

/// Does what there is to do until the lane is to end.
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
        // First this, so that who has joined a job can run the next one.
        let goes_on = quiet.is_ok() && roster.rest(seat);
        // A result that nobody wants is dropped here, and must not take the lane with it.
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
        // Never this thread itself: it would not be idle.
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
