//! Requests about VMs.

use serde::{Deserialize, Serialize};
use strongroom_types::{Bandwidth, VolumeSize};
use utoipa::ToSchema;

use super::hardware::{
    Board, Boot, Cdrom, Cpus, DiskFrontend, DiskKind, Firmware, Growth, IoLimits, Link, MachineVersion,
    MemorySize, Nic, NicBackend, ProcessorModel, RestartPolicy,
};
use super::label::{Notes, Tag, TagChanges};
use super::snapshot::QuiesceWithin;
use crate::name::Name;
use crate::object::Reference;

/// A request for a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVm {
    /// Its name.
    pub name: Name,
    /// The datastore, by name or id; not needed if there is only one.
    #[schema(max_length = 63)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datastore: Option<String>,
    /// The host, by name or id; without one, that which fits best of those that reach the
    /// datastore.
    #[schema(max_length = 63)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The folder, by name or id; none without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<Reference>,
    /// The placement group, by name or id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement_group: Option<Reference>,
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
    /// How far processors and memory grow while it runs.
    #[serde(default, skip_serializing_if = "Growth::is_none")]
    pub growth: Growth,
    /// Disks, in the order in which the guest sees them.
    #[schema(max_items = 16)]
    #[serde(default)]
    pub disks: Vec<AddDisk>,
    /// Network interfaces; an empty list means none. Without a list, the VM has one on the network
    /// `user`, if the host can provide it.
    #[schema(max_items = 8)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nics: Option<Vec<Nic>>,
    /// Whether it has a TPM. The TPM's state is in an encrypted volume.
    #[serde(default)]
    pub tpm: bool,
    /// Whether it has a cloud-init disk (NoCloud), `seed`, which is filled like a disk and is
    /// read-only in the guest.
    #[serde(default)]
    pub seed: bool,
    /// Whether the seed is filled before the VM is ready, like [`AddDisk::fill`] for a disk.
    #[serde(default, skip_serializing_if = "is_not")]
    pub fill_seed: bool,
    /// What it boots.
    #[serde(default)]
    pub boot: Boot,
    /// The CD-ROM drive.
    #[serde(default)]
    pub cdrom: Cdrom,
    /// How it is sealed.
    #[serde(default)]
    pub encryption: EncryptionWish,
    /// Whether it is restarted automatically.
    #[serde(default)]
    pub restart: RestartPolicy,
    /// Notes about it.
    #[serde(default, skip_serializing_if = "Notes::is_empty")]
    pub notes: Notes,
    /// Its tags, one for each key.
    #[schema(max_items = 32)]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<Tag>,
}

/// A request for a clone: a new VM with the hardware and the disks' content of another one. It has
/// a key, network addresses, a TPM and a seed of its own. Its content is copied, or shared by
/// `linked`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CloneVm {
    /// The name of the new VM.
    pub name: Name,
    /// The snapshot whose content it gets, by name or id. Without one, it gets the present content:
    /// of a VM that runs, the task makes a snapshot, which it deletes when everything is copied.
    #[schema(max_length = 63)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// A datastore of the same host, by name or id; the default is that of the VM.
    #[schema(max_length = 63)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datastore: Option<String>,
    /// Whether its disks share the layers of the snapshot, so that nothing is copied. Without a
    /// snapshot, the VM first gets one that is named after the clone, which takes `snapshot` there.
    #[serde(default, skip_serializing_if = "is_not")]
    pub linked: bool,
    /// Has the agent in a guest that runs freeze the guest's file systems while that snapshot is
    /// made, for which it has so many seconds; not with `snapshot`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiesce_within_s: Option<QuiesceWithin>,
    /// Whether it is encrypted; as its origin without. Only for a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypted: Option<bool>,
    /// Whether each block has a keyed tag; as in its origin without. Only for a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub integrity: Option<bool>,
    /// The provider of its key; that of its origin without. Only for a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_provider: Option<Name>,
}

/// A request that a VM becomes a template: it is off, can be cloned, and is neither started nor
/// changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TemplateVm {
    /// Whether a template becomes a VM again.
    #[serde(default, skip_serializing_if = "is_not")]
    pub undo: bool,
}

