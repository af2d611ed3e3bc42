//! What hostd and the supervisor of a VM say to each other.
//!
//! A supervisor is born with a socket, over which it is told, once, what it is to do ([`Birth`]).
//! One that runs a VM afterwards takes requests there and on its own socket, whoever is connected,
//! and tells all of them how the VM is whenever that has changed. One that does a job tells how far
//! it is, and ends.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use strongroom_statistics::Snapshot;
use strongroom_types::{ProviderKey, VolumeSize};

use crate::layout::Layout;
use crate::protocol::{
    DiskChange, DiskName, Grant, ImageFormat, KnownVolume, ObservedVm, OperationId, Problem, Progress,
    StartOptions, VmGeneration, VmSpec, VolumeFacts,
};

/// The first packet. Beside an import comes the image's file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Birth {
    /// Where the key providers of this machine are set up.
    pub home: PathBuf,
    /// The VM's run directory; of a job, the host's.
    pub run: PathBuf,
    /// The QEMU of this host.
    pub qemu: PathBuf,
    /// Leave to fetch keys.
    pub grants: Vec<Grant>,
    /// What to do.
    pub task: Task,
}

/// What a supervisor is for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Task {
    /// Runs a VM until it is off.
    Run(RunTask),
    /// Starts the processes of a VM for its supervisor, which asks over this socket, until that is
    /// gone (its *starter*). It needs no key, and gets no grant.
    StartProcesses(RunTask),
    /// Does for a job what takes rights (its *hand*). It needs no key, and gets no grant.
    Hand(HandTask),
    /// Makes a VM's directory and volumes, and ends.
    Create(Box<VmSpec>),
    /// Writes another configuration of a VM that is there, makes its new volumes, and ends.
    Configure(Box<VmSpec>),
    /// Fills a volume with an image, and ends.
    Import {
        /// Of which VM.
        spec: Box<VmSpec>,
        /// Which volume.
        disk: DiskName,
        /// What is in the image.
        format: ImageFormat,
    },
    /// Moves the volumes of a VM that is off to the next key, and ends.
    Rekey(Box<VmSpec>),
    /// Changes a disk of a VM that is off, and ends.
    ChangeDisk {
        /// Of which VM.
        spec: Box<VmSpec>,
        /// How.
        change: DiskChange,
    },
    /// Gives the console's log of a VM that is off to a client, whose socket comes beside, and
    /// ends.
    ConsoleLog(Box<VmSpec>),
    /// Checks a disk of a VM that is off for a client, whose socket comes beside, and ends.
    Check {
        /// Of which VM.
        spec: Box<VmSpec>,
        /// Which.
        disk: DiskName,
        /// Its blocks too, and not its descriptor and files alone.
        reads_blocks: bool,
    },
    /// Copies a disk of a VM that is off into a client's file, which comes beside after the
    /// client's socket, and ends.
    Export {
        /// Of which VM.
        spec: Box<VmSpec>,
        /// Which.
        disk: DiskName,
        /// What is written.
        format: ImageFormat,
    },
    /// Says what speaks against this being what the VM's supervisor attested last
    /// ([`Report::Judged`]), and ends.
    Judge(Box<VmSpec>),
    /// Gives a dump of a VM that is off to a client, whose socket comes beside, and ends.
    Dump {
        /// Of which VM.
        spec: Box<VmSpec>,
        /// Which.
        number: u32,
    },
}

/// What the hand of a job is there for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum HandTask {
    /// Gives a VM's directory its name, when the job says that it is complete. The VM's lock comes
    /// beside.
    Name(Box<VmSpec>),
    /// Has qemu-img copy between the image that comes beside and a disk of this size.
    Convert {
        /// What the image is.
        format: ImageFormat,
        /// The disk's size.
        size_bytes: VolumeSize,
        /// From which into which.
        way: Way,
    },
}

/// Which way data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// Out of the image.
    Import,
    /// Into it.
    Export,
}

/// Which VM to run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunTask {
    /// What it is.
    pub spec: Box<VmSpec>,
    /// Which start of it this is.
    pub generation: VmGeneration,
    /// Its QEMU runs already, and its supervisor has died.
    pub adopt: Option<Orphan>,
    /// Where its volumes are served, if it runs already.
    #[serde(default, skip_serializing_if = "Layout::is_empty")]
    pub layout: Layout,
    /// How it is started, if it does not run yet.
    #[serde(default)]
    pub how: StartOptions,
    /// How many supervisors of this start have died.
    #[serde(default)]
    pub supervisor_deaths: u64,
}

