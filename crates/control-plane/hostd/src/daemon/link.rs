//! hostd's side of a supervisor: starting one, finding one, sending requests to it, and replacing
//! it after its death.
//!
//! Each VM that is not off has a thread that listens to its supervisor and makes sure that it has
//! one.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use strongroom_host::layout::Layout;
use strongroom_host::orders::{Birth, Incoming, Orphan, Report, Request, RequestKind, RunTask, Task};
use strongroom_host::process::ProcessIdentity;
use strongroom_host::proof::{PeerSecret, ProofError, check_peer, prove_as_hostd};
use strongroom_host::protocol::{
    DiskName, Grant, KnownVolume, OffReason, Problem, StartOptions, VmGeneration, VmSpec,
};
use strongroom_host::run_directory::VmRunDirectory;
use strongroom_host::state_file::{Off, StateFile};
use strongroom_host::vm_directory::VmRecord;
use strongroom_host::wire::{Wire, WireError, start_on_wire};
use strongroom_statistics::Snapshot;
use strongroom_types::{VmId, unix_seconds_now};
use tokio::sync::oneshot;

use super::Hostd;
use super::disk_switches::Successor;
use super::unrecorded::kill_unrecorded;
use super::vms::Kept;
use crate::boot_files;

/// The pause before the next connection to a living supervisor that hung up, and before the
/// replacement of one that died at once.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// The longest pause.
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(5);
/// A supervisor that lived for longer than this did not die at once.
const SETTLED: Duration = Duration::from_secs(10);
/// How long an unrecorded QEMU may take to listen on its socket.
const UNRECORDED_WITHIN: Duration = Duration::from_secs(1);
/// How long a killed QEMU may take to end.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
/// The stack of a listening thread, in bytes: it only decodes packets.
const STACK_BYTES: usize = 512 << 10;

/// The command that starts a supervisor.
#[derive(Clone, Debug)]
pub struct SupervisorProgram {
    /// The path of the program.
    pub path: PathBuf,
    /// The arguments that make it a supervisor.
    pub arguments: Vec<OsString>,
}

impl SupervisorProgram {
    /// Starts a supervisor and sends its task. It inherits none of hostd's environment, and leaves
    /// hostd's session by itself.
    ///
    /// # Errors
    /// If it cannot be started, or does not take its task.
    pub fn start(&self, birth: &Birth, files: &[OwnedFd]) -> Result<(Wire, Child), Problem> {
        let failed = |error: &dyn std::fmt::Display| {
            Problem::new("supervisor", format!("the VM's supervisor cannot be started: {error}"))
        };
        let (wire, mut child) = start_on_wire(&self.path, &self.arguments).map_err(|error| failed(&error))?;
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        if let Err(error) = wire.send(birth, &files) {
            let _ = child.kill();
            let _ = child.wait();
            return Err(failed(&error));
        }
        Ok((wire, child))
    }
}

/// A supervisor's answer: the VM's volumes after the request, or why the request failed.
type Answered = Result<Vec<KnownVolume>, Problem>;

/// A supervisor that runs a VM.
#[derive(Debug)]
pub struct Link {
    wire: Wire,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Answered>>>,
    /// Counters that arrived before the answers to their requests.
    counted: Mutex<HashMap<u64, Box<Snapshot>>>,
}

impl Link {
    fn new(wire: Wire) -> Arc<Self> {
        Arc::new(Self { wire, next: AtomicU64::new(1), waiting: Mutex::default(), counted: Mutex::default() })
    }

    /// Sends a request, and waits for the answer.
    ///
    /// # Errors
    /// The supervisor's error; also if it has died.
    pub async fn ask(&self, kind: RequestKind, files: &[OwnedFd]) -> Result<(), Problem> {
        self.ask_numbered(kind, files).await.map(drop)
    }

