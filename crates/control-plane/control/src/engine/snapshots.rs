//! Snapshots of VMs, running or off.
//!
//! The task has the request from the beginning, with the ids of the snapshots that it makes. The
//! host accepts each change again and goes by its effect, so the task continues after any process
//! was killed. The host reports which snapshots there are.

use strongroom_api::Problem;
use strongroom_api::task::{Task, TaskKind};
use strongroom_api::vm::{CreateSnapshot, PowerState, RevertVm, Snapshot};
use strongroom_api::{ErrorCode, ObjectKind};
use strongroom_host::protocol::{
    self, NewVmSnapshot, OperationKind, OperationOutcome, SnapshotChange, VmSnapshots,
};
use strongroom_types::{NAME_BYTES_MAX, SnapshotId, SnapshotName};

use super::Control;
use super::advance::{End, Next, Step, keep_volumes};
use super::groups::group_view;
use super::operate::Operated;
use super::templates::no_template_more;
use super::tickets::MustRecord;
use super::views::memory_view;
use super::wishes::{Caller, state, stop_it, suspended, volumes_settled};
use crate::inventory::{Failure, Index, Row};
use crate::problems;
use crate::records::{VmRecord, Work};

impl Control {
    /// The snapshots of a VM, in the order in which they were made.
    ///
    /// # Errors
    /// [`Problem`] if the VM does not exist.
    pub fn list_snapshots(&self, named: &str) -> Result<Vec<Snapshot>, Problem> {
        let index = self.inventory.read();
        let vm = index.find_vm(named).ok_or_else(|| problems::not_found(ObjectKind::Vm, named))?;
        Ok(views(&index, vm))
    }

    /// Requests a snapshot of a VM.
    ///
    /// # Errors
    /// [`Problem`], as for all requests here.
    pub fn create_snapshot(
        &self,
        caller: &Caller,
        named: &str,
        wish: &CreateSnapshot,
    ) -> Result<Task, Problem> {
        let (id, name) = (SnapshotId::random(), wish.name.clone());
        let CreateSnapshot { memory, quiesce_within_s, ref with, .. } = *wish;
        if memory && quiesce_within_s.is_some() {
            let message = "a snapshot with memory has what the guest has not written, too";
            return Err(problems::invalid(message).next("leave out `memory` or `quiesce_within_s`"));
        }
        let snapshot = NewVmSnapshot { id, name, memory, quiesce_within_s };
        if !with.is_empty() {
            let kind = TaskKind::VmSnapshotCreate;
            return self.snapshot_group(caller, kind, |index| find_vm(index, named), with, &snapshot);
        }
        self.snapshot_wish(caller, named, TaskKind::VmSnapshotCreate, |all, vm, power| {
            all.check_new(&snapshot).map_err(told_problem)?;
            if memory {
                check_memory(vm, power)?;
            }
            if quiesce_within_s.is_some() {
                check_quiesce(vm, power)?;
            }
            Ok(SnapshotChange::Create { snapshot: snapshot.clone() })
        })
    }

    /// Requests that a VM that is off is reverted to a snapshot.
    pub fn revert_vm(
        &self,
        caller: &Caller,
        named: &str,
        snapshot: &str,
        wish: &RevertVm,
    ) -> Result<Task, Problem> {
        if wish.discard && wish.keep_as.is_some() {
            let message = "the present content is kept under a name, or discarded, and not both";
            return Err(problems::invalid(message).next("leave out `keep_as` or `discard`"));
        }
        let id = SnapshotId::random();
        if wish.tpm {
            let vm = self.inventory.read().find_vm(named).cloned();
            let vm = vm.ok_or_else(|| problems::not_found(ObjectKind::Vm, named))?;
            let what = format!("the return of the TPM of VM {} to an earlier state is asked for", vm.name);
            self.put_on_record(caller, &vm, &what, MustRecord::OfEncrypted)?;
        }
        self.snapshot_wish(caller, named, TaskKind::VmSnapshotRevert, |all, vm, power| {
            if power.is_on() {
                return Err(state(vm, power, "its disks cannot change under its guest").next(stop_it(vm)));
            }
            if power == PowerState::Suspended {
                return Err(suspended(vm, "its memory fits its disks as they are"));
            }
            let snapshot = snapshot_in(all, vm, snapshot)?;
            check_tpm(vm, snapshot, wish)?;
            let to = snapshot.id;
            let named = wish.keep_as.clone();
            let name = named.map_or_else(|| numbered(all, "before-revert"), Ok)?;
            let keep = NewVmSnapshot::of_disks(id, name);
            all.check_new(&keep).map_err(told_problem)?;
            let RevertVm { discard, disks_only, tpm, .. } = *wish;
            Ok(SnapshotChange::Revert { to, keep, discard, disks_only, tpm })
        })
    }

