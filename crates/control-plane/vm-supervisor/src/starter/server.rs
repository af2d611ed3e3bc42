//! The starter's process.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::fs::{Mode, OFlags, inotify, openat};
use rustix::io::Errno;
use strongroom_confine::{Cgroup, RUN_DIRECTORY, TASKS_MAX, UidLease};
use strongroom_host::orders::RunTask;
use strongroom_host::process::ProcessIdentity;
use strongroom_host::protocol::Problem;
use strongroom_host::run_directory::VmRunDirectory;
use strongroom_host::wire::{Wire, WireError};
use strongroom_hypervisor::machine::CdromImage;
use strongroom_hypervisor::monitor::MonitorProcess;
use strongroom_hypervisor::qemu::{
    LaunchedQemu, MachineFiles, MachineProcess, NewMonitor, connect_to, give_disk_socket, start_agent_monitor,
};
use strongroom_hypervisor::swtpm::{STATE_FILE, StateGate, take_state};
use strongroom_hypervisor::{
    Isolation, Launcher, MachineSpec, Qemu, QemuIdentity, QemuProgram, RunDirectory, Swtpm,
};
use strongroom_rbd::process::{StorageProcess, StorageProgram};
use strongroom_types::DatastoreId;
use strongroom_vm::limits::DISKS_MAX;
use strongroom_worker::birth::Frontend;
use strongroom_worker::supervise::{NewWorker, Program, Quarters, StartsWorkers, WorkerStarter};

use super::{Answer, Answered, Ask, Asked, QemuSocket, keeps_tpm_apart};
use crate::clusters::Clusters;
use crate::machine::machine_spec;
use crate::volumes::is_of_a_disk;
use crate::{Programs, SupervisorError};

/// An answer, with its files.
type Done = Result<(Answer, Vec<OwnedFd>), Problem>;

/// The most workers of a VM at once: one for each disk and for UEFI's variables, and a successor
/// for each. Hot-plugged disks are not in the task, so the limit is not the number of its disks.
const WORKERS_MAX: usize = 2 * (DISKS_MAX + 1);

/// The most storage processes of a VM at once: one in use, and those before it that workers still
/// have files of.
const STORAGES_MAX: usize = 4;

/// How long storage processes that nobody uses any more may take to end: they tell the cluster. One
/// whose cluster does not answer goes on, and its cgroup is removed at the start of another VM.
const STORAGES_END_WITHIN: Duration = Duration::from_secs(30);

/// The most requests in progress; others wait. A supervisor has no more: one thread for each
/// volume, and a few others.
const ASKS_MAX: usize = 2 * WORKERS_MAX;

/// The resources of a VM: its QEMU's user, and its cgroup. Every other process gets a user of its
/// own at its start.
#[derive(Debug, Default)]
struct Belongings {
    /// The user of its QEMU, unless that is this process's own.
    user: Option<UidLease>,
    /// The cgroup that limits it.
    cgroup: Option<Arc<Cgroup>>,
}

impl Belongings {
    /// Takes new ones, as far as possible. A machine that already runs keeps its own.
    fn take(task: &RunTask) -> Self {
        let name = format!("vm-{}", task.spec.name);
        let cgroup = Cgroup::create(&name, TASKS_MAX)
            .inspect_err(|error| tracing::info!("the VM has no cgroup of its own: {error}"))
            .ok()
            .map(Arc::new);
        if !rustix::process::geteuid().is_root() {
            return Self { user: None, cgroup };
        }
        let user = match &task.adopt {
            None => UidLease::take(RUN_DIRECTORY.as_ref()),
            Some(orphan) => UidLease::join(RUN_DIRECTORY.as_ref(), orphan.qemu.uid, orphan.qemu.pid),
        };
        let user = user.inspect_err(|error| tracing::warn!("the VM gets no user of its own: {error}")).ok();
        Self { user, cgroup }
    }

    fn isolation<'a>(&'a self, launcher: &'a Launcher) -> Isolation<'a> {
        let lease = self.user.as_ref();
        Isolation {
            user: lease.map(UidLease::user),
            lease: lease.map(AsFd::as_fd),
            users: lease.map(|_| RUN_DIRECTORY.as_ref()),
            cgroup: self.cgroup.as_ref().map(|cgroup| cgroup.path()),
            ..Isolation::of_caller(launcher)
        }
    }
}

