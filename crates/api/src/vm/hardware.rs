//! What a VM is made of.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use strongroom_types::display_bytes;
use utoipa::ToSchema;

use crate::limits::{CPUS_MAX, MEMORY_MAX_BYTES, MEMORY_MIN_BYTES, MEMORY_STEP_BYTES};

/// The virtual main board.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MachineType {
    /// PCI Express.
    #[default]
    Q35,
    /// The i440FX of old guests.
    Pc,
}

/// What starts the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Firmware {
    /// Legacy BIOS.
    #[default]
    Bios,
    /// UEFI, with its variables in a sealed volume.
    Uefi,
}

/// Virtual processors: the product of the three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Cpus {
    /// Sockets.
    #[schema(minimum = 1, maximum = 240)]
    #[serde(default = "one")]
    pub sockets: u32,
    /// Cores of each socket.
    #[schema(minimum = 1, maximum = 240)]
    #[serde(default = "one")]
    pub cores: u32,
    /// Threads of each core.
    #[schema(minimum = 1, maximum = 240)]
    #[serde(default = "one")]
    pub threads: u32,
}

const fn one() -> u32 {
    1
}

impl Cpus {
    /// One socket of so many cores.
    pub const fn cores(cores: u32) -> Self {
        Self { sockets: 1, cores, threads: 1 }
    }

    /// How many there are.
    pub fn count(self) -> u32 {
        self.sockets.saturating_mul(self.cores).saturating_mul(self.threads)
    }

    /// Whether a VM can have them.
    ///
    /// # Errors
    /// [`HardwareError::Cpus`].
    pub fn check(self) -> Result<(), HardwareError> {
        match self.count() {
            1..=CPUS_MAX => Ok(()),
            count => Err(HardwareError::Cpus(count)),
        }
    }
}

impl Default for Cpus {
    fn default() -> Self {
        Self::cores(1)
    }
}

/// Guest memory in bytes: a multiple of 1 MiB from 16 MiB to 4 TiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "u64", into = "u64")]
#[schema(value_type = u64, minimum = 16777216, maximum = 4398046511104u64, multiple_of = 1048576)]
pub struct Memory(u64);

impl Memory {
    /// So many bytes.
    ///
    /// # Errors
    /// [`HardwareError::Memory`].
    pub const fn new(bytes: u64) -> Result<Self, HardwareError> {
        if bytes < MEMORY_MIN_BYTES || bytes > MEMORY_MAX_BYTES || !bytes.is_multiple_of(MEMORY_STEP_BYTES) {
            return Err(HardwareError::Memory(bytes));
        }
        Ok(Self(bytes))
    }

    /// In bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl TryFrom<u64> for Memory {
    type Error = HardwareError;

    fn try_from(bytes: u64) -> Result<Self, HardwareError> {
        Self::new(bytes)
    }
}

impl From<Memory> for u64 {
    fn from(memory: Memory) -> u64 {
        memory.0
    }
}

/// What a disk is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiskKind {
    /// To keep data.
    #[default]
    Data,
    /// To swap memory out to: made anew at each start, with an empty swap area labelled with the disk's name. There is none
    /// while the VM is off.
    Swap,
}

/// How the guest gets at a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Frontend {
    /// vhost-user-blk: over shared memory.
    #[default]
    VhostUser,
    /// NBD, through QEMU's block layer.
    Nbd,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// What it is connected to.
    pub backend: NicBackend,
    /// Its address, as `52:54:00:xx:xx:xx`; chosen if it is not given.
    #[schema(pattern = "^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}$")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
}

/// What a network interface is connected to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum NicBackend {
    /// Connections of the host, without privileges. The guest does not reach the host's loopback.
    User {},
    /// A tap device that is there.
    Tap {
        /// Its name.
        #[schema(min_length = 1, max_length = 15)]
        device: String,
    },
    /// A bridge that is there.
    Bridge {
        /// Its name.
        #[schema(min_length = 1, max_length = 15)]
        device: String,
        /// The VLAN in which the guest is.
        #[schema(minimum = 1, maximum = 4094)]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vlan: Option<u16>,
    },
}

/// What is booted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Boot {
    /// The first disk.
    #[default]
    Disk,
    /// A kernel from one of the host's boot directories.
    Kernel {
        /// The kernel's file.
        #[schema(value_type = String, min_length = 1, max_length = 4095)]
        kernel: PathBuf,
        /// The initial ram disk's file.
        #[schema(value_type = Option<String>, min_length = 1, max_length = 4095)]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        initrd: Option<PathBuf>,
        /// The kernel's command line. It is shown and logged: nothing secret belongs in it.
        #[schema(max_length = 2048)]
        #[serde(default)]
        arguments: String,
    },
}

/// The CD-ROM drive: what a system is installed from, read only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Cdrom {
    /// There is none.
    #[default]
    Absent,
    /// One with this image in it. It is booted from before the disks, for as long as it is there.
    Image {
        /// The image's file, in one of the host's boot directories.
        #[schema(value_type = String, min_length = 1, max_length = 4095)]
        path: PathBuf,
    },
}

impl Cdrom {
    /// The one with this image, or none.
    pub fn of(path: Option<PathBuf>) -> Self {
        path.map_or(Self::Absent, |path| Self::Image { path })
    }

    /// The image in it.
    pub fn image(&self) -> Option<&Path> {
        match self {
            Self::Absent => None,
            Self::Image { path } => Some(path),
        }
    }
}

/// Whether a VM that should run and does not is started again by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RestartPolicy {
    /// After a crash, and after the host was without power. Not when the guest shut itself down.
    #[default]
    OnFailure,
    /// Only when somebody says so.
    Never,
}

/// Why hardware is impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HardwareError {
    /// None or too many.
    #[error("a VM cannot have {0} CPUs; give it 1 to {CPUS_MAX}")]
    Cpus(u32),
    /// Too little, too much, or no whole MiB.
    #[error("a VM cannot have {} of memory; give it whole MiB from 16M to 4T", display_bytes(*.0))]
    Memory(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_hardware_is_refused() {
        assert!(Cpus::cores(2).check().is_ok());
        assert_eq!(Cpus::cores(0).check(), Err(HardwareError::Cpus(0)));
        let overflowing = Cpus { sockets: u32::MAX, cores: 2, threads: u32::MAX };
        assert_eq!(overflowing.check(), Err(HardwareError::Cpus(u32::MAX)));
        assert!(Memory::new(2 << 30).is_ok());
        for bytes in [0, 15 << 20, (16 << 20) + 1, 5 << 40, u64::MAX] {
            assert!(Memory::new(bytes).is_err(), "{bytes}");
        }
    }

    #[test]
    fn hardware_reads_as_documented() {
        let nic: Nic =
            serde_json::from_str(r#"{"backend":{"type":"bridge","device":"br0","vlan":7}}"#).unwrap();
        assert_eq!(nic.backend, NicBackend::Bridge { device: "br0".into(), vlan: Some(7) });
        assert!(serde_json::from_str::<Nic>(r#"{"backend":{"type":"user"},"bogus":1}"#).is_err());
        assert_eq!(serde_json::from_str::<Boot>(r#"{"type":"disk"}"#).unwrap(), Boot::Disk);
    }
}
