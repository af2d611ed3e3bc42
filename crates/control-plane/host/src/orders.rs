//! The messages between hostd and the supervisor of a VM.
//!
//! A supervisor starts with an inherited socket, on which it receives its task once ([`Birth`]). A
//! supervisor that then runs a VM takes requests on that socket and on its own, from every
//! connected hostd, and sends the VM's state to all of them at each change. A supervisor that does
//! a job reports its progress, and exits.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use strongroom_hypervisor::network::NetworkState;
use strongroom_statistics::Snapshot;
use strongroom_types::{Bandwidth, CephMount, DatastoreId, ProviderKey, VmId, VolumeSize};

use crate::layout::Layout;
use crate::nic_layout::NicLayout;
use crate::protocol::{
    BootDevice, CloneSource, Cpus, Disk, DiskChange, DiskMove, DiskName, Grant, GroupAttempt, HandoverId,
    ImageFormat, KnownVolume, MacAddress, MemorySize, MigrationPermit, MigrationSettings, NewVmSnapshot, Nic,
    ObservedVm, OperationId, Problem, Progress, RunningMachine, SnapshotChange, StartOptions, VmGeneration,
    VmSpec, VolumeFacts,
};
use crate::state_file::StartSizes;

/// The first packet. With an import, the image's file comes with it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Birth {
    /// The directory with the key provider configuration of this machine.
    pub home: PathBuf,
    /// The VM's run directory; for a job, the host's.
    pub run: PathBuf,
    /// The path of this host's QEMU.
    pub qemu: PathBuf,
    /// Grants for fetching keys.
    pub grants: Vec<Grant>,
    /// The datastores on clusters that the task needs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub clusters: BTreeMap<DatastoreId, CephMount>,
    /// The task.
    pub task: Task,
}

/// The task of a supervisor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Task {
    /// Runs a VM until it is off.
    Run(RunTask),
    /// Starts the processes of a VM for its supervisor, which sends its requests over this socket,
    /// until the supervisor closes it (the VM's *starter*). It needs no key, and gets no grant.
    StartProcesses(RunTask),
    /// Does the privileged steps of a job (the job's *hand*). It needs no key, and gets no grant.
    Hand(HandTask),
    /// Makes a VM's directory and volumes, and exits.
    Create {
        /// The VM.
        spec: Box<VmSpec>,
        /// The VM whose content its volumes begin with.
        from: Option<Box<CloneSource>>,
    },
    /// Replaces the configuration of an existing VM, makes its new volumes, and exits.
    Configure(Box<VmSpec>),
    /// Fills a volume with an image, which comes with the packet, and exits.
    Import {
        /// The VM.
        spec: Box<VmSpec>,
        /// The volume.
        disk: DiskName,
        /// The image's format.
        format: ImageFormat,
        /// What came: hostd of the former version sends files alone.
        #[serde(default)]
        brought: Brought,
    },
    /// Moves the volumes of a VM that is off to the next key, and exits.
    Rekey(Box<VmSpec>),
    /// The same, with all volumes rewritten under new data keys. Takes [`JobRequest::WindUp`].
    Reencrypt(Box<VmSpec>),
    /// Changes the snapshots of a VM that is off, and exits.
    ChangeSnapshots {
        /// The VM.
        spec: Box<VmSpec>,
        /// The change.
        change: SnapshotChange,
    },
    /// Changes a disk of a VM that is off, and exits.
    ChangeDisk {
        /// The VM.
        spec: Box<VmSpec>,
        /// The change.
        change: DiskChange,
    },
    /// Sends the console log of a VM that is off to a client, whose socket comes with the packet,
    /// and exits.
    ConsoleLog(Box<VmSpec>),
    /// Checks a disk of a VM that is off for a client, whose socket comes with the packet, and
    /// exits.
    Check {
        /// The VM.
        spec: Box<VmSpec>,
        /// The disk.
        disk: DiskName,
        /// Checks its blocks as well as its descriptor and files.
        reads_blocks: bool,
    },
    /// Copies a disk of a VM that is off, and exits. The client's socket and the file to write come
    /// with the packet, in this order; without a file, the socket gets frames.
    Export {
        /// The VM.
        spec: Box<VmSpec>,
        /// The disk.
        disk: DiskName,
        /// The format of the copy.
        format: ImageFormat,
    },
    /// Gives the volumes of a VM that is off to the host that it moves to, whose socket comes with
    /// the packet, and exits.
    GiveVolumes(Box<VmSpec>),
    /// Fetches the volumes of a VM from the host that has them, whose socket comes with the packet,
    /// makes its directory, and exits.
    FetchVolumes {
        /// The VM.
        spec: Box<VmSpec>,
        /// What is written into the directory.
        handover: HandoverId,
        /// How fast they may come.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes_per_second: Option<Bandwidth>,
    },
    /// Makes the directory of a VM whose volumes come while it runs on another host, and exits.
    ExpectVolumes {
        /// The VM.
        spec: Box<VmSpec>,
        /// As for [`FetchVolumes`](Self::FetchVolumes).
        handover: HandoverId,
    },
    /// Reports the objections to this configuration as the one that the VM's supervisor last
    /// attested ([`Report::Judged`]), and exits.
    Judge(Box<VmSpec>),
    /// Sends a dump of a VM that is off to a client, whose socket comes with the packet, and exits.
    Dump {
        /// The VM.
        spec: Box<VmSpec>,
        /// The dump's number.
        number: u32,
    },
}