    /// Sends a request that changes volumes, and returns the volumes from the answer.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub async fn ask_of_volumes(
        &self,
        kind: RequestKind,
        files: &[OwnedFd],
    ) -> Result<Vec<KnownVolume>, Problem> {
        self.ask_numbered(kind, files).await.map(|(_, known)| known)
    }

    /// Requests the counters of a disk.
    ///
    /// # Errors
    /// As [`ask`](Self::ask); also if the supervisor has no counters.
    pub async fn ask_statistics(&self, disk: DiskName) -> Result<Snapshot, Problem> {
        let (id, _) = self.ask_numbered(RequestKind::Statistics { disk }, &[]).await?;
        let counted = self.counted.lock().remove(&id);
        let none = || Problem::new("supervisor", "the VM's supervisor answered without what was asked for");
        counted.map(|snapshot| *snapshot).ok_or_else(none)
    }

    /// Sends a request, and waits for the answer. Returns the number of the request.
    async fn ask_numbered(
        &self,
        kind: RequestKind,
        files: &[OwnedFd],
    ) -> Result<(u64, Vec<KnownVolume>), Problem> {
        let away = || Problem::new("supervisor_away", "the VM's supervisor has died; try again in a moment");
        let (answer, answered) = oneshot::channel();
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.waiting.lock().insert(id, answer);
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        if self.wire.send(&Request { id, kind }, &files).is_err() {
            self.waiting.lock().remove(&id);
            return Err(away());
        }
        answered.await.map_err(|_| away())?.map(|known| (id, known))
    }

    /// Keeps the counters for a request that is still waiting.
    fn told(&self, id: u64, snapshot: Box<Snapshot>) {
        let is_awaited = self.waiting.lock().contains_key(&id);
        if is_awaited {
            self.counted.lock().insert(id, snapshot);
        }
    }

    fn answered(&self, id: u64, answer: Answered) {
        let waiting = self.waiting.lock().remove(&id);
        let is_taken = waiting.is_some_and(|waiting| waiting.send(answer).is_ok());
        if !is_taken {
            // The request is no longer waiting.
            self.counted.lock().remove(&id);
        }
    }

    fn is_gone(&self) {
        self.waiting.lock().clear();
        self.wire.hang_up();
    }
}

/// The next step of a listening thread.
enum Next {
    /// Listen to this supervisor; the child is set if this hostd started it.
    Listen(Wire, Option<Child>),
    /// Look for a running supervisor.
    Find,
}

/// Starts a VM, and a thread that listens to its supervisor.
///
/// # Errors
/// If the supervisor cannot be started.
pub fn start(
    hostd: &Arc<Hostd>,
    spec: &VmSpec,
    generation: VmGeneration,
    grants: Vec<Grant>,
    how: StartOptions,
    incoming: Option<Incoming>,
) -> Result<(), Problem> {
    let run = hostd.run.vm(spec.id);
    // Nothing of an earlier start is still needed.
    run.remove().and_then(|()| run.make()).map_err(Problem::system)?;
    PeerSecret::make(&run.secret()).map_err(Problem::system)?;
    if let Some(kernel) = &spec.kernel {
        boot_files::copy(kernel, spec.memory_bytes.bytes(), &run, &hostd.config().boot_directories)
            .inspect_err(|_| drop(run.remove()))?;
    }
    let cdrom = spec.cdrom.as_deref().map(|image| boot_files::open(image, &hostd.config().boot_directories));
    let cdrom = cdrom.transpose().inspect_err(|_| drop(run.remove()))?.map(OwnedFd::from);
    let (spec_now, layout) = (Box::new(spec.clone()), Layout::default());
    let task = RunTask {
        spec: spec_now,
        generation,
        adopt: None,
        layout,
        nics: None,
        started: None,
        how,
        incoming,
        supervisor_deaths: 0,
        changed_over: None,
        reaches: Vec::new(),
        undecided: None,
    };
    let (wire, child) = hostd.supervisor.start(&birth(hostd, &run, grants, task), cdrom.as_slice())?;
    hostd.vms.set_starting(spec, generation);
    listen(hostd, spec.id, run, Next::Listen(wire, Some(child)))
}

