//! Tasks: operations in progress, and past ones.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::error::Problem;
use crate::name::Name;
use crate::object::ObjectRef;

/// A task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Task {
    /// Its id. Ids of later tasks are greater.
    pub id: Uuid,
    /// What it does.
    pub kind: TaskKind,
    /// What it does, in words, with the names of its object and of what else it is about: `Move VM
    /// web1 to host alpha`. The wording may change.
    #[schema(required = true)]
    #[serde(default)]
    pub title: String,
    /// The object that it works on.
    pub object: ObjectRef,
    /// Its state.
    pub state: TaskState,
    /// Its progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// The current step, or the event that it waits for, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The disk whose image it waits for, for up to a minute. Send the image with a ticket, and
    /// name the ticket in an import for that disk; the import is answered with this task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub awaits_image: Option<Name>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
    /// Whether a cancellation was requested.
    pub cancelling: bool,
    /// The name of the user or token that requested it, `strongroom` for automatic tasks, or
    /// `strongroom-schedule` for those of a schedule.
    pub by: String,
    /// The address that the request came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// When it was requested, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// When it ended, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_unix_ms: Option<u64>,
}

impl Task {
    /// Its title. A task that an earlier version has begun has none of its own.
    pub fn shown_title(&self) -> String {
        if self.title.is_empty() { self.kind.title(&self.object) } else { self.title.clone() }
    }
}

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskKind {
    /// Makes a VM and its volumes.
    VmCreate,
    /// Makes a VM with the content of another one.
    VmClone,
    /// Starts a VM.
    VmStart,
    /// Stops a VM.
    VmStop,
    /// Stops a VM and starts it.
    VmRestart,
    /// Pauses a VM's CPUs.
    VmPause,
    /// Encrypts a VM's memory and stops the VM.
    VmSuspend,
    /// Dumps a guest's memory, encrypted.
    VmDump,
    /// Deletes a dump.
    VmDumpDelete,
    /// Makes a snapshot of a VM.
    VmSnapshotCreate,
    /// Reverts a VM to a snapshot.
    VmSnapshotRevert,
    /// Deletes a snapshot.
    VmSnapshotDelete,
    /// Changes the schedule of a VM's snapshots.
    VmSnapshotSchedule,
    /// Changes how long a VM's data keys are used.
    VmCryptoperiod,
    /// Moves a VM into another folder.
    VmMove,
    /// Moves a VM, or a volume that no VM has, to another host.
    VmMoveHost,
    /// Makes a VM a template.
    VmTemplate,
    /// Makes a template a VM again.
    VmTemplateUndo,
    /// Resumes a VM's CPUs.
    VmResume,
    /// Resets a VM, as a reset button would.
    VmReset,
    /// Moves a VM to a new key.
    VmRotateKey,
    /// Changes a VM.
    VmConfigure,
    /// Adds a disk to a VM.
    VmAddDisk,
    /// Removes a disk from a VM, and deletes its volume.
    VmRemoveDisk,
    /// Makes a disk of a VM larger.
    VmResizeDisk,
    /// A disk of a VM moves to another datastore.
    VmMoveDisk,
    /// Changes the limits of a disk of a VM, or of all of them together.
    VmLimit,
    /// Encrypts a disk of a VM.
    VmEncryptDisk,
    /// Decrypts a disk of a VM.
    VmDecryptDisk,
    /// Fills a disk with an image.
    VmImportDisk,
    /// Deletes a VM and its volumes.
    VmDelete,
    /// Adds a VM to the inventory.
    VmRegister,
    /// Removes a VM from the inventory; its files stay.
    VmUnregister,
    /// Makes a volume that no VM has.
    VolumeCreate,
    /// Makes a volume with the content of another one.
    VolumeClone,
    /// Makes a volume larger.
    VolumeResize,
    /// Makes a snapshot of a volume.
    VolumeSnapshotCreate,
    /// Reverts a volume to a snapshot.
    VolumeSnapshotRevert,
    /// Deletes a snapshot of a volume.
    VolumeSnapshotDelete,
    /// Gives a volume to a VM.
    VolumeBind,
    /// Takes a disk from a VM and keeps its volume.
    VolumeUnbind,
    /// Deletes a volume.
    VolumeDelete,
    /// Adds a datastore to the inventory.
    DatastoreAdd,
    /// Removes a datastore from the inventory.
    DatastoreRemove,
    /// Registers every VM of a datastore that can be registered.
    DatastoreRebuild,
    /// Has another host use a datastore.
    DatastoreAddHost,
    /// Ends the use of a datastore by a host.
    DatastoreRemoveHost,
    /// Moves all VMs away from a host.
    HostEvacuate,
    /// Moves VMs that run so that hosts are balanced.
    HostsBalance,
    /// Adds a network card to a VM.
    VmAddNic,
    /// Removes a network card of a VM.
    VmRemoveNic,
    /// Changes the network of a VM's network card, or its link.
    VmSetNic,
    /// Makes a network.
    NetworkCreate,
    /// Deletes a network.
    NetworkDelete,
    /// Says on which bridge a host has a network.
    NetworkAddHost,
    /// Says that a host has a network no more.
    NetworkRemoveHost,
    /// Makes a policy.
    PolicyCreate,
    /// Has the VMs of a policy keep its rules.
    PolicyApply,
    /// Deletes a policy.
    PolicyDelete,
    /// A kind that this version of the program does not know.
    #[serde(other)]
    Unknown,
}

