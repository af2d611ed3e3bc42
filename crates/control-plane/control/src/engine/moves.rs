//! A VM that is off, or a volume that no VM has, moves to another host that reaches its datastore.
//! One that runs moves as [`live_moves`](super::live_moves) has it.
//!
//! ```text
//! stop    only for an evacuation: its guest shuts down
//! leave   the next host says that it would take it -> former host: no process of it runs there, the
//!         handover is in its directory, and the host has given it up, durably; then it says so
//!         -> inventory: it is of the next host, with the next generation
//! arrive  next host: it finds the handover, and has the VM, durably -> the inventory has its state
//!         -> the task is done, or starts the VM there
//! return  the next host refused, or the task was cancelled: inventory: it is of the former host,
//!         with the next generation -> former host: it has the VM again, durably
//! ```
//!
//! At every moment one host at most would start the VM: the former one until it has given it up,
//! and the next one once the inventory says so. The former host's word is needed, so a VM of a host
//! that does not answer stays where it is: it may run there.

use std::ops::ControlFlow;

use strongroom_api::task::{Task, TaskKind};
use strongroom_api::vm::{Lifecycle, MoveToHost, PowerState};
use strongroom_api::{ErrorCode, ObjectKind, Problem};
use strongroom_host::protocol::{HandoverId, MigrationSettings, OperationKind, VmGeneration};
use uuid::Uuid;

use super::advance::{End, Next, Step};
use super::carried_moves::{carried, may_be_carried};
use super::datastores::{speaks_of_live_moves, speaks_of_moves};
use super::live_moves::{breaks, may_move_live, settings};
use super::networks::connected;
use super::operate::Operated;
use super::place::{find_datastore, told_without_key};
use super::placement::{Among, Choice, Needs, must_not_be_in_maintenance};
use super::wishes::{Caller, idle, state, stop_it, suspended};
use super::{Control, HostSeat, RETRY_PAUSE};
use crate::host::HostError;
use crate::inventory::{Draft, Failure, Index, Row};
use crate::problems;
use crate::records::{DatastoreRecord, LiveMove, TaskRecord, VmRecord, Work};

/// A VM that may leave its host as it is now, or once it is off.
pub(super) struct Departure {
    /// Its record with the task.
    pub vm: VmRecord,
    pub work: Work,
    /// Where it moves to, and why there.
    pub reason: String,
}

/// What becomes of a VM that runs: it moves while it runs.
#[derive(Clone, Copy)]
pub(super) struct IfOn {
    pub settings: MigrationSettings,
    /// Whether it is shut down, and started on its next host, if it cannot; and how long its guest
    /// has for that, in seconds.
    pub shut_down_s: Option<u32>,
}

/// Where the volumes of a VM are once it has moved.
#[derive(Clone, Copy)]
pub(super) enum Volumes<'a> {
    /// In their datastore, which the next host reaches.
    Stay,
    /// In this datastore of the next host.
    MoveTo(&'a Row<DatastoreRecord>),
    /// In their datastore if a host fits that reaches it, and otherwise in one of another host.
    MoveIfNeeded,
}

/// How a VM leaves its host.
enum Way {
    /// As it is: it is off.
    Off,
    Live,
    /// It is shut down, within this time in seconds.
    ShutDown(u32),
}

