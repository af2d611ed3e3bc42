//! VMs whose record is from a backup of the inventory.
//!
//! The backup may be old: the VM may have been started, changed, moved or deleted since. So its
//! record is compared with what the hosts have, and confirmed if they have the same. Until then
//! nothing is done with the VM: it is not started, not ended and not changed, and what runs goes
//! on. If they have something else, an alarm says what, and an administrator decides: registering
//! the VM takes over what its host has.

use strongroom_api::alarm::{AlarmKind, Severity};
use strongroom_host::protocol::{DiskKey, DiskKind, VmSpec};

use super::Control;
use super::alarms::Wanted;
use super::observe::Present;
use crate::inventory::{Failure, Index, Row};
use crate::records::{DatastorePaths, VmRecord};

/// What has become of a VM since the backup that its record is from.
pub(super) enum SinceBackup {
    /// Its host does not answer, so nothing is known.
    Unknown,
    /// Nothing: its host has the same.
    Same,
    /// No host has it.
    Missing,
    /// Its host has something else, or another host has it: what, as a sentence.
    Changed(String),
}

impl Control {
    /// Compares the record of a VM with what the hosts have.
    pub(super) fn since_backup(&self, index: &Index, vm: &VmRecord) -> SinceBackup {
        let Some(seat) = self.seat(vm.host).filter(|seat| seat.seen().is_complete()) else {
            return SinceBackup::Unknown;
        };
        if let Some(other) = self.runs_elsewhere(index, vm) {
            return SinceBackup::Changed(format!("it runs on host {}", other.name));
        }
        let places = seat.seen().vms.get(&vm.id).cloned().unwrap_or_default();
        let name = &seat.name;
        let paths = index.paths_of(vm, vm.host);
        match places.as_slice() {
            [] => {
                let has =
                    |other: &&super::HostSeat| other.id != vm.host && other.seen().vms.contains_key(&vm.id);
                match self.hosts.iter().find(has) {
                    Some(other) => SinceBackup::Changed(format!("host {} has it", other.name)),
                    None => SinceBackup::Missing,
                }
            }
            [place] if place.generation > vm.generation => SinceBackup::Changed(format!(
                "host {name} has had its start {}, and the backup knows of start {}",
                place.generation, vm.generation
            )),
            [place] => match paths.is_some_and(|paths| is_same(vm, &paths, place)) {
                true => SinceBackup::Same,
                false => SinceBackup::Changed(format!("host {name} has another configuration of it")),
            },
            _ => SinceBackup::Changed(format!("host {name} has it more than once")),
        }
    }

    /// Takes the record of a VM for true from now on.
    pub(super) fn confirm(&self, vm: &Row<VmRecord>) -> Result<(), Failure> {
        let confirmed = VmRecord { from_backup: false, ..VmRecord::clone(&vm.record) };
        let message = format!("VM {} is as it was when the inventory was backed up", vm.name);
        let draft = self.draft().replace(vm, &confirmed);
        self.inventory.commit(draft.event("vm.confirmed", &vm.object(), message, None))
    }

    /// Raises the alarm for a VM that has changed since the backup. One that no host has is
    /// missing, which is another alarm.
    pub(super) fn review_since_backup(&self, index: &Index, vm: &VmRecord, wanted: &mut Wanted) {
        let SinceBackup::Changed(what) = self.since_backup(index, vm) else { return };
        wanted.raise(
            AlarmKind::VmOutdated,
            Severity::Warning,
            vm.object(),
            format!("what the inventory knows of VM {} is from a backup and out of date: {what}", vm.name),
            format!("`strongroom vm register {}` takes over what its host has", vm.directory()),
        );
    }
}

/// Whether a host has the VM as its record says.
fn is_same(vm: &VmRecord, paths: &DatastorePaths, place: &Present) -> bool {
    let Some(known) = vm.told(paths) else { return false };
    let Some(mut found) = place.spec.clone() else { return false };
    // A host need not have written down what the inventory has learned about a volume.
    for disk in &mut found.disks {
        let Some(known) = known.disk(&disk.name) else { continue };
        disk.volume = disk.volume.or(known.volume);
        if let (DiskKey::Provider { kek, .. }, DiskKey::Provider { kek: known, .. }) =
            (&mut disk.key, &known.key)
        {
            *kek = kek.or(*known);
        }
    }
    comparable(&known) == comparable(&found)
}

/// What of a configuration has to be the same. The rest is what hosts learn by themselves, and what
/// only the inventory decides.
fn comparable(spec: &VmSpec) -> VmSpec {
    let mut spec = spec.clone().without_paths();
    spec.name = spec.directory.take().unwrap_or(spec.name);
    spec.policy = None;
    spec.own_volumes.clear();
    spec.lineage = strongroom_host::protocol::Lineage::default();
    for disk in &mut spec.disks {
        disk.least_generation = 0;
        // A swap disk has another volume in each start.
        if disk.kind != DiskKind::Data {
            disk.volume = None;
            if let DiskKey::Provider { kek, .. } = &mut disk.key {
                *kek = None;
            }
        }
    }
    spec
}
