//! The volumes of a running VM, each served on a thread of its own.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use strongroom_datastore::file::{
    Access, DatastoreError, Descriptor, OpenOptions, Protection, Provisioning, Reencrypting, describe,
    open_apart,
};
use strongroom_frontend::listen::{Address, ListenError, Listener};
use strongroom_frontend::vhost_user_blk::QUEUES_MAX;
use strongroom_host::protocol::{Disk, DiskBecomes, DiskFrontend, DiskKey, DiskName, Problem, VmSpec};
use strongroom_host::run_directory::VmRunDirectory;
use strongroom_keys::{Kek, KekSource, KeyError, MissingKey};
use strongroom_types::IoLimits;
use strongroom_worker::birth::Frontend;
use strongroom_worker::control::Status;
use strongroom_worker::placement::Placement;
use strongroom_worker::supervise::{
    AwaitedVolume, Birthright, Counters, Exposure, LimitPage, ServedSeal, Standby, SuperviseError,
    Supervisor, VolumeKek, VolumeSeal, limit_page,
};
use strongroom_worker::{MergeError, change_over};
use thiserror::Error;

use crate::keys::VmKeys;
use crate::own_volume::OwnVolumeError;
use crate::seal;
use crate::starter::Starter;

/// How long the last I/O of a dead supervisor's worker may take, which first drains its guest's
/// requests.
const LOCK_WAIT: Duration = Duration::from_secs(30);
/// The longest serial number of a virtio disk, in bytes (virtio 1.2, 5.2.6).
const SERIAL_BYTES_MAX: usize = 20;

/// Why a volume is not served.
#[derive(Debug, Error)]
pub enum VolumeError {
    /// The volume, or its key in the descriptor, is invalid.
    #[error(transparent)]
    Datastore(#[from] DatastoreError),
    /// Its key is unavailable.
    #[error("{volume}: {error}")]
    Key {
        /// The volume.
        volume: PathBuf,
        /// The error.
        error: KeyError,
    },
    /// Its socket cannot be made.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Its worker failed.
    #[error(transparent)]
    Supervise(#[from] SuperviseError),
    /// It is not as the control plane requires.
    #[error("{volume} is {found}, and should be {wanted}: somebody has put another volume in its place")]
    NotAsDecided {
        /// The volume.
        volume: PathBuf,
        /// Its actual property.
        found: String,
        /// The required property.
        wanted: String,
    },
    /// A swap disk could not be made.
    #[error(transparent)]
    Own(#[from] OwnVolumeError),
    /// A half-clear disk does not get a top of its new sort.
    #[error("{volume}: {error}")]
    NotChangedOver {
        /// The volume.
        volume: PathBuf,
        /// The error.
        error: MergeError,
    },
    /// A system call failed.
    #[error("{action}: {error}")]
    System {
        /// The action.
        action: &'static str,
        /// The error.
        error: io::Error,
    },
}

impl VolumeError {
    /// Returns the missing key with the reason, if it may become available.
    pub fn missing_key(&self) -> Option<MissingKey<'_>> {
        match self {
            Self::Own(error) => error.missing_key(),
            Self::Key { error, .. } | Self::Datastore(DatastoreError::Key { error, .. }) => {
                error.missing_key()
            }
            _ => None,
        }
    }

    /// The problem for hostd.
    pub fn problem(&self) -> Problem {
        let code = match self {
            Self::Datastore(error) => error.code(),
            Self::Key { error, .. } => error.code(),
            Self::Listen(_) => "listen",
            Self::Supervise(_) => "worker",
            Self::NotAsDecided { .. } => "not_as_decided",
            Self::Own(error) => return error.problem(),
            Self::NotChangedOver { error: MergeError::Datastore(error), .. } => error.code(),
            Self::NotChangedOver { .. } => "not_reencrypted",
            Self::System { .. } => "system",
        };
        Problem::new(code, self.to_string())
    }
}

/// The context that the volumes of one VM share.
#[derive(Debug)]
pub struct VolumeHost<'a> {
    /// Their keys.
    pub keys: &'a VmKeys,
    /// Starts their workers.
    pub starter: &'a Starter,
    /// The directory in which they are served.
    pub run: &'a VmRunDirectory,
    /// The page of the limits of all of them together.
    pub limits: &'a Arc<LimitPage>,
    /// The half-clear disk that is served only as what it becomes.
    pub changed_over: Option<&'a DiskName>,
}

/// What a volume is opened with.
struct Opened {
    kek: Option<Arc<Kek>>,
    next: Option<Arc<Kek>>,
    seal: VolumeSeal,
}

impl Opened {
    /// A volume that has one key, or none.
    fn of(kek: Option<Arc<Kek>>) -> Self {
        let seal = if kek.is_some() { VolumeSeal::Sealed } else { VolumeSeal::Clear };
        Self { kek, next: None, seal }
    }

