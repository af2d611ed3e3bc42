//! Operations on VMs, and their progress.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use strongroom_types::{Bandwidth, KekId, ProviderKey, SnapshotId, VmId, VolumeId, VolumeSize};
use strongroom_vm::{DiskName, MacAddress};

use super::disk_change::{DiskChange, MoveStep};
use super::dump::Dump;
use super::grant::Grant;
use super::migration::{FetchingLive, Offer, Receiving, Sending};
use super::names::{HandoverId, OperationId, VmGeneration};
use super::problem::Problem;
use super::snapshot::{NewVmSnapshot, SnapshotChange};
use super::spec::VmSpec;
use super::term::{
    FORMAT_WITH_DISK_PLACES, FORMAT_WITH_FETCHED_VMS, FORMAT_WITH_HOT_PLUG, FORMAT_WITH_LIVE_MOVES,
    FORMAT_WITH_SWITCHES,
};
use super::ticket::TicketId;

/// A request for an operation on a VM. Operations on one VM run in the order in which they arrived;
/// at most 16 run at once on the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperationRequest {
    /// The id of the operation. A repeated request with the same id does not run it again.
    pub operation: OperationId,
    /// The start of the VM that it is meant for. [`Start`](OperationKind::Start) begins this
    /// generation. [`Create`](OperationKind::Create), [`Delete`](OperationKind::Delete),
    /// [`Configure`](OperationKind::Configure) and [`DeleteDump`](OperationKind::DeleteDump) ignore
    /// it. [`Leave`](OperationKind::Leave) and [`Arrive`](OperationKind::Arrive) are refused if the
    /// host has seen a later one. All others are refused if another generation runs.
    pub generation: VmGeneration,
    /// The operation.
    pub kind: OperationKind,
    /// Grants for the keys that it needs; each grant can be used once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<Grant>,
}

