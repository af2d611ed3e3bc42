//! The hardware of a VM in the inventory, and its conversion for hosts.

use std::path::Path;

use serde::{Deserialize, Serialize};
use strongroom_api::Name;
use strongroom_api::vm::{Boot, BootDevice, Cdrom, Nic, NicBackend};
use strongroom_host::protocol;
use strongroom_host::protocol::{DiskKey, KnownVolume};
use strongroom_types::{DatastoreId, IoLimits, KekId, ProviderKey, VmId, VolumeId, VolumeSize};
use strongroom_vm::{
    Board, Cpus, DiskBecomes, DiskFrontend, DiskKind, DiskName, Firmware, Growth, MemorySize, VmName,
    rounded_memory,
};
use uuid::Uuid;

use super::paths::DatastorePaths;

/// The name of the cloud-init disk, which no other disk may have.
pub const SEED: &str = "seed";

/// The hardware of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hardware {
    /// The main board and what is on it.
    #[serde(flatten)]
    pub board: Board,
    /// What starts the guest.
    pub firmware: Firmware,
    /// Processors.
    pub cpus: Cpus,
    /// Memory.
    #[serde(deserialize_with = "rounded_memory")]
    pub memory: MemorySize,
    /// How far processors and memory grow while it runs.
    #[serde(default, skip_serializing_if = "Growth::is_none")]
    pub growth: Growth,
    /// Disks.
    pub disks: Vec<DiskRecord>,
    /// The limits of the requests of all disks together.
    #[serde(default, skip_serializing_if = "IoLimits::is_none")]
    pub limits: IoLimits,
    /// Network interfaces, each with an address.
    pub nics: Vec<Nic>,
    /// Whether there is a TPM.
    pub tpm: bool,
    /// Whether there is a cloud-init disk.
    #[serde(default)]
    pub seed: bool,
    /// What it boots.
    pub boot: Boot,
    /// The CD-ROM drive.
    #[serde(default)]
    pub cdrom: Cdrom,
    /// The VM's own volumes that last: UEFI's variables, the TPM's record, the seed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own_volumes: Vec<KnownVolume>,
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskRecord {
    /// Its name.
    pub name: DiskName,
    /// Its size.
    pub size: VolumeSize,
    /// Its purpose.
    #[serde(default)]
    pub kind: DiskKind,
    /// How it is attached to the guest.
    pub frontend: DiskFrontend,
    /// Its key. Nothing in a datastore decides this.
    pub sealing: DiskSealing,
    /// Its volume, once it exists.
    #[serde(default)]
    pub volume: Option<VolumeId>,
    /// Whether no other volume may be opened. The previous release kept the id of a volume that an
    /// import had replaced. Its ids are only shown, and become pinned when the host reports the
    /// volume again.
    #[serde(default)]
    pub pinned: bool,
    /// The least generation of its descriptor. An older one means that an old descriptor was put
    /// back.
    #[serde(default)]
    pub least_generation: u64,
    /// Whether all of its space is allocated at once.
    #[serde(default)]
    pub thick: bool,
    /// Whether each block has a tag.
    #[serde(default)]
    pub integrity: bool,
    /// If its volume was bound to the VM, the name that the volume had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_name: Option<Name>,
    /// If its volume was bound to the VM, the VMs and volumes whose layers it shares.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares_with: Vec<VmId>,
    /// The limits of its requests.
    #[serde(default, skip_serializing_if = "IoLimits::is_none")]
    pub limits: IoLimits,
    /// The datastore that its volume is in, if that is not the VM's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datastore: Option<DatastoreId>,
    /// The datastore that it has just moved from, until its host has taken the copy of its volume.
    /// Until then the VM does not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moves_from: Option<DatastoreId>,
    /// The datastore that its volume may be in already: the VM's host decides while the VM runs,
    /// and has not said. Until then the VM does not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moves_to: Option<DatastoreId>,
}

/// The key of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskSealing {
    /// None, explicitly.
    Clear,
    /// A key that does not exist yet. Such a disk is not sent to a host.
    Awaited,
    /// This key; with `kek`, no other is accepted.
    Under {
        /// The key's place.
        key: ProviderKey,
        /// The key's id in descriptors.
        #[serde(default)]
        kek: Option<KekId>,
        /// The key that the VM is moving to; the volume is under either.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<ProviderKey>,
    },
    /// Being encrypted or decrypted: its layers are clear or under this key. Its VM does not start
    /// until that is done.
    HalfClear {
        /// The key's place.
        key: ProviderKey,
        /// The key's id in descriptors.
        #[serde(default)]
        kek: Option<KekId>,
        /// What the disk becomes.
        becomes: DiskBecomes,
    },
}