impl Task {
    /// The directories of the VMs that it is about.
    pub fn directories(&self) -> Vec<PathBuf> {
        match self {
            Self::Run(task) | Self::StartProcesses(task) => task.directories(),
            Self::Hand(HandTask::Name(spec)) => spec.directories(),
            Self::Hand(HandTask::Convert { .. }) => Vec::new(),
            Self::Create { spec, from } => {
                let from = from.as_ref().map(|from| from.spec.directories());
                from.into_iter().flatten().chain(spec.directories()).collect()
            }
            Self::ChangeDisk { spec, change } => change.directories(spec),
            Self::Configure(spec)
            | Self::Rekey(spec)
            | Self::Reencrypt(spec)
            | Self::ConsoleLog(spec)
            | Self::GiveVolumes(spec)
            | Self::FetchVolumes { spec, .. }
            | Self::ExpectVolumes { spec, .. }
            | Self::Judge(spec)
            | Self::Import { spec, .. }
            | Self::ChangeSnapshots { spec, .. }
            | Self::Check { spec, .. }
            | Self::Export { spec, .. }
            | Self::Dump { spec, .. } => spec.directories(),
        }
    }
}

/// How an image comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Brought {
    /// As an open file.
    #[default]
    File,
    /// By a client, which is asked for it over a socket.
    Client,
}

/// The task of a job's hand.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum HandTask {
    /// Gives a VM's directory its name once the job reports that it is complete. The VM's lock
    /// comes with the packet.
    Name(Box<VmSpec>),
    /// Has qemu-img copy between an image and a disk of this size. The image comes with the packet;
    /// if none does, the job serves it.
    Convert {
        /// The image's format.
        format: ImageFormat,
        /// The disk's size.
        size_bytes: VolumeSize,
        /// The direction of the copy.
        way: Way,
    },
}

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// From the image to the disk.
    Import,
    /// From the disk to the image.
    Export,
}

/// The VM to run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunTask {
    /// Its configuration.
    pub spec: Box<VmSpec>,
    /// The number of this start.
    pub generation: VmGeneration,
    /// The running QEMU to adopt, after the death of its supervisor.
    pub adopt: Option<Orphan>,
    /// Where its volumes are served, if it already runs.
    #[serde(default, skip_serializing_if = "Layout::is_empty")]
    pub layout: Layout,
    /// The network cards that QEMU has, if it already runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nics: Option<NicLayout>,
    /// What QEMU was started with, if it already runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<StartSizes>,
    /// How to start it, if it does not run yet.
    #[serde(default)]
    pub how: StartOptions,
    /// The machine that runs on another host, and whose memory comes from there. Its volumes are
    /// opened upon [`RequestKind::TakeUp`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incoming: Option<Incoming>,
    /// The number of supervisors of this start that have died.
    #[serde(default)]
    pub supervisor_deaths: u64,
    /// As [`StateFile::changed_over`](crate::state_file::StateFile::changed_over).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_over: Option<DiskName>,
    /// Directories beside those of its volumes that it may enter: a disk moves from or to there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reaches: Vec<PathBuf>,
    /// A switch that its former supervisor had begun and not decided: the copy loses its name
    /// before the disk is served where it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undecided: Option<DiskMove>,
}

impl RunTask {
    /// All directories that it may enter, apart from the VM's run directory.
    pub fn directories(&self) -> Vec<PathBuf> {
        let mut all = self.spec.directories();
        all.extend(self.reaches.iter().filter(|path| !self.spec.directories().contains(path)).cloned());
        all
    }
}