/// The operations on a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum OperationKind {
    /// Makes the VM's directory and its volumes, or nothing under the VM's name. Needs the keys of
    /// its disks.
    Create {
        /// The VM.
        spec: Box<VmSpec>,
        /// The VM whose content its volumes begin with; they have the sizes of that content.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<Box<CloneSource>>,
    },
    /// Deletes the directory and all volumes of a VM that is off.
    Delete,
    /// Starts the VM with this configuration, which is also stored in its directory. Needs the keys
    /// of its disks. The operation is done when the guest runs. If a key is unavailable, it is done
    /// at once, and the VM is [`KeyUnavailable`](super::PowerState::KeyUnavailable) until the key
    /// is available.
    ///
    /// A [`Suspended`](super::PowerState::Suspended) VM resumes its memory, all of which is
    /// verified first.
    Start {
        /// The VM.
        spec: Box<VmSpec>,
        /// The options.
        #[serde(default)]
        how: StartOptions,
    },
    /// Saves the VM's memory and device state, sealed, and stops it; its next start resumes them.
    /// If this fails, the guest continues.
    Suspend,
    /// Dumps the guest's memory as a core file into a sealed volume of its own. The guest is paused
    /// meanwhile. A failed dump leaves nothing behind.
    Dump {
        /// The dump's label.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        label: Option<String>,
    },
    /// Deletes a dump, whether the VM runs or not.
    DeleteDump {
        /// The VM.
        spec: Box<VmSpec>,
        /// The dump's number.
        number: u32,
    },
    /// Asks the guest to shut down, and stops the VM by force after `timeout_s`.
    Stop {
        /// Stops the VM by force at once.
        force: bool,
        /// How long the guest has to shut down, in seconds.
        timeout_s: u32,
    },
    /// Pauses the processors.
    Pause,
    /// Resumes the processors.
    Resume,
    /// Resets the VM, as a reset button does.
    Reset,
    /// Replaces the configuration for the next start. New disks are made, and need their keys; no
    /// disk is removed.
    Configure {
        /// The new configuration.
        spec: Box<VmSpec>,
    },
    /// Fills a disk of a VM that is off with an image that a client sent to the guest socket with a
    /// ticket ([`TicketRequest::Upload`](super::TicketRequest::Upload)). Needs the disk's key. The
    /// old content is lost, even if the import fails.
    ImportDisk {
        /// The VM.
        spec: Box<VmSpec>,
        /// The disk.
        disk: DiskName,
        /// The ticket.
        ticket: TicketId,
        /// The image's format.
        format: ImageFormat,
    },
    /// Moves all of a VM's volumes, running or off, from their present keys to the
    /// [next](super::DiskKey::Provider::next) one of the configuration. Needs the old and the new
    /// keys. If it fails or is killed, each volume is under a key that the configuration names, and
    /// a repeated request continues.
    Rekey {
        /// The VM, with its next key.
        spec: Box<VmSpec>,
        /// Whether the volumes are rewritten under new data keys, too: the VM must not be
        /// suspended. After a failure or a cancellation each volume is under one of the two keys; a
        /// volume at which the host was killed is between them until the repeated request, and a VM
        /// that is started needs both. Otherwise no data is copied.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        data: bool,
    },
    /// Adds, removes or grows a disk of a VM, running or off, but not suspended. Needs the VM's
    /// keys. A running guest has a minute to release a disk that is removed; then its volume is
    /// deleted. A failure can leave the change half done: a repeated request continues it, and a
    /// partly added disk can be removed. Encrypts or decrypts a disk ([`DiskChange::Seal`]): a
    /// cancelled request leaves it half clear.
    ChangeDisk {
        /// The VM before the change.
        spec: Box<VmSpec>,
        /// The change.
        change: DiskChange,
    },
    /// Gives a VM the network cards and the boot order of this configuration, running or off, but
    /// not suspended. Needs the VM's keys. A running guest has a minute to release a card that it
    /// is to lose. The cards that stay are not touched. A failure can leave the change half done: a
    /// repeated request continues it, and one with the former configuration takes it back.
    SetNics {
        /// The VM after the change.
        spec: Box<VmSpec>,
        /// The cards whose networks the host opens for the VM: those of the configuration that the
        /// VM may not have, or not on that network.
        open: Vec<MacAddress>,
    },
    /// Gives a VM the processors and the memory of this configuration, running or off, but not
    /// suspended. Needs the VM's keys. While it runs, it grows as far as its configuration says,
    /// and its guest has a minute to release processors that were plugged in. A repeated request
    /// continues what a failure has left.
    SetSizes {
        /// The VM after the change.
        spec: Box<VmSpec>,
    },
    /// Makes, reverts to or deletes a snapshot of a VM, running or off. Needs the VM's keys. A
    /// failure can leave the change half done: a repeated request continues it. A VM is not started
    /// while it is half reverted.
    ChangeSnapshots {
        /// The VM before the change.
        spec: Box<VmSpec>,
        /// The change.
        change: SnapshotChange,
    },
    /// Makes a snapshot of several VMs at one instant, running or off, each of all its volumes.
    /// When it is done, each VM has its part durably. It lists the part when it is told to
    /// [keep](SnapshotChange::Keep) it, and any other change removes the part. Needs the VMs' keys.
    /// A repeated request makes all parts anew. The VM of the request is one of the members.
    SnapshotGroup {
        /// The snapshot, of the same id and name in all VMs.
        snapshot: NewVmSnapshot,
        /// The VMs.
        members: Vec<GroupMember>,
    },
    /// Brings grants to a VM that [waits for a key](super::ObservedVm::waiting_for).
    SupplyGrants,
    /// Gives up a VM that is off, for another host that reaches its datastore. When it is done,
    /// this host durably refuses every other operation on the VM, and does not list it, until it
    /// [arrives](Self::Arrive) again with a later generation.
    Leave {
        /// The VM.
        spec: Box<VmSpec>,
        /// The handover, which is written into the VM's directory.
        handover: HandoverId,
    },
    /// Takes over a VM that another host has given up, as its directory has it. Starts nothing.
    Arrive {
        /// The VM.
        spec: Box<VmSpec>,
        /// The handover that must be in the VM's directory; absent for a host that takes back what
        /// it gave up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        handover: Option<HandoverId>,
    },
    /// Fetches the volumes of a VM that is off from the host that has them, with its snapshots and
    /// dumps, into a datastore that only this host need reach. When it is done, the VM's directory
    /// is there; until then nothing is under its name. Needs the VM's keys. The VM is not this
    /// host's until it [arrives](Self::Arrive) here. A copy of another attempt is deleted first;
    /// what this one has left when it failed is used.
    Fetch {
        /// The VM, with the places of its volumes here.
        spec: Box<VmSpec>,
        /// The handover of this attempt, which is written into the VM's directory.
        handover: HandoverId,
        /// Where they are.
        from: Box<VolumesElsewhere>,
        /// How fast they may come.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes_per_second: Option<Bandwidth>,
    },
    /// Deletes the directory that this host has of a VM of another host: which has
    /// [left](Self::Leave) for one that has [fetched](Self::Fetch) its volumes, or was fetched and
    /// does not arrive. Refused for a VM that has arrived here with this generation or a later one.
    RemoveCopy {
        /// The VM, with the places of its volumes here.
        spec: Box<VmSpec>,
    },
    /// Says what the machine of a running VM must find on another host. Changes nothing.
    Offer,
    /// Fetches the volumes of a VM that runs on another host, for the attempt that the request's
    /// generation numbers, into a datastore that only this host need reach: all but what its guest
    /// writes last, which comes with [`TakeUp`](Self::TakeUp). QEMU waits for the memory then, with
    /// its disks. Needs the VM's keys, as [`Receive`](Self::Receive) does, which follows. May be
    /// repeated after a failure of the connection.
    FetchLive(Box<FetchingLive>),
    /// Makes room for a VM that runs on another host, for the attempt that the request's generation
    /// numbers: QEMU waits for its memory, with its disks and without their volumes. Needs the VM's
    /// keys, of a grant for a prepared generation. When it is done, a relay listens.
    Receive(Box<Receiving>),
    /// Passes a running VM's memory on, for the attempt that the request's generation numbers. When
    /// it is done, the guest has stopped, its volumes are closed, and the VM is durably leaving:
    /// nothing of it goes on until [`Settle`](Self::Settle). If it fails before that, the guest
    /// goes on, and the error is not `leaving`.
    Send(Box<Sending>),
    /// Opens the volumes of a VM that was received. It does not run yet. Says what the volumes are
    /// if they were [fetched](Self::FetchLive).
    TakeUp,
    /// Ends an attempt on one of its hosts. May be repeated.
    Settle {
        /// Whether the guest goes on here. Otherwise nothing of it stays, and its volumes are
        /// closed when this is done.
        here: bool,
    },
}