impl TaskKind {
    /// What it does with an object, in words.
    pub fn title(self, object: &ObjectRef) -> String {
        let o = format!("{} {}", object.kind.noun(), object.name);
        match self {
            Self::VmCreate | Self::VolumeCreate | Self::NetworkCreate | Self::PolicyCreate => {
                format!("Create {o}")
            }
            Self::VmClone | Self::VolumeClone => format!("Create {o} as a clone"),
            Self::VmStart => format!("Start {o}"),
            Self::VmStop => format!("Stop {o}"),
            Self::VmRestart => format!("Restart {o}"),
            Self::VmPause => format!("Pause {o}"),
            Self::VmSuspend => format!("Suspend {o}"),
            Self::VmDump => format!("Dump the memory of {o}"),
            Self::VmDumpDelete => format!("Delete a dump of {o}"),
            Self::VmSnapshotCreate | Self::VolumeSnapshotCreate => format!("Make a snapshot of {o}"),
            Self::VmSnapshotRevert | Self::VolumeSnapshotRevert => format!("Revert {o} to a snapshot"),
            Self::VmSnapshotDelete | Self::VolumeSnapshotDelete => format!("Delete a snapshot of {o}"),
            Self::VmSnapshotSchedule => format!("Change the snapshot schedule of {o}"),
            Self::VmCryptoperiod => format!("Change the cryptoperiod of {o}"),
            Self::VmMove => format!("Move {o} to another folder"),
            Self::VmMoveHost => format!("Move {o} to another host"),
            Self::VmTemplate => format!("Make {o} a template"),
            Self::VmTemplateUndo => format!("Make {o} a VM again"),
            Self::VmResume => format!("Resume {o}"),
            Self::VmReset => format!("Reset {o}"),
            Self::VmRotateKey => format!("Move {o} to a new key"),
            Self::VmConfigure => format!("Change {o}"),
            Self::VmAddDisk => format!("Add a disk to {o}"),
            Self::VmRemoveDisk => format!("Remove a disk from {o}"),
            Self::VmResizeDisk => format!("Grow a disk of {o}"),
            Self::VolumeResize => format!("Grow {o}"),
            Self::VmMoveDisk => format!("Move a disk of {o} to another datastore"),
            Self::VmLimit => format!("Change the disk limits of {o}"),
            Self::VmEncryptDisk => format!("Encrypt a disk of {o}"),
            Self::VmDecryptDisk => format!("Decrypt a disk of {o}"),
            Self::VmImportDisk => format!("Fill a disk of {o} with an image"),
            Self::VmDelete | Self::VolumeDelete | Self::NetworkDelete | Self::PolicyDelete => {
                format!("Delete {o}")
            }
            Self::VmRegister => format!("Register {o}"),
            Self::VmUnregister => format!("Unregister {o}"),
            Self::VolumeBind => format!("Give a volume to {o}"),
            Self::VolumeUnbind => format!("Take a volume from {o}"),
            Self::DatastoreAdd => format!("Add {o}"),
            Self::DatastoreRemove => format!("Remove {o}"),
            Self::DatastoreRebuild => format!("Register the VMs of {o}"),
            Self::DatastoreAddHost | Self::NetworkAddHost => format!("Add a host to {o}"),
            Self::DatastoreRemoveHost | Self::NetworkRemoveHost => format!("Remove a host from {o}"),
            Self::HostEvacuate => format!("Evacuate {o}"),
            Self::HostsBalance => "Balance the hosts".to_owned(),
            Self::VmAddNic => format!("Add a network card to {o}"),
            Self::VmRemoveNic => format!("Remove a network card from {o}"),
            Self::VmSetNic => format!("Change a network card of {o}"),
            Self::PolicyApply => format!("Apply {o}"),
            Self::Unknown => format!("Work on {o}"),
        }
    }

