//! Callers' requests. Each is checked against the inventory and becomes one transaction: the
//! desired state, the task that will reach it, the event, and the request's key.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use strongroom_api::access::{AccessEntry, AccessKind};
use strongroom_api::limits::{STOP_TIMEOUT_DEFAULT_S, STOP_TIMEOUT_MAX_S};
use strongroom_api::task::{Task, TaskKind, TaskState};
use strongroom_api::vm::{
    CreateVm, DeleteVm, DesiredPower, DumpVm, Lifecycle, PatchVm, PowerState, StartVm, StopVm,
};
use strongroom_api::{ErrorCode, Name, ObjectKind, ObjectRef, Privilege, Problem, WhenFull, operation};
use strongroom_host::protocol::{Dump, ImageFormat};
use strongroom_vm::limits::DUMP_LABEL_BYTES_MAX;
use uuid::Uuid;

use super::access::{Rights, may, sees_task};
use super::accounts::must_have;
use super::advance::{done, without_vm};
use super::compliance::keeps_policies;
use super::describe::{Described, host_reads};
use super::fill::to_be_filled;
use super::networks::hold_networks;
use super::place::{addressed, check};
use super::placement_groups::with_new;
use super::quotas::within_quotas;
use super::seal_disks::refuse_of_unfinished;
use super::templates::{refuse_of_template, without_clones};
use super::tickets::MustRecord;
use super::titles::title;
use super::volume_changes::name_is_free;
use super::{Control, Stop, boards, sizes};
use crate::inventory::{Draft, Failure, Index, Row, by_name_or_id};
use crate::problems;
use crate::records::{
    AUTOMATIC, AskedBy, DatastorePaths, NeedAt, Place, Principal, RequestRecord, SCHEDULER, TaskRecord,
    VmRecord, Work, address_text,
};

/// The most open tasks: twice the VMs of a large site.
const OPEN_TASKS_MAX: usize = 16 * 1024;

/// The caller of an operation, and what it may do for the operation's request.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The name of the user or token.
    pub name: String,
    /// Who asks.
    pub principal: Principal,
    /// The address that the request came from.
    pub from: Option<IpAddr>,
    /// What the request takes. The transaction that records the request, and the task when it runs,
    /// check it again.
    pub needs: Vec<NeedAt>,
    /// Identifies a repeated request.
    pub request: Option<RequestKey>,
    /// The operation that it calls.
    pub operation: Option<&'static str>,
    /// Whether the access log has what came of the request.
    pub receipt: Receipt,
}

/// Says that the access log has what came of a request, or that nothing did. The server answers no
/// operation that changes something without it.
#[derive(Clone, Debug, Default)]
pub struct Receipt(Arc<AtomicBool>);

impl Receipt {
    /// It is on record, or there is nothing to record.
    pub fn give(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it was given.
    pub fn was_given(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Caller {
    /// The control plane itself, under this name, or the first token of its machine.
    pub fn machine(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            principal: Principal::Machine,
            from: None,
            needs: Vec::new(),
            request: None,
            operation: None,
            receipt: Receipt::default(),
        }
    }

    /// Who asked for a task, from where they did, for another task that it has made.
    pub(super) fn of_task(task: &TaskRecord) -> Self {
        let machine = Self::machine(&task.task.by);
        let from = task.task.from.as_ref().and_then(|from| from.parse().ok());
        match &task.asked {
            Some(AskedBy { principal, needs }) => {
                Self { principal: *principal, needs: needs.clone(), from, ..machine }
            }
            None => Self { from, ..machine },
        }
    }

    /// Whether the control plane asks by itself: nobody's action, so the access log has nothing of
    /// it. Users and tokens do not have these names.
    pub(super) fn is_automatic(&self) -> bool {
        [AUTOMATIC, SCHEDULER].contains(&self.name.as_str())
    }

    /// The same caller, for a request that is not repeated.
    pub(super) fn without_key(&self) -> Self {
        Self { request: None, ..self.clone() }
    }

    /// The caller of one entry of a batch. The batch's `Idempotency-Key` counts for each entry.
    pub(super) fn entry(&self, at: usize) -> Self {
        let of_entry = |request: &RequestKey| RequestKey {
            key: format!("{}/{at}", request.key),
            fingerprint: request.fingerprint.clone(),
        };
        Self { request: self.request.as_ref().map(of_entry), ..self.clone() }
    }
}

/// An `Idempotency-Key`, with the request that it came with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestKey {
    /// SHA-256 of the caller's name and the key, in hexadecimal; in a batch, with the number of the
    /// entry.
    pub key: String,
    /// SHA-256 of method, path and body, in hexadecimal.
    pub fingerprint: String,
}

impl Control {
    /// Requests a VM.
    ///
    /// # Errors
    /// [`Problem`], as for all methods here.
    pub fn create_vm(&self, caller: &Caller, wish: &CreateVm) -> Result<Task, Problem> {
        // Right after a start, or without a provider, the list is empty; asking them is then worth
        // the wait.
        if self.providers().is_empty() {
            self.ask_providers();
        }
        if let Some(provider) = &wish.encryption.provider {
            self.must_be_provider(provider)?;
        }
        let task = self.wish(caller, |index, id| {
            name_is_free(index, &wish.name)?;
            let placed = self.place(index, wish, id)?;
            let (vm, draft) = (&placed.vm, placed.told(self.draft(), id));
            let draft = self.with_demanded_schedule(index, vm, draft);
            let draft = with_new(index, wish.placement_group.as_ref(), vm, draft)?;
            let task = self.task(id, TaskKind::VmCreate, vm.object(), caller);
            let work = Work::Create { fill: to_be_filled(wish, vm)?, from: None };
            Ok((TaskRecord { vm: Some(vm.id), work, ..task }, draft.create_named(vm)))
        })?;
        self.hasten_schedule_of(&task);
        Ok(task)
    }

