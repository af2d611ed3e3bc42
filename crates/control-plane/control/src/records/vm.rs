//! A VM: its desired state, and its host's last report.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use strongroom_api::vm::{DesiredPower, Lifecycle, Notes, PowerState, RestartPolicy, Tag};
use strongroom_api::{Name, ObjectKind, ObjectRef};
use strongroom_host::protocol::{
    self, Dump, ObservedVm, SavedMemory, VmGeneration, VmReason, VmSnapshots, VmSpec, WaitingFor,
};
use strongroom_types::{DatastoreId, KeyRequestId, ProviderName, SnapshotId, VmId};
use uuid::Uuid;

use super::hardware::{DiskRecord, Hardware};
use super::paths::DatastorePaths;

/// The desired state of a VM. It is recorded before anything is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmRecord {
    /// Its id.
    pub id: VmId,
    /// Its name.
    pub name: Name,
    /// The name of its directory in the datastore, if that is not its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<Name>,
    /// Notes about it.
    #[serde(default, skip_serializing_if = "Notes::is_empty")]
    pub notes: Notes,
    /// Its tags, one for each key.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub tags: BTreeSet<Tag>,
    /// Its datastore.
    pub datastore: DatastoreId,
    /// Its host.
    pub host: Uuid,
    /// Its policy.
    #[serde(default)]
    pub policy: Option<Uuid>,
    /// Its folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<Uuid>,
    /// Its hardware.
    pub hardware: Hardware,
    /// The request for its key.
    #[serde(default)]
    pub key_wish: Option<KeyWish>,
    /// Whether everything that is under the key that it is moving to has new data keys.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub renews_data_keys: bool,
    /// When all of its data was last put under new data keys, in seconds since 1970; absent if it
    /// has those that it was created or registered with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_keys_unix_seconds: Option<u64>,
    /// The stage of its life in the inventory.
    pub lifecycle: Lifecycle,
    /// Its desired power state.
    pub desired: DesiredPower,
    /// Whether it is restarted automatically.
    pub restart: RestartPolicy,
    /// The number of its last start. It only grows, and is recorded before a host or a key server
    /// receives it.
    pub generation: u64,
    /// The last generation that was prepared on another host while it ran; 0 if none was. Such a
    /// generation is the VM's only if the move was committed, and is never used again otherwise.
    #[serde(default, skip_serializing_if = "is_none_yet")]
    pub prepared: u64,
    /// The one task that works on it.
    #[serde(default)]
    pub task: Option<Uuid>,
    /// Whether this is from a backup of the inventory, and its host has not confirmed it: the VM
    /// may have changed since, or may not exist any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub from_backup: bool,
    /// When it was created or registered.
    pub created_unix_seconds: u64,
    /// The recent automatic restarts within the window, in milliseconds since 1970.
    #[serde(default)]
    pub restarts_unix_ms: Vec<u64>,
    /// The VM that it is a clone of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Lineage>,
    /// If it is a template, the snapshot that has its content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<SnapshotId>,
    /// Whether it is no VM, but holds a volume that no VM has, with the volume's name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub holds_volume: bool,
    /// Whether it has had keys, or has the content of something that had: it stays so
    /// ([`keep_past`](super::Record::keep_past)).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub was_encrypted: bool,
}

/// The VM that a clone was made of. It may be gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lineage {
    /// The VM.
    pub vm: VmId,
    /// Its name at that time.
    pub name: Name,
    /// The VMs whose layers a linked clone shares: the one that it was made of, and those whose
    /// layers that one shared. Empty for a full clone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares_with: Vec<VmId>,
}

/// A request for a key. It is recorded before it is sent, and repeated after a crash, so it never
/// makes two keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyWish {
    /// The provider.
    pub provider: ProviderName,
    /// The id of the request.
    pub request: KeyRequestId,
}

impl VmRecord {
    /// Its reference in answers.
    pub fn object(&self) -> ObjectRef {
        let id = Uuid::from_bytes(*self.id.as_bytes());
        ObjectRef { kind: self.kind(), id: Some(id), name: self.name.to_string() }
    }

