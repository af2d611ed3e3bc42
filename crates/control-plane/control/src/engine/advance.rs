//! Advances a task by one step.
//!
//! Each step reads the task's stage, does one external request or one transaction, and returns when
//! to continue. A crash at any point repeats the step from its beginning.

use std::time::Duration;

use strongroom_api::task::{Task, TaskKind, TaskState};
use strongroom_api::vm::{DesiredPower, Lifecycle, PowerState};
use strongroom_api::{ErrorCode, Problem};
use strongroom_host::protocol::{
    DiskName, KnownVolume, OperationKind, OperationOutcome, StartOptions, VmSpec, VolumeFacts,
};
use strongroom_types::display_bytes;
use uuid::Uuid;

use super::clones::origin_gone;
use super::fill::SentImage;
use super::groups::Undone;
use super::observe::Look;
use super::operate::Operated;
use super::place::told_without_key;
use super::seal_disks::{SealUndo, SealWish, SealedVolumes};
use super::sizes::UndoneSizes;
use super::{Control, HostSeat, RETRY_PAUSE};
use crate::host::HostError;
use crate::inventory::{Draft, Failure, Index, Row};
use crate::keys::KeyProblem;
use crate::problems;
pub(super) use crate::records::TaskEnd as End;
use crate::records::{
    CloneOf, DatastorePaths, DiskSealing, ObservedRecord, ScheduleRecord, TaskRecord, VmRecord, VolumeRecord,
    Whole, Work,
};

/// When to advance a task again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At once.
    Again,
    /// After this time, or earlier if something happens.
    Wait(Duration),
    /// Never: the task has ended.
    Over,
}

/// A task's step, with its objects.
pub(super) struct Step<'a> {
    pub(super) task: Row<TaskRecord>,
    pub(super) vm: Row<VmRecord>,
    pub(super) seat: &'a HostSeat,
}

