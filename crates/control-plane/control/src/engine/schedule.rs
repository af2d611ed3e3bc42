//! The schedule of tasks. Only one thread at a time works on a task.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use uuid::Uuid;

use super::due::DueQueue;

/// Tasks with the times at which they are due.
#[derive(Default)]
pub struct Schedule {
    state: Mutex<State>,
    due: Condvar,
}

#[derive(Default)]
struct State {
    waiting: DueQueue<Instant, Uuid>,
    /// Tasks that a thread is working on; `true` means that something has happened since.
    taken: HashMap<Uuid, bool>,
    ended: bool,
}

impl Schedule {
    /// Makes a task due now, because something has happened to it.
    pub fn wake(&self, task: Uuid) {
        let mut state = self.state.lock();
        match state.taken.get_mut(&task) {
            Some(again) => *again = true,
            None => state.waiting.put(task, Instant::now()),
        }
        drop(state);
        self.due.notify_one();
    }

    /// Waits for the next task that is due, and returns it; `None` after the [end](Self::end). The
    /// caller returns it with [`release`](Self::release) or [`forget`](Self::forget).
    pub fn take(&self) -> Option<Uuid> {
        let mut state = self.state.lock();
        loop {
            if state.ended {
                return None;
            }
            let now = Instant::now();
            if let Some(task) = state.waiting.take(now) {
                state.taken.insert(task, false);
                return Some(task);
            }
            let wait = state.waiting.next().map_or(Duration::from_secs(60), |at| at - now);
            self.due.wait_for(&mut state, wait);
        }
    }

    /// Returns a task, which is due again after a pause, or at once if something has happened
    /// meanwhile.
    pub fn release(&self, task: Uuid, pause: Duration) {
        let mut state = self.state.lock();
        let again = state.taken.remove(&task).unwrap_or(false);
        let now = Instant::now();
        state.waiting.put(task, if again { now } else { now + pause });
        drop(state);
        self.due.notify_one();
    }

    /// Returns a task that has ended.
    pub fn forget(&self, task: Uuid) {
        self.state.lock().taken.remove(&task);
    }

    /// Ends all waiting threads.
    pub fn end(&self) {
        self.state.lock().ended = true;
        self.due.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_while_a_task_is_worked_on_is_not_lost() {
        let schedule = Schedule::default();
        let task = Uuid::new_v4();
        schedule.wake(task);
        assert_eq!(schedule.take(), Some(task));
        schedule.wake(task);
        schedule.release(task, Duration::from_secs(3600));
        assert_eq!(schedule.take(), Some(task));
    }

    #[test]
    fn a_task_that_is_woken_twice_is_taken_once() {
        let schedule = Schedule::default();
        let (first, second) = (Uuid::new_v4(), Uuid::new_v4());
        schedule.wake(first);
        schedule.wake(first);
        schedule.wake(second);
        assert_eq!((schedule.take(), schedule.take()), (Some(first), Some(second)));
        schedule.forget(first);
        schedule.end();
        assert_eq!(schedule.take(), None);
    }
}