/// A QEMU without a supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orphan {
    /// What it is known by.
    pub qemu: strongroom_hypervisor::QemuIdentity,
    /// Its TPM's swtpm, if it has one.
    #[serde(default)]
    pub swtpm: Option<strongroom_hypervisor::QemuIdentity>,
    /// Whether somebody had asked for its processors to be halted.
    pub paused_by_request: bool,
}

/// What hostd asks a supervisor that runs a VM.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// Which; the answer has it too.
    pub id: u64,
    /// What.
    pub kind: RequestKind,
}

/// What it may ask.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum RequestKind {
    /// Halt the processors.
    Pause,
    /// Have them go on.
    Resume,
    /// As the reset button does.
    Reset,
    /// End. Answered when that has begun; the end is seen as a state.
    Stop {
        /// At once.
        force: bool,
        /// How long the guest may take, in seconds.
        timeout_s: u32,
    },
    /// Save the memory, and end. Answered when the memory is sealed; how far that is, is told as
    /// [`Report::Progress`].
    Suspend,
    /// Go on instead. The suspension that this ends is answered as failed.
    AbandonSuspension,
    /// Move the VM's volumes to this key. Answered when they are under it; how far that is, is told
    /// as [`Report::Progress`].
    Rekey {
        /// Which.
        to: ProviderKey,
        /// What the control plane knows of the VM's volumes by now: none may be an older one.
        /// Nothing of a hostd of a former release.
        #[serde(default)]
        known: Vec<KnownVolume>,
    },
    /// Dump the memory. Answered when the dump is there; how far that is, is told as
    /// [`Report::Progress`]. Asked again while it is under way, it is that one that is waited for.
    Dump {
        /// Which operation makes it.
        operation: OperationId,
        /// What somebody calls it.
        label: Option<String>,
    },
    /// Have the guest go on instead. The dump that this ends is answered as failed.
    AbandonDump,
    /// Delete a dump. Answered when it is gone.
    DeleteDump {
        /// Which.
        number: u32,
    },
    /// A client of a dump, whose socket comes beside.
    OpenDump {
        /// Which.
        number: u32,
    },
    /// Change a disk of the VM. Answered when that is done.
    ChangeDisk {
        /// How.
        change: DiskChange,
        /// As with [`Rekey`](Self::Rekey).
        #[serde(default)]
        known: Vec<KnownVolume>,
    },
    /// More grants.
    Grants(Vec<Grant>),
    /// A client of the console's log, whose socket comes beside.
    ConsoleLog,
    /// A client of the console, whose socket comes beside.
    Console {
        /// It does not want to write.
        read_only: bool,
    },
    /// A client of the VNC server, whose socket comes beside.
    Vnc,
    /// What was asked of a disk: told as [`Report::Statistics`] before the answer. Another thread
    /// than the VM's answers.
    Statistics {
        /// Which.
        disk: DiskName,
    },
}

/// What a supervisor says.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    /// How the VM is, without its configuration.
    State(Box<ObservedVm>),
    /// The answer to a request.
    Answer {
        /// Which.
        id: u64,
        /// Why it was not done, if it was not.
        problem: Option<Problem>,
        /// What became of the VM's volumes, where that was asked for: as whoever has their keys
        /// knows it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        known: Vec<KnownVolume>,
    },
    /// What was asked of a disk.
    Statistics {
        /// By which request this was asked for.
        id: u64,
        /// So much.
        snapshot: Box<Snapshot>,
    },
    /// How far a job, a suspension or a dump is.
    Progress(Progress),
    /// A job is done: what the volumes are that it made.
    Done(Vec<VolumeFacts>),
    /// A configuration was judged: what speaks against it.
    Judged(Vec<String>),
    /// A job, or the birth, has failed.
    Failed(Problem),
}

impl Report {
    /// That a request which changes no volume is done, or why it is not.
    pub fn answer(id: u64, problem: Option<Problem>) -> Self {
        Self::Answer { id, problem, known: Vec::new() }
    }
}