impl Control {
    /// Advances a task by one step.
    ///
    /// # Errors
    /// [`Failure`]: nothing is lost; try again after a pause.
    pub fn advance(&self, id: Uuid) -> Result<Next, Failure> {
        let (task, vm) = {
            let index = self.inventory.read();
            let Some(task) = index.task(id).cloned() else { return Ok(Next::Over) };
            let vm = task.vm.and_then(|vm| index.vm(vm).cloned());
            (task, vm)
        };
        if task.task.state.is_over() {
            self.set_progress(id, None);
            return Ok(Next::Over);
        }
        if let Work::DropSnapshot { end, failures } = &task.work {
            return self.drop_temporary(&task, end, *failures);
        }
        match &task.work {
            Work::Evacuate(evacuation) => return self.sweep(&task, evacuation),
            Work::Balance(balancing) => return self.sweep(&task, balancing),
            Work::ApplyPolicy(application) => return self.sweep(&task, application),
            _ => {}
        }
        let Some(vm) = vm.filter(|vm| vm.task == Some(id)) else {
            // Its VM is gone, or another task has taken it over. Neither happens while a task works
            // on a VM, but a restored store may be in such a state.
            let problem = problems::conflict("its VM is not there any more");
            return self.end_task(&task, self.draft(), End::Failed(problem));
        };
        let seat = match self.seat_of(&vm) {
            Ok(seat) => seat,
            Err(problem) => {
                self.note(&task, problem.message)?;
                return Ok(Next::Wait(RETRY_PAUSE));
            }
        };
        let step = Step { task, vm, seat };
        if let Some(next) = self.withdraw(&step)? {
            return Ok(next);
        }
        match &step.task.work {
            Work::DropSnapshot { end, failures } => self.drop_temporary(&step.task, end, *failures),
            Work::Evacuate(evacuation) => self.sweep(&step.task, evacuation),
            Work::Balance(balancing) => self.sweep(&step.task, balancing),
            Work::ApplyPolicy(application) => self.sweep(&step.task, application),
            Work::Nothing => self.end(&step, &step.vm, self.draft(), End::Done),
            Work::Create { fill, from } => self.create(&step, fill, from.as_ref()),
            Work::AwaitImage { fill, until_unix_ms, whole } => {
                self.await_image(&step, fill, *until_unix_ms, *whole)
            }
            Work::Fill { disk, ticket, format, fill, whole } => {
                self.fill(&step, disk, SentImage { ticket, format: *format }, fill, *whole)
            }
            Work::UndoCreate { problem } => self.undo_create(&step, problem.as_ref()),
            Work::Start { discard_memory, paused } => {
                self.start(&step, StartOptions { discard_memory: *discard_memory, paused: *paused })
            }
            Work::AwaitRunning => self.await_running(&step),
            Work::UndoStart => self.undo_start(&step),
            Work::Stop { force, timeout_s, then_start } => self.stop(&step, *force, *timeout_s, *then_start),
            Work::Configure { before } => {
                let before = (**before).clone();
                self.configure(&step, before)
            }
            Work::SetNics { before, after, failures } => self.set_the_nics(&step, before, after, *failures),
            Work::UndoSetNics { before, after, problem } => {
                self.undo_set_nics(&step, before, after, problem.as_ref())
            }
            Work::SetSizes { before, after, failures } => {
                self.set_the_sizes(&step, *before, *after, *failures)
            }
            Work::UndoSetSizes { before, after, memory_stays, problem } => {
                let undone = UndoneSizes { before: *before, after: *after, memory_stays: *memory_stays };
                self.undo_set_sizes(&step, undone, problem.as_ref())
            }
            Work::Delete => self.delete(&step),
            Work::StopToMove { to, timeout_s } => self.stop_to_move(&step, *to, *timeout_s),
            Work::Leave { to, handover, starts } => self.leave(&step, *to, *handover, *starts),
            Work::Arrive { from, handover, starts } => self.arrive(&step, *from, *handover, *starts),
            Work::Return { problem } => self.return_to_former(&step, problem.as_ref()),
            Work::Migrate(live) => self.migrate(&step, live),
            Work::Carry(carried) => self.carry(&step, carried),
            Work::TakeOver => self.take_from_fenced(&step),
            Work::AddDisk { disk, fill, failures } => self.add_the_disk(&step, disk, *fill, *failures),
            Work::UndoAddDisk { disk, problem } => self.undo_add_disk(&step, disk, problem.as_ref()),
            Work::RemoveDisk { disk, failures } => self.remove_the_disk(&step, disk, *failures),
            Work::ResizeDisk { disk, size, failures } => self.resize_the_disk(&step, disk, *size, *failures),
            Work::MoveDisk { disk, to, failures } => self.move_the_disk(&step, disk, *to, *failures),
            Work::SwitchDisk { disk, to, failures } => self.switch_the_disk(&step, disk, *to, *failures),
            Work::TakeDisk { disk, failures } => self.take_the_disk(&step, disk, *failures),
            Work::UndoMoveDisk { disk, to, problem } => {
                self.undo_move_disk(&step, disk, *to, problem.as_ref())
            }
            Work::Limit { disk, limits, failures } => {
                self.limit_the_disk(&step, disk.as_ref(), *limits, *failures)
            }
            Work::SealDisk { disk, becomes, integrity, failures } => {
                let wish = SealWish { disk, becomes: *becomes, integrity: *integrity };
                self.seal_the_disk(&step, wish, *failures)
            }
            Work::RecordSeal { vm, volumes, key, becomes, left } => {
                self.record_seal(&step, SealedVolumes { vm: *vm, volumes, key, becomes: *becomes }, left)
            }
            Work::UndoSealDisk { disk, becomes, failures, left, problem } => {
                let undo = SealUndo { disk, becomes: *becomes, failures: *failures };
                self.undo_seal_disk(&step, undo, left, problem.as_ref())
            }
            Work::ChangeSnapshots { change, failures, makes_template } => {
                self.change_the_snapshots(&step, change, *failures, *makes_template)
            }
            Work::MakeGroup { snapshot, failures } => self.make_group(&step, snapshot, *failures),
            Work::KeepGroup { snapshot, at, failures, problem } => {
                self.keep_group(&step, snapshot, *at, *failures, problem.as_ref())
            }
            Work::UndoGroup { snapshot, at, failures, is_left, problem } => {
                let undone = Undone { at: *at, failures: *failures, is_left: *is_left };
                self.undo_group(&step, snapshot, undone, problem.as_ref())
            }
            Work::RotateKey { provider, request, to: None, .. } => {
                self.make_next_key(&step, provider, *request)
            }
            Work::RotateKey { .. } => self.move_to_next_key(&step),
            Work::RetireKeys { keys, renewed } => self.retire(&step, keys, *renewed),
            Work::BindVolume { holder, disk, failures } => {
                self.bind_the_volume(&step, *holder, disk, *failures)
            }
            Work::UndoBind { holder, disk, problem } => {
                self.undo_bind(&step, *holder, disk, problem.as_ref())
            }
            Work::DropHolder { holder, gives_up, problem } => {
                self.drop_holder(&step, *holder, *gives_up, problem.as_ref())
            }
            Work::MakeHolder { holding } => self.make_holder(&step, holding),
            Work::UnbindVolume { holding, failures } => self.unbind_the_volume(&step, holding, *failures),
            Work::UndoUnbind { holding, problem } => self.undo_unbind(&step, holding, problem.as_ref()),
            Work::KeepVolume { holder, failures } => self.keep_the_volume(&step, *holder, *failures),
            Work::Suspend => self.simple(&step, OperationKind::Suspend),
            Work::Dump { label } => {
                let label = label.clone();
                self.dump(&step, move |_| OperationKind::Dump { label })
            }
            Work::DeleteDump { number } => {
                let number = *number;
                self.dump(&step, move |spec| OperationKind::DeleteDump { spec, number })
            }
            Work::Pause => self.simple(&step, OperationKind::Pause),
            Work::Resume => self.simple(&step, OperationKind::Resume),
            Work::Reset => self.simple(&step, OperationKind::Reset),
            Work::ImportDisk { disk, ticket, format } => {
                self.import(&step, disk, SentImage { ticket, format: *format })
            }
        }
    }

