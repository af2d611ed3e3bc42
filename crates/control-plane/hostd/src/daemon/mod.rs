//! hostd: the daemon of one host.
//!
//! It knows the VMs of the host's datastores and starts a supervisor for each VM that should run;
//! the supervisor, not hostd, holds keys and disks. So hostd can exit, be killed or be upgraded at
//! any moment, and its successor finds every VM again: `<run>/vms` lists the running VMs, and the
//! datastores hold all of them. hostd's own memory (operations, tickets, change numbers) lasts for
//! one run, and its protocol says so.

mod another_host;
pub mod capacity;
mod changes;
mod clusters;
pub mod config;
mod disk_moves;
mod disk_switches;
mod fits;
mod group;
mod guest;
mod http;
mod image_jobs;
mod link;
mod live_moves;
mod networks;
mod operations;
mod port;
mod processor_time;
mod queue;
mod relay;
mod residence;
mod service;
mod statistics;
mod term;
mod tickets;
mod unrecorded;
mod vms;
mod volume_readings;

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener as BlockingListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, Mode, flock};
use strongroom_datastore::file::storage::{CLUSTERS, cluster_of, cluster_path};
use strongroom_host::orders::{Birth, Task};
use strongroom_host::protocol::{
    ChangedObject, Datastore, DatastoreRequest, DatastoreState, FORMATS, FencingRequest, Grant, Host,
    ObservedVm, Problem, Ticket, TicketRequest,
};
use strongroom_host::run_directory::HostRunDirectory;
use strongroom_host::served::fillable;
use strongroom_hypervisor::{Launcher, QemuProgram};
use strongroom_rbd::process::StorageProgram;
use strongroom_types::{CephMount, DatastoreId, unix_milliseconds_now};
use thiserror::Error;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Handle;

pub use self::changes::ChangeLog;
use self::clusters::{Clusters, Connection, Follower};
use self::config::{DATASTORES_MAX, DatastoreConfig, HostConfig};
use self::disk_switches::DiskSwitches;
use self::image_jobs::ImageJobs;
pub use self::link::SupervisorProgram;
use self::operations::blocking;
pub use self::port::{PortConfig, PortOptions, PortTls};
pub use self::queue::{Failure as OperationFailure, Job, Queue};
pub use self::relay::RelayProgram;
use self::relay::Relays;
use self::residence::Residences;
pub use self::service::HostService;
pub use self::term::Terms;
use self::tickets::{TicketFor, Tickets};
use self::vms::Vms;
pub use self::vms::no_such_vm;
use self::volume_readings::Readers;
use crate::checks::{Root, crypto_safe};

/// Records where volumes are: before a key is destroyed, the volumes that need it are looked up
/// there.
pub trait DatastoreNotes: Debug + Send + Sync {
    /// Notes that volumes will be in this directory. Durable when it returns.
    ///
    /// # Errors
    /// If it cannot be noted. hostd then does not use the directory.
    fn note(&self, path: &Path) -> io::Result<()>;

    /// Notes that volumes will be in this datastore on a cluster. Durable when it returns.
    ///
    /// # Errors
    /// As for a directory.
    fn note_on_cluster(&self, datastore: DatastoreId, mount: &CephMount) -> io::Result<()>;
}

/// The options of a hostd.
#[derive(Clone, Debug)]
pub struct Options {
    /// hostd's own directory: its configuration, and the key provider configuration for
    /// supervisors.
    pub home: PathBuf,
    /// Notified of each datastore before it is used.
    pub notes: Arc<dyn DatastoreNotes>,
    /// The directory for files that last as long as processes.
    pub run: PathBuf,
    /// The command that starts a supervisor.
    pub supervisor: SupervisorProgram,
    /// The command that is a storage process.
    pub storage: StorageProgram,
    /// The command that is a relay of VMs' memories.
    pub relay: RelayProgram,
    /// The command that starts the processes of a network.
    pub launcher: Launcher,
    /// The port for a control plane on another machine.
    pub port: Option<PortOptions>,
}

