//! `strongroom volume expose`.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Gid, fstat, stat};
use serde::Serialize;
use strongroom_datastore::file::{Access, Deks, OpenLayer, Protection, VolumeHead};
use strongroom_files::FileError;
use strongroom_frontend::listen::{self, Listener};
use strongroom_frontend::nbd;
use strongroom_frontend::vhost_user_blk::QUEUES_MAX;
use strongroom_keys::Kek;
use strongroom_libvirt::device::SUGGESTED_QUEUES;
use strongroom_processes::Signals;
use strongroom_types::{display_bytes, shell_word, without_numbers};
use strongroom_worker::birth::Frontend;
use strongroom_worker::placement::NumaNode;
use strongroom_worker::supervise::{
    Birthright, Exposure, StarterBirth, StarterProcess, Supervisor, VolumeKek, VolumeSeal, Workers, confine,
    limit_page,
};

use super::attach::{Attachment, Show};
use super::key_events;
use super::open::OpenArguments;
use super::target::{AddressArguments, Target, TlsArguments};
use crate::error::CliError;
use crate::keys::VolumeKey;
use crate::limits::LimitArguments;
use crate::output::Output;
use crate::readiness;
use crate::worker::{STARTER_COMMAND, this_program};

/// The interval of requests for an unavailable key.
const KEY_RETRY: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// The arguments of `expose`.
#[derive(Debug, Args)]
#[command(
    after_help = "Runs in the foreground. When clients can connect, the first line on stdout is the NBD \
URI, or for vhost-user the socket's path. SIGTERM, SIGINT (Control-C) and SIGHUP end it after requests \
in flight are completed and flushed.

The volume is served by a worker, a separate process without privileges, without the volume's \
key-encryption key, and unable to open files. A worker that dies is replaced at once, and its clients \
see a pause. While the volume is exposed, 'volume resize' and 'volume upgrade' work on it; neither needs \
its key.

A key from a key provider is held in memory under a lease. While the provider cannot be reached, the \
volume stays available, and 'volume info' shows the outage. A key that is revoked or destroyed is wiped \
from memory; 'key-provider add --on-revocation' sets what then happens to the volume.

Over TCP every client needs a certificate that is signed by the authority and names an identity given \
with --authorize: dns:NAME, uri:URI, or sha256:FINGERPRINT. No data is sent without TLS.

Examples:
  strongroom volume expose ./ds/vm1
  strongroom volume expose ./ds/vm1 --nbd unix:/run/vm1.sock
  strongroom volume expose ./ds/vm1 --vhost-user unix:/run/vm1.sock --show libvirt
  strongroom volume expose ./ds/vm1 --vhost-user unix:/run/vm1.sock --numa-node 1
  strongroom volume expose ./ds/vm1 --vhost-user unix:/run/vm1.sock --iops 2000 --bandwidth 100M
  strongroom volume expose ./ds/vm1 --nbd tcp:[::]:10809 --key-file vm1.key \\
    --authorize dns:host1.example.org --tls-ca ca.pem --tls-cert cert.pem --tls-key key.pem"
)]
pub struct ExposeArguments {
    /// Path of the volume
    path: PathBuf,

    #[command(flatten)]
    address: AddressArguments,

    /// Group, by name or number, whose members may connect to the unix socket, too: mode 0660
    /// instead of 0600. QEMU may run as another user, as guests of libvirt do
    #[arg(long, value_name = "GROUP", value_parser = parse_group)]
    socket_group: Option<Gid>,

    /// Refuse writes; others can read the volume at the same time
    #[arg(long)]
    read_only: bool,

    /// Form of the printed instructions for connecting; --json prints all of them
    #[arg(long, value_enum, value_name = "FORM", default_value_t)]
    show: Show,

    /// NUMA node of the VM, for the worker to run on. 'auto' is the node of the volume's device;
    /// 'none' leaves it to the kernel
    #[arg(long, value_name = "N|auto|none", default_value_t)]
    numa_node: NumaNode,

    #[command(flatten)]
    limits: LimitArguments,

    /// Expose a volume that 'volume encrypt' or 'volume decrypt' has not finished: some of its
    /// layers are clear, and with 'decrypt' so is what is written
    #[arg(long, value_name = "JOB")]
    unfinished: Option<UnfinishedJob>,

    /// Read the new key from FILE, of a volume whose 'volume rekey --data --to-key-file FILE' is
    /// not finished; --key-file gives the present one
    #[arg(long, value_name = "FILE")]
    next_key_file: Option<PathBuf>,

    /// Fail if the volume's key is unavailable, instead of waiting for it
    #[arg(long)]
    no_key_wait: bool,

    #[command(flatten)]
    open: OpenArguments,

    #[command(flatten)]
    tls: TlsArguments,
}

/// A job that leaves clear layers in an encrypted volume until it is finished.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum UnfinishedJob {
    /// `volume encrypt`
    Encrypt,
    /// `volume decrypt`
    Decrypt,
}