impl Control {
    /// Requests that a VM, or a volume that no VM has, moves to another host.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn move_to_host(&self, caller: &Caller, named: &str, wish: &MoveToHost) -> Result<Task, Problem> {
        let if_on = IfOn { settings: settings(wish)?, shut_down_s: None };
        self.wish(caller, |index, id| {
            let vm = index.find_any(named).ok_or_else(|| problems::not_found(ObjectKind::Vm, named))?;
            let vm = idle(index, vm)?;
            let among = wish.host.as_deref().map_or(Among::AllBut(vm.host), Among::Named);
            let volumes = match wish.datastore.as_deref() {
                Some(named) => Volumes::MoveTo(find_datastore(index, Some(named))?),
                None => Volumes::Stay,
            };
            let departure = self.departure(index, vm, &among, if_on, volumes)?;
            let task = self.task(id, TaskKind::VmMoveHost, vm.object(), caller);
            let (departing, draft) = self.departing(vm, &departure, id);
            let work = departure.work;
            Ok((TaskRecord { vm: Some(departing.id), work, ..task }, draft))
        })
    }

    /// The record of a VM that a task moves, and the transaction that begins its move.
    pub(super) fn departing(
        &self,
        vm: &Row<VmRecord>,
        departure: &Departure,
        task: Uuid,
    ) -> (VmRecord, Draft) {
        let departing = VmRecord { task: Some(task), ..departure.vm.clone() };
        let message = format!("{}: {}", problems::called(vm), departure.reason);
        let draft = self.draft().replace(vm, &departing);
        let draft = draft.event("vm.placed", &vm.object(), message, Some(task));
        (departing, draft)
    }

    /// Checks that an idle VM may leave its host, and chooses where it goes.
    pub(super) fn departure(
        &self,
        index: &Index,
        vm: &Row<VmRecord>,
        among: &Among<'_>,
        if_on: IfOn,
        volumes: Volumes<'_>,
    ) -> Result<Departure, Problem> {
        let called = problems::called(vm);
        let former = self.seat_of(vm)?;
        if vm.lifecycle != Lifecycle::Present {
            return Err(problems::conflict(format!("{called} is not complete")));
        }
        speaks_of_moves(former)?;
        let power = self.power_of(index, vm);
        let runs = match power {
            PowerState::Stopped | PowerState::Crashed => false,
            PowerState::Unknown => {
                let message = format!(
                    "host {} does not answer, and {called} may run there: it moves only once that host has given it up",
                    former.name
                );
                return Err(Problem::new(ErrorCode::HostUnavailable, message)
                    .next("see to it that hostd runs there and is reached"));
            }
            PowerState::Suspended => {
                return Err(suspended(vm, "its memory fits the processors of its host"));
            }
            PowerState::Running | PowerState::Paused => true,
            PowerState::Starting | PowerState::Stopping | PowerState::KeyUnavailable => {
                let only = "only one that runs, or is off, moves to another host";
                return Err(state(vm, power, only).next(stop_it(vm)));
            }
        };
        let Some(own) = index.datastore_of(vm) else { return Err(problems::datastore_unknown(vm)) };
        let choose_in = |datastore| self.choose(index, &needs_elsewhere(index, vm, datastore, former), among);
        let (Choice { seat: next, reason }, other) = match volumes {
            Volumes::MoveTo(other) if other.id != own.id => (choose_in(other)?, Some(other)),
            Volumes::MoveTo(_) | Volumes::Stay => {
                let or_carried =
                    |problem| if own.is_shared() { problem } else { or_with_volumes(vm, problem) };
                (choose_in(own).map_err(or_carried)?, None)
            }
            Volumes::MoveIfNeeded => match choose_in(own) {
                Ok(choice) => (choice, None),
                Err(problem) => {
                    let (choice, other) = self.choose_elsewhere(index, vm, former, among, problem)?;
                    (choice, Some(other))
                }
            },
        };
        if next.id == former.id {
            let problem = problems::conflict(format!("{called} is on host {} already", former.name));
            return Err(problem.next("name another host"));
        }
        speaks_of_moves(next)?;
        // A departure has a generation of its own, after starts that only the former host knows of,
        // and after the VM's arrival there.
        let seen = index.observed(vm.id).map_or(0, |seen| seen.generation);
        let known = VmRecord { generation: vm.generation.max(seen), ..VmRecord::clone(&vm.record) };
        let way = match runs {
            true if let Some(other) = other => {
                may_be_carried(index, vm, former, next, other)?;
                may_move_live(vm, former, next)?;
                Way::Live
            }
            true => {
                // A guest that is paused does not shut down.
                let shut_down_s = if_on.shut_down_s.filter(|_| power == PowerState::Running);
                way_of_running(vm, former, next, shut_down_s)?
            }
            false => Way::Off,
        };
        let (departing, work) = match way {
            Way::Off if let Some(other) = other => {
                may_be_carried(index, vm, former, next, other)?;
                let carried = carried(vm, next.id, other.id, if_on.settings);
                (next_generation(&known), Work::Carry(Box::new(carried)))
            }
            Way::Off => {
                let work = Work::Leave { to: next.id, handover: HandoverId::random(), starts: false };
                (next_generation(&known), work)
            }
            Way::Live => {
                let attempt = known.generation_after(0);
                let live = LiveMove::new(&known, next.id, attempt, if_on.settings);
                let live = match other {
                    Some(other) => live.with_volumes(known.datastore, other.id),
                    None => live,
                };
                (VmRecord { prepared: attempt, ..known }, Work::Migrate(Box::new(live)))
            }
            Way::ShutDown(timeout_s) => (known, Work::StopToMove { to: next.id, timeout_s }),
        };
        let volumes =
            other.map_or_else(String::new, |other| format!(", with its volumes to datastore {}", other.name));
        let how = match &work {
            Work::Migrate(_) => format!("{volumes}, while it runs{}", breaks(vm)),
            _ => volumes,
        };
        let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
        let reason = format!("it moves from host {} to host {}{how}{reason}", former.name, next.name);
        Ok(Departure { vm: departing, work, reason })
    }

    /// Has the guest of a VM that is to move shut down.
    pub(super) fn stop_to_move(&self, step: &Step, to: Uuid, timeout_s: u32) -> Result<Next, Failure> {
        let operated = self.operate(&step.task, &step.vm, step.seat, |_| {
            Some(OperationKind::Stop { force: false, timeout_s })
        })?;
        match operated {
            Operated::Pending(next) => Ok(next),
            Operated::Done(_) => {
                if let Some(wait) = self.look_first(step)? {
                    return Ok(wait);
                }
                // It is still wanted on. With this generation the stop is no wish of its guest.
                self.turn(
                    step,
                    Work::Leave { to, handover: HandoverId::random(), starts: true },
                    next_generation(&step.vm),
                )
            }
            ended => self.as_it_is(step, ended),
        }
    }

    /// Has the former host give a VM up. From then on it is the next host's.
    pub(super) fn leave(
        &self,
        step: &Step,
        to: Uuid,
        handover: HandoverId,
        starts: bool,
    ) -> Result<Next, Failure> {
        if step.task.operation.is_none() && !step.task.task.cancelling {
            match self.is_awaited(&step.vm, to) {
                Ok(()) => {}
                Err(NotAwaited::Refused(problem)) => return self.stays(step, End::Failed(problem)),
                Err(NotAwaited::Unanswered(problem)) => {
                    self.note(&step.task, problem.message)?;
                    return Ok(Next::Wait(RETRY_PAUSE));
                }
            }
        }
        let operated = self.operate(&step.task, &step.vm, step.seat, |datastore| {
            Some(OperationKind::Leave { spec: Box::new(step.vm.told(datastore)?), handover })
        })?;
        match operated {
            Operated::Pending(next) => Ok(next),
            Operated::Done(_) => {
                let from = step.vm.host;
                let vm = self.now_on(to, next_generation(&step.vm));
                let (former, next) = (step.seat.name.as_str(), self.name_of(to));
                let message = format!(
                    "host {former} has given {} up, which is of host {next} from now on",
                    problems::called(&vm)
                );
                let draft = self.draft().event("vm.left", &vm.object(), message, Some(step.task.task.id));
                self.turn_with(step, Work::Arrive { from, handover, starts }, vm, draft)
            }
            // It did nothing, for example because the VM runs.
            Operated::Failed(problem) if problem.code == ErrorCode::Conflict => {
                self.stays(step, End::Failed(problem))
            }
            Operated::Failed(problem) => self.give_back(step, step.vm.host, Some(problem)),
            Operated::Cancelled => self.stays(step, End::Cancelled),
            Operated::Forgotten if step.task.operation.is_none() => self.stays(step, End::Cancelled),
            // The host may have given it up before it forgot the operation.
            Operated::Forgotten => self.give_back(step, step.vm.host, None),
        }
    }

    /// Whether the next host still takes the VM: it says so before the former one gives it up.
    pub(super) fn is_awaited(&self, vm: &VmRecord, to: Uuid) -> Result<(), NotAwaited> {
        let name = self.name_of(to);
        let gone = || problems::conflict(format!("host {name} is not there any more"));
        let (spec, seat) = {
            let index = self.inventory.read();
            let host = index.hosts.get(&to.to_string()).filter(|host| !host.is_leaving());
            let host = host.ok_or_else(gone)?;
            must_not_be_in_maintenance(host)?;
            let paths = index.paths_of(vm, to).ok_or_else(|| {
                problems::conflict(format!("host {name} does not reach the datastore any more"))
            })?;
            let spec = told_without_key(vm, &paths);
            (spec.ok_or_else(|| problems::key_never_made(vm))?, self.seat(to).ok_or_else(gone)?)
        };
        match seat.host.check(&spec) {
            Ok(()) => Ok(()),
            Err(error @ HostError::Refused(_)) => {
                Err(NotAwaited::Refused(problems::host(seat.name.as_str(), &error)))
            }
            Err(error @ HostError::Unreachable(_)) => {
                Err(NotAwaited::Unanswered(problems::host(seat.name.as_str(), &error)))
            }
        }
    }

    /// Has the next host take a VM over.
    pub(super) fn arrive(
        &self,
        step: &Step,
        from: Uuid,
        handover: HandoverId,
        starts: bool,
    ) -> Result<Next, Failure> {
        let operated = self.operate(&step.task, &step.vm, step.seat, |datastore| {
            let spec = Box::new(step.vm.told(datastore)?);
            Some(OperationKind::Arrive { spec, handover: Some(handover) })
        })?;
        match operated {
            Operated::Pending(next) => Ok(next),
            Operated::Done(_) => {
                if let Some(wait) = self.look_first(step)? {
                    return Ok(wait);
                }
                if starts {
                    let work = Work::Start { discard_memory: false, paused: false };
                    return self.turn(step, work, next_generation(&step.vm));
                }
                self.end(step, &step.vm, self.draft(), End::Done)
            }
            Operated::Failed(problem) => self.give_back(step, from, Some(problem)),
            Operated::Cancelled | Operated::Forgotten => self.give_back(step, from, None),
        }
    }

    /// Has the former host take a VM back, and ends the task.
    pub(super) fn return_to_former(&self, step: &Step, problem: Option<&Problem>) -> Result<Next, Failure> {
        match self.back_at_former(step, problem)? {
            ControlFlow::Break(next) => Ok(next),
            ControlFlow::Continue(problem) => {
                self.end(step, &step.vm, self.draft(), problem.map_or(End::Cancelled, End::Failed))
            }
        }
    }

    /// Has the former host take a VM back. Returns why it did not move, once that host has it again
    /// or does not take it; nothing if the move was cancelled.
    pub(super) fn back_at_former(
        &self,
        step: &Step,
        problem: Option<&Problem>,
    ) -> Result<ControlFlow<Next, Option<Problem>>, Failure> {
        let operated = self.operate_unless_cancelled(step, &step.vm, |datastore| {
            Some(OperationKind::Arrive { spec: Box::new(step.vm.told(datastore)?), handover: None })
        })?;
        Ok(match operated {
            Operated::Pending(next) => ControlFlow::Break(next),
            Operated::Done(_) => match self.look_first(step)? {
                Some(wait) => ControlFlow::Break(wait),
                None => ControlFlow::Continue(problem.cloned()),
            },
            Operated::Failed(refused) => {
                ControlFlow::Continue(Some(self.not_taken_back(step, problem, refused)))
            }
            Operated::Cancelled | Operated::Forgotten => ControlFlow::Continue(problem.cloned()),
        })
    }

    /// Why a VM that did not move is not its former host's either.
    fn not_taken_back(&self, step: &Step, why: Option<&Problem>, refused: Problem) -> Problem {
        let why = why.map_or_else(|| "the move was cancelled".to_owned(), |why| why.message.clone());
        let host = &step.seat.name;
        let message = format!("{why}; and host {host} does not take it back: {}", refused.message);
        Problem { message, ..refused }.next(format!(
            "see to its datastore there, and move it once more: `strongroom vm migrate {}`",
            step.vm.name
        ))
    }

    /// Has a VM's host take it over from one that is fenced, until it does.
    pub(super) fn take_from_fenced(&self, step: &Step) -> Result<Next, Failure> {
        let operated = self.operate_unless_cancelled(step, &step.vm, |datastore| {
            Some(OperationKind::Arrive { spec: Box::new(step.vm.told(datastore)?), handover: None })
        })?;
        match operated {
            Operated::Pending(next) => Ok(next),
            Operated::Done(_) => match self.look_first(step)? {
                Some(wait) => Ok(wait),
                None => self.end(step, &step.vm, self.draft(), End::Done),
            },
            Operated::Failed(problem) if step.task.task.cancelling => {
                self.end(step, &step.vm, self.draft(), End::Failed(problem))
            }
            Operated::Cancelled | Operated::Forgotten => {
                self.end(step, &step.vm, self.draft(), End::Cancelled)
            }
            Operated::Failed(problem) => {
                self.clear_attempt(step);
                self.turn(step, Work::TakeOver, next_generation(&step.vm))?;
                tracing::warn!(vm = %step.vm.name, host = %step.seat.name, %problem, "it is not taken over yet");
                Ok(Next::Wait(RETRY_PAUSE))
            }
        }
    }

    /// Has a host give up what an attempt to move a VM while it ran has left there. What cannot be
    /// ordered now is ordered with the next try.
    fn clear_attempt(&self, step: &Step) {
        if step.vm.prepared == 0 || speaks_of_live_moves(step.seat).is_err() {
            return;
        }
        let (generation, kind) = (VmGeneration(step.vm.prepared), OperationKind::Settle { here: false });
        if let Err(error) = step.seat.order(step.vm.id, generation, kind, Vec::new()) {
            tracing::debug!(vm = %step.vm.name, host = %step.seat.name, %error, "an attempt is not cleared up");
        }
    }

    /// The record of a VM that is of another host now, with its network cards connected there. The
    /// host has had its networks since the move was asked for.
    pub(super) fn now_on(&self, host: Uuid, mut vm: VmRecord) -> VmRecord {
        vm.host = host;
        let index = self.inventory.read();
        match connected(&index, &vm.hardware.nics, host) {
            Ok(nics) => vm.hardware.nics = nics,
            Err(problem) => tracing::error!(vm = %vm.name, %problem, "a network card is not connected anew"),
        }
        vm
    }

    /// Makes a VM that did not move its former host's again.
    fn give_back(&self, step: &Step, host: Uuid, problem: Option<Problem>) -> Result<Next, Failure> {
        let vm = self.now_on(host, next_generation(&step.vm));
        self.turn(step, Work::Return { problem }, vm)
    }

    /// Ends a move before the former host has given the VM up.
    fn stays(&self, step: &Step, end: End) -> Result<Next, Failure> {
        self.end(step, &step.vm, self.draft(), end)
    }

    pub(super) fn name_of(&self, host: Uuid) -> String {
        self.seat(host).map_or_else(|| host.to_string(), |seat: &HostSeat| seat.name.to_string())
    }
}

