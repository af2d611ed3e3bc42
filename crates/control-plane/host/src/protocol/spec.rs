//! The clear configuration of a VM. The control plane decides it, and the VM's directory keeps it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use strongroom_datastore::file::DISKS_PREFIX;
use strongroom_datastore::file::storage::cluster_of;
use strongroom_types::{DatastoreId, IoLimits, KekId, ProviderKey, VmId, VolumeId, VolumeSize};
use strongroom_vm::limits::{DISKS_MAX, NICS_MAX};
use strongroom_vm::{
    Board, BootDevice, BootError, Bootable, Cpus, DirectKernel, DiskBecomes, DiskFrontend, DiskKind,
    DiskName, Firmware, Growth, MemorySize, Nic, VmName, check_host_path, check_initrd_beside_tpm,
    check_memory_steps, rounded_memory,
};
use thiserror::Error;
use uuid::Uuid;

use super::operation::VolumeFacts;
use super::own_volume::is_reserved;
use super::problem::Problem;
use super::term::{
    FORMAT_WITH_CAPABILITIES, FORMAT_WITH_DIRECTORIES, FORMAT_WITH_DISK_PLACES, FORMAT_WITH_HOT_PLUG, FORMATS,
};

/// The configuration of a VM. Nothing here is secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmSpec {
    /// The VM's id, for life.
    pub id: VmId,
    /// Its name.
    pub name: VmName,
    /// The name of its directory in the datastore; its own name if absent. A VM that was renamed
    /// keeps its directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<VmName>,
    /// The datastore's directory: an absolute path that hostd already uses as a datastore.
    pub datastore: PathBuf,
    /// The main board and what is on it.
    #[serde(flatten)]
    pub board: Board,
    /// Its processors.
    #[serde(default)]
    pub cpus: Cpus,
    /// Its memory, in bytes.
    #[serde(deserialize_with = "rounded_memory")]
    pub memory_bytes: MemorySize,
    /// How far its processors and memory grow while it runs.
    #[serde(default, skip_serializing_if = "Growth::is_none")]
    pub growth: Growth,
    /// Its firmware.
    #[serde(default)]
    pub firmware: Firmware,
    /// Its disks.
    #[serde(default)]
    pub disks: Vec<Disk>,
    /// The limits of the requests of all its disks together.
    #[serde(default, skip_serializing_if = "IoLimits::is_none")]
    pub limits: IoLimits,
    /// Its network interfaces.
    #[serde(default)]
    pub nics: Vec<Nic>,
    /// Whether it has a TPM 2.0, whose state is sealed under the key of the first disk.
    #[serde(default)]
    pub tpm: bool,
    /// Whether it has a cloud-init disk (NoCloud), `seed`, after all others. The guest can only
    /// read it. It is filled like a disk ([`ImportDisk`](super::OperationKind::ImportDisk)).
    #[serde(default)]
    pub seed: bool,
    /// Starts a kernel without firmware's boot loader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<DirectKernel>,
    /// The devices that it boots from, in this order, and no others. If it is empty: the CD-ROM
    /// drive, then all disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub boot_order: Vec<BootDevice>,
    /// The image in its CD-ROM drive; without an image it has no drive. The file is the host's,
    /// under the same rules as a kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cdrom: Option<PathBuf>,
    /// The id of its policy, which the control plane holds. It is here so that a registration of
    /// the VM finds the policy again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Uuid>,
    /// Its own volumes, as far as they are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own_volumes: Vec<KnownVolume>,
    /// Whether it only holds a volume that no VM has: it cannot be started.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub holds_volume: bool,
    /// Where its content comes from. It is here so that a registration of the VM finds it again.
    #[serde(default, skip_serializing_if = "Lineage::is_unknown")]
    pub lineage: Lineage,
}

/// The VMs that a clone, or a VM with a disk that is one, has content of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lineage {
    /// The VM of which it is a clone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// The VMs that have made layers which it shares, or had them before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares_with: Vec<VmId>,
}

/// The VM that a clone was made of. It may be gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// The VM.
    pub vm: VmId,
    /// Its name at that time.
    pub name: VmName,
}