    /// Requests that a VM is started.
    pub fn start_vm(&self, caller: &Caller, named: &str, how: &StartVm) -> Result<Task, Problem> {
        self.vm_wish(caller, named, TaskKind::VmStart, |vm, power| match power {
            PowerState::Running | PowerState::Paused | PowerState::Starting | PowerState::KeyUnavailable => {
                Err(state(vm, power, "it is on already")
                    .next(format!("`strongroom vm show {}` shows how it is", vm.name)))
            }
            _ => {
                vm.desired = if how.paused { DesiredPower::Paused } else { DesiredPower::Running };
                vm.generation = vm.generation_after(0);
                vm.restarts_unix_ms.clear();
                Ok(Work::Start { discard_memory: how.discard_memory, paused: how.paused })
            }
        })
    }

    /// Requests that a VM is stopped.
    pub fn stop_vm(&self, caller: &Caller, named: &str, how: &StopVm) -> Result<Task, Problem> {
        let timeout_s = stop_timeout(how.timeout_s)?;
        self.vm_wish(caller, named, TaskKind::VmStop, |vm, _| {
            vm.desired = DesiredPower::Stopped;
            Ok(Work::Stop { force: how.force, timeout_s, then_start: false })
        })
    }

    /// Requests that a VM is stopped and started.
    pub fn restart_vm(&self, caller: &Caller, named: &str, how: &StopVm) -> Result<Task, Problem> {
        let timeout_s = stop_timeout(how.timeout_s)?;
        self.vm_wish(caller, named, TaskKind::VmRestart, |vm, _| {
            vm.desired = DesiredPower::Running;
            vm.restarts_unix_ms.clear();
            Ok(Work::Stop { force: how.force, timeout_s, then_start: true })
        })
    }

    /// Requests that a VM is paused.
    pub fn pause_vm(&self, caller: &Caller, named: &str) -> Result<Task, Problem> {
        self.vm_wish(caller, named, TaskKind::VmPause, |vm, power| {
            if !matches!(power, PowerState::Running | PowerState::Unknown) {
                return Err(must_run(vm, power, "paused"));
            }
            vm.desired = DesiredPower::Paused;
            Ok(Work::Pause)
        })
    }

    /// Requests that a VM is suspended: its memory is sealed, and it is stopped.
    pub fn suspend_vm(&self, caller: &Caller, named: &str) -> Result<Task, Problem> {
        self.vm_wish(caller, named, TaskKind::VmSuspend, |vm, power| {
            if !matches!(power, PowerState::Running | PowerState::Paused | PowerState::Unknown) {
                return Err(must_run(vm, power, "suspended"));
            }
            vm.desired = DesiredPower::Stopped;
            Ok(Work::Suspend)
        })
    }

    /// Requests a dump of a VM's guest.
    pub fn dump_vm(&self, caller: &Caller, named: &str, wish: &DumpVm) -> Result<Task, Problem> {
        let fits = |label: &String| {
            (1..=DUMP_LABEL_BYTES_MAX).contains(&label.len()) && !label.chars().any(char::is_control)
        };
        if !wish.label.as_ref().is_none_or(fits) {
            let message = format!("a label has 1 to {DUMP_LABEL_BYTES_MAX} bytes, and no control characters");
            return Err(problems::invalid(message));
        }
        self.vm_wish(caller, named, TaskKind::VmDump, |vm, power| {
            if !matches!(power, PowerState::Running | PowerState::Paused | PowerState::Unknown) {
                return Err(must_run(vm, power, "dumped"));
            }
            Ok(Work::Dump { label: wish.label.clone() })
        })
    }

