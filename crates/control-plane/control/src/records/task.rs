//! A task, with the stage of its work.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use strongroom_api::task::{Task, TaskKind};
use strongroom_api::{Name, Problem};
use strongroom_host::migration::Decision;
use strongroom_host::protocol::{
    DiskBecomes, DiskName, HandoverId, ImageFormat, MigrationPermit, MigrationSettings, NewVmSnapshot,
    OperationId, RunningMachine, SnapshotChange, TicketId, VolumeFacts,
};
use strongroom_types::{
    Bandwidth, DatastoreId, IoLimits, KeyRequestId, ProviderKey, ProviderName, SnapshotId, SnapshotName,
    VmId, VolumeId, VolumeSize,
};
use uuid::Uuid;

use super::access::AskedBy;
use super::hardware::{DiskRecord, Hardware, NicSet, Sizes};

/// A task, with the data to continue it after a crash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRecord {
    /// The task as callers see it.
    pub task: Task,
    /// The VM; absent for a task that is complete at once, or works on a host.
    #[serde(default)]
    pub vm: Option<VmId>,
    /// The work and its stage.
    pub work: Work,
    /// The host's operation in progress. It is recorded before the host receives it.
    #[serde(default)]
    pub operation: Option<OperationId>,
    /// Whether its note is about a missing key.
    #[serde(default)]
    pub waits_for_key: bool,
    /// Who asked for it, if that has to be checked again when it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<AskedBy>,
    /// A snapshot that the task makes for itself, and deletes before it ends, however it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temporary: Option<TemporarySnapshot>,
}

/// A snapshot that exists only as long as a task needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemporarySnapshot {
    /// The VM that has it.
    pub vm: VmId,
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// Its name.
    pub name: SnapshotName,
}

/// How a task ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "snake_case")]
pub enum TaskEnd {
    /// Its work is done.
    Done,
    /// Its work failed, and was taken back.
    Failed(Problem),
    /// It was cancelled.
    Cancelled,
}