impl Lineage {
    /// Whether nothing is known of it.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

/// A disk: a volume in the VM's directory, or in another datastore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Its name, and the name of its volume.
    pub name: DiskName,
    /// The size that the guest sees, in bytes.
    pub size_bytes: VolumeSize,
    /// Its key, or that it is not encrypted.
    pub key: DiskKey,
    /// Its purpose.
    #[serde(default)]
    pub kind: DiskKind,
    /// How QEMU accesses it.
    #[serde(default)]
    pub frontend: DiskFrontend,
    /// Whether all of its space is allocated at once.
    #[serde(default)]
    pub thick: bool,
    /// Whether each block has a tag that reveals damage; only for encrypted disks.
    #[serde(default)]
    pub integrity: bool,
    /// The least generation of the volume's descriptor that the control plane accepts. An older one
    /// means that an old descriptor was put back.
    #[serde(default)]
    pub least_generation: u64,
    /// The id of its volume, once it exists. Another volume is not opened in its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeId>,
    /// The limits of its requests.
    #[serde(default, skip_serializing_if = "IoLimits::is_none")]
    pub limits: IoLimits,
    /// The datastore that its volume is in, if that is not the VM's. Only the control plane decides
    /// this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<DiskPlace>,
}

/// A datastore other than its VM's, with a disk of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskPlace {
    /// The datastore, whatever host sees it.
    pub datastore: DatastoreId,
    /// Its directory as this host sees it.
    pub path: PathBuf,
}

impl DiskPlace {
    /// The directory of a VM's volumes there.
    pub fn directory_of(&self, vm: VmId) -> PathBuf {
        disks_elsewhere(&self.path, vm)
    }
}

/// One of a VM's own volumes that the control plane knows. Another volume is not opened in its
/// place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownVolume {
    /// Its name in the VM's directory.
    pub name: DiskName,
    /// Its id, for life.
    pub volume: VolumeId,
    /// The least generation of its descriptor.
    pub least_generation: u64,
}

/// The key of a disk. Nothing in the datastore decides this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskKey {
    /// Encrypted under a provider's key. With `kek`, only the key with this id is accepted,
    /// whatever the descriptor says.
    Provider {
        /// The key's place at its provider.
        key: ProviderKey,
        /// The key's id in descriptors; known once the volume exists
        /// ([`VolumeFacts`](super::VolumeFacts)).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kek: Option<KekId>,
        /// The key that the VM is moving to ([`Rekey`](super::OperationKind::Rekey)). While it is
        /// set, the volume is under the old key, the new one, or both, and new volumes are under
        /// the new one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<ProviderKey>,
    },
    /// Explicitly not encrypted.
    Unencrypted,
    /// Being encrypted or decrypted ([`DiskChange::Seal`](super::DiskChange::Seal)): each layer of
    /// the volume is clear or under this key. Until that is done no VM starts with the disk.
    HalfClear {
        /// The key's place at its provider.
        key: ProviderKey,
        /// As for [`Provider`](Self::Provider).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kek: Option<KekId>,
        /// What the disk becomes.
        becomes: DiskBecomes,
    },
}

impl DiskKey {
    /// A provider's key, with no move to another in progress.
    pub const fn provider(key: ProviderKey, kek: Option<KekId>) -> Self {
        Self::Provider { key, kek, next: None }
    }

    /// Returns the key for new volumes.
    pub fn for_new(&self) -> Option<&ProviderKey> {
        match self {
            Self::Provider { key, next, .. } => Some(next.as_ref().unwrap_or(key)),
            Self::HalfClear { key, .. } => Some(key),
            Self::Unencrypted => None,
        }
    }

    /// Returns the key's place, if there is a key.
    pub fn provider_key(&self) -> Option<&ProviderKey> {
        match self {
            Self::Provider { key, .. } | Self::HalfClear { key, .. } => Some(key),
            Self::Unencrypted => None,
        }
    }

    /// Returns what it is once the change of a half-clear disk is done; any other key stays.
    #[must_use]
    pub fn completed(&self) -> Self {
        match self {
            Self::HalfClear { key, kek, becomes: DiskBecomes::Encrypted } => {
                Self::provider(key.clone(), *kek)
            }
            Self::HalfClear { becomes: DiskBecomes::Clear, .. } => Self::Unencrypted,
            Self::Provider { .. } | Self::Unencrypted => self.clone(),
        }
    }
}

/// Why a configuration is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {reason}")]
pub struct SpecError {
    /// The invalid field.
    pub field: String,
    /// The error, and what would be valid.
    pub reason: String,
}

impl VmSpec {
    /// The VM's directory.
    pub fn directory(&self) -> PathBuf {
        self.datastore.join(self.directory_name().as_str())
    }

