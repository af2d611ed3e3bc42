//! The life of one VM, decided by one thread.
//!
//! ```text
//! Starting --(key missing)--> KeyUnavailable --(key back)--> Starting --> Running <--> Paused
//! Running, Paused --(suspended)--> Stopping
//!     any of these --> Stopping --> off: volumes closed in order, written down, told, and the process ends
//! ```
//!
//! Everything arrives as an [`Event`] from threads that wait for hostd, for QEMU, for each volume,
//! or for the start. This thread waits for nothing else.

mod activity;
mod change;
mod disk_move;
mod disks;
mod dump;
mod moving;
mod news;
mod nics;
mod rekey;
mod requests;
mod seal;
mod sizes;
mod snapshots;
mod stand_down;
mod standing;
mod suspend;
mod unplug;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use strongroom_host::layout::Place;
use strongroom_host::orders::{Request, RunTask};
use strongroom_host::process::ProcessIdentity;
use strongroom_host::protocol::{
    Disk, Dump, ObservedVm, ObservedVolume, OffReason, PowerState, Problem, Progress, RunningMachine,
    SavedMemory, VmReason, VmSnapshots, VmSpec, VolumeState, WaitingFor,
};
use strongroom_host::run_directory::VmRunDirectory;
use strongroom_host::state_file::{Off, StateFile};
use strongroom_hypervisor::launch::Kills;
use strongroom_hypervisor::{Monitor, QemuIdentity};
use strongroom_types::{unix_seconds, unix_seconds_now};
use strongroom_worker::supervise::{LimitPage, limit_page};
use uuid::Uuid;

use self::activity::Activity;
use self::disk_move::DiskMoveNews;
use self::disks::DiskStep;
use self::moving::{Closed, MoveStep};
use self::nics::NicStep;
use self::sizes::WantedSizes;
use self::standing::{Hosts, Losses, Standing};
use crate::another_host::GivenBeside;
use crate::door::Connection;
use crate::guest_agent::GuestAgent;
use crate::guest_client::TELLS_EVERY;
use crate::keys::VmKeys;
use crate::machine::{Machine, MachineNews};
use crate::observe;
use crate::pages::Pages;
use crate::serial::Serial;
use crate::starter::Starter;
use crate::starting::{StartHandle, Started, Starting, start_control};
use crate::transfer::qmp_problem;
use crate::volumes::{ServedVolume, VolumeNews};
use crate::vtpm::{ArrivingTpm, Keeper};
use crate::{SupervisorError, swap};

/// How long the volumes may take to drain when the VM is off: their own timeouts, and a margin.
const VOLUMES_END_WITHIN: Duration = Duration::from_secs(120);
/// How long a guest has to shut down when the host does.
const HOST_SHUTDOWN_S: u32 = 60;