/// The work of a task, and its stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "work", rename_all = "snake_case")]
pub enum Work {
    /// None: the transaction that made the task has completed it.
    Nothing,
    /// Have a key made, and then the volumes.
    Create {
        /// The disks that must be filled with images.
        #[serde(default)]
        fill: Vec<DiskName>,
        /// The VM whose content it begins with.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<CloneOf>,
    },
    /// Wait for the image of a new disk.
    AwaitImage {
        /// The disks that must still be filled; the image of the first is awaited.
        fill: Vec<DiskName>,
        /// The end of the wait, in milliseconds since 1970.
        until_unix_ms: u64,
        /// What is undone if no image arrives.
        whole: Whole,
    },
    /// Fill a disk with the image that has arrived, and wait for the next one.
    Fill {
        /// The disk.
        disk: DiskName,
        /// The ticket of the upload.
        ticket: TicketId,
        /// The image's format.
        format: ImageFormat,
        /// The disks that are filled after it.
        fill: Vec<DiskName>,
        /// What is undone if it fails.
        whole: Whole,
    },
    /// Remove the remains of a failed or cancelled creation from the host.
    UndoCreate {
        /// Why it failed; absent if it was cancelled.
        #[serde(default)]
        problem: Option<Problem>,
    },
    /// Start the VM, and wait until it runs. This can take until a key is available.
    Start {
        /// Discards the memory of a suspended VM.
        #[serde(default)]
        discard_memory: bool,
        /// Starts with paused CPUs.
        #[serde(default)]
        paused: bool,
    },
    /// Wait until the started VM runs.
    AwaitRunning,
    /// Stop the started VM by force, because the task was cancelled.
    UndoStart,
    /// Stop the VM.
    Stop {
        /// By force, at once.
        force: bool,
        /// How long the guest has to shut down, in seconds.
        timeout_s: u32,
        /// Whether it is started again.
        then_start: bool,
    },
    /// Pause the VM.
    Pause,
    /// Seal the VM's memory, and stop it.
    Suspend,
    /// Dump the guest's memory.
    Dump {
        /// The dump's label.
        #[serde(default)]
        label: Option<String>,
    },
    /// Delete a dump.
    DeleteDump {
        /// The dump's number.
        number: u32,
    },
    /// Resume the VM.
    Resume,
    /// Reset the VM.
    Reset,
    /// Send the new hardware to the host.
    Configure {
        /// The old hardware, for the case that the host refuses.
        before: Box<Hardware>,
    },
    /// Have the host plug network cards of a running VM in and out. The VM's record has the cards
    /// of before and of after until it is done.
    SetNics {
        /// The cards before.
        before: Box<NicSet>,
        /// The cards after.
        after: Box<NicSet>,
        /// How often the host has failed.
        #[serde(default)]
        failures: u32,
    },
    /// Have the host plug processors and memory of a running VM in and out. The VM's record has the
    /// larger of before and after until it is done.
    SetSizes {
        /// What it has.
        before: Sizes,
        /// What it is to have.
        after: Sizes,
        /// How often the host has failed.
        #[serde(default)]
        failures: u32,
    },
    /// Have the host take back a change of sizes that was not made.
    UndoSetSizes {
        /// What it had.
        before: Sizes,
        /// What it was to have.
        after: Sizes,
        /// Whether the guest has the memory already, which it keeps.
        #[serde(default)]
        memory_stays: bool,
        /// Why it failed; absent if it was cancelled.
        #[serde(default)]
        problem: Option<Problem>,
    },
    /// Have the host take back a change of network cards that was not made.
    UndoSetNics {
        /// The cards before.
        before: Box<NicSet>,
        /// The cards that were wanted.
        after: Box<NicSet>,
        /// Why it failed; absent if it was cancelled.
        #[serde(default)]
        problem: Option<Problem>,
    },
    /// Fill a disk.
    ImportDisk {
        /// The disk.
        disk: DiskName,
        /// The ticket of the upload.
        ticket: TicketId,
        /// The image's format.
        format: ImageFormat,
    },
    /// Add a disk, which the VM's record has when it is done.
    AddDisk {
        /// The new disk.
        disk: Box<DiskRecord>,
        /// Whether it must be filled with an image.
        #[serde(default)]
        fill: bool,
        /// How often the host has failed.
        #[serde(default)]
        failures: u32,
    },
    /// Remove the remains of a disk that was not added.
    UndoAddDisk {
        /// The disk.
        disk: Box<DiskRecord>,
        /// Why it failed; absent if it was cancelled.
        #[serde(default)]
        problem: Option<Problem>,
    },
    /// Remove a disk, which the VM's record has until it is done.
    RemoveDisk {
        /// The disk.
        disk: DiskName,
        /// How often the host has failed.
        #[serde(default)]
        failures: u32,
    },
    /// Grow a disk.
    ResizeDisk {
        /// The disk.
        disk: DiskName,
        /// Its new size.
        size: VolumeSize,
        /// How often the host has failed.
        #[serde(default)]
        failures: u32,
    },
    /// Copy a disk to another datastore. With the end of that the inventory says that it is there.
    MoveDisk {
        /// The disk.
        disk: DiskName,
        /// The datastore.
        to: DatastoreId,
        /// How often the host has failed.
        #[serde(default)]
        failures: u32,
    },
    /// Have the host of a running VM switch a disk that it has copied. The disk's record has where
    /// it may be from before the host's first request on.
    SwitchDisk {
        /// The disk.
        disk: DiskName,
        /// The datastore.
        to: DatastoreId,
        /// How often the host has failed.
        #[serde(default)]
        failures: u32,
    },
    /// Have the host take the copy of a disk that has moved, and delete the former volume.
    TakeDisk {
        /// The disk.
        disk: DiskName,
        /// How often the host has failed.
        #[serde(default)]
        failures: u32,
    },
    /// Have the host remove the copy of a disk that does not move.
    UndoMoveDisk {
        /// The disk.
        disk: DiskName,
        /// The datastore that it does not move to.
        to: DatastoreId,
        /// Why it does not move; absent if it was cancelled.
        problem: Option<Problem>,
    },
    /// Limit the requests of a disk, or of all disks together.
    Limit {
        /// The disk; all of them without.
        #[serde(default)]
        disk: Option<DiskName>,
        /// Its limits.
        limits: IoLimits,
        /// How often the host has failed.
        #[serde(default)]
        failures: u32,
    },
    /// Encrypt or decrypt a disk: have the VM's first key made, unless it has one; then have every
    /// layer rewritten. The VM's record has the disk as half clear from before the host's first
    /// request until after its last one.
    SealDisk {
        /// The disk.
        disk: DiskName,
        /// What it becomes.
        becomes: DiskBecomes,
        /// Whether its blocks get tags, if it is encrypted.
        #[serde(default)]
        integrity: bool,
        /// How often the host has failed.
        #[serde(default)]
        failures: u32,
    },
    /// Put an encryption or decryption on record, and deactivate keys that nothing needs any more.
    RecordSeal {
        /// The VM, if its own volumes were rewritten, too.
        vm: Option<VmId>,
        /// The volumes, as far as their ids are known.
        volumes: Vec<VolumeId>,
        /// The key that they are under, or were.
        key: ProviderKey,
        /// What they have become.
        becomes: DiskBecomes,
        /// The keys that the VM has left.
        left: Vec<ProviderKey>,
    },
    /// Have the host take back an encryption or decryption.
    UndoSealDisk {
        /// The disk.
        disk: DiskName,
        /// What it becomes again.
        becomes: DiskBecomes,
        /// How often the host has failed.
        #[serde(default)]
        failures: u32,
        /// Once it is taken back, the keys that the VM has left.
        #[serde(default)]
        left: Vec<ProviderKey>,
        /// Why it failed; absent if it was cancelled.
        #[serde(default)]
        problem: Option<Problem>,
    },
    /// Make, revert to or delete a snapshot.
    ChangeSnapshots {
        /// The change.
        change: SnapshotChange,
        /// How often the host has failed.
        #[serde(default)]
        failures: u32,
        /// Whether the VM is a template as soon as it has the new snapshot.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        makes_template: bool,
    },
    /// Make a snapshot of several VMs. The task works on all of them.
    MakeGroup {
        /// The snapshot.
        snapshot: NewVmSnapshot,
        /// How often the host has failed.
        #[serde(default)]
        failures: u32,
    },
    /// Have each VM of a group that is made list its part.
    KeepGroup {
        /// The snapshot.
        snapshot: NewVmSnapshot,
        /// How many VMs list theirs.
        at: usize,
        /// How often the host has failed for the next one.
        #[serde(default)]
        failures: u32,
        /// Why a VM does not list its part.
        #[serde(default)]
        problem: Option<Problem>,
    },
    /// Have each VM of a group that is not made lose its part.
    UndoGroup {
        /// The snapshot.
        snapshot: NewVmSnapshot,
        /// How many VMs have lost theirs.
        at: usize,
        /// How often the host has failed for the next one.
        #[serde(default)]
        failures: u32,
        /// Whether a VM may still have a part.
        #[serde(default)]
        is_left: bool,
        /// Why it is not made; absent if it was cancelled.
        #[serde(default)]
        problem: Option<Problem>,
    },
    /// Move the VM to another key: have the key made, unless it exists, and then every volume
    /// moved.
    RotateKey {
        /// The provider of the new key.
        provider: ProviderName,
        /// The id of the request for the key.
        request: KeyRequestId,
        /// The new key, once it exists.
        #[serde(default)]
        to: Option<ProviderKey>,
        /// How often the host has failed to move all volumes.
        #[serde(default)]
        failures: u32,
    },
    /// After the move, deactivate keys that nothing needs any more.
    RetireKeys {
        /// The keys that the VM has left.
        keys: Vec<ProviderKey>,
        /// Whether all data was rewritten under new data keys. Absent in tasks of a former version,
        /// which are not put on record.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        renewed: Option<bool>,
    },
    /// Have the VM take over a volume that this holder has.
    BindVolume {
        /// The holder.
        holder: VmId,
        /// The volume as a disk of the VM.
        disk: Box<DiskRecord>,
        /// How often the host has failed.
        #[serde(default)]
        failures: u32,
    },
    /// Give a volume that was not bound back to its holder.
    UndoBind {
        /// The holder.
        holder: VmId,
        /// The volume as a disk of the VM.
        disk: Box<DiskRecord>,
        /// Why it failed; absent if it was cancelled.
        #[serde(default)]
        problem: Option<Problem>,
    },
    /// Delete a holder without a volume.
    DropHolder {
        /// The holder.
        holder: VmId,
        /// Whether the task's work was undone.
        gives_up: bool,
        /// Why it was, unless the task was cancelled.
        #[serde(default)]
        problem: Option<Problem>,
    },
    /// Have a holder made for a volume of the VM.
    MakeHolder {
        /// The holder and the disk.
        holding: Holding,
    },
    /// Have the holder take over the volume.
    UnbindVolume {
        /// The holder and the disk.
        holding: Holding,
        /// How often the host has failed.
        #[serde(default)]
        failures: u32,
    },
    /// Give a volume that was not unbound back to the VM.
    UndoUnbind {
        /// The holder and the disk.
        holding: Holding,
        /// Why it failed; absent if it was cancelled.
        #[serde(default)]
        problem: Option<Problem>,
    },
    /// Have it recorded in the holder's directory that the volume is the holder's.
    KeepVolume {
        /// The holder.
        holder: VmId,
        /// How often the host has failed.
        #[serde(default)]
        failures: u32,
    },
    /// Delete the VM.
    Delete,
    /// Shut the guest down, so that the VM can move to another host, where it is started again.
    StopToMove {
        /// The next host.
        to: Uuid,
        /// How long the guest has to shut down, in seconds.
        timeout_s: u32,
    },
    /// Have the VM's host give it up.
    Leave {
        /// The next host.
        to: Uuid,
        /// The handover.
        handover: HandoverId,
        /// Whether it is started there.
        starts: bool,
    },
    /// Have the VM's host, the next one, take it over.
    Arrive {
        /// The former host.
        from: Uuid,
        /// The handover.
        handover: HandoverId,
        /// Whether it is started then.
        starts: bool,
    },
    /// Have the VM's host, the former one, take it back.
    Return {
        /// Why it did not move; absent if that was cancelled.
        #[serde(default)]
        problem: Option<Problem>,
    },
    /// Move the VM while it runs.
    Migrate(Box<LiveMove>),
    /// Move the VM, which is off, with its volumes.
    Carry(Box<Carried>),
    /// Have the VM's host take it over from one that is fenced.
    TakeOver,
    /// Move all VMs away from a host. The task works on no VM itself.
    Evacuate(Evacuation),
    /// Move VMs so that hosts are balanced. The task works on no VM itself.
    Balance(Balancing),
    /// Have the VMs of a policy keep its rules. The task works on no VM itself.
    ApplyPolicy(Application),
    /// Delete the task's temporary snapshot, and end the task. It works on the VM that has the
    /// snapshot, and no more on its own.
    DropSnapshot {
        /// How the task ends then.
        end: TaskEnd,
        /// How often the host has failed.
        #[serde(default)]
        failures: u32,
    },
}