/// A machine whose memory comes from another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incoming {
    /// The machine.
    pub machine: RunningMachine,
    /// How its memory passes.
    pub settings: MigrationSettings,
    /// Whether its volumes come from there, too: upon [`RequestKind::FetchVolumes`], before its
    /// machine is made.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub with_volumes: bool,
}

/// A QEMU without a supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orphan {
    /// Its process.
    pub qemu: strongroom_hypervisor::QemuIdentity,
    /// Its TPM's swtpm, if it has one.
    #[serde(default)]
    pub swtpm: Option<strongroom_hypervisor::QemuIdentity>,
    /// Whether the VM was paused on request.
    pub paused_by_request: bool,
}

/// A request of hostd to a supervisor that does a job.
#[derive(Debug, Serialize, Deserialize)]
pub enum JobRequest {
    /// Abandon the job in a state in which the VM can be started. The job is answered as failed,
    /// unless it was done.
    WindUp {},
    /// The client with the image of an import has come back. Its socket comes with the packet.
    Client {},
}

/// A request of hostd to a supervisor that runs a VM.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// Its number, which the answer repeats.
    pub id: u64,
    /// The request.
    pub kind: RequestKind,
}

/// The requests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum RequestKind {
    /// Halt the processors.
    Pause,
    /// Resume the processors.
    Resume,
    /// Reset the VM, as a reset button does.
    Reset,
    /// Stop the VM. Answered when the stop has begun; its end is reported as a state.
    Stop {
        /// At once.
        force: bool,
        /// How long the guest has to shut down, in seconds.
        timeout_s: u32,
    },
    /// Save the memory, and stop. Answered when the memory is sealed; its progress is sent as
    /// [`Report::Progress`].
    Suspend,
    /// Abandon the suspension and resume the guest. The suspension is answered as failed.
    AbandonSuspension,
    /// Move the VM's volumes to this key. Answered when they are under it; its progress is sent as
    /// [`Report::Progress`].
    Rekey {
        /// The key.
        to: ProviderKey,
        /// The volumes that the control plane knows: none may be older. Empty from a hostd of an
        /// earlier release.
        #[serde(default)]
        known: Vec<KnownVolume>,
    },
    /// As [`Rekey`](Self::Rekey), with all data rewritten under new data keys. A repeated request
    /// waits for the move that is in progress.
    Reencrypt {
        /// The key.
        to: ProviderKey,
        /// As in [`Rekey`](Self::Rekey).
        known: Vec<KnownVolume>,
    },
    /// Abandon the rewriting: the volume that it is at goes back to its old key, or its disk stays
    /// half clear. The request is answered as failed.
    AbandonReencryption,
    /// Complete the encryption or decryption of a half-clear disk. Answered when the disk is whole;
    /// its progress is sent as [`Report::Progress`]. A repeated request waits for the job that is
    /// in progress.
    SealDisk {
        /// The disk, whose key is [`DiskKey::HalfClear`](crate::protocol::DiskKey::HalfClear).
        disk: Box<Disk>,
        /// As in [`Rekey`](Self::Rekey).
        known: Vec<KnownVolume>,
    },
    /// Dump the memory. Answered when the dump is complete; its progress is sent as
    /// [`Report::Progress`]. A repeated request waits for the dump that is in progress.
    Dump {
        /// The operation that makes the dump.
        operation: OperationId,
        /// The dump's label.
        label: Option<String>,
    },
    /// Abandon the dump and resume the guest. The dump is answered as failed.
    AbandonDump,
    /// Delete a dump. Answered when it is gone.
    DeleteDump {
        /// The dump's number.
        number: u32,
    },
    /// Serve a client that reads a dump. Its socket comes with the packet.
    OpenDump {
        /// The dump's number.
        number: u32,
    },
    /// Change a disk of the VM. Answered when the change is complete.
    ChangeDisk {
        /// The change.
        change: DiskChange,
        /// As in [`Rekey`](Self::Rekey).
        #[serde(default)]
        known: Vec<KnownVolume>,
    },
    /// Copy a disk to another datastore, beside its guest. Answered when little is left; its
    /// progress is sent as [`Report::Progress`]. It waits for [`SwitchDisk`](Self::SwitchDisk)
    /// then, for a limited time. The error `cannot_enter` means that this supervisor does not reach
    /// the disk's new place.
    CopyDisk {
        /// The move.
        moved: DiskMove,
        /// As in [`Rekey`](Self::Rekey).
        known: Vec<KnownVolume>,
    },
    /// Copy the rest of a disk, and decide that it is at its new place, by a word in the open
    /// [record](crate::disk_switch) that comes with the packet. Answered when the guest goes on;
    /// with an error if the disk is where it was.
    SwitchDisk {
        /// The move.
        moved: DiskMove,
    },
    /// Give up copying a disk. Answered when nothing of it goes on; a switch is not given up.
    AbandonDiskMove,
    /// Record in the VM's directory where a disk is, and delete its former volume. Answered when
    /// that is done. Errors as of [`CopyDisk`](Self::CopyDisk).
    TakeDisk {
        /// The move.
        moved: DiskMove,
        /// As in [`Rekey`](Self::Rekey).
        known: Vec<KnownVolume>,
    },
    /// Close the volumes in order, and end: another supervisor takes over QEMU. It is not answered
    /// then.
    StandDown,
    /// Give the VM these network cards. Answered when the guest has those that are new and has
    /// released those that are gone. The file of each network that is open comes with the packet,
    /// in the order of `networks`.
    SetNics {
        /// All of its cards.
        nics: Vec<Nic>,
        /// The order of booting, from the next start on.
        boot_order: Vec<BootDevice>,
        /// The networks that hostd has opened for it.
        networks: Vec<GrantedNetwork>,
    },
    /// Give the VM these processors and this memory. Answered when the machine has them.
    SetSizes {
        /// Its processors.
        cpus: Cpus,
        /// Its memory.
        memory_bytes: MemorySize,
    },
    /// Change the VM's snapshots. Answered when the change is complete.
    ChangeSnapshots {
        /// The change.
        change: SnapshotChange,
        /// As in [`Rekey`](Self::Rekey).
        known: Vec<KnownVolume>,
    },
    /// Abandon the snapshot for which the guest's file systems are frozen, and thaw them. The
    /// snapshot is answered as failed.
    AbandonQuiescedSnapshot,
    /// Take part in a snapshot of several VMs at one instant. Answered when the order is carried
    /// out.
    SnapshotGroup {
        /// The attempt that the order belongs to.
        attempt: GroupAttempt,
        /// The order.
        order: GroupOrder,
    },
    /// Give the volumes of the VM, while it runs, to the host that it moves to, whose socket comes
    /// with the packet. Answered when that has begun.
    GiveVolumes {
        /// As in [`Rekey`](Self::Rekey).
        known: Vec<KnownVolume>,
    },
    /// Fetch the volumes of a VM that runs on another host, whose socket comes with the packet.
    /// Answered when only what its guest writes last is left; its progress is sent as
    /// [`Report::Progress`]. After an error it may be asked again.
    FetchVolumes,
    /// Send the memory to the relay that listens beside QEMU. Answered when the guest stands still
    /// and the rest is to be sent; its progress is sent as [`Report::Progress`].
    SendMemory {
        /// How it passes.
        settings: MigrationSettings,
        /// Whether the target has asked for the volumes ([`GiveVolumes`](Self::GiveVolumes)).
        #[serde(default)]
        with_volumes: bool,
    },
    /// Give up sending the memory: the guest goes on. The sending is answered as failed.
    AbandonMove,
    /// Close the volumes, and send the rest. Answered when all of it is sent. hostd has recorded
    /// that the VM is leaving: the guest does not go on here, also if this fails.
    SwitchOver,
    /// Open the volumes of a VM whose memory has come. Answered when the guest could go on.
    TakeUp,
    /// The guest goes on here: it was decided, and hostd has recorded it. Answered when it does;
    /// volumes that were closed are opened first.
    GoOn,
    /// More grants.
    Grants(Vec<Grant>),
    /// Serve a client of the console log. Its socket comes with the packet.
    ConsoleLog,
    /// Serve a client of the console. Its socket comes with the packet.
    Console {
        /// The client only reads.
        read_only: bool,
        /// Who takes over from the client that writes; absent if it goes on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        taken_by: Option<String>,
    },
    /// Serve a client of the VNC server. Its socket comes with the packet.
    Vnc,
    /// The same for a client that only looks: nothing that it sends changes anything.
    VncToLook,
    /// Report the counters of a disk as [`Report::Statistics`], before the answer. A thread other
    /// than the VM's answers.
    Statistics {
        /// The disk.
        disk: DiskName,
    },
}

