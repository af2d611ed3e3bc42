//! What is done to a VM, and how far that is.

use serde::{Deserialize, Serialize};
use strongroom_types::{KekId, ProviderKey, VmId, VolumeId};
use strongroom_vm::DiskName;

use super::disk_change::DiskChange;
use super::dump::Dump;
use super::grant::Grant;
use super::names::{OperationId, VmGeneration};
use super::problem::Problem;
use super::spec::VmSpec;
use super::ticket::TicketId;

/// What is to be done to a VM. Operations on one VM are done in the order in which they came; of
/// all VMs, at most 16 at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperationRequest {
    /// Which operation this is: asked again with the same id, it is not done again.
    pub operation: OperationId,
    /// Which start of the VM it is meant for. [`Start`](OperationKind::Start) begins it; others but
    /// [`Create`](OperationKind::Create), [`Delete`](OperationKind::Delete),
    /// [`Configure`](OperationKind::Configure) and [`DeleteDump`](OperationKind::DeleteDump), which
    /// do not look at it, are refused if another one runs.
    pub generation: VmGeneration,
    /// What it is.
    pub kind: OperationKind,
    /// Leave to fetch the keys that it takes; a grant is good once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<Grant>,
}

/// What is done to a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum OperationKind {
    /// Makes the VM's directory and its volumes; all of it, or nothing that has its name. Takes the
    /// keys of its disks.
    Create {
        /// What it is.
        spec: Box<VmSpec>,
    },
    /// Deletes the directory and all volumes of a VM that is off.
    Delete,
    /// Starts it, with this configuration, which its directory keeps from now on. Takes the keys of
    /// its disks. Done when its guest runs; if a key cannot be had, done at once, and the VM is
    /// [`KeyUnavailable`](super::PowerState::KeyUnavailable) until it can.
    ///
    /// One that is [`Suspended`](super::PowerState::Suspended) goes on with its memory, all of
    /// which is verified first.
    Start {
        /// What it is.
        spec: Box<VmSpec>,
        /// How.
        #[serde(default)]
        how: StartOptions,
    },
    /// Saves its memory and its devices' state, sealed, and ends it: its next start goes on with
    /// them. If it fails, the guest goes on.
    Suspend,
    /// Dumps the memory of its guest, which stands still meanwhile, as a core file into a sealed
    /// volume of its own. If it fails, nothing is left of that.
    Dump {
        /// What somebody calls it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        label: Option<String>,
    },
    /// Deletes a dump, whether the VM runs or not.
    DeleteDump {
        /// What the VM is.
        spec: Box<VmSpec>,
        /// Which.
        number: u32,
    },
    /// Ends it: its guest is asked to, and after `timeout_s` it is cut off.
    Stop {
        /// Cuts it off at once.
        force: bool,
        /// How long the guest may take, in seconds.
        timeout_s: u32,
    },
    /// Halts its processors.
    Pause,
    /// Has them go on.
    Resume,
    /// As the reset button does.
    Reset,
    /// Writes another configuration for its next start. Disks that are new are made, and take their
    /// keys; none is removed.
    Configure {
        /// What it will be.
        spec: Box<VmSpec>,
    },
    /// Fills a disk of a VM that is off with an image that a client sent to the guest socket with a
    /// ticket ([`TicketRequest::Upload`](super::TicketRequest::Upload)). Takes the disk's key. What
    /// the disk held is lost, even if it fails.
    ImportDisk {
        /// What the VM is.
        spec: Box<VmSpec>,
        /// Which disk.
        disk: DiskName,
        /// The ticket.
        ticket: TicketId,
        /// What is in the image.
        format: ImageFormat,
    },
    /// Moves all of a VM's volumes, running or off, from the keys that they are under to the one
    /// that the configuration says is [next](super::DiskKey::Provider::next). No data is copied.
    /// Takes the keys of both sides. What fails, or is killed, leaves each volume under a key that
    /// the configuration names; asked again, it goes on.
    Rekey {
        /// What it is, with the next key.
        spec: Box<VmSpec>,
    },
    /// Adds a disk to a VM, takes one out or makes one larger, running or off; not of one that is
    /// suspended. Takes the VM's keys. What is taken out of a VM that runs is asked of its guest,
    /// which has a minute, and its volume is deleted. What fails half done is said so by its
    /// effect: asked again, it goes on; and a disk that was added in part can be taken out.
    ChangeDisk {
        /// What the VM is before.
        spec: Box<VmSpec>,
        /// What becomes of which.
        change: DiskChange,
    },
    /// Brings grants to a VM that [waits for a key](super::ObservedVm::waiting_for).
    SupplyGrants,
}