    /// Ends a task whose caller may no longer do what it asked for, before something is begun at a
    /// host. What has begun is completed.
    fn withdraw(&self, step: &Step) -> Result<Option<Next>, Failure> {
        let task = &step.task;
        let can_end = task.operation.is_none() && !task.task.cancelling && task.work.begins();
        let Some(problem) = can_end.then(|| self.task_may(task).err()).flatten() else { return Ok(None) };
        let message = format!("{}: {}", task.task.shown_title(), problem.message);
        if matches!(task.work, Work::Delete) {
            let vm = VmRecord { lifecycle: Lifecycle::Present, ..VmRecord::clone(&step.vm.record) };
            return self.end(step, &vm, self.draft(), End::Failed(problem)).map(Some);
        }
        // A cancellation undoes what the request has changed.
        let mut record = TaskRecord::clone(&task.record);
        (record.task.cancelling, record.task.note) = (true, Some(problem.message));
        let draft = self.draft().event("task.refused", &step.vm.object(), message, Some(task.task.id));
        self.inventory.commit(draft.replace(task, &record))?;
        Ok(Some(Next::Again))
    }

    fn create(&self, step: &Step, fill: &[DiskName], from: Option<&CloneOf>) -> Result<Next, Failure> {
        let awaited = step.vm.hardware.disks.iter().any(|disk| disk.sealing == DiskSealing::Awaited);
        if awaited {
            return self.make_key(step);
        }
        if let Some(from) = from
            && let Some(snapshot) = &from.new_snapshot
        {
            return self.snapshot_origin(step, fill, from, snapshot);
        }
        if step.task.operation.is_none() && from.is_some_and(|from| self.origin_told(from).is_none()) {
            return self.drop_unmade(step, Some(origin_gone()));
        }
        let operated = self.operate(&step.task, &step.vm, step.seat, |datastore| {
            let from = match from {
                Some(from) => Some(Box::new(self.origin_told(from)?)),
                None => None,
            };
            Some(OperationKind::Create { spec: Box::new(step.vm.told(datastore)?), from })
        })?;
        match operated {
            Operated::Pending(next) => Ok(next),
            Operated::Done(outcome) => self.created(step, outcome, fill),
            Operated::Failed(problem) => match from.and_then(|from| from.after(&problem)) {
                // Layers of its origin are being merged, for example.
                Some(from) if !step.task.task.cancelling => {
                    let work = Work::Create { fill: fill.to_vec(), from: Some(from) };
                    self.turn(step, work, VmRecord::clone(&step.vm.record))?;
                    Ok(Next::Wait(RETRY_PAUSE))
                }
                _ => self.drop_unmade(step, Some(problem)),
            },
            Operated::Cancelled => self.drop_unmade(step, None),
            Operated::Forgotten if step.task.operation.is_none() => self.drop_unmade(step, None),
            // The host may have made it before it forgot the operation.
            Operated::Forgotten => {
                self.turn(step, Work::UndoCreate { problem: None }, VmRecord::clone(&step.vm.record))
            }
        }
    }

    /// The request has been in the inventory since the task was made.
    fn make_key(&self, step: &Step) -> Result<Next, Failure> {
        if step.task.task.cancelling {
            return self.drop_vm(step, End::Cancelled);
        }
        let Some(wish) = &step.vm.key_wish else {
            let problem = Problem::new(ErrorCode::Internal, format!("VM {} wants no key", step.vm.name));
            return self.drop_vm(step, End::Failed(problem));
        };
        // The host's limits are checked before a key is made.
        let spec = self.datastore_paths(&step.vm).and_then(|paths| told_without_key(&step.vm, &paths));
        if let Some(spec) = spec
            && let Err(error) = step.seat.host.check(&spec)
        {
            let problem = problems::host(step.seat.name.as_str(), &error);
            return match error {
                HostError::Refused(_) => self.drop_vm(step, End::Failed(problem)),
                HostError::Unreachable(_) => {
                    self.note(&step.task, problem.message)?;
                    Ok(Next::Wait(RETRY_PAUSE))
                }
            };
        }
        match self.keys.create_key(&wish.provider, wish.request, step.vm.id) {
            Ok(key) => {
                let mut vm = VmRecord::clone(&step.vm.record);
                for disk in &mut vm.hardware.disks {
                    if disk.sealing == DiskSealing::Awaited {
                        disk.sealing = DiskSealing::under(key.clone(), None);
                    }
                }
                let message = format!("{} was made for VM {}", key, vm.name);
                let draft = self.draft().event("vm.key", &vm.object(), message, Some(step.task.task.id));
                self.inventory.commit(draft.replace(&step.vm, &vm).unchanged(&step.task))?;
                Ok(Next::Again)
            }
            Err(KeyProblem::Unavailable(reason)) => {
                self.note_key(&step.task, format!("waiting for key provider {}: {reason}", wish.provider))?;
                Ok(Next::Wait(RETRY_PAUSE))
            }
            Err(KeyProblem::Refused(reason)) => {
                let message =
                    format!("key provider {} made no key for VM {}: {reason}", wish.provider, step.vm.name);
                let problem = Problem::new(ErrorCode::KeyUnavailable, message)
                    .next(format!("`strongroom key-provider test {}`", wish.provider));
                self.drop_vm(step, End::Failed(problem))
            }
        }
    }

