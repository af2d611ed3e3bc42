//! The event loop with which a thread submits, polls and sleeps.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_io::{EventLoop, FileDone, FileQueue, IoError, Reactor, Waker};
use strongroom_memory::Buffer;

use crate::error::RingError;
use crate::operation::{Inbox, Next, Operation};
use crate::queue::RingFileQueue;
use crate::uring::{Job, Uring};
use crate::watch::{Interest, Ready, WatchToken, Watches};

/// The most completions that one poll of a queue returns. Completions are processed in batches of
/// this size, so that the client of the first need not wait until the last is decrypted, and can
/// send its next request meanwhile. Otherwise a disk that completes its requests in batches would
/// idle between them: at depth 32 this is worth 11 % of reads and 23 % of writes.
pub const ENDS_POLLED_MAX: usize = 8;

/// The bytes after which such a batch ends: large transfers take longer to decrypt than many small
/// ones.
pub const ENDS_POLLED_BYTES_MAX: usize = 128 << 10;

/// The most submission entries of a ring. Operations beyond this wait in the backlog, and each
/// further batch of this size costs a system call.
const ENTRIES_MAX: usize = 4096;

/// A thread's io_uring and event loop. Clones share it, and it stays on the thread that made it.
///
/// When the last clone and the last queue are dropped, it waits until the kernel has released all
/// buffers and files. For a transfer that a device works on, this takes as long as the device.
#[derive(Clone)]
pub struct Ring {
    core: Rc<RefCell<Core>>,
    waker: Arc<Waker>,
}

impl Ring {
    /// Makes a ring for the calling thread, permanently restricted to the operations of this crate.
    /// `depth` is the usual count of operations in flight in all its queues together; more are
    /// never refused, but cost more system calls.
    pub fn new(depth: usize) -> Result<Self, RingError> {
        let waker = Arc::new(Waker::new().map_err(RingError::Waker)?);
        let entries = depth.clamp(1, ENTRIES_MAX).next_power_of_two() as u32;
        let core = Core {
            uring: Uring::new(entries, waker.event())?,
            watches: Watches::default(),
            unpolled: 0,
            waker: Arc::clone(&waker),
            waker_armed: false,
            woken: false,
            deadline: None,
        };
        Ok(Self { core: Rc::new(RefCell::new(core)), waker })
    }

    /// Submits what is queued, and sleeps until there is a completion to poll, a socket to take, a
    /// [`Waker::wake`], a deadline of [`Reactor::wake_at`], or until `at_most` has passed. It may
    /// end early, and does not sleep at all if something is there already, so check everything
    /// after it. It usually takes one system call. It takes more if more was queued than the ring
    /// has entries, or if the kernel signals that it holds completions back.
    pub fn wait(&self, at_most: Option<Duration>) -> Result<(), IoError> {
        self.core.borrow_mut().wait(at_most)
    }

    /// Watches a socket, pipe or eventfd, and requests its next readiness. The ring keeps it open
    /// even if its descriptor is closed.
    ///
    /// [`Self::take_ready`] reports readiness once in each requested direction; [`Self::rearm`]
    /// requests the next report. The kernel checks the socket's state at each request, so no data
    /// is missed even if not everything was read, and a frontend that cannot take more makes no
    /// request. Requests are sent with the next system call, and need none of their own.
    pub fn watch(&self, socket: &impl AsFd, interest: Interest) -> Result<WatchToken, IoError> {
        let core = &mut *self.core.borrow_mut();
        let socket = core.uring.place(socket.as_fd())?;
        Ok(core.watches.insert(&mut core.uring, socket, interest))
    }

    /// Requests the next readiness in the directions of `interest`. Earlier requests without a
    /// report remain.
    pub fn rearm(&self, token: WatchToken, interest: Interest) {
        let core = &mut *self.core.borrow_mut();
        core.watches.rearm(&mut core.uring, token, interest);
    }

    /// Ends a watch: nothing more is reported. The ring releases the socket in a later
    /// [`Self::wait`], so shut the socket down if its peer must notice at once.
    pub fn unwatch(&self, token: WatchToken) {
        let core = &mut *self.core.borrow_mut();
        core.watches.remove(&mut core.uring, token);
    }

    /// Appends the sockets that became ready.
    pub fn take_ready(&self, ready: &mut Vec<Ready>) {
        let core = &mut *self.core.borrow_mut();
        core.reap();
        core.watches.take_ready(ready);
    }

    /// Resets the ring, so that the next job finds it like new: ends all watches, clears the
    /// deadline, and waits until the kernel has released every buffer and file.
    pub(crate) fn quiet(&self) -> Result<(), IoError> {
        self.core.borrow_mut().quiet()
    }

    /// Whether the kernel has reported something or is ready to. Reads memory only, without a
    /// system call.
    pub fn has_arrived(&self) -> bool {
        let core = &mut *self.core.borrow_mut();
        core.unpolled > 0 || core.watches.has_ready() || core.uring.has_arrived()
    }