/// The move of a VM that is off to a host that does not reach its volumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// The former host.
    pub from: Uuid,
    /// The datastore there.
    pub from_datastore: DatastoreId,
    /// The next host.
    pub to: Uuid,
    /// The datastore there.
    pub to_datastore: DatastoreId,
    /// By which the copy there is known as this attempt's.
    pub handover: HandoverId,
    /// How fast the volumes may pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<Bandwidth>,
    /// What is done next.
    pub stage: CarriedStage,
    /// How often that has failed.
    #[serde(default, skip_serializing_if = "is_never")]
    pub failures: u32,
}

/// The next step of a move with volumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "snake_case")]
pub enum CarriedStage {
    /// Have the next host fetch the volumes.
    Fetch,
    /// Have the former host give the VM up.
    Leave {
        /// The volumes on the next host.
        volumes: Vec<VolumeFacts>,
    },
    /// Have the next host take the VM over.
    Arrive {
        /// Its volumes there.
        volumes: Vec<VolumeFacts>,
    },
    /// Have the former host delete what it has of the VM.
    RemoveFormer,
    /// Have the former host take the VM back.
    Return {
        /// Why it did not move; absent if that was cancelled.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        problem: Option<Problem>,
    },
    /// Have the next host delete what it has of the VM, which has not moved.
    RemoveCopy {
        /// Why it did not move; absent if that was cancelled.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        problem: Option<Problem>,
    },
}