    fn created(
        &self,
        step: &Step,
        outcome: Option<OperationOutcome>,
        fill: &[DiskName],
    ) -> Result<Next, Failure> {
        let mut vm = VmRecord::clone(&step.vm.record);
        let volumes = OperationOutcome::into_volumes(outcome);
        // The disks of a clone have the sizes of what was copied.
        vm.hardware.keep_sizes(&volumes);
        let kept = keep_volumes(&self.inventory.read(), &mut vm, &volumes, self.draft());
        let draft = match kept {
            Ok(draft) => draft,
            Err(problem) => {
                vm.lifecycle = Lifecycle::Present;
                return self.end(step, &vm, self.draft(), End::Failed(problem));
            }
        };
        if let Some(wait) = self.look_first(step)? {
            return Ok(wait);
        }
        self.fill_next(step, fill.to_vec(), Whole::Vm, vm, draft)
    }

    fn undo_create(&self, step: &Step, problem: Option<&Problem>) -> Result<Next, Failure> {
        match self.operate_unless_cancelled(step, &step.vm, |_| Some(OperationKind::Delete))? {
            Operated::Pending(next) => Ok(next),
            // Nothing is left, or the rest cannot be removed: the alarm for orphans names it.
            _ => self.drop_unmade(step, problem.cloned()),
        }
    }

    /// Removes a VM that was not made from the inventory, because of this problem or a
    /// cancellation. The key that was made for it is deactivated: nothing is sealed under it, and
    /// no other VM is ever granted it.
    pub(super) fn drop_unmade(&self, step: &Step, problem: Option<Problem>) -> Result<Next, Failure> {
        let vm = &step.vm;
        let was_made = vm.key_wish.is_some();
        let mut draft = self.draft();
        let mut keys = Vec::new();
        for key in vm.hardware.keys().into_iter().filter(|_| was_made) {
            let standing = match self.keys.retire(&key) {
                Ok(()) => "was deactivated".to_owned(),
                Err(problem) => format!("is still active: {problem}"),
            };
            let message = format!("VM {} was not made; {key}, which was made for it, {standing}", vm.name);
            draft = draft.event("vm.key", &vm.object(), message, Some(step.task.task.id));
            keys.push(format!("its key {} {standing}", key.key));
        }
        let end = match problem {
            Some(problem) if keys.is_empty() => End::Failed(problem),
            Some(problem) => {
                let message =
                    format!("{} (VM {} was not made, and {})", problem.message, vm.name, keys.join(", "));
                End::Failed(Problem { message, ..problem })
            }
            None => End::Cancelled,
        };
        self.drop_vm_with(step, draft, end)
    }

    fn start(&self, step: &Step, how: StartOptions) -> Result<Next, Failure> {
        if step.task.operation.is_none() {
            let allowed = self.may_start(&self.inventory.read(), &step.vm);
            if let Err(problem) = allowed {
                return self.not_started(step, End::Failed(problem));
            }
            if let Some(pinned) = self.pin(step, how)? {
                return Ok(pinned);
            }
        }
        let operated = self.operate(&step.task, &step.vm, step.seat, |datastore| {
            Some(OperationKind::Start { spec: Box::new(step.vm.told(datastore)?), how })
        })?;
        let vm = VmRecord::clone(&step.vm.record);
        match operated {
            Operated::Pending(next) => Ok(next),
            Operated::Done(_) => self.turn(step, Work::AwaitRunning, vm),
            Operated::Failed(problem) => self.not_started(step, End::Failed(problem)),
            Operated::Cancelled => self.not_started(step, End::Cancelled),
            Operated::Forgotten if step.task.operation.is_none() => self.not_started(step, End::Cancelled),
            Operated::Forgotten => self.turn(step, Work::UndoStart, vm),
        }
    }

