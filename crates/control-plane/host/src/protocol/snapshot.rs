//! Snapshots of a VM: the snapshots of its volumes that belong together.

use serde::{Deserialize, Serialize};
use strongroom_types::{SnapshotId, SnapshotName, unix_seconds_now};
use strongroom_vm::limits::SNAPSHOTS_MAX;
use strongroom_vm::{DiskName, QuiesceWithin, VmName};

use super::observed::SavedMemory;
use super::problem::Problem;

/// The content of a VM's volumes at one instant, as after a power cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmSnapshot {
    /// Its id, which each volume's descriptor has too.
    pub id: SnapshotId,
    /// Its name, which each volume's descriptor has too.
    pub name: SnapshotName,
    /// When it was made: seconds since 1970-01-01 00:00 UTC.
    pub at_unix_seconds: u64,
    /// Its volumes: the disks that keep data, and UEFI's variables; with memory, swap disks, too.
    pub volumes: Vec<DiskName>,
    /// The snapshot on which the VM's content was based then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SnapshotId>,
    /// The guest's memory at that instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<SavedMemory>,
    /// Whether the guest's file systems were frozen at that instant, as the agent in the guest
    /// says.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub quiesced: bool,
}

impl VmSnapshot {
    /// Why a revert of a VM with a TPM to it is refused, unless it has the TPM's state put back.
    pub fn puts_tpm_back(&self, vm: &str) -> Problem {
        let message = format!(
            "the memory of snapshot {} has the state of the TPM of VM {vm}: with it, the TPM's counters and \
             lock-outs go back, and keys that its guest has deleted since come back",
            self.name
        );
        Problem::new("tpm_goes_back", message)
            .with_next_step("--tpm has it put back; --disks-only leaves memory and TPM as they are")
    }
}

/// What a new snapshot has beside the volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The guest's memory.
    pub memory: Option<SavedMemory>,
    /// Whether the guest's file systems were frozen.
    pub quiesced: bool,
}

/// A snapshot that does not exist yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewVmSnapshot {
    /// Its id.
    pub id: SnapshotId,
    /// Its name.
    pub name: SnapshotName,
    /// Whether it has the guest's memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
    /// Has the file systems of a guest that runs frozen within this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiesce_within_s: Option<QuiesceWithin>,
}

impl NewVmSnapshot {
    /// A snapshot of the volumes alone.
    pub fn of_disks(id: SnapshotId, name: SnapshotName) -> Self {
        Self { id, name, memory: false, quiesce_within_s: None }
    }
}

/// A change of a VM's snapshots. A part that is already done is left as it is, so that a request
/// can be repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SnapshotChange {
    /// Makes a snapshot of all volumes at one instant.
    Create {
        /// The snapshot.
        snapshot: NewVmSnapshot,
    },
    /// Reverts the volumes of a VM that is off to a snapshot. Volumes that the snapshot does not
    /// have stay as they are.
    Revert {
        /// The snapshot to revert to.
        to: SnapshotId,
        /// The snapshot that keeps the present content.
        keep: NewVmSnapshot,
        /// Deletes `keep` when all volumes are reverted.
        discard: bool,
        /// Leaves the snapshot's memory, if it has one: the VM is off then, and not suspended.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        disks_only: bool,
        /// Puts the state of the VM's TPM back with the memory. Without it, a snapshot with memory
        /// of a VM with a TPM is not reverted to, unless `disks_only` is set.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        tpm: bool,
    },
    /// Deletes a snapshot.
    Delete {
        /// The snapshot.
        snapshot: SnapshotId,
    },
    /// Makes a VM's part of a group's snapshot, which [`VmSnapshots`] lists when it is kept. A VM
    /// that runs does so by the orders of hostd.
    Prepare {
        /// The snapshot.
        snapshot: NewVmSnapshot,
    },
    /// Lists a part of a group's snapshot. All volumes of the VM must have it.
    Keep {
        /// The snapshot.
        snapshot: NewVmSnapshot,
    },
}