/// Where a host gives the volumes of a VM to the one that it moves to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumesElsewhere {
    /// The port of the host that has them.
    pub address: SocketAddr,
    /// SHA-256 of the certificate that it shows there, as 64 hexadecimal digits.
    pub certificate_sha256: String,
    /// The ticket ([`TicketRequest::Volumes`](super::TicketRequest::Volumes)).
    pub ticket: TicketId,
}

/// The VM whose content a new VM begins with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloneSource {
    /// The VM. Without a snapshot it must be off.
    pub spec: VmSpec,
    /// The snapshot; its present content without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotId>,
    /// Whether the new volumes share the snapshot's layers. Otherwise all content is copied.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub linked: bool,
    /// Grants for its keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<Grant>,
}

/// A VM of a snapshot of several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupMember {
    /// The VM.
    pub spec: VmSpec,
    /// The start of the VM that it is meant for, if it runs.
    pub generation: VmGeneration,
    /// Grants for its keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<Grant>,
}

/// Options of a start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartOptions {
    /// Discards the memory of a suspended VM, and boots.
    #[serde(default)]
    pub discard_memory: bool,
    /// Pauses the VM before its first instruction.
    #[serde(default)]
    pub paused: bool,
}

impl OperationKind {
    /// The operation's name.
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
            Self::SetNics { .. } => "set_nics",
            Self::SetSizes { .. } => "set_sizes",
            Self::ChangeSnapshots { .. } => "change_snapshots",
            Self::SnapshotGroup { .. } => "snapshot_group",
            Self::SupplyGrants => "supply_grants",
            Self::Leave { .. } => "leave",
            Self::Arrive { .. } => "arrive",
            Self::Fetch { .. } => "fetch",
            Self::RemoveCopy { .. } => "remove_copy",
            Self::Offer => "offer",
            Self::FetchLive(_) => "fetch_live",
            Self::Receive(_) => "receive",
            Self::Send(_) => "send",
            Self::TakeUp => "take_up",
            Self::Settle { .. } => "settle",
        }
    }

    /// Whether the answer to its request waits for its end, for some seconds: the guest of a VM
    /// that moves stands still until both of these are done, and another exchange would keep it
    /// waiting for another round trip.
    pub fn is_awaited(&self) -> bool {
        matches!(self, Self::TakeUp | Self::Settle { .. })
    }

    /// The configuration, for operations that open or make volumes. The datastore's own copy
    /// decides nothing about that.
    pub fn spec(&self) -> Option<&VmSpec> {
        match self {
            Self::Create { spec, .. }
            | Self::Start { spec, .. }
            | Self::Configure { spec }
            | Self::Rekey { spec, .. }
            | Self::DeleteDump { spec, .. }
            | Self::ImportDisk { spec, .. }
            | Self::ChangeDisk { spec, .. }
            | Self::SetNics { spec, .. }
            | Self::SetSizes { spec }
            | Self::ChangeSnapshots { spec, .. }
            | Self::Leave { spec, .. }
            | Self::Arrive { spec, .. }
            | Self::Fetch { spec, .. }
            | Self::RemoveCopy { spec } => Some(spec),
            Self::FetchLive(fetching) => Some(&fetching.offer.spec),
            Self::Receive(receiving) => Some(&receiving.offer.spec),
            Self::Delete
            | Self::Suspend
            | Self::Dump { .. }
            | Self::Stop { .. }
            | Self::Pause
            | Self::Resume
            | Self::Reset
            | Self::SnapshotGroup { .. }
            | Self::Offer
            | Self::Send(_)
            | Self::TakeUp
            | Self::Settle { .. }
            | Self::SupplyGrants => None,
        }
    }

    /// The oldest format of requests that can have this operation's VMs.
    pub fn least_format(&self) -> u32 {
        if let Self::SetNics { .. } | Self::SetSizes { .. } = self {
            return FORMAT_WITH_HOT_PLUG;
        }
        match self {
            Self::FetchLive(_) => return FORMAT_WITH_FETCHED_VMS,
            Self::Send(sending) if sending.with_volumes => return FORMAT_WITH_FETCHED_VMS,
            _ => {}
        }
        if self.is_of_live_move() {
            return FORMAT_WITH_LIVE_MOVES;
        }
        if let Self::ChangeDisk { change: DiskChange::Move(moved), .. } = self {
            return match moved.step {
                MoveStep::Copy | MoveStep::Take | MoveStep::Abandon => FORMAT_WITH_DISK_PLACES,
                MoveStep::CopyServed | MoveStep::Switch => FORMAT_WITH_SWITCHES,
            };
        }
        if let Self::Fetch { .. } | Self::RemoveCopy { .. } = self {
            return FORMAT_WITH_FETCHED_VMS;
        }
        let origin = match self {
            Self::Create { from: Some(from), .. } => Some(&from.spec),
            _ => None,
        };
        let members = self.members().iter().map(|member| &member.spec);
        self.spec()
            .into_iter()
            .chain(origin)
            .chain(members)
            .map(VmSpec::least_format)
            .max()
            .unwrap_or_default()
    }

    /// Whether it is a step of a move between hosts while the VM runs.
    pub fn is_of_live_move(&self) -> bool {
        matches!(
            self,
            Self::Offer
                | Self::FetchLive(_)
                | Self::Receive(_)
                | Self::Send(_)
                | Self::TakeUp
                | Self::Settle { .. }
        )
    }

    /// The VM that a clone is made of.
    pub fn origin(&self) -> Option<VmId> {
        let Self::Create { from: Some(from), .. } = self else { return None };
        Some(from.spec.id)
    }

    /// The VMs of a snapshot of several; none for other operations.
    pub fn members(&self) -> &[GroupMember] {
        match self {
            Self::SnapshotGroup { members, .. } => members,
            _ => &[],
        }
    }
}

