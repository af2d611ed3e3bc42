//! Moves a VM to another host while it runs, or takes one in.
//!
//! ```text
//! source   Sending > AboutToSwitch --(hostd has recorded that it is leaving)--> Closed
//! target   Coming --(the source has closed the volumes)--> TakingUp > TakenUp --(it was decided)--> it runs
//! ```
//!
//! hostd decides each step, and records it first. A worker whose volume is closed keeps QEMU's
//! session: QEMU before 9.1 does not connect again for a device that is not started.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use strongroom_host::orders::{Report, RunTask};
use strongroom_host::protocol::{
    KnownVolume, MigrationSettings, OffReason, Passing, PowerState, Problem, Progress, ProgressUnit,
    VmReason, VmSpec, VolumeFacts, check_moves_live,
};
use strongroom_host::run_directory::VmRunDirectory;
use strongroom_hypervisor::qmp::{MigrationPhase, MigrationProgress};
use strongroom_hypervisor::{Monitor, RunDirectory};
use strongroom_worker::supervise::LimitPage;

use super::activity::Activity;
use super::{Event, Vm, dump, now_and_then, snapshots};
use crate::another_host::GivenBeside;
use crate::door::Connection;
use crate::keys::VmKeys;
use crate::machine::Machine;
use crate::memory::make_disks_durable;
use crate::rekey::reencryption::merge_new_top;
use crate::serial::Serial;
use crate::starter::Starter;
use crate::starting::{
    AwaitingDisk, ComingVolumes, VolumeSource, keep_served, kept, record_start, tpm_is_lost,
};
use crate::transfer::{only_socket, qmp_problem, system_problem};
use crate::volumes::{ServedVolume, VolumeHost};
use crate::vtpm::{ArrivingTpm, Keeper, KeeperOrders};

/// The interval between queries.
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// How long QEMU may take to send the rest, or to load it, once the guest stands still.
const REST_WITHIN: Duration = Duration::from_secs(600);
const NOT_PASSED: &str = "the rest of its memory does not pass";
/// QEMU slows a guest down no further than to this, in percent.
const SLOWED_PERCENT_MAX: u64 = 99;
/// After so many more rounds at that, the memory still changes faster than it is sent.
const ROUNDS_IN_VAIN: u64 = 5;

/// A move, with the connection and request that wait for its step.
#[derive(Debug)]
pub(super) struct Moving {
    stage: Stage,
    asked_by: Option<(Connection, u64)>,
    /// The connection of the hostd that moves it: without that one, nobody would send the rest.
    owner: Option<u64>,
}

#[derive(Debug)]
enum Stage {
    /// The memory is sent, and the guest runs. Set to abandon it.
    Sending(Arc<AtomicBool>),
    /// The guest stands still, and its volumes are open.
    AboutToSwitch,
    /// The volumes are closed, or being closed. The workers keep QEMU's sessions.
    Closed(Vec<AwaitingDisk>),
    /// The memory comes. The workers wait for their volumes, which come, too, or are at a place
    /// that both hosts reach.
    Coming(Vec<AwaitingDisk>, Option<ComingVolumes>),
    /// The volumes are being opened. Then the guest goes on at once, if that was decided.
    TakingUp { goes_on: bool },
    /// The guest could go on.
    TakenUp,
}

/// A step of a move that has ended.
#[derive(Debug)]
pub enum MoveStep {
    /// The guest stands still, or the memory is not sent.
    Sent(Result<(), Problem>),
    /// The rest was sent, or not.
    SwitchedOver(Result<(), Problem>),
    /// The volumes are open.
    TakenUp(Result<TakenUp, Problem>),
    /// The TPM that has come with its guest is recorded.
    TpmTakenOver(Result<(), Problem>),
}

/// Volumes that are open.
#[derive(Debug)]
pub struct TakenUp {
    /// Each with the number of its socket.
    served: Vec<(usize, ServedVolume)>,
    /// What they are, if they came from another host.
    arrived: Vec<VolumeFacts>,
}