/// An event.
#[derive(Debug)]
pub enum Event {
    /// A hostd has connected.
    Connected(Connection),
    /// A connection was closed.
    Gone(u64),
    /// A request.
    Request {
        /// The connection.
        connection: Connection,
        /// The request.
        request: Request,
        /// Its files.
        files: Vec<OwnedFd>,
    },
    /// A key is missing, or is no longer missing.
    KeyMissing(Option<WaitingFor>),
    /// The VM's TPM has started.
    TpmStarted(QemuIdentity),
    /// The VM's TPM has ended while its guest runs; with its last output.
    TpmLost(String),
    /// The machine has started, or its start failed.
    Started(Result<Box<Started>, Problem>),
    /// News of the volume that is served at the socket with this number.
    Volume(usize, VolumeNews),
    /// News of the machine. It reports no more until the sender is dropped, because a guest can
    /// cause events without end.
    Machine(MachineNews, SyncSender<()>),
    /// The progress of a request.
    Progress(Progress),
    /// A suspension has ended.
    Suspended(Result<SavedMemory, Problem>),
    /// A move to another key has ended; with the VM's new configuration.
    Rekeyed(Result<Box<VmSpec>, Problem>),
    /// The progress of a dump.
    DumpProgress(Progress),
    /// A dump has ended.
    Dumped(Result<Dump, Problem>),
    /// The volume of a dump was deleted, or the deletion failed.
    DumpGone {
        /// The dump's number.
        number: u32,
        /// The result.
        gone: Result<(), Problem>,
        /// The connection and request that wait for it.
        asked_by: (Connection, u64),
    },
    /// A step of a disk change, which continues when the step is recorded.
    Disk(DiskStep, SyncSender<Result<(), Problem>>),
    /// A step of a change of network cards, which continues when the step is recorded.
    Nic(NicStep, SyncSender<Result<(), Problem>>),
    /// A change of network cards has ended.
    NicsChanged(Result<(), Problem>),
    /// The machine has these sizes; the change continues when they are recorded.
    Sizes(WantedSizes, SyncSender<Result<(), Problem>>),
    /// A change of the machine's sizes has ended.
    SizesChanged(Result<(), Problem>),
    /// A disk change has ended.
    DiskChanged(Result<(), Problem>),
    /// News of the move of a disk to another datastore.
    DiskMove(DiskMoveNews),
    /// The encryption or decryption of a disk has ended; with the VM's new configuration.
    DiskSealed(Result<Box<VmSpec>, Problem>),
    /// The volumes of a VM that comes are here but what its guest writes last, or do not come over
    /// the connection with this number.
    VolumesFetched(u64, Result<(), Problem>),
    /// A change of the VM's snapshots has ended; with the VM's new configuration.
    SnapshotsChanged(Result<Box<VmSpec>, Problem>),
    /// A step of a move to another host, or from one, has ended.
    Moved(MoveStep),
    /// An order for the VM's part in a snapshot of several is carried out.
    GroupStepDone,
    /// The guest's agent has confirmed that its file systems are thawed, after all.
    Thawed,
    /// The host is shutting down.
    HostEnds,
}

/// A VM, until it is off.
pub struct Vm {
    task: RunTask,
    run: VmRunDirectory,
    keys: Arc<VmKeys>,
    events: Sender<Event>,
    inbox: Receiver<Event>,
    hosts: Hosts,
    standing: Standing,
    losses: Losses,
    volumes: Vec<Volume>,
    /// The counters from which the door answers.
    pages: Pages,
    /// The page of the limits of all its disks together.
    limits: Arc<LimitPage>,
    machine: Option<Machine>,
    tpm: Option<Keeper>,
    /// The TPM of a VM that comes from another host, until its guest goes on.
    arriving_tpm: Option<Arc<ArrivingTpm>>,
    serial: Serial,
    state: StateFile,
    halted: Halted,
    activity: Activity,
    /// Gives the volumes to the host that the VM moves to.
    given: Option<Arc<GivenBeside>>,
    /// Its disks have tops of a move.
    owes_merges: bool,
    /// The request that waits for the volumes of a VM that comes.
    fetching: Option<(Connection, u64)>,
    dumps: Vec<Dump>,
    snapshots: VmSnapshots,
    agent: Arc<GuestAgent>,
    starter: Starter,
    start: StartHandle,
    removals: Removals,
    stop: Option<Stop>,
}

/// Removals in the background.
#[derive(Debug, Default)]
struct Removals {
    /// Of unfinished dumps.
    dumps: Option<thread::JoinHandle<()>>,
    /// Of the volume of the memory that was resumed.
    memory: Option<thread::JoinHandle<()>>,
}

/// The reasons for which the processors are paused.
#[derive(Debug, Default)]
struct Halted {
    by_request: bool,
    for_room: bool,
}

/// A stop in progress.
#[derive(Debug)]
struct Stop {
    reason: OffReason,
    message: String,
    /// When the machine is stopped by force.
    deadline: Option<Instant>,
    /// Whether the guest itself has shut down.
    guest_ended: bool,
}

/// A volume in its present stage.
#[derive(Debug)]
struct Volume {
    /// The number of its socket.
    socket: usize,
    served: Option<ServedVolume>,
    observed: ObservedVolume,
    ended: bool,
    /// Receives the result of its removal.
    leaving: Option<Closed>,
}

