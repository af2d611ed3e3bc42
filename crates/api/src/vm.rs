//! Virtual machines.

mod create;
mod hardware;
mod query;
mod state;
mod view;

pub use create::{
    AddDisk, CreateVm, DumpVm, EncryptionWish, ImageFormat, ImportDisk, PatchVm, PowerOptions, RegisterVm,
    ResizeDisk, RotateKey, StartVm, StopVm,
};
pub use hardware::{
    Boot, Cdrom, Cpus, DiskKind, Firmware, Frontend, HardwareError, MachineType, Memory, Nic, NicBackend,
    RestartPolicy,
};
pub use query::{VmListQuery, VmSort};
pub use state::{DesiredPower, Lifecycle, PowerState, VolumeState};
pub use view::{Disk, Dump, SuspendedMemory, Ticket, TicketUse, VmKey, VmSummary, VmView};