    fn await_running(&self, step: &Step) -> Result<Next, Failure> {
        let vm = VmRecord::clone(&step.vm.record);
        let seen = match self.look_at(step.seat, vm.id)? {
            Look::Seen(seen) => seen,
            Look::Unanswered(reason) => {
                self.note(&step.task, reason)?;
                return Ok(Next::Wait(RETRY_PAUSE));
            }
        };
        let power = seen.as_ref().map_or(PowerState::Stopped, |seen| seen.power);
        match power {
            PowerState::Running | PowerState::Paused => self.end(step, &vm, self.draft(), End::Done),
            PowerState::Stopped | PowerState::Crashed | PowerState::Suspended => match seen {
                // It was running, and its guest has shut down since.
                Some(seen) if seen.reason_code() == "guest_shutdown" && seen.generation == vm.generation => {
                    self.end(
                        step,
                        &VmRecord { desired: DesiredPower::Stopped, ..vm },
                        self.draft(),
                        End::Done,
                    )
                }
                seen => {
                    let why = seen
                        .and_then(|seen| seen.reason.clone())
                        .map_or_else(|| "its host does not say why".to_owned(), |reason| reason.message);
                    let message = format!("VM {} did not start: {why}", vm.name);
                    self.not_started(step, End::Failed(Problem::new(ErrorCode::HostFailed, message)))
                }
            },
            _ if step.task.task.cancelling => self.turn(step, Work::UndoStart, vm),
            PowerState::KeyUnavailable => {
                if let Some(seen) = &seen {
                    self.supply_waiting(&vm, seen);
                }
                let waiting = seen.as_ref().and_then(|seen| seen.waiting_for.first());
                let note = waiting.map_or_else(
                    || "waiting for a key".to_owned(),
                    |waiting| format!("waiting for {}: {}", waiting.key, waiting.reason),
                );
                self.note_key(&step.task, note)?;
                Ok(Next::Wait(RETRY_PAUSE))
            }
            _ => Ok(Next::Wait(RETRY_PAUSE)),
        }
    }

    fn undo_start(&self, step: &Step) -> Result<Next, Failure> {
        let stop = OperationKind::Stop { force: true, timeout_s: 0 };
        match self.operate_unless_cancelled(step, &step.vm, |_| Some(stop))? {
            Operated::Pending(next) => Ok(next),
            _ => {
                if let Some(wait) = self.look_first(step)? {
                    return Ok(wait);
                }
                self.not_started(step, End::Cancelled)
            }
        }
    }

    fn stop(&self, step: &Step, force: bool, timeout_s: u32, then_start: bool) -> Result<Next, Failure> {
        let operated = self
            .operate(&step.task, &step.vm, step.seat, |_| Some(OperationKind::Stop { force, timeout_s }))?;
        let mut vm = VmRecord::clone(&step.vm.record);
        match operated {
            Operated::Pending(next) => Ok(next),
            Operated::Done(_) if then_start => {
                vm.desired = DesiredPower::Running;
                vm.generation = vm.generation_after(0);
                self.turn(step, Work::Start { discard_memory: false, paused: false }, vm)
            }
            Operated::Done(_) => {
                if let Some(wait) = self.look_first(step)? {
                    return Ok(wait);
                }
                self.end(step, &vm, self.draft(), End::Done)
            }
            ended => self.as_it_is(step, ended),
        }
    }

    fn configure(&self, step: &Step, before: crate::records::Hardware) -> Result<Next, Failure> {
        let operated = self.operate(&step.task, &step.vm, step.seat, |datastore| {
            Some(OperationKind::Configure { spec: Box::new(step.vm.told(datastore)?) })
        })?;
        let mut vm = VmRecord::clone(&step.vm.record);
        let end = match operated {
            Operated::Pending(next) => return Ok(next),
            Operated::Done(_) => return self.end(step, &vm, self.draft(), End::Done),
            Operated::Failed(problem) => End::Failed(problem),
            Operated::Cancelled | Operated::Forgotten => End::Cancelled,
        };
        // The host has the old configuration, or gets it with the next start.
        vm.hardware = before;
        self.end(step, &vm, self.draft(), end)
    }

    fn delete(&self, step: &Step) -> Result<Next, Failure> {
        match self.operate_unless_cancelled(step, &step.vm, |_| Some(OperationKind::Delete))? {
            Operated::Pending(next) => Ok(next),
            Operated::Done(_) => {
                self.forget_elsewhere(&step.vm);
                self.drop_vm(step, End::Done)
            }
            Operated::Failed(problem) => {
                let vm = VmRecord { lifecycle: Lifecycle::Present, ..VmRecord::clone(&step.vm.record) };
                self.end(step, &vm, self.draft(), End::Failed(problem))
            }
            Operated::Cancelled | Operated::Forgotten => {
                let vm = VmRecord { lifecycle: Lifecycle::Present, ..VmRecord::clone(&step.vm.record) };
                self.end(step, &vm, self.draft(), End::Cancelled)
            }
        }
    }

    /// Pause, suspend, resume and reset: they succeed or fail, and need no rollback.
    fn simple(&self, step: &Step, kind: OperationKind) -> Result<Next, Failure> {
        match self.operate(&step.task, &step.vm, step.seat, |_| Some(kind))? {
            Operated::Pending(next) => Ok(next),
            Operated::Done(_) => {
                if let Some(wait) = self.look_first(step)? {
                    return Ok(wait);
                }
                self.end(step, &step.vm, self.draft(), End::Done)
            }
            ended => self.as_it_is(step, ended),
        }
    }

