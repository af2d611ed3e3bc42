//! Answers about VMs.

use serde::{Deserialize, Serialize};
use strongroom_types::{MigrationMode, VmId, VolumeId};
use utoipa::ToSchema;
use uuid::Uuid;

use super::create::ImageFormat;
use super::hardware::{
    Board, Boot, Cdrom, Cpus, DiskBecomes, DiskFrontend, DiskKind, Firmware, Growth, IoLimits, Nic,
    RestartPolicy,
};
use super::label::{Notes, Tag};
use super::schedule::CryptoperiodView;
use super::snapshot::Snapshot;
use super::state::{DesiredPower, Lifecycle, PowerState, VolumeState};
use crate::name::Name;
use crate::object::ObjectRef;
use crate::policy::Deviation;

/// A VM in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmSummary {
    /// Its id.
    #[schema(value_type = Uuid)]
    pub id: VmId,
    /// Its name.
    pub name: Name,
    /// Its state as its host reports it.
    pub power: PowerState,
    /// Its desired state.
    pub desired: DesiredPower,
    /// The stage of its life in the inventory.
    pub lifecycle: Lifecycle,
    /// Virtual processors.
    pub cpus: u32,
    /// Guest memory.
    pub memory_bytes: u64,
    /// The sum of its disks' sizes, in bytes.
    pub disk_bytes: u64,
    /// Whether it is encrypted.
    pub encrypted: bool,
    /// Whether some of its disks are encrypted and others are not.
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
    /// The folder's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// The task that is working on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Uuid>,
    /// The reason for its state, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether it is a template.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub template: bool,
    /// The VM that it is a clone of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<VmOrigin>,
    /// Its tags, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<Tag>,
}

/// The VM that a clone was made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmOrigin {
    /// Its id.
    #[schema(value_type = Uuid)]
    pub id: VmId,
    /// Its name, or the one that it had, if it is gone.
    pub name: Name,
    /// Whether it is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_gone: bool,
    /// Whether the clone is linked: its disks were made of the layers of a snapshot.
    pub linked: bool,
}

/// A VM with all of its details.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmView {
    /// Its entry in a list.
    #[serde(flatten)]
    pub summary: VmSummary,
    /// Notes about it.
    #[serde(default, skip_serializing_if = "Notes::is_empty")]
    pub notes: Notes,
    /// Its directory in the datastore, if that has another name than the VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<Name>,
    /// Counts its changes; `If-Match` takes it.
    pub version: u64,
    /// Counts its starts.
    pub generation: u64,
    /// When it entered its power state, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_unix_seconds: Option<u64>,
    /// When it was created or registered, in seconds since 1970.
    pub created_unix_seconds: u64,
    /// The main board and what is on it.
    #[serde(flatten)]
    pub board: Board,
    /// What starts the guest.
    pub firmware: Firmware,
    /// Virtual processors.
    pub topology: Cpus,
    /// How far processors and memory grow while it runs.
    #[serde(default, skip_serializing_if = "Growth::is_none")]
    pub growth: Growth,
    /// Its disks.
    pub disks: Vec<Disk>,
    /// The limits of the requests of all its disks together.
    #[serde(default, skip_serializing_if = "IoLimits::is_none")]
    pub limits: IoLimits,
    /// Network interfaces.
    pub nics: Vec<Nic>,
    /// Whether it has a TPM.
    pub tpm: bool,
    /// Whether it has a cloud-init disk.
    #[serde(default)]
    pub seed: bool,
    /// What it boots.
    pub boot: Boot,
    /// The CD-ROM drive.
    #[serde(default)]
    pub cdrom: Cdrom,
    /// Whether it is started again by itself.
    pub restart: RestartPolicy,
    /// The saved memory that its next start resumes, if it is suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<SavedMemory>,
    /// The dumps of its guest.
    #[serde(default)]
    pub dumps: Vec<Dump>,
    /// Its snapshots, in the order in which they were made.
    #[serde(default)]
    pub snapshots: Vec<Snapshot>,
    /// The linked clones that share its disks, by name, including clones of clones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub linked_clones: Vec<Name>,
    /// The key that it is encrypted under, once the key exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<VmKey>,
    /// Since when its data keys are used, in seconds since 1970: its creation or registration, or
    /// their last renewal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_keys_unix_seconds: Option<u64>,
    /// How long they are used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cryptoperiod: Option<CryptoperiodView>,
    /// How its memory passes to another host when it moves while it runs.
    #[serde(default)]
    pub migration: MigrationMode,
    /// What its policy says of that, if it does not hold: the VM is encrypted, or was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_overruled: Option<MigrationMode>,
    /// Whether its policy refuses its console and screen to browsers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub browser_console_denied: bool,
    /// What of it its policy does not permit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deviations: Vec<Deviation>,
    /// The datastore.
    pub datastore_ref: ObjectRef,
    /// The host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_ref: Option<ObjectRef>,
}

