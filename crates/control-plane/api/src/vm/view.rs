//! What is told of VMs.

use serde::{Deserialize, Serialize};
use strongroom_types::{VmId, VolumeId};
use utoipa::ToSchema;
use uuid::Uuid;

use super::create::ImageFormat;
use super::hardware::{Board, Boot, Cdrom, Cpus, DiskFrontend, DiskKind, Firmware, Nic, RestartPolicy};
use super::state::{DesiredPower, Lifecycle, PowerState, VolumeState};
use crate::name::Name;
use crate::object::ObjectRef;

/// A VM in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmSummary {
    /// Its id.
    #[schema(value_type = Uuid)]
    pub id: VmId,
    /// Its name.
    pub name: Name,
    /// What its host says of it.
    pub power: PowerState,
    /// What somebody wants of it.
    pub desired: DesiredPower,
    /// Where it is between being wished for and being gone.
    pub lifecycle: Lifecycle,
    /// Virtual processors.
    pub cpus: u32,
    /// Guest memory.
    pub memory_bytes: u64,
    /// Size of its disks in all, in bytes.
    pub disk_bytes: u64,
    /// Whether it is sealed.
    pub encrypted: bool,
    /// Whether some of its disks are not encrypted though others are.
    #[serde(default)]
    pub partly_clear: bool,
    /// The datastore's name.
    pub datastore: String,
    /// The host's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The policy's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The task that works on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Uuid>,
    /// Why it is as it is, if there is something to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A VM, whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmView {
    /// What a list has of it.
    #[serde(flatten)]
    pub summary: VmSummary,
    /// Counts its changes; `If-Match` takes it.
    pub version: u64,
    /// Counts its starts.
    pub generation: u64,
    /// Since when it is in its power state, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_unix_seconds: Option<u64>,
    /// When it was made or registered, in seconds since 1970.
    pub created_unix_seconds: u64,
    /// The main board and what is on it.
    #[serde(flatten)]
    pub board: Board,
    /// What starts the guest.
    pub firmware: Firmware,
    /// Virtual processors.
    pub topology: Cpus,
    /// Its disks.
    pub disks: Vec<Disk>,
    /// Network interfaces.
    pub nics: Vec<Nic>,
    /// Whether it has a TPM.
    pub tpm: bool,
    /// Whether it has a disk for cloud-init.
    #[serde(default)]
    pub seed: bool,
    /// What is booted.
    pub boot: Boot,
    /// The CD-ROM drive.
    #[serde(default)]
    pub cdrom: Cdrom,
    /// Whether it is started again by itself.
    pub restart: RestartPolicy,
    /// The memory with which it goes on at its next start, if it is suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<SuspendedMemory>,
    /// The dumps of its guest.
    #[serde(default)]
    pub dumps: Vec<Dump>,
    /// The key that it is sealed under, once it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<VmKey>,
    /// The datastore.
    pub datastore_ref: ObjectRef,
    /// The host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_ref: Option<ObjectRef>,
}

/// A memory that lies sealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SuspendedMemory {
    /// Memory and devices' state, in bytes.
    pub bytes: u64,
    /// The volume that holds it.
    #[schema(value_type = Uuid)]
    pub volume: VolumeId,
    /// When the VM was suspended, in seconds since 1970.
    pub at_unix_seconds: u64,
}

/// The memory of a guest as a core file (ELF), sealed in a volume of the VM's own. All of it is
/// there. A ticket opens it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Dump {
    /// Its number, which no other dump of the VM gets.
    pub number: u32,
    /// The core file, in bytes.
    pub bytes: u64,
    /// What it takes sealed, in bytes: pages of zeroes take nothing.
    pub sealed_bytes: u64,
    /// The volume that holds it, `dump-NUMBER`.
    #[schema(value_type = Uuid)]
    pub volume: VolumeId,
    /// When it was made, in seconds since 1970.
    pub at_unix_seconds: u64,
    /// What somebody called it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// A disk of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Disk {
    /// `disk0`, `swap0` and so on.
    pub name: String,
    /// What it is for.
    #[serde(default)]
    pub kind: DiskKind,
    /// Its volume's id, once the volume is there.
    #[schema(value_type = Option<Uuid>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeId>,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// How the guest gets at it.
    pub frontend: DiskFrontend,
    /// The key that it is under; none of one that is not encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<VmKey>,
    /// Whether it has a keyed tag for each block.
    #[serde(default)]
    pub integrity: bool,
    /// How it is.
    pub state: VolumeState,
}

/// A key by where it is. Never the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmKey {
    /// The provider's name.
    pub provider: String,
    /// Its id there.
    pub key: String,
}

/// What a ticket is wanted for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "operation", rename_all = "snake_case", deny_unknown_fields)]
pub enum TicketUse {
    /// The serial console.
    Console {
        /// To read only: there are many readers and one writer.
        #[serde(default)]
        read_only: bool,
    },
    /// What was said on the serial console, also of a VM that is off.
    ConsoleLog {},
    /// A dump of its guest, which is verified on its way; also of a VM that is off.
    Dump {
        /// Its number.
        number: u32,
    },
    /// A check of one of its disks, while it is off: its descriptor and files, and its blocks where
    /// that is wanted.
    Check {
        /// `disk0` and so on.
        disk: Name,
        /// Read every block too, and compare it with its tag if it has one.
        #[serde(default)]
        data: bool,
    },
    /// One of its disks, copied in plain text into a file of the client's, while it is off.
    Export {
        /// `disk0` and so on.
        disk: Name,
        /// What is written; not `auto`.
        format: ImageFormat,
    },
    /// The screen.
    Vnc {},
    /// An image into one of its disks, while it is off.
    Upload {
        /// `disk0` and so on, or `seed`.
        disk: Name,
    },
}

/// A leave for one connection to the host's guest socket. Whoever shows it first is let in; guest
/// data goes over that connection and never through the control plane.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ticket {
    /// What is shown.
    pub ticket: String,
    /// Until when it is good, in seconds since 1970.
    pub expires_unix_seconds: u64,
    /// The socket, on the VM's host.
    pub socket: String,
    /// The host's name.
    pub host: String,
}

impl std::fmt::Debug for Ticket {
    /// Without what is shown.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Ticket").field("host", &self.host).finish_non_exhaustive()
    }
}