    fn protection(&self) -> Protection<'_> {
        match (self.seal, self.kek.as_deref(), self.next.as_deref()) {
            (VolumeSeal::Clear, _, _) | (_, None, _) => Protection::Unencrypted,
            (VolumeSeal::Encrypting, Some(kek), _) => Protection::Encrypting(kek),
            (VolumeSeal::Decrypting, Some(kek), _) => Protection::Decrypting(kek),
            (VolumeSeal::Sealed, Some(from), Some(to)) => Protection::Between { from, to },
            (VolumeSeal::Sealed, Some(kek), None) => Protection::Encrypted(kek),
        }
    }
}

impl VolumeHost<'_> {
    /// Opens a disk's volume and starts its worker. QEMU finds it at the socket with this number.
    ///
    /// # Errors
    /// Also if its key is unavailable ([`VolumeError::missing_key`]).
    pub fn serve(&self, spec: &VmSpec, disk: &Disk, socket: usize) -> Result<Supervisor, VolumeError> {
        let AwaitedVolume { head, layer, deks, kek, keyring } = self.open(spec, disk)?;
        let listener = self.listen(socket)?;
        // QEMU starts after the disks, on NUMA nodes of the kernel's choice.
        let placement = head.as_fd().and_then(Placement::near_device);
        let birthright = self.birthright(spec, disk, placement)?;
        let exposure = Exposure { head, kek, keyring, listener, birthright, workers: self.starter.workers() };
        Ok(Supervisor::start(exposure, layer, deks)?)
    }

    /// Starts the worker of a disk whose volume another host has, and makes sure that its key is
    /// here. Reads its descriptor alone, unless it `comes` from there and has no name yet.
    ///
    /// # Errors
    /// As [`serve`](Self::serve).
    pub fn stand_by(
        &self,
        spec: &VmSpec,
        disk: &Disk,
        socket: usize,
        comes: Option<&Descriptor>,
    ) -> Result<Standby, VolumeError> {
        let path = spec.volume_path(&disk.name);
        let descriptor = match comes {
            Some(descriptor) => descriptor.clone(),
            None => describe(&path)?.descriptor,
        };
        descriptor.expect_volume(&path, disk.volume)?;
        self.whole(&path, disk, &descriptor)?;
        let discards = descriptor.provisioning == Provisioning::Thin;
        let (listener, birthright) = (self.listen(socket)?, self.birthright(spec, disk, None)?);
        let workers = self.starter.workers();
        Ok(Standby::start(listener, birthright, workers, descriptor.size_bytes, discards)?)
    }

    /// Opens a disk's volume, with its keys.
    ///
    /// # Errors
    /// As [`serve`](Self::serve).
    pub fn open(&self, spec: &VmSpec, disk: &Disk) -> Result<AwaitedVolume, VolumeError> {
        let path = spec.volume_path(&disk.name);
        let descriptor = describe(&path)?.descriptor;
        let opened = match disk.key {
            DiskKey::HalfClear { becomes, .. } => self.half_clear(&path, disk, &descriptor, becomes)?,
            DiskKey::Provider { .. } | DiskKey::Unencrypted => self.whole(&path, disk, &descriptor)?,
        };
        let protection = opened.protection();
        let least_generation = disk.least_generation;
        let options =
            OpenOptions { protection, access: Access::ReadWrite, lock_wait: LOCK_WAIT, least_generation };
        let (head, layer, deks) = open_apart(&path, &options)?;
        head.descriptor().expect_volume(&path, disk.volume)?;
        let system = |action| move |error: io::Error| VolumeError::System { action, error };
        let leases = self.keys.leases().map_err(system("cannot watch leases"))?;
        let provider_key = |kek: &Kek| match kek.source() {
            KekSource::Provider(key) => Ok(key.clone()),
            other => Err(not_as_decided(&path, other.name(), "under a provider's key")),
        };
        let mut kek = match opened.kek.as_deref().filter(|_| opened.seal != VolumeSeal::Clear) {
            Some(kek) => VolumeKek::leased(provider_key(kek)?, kek.id(), leases).unfinished(opened.seal),
            None => VolumeKek::none_of_a_vm(leases),
        };
        if let Some(next) = &opened.next {
            kek = kek.and_next(provider_key(next)?, next.id());
        }
        Ok(AwaitedVolume { head, layer, deks, kek, keyring: self.keys.keyring() })
    }

    /// Listens where QEMU finds a disk.
    fn listen(&self, socket: usize) -> Result<Listener, VolumeError> {
        let system = |action| move |error: io::Error| VolumeError::System { action, error };
        let path_of_socket = self.run.disk_socket(socket);
        // No process listens there any more: the listener held the volume, which is now locked by
        // this process.
        match std::fs::remove_file(&path_of_socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(system("cannot remove the socket of a disk that was served before")(error));
            }
            _ => {}
        }
        let listener = Listener::bind(&Address::Unix(path_of_socket))?;
        self.starter
            .give_socket(socket)
            .map_err(io::Error::other)
            .map_err(system("cannot give a disk's socket to QEMU's user"))?;
        Ok(listener)
    }

    fn birthright(
        &self,
        spec: &VmSpec,
        disk: &Disk,
        placement: Option<Placement>,
    ) -> Result<Birthright, VolumeError> {
        let name = format!("{}-{}", spec.name, disk.name);
        let limits = vec![limit_page(disk.limits)?, Arc::clone(self.limits)];
        Ok(Birthright { frontend: frontend(disk), tls_key: None, name, placement, limits })
    }

    /// What opens a volume that is encrypted as a whole, or not at all.
    fn whole(&self, path: &Path, disk: &Disk, descriptor: &Descriptor) -> Result<Opened, VolumeError> {
        let kek = self.kek(path, disk, descriptor)?;
        let next = self.keys.hold_next_for(&disk.key, descriptor);
        let next = next.map_err(|error| VolumeError::Key { volume: path.to_owned(), error })?;
        let next = next.filter(|next| kek.as_ref().is_some_and(|kek| kek.id() != next.id()));
        Ok(Opened { next, ..Opened::of(kek) })
    }

    /// What opens the volume of a half-clear disk, which a dead supervisor has served. That some of
    /// its layers may be clear, and of which sort writes are, is what the VM's state says, and
    /// never read from the datastore: a disk that becomes encrypted gets a sealed top first, unless
    /// it has one. The one that becomes clear is served as it is until the request is repeated.
    fn half_clear(
        &self,
        path: &Path,
        disk: &Disk,
        descriptor: &Descriptor,
        becomes: DiskBecomes,
    ) -> Result<Opened, VolumeError> {
        let kek = self.held(path, disk, descriptor)?;
        let seal = match (&descriptor.encryption, descriptor.reencrypting) {
            (None, _) => VolumeSeal::Clear,
            (Some(_), None) => VolumeSeal::Sealed,
            (Some(_), Some(Reencrypting::Encrypted { .. })) => VolumeSeal::Encrypting,
            (Some(_), Some(Reencrypting::Clear {})) => VolumeSeal::Decrypting,
        };
        let opened = Opened { kek, next: None, seal };
        match (becomes, seal) {
            (DiskBecomes::Clear, _)
            | (DiskBecomes::Encrypted, VolumeSeal::Sealed | VolumeSeal::Encrypting) => Ok(opened),
            (DiskBecomes::Encrypted, VolumeSeal::Clear | VolumeSeal::Decrypting)
                if self.changed_over == Some(&disk.name) =>
            {
                Err(not_as_decided(path, "not encrypted", "being encrypted"))
            }
            (DiskBecomes::Encrypted, VolumeSeal::Clear | VolumeSeal::Decrypting) => {
                descriptor.expect_volume(path, disk.volume)?;
                let encrypting = Opened { kek: opened.kek.clone(), next: None, seal: VolumeSeal::Encrypting };
                let before = OpenOptions {
                    protection: opened.protection(),
                    access: Access::ReadWrite,
                    lock_wait: LOCK_WAIT,
                    least_generation: disk.least_generation,
                };
                change_over(path, &before, encrypting.protection(), seal::tags(disk))
                    .map_err(|error| VolumeError::NotChangedOver { volume: path.to_owned(), error })?;
                Ok(encrypting)
            }
        }
    }

    /// Returns the disk's configured key, which must be the one that its volume is under. During a
    /// move to another key, either is accepted.
    fn kek(
        &self,
        path: &Path,
        disk: &Disk,
        descriptor: &Descriptor,
    ) -> Result<Option<Arc<Kek>>, VolumeError> {
        match (&disk.key, &descriptor.encryption) {
            (DiskKey::Unencrypted, None) => return Ok(None),
            (DiskKey::Unencrypted, Some(_)) => {
                return Err(not_as_decided(path, "encrypted", "not encrypted"));
            }
            (DiskKey::Provider { .. }, None) => {
                return Err(not_as_decided(path, "not encrypted", "encrypted"));
            }
            (DiskKey::HalfClear { .. }, _) => {
                return Err(not_as_decided(path, "being encrypted or decrypted", "done with that"));
            }
            (DiskKey::Provider { .. }, Some(_)) => {}
        }
        self.held(path, disk, descriptor)
    }

    /// The disk's key, which is held from now on.
    fn held(
        &self,
        path: &Path,
        disk: &Disk,
        descriptor: &Descriptor,
    ) -> Result<Option<Arc<Kek>>, VolumeError> {
        match self.keys.hold_for(&disk.key, Some(descriptor)) {
            Err(KeyError::WrongKek { given, .. }) => {
                let found = format!("under KEK {given}");
                Err(not_as_decided(path, &found, "under the one that was recorded"))
            }
            held => held.map_err(|error| VolumeError::Key { volume: path.to_owned(), error }),
        }
    }
}