    /// The directories of its volumes in datastores other than its own, each once.
    pub fn directories_elsewhere(&self) -> BTreeSet<PathBuf> {
        self.places().map(|place| place.directory_of(self.id)).collect()
    }

    /// All directories that its volumes are in: its own first.
    pub fn directories(&self) -> Vec<PathBuf> {
        std::iter::once(self.directory()).chain(self.directories_elsewhere()).collect()
    }

    /// The datastores with disks of it, other than its own; one with two disks comes twice.
    pub fn places(&self) -> impl Iterator<Item = &DiskPlace> {
        self.disks.iter().filter_map(|disk| disk.place.as_ref())
    }

    /// Replaces the paths of its datastores. `path_of` has those of this host; the path of a
    /// datastore that it does not know stays.
    pub fn place(&mut self, datastore: PathBuf, path_of: impl Fn(DatastoreId) -> Option<PathBuf>) {
        self.datastore = datastore;
        for place in self.disks.iter_mut().filter_map(|disk| disk.place.as_mut()) {
            if let Some(path) = path_of(place.datastore) {
                place.path = path;
            }
        }
    }

    /// The same without the paths of its datastores, which differ from host to host.
    #[must_use]
    pub fn without_paths(mut self) -> Self {
        self.place(PathBuf::from("/"), |_| Some(PathBuf::from("/")));
        self
    }

    /// Puts a disk into a datastore: its own if none is named.
    pub fn put(&mut self, disk: &DiskName, place: Option<&DiskPlace>) {
        let found = self.disks.iter_mut().filter(|known| known.name == *disk);
        found.for_each(|known| known.place = place.cloned());
    }

    /// Whether its directory is on a cluster.
    pub fn is_on_cluster(&self) -> bool {
        cluster_of(&self.datastore).is_some()
    }

    /// The oldest format of requests that can have it.
    pub fn least_format(&self) -> u32 {
        if self.places().next().is_some() {
            return FORMAT_WITH_DISK_PLACES;
        }
        if self.board.is_pinned() {
            return FORMAT_WITH_CAPABILITIES;
        }
        if !self.growth.is_none() || self.nics.iter().any(|nic| !nic.link.is_up()) {
            return FORMAT_WITH_HOT_PLUG;
        }
        match self.directory.is_some() || !self.boot_order.is_empty() {
            true => FORMAT_WITH_DIRECTORIES,
            false => FORMATS.oldest,
        }
    }

    /// The name of the VM's directory.
    pub fn directory_name(&self) -> &VmName {
        self.directory.as_ref().unwrap_or(&self.name)
    }

    /// The directory of a volume: a disk's, or one of its own. Nothing else says where one lies.
    pub fn volume_path(&self, name: &DiskName) -> PathBuf {
        let place = self.disk(name).and_then(|disk| disk.place.as_ref());
        let directory = place.map_or_else(|| self.directory(), |place| place.directory_of(self.id));
        directory.join(name.as_str())
    }

    /// The files of the host that it boots from.
    pub fn boot_files(&self) -> impl Iterator<Item = &Path> {
        let kernel = self.kernel.iter().flat_map(|kernel| [Some(&kernel.kernel), kernel.initrd.as_ref()]);
        kernel.flatten().chain(&self.cdrom).map(PathBuf::as_path)
    }

    /// Returns the disk with this name.
    pub fn disk(&self, name: &DiskName) -> Option<&Disk> {
        self.disks.iter().find(|disk| disk.name == *name)
    }

    /// Sets the limits of a disk, or of all disks together.
    pub fn limit(&mut self, disk: Option<&DiskName>, limits: IoLimits) {
        match disk {
            Some(name) => {
                self.disks.iter_mut().filter(|disk| disk.name == *name).for_each(|disk| disk.limits = limits);
            }
            None => self.limits = limits,
        }
    }

    /// Sets this key as the next key of each encrypted disk that is not under it yet.
    pub fn move_to(&mut self, to: &ProviderKey) {
        for disk in &mut self.disks {
            if let DiskKey::Provider { key, next, .. } = &mut disk.key {
                *next = (key != to).then(|| to.clone());
            }
        }
    }