/// The format of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

/// The state of an operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// Its id.
    pub operation: OperationId,
    /// The VM.
    pub vm: VmId,
    /// [`OperationKind::name`].
    pub kind: String,
    /// Its state.
    pub state: OperationState,
    /// Its progress, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
    /// Its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<OperationOutcome>,
}

/// The stages of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationState {
    /// It is queued.
    Queued,
    /// It is in progress.
    Running,
    /// Done.
    Done,
    /// It failed, and has no effect, unless its kind says otherwise.
    Failed,
    /// It was cancelled on request.
    Cancelled,
}

impl OperationState {
    /// Whether the operation has ended.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled)
    }
}

/// The progress of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The units done.
    pub done: u64,
    /// The units in total; 0 while that is unknown.
    pub total: u64,
    /// The unit.
    pub unit: ProgressUnit,
    /// Of memory that passes to another host while its VM runs: how fast.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passing: Option<Passing>,
    /// Whether the client whose image is read is away. It has some minutes to come back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub client_is_away: bool,
}

impl Progress {
    /// A progress of anything but passing memory.
    pub fn new(done: u64, total: u64, unit: ProgressUnit) -> Self {
        Self { done, total, unit, passing: None, client_is_away: false }
    }
}

/// How fast the memory of a VM that runs passes to another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passing {
    /// Bytes per second that are sent.
    pub bytes_per_second: u64,
    /// Bytes per second that the guest changes, which are sent again.
    pub changed_bytes_per_second: u64,
    /// How long the rest takes at these rates, in seconds; unknown if the guest changes its memory
    /// as fast as it is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
    /// How much its processors are slowed down for it, in percent.
    pub slowed_percent: u64,
}

