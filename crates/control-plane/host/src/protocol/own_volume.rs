//! Contents of a VM's directory other than its disks.

use std::path::PathBuf;

use strongroom_types::SnapshotId;
use strongroom_vm::{DiskName, Firmware};

use super::spec::{DiskKey, KnownVolume, VmSpec};

/// The directory in which swtpm keeps a TPM's state, sealed with the key that [`OwnVolume::Vtpm`]
/// holds. It is not a volume.
pub use strongroom_datastore::file::TPM_STATE;

/// The prefix of dumps' names.
const DUMP_PREFIX: &str = "dump-";
/// The prefix of the names of snapshots' memories.
const MEMORY_PREFIX: &str = "memory-";
/// The suffix of an unfinished dump's name.
pub const DUMP_MAKING: &str = ".making";
/// The suffix of the name of a volume whose first content is not written yet.
pub const FILLING: &str = ".filling";
/// Names that no disk may have, besides those of dumps and of snapshots' memories.
const RESERVED: [&str; 7] = ["vm.json", "nvram", "vtpm", TPM_STATE, "seed", "console", "memory"];

/// A volume of a VM that is not one of its disks. It is an ordinary volume, under the key of the
/// VM's first encrypted disk, so every operation on all volumes includes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OwnVolume {
    /// UEFI's variables.
    Nvram,
    /// The key of a TPM's state, and the latest version of that state.
    Vtpm,
    /// The cloud-init disk.
    Seed,
    /// The console log.
    Console,
    /// The memory of a suspended guest.
    Memory,
    /// A dump of the guest's memory, by number.
    Dump(u32),
    /// The guest's memory at the instant of a snapshot.
    SnapshotMemory(SnapshotId),
}

impl OwnVolume {
    /// Its name, which no disk may have.
    pub fn name(self) -> String {
        match self {
            Self::Nvram => "nvram".to_owned(),
            Self::Vtpm => "vtpm".to_owned(),
            Self::Seed => "seed".to_owned(),
            Self::Console => "console".to_owned(),
            Self::Memory => "memory".to_owned(),
            Self::Dump(number) => format!("{DUMP_PREFIX}{number}"),
            Self::SnapshotMemory(snapshot) => format!("{MEMORY_PREFIX}{snapshot}"),
        }
    }

    /// Returns the volume with this name.
    pub fn named(name: &str) -> Option<Self> {
        let fixed = [Self::Nvram, Self::Vtpm, Self::Seed, Self::Console, Self::Memory];
        let dump = || name.strip_prefix(DUMP_PREFIX)?.parse().ok().map(Self::Dump);
        let memory = || name.strip_prefix(MEMORY_PREFIX)?.parse().ok().map(Self::SnapshotMemory);
        let found = fixed.into_iter().find(|fixed| fixed.name() == name).or_else(dump).or_else(memory);
        found.filter(|found| found.name() == name)
    }
}

/// Whether a disk may not have this name.
pub fn is_reserved(name: &DiskName) -> bool {
    let prefixes = [DUMP_PREFIX, MEMORY_PREFIX];
    RESERVED.contains(&name.as_str()) || prefixes.iter().any(|prefix| name.as_str().starts_with(prefix))
}

impl VmSpec {
    /// The directory of one of the VM's own volumes.
    pub fn own_volume_path(&self, which: OwnVolume) -> PathBuf {
        self.directory().join(which.name())
    }

    /// Returns the entry of one of the VM's own volumes that the control plane knows.
    pub fn known_volume(&self, which: OwnVolume) -> Option<&KnownVolume> {
        let name = which.name();
        self.own_volumes.iter().find(|known| known.name.as_str() == name)
    }

    /// The VM's own volumes that exist as long as the VM does.
    pub fn lasting_volumes(&self) -> impl Iterator<Item = OwnVolume> {
        let lasting = [
            (OwnVolume::Nvram, self.firmware == Firmware::Uefi),
            (OwnVolume::Vtpm, self.tpm),
            (OwnVolume::Seed, self.seed),
        ];
        lasting.into_iter().filter(|(_, has)| *has).map(|(which, _)| which)
    }

    /// The temporary path of an unfinished dump. It is renamed when it is complete.
    pub fn dump_making_path(&self, number: u32) -> PathBuf {
        self.directory().join(format!("{}{DUMP_MAKING}", OwnVolume::Dump(number).name()))
    }

    /// The directory in which swtpm keeps the state of the VM's TPM.
    pub fn tpm_state_path(&self) -> PathBuf {
        self.directory().join(TPM_STATE)
    }

    /// The key of the VM's own volumes: that of its first encrypted disk. A VM without one was
    /// explicitly created unencrypted.
    pub fn own_key(&self) -> &DiskKey {
        let mut encrypted =
            self.disks.iter().map(|disk| &disk.key).filter(|key| key.provider_key().is_some());
        let Some(first) = encrypted.next() else { return &DiskKey::Unencrypted };
        // While a disk is half clear, the VM's own volumes are so only if it alone has their key.
        let is_whole = |key: &&DiskKey| match key {
            DiskKey::Provider { key, .. } => Some(key) == first.provider_key(),
            DiskKey::HalfClear { .. } | DiskKey::Unencrypted => false,
        };
        if is_whole(&first) { first } else { encrypted.find(is_whole).unwrap_or(first) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_volumes_have_names_that_no_disk_has() {
        let all = [
            OwnVolume::Nvram,
            OwnVolume::Vtpm,
            OwnVolume::Seed,
            OwnVolume::Console,
            OwnVolume::Memory,
            OwnVolume::Dump(0),
            OwnVolume::Dump(u32::MAX),
            OwnVolume::SnapshotMemory(SnapshotId::random()),
        ];
        for which in all {
            assert_eq!(OwnVolume::named(&which.name()), Some(which));
            assert!(is_reserved(&which.name().parse().unwrap()), "{which:?}");
        }
        for other in ["disk0", "dump-", "dump-01", "dump-x", "memory-", "memory-1", "vtpm.state"] {
            assert_eq!(OwnVolume::named(other), None, "{other}");
        }
        assert!(is_reserved(&"vtpm.state".parse().unwrap()) && is_reserved(&"dump-x".parse().unwrap()));
        assert!(!is_reserved(&"dumps".parse().unwrap()) && !is_reserved(&"disk0".parse().unwrap()));
    }
}