    /// Makes or deletes a dump. Whatever the result, the VM's desired state stays.
    fn dump(&self, step: &Step, kind: impl FnOnce(Box<VmSpec>) -> OperationKind) -> Result<Next, Failure> {
        let deleted = match step.task.work {
            Work::DeleteDump { number } => Some(number),
            _ => None,
        };
        let operated = self.operate(&step.task, &step.vm, step.seat, |datastore| {
            step.vm.told(datastore).map(Box::new).map(kind)
        })?;
        if let Operated::Pending(next) = operated {
            return Ok(next);
        }
        if let Some(wait) = self.look_first(step)? {
            return Ok(wait);
        }
        let (object, by, task) = (step.vm.object(), &step.task.task.by, Some(step.task.task.id));
        let name = &step.vm.name;
        let (draft, end) = match (operated, deleted) {
            (Operated::Done(_), Some(number)) => {
                let message = format!("dump {number} of VM {name} was deleted, by {by}");
                (self.draft().event("vm.dump_deleted", &object, message, task), End::Done)
            }
            (Operated::Done(Some(OperationOutcome::Dump(dump))), None) => {
                let bytes = display_bytes(dump.sealed_bytes);
                let message = format!("dump {} of VM {name} was made ({bytes} sealed), by {by}", dump.number);
                (self.draft().event("vm.dumped", &object, message, task), End::Done)
            }
            (Operated::Done(_), None) => {
                let message = format!("a dump of VM {name} was made, by {by}");
                (self.draft().event("vm.dumped", &object, message, task), End::Done)
            }
            (Operated::Failed(problem), _) => (self.draft(), End::Failed(problem)),
            _ => (self.draft(), End::Cancelled),
        };
        self.end(step, &step.vm, draft, end)
    }

    /// Runs an operation that is a rollback, or cannot be rolled back: it continues even if the
    /// task is being cancelled.
    pub(super) fn operate_unless_cancelled(
        &self,
        step: &Step,
        vm: &VmRecord,
        kind: impl FnOnce(&DatastorePaths) -> Option<OperationKind>,
    ) -> Result<Operated, Failure> {
        self.operate_at(step, vm, step.seat, kind)
    }

    /// As [`operate_unless_cancelled`](Self::operate_unless_cancelled), at another host.
    pub(super) fn operate_at(
        &self,
        step: &Step,
        vm: &VmRecord,
        seat: &HostSeat,
        kind: impl FnOnce(&DatastorePaths) -> Option<OperationKind>,
    ) -> Result<Operated, Failure> {
        self.operate_while(&step.task, vm, seat, false, kind)
    }

    /// After an operation failed, sets the VM's desired state to its actual one.
    pub(super) fn as_it_is(&self, step: &Step, ended: Operated) -> Result<Next, Failure> {
        self.as_it_is_with(step, VmRecord::clone(&step.vm.record), self.draft(), ended)
    }

    pub(super) fn as_it_is_with(
        &self,
        step: &Step,
        mut vm: VmRecord,
        draft: Draft,
        ended: Operated,
    ) -> Result<Next, Failure> {
        let end = match ended {
            Operated::Failed(problem) => End::Failed(problem),
            _ => End::Cancelled,
        };
        let seen = match self.look_at(step.seat, step.vm.id)? {
            Look::Seen(seen) => seen,
            Look::Unanswered(reason) => {
                self.note(&step.task, reason)?;
                return Ok(Next::Wait(RETRY_PAUSE));
            }
        };
        if let Some(seen) = seen {
            vm.desired = match seen.power {
                PowerState::Running | PowerState::Starting | PowerState::KeyUnavailable => {
                    DesiredPower::Running
                }
                PowerState::Paused => DesiredPower::Paused,
                PowerState::Stopped | PowerState::Stopping | PowerState::Crashed | PowerState::Suspended => {
                    DesiredPower::Stopped
                }
                PowerState::Unknown => vm.desired,
            };
        }
        self.end(step, &vm, draft, end)
    }

    /// Before a task releases its VM, its observed state must include the task's effect. Otherwise
    /// the VM would look as if it were in the wrong state. Returns how long to wait if the host
    /// does not answer.
    pub(super) fn look_first(&self, step: &Step) -> Result<Option<Next>, Failure> {
        match self.look_at(step.seat, step.vm.id)? {
            Look::Seen(_) => Ok(None),
            Look::Unanswered(reason) => {
                self.note(&step.task, reason)?;
                Ok(Some(Next::Wait(RETRY_PAUSE)))
            }
        }
    }