    /// Requests the deletion of a dump.
    pub fn delete_dump(&self, caller: &Caller, named: &str, number: u32) -> Result<Task, Problem> {
        self.wish(caller, |index, id| {
            let vm = idle_vm(index, named)?;
            dump_of(index, vm, number)?;
            let changed = VmRecord { task: Some(id), ..VmRecord::clone(&vm.record) };
            let task = self.task(id, TaskKind::VmDumpDelete, vm.object(), caller);
            let work = Work::DeleteDump { number };
            Ok((TaskRecord { vm: Some(vm.id), work, ..task }, self.draft().replace(vm, &changed)))
        })
    }

    /// Requests that a VM is resumed.
    pub fn resume_vm(&self, caller: &Caller, named: &str) -> Result<Task, Problem> {
        self.vm_wish(caller, named, TaskKind::VmResume, |vm, power| {
            if !matches!(power, PowerState::Paused | PowerState::Unknown) {
                return Err(state(vm, power, "only one that is paused can be resumed")
                    .next(format!("`strongroom vm start {}` starts one that is off or suspended", vm.name)));
            }
            vm.desired = DesiredPower::Running;
            Ok(Work::Resume)
        })
    }

    /// Requests that a VM is reset.
    pub fn reset_vm(&self, caller: &Caller, named: &str) -> Result<Task, Problem> {
        self.vm_wish(caller, named, TaskKind::VmReset, |vm, power| {
            if !matches!(power, PowerState::Running | PowerState::Paused | PowerState::Unknown) {
                return Err(must_run(vm, power, "reset"));
            }
            Ok(Work::Reset)
        })
    }

    /// Requests another name, notes, tags or hardware for a VM. `version` is the one that the
    /// caller has read.
    pub fn set_vm(
        &self,
        caller: &Caller,
        named: &str,
        patch: &PatchVm,
        version: Option<u64>,
    ) -> Result<Task, Problem> {
        let described = Described::of(patch);
        self.wish(caller, |index, id| {
            let vm = index.find_vm(named).ok_or_else(|| problems::not_found(ObjectKind::Vm, named))?;
            must_be_as_read(&format!("VM {}", vm.name), vm.revision.0, version)?;
            if !described.may_change_beside_a_task() {
                idle(index, vm)?;
            }
            if described.is_all {
                let mut changed = VmRecord::clone(&vm.record);
                described.apply(index, &mut changed)?;
                self.seat(vm.host).map_or(Ok(()), |seat| host_reads(seat, &changed))?;
                let draft = self.told_renamed(self.draft(), vm, &changed, caller, id);
                let task = self.task_done(id, TaskKind::VmConfigure, changed.object(), caller);
                return Ok((task, draft.replace_named(vm, &changed)));
            }
            let power = self.power_of(index, vm);
            if power.is_on()
                && let Some(after) = sizes::of_running(vm, patch)
            {
                refuse_of_unfinished(vm, TaskKind::VmConfigure)?;
                volumes_settled(vm, power)?;
                let mut changed = VmRecord { task: Some(id), ..VmRecord::clone(&vm.record) };
                let work = self.begin_resizing(&mut changed, after)?;
                check_on_host(index, &changed)?;
                let task = self.task(id, TaskKind::VmConfigure, changed.object(), caller);
                return Ok((
                    TaskRecord { vm: Some(vm.id), work, ..task },
                    self.draft().replace(vm, &changed),
                ));
            }
            self.may_be_reconfigured(index, vm, TaskKind::VmConfigure)?;
            let mut changed = patched(vm, patch);
            if let Some(nics) = &patch.nics {
                changed.hardware.nics = addressed(&self.connected_on(index, vm.host, nics)?)?;
            }
            described.apply(index, &mut changed)?;
            changed.task = Some(id);
            check_on_host(index, &changed)?;
            if let Some(seat) = self.seat(vm.host) {
                host_reads(seat, &changed)?;
                if patch.machine_type.is_some() || patch.processor.is_some() {
                    boards::gives(seat, &problems::called(vm), &changed.hardware.board)?;
                }
            }
            let draft = self.told_renamed(self.draft(), vm, &changed, caller, id);
            let task = self.task(id, TaskKind::VmConfigure, changed.object(), caller);
            let work = Work::Configure { before: Box::new(vm.hardware.clone()) };
            Ok((TaskRecord { vm: Some(vm.id), work, ..task }, draft.replace_named(vm, &changed)))
        })
    }