fn not_as_decided(volume: &Path, found: &str, wanted: &str) -> VolumeError {
    VolumeError::NotAsDecided {
        volume: volume.to_owned(),
        found: found.to_owned(),
        wanted: wanted.to_owned(),
    }
}

/// Whether a disk of a VM may have this frontend.
pub(super) fn is_of_a_disk(frontend: &Frontend) -> bool {
    match frontend {
        Frontend::VhostUser { serial, queues_max } => {
            serial.len() <= SERIAL_BYTES_MAX && *queues_max == QUEUES_MAX
        }
        Frontend::Nbd { export, tls } => tls.is_none() && export.parse::<DiskName>().is_ok(),
    }
}

fn frontend(disk: &Disk) -> Frontend {
    let mut serial = disk.name.to_string();
    serial.truncate(SERIAL_BYTES_MAX);
    match disk.frontend {
        DiskFrontend::VhostUser => Frontend::VhostUser { serial, queues_max: QUEUES_MAX },
        DiskFrontend::Nbd => Frontend::Nbd { export: disk.name.to_string(), tls: None },
    }
}

/// News of a volume.
#[derive(Debug)]
pub enum VolumeNews {
    /// Its status.
    Status(Box<Status>),
    /// It is closed, and its worker keeps QEMU's session.
    Released(Box<Standby>),
    /// It is no longer served.
    Ended(Result<(), SuperviseError>),
}

