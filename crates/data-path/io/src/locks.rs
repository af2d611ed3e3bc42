//! Range locks: which requests may access which bytes now, across all queues of a volume.
//!
//! Reads and whole-block writes share; partial writes (read, modify, write), zeroings, discards and
//! background copies are exclusive. Without them a partial write would put back old bytes over a
//! concurrent whole-block write, and a reader could see the torn first fill of a block.
//!
//! The path of a whole-block transfer is short: while no exclusive lock is held or waits, taking a
//! lock adds one entry to the queue's own table, and no two queues touch the same memory. An
//! exclusive request first sets a flag for all queues, and then scans their tables: an entry that
//! was added before is seen, and a later request sees the flag and takes the slow path. Waiting is
//! first come, first served among overlapping requests, so none starves. A waiter never blocks its
//! thread: the lock arrives in its queue's inbox, and the thread is woken.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use strongroom_memory::Padded;
use strongroom_types::Extent;

use crate::reactor::Waker;

/// The mode of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// Shared with other holders.
    Shared,
    /// Held alone.
    Exclusive,
}

/// The waiter's name for a lock that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockTicket(pub u64);

/// A held range. It must be released with [`LockQueue::release`] of its queue; a dropped lock stays
/// held, because it is unknown whether the I/O under it has ended.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a lock that is not released stays held"]
pub struct Lock(LockMode, u32);

/// The locks of one volume.
#[derive(Default)]
pub struct RangeLocks {
    /// Whether an exclusive lock is held or any request waits. It is set before the tables are
    /// scanned, and read under a table's mutex, so that one of the two sides always sees the other.
    contended: AtomicBool,
    state: Mutex<State>,
}

/// The state that queues do not touch while nothing is contended.
#[derive(Default)]
struct State {
    exclusive: Ranges,
    waiting: VecDeque<Waiter>,
    queues: Vec<Arc<Shared>>,
}

/// The shared ranges of one queue, on cache lines that no other queue uses.
#[derive(Default)]
struct Shared(Padded<Mutex<Ranges>>);

#[derive(Default)]
struct Ranges {
    held: Vec<Option<Extent>>,
    free: Vec<u32>,
}

struct Waiter {
    extent: Extent,
    mode: LockMode,
    ticket: LockTicket,
    inbox: Arc<Inbox>,
}

struct Inbox {
    shared: Arc<Shared>,
    granted: Mutex<Vec<(LockTicket, Lock)>>,
    any: AtomicBool,
    waker: Arc<Waker>,
}

impl RangeLocks {
    /// Locks without any held range.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Makes a queue's handle to take locks; `waker` is that of its thread.
    pub fn queue(self: &Arc<Self>, waker: Arc<Waker>) -> LockQueue {
        let shared = Arc::<Shared>::default();
        self.state.lock().queues.push(Arc::clone(&shared));
        let inbox = Inbox { shared, granted: Mutex::default(), any: AtomicBool::new(false), waker };
        LockQueue { locks: Arc::clone(self), inbox: Arc::new(inbox) }
    }

    /// Grants the waiting locks that need not wait any more.
    fn serve_waiting(&self, mut state: MutexGuard<'_, State>) {
        let mut index = 0;
        while index < state.waiting.len() {
            let Waiter { extent, mode, .. } = state.waiting[index];
            if state.must_wait(extent, mode, index) {
                index += 1;
            } else if let Some(waiter) = state.waiting.remove(index) {
                let lock = state.hold(extent, mode, &waiter.inbox);
                waiter.inbox.put(waiter.ticket, lock);
            }
        }
        self.contended.store(!state.exclusive.is_empty() || !state.waiting.is_empty(), Ordering::SeqCst);
    }
}

impl fmt::Debug for RangeLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        let shared: usize = state.queues.iter().map(|queue| queue.ranges().len()).sum();
        write!(f, "RangeLocks({} held, {} waiting)", state.exclusive.len() + shared, state.waiting.len())
    }
}

impl Ranges {
    fn hold(&mut self, extent: Extent) -> u32 {
        if let Some(index) = self.free.pop() {
            self.held[index as usize] = Some(extent);
            return index;
        }
        self.held.push(Some(extent));
        (self.held.len() - 1) as u32
    }

    fn let_go(&mut self, index: u32) {
        match self.held.get_mut(index as usize).and_then(Option::take) {
            Some(_) => self.free.push(index),
            None => debug_assert!(false, "a lock was released twice"),
        }
    }

    fn overlap(&self, extent: Extent) -> bool {
        self.held.iter().flatten().any(|held| held.overlaps(extent))
    }

