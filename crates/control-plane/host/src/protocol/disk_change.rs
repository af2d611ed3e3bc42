//! Adding, removing, growing, limiting, encrypting, decrypting and moving a disk of a VM.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use strongroom_types::{IoLimits, VmId, VolumeSize};
use strongroom_vm::{DiskName, VmName, boot_without_disk};

use super::problem::Problem;
use super::spec::{Disk, DiskKey, DiskPlace, VmSpec};

/// A change of a disk, for a running VM or one that is off. A part that is already done is left as
/// it is, so that a request can be repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum DiskChange {
    /// Adds a disk after all others.
    Add {
        /// The new disk.
        disk: Box<Disk>,
    },
    /// Removes a disk, and deletes its volume.
    Remove {
        /// The disk.
        disk: DiskName,
    },
    /// Grows a disk to this size. A smaller size is refused.
    Resize {
        /// The disk.
        disk: DiskName,
        /// Its new size, in bytes.
        size_bytes: VolumeSize,
    },
    /// Sets the limits of a disk's requests, or of those of all disks together if none is named. A
    /// guest that runs goes on meanwhile.
    Limit {
        /// The disk.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        disk: Option<DiskName>,
        /// Its limits, which replace those that it has.
        limits: IoLimits,
    },
    /// Adds a volume of the same datastore that no VM has. Its files move into the VM's directory.
    Bind {
        /// The new disk, with its volume.
        disk: Box<Disk>,
        /// The place of its files.
        from: HeldVolume,
    },
    /// Removes a disk and keeps its volume. Its files move to where no VM has them.
    Unbind {
        /// The disk.
        disk: DiskName,
        /// The place for its files.
        to: HeldVolume,
    },
    /// One step of a move of a disk to another datastore.
    Move(DiskMove),
    /// Completes the encryption or decryption of a half-clear disk
    /// ([`DiskKey::HalfClear`]), with its snapshots; with the only key, that of the VM's own
    /// volumes, too, for which the VM must be off. After a failure or a kill the disk is half
    /// clear, and a repeated request continues.
    Seal {
        /// The disk.
        disk: DiskName,
    },
}

/// A step of a move of a disk to another datastore. Between the steps the inventory says where the
/// disk lies: the VM's configuration has its place before the inventory's decision at the first
/// step, and the one after it at the second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskMove {
    /// The disk.
    pub disk: DiskName,
    /// Where it lies before the move: the VM's own datastore if none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<DiskPlace>,
    /// Where it is to lie.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<DiskPlace>,
    /// The step.
    pub step: MoveStep,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveStep {
    /// The volume of a VM that is off is copied, complete and durable. It stays the VM's.
    Copy,
    /// As [`Copy`](Self::Copy), and also while the VM runs: apart from what its guest writes last
    /// ([`OperationOutcome::Copied`](super::OperationOutcome::Copied)).
    CopyServed,
    /// The rest is copied while the guest waits for this disk, and the host decides, durably,
    /// whether the volume is at its new place. It says so by its outcome; any error means that this
    /// is not known.
    Switch,
    /// The copy is the VM's from now on, and the former volume is deleted.
    Take,
    /// The copy is removed. The volume stays the VM's.
    Abandon,
}

impl DiskMove {
    /// The VM's configuration with the disk where it lies before the move.
    pub fn before(&self, spec: &VmSpec) -> VmSpec {
        let mut before = spec.clone();
        before.put(&self.disk, self.from.as_ref());
        before
    }

    /// The VM's configuration with the disk where it is to lie.
    pub fn after(&self, spec: &VmSpec) -> VmSpec {
        let mut after = spec.clone();
        after.put(&self.disk, self.to.as_ref());
        after
    }

    /// Whether it is of the same disk, from and to the same places.
    pub fn is_of_same_move(&self, other: &Self) -> bool {
        (&self.disk, &self.from, &self.to) == (&other.disk, &other.from, &other.to)
    }