impl Moving {
    /// A VM that comes, whose workers wait for their volumes.
    pub(super) fn coming(awaiting: Vec<AwaitingDisk>, arriving: Option<ComingVolumes>) -> Self {
        Self { stage: Stage::Coming(awaiting, arriving), asked_by: None, owner: None }
    }

    #[cfg(test)]
    pub(super) fn for_tests() -> Self {
        Self::coming(Vec::new(), None)
    }

    /// Keeps the worker of a volume that was closed.
    pub(super) fn released(&mut self, disk: AwaitingDisk) {
        if let Stage::Closed(released) = &mut self.stage {
            released.push(disk);
        }
    }

    fn answer(&mut self, problem: Option<Problem>) {
        self.answer_of_volumes(problem, Vec::new());
    }

    fn answer_of_volumes(&mut self, problem: Option<Problem>, known: Vec<KnownVolume>) {
        if let Some((connection, request)) = self.asked_by.take() {
            connection.send(&Report::Answer { id: request, problem, known });
        }
    }
}

impl Vm {
    /// Whether the guest must not go on: another host may have the volumes.
    pub(super) fn is_between_hosts(&self) -> bool {
        self.activity.moving().is_some_and(|moving| !matches!(moving.stage, Stage::Sending(_)))
    }

    /// Begins to give the volumes to the host that the VM moves to. What was given to an earlier
    /// connection counts no more.
    pub(super) fn give_volumes(&mut self, files: Vec<OwnedFd>, known: &[KnownVolume]) -> Result<(), Problem> {
        self.machine()?;
        self.activity.allow_another()?;
        check_moves_live(&self.task.spec)?;
        self.check_volumes()?;
        self.learn(known)?;
        let client = UnixStream::from(only_socket(files)?);
        self.given = None;
        let spec = self.task.spec.as_ref().clone();
        self.given = Some(Arc::new(GivenBeside::start(
            spec,
            Arc::clone(&self.keys),
            Arc::clone(&self.limits),
            client,
        )?));
        Ok(())
    }

    /// Gives the start of a VM that comes a connection to its volumes. Answered when nearly all of
    /// them is here.
    pub(super) fn fetch_volumes(
        &mut self,
        asked_by: &Connection,
        request: u64,
        files: Vec<OwnedFd>,
    ) -> Result<(), Problem> {
        if !self.task.incoming.as_ref().is_some_and(|incoming| incoming.with_volumes) {
            return Err(out_of_turn());
        }
        if self.machine.is_some() {
            // A hostd that was killed asks again.
            asked_by.send(&Report::answer(request, None));
            return Ok(());
        }
        let from = UnixStream::from(only_socket(files)?);
        self.start.bring(VolumeSource { number: request, from })?;
        self.fetching = Some((asked_by.clone(), request));
        Ok(())
    }

    pub(super) fn volumes_fetched(&mut self, number: u64, fetched: Result<(), Problem>) {
        let Some((connection, _)) = self.fetching.take_if(|(_, request)| *request == number) else { return };
        connection.send(&Report::answer(number, fetched.err()));
    }

    /// Begins to send the memory. Answered when the guest stands still.
    pub(super) fn send_memory(
        &mut self,
        asked_by: &Connection,
        request: u64,
        settings: MigrationSettings,
        with_volumes: bool,
    ) -> Result<(), Problem> {
        let machine = self.machine()?;
        self.activity.allow_another()?;
        match &self.given {
            Some(given) if with_volumes => given.must_go_on()?,
            None if with_volumes => return Err(out_of_turn()),
            Some(_) | None => self.given = None,
        }
        check_moves_live(&self.task.spec)?;
        self.check_memory_can_be_saved()?;
        self.check_volumes()?;
        if self.losses.tpm {
            let message = "the VM's TPM has ended, so nothing of it could be sent";
            return Err(Problem::new("tpm_lost", message).with_next_step("stop the VM, and start it"));
        }
        let socket = self.qemus_directory()?.outgoing();
        machine.qemu().monitor().send_memory(&socket, settings).map_err(qmp_problem)?;
        let abandoned = Arc::new(AtomicBool::new(false));
        let (events, theirs) = (self.events.clone(), Arc::clone(&abandoned));
        let work = move || {
            let told = now_and_then(|progress| drop(events.send(Event::Progress(progress))));
            let sent = until_switch(machine.qemu().monitor(), &theirs, told);
            let _ = events.send(Event::Moved(MoveStep::Sent(sent)));
        };
        thread::Builder::new().name("move".to_owned()).spawn(work).map_err(Problem::system)?;
        let (owner, asked_by) = (Some(asked_by.id), Some((asked_by.clone(), request)));
        self.activity = Activity::Move(Moving { stage: Stage::Sending(abandoned), asked_by, owner });
        Ok(())
    }