/// Options for the deletion of a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteVm {
    /// Deletes a VM with linked clones. They keep reading what they share with it, under their own
    /// keys: that content is not gone with the VM's key.
    #[serde(default, skip_serializing_if = "is_not")]
    pub leave_to_clones: bool,
    /// Deletes the volumes that were bound to it, too.
    #[serde(default, skip_serializing_if = "is_not")]
    pub with_volumes: bool,
}

/// A request for a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddDisk {
    /// Its size in bytes: a multiple of 512 from 4096 to 64 TiB.
    #[schema(value_type = u64, minimum = 4096, maximum = 70368744177664u64, multiple_of = 512)]
    pub size_bytes: VolumeSize,
    /// Its purpose. Data disks are named `disk0` and so on, swap disks `swap0` and so on.
    #[serde(default)]
    pub kind: DiskKind,
    /// How it is attached to the guest.
    #[serde(default)]
    pub frontend: DiskFrontend,
    /// Whether it is filled with an image before the task is done. The task's `awaits_image` names
    /// the disk that is next. If no image arrives within a minute, or its import fails, everything
    /// that the task has made is removed.
    #[serde(default, skip_serializing_if = "is_not")]
    pub fill: bool,
    /// Whether each block has a keyed tag, so that reads of a block that was changed or put back
    /// fail. Only encrypted data disks can have tags.
    #[serde(default, skip_serializing_if = "is_not")]
    pub integrity: bool,
}

/// A request for a network card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddNic {
    /// The card, which comes after all others.
    pub nic: Nic,
}

/// A request to change a network card. What is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchNic {
    /// Its network. The guest of a VM that runs sees the card go and come back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<NicBackend>,
    /// What the guest sees of its cable, at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
}

/// A request to grow a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeDisk {
    /// Its new size in bytes, at least its present size: a multiple of 512 up to 64 TiB.
    #[schema(value_type = u64, minimum = 4096, maximum = 70368744177664u64, multiple_of = 512)]
    pub size_bytes: VolumeSize,
}

/// A request to move a disk to another datastore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveDisk {
    /// The datastore, by name or id. The VM's host reaches it.
    pub datastore: Reference,
}

/// A request for limits of a disk's requests, or of those of all disks of a VM together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetLimits {
    /// The limits, which replace those before: one that is absent ends.
    #[serde(deserialize_with = "crate::object_only::object_only")]
    pub limits: IoLimits,
}

/// Options for the encryption of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EncryptDisk {
    /// Whether each block gets a keyed tag, so that reads of a block that was changed or put back
    /// fail.
    #[serde(default, skip_serializing_if = "is_not")]
    pub integrity: bool,
    /// The key provider that makes the VM's key, if the VM has none; optional if there is only one,
    /// or if the policy names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_provider: Option<Name>,
}

/// The encryption of a VM: every volume with guest data is under one key of the VM's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EncryptionWish {
    /// Whether the VM is encrypted. If not, all of its volumes are stored in plain text.
    #[serde(default = "yes")]
    pub encrypted: bool,
    /// The key provider; optional if there is only one, or if the policy names it.
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

/// A `false` is left out, so that a control plane of the previous version accepts the request.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
const fn is_not(asked: &bool) -> bool {
    !*asked
}

impl Default for EncryptionWish {
    fn default() -> Self {
        Self { encrypted: true, provider: None, key: None }
    }
}

/// Changes to a VM. Absent fields stay as they are. Its name, notes and tags change at once,
/// whether it runs or not, and a request for processors and memory alone is carried out while it
/// runs, as far as its `growth` goes; for everything else it has to be off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchVm {
    /// Its new name. Its directory in the datastore keeps the name that it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// Its notes; an empty text removes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notes: Option<Notes>,
    /// Tags that it gets and loses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<TagChanges>,
    /// Virtual processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    /// Guest memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<MemorySize>,
    /// How far processors and memory grow while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth: Option<Growth>,
    /// The version of its main board, as in `pc-q35-7.2`. Its guest finds newer devices.
    #[schema(value_type = Option<String>, max_length = 64)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_type: Option<MachineVersion>,
    /// The processor that its guest sees: `host`, a level such as `x86-64-v3`, or a model of QEMU.
    #[schema(value_type = Option<String>, max_length = 64)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<ProcessorModel>,
    /// All of its network interfaces.
    #[schema(max_items = 8)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nics: Option<Vec<Nic>>,
    /// What it boots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<Boot>,
    /// The CD-ROM drive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cdrom: Option<Cdrom>,
    /// Whether it has a screen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vnc: Option<bool>,
    /// Whether it is restarted automatically.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<RestartPolicy>,
}