impl Vm {
    /// Begins to start a VM. `events` is the sender of `inbox`.
    pub fn start(
        task: RunTask,
        run: VmRunDirectory,
        keys: VmKeys,
        starter: Starter,
        events: Sender<Event>,
        inbox: Receiver<Event>,
        pages: Pages,
    ) -> Result<Self, SupervisorError> {
        let own = ProcessIdentity::own().ok_or(SupervisorError::Proc)?;
        let mut state = StateFile::new(task.generation, task.spec.as_ref().clone(), own);
        let by_request = task.adopt.map_or(task.how.paused, |orphan| orphan.paused_by_request);
        state.qemu = task.adopt.map(|orphan| orphan.qemu);
        state.swtpm = task.adopt.and_then(|orphan| orphan.swtpm);
        state.paused_by_request = by_request;
        state.volumes_released = task.incoming.is_some();
        state.supervisor_deaths = task.supervisor_deaths;
        state.changed_over = task.changed_over.clone();
        state.layout = task.layout.clone().or_of(&task.spec);
        state.nics.clone_from(&task.nics);
        state.started = task.started;
        let layout = state.layout.clone();
        state.write(&run)?;
        let (start, control) = start_control();
        let keys = Arc::new(keys);
        let limits = limit_page(task.spec.limits).map_err(std::io::Error::other)?;
        let starting = Starting {
            task: task.clone(),
            layout: layout.clone(),
            run: run.clone(),
            keys: Arc::clone(&keys),
            starter: starter.clone(),
            limits: Arc::clone(&limits),
            events: events.clone(),
            control,
        };
        thread::Builder::new().name("start".to_owned()).spawn(move || starting.run())?;
        let opening = |(place, disk): (Place, Disk)| {
            let (socket, observed) = (place.socket, observe::opening(&disk));
            Volume { socket, served: None, observed, ended: false, leaving: None }
        };
        let volumes = layout.disks(&task.spec).into_iter().map(opening).collect();
        let adopting = task.adopt.is_some();
        let dumps = dump::found(&task.spec);
        let snapshots = snapshots::found(&task.spec);
        let owes_thaw = adopting && snapshots.may_have_frozen_guest() && task.spec.board.guest_agent;
        let agent = Arc::new(GuestAgent::new(task.spec.name.clone(), starter.clone(), owes_thaw));
        Ok(Self {
            standing: Standing::starting(adopting.then(observe::adopting)),
            losses: Losses::default(),
            task,
            run,
            keys,
            events,
            inbox,
            hosts: Hosts::default(),
            volumes,
            pages,
            limits,
            machine: None,
            tpm: None,
            arriving_tpm: None,
            serial: Serial::default(),
            state,
            halted: Halted { by_request, for_room: false },
            activity: Activity::Idle,
            given: None,
            owes_merges: false,
            fetching: None,
            dumps,
            snapshots,
            agent,
            starter,
            start,
            removals: Removals::default(),
            stop: None,
        })
    }

