//! Virtual machines.

mod create;
mod hardware;
mod label;
mod query;
mod schedule;
mod snapshot;
mod state;
mod statistics;
mod view;

pub use create::{
    AddDisk, AddNic, CloneVm, CreateVm, DeleteVm, DumpVm, EncryptDisk, EncryptionWish, ImageFormat,
    ImportDisk, MoveDisk, MoveToHost, PatchNic, PatchVm, PowerOptions, RegisterVm, ResizeDisk, RotateKey,
    SetLimits, StartVm, StopVm, TemplateVm,
};
pub use hardware::{
    BandwidthLimit, Board, Boot, BootDevice, BridgePort, Capabilities, Cdrom, Cpus, DiskBecomes,
    DiskFrontend, DiskKind, Firmware, Growth, IoLimits, IopsLimit, Link, MachineType, MachineVersion,
    MemorySize, Nic, NicBackend, ProcessorModel, RestartPolicy,
};
pub use label::{Notes, NotesError, Tag, TagChanges, TagError, TagKey};
pub(crate) use query::no_longer_than;
pub use query::{VmListQuery, VmSort};
pub use schedule::{
    Cryptoperiod, CryptoperiodView, DayWindow, FailedRenewal, RunOutcome, ScheduledRule, ScheduledRun,
    SetCryptoperiod, SetSnapshotSchedule, SnapshotRule, SnapshotSchedule,
};
pub use snapshot::{CreateSnapshot, QuiesceWithin, RevertVm, Snapshot, SnapshotGroup};
pub use state::{DesiredPower, Lifecycle, PowerState, VolumeState};
pub use statistics::{
    DiskErrors, DiskOperation, DiskStats, LatencyBucket, OperationStats, ProcessorStats, VmStats,
};
pub use view::{Disk, Dump, SavedMemory, Ticket, TicketUse, VmKey, VmOrigin, VmSummary, VmView};
