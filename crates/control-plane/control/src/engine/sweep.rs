//! Tasks that work through many VMs, such as all of a host.
//!
//! Such a task works on no VM itself: it has a task made for each, a few at a time, and keeps those
//! that are open. What is done is seen in the inventory, so it is only counted. A VM whose task has
//! failed stays as it is, and the whole fails in the end with the reason of each.

use strongroom_api::task::{Progress, TaskState};
use strongroom_api::{ErrorCode, Problem};
use uuid::Uuid;

use super::advance::{End, Next};
use super::{Control, RETRY_PAUSE};
use crate::inventory::{Draft, Failure, Index, Row};
use crate::problems;
use crate::records::{BegunVm, LeftVm, Sweep, TaskRecord, VmRecord, Work};

/// The VMs that are worked on at the same time: guests may have to be started on few hosts.
const AT_ONCE: usize = 4;
/// The VMs that stay as they are, with their reasons, after which a sweep gives up: something else
/// is wrong then, and a task's record has to remain small.
const LEFT_MAX: usize = 256;
/// The reasons in the problem of a sweep. Each VM's is an event.
const REASONS_TOLD: usize = 20;

/// The work of a task that works through VMs.
pub(super) trait Sweeps: Clone + PartialEq {
    /// The kind of event for a VM that stays as it is.
    const EVENT: &'static str;

    fn vms(&self) -> &Sweep;
    fn vms_mut(&mut self) -> &mut Sweep;
    fn into_work(self) -> Work;

    /// The VMs for which something is still to be done, including those that are tried already.
    fn todo<'index>(&self, index: &'index Index) -> Vec<&'index Row<VmRecord>>;

    /// Has the task made that does the next thing for a VM.
    ///
    /// # Errors
    /// Why the VM stays as it is.
    fn begin(&self, control: &Control, task: &Row<TaskRecord>, vm: &Row<VmRecord>) -> Result<Begun, Problem>;

    /// What the whole has failed with, if it has; with the reasons of VMs that stay as they are.
    fn failure(&self, index: &Index, reasons: &str) -> Option<Problem>;
}

/// The task of a VM, and the transaction that begins it, if none has.
pub(super) struct Begun {
    pub task: Uuid,
    pub draft: Draft,
}

/// What a sweep does next.
enum Stage {
    /// The task of this VM begins.
    Begins(Row<VmRecord>),
    /// It waits for tasks.
    Waits,
    /// Nothing is left to do.
    Over,
}

impl Control {
    /// Advances a sweep: takes over what has ended, and begins the next VM's task.
    pub(super) fn sweep<S: Sweeps>(&self, task: &Row<TaskRecord>, before: &S) -> Result<Next, Failure> {
        let refused = self.task_may(task).err();
        let mut now = before.clone();
        match self.next_of(task, &mut now, refused.is_some()) {
            Stage::Over if now == *before => self.end_sweep(task, &now, refused),
            Stage::Waits if now == *before => Ok(Next::Wait(RETRY_PAUSE)),
            Stage::Over | Stage::Waits => self.keep(task, now, self.draft()),
            Stage::Begins(vm) => match before.begin(self, task, &vm) {
                Ok(Begun { task: child, draft }) => {
                    now.vms_mut().begun.push(BegunVm { vm: vm.id, task: child });
                    self.keep(task, now, draft)?;
                    self.schedule.wake(child);
                    Ok(Next::Again)
                }
                Err(problem) => {
                    let message = format!("{} stays: {}", problems::called(&vm), problem.message);
                    let draft = self.draft().event(S::EVENT, &vm.object(), message, Some(task.task.id));
                    now.vms_mut().left.push(LeftVm { vm: vm.id, reason: problem.message });
                    self.keep(task, now, draft)
                }
            },
        }
    }