/// The unit of a progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgressUnit {
    /// Bytes.
    Bytes,
    /// Volumes.
    Volumes,
}

/// The result of an operation, for the control plane to keep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationOutcome {
    /// After `create`, `configure`, `rekey`, `change_disk` and `change_snapshots`: the VM's
    /// volumes. After `import_disk`: the filled volume.
    Volumes(Vec<VolumeFacts>),
    /// After `start`: the key that the VM waits for.
    KeyUnavailable(ProviderKey),
    /// After `dump`: the dump.
    Dump(Dump),
    /// After `snapshot_group`: the volumes of each VM.
    Group(Vec<MemberVolumes>),
    /// After `offer`: the running VM.
    Offer(Box<Offer>),
    /// After `receive`: where the relay listens, as its host names its own address.
    Listening(SocketAddr),
    /// After a disk of a running VM was copied: its rest is copied with the switch.
    Copied,
    /// After a switch that did not come about: the volume is where it was, and why.
    Stays(Problem),
}

/// The volumes of a VM of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberVolumes {
    /// The VM.
    pub vm: VmId,
    /// Its volumes.
    pub volumes: Vec<VolumeFacts>,
}

impl OperationOutcome {
    /// Returns the volumes of an outcome, if it has any.
    pub fn into_volumes(outcome: Option<Self>) -> Vec<VolumeFacts> {
        match outcome {
            Some(Self::Volumes(volumes)) => volumes,
            _ => Vec::new(),
        }
    }
}

/// A volume's descriptor, as far as the control plane keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeFacts {
    /// The name of the disk, or of the VM's own volume.
    pub disk: DiskName,
    /// The volume's id, for life.
    pub volume: VolumeId,
    /// The KEK that it is under; absent for a clear volume. Later starts expect this one.
    pub kek: Option<KekId>,
    /// The generation of its descriptor: the least that later starts accept.
    pub generation: u64,
    /// Its size; absent if the sender does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<VolumeSize>,
}