    /// Gives up sending the memory, as long as the volumes are open.
    pub(super) fn abandon_move(&mut self) -> Result<(), Problem> {
        let Some(moving) = self.activity.moving() else { return Ok(()) };
        match &moving.stage {
            Stage::Sending(abandoned) => abandoned.store(true, Ordering::Relaxed),
            Stage::AboutToSwitch => {
                if let Some(machine) = &self.machine {
                    cancel(machine.qemu().monitor())?;
                }
                self.activity = Activity::Idle;
                self.halt_or_go_on()?;
                self.volumes_stay();
            }
            Stage::Closed(_) | Stage::Coming(..) | Stage::TakingUp { .. } | Stage::TakenUp => {
                let message = "the VM's guest has stopped, and another host may have its volumes";
                return Err(Problem::new("leaving", message));
            }
        }
        Ok(())
    }

    /// A connection is gone. If it was that of the hostd that moves the VM, the guest goes on.
    pub(super) fn move_is_nobodys(&mut self, connection: u64) {
        let is_its = |moving: &Moving| {
            let has_volumes = matches!(moving.stage, Stage::Sending(_) | Stage::AboutToSwitch);
            has_volumes && moving.owner == Some(connection)
        };
        if self.activity.moving().is_some_and(is_its)
            && let Err(problem) = self.abandon_move()
        {
            tracing::error!("VM {}: {problem}", self.task.spec.name);
        }
    }

    /// Whether the move is abandoned, but has not ended yet.
    fn move_is_abandoned(&self) -> bool {
        let is_abandoned =
            |moving: &Moving| matches!(&moving.stage, Stage::Sending(flag) if flag.load(Ordering::Relaxed));
        self.activity.moving().is_some_and(is_abandoned)
    }

    /// Closes the volumes, and sends the rest. Answered when all of it is sent.
    pub(super) fn switch_over(&mut self, asked_by: &Connection, request: u64) -> Result<(), Problem> {
        let (Some(moving), Some(machine)) = (self.activity.moving_mut(), self.machine.clone()) else {
            return Err(out_of_turn());
        };
        if !matches!(moving.stage, Stage::AboutToSwitch) {
            return Err(out_of_turn());
        }
        (moving.stage, moving.asked_by) = (Stage::Closed(Vec::new()), Some((asked_by.clone(), request)));
        // Without this supervisor, nobody could open them for the same QEMU.
        self.state.volumes_released = true;
        self.state.write(&self.run).map_err(Problem::system)?;
        std::mem::take(&mut self.serial).finish();
        let closing = self.close_volumes(ServedVolume::release);
        let (events, spec) = (self.events.clone(), self.task.spec.clone());
        let given = self.given.clone();
        let tpm = self.tpm.as_ref().map(Keeper::orders);
        let work = move || {
            let monitor = machine.qemu().monitor();
            let switched = close_and_switch(&closing, &spec, given.as_deref(), monitor, tpm.as_ref());
            let _ = events.send(Event::Moved(MoveStep::SwitchedOver(switched)));
        };
        thread::Builder::new().name("move".to_owned()).spawn(work).map(drop).map_err(Problem::system)
    }

