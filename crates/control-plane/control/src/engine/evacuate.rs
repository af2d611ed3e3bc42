//! All VMs of a host move to others. The host is in maintenance from the request on, so it gets no
//! new ones.
//!
//! The task works on no VM itself: it makes a task for each, a few at a time, in the transaction
//! that has it in the evacuation's record. A VM is tried once. What cannot be moved stays where it
//! is, and the task fails in the end with the reason of each.

use strongroom_api::host::EvacuateHost;
use strongroom_api::task::{Progress, ProgressUnit, Task, TaskKind};
use strongroom_api::{ErrorCode, ObjectKind, Problem};
use strongroom_types::{VmId, counted};
use uuid::Uuid;

use super::advance::{End, Next};
use super::joining::host_object;
use super::moves::IfOn;
use super::placement::Among;
use super::wishes::{Caller, stop_timeout};
use super::{Control, RETRY_PAUSE};
use crate::inventory::{Draft, Failure, Index, Row, by_name_or_id};
use crate::problems;
use crate::records::{Evacuation, LeftVm, MovingVm, TaskRecord, VmRecord, Work};

/// The VMs that move at the same time: their guests start on few hosts at once.
const AT_ONCE: usize = 4;
/// The VMs that stay, with their reasons, after which an evacuation gives up: something else is
/// wrong then, and a task's record has to remain small.
const LEFT_MAX: usize = 256;
/// The reasons in the problem of an evacuation. Each VM's is an event.
const REASONS_TOLD: usize = 20;

impl Control {
    /// Requests that all VMs of a host move to others.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn evacuate_host(&self, caller: &Caller, named: &str, how: &EvacuateHost) -> Result<Task, Problem> {
        let timeout_s = stop_timeout(how.timeout_s)?;
        self.wish(caller, |index, id| {
            let host = by_name_or_id(&index.hosts, named)
                .ok_or_else(|| problems::not_found(ObjectKind::Host, named))?;
            let is_same =
                |task: &&Row<TaskRecord>| matches!(&task.work, Work::Evacuate(now) if now.host == host.id);
            if let Some(other) = index.open_tasks().find(is_same) {
                let message = format!("host {} is being evacuated", host.name);
                return Err(Problem::new(ErrorCode::Busy, message)
                    .next(format!("wait for it (`strongroom task show {}`), or cancel it", other.task.id)));
            }
            let task = self.task(id, TaskKind::HostEvacuate, host_object(host), caller);
            let evacuation = Evacuation {
                host: host.id,
                shut_down: how.shut_down,
                timeout_s,
                moving: Vec::new(),
                moved: 0,
                left: Vec::new(),
            };
            Ok((TaskRecord { work: Work::Evacuate(evacuation), ..task }, self.with_maintenance(host, true)))
        })
    }

    /// Advances an evacuation: takes over what has ended, and has the next VM moved.
    pub(super) fn evacuate(&self, task: &Row<TaskRecord>, before: &Evacuation) -> Result<Next, Failure> {
        let refused = self.task_may(task).err();
        let mut now = before.clone();
        match self.next_of(task, &mut now, refused.is_some()) {
            Stage::Over if now == *before => self.end_evacuation(task, &now, refused),
            Stage::Waits if now == *before => Ok(Next::Wait(RETRY_PAUSE)),
            Stage::Over | Stage::Waits => self.keep(task, now, self.draft()),
            Stage::Moves(vm, Ok(begun)) => {
                let Begun { task: child, draft } = *begun;
                now.moving.push(MovingVm { vm: vm.id, task: child });
                self.keep(task, now, draft)?;
                self.schedule.wake(child);
                Ok(Next::Again)
            }
            Stage::Moves(vm, Err(problem)) => {
                let message = format!("{} stays: {}", problems::called(&vm), problem.message);
                let draft = self.draft().event("host.evacuate", &vm.object(), message, Some(task.task.id));
                now.left.push(LeftVm { vm: vm.id, reason: problem.message });
                self.keep(task, now, draft)
            }
        }
    }

    /// Takes over what has ended, and says what comes next.
    fn next_of(&self, task: &Row<TaskRecord>, now: &mut Evacuation, is_refused: bool) -> Stage {
        let index = self.inventory.read();
        take_over_ended(&index, now);
        let waiting = waiting(&index, now);
        let total = now.moved + (now.moving.len() + now.left.len() + waiting.len()) as u64;
        let done = now.moved + now.left.len() as u64;
        self.set_progress(task.task.id, Some(Progress { done, total, unit: ProgressUnit::Steps }));
        let ends = task.task.cancelling || is_refused || now.left.len() >= LEFT_MAX;
        if now.moving.is_empty() && (ends || waiting.is_empty()) {
            return Stage::Over;
        }
        let is_free = now.moving.len() < AT_ONCE && !ends;
        match waiting.into_iter().find(|vm| vm.task.is_none()).filter(|_| is_free) {
            Some(vm) => Stage::Moves(vm.clone(), self.move_away(&index, task, now, vm)),
            // For tasks that move VMs, or others that work on them.
            None => Stage::Waits,
        }
    }

    /// The transaction that begins the move of a VM.
    fn move_away(
        &self,
        index: &Index,
        task: &TaskRecord,
        now: &Evacuation,
        vm: &Row<VmRecord>,
    ) -> Result<Box<Begun>, Problem> {
        let if_on = match now.shut_down {
            true => IfOn::ShutDown { timeout_s: now.timeout_s },
            false => IfOn::Stays,
        };
        let departure = self.departure(index, vm, &Among::AllBut(now.host), if_on)?;
        let id = Uuid::now_v7();
        let (departing, draft) = self.departing(vm, &departure, id);
        // It is asked for by those who asked for the evacuation, from where they did.
        let begun = self.task(id, TaskKind::VmMoveHost, vm.object(), &Caller::machine(&task.task.by));
        let asked = Task { from: task.task.from.clone(), ..begun.task };
        let child = TaskRecord {
            task: asked,
            vm: Some(vm.id),
            work: departure.work,
            asked: task.asked.clone(),
            ..begun
        };
        let draft = self.within_room(index, &child, std::slice::from_ref(&departing), draft)?.create(&child);
        Ok(Box::new(Begun { task: id, draft }))
    }

    fn keep(&self, task: &Row<TaskRecord>, now: Evacuation, draft: Draft) -> Result<Next, Failure> {
        let record = TaskRecord { work: Work::Evacuate(now), ..TaskRecord::clone(&task.record) };
        self.inventory.commit(draft.replace(task, &record))?;
        Ok(Next::Again)
    }

    fn end_evacuation(
        &self,
        task: &Row<TaskRecord>,
        now: &Evacuation,
        refused: Option<Problem>,
    ) -> Result<Next, Failure> {
        let end = match refused {
            Some(problem) => End::Failed(problem),
            None if task.task.cancelling => End::Cancelled,
            None if now.left.is_empty() => End::Done,
            None => End::Failed(self.what_stays(now)),
        };
        self.end_task(task, self.draft(), end)
    }

    fn what_stays(&self, now: &Evacuation) -> Problem {
        let index = self.inventory.read();
        let told = now.left.iter().take(REASONS_TOLD).map(|left| {
            let called = index.vm(left.vm).map_or_else(|| left.vm.to_string(), |vm| problems::called(vm));
            format!("{called}: {}", left.reason)
        });
        let told: Vec<String> = told.collect();
        let more = match now.left.len().saturating_sub(told.len()) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        let message = format!(
            "{} could not be moved, and {} were: {}{more}",
            counted(now.left.len(), "VM"),
            now.moved,
            told.join("; ")
        );
        Problem::new(ErrorCode::NoHost, message)
            .next("see to the reasons, and evacuate once more; --shut-down moves VMs that run, too")
    }
}