impl DiskSealing {
    /// Under this key, with no move in progress.
    pub const fn under(key: ProviderKey, kek: Option<KekId>) -> Self {
        Self::Under { key, kek, next: None }
    }

    /// The key that the disk is moving to.
    pub fn next(&self) -> Option<&ProviderKey> {
        match self {
            Self::Under { next, .. } => next.as_ref(),
            Self::Clear | Self::Awaited | Self::HalfClear { .. } => None,
        }
    }

    /// The key's place.
    pub fn key(&self) -> Option<&ProviderKey> {
        match self {
            Self::Under { key, .. } | Self::HalfClear { key, .. } => Some(key),
            Self::Clear | Self::Awaited => None,
        }
    }

    /// What the disk becomes, if it is half clear.
    pub const fn becomes(&self) -> Option<DiskBecomes> {
        match self {
            Self::HalfClear { becomes, .. } => Some(*becomes),
            Self::Clear | Self::Awaited | Self::Under { .. } => None,
        }
    }

    /// Whether the whole disk is encrypted, or will be from its first block on.
    pub const fn is_sealed(&self) -> bool {
        match self {
            Self::Under { .. } | Self::Awaited => true,
            Self::Clear | Self::HalfClear { .. } => false,
        }
    }

    fn told(&self) -> Option<DiskKey> {
        match self {
            Self::Clear => Some(DiskKey::Unencrypted),
            Self::Awaited => None,
            Self::Under { key, kek, next } => {
                Some(DiskKey::Provider { key: key.clone(), kek: *kek, next: next.clone() })
            }
            Self::HalfClear { key, kek, becomes } => {
                Some(DiskKey::HalfClear { key: key.clone(), kek: *kek, becomes: *becomes })
            }
        }
    }
}

impl DiskRecord {
    /// Converts it for a host; `None` while its key does not exist.
    pub fn told(&self, paths: &DatastorePaths) -> Option<protocol::Disk> {
        let place = match self.datastore {
            None => None,
            Some(datastore) => Some(paths.place(datastore)?),
        };
        Some(protocol::Disk {
            name: self.name.clone(),
            size_bytes: self.size,
            key: self.sealing.told()?,
            kind: self.kind,
            frontend: self.frontend,
            thick: self.thick,
            integrity: self.integrity,
            least_generation: self.least_generation,
            volume: self.volume.filter(|_| self.pinned),
            limits: self.limits,
            place,
        })
    }
}