    /// Opens the volumes of a VM that comes. Answered when its memory is loaded, too.
    pub(super) fn take_up(&mut self, asked_by: &Connection, request: u64) -> Result<(), Problem> {
        let (Some(moving), Some(machine)) = (self.activity.moving_mut(), self.machine.clone()) else {
            return Err(out_of_turn());
        };
        let taking_up = Stage::TakingUp { goes_on: false };
        let (awaiting, arriving) = match std::mem::replace(&mut moving.stage, taking_up) {
            Stage::Coming(awaiting, arriving) => (awaiting, arriving),
            // A hostd that was killed asks again.
            Stage::TakenUp => {
                moving.stage = Stage::TakenUp;
                asked_by.send(&self.answer_of_volumes(request, None));
                return Ok(());
            }
            other @ Stage::TakingUp { .. } => {
                (moving.stage, moving.asked_by) = (other, Some((asked_by.clone(), request)));
                return Ok(());
            }
            other @ (Stage::Sending(_) | Stage::AboutToSwitch | Stage::Closed(_)) => {
                moving.stage = other;
                return Err(out_of_turn());
            }
        };
        moving.asked_by = Some((asked_by.clone(), request));
        self.open_volumes(machine, awaiting, Whence::Elsewhere(arriving))
    }

    /// Opens volumes for workers that wait for them, on a thread of its own.
    fn open_volumes(
        &self,
        machine: Machine,
        awaiting: Vec<AwaitingDisk>,
        whence: Whence,
    ) -> Result<(), Problem> {
        let work = TakingUp {
            task: self.task.clone(),
            run: self.run.clone(),
            keys: Arc::clone(&self.keys),
            starter: self.starter.clone(),
            limits: Arc::clone(&self.limits),
            events: self.events.clone(),
            machine,
            arriving_tpm: self.arriving_tpm.clone(),
        };
        let take_up = move || {
            let (events, taken_up) = (work.events.clone(), work.run(awaiting, whence));
            drop(work);
            let _ = events.send(Event::Moved(MoveStep::TakenUp(taken_up)));
        };
        thread::Builder::new().name("move".to_owned()).spawn(take_up).map(drop).map_err(Problem::system)
    }

    /// The guest goes on here. hostd has recorded that it was decided so. Answered when it does.
    pub(super) fn go_on(&mut self, asked_by: &Connection, request: u64) -> Result<(), Problem> {
        let Some(moving) = self.activity.moving_mut() else {
            asked_by.send(&Report::answer(request, None));
            return Ok(());
        };
        let opening = Stage::TakingUp { goes_on: true };
        match std::mem::replace(&mut moving.stage, opening) {
            other @ (Stage::Sending(_) | Stage::AboutToSwitch) => {
                moving.stage = other;
                self.abandon_move()?;
            }
            Stage::Closed(released) => {
                moving.asked_by = Some((asked_by.clone(), request));
                let machine = self.machine.clone().ok_or_else(out_of_turn)?;
                // It unlocks them, and their last tops are merged when the guest goes on.
                self.owes_merges = self.given.take().is_some();
                return self.open_volumes(machine, released, Whence::Here);
            }
            other @ Stage::Coming(..) => {
                moving.stage = other;
                return Err(out_of_turn());
            }
            Stage::TakingUp { .. } => {
                moving.asked_by = Some((asked_by.clone(), request));
                return Ok(());
            }
            Stage::TakenUp => {
                moving.asked_by = Some((asked_by.clone(), request));
                let begun = self.take_over_tpm();
                if begun.is_err()
                    && let Some(moving) = self.activity.moving_mut()
                {
                    (moving.stage, moving.asked_by) = (Stage::TakenUp, None);
                }
                return begun;
            }
        }
        asked_by.send(&Report::answer(request, None));
        Ok(())
    }

