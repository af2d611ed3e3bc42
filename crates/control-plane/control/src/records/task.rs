//! A task, and how far its work is.

use serde::{Deserialize, Serialize};
use strongroom_api::task::{Task, TaskKind};
use strongroom_api::{Name, Problem};
use strongroom_host::protocol::{DiskName, ImageFormat, OperationId, TicketId};
use strongroom_types::{KeyRequestId, ProviderKey, ProviderName, VmId, VolumeSize};

use super::hardware::{DiskRecord, Hardware};

/// A task with what it takes to go on with it after a crash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRecord {
    /// As it is shown.
    pub task: Task,
    /// On which VM; none for what is done at once.
    #[serde(default)]
    pub vm: Option<VmId>,
    /// What is to be done.
    pub work: Work,
    /// The host's operation that is under way: in here before the host hears of it.
    #[serde(default)]
    pub operation: Option<OperationId>,
    /// Whether it is a key that its note says it waits for.
    #[serde(default)]
    pub waits_for_key: bool,
}

/// What is to be done, and which part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "work", rename_all = "snake_case")]
pub enum Work {
    /// Nothing more: it was done with the transaction that made the task.
    Nothing,
    /// Have a key made, then the volumes.
    Create {
        /// The disks that are to be filled with images before it is done.
        #[serde(default)]
        fill: Vec<DiskName>,
    },
    /// Wait for the image of a disk that is there, and belongs to nothing without its image.
    AwaitImage {
        /// The disks that are still to be filled; the image of the first is awaited.
        fill: Vec<DiskName>,
        /// Until then, in milliseconds since 1970.
        until_unix_ms: u64,
        /// What is taken back if it does not come.
        whole: Whole,
    },
    /// Fill a disk with the image that has come, and wait for the next one.
    Fill {
        /// Which.
        disk: DiskName,
        /// The ticket that the image came with.
        ticket: TicketId,
        /// How it is written.
        format: ImageFormat,
        /// The disks that come after it.
        fill: Vec<DiskName>,
        /// What is taken back if it fails.
        whole: Whole,
    },
    /// Take away what a creation that failed or was abandoned may have left on the host.
    UndoCreate {
        /// Why it failed; nothing if somebody did not want it any more.
        #[serde(default)]
        problem: Option<Problem>,
    },
    /// Start it, then wait until it runs, which may take until a key can be had.
    Start {
        /// Without the memory that it was suspended with.
        #[serde(default)]
        discard_memory: bool,
        /// With its processors standing still.
        #[serde(default)]
        paused: bool,
    },
    /// It was started and has to run.
    AwaitRunning,
    /// Cut off what was started, since nobody waits for it any more.
    UndoStart,
    /// Stop it.
    Stop {
        /// At once.
        force: bool,
        /// How long the guest has, in seconds.
        timeout_s: u32,
        /// Start it afterwards.
        then_start: bool,
    },
    /// Halt it.
    Pause,
    /// Seal its memory, and end it.
    Suspend,
    /// Dump its guest.
    Dump {
        /// What somebody calls it.
        #[serde(default)]
        label: Option<String>,
    },
    /// Delete a dump.
    DeleteDump {
        /// Which.
        number: u32,
    },
    /// Let it go on.
    Resume,
    /// Reset it.
    Reset,
    /// Tell the host of its new hardware.
    Configure {
        /// What it is until then, and again if the host refuses.
        before: Box<Hardware>,
    },
    /// Fill a disk.
    ImportDisk {
        /// Which.
        disk: DiskName,
        /// The ticket that the image came with.
        ticket: TicketId,
        /// How it is written.
        format: ImageFormat,
    },
    /// Add a disk, which the VM has when that is done.
    AddDisk {
        /// What it is to be.
        disk: Box<DiskRecord>,
        /// Whether it is to be filled with an image before it is done.
        #[serde(default)]
        fill: bool,
        /// How often the host could not.
        #[serde(default)]
        failures: u32,
    },
    /// Take away what came of a disk that was not added.
    UndoAddDisk {
        /// Which.
        disk: Box<DiskRecord>,
        /// Why it was not; nothing if somebody did not want it any more.
        #[serde(default)]
        problem: Option<Problem>,
    },
    /// Take a disk out, which the VM has until that is done.
    RemoveDisk {
        /// Which.
        disk: DiskName,
        /// How often the host could not.
        #[serde(default)]
        failures: u32,
    },
    /// Make a disk larger.
    ResizeDisk {
        /// Which.
        disk: DiskName,
        /// Its new size.
        size: VolumeSize,
        /// How often the host could not.
        #[serde(default)]
        failures: u32,
    },
    /// Move it to another key: have that made, unless it is there, then have every volume moved.
    RotateKey {
        /// By whom the key is made.
        provider: ProviderName,
        /// Which request.
        request: KeyRequestId,
        /// The key, once it is there.
        #[serde(default)]
        to: Option<ProviderKey>,
        /// How often the host could not do all of it.
        #[serde(default)]
        failures: u32,
    },
    /// It has moved: take out of use what nothing needs any more.
    RetireKeys {
        /// The keys that it has left.
        keys: Vec<ProviderKey>,
    },
    /// Delete it.
    Delete,
}

impl Work {
    /// The disk whose image it waits for.
    pub fn awaited_image(&self) -> Option<Name> {
        match self {
            Self::AwaitImage { fill, .. } => Name::new(fill.first()?.as_str()).ok(),
            _ => None,
        }
    }
}

/// What a disk that is being filled is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whole {
    /// A VM that is being made.
    Vm,
    /// A VM that gets this one disk.
    Disk,
}

impl TaskRecord {
    /// Whether somebody started this VM rather than the control plane itself.
    pub fn is_automatic(&self) -> bool {
        self.task.by == AUTOMATIC
    }

    /// Its kind.
    pub fn kind(&self) -> TaskKind {
        self.task.kind
    }
}

/// Who asks for what is done by itself.
pub const AUTOMATIC: &str = "strongroom";
