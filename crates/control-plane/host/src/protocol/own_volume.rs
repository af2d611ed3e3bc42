//! What a VM's directory has beside its disks.

use std::path::PathBuf;

use super::spec::{DiskKey, KnownVolume, VmSpec};
use strongroom_vm::{DiskName, Firmware};

/// Where swtpm keeps a TPM's state, sealed with the key that [`OwnVolume::Vtpm`] holds. A
/// directory, and no volume.
pub use strongroom_datastore::file::TPM_STATE;

/// How the names of dumps begin.
const DUMP_PREFIX: &str = "dump-";
/// How the name ends of one that is being made.
pub const DUMP_MAKING: &str = ".making";
/// How the name ends of a volume that does not have its first content yet.
pub const FILLING: &str = ".filling";
/// What no disk is called, beside dumps.
const RESERVED: [&str; 7] = ["vm.json", "nvram", "vtpm", TPM_STATE, "seed", "console", "memory"];

/// A volume of a VM that is none of its disks. It is an ordinary volume, under the key of the VM's
/// first encrypted disk, so whatever is done to all volumes is done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OwnVolume {
    /// UEFI's variables.
    Nvram,
    /// The key of a TPM's state, and which state is the last.
    Vtpm,
    /// What cloud-init reads.
    Seed,
    /// What the guest said on its console.
    Console,
    /// The memory of a guest that was suspended.
    Memory,
    /// The memory of a guest that was dumped, by number.
    Dump(u32),
}

impl OwnVolume {
    /// Its name, which no disk has.
    pub fn name(self) -> String {
        match self {
            Self::Nvram => "nvram".to_owned(),
            Self::Vtpm => "vtpm".to_owned(),
            Self::Seed => "seed".to_owned(),
            Self::Console => "console".to_owned(),
            Self::Memory => "memory".to_owned(),
            Self::Dump(number) => format!("{DUMP_PREFIX}{number}"),
        }
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<Self> {
        let fixed = [Self::Nvram, Self::Vtpm, Self::Seed, Self::Console, Self::Memory];
        let dump = || {
            let number = name.strip_prefix(DUMP_PREFIX)?.parse().ok()?;
            Some(Self::Dump(number)).filter(|dump| dump.name() == name)
        };
        fixed.into_iter().find(|fixed| fixed.name() == name).or_else(dump)
    }
}

/// Whether no disk may have this name.
pub fn is_reserved(name: &DiskName) -> bool {
    RESERVED.contains(&name.as_str()) || name.as_str().starts_with(DUMP_PREFIX)
}

impl VmSpec {
    /// The directory of one of the VM's own volumes.
    pub fn own_volume_path(&self, which: OwnVolume) -> PathBuf {
        self.directory().join(which.name())
    }

    /// What the control plane knows of one of the VM's own volumes.
    pub fn known_volume(&self, which: OwnVolume) -> Option<&KnownVolume> {
        let name = which.name();
        self.own_volumes.iter().find(|known| known.name.as_str() == name)
    }

    /// The VM's own volumes that are made with it, and stay as long as it does.
    pub fn lasting_volumes(&self) -> impl Iterator<Item = OwnVolume> {
        let lasting = [
            (OwnVolume::Nvram, self.firmware == Firmware::Uefi),
            (OwnVolume::Vtpm, self.tpm),
            (OwnVolume::Seed, self.seed),
        ];
        lasting.into_iter().filter(|(_, has)| *has).map(|(which, _)| which)
    }

    /// Where a dump is made, beside its place, which it gets when all of it is there.
    pub fn dump_making_path(&self, number: u32) -> PathBuf {
        self.directory().join(format!("{}{DUMP_MAKING}", OwnVolume::Dump(number).name()))
    }

    /// Where swtpm keeps the state of the VM's TPM.
    pub fn tpm_state_path(&self) -> PathBuf {
        self.directory().join(TPM_STATE)
    }

    /// What the VM's own volumes are under: the key of its first encrypted disk. Of a VM without
    /// one a person said that it is not to be encrypted.
    pub fn own_key(&self) -> &DiskKey {
        let encrypted = self.disks.iter().find(|disk| disk.key.provider_key().is_some());
        encrypted.map_or(&DiskKey::Unencrypted, |disk| &disk.key)
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
        ];
        for which in all {
            assert_eq!(OwnVolume::named(&which.name()), Some(which));
            assert!(is_reserved(&which.name().parse().unwrap()), "{which:?}");
        }
        for other in ["disk0", "dump-", "dump-01", "dump-x", "vtpm.state"] {
            assert_eq!(OwnVolume::named(other), None, "{other}");
        }
        assert!(is_reserved(&"vtpm.state".parse().unwrap()) && is_reserved(&"dump-x".parse().unwrap()));
        assert!(!is_reserved(&"dumps".parse().unwrap()) && !is_reserved(&"disk0".parse().unwrap()));
    }
}
