//! Errors: a sentence with the object's name and the next step, and a code for programs.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::json;
use strongroom_api::Problem;
use strongroom_audit::AuditError;
use strongroom_datastore::file::DatastoreError;
use strongroom_files::FileError;
use strongroom_frontend::listen::ListenError;
use strongroom_frontend::nbd::{StartError, StopError, TlsError};
use strongroom_hostd::daemon::DaemonError;
use strongroom_images::ImageError;
use strongroom_jobs::{JobError, KeyRefusal};
use strongroom_keys::{KeyError, ProviderKey, ProviderName};
use strongroom_keyserver::authority::AuthorityError;
use strongroom_keyserver::authority::enrol::ClientError;
use strongroom_keyserver::backup::{BackupError, OpeningError, ShareError};
use strongroom_keyserver::process::{OpenStateError, ProcessError as KeyserverProcessError};
use strongroom_keyserver::recovery::RecertifyError;
use strongroom_keyserver::root::RootError;
use strongroom_keyserver::state::StateError;
use strongroom_libvirt::LibvirtError;
use strongroom_memory::secret::SecretError;
use strongroom_ova::OvaError;
use strongroom_processes::ProcessesError;
use strongroom_providers::{FailedProvider, RegistryError};
use strongroom_ring::RingError;
use strongroom_types::{KekId, without_numbers};
use strongroom_worker::control::{ControlError, GroupError};
use strongroom_worker::supervise::SuperviseError;
use strongroom_worker::{ProcessError, StackError, TransferError};
use thiserror::Error;

use crate::output::printable;