/// One attempt to move a VM while it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveMove {
    /// The host where it runs.
    pub from: Uuid,
    /// The host where it is to go on.
    pub to: Uuid,
    /// The generation that is prepared there.
    pub attempt: u64,
    /// How its memory passes.
    pub settings: MigrationSettings,
    /// Its volumes, if the target does not reach them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<LiveVolumes>,
    /// Who runs it.
    pub decision: Decision,
    /// What is done next.
    pub stage: LiveStage,
    /// What permits the two hosts to pass its memory on, once they are to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permit: Option<MigrationPermit>,
    /// Whether its memory passes in plain text, as the permit says.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_plain_text: bool,
    /// Whether nothing of it is at the target any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub target_is_over: bool,
    /// Why it stays; absent if the move was cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

/// The volumes of a VM that move with it while it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveVolumes {
    /// The datastore of the source.
    pub from: DatastoreId,
    /// The datastore of the target.
    pub to: DatastoreId,
    /// By which the copy there is known as this attempt's.
    pub handover: HandoverId,
    /// How often fetching them has failed.
    #[serde(default, skip_serializing_if = "is_never")]
    pub failures: u32,
}

/// The next step of a live move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "snake_case")]
pub enum LiveStage {
    /// Ask the source what the machine must find elsewhere.
    Offer,
    /// Have the target fetch the volumes, but what the guest writes last.
    Fetch {
        /// As in [`Receive`](Self::Receive).
        machine: RunningMachine,
        /// As in [`Receive`](Self::Receive).
        paused: bool,
    },
    /// Have the target make room.
    Receive {
        /// What the machine must find there.
        machine: RunningMachine,
        /// Whether it was paused on request.
        paused: bool,
    },
    /// Have the source pass the memory on, stop the guest and close the volumes.
    Send {
        /// Where the target's relay listens.
        relay: SocketAddr,
    },
    /// Have the target open the volumes.
    TakeUp,
    /// Have one of the hosts do what is decided.
    Settle {
        /// Which.
        end: LiveEnd,
    },
    /// End the generation at the key server that was given up.
    Keys,
    /// Have one of the hosts delete the volumes that it has of the VM, which is at the other one.
    Remove {
        /// Which.
        end: LiveEnd,
    },
}