    /// Requests the deletion of a snapshot.
    pub fn delete_snapshot(&self, caller: &Caller, named: &str, snapshot: &str) -> Result<Task, Problem> {
        self.snapshot_wish(caller, named, TaskKind::VmSnapshotDelete, |all, vm, _| {
            let snapshot = snapshot_in(all, vm, snapshot)?;
            if vm.template == Some(snapshot.id) {
                let message = format!("snapshot {} is the content of template {}", snapshot.name, vm.name);
                return Err(problems::conflict(message).next(no_template_more(vm)));
            }
            Ok(SnapshotChange::Delete { snapshot: snapshot.id })
        })
    }

    fn snapshot_wish(
        &self,
        caller: &Caller,
        named: &str,
        kind: TaskKind,
        change: impl Fn(&VmSnapshots, &VmRecord, PowerState) -> Result<SnapshotChange, Problem>,
    ) -> Result<Task, Problem> {
        self.indexed_vm_wish(caller, named, kind, |index, vm, power| {
            volumes_settled(vm, power)?;
            let change = change(&snapshots_of(index, vm), vm, power)?;
            Ok(Work::ChangeSnapshots { change, failures: 0, makes_template: false })
        })
    }

    pub(super) fn change_the_snapshots(
        &self,
        step: &Step,
        change: &SnapshotChange,
        failures: u32,
        makes_template: bool,
    ) -> Result<Next, Failure> {
        let operated = self.operate(&step.task, &step.vm, step.seat, |datastore| {
            let spec = Box::new(step.vm.told(datastore)?);
            Some(OperationKind::ChangeSnapshots { spec, change: change.clone() })
        })?;
        let again = Work::ChangeSnapshots { change: change.clone(), failures: failures + 1, makes_template };
        let outcome = match operated {
            Operated::Done(outcome) => outcome,
            other => return self.not_changed(step, other, again, failures),
        };
        if let Some(wait) = self.look_first(step)? {
            return Ok(wait);
        }
        let volumes = OperationOutcome::into_volumes(outcome);
        let mut vm = VmRecord::clone(&step.vm.record);
        if let SnapshotChange::Revert { .. } = change {
            // A disk has the size that it had then.
            vm.hardware.keep_sizes(&volumes);
        }
        if let SnapshotChange::Create { snapshot } = change
            && makes_template
        {
            vm.template = Some(snapshot.id);
        }
        let mut draft = self.draft();
        if let SnapshotChange::Revert { tpm: true, .. } = change {
            let message = format!(
                "the TPM of VM {} is in the state that a snapshot has, with its counters and lock-outs, by {}",
                vm.name, step.task.task.by
            );
            draft = draft.event("vm.tpm_put_back", &vm.object(), message, Some(step.task.task.id));
        }
        let kept = keep_volumes(&self.inventory.read(), &mut vm, &volumes, draft);
        match kept {
            Ok(draft) => self.end(step, &vm, draft, End::Done),
            Err(problem) => self.end(step, &step.vm, self.draft(), End::Failed(problem)),
        }
    }
}

/// Checks that a snapshot of a VM can have its guest's memory.
fn check_memory(vm: &VmRecord, power: PowerState) -> Result<(), Problem> {
    if !matches!(power, PowerState::Running | PowerState::Paused) {
        let problem = state(vm, power, "a snapshot with memory is of a guest that runs");
        return Err(problem.next("make one without memory, or start the VM first"));
    }
    Ok(())
}

/// Checks that the state of a VM's TPM is put back by a revert that says so, and by no other.
fn check_tpm(vm: &VmRecord, snapshot: &protocol::VmSnapshot, wish: &RevertVm) -> Result<(), Problem> {
    let goes_back = vm.hardware.tpm && snapshot.memory.is_some() && !wish.disks_only;
    match (goes_back, wish.tpm) {
        (true, false) => Err(told_problem(snapshot.puts_tpm_back(vm.name.as_str()))),
        (false, true) => {
            let message = format!("this revert of VM {} puts no TPM's state back", vm.name);
            Err(problems::invalid(message).next("leave out `tpm`: --tpm"))
        }
        _ => Ok(()),
    }
}