/// Why hostd cannot run.
#[derive(Debug, Error)]
pub enum DaemonError {
    /// The port cannot be opened.
    #[error("hostd cannot listen on {address}: {error}")]
    Port {
        /// Its address.
        address: SocketAddr,
        /// The error.
        error: io::Error,
    },
    /// Another hostd is running.
    #[error("another hostd runs with the run directory {0}")]
    Running(PathBuf),
    /// A system call failed.
    #[error("hostd cannot {action}: {error}")]
    System {
        /// The action.
        action: &'static str,
        /// The error.
        error: io::Error,
    },
}

fn system(action: &'static str) -> impl FnOnce(io::Error) -> DaemonError {
    move |error| DaemonError::System { action, error }
}

/// Serves a host's requests at a port until it is dropped. It has no guests.
pub async fn serve_at_port(service: Arc<impl HostService>, listener: TcpListener, tls: Arc<dyn PortTls>) {
    port::serve(http::router(service), None, listener, tls).await;
}

/// The daemon.
#[derive(Debug)]
pub struct Hostd {
    home: PathBuf,
    notes: Arc<dyn DatastoreNotes>,
    run: HostRunDirectory,
    supervisor: SupervisorProgram,
    launcher: Launcher,
    config: Mutex<HostConfig>,
    clusters: Clusters,
    terms: Terms,
    residences: Residences,
    switches: DiskSwitches,
    relay: RelayProgram,
    relays: Relays,
    vms: Vms,
    queue: Queue,
    changes: Arc<ChangeLog>,
    tickets: Tickets,
    image_jobs: ImageJobs,
    readers: Readers,
    runtime: Handle,
    port: Option<PortOptions>,
    /// Notified when there may be work.
    work: tokio::sync::Notify,
    ending: AtomicBool,
}