/// The two hosts of a live move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LiveEnd {
    /// The host where the VM ran.
    Source,
    /// The host where it is to go on.
    Target,
}

/// The stage of an evacuation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evacuation {
    /// The host.
    pub host: Uuid,
    /// Whether guests are shut down.
    pub shut_down: bool,
    /// How long each guest has to shut down, in seconds.
    pub timeout_s: u32,
    /// Whether volumes move with VMs whose datastores no other host reaches.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub with_volumes: bool,
    /// How fast each VM passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<Bandwidth>,
    /// The VMs of the host. What has moved is found at other hosts, so it is only counted.
    #[serde(flatten)]
    pub vms: Sweep,
}

/// The stage of the moves that balance hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Balancing {
    /// The moves, in their order.
    pub moves: Vec<BalancingMove>,
    /// The VMs that move.
    #[serde(flatten)]
    pub vms: Sweep,
}

/// A move that balances hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalancingMove {
    /// The VM.
    pub vm: VmId,
    /// The host where it was when this was planned.
    pub from: Uuid,
    /// The host that it moves to.
    pub to: Uuid,
}

/// The stage of a policy's application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Application {
    /// The policy.
    pub policy: Uuid,
    /// The VMs that deviate. One that does not any more is only counted.
    #[serde(flatten)]
    pub vms: Sweep,
}

