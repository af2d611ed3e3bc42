//! The numbered changes that clients wait for.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use strongroom_host::protocol::{Change, ChangedObject, Changes, Epoch};
use tokio::sync::watch;

/// The number of objects whose last change is kept: more than a host's VMs and its recent
/// operations.
const KNOWN_MAX: usize = 20_000;

/// The changes of one run of hostd.
#[derive(Debug)]
pub struct ChangeLog {
    epoch: Epoch,
    known: Mutex<Known>,
    number: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Known {
    number: u64,
    by_number: BTreeMap<u64, ChangedObject>,
    by_object: HashMap<ChangedObject, u64>,
    /// The number of the last change that was dropped.
    forgotten: u64,
}

impl Default for ChangeLog {
    fn default() -> Self {
        Self { epoch: Epoch(uuid::Uuid::new_v4()), known: Mutex::default(), number: watch::Sender::new(0) }
    }
}

impl ChangeLog {
    /// The epoch of this run.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The number of the last change.
    pub fn number(&self) -> u64 {
        self.lock().number
    }

    /// Records a change.
    pub fn add(&self, object: ChangedObject) {
        let mut known = self.lock();
        known.number += 1;
        let number = known.number;
        if let Some(before) = known.by_object.insert(object, number) {
            known.by_number.remove(&before);
        }
        known.by_number.insert(number, object);
        if known.by_number.len() > KNOWN_MAX
            && let Some((oldest, object)) = known.by_number.pop_first()
        {
            known.by_object.remove(&object);
            known.forgotten = oldest;
        }
        drop(known);
        self.number.send_replace(number);
    }

    /// Returns the changes after a number, as soon as there are some, and at the latest after
    /// `wait`.
    pub async fn after(&self, after: u64, wait: Duration) -> Changes {
        let mut number = self.number.subscribe();
        // A number of an earlier epoch may be greater than ours. The client must then read
        // everything again, at once.
        if after <= self.number() {
            let _ = tokio::time::timeout(wait, number.wait_for(|number| *number > after)).await;
        }
        let known = self.lock();
        let changes = known.by_number.range(after.saturating_add(1)..);
        let changes = changes.map(|(number, object)| Change { number: *number, object: *object }).collect();
        let read_all = after < known.forgotten || after > known.number;
        Changes { epoch: self.epoch, number: known.number, read_all, changes, ended: Vec::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock()
    }
}

#[cfg(test)]
mod tests {
    use strongroom_types::VmId;

    use super::*;

    #[tokio::test]
    async fn changes_are_waited_for_and_one_that_comes_often_is_there_once() {
        let (log, vm) = (ChangeLog::default(), VmId::random());
        assert!(log.after(0, Duration::ZERO).await.changes.is_empty());
        let waiting = async { log.after(0, Duration::from_secs(60)).await };
        let (found, ()) = tokio::join!(waiting, async { log.add(ChangedObject::Vm(vm)) });
        assert_eq!((found.number, found.changes.len(), found.read_all), (1, 1, false));
        log.add(ChangedObject::Host);
        log.add(ChangedObject::Vm(vm));
        let numbers: Vec<u64> = log.after(0, Duration::ZERO).await.changes.iter().map(|c| c.number).collect();
        assert_eq!(numbers, [2, 3]);
        assert!(log.after(17, Duration::from_secs(60)).await.read_all, "of another epoch");
    }

    #[tokio::test]
    async fn what_is_forgotten_is_said() {
        let log = ChangeLog::default();
        for _ in 0..=KNOWN_MAX {
            log.add(ChangedObject::Vm(VmId::random()));
        }
        assert!(log.after(0, Duration::ZERO).await.read_all);
        let late = log.after(1, Duration::ZERO).await;
        assert_eq!((late.read_all, late.changes.len()), (false, KNOWN_MAX));
    }
}