    /// Checks that a VM's machine may change.
    fn may_be_reconfigured(&self, index: &Index, vm: &VmRecord, kind: TaskKind) -> Result<(), Problem> {
        refuse_of_template(vm, kind)?;
        refuse_of_unfinished(vm, kind)?;
        self.must_be_off(index, vm)?;
        if index.observed(vm.id).is_some_and(|seen| seen.power == PowerState::Suspended) {
            return Err(suspended(vm, "its memory fits it as it is"));
        }
        Ok(())
    }

    /// Adds the event of a VM that has another name.
    fn told_renamed(
        &self,
        draft: Draft,
        before: &VmRecord,
        after: &VmRecord,
        caller: &Caller,
        task: Uuid,
    ) -> Draft {
        if before.name == after.name {
            return draft;
        }
        let message = format!("VM {} is named {} now, by {}", before.name, after.name, caller.name);
        // The event names the former name, too, so that a support bundle knows it as a name.
        draft.event("vm.renamed", &before.object(), message, Some(task))
    }

    /// Requests the deletion of a VM and its volumes. What linked clones share with it stays with
    /// them, which the caller has to accept.
    pub fn delete_vm(&self, caller: &Caller, named: &str, how: &DeleteVm) -> Result<Task, Problem> {
        self.indexed_vm_wish(caller, named, TaskKind::VmDelete, |index, vm, power| {
            if !how.leave_to_clones {
                without_clones(index, vm)?;
            }
            if !how.with_volumes {
                without_volumes(vm)?;
            }
            if power.is_on() && power != PowerState::Unknown {
                return Err(state(vm, power, "only one that is off can be deleted").next(stop_it(vm)));
            }
            vm.lifecycle = Lifecycle::Deleting;
            vm.desired = DesiredPower::Stopped;
            Ok(Work::Delete)
        })
    }

    /// Removes a VM from the inventory; its files stay. Also removes a volume that only a backup of
    /// the inventory knows: its VM cannot be registered as long as it is known on its own.
    pub fn unregister_vm(&self, caller: &Caller, named: &str) -> Result<Task, Problem> {
        self.wish(caller, |index, id| {
            let found = index.find_any(named).filter(|found| !found.holds_volume || found.from_backup);
            let vm = found.ok_or_else(|| problems::not_found(ObjectKind::Vm, named))?;
            let vm = without_task(index, vm)?;
            self.must_be_off(index, vm)?;
            let draft = without_vm(self.draft(), vm);
            Ok((self.task_done(id, TaskKind::VmUnregister, vm.object(), caller), draft))
        })
    }

    /// Requests the cancellation of a task. It ends as soon as its work can be stopped.
    pub fn cancel_task(&self, caller: &Caller, id: Uuid) -> Result<Task, Problem> {
        let cancelled = self.race(|| {
            let index = self.inventory.read();
            let task =
                index.task(id).ok_or_else(|| problems::not_found(ObjectKind::Task, &id.to_string()))?;
            if task.task.state.is_over() || task.task.cancelling {
                caller.receipt.give();
                return Ok(task.task.clone());
            }
            if matches!(task.work, Work::Delete) {
                return Err(problems::conflict("a deletion cannot be cancelled").into());
            }
            let mut record = TaskRecord::clone(&task.record);
            record.task.cancelling = true;
            let draft = self.draft().replace(task, &record);
            drop(index);
            let message = format!("asked to cancel: {}", record.task.shown_title());
            self.commit_for(
                caller,
                draft,
                about(&record.task, caller.entry_of(AccessKind::Changed, message)),
            )?;
            Ok(record.task)
        })?;
        self.schedule.wake(id);
        Ok(cancelled)
    }

    /// As [`cancel_task`](Self::cancel_task), for a caller that asked for the task or might have,
    /// or may configure what the control plane works on by itself.
    pub fn cancel_task_for(&self, caller: &Caller, id: Uuid) -> Result<Task, Problem> {
        {
            let index = self.inventory.read();
            let rights = Rights::of(&index, caller.principal);
            let none = || problems::not_found(ObjectKind::Task, &id.to_string());
            let task = index.task(id).filter(|task| sees_task(&index, &rights, caller.principal, task));
            let task = task.ok_or_else(none)?;
            match &task.asked {
                Some(asked) if asked.principal == caller.principal => {}
                Some(asked) => {
                    let same = AskedBy { principal: caller.principal, needs: asked.needs.clone() };
                    may(&index, &same)?;
                }
                None => {
                    let place = task.vm.map_or(Place::Site, Place::Vm);
                    must_have(&rights, &index, place, Privilege::Configure)?;
                }
            }
        }
        self.cancel_task(caller, id)
    }