    /// The guest goes on here, once its TPM is recorded, if one has come with it.
    fn take_over_tpm(&mut self) -> Result<(), Problem> {
        let Some(tpm) = self.arriving_tpm.clone() else {
            self.goes_on_as_asked();
            return Ok(());
        };
        let events = self.events.clone();
        let work = move || {
            let taken_over = tpm.take_over().map_err(|error| error.problem());
            // The one that is left becomes its keeper's.
            drop(tpm);
            let _ = events.send(Event::Moved(MoveStep::TpmTakenOver(taken_over)));
        };
        thread::Builder::new().name("move".to_owned()).spawn(work).map(drop).map_err(Problem::system)
    }

    fn goes_on_as_asked(&mut self) {
        let asked_by = self.activity.moving_mut().and_then(|moving| moving.asked_by.take());
        self.goes_on();
        self.tell();
        if let Some((connection, request)) = asked_by {
            connection.send(&Report::answer(request, None));
        }
    }

    /// Has the guest go on, whose volumes are open. The VM is here, also if its guest cannot, for
    /// example because its QEMU has ended meanwhile: its state says that then.
    fn goes_on(&mut self) {
        if let Err(problem) = self.becomes_one_that_runs() {
            tracing::warn!("VM {}: its guest does not go on: {problem}", self.task.spec.name);
        }
    }

    fn becomes_one_that_runs(&mut self) -> Result<(), Problem> {
        self.activity = Activity::Idle;
        if self.task.incoming.take().is_some_and(|incoming| incoming.with_volumes) {
            self.owes_merges = true;
        }
        self.serial = Serial::start(&self.task.spec, &self.keys, &self.starter);
        if self.volumes.iter().any(|volume| volume.ended || volume.observed.restarts > 0) {
            // The guest would wait for it for ever.
            let message = "a volume's worker has died while its VM was between two hosts";
            self.end_because(OffReason::VolumeLost, message.to_owned());
            return Err(Problem::new("worker", message));
        }
        if let Some(tpm) = &self.tpm {
            tpm.orders().go_on();
        }
        let ready = self.become_ready();
        if let Some(tpm) = self.arriving_tpm.take().and_then(Arc::into_inner) {
            self.tpm = kept(&self.task.spec, tpm.keep(tpm_is_lost(&self.events)));
        }
        ready?;
        // From now on another supervisor can take it over.
        self.state.volumes_released = false;
        self.state.write(&self.run).map_err(Problem::system)?;
        if std::mem::take(&mut self.owes_merges) {
            self.merge_new_tops();
        }
        Ok(())
    }

    /// A machine that waits for its memory.
    pub(super) fn await_memory(&mut self, awaiting: Vec<AwaitingDisk>, arriving: Option<ComingVolumes>) {
        self.activity = Activity::Move(Moving::coming(awaiting, arriving));
        self.standing.becomes(PowerState::Paused, Some(coming()));
    }

    /// Handles the end of a step.
    pub(super) fn moved(&mut self, step: MoveStep) {
        let mut known = Vec::new();
        let problem = match step {
            MoveStep::Sent(Ok(())) if self.stop.is_some() => {
                self.move_has_failed(Problem::new("stopping", "the VM is stopping"));
                return;
            }
            MoveStep::Sent(Ok(())) if self.move_is_abandoned() => {
                self.move_has_failed(Problem::new(
                    "abandoned",
                    "the move was abandoned, and its guest goes on",
                ));
                return;
            }
            MoveStep::Sent(Ok(())) => {
                if let Some(problem) = self.given.as_ref().and_then(|given| given.begin_closing().err()) {
                    self.move_has_failed(problem);
                    return;
                }
                if let Some(moving) = self.activity.moving_mut() {
                    moving.stage = Stage::AboutToSwitch;
                }
                self.standing.becomes(PowerState::Paused, Some(leaving()));
                None
            }
            MoveStep::Sent(Err(problem)) => {
                self.move_has_failed(problem);
                return;
            }
            MoveStep::SwitchedOver(switched) => switched.err(),
            MoveStep::TakenUp(Ok(TakenUp { served, arrived })) => {
                for (socket, served) in served {
                    let volume = self.volumes.iter_mut().find(|volume| volume.socket == socket);
                    if let Some(volume) = volume {
                        (volume.served, volume.ended) = (Some(served), false);
                    }
                }
                let learned = self.learn_of_arrived(&arrived);
                match learned.and_then(|arrived| Ok((arrived, self.taken_up()?))) {
                    Ok((arrived, true)) => {
                        known = arrived;
                        None
                    }
                    Ok((_, false)) => return,
                    Err(problem) => {
                        self.not_taken_up(&problem);
                        Some(problem)
                    }
                }
            }
            MoveStep::TpmTakenOver(Ok(())) => {
                self.goes_on_as_asked();
                return;
            }
            MoveStep::TakenUp(Err(problem)) | MoveStep::TpmTakenOver(Err(problem)) => {
                self.not_taken_up(&problem);
                Some(problem)
            }
        };
        self.tell();
        if let Some(moving) = self.activity.moving_mut() {
            moving.answer_of_volumes(problem, known);
        }
    }