    /// Returns the key that its volumes are moving to, and their present keys; `None` if no move is
    /// in progress.
    pub fn moving(&self) -> Option<(&ProviderKey, Vec<&ProviderKey>)> {
        let mut to = None;
        let mut from: Vec<&ProviderKey> = Vec::new();
        for disk in &self.disks {
            if let DiskKey::Provider { key, next: Some(next), .. } = &disk.key {
                to = Some(next);
                if !from.contains(&key) {
                    from.push(key);
                }
            }
        }
        Some((to?, from))
    }

    /// Checks that no disk is half clear: such a disk is used for nothing but the completion of its
    /// change.
    ///
    /// # Errors
    /// Names the disk.
    pub fn check_whole(&self) -> Result<(), Problem> {
        let half_clear = |disk: &&Disk| matches!(disk.key, DiskKey::HalfClear { .. });
        let Some(disk) = self.disks.iter().find(half_clear) else { return Ok(()) };
        let (vm, disk) = (&self.name, &disk.name);
        let message = format!("{disk} of VM {vm} is not encrypted as a whole yet, or not decrypted");
        let next = format!(
            "go on with `strongroom vm disk encrypt {vm} {disk}` or `strongroom vm disk decrypt {vm} {disk}`"
        );
        Err(Problem::new("half_clear", message).with_next_step(next))
    }

    /// Returns whether the VM's own volumes are encrypted and decrypted together with this disk: it
    /// is the only one with a key.
    ///
    /// # Errors
    /// If the VM's own volumes would be under the key of another disk.
    pub fn has_own_volumes_like(&self, disk: &DiskName) -> Result<bool, Problem> {
        let mut without = self.clone();
        without.disks.iter_mut().filter(|known| known.name == *disk).for_each(|known| {
            known.key = DiskKey::Unencrypted;
        });
        match (self.own_key().provider_key(), without.own_key().provider_key()) {
            (with, without) if with == without => Ok(false),
            (_, None) => Ok(true),
            (_, Some(_)) => {
                let message =
                    format!("what VM {} keeps beside its disks is under the key of {disk}", self.name);
                Err(Problem::new("disk_needed", message)
                    .with_next_step("clone the VM without encryption instead"))
            }
        }
    }

    /// Whether it has an encrypted disk.
    pub fn is_encrypted(&self) -> bool {
        self.disks.iter().any(|disk| disk.key.provider_key().is_some())
    }

    /// Adds facts about its volumes, as the control plane keeps them.
    #[must_use]
    pub fn with_facts(mut self, facts: &[VolumeFacts]) -> Self {
        for facts in facts {
            let VolumeFacts { disk: name, volume, kek, generation, size_bytes: _ } = facts.clone();
            match self.disks.iter_mut().find(|disk| disk.name == name) {
                Some(disk) => {
                    (disk.volume, disk.least_generation) =
                        (Some(volume), disk.least_generation.max(generation));
                    // During a move, the volume may be under either key.
                    if let DiskKey::Provider { kek: known, next: None, .. } = &mut disk.key {
                        *known = kek.or(*known);
                    }
                }
                None => {
                    let before = self.own_volumes.iter().find(|own| own.name == name);
                    let least_generation = before.map_or(0, |own| own.least_generation).max(generation);
                    self.own_volumes.retain(|own| own.name != name);
                    self.own_volumes.push(KnownVolume { name, volume, least_generation });
                }
            }
        }
        self
    }

    /// Returns its known volumes, with the least generations of their descriptors.
    pub fn known_volumes(&self) -> Vec<KnownVolume> {
        let disks = self.disks.iter().filter_map(|disk| {
            let (name, least_generation) = (disk.name.clone(), disk.least_generation);
            Some(KnownVolume { name, volume: disk.volume?, least_generation })
        });
        disks.chain(self.own_volumes.iter().cloned()).collect()
    }

    /// Records that a volume's descriptor has reached this generation. Older ones are refused from
    /// now on.
    pub fn raise_generation(&mut self, volume: &DiskName, generation: u64) {
        let disks = self.disks.iter_mut().map(|known| (&known.name, &mut known.least_generation));
        let own = self.own_volumes.iter_mut().map(|known| (&known.name, &mut known.least_generation));
        for (_, least) in disks.chain(own).filter(|(name, _)| *name == volume) {
            *least = (*least).max(generation);
        }
    }