    /// Whether it is ever started. A volume without a VM, and a template, are not.
    pub fn is_run(&self) -> bool {
        !self.holds_volume && self.template.is_none()
    }

    /// The name of its directory in the datastore.
    pub fn directory(&self) -> &Name {
        self.directory.as_ref().unwrap_or(&self.name)
    }

    /// Gives it another name. Its directory stays.
    pub fn rename(&mut self, name: &Name) {
        let directory = self.directory().clone();
        self.directory = Some(directory).filter(|directory| directory != name);
        self.name = name.clone();
    }

    /// The datastore of one of its disks.
    pub fn datastore_of(&self, disk: &DiskRecord) -> DatastoreId {
        disk.datastore.unwrap_or(self.datastore)
    }

    /// The datastores that its volumes are in: its own, and those of disks that are elsewhere.
    pub fn datastores(&self) -> BTreeSet<DatastoreId> {
        let others =
            self.hardware.disks.iter().flat_map(|disk| [disk.datastore, disk.moves_from, disk.moves_to]);
        std::iter::once(self.datastore).chain(others.flatten()).collect()
    }

    /// A disk of it that is in another datastore.
    pub fn disk_elsewhere(&self) -> Option<&DiskRecord> {
        self.hardware.disks.iter().find(|disk| disk.datastore.is_some())
    }

    /// Its kind: a VM, or a volume.
    pub fn kind(&self) -> ObjectKind {
        if self.holds_volume { ObjectKind::Volume } else { ObjectKind::Vm }
    }

    /// Since when its data keys are used, in seconds since 1970.
    pub fn data_keys_since(&self) -> u64 {
        self.data_keys_unix_seconds.unwrap_or(self.created_unix_seconds)
    }

    /// Whether it is encrypted, or ever was, as far as is known.
    pub fn is_or_was_encrypted(&self) -> bool {
        // Data keys were renewed: an earlier version has not recorded that it was decrypted.
        self.hardware.encrypted() || self.was_encrypted || self.data_keys_unix_seconds.is_some()
    }

    /// The VMs whose layers it has: as a linked clone, or in a disk that is one.
    pub fn shared(&self) -> impl Iterator<Item = VmId> {
        let disks = self.hardware.disks.iter().flat_map(|disk| &disk.shares_with);
        self.origin.iter().flat_map(|origin| &origin.shares_with).chain(disks).copied()
    }

    /// Whether it is a linked clone that has layers of this VM, or has a disk that is one.
    pub fn shares_with(&self, vm: VmId) -> bool {
        self.shared().any(|shared| shared == vm)
    }

    /// The lineage of a clone of this VM.
    pub fn lineage_of_clone(&self, linked: bool) -> Lineage {
        let mut shares_with = Vec::new();
        if linked {
            let before = self.origin.iter().flat_map(|origin| &origin.shares_with);
            let of_disks = self.hardware.disks.iter().flat_map(|disk| &disk.shares_with);
            shares_with.extend(std::iter::once(&self.id).chain(before).chain(of_disks).copied());
        }
        Lineage { vm: self.id, name: self.name.clone(), shares_with }
    }

    /// The number of its last start, for the protocol.
    pub fn generation(&self) -> VmGeneration {
        VmGeneration(self.generation)
    }

    /// The number of its next start, if its host has reported `seen`.
    pub fn generation_after(&self, seen: u64) -> u64 {
        self.generation.max(self.prepared).max(seen) + 1
    }

    /// Converts it for its host; `None` while a key does not exist.
    pub fn told(&self, paths: &DatastorePaths) -> Option<VmSpec> {
        // A name of the API is valid in the protocol: the same characters, the same length.
        let name = self.name.as_str().parse().ok()?;
        let directory = match &self.directory {
            Some(directory) => Some(directory.as_str().parse().ok()?),
            None => None,
        };
        let spec = self.hardware.told(self.id, name, paths)?;
        let (policy, holds_volume, lineage) = (self.policy, self.holds_volume, self.lineage());
        Some(VmSpec { directory, policy, holds_volume, lineage, ..spec })
    }

