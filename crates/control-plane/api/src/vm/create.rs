//! What is asked of VMs.

use serde::{Deserialize, Serialize};
use strongroom_types::VolumeSize;
use utoipa::ToSchema;

use super::hardware::{
    Board, Boot, Cdrom, Cpus, DiskFrontend, DiskKind, Firmware, MemorySize, Nic, RestartPolicy,
};
use crate::name::Name;

/// A VM that is wished for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVm {
    /// Its name.
    pub name: Name,
    /// The datastore, by name or id; not needed if there is only one.
    #[schema(max_length = 63)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datastore: Option<String>,
    /// The policy, by name or id.
    #[schema(max_length = 63)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The main board and what is on it.
    #[serde(flatten)]
    pub board: Board,
    /// What starts the guest.
    #[serde(default)]
    pub firmware: Firmware,
    /// Virtual processors.
    #[serde(default)]
    pub cpus: Cpus,
    /// Guest memory.
    pub memory_bytes: MemorySize,
    /// Disks, in the order in which the guest sees them.
    #[schema(max_items = 16)]
    #[serde(default)]
    pub disks: Vec<AddDisk>,
    /// Network interfaces; none if the list is empty. Where no list is given, one on the network
    /// `user`, if the host has what that takes.
    #[schema(max_items = 8)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nics: Option<Vec<Nic>>,
    /// Whether it has a TPM, with its state in a sealed volume.
    #[serde(default)]
    pub tpm: bool,
    /// Whether it has a disk for cloud-init (NoCloud), `seed`, which is filled like a disk and
    /// which its guest can only read.
    #[serde(default)]
    pub seed: bool,
    /// Whether the seed is filled before the VM is made, as [`AddDisk::fill`] for a disk.
    #[serde(default, skip_serializing_if = "is_not")]
    pub fill_seed: bool,
    /// What is booted.
    #[serde(default)]
    pub boot: Boot,
    /// The CD-ROM drive.
    #[serde(default)]
    pub cdrom: Cdrom,
    /// How it is sealed.
    #[serde(default)]
    pub encryption: EncryptionWish,
    /// Whether it is started again by itself.
    #[serde(default)]
    pub restart: RestartPolicy,
}

/// A disk that is wished for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddDisk {
    /// Its size in bytes: a multiple of 512 from 4096 to 64 TiB.
    #[schema(value_type = u64, minimum = 4096, maximum = 70368744177664u64, multiple_of = 512)]
    pub size_bytes: VolumeSize,
    /// What it is for: one that keeps data is called `disk0` and so on, one for swap `swap0` and so
    /// on.
    #[serde(default)]
    pub kind: DiskKind,
    /// How the guest gets at it.
    #[serde(default)]
    pub frontend: DiskFrontend,
    /// Whether it is filled with an image before the task is done. The task says in `awaits_image`
    /// when it is the disk's turn. If no image comes within a minute, or it does not get into the
    /// disk, everything that the task has made is removed again.
    #[serde(default, skip_serializing_if = "is_not")]
    pub fill: bool,
    /// Whether it has a keyed tag for each block, so that a block that was changed or put back
    /// fails to be read. It takes a key, and a disk that keeps data.
    #[serde(default, skip_serializing_if = "is_not")]
    pub integrity: bool,
}

/// A disk that is to be larger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeDisk {
    /// Its new size in bytes, no less than it has: a multiple of 512 up to 64 TiB.
    #[schema(value_type = u64, minimum = 4096, maximum = 70368744177664u64, multiple_of = 512)]
    pub size_bytes: VolumeSize,
}

/// How a VM is sealed: everything of it that holds guest data, under one key of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EncryptionWish {
    /// Whether it is. Without, everything of it lies in the clear.
    #[serde(default = "yes")]
    pub encrypted: bool,
    /// The key provider; not needed if there is only one, or if the policy names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<Name>,
    /// A key that is there, by its id at its provider; without, a new one is made.
    #[schema(min_length = 1, max_length = 1024)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

const fn yes() -> bool {
    true
}