impl SnapshotChange {
    /// Whether the guest's memory is saved for it.
    pub fn saves_memory(&self) -> bool {
        matches!(self, Self::Create { snapshot } if snapshot.memory)
    }

    /// Whether the guest's file systems are frozen for it.
    pub fn freezes_guest(&self) -> bool {
        match self {
            Self::Create { snapshot } | Self::Prepare { snapshot } => snapshot.quiesce_within_s.is_some(),
            Self::Revert { .. } | Self::Delete { .. } | Self::Keep { .. } => false,
        }
    }
}

/// The snapshots of a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmSnapshots {
    /// The snapshots that all of their volumes have, in the order in which they were made.
    #[serde(default)]
    pub list: Vec<VmSnapshot>,
    /// The snapshot on which the VM's present content is based.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<SnapshotId>,
    /// The change that has begun and not ended. Some of the volumes may have it already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changing: Option<SnapshotChange>,
}

impl VmSnapshots {
    /// Whether the VM has no snapshot, and none is being changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the snapshot with this id.
    pub fn get(&self, id: SnapshotId) -> Option<&VmSnapshot> {
        self.list.iter().find(|snapshot| snapshot.id == id)
    }

    /// Returns the snapshot with this name or id.
    pub fn named(&self, named: &str) -> Option<&VmSnapshot> {
        let is = |snapshot: &&VmSnapshot| snapshot.name.as_str() == named || snapshot.id.to_string() == named;
        self.list.iter().find(is)
    }

    /// Checks that no snapshot needs this volume.
    ///
    /// # Errors
    /// Names a snapshot that does.
    pub fn check_unneeded(&self, volume: &DiskName) -> Result<(), Problem> {
        let needs = |snapshot: &&VmSnapshot| snapshot.volumes.contains(volume);
        let Some(snapshot) = self.list.iter().find(needs) else { return Ok(()) };
        let message = format!("{volume} is part of snapshot {}", snapshot.name);
        Err(Problem::new("in_snapshot", message).with_next_step("delete the VM's snapshots first"))
    }

    /// Checks that a snapshot can be added.
    ///
    /// # Errors
    /// If its name is taken, or there are too many.
    pub fn check_new(&self, new: &NewVmSnapshot) -> Result<(), Problem> {
        if self.list.iter().any(|known| known.name == new.name || known.id == new.id) {
            let message = format!("the VM has a snapshot {} already", new.name);
            return Err(Problem::new("snapshot_exists", message).with_next_step("choose another name"));
        }
        if self.list.len() >= SNAPSHOTS_MAX {
            let message = format!("the VM has {SNAPSHOTS_MAX} snapshots, and no VM has more");
            return Err(Problem::new("many_snapshots", message).with_next_step("delete one first"));
        }
        Ok(())
    }

    /// Checks that no revert was interrupted.
    ///
    /// # Errors
    /// If some of the VM's volumes are reverted, and others are not.
    pub fn check_whole(&self, vm: &VmName) -> Result<(), Problem> {
        let Some(SnapshotChange::Revert { .. }) = self.changing else { return Ok(()) };
        let message = format!("a revert of VM {vm} was interrupted, and some of its disks are not reverted");
        let next = format!("revert it again: `strongroom vm snapshot revert {vm} SNAPSHOT`");
        Err(Problem::new("half_reverted", message).with_next_step(next))
    }

    /// Adds a snapshot of the present content, which is based on it from now on.
    pub fn add(&mut self, new: &NewVmSnapshot, volumes: Vec<DiskName>, contents: Contents) {
        let NewVmSnapshot { id, name, .. } = new.clone();
        let Contents { memory, quiesced } = contents;
        let (parent, at_unix_seconds) = (self.current.replace(id), unix_seconds_now());
        self.list.push(VmSnapshot { id, name, at_unix_seconds, volumes, parent, memory, quiesced });
    }