/// Adopts the VMs that an earlier hostd has started.
pub fn find_running(hostd: &Arc<Hostd>) -> io::Result<()> {
    for vm in hostd.run.vms_found()? {
        let run = hostd.run.vm(vm);
        match StateFile::read(&run) {
            Ok(Some(state)) => {
                hostd.vms.set_starting(&state.spec, state.generation);
                if let Err(problem) = listen(hostd, vm, run, Next::Find) {
                    tracing::error!("VM {vm}: {problem}");
                }
            }
            Ok(None) => {
                // Its supervisor died, or has not begun yet. In either case QEMU has not been
                // started.
                tracing::warn!("VM {vm}: what is left of a start that did not begin is removed");
                run.remove()?;
            }
            Err(error) => tracing::error!("VM {vm}: {}: {error}", run.state().display()),
        }
    }
    Ok(())
}

fn birth(hostd: &Hostd, run: &VmRunDirectory, grants: Vec<Grant>, task: RunTask) -> Birth {
    hostd.birth(run.path(), grants, Task::Run(task))
}

fn listen(hostd: &Arc<Hostd>, vm: VmId, run: VmRunDirectory, next: Next) -> Result<(), Problem> {
    let hostd = Arc::clone(hostd);
    let thread = thread::Builder::new().name("supervisor".to_owned()).stack_size(STACK_BYTES);
    let spawned = thread.spawn(move || Listener { hostd, vm, run, children: Vec::new() }.run(next));
    spawned.map(drop).map_err(Problem::system)
}

struct Listener {
    hostd: Arc<Hostd>,
    vm: VmId,
    run: VmRunDirectory,
    children: Vec<Child>,
}

impl Listener {
    fn run(mut self, mut next: Next) {
        let mut pause = AGAIN_AFTER;
        loop {
            let begun = Instant::now();
            match next {
                Next::Listen(wire, child) => {
                    self.children.extend(child);
                    self.hear(wire);
                }
                Next::Find => match self.find() {
                    Ok(wire) => self.hear(wire),
                    Err(error) => tracing::debug!("VM {}: its supervisor is not reached: {error}", self.vm),
                },
            }
            if self.hostd.is_ending() {
                return;
            }
            pause = if begun.elapsed() > SETTLED { AGAIN_AFTER } else { (pause * 2).min(AGAIN_AFTER_MAX) };
            match self.aftermath(pause) {
                Some(then) => next = then,
                None => return,
            }
        }
    }

    /// Listens until the supervisor closes the connection.
    fn hear(&self, wire: Wire) {
        let link = Link::new(wire);
        self.hostd.vms.set_link(self.vm, Some(Arc::clone(&link)));
        loop {
            match link.wire.receive::<Report>() {
                Ok((Report::State(observed), _)) => self.hostd.vms.observe(self.vm, *observed),
                Ok((Report::Answer { id, problem, known }, _)) => {
                    link.answered(id, problem.map_or(Ok(known), Err));
                }
                Ok((Report::Statistics { id, snapshot }, _)) => link.told(id, snapshot),
                Ok((Report::Progress(progress), _)) => self.hostd.queue.progress_of(self.vm, progress),
                Ok((Report::Failed(problem), _)) => tracing::error!("VM {}: {problem}", self.vm),
                Ok(_) => {}
                Err(WireError::Gone) => break,
                Err(error) => {
                    tracing::warn!("VM {}: its supervisor is not understood: {error}", self.vm);
                    break;
                }
            }
        }
        self.hostd.vms.set_link(self.vm, None);
        link.is_gone();
    }