/// Checks that the guest of a VM can freeze its file systems, or that there is none.
pub(super) fn check_quiesce(vm: &VmRecord, power: PowerState) -> Result<(), Problem> {
    let (why, first) = match power {
        PowerState::Paused => {
            ("its guest cannot freeze its file systems", format!("`strongroom vm resume {}` first", vm.name))
        }
        PowerState::Suspended => (
            "its disks lack what its guest has not written",
            format!("`strongroom vm start {}` first", vm.name),
        ),
        power if power.is_on() && !vm.hardware.board.guest_agent => {
            let message = format!("VM {} has no channel to an agent in its guest", vm.name);
            return Err(problems::conflict(message).next("make a snapshot that is not quiesced"));
        }
        _ => return Ok(()),
    };
    Err(state(vm, power, why).next(format!("{first}, or make a snapshot that is not quiesced")))
}

/// Returns the snapshots that a VM's host has reported. A part of a group that is not listed is
/// none, whatever the host reports.
pub(super) fn snapshots_of(index: &Index, vm: &VmRecord) -> VmSnapshots {
    let mut all = index.observed(vm.id).map(|seen| seen.snapshots.clone()).unwrap_or_default();
    all.list.retain(|snapshot| index.group(snapshot.id).is_none_or(|group| group.is_listed()));
    all
}

fn find_vm<'index>(index: &'index Index, named: &str) -> Result<&'index Row<VmRecord>, Problem> {
    index.find_vm(named).ok_or_else(|| problems::not_found(ObjectKind::Vm, named))
}

/// Converts the snapshots of a VM for callers.
pub(super) fn views(index: &Index, vm: &VmRecord) -> Vec<Snapshot> {
    let all = snapshots_of(index, vm);
    let view = |snapshot: &protocol::VmSnapshot| Snapshot {
        id: snapshot.id,
        name: snapshot.name.clone(),
        at_unix_seconds: snapshot.at_unix_seconds,
        volumes: snapshot.volumes.iter().map(ToString::to_string).collect(),
        parent: snapshot.parent,
        is_current: all.current == Some(snapshot.id),
        memory: snapshot.memory.as_ref().map(memory_view),
        quiesced: snapshot.quiesced,
        group: group_view(index, vm, snapshot.id),
    };
    all.list.iter().map(view).collect()
}

/// Returns the snapshot with this name or id.
pub(super) fn snapshot_in<'all>(
    all: &'all VmSnapshots,
    vm: &VmRecord,
    named: &str,
) -> Result<&'all protocol::VmSnapshot, Problem> {
    all.named(named).ok_or_else(|| {
        let list = if vm.holds_volume { "disk show" } else { "vm snapshot list" };
        Problem::new(ErrorCode::NotFound, format!("{} has no snapshot {named}", problems::called(vm)))
            .next(format!("`strongroom {list} {}` shows what there is", vm.name))
    })
}

/// This name, if no snapshot of the VM has it, or else one with a number after it.
pub(super) fn free_name(all: &VmSnapshots, wanted: &str) -> Result<SnapshotName, Problem> {
    let short = wanted.get(..NAME_BYTES_MAX.min(wanted.len())).unwrap_or(wanted);
    match all.named(short) {
        None => parsed(short),
        Some(_) => numbered(all, short.get(..NAME_BYTES_MAX - 4).unwrap_or(short)),
    }
}

/// A name that no snapshot of the VM has: this one, and a number.
pub(super) fn numbered(all: &VmSnapshots, beginning: &str) -> Result<SnapshotName, Problem> {
    let names = (1..).map(|number: u32| format!("{beginning}-{number}"));
    let free = names.take(all.list.len() + 1).find(|name| all.named(name).is_none()).unwrap_or_default();
    parsed(&free)
}

fn parsed(name: &str) -> Result<SnapshotName, Problem> {
    name.parse().map_err(|error: strongroom_types::NameError| problems::invalid(error.to_string()))
}

/// Converts a refusal by the rules that a host has too.
pub(super) fn told_problem(problem: protocol::Problem) -> Problem {
    Problem { next_step: problem.next_step, ..problems::conflict(problem.message) }
}