/// A volume that is served on its own thread.
#[derive(Debug)]
pub struct ServedVolume {
    stop: OwnedFd,
    keeps_sessions: Arc<AtomicBool>,
    counters: Option<Counters>,
    limits: Option<Arc<LimitPage>>,
    seal: ServedSeal,
}

impl ServedVolume {
    /// Keeps a volume served until it is told to stop. `tell` is called on the volume's thread.
    ///
    /// # Errors
    /// If the thread cannot be started; the volume is then not served.
    pub fn run(
        supervisor: Supervisor,
        name: &str,
        tell: impl Fn(VolumeNews) + Clone + Send + 'static,
    ) -> io::Result<Self> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let (theirs, counters) = (stop.try_clone()?, supervisor.counters());
        let (limits, seal) = (supervisor.limits(), supervisor.seal());
        let keeps_sessions = Arc::new(AtomicBool::new(false));
        let keeps = Arc::clone(&keeps_sessions);
        thread::Builder::new().name(format!("volume {name}")).spawn(move || {
            let status = tell.clone();
            let supervisor =
                supervisor.observed_by(move |now| status(VolumeNews::Status(Box::new(now.clone()))));
            tell(match supervisor.run_until(&theirs.as_fd(), &keeps) {
                Ok(Some(standby)) => VolumeNews::Released(Box::new(standby)),
                Ok(None) => VolumeNews::Ended(Ok(())),
                Err(error) => VolumeNews::Ended(Err(error)),
            });
        })?;
        Ok(Self { stop, keeps_sessions, counters, limits, seal })
    }

    /// What its workers count, if they do.
    pub fn counters(&self) -> Option<&Counters> {
        self.counters.as_ref()
    }

    /// Sets other limits, for requests that wait too.
    pub fn limit(&self, limits: IoLimits) {
        if let Some(page) = &self.limits {
            page.set(limits);
        }
    }

    /// Which of its layers are sealed, and what it may become.
    pub fn seal(&self) -> &ServedSeal {
        &self.seal
    }

    /// Makes it drain and close, and its worker keep QEMU's session; reported as news.
    pub fn release(&self) {
        self.keeps_sessions.store(true, Ordering::Relaxed);
        self.stop();
    }

    /// Makes it drain, flush and end; the end is reported as news.
    pub fn stop(&self) {
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
    }
}