    /// Commits what a caller changes, with its entry in the access log, and ends the tickets of
    /// callers that have lost their right to them by it. Every change that somebody asks for goes
    /// this way.
    pub(super) fn commit_for(
        &self,
        caller: &Caller,
        draft: Draft,
        entry: AccessEntry,
    ) -> Result<(), Failure> {
        let draft = match caller.is_automatic() {
            true => draft,
            false => draft.when_full(when_full(&entry)).access(entry),
        };
        self.inventory.commit(draft)?;
        caller.receipt.give();
        self.void_tickets();
        Ok(())
    }

    /// A request about an idle VM. `change` sets the VM's desired state, and returns the work.
    pub(super) fn vm_wish(
        &self,
        caller: &Caller,
        named: &str,
        kind: TaskKind,
        change: impl Fn(&mut VmRecord, PowerState) -> Result<Work, Problem>,
    ) -> Result<Task, Problem> {
        self.indexed_vm_wish(caller, named, kind, |_, vm, power| change(vm, power))
    }

    /// As [`vm_wish`](Self::vm_wish), for a request that depends on more than the VM's record.
    pub(super) fn indexed_vm_wish(
        &self,
        caller: &Caller,
        named: &str,
        kind: TaskKind,
        change: impl Fn(&Index, &mut VmRecord, PowerState) -> Result<Work, Problem>,
    ) -> Result<Task, Problem> {
        self.wish_about(caller, kind, |index| idle_vm(index, named), change)
    }

    /// As [`indexed_vm_wish`](Self::indexed_vm_wish), for the VM or holder that `find` returns.
    pub(super) fn wish_about(
        &self,
        caller: &Caller,
        kind: TaskKind,
        find: impl Fn(&Index) -> Result<&Row<VmRecord>, Problem>,
        change: impl Fn(&Index, &mut VmRecord, PowerState) -> Result<Work, Problem>,
    ) -> Result<Task, Problem> {
        self.wish(caller, |index, id| {
            let vm = find(index)?;
            refuse_of_template(vm, kind)?;
            refuse_of_unfinished(vm, kind)?;
            let power = self.power_of(index, vm);
            let mut changed = VmRecord::clone(&vm.record);
            let work = change(index, &mut changed, power)?;
            changed.task = Some(id);
            let task = self.task(id, kind, vm.object(), caller);
            Ok((TaskRecord { vm: Some(vm.id), work, ..task }, self.draft().replace(vm, &changed)))
        })
    }

    /// Commits a request, and repeats it after a lost race. A repeated request gets its earlier
    /// answer.
    pub(super) fn wish(
        &self,
        caller: &Caller,
        judge: impl Fn(&Index, Uuid) -> Result<(TaskRecord, Draft), Problem>,
    ) -> Result<Task, Problem> {
        let task = self.race(|| {
            if let Some(known) = self.known_request(caller)? {
                return Ok(known);
            }
            let id = Uuid::now_v7();
            let (task, mut draft) = {
                let index = self.inventory.read();
                if index.open_tasks_count() >= OPEN_TASKS_MAX {
                    return Err(Problem::new(ErrorCode::TooMany, "too many tasks are open")
                        .next("wait until some are done")
                        .into());
                }
                self.still_may(&index, caller)?;
                let (mut task, draft) = judge(&index, id)?;
                task.task.title = title(&index, &task);
                let changed: Vec<VmRecord> = draft.records()?;
                keeps_policies(&index, &task, &changed, &draft)?;
                let draft = within_quotas(&index, &task, &changed, draft)?;
                let draft = self.within_room(&index, &task, &changed, draft)?;
                let draft = hold_networks(&index, &task, &changed, draft)?;
                (task, draft)
            };
            if let Some((what, must)) = use_of(task.kind()) {
                let vm = self.inventory.read().find_any(&task.task.object.name).cloned();
                if let Some(vm) = vm {
                    let what = format!("{what} of {} is asked for", problems::called(&vm));
                    self.put_on_record(caller, &vm, &what, must)?;
                }
            }
            draft = self.noted(draft, caller, id);
            let object = &task.task.object;
            let (kind, message) = match task.task.state {
                TaskState::Done => ("task.done", done(&task.task)),
                _ => ("task.started", format!("{}, by {}", task.task.title, caller.name)),
            };
            draft = draft.create(&task).event(kind, object, message, Some(id));
            let message = match task.task.state {
                TaskState::Done => done(&task.task),
                _ => format!("asked for: {}", task.task.title),
            };
            self.commit_for(caller, draft, about(&task.task, caller.entry_of(AccessKind::Changed, message)))?;
            Ok::<_, Stop>(task.task)
        })?;
        self.schedule.wake(task.id);
        Ok(task)
    }