/// How a VM that runs leaves its host.
fn way_of_running(
    vm: &VmRecord,
    former: &HostSeat,
    next: &HostSeat,
    shut_down_s: Option<u32>,
) -> Result<Way, Problem> {
    match (may_move_live(vm, former, next), shut_down_s) {
        (Ok(()), _) => Ok(Way::Live),
        (Err(_), Some(timeout_s)) => Ok(Way::ShutDown(timeout_s)),
        (Err(problem), None) => Err(problem.next(stop_it(vm))),
    }
}

/// What a person can also do with a VM whose datastore no other host reaches.
fn or_with_volumes(vm: &VmRecord, problem: Problem) -> Problem {
    if problem.code != ErrorCode::NoHost {
        return problem;
    }
    let also = format!(
        "move its volumes with it: `strongroom vm migrate {} --to HOST --datastore DATASTORE`",
        vm.name
    );
    let next = problem.next_step.as_ref().map_or_else(|| also.clone(), |next| format!("{next}; or {also}"));
    problem.next(next)
}

/// Why a VM does not leave for another host now.
pub(super) enum NotAwaited {
    /// That host would not take it.
    Refused(Problem),
    /// That host does not answer.
    Unanswered(Problem),
}

impl From<Problem> for NotAwaited {
    fn from(problem: Problem) -> Self {
        Self::Refused(problem)
    }
}

