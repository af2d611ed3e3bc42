//! An ordered queue of what is due, and when.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

/// Things with the times at which they are due, each once.
pub(super) struct DueQueue<Time, Id> {
    waiting: BTreeSet<(Time, Id)>,
    times: HashMap<Id, Time>,
}

impl<Time, Id> Default for DueQueue<Time, Id> {
    fn default() -> Self {
        Self { waiting: BTreeSet::new(), times: HashMap::new() }
    }
}

impl<Time: Copy + Ord, Id: Copy + Ord + Hash> DueQueue<Time, Id> {
    /// Sets the time of a thing.
    pub fn put(&mut self, id: Id, at: Time) {
        if let Some(before) = self.times.insert(id, at) {
            self.waiting.remove(&(before, id));
        }
        self.waiting.insert((at, id));
    }

    /// Sets the time of a thing, unless it has an earlier one.
    pub fn hasten(&mut self, id: Id, at: Time) {
        if self.times.get(&id).is_none_or(|known| at < *known) {
            self.put(id, at);
        }
    }

    /// The time of the next one.
    pub fn next(&self) -> Option<Time> {
        self.waiting.first().map(|(at, _)| *at)
    }

    /// Removes the next one, if it is due.
    pub fn take(&mut self, now: Time) -> Option<Id> {
        let (at, id) = self.waiting.first().copied().filter(|(at, _)| *at <= now)?;
        self.waiting.remove(&(at, id));
        self.times.remove(&id);
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_is_there_once_at_its_earliest_time() {
        let mut queue = DueQueue::default();
        queue.put('a', 5);
        queue.hasten('a', 7);
        queue.hasten('b', 6);
        queue.hasten('b', 3);
        assert_eq!((queue.next(), queue.take(2)), (Some(3), None));
        assert_eq!([queue.take(9), queue.take(9), queue.take(9)], [Some('b'), Some('a'), None]);
    }
}