/// A network that hostd was ordered to open for a VM's card. The open file is the VM's leave to use
/// it: nothing else of the VM can open a network.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GrantedNetwork {
    /// The card.
    pub mac: MacAddress,
    /// The network.
    pub network: OpenedNetwork,
}

/// Whether a network could be opened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum OpenedNetwork {
    /// It is open, as this.
    Open {
        /// What the card is connected to.
        state: NetworkState,
        /// Whether its file comes with the packet.
        has_file: bool,
    },
    /// It could not be opened, which matters only if the VM does not have the card yet.
    Failed(Problem),
}

/// An order to a VM that takes part in a snapshot of several, in this sequence.
///
/// ```text
/// Begin -> Prepare -> Freeze -> Commit -> the VM has its part, durably
///    |        |          |         | refused after the lease
///    +--------+----------+---------+-- Abandon, the end of the connection, or any failure -> no part
/// ```
///
/// The instant of the group lies between the last answer to a freeze and the first order to commit.
/// A VM that carries out the commit has written nothing since its answer, because the lease of none
/// of its volumes has ended. So no clocks are compared, and a group can have VMs of several hosts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum GroupOrder {
    /// Begin. If the snapshot asks for it, the guest's file systems are frozen, until the part is
    /// there or given up.
    Begin {
        /// The snapshot.
        snapshot: NewVmSnapshot,
        /// As in [`RequestKind::Rekey`].
        known: Vec<KnownVolume>,
    },
    /// Prepare all volumes. The guest's requests are still served.
    Prepare,
    /// Freeze all volumes: from the answer on none is written, until the end of the lease. Then
    /// they go on without the snapshot.
    Freeze {
        /// The lease, in milliseconds.
        lease_ms: u64,
    },
    /// Make the part of the snapshot, for which all volumes are frozen. Refused if a lease is over.
    Commit,
    /// Give up the part, unless it is there already.
    Abandon,
}