    /// The volumes have come with these facts, and with the lists of dumps and snapshots.
    fn learn_of_arrived(&mut self, arrived: &[VolumeFacts]) -> Result<Vec<KnownVolume>, Problem> {
        if arrived.is_empty() {
            return Ok(Vec::new());
        }
        let spec = self.task.spec.as_ref().clone().with_facts(arrived);
        self.configure(&spec)?;
        (self.dumps, self.snapshots) = (dump::found(&spec), snapshots::found(&spec));
        Ok(spec.known_volumes())
    }

    /// The volumes are open: the guest goes on, if that was decided. Returns whether that is all.
    fn taken_up(&mut self) -> Result<bool, Problem> {
        let Some(moving) = self.activity.moving_mut() else { return Ok(true) };
        if matches!(moving.stage, Stage::TakingUp { goes_on: true }) {
            self.take_over_tpm()?;
            return Ok(false);
        }
        moving.stage = Stage::TakenUp;
        Ok(true)
    }

    /// The volumes are not opened. A guest that was to go on here cannot.
    fn not_taken_up(&mut self, problem: &Problem) {
        let goes_on = |moving: &Moving| matches!(moving.stage, Stage::TakingUp { goes_on: true });
        if self.activity.moving().is_some_and(goes_on) && self.stop.is_none() {
            self.end_because(OffReason::VolumeLost, problem.to_string());
        }
    }

    /// The guest stays: its volumes are open still.
    fn move_has_failed(&mut self, problem: Problem) {
        let name = self.task.spec.name.clone();
        tracing::warn!("VM {name}: it does not move: {problem}");
        let Activity::Move(mut moving) = std::mem::take(&mut self.activity) else { return };
        let cancelled = self.machine.as_ref().map_or(Ok(()), |machine| cancel(machine.qemu().monitor()));
        let goes_on = match &self.stop {
            Some(_) => {
                self.ask_guest_to_end(true);
                cancelled
            }
            None => cancelled.and_then(|()| self.halt_or_go_on()),
        };
        if let Err(problem) = goes_on {
            tracing::error!("VM {name}: {problem}");
        }
        self.volumes_stay();
        self.tell();
        moving.answer(Some(problem));
    }

    /// The volumes are given to nobody any more, and are served as before.
    fn volumes_stay(&mut self) {
        if self.given.take().is_some() {
            self.merge_new_tops();
        }
    }

    /// Has the tops merged that a move has put on the disks.
    fn merge_new_tops(&self) {
        let spec = self.task.spec.clone();
        let merge = move || {
            for disk in &spec.disks {
                merge_new_top(&spec.volume_path(&disk.name), disk.least_generation);
            }
        };
        if let Err(error) = thread::Builder::new().name("merges".to_owned()).spawn(merge) {
            tracing::warn!("VM {}: its disks keep a layer more: {error}", self.task.spec.name);
        }
    }

    fn qemus_directory(&self) -> Result<RunDirectory, Problem> {
        RunDirectory::open(self.run.path()).map_err(|error| Problem::new("qemu", error.to_string()))
    }
}