/// How far a task has come with VMs that each have a task of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    /// The VMs that tasks work on now.
    #[serde(default, rename = "moving")]
    pub begun: Vec<BegunVm>,
    /// The number of tasks that have done their work.
    #[serde(default, rename = "moved")]
    pub done: u64,
    /// The VMs that stay as they are.
    #[serde(default)]
    pub left: Vec<LeftVm>,
}

/// A VM that a task of a sweep works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BegunVm {
    /// The VM.
    pub vm: VmId,
    /// The task.
    pub task: Uuid,
}

/// A VM that a sweep leaves as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftVm {
    /// The VM.
    pub vm: VmId,
    /// Why.
    pub reason: String,
}

/// A holder, and the disk whose volume it is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// The holder.
    pub holder: VmId,
    /// The disk's name in its VM.
    pub disk: DiskName,
}

impl Work {
    /// The host that the task's VM is on its way to.
    pub fn target(&self) -> Option<Uuid> {
        match self {
            Self::StopToMove { to, .. } | Self::Leave { to, .. } => Some(*to),
            Self::Migrate(live) => (!live.decision.is_final()).then_some(live.to),
            Self::Carry(carried) => {
                let leads_there = matches!(carried.stage, CarriedStage::Fetch | CarriedStage::Leave { .. });
                leads_there.then_some(carried.to)
            }
            _ => None,
        }
    }

    /// The datastore that it moves volumes to.
    pub fn datastore_target(&self) -> Option<DatastoreId> {
        match self {
            Self::MoveDisk { to, .. } | Self::SwitchDisk { to, .. } | Self::UndoMoveDisk { to, .. } => {
                Some(*to)
            }
            Self::Migrate(live) if !live.decision.is_final() => Some(live.volumes.as_ref()?.to),
            Self::Carry(carried) => Some(carried.to_datastore),
            _ => None,
        }
    }

    /// The disk whose image it waits for.
    pub fn awaited_image(&self) -> Option<Name> {
        match self {
            Self::AwaitImage { fill, .. } => Name::new(fill.first()?.as_str()).ok(),
            _ => None,
        }
    }

    /// The disk that is being filled with an image.
    pub fn filled_disk(&self) -> Option<Name> {
        match self {
            Self::Fill { disk, .. } | Self::ImportDisk { disk, .. } => Name::new(disk.as_str()).ok(),
            _ => None,
        }
    }
}

/// The origin of a clone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloneOf {
    /// The VM.
    pub vm: VmId,
    /// The snapshot; its present content without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotId>,
    /// A snapshot that is made first, and cloned then. The task works on the origin until it is
    /// there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_snapshot: Option<NewVmSnapshot>,
    /// Whether the clone shares the layers of the snapshot.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub linked: bool,
    /// How often the host has failed to make the snapshot, or then to read it.
    #[serde(default, skip_serializing_if = "is_never")]
    pub failures: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
const fn is_never(count: &u32) -> bool {
    *count == 0
}

/// The object that a disk is filled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whole {
    /// A VM that is being created.
    Vm,
    /// A disk that is being added.
    Disk,
    /// A disk that is there, and keeps its content until the image is.
    Content,
}