impl Hardware {
    /// Records the sizes that its disks have.
    pub fn keep_sizes(&mut self, volumes: &[protocol::VolumeFacts]) {
        for facts in volumes {
            let disk = self.disks.iter_mut().find(|disk| disk.name == facts.disk);
            if let (Some(disk), Some(size)) = (disk, facts.size_bytes) {
                disk.size = size;
            }
        }
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

    /// The disk with this name.
    pub fn disk(&self, name: &str) -> Option<&DiskRecord> {
        self.disks.iter().find(|disk| disk.name.as_str() == name)
    }

    /// The name of the next disk of a kind: the first free one.
    pub fn free_name(&self, kind: DiskKind) -> Option<DiskName> {
        let prefix = match kind {
            DiskKind::Data => "disk",
            DiskKind::Swap => "swap",
        };
        let mut names = (0..=self.disks.len()).map(|number| format!("{prefix}{number}"));
        names.find(|name| self.disk(name).is_none())?.parse().ok()
    }

    /// The networks of the site that its cards are connected to.
    pub fn networks(&self) -> impl Iterator<Item = Uuid> {
        let named = self.nics.iter().filter_map(|nic| nic.backend.network());
        named.filter_map(|network| Uuid::parse_str(network.as_str()).ok())
    }

    /// The ids of all known volumes, including the VM's own.
    pub fn volumes(&self) -> impl Iterator<Item = VolumeId> {
        let own = self.own_volumes.iter().map(|own| own.volume);
        self.disks.iter().filter_map(|disk| disk.volume).chain(own)
    }

    /// The id of the volume with this name, a disk's or one of the VM's own.
    pub fn volume(&self, name: &DiskName) -> Option<VolumeId> {
        let own = self.own_volumes.iter().find(|own| own.name == *name).map(|own| own.volume);
        self.disk(name.as_str()).and_then(|disk| disk.volume).or(own)
    }

    /// Forgets the volume with this name, because another is about to replace it.
    pub fn forget_volume(&mut self, name: &DiskName) {
        self.own_volumes.retain(|own| own.name != *name);
        for disk in self.disks.iter_mut().filter(|disk| disk.name == *name) {
            (disk.volume, disk.pinned, disk.least_generation) = (None, false, 0);
        }
    }

    /// The sum of the disks' sizes, in bytes.
    pub fn disk_bytes(&self) -> u64 {
        self.disks.iter().map(|disk| disk.size.bytes()).sum()
    }

    /// Returns the disk or seed with this name, if an image can be written to it.
    pub fn fillable(&self, name: &str) -> Option<DiskName> {
        if self.seed && name == SEED {
            return name.parse().ok();
        }
        let found = self.disks.iter().find(|disk| disk.name.as_str() == name && disk.kind == DiskKind::Data);
        found.map(|disk| disk.name.clone())
    }

    /// Whether a disk is encrypted.
    pub fn encrypted(&self) -> bool {
        self.disks.iter().any(|disk| disk.sealing != DiskSealing::Clear)
    }

    /// The disks that are not encrypted, or not as a whole.
    pub fn clear_disks(&self) -> impl Iterator<Item = &DiskRecord> {
        self.disks.iter().filter(|disk| !disk.sealing.is_sealed())
    }

    /// The disk whose copy its host has not taken yet, after a move, or of which the host has not
    /// said where it is.
    pub fn unsettled(&self) -> Option<&DiskRecord> {
        self.disks.iter().find(|disk| disk.moves_from.or(disk.moves_to).is_some())
    }

    /// The disk that is half clear.
    pub fn half_clear(&self) -> Option<&DiskRecord> {
        self.disks.iter().find(|disk| disk.sealing.becomes().is_some())
    }

    /// Completes the change of a half-clear disk. Returns the keys that the VM needs no more.
    pub fn complete_half_clear(&mut self) -> Vec<ProviderKey> {
        let before = self.keys();
        for disk in &mut self.disks {
            if let DiskSealing::HalfClear { key, kek, becomes } = &disk.sealing {
                disk.sealing = match becomes {
                    DiskBecomes::Encrypted => DiskSealing::under(key.clone(), *kek),
                    DiskBecomes::Clear => DiskSealing::Clear,
                };
                disk.integrity &= disk.sealing != DiskSealing::Clear;
            }
        }
        let after = self.keys();
        before.into_iter().filter(|key| !after.contains(key)).collect()
    }

    /// Returns the ways in which data of encrypted disks could leak, if an attacker has chosen the
    /// configuration.
    pub fn ways_out(&self) -> Vec<String> {
        let mut ways = Vec::new();
        if !self.encrypted() {
            return ways;
        }
        for disk in self.clear_disks() {
            let is_first = self.disks.first() == Some(disk);
            let starts = if is_first { ", and the VM starts from it" } else { "" };
            let whole = if disk.sealing.becomes().is_some() { " as a whole" } else { "" };
            ways.push(format!("{} is not encrypted{whole}{starts}", disk.name));
        }
        for (number, nic) in self.nics.iter().enumerate() {
            let network = match &nic.backend {
                NicBackend::User {} => "the host's networks, through passt".to_owned(),
                NicBackend::Tap { device } => format!("tap device {device}"),
                NicBackend::Bridge { device, .. } => format!("bridge {device}"),
                NicBackend::Network { network, on: _ } => format!("network {network}"),
            };
            ways.push(format!("nic{number} reaches {network}"));
        }
        if let Boot::Kernel { kernel, .. } = &self.boot {
            ways.push(format!("it starts the host's kernel {}", kernel.display()));
        }
        for device in self.boot.order() {
            if let BootDevice::Nic(number) = device {
                ways.push(format!("it starts what nic{number}'s network offers"));
            }
        }
        if let Some(image) = self.cdrom.image() {
            ways.push(format!("it starts from the host's image {}", image.display()));
        }
        ways
    }

    /// The keys that its disks are under or are moving to, each once; first that of the VM's own
    /// volumes.
    pub fn keys(&self) -> Vec<ProviderKey> {
        let mut keys: Vec<ProviderKey> = Vec::new();
        let both = |disk: &'_ DiskRecord| [disk.sealing.key().cloned(), disk.sealing.next().cloned()];
        for key in &self.disks.iter().flat_map(both).flatten().collect::<Vec<_>>() {
            if !keys.contains(key) {
                keys.push(key.clone());
            }
        }
        keys
    }

    /// The key that the VM is moving to.
    pub fn next_key(&self) -> Option<&ProviderKey> {
        self.disks.iter().find_map(|disk| disk.sealing.next())
    }

    /// Makes this the next key of every encrypted disk.
    pub fn move_to(&mut self, to: &ProviderKey) {
        for disk in &mut self.disks {
            if let DiskSealing::Under { key, next, .. } = &mut disk.sealing {
                *next = (key != to).then(|| to.clone());
            }
        }
    }

    /// Completes the move of every encrypted disk. Returns the keys that they have left.
    pub fn moved(&mut self) -> Vec<ProviderKey> {
        let mut left = Vec::new();
        for disk in &mut self.disks {
            if let DiskSealing::Under { key, kek, next } = &mut disk.sealing
                && let Some(next) = next.take()
            {
                let before = std::mem::replace(key, next);
                *kek = None;
                if !left.contains(&before) {
                    left.push(before);
                }
            }
        }
        left
    }

    /// Converts it for a host; `None` while a key does not exist.
    pub fn told(&self, id: VmId, name: VmName, paths: &DatastorePaths) -> Option<protocol::VmSpec> {
        Some(protocol::VmSpec {
            id,
            name,
            directory: None,
            datastore: paths.own().to_owned(),
            board: self.board.clone(),
            cpus: self.cpus,
            memory_bytes: self.memory,
            growth: self.growth,
            firmware: self.firmware,
            disks: self.disks.iter().map(|disk| disk.told(paths)).collect::<Option<_>>()?,
            limits: self.limits,
            nics: self.nics.iter().map(nic_told).collect::<Option<_>>()?,
            tpm: self.tpm,
            seed: self.seed,
            kernel: self.boot.kernel(),
            boot_order: self.boot.order().to_vec(),
            cdrom: self.cdrom.image().map(Path::to_owned),
            policy: None,
            own_volumes: self.own_volumes.clone(),
            holds_volume: false,
            lineage: protocol::Lineage::default(),
        })
    }

    /// Converts the configuration in a VM's directory.
    ///
    /// # Errors
    /// The part that cannot be converted.
    pub fn found(spec: &protocol::VmSpec) -> Result<Self, String> {
        spec.cpus.check().map_err(|error| error.to_string())?;
        let disk = |disk: &protocol::Disk| DiskRecord {
            name: disk.name.clone(),
            size: disk.size_bytes,
            kind: disk.kind,
            frontend: disk.frontend,
            sealing: match &disk.key {
                DiskKey::Unencrypted => DiskSealing::Clear,
                DiskKey::Provider { key, kek, next } => {
                    DiskSealing::Under { key: key.clone(), kek: *kek, next: next.clone() }
                }
                DiskKey::HalfClear { key, kek, becomes } => {
                    DiskSealing::HalfClear { key: key.clone(), kek: *kek, becomes: *becomes }
                }
            },
            volume: None,
            pinned: false,
            least_generation: disk.least_generation,
            thick: disk.thick,
            integrity: disk.integrity,
            volume_name: None,
            shares_with: Vec::new(),
            limits: disk.limits,
            datastore: disk.place.as_ref().map(|place| place.datastore),
            moves_from: None,
            moves_to: None,
        };
        Ok(Self {
            board: spec.board.clone(),
            firmware: spec.firmware,
            cpus: spec.cpus,
            memory: spec.memory_bytes,
            growth: spec.growth,
            disks: spec.disks.iter().map(disk).collect(),
            limits: spec.limits,
            nics: spec.nics.iter().map(nic_found).collect(),
            tpm: spec.tpm,
            seed: spec.seed,
            boot: Boot::of(spec.kernel.clone(), spec.boot_order.clone()),
            cdrom: Cdrom::of(spec.cdrom.clone()),
            own_volumes: Vec::new(),
        })
    }
}

/// The sizes of a VM that change while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// Its processors.
    pub cpus: Cpus,
    /// Its memory.
    pub memory: MemorySize,
}