    /// Whether the guest's memory is being saved for a snapshot, or was when its process was
    /// killed.
    pub fn is_saving_memory(&self) -> bool {
        self.changing.as_ref().is_some_and(SnapshotChange::saves_memory)
    }

    /// Whether the guest's file systems are being frozen for a snapshot, or were when the process
    /// that had them frozen was killed.
    pub fn may_have_frozen_guest(&self) -> bool {
        self.changing.as_ref().is_some_and(SnapshotChange::freezes_guest)
    }

    /// Removes a snapshot. What was based on it is based on its parent.
    pub fn remove(&mut self, id: SnapshotId) {
        let parent = self.get(id).and_then(|snapshot| snapshot.parent);
        self.list.retain(|snapshot| snapshot.id != id);
        let based = self.list.iter_mut().map(|snapshot| &mut snapshot.parent).chain([&mut self.current]);
        based.filter(|base| **base == Some(id)).for_each(|base| *base = parent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(name: &str) -> NewVmSnapshot {
        NewVmSnapshot::of_disks(SnapshotId::random(), name.parse().unwrap())
    }

    #[test]
    fn what_was_based_on_a_deleted_snapshot_is_based_on_its_parent() {
        let mut all = VmSnapshots::default();
        let [first, second, third] = ["first", "second", "third"].map(new);
        for snapshot in [&first, &second] {
            all.check_new(snapshot).unwrap();
            all.add(snapshot, vec!["disk0".parse().unwrap()], Contents::default());
        }
        all.current = Some(first.id);
        all.add(&third, Vec::new(), Contents::default());
        assert_eq!(all.named("third").unwrap().parent, Some(first.id));
        all.remove(first.id);
        assert_eq!(all.named("second").unwrap().parent, None);
        assert_eq!((all.named("third").unwrap().parent, all.current), (None, Some(third.id)));
        all.remove(third.id);
        assert_eq!(all.current, None);
        let needed = all.check_unneeded(&"disk0".parse().unwrap()).unwrap_err();
        assert_eq!(needed.code, "in_snapshot");
        all.check_unneeded(&"disk1".parse().unwrap()).unwrap();
        all.remove(second.id);
        assert!(all.is_empty());
    }

    #[test]
    fn a_snapshot_says_that_it_is_quiesced_and_one_of_a_former_program_is_not() {
        let mut all = VmSnapshots::default();
        let mut snapshot = new("quiet");
        let is_new = |text: &str| text.contains("quiesce");
        let former = serde_json::to_string(&SnapshotChange::Create { snapshot: snapshot.clone() }).unwrap();
        assert!(!is_new(&former), "a former program reads what does not ask for it: {former}");
        all.add(&snapshot, Vec::new(), Contents::default());
        assert!(!is_new(&serde_json::to_string(&all).unwrap()));
        snapshot.quiesce_within_s = Some(QuiesceWithin::default());
        snapshot.name = "quieter".parse().unwrap();
        all.add(&snapshot, Vec::new(), Contents { quiesced: true, ..Contents::default() });
        all.changing = Some(SnapshotChange::Create { snapshot });
        let text = serde_json::to_string(&all).unwrap();
        assert!(text.contains(r#""quiesce_within_s":30"#), "{text}");
        let read: VmSnapshots = serde_json::from_str(&text).unwrap();
        assert!(read.may_have_frozen_guest() && !read.list[0].quiesced && read.list[1].quiesced);
        assert_eq!(read, all);
    }

    #[test]
    fn a_vm_has_a_limited_number_of_snapshots_with_different_names() {
        let mut all = VmSnapshots::default();
        for number in 0..SNAPSHOTS_MAX {
            let snapshot = new(&format!("s{number}"));
            all.check_new(&snapshot).unwrap();
            all.add(&snapshot, Vec::new(), Contents::default());
        }
        assert_eq!(all.check_new(&new("s0")).unwrap_err().code, "snapshot_exists");
        assert_eq!(all.check_new(&new("other")).unwrap_err().code, "many_snapshots");
    }
}