    /// Merges facts about its volumes from another source. Known facts stay: a volume's id never
    /// changes, and generations only rise. Disks that the configuration does not have are ignored.
    ///
    /// # Errors
    /// If a volume is known under another id. The configuration is then unchanged.
    pub fn learn(&mut self, known: &[KnownVolume]) -> Result<(), Problem> {
        let mut learned = self.clone();
        for known in known {
            let KnownVolume { name, volume, least_generation } = known.clone();
            let is_own = is_reserved(&name);
            if is_own && !learned.own_volumes.iter().any(|own| own.name == name) {
                learned.own_volumes.push(known.clone());
                continue;
            }
            let disk = learned.disks.iter_mut().find(|disk| disk.name == name);
            let own = learned.own_volumes.iter_mut().find(|own| own.name == name);
            let (before, least) = match (disk, own) {
                (Some(disk), _) => (*disk.volume.get_or_insert(volume), &mut disk.least_generation),
                (None, Some(own)) => (own.volume, &mut own.least_generation),
                (None, None) => continue,
            };
            if before != volume {
                let message = format!("{name} of VM {} is volume {before}, and not {volume}", self.name);
                return Err(Problem::new("other_volume", message));
            }
            *least = (*least).max(least_generation);
        }
        *self = learned;
        Ok(())
    }

    /// Checks that a machine that runs with this configuration can get these processors and this
    /// memory before its next start.
    ///
    /// # Errors
    /// `not_growable`.
    pub fn check_growth_to(&self, cpus: Cpus, memory: MemorySize) -> Result<(), Problem> {
        let vm = &self.name;
        let (cpus_max, memory_max) =
            (self.growth.cpus_max(self.cpus), self.growth.memory_max(self.memory_bytes));
        let topology_changes = cpus != self.cpus && cpus != Cpus::of_cores(cpus.count());
        let message = match () {
            () if cpus.count() > cpus_max => {
                format!("VM {vm} runs, and has at most {cpus_max} CPUs until its next start")
            }
            () if topology_changes => format!("VM {vm} runs, and keeps its sockets and threads"),
            () if memory > memory_max => {
                format!("VM {vm} runs, and has at most {memory_max} of memory until its next start")
            }
            () if memory < self.memory_bytes => format!("VM {vm} runs, and its memory only grows"),
            () => {
                return check_memory_steps(self.memory_bytes, memory)
                    .map_err(|error| Problem::new("not_growable", error.to_string()));
            }
        };
        Err(Problem::new("not_growable", message).with_next_step("stop the VM first"))
    }

    /// Checks everything that does not depend on a host.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn check(&self) -> Result<(), SpecError> {
        in_field("datastore", check_host_path(&self.datastore))?;
        self.check_places()?;
        in_field("machine_type", self.board.check())?;
        in_field("cpus", self.cpus.check())?;
        in_field("growth", self.growth.check(self.cpus, self.memory_bytes))?;
        self.check_disks()?;
        if self.disks.is_empty() && (self.tpm || self.seed || self.firmware == Firmware::Uefi) {
            return wrong("disks", "a VM without a disk has no key for what its firmware, TPM or seed keeps");
        }
        if self.nics.len() > NICS_MAX {
            return wrong("nics", format!("a VM has at most {NICS_MAX} network interfaces"));
        }
        in_field("cdrom", self.cdrom.as_deref().map_or(Ok(()), check_host_path))?;
        let disks = self.disks.iter().map(|disk| (&disk.name, disk.kind)).collect();
        let bootable = Bootable { disks, nics: self.nics.len() };
        in_field("boot_order", bootable.check(&self.boot_order))?;
        let Some(kernel) = &self.kernel else { return Ok(()) };
        if !self.boot_order.is_empty() {
            return wrong("boot_order", BootError::OrderBesideKernel);
        }
        in_field("kernel", kernel.check())?;
        in_field("firmware", check_initrd_beside_tpm(kernel, self.tpm, self.firmware))
    }

    fn check_places(&self) -> Result<(), SpecError> {
        for (disk, place) in self.disks.iter().filter_map(|disk| Some((disk, disk.place.as_ref()?))) {
            in_field("disks", check_host_path(&place.path))?;
            if disk.kind == DiskKind::Swap {
                return wrong("disks", format!("{} is for swap, and lies in the VM's datastore", disk.name));
            }
        }
        Ok(())
    }

    fn check_disks(&self) -> Result<(), SpecError> {
        if self.disks.len() + usize::from(self.seed) > DISKS_MAX {
            return wrong("disks", format!("a VM has at most {DISKS_MAX} disks"));
        }
        let names: BTreeSet<_> = self.disks.iter().map(|disk| disk.name.as_str()).collect();
        if names.len() != self.disks.len() {
            return wrong("disks", "two have the same name");
        }
        if let Some(taken) = self.disks.iter().map(|disk| &disk.name).find(|name| is_reserved(name)) {
            return wrong("disks", format!("the name {taken} is a VM's own; choose another one"));
        }
        let next = |disk: &'_ Disk| match &disk.key {
            DiskKey::Provider { next, .. } => next.clone(),
            DiskKey::HalfClear { .. } | DiskKey::Unencrypted => None,
        };
        let moving: Vec<ProviderKey> = self.disks.iter().filter_map(next).collect();
        if moving.windows(2).any(|pair| pair[0] != pair[1]) {
            return wrong("disks", "they are moving to different keys; a VM moves to one");
        }
        let half_clear = self.disks.iter().filter(|disk| matches!(disk.key, DiskKey::HalfClear { .. }));
        if half_clear.count() > usize::from(moving.is_empty()) {
            return wrong(
                "disks",
                "one disk at a time is encrypted or decrypted, and not beside a move to a key",
            );
        }
        match self.disks.iter().find(|disk| disk.integrity && disk.key == DiskKey::Unencrypted) {
            Some(disk) => wrong("disks", format!("{} has no key that tags could be made with", disk.name)),
            None => Ok(()),
        }
    }
}