fn coming() -> VmReason {
    let message = "it runs on another host, and its memory comes from there";
    VmReason { code: "coming".to_owned(), message: message.to_owned() }
}

fn leaving() -> VmReason {
    let message = "its guest stands still, and goes on on another host";
    VmReason { code: "leaving".to_owned(), message: message.to_owned() }
}

fn out_of_turn() -> Problem {
    Problem::new("other_step", "the VM's move is not at this step")
}

/// Waits until QEMU has stopped the guest for the last part. Gives up if the guest changes its
/// memory faster than it can be sent.
fn until_switch(
    monitor: &Monitor,
    abandoned: &AtomicBool,
    mut tell: impl FnMut(Progress),
) -> Result<(), Problem> {
    // The round in which the guest was slowed down as far as possible.
    let mut slowest_since = None;
    loop {
        let now = monitor.migration().map_err(qmp_problem)?;
        match &now.phase {
            MigrationPhase::AboutToSwitch if !abandoned.load(Ordering::Relaxed) => return Ok(()),
            MigrationPhase::Failed(why) => {
                return Err(Problem::new("qemu", format!("its memory does not pass: {why}")));
            }
            MigrationPhase::Completed => return Err(Problem::new("qemu", "QEMU did not wait")),
            MigrationPhase::UnderWay | MigrationPhase::AboutToSwitch => {}
        }
        if abandoned.load(Ordering::Relaxed) {
            cancel(monitor)?;
            return Err(Problem::new("abandoned", "the move was abandoned, and its guest goes on"));
        }
        if now.slowed_percent >= SLOWED_PERCENT_MAX {
            let since = *slowest_since.get_or_insert(now.rounds);
            if now.rounds.saturating_sub(since) >= ROUNDS_IN_VAIN {
                cancel(monitor)?;
                return Err(never_ends(&now));
            }
        }
        let total = now.total_bytes;
        let done = total.saturating_sub(now.remaining_bytes);
        let passing = Passing {
            bytes_per_second: now.bytes_per_second,
            changed_bytes_per_second: now.dirty_bytes_per_second,
            seconds_left: now.seconds_left(),
            slowed_percent: now.slowed_percent,
        };
        tell(Progress { passing: Some(passing), ..Progress::new(done, total, ProgressUnit::Bytes) });
        thread::sleep(ASK_AGAIN);
    }
}

fn never_ends(now: &MigrationProgress) -> Problem {
    let mib = |bytes: u64| bytes >> 20;
    let message = format!(
        "the guest changes {} MiB of memory a second although it is slowed down as far as possible, and {} MiB a second pass",
        mib(now.dirty_bytes_per_second),
        mib(now.bytes_per_second)
    );
    let next = "move it when it has less to do, over a faster network, or with a longer pause";
    Problem::new("not_converging", message).with_next_step(next)
}

/// Cancels a migration, and waits until QEMU continues the guest.
fn cancel(monitor: &Monitor) -> Result<(), Problem> {
    let end = || monitor.end_saving().map_err(qmp_problem);
    await_end(monitor, end, "QEMU does not end the migration").map(drop)
}

/// Waits until all volumes are closed, and has QEMU send the rest. Before it does so, it waits for
/// an answer of its TPM, and that for the record of a state: so the record is closed last.
fn close_and_switch(
    closing: &[Receiver<Result<(), Problem>>],
    spec: &VmSpec,
    given: Option<&GivenBeside>,
    monitor: &Monitor,
    tpm: Option<&KeeperOrders>,
) -> Result<(), Problem> {
    for closed in closing {
        closed.recv().map_err(|_| Problem::new("worker", "a volume does not say that it is closed"))??;
    }
    make_disks_durable(spec).map_err(system_problem("make the disks durable"))?;
    if let Some(given) = given {
        given.closed();
    }
    monitor.switch_over().map_err(qmp_problem)?;
    await_completion(monitor)?;
    tpm.map_or(Ok(()), KeeperOrders::release)
}

