//! Why a volume does not become, or remain, a disk of a libvirt domain.

use std::io;
use std::path::PathBuf;

use strongroom_datastore::file::DatastoreError;
use thiserror::Error;

/// What a domain needs for disks in shared memory, as one line for a sentence.
const SHARED_MEMORY: &str = "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>";

/// Why not.
#[derive(Debug, Error)]
pub enum LibvirtError {
    /// The datastore refuses.
    #[error(transparent)]
    Datastore(#[from] DatastoreError),
    /// The volume, or a service's file.
    #[error("cannot {action} {path}: {error}")]
    File {
        /// What was tried, as in "find".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// There is no virsh.
    #[error(
        "there is no virsh on this machine, through which libvirt is spoken to; install it (Debian: libvirt-clients)"
    )]
    NoVirsh,
    /// A program does not start.
    #[error("cannot start {program}: {error}")]
    Start {
        /// Which.
        program: &'static str,
        /// Why not.
        error: io::Error,
    },
    /// virsh says no.
    #[error("libvirt refuses ({command}): {said}")]
    Virsh {
        /// What it was asked.
        command: String,
        /// What it said.
        said: String,
    },
    /// No such domain.
    #[error(
        "libvirt knows no domain '{name}'; `virsh{connect} list --all` shows them, and --connect URI asks another libvirt"
    )]
    NoDomain {
        /// As it was given.
        name: String,
        /// Which libvirt was asked, as an argument of virsh.
        connect: String,
    },
    /// What libvirt says makes no sense.
    #[error("what virsh says of {what} makes no sense: {reason}")]
    Xml {
        /// Of what.
        what: String,
        /// Why.
        reason: String,
    },
    /// The domain does not run.
    #[error("{0} does not run, so --live has nothing to change; leave it out, or start the domain first")]
    NotRunning(String),
    /// The domain is gone once it ends.
    #[error(
        "{0} is transient: libvirt forgets it when it ends, so --config has nothing to change; leave it out"
    )]
    Transient(String),
    /// The memory cannot be shared.
    #[error(
        "the memory of {domain}{when} is not shared, which a vhost-user disk needs: `virsh{connect} edit {domain}`, put {SHARED_MEMORY} into <domain>, \
         stop the domain and start it; or use --frontend nbd, which needs none of it"
    )]
    MemoryNotShared {
        /// The domain.
        domain: String,
        /// In which of its definitions.
        when: &'static str,
        /// Which libvirt, as an argument of virsh.
        connect: String,
    },
    /// The name is taken.
    #[error(
        "{target} is another disk of {domain} already; leave --target out, and a free name is taken (now {free})"
    )]
    TargetInUse {
        /// The name.
        target: String,
        /// The domain.
        domain: String,
        /// One that is free.
        free: String,
    },
    /// Another domain has the volume.
    #[error(
        "{volume} is {target} of domain {domain} already, and two guests would write over each other; detach it there first"
    )]
    AnothersDisk {
        /// The volume.
        volume: PathBuf,
        /// What it is there.
        target: String,
        /// Where.
        domain: String,
    },
    /// It is served in another way.
    #[error(
        "{volume} is exposed over {found} at {address}; end that (process {pid}), or leave --frontend out to use it so"
    )]
    OtherFrontend {
        /// The volume.
        volume: PathBuf,
        /// By which protocol.
        found: String,
        /// Where.
        address: String,
        /// By whom.
        pid: u32,
    },
    /// It is served where no guest of this machine looks.
    #[error(
        "{volume} is exposed at {address} (process {pid}), which is no unix socket; end that, and it is served on one"
    )]
    NoSocket {
        /// The volume.
        volume: PathBuf,
        /// Where.
        address: String,
        /// By whom.
        pid: u32,
    },
    /// Nobody serves it, and we have no means to.
    #[error("{volume} is not served, and {why}; keep this running, then call again:\n  {command}")]
    NotServed {
        /// The volume.
        volume: PathBuf,
        /// Why it is not started here.
        why: String,
        /// What serves it.
        command: String,
    },
    /// A key that is typed cannot be had when the machine boots.
    #[error(
        "{0} is under a passphrase, and nobody types it when this machine boots: move it to a key file or a key provider \
         (`strongroom volume rekey --kek`), or expose it yourself and call again"
    )]
    Passphrase(PathBuf),
    /// A name that cannot be written into a unit's configuration.
    #[error(
        "{0} has a character that systemd's configuration cannot hold; choose a name without quotes, backslashes, dollar signs and line ends"
    )]
    OddName(String),
    /// systemd says no.
    #[error("systemd does not serve the volume: {said}")]
    Service {
        /// What it said, and the log's end.
        said: String,
    },
    /// QEMU cannot reach the volume.
    #[error("libvirt refuses (attach-device): {said}; {hint}")]
    CannotReach {
        /// What libvirt said.
        said: String,
        /// What to do.
        hint: String,
    },
    /// The guest does not let go.
    #[error(
        "the guest of {domain} has not let go of {target} within {seconds} s; unmount it there and call again (a guest that boots, or hangs, does not \
         answer). The volume is served on"
    )]
    NotLetGo {
        /// The domain.
        domain: String,
        /// The disk.
        target: String,
        /// How long was waited.
        seconds: u64,
    },
}

impl LibvirtError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Datastore(error) => error.code(),
            Self::File { .. } => "file",
            Self::NoVirsh => "no_virsh",
            Self::Start { .. } => "start",
            Self::Virsh { .. } | Self::Xml { .. } => "libvirt",
            Self::NoDomain { .. } => "no_domain",
            Self::NotRunning(_) | Self::Transient(_) => "domain_state",
            Self::MemoryNotShared { .. } => "memory_not_shared",
            Self::TargetInUse { .. } => "target_in_use",
            Self::AnothersDisk { .. } => "anothers_disk",
            Self::OtherFrontend { .. } | Self::NoSocket { .. } => "other_frontend",
            Self::NotServed { .. } => "not_exposed",
            Self::Passphrase(_) => "key_needs_a_person",
            Self::OddName(_) => "odd_name",
            Self::Service { .. } => "service",
            Self::CannotReach { .. } => "socket_closed",
            Self::NotLetGo { .. } => "not_let_go",
        }
    }
}