    /// Its name in the JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::VmCreate => "vm_create",
            Self::VmClone => "vm_clone",
            Self::VmStart => "vm_start",
            Self::VmStop => "vm_stop",
            Self::VmRestart => "vm_restart",
            Self::VmPause => "vm_pause",
            Self::VmSuspend => "vm_suspend",
            Self::VmDump => "vm_dump",
            Self::VmDumpDelete => "vm_dump_delete",
            Self::VmSnapshotCreate => "vm_snapshot_create",
            Self::VmSnapshotRevert => "vm_snapshot_revert",
            Self::VmSnapshotDelete => "vm_snapshot_delete",
            Self::VmSnapshotSchedule => "vm_snapshot_schedule",
            Self::VmCryptoperiod => "vm_cryptoperiod",
            Self::VmMove => "vm_move",
            Self::VmMoveHost => "vm_move_host",
            Self::VmTemplate => "vm_template",
            Self::VmTemplateUndo => "vm_template_undo",
            Self::VmResume => "vm_resume",
            Self::VmReset => "vm_reset",
            Self::VmRotateKey => "vm_rotate_key",
            Self::VmConfigure => "vm_configure",
            Self::VmAddDisk => "vm_add_disk",
            Self::VmRemoveDisk => "vm_remove_disk",
            Self::VmResizeDisk => "vm_resize_disk",
            Self::VmMoveDisk => "vm_move_disk",
            Self::VmLimit => "vm_limit",
            Self::VmEncryptDisk => "vm_encrypt_disk",
            Self::VmDecryptDisk => "vm_decrypt_disk",
            Self::VmImportDisk => "vm_import_disk",
            Self::VmDelete => "vm_delete",
            Self::VmRegister => "vm_register",
            Self::VmUnregister => "vm_unregister",
            Self::VolumeCreate => "volume_create",
            Self::VolumeClone => "volume_clone",
            Self::VolumeResize => "volume_resize",
            Self::VolumeSnapshotCreate => "volume_snapshot_create",
            Self::VolumeSnapshotRevert => "volume_snapshot_revert",
            Self::VolumeSnapshotDelete => "volume_snapshot_delete",
            Self::VolumeBind => "volume_bind",
            Self::VolumeUnbind => "volume_unbind",
            Self::VolumeDelete => "volume_delete",
            Self::DatastoreAdd => "datastore_add",
            Self::DatastoreRemove => "datastore_remove",
            Self::DatastoreRebuild => "datastore_rebuild",
            Self::DatastoreAddHost => "datastore_add_host",
            Self::DatastoreRemoveHost => "datastore_remove_host",
            Self::HostEvacuate => "host_evacuate",
            Self::HostsBalance => "hosts_balance",
            Self::VmAddNic => "vm_add_nic",
            Self::VmRemoveNic => "vm_remove_nic",
            Self::VmSetNic => "vm_set_nic",
            Self::NetworkCreate => "network_create",
            Self::NetworkDelete => "network_delete",
            Self::NetworkAddHost => "network_add_host",
            Self::NetworkRemoveHost => "network_remove_host",
            Self::PolicyCreate => "policy_create",
            Self::PolicyApply => "policy_apply",
            Self::PolicyDelete => "policy_delete",
            Self::Unknown => "unknown",
        }
    }
}

/// The state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// In progress. A task survives a restart of every Strongroom process.
    Running,
    /// Done.
    Done,
    /// It failed; `error` says why.
    Failed,
    /// Ended on request.
    Cancelled,
}

impl TaskState {
    /// Whether the task has ended.
    pub const fn is_over(self) -> bool {
        !matches!(self, Self::Running)
    }
}

/// The progress of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// The units done.
    pub done: u64,
    /// The units in total.
    pub total: u64,
    /// The unit.
    pub unit: ProgressUnit,
    /// Of a VM that moves to another host while it runs: how fast its memory passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passing: Option<Passing>,
}

impl Progress {
    /// A progress in steps.
    pub fn of_steps(done: u64, total: u64) -> Self {
        Self { done, total, unit: ProgressUnit::Steps, passing: None }
    }
}

/// How fast the memory of a VM that runs passes to another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Passing {
    /// Bytes per second that are sent.
    pub bytes_per_second: u64,
    /// Bytes per second that the guest changes, which are sent again.
    pub changed_bytes_per_second: u64,
    /// How long the rest takes at these rates, in seconds; absent if the guest changes its memory
    /// as fast as it is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
    /// How much its processors are slowed down for it, in percent.
    pub slowed_percent: u64,
}

/// The unit of a progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProgressUnit {
    /// Bytes.
    Bytes,
    /// Steps.
    #[serde(other)]
    Steps,
}

/// Selects tasks, newest first, and a page of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TaskListQuery {
    /// The most entries to return.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// The `next` of the previous page.
    #[param(min_length = 1, max_length = 512)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Only tasks in this state.
    #[param(inline)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<TaskState>,
    /// Only tasks of the object with this id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<Uuid>,
}

/// How long the answer waits for the task to end or to wait for an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TaskQuery {
    /// The longest wait, in seconds.
    #[param(minimum = 0, maximum = 60)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_s: Option<u32>,
}