    /// The directories elsewhere that the disk lies in, before the move or after it.
    pub fn directories(&self, vm: VmId) -> Vec<PathBuf> {
        self.from.iter().chain(&self.to).map(|place| place.directory_of(vm)).collect()
    }
}

/// The place of a volume that no VM has: the directory of its holder, which is like a VM's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldVolume {
    /// The holder.
    pub holder: VmId,
    /// The holder's name, that of its directory.
    pub name: VmName,
    /// The volume's name in it.
    pub disk: DiskName,
}

impl HeldVolume {
    /// The volume's path in a datastore.
    pub fn path(&self, datastore: &Path) -> PathBuf {
        datastore.join(self.name.as_str()).join(self.disk.as_str())
    }
}

impl DiskChange {
    /// The name of the disk, if the change is of one.
    pub fn disk(&self) -> Option<&DiskName> {
        match self {
            Self::Add { disk } | Self::Bind { disk, .. } => Some(&disk.name),
            Self::Remove { disk }
            | Self::Resize { disk, .. }
            | Self::Unbind { disk, .. }
            | Self::Seal { disk }
            | Self::Move(DiskMove { disk, .. }) => Some(disk),
            Self::Limit { disk, .. } => disk.as_ref(),
        }
    }

    /// All directories that volumes of the VM are in, before the change or after it.
    pub fn directories(&self, spec: &VmSpec) -> Vec<PathBuf> {
        match self {
            Self::Move(moved) => {
                let mut all = moved.before(spec).directories();
                all.extend(moved.after(spec).directories_elsewhere());
                all.sort();
                all.dedup();
                all
            }
            _ => spec.directories(),
        }
    }

    /// What changes, in words.
    pub fn what(&self) -> &str {
        self.disk().map_or("the common limit of the disks", DiskName::as_str)
    }