/// The network cards of a VM, with the order of booting, which names them by their number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicSet {
    /// The cards.
    pub nics: Vec<Nic>,
    /// The order of booting.
    pub boot: Boot,
}

impl NicSet {
    /// Those of a VM.
    pub fn of(hardware: &Hardware) -> Self {
        Self { nics: hardware.nics.clone(), boot: hardware.boot.clone() }
    }

    /// These, and behind them those of the other set that have another address.
    pub fn with(&self, other: &Self) -> Self {
        let is_more = |nic: &&Nic| self.nics.iter().all(|known| known.mac != nic.mac);
        let more = other.nics.iter().filter(is_more);
        Self { nics: self.nics.iter().chain(more).cloned().collect(), boot: self.boot.clone() }
    }

    /// Makes them those of a VM.
    pub fn give_to(self, hardware: &mut Hardware) {
        (hardware.nics, hardware.boot) = (self.nics, self.boot);
    }
}

/// `None` for an interface without an address, or on a network that its host does not have: no VM
/// of the inventory has one.
fn nic_told(nic: &Nic) -> Option<strongroom_vm::Nic> {
    Some(strongroom_vm::Nic { mac: nic.mac?, network: nic.backend.on_host()?, link: nic.link })
}

fn nic_found(nic: &strongroom_vm::Nic) -> Nic {
    Nic { backend: (&nic.network).into(), mac: Some(nic.mac), link: nic.link }
}