/// What an evacuation does next.
enum Stage {
    /// The move of this VM begins, or cannot.
    Moves(Row<VmRecord>, Result<Box<Begun>, Problem>),
    /// It waits for tasks.
    Waits,
    /// Nothing is left to do.
    Over,
}

/// The transaction that begins a move, and its task.
struct Begun {
    task: Uuid,
    draft: Draft,
}

/// Takes over what the tasks that have ended came to.
fn take_over_ended(index: &Index, now: &mut Evacuation) {
    let host = now.host;
    let is_away = |vm: VmId| index.vm(vm).is_none_or(|vm| vm.host != host);
    for MovingVm { vm, task } in std::mem::take(&mut now.moving) {
        let ended = index.task(task);
        match ended.filter(|task| !task.task.state.is_over()) {
            Some(_) => now.moving.push(MovingVm { vm, task }),
            // A VM that has moved has, even if it did not start there.
            None if is_away(vm) => now.moved += 1,
            None => {
                let error = ended.and_then(|task| task.task.error.as_ref());
                let reason =
                    error.map_or_else(|| "its move was cancelled".to_owned(), |error| error.message.clone());
                now.left.push(LeftVm { vm, reason });
            }
        }
    }
}

/// The VMs that are still to be moved.
fn waiting<'index>(index: &'index Index, now: &Evacuation) -> Vec<&'index Row<VmRecord>> {
    let is_tried = |vm: VmId| {
        now.moving.iter().any(|moving| moving.vm == vm) || now.left.iter().any(|left| left.vm == vm)
    };
    index.vms_on(now.host).filter(|vm| !is_tried(vm.id)).collect()
}
