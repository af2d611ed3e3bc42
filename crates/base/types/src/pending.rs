//! An answer that is still to come: waited for by a thread, or awaited by a task of any executor.
//!
//! Rooms whose work is done by one thread of their own (`store`, `audit`) hand these out, so that a
//! caller inside an asynchronous program never blocks its reactor, and one outside needs no
//! reactor.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};

/// Makes both ends of one answer.
pub fn pending<T>() -> (Answerer<T>, Pending<T>) {
    let shared = Arc::new(Shared { slot: Mutex::new(Slot::Open(Waiter::Nobody)), settled: Condvar::new() });
    (Answerer { shared: Arc::clone(&shared) }, Pending { shared })
}

/// The end that answers, once. Dropped without an answer, it tells the other end that none will
/// come.
#[derive(Debug)]
pub struct Answerer<T> {
    shared: Arc<Shared<T>>,
}

/// The end that waits: [`wait`](Self::wait) for a thread, `.await` for a task. Dropping it gives up
/// the answer, not the work.
#[derive(Debug)]
#[must_use = "what was asked for is done only once the answer is there"]
pub struct Pending<T> {
    shared: Arc<Shared<T>>,
}

/// The answering side ended without an answer. Whether the work was done is not known.
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
    /// Nothing yet.
    Open(Waiter),
    Answered(T),
    /// No answer will come, or it was taken.
    Closed,
}

/// Who waits for the answer. Waking a thread is a system call, so none is made for nobody.
#[derive(Debug)]
enum Waiter {
    Nobody,
    Task(Waker),
    Thread,
}

impl<T> Shared<T> {
    /// Leaves what is not [`Slot::Open`] as it is.
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
    /// Gives the answer and wakes the thread that waits for it.
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
    /// Blocks the thread until the answer is there. Inside an asynchronous program use `.await`
    /// instead.
    ///
    /// # Errors
    /// [`Abandoned`] if none will come.
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

/// What has been settled, or nothing while it is open.
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