    /// Adds the request that this task answers.
    pub(super) fn noted(&self, draft: Draft, caller: &Caller, task: Uuid) -> Draft {
        let Some(RequestKey { key, fingerprint }) = caller.request.clone() else { return draft };
        draft.create(&RequestRecord { key, fingerprint, task, at_unix_ms: self.now_unix_ms() })
    }

    /// Returns the task that answered an earlier request with the same key.
    pub(super) fn known_request(&self, caller: &Caller) -> Result<Option<Task>, Problem> {
        let Some(request) = &caller.request else { return Ok(None) };
        let index = self.inventory.read();
        let Some(known) = index.requests.get(&request.key) else { return Ok(None) };
        if known.fingerprint != request.fingerprint {
            return Err(Problem::new(
                ErrorCode::KeyReused,
                "this Idempotency-Key was sent with another request before",
            )
            .next("use a new key for a new request"));
        }
        caller.receipt.give();
        let task = index.task(known.task).map(|task| task.task.clone());
        task.map(Some).ok_or_else(|| {
            problems::conflict("this request was done, and its task is not in the history any more")
        })
    }

    pub(super) fn task(&self, id: Uuid, kind: TaskKind, object: ObjectRef, caller: &Caller) -> TaskRecord {
        TaskRecord {
            task: Task {
                id,
                kind,
                title: kind.title(&object),
                object,
                state: TaskState::Running,
                progress: None,
                note: None,
                awaits_image: None,
                error: None,
                cancelling: false,
                by: caller.name.clone(),
                from: caller.from.map(address_text),
                created_unix_ms: self.now_unix_ms(),
                ended_unix_ms: None,
            },
            vm: None,
            work: Work::Nothing,
            operation: None,
            waits_for_key: false,
            asked: caller.asked(),
            temporary: None,
        }
    }

    /// A task that is complete with the transaction that makes it.
    pub(super) fn task_done(
        &self,
        id: Uuid,
        kind: TaskKind,
        object: ObjectRef,
        caller: &Caller,
    ) -> TaskRecord {
        let mut record = self.task(id, kind, object, caller);
        (record.task.state, record.task.ended_unix_ms) = (TaskState::Done, Some(self.now_unix_ms()));
        record
    }

    /// Returns the host with this name or id; the only one if none is named.
    pub(super) fn find_seat(&self, named: Option<&str>) -> Result<&super::HostSeat, Problem> {
        let Some(named) = named else {
            let mut all = self.hosts.iter();
            return match (all.next(), all.next()) {
                (Some(only), None) => Ok(only),
                _ => Err(problems::invalid("which host is meant?").next("name one with --host")),
            };
        };
        let index = self.inventory.read();
        let found = by_name_or_id(&index.hosts, named).and_then(|host| self.seat(host.id));
        found.ok_or_else(|| problems::not_found(ObjectKind::Host, named))
    }

    pub(super) fn power_of(&self, index: &Index, vm: &VmRecord) -> PowerState {
        let up = self.seat(vm.host).is_some_and(super::HostSeat::is_up);
        self.power_in(index, vm, up)
    }