    fn find(&self) -> Result<Wire, ProofError> {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(WireError::from)?;
        let address = SocketAddrUnix::new(self.run.supervisor_socket()).map_err(WireError::from)?;
        rustix::net::connect(&socket, &address).map_err(WireError::from)?;
        check_peer(&socket)?;
        let wire = Wire::adopt(socket).ok_or(WireError::Gone)?;
        prove_as_hostd(&PeerSecret::read(&self.run.secret())?, &wire, self.vm)?;
        Ok(wire)
    }

    /// Returns the next step after the connection was closed; `None` if the VM is off.
    fn aftermath(&mut self, pause: Duration) -> Option<Next> {
        let state = match StateFile::read(&self.run) {
            Ok(Some(state)) => state,
            Ok(None) => {
                self.reap(None);
                return self.off_without_state();
            }
            Err(error) => {
                tracing::error!("VM {}: {}: {error}", self.vm, self.run.state().display());
                thread::sleep(pause);
                return Some(Next::Find);
            }
        };
        if state.supervisor.is_alive() {
            // The supervisor is ending, or closed the connection because hostd was too slow.
            await_end(state.supervisor, pause);
            return Some(Next::Find);
        }
        self.reap(Some(state.supervisor));
        if let Some(off) = &state.off {
            self.set_off(&state, off.clone());
            return None;
        }
        let (swtpm, paused_by_request) = (state.swtpm, state.paused_by_request);
        let volumes_released = state.volumes_released;
        let orphan = state.qemu.map(|qemu| Orphan { qemu, swtpm, paused_by_request });
        let identity = |orphan: &Orphan| ProcessIdentity {
            pid: orphan.qemu.pid,
            start_ticks: orphan.qemu.start_time_ticks,
        };
        let residences = &self.hostd.residences;
        match orphan.filter(|orphan| identity(orphan).is_alive()) {
            // It goes on upon an order alone.
            Some(_) if residences.is_leaving(self.vm) => {
                self.hostd.vms.set_orphaned(self.vm);
                thread::sleep(pause);
                Some(Next::Find)
            }
            // It is another host's, or it has no disks any more: QEMU before 9.1 does not connect
            // again for a device that is not started.
            Some(orphan) if residences.is_elsewhere(self.vm) || volumes_released => {
                tracing::warn!("VM {}: QEMU {} is ended between two hosts", self.vm, orphan.qemu.pid);
                let _ = identity(&orphan).kill();
                await_end(identity(&orphan), ENDS_WITHIN);
                Some(Next::Find)
            }
            Some(orphan) => {
                let successor = self.hostd.switches.take_successor(self.vm);
                self.hostd.vms.set_orphaned(self.vm);
                if successor.is_none() {
                    tracing::error!(
                        "VM {}: its supervisor died; another one takes over QEMU {}",
                        self.vm,
                        orphan.qemu.pid
                    );
                    thread::sleep(pause);
                }
                Some(self.adopt(state, orphan, successor))
            }
            None => {
                if state.qemu.is_none() {
                    kill_unrecorded(&self.run, UNRECORDED_WITHIN);
                    // swtpm never had a QEMU whose disconnection would end it.
                    if let Some(swtpm) = state.swtpm {
                        let swtpm = ProcessIdentity { pid: swtpm.pid, start_ticks: swtpm.start_time_ticks };
                        let _ = swtpm.kill();
                    }
                }
                let message =
                    "its supervisor and its QEMU died: the host lost its power, or somebody killed them";
                let reason = OffReason::HostLost;
                let off = Off { reason, message: message.to_owned(), at_unix_seconds: unix_seconds_now() };
                self.set_off(&state, off);
                None
            }
        }
    }