    /// Returns the VM's configuration after the change.
    ///
    /// # Errors
    /// If that configuration is invalid.
    pub fn applied_to(&self, spec: &VmSpec) -> Result<VmSpec, Problem> {
        let mut changed = spec.clone();
        let at = self.disk().and_then(|name| changed.disks.iter().position(|disk| disk.name == *name));
        match (self, at) {
            (Self::Add { disk } | Self::Bind { disk, .. }, Some(at)) => {
                let there = &changed.disks[at];
                let is_other = there.volume.zip(disk.volume).is_some_and(|(there, wanted)| there != wanted);
                if (there.size_bytes, there.kind) != (disk.size_bytes, disk.kind) || is_other {
                    let message = format!("VM {} has another disk {}", spec.name, disk.name);
                    return Err(Problem::new("disk_exists", message));
                }
            }
            (Self::Add { disk } | Self::Bind { disk, .. }, None) => changed.disks.push(disk.as_ref().clone()),
            (Self::Remove { .. } | Self::Unbind { .. }, None) => {}
            (Self::Remove { disk } | Self::Unbind { disk, .. }, Some(0)) => {
                let message = format!("{disk} is the first disk of VM {}: it starts from it", spec.name);
                return Err(Problem::new("disk_needed", message).with_next_step("delete the VM instead"));
            }
            (Self::Remove { disk } | Self::Unbind { disk, .. }, Some(at)) => {
                changed.disks.remove(at);
                boot_without_disk(&mut changed.boot_order, disk);
                if changed.own_key().provider_key() != spec.own_key().provider_key() {
                    let message =
                        format!("what VM {} keeps beside its disks is under the key of {disk}", spec.name);
                    return Err(Problem::new("disk_needed", message).with_next_step("delete the VM instead"));
                }
            }
            (Self::Limit { disk: None, limits }, _) => changed.limit(None, *limits),
            (Self::Limit { disk: Some(disk), limits }, Some(_)) => changed.limit(Some(disk), *limits),
            (
                Self::Resize { disk, .. }
                | Self::Seal { disk }
                | Self::Limit { disk: Some(disk), .. }
                | Self::Move(DiskMove { disk, .. }),
                None,
            ) => {
                return Err(Problem::new("no_such_disk", format!("VM {} has no disk {disk}", spec.name)));
            }
            (Self::Resize { disk, size_bytes }, Some(at)) => {
                let has = changed.disks[at].size_bytes;
                if *size_bytes < has {
                    let message = format!("{disk} of VM {} has {has}, and a disk only grows", spec.name);
                    return Err(Problem::new("bad_spec", message));
                }
                changed.disks[at].size_bytes = *size_bytes;
            }
            (Self::Move(moved), Some(_)) => {
                changed = match moved.step {
                    MoveStep::Copy | MoveStep::CopyServed | MoveStep::Switch | MoveStep::Abandon => {
                        moved.before(&changed)
                    }
                    MoveStep::Take => moved.after(&changed),
                };
            }
            (Self::Seal { disk }, Some(at)) => {
                changed.has_own_volumes_like(disk)?;
                let sealed = &mut changed.disks[at];
                sealed.key = sealed.key.completed();
                sealed.integrity &= sealed.key != DiskKey::Unencrypted;
            }
        }
        changed.check().map_err(|error| Problem::new("bad_spec", error.to_string()))?;
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strongroom_types::ProviderKey;
    use strongroom_vm::DiskBecomes;

    #[test]
    fn disks_come_and_go_and_what_a_vm_needs_stays() {
        let spec = VmSpec::for_tests("web1", true);
        let size = |mebibytes: u64| VolumeSize::new(mebibytes << 20).unwrap();
        let name_of = |name: &str| name.parse::<DiskName>().unwrap();
        let disk = Disk { name: name_of("disk1"), ..spec.disks[0].clone() };
        let add = DiskChange::Add { disk: Box::new(disk.clone()) };
        let two = add.applied_to(&spec).unwrap();
        assert_eq!(two.disks.len(), 2);
        assert_eq!(add.applied_to(&two).unwrap(), two, "asked again");
        let other = DiskChange::Add { disk: Box::new(Disk { size_bytes: size(2), ..disk }) };
        assert_eq!(other.applied_to(&two).unwrap_err().code, "disk_exists");
        let remove = |which: &str| DiskChange::Remove { disk: name_of(which) };
        assert_eq!(remove("disk1").applied_to(&two).unwrap(), spec);
        assert_eq!(remove("disk1").applied_to(&spec).unwrap(), spec, "asked again");
        assert_eq!(remove("disk0").applied_to(&two).unwrap_err().code, "disk_needed");
        let mut mixed = two.clone();
        mixed.disks[0].key = DiskKey::Unencrypted;
        assert_eq!(remove("disk1").applied_to(&mixed).unwrap_err().code, "disk_needed");
        let unbind = |which: &str| {
            let (holder, name) = (VmId::from_bytes([1; 16]), "data1".parse().unwrap());
            DiskChange::Unbind { disk: name_of(which), to: HeldVolume { holder, name, disk: name_of(which) } }
        };
        assert_eq!(unbind("disk1").applied_to(&two).unwrap(), spec);
        assert_eq!(unbind("disk0").applied_to(&two).unwrap_err().code, "disk_needed");
        let resize = |which: &str, to| DiskChange::Resize { disk: name_of(which), size_bytes: size(to) };
        assert_eq!(resize("disk1", 2).applied_to(&two).unwrap().disks[1].size_bytes, size(2));
        let grown = resize("disk1", 2).applied_to(&two).unwrap();
        assert_eq!(resize("disk1", 1).applied_to(&grown).unwrap_err().code, "bad_spec");
        assert_eq!(resize("disk2", 2).applied_to(&two).unwrap_err().code, "no_such_disk");
    }

    #[test]
    fn limits_are_of_a_disk_or_of_all_of_them() {
        let spec = VmSpec::for_tests("web1", true);
        let text = r#"{"limit":{"disk":"disk0","limits":{"iops":{"per_second":2000}}}}"#;
        let of_disk: DiskChange = serde_json::from_str(text).unwrap();
        let limited = of_disk.applied_to(&spec).unwrap();
        assert_eq!(limited.disks[0].limits.to_string(), "2000 IOPS");
        assert!(limited.limits.is_none());
        let text = r#"{"limit":{"limits":{"bandwidth":{"bytes_per_second":1048576}}}}"#;
        let of_all: DiskChange = serde_json::from_str(text).unwrap();
        let both = of_all.applied_to(&limited).unwrap();
        assert_eq!(
            (both.limits.to_string().as_str(), both.disks[0].limits),
            ("1M/s", limited.disks[0].limits)
        );
        assert_eq!(serde_json::from_str::<VmSpec>(&serde_json::to_string(&both).unwrap()).unwrap(), both);
        let none = DiskChange::Limit { disk: None, limits: IoLimits::NONE };
        assert_eq!(none.applied_to(&both).unwrap(), limited);
        let nowhere = DiskChange::Limit { disk: Some("disk9".parse().unwrap()), limits: IoLimits::NONE };
        assert_eq!(nowhere.applied_to(&spec).unwrap_err().code, "no_such_disk");
        assert!(serde_json::from_str::<DiskChange>(&text.replace("1048576", "7")).is_err());
        // A program of a former release reads a VM without limits.
        assert!(!serde_json::to_string(&spec).unwrap().contains("limits"));
    }

    #[test]
    fn a_half_clear_disk_becomes_what_it_is_to_be() {
        let mut spec = VmSpec::for_tests("web1", true);
        let name = spec.disks[0].name.clone();
        let DiskKey::Provider { key, .. } = spec.disks[0].key.clone() else { panic!("it has a key") };
        let half = |becomes| DiskKey::HalfClear { key: key.clone(), kek: None, becomes };
        let seal = DiskChange::Seal { disk: name.clone() };
        spec.disks[0].integrity = true;
        spec.disks[0].key = half(DiskBecomes::Encrypted);
        spec.check().unwrap();
        assert_eq!(spec.check_whole().unwrap_err().code, "half_clear");
        let sealed = seal.applied_to(&spec).unwrap();
        assert_eq!(
            (&sealed.disks[0].key, sealed.disks[0].integrity),
            (&DiskKey::provider(key.clone(), None), true)
        );
        sealed.check_whole().unwrap();
        assert_eq!(seal.applied_to(&sealed).unwrap(), sealed, "asked again");
        spec.disks[0].key = half(DiskBecomes::Clear);
        let clear = seal.applied_to(&spec).unwrap();
        assert_eq!((&clear.disks[0].key, clear.disks[0].integrity), (&DiskKey::Unencrypted, false));

        assert!(spec.has_own_volumes_like(&name).unwrap());
        let mut two = spec.clone();
        two.disks.push(Disk {
            name: "disk1".parse().unwrap(),
            key: DiskKey::provider(key.clone(), None),
            ..spec.disks[0].clone()
        });
        assert!(!two.has_own_volumes_like(&name).unwrap(), "the other disk has the VM's key");
        assert_eq!(two.own_key(), &two.disks[1].key, "the VM's own volumes are whole");
        assert_eq!(spec.own_key(), &spec.disks[0].key, "nor are they without another disk");
        let other = ProviderKey { key: "4712".parse().unwrap(), ..key.clone() };
        two.disks[1].key = DiskKey::provider(other, None);
        assert_eq!(seal.applied_to(&two).unwrap_err().code, "disk_needed");
        two.disks[1].key = half(DiskBecomes::Encrypted);
        assert!(two.check().is_err(), "one at a time");
    }
}