/// The first packet to the relay of a VM's memory. The socket beside QEMU comes with it at the
/// source, and the one on which the source is awaited at the target. It ends when hostd closes the
/// connection.
#[derive(Debug, Serialize, Deserialize)]
pub struct RelayBirth {
    /// hostd's home, in which the host's identity is.
    pub home: PathBuf,
    /// The VM.
    pub vm: VmId,
    /// Its generation on this host: the one that runs, or the one that is prepared.
    pub generation: VmGeneration,
    /// Whether it has keys here, so that its memory never passes in plain text.
    pub is_encrypted: bool,
    /// What permits the migration.
    pub permit: MigrationPermit,
    /// How the memory passes.
    pub settings: MigrationSettings,
    /// QEMU's user.
    pub qemu_user: u32,
    /// Which end it is.
    pub end: RelayEnd,
}

/// The end of a migration's way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RelayEnd {
    /// Where the VM runs. Passes what QEMU sends to this address.
    Source {
        /// Where the target's relay listens.
        to: SocketAddr,
    },
    /// Where it is to go on. Passes what comes to QEMU.
    Target {
        /// QEMU's socket.
        qemu: PathBuf,
    },
}

/// A message of a relay.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RelayReport {
    /// It takes part in the migration: a target awaits the source, a source is admitted by it.
    Ready,
    /// It has ended.
    Ended(Option<Problem>),
}

/// A message of a supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    /// The state of the VM, without its configuration.
    State(Box<ObservedVm>),
    /// The answer to a request.
    Answer {
        /// The number of the request.
        id: u64,
        /// Why the request failed, if it did.
        problem: Option<Problem>,
        /// The volumes after the request, for requests that change volumes. Their descriptors were
        /// verified with the keys.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        known: Vec<KnownVolume>,
    },
    /// The counters of a disk.
    Statistics {
        /// The number of the request.
        id: u64,
        /// The counters.
        snapshot: Box<Snapshot>,
    },
    /// The progress of a job, a suspension or a dump.
    Progress(Progress),
    /// The client whose image a job reads is away.
    ClientIsAway,
    /// A job is done. Lists the volumes that it made.
    Done(Vec<VolumeFacts>),
    /// A configuration was judged. Lists the objections to it.
    Judged(Vec<String>),
    /// A job, or the birth, has failed.
    Failed(Problem),
}

impl Report {
    /// The answer to a request that changes no volume.
    pub fn answer(id: u64, problem: Option<Problem>) -> Self {
        Self::Answer { id, problem, known: Vec::new() }
    }
}