/// The saved memory of a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SavedMemory {
    /// Memory and devices' state, in bytes.
    pub bytes: u64,
    /// The volume that holds it.
    #[schema(value_type = Uuid)]
    pub volume: VolumeId,
    /// When it was saved, in seconds since 1970.
    pub at_unix_seconds: u64,
}

/// The complete memory of a guest as a core file (ELF), encrypted in a volume of the VM's own. It
/// is read with a ticket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Dump {
    /// Its number, unique among the dumps of the VM.
    pub number: u32,
    /// The size of the core file, in bytes.
    pub bytes: u64,
    /// The bytes that it takes encrypted; pages of zeroes take none.
    pub sealed_bytes: u64,
    /// The volume that holds it, `dump-NUMBER`.
    #[schema(value_type = Uuid)]
    pub volume: VolumeId,
    /// When it was made, in seconds since 1970.
    pub at_unix_seconds: u64,
    /// Its label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// A disk of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Disk {
    /// `disk0`, `swap0` and so on.
    pub name: String,
    /// Its purpose.
    #[serde(default)]
    pub kind: DiskKind,
    /// Its volume's id, once the volume exists.
    #[schema(value_type = Option<Uuid>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeId>,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// How it is attached to the guest.
    pub frontend: DiskFrontend,
    /// The key that it is encrypted under; absent if it is not encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<VmKey>,
    /// Whether each block has a keyed tag.
    #[serde(default)]
    pub integrity: bool,
    /// What it becomes, if it is being encrypted or decrypted: a part of it is clear, and a part is
    /// under `key`. The VM cannot be started until that is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub becomes: Option<DiskBecomes>,
    /// The limits of its requests.
    #[serde(default, skip_serializing_if = "IoLimits::is_none")]
    pub limits: IoLimits,
    /// The name of the datastore that its volume is in.
    #[serde(default)]
    pub datastore: String,
    /// Its state.
    pub state: VolumeState,
}

/// A reference to a key, never the key itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmKey {
    /// The provider's name.
    pub provider: String,
    /// Its id at the provider.
    pub key: String,
}

/// The purpose of a ticket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "operation", rename_all = "snake_case", deny_unknown_fields)]
pub enum TicketUse {
    /// The serial console.
    Console {
        /// Only to read: a console can have many readers and one writer.
        #[serde(default)]
        read_only: bool,
        /// In the place of the client that writes, which is told who took over, and reads from then
        /// on. Not together with `read_only`.
        #[serde(default)]
        take_over: bool,
    },
    /// The recorded output of the serial console, also of a VM that is off.
    ConsoleLog {},
    /// A dump of its guest, which is verified as it is sent; also of a VM that is off.
    Dump {
        /// Its number.
        number: u32,
    },
    /// A check of one of its disks while the VM is off: the descriptor and files, and the blocks
    /// too with `data`.
    Check {
        /// `disk0` and so on.
        disk: Name,
        /// Also reads every block, and compares it with its tag if it has one.
        #[serde(default)]
        data: bool,
    },
    /// A plain-text copy of one of its disks into a file of the client's, while the VM is off.
    Export {
        /// `disk0` and so on.
        disk: Name,
        /// The format of the copy; not `auto`.
        format: ImageFormat,
    },
    /// The screen.
    Vnc {
        /// Only to look: the host passes on nothing from the client that changes anything.
        #[serde(default)]
        read_only: bool,
    },
    /// The upload of an image into one of its disks, while the VM is off.
    Upload {
        /// `disk0` and so on, or `seed`.
        disk: Name,
    },
}

/// A permit for one connection to the VM's host, at its guest socket or its port. The host admits
/// the first client that presents it. Guest data passes over that connection and never through the
/// control plane.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ticket {
    /// The secret that the client presents.
    pub ticket: String,
    /// When it expires, in seconds since 1970.
    pub expires_unix_seconds: u64,
    /// The path of the socket on the VM's host.
    pub socket: String,
    /// The host's name.
    pub host: String,
    /// The address of the host's port; absent for the control plane's own machine if that has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// SHA-256 of the certificate that the host shows at its port, as 64 hexadecimal digits. A
    /// client that connects there, over TLS 1.3 with the protocol `strongroom-guest/1` (ALPN) and
    /// without a certificate, sends nothing to a host with another one. Absent if the host takes
    /// tickets at its socket alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_sha256: Option<String>,
}

impl std::fmt::Debug for Ticket {
    /// Leaves out the secret.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Ticket").field("host", &self.host).finish_non_exhaustive()
    }
}