    /// Ends a failed start. After a request, the VM is no longer wanted on; an automatic start, and
    /// that of a VM that ran on another host before, is repeated as long as its limit allows.
    fn not_started(&self, step: &Step, end: End) -> Result<Next, Failure> {
        let mut vm = VmRecord::clone(&step.vm.record);
        let is_repeated = step.task.is_automatic() || step.task.kind() == TaskKind::VmMoveHost;
        if !is_repeated || matches!(end, End::Cancelled) {
            vm.desired = DesiredPower::Stopped;
        }
        self.end(step, &vm, self.draft(), end)
    }

    /// Moves to another stage of the work.
    pub(super) fn turn(&self, step: &Step, work: Work, vm: VmRecord) -> Result<Next, Failure> {
        self.turn_with(step, work, vm, self.draft())
    }

    /// As [`turn`](Self::turn), with other changes in the same transaction.
    pub(super) fn turn_with(
        &self,
        step: &Step,
        work: Work,
        vm: VmRecord,
        draft: Draft,
    ) -> Result<Next, Failure> {
        let mut task = TaskRecord::clone(&step.task.record);
        task.task.awaits_image = work.awaited_image();
        (task.work, task.operation, task.task.note, task.waits_for_key) = (work, None, None, false);
        self.set_progress(task.task.id, None);
        let mut draft = draft.replace(&step.task, &task);
        draft = if vm == *step.vm.record { draft.unchanged(&step.vm) } else { draft.replace(&step.vm, &vm) };
        self.inventory.commit(draft)?;
        Ok(Next::Again)
    }

    /// Removes the VM from the inventory when the task ends.
    fn drop_vm(&self, step: &Step, end: End) -> Result<Next, Failure> {
        self.drop_vm_with(step, self.draft(), end)
    }

    fn drop_vm_with(&self, step: &Step, draft: Draft, end: End) -> Result<Next, Failure> {
        self.end_task(&step.task, without_vm(draft, &step.vm), end)
    }

    /// Ends the task and releases the VM.
    pub(super) fn end(&self, step: &Step, vm: &VmRecord, draft: Draft, end: End) -> Result<Next, Failure> {
        let free = VmRecord { task: None, ..vm.clone() };
        self.end_task(&step.task, draft.replace(&step.vm, &free), end)
    }

    pub(super) fn end_task(&self, task: &Row<TaskRecord>, draft: Draft, end: End) -> Result<Next, Failure> {
        if task.temporary_made().is_some() {
            return self.owe_temporary(task, draft, end);
        }
        self.end_now(task, self.release_origin(task, draft), end)
    }

    /// Ends the task, whose temporary snapshot is gone or was never made.
    pub(super) fn end_now(&self, task: &Row<TaskRecord>, draft: Draft, end: End) -> Result<Next, Failure> {
        let mut record = TaskRecord::clone(&task.record);
        let (title, object) = (record.task.shown_title(), record.task.object.clone());
        let (state, word, message) = match end {
            End::Done => (TaskState::Done, "task.done", done(&record.task)),
            End::Cancelled => (TaskState::Cancelled, "task.cancelled", format!("{title}: cancelled")),
            End::Failed(problem) => {
                let message = format!("{title}: failed: {problem}");
                record.task.error = Some(problem);
                (TaskState::Failed, "task.failed", message)
            }
        };
        record.task.state = state;
        (record.task.note, record.task.awaits_image) = (None, None);
        record.task.ended_unix_ms = Some(self.now_unix_ms());
        (record.operation, record.waits_for_key) = (None, false);
        let id = record.task.id;
        self.inventory.commit(draft.replace(task, &record).event(word, &object, message, Some(id)))?;
        self.set_progress(id, None);
        for vm in task.vm.into_iter().chain(task.temporary.as_ref().map(|temporary| temporary.vm)) {
            self.hasten_schedule(vm);
        }
        Ok(Next::Over)
    }
}

/// Removes a VM from the inventory, with all that is known of it.
pub(super) fn without_vm(draft: Draft, vm: &Row<VmRecord>) -> Draft {
    let id = vm.id.to_string();
    let mut draft = draft.remove_named(vm).out_of(vm.folder);
    draft = draft.discard::<ObservedRecord>(&id).discard::<ScheduleRecord>(&id);
    for volume in vm.hardware.volumes() {
        draft = draft.discard::<VolumeRecord>(&volume.to_string());
    }
    draft
}