impl UnfinishedJob {
    fn seal(self) -> VolumeSeal {
        match self {
            Self::Encrypt => VolumeSeal::Encrypting,
            Self::Decrypt => VolumeSeal::Decrypting,
        }
    }
}

/// An open volume, for two processes, and its keys.
struct OpenedApart {
    head: VolumeHead,
    layer: OpenLayer,
    deks: Deks,
    key: VolumeKey,
    /// The key of new DEKs, of a volume whose data keys are being renewed under another one.
    next: Option<Kek>,
}

#[derive(Serialize)]
struct Exposed {
    path: PathBuf,
    #[serde(flatten)]
    place: Place,
    size_bytes: u64,
    encrypted: bool,
    read_only: bool,
    /// The process that exposes the volume: this one.
    pid: u32,
    /// The process that serves it, which can die and be replaced.
    worker_pid: Option<u32>,
    #[serde(flatten)]
    attachment: Attachment,
    #[serde(skip)]
    show: Show,
}

/// The address for clients.
#[derive(Serialize)]
#[serde(untagged)]
enum Place {
    Nbd { uri: String, export: String },
    VhostUser { vhost_user: PathBuf },
}

impl fmt::Display for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Nbd { uri, .. } => writeln!(f, "{uri}\n")?,
            Place::VhostUser { vhost_user } => writeln!(f, "{}\n", vhost_user.display())?,
        }
        let protection = if self.encrypted { "encrypted" } else { "NOT encrypted" };
        let access = if self.read_only { ", read-only" } else { "" };
        let size = display_bytes(self.size_bytes);
        let worker = self.worker_pid.map(|pid| format!(" by worker {pid}")).unwrap_or_default();
        writeln!(
            f,
            "{} ({size}, {protection}{access}) is exposed{worker} until Control-C or SIGTERM. To use it:",
            self.path.display()
        )?;
        write!(f, "{}", self.attachment.show(self.show))?;
        if let (Place::Nbd { uri, .. }, Show::Qemu) = (&self.place, self.show) {
            let uri = shell_word(uri);
            write!(f, "\n  qemu-img info {uri}\n  nbdcopy {uri} - | sha256sum")?;
        }
        Ok(())
    }
}

impl ExposeArguments {
    /// Runs the command: exposes the volume until a signal arrives. `log` makes the worker log as
    /// this process does.
    pub fn run(&self, output: &Output, log: &[OsString]) -> Result<(), CliError> {
        let target = self.address.target(&self.tls, &self.path)?;
        if self.socket_group.is_some() && matches!(target, Target::Nbd(listen::Address::Tcp(_), _)) {
            let text = "--socket-group is for unix sockets; over tcp, --authorize says who may connect";
            return Err(CliError::Usage(text.to_owned()));
        }
        let access = if self.read_only { Access::ReadOnly } else { Access::ReadWrite };
        let OpenedApart { head, layer, deks, key, next } = match self.open_apart(access) {
            Err(error) if error.key_may_come_back() && !self.no_key_wait => {
                self.wait_for_key(output, access, error)?
            }
            opened => opened?,
        };
        let descriptor = head.descriptor();
        let (size_bytes, encrypted) = (descriptor.size_bytes.bytes(), descriptor.encryption.is_some());
        let placement =
            self.numa_node.placement(head.as_fd()).map_err(|error| CliError::Usage(error.to_string()))?;
        let signals = Signals::catch().map_err(CliError::Signals)?;

        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let read_only = self.read_only;
        let (listener, frontend, tls_key, place, attachment) = match target {
            Target::Nbd(address, tls) => {
                let listener = self.listen(&address, &head)?;
                let attachment = Attachment::nbd(listener.address(), &name, read_only);
                let (tls, key) = tls.map(|tls| (tls.public, tls.key)).unzip();
                let uri = nbd::uri(listener.address(), &name);
                let place = Place::Nbd { uri, export: name.clone() };
                (listener, Frontend::Nbd { export: name.clone(), tls }, key, place, attachment)
            }
            Target::VhostUser(socket) => {
                let listener = self.listen(&listen::Address::Unix(socket.clone()), &head)?;
                let attachment = Attachment::vhost_user(&socket, SUGGESTED_QUEUES);
                let frontend = Frontend::VhostUser { serial: name.clone(), queues_max: QUEUES_MAX };
                (listener, frontend, None, Place::VhostUser { vhost_user: socket }, attachment)
            }
        };
        let (starter, listener) = self.give_up_rights(log, &name, &head, listener)?;
        let path = self.path.clone();
        let (keyring, leases) =
            self.open.key.keyring_and_leases(move |event| key_events::tell(&path, event))?;
        let kek = VolumeKek::new(key.into_kek(), leases)?;
        let is_unfinished = head.descriptor().reencrypting.is_some();
        let kek = match (self.unfinished.filter(|_| is_unfinished), next) {
            (Some(job), _) => kek.unfinished(job.seal()),
            (None, Some(next)) => kek.and_next_kek(next),
            (None, None) => kek,
        };
        let limits = vec![limit_page(self.limits.limits())?];
        let exposure = Exposure {
            head,
            kek,
            keyring,
            listener,
            birthright: Birthright { frontend, tls_key, name, placement, limits },
            workers: Workers::of(starter),
        };
        let supervisor = Supervisor::start(exposure, layer, deks)?;
        readiness::tell("READY=1");
        output.answer(&Exposed {
            path: self.path.clone(),
            place,
            size_bytes,
            encrypted,
            read_only,
            pid: std::process::id(),
            worker_pid: supervisor.worker_id(),
            attachment,
            show: self.show,
        })?;
        Ok(supervisor.run(&signals)?)
    }