/// Runs until `shutdown` completes. VMs keep running.
///
/// # Errors
/// If another hostd is running, or the sockets cannot be opened. A datastore or a VM that cannot be
/// read is only logged.
pub async fn run(options: Options, shutdown: impl Future<Output = ()>) -> Result<(), DaemonError> {
    let run = HostRunDirectory::at(&options.run).map_err(system("use its run directory"))?;
    let lock = take_lock(&run)?;
    let config = HostConfig::of_home(&options.home).map_err(system("read its configuration"))?;
    if let Err(error) = config.make_boot_directory(&options.home) {
        tracing::warn!("the directory for kernels and CD-ROM images cannot be made: {error}");
    }
    let terms = Terms::of_home(&options.home).map_err(system("read the control plane's term"))?;
    let residences = Residences::of_home(&options.home).map_err(system("read which VMs have left"))?;
    let changes = Arc::new(ChangeLog::default());
    let hostd = Arc::new(Hostd {
        terms,
        residences,
        switches: DiskSwitches::of_home(&options.home),
        relay: options.relay,
        relays: Relays::default(),
        home: options.home,
        notes: options.notes,
        supervisor: options.supervisor,
        launcher: options.launcher,
        clusters: Clusters::new(options.storage, config.name.clone()),
        vms: Vms::new(Arc::clone(&changes)),
        queue: Queue::new(Arc::clone(&changes), config.reencryptions_max),
        changes,
        tickets: Tickets::default(),
        image_jobs: ImageJobs::default(),
        readers: Readers::default(),
        runtime: Handle::current(),
        port: options.port.clone(),
        work: tokio::sync::Notify::new(),
        ending: AtomicBool::new(false),
        config: Mutex::new(config),
        run,
    });
    let looking = Arc::clone(&hostd);
    tokio::task::spawn_blocking(move || looking.look_around())
        .await
        .map_err(io::Error::other)
        .flatten()
        .map_err(system("find what runs"))?;
    let guest = listen(&hostd.run.guest_socket()).map_err(system("listen"))?;
    guest::serve(&hostd, guest).map_err(system("listen"))?;
    let control = listen(&hostd.run.control_socket()).map_err(system("listen"))?;
    control.set_nonblocking(true).map_err(system("listen"))?;
    let control = UnixListener::from_std(control).map_err(system("listen"))?;
    tracing::info!("hostd listens on {}", hostd.run.control_socket().display());
    let router = http::router(Arc::clone(&hostd));
    let port = match options.port {
        Some(port) => Some(open_port(port).await?),
        None => None,
    };
    let by_port = async {
        match port {
            Some((listener, tls)) => {
                port::serve(router.clone(), Some(Arc::clone(&hostd)), listener, tls).await;
            }
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = http::serve(router.clone(), control) => {}
        () = by_port => {}
        () = hostd.work_off() => {}
        () = shutdown => {}
    }
    hostd.end();
    drop(lock);
    Ok(())
}

async fn open_port(
    PortOptions { listen, tls }: PortOptions,
) -> Result<(TcpListener, Arc<dyn PortTls>), DaemonError> {
    let opened = TcpListener::bind(listen).await;
    let listener = opened.map_err(|error| DaemonError::Port { address: listen, error })?;
    tracing::info!("hostd listens on {listen} for its control plane, and for clients with tickets");
    Ok((listener, tls))
}

impl Hostd {
    /// Finds existing and running VMs.
    fn look_around(self: &Arc<Self>) -> io::Result<()> {
        for datastore in self.config().datastores {
            match datastore.ceph {
                None => self.scan(&datastore.path),
                // A cluster that does not answer must not keep the host's VMs from being found.
                Some(_) => self.mount(&datastore, None)?,
            }
        }
        link::find_running(self)
    }

    /// Mounts a datastore on a cluster, and adds its VMs as soon as it can be read.
    fn mount(
        self: &Arc<Self>,
        datastore: &DatastoreConfig,
        connection: Option<Connection>,
    ) -> io::Result<()> {
        let (scanning, telling) = (Arc::downgrade(self), Arc::downgrade(self));
        let on_ready = move |datastore: &DatastoreConfig| {
            if let Some(hostd) = scanning.upgrade() {
                hostd.scan(&datastore.path);
            }
        };
        // Whoever asks because of that is told the new state.
        let on_change = move || {
            if let Some(hostd) = telling.upgrade() {
                hostd.changes.add(ChangedObject::Host);
            }
        };
        let follower = Follower { on_ready: Box::new(on_ready), on_change: Box::new(on_change) };
        self.clusters.mount(datastore, connection, follower)
    }

    /// The first packet of a supervisor, with the datastores on clusters that its task needs.
    fn birth(&self, run: &Path, grants: Vec<Grant>, task: Task) -> Birth {
        let config = self.config();
        let needed: Vec<_> = task.directories().iter().filter_map(|path| cluster_of(path)).collect();
        let known = config.datastores.into_iter().filter(|datastore| needed.contains(&datastore.id));
        let clusters = known.filter_map(|datastore| Some((datastore.id, datastore.ceph?))).collect();
        Birth { home: self.home.clone(), run: run.to_owned(), qemu: config.qemu, grants, clusters, task }
    }

    /// The state of a datastore.
    fn state_of(&self, datastore: &DatastoreConfig) -> Datastore {
        self.clusters.state(datastore).unwrap_or_else(|| capacity::datastore(datastore))
    }

    /// Adds the VMs in a datastore, but those that have left.
    fn scan(&self, datastore: &Path) {
        let config = self.config();
        self.vms.scan(datastore, |id| config.path_of(id), |vm| !self.residences.is_elsewhere(vm));
    }

    fn config(&self) -> HostConfig {
        self.config.lock().clone()
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
        self.queue.close();
        for socket in [self.run.control_socket(), self.run.guest_socket()] {
            let _ = std::fs::remove_file(socket);
        }
    }

    /// Runs operations, up to the limit at once.
    async fn work_off(self: &Arc<Self>) {
        loop {
            while let Some(job) = self.queue.next() {
                let hostd = Arc::clone(self);
                tokio::spawn(async move {
                    let ended = operations::carry_out(&hostd, &job).await;
                    if let Err(queue::Failure::Problem(problem)) = &ended {
                        tracing::warn!("VM {}: {} failed: {problem}", job.vm, job.request.kind.name());
                    }
                    hostd.queue.finish(&job, ended);
                    hostd.work.notify_one();
                });
            }
            self.work.notified().await;
        }
    }

    fn make_ticket(&self, now: &ObservedVm, request: TicketRequest) -> Result<Ticket, Problem> {
        let vm = now.vm;
        if let Some(spec) = request.spec() {
            self.check_spec(vm, spec)?;
        }
        match &request {
            TicketRequest::Upload { disk } => {
                let disk = now.spec.as_ref().and_then(|spec| fillable(spec, disk));
                disk.ok_or_else(|| Problem::new("no_such_disk", "the VM has no such disk to fill"))?;
            }
            TicketRequest::Check { spec, disk, .. } | TicketRequest::Export { spec, disk, .. } => {
                spec.check_whole()?;
                spec.disk(disk).ok_or_else(|| Problem::new("no_such_disk", "the VM has no such disk"))?;
            }
            TicketRequest::Volumes { spec, .. } => spec.check_whole()?,
            // Also allowed for a VM that is off.
            TicketRequest::ConsoleLog { .. } => {}
            TicketRequest::Dump { number, .. } => {
                let dumps = now.dumps.as_deref().unwrap_or_default();
                if !dumps.iter().any(|dump| dump.number == *number) {
                    let message = format!("VM {} has no dump {number}", now.name);
                    return Err(Problem::new("no_such_dump", message));
                }
            }
            TicketRequest::Console { .. } | TicketRequest::Vnc | TicketRequest::VncToLook => {
                match self.vms.link(vm) {
                    // A client with the ticket waits for the supervisor that takes over.
                    Err(problem) if problem.code == "supervisor_away" => {}
                    found => drop(found?),
                }
            }
        }
        let port = self.port.as_ref().map(PortOptions::for_guests).transpose().map_err(Problem::system)?;
        let bearer = TicketFor { vm, generation: now.generation };
        let (ticket, expires) = self.tickets.mint(bearer, request)?;
        let expires_unix_seconds = strongroom_types::unix_seconds(expires);
        Ok(Ticket { ticket, expires_unix_seconds, socket: self.run.guest_socket(), port })
    }

    async fn own_state(self: &Arc<Self>) -> Result<Host, Problem> {
        let config = self.config();
        let (running, queued) = self.queue.counts();
        let count = |found: usize| u32::try_from(found).unwrap_or(u32::MAX);
        let (epoch, vms_running) = (self.changes.epoch(), count(self.vms.running()));
        let encrypted_run = self.vms.encrypted_run();
        let findings = self.run.qemu_findings();
        let hostd = Arc::clone(self);
        blocking(move || {
            let (memory_bytes, memory_available_bytes) = capacity::memory_bytes();
            let qemu = QemuProgram::probe_once(&config.qemu, &findings).ok();
            Host {
                name: config.name.clone(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                formats: FORMATS,
                epoch,
                boot_id: capacity::boot_id(),
                now_unix_ms: Some(unix_milliseconds_now()),
                cpus: capacity::cpus(),
                cpu_model: capacity::cpu_model(),
                capabilities: capacity::capabilities(qemu.as_ref()),
                memory_bytes,
                memory_available_bytes,
                topology: capacity::topology(),
                accelerator: capacity::accelerator(qemu.as_ref()),
                programs: Some(capacity::programs(qemu.as_ref())),
                tpms_on_clusters: true,
                live_tpms: true,
                consoles_change_hands: true,
                boot_directories: config.boot_directories.clone(),
                datastores: config.datastores.iter().map(|datastore| hostd.state_of(datastore)).collect(),
                crypto_safe: crypto_safe::judge(&Root::machine(), config.crypto_safe, encrypted_run),
                vms_running,
                operations_running: count(running),
                operations_queued: count(queued),
            }
        })
        .await
    }

    /// Rescans a datastore for VMs that other programs added or removed. A datastore that is
    /// missing, or replaced by another, leaves its VMs as they are.
    fn look_through_now(&self, path: &Path) -> Result<Datastore, Problem> {
        let Some(used) = self.config().datastore(path).cloned() else {
            let message = format!("{} is no datastore of this host", path.display());
            return Err(Problem::new("no_such_datastore", message).with_next_step("add it first"));
        };
        let found = self.clusters.look(&used).unwrap_or_else(|| capacity::datastore(&used));
        if found.state == DatastoreState::Ready {
            self.scan(path);
            self.vms.forget_missing(path);
        }
        Ok(found)
    }

    fn fence_now(&self, request: FencingRequest) -> Result<(), Problem> {
        let FencingRequest { datastore, user, fencing } = request;
        let config = self.config();
        let used = config.datastores.iter().find(|used| used.id == datastore);
        let Some(mount) = used.and_then(|used| used.ceph.as_ref()) else {
            let message = format!("this host has no datastore {datastore} on a cluster");
            return Err(Problem::new("no_such_datastore", message).with_next_step("add it to the host"));
        };
        if mount.client.user == user {
            let message = format!("{user} is this host's own user");
            return Err(Problem::new("bad_request", message).with_next_step("ask another host"));
        }
        self.clusters.fence(mount, user, fencing)
    }

    fn add_datastore_now(self: &Arc<Self>, request: DatastoreRequest) -> Result<Datastore, Problem> {
        let DatastoreRequest { path, expected, ceph } = request;
        if !path.is_absolute() {
            return Err(Problem::new("bad_request", "a datastore's path is absolute"));
        }
        let (path, id, connection) = match &ceph {
            Some(wanted) => {
                let (id, connection) = self.clusters.connect(wanted, expected)?;
                (cluster_path(id), id, Some(connection))
            }
            None if path.starts_with(CLUSTERS) => {
                let message = format!("{} is a datastore on a cluster", path.display());
                return Err(Problem::new("bad_request", message)
                    .with_next_step("say which pool it is, and as which user the host reaches it"));
            }
            None => {
                capacity::may_be_used(&path, self.config().datastore(&path))?;
                let id = match expected {
                    Some(expected) => capacity::must_be(&path, expected)?,
                    None => strongroom_datastore::file::identify(&path)?,
                };
                (path, id, None)
            }
        };
        let noted = match &ceph {
            Some(mount) => self.notes.note_on_cluster(id, mount),
            None => self.notes.note(&path),
        };
        noted.map_err(Problem::system)?;
        let added = DatastoreConfig { path: path.clone(), id, ceph };
        let mut config = self.config.lock();
        if config.datastore(&path) != Some(&added) {
            let mut changed = config.clone();
            changed.datastores.retain(|datastore| datastore.path != path);
            if changed.datastores.len() >= DATASTORES_MAX {
                let message = format!("a host has at most {DATASTORES_MAX} datastores");
                return Err(Problem::new("too_many_datastores", message));
            }
            changed.datastores.push(added.clone());
            changed.write(&self.home).map_err(Problem::system)?;
            *config = changed;
        }
        drop(config);
        if let Some(connection) = connection {
            self.mount(&added, Some(connection)).map_err(Problem::system)?;
        }
        self.scan(&path);
        self.changes.add(ChangedObject::Host);
        Ok(self.state_of(&added))
    }
}

/// Ensures that only one hostd runs.
fn take_lock(run: &HostRunDirectory) -> Result<std::fs::File, DaemonError> {
    let lock = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(run.lock_file());
    let lock = lock.map_err(system("take its lock"))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(DaemonError::Running(run.path().to_owned())),
        Err(errno) => Err(system("take its lock")(errno.into())),
    }
}

/// Listens, in place of a predecessor, for hostd's own user and root only.
fn listen(path: &Path) -> io::Result<BlockingListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // The directory already excludes other users.
    let listener = BlockingListener::bind(path)?;
    rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR)?;
    Ok(listener)
}