/// How a VM is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartOptions {
    /// Loses the memory that it was suspended with, and boots.
    #[serde(default)]
    pub discard_memory: bool,
    /// Leaves its processors standing still, as if somebody had paused it before its first
    /// instruction.
    #[serde(default)]
    pub paused: bool,
}

impl OperationKind {
    /// What it is called.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Create { .. } => "create",
            Self::Delete => "delete",
            Self::Start { .. } => "start",
            Self::Stop { .. } => "stop",
            Self::Suspend => "suspend",
            Self::Dump { .. } => "dump",
            Self::DeleteDump { .. } => "delete_dump",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Reset => "reset",
            Self::Configure { .. } => "configure",
            Self::ImportDisk { .. } => "import_disk",
            Self::Rekey { .. } => "rekey",
            Self::ChangeDisk { .. } => "change_disk",
            Self::SupplyGrants => "supply_grants",
        }
    }

    /// The configuration that comes with whatever opens or makes a volume. What lies in the
    /// datastore decides nothing about that.
    pub fn spec(&self) -> Option<&VmSpec> {
        match self {
            Self::Create { spec }
            | Self::Start { spec, .. }
            | Self::Configure { spec }
            | Self::Rekey { spec }
            | Self::DeleteDump { spec, .. }
            | Self::ImportDisk { spec, .. }
            | Self::ChangeDisk { spec, .. } => Some(spec),
            Self::Delete
            | Self::Suspend
            | Self::Dump { .. }
            | Self::Stop { .. }
            | Self::Pause
            | Self::Resume
            | Self::Reset
            | Self::SupplyGrants => None,
        }
    }
}

/// How an image is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageFormat {
    /// As its first bytes say. What starts as no format known is raw.
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

/// An operation, as far as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// Which.
    pub operation: OperationId,
    /// On which VM.
    pub vm: VmId,
    /// [`OperationKind::name`].
    pub kind: String,
    /// How far it is.
    pub state: OperationState,
    /// How much of it is done, where that can be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
    /// What came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<OperationOutcome>,
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationState {
    /// It waits for its turn.
    Queued,
    /// It is being done.
    Running,
    /// Done.
    Done,
    /// Not done; nor half done, but where its kind says so.
    Failed,
    /// Not done, because somebody asked to end it.
    Cancelled,
}

impl OperationState {
    /// Whether nothing more becomes of it.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled)
    }
}

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// So much.
    pub done: u64,
    /// Of so much; 0 while that is not known.
    pub total: u64,
    /// Of what.
    pub unit: ProgressUnit,
}

/// What progress is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgressUnit {
    /// Bytes.
    Bytes,
    /// Volumes.
    Volumes,
}

/// What came of an operation, for the control plane to keep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationOutcome {
    /// Of `create`, `configure`, `rekey` and `change_disk`: the VM's volumes; of `import_disk`: the
    /// one that was filled.
    Volumes(Vec<VolumeFacts>),
    /// Of `start`: it waits for a key.
    KeyUnavailable(ProviderKey),
    /// Of `dump`: it.
    Dump(Dump),
}

impl OperationOutcome {
    /// The volumes of an outcome that has some.
    pub fn into_volumes(outcome: Option<Self>) -> Vec<VolumeFacts> {
        match outcome {
            Some(Self::Volumes(volumes)) => volumes,
            _ => Vec::new(),
        }
    }
}

/// A volume, as its descriptor has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeFacts {
    /// The disk, or the volume of the VM's own.
    pub disk: DiskName,
    /// Its volume, for life.
    pub volume: VolumeId,
    /// The KEK that it is under; none for a clear one. To be expected at each start from now on.
    pub kek: Option<KekId>,
    /// The generation of its descriptor: the least that is to be expected.
    pub generation: u64,
}