/// A process beside the workers that must be killed and reaped.
#[derive(Debug)]
enum Kept {
    Qemu(LaunchedQemu),
    Found(MachineProcess),
    Swtpm(Swtpm),
}

struct Server {
    task: RunTask,
    run: VmRunDirectory,
    qemu: PathBuf,
    cdrom: Option<CdromImage>,
    launcher: Launcher,
    workers: WorkerStarter,
    clusters: Clusters,
    storage: StorageProgram,
    /// The storage processes that have been started and not reaped.
    storages: Mutex<Vec<StorageProcess>>,
    belongings: Belongings,
    kept: Mutex<Vec<Kept>>,
    /// The monitor of the guest's agent, during a conversation with it. It is killed before another
    /// is started.
    agent_monitor: Arc<Mutex<Option<Arc<MonitorProcess>>>>,
    /// Held while another of these processes may be started.
    starting: Mutex<()>,
    turns: Turns,
}

/// The number of requests in progress.
#[derive(Debug, Default)]
struct Turns {
    taken: Mutex<usize>,
    given_back: Condvar,
}

impl Turns {
    /// Waits until it is below [`ASKS_MAX`].
    fn take(&self) {
        let mut taken = self.taken.lock();
        self.given_back.wait_while(&mut taken, |taken| *taken >= ASKS_MAX);
        *taken += 1;
    }

    fn give_back(&self) {
        *self.taken.lock() -= 1;
        self.given_back.notify_one();
    }
}

