//! Deletes the snapshot that a task has made for itself, before the task ends.
//!
//! ```text
//! the task's work is done, has failed or was cancelled -> the VM of the snapshot is idle -> its host deletes it -> the task ends
//! ```
//!
//! The stage is in the inventory together with the result of the work, so a task that was killed
//! continues here. The VM may be another one than the task's, which is free by now.

use strongroom_api::{ErrorCode, Problem};
use strongroom_host::protocol::{OperationKind, OperationOutcome, SnapshotChange};

use super::advance::{End, Next, keep_volumes};
use super::disks::failures_max;
use super::observe::Look;
use super::operate::Operated;
use super::snapshots::snapshots_of;
use super::wishes::{idle, volumes_settled};
use super::{Control, RETRY_PAUSE};
use crate::inventory::{Draft, Failure, Row};
use crate::problems;
use crate::records::{TaskRecord, TemporarySnapshot, VmRecord, Work};

impl Control {
    /// Records how the task ends as soon as its temporary snapshot is gone.
    pub(super) fn owe_temporary(
        &self,
        task: &Row<TaskRecord>,
        draft: Draft,
        end: End,
    ) -> Result<Next, Failure> {
        let mut record = TaskRecord::clone(&task.record);
        record.work = Work::DropSnapshot { end, failures: 0 };
        (record.operation, record.waits_for_key) = (None, false);
        (record.task.note, record.task.awaits_image) = (None, None);
        self.inventory.commit(draft.replace(task, &record))?;
        self.set_progress(record.task.id, None);
        Ok(Next::Again)
    }

    /// Has the host delete the temporary snapshot of a task, which ends then.
    pub(super) fn drop_temporary(
        &self,
        task: &Row<TaskRecord>,
        end: &End,
        failures: u32,
    ) -> Result<Next, Failure> {
        let found = task.temporary.as_ref().and_then(|temporary| {
            let vm = self.inventory.read().vm(temporary.vm).cloned()?;
            Some((temporary, vm))
        });
        // Its VM, if it was deleted meanwhile, has taken the snapshot along.
        let Some((temporary, vm)) = found else { return self.end_now(task, self.draft(), end.clone()) };
        let seat = match self.seat_of(&vm) {
            Ok(seat) => seat,
            Err(problem) => return self.wait(task, problem.message),
        };
        if vm.task != Some(task.task.id) {
            return self.take(task, &vm);
        }
        // A cancellation stops the work, and not what is taken back.
        let mut record = TaskRecord::clone(&task.record);
        record.task.cancelling = false;
        let uncancelled = Row { record: record.into(), revision: task.revision };
        let change = SnapshotChange::Delete { snapshot: temporary.snapshot };
        let operated = self.operate(&uncancelled, &vm, seat, |datastore| {
            Some(OperationKind::ChangeSnapshots { spec: Box::new(vm.told(datastore)?), change })
        })?;
        if let Operated::Pending(next) = operated {
            return Ok(next);
        }
        if let Look::Unanswered(reason) = self.look_at(seat, vm.id)? {
            return self.wait(task, reason);
        }
        let free = VmRecord { task: None, ..VmRecord::clone(&vm.record) };
        let problem = match operated {
            Operated::Done(outcome) => {
                let (mut free, volumes) = (free.clone(), OperationOutcome::into_volumes(outcome));
                let kept = keep_volumes(&self.inventory.read(), &mut free, &volumes, self.draft());
                match kept {
                    Ok(draft) => return self.end_now(task, draft.replace(&vm, &free), end.clone()),
                    Err(problem) => problem,
                }
            }
            Operated::Failed(problem) => problem,
            _ => Problem::new(ErrorCode::HostFailed, "its host has forgotten to delete it"),
        };
        if failures < failures_max(problem.code) {
            return self.ask_again(task, &problem, end, failures + 1);
        }
        let is_left = snapshots_of(&self.inventory.read(), &vm).get(temporary.snapshot).is_some();
        let end = if is_left { End::Failed(left(task, temporary, &vm, &problem, end)) } else { end.clone() };
        self.end_now(task, self.draft().replace(&vm, &free), end)
    }

    /// Makes the task work on the VM, or waits until it can.
    fn take(&self, task: &Row<TaskRecord>, vm: &Row<VmRecord>) -> Result<Next, Failure> {
        let ready = {
            let index = self.inventory.read();
            idle(&index, vm).and_then(|vm| volumes_settled(vm, self.power_of(&index, vm)))
        };
        match ready {
            Ok(()) => {
                let taken = VmRecord { task: Some(task.task.id), ..VmRecord::clone(&vm.record) };
                self.inventory.commit(self.draft().replace(vm, &taken).unchanged(task))?;
                Ok(Next::Again)
            }
            Err(problem) => self.wait(task, problem.message),
        }
    }

    fn wait(&self, task: &Row<TaskRecord>, why: String) -> Result<Next, Failure> {
        self.note(task, why)?;
        Ok(Next::Wait(RETRY_PAUSE))
    }

    fn ask_again(
        &self,
        task: &Row<TaskRecord>,
        problem: &Problem,
        end: &End,
        failures: u32,
    ) -> Result<Next, Failure> {
        let work = Work::DropSnapshot { end: end.clone(), failures };
        let mut record = TaskRecord { work, operation: None, ..TaskRecord::clone(&task.record) };
        record.task.note = Some(problem.message.clone());
        self.inventory.commit(self.draft().replace(task, &record))?;
        Ok(Next::Wait(RETRY_PAUSE))
    }
}

/// Says that the host does not delete the snapshot, and how the task would have ended.
fn left(
    task: &TaskRecord,
    TemporarySnapshot { name, .. }: &TemporarySnapshot,
    vm: &VmRecord,
    problem: &Problem,
    end: &End,
) -> Problem {
    let of = problems::called(vm);
    let left = format!("snapshot {name} of {of}, which was made for it, is still there: {}", problem.message);
    let message = match end {
        End::Done => format!("{} is there, and {left}", task.task.object.name),
        End::Failed(first) => format!("{}; {left}", first.message),
        End::Cancelled => left,
    };
    let list = if vm.holds_volume { "disk" } else { "vm" };
    problems::conflict(message)
        .next(format!("delete it: `strongroom {list} snapshot delete {} {name}`", vm.name))
}