/// The directory of a VM's disks in a datastore other than its own. No VM and no volume of its own
/// can have this name: hidden names are the datastore's.
pub fn disks_elsewhere(datastore: &Path, vm: VmId) -> PathBuf {
    datastore.join(format!("{DISKS_PREFIX}{vm}"))
}

fn wrong(field: &str, reason: impl ToString) -> Result<(), SpecError> {
    Err(SpecError { field: field.to_owned(), reason: reason.to_string() })
}

fn in_field<E: ToString>(field: &'static str, checked: Result<(), E>) -> Result<(), SpecError> {
    checked.or_else(|error| wrong(field, error))
}

#[cfg(test)]
impl VmSpec {
    /// A configuration with one disk.
    pub(crate) fn for_tests(name: &str, sealed: bool) -> Self {
        let key = r#"{"provider":{"key":{"provider":"local","key":"4711","wrapped":null}}}"#;
        let key = if sealed { key } else { r#""unencrypted""# };
        let text = format!(
            r#"{{"id":"6f1c5bde-8d09-4b4c-9f5f-3f0f8f0f0001","name":"{name}","datastore":"/srv/ds","memory_bytes":268435456,
            "disks":[{{"name":"disk0","size_bytes":1048576,"key":{key}}}]}}"#
        );
        serde_json::from_str(&text).expect("it is a configuration")
    }
}

#[cfg(test)]
mod tests {
    use strongroom_types::DatastoreId;

    use super::*;

