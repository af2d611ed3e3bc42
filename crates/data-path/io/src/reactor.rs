//! How a thread of the data path sleeps and is woken.

use std::cell::Cell;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use strongroom_memory::BufferPool;

use crate::error::IoError;
use crate::file::FileQueue;

/// The operations that a thread's stages need from their event loop.
pub trait Reactor {
    /// A new queue of file operations for this thread.
    fn file_queue(&self) -> Result<Box<dyn FileQueue>, IoError>;

    /// Ends the thread's sleep at `deadline`, if it sleeps that long; only the earliest deadline
    /// counts.
    fn wake_at(&self, deadline: Instant);

    /// Ends the thread's sleep from another thread.
    fn waker(&self) -> Arc<Waker>;
}

/// A thread's event loop, as the code that runs the thread sees it.
pub trait EventLoop {
    /// What the thread's channels get.
    fn reactor(&self) -> Rc<dyn Reactor>;

    /// Sleeps until something wakes the thread, or `at_most` has passed.
    fn sleep(&self, at_most: Duration) -> Result<(), IoError>;
}

/// The resources of the thread that opens a channel.
#[derive(Clone)]
pub struct Thread {
    /// Memory for transfers.
    pub pool: BufferPool,
    /// The event loop.
    pub reactor: Rc<dyn Reactor>,
}

impl fmt::Debug for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Thread({:?})", self.pool)
    }
}

/// Ends a thread's sleep from another thread: an eventfd that is written at most once per sleep.
#[derive(Debug)]
pub struct Waker {
    event: OwnedFd,
    woken: AtomicBool,
}

impl Waker {
    /// A new waker for one thread.
    pub fn new() -> Result<Self, IoError> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event, woken: AtomicBool::new(false) })
    }

    /// Ends the present sleep, or the next one.
    pub fn wake(&self) {
        if !self.woken.swap(true, Ordering::SeqCst) {
            // It can fail only if the counter is full, which wakes the thread too.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// Clears past wake-ups. The sleeper calls it after it woke and before it looks for work.
    pub fn reset(&self) {
        let _ = rustix::io::read(&self.event, &mut [0_u8; 8]);
        self.woken.store(false, Ordering::SeqCst);
    }

    /// The eventfd that becomes readable when the thread is woken.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// A reactor without a leaf of its own: for disks in memory, and for files that have
/// [queues](crate::DataFile::queue) of their own.
pub struct IdleReactor {
    waker: Arc<Waker>,
    deadline: Cell<Option<Instant>>,
}

impl IdleReactor {
    /// A new reactor for the calling thread.
    pub fn new() -> Result<Self, IoError> {
        Ok(Self { waker: Arc::new(Waker::new()?), deadline: Cell::new(None) })
    }

    /// Sleeps until the thread is woken, the earliest deadline comes, or `at_most` has passed.
    pub fn sleep(&self, at_most: Duration) -> Result<(), IoError> {
        let until_deadline = self.deadline.take().map(|at| at.saturating_duration_since(Instant::now()));
        let sleep = until_deadline.map_or(at_most, |sleep| sleep.min(at_most));
        let sleep = Timespec { tv_sec: sleep.as_secs() as i64, tv_nsec: i64::from(sleep.subsec_nanos()) };
        match poll(&mut [PollFd::new(&self.waker.event(), PollFlags::IN)], Some(&sleep)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.waker.reset();
        Ok(())
    }
}

impl EventLoop for Rc<IdleReactor> {
    fn reactor(&self) -> Rc<dyn Reactor> {
        Rc::clone(self) as _
    }

    fn sleep(&self, at_most: Duration) -> Result<(), IoError> {
        IdleReactor::sleep(self, at_most)
    }
}

impl Reactor for IdleReactor {
    fn file_queue(&self) -> Result<Box<dyn FileQueue>, IoError> {
        Err(IoError::from(rustix::io::Errno::OPNOTSUPP))
    }

    fn wake_at(&self, deadline: Instant) {
        let earliest = self.deadline.get().map_or(deadline, |earlier| earlier.min(deadline));
        self.deadline.set(Some(earliest));
    }

    fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_before_the_sleep_is_not_lost() {
        let reactor = IdleReactor::new().unwrap();
        let waker = reactor.waker();
        std::thread::spawn(move || {
            waker.wake();
            waker.wake();
        })
        .join()
        .unwrap();
        // This would hang for a day if the wake-up were lost.
        reactor.sleep(Duration::from_secs(86_400)).unwrap();
    }

    #[test]
    fn the_earliest_deadline_ends_the_sleep() {
        let reactor = IdleReactor::new().unwrap();
        reactor.wake_at(Instant::now() + Duration::from_secs(86_400));
        reactor.wake_at(Instant::now() + Duration::from_millis(1));
        reactor.sleep(Duration::from_secs(86_400)).unwrap();
    }
}