    fn must_be_off(&self, index: &Index, vm: &VmRecord) -> Result<(), Problem> {
        let power = index.observed(vm.id).map_or(PowerState::Stopped, |seen| seen.power);
        if power.is_on() { Err(state(vm, power, "it has to be off").next(stop_it(vm))) } else { Ok(()) }
    }
}

/// What becomes of a change with this entry when the access log is full.
fn when_full(entry: &AccessEntry) -> WhenFull {
    match entry.kind {
        AccessKind::Refused | AccessKind::SignInRefused => WhenFull::Reserve,
        AccessKind::Removed => WhenFull::Done,
        AccessKind::SignedIn
        | AccessKind::Ticket
        | AccessKind::Changed
        | AccessKind::Read
        | AccessKind::Unknown => {
            let called = entry.operation.as_deref().and_then(operation);
            called.map_or(WhenFull::Refused, |called| called.when_full)
        }
    }
}

/// An entry of the access log about a task.
pub(super) fn about(task: &Task, entry: AccessEntry) -> AccessEntry {
    AccessEntry { object: Some(task.object.clone()), task: Some(task.id), ..entry }
}

/// Refuses the deletion of a VM that has volumes which were made on their own.
fn without_volumes(vm: &VmRecord) -> Result<(), Problem> {
    let Some(disk) = vm.hardware.disks.iter().find(|disk| disk.volume_name.is_some()) else { return Ok(()) };
    let volume = disk.volume_name.as_ref().map_or("", Name::as_str);
    let message = format!("VM {} has volume {volume} as {}, which would be deleted too", vm.name, disk.name);
    Err(Problem::new(ErrorCode::InUse, message).next(format!(
        "`strongroom disk unbind {}/{}` keeps it; or delete the VM with --with-volumes",
        vm.name, disk.name
    )))
}

/// Returns the VM's dump with this number.
pub(super) fn dump_of<'index>(
    index: &'index Index,
    vm: &VmRecord,
    number: u32,
) -> Result<&'index Dump, Problem> {
    let found = index.observed(vm.id).and_then(|seen| {
        let seen: &crate::records::ObservedRecord = &seen.record;
        seen.dumps.iter().find(|dump| dump.number == number)
    });
    found.ok_or_else(|| {
        Problem::new(ErrorCode::NotFound, format!("VM {} has no dump {number}", vm.name))
            .next(format!("`strongroom vm dump list {}` shows what there is", vm.name))
    })
}

/// Returns the VM with this name or id, if no task works on it.
pub(super) fn idle_vm<'index>(index: &'index Index, named: &str) -> Result<&'index Row<VmRecord>, Problem> {
    idle(index, index.find_vm(named).ok_or_else(|| problems::not_found(ObjectKind::Vm, named))?)
}

/// Returns a VM or holder if no task works on it, and what is known of it is true.
pub(super) fn idle<'index>(
    index: &Index,
    vm: &'index Row<VmRecord>,
) -> Result<&'index Row<VmRecord>, Problem> {
    confirmed(vm)?;
    without_task(index, vm)
}

/// Refuses what is done with a VM as long as all that is known of it is from a backup.
pub(super) fn confirmed(vm: &VmRecord) -> Result<(), Problem> {
    if !vm.from_backup {
        return Ok(());
    }
    let message = format!(
        "what is known of {} is from a backup of the inventory, and its host has not confirmed it",
        problems::called(vm)
    );
    Err(problems::conflict(message).next(format!(
        "`strongroom event alarms` says what its host has; `strongroom vm register {}` takes that over",
        vm.directory()
    )))
}

/// Returns a VM or holder if no task works on it.
fn without_task<'index>(index: &Index, vm: &'index Row<VmRecord>) -> Result<&'index Row<VmRecord>, Problem> {
    let Some(task) = vm.task else { return Ok(vm) };
    let title = index.task(task).map_or_else(|| "a task".to_owned(), |task| task.task.shown_title());
    Err(Problem::new(ErrorCode::Busy, format!("a task works on {}: {title}", problems::called(vm)))
        .next(format!("wait for it (`strongroom task show {task}`), or cancel it")))
}

/// Checks that an object has the version that the caller has read, if the caller names one.
pub(super) fn must_be_as_read(what: &str, version: u64, read: Option<u64>) -> Result<(), Problem> {
    let Some(read) = read.filter(|read| *read != version) else { return Ok(()) };
    let message = format!("{what} was changed since version {read}");
    Err(Problem::new(ErrorCode::Stale, message).next("read it again, and change it as it is now"))
}

/// Checks that a VM's volumes are open, or closed, and not in between.
pub(super) fn volumes_settled(vm: &VmRecord, power: PowerState) -> Result<(), Problem> {
    match power {
        PowerState::Starting | PowerState::Stopping => Err(state(vm, power, "wait until it is on or off")),
        PowerState::KeyUnavailable => Err(state(vm, power, "its disks wait for its key")
            .next("see to its key provider: `strongroom key-provider list`")),
        _ => Ok(()),
    }
}

/// The problem of an operation that needs a running VM.
fn must_run(vm: &VmRecord, power: PowerState, deed: &str) -> Problem {
    state(vm, power, &format!("only one that runs can be {deed}"))
        .next(format!("`strongroom vm start {}` starts it", vm.name))
}