    fn open_apart(&self, access: Access) -> Result<OpenedApart, CliError> {
        let next = self.open.key.next_of(&self.path, self.next_key_file.as_deref())?;
        let opened = self.open.open_apart(&self.path, access, next.as_ref(), |key, next| {
            match (self.unfinished, key.kek(), next) {
                (Some(UnfinishedJob::Encrypt), Some(kek), _) => Protection::Encrypting(kek),
                (Some(UnfinishedJob::Decrypt), Some(kek), _) => Protection::Decrypting(kek),
                (None, Some(from), Some(to)) if from.id() != to.id() => Protection::Between { from, to },
                (_, None, _) | (None, Some(_), _) => key.protection(),
            }
        });
        let (head, layer, deks, key) = opened?;
        let next = next.filter(|next| key.kek().is_some_and(|kek| kek.id() != next.id()));
        Ok(OpenedApart { head, layer, deks, key, next })
    }

    /// From here on this process, which holds the key, parses messages of workers and of clients of
    /// the control socket. It leaves starting workers and removing the socket's file to another
    /// process, and gives up its own rights, except for the volume's directory and for fetching a
    /// key.
    fn give_up_rights(
        &self,
        log: &[OsString],
        name: &str,
        head: &VolumeHead,
        mut listener: Listener,
    ) -> Result<(Arc<StarterProcess>, Listener), CliError> {
        let birth = StarterBirth { name: name.to_owned(), socket_file: listener.file().cloned() };
        let failed =
            |error| CliError::File(FileError { action: "start", path: "/proc/self/exe".into(), error });
        let starter = StarterProcess::start(&this_program(log, STARTER_COMMAND)?, &birth).map_err(failed)?;
        let removes = Arc::clone(&starter);
        listener.remove_by(move || removes.remove_socket_file());

        confine(head, self.open.key.files_of_providers())?;
        starter.end_with().map_err(failed)?;
        Ok((starter, listener))
    }

    /// Reports that the volume is key-unavailable, and opens it as soon as its key is available.
    /// Attempts do no damage.
    fn wait_for_key(
        &self,
        output: &Output,
        access: Access,
        error: CliError,
    ) -> Result<OpenedApart, CliError> {
        let signals = Signals::catch().map_err(CliError::Signals)?;
        let mut error = error;
        let mut told = None;
        loop {
            let why = error.to_string();
            if told.as_ref() != Some(&why) {
                output.remark(&format!("Waiting for the key. {why}"));
                readiness::tell(&format!("STATUS=Waiting for the key. {}", without_numbers(&why)));
                tracing::warn!(volume = %self.path.display(), %why, "key-unavailable; waiting");
                told = Some(why);
            }
            let mut signal = [PollFd::new(&signals, PollFlags::IN)];
            // Whether it woke early or not, it tries again.
            let _ = poll(&mut signal, Some(&KEY_RETRY));
            if signals.came() {
                return Err(CliError::Interrupted);
            }
            match self.open_apart(access) {
                Err(again) if again.key_may_come_back() => error = again,
                opened => {
                    output.remark("The key is back.");
                    return opened;
                }
            }
        }
    }

    /// Listens on the socket, which must not be in the volume's own directory.
    fn listen(&self, address: &listen::Address, head: &VolumeHead) -> Result<Listener, CliError> {
        if let listen::Address::Unix(socket) = address
            && let (Some(Ok(parent)), Some(Ok(volume))) = (socket.parent().map(stat), head.as_fd().map(fstat))
            && (parent.st_dev, parent.st_ino) == (volume.st_dev, volume.st_ino)
        {
            let (socket, volume) = (socket.display(), self.path.display());
            return Err(CliError::Usage(format!("{socket} is inside of {volume}; choose a place beside it")));
        }
        Ok(Listener::bind_for(address, self.socket_group)?)
    }
}

/// A group by its name or number.
fn parse_group(text: &str) -> Result<Gid, String> {
    if let Ok(number) = text.parse::<u32>() {
        return Ok(Gid::from_raw(number));
    }
    match nix::unistd::Group::from_name(text) {
        Ok(Some(group)) => Ok(Gid::from_raw(group.gid.as_raw())),
        Ok(None) => Err(format!("this machine has no group '{text}'")),
        Err(errno) => Err(format!("groups cannot be looked up: {}", errno.desc())),
    }
}
