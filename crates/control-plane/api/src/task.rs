//! Tasks: what is being done, and what was.

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
    /// What is done.
    pub kind: TaskKind,
    /// To what.
    pub object: ObjectRef,
    /// How far it is.
    pub state: TaskState,
    /// How much of it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// What it is doing or waiting for, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The disk whose image it waits for, for a minute: send the image with a ticket, and name the
    /// ticket in an import of that disk, which is answered with this task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub awaits_image: Option<Name>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
    /// Whether somebody has asked for its end.
    pub cancelling: bool,
    /// Who asked for it: the name of the token, or `strongroom` for what is done by itself.
    pub by: String,
    /// When it was asked for, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// When it ended, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_unix_ms: Option<u64>,
}

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskKind {
    /// Makes a VM and its volumes.
    VmCreate,
    /// Starts a VM.
    VmStart,
    /// Stops a VM.
    VmStop,
    /// Stops a VM and starts it.
    VmRestart,
    /// Lets a VM's CPUs stand still.
    VmPause,
    /// Seals a VM's memory and ends it.
    VmSuspend,
    /// Seals what a VM's guest has in its memory in a dump.
    VmDump,
    /// Deletes a dump.
    VmDumpDelete,
    /// Lets them go on.
    VmResume,
    /// Resets a VM, as its button would.
    VmReset,
    /// Moves a VM to a new key.
    VmRotateKey,
    /// Changes a VM.
    VmConfigure,
    /// Adds a disk to a VM.
    VmAddDisk,
    /// Takes a disk out of a VM, and deletes its volume.
    VmRemoveDisk,
    /// Makes a disk of a VM larger.
    VmResizeDisk,
    /// Fills a disk with an image.
    VmImportDisk,
    /// Deletes a VM and its volumes.
    VmDelete,
    /// Takes a VM into the inventory.
    VmRegister,
    /// Takes a VM out of the inventory; its files stay.
    VmUnregister,
    /// Takes a datastore into the inventory.
    DatastoreAdd,
    /// Takes a datastore out of the inventory.
    DatastoreRemove,
    /// Registers every VM of a datastore that can be.
    DatastoreRebuild,
    /// Makes a policy.
    PolicyCreate,
    /// Deletes a policy.
    PolicyDelete,
    /// One that this program does not know yet.
    #[serde(other)]
    Unknown,
}

impl TaskKind {
    /// Its name as in the JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::VmCreate => "vm_create",
            Self::VmStart => "vm_start",
            Self::VmStop => "vm_stop",
            Self::VmRestart => "vm_restart",
            Self::VmPause => "vm_pause",
            Self::VmSuspend => "vm_suspend",
            Self::VmDump => "vm_dump",
            Self::VmDumpDelete => "vm_dump_delete",
            Self::VmResume => "vm_resume",
            Self::VmReset => "vm_reset",
            Self::VmRotateKey => "vm_rotate_key",
            Self::VmConfigure => "vm_configure",
            Self::VmAddDisk => "vm_add_disk",
            Self::VmRemoveDisk => "vm_remove_disk",
            Self::VmResizeDisk => "vm_resize_disk",
            Self::VmImportDisk => "vm_import_disk",
            Self::VmDelete => "vm_delete",
            Self::VmRegister => "vm_register",
            Self::VmUnregister => "vm_unregister",
            Self::DatastoreAdd => "datastore_add",
            Self::DatastoreRemove => "datastore_remove",
            Self::DatastoreRebuild => "datastore_rebuild",
            Self::PolicyCreate => "policy_create",
            Self::PolicyDelete => "policy_delete",
            Self::Unknown => "unknown",
        }
    }
}

/// How far a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// It is being done, also across a restart of everything.
    Running,
    /// Done.
    Done,
    /// It failed; `error` says why.
    Failed,
    /// Ended because somebody asked.
    Cancelled,
}

impl TaskState {
    /// Whether it is over.
    pub const fn is_over(self) -> bool {
        !matches!(self, Self::Running)
    }
}

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// So much.
    pub done: u64,
    /// Of so much.
    pub total: u64,
    /// Of what.
    pub unit: ProgressUnit,
}

/// What progress is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProgressUnit {
    /// Bytes.
    Bytes,
    /// Steps.
    #[serde(other)]
    Steps,
}

/// Which tasks, newest first, and which page of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TaskListQuery {
    /// Most entries wanted.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// `next` of the page before.
    #[param(min_length = 1, max_length = 512)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Only those in this state.
    #[param(inline)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<TaskState>,
    /// Only those of this object's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<Uuid>,
}

/// How long to wait for the end of a task, or until it waits for an image, before it is answered as
/// it is then.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TaskQuery {
    /// In seconds.
    #[param(minimum = 0, maximum = 60)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_s: Option<u32>,
}