    /// Runs until the VM is off and all of its parts are ended in order.
    pub fn run(mut self) -> Result<(), SupervisorError> {
        let (reason, message) = loop {
            self.show_pages();
            self.tell();
            let event = match self.wakes_at() {
                Some(deadline) => self.inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())),
                None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(event) => {
                    if let Some(off) = self.happened(event) {
                        break off;
                    }
                }
                Err(RecvTimeoutError::Timeout) if self.stop.is_some() => self.cut_off(),
                Err(RecvTimeoutError::Timeout) => self.pay_thaw(),
                // This cannot happen, since this thread has a sender itself.
                Err(RecvTimeoutError::Disconnected) => return Err(SupervisorError::Proc),
            }
        };
        self.end(reason, message)
    }

    /// When the next deadline is, if there is one.
    fn wakes_at(&self) -> Option<Instant> {
        match &self.stop {
            Some(stop) => stop.deadline,
            None => self.losses.thaw_again_at,
        }
    }

    /// Gives the door the pages of the volumes that are served at present.
    fn show_pages(&self) {
        let served = self.volumes.iter().filter(|volume| !volume.ended);
        let page = |volume: &Volume| {
            let counters = volume.served.as_ref()?.counters()?;
            Some((volume.observed.disk.clone(), counters.clone()))
        };
        self.pages.set(served.filter_map(page));
    }

    /// Handles an event. Returns why the VM is off, once it is.
    fn happened(&mut self, event: Event) -> Option<(OffReason, String)> {
        match event {
            Event::Connected(connection) => self.hosts.add(connection),
            Event::Gone(id) => {
                self.hosts.remove(id);
                self.dump_is_nobodys(id);
                self.part_is_nobodys(id);
                self.move_is_nobodys(id);
            }
            Event::Request { connection, request, files } => self.asked(&connection, request, files),
            Event::KeyMissing(missing) => self.key_missing(missing),
            Event::TpmStarted(identity) => {
                self.state.swtpm = Some(identity);
                if let Err(error) = self.state.write(&self.run) {
                    tracing::warn!("VM {}: its state cannot be written: {error}", self.task.spec.name);
                }
            }
            Event::TpmLost(said) => self.tpm_lost(&said),
            Event::Started(Ok(started)) => return self.started(*started),
            Event::Started(Err(problem)) => return Some(self.not_started(&problem)),
            Event::Volume(index, news) => self.volume_news(index, news),
            Event::Machine(news, _until_then) => return self.machine_news(news),
            Event::Progress(progress) => self.tell_progress(progress),
            Event::Suspended(saved) => self.suspended(saved),
            Event::Rekeyed(moved) => self.rekeyed(moved),
            Event::DumpProgress(progress) => self.dump_progress(progress),
            Event::Dumped(dumped) => self.dumped(dumped),
            Event::DumpGone { number, gone, asked_by } => self.dump_is_gone(number, gone, asked_by),
            Event::Disk(step, done) => self.disk_step(step, done),
            Event::DiskChanged(changed) => self.disk_changed(changed),
            Event::DiskMove(news) => self.disk_move_news(news),
            Event::Nic(step, done) => self.nic_step(step, &done),
            Event::NicsChanged(changed) => self.nics_changed(changed),
            Event::Sizes(wanted, done) => self.sizes_step(wanted, &done),
            Event::SizesChanged(changed) => self.sizes_changed(changed),
            Event::DiskSealed(sealed) => self.disk_sealed(sealed),
            Event::SnapshotsChanged(changed) => self.snapshots_changed(changed),
            Event::Moved(step) => self.moved(step),
            Event::VolumesFetched(number, fetched) => self.volumes_fetched(number, fetched),
            Event::GroupStepDone => self.group_step_done(),
            Event::Thawed => self.losses.thaw_is_late = false,
            // A suspension in progress ends the VM anyway.
            Event::HostEnds if self.activity.suspension().is_some() => {}
            Event::HostEnds => self.ask_to_stop(false, HOST_SHUTDOWN_S),
        }
        None
    }

    /// Checks that every volume is served as it should be.
    ///
    /// # Errors
    /// Names one that is not: what the guest wrote to it may wait.
    fn check_volumes(&self) -> Result<(), Problem> {
        let is_in_trouble = |volume: &&Volume| volume.observed.state != VolumeState::Serving;
        let Some(volume) = self.volumes.iter().find(is_in_trouble) else { return Ok(()) };
        let message = format!("{} is in trouble, and what the guest wrote may wait", volume.observed.disk);
        Err(Problem::new("volume_in_trouble", message).with_next_step("mend that first"))
    }

    fn key_missing(&mut self, missing: Option<WaitingFor>) {
        if self.standing.power == PowerState::Stopping {
            return;
        }
        match &missing {
            Some(waiting) => {
                if self.standing.missing.is_none() {
                    tracing::warn!(
                        "VM {}: waiting for {}: {}",
                        self.task.spec.name,
                        waiting.key,
                        waiting.reason
                    );
                }
                self.standing.becomes(PowerState::KeyUnavailable, Some(observe::waiting(waiting)));
            }
            None => self.standing.becomes(PowerState::Starting, None),
        }
        self.standing.missing = missing;
    }

    fn started(&mut self, started: Started) -> Option<(OffReason, String)> {
        self.standing.missing = None;
        for (volume, served) in self.volumes.iter_mut().zip(started.volumes) {
            if volume.ended {
                continue;
            }
            volume.served = Some(served);
        }
        (self.tpm, self.arriving_tpm) = (started.tpm, started.arriving.map(Arc::new));
        let events = self.events.clone();
        let identity = started.qemu.identity();
        let tell = move |news| {
            let (until, is_taken) = sync_channel(0);
            if events.send(Event::Machine(news, until)).is_ok() {
                // Nothing is ever sent: dropping the sender is the signal.
                let _ = is_taken.recv();
            }
        };
        let machine = match Machine::of(started.qemu, self.starter.clone(), tell) {
            Ok(machine) => machine,
            Err(error) => return Some((OffReason::StartFailed, error.to_string())),
        };
        self.state.qemu = Some(identity);
        self.state.machine = running_machine(machine.qemu().monitor());
        self.machine = Some(machine);
        if let Err(error) = self.state.write(&self.run) {
            // Without its state file no later process could find it.
            self.end_because(OffReason::StartFailed, format!("the VM's state cannot be written: {error}"));
            return None;
        }
        if self.task.incoming.is_some() {
            match &self.stop {
                Some(_) => self.cut_off(),
                None => self.await_memory(started.awaiting, started.coming),
            }
            return None;
        }
        self.serial = Serial::start(&self.task.spec, &self.keys, &self.starter);
        self.tidy_dumps();
        self.await_dump_of_predecessor();
        self.pay_thaw();
        if self.stop.is_some() {
            self.cut_off();
        } else if let Some(lost) = self.volumes.iter().find(|volume| volume.ended) {
            let message = format!("{} is not served any more", lost.observed.disk);
            self.end_because(OffReason::VolumeLost, message);
        } else if let Err(problem) = self.become_ready() {
            self.end_because(OffReason::StartFailed, problem.to_string());
        } else {
            self.remove_memory();
        }
        None
    }

    /// Has a machine run, or stand still, as it is to.
    fn become_ready(&mut self) -> Result<(), Problem> {
        if self.task.adopt.is_none() {
            self.pull_cables()?;
        }
        self.let_go_of_memory()?;
        self.halt_or_go_on()
    }

    fn not_started(&mut self, problem: &Problem) -> (OffReason, String) {
        if let Some(stop) = &self.stop {
            return (stop.reason, stop.message.clone());
        }
        if let Some(orphan) = &self.task.adopt {
            // A guest without its disks would wait for ever.
            self.starter.kill(orphan.qemu.pid);
        }
        (OffReason::StartFailed, problem.to_string())
    }

    /// Pauses or resumes the processors, as the present reasons require.
    fn halt_or_go_on(&mut self) -> Result<(), Problem> {
        let machine = self.machine()?;
        let monitor = machine.qemu().monitor();
        let reason = self.halted.reason();
        match &reason {
            Some(_) => monitor.stop().map_err(qmp_problem)?,
            None => monitor.cont().map_err(qmp_problem)?,
        }
        let power = if reason.is_some() { PowerState::Paused } else { PowerState::Running };
        self.standing.becomes(power, reason);
        Ok(())
    }

    fn end_because(&mut self, reason: OffReason, message: String) {
        tracing::error!("VM {}: it is cut off: {message}", self.task.spec.name);
        self.stop = Some(Stop { reason, message, deadline: None, guest_ended: false });
        self.standing.becomes(PowerState::Stopping, None);
        self.cut_off();
    }

    /// Stops the machine by force. One that is still starting is stopped as soon as it exists.
    fn cut_off(&mut self) {
        if let Some(stop) = &mut self.stop
            && stop.deadline.take().is_some_and(|deadline| deadline <= Instant::now())
            && stop.reason == OffReason::Stopped
        {
            stop.reason = OffReason::ForcedOff;
            stop.message = "its guest did not end in time, and it was cut off".to_owned();
        }
        self.start.abandon();
        let Some(machine) = &self.machine else { return };
        if self.is_between_hosts() {
            // In order, it would flush disks whose volumes another host has.
            machine.kill();
        } else if let Err(error) = machine.cut_off() {
            tracing::error!("VM {}: it cannot be cut off: {error}", self.task.spec.name);
        }
    }

    /// Closes the volumes in order, wipes the keys, and records the reason.
    fn end(mut self, reason: OffReason, message: String) -> Result<(), SupervisorError> {
        // Also what else goes on until the VM is off.
        self.start.abandon();
        self.standing.becomes(PowerState::Stopping, None);
        std::mem::take(&mut self.serial).finish();
        self.end_dump();
        self.machine = None;
        if let Some(tpm) = self.tpm.take() {
            tpm.end();
        }
        if let Some(tpm) = self.arriving_tpm.take().and_then(Arc::into_inner) {
            tpm.end();
        }
        if self.stop.is_none() {
            self.stop = Some(Stop { reason, message: message.clone(), deadline: None, guest_ended: false });
        }
        self.tell();
        for volume in &mut self.volumes {
            match &volume.served {
                Some(served) => served.stop(),
                // Volumes that were told to stop when the start failed also report their end as
                // news.
                None => volume.ended |= volume.observed.worker_pid.is_none(),
            }
        }
        let deadline = Instant::now() + VOLUMES_END_WITHIN;
        while self.volumes.iter().any(|volume| !volume.ended) {
            match self.inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(event) => drop(self.happened(event)),
                Err(_) => {
                    tracing::error!(
                        "VM {}: a volume does not end: its disk does not answer",
                        self.task.spec.name
                    );
                    break;
                }
            }
        }
        // Between two hosts, the other one needs them, and has them locked.
        if !self.is_between_hosts()
            && let Err(error) = swap::remove_all(&self.task.spec, &self.keys)
        {
            tracing::warn!("VM {}: a swap disk is left until its next start: {error}", self.task.spec.name);
        }
        tracing::info!("VM {}: off: {message}", self.task.spec.name);
        let at_unix_seconds = unix_seconds_now();
        self.state.off = Some(Off { reason, message: message.clone(), at_unix_seconds });
        (self.state.qemu, self.state.swtpm) = (None, None);
        let written = self.state.write(&self.run);
        self.volumes.clear();
        self.standing.missing = None;
        self.standing.becomes(reason.power(), Some(VmReason { code: reason.code().to_owned(), message }));
        self.tell();
        Ok(written?)
    }

    /// Reports the VM's state to all connections, if it has changed.
    fn tell(&mut self) {
        self.hosts.tell(ObservedVm {
            vm: self.task.spec.id,
            name: self.task.spec.name.clone(),
            directory: self.task.spec.directory(),
            generation: self.task.generation,
            power: self.standing.power,
            since_unix_seconds: unix_seconds(self.standing.since),
            supervisor_pid: Some(std::process::id()),
            supervisor_deaths: self.task.supervisor_deaths,
            qemu_pid: self.machine.as_ref().map(|machine| machine.qemu().identity().pid),
            tpm_lost: self.losses.tpm,
            network_lost: !self.losses.networks.is_empty(),
            volumes: self.volumes.iter().map(|volume| volume.observed.clone()).collect(),
            reason: self.standing.reason.clone().or_else(|| self.losses.reason()),
            waiting_for: self.standing.missing.iter().cloned().collect(),
            suspended: None,
            dumps: Some(self.dumps.clone()),
            snapshots: Some(self.snapshots.clone()),
            spec: None,
        });
    }
}

impl Halted {
    fn reason(&self) -> Option<VmReason> {
        match self {
            Self { for_room: true, .. } => Some(observe::no_room()),
            Self { by_request: true, .. } => Some(observe::paused_by_request()),
            _ => None,
        }
    }
}

/// What a machine would have to find on another host, if QEMU says so.
fn running_machine(monitor: &Monitor) -> Option<RunningMachine> {
    let kvm = monitor.runs_on_kvm().ok()?;
    let generation_id = monitor.generation_id().ok()?.unwrap_or_else(Uuid::nil);
    Some(RunningMachine { generation_id, qemu: monitor.version().to_string(), kvm })
}

/// Passes on what is told, at most once in [`TELLS_EVERY`].
fn now_and_then(mut tell: impl FnMut(Progress)) -> impl FnMut(Progress) {
    let mut told = Instant::now();
    move |progress| {
        if told.elapsed() >= TELLS_EVERY {
            told = Instant::now();
            tell(progress);
        }
    }
}

/// A channel for events.
pub fn channel_of_events() -> (Sender<Event>, Receiver<Event>) {
    channel()
}