/// The reasons why a command fails.
#[derive(Debug, Error)]
pub enum CliError {
    /// The datastore returned an error.
    #[error(transparent)]
    Datastore(#[from] DatastoreError),
    /// A key is unavailable.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The providers of this machine cannot be read or changed.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A provider failed.
    #[error(transparent)]
    Provider(#[from] FailedProvider),
    /// The root key of the key server is unavailable.
    #[error(transparent)]
    Root(#[from] RootError),
    /// There is no key server in the directory.
    #[error(
        "there is no key server's state in {directory}; make one with `strongroom keyserver run`, or name another with \
         --directory DIR"
    )]
    NoKeyserver {
        /// The directory.
        directory: PathBuf,
    },
    /// There is no key server to restore into.
    #[error(
        "there is no key server in {directory} to restore into; make one with `strongroom keyserver init`, which also chooses what protects its root key"
    )]
    NothingToRestoreInto {
        /// The directory.
        directory: PathBuf,
    },
    /// The certificate of a host that has joined has ended.
    #[error(
        "it ended on {ended}, and neither the key server nor the control plane admits this host any more; on the first machine \
         `strongroom keyserver token replace {name} > token`, and here, with that file, `rm -r {directory}` and `strongroom keyserver enrol \
         --server {enrolment} --token-fd 3 --into {directory} 3<token`"
    )]
    HostCertificateEnded {
        /// The host's name.
        name: String,
        /// When it ended.
        ended: String,
        /// The key server's address for enrolment.
        enrolment: String,
        /// The directory of the certificate.
        directory: PathBuf,
    },
    /// The inventory was not restored.
    #[error("the inventory was not restored: {0}")]
    InventoryNotRestored(#[source] strongroom_control::RestorationError),
    /// A share of a backup is invalid.
    #[error("{from}: {error}")]
    Share {
        /// Its source.
        from: String,
        /// The error.
        error: ShareError,
    },
    /// No certificate could be issued after a restore.
    #[error("the server is restored, but this machine has no certificate at it: {0}")]
    Recertify(#[from] RecertifyError),
    /// The key server's state cannot be opened.
    #[error(transparent)]
    KeyserverState(#[from] StateError),
    /// The same, of a server that may have been restored.
    #[error(transparent)]
    OpenKeyserver(#[from] OpenStateError),
    /// The key server failed.
    #[error(transparent)]
    KeyserverProcess(#[from] KeyserverProcessError),
    /// The key server's authority returned an error.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The request to the key server failed.
    #[error(transparent)]
    KeyserverClient(#[from] ClientError),
    /// A backup of the key server was not made, opened or restored.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// A custodian's share was not opened.
    #[error(transparent)]
    Opening(#[from] OpeningError),
    /// The audit log cannot be read.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The key server's event loop could not be started.
    #[error("cannot start the key server: {0}")]
    Runtime(io::Error),
    /// There is no memory for a secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The process cannot be made safe for keys.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The passphrase gives another key than the volume's.
    #[error(
        "wrong passphrase for {path}; try again, or, if it is certainly right, restore the volume's descriptor from a backup: it was edited"
    )]
    WrongPassphrase {
        /// The volume.
        path: PathBuf,
    },
    /// The key file holds another key than the volume's.
    #[error(
        "the key in {key_file} is not that of {path}; give the key file that the volume was created with"
    )]
    WrongKeyFile {
        /// The volume.
        path: PathBuf,
        /// The key file.
        key_file: PathBuf,
    },
    /// The provider holds another key than the volume's.
    #[error(
        "what {key} gives is not the key of {path}; if nobody has put another one there, the volume's descriptor was edited"
    )]
    WrongProviderKey {
        /// The volume.
        path: PathBuf,
        /// The key's location.
        key: Box<ProviderKey>,
    },
    /// The volume's key is not the expected one.
    #[error(
        "{path} is under KEK {found}, and KEK {expected} is expected: somebody put an old copy or another volume there"
    )]
    UnexpectedKek {
        /// The volume.
        path: PathBuf,
        /// The key that its descriptor names.
        found: KekId,
        /// The key that should open it.
        expected: KekId,
    },
    /// The volume is encrypted, no key was given, and there is no terminal to ask for one.
    #[error("{path} needs its key: {next}")]
    NoKey {
        /// The volume.
        path: PathBuf,
        /// How to give the key.
        next: &'static str,
    },
    /// The volume belongs to a VM, and only the VM's host gets the key.
    #[error(
        "cannot open {}: it is a volume of VM {vm}, and only the VM's host gets its key, under a grant. `strongroom vm export {vm} FILE --format \
         qcow2` copies a disk out, `strongroom vm check {vm}` checks the VM's disks, and `strongroom vm key rotate {vm}` moves the VM to another \
         key",
        .path.display()
    )]
    VmVolume {
        /// The volume.
        path: PathBuf,
        /// The VM.
        vm: String,
    },
    /// Volumes need a key provider that should be removed.
    #[error(
        "key provider {name} is still needed by {by}; without it their keys cannot be had here. Move them to another provider's keys first \
         (`strongroom vm key rotate`, `strongroom key rotate --to-key-provider`), or say --yes to remove it all the same"
    )]
    ProviderNeeded {
        /// The provider.
        name: ProviderName,
        /// The volumes and VMs that need it.
        by: String,
    },
    /// The passphrase was not repeated.
    #[error("the two passphrases differ; nothing was created")]
    PassphrasesDiffer,
    /// The password was not repeated.
    #[error("the two passwords for {user} differ; nothing was changed: try again")]
    PasswordsDiffer {
        /// The user.
        user: strongroom_api::Name,
    },
    /// A file could not be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The stages of the volume do not fit together.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// The socket could not be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The threads or their event loops could not be started.
    #[error(transparent)]
    Lanes(#[from] RingError),
    /// The server does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The server did not end in order.
    #[error("the volume was not closed in order: {0}")]
    Stop(#[from] StopError),
    /// The volume is not, or no longer, exposed.
    #[error(transparent)]
    Supervise(#[from] SuperviseError),
    /// The process that exposes the volume cannot be reached, or returned an error.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The snapshot of a group of volumes failed.
    #[error(transparent)]
    SnapshotGroup(#[from] GroupError),
    /// The volume is not exposed.
    #[error("{path} is not exposed; {consequence}")]
    NotExposed {
        /// The volume.
        path: PathBuf,
        /// What that means for what was asked.
        consequence: &'static str,
    },
    /// A merge that was waited for does not go on.
    #[error(
        "the layers of {path} are not merged: {reason}; nothing is lost, and `strongroom volume snapshot merge {path}` goes on"
    )]
    MergeEnded {
        /// The volume.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// TLS cannot be configured.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A job on keys failed.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The processes of this machine do not run.
    #[error(transparent)]
    Processes(#[from] ProcessesError),
    /// Signals cannot be caught or awaited.
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
    /// Keys cannot be held under leases.
    #[error("cannot hold keys under leases: {0}")]
    Leases(io::Error),
    /// The control plane or a host returned an error.
    #[error("{message}")]
    Api {
        /// A stable name for programs.
        code: String,
        /// The cause, and the next step.
        message: String,
    },
    /// A device is not there, or not changed.
    #[error(transparent)]
    Device(#[from] strongroom_devices::DeviceError),
    /// Attaching a volume to a libvirt domain, or detaching it, failed.
    #[error(transparent)]
    Libvirt(#[from] LibvirtError),
    /// hostd failed.
    #[error(transparent)]
    Hostd(DaemonError),
    /// The control plane failed.
    #[error(transparent)]
    ControlPlane(strongroom_control::ControlError),
    /// An image could not be read or written.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// An image could not be fetched from its server.
    #[error("cannot fetch {url}: {reason}")]
    ImageNotFetched {
        /// The image, without what may be secret of its URL.
        url: String,
        /// Why not.
        reason: String,
    },
    /// An image is not the one that was meant.
    #[error(
        "{image} is another file than that with the checksum {expected}: it was changed, or the checksum is of another \
         one; nothing of it was used"
    )]
    ImageChecksum {
        /// The image.
        image: String,
        /// The stated checksum.
        expected: String,
    },
    /// An archive of a VM is not taken.
    #[error("{path}: {error}")]
    Ova {
        /// The archive.
        path: PathBuf,
        /// Why not.
        error: OvaError,
    },
    /// An export would overwrite a file.
    #[error("{path} exists already; choose another name, or remove it first")]
    DestinationExists {
        /// The destination.
        path: PathBuf,
    },
    /// A volume failed while it was read or written.
    #[error("{path} failed: {error}")]
    Transfer {
        /// The volume.
        path: PathBuf,
        /// Why.
        error: TransferError,
    },
    /// The findings of a check, as a sentence.
    #[error("{0}")]
    Unsound(String),
    /// The screen of the VM is unavailable.
    #[error("{0}")]
    NoScreen(String),
    /// The command line is invalid.
    #[error("{0}")]
    Usage(String),
    /// The user answered no.
    #[error("nothing was changed")]
    Declined,
    /// A signal interrupted the command.
    #[error("interrupted")]
    Interrupted,
    /// Writing to stdout failed.
    #[error("cannot write the answer: {0}")]
    Output(io::Error),
}

impl CliError {
    /// The error of a transfer between a volume and a file, which was to be used as `action` says,
    /// such as "read".
    pub fn transfer(error: TransferError, volume: &Path, action: &'static str, file: &Path) -> Self {
        match error {
            TransferError::Stopped => Self::Interrupted,
            TransferError::File(error) => Self::File(FileError { action, path: file.to_owned(), error }),
            error => Self::Transfer { path: volume.to_owned(), error },
        }
    }

    /// The error that the control plane reports.
    pub fn problem(problem: &Problem) -> Self {
        let code = serde_json::to_value(problem.code).unwrap_or_default();
        let next = problem.next_step.as_ref().map(|next| format!("; {next}")).unwrap_or_default();
        Self::Api {
            code: code.as_str().unwrap_or("unknown").to_owned(),
            message: format!("{}{next}", problem.message),
        }
    }

    /// The exit status: 2 for an invalid command line, 1 for all other errors.
    pub fn status(&self) -> u8 {
        if self.code() == "usage" { 2 } else { 1 }
    }

    /// Whether a volume's key is unavailable now and may become available.
    pub fn key_may_come_back(&self) -> bool {
        match self {
            Self::Key(error) | Self::Datastore(DatastoreError::Key { error, .. }) => error.may_come_back(),
            _ => false,
        }
    }

    /// A stable name for programs.
    pub fn code(&self) -> &str {
        match self {
            Self::Datastore(error) => error.code(),
            Self::Key(error) => error.code(),
            Self::Registry(error) => error.code(),
            Self::Provider(FailedProvider { error, .. }) => error.code(),
            Self::Root(_) => "root_key",
            Self::NoKeyserver { .. } | Self::NothingToRestoreInto { .. } => "no_keyserver",
            Self::KeyserverState(_) | Self::OpenKeyserver(_) => "keyserver_state",
            Self::KeyserverProcess(_) | Self::Runtime(_) => "keyserver",
            Self::Authority(_) => "authority",
            Self::Audit(_) => "audit",
            Self::HostCertificateEnded { .. } => "certificate_ended",
            Self::InventoryNotRestored(_) => "inventory_not_restored",
            Self::Backup(error) => error.code(),
            Self::Opening(_) | Self::Share { .. } => "share",
            Self::Recertify(_) => "authority",
            Self::KeyserverClient(_) => "keyserver_refused",
            Self::Secret(_) => "no_secret_memory",
            Self::Process(_) => "process",
            Self::WrongPassphrase { .. } | Self::WrongKeyFile { .. } | Self::WrongProviderKey { .. } => {
                "wrong_key"
            }
            Self::UnexpectedKek { .. } => "unexpected_kek",
            Self::NoKey { .. } => "no_key",
            Self::VmVolume { .. } => "vm_volume",
            Self::ProviderNeeded { .. } => "key_provider_needed",
            Self::PassphrasesDiffer => "passphrases_differ",
            Self::PasswordsDiffer { .. } => "passwords_differ",
            Self::File(_) => "file",
            Self::Stack(_) => "stack",
            Self::Listen(_) | Self::Lanes(_) | Self::Start(_) => "start",
            Self::Stop(_) => "stop",
            Self::Supervise(error) => match error {
                SuperviseError::Sandbox(_) | SuperviseError::Start(_) => "start",
                SuperviseError::Lost(error) => error.code(),
                SuperviseError::Revoked { .. } => "key_revoked",
                SuperviseError::Stop(_) => "stop",
                SuperviseError::Wait(_) => "signals",
            },
            Self::Control(error) => error.code(),
            Self::SnapshotGroup(error) => error.code(),
            Self::NotExposed { .. } => "not_exposed",
            Self::Tls(_) => "tls",
            Self::Job(error) => error.code(),
            Self::Processes(error) => error.code(),
            Self::Signals(_) => "signals",
            Self::Leases(_) => "leases",
            Self::Api { code, .. } => code,
            Self::Device(error) => error.code(),
            Self::Libvirt(error) => error.code(),
            Self::Hostd(_) => "hostd",
            Self::ControlPlane(_) => "control_plane",
            Self::Image(error) => error.code(),
            Self::ImageNotFetched { .. } => "image_not_fetched",
            Self::ImageChecksum { .. } => "image_checksum",
            Self::Ova { .. } => "ova",
            Self::DestinationExists { .. } => "exists",
            Self::Transfer { .. } => "transfer",
            Self::Unsound(_) => "unsound",
            Self::MergeEnded { .. } => "merge",
            Self::NoScreen(_) => "no_screen",
            Self::Usage(_) => "usage",
            Self::Declined => "declined",
            Self::Interrupted => "interrupted",
            Self::Output(_) => "output",
        }
    }

    /// Prints the error to stderr.
    pub fn report(&self, json: bool) {
        // A reader that closes stdout early, as `head` does, has all that it wants.
        if matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe) {
            return;
        }
        let message = with_next_step(without_numbers(&self.to_string()));
        let text = match json {
            true => json!({ "error": { "code": self.code(), "message": message } }).to_string(),
            false => format!("error: {}", printable(&message)),
        };
        // If stderr is closed, the error cannot be reported.
        let _ = writeln!(io::stderr(), "{text}");
    }
}

impl From<CliError> for KeyRefusal {
    fn from(error: CliError) -> Self {
        Self { code: error.code().to_owned(), message: error.to_string() }
    }
}

/// Many messages end with an error of the kernel, which has no next step.
const KERNELS_LAST_WORDS: [(&str, &str); 6] = [
    ("No such file or directory", "check the path"),
    ("Not a directory", "name a directory"),
    ("Is a directory", "name a file"),
    ("Permission denied", "run this as a user who has the right to it"),
    ("Read-only file system", "choose another place, or mount it writable"),
    ("No space left on device", "free some space, or choose another place"),
];

/// Adds a next step to a message that ends with an error of the kernel.
fn with_next_step(message: String) -> String {
    match KERNELS_LAST_WORDS.iter().find(|(said, _)| message.ends_with(said)) {
        Some((_, next)) => format!("{message}; {next}"),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_not_the_last_word() {
        let text = "cannot open a: Permission denied".to_owned();
        assert_eq!(
            with_next_step(text),
            "cannot open a: Permission denied; run this as a user who has the right to it"
        );
        let text = "cannot open a: Permission denied; run: chmod 600 a";
        assert_eq!(with_next_step(text.to_owned()), text);
    }
}