    /// Has another supervisor take over QEMU, after the death of its former one, or as its
    /// `successor`.
    fn adopt(&self, state: StateFile, orphan: Orphan, successor: Option<Successor>) -> Next {
        let StateFile { spec, layout, nics, started, generation, supervisor_deaths, changed_over, .. } =
            state;
        let (spec, switch) = match self.hostd.switches.place(spec) {
            Ok(placed) => placed,
            // Its guest waits: the volume might be opened where it is no more.
            Err(error) => {
                tracing::error!("VM {}: where a disk of it is, is not known: {error}", self.vm);
                thread::sleep(AGAIN_AFTER_MAX);
                return Next::Find;
            }
        };
        let (spec, adopt, how) = (Box::new(spec), Some(orphan), StartOptions::default());
        let supervisor_deaths = supervisor_deaths + u64::from(successor.is_none());
        let Successor { mut reaches, grants } =
            successor.unwrap_or_else(|| Successor { reaches: Vec::new(), grants: Vec::new() });
        reaches.extend(switch.iter().flat_map(|switch| switch.moved.directories(self.vm)));
        let undecided = switch.filter(|switch| !switch.has_moved).map(|switch| switch.moved);
        let task = RunTask {
            spec,
            generation,
            adopt,
            layout,
            nics,
            started,
            how,
            incoming: None,
            supervisor_deaths,
            changed_over,
            reaches,
            undecided,
        };
        let begun = PeerSecret::make(&self.run.secret())
            .map_err(Problem::system)
            .and_then(|_| self.hostd.supervisor.start(&birth(&self.hostd, &self.run, grants, task), &[]));
        match begun {
            Ok((wire, child)) => Next::Listen(wire, Some(child)),
            Err(problem) => {
                tracing::error!("VM {}: {problem}", self.vm);
                Next::Find
            }
        }
    }

    /// A supervisor that died before it recorded itself has started nothing.
    fn off_without_state(&self) -> Option<Next> {
        let observed = self.hostd.vms.get(self.vm)?;
        let message = "its supervisor died before it had begun";
        let off = Off {
            reason: OffReason::StartFailed,
            message: message.to_owned(),
            at_unix_seconds: unix_seconds_now(),
        };
        let _ = self.run.remove();
        if let Some(spec) = observed.spec {
            let kept = kept(&spec);
            self.hostd.vms.set_off(*spec, observed.generation, Some(&off), kept);
        }
        None
    }

    fn set_off(&self, state: &StateFile, off: Off) {
        if let Err(error) = self.run.remove() {
            tracing::warn!("VM {}: {} cannot be removed: {error}", self.vm, self.run.path().display());
        }
        self.hostd.switches.take_successor(self.vm);
        let placed = self.hostd.switches.place(state.spec.clone());
        let spec = placed.map_or_else(|_| state.spec.clone(), |(spec, _)| spec);
        let kept = kept(&spec);
        self.hostd.vms.set_off(spec, state.generation, Some(&off), kept);
    }

    /// Waits for children that have ended. Kills one that closed the connection before it recorded
    /// itself.
    fn reap(&mut self, supervisor: Option<ProcessIdentity>) {
        let lives = supervisor.is_some_and(ProcessIdentity::is_alive);
        self.children.retain_mut(|child| {
            if supervisor.is_none() {
                let _ = child.kill();
            }
            // Only the last child can be alive.
            lives && matches!(child.try_wait(), Ok(None)) || !lives && child.wait().is_err()
        });
    }
}

/// Returns the saved memory and dumps in the directory of a VM that is off.
fn kept(spec: &VmSpec) -> Kept {
    let record = VmRecord::read_of(&spec.directory(), spec.id);
    let record = record.inspect_err(|error| tracing::error!("VM {}: {error}", spec.name));
    record.as_ref().map(Kept::from).unwrap_or_default()
}

/// Waits for the end of a process, but no longer than `within`.
fn await_end(process: ProcessIdentity, within: Duration) {
    let Some(pidfd) = process.pidfd() else { return };
    let within = Timespec { tv_sec: within.as_secs().cast_signed(), tv_nsec: within.subsec_nanos().into() };
    let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&within));
}