    /// Its lineage, for its host, which keeps it with the configuration.
    fn lineage(&self) -> protocol::Lineage {
        let of_disks = self.hardware.disks.iter().flat_map(|disk| &disk.shares_with);
        let shared: BTreeSet<VmId> =
            self.origin.iter().flat_map(|origin| &origin.shares_with).chain(of_disks).copied().collect();
        let origin = self.origin.as_ref().and_then(|origin| {
            Some(protocol::Origin { vm: origin.vm, name: origin.name.as_str().parse().ok()? })
        });
        protocol::Lineage { origin, shares_with: shared.into_iter().collect() }
    }

    /// Takes over the lineage that its host has kept with the configuration.
    pub fn take_lineage(&mut self, found: &protocol::Lineage) {
        let shares_with = found.shares_with.clone();
        let origin = found.origin.as_ref();
        match origin.and_then(|origin| Some((origin.vm, Name::new(origin.name.as_str()).ok()?))) {
            Some((vm, name)) => self.origin = Some(Lineage { vm, name, shares_with }),
            // Nothing says which of its disks it is.
            None => {
                for disk in &mut self.hardware.disks {
                    disk.shares_with.clone_from(&shares_with);
                }
            }
        }
    }
}

/// The last report of a VM's host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedRecord {
    /// The VM.
    pub vm: VmId,
    /// Its power state.
    pub power: PowerState,
    /// The number of the start.
    pub generation: u64,
    /// When that state began, in seconds since 1970.
    pub since_unix_seconds: u64,
    /// The reason for that state.
    #[serde(default)]
    pub reason: Option<VmReason>,
    /// The keys that it waits for.
    #[serde(default)]
    pub waiting_for: Vec<WaitingFor>,
    /// The saved memory.
    #[serde(default)]
    pub suspended: Option<SavedMemory>,
    /// The dumps of its guest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dumps: Vec<Dump>,
    /// Its snapshots.
    #[serde(default, skip_serializing_if = "VmSnapshots::is_empty")]
    pub snapshots: VmSnapshots,
    /// The number of supervisors of this start that have died.
    #[serde(default, skip_serializing_if = "is_none_yet")]
    pub supervisor_deaths: u64,
    /// Whether its TPM has ended while it runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tpm_lost: bool,
    /// Whether its guest is disconnected because its network has ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub network_lost: bool,
    /// How often each disk's worker has died in this start of the VM; disks without deaths are
    /// absent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub worker_restarts: BTreeMap<String, u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
const fn is_none_yet(count: &u64) -> bool {
    *count == 0
}

impl ObservedRecord {
    /// Takes a report, without the fields that change all the time.
    pub fn of(seen: &ObservedVm) -> Self {
        use strongroom_host::protocol::PowerState as Told;
        let power = match seen.power {
            Told::Stopped => PowerState::Stopped,
            Told::Starting => PowerState::Starting,
            Told::Running => PowerState::Running,
            Told::Paused => PowerState::Paused,
            Told::Stopping => PowerState::Stopping,
            Told::Crashed => PowerState::Crashed,
            Told::Suspended => PowerState::Suspended,
            Told::KeyUnavailable => PowerState::KeyUnavailable,
        };
        let restarts = seen.volumes.iter().filter(|volume| volume.restarts > 0);
        Self {
            vm: seen.vm,
            power,
            generation: seen.generation.0,
            since_unix_seconds: seen.since_unix_seconds,
            reason: seen.reason.clone(),
            waiting_for: seen.waiting_for.clone(),
            suspended: seen.suspended.clone(),
            dumps: seen.dumps.clone().unwrap_or_default(),
            snapshots: seen.snapshots.clone().unwrap_or_default(),
            supervisor_deaths: seen.supervisor_deaths,
            // A supervisor of an earlier version only sets the reason.
            tpm_lost: seen.tpm_lost || seen.reason.as_ref().is_some_and(|reason| reason.code == "tpm_lost"),
            network_lost: seen.network_lost,
            worker_restarts: restarts.map(|volume| (volume.disk.to_string(), volume.restarts)).collect(),
        }
    }

    /// The reason's code; empty without a reason.
    pub fn reason_code(&self) -> &str {
        self.reason.as_ref().map_or("", |reason| reason.code.as_str())
    }
}