/// Records the VM's volumes. Refuses a volume that belongs to another VM.
pub(super) fn keep_volumes(
    index: &Index,
    vm: &mut VmRecord,
    volumes: &[VolumeFacts],
    mut draft: Draft,
) -> Result<Draft, Problem> {
    let hardware = &mut vm.hardware;
    for facts in volumes {
        if let Some(disk) = hardware.disks.iter_mut().find(|disk| disk.name == facts.disk) {
            if let Some(before) = disk.volume.filter(|before| *before != facts.volume) {
                draft = draft.discard::<VolumeRecord>(&before.to_string());
            }
            (disk.volume, disk.pinned) = (Some(facts.volume), true);
            disk.least_generation = disk.least_generation.max(facts.generation);
            // During a move, the volume may be under either key.
            if let DiskSealing::Under { kek, next: None, .. } = &mut disk.sealing {
                *kek = facts.kek.or(*kek);
            }
        } else {
            let of_before = hardware.own_volumes.iter().find(|own| own.name == facts.disk);
            let least_generation = of_before.map_or(0, |own| own.least_generation).max(facts.generation);
            hardware.own_volumes.retain(|own| own.name != facts.disk);
            let (name, volume) = (facts.disk.clone(), facts.volume);
            hardware.own_volumes.push(KnownVolume { name, volume, least_generation });
        }
        let record = VolumeRecord { volume: facts.volume, vm: vm.id, disk: facts.disk.clone() };
        match index.volume(facts.volume) {
            Some(known) if known.vm == vm.id && known.disk == facts.disk => {}
            Some(known) => return Err(volume_known(facts, known)),
            None => draft = draft.create(&record),
        }
    }
    Ok(draft)
}

/// Returns the text of the event for a completed task.
/// What a task has done, in a sentence.
pub(super) fn done(task: &Task) -> String {
    let name = &task.object.name;
    match task.kind {
        TaskKind::VmCreate => format!("VM {name} was made"),
        TaskKind::VmClone => format!("VM {name} was made as a clone"),
        TaskKind::VmStart => format!("VM {name} runs"),
        TaskKind::VmStop => format!("VM {name} is off"),
        TaskKind::VmSuspend => format!("VM {name} is suspended"),
        TaskKind::VmDump => format!("VM {name} was dumped"),
        TaskKind::VmDumpDelete => format!("a dump of VM {name} was deleted"),
        TaskKind::VmRestart => format!("VM {name} was restarted"),
        TaskKind::VmDelete => format!("VM {name} was deleted"),
        TaskKind::VmAddDisk => format!("VM {name} has one more disk"),
        TaskKind::VmRemoveDisk => format!("a disk of VM {name} is gone, and its volume with it"),
        TaskKind::VmAddNic => format!("VM {name} has one more network card"),
        TaskKind::VmRemoveNic => format!("VM {name} has a network card less"),
        TaskKind::VmSetNic => format!("a network card of VM {name} is connected otherwise"),
        TaskKind::VmEncryptDisk => format!("a disk of VM {name} is encrypted"),
        TaskKind::VmDecryptDisk => format!("a disk of VM {name} is NOT encrypted any more"),
        TaskKind::VmResizeDisk => format!("a disk of VM {name} is larger"),
        TaskKind::VmMoveDisk => format!("a disk of VM {name} is in another datastore"),
        TaskKind::VmLimit => format!("the disks of VM {name} have other limits"),
        TaskKind::VmSnapshotCreate => format!("VM {name} has a new snapshot"),
        TaskKind::VmSnapshotRevert => format!("VM {name} was reverted to a snapshot"),
        TaskKind::VmSnapshotDelete => format!("a snapshot of VM {name} was deleted"),
        TaskKind::VmSnapshotSchedule => format!("VM {name} has another snapshot schedule"),
        TaskKind::VmCryptoperiod => format!("VM {name} has another cryptoperiod of its data keys"),
        TaskKind::VmMove => format!("{name} is in another folder"),
        TaskKind::VmMoveHost => format!("{name} is on another host"),
        TaskKind::HostEvacuate => format!("nothing is on host {name} any more"),
        TaskKind::HostsBalance => "the hosts are balanced".to_owned(),
        TaskKind::PolicyApply => format!("all VMs of policy {name} keep its rules"),
        TaskKind::VmTemplate => format!("VM {name} is a template"),
        TaskKind::VmTemplateUndo => format!("VM {name} is a template no more"),
        TaskKind::VmRotateKey => format!("VM {name} is under a new key"),
        TaskKind::VolumeCreate => format!("volume {name} was made"),
        TaskKind::VolumeClone => format!("volume {name} was made as a clone"),
        TaskKind::VolumeResize => format!("volume {name} is larger"),
        TaskKind::VolumeSnapshotCreate => format!("volume {name} has a new snapshot"),
        TaskKind::VolumeSnapshotRevert => format!("volume {name} was reverted to a snapshot"),
        TaskKind::VolumeSnapshotDelete => format!("a snapshot of volume {name} was deleted"),
        TaskKind::VolumeBind => format!("VM {name} has a volume more"),
        TaskKind::VolumeUnbind => format!("VM {name} has a volume less, which was kept"),
        TaskKind::VolumeDelete => format!("volume {name} was deleted"),
        _ => format!("{}: done", task.shown_title()),
    }
}

pub(super) fn volume_known(facts: &VolumeFacts, known: &VolumeRecord) -> Problem {
    let message = format!(
        "volume {} ({}) is known already: it is {} of VM {}",
        facts.volume, facts.disk, known.disk, known.vm
    );
    Problem::new(ErrorCode::VolumeKnown, message)
        .next("this is a copy; import it as an image of a new VM, or unregister the other one first")
}