    /// Takes over what has ended, and says what comes next.
    fn next_of<S: Sweeps>(&self, task: &Row<TaskRecord>, now: &mut S, is_refused: bool) -> Stage {
        let index = self.inventory.read();
        let todo = now.todo(&index);
        take_over_ended(&index, now.vms_mut(), &todo);
        let Sweep { begun, done, left } = now.vms();
        let is_tried = |vm: &VmRecord| {
            begun.iter().any(|begun| begun.vm == vm.id) || left.iter().any(|left| left.vm == vm.id)
        };
        let waiting: Vec<_> = todo.into_iter().filter(|vm| !is_tried(vm)).collect();
        let total = done + (begun.len() + left.len() + waiting.len()) as u64;
        let progress = Progress::of_steps(done + left.len() as u64, total);
        self.set_progress(task.task.id, Some(progress));
        let ends = task.task.cancelling || is_refused || left.len() >= LEFT_MAX;
        if begun.is_empty() && (ends || waiting.is_empty()) {
            return Stage::Over;
        }
        let is_free = begun.len() < AT_ONCE && !ends;
        match waiting.into_iter().find(|vm| vm.task.is_none()).filter(|_| is_free) {
            Some(vm) => Stage::Begins(vm.clone()),
            // For tasks of this one, or others that work on the VMs.
            None => Stage::Waits,
        }
    }

    fn keep(&self, task: &Row<TaskRecord>, now: impl Sweeps, draft: Draft) -> Result<Next, Failure> {
        let record = TaskRecord { work: now.into_work(), ..TaskRecord::clone(&task.record) };
        self.inventory.commit(draft.replace(task, &record))?;
        Ok(Next::Again)
    }

    fn end_sweep(
        &self,
        task: &Row<TaskRecord>,
        now: &impl Sweeps,
        refused: Option<Problem>,
    ) -> Result<Next, Failure> {
        let end = match refused {
            Some(problem) => End::Failed(problem),
            None if task.task.cancelling => End::Cancelled,
            None => {
                let index = self.inventory.read();
                now.failure(&index, &reasons(&index, &now.vms().left)).map_or(End::Done, End::Failed)
            }
        };
        self.end_task(task, self.draft(), end)
    }
}

/// Refuses a second sweep of what `is_same` finds; `now` says in a sentence what is being done.
pub(super) fn not_twice(index: &Index, is_same: impl Fn(&Work) -> bool, now: String) -> Result<(), Problem> {
    let Some(other) = index.open_tasks().find(|task| is_same(&task.work)) else { return Ok(()) };
    Err(Problem::new(ErrorCode::Busy, now)
        .next(format!("wait for it (`strongroom task show {}`), or cancel it", other.task.id)))
}

/// The reasons of VMs that stay as they are.
fn reasons(index: &Index, left: &[LeftVm]) -> String {
    let told = left.iter().take(REASONS_TOLD).map(|left| {
        let called = index.vm(left.vm).map_or_else(|| left.vm.to_string(), |vm| problems::called(vm));
        format!("{called}: {}", left.reason)
    });
    let told: Vec<String> = told.collect();
    match left.len().saturating_sub(told.len()) {
        0 => told.join("; "),
        more => format!("{}; and {more} more", told.join("; ")),
    }
}

/// Takes over what the tasks that have ended came to.
fn take_over_ended(index: &Index, vms: &mut Sweep, todo: &[&Row<VmRecord>]) {
    for BegunVm { vm, task } in std::mem::take(&mut vms.begun) {
        let ended = index.task(task);
        match ended.filter(|task| !task.task.state.is_over()) {
            Some(_) => vms.begun.push(BegunVm { vm, task }),
            // What its task was for is done, even if that has failed after it.
            None if todo.iter().all(|todo| todo.id != vm) => vms.done += 1,
            None if ended.is_some_and(|task| task.task.state == TaskState::Done) => vms.done += 1,
            None => {
                let error = ended.and_then(|task| task.task.error.as_ref());
                let reason =
                    error.map_or_else(|| "its task was cancelled".to_owned(), |error| error.message.clone());
                vms.left.push(LeftVm { vm, reason });
            }
        }
    }
}
