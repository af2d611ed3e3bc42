//! The protocol of hostd: HTTP/1.1 with JSON on a unix socket, and over mutual TLS on a port of a
//! host that has joined another machine's control plane. The control plane is the client; it
//! connects to hosts, never a host to it.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/host` | [`Host`] |
//! | `GET /v1/vms` | [`ObservedVms`] |
//! | `GET /v1/vms/{vm}` | [`ObservedVm`] |
//! | `GET /v1/vms/{vm}/statistics` | [`VmStatistics`] |
//! | `GET /v1/statistics` | [`VmStatistics`] of each VM that runs and answers |
//! | `POST /v1/vms/{vm}/operations`, [`OperationRequest`] | 202 and [`Operation`] |
//! | `POST /v1/vms/{vm}/check`, [`VmSpec`] | `null`: it can be made here as it is wanted |
//! | `GET /v1/operations/{operation}` | [`Operation`] |
//! | `DELETE /v1/operations/{operation}` | [`Operation`]: asked to end early |
//! | `POST /v1/vms/{vm}/tickets`, [`TicketRequest`] | [`Ticket`] |
//! | `POST /v1/tickets/void`, [`VoidTicket`] | `null`: the ticket is not good any more |
//! | `GET /v1/changes?after=N&wait_s=S` | [`Changes`] |
//! | `POST /v1/vms/readings`, [`VmReadingsRequest`] | [`VmReadings`]: those of the VMs that there are |
//! | `POST /v1/volumes/readings`, [`ReadingsRequest`] | [`Readings`]: each reading has its own answer |
//! | `PUT /v1/datastores`, [`DatastoreRequest`] | [`Datastore`]: used from now on |
//! | `POST /v1/datastores`, [`DatastoreRequest`] | [`Datastore`]: looked through once more |
//! | `POST /v1/datastores/fencing`, [`FencingRequest`] | `null`: another host of a datastore is fenced, or admitted |
//! | `POST /v1/release` | `null`: no control plane directs the host from now on |
//!
//! A refusal has a status of 400 or more, and a [`Problem`] as its body.
//!
//! - Either side may be killed at any moment, so every request can be repeated. An operation is
//!   known by its id as long as hostd runs, and by its effect afterwards. These succeed again:
//!   creating what already exists as requested, starting the generation that runs, stopping a
//!   stopped VM, making a dump that this operation has made, and deleting what is gone.
//! - A request states its sender's [`Term`] and format in its head. An order is every request but
//!   `GET`, `check` and `readings`. It is refused if its term is less than the greatest one that
//!   the host has seen. The host stores a greater term durably before it acts.
//! - A host states the formats that it reads ([`FORMATS`]); a client writes one of them.
//! - Paths are those of the host. What a client learns from them it asks the host.
//! - Nothing here is secret. Grants are useless on another host, and are kept out of logs all the
//!   same.
//! - An unknown field of an answer is ignored; an unknown field of a request is refused.

mod change;
mod disk_change;
mod dump;
mod grant;
mod host;
mod judge;
mod migration;
mod names;
mod observed;
mod operation;
mod own_volume;
mod problem;
mod snapshot;
mod spec;
mod statistics;
mod term;
mod ticket;
mod volume_reading;

pub use change::{Change, ChangedObject, Changes, Epoch};
pub use disk_change::{DiskChange, DiskMove, HeldVolume, MoveStep};
pub use dump::{Dump, GuestEnd};
pub use grant::Grant;
pub use host::{
    Accelerator, CryptoSafe, CryptoSafeState, Datastore, DatastoreRequest, DatastoreState, Fencing,
    FencingRequest, Host, Programs, QemuFound, Topology,
};
pub use judge::{JudgeRequest, Judgement};
pub use migration::{
    FetchingLive, MigrationPermit, Offer, Receiving, RunningMachine, Sending, check_moves_live,
};
pub use names::{GroupAttempt, HandoverId, OperationId, VmGeneration};
pub use observed::{
    ObservedVm, ObservedVms, ObservedVolume, OffReason, PowerState, SavedMemory, VM_READINGS_MAX, VmReadings,
    VmReadingsRequest, VmReason, VolumeState, WaitingFor,
};
pub use operation::{
    CloneSource, GroupMember, ImageFormat, MemberVolumes, Operation, OperationKind, OperationOutcome,
    OperationRequest, OperationState, Passing, Progress, ProgressUnit, StartOptions, VolumeFacts,
    VolumesElsewhere,
};
pub use own_volume::{DUMP_MAKING, FILLING, OwnVolume, TPM_STATE};
pub use problem::{Problem, ProblemBody};
pub use snapshot::{Contents, NewVmSnapshot, SnapshotChange, VmSnapshot, VmSnapshots};
pub use spec::{Disk, DiskKey, DiskPlace, KnownVolume, Lineage, Origin, SpecError, VmSpec, disks_elsewhere};
pub use statistics::{DiskStatistics, ProcessorStatistics, VmStatistics};
/// How a running VM's memory passes.
pub use strongroom_hypervisor::qmp::MigrationSettings;
/// The parts of a VM, as `strongroom_vm` defines them.
pub use strongroom_vm::{
    Board, BootDevice, Capabilities, Cpus, DirectKernel, DiskBecomes, DiskFrontend, DiskKind, DiskName,
    Firmware, Growth, Link, MacAddress, MachineType, MemorySize, Network, Nic, QuiesceWithin, VmName,
};
pub use term::{
    FIRST_FORMATS, FORMAT_HEADER, FORMAT_WITH_CAPABILITIES, FORMAT_WITH_CLUSTERS, FORMAT_WITH_DIRECTORIES,
    FORMAT_WITH_DISK_PLACES, FORMAT_WITH_FETCHED_VMS, FORMAT_WITH_HOT_PLUG, FORMAT_WITH_LIVE_MOVES,
    FORMAT_WITH_MOVES, FORMAT_WITH_SWITCHES, FORMAT_WITH_TERMS, FORMAT_WITH_VM_READINGS, FORMATS,
    TERM_HEADER, Term,
};
pub use ticket::{
    CheckEnd, CheckNews, ExportNews, GUEST_PROTOCOL, GuestHello, GuestPort, GuestWelcome, NEWS_COMMAND,
    Ticket, TicketId, TicketRequest, VoidTicket,
};
pub use volume_reading::{
    ChunksReport, ExtentReport, MapReport, READINGS_MAX, Reading, ReadingRequest, Readings, ReadingsRequest,
    SpaceReport, ViewSpaceReport, VolumeQuestion,
};

/// The version of the whole protocol: the `v1` in its paths, and of the first line on the guest
/// socket.
pub const FORMAT: u32 = 1;

/// The longest request body, in bytes: far above sixteen of the largest VMs with the longest
/// grants, for a snapshot of all of them.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;

/// The longest answer body, in bytes: all VMs of a full host.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;

/// The longest that a request for changes waits, in seconds.
pub const CHANGES_WAIT_MAX_S: u64 = 60;
