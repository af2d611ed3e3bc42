//! A pending answer: a thread can wait for it, or a task of any executor can await it.
//!
//! Crates that do their work on one thread of their own (`store`, `audit`) return these, so that a
//! caller in an asynchronous program never blocks its reactor, and other callers need no reactor.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};

/// Makes the two ends of one answer.
pub fn pending<T>() -> (Answerer<T>, Pending<T>) {
    let shared = Arc::new(Shared { slot: Mutex::new(Slot::Open(Waiter::Nobody)), settled: Condvar::new() });
    (Answerer { shared: Arc::clone(&shared) }, Pending { shared })
}

/// The end that answers, once. If it is dropped without an answer, the other end gets
/// [`Abandoned`].
#[derive(Debug)]
pub struct Answerer<T> {
    shared: Arc<Shared<T>>,
}

/// The end that waits: [`wait`](Self::wait) for a thread, `.await` for a task. Dropping it discards
/// the answer, but does not cancel the work.
#[derive(Debug)]
#[must_use = "what was asked for is done only once the answer is there"]
pub struct Pending<T> {
    shared: Arc<Shared<T>>,
}

/// The answering end was dropped without an answer. Whether the work was done is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer will not come: whoever was to give it has ended")]
pub struct Abandoned;

#[derive(Debug)]
struct Shared<T> {
    slot: Mutex<Slot<T>>,
    settled: Condvar,
}

#[derive(Debug)]
enum Slot<T> {
    /// There is no answer yet.
    Open(Waiter),
    Answered(T),
    /// The answer was taken, or will never come.
    Closed,
}

/// The waiter for the answer. Waking a thread is a system call, so it is omitted if there is no
/// waiter.
#[derive(Debug)]
enum Waiter {
    Nobody,
    Task(Waker),
    Thread,
}

impl<T> Shared<T> {
    /// Settles an open slot; others stay as they are.
    fn settle(&self, outcome: Slot<T>) {
        let mut slot = self.slot.lock();
        if !matches!(*slot, Slot::Open(_)) {
            return;
        }
        let before = std::mem::replace(&mut *slot, outcome);
        drop(slot);
        match before {
            Slot::Open(Waiter::Task(waker)) => waker.wake(),
            Slot::Open(Waiter::Thread) => {
                self.settled.notify_all();
            }
            Slot::Open(Waiter::Nobody) | Slot::Answered(_) | Slot::Closed => {}
        }
    }
}

impl<T> Answerer<T> {
    /// Sends the answer, and wakes the waiting thread or task.
    pub fn answer(self, answer: T) {
        self.shared.settle(Slot::Answered(answer));
    }
}

impl<T> Drop for Answerer<T> {
    fn drop(&mut self) {
        self.shared.settle(Slot::Closed);
    }
}

impl<T> Pending<T> {
    /// Blocks the thread until the answer arrives. In an asynchronous program use `.await` instead.
    ///
    /// # Errors
    /// [`Abandoned`] if it will never arrive.
    pub fn wait(self) -> Result<T, Abandoned> {
        let mut slot = self.shared.slot.lock();
        loop {
            if let Some(outcome) = take(&mut slot) {
                return outcome;
            }
            *slot = Slot::Open(Waiter::Thread);
            self.shared.settled.wait(&mut slot);
        }
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T, Abandoned>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = self.shared.slot.lock();
        if let Some(outcome) = take(&mut slot) {
            return Poll::Ready(outcome);
        }
        *slot = Slot::Open(Waiter::Task(context.waker().clone()));
        Poll::Pending
    }
}

/// Takes the answer; `None` while the slot is open.
fn take<T>(slot: &mut Slot<T>) -> Option<Result<T, Abandoned>> {
    if matches!(slot, Slot::Open(_)) {
        return None;
    }
    match std::mem::replace(slot, Slot::Closed) {
        Slot::Answered(answer) => Some(Ok(answer)),
        Slot::Open(_) | Slot::Closed => Some(Err(Abandoned)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_thread_waits_for_the_answer_of_another() {
        let (answerer, answer) = pending();
        let waiting = std::thread::spawn(move || answer.wait());
        answerer.answer(7);
        assert_eq!(waiting.join().unwrap(), Ok(7));
    }

    #[test]
    fn a_task_is_woken_once_and_finds_the_answer() {
        let (answerer, mut answer) = pending();
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut context = Context::from_waker(&waker);
        assert_eq!(Pin::new(&mut answer).poll(&mut context), Poll::Pending);
        assert_eq!(count.0.load(Ordering::SeqCst), 0);
        answerer.answer("done");
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert_eq!(Pin::new(&mut answer).poll(&mut context), Poll::Ready(Ok("done")));
        assert_eq!(Pin::new(&mut answer).poll(&mut context), Poll::Ready(Err(Abandoned)));
    }

    #[test]
    fn one_that_goes_away_without_an_answer_is_noticed() {
        let (answerer, answer) = pending::<()>();
        drop(answerer);
        assert_eq!(answer.wait(), Err(Abandoned));
    }

    #[test]
    fn nobody_has_to_wait() {
        let (answerer, answer) = pending();
        drop(answer);
        answerer.answer(1);
    }
}
