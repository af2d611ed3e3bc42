//! Range locks: who may touch which bytes now, across all queues of a volume.
//!
//! Reads and whole-block writes share; partial writes (read, modify, write), zeroings, discards and background
//! copies are exclusive. Without it a partial write would put back old bytes over a whole-block write that
//! ran beside it, and a reader could see the torn first fill of a block.
//!
//! The path of a whole-block transfer is short: while nothing exclusive is held or waits, taking a lock
//! writes down one entry under a mutex. Waiting is first come, first served among those that overlap, so nobody
//! starves. A waiter never blocks its thread: the lock arrives in its queue's inbox, and the thread is woken.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use strongroom_types::Extent;

use crate::reactor::Waker;

/// How a range is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// Beside others that share it.
    Shared,
    /// Alone.
    Exclusive,
}

/// The waiter's own name for a lock that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockTicket(pub u64);

/// A held range. It must go back through [`LockQueue::release`]; one that is dropped stays held, because nobody can
/// know that the I/O under it has ended.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a lock that is not released stays held"]
pub struct Lock(u32);

/// The locks of one volume.
#[derive(Default)]
pub struct RangeLocks {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    held: Vec<Option<(Extent, LockMode)>>,
    free: Vec<u32>,
    exclusive: usize,
    waiting: VecDeque<Waiter>,
}

struct Waiter {
    extent: Extent,
    mode: LockMode,
    ticket: LockTicket,
    inbox: Arc<Inbox>,
}

struct Inbox {
    granted: Mutex<Vec<(LockTicket, Lock)>>,
    any: AtomicBool,
    waker: Arc<Waker>,
}

impl RangeLocks {
    /// No range held.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// A queue's way to take locks; `waker` is its thread's.
    pub fn queue(self: &Arc<Self>, waker: Arc<Waker>) -> LockQueue {
        let inbox = Inbox { granted: Mutex::default(), any: AtomicBool::new(false), waker };
        LockQueue { locks: Arc::clone(self), inbox: Arc::new(inbox) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code under this mutex can panic half-way through a change, so a poisoned one is still right.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for RangeLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        write!(f, "RangeLocks({} held, {} waiting)", state.held.len() - state.free.len(), state.waiting.len())
    }
}

fn conflict(a: (Extent, LockMode), b: (Extent, LockMode)) -> bool {
    (a.1 == LockMode::Exclusive || b.1 == LockMode::Exclusive) && a.0.overlaps(b.0)
}

impl State {
    /// Whether this must wait for something held, or for one of the first `before` waiters.
    fn must_wait(&self, extent: Extent, mode: LockMode, before: usize) -> bool {
        if mode == LockMode::Shared && self.exclusive == 0 && before == 0 {
            return false;
        }
        let asked = (extent, mode);
        self.held.iter().flatten().any(|held| conflict(*held, asked))
            || self.waiting.iter().take(before).any(|waiter| conflict((waiter.extent, waiter.mode), asked))
    }

    fn hold(&mut self, extent: Extent, mode: LockMode) -> Lock {
        self.exclusive += usize::from(mode == LockMode::Exclusive);
        if let Some(index) = self.free.pop() {
            self.held[index as usize] = Some((extent, mode));
            return Lock(index);
        }
        self.held.push(Some((extent, mode)));
        Lock((self.held.len() - 1) as u32)
    }