/// Serves the supervisor at the other end, until it is gone.
pub fn serve(
    task: RunTask,
    run: VmRunDirectory,
    qemu: PathBuf,
    clusters: Clusters,
    cdrom: Option<OwnedFd>,
    wire: &Wire,
    programs: &Programs,
) -> Result<(), SupervisorError> {
    let _ = rustix::thread::set_name(c"strongroom-start");
    let belongings = Belongings::take(&task);
    let worker = Program::at(&programs.this, programs.worker.clone())?;
    let workers =
        WorkerStarter::new(worker, Quarters::InCgroup(belongings.cgroup.clone())).at_most(WORKERS_MAX);
    let launcher = Launcher::this_program(programs.launcher.iter().cloned());
    let cdrom = cdrom.map(CdromImage::new);
    let server = Arc::new(Server {
        task,
        run,
        qemu,
        cdrom,
        launcher,
        workers,
        clusters,
        storage: programs.storage(),
        storages: Mutex::default(),
        belongings,
        kept: Mutex::default(),
        agent_monitor: Arc::default(),
        starting: Mutex::default(),
        turns: Turns::default(),
    });
    loop {
        match wire.receive::<Asked>() {
            Ok((asked, files)) => {
                server.turns.take();
                let server = Arc::clone(&server);
                let work = move || {
                    server.answer(asked, files);
                    server.turns.give_back();
                };
                thread::Builder::new().name("start".to_owned()).spawn(work)?;
            }
            Err(WireError::Gone) => break,
            Err(error) => tracing::error!("the VM's supervisor is not understood: {error}"),
        }
    }
    // Without a supervisor, the monitors have no purpose.
    server.kept.lock().iter_mut().for_each(Kept::end_monitor);
    if let Some(monitor) = server.agent_monitor.lock().take() {
        monitor.end();
    }
    server.workers.wait_for_all();
    // QEMU outlives a killed supervisor, and keeps its cgroup.
    let lives = server.kept.lock().iter().any(Kept::is_alive);
    if lives {
        std::process::exit(0);
    }
    // The cgroup can be removed once they have left it.
    let deadline = Instant::now() + STORAGES_END_WITHIN;
    for storage in server.storages.lock().iter_mut() {
        storage.wait(deadline.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

impl Kept {
    fn pid(&self) -> u32 {
        match self {
            Self::Qemu(qemu) => qemu.machine.identity().pid,
            Self::Found(machine) => machine.identity().pid,
            Self::Swtpm(swtpm) => swtpm.identity().pid,
        }
    }

    fn machine(&mut self) -> Option<&mut MachineProcess> {
        match self {
            Self::Qemu(qemu) => Some(&mut qemu.machine),
            Self::Found(machine) => Some(machine),
            Self::Swtpm(_) => None,
        }
    }

    fn end_monitor(&mut self) {
        if let Some(machine) = self.machine() {
            machine.end_monitor();
        }
    }

    fn is_alive(&self) -> bool {
        ProcessIdentity::of(self.pid()).is_some()
    }

    fn is_swtpm(&self) -> bool {
        matches!(self, Self::Swtpm(_))
    }

    fn kill(&mut self) {
        match self {
            Self::Qemu(qemu) => qemu.machine.kill(),
            Self::Found(machine) => machine.kill(),
            Self::Swtpm(swtpm) => swtpm.kill(),
        };
    }
}

impl Server {
    fn answer(&self, asked: Asked, files: Vec<OwnedFd>) {
        let mut files = files.into_iter();
        let Some(reply) = files.next().and_then(Wire::adopt) else { return };
        let (answer, beside) = match self.does(asked.ask, files) {
            Ok(done) => done,
            Err(problem) => (Answer::Failed(problem), Vec::new()),
        };
        let beside: Vec<BorrowedFd<'_>> = beside.iter().map(AsFd::as_fd).collect();
        if let Err(error) = reply.send(&Answered { answer }, &beside) {
            tracing::debug!("the VM's supervisor does not wait for an answer: {error}");
        }
    }

    fn does(&self, ask: Ask, mut files: impl Iterator<Item = OwnedFd>) -> Done {
        let without = || Problem::new("starter", "it was asked for without a file");
        match ask {
            Ask::InstalledProgram => {
                let number = self.workers.installed_now().map_err(Problem::system)?;
                Ok((Answer::Program(number), Vec::new()))
            }
            Ask::Worker { program, frontend, placement, limit_pages } => {
                self.allow_frontend(&frontend)?;
                let files: Vec<OwnedFd> = files.collect();
                // The worker joins its VM's cgroup.
                let name = self.task.spec.name.as_str();
                let worker = NewWorker::of_files(&frontend, placement, name, &files, limit_pages);
                let worker = worker.map_err(Problem::system)?;
                let born = self.workers.start(program, &worker).map_err(Problem::system)?;
                Ok((Answer::Worker { pid: born.pid }, vec![born.socket, born.pidfd]))
            }
            Ask::Storage { datastore } => self.start_storage(datastore),
            Ask::WorkerEnded { pid } => {
                let ended = self.workers.ended(pid).map(ExitStatusExt::into_raw);
                Ok((Answer::WorkerEnded(ended), Vec::new()))
            }
            Ask::Kill { pid } => {
                self.kill(pid);
                Ok((Answer::Done, Vec::new()))
            }
            Ask::ProbeQemu => {
                let _one_at_a_time = self.starting.lock();
                Ok((Answer::Qemu(Box::new(self.probe()?.findings())), Vec::new()))
            }
            Ask::PlaceTpmState { is_empty } => self.place_tpm_state(is_empty),
            Ask::TakeTpmState => self.take_tpm_state(),
            Ask::Swtpm => self.start_swtpm(files.next().ok_or_else(without)?),
            Ask::TpmGate => {
                self.allow_tpm()?;
                let gate = StateGate::connect(&self.qemus_directory()?.tpm_states());
                let gate = gate.map_err(Problem::system)?;
                Ok((Answer::Done, gate.into_iter().map(OwnedFd::from).collect()))
            }
            Ask::Qemu { generation_id, waiting } => {
                let machine = machine_spec(&self.task.spec, &self.run);
                self.start_qemu(MachineSpec { generation_id, ..machine }, waiting)
            }
            Ask::Monitor => self.renew_monitor(),
            Ask::AgentMonitor => self.start_agent_monitor(),
            Ask::Orphan => self.find_orphan(),
            Ask::GiveSocket { number } => {
                let isolation = self.belongings.isolation(&self.launcher);
                give_disk_socket(&self.run.disk_socket(number), &isolation).map_err(Problem::system)?;
                Ok((Answer::Done, Vec::new()))
            }
            Ask::Connect { to } => {
                let run = self.qemus_directory()?;
                let path = match to {
                    QemuSocket::Console => run.console(),
                    QemuSocket::Vnc => run.vnc(),
                };
                let identity = self.with_machine(|machine| machine.identity())?;
                let socket = connect_to(&path, identity).map_err(Problem::system)?;
                Ok((Answer::Done, vec![socket.into()]))
            }
            Ask::TpmState => {
                self.allow_tpm()?;
                Ok((Answer::Done, self.tpm_state().map_err(Problem::system)?))
            }
            Ask::WatchTpm => {
                self.allow_tpm()?;
                Ok((Answer::Done, vec![self.watch_tpm().map_err(Problem::system)?]))
            }
        }
    }

    /// Allows only frontends that a disk of a VM can have.
    fn allow_frontend(&self, frontend: &Frontend) -> Result<(), Problem> {
        match is_of_a_disk(frontend) {
            true => Ok(()),
            false => Err(Problem::new("starter", format!("no disk of a VM is served as {frontend:?}"))),
        }
    }

    /// Allows it only if the VM has a TPM.
    fn allow_tpm(&self) -> Result<(), Problem> {
        match self.task.spec.tpm {
            true => Ok(()),
            false => Err(Problem::new("starter", format!("VM {} has no TPM", self.task.spec.name))),
        }
    }

    /// Allows another process of a kind only if none runs or waits to be adopted, and forgets those
    /// that have ended. The caller holds [`starting`](Self::starting) until the new one is
    /// recorded.
    fn allow_one(&self, what: &str, is_such: impl Fn(&Kept) -> bool) -> Result<(), Problem> {
        let mut kept = self.kept.lock();
        kept.retain(|kept| !is_such(kept) || kept.is_alive());
        match kept.iter().any(is_such) || self.task.adopt.is_some() {
            true => {
                Err(Problem::new("starter", format!("{what} of VM {} runs already", self.task.spec.name)))
            }
            false => Ok(()),
        }
    }

    fn kill(&self, pid: u32) {
        self.workers.kill(pid);
        if let Some(kept) = self.kept.lock().iter_mut().find(|kept| kept.pid() == pid) {
            kept.kill();
        }
        // The orphan of a previous supervisor, which was not found yet.
        let orphan = self.task.adopt.map(|orphan| orphan.qemu).filter(|qemu| qemu.pid == pid);
        if let Some(qemu) = orphan {
            let _ = ProcessIdentity { pid, start_ticks: qemu.start_time_ticks }.kill();
        }
    }

    fn probe(&self) -> Result<QemuProgram, Problem> {
        QemuProgram::probe_once(&self.qemu, &self.run.qemu_findings())
            .map_err(|error| Problem::new("qemu", error.to_string()))
    }

    fn qemus_directory(&self) -> Result<RunDirectory, Problem> {
        RunDirectory::open(self.run.path()).map_err(Problem::system)
    }

    /// As above, but creates the directory, or gives it to QEMU's present user.
    fn make_qemus_directory(&self) -> Result<RunDirectory, Problem> {
        let user = self.belongings.user.as_ref().map(UidLease::user);
        RunDirectory::create(self.run.path(), user).map_err(|error| Problem::new("qemu", error.to_string()))
    }

    /// The directory in which swtpm keeps the state of the VM's TPM.
    fn swtpms_directory(&self) -> PathBuf {
        match keeps_tpm_apart(&self.task, &self.run) {
            true => self.run.tpm_state(),
            false => self.task.spec.tpm_state_path(),
        }
    }

    /// What is there is of a former start.
    fn place_tpm_state(&self, is_empty: bool) -> Done {
        self.allow_tpm()?;
        if !keeps_tpm_apart(&self.task, &self.run) {
            let message = format!("the state of the TPM of VM {} has its place", self.task.spec.name);
            return Err(Problem::new("starter", message));
        }
        let _one_at_a_time = self.starting.lock();
        self.allow_one("swtpm", Kept::is_swtpm)?;
        let directory = self.swtpms_directory();
        remove_all(&directory)?;
        DirBuilder::new().mode(0o700).create(&directory).map_err(Problem::system)?;
        if is_empty {
            return Ok((Answer::Done, Vec::new()));
        }
        let mut options = File::options();
        let file = options.write(true).create_new(true).mode(0o600).open(directory.join(STATE_FILE));
        Ok((Answer::Done, vec![file.map_err(Problem::system)?.into()]))
    }

    fn take_tpm_state(&self) -> Done {
        self.allow_tpm()?;
        if !keeps_tpm_apart(&self.task, &self.run) {
            let message = format!("the state of the TPM of VM {} is its swtpm's", self.task.spec.name);
            return Err(Problem::new("starter", message));
        }
        // A cluster has no owners.
        if !self.task.spec.is_on_cluster() {
            take_state(&self.task.spec.tpm_state_path())
                .map_err(|error| Problem::new("swtpm", error.to_string()))?;
        }
        Ok((Answer::Done, Vec::new()))
    }

    fn start_swtpm(&self, key: OwnedFd) -> Done {
        self.allow_tpm()?;
        let _one_at_a_time = self.starting.lock();
        self.allow_one("swtpm", Kept::is_swtpm)?;
        if !keeps_tpm_apart(&self.task, &self.run) {
            // A later supervisor would take it for the present one.
            remove_all(&self.run.tpm_state())?;
        }
        let run = self.make_qemus_directory()?;
        let isolation = self.belongings.isolation(&self.launcher);
        let started = Swtpm::start(&run, &isolation, &self.swtpms_directory(), Some(key));
        let swtpm = started.map_err(|error| Problem::new("swtpm", error.to_string()))?;
        let (identity, shortfalls) = (swtpm.identity(), swtpm.shortfalls().to_vec());
        let files = swtpm.files().map_err(Problem::system)?;
        self.kept.lock().push(Kept::Swtpm(swtpm));
        let files = std::iter::once(files.pidfd).chain(files.stderr).collect();
        Ok((Answer::Process { identity, networks: Vec::new(), shortfalls }, files))
    }

    fn start_storage(&self, datastore: DatastoreId) -> Done {
        let unknown = || Problem::new("starter", format!("the VM has nothing on datastore {datastore}"));
        let mount = self.clusters.get(&datastore).ok_or_else(unknown)?;
        let mut storages = self.storages.lock();
        storages.retain_mut(|process| !process.reap());
        if storages.len() >= STORAGES_MAX {
            let message = format!("there are as many storage processes as a VM may have ({STORAGES_MAX})");
            return Err(Problem::new("starter", message));
        }
        let started = self.storage.start(mount, self.belongings.cgroup.as_deref());
        let (process, socket) = started.map_err(|error| Problem::new("cluster", error.to_string()))?;
        let pidfd = process.pidfd().map_err(Problem::system)?;
        storages.push(process);
        Ok((Answer::Done, vec![socket, pidfd]))
    }

    fn start_qemu(&self, mut machine: MachineSpec, waiting: bool) -> Done {
        let _one_at_a_time = self.starting.lock();
        self.allow_one("QEMU", |kept| !kept.is_swtpm())?;
        let run = self.make_qemus_directory()?;
        machine.cdrom.clone_from(&self.cdrom);
        machine.tpm = self.kept.lock().iter().find_map(|kept| match kept {
            Kept::Swtpm(swtpm) => Some(swtpm.socket()),
            _ => None,
        });
        let isolation = self.belongings.isolation(&self.launcher);
        let started = Qemu::launch(&self.probe()?, &machine, &run, &isolation, waiting);
        // QEMU has loaded the copies; a reset uses the loaded ones.
        for copy in [self.run.kernel(), self.run.initrd()] {
            let _ = std::fs::remove_file(copy);
        }
        let mut qemu = started.map_err(|error| Problem::new("qemu", error.to_string()))?;
        let (identity, networks) = (qemu.machine.identity(), qemu.networks.clone());
        let shortfalls = qemu.machine.shortfalls().to_vec();
        let files = qemu.machine.hand_over().map_err(Problem::system)?;
        self.kept.lock().push(Kept::Qemu(qemu));
        Ok((Answer::Process { identity, networks, shortfalls }, of_machine(files).collect()))
    }

    fn renew_monitor(&self) -> Done {
        let _one_at_a_time = self.starting.lock();
        let run = self.qemus_directory()?;
        let identity: QemuIdentity = self.with_machine(|machine| {
            machine.end_monitor();
            machine.identity()
        })?;
        // Not under the lock on `kept`: a QEMU that accepts no connection must still be killable.
        let monitor = NewMonitor::start(&run, identity, &self.belongings.isolation(&self.launcher))
            .map_err(|error| Problem::new("qemu", error.to_string()))?;
        Ok((Answer::Done, vec![self.with_machine(|machine| machine.keep(monitor))?]))
    }

    fn start_agent_monitor(&self) -> Done {
        let name = &self.task.spec.name;
        if !self.task.spec.board.guest_agent {
            return Err(Problem::new("starter", format!("VM {name} has no channel to a guest agent")));
        }
        let mut present = self.agent_monitor.lock();
        // QEMU serves one client at a time.
        if let Some(former) = present.take() {
            former.end();
        }
        let run = self.qemus_directory()?;
        let identity = self.with_machine(|machine| machine.identity())?;
        let started = start_agent_monitor(&run, identity, &self.belongings.isolation(&self.launcher));
        let (process, connection) = started.map_err(|error| Problem::new("qemu", error.to_string()))?;
        let process = Arc::new(process);
        *present = Some(Arc::clone(&process));
        let monitors = Arc::clone(&self.agent_monitor);
        let reap = move || {
            process.wait();
            // Dropping the last reference reaps it.
            let mut present = monitors.lock();
            if present.as_ref().is_some_and(|present| Arc::ptr_eq(present, &process)) {
                *present = None;
            }
        };
        let reaping = thread::Builder::new().name("agent".to_owned()).spawn(reap);
        reaping.map_err(Problem::system)?;
        Ok((Answer::Done, vec![connection]))
    }

    fn with_machine<T>(&self, does: impl FnOnce(&mut MachineProcess) -> T) -> Result<T, Problem> {
        let mut kept = self.kept.lock();
        let machine = kept.iter_mut().find_map(Kept::machine);
        machine.map(does).ok_or_else(|| Problem::new("qemu", "there is no QEMU to speak with"))
    }

    fn find_orphan(&self) -> Done {
        let gone = || Problem::new("qemu", "there is no QEMU to be taken over");
        let orphan = self.task.adopt.ok_or_else(gone)?;
        let _one_at_a_time = self.starting.lock();
        // It can be found once: the caller that found it has its connection.
        if self.kept.lock().iter().any(|kept| !kept.is_swtpm()) {
            return Err(gone());
        }
        let run = self.qemus_directory()?;
        let found = MachineProcess::find(&run, orphan.qemu, &self.belongings.isolation(&self.launcher));
        let mut machine = found.map_err(|error| Problem::new("qemu", error.to_string()))?;
        let swtpm = orphan.swtpm.and_then(|swtpm| Swtpm::adopt(&run, swtpm).ok().flatten());
        let of_swtpm = swtpm.as_ref().and_then(|swtpm| swtpm.files().ok()).map(|files| files.pidfd);
        let answer = Answer::Orphan { swtpm: of_swtpm.is_some() };
        let files = of_machine(machine.hand_over().map_err(Problem::system)?);
        let files = of_swtpm.into_iter().chain(files).collect();
        let mut kept = self.kept.lock();
        kept.push(Kept::Found(machine));
        kept.extend(swtpm.map(Kept::Swtpm));
        Ok((answer, files))
    }

    /// Returns the file, if it exists, and its directory. The directory belongs to another user,
    /// who may put anything there.
    fn tpm_state(&self) -> io::Result<Vec<OwnedFd>> {
        let Some(directory) = self.tpm_directory()? else { return Ok(Vec::new()) };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match openat(&directory, STATE_FILE, flags, Mode::empty()) {
            Ok(file) => Ok(vec![file, directory]),
            Err(Errno::NOENT) => Ok(Vec::new()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn tpm_directory(&self) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(self.swtpms_directory(), flags, Mode::empty()) {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn watch_tpm(&self) -> Result<OwnedFd, Errno> {
        let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        let what = inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::CLOSE_WRITE;
        inotify::add_watch(&changes, self.swtpms_directory(), what)?;
        Ok(changes)
    }
}

/// Removes a directory with its content, if there is one.
fn remove_all(directory: &Path) -> Result<(), Problem> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Problem::system(error)),
        _ => Ok(()),
    }
}

/// The connection comes first, because the standard error is not always known.
fn of_machine(files: MachineFiles) -> impl Iterator<Item = OwnedFd> {
    [files.monitor, files.process.pidfd].into_iter().chain(files.process.stderr)
}