    /// The count of system calls in which this ring has submitted or waited.
    pub fn enters(&self) -> u64 {
        self.core.borrow().uring.enters()
    }
}

impl Reactor for Ring {
    fn file_queue(&self) -> Result<Box<dyn FileQueue>, IoError> {
        Ok(Box::new(RingFileQueue::new(Rc::clone(&self.core))))
    }

    fn wake_at(&self, deadline: Instant) {
        let mut core = self.core.borrow_mut();
        let earliest = core.deadline.map_or(deadline, |earlier| earlier.min(deadline));
        core.deadline = Some(earliest);
    }

    fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }
}

impl EventLoop for Ring {
    fn reactor(&self) -> Rc<dyn Reactor> {
        Rc::new(self.clone())
    }

    fn sleep(&self, at_most: Duration) -> Result<(), IoError> {
        self.wait(Some(at_most))
    }
}

/// The state that the clones of a ring and its queues share.
pub(crate) struct Core {
    pub(crate) uring: Uring,
    watches: Watches,
    /// Ended operations in the inboxes of open queues. One queue's poll reaps for all, so another
    /// queue's may be here when the thread is about to sleep, which it then must not.
    unpolled: usize,
    waker: Arc<Waker>,
    /// Whether the ring polls the waker's event.
    waker_armed: bool,
    /// The waker was used and not reset. It is reset only in `wait`, because the thread looks for
    /// work after that.
    woken: bool,
    deadline: Option<Instant>,
}

impl Core {
    pub(crate) fn send(&mut self, operation: Operation) {
        self.uring.send(Job::File(operation));
    }

    pub(crate) fn kick(&mut self) {
        // If this fails, the entries remain, and `wait` fails too and returns the error.
        let _ = self.uring.submit();
    }

    /// Puts an ended operation into its queue's inbox.
    pub(crate) fn deliver(&mut self, inbox: &Inbox, done: FileDone) {
        if inbox.open.get() {
            inbox.done.borrow_mut().push(done);
            self.unpolled += 1;
        }
    }

    /// Moves a queue's ended operations to `done`, at most [`ENDS_POLLED_MAX`] of them and no more
    /// after [`ENDS_POLLED_BYTES_MAX`]. While there are more, the thread does not sleep.
    pub(crate) fn fetch(&mut self, inbox: &Inbox, done: &mut Vec<FileDone>) {
        self.reap();
        let mut ended = inbox.done.borrow_mut();
        let mut bytes = 0;
        let in_piece = ended.iter().take(ENDS_POLLED_MAX).take_while(|end| {
            let fits = bytes < ENDS_POLLED_BYTES_MAX;
            bytes += end.buffer.as_ref().map_or(0, Buffer::len);
            fits
        });
        let count = in_piece.count();
        self.unpolled -= count;
        done.extend(ended.drain(..count));
    }

    /// Discards a queue's ended operations, and later ones.
    pub(crate) fn close(&mut self, inbox: &Inbox) {
        inbox.open.set(false);
        let ended = inbox.done.take();
        self.unpolled -= ended.len();
    }

    /// Dispatches all available completions.
    fn reap(&mut self) {
        self.uring.collect();
        while let Some((job, answer)) = self.uring.next_completed() {
            match job {
                Job::File(operation) => match operation.advance(answer) {
                    Next::Again(operation) => self.send(operation),
                    Next::End(inbox, done) => self.deliver(&inbox, done),
                },
                Job::PollWaker => {
                    self.waker_armed = false;
                    self.woken = true;
                }
                Job::PollSocket { watch, direction, .. } => self.watches.answered(watch, direction, answer),
            }
        }
        self.uring.release_places();
    }

    fn quiet(&mut self) -> Result<(), IoError> {
        self.watches.clear(&mut self.uring);
        self.deadline = None;
        self.reap();
        // The remaining job is the poll for wake-ups.
        while self.uring.jobs() > usize::from(self.waker_armed) {
            self.uring.sleep(None)?;
            self.reap();
        }
        self.uring.release_chunks();
        Ok(())
    }

    fn wait(&mut self, at_most: Option<Duration>) -> Result<(), IoError> {
        if !self.waker_armed {
            self.uring.send(Job::PollWaker);
            self.waker_armed = true;
        }
        self.reap();
        let now = self.deadline.map(|_| Instant::now());
        let until_deadline = self.deadline.zip(now).map(|(at, now)| at.saturating_duration_since(now));
        let at_most = [at_most, until_deadline].into_iter().flatten().min();
        let busy = self.woken || self.unpolled > 0 || self.watches.has_ready();
        if busy || at_most.is_some_and(|at_most| at_most.is_zero()) {
            self.uring.submit()?;
        } else {
            self.uring.sleep(at_most)?;
        }
        self.reap();
        if self.woken {
            self.woken = false;
            self.waker.reset();
        }
        if self.deadline.is_some_and(|at| at <= Instant::now()) {
            self.deadline = None;
        }
        Ok(())
    }
}