impl Work {
    /// Whether its next step begins something that can still be left, rather than completing or
    /// undoing what was begun.
    pub fn begins(&self) -> bool {
        match self {
            Self::Create { .. }
            | Self::AwaitImage { .. }
            | Self::Fill { .. }
            | Self::Start { .. }
            | Self::Stop { .. }
            | Self::Pause
            | Self::Suspend
            | Self::Dump { .. }
            | Self::DeleteDump { .. }
            | Self::Resume
            | Self::Reset
            | Self::Configure { .. }
            | Self::SetNics { .. }
            | Self::SetSizes { .. }
            | Self::ImportDisk { .. }
            | Self::Delete
            | Self::AddDisk { .. }
            | Self::RemoveDisk { .. }
            | Self::ResizeDisk { .. }
            | Self::MoveDisk { .. }
            | Self::Limit { .. }
            | Self::SealDisk { .. }
            | Self::ChangeSnapshots { .. }
            | Self::MakeGroup { .. }
            | Self::BindVolume { .. }
            | Self::MakeHolder { .. }
            | Self::StopToMove { .. }
            | Self::Leave { .. }
            | Self::RotateKey { to: None, .. } => true,
            Self::Migrate(live) => live.decision == Decision::Prepared,
            Self::Carry(carried) => {
                matches!(carried.stage, CarriedStage::Fetch | CarriedStage::Leave { .. })
            }
            Self::RotateKey { to: Some(_), .. }
            | Self::Nothing
            | Self::UndoCreate { .. }
            | Self::AwaitRunning
            | Self::UndoStart
            | Self::UndoSetNics { .. }
            | Self::SwitchDisk { .. }
            | Self::TakeDisk { .. }
            | Self::UndoMoveDisk { .. }
            | Self::UndoSetSizes { .. }
            | Self::UndoAddDisk { .. }
            | Self::RecordSeal { .. }
            | Self::UndoSealDisk { .. }
            | Self::KeepGroup { .. }
            | Self::UndoGroup { .. }
            | Self::RetireKeys { .. }
            | Self::UndoBind { .. }
            | Self::DropHolder { .. }
            | Self::UnbindVolume { .. }
            | Self::UndoUnbind { .. }
            | Self::KeepVolume { .. }
            | Self::Arrive { .. }
            | Self::Return { .. }
            | Self::TakeOver
            | Self::Evacuate(_)
            | Self::Balance(_)
            | Self::ApplyPolicy(_)
            | Self::DropSnapshot { .. } => false,
        }
    }
}

impl TaskRecord {
    /// The temporary snapshot that a host may have made for it.
    pub fn temporary_made(&self) -> Option<&TemporarySnapshot> {
        let was_asked_for = match &self.work {
            Work::Create { from: Some(CloneOf { new_snapshot: Some(_), failures, .. }), .. } => {
                self.operation.is_some() || *failures > 0
            }
            _ => true,
        };
        self.temporary.as_ref().filter(|_| was_asked_for)
    }

    /// Whether the control plane itself made the task, rather than a caller.
    pub fn is_automatic(&self) -> bool {
        self.task.by == AUTOMATIC
    }

    /// Its kind.
    pub fn kind(&self) -> TaskKind {
        self.task.kind
    }
}

/// The caller's name for automatic tasks.
pub const AUTOMATIC: &str = "strongroom";

/// The caller's name for the tasks of schedules.
pub const SCHEDULER: &str = "strongroom-schedule";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_evacuation_that_the_former_release_has_begun_goes_on() {
        let text = r#"{"work":"evacuate","host":"6f1c5bde-8d09-4b4c-9f5f-3f0f8f0f0001","shut_down":true,
            "timeout_s":60,"moving":[{"vm":"6f1c5bde-8d09-4b4c-9f5f-3f0f8f0f0002",
            "task":"6f1c5bde-8d09-4b4c-9f5f-3f0f8f0f0003"}],"moved":7,
            "left":[{"vm":"6f1c5bde-8d09-4b4c-9f5f-3f0f8f0f0004","reason":"it runs"}]}"#;
        let Work::Evacuate(read) = serde_json::from_str(text).unwrap() else { panic!("{text}") };
        assert_eq!((read.vms.begun.len(), read.vms.done, read.vms.left.len()), (1, 7, 1));
        let written = serde_json::to_value(Work::Evacuate(read)).unwrap();
        assert_eq!(written, serde_json::from_str::<serde_json::Value>(text).unwrap());
    }
}