/// A request to move a VM, or a volume that no VM has, to another host. A VM that runs moves while
/// it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveToHost {
    /// The host, by name or id; without one, that which fits best of the others that reach its
    /// datastore.
    #[schema(max_length = 63)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// A datastore of that host, by name or id, to which the VM's volumes move with it. Without one
    /// they stay in their own, which both hosts reach.
    #[schema(max_length = 63)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datastore: Option<String>,
    /// Of a VM that runs: how long its guest may stand still, in milliseconds. The memory is sent
    /// again as often as the guest changes it, until the rest takes no longer than this.
    #[schema(minimum = 10, maximum = 60_000, default = 300)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_ms: Option<u32>,
    /// How fast its memory and its volumes pass together at most, in bytes per second. What is left
    /// when the guest stands still passes as fast as it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<Bandwidth>,
    /// Of a VM that runs: over how many channels its memory passes at a time. Each takes a
    /// processor at either end, for networks that are faster than one of them encrypts.
    #[schema(minimum = 1, maximum = 8, default = 1)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<u8>,
}

/// Options of the operations that have none yet: an empty object, or no body.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PowerOptions {}

/// Options for starting a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartVm {
    /// Discards the memory of a suspended VM, and boots it.
    #[serde(default)]
    pub discard_memory: bool,
    /// Starts with paused CPUs, until the VM is resumed.
    #[serde(default)]
    pub paused: bool,
}

/// Options for a key rotation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateKey {
    /// The key provider that makes the new key; the default is the provider of the present key. A
    /// retry after a failed rotation uses the key that was already made for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_provider: Option<Name>,
    /// Whether all data of the VM is rewritten under new data keys, too: its disks with their
    /// snapshots, and its own volumes. The VM may run, but must not be suspended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub data: bool,
}

/// A request for a dump.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DumpVm {
    /// Its label: up to 64 bytes, without control characters. It is not encrypted.
    #[schema(min_length = 1, max_length = 64)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// Options for stopping a VM, and for the stop in a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StopVm {
    /// Stops the VM at once, like a power cut. Every write that the guest has seen flushed is on
    /// the disk.
    #[serde(default)]
    pub force: bool,
    /// How long the guest has to shut down, in seconds, before it is stopped by force.
    #[schema(minimum = 1, maximum = 3600)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u32>,
}

/// An image that was uploaded with a ticket, for a disk of a VM that is off.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportDisk {
    /// The ticket of the upload.
    #[schema(min_length = 32, max_length = 32, pattern = "^[0-9a-f]{32}$")]
    pub ticket: String,
    /// The format of the image.
    #[serde(default)]
    pub format: ImageFormat,
}

impl std::fmt::Debug for ImportDisk {
    /// Leaves out the ticket.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ImportDisk").field("format", &self.format).finish_non_exhaustive()
    }
}

/// The format of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImageFormat {
    /// Detected from the first bytes; an unrecognised image is raw.
    #[default]
    Auto,
    /// The bytes of the disk.
    Raw,
    /// QEMU's format.
    Qcow2,
    /// VMware's format.
    Vmdk,
    /// Hyper-V's format.
    Vhdx,
}

/// A request to register an existing VM directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegisterVm {
    /// The datastore, by name or id; not needed if there is only one.
    #[schema(max_length = 63)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datastore: Option<String>,
    /// The directory's name in the datastore.
    pub directory: Name,
    /// Registers a VM with encrypted disks even if its keys do not vouch for its configuration.
    /// Without it, the answer lists the objections to the configuration and everything through
    /// which the VM's data could leak. Set it only after comparing the configuration with the
    /// intended one.
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
