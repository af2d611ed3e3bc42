//! The VMs that [`settle`](super::settle) has to look at: one of their records changed, their host
//! has told all of its VMs, or their time has come. All others are as they were at the last look.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use strongroom_types::VmId;
use uuid::Uuid;

use super::Control;
use super::due::DueQueue;
use crate::inventory::ChangedObjects;

/// VMs to look at.
#[derive(Default)]
pub(super) struct Marks(Mutex<Marked>);

#[derive(Default)]
struct Marked {
    now: BTreeSet<VmId>,
    /// With the time of the next look, in milliseconds since 1970.
    later: DueQueue<u64, VmId>,
    last_look_unix_ms: u64,
}

impl Marks {
    /// Has VMs looked at.
    pub fn mark(&self, vms: impl IntoIterator<Item = VmId>) {
        self.0.lock().now.extend(vms);
    }

    /// Has a VM looked at again at this time, even if nothing changes until then.
    pub fn mark_at(&self, vm: VmId, at_unix_ms: u64) {
        self.0.lock().later.hasten(vm, at_unix_ms);
    }

    /// Takes the VMs that are to be looked at now. If the clock was set back, that is all of them:
    /// their times may be far off.
    pub fn take(&self, now_unix_ms: u64) -> BTreeSet<VmId> {
        let mut marks = self.0.lock();
        let was_set_back = now_unix_ms < marks.last_look_unix_ms;
        marks.last_look_unix_ms = now_unix_ms;
        let until = if was_set_back { u64::MAX } else { now_unix_ms };
        let mut taken = std::mem::take(&mut marks.now);
        taken.extend(std::iter::from_fn(|| marks.later.take(until)));
        taken
    }
}

impl Control {
    /// Takes the VMs that are to be settled. What changes from now on is taken the next time.
    pub(super) fn take_unsettled(&self) -> BTreeSet<VmId> {
        let mut taken = self.unsettled.take(self.now_unix_ms());
        match self.inventory.take_changed_vms() {
            ChangedObjects::Some(changed) => taken.extend(changed),
            ChangedObjects::All => taken.extend(self.inventory.read().vms.iter().map(|vm| vm.id)),
        }
        taken
    }

    /// Has all VMs of a host looked at, because their states are known from now on.
    pub(super) fn unsettle_host(&self, host: Uuid) {
        let index = self.inventory.read();
        self.unsettled.mark(index.vms_on(host).map(|vm| vm.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_is_looked_at_once_for_each_reason_and_not_before_its_time() {
        let (unsettled, [first, second]) =
            (Marks::default(), [1, 2].map(|byte| VmId::from_bytes([byte; 16])));
        unsettled.mark([first, first]);
        unsettled.mark_at(second, 1000);
        unsettled.mark_at(second, 3000);
        assert_eq!(unsettled.take(500), BTreeSet::from([first]));
        assert_eq!(unsettled.take(999), BTreeSet::new());
        assert_eq!(unsettled.take(1000), BTreeSet::from([second]));
        assert_eq!(unsettled.take(9000), BTreeSet::new());
    }

    #[test]
    fn a_clock_that_was_set_back_delays_no_look() {
        let (unsettled, vm) = (Marks::default(), VmId::from_bytes([1; 16]));
        assert!(unsettled.take(5_000_000).is_empty());
        unsettled.mark_at(vm, 5_002_000);
        assert_eq!(unsettled.take(1000), BTreeSet::from([vm]));
    }
}