/// What is not asked for is not said, so that a control plane of the former version takes the wish.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
const fn is_not(asked: &bool) -> bool {
    !*asked
}

impl Default for EncryptionWish {
    fn default() -> Self {
        Self { encrypted: true, provider: None, key: None }
    }
}

/// Changes of a VM that is off. What is not given stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchVm {
    /// Virtual processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    /// Guest memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<MemorySize>,
    /// Network interfaces, all of them.
    #[schema(max_items = 8)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nics: Option<Vec<Nic>>,
    /// What is booted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<Boot>,
    /// The CD-ROM drive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cdrom: Option<Cdrom>,
    /// Whether it has a screen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vnc: Option<bool>,
    /// Whether it is started again by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<RestartPolicy>,
}

/// Options of the operations that have none yet: an empty object, or no body.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PowerOptions {}

/// How a VM is started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartVm {
    /// Of a VM that was suspended: loses its memory, and boots.
    #[serde(default)]
    pub discard_memory: bool,
    /// Leaves its processors standing still; they go on when it is resumed.
    #[serde(default)]
    pub paused: bool,
}

/// How a VM moves to a new key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateKey {
    /// Which key provider makes the new key; without it, the one that made the present key. A
    /// rotation that failed goes on with the key that was made for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_provider: Option<Name>,
}

/// A dump that is wished for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DumpVm {
    /// What to call it: up to 64 bytes, without control characters. It is not sealed.
    #[schema(min_length = 1, max_length = 64)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// How a VM is stopped, also before it is started anew.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StopVm {
    /// At once, as if its plug were pulled. What its guest was told is on the disk is there.
    #[serde(default)]
    pub force: bool,
    /// How long the guest has to shut down, in seconds; then it is stopped by force.
    #[schema(minimum = 1, maximum = 3600)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u32>,
}

/// An image that was uploaded with a ticket, for a disk of a VM that is off.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportDisk {
    /// The ticket that the image was sent with.
    #[schema(min_length = 32, max_length = 32, pattern = "^[0-9a-f]{32}$")]
    pub ticket: String,
    /// How the image is written.
    #[serde(default)]
    pub format: ImageFormat,
}

impl std::fmt::Debug for ImportDisk {
    /// Without the ticket.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ImportDisk").field("format", &self.format).finish_non_exhaustive()
    }
}

/// How an image is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImageFormat {
    /// As its first bytes say; what starts as no format known is raw.
    #[default]
    Auto,
    /// Byte for byte.
    Raw,
    /// QEMU's.
    Qcow2,
    /// VMware's.
    Vmdk,
    /// Hyper-V's.
    Vhdx,
}

/// A VM directory that is there and is to be known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegisterVm {
    /// The datastore, by name or id; not needed if there is only one.
    #[schema(max_length = 63)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datastore: Option<String>,
    /// The directory's name in the datastore.
    pub directory: Name,
    /// Registers a VM with encrypted disks also if its keys do not vouch for its configuration.
    /// Without it the answer lists what speaks against the configuration, and what could lead the
    /// VM's data out. A person who says so has compared it with what the VM should be.
    #[serde(default)]
    pub accept_configuration: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_wish_is_a_sealed_vm() {
        let wish: CreateVm = serde_json::from_str(
            r#"{"name":"web1","memory_bytes":2147483648,"disks":[{"size_bytes":21474836480}]}"#,
        )
        .unwrap();
        assert!(wish.encryption.encrypted);
        assert_eq!(wish.cpus.count(), 1);
        assert_eq!(wish.disks[0].frontend, DiskFrontend::VhostUser);
        let again: CreateVm = serde_json::from_str(&serde_json::to_string(&wish).unwrap()).unwrap();
        assert_eq!(wish, again);
    }

    #[test]
    fn a_misspelt_wish_is_not_lost() {
        let text = r#"{"name":"web1","memory_bytes":2147483648,"encrypton":{"encrypted":false}}"#;
        assert!(serde_json::from_str::<CreateVm>(text).is_err());
    }
}