    fn let_go(&mut self, lock: Lock) {
        let Some((_, mode)) = self.held.get_mut(lock.0 as usize).and_then(Option::take) else {
            debug_assert!(false, "a lock was released twice");
            return;
        };
        self.exclusive -= usize::from(mode == LockMode::Exclusive);
        self.free.push(lock.0);
        let mut index = 0;
        while index < self.waiting.len() {
            let (extent, mode) = (self.waiting[index].extent, self.waiting[index].mode);
            if self.must_wait(extent, mode, index) {
                index += 1;
                continue;
            }
            let lock = self.hold(extent, mode);
            if let Some(waiter) = self.waiting.remove(index) {
                waiter.inbox.put(waiter.ticket, lock);
            }
        }
    }
}

impl Inbox {
    fn put(&self, ticket: LockTicket, lock: Lock) {
        self.granted.lock().unwrap_or_else(PoisonError::into_inner).push((ticket, lock));
        self.any.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// One queue's way to take and release locks. What it still holds or waits for when it is dropped stays held.
pub struct LockQueue {
    locks: Arc<RangeLocks>,
    inbox: Arc<Inbox>,
}

impl LockQueue {
    /// Takes a range: now, or (`None`) later through [`LockQueue::granted`] under this ticket.
    pub fn acquire(&self, extent: Extent, mode: LockMode, ticket: LockTicket) -> Option<Lock> {
        let mut state = self.locks.state();
        if !state.must_wait(extent, mode, state.waiting.len()) {
            return Some(state.hold(extent, mode));
        }
        state.waiting.push_back(Waiter { extent, mode, ticket, inbox: Arc::clone(&self.inbox) });
        None
    }

    /// Gives a range back, and grants what waited for it.
    pub fn release(&self, lock: Lock) {
        self.locks.state().let_go(lock);
    }

    /// Appends the locks that have been granted since.
    pub fn granted(&self, granted: &mut Vec<(LockTicket, Lock)>) {
        if self.inbox.any.swap(false, Ordering::Acquire) {
            granted.append(&mut self.inbox.granted.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl fmt::Debug for LockQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.locks.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(offset: u64, length: u64) -> Extent {
        Extent::new(offset, length).unwrap()
    }

    fn queue(locks: &Arc<RangeLocks>) -> LockQueue {
        locks.queue(Arc::new(Waker::new().unwrap()))
    }

    fn granted(queue: &LockQueue) -> Vec<(LockTicket, Lock)> {
        let mut granted = Vec::new();
        queue.granted(&mut granted);
        granted
    }

    use LockMode::{Exclusive, Shared};

    #[test]
    fn sharers_share_and_the_exclusive_one_is_alone() {
        let locks = RangeLocks::new();
        let queue = queue(&locks);
        let a = queue.acquire(extent(0, 8192), Shared, LockTicket(1)).unwrap();
        let b = queue.acquire(extent(4096, 8192), Shared, LockTicket(2)).unwrap();
        assert_eq!(queue.acquire(extent(4096, 10), Exclusive, LockTicket(3)), None);
        let far = queue.acquire(extent(1 << 20, 10), Exclusive, LockTicket(4)).unwrap();
        queue.release(a);
        assert!(granted(&queue).is_empty());
        queue.release(b);
        let mut now = granted(&queue);
        assert_eq!(now.len(), 1);
        assert_eq!(now[0].0, LockTicket(3));
        queue.release(now.remove(0).1);
        queue.release(far);
        assert_eq!(format!("{locks:?}"), "RangeLocks(0 held, 0 waiting)");
    }

    #[test]
    fn an_exclusive_waiter_is_not_overtaken() {
        let locks = RangeLocks::new();
        let (first, second) = (queue(&locks), queue(&locks));
        let reader = first.acquire(extent(0, 4096), Shared, LockTicket(1)).unwrap();
        assert_eq!(second.acquire(extent(0, 512), Exclusive, LockTicket(2)), None);
        assert_eq!(first.acquire(extent(0, 4096), Shared, LockTicket(3)), None, "it would starve the waiter");
        let beside = first.acquire(extent(4096, 4096), Shared, LockTicket(4)).unwrap();
        first.release(reader);
        let (_, lock) = granted(&second).remove(0);
        assert!(granted(&first).is_empty());
        second.release(lock);
        let (ticket, lock) = granted(&first).remove(0);
        assert_eq!(ticket, LockTicket(3));
        first.release(lock);
        first.release(beside);
    }

    #[test]
    fn threads_never_hold_what_conflicts() {
        let locks = RangeLocks::new();
        // A word per block: readers add 1, the exclusive one adds 1000 and must see itself alone.
        let words: Arc<Vec<std::sync::atomic::AtomicU32>> =
            Arc::new((0..8).map(|_| Default::default()).collect());
        let threads: Vec<_> = (0..4_u64)
            .map(|seed| {
                let (locks, words) = (Arc::clone(&locks), Arc::clone(&words));
                std::thread::spawn(move || {
                    let waker = Arc::new(Waker::new().unwrap());
                    let queue = locks.queue(Arc::clone(&waker));
                    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
                    for _ in 0..5_000 {
                        state ^= state << 13;
                        state ^= state >> 7;
                        state ^= state << 17;
                        let first = state % 8;
                        let count = 1 + (state >> 8) % (8 - first);
                        let (mode, weight) =
                            if state >> 20 & 3 == 0 { (Exclusive, 1000) } else { (Shared, 1) };
                        let lock =
                            match queue.acquire(extent(first * 4096, count * 4096), mode, LockTicket(0)) {
                                Some(lock) => lock,
                                None => loop {
                                    let mut event = [rustix::event::PollFd::from_borrowed_fd(
                                        waker.event(),
                                        rustix::event::PollFlags::IN,
                                    )];
                                    rustix::event::poll(&mut event, None).unwrap();
                                    waker.reset();
                                    if let Some((_, lock)) = granted(&queue).pop() {
                                        break lock;
                                    }
                                },
                            };
                        for word in &words[first as usize..(first + count) as usize] {
                            let before = word.fetch_add(weight, Ordering::SeqCst);
                            assert!(if mode == Exclusive { before == 0 } else { before < 1000 });
                        }
                        for word in &words[first as usize..(first + count) as usize] {
                            word.fetch_sub(weight, Ordering::SeqCst);
                        }
                        queue.release(lock);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(format!("{locks:?}"), "RangeLocks(0 held, 0 waiting)");
    }
}