pub(super) fn stop_it(vm: &VmRecord) -> String {
    format!("`strongroom vm stop {}` stops it", vm.name)
}

pub(super) fn state(vm: &VmRecord, power: PowerState, why: &str) -> Problem {
    problems::conflict(format!("{} is {}: {why}", problems::called(vm), power.as_str()))
}

/// Refuses what a suspended VM cannot have done to it.
pub(super) fn suspended(vm: &VmRecord, why: &str) -> Problem {
    state(vm, PowerState::Suspended, why).next("start it and shut it down, or start it with --discard-memory")
}

/// Converts a format for hosts.
pub(super) fn image_format(format: strongroom_api::vm::ImageFormat) -> ImageFormat {
    match format {
        strongroom_api::vm::ImageFormat::Auto => ImageFormat::Auto,
        strongroom_api::vm::ImageFormat::Raw => ImageFormat::Raw,
        strongroom_api::vm::ImageFormat::Qcow2 => ImageFormat::Qcow2,
        strongroom_api::vm::ImageFormat::Vmdk => ImageFormat::Vmdk,
        strongroom_api::vm::ImageFormat::Vhdx => ImageFormat::Vhdx,
    }
}

/// How long a guest has to shut down, in seconds.
pub(super) fn stop_timeout(timeout_s: Option<u32>) -> Result<u32, Problem> {
    match timeout_s.unwrap_or(STOP_TIMEOUT_DEFAULT_S) {
        timeout_s @ 1..=STOP_TIMEOUT_MAX_S => Ok(timeout_s),
        other => Err(problems::invalid(format!("{other} seconds are not within 1 and {STOP_TIMEOUT_MAX_S}"))),
    }
}

/// Checks a changed VM against the limits of the API and of hosts.
pub(super) fn check_on_host(index: &Index, vm: &VmRecord) -> Result<(), Problem> {
    let paths = index.paths_of(vm, vm.host).unwrap_or_else(|| DatastorePaths::nowhere(vm));
    check(vm, &paths)
}

fn patched(vm: &VmRecord, patch: &PatchVm) -> VmRecord {
    let mut changed = vm.clone();
    let hardware = &mut changed.hardware;
    hardware.cpus = patch.cpus.unwrap_or(hardware.cpus);
    hardware.memory = patch.memory_bytes.unwrap_or(hardware.memory);
    hardware.growth = patch.growth.unwrap_or(hardware.growth);
    boards::patch(&mut hardware.board, patch);
    hardware.board.vnc = patch.vnc.unwrap_or(hardware.board.vnc);
    if let Some(cdrom) = &patch.cdrom {
        hardware.cdrom = cdrom.clone();
    }
    if let Some(boot) = &patch.boot {
        hardware.boot = boot.clone();
    }
    changed.restart = patch.restart.unwrap_or(changed.restart);
    changed
}

/// Makes a name from a text that was found, not requested.
pub(super) fn name_of(text: &str) -> Result<Name, Problem> {
    Name::new(text).map_err(|error| problems::invalid(format!("{text:?} is no name: {error}")))
}

/// How a task uses guest data, if it does, and whether that must be recorded. A removal reveals
/// nothing, so the loss of a key server does not prevent it.
pub(super) fn use_of(kind: TaskKind) -> Option<(&'static str, MustRecord)> {
    Some(match kind {
        TaskKind::VmDump => ("a dump", MustRecord::OfEncrypted),
        TaskKind::VmClone => ("the copy of a VM", MustRecord::OfEncrypted),
        TaskKind::VmImportDisk => ("the filling of a disk", MustRecord::OfEncrypted),
        TaskKind::VolumeClone => ("the copy of a volume", MustRecord::OfEncrypted),
        TaskKind::VolumeBind => ("a volume's binding to a VM", MustRecord::OfEncrypted),
        TaskKind::VmSuspend => ("the suspension", MustRecord::Never),
        TaskKind::VmDumpDelete => ("the deletion of a dump", MustRecord::Never),
        TaskKind::VmSnapshotRevert | TaskKind::VolumeSnapshotRevert => {
            ("the return to a snapshot", MustRecord::Never)
        }
        TaskKind::VmSnapshotDelete | TaskKind::VolumeSnapshotDelete => {
            ("the deletion of a snapshot", MustRecord::Never)
        }
        TaskKind::VmRemoveDisk => ("the removal of a disk", MustRecord::Never),
        TaskKind::VmDelete | TaskKind::VolumeDelete => ("the deletion", MustRecord::Never),
        _ => return None,
    })
}