    fn spec() -> VmSpec {
        let text = r#"{"id":"6f1c5bde-8d09-4b4c-9f5f-3f0f8f0f0001","name":"web1","datastore":"/srv/ds","memory_bytes":268435456,
            "disks":[{"name":"disk0","size_bytes":1048576,"key":"unencrypted"},
                     {"name":"disk1","size_bytes":1048576,"key":{"provider":{"key":{"provider":"local","key":"4711","wrapped":null}}}}],
            "nics":[{"mac":"52:54:00:12:34:56","network":"user"}]}"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_small_configuration_is_completed_and_survives_its_text() {
        let spec = spec();
        spec.check().unwrap();
        assert_eq!(
            (spec.board.machine, spec.cpus.count(), spec.board.vnc),
            (strongroom_vm::MachineType::Q35, 1, true)
        );
        assert_eq!(spec.volume_path(&spec.disks[0].name), Path::new("/srv/ds/web1/disk0"));
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<VmSpec>(&text).unwrap(), spec);
    }

    #[test]
    fn what_makes_no_vm_is_refused() {
        let refused = |change: &dyn Fn(&mut VmSpec)| {
            let mut spec = spec();
            change(&mut spec);
            spec.check().unwrap_err().field
        };
        assert_eq!(refused(&|spec| spec.datastore = "ds".into()), "datastore");
        assert_eq!(refused(&|spec| spec.datastore = "/srv/../etc".into()), "datastore");
        assert_eq!(refused(&|spec| spec.datastore = "/srv/a,b".into()), "datastore");
        let pc = |spec: &mut VmSpec| spec.board.machine_type = Some("pc-i440fx-7.2".parse().unwrap());
        assert_eq!(refused(&pc), "machine_type");
        assert_eq!(refused(&|spec| spec.cpus.threads = 0), "cpus");
        assert_eq!(refused(&|spec| spec.cpus = Cpus { sockets: 65536, cores: 65536, threads: 1 }), "cpus");
        assert_eq!(refused(&|spec| spec.disks[1].name = spec.disks[0].name.clone()), "disks");
        for own in ["nvram", "dump-1"] {
            assert_eq!(refused(&|spec| spec.disks[0].name = own.parse().unwrap()), "disks", "{own}");
        }
        assert_eq!(refused(&|spec| spec.disks[0].integrity = true), "disks");
        let keyless = |spec: &mut VmSpec| (spec.disks, spec.firmware) = (Vec::new(), Firmware::Uefi);
        assert_eq!(refused(&keyless), "disks");
        let nic = spec().nics[0].clone();
        assert_eq!(refused(&|spec| spec.nics = vec![nic.clone(); NICS_MAX + 1]), "nics");
        let kernel = |arguments: &str| {
            let kernel = "/boot/vmlinuz".into();
            Some(DirectKernel { kernel, initrd: None, arguments: arguments.to_owned() })
        };
        let order = |device: &str| vec![device.parse::<BootDevice>().unwrap()];
        assert_eq!(refused(&|spec| spec.boot_order = order("disk7")), "boot_order");
        let both = |spec: &mut VmSpec| (spec.kernel, spec.boot_order) = (kernel("quiet"), order("disk0"));
        assert_eq!(refused(&both), "boot_order");
        assert_eq!(refused(&|spec| spec.cdrom = Some("../debian.iso".into())), "cdrom");
        assert_eq!(refused(&|spec| spec.kernel = kernel("quiet\n")), "kernel");
        assert_eq!(refused(&|spec| spec.kernel = kernel(&"x".repeat(4096))), "kernel");
    }

    #[test]
    fn a_host_of_an_earlier_version_is_not_sent_what_it_does_not_know() {
        let mut spec = spec();
        assert_eq!(spec.least_format(), FORMATS.oldest);
        let text = serde_json::to_string(&spec).unwrap();
        assert!(!text.contains("machine_type") && !text.contains("processor"), "{text}");
        spec.board.processor = Some("x86-64-v2".parse().unwrap());
        assert_eq!(spec.least_format(), FORMAT_WITH_CAPABILITIES);
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<VmSpec>(&text).unwrap(), spec);
    }

    #[test]
    fn a_disk_lies_where_the_control_plane_says() {
        let mut spec = spec();
        let (first, second) = (spec.disks[0].name.clone(), spec.disks[1].name.clone());
        assert_eq!(spec.directories(), [Path::new("/srv/ds/web1")]);
        let place = DiskPlace { datastore: DatastoreId::random(), path: "/srv/fast".into() };
        spec.put(&second, Some(&place));
        spec.check().unwrap();
        assert_eq!(spec.least_format(), FORMAT_WITH_DISK_PLACES);
        let there = PathBuf::from(format!("/srv/fast/.strongroom-disks-{}", spec.id));
        assert_eq!(spec.volume_path(&second), there.join("disk1"));
        assert_eq!(spec.volume_path(&first), Path::new("/srv/ds/web1/disk0"));
        assert_eq!(spec.directories(), [PathBuf::from("/srv/ds/web1"), there]);
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<VmSpec>(&text).unwrap(), spec);
        // Another host sees the datastores elsewhere, and knows them by their ids.
        let mut other = spec.clone();
        other.place("/mnt/ds".into(), |id| (id == place.datastore).then(|| "/mnt/fast".into()));
        assert!(other.volume_path(&second).starts_with("/mnt/fast"));
        assert_eq!(other.without_paths(), spec.clone().without_paths());
        spec.put(&second, Some(&DiskPlace { path: "/srv/../fast".into(), ..place }));
        assert_eq!(spec.check().unwrap_err().field, "disks");
        spec.put(&second, None);
        assert_eq!(spec, self::spec());
    }

    #[test]
    fn a_word_that_is_not_known_is_refused() {
        let text =
            serde_json::to_string(&spec()).unwrap().replace("\"name\":\"web1\"", "\"name\":\"web1\",\"x\":1");
        assert!(serde_json::from_str::<VmSpec>(&text).is_err());
    }
}