    fn len(&self) -> usize {
        self.held.len() - self.free.len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Shared {
    fn ranges(&self) -> MutexGuard<'_, Ranges> {
        self.0.lock()
    }
}

impl State {
    /// Whether this must wait for a held range, or for one of the first `before` waiters.
    fn must_wait(&self, extent: Extent, mode: LockMode, before: usize) -> bool {
        let is_alone = mode == LockMode::Exclusive;
        self.exclusive.overlap(extent)
            || is_alone && self.queues.iter().any(|queue| queue.ranges().overlap(extent))
            || self.waiting.iter().take(before).any(|waiter| {
                (is_alone || waiter.mode == LockMode::Exclusive) && waiter.extent.overlaps(extent)
            })
    }

    fn hold(&mut self, extent: Extent, mode: LockMode, inbox: &Inbox) -> Lock {
        let index = match mode {
            LockMode::Exclusive => self.exclusive.hold(extent),
            LockMode::Shared => inbox.shared.ranges().hold(extent),
        };
        Lock(mode, index)
    }
}

impl Inbox {
    fn put(&self, ticket: LockTicket, lock: Lock) {
        self.granted.lock().push((ticket, lock));
        self.any.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// One queue's way to take and release locks. What it still holds when it is dropped stays held;
/// what it waits for is forgotten.
pub struct LockQueue {
    locks: Arc<RangeLocks>,
    inbox: Arc<Inbox>,
}

impl LockQueue {
    /// Takes a range. Returns the lock, or `None` if it will come later through
    /// [`LockQueue::granted`] under this ticket.
    pub fn acquire(&self, extent: Extent, mode: LockMode, ticket: LockTicket) -> Option<Lock> {
        if mode == LockMode::Shared {
            let mut ranges = self.inbox.shared.ranges();
            if !self.locks.contended.load(Ordering::SeqCst) {
                return Some(Lock(mode, ranges.hold(extent)));
            }
        }
        let mut state = self.locks.state.lock();
        self.locks.contended.store(true, Ordering::SeqCst);
        let before = state.waiting.len();
        if state.must_wait(extent, mode, before) {
            state.waiting.push_back(Waiter { extent, mode, ticket, inbox: Arc::clone(&self.inbox) });
            return None;
        }
        let lock = state.hold(extent, mode, &self.inbox);
        if mode == LockMode::Shared {
            self.locks.serve_waiting(state);
        }
        Some(lock)
    }

    /// Releases a range, and grants locks that waited for it.
    pub fn release(&self, lock: Lock) {
        let Lock(mode, index) = lock;
        if mode == LockMode::Shared {
            let mut ranges = self.inbox.shared.ranges();
            ranges.let_go(index);
            if !self.locks.contended.load(Ordering::SeqCst) {
                return;
            }
        }
        let mut state = self.locks.state.lock();
        if mode == LockMode::Exclusive {
            state.exclusive.let_go(index);
        }
        self.locks.serve_waiting(state);
    }

    /// Appends the locks that have been granted since.
    pub fn granted(&self, granted: &mut Vec<(LockTicket, Lock)>) {
        if self.inbox.any.load(Ordering::Relaxed) && self.inbox.any.swap(false, Ordering::Acquire) {
            granted.append(&mut self.inbox.granted.lock());
        }
    }
}

/// What waits has not begun, so it is forgotten, and what was granted and not taken is given back.
/// A table with nothing in it is nobody's concern any more.
impl Drop for LockQueue {
    fn drop(&mut self) {
        let mut state = self.locks.state.lock();
        let shared = &self.inbox.shared;
        state.waiting.retain(|waiter| !Arc::ptr_eq(&waiter.inbox, &self.inbox));
        for (_, Lock(mode, index)) in self.inbox.granted.lock().drain(..) {
            match mode {
                LockMode::Exclusive => state.exclusive.let_go(index),
                LockMode::Shared => shared.ranges().let_go(index),
            }
        }
        if shared.ranges().is_empty() {
            state.queues.retain(|queue| !Arc::ptr_eq(queue, shared));
        }
        self.locks.serve_waiting(state);
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
    fn sharers_of_other_queues_are_seen() {
        let locks = RangeLocks::new();
        let (first, second) = (queue(&locks), queue(&locks));
        let far = first.acquire(extent(1 << 20, 4096), Shared, LockTicket(1)).unwrap();
        let near = first.acquire(extent(0, 4096), Shared, LockTicket(2)).unwrap();
        assert_eq!(second.acquire(extent(512, 512), Exclusive, LockTicket(3)), None);
        // Locks that do not overlap are taken and released meanwhile, and grant nothing.
        let beside = second.acquire(extent(8192, 4096), Shared, LockTicket(4)).unwrap();
        second.release(beside);
        first.release(far);
        assert!(granted(&second).is_empty());
        first.release(near);
        let (ticket, lock) = granted(&second).remove(0);
        assert_eq!(ticket, LockTicket(3));
        second.release(lock);
        assert!(!locks.contended.load(Ordering::SeqCst));
    }

    #[test]
    fn what_a_queue_leaves_behind_stays_held() {
        let locks = RangeLocks::new();
        let (first, second, third) = (queue(&locks), queue(&locks), queue(&locks));
        let left = first.acquire(extent(0, 4096), Shared, LockTicket(1));
        drop((first, left));
        drop(third);
        assert_eq!(second.acquire(extent(0, 512), Exclusive, LockTicket(2)), None);
        assert_eq!(format!("{locks:?}"), "RangeLocks(1 held, 1 waiting)");
        assert_eq!(locks.state.lock().queues.len(), 2, "the third left nothing");
    }

    /// A connection ends while its requests wait: those of other connections go on.
    #[test]
    fn what_a_queue_waits_for_is_forgotten_with_it() {
        let locks = RangeLocks::new();
        let (first, second, third) = (queue(&locks), queue(&locks), queue(&locks));
        let held = first.acquire(extent(0, 4096), Exclusive, LockTicket(1)).unwrap();
        assert_eq!(second.acquire(extent(0, 4096), Shared, LockTicket(2)), None);
        assert_eq!(second.acquire(extent(0, 512), Exclusive, LockTicket(3)), None);
        assert_eq!(third.acquire(extent(0, 512), Exclusive, LockTicket(4)), None);
        // The second queue's shared lock is granted, and not taken; its other one waits.
        first.release(held);
        assert!(granted(&third).is_empty());
        drop(second);
        let Some((LockTicket(4), lock)) = granted(&third).pop() else { panic!("it waits: {locks:?}") };
        third.release(lock);
        assert_eq!(format!("{locks:?}"), "RangeLocks(0 held, 0 waiting)");
    }

    /// Compares with the rules, step by step: which ranges are held, which wait, and in which order
    /// they are granted.
    #[test]
    fn random_histories_keep_the_rules() {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let locks = RangeLocks::new();
        let queues: Vec<_> = (0..3).map(|_| queue(&locks)).collect();
        // By ticket: range, mode, queue, and the lock once it is held.
        let mut asked: Vec<(u64, Extent, LockMode, usize, Option<Lock>)> = Vec::new();
        for ticket in 0..20_000 {
            let at = random(3) as usize;
            let held: Vec<_> = (0..asked.len()).filter(|index| asked[*index].4.is_some()).collect();
            if random(2) == 0 && !held.is_empty() {
                let (_, _, _, at, lock) = asked.remove(held[random(held.len() as u64) as usize]);
                queues[at].release(lock.unwrap());
            } else if asked.len() < 12 {
                let range = extent(random(16) * 512, (1 + random(8)) * 512);
                let mode = if random(4) == 0 { Exclusive } else { Shared };
                let lock = queues[at].acquire(range, mode, LockTicket(ticket));
                asked.push((ticket, range, mode, at, lock));
            }
            for (at, queue) in queues.iter().enumerate() {
                for (ticket, lock) in granted(queue) {
                    let waiter = asked.iter_mut().find(|(of, ..)| *of == ticket.0).unwrap();
                    assert!(waiter.3 == at && waiter.4.replace(lock).is_none());
                }
            }
            for (index, (_, range, mode, _, lock)) in asked.iter().enumerate() {
                let conflicts = |other: &&(u64, Extent, LockMode, usize, Option<Lock>)| {
                    (*mode == Exclusive || other.2 == Exclusive) && other.1.overlaps(*range)
                };
                let holders = asked.iter().filter(|other| other.4.is_some());
                let in_the_way = match lock {
                    Some(_) => holders.filter(conflicts).count() - usize::from(*mode == Exclusive),
                    None => 0,
                };
                assert_eq!(in_the_way, 0, "{range:?} is held beside what conflicts");
                if lock.is_none() {
                    let earlier = asked[..index].iter().filter(conflicts).count();
                    let held = asked.iter().filter(|other| other.4.is_some()).filter(conflicts).count();
                    assert!(earlier + held > 0, "{range:?} waits for nothing");
                }
            }
        }
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