fn await_completion(monitor: &Monitor) -> Result<(), Problem> {
    match await_end(monitor, || Ok(()), NOT_PASSED)? {
        None => Ok(()),
        Some(why) => Err(Problem::new("qemu", format!("{NOT_PASSED}: {why}"))),
    }
}

/// Waits until a migration has ended; returns why it has failed, if it has. `before_each` is done
/// before each look.
fn await_end(
    monitor: &Monitor,
    before_each: impl Fn() -> Result<(), Problem>,
    late: &str,
) -> Result<Option<String>, Problem> {
    let until = Instant::now() + REST_WITHIN;
    loop {
        before_each()?;
        match monitor.migration().map_err(qmp_problem)?.phase {
            MigrationPhase::Completed => return Ok(None),
            MigrationPhase::Failed(why) => return Ok(Some(why)),
            MigrationPhase::UnderWay | MigrationPhase::AboutToSwitch if Instant::now() > until => {
                return Err(Problem::new("qemu", late));
            }
            MigrationPhase::UnderWay | MigrationPhase::AboutToSwitch => thread::sleep(ASK_AGAIN),
        }
    }
}

/// Opens the volumes of a VM that comes.
struct TakingUp {
    task: RunTask,
    run: VmRunDirectory,
    keys: Arc<VmKeys>,
    starter: Starter,
    limits: Arc<LimitPage>,
    events: Sender<Event>,
    machine: Machine,
    arriving_tpm: Option<Arc<ArrivingTpm>>,
}

/// Whence a guest goes on.
enum Whence {
    /// It was leaving, and stays.
    Here,
    /// It comes from another host; and so do the volumes, unless both hosts reach them.
    Elsewhere(Option<ComingVolumes>),
}

impl TakingUp {
    fn run(&self, awaiting: Vec<AwaitingDisk>, whence: Whence) -> Result<TakenUp, Problem> {
        let monitor = self.machine.qemu().monitor();
        let mut task = self.task.clone();
        let mut arrived = Vec::new();
        match &whence {
            Whence::Here => cancel(monitor)?,
            Whence::Elsewhere(arriving) => {
                if let Some(arriving) = arriving {
                    let ended = |_| Problem::new("broke_off", "its volumes do not come any more");
                    arrived = arriving.recv().map_err(ended)??;
                    *task.spec = task.spec.with_facts(&arrived);
                }
                await_completion(monitor)?;
            }
        }
        if let Some(tpm) = &self.arriving_tpm {
            tpm.check().map_err(|error| error.problem())?;
        }
        let mut served = Vec::with_capacity(awaiting.len());
        let mut opened = self.open(&task.spec, awaiting, &mut served);
        if let Whence::Elsewhere(_) = whence {
            opened = opened.and_then(|()| record_start(&task, &self.keys));
        }
        if opened.is_err() {
            // They are to be closed when the VM ends, which does not know of them.
            served.iter().for_each(|(_, volume)| volume.stop());
        }
        opened.map(|()| TakenUp { served, arrived })
    }

    fn open(
        &self,
        spec: &VmSpec,
        awaiting: Vec<AwaitingDisk>,
        served: &mut Vec<(usize, ServedVolume)>,
    ) -> Result<(), Problem> {
        let (run, limits) = (&self.run, &self.limits);
        let host = VolumeHost { keys: &self.keys, starter: &self.starter, run, limits, changed_over: None };
        for AwaitingDisk { socket, disk, standby } in awaiting {
            let disk = spec.disk(&disk.name).cloned().unwrap_or(disk);
            let volume = host.open(spec, &disk).map_err(|error| error.problem())?;
            let supervisor =
                standby.serve(volume).map_err(|error| Problem::new("worker", error.to_string()))?;
            let volume = keep_served(socket, supervisor, &disk, &self.events).map_err(Problem::system)?;
            served.push((socket, volume));
        }
        Ok(())
    }
}

/// Answers whoever waits for a volume's end.
pub(super) type Closed = SyncSender<Result<(), Problem>>;