/// What a VM needs of another host than its own: its datastores, or another one, to which all of
/// its volumes move with it.
pub(super) fn needs_elsewhere<'a>(
    index: &'a Index,
    vm: &'a Row<VmRecord>,
    datastore: &'a Row<DatastoreRecord>,
    former: &'a HostSeat,
) -> Needs<'a> {
    let board = &vm.hardware.board;
    // One that was never started has met no processor yet.
    let has_processor = vm.is_run() && vm.generation > 0 && board.processor().is_host();
    Needs {
        called: problems::called(vm),
        board: vm.is_run().then_some(board),
        has_processor_of: has_processor.then_some(former),
        datastore,
        others: if datastore.id == vm.datastore { index.other_datastores_of(vm) } else { Vec::new() },
        policy: index.policy_of(vm),
        memory_bytes: if vm.is_run() { vm.hardware.memory.bytes() } else { 0 },
        processors: vm.hardware.cpus.count(),
        nics: Some(vm.hardware.nics.as_slice()),
        vm: Some(vm.id),
        has_tpm: vm.hardware.tpm,
        groups: index.placement_groups_of(vm.id).collect(),
    }
}

/// The record of a VM with its next generation.
pub(super) fn next_generation(vm: &VmRecord) -> VmRecord {
    VmRecord { generation: vm.generation_after(0), ..vm.clone() }
}
