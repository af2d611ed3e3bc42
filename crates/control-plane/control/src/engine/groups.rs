//! Snapshots of several VMs, and of volumes that no VM has, at one instant.
//!
//! ```text
//! make   wish: the group is being made -> host: every VM has its part, durably, of one instant
//!             -> inventory: the group is made -> host: one VM after the other lists its part
//! undo   host: one VM after the other has no part -> the inventory has no group
//! ```
//!
//! The [`GroupRecord`] decides. As soon as it says that the group is made, it is never undone; and
//! callers see the snapshot in all VMs from the transaction on that ends the task. The snapshot has
//! the same id in all VMs, so a VM's host need not be believed about what is part of which group.
//! The task works on all VMs.

use strongroom_api::task::{Task, TaskKind};
use strongroom_api::vm::SnapshotGroup;
use strongroom_api::{ObjectKind, Problem, Reference};
use strongroom_host::protocol::{
    self, NewVmSnapshot, OperationKind, OperationOutcome, SnapshotChange, VolumeFacts,
};
use strongroom_types::{SnapshotId, VmId};
use strongroom_vm::limits::{GROUP_VMS_MAX, GROUP_VOLUMES_MAX};

use super::advance::{End, Next, Step, keep_volumes};
use super::disks::FAILURES_MAX;
use super::observe::Look;
use super::operate::Operated;
use super::seal_disks::refuse_of_unfinished;
use super::snapshots::{check_quiesce, snapshots_of, told_problem};
use super::templates::refuse_of_template;
use super::volume_changes::find;
use super::wishes::{Caller, idle, volumes_settled};
use super::{Control, RETRY_PAUSE};
use crate::inventory::{Draft, Failure, Index, Row};
use crate::problems;
use crate::records::{GroupMember, GroupRecord, GroupState, TaskRecord, VmRecord, Work};

/// How often a host may fail to have a VM list its part of a group that is made: with
/// [`RETRY_PAUSE`] some two minutes.
const KEEP_FAILURES_MAX: u32 = 60;

/// How far a group is undone.
#[derive(Clone, Copy)]
pub(super) struct Undone {
    /// How many VMs have no part any more.
    pub at: usize,
    /// How often the host has failed for the next one.
    pub failures: u32,
    /// Whether a VM may still have a part.
    pub is_left: bool,
}

impl Control {
    /// Requests a snapshot of several VMs or volumes: the first, and those that are named.
    ///
    /// # Errors
    /// [`Problem`].
    pub(super) fn snapshot_group(
        &self,
        caller: &Caller,
        kind: TaskKind,
        first: impl Fn(&Index) -> Result<&Row<VmRecord>, Problem>,
        with: &[Reference],
        snapshot: &NewVmSnapshot,
    ) -> Result<Task, Problem> {
        if snapshot.memory {
            let message = "a snapshot of several VMs has no memory of theirs";
            return Err(problems::invalid(message).next("leave out `memory` or `with`"));
        }
        if with.len() >= GROUP_VMS_MAX {
            let message = format!("with: a snapshot is of at most {GROUP_VMS_MAX} VMs and volumes");
            return Err(problems::invalid(message).next("make several snapshots"));
        }
        self.wish(caller, |index, id| {
            let first = first(index)?;
            let mut vms = vec![first];
            for name in with {
                vms.push(member_named(index, name.as_str())?);
            }
            check_members(&vms)?;
            for vm in &vms {
                let vm = idle(index, vm)?;
                refuse_of_template(vm, kind)?;
                refuse_of_unfinished(vm, kind)?;
                let power = self.power_of(index, vm);
                volumes_settled(vm, power)?;
                snapshots_of(index, vm).check_new(snapshot).map_err(|refused| {
                    let refused = told_problem(refused);
                    Problem { message: format!("{}: {}", problems::called(vm), refused.message), ..refused }
                })?;
                if snapshot.quiesce_within_s.is_some() {
                    check_quiesce(vm, power)?;
                }
            }
            let member = |vm: &&Row<VmRecord>| GroupMember { vm: vm.id, name: vm.name.clone() };
            let group = GroupRecord {
                snapshot: snapshot.id,
                name: snapshot.name.clone(),
                members: vms.iter().map(member).collect(),
                state: GroupState::Making,
            };
            let mut draft = self.draft().create(&group);
            for vm in &vms {
                draft = draft.replace(vm, &VmRecord { task: Some(id), ..VmRecord::clone(&vm.record) });
            }
            let task = self.task(id, kind, first.object(), caller);
            let work = Work::MakeGroup { snapshot: snapshot.clone(), failures: 0 };
            Ok((TaskRecord { vm: Some(first.id), work, ..task }, draft))
        })
    }

    /// Has the host make all parts, and then decides that the group is made.
    pub(super) fn make_group(
        &self,
        step: &Step,
        snapshot: &NewVmSnapshot,
        failures: u32,
    ) -> Result<Next, Failure> {
        let undo = |problem| {
            let (snapshot, vm) = (snapshot.clone(), VmRecord::clone(&step.vm.record));
            self.turn(step, Work::UndoGroup { snapshot, at: 0, failures: 0, is_left: false, problem }, vm)
        };
        let Some(Group { record, members }) = self.group_of(step, snapshot.id) else {
            return undo(Some(problems::conflict("a VM of the group is not there any more")));
        };
        let operated = self.operate(&step.task, &step.vm, step.seat, |_| {
            let told = members.iter().map(|vm| self.member_told(vm)).collect::<Option<Vec<_>>>()?;
            Some(OperationKind::SnapshotGroup { snapshot: snapshot.clone(), members: told })
        })?;
        let made = match operated {
            Operated::Pending(next) => return Ok(next),
            Operated::Done(Some(OperationOutcome::Group(made))) => made,
            Operated::Done(_) => {
                return undo(Some(problems::conflict("the host did not say what it has made")));
            }
            Operated::Failed(problem) => {
                let again = Work::MakeGroup { snapshot: snapshot.clone(), failures: failures + 1 };
                return match self.tries_once_more(step, &problem, again, failures)? {
                    Some(next) => Ok(next),
                    None => undo(Some(problem)),
                };
            }
            Operated::Cancelled | Operated::Forgotten => return undo(None),
        };
        let mut draft = self.draft();
        let mut first = VmRecord::clone(&step.vm.record);
        for member in &members {
            let Some(volumes) = made.iter().find(|made| made.vm == member.id) else {
                return undo(Some(problems::conflict(format!("VM {} has no part in it", member.name))));
            };
            draft = match self.with_facts(step, &mut first, member, &volumes.volumes, draft) {
                Ok(draft) => draft,
                Err(problem) => return undo(Some(problem)),
            };
        }
        // From here on the snapshot exists.
        let is_made = GroupRecord { state: GroupState::Made, ..GroupRecord::clone(&record) };
        draft = draft.replace(&record, &is_made);
        let names = members.iter().map(|vm| vm.name.as_str()).collect::<Vec<_>>().join(", ");
        let message = format!("{names} have snapshot {} of one instant", snapshot.name);
        draft = draft.event("vm.snapshot_group", &step.vm.object(), message, Some(step.task.task.id));
        let work = Work::KeepGroup { snapshot: snapshot.clone(), at: 0, failures: 0, problem: None };
        self.turn_with(step, work, first, draft)
    }

    /// Has the next VM list its part. Whatever happens, the group stays made.
    pub(super) fn keep_group(
        &self,
        step: &Step,
        snapshot: &NewVmSnapshot,
        at: usize,
        failures: u32,
        problem: Option<&Problem>,
    ) -> Result<Next, Failure> {
        let Some(Group { record, members }) = self.group_of(step, snapshot.id) else {
            return self.end(step, &step.vm, self.draft(), End::Done);
        };
        let Some(member) = members.get(at) else {
            let end = problem.map_or(End::Done, |problem| End::Failed(problem.clone()));
            return self.end_group(step, &members, self.with_state(&record, GroupState::Listed), end);
        };
        let operated = self.operate_unless_cancelled(step, member, |datastore| {
            let change = SnapshotChange::Keep { snapshot: snapshot.clone() };
            Some(OperationKind::ChangeSnapshots { spec: Box::new(member.told(datastore)?), change })
        })?;
        let keep = |at, failures, problem: Option<Problem>| Work::KeepGroup {
            snapshot: snapshot.clone(),
            at,
            failures,
            problem,
        };
        let earlier = || problem.cloned();
        let mut first = VmRecord::clone(&step.vm.record);
        match operated {
            Operated::Pending(next) => Ok(next),
            Operated::Done(outcome) => {
                let volumes = OperationOutcome::into_volumes(outcome);
                match self.with_facts(step, &mut first, member, &volumes, self.draft()) {
                    Ok(draft) => self.turn_with(step, keep(at + 1, 0, earlier()), first, draft),
                    Err(problem) => {
                        self.turn(step, keep(at + 1, 0, Some(problem)), VmRecord::clone(&step.vm.record))
                    }
                }
            }
            Operated::Failed(problem) if failures < KEEP_FAILURES_MAX => {
                tracing::info!(vm = %member.name, %problem, "trying again to have its snapshot listed");
                self.turn(step, keep(at, failures + 1, earlier()), first)?;
                Ok(Next::Wait(RETRY_PAUSE))
            }
            Operated::Failed(problem) => {
                let message =
                    format!("{} does not list its part: {}", problems::called(member), problem.message);
                self.turn(step, keep(at + 1, 0, Some(Problem { message, ..problem })), first)
            }
            // A task that is not cancelled goes on with the next attempt.
            Operated::Cancelled | Operated::Forgotten => {
                self.turn(step, keep(at, failures + 1, earlier()), first)
            }
        }
    }

    /// Has the next VM lose its part, if its host reports one.
    pub(super) fn undo_group(
        &self,
        step: &Step,
        snapshot: &NewVmSnapshot,
        Undone { at, failures, is_left }: Undone,
        problem: Option<&Problem>,
    ) -> Result<Next, Failure> {
        let undo = |at, failures, is_left| Work::UndoGroup {
            snapshot: snapshot.clone(),
            at,
            failures,
            is_left,
            problem: problem.cloned(),
        };
        let vm = VmRecord::clone(&step.vm.record);
        let end = || problem.map_or(End::Cancelled, |problem| End::Failed(problem.clone()));
        let Some(record) = self.inventory.read().group(snapshot.id).cloned() else {
            return self.end_group(step, &[], self.draft(), end());
        };
        let members = self.members_of(step, &record);
        let Some(member) = members.get(at) else {
            let draft = match is_left {
                true => self.with_state(&record, GroupState::Void),
                false => self.draft().remove(&record),
            };
            return self.end_group(step, &members, draft, end());
        };
        if step.task.operation.is_none() {
            let seen = match self.look_at(step.seat, member.id)? {
                Look::Seen(seen) => seen,
                Look::Unanswered(reason) => {
                    self.note(&step.task, reason)?;
                    return Ok(Next::Wait(RETRY_PAUSE));
                }
            };
            if !seen.is_some_and(|seen| may_have_part(&seen.snapshots, snapshot.id)) {
                return self.turn(step, undo(at + 1, 0, is_left), vm);
            }
        }
        let operated = self.operate_unless_cancelled(step, member, |datastore| {
            let change = SnapshotChange::Delete { snapshot: snapshot.id };
            Some(OperationKind::ChangeSnapshots { spec: Box::new(member.told(datastore)?), change })
        })?;
        let mut first = vm.clone();
        match operated {
            Operated::Pending(next) => Ok(next),
            Operated::Done(outcome) => {
                let volumes = OperationOutcome::into_volumes(outcome);
                match self.with_facts(step, &mut first, member, &volumes, self.draft()) {
                    Ok(draft) => self.turn_with(step, undo(at + 1, 0, is_left), first, draft),
                    Err(_) => self.turn(step, undo(at + 1, 0, true), vm),
                }
            }
            Operated::Failed(failure) if failures < FAILURES_MAX => {
                tracing::info!(vm = %member.name, %failure, "trying again to remove its part of a group");
                self.turn(step, undo(at, failures + 1, is_left), vm)?;
                Ok(Next::Wait(RETRY_PAUSE))
            }
            // Its next change removes it.
            Operated::Failed(_) | Operated::Cancelled | Operated::Forgotten => {
                self.turn(step, undo(at + 1, 0, true), vm)
            }
        }
    }

    fn with_state(&self, group: &Row<GroupRecord>, state: GroupState) -> Draft {
        self.draft().replace(group, &GroupRecord { state, ..GroupRecord::clone(group) })
    }

    /// Ends the task, and releases all its VMs. What their hosts report last is known then.
    fn end_group(
        &self,
        step: &Step,
        members: &[Row<VmRecord>],
        draft: Draft,
        end: End,
    ) -> Result<Next, Failure> {
        let mut draft = draft;
        for member in members {
            if let Look::Unanswered(reason) = self.look_at(step.seat, member.id)? {
                self.note(&step.task, reason)?;
                return Ok(Next::Wait(RETRY_PAUSE));
            }
            if member.id != step.vm.id {
                draft = draft.replace(member, &VmRecord { task: None, ..VmRecord::clone(&member.record) });
            }
        }
        let next = self.end(step, &step.vm, draft, end)?;
        members.iter().for_each(|member| self.hasten_schedule(member.id));
        Ok(next)
    }

    /// Forgets groups of which no VM has a part any more.
    pub(super) fn forget_groups(&self) -> Result<(), Failure> {
        let draft = {
            let index = self.inventory.read();
            let may_have = |group: &GroupRecord, vm: VmId| {
                let Some(vm) = index.vm(vm) else { return false };
                let seen = index.observed(vm.id);
                vm.task.is_some() || seen.is_none_or(|seen| may_have_part(&seen.snapshots, group.snapshot))
            };
            let is_over = |group: &&Row<GroupRecord>| {
                matches!(group.state, GroupState::Listed | GroupState::Void)
                    && !group.members.iter().any(|member| may_have(group, member.vm))
            };
            index.groups.iter().filter(is_over).fold(self.draft(), |draft, group| draft.remove(group))
        };
        match self.inventory.commit(draft) {
            Err(Failure::Raced) => Ok(()),
            committed => committed,
        }
    }

    /// The group, with all of its VMs; `None` if one is gone.
    fn group_of(&self, step: &Step, snapshot: SnapshotId) -> Option<Group> {
        let record = self.inventory.read().group(snapshot).cloned()?;
        let members = self.members_of(step, &record);
        (members.len() == record.members.len()).then_some(Group { record, members })
    }

    /// The VMs of a group that this task works on.
    fn members_of(&self, step: &Step, group: &GroupRecord) -> Vec<Row<VmRecord>> {
        let index = self.inventory.read();
        let held = group.members.iter().filter_map(|member| index.vm(member.vm));
        held.filter(|vm| vm.task == Some(step.task.task.id)).cloned().collect()
    }

    fn member_told(&self, vm: &VmRecord) -> Option<protocol::GroupMember> {
        let spec = vm.told(&self.datastore_paths(vm)?)?;
        Some(protocol::GroupMember { spec, generation: vm.generation(), grants: Vec::new() })
    }

    /// Records the volumes of a VM of the group. `first` is the one that the task's transactions
    /// replace anyway.
    fn with_facts(
        &self,
        step: &Step,
        first: &mut VmRecord,
        member: &Row<VmRecord>,
        volumes: &[VolumeFacts],
        draft: Draft,
    ) -> Result<Draft, Problem> {
        let index = self.inventory.read();
        if member.id == step.vm.id {
            return keep_volumes(&index, first, volumes, draft);
        }
        let mut changed = VmRecord::clone(&member.record);
        Ok(keep_volumes(&index, &mut changed, volumes, draft)?.replace(member, &changed))
    }
}

/// A group, with its VMs in the order of its record.
struct Group {
    record: Row<GroupRecord>,
    members: Vec<Row<VmRecord>>,
}

/// The VM, or the holder of the volume, with this name or id.
fn member_named<'index>(index: &'index Index, named: &str) -> Result<&'index Row<VmRecord>, Problem> {
    let held = || find(index, named).ok().map(|found| found.owner).filter(|owner| owner.holds_volume);
    index.find_any(named).or_else(held).ok_or_else(|| problems::not_found(ObjectKind::Vm, named))
}

fn check_members(vms: &[&Row<VmRecord>]) -> Result<(), Problem> {
    for (at, vm) in vms.iter().enumerate() {
        if vms[..at].iter().any(|other| other.id == vm.id) {
            return Err(problems::invalid(format!("{} is named twice", problems::called(vm))));
        }
        if vm.host != vms[0].host {
            let (one, other) = (problems::called(vms[0]), problems::called(vm));
            let message = format!("{one} and {other} are on different hosts, which have no common instant");
            return Err(problems::invalid(message).next("make a snapshot for each host"));
        }
    }
    let volumes: usize = vms.iter().map(|vm| vm.hardware.disks.len()).sum();
    if volumes > GROUP_VOLUMES_MAX {
        let message = format!("they have {volumes} disks, and a snapshot is of at most {GROUP_VOLUMES_MAX}");
        return Err(problems::invalid(message).next("make several snapshots"));
    }
    Ok(())
}

/// Whether a VM may have a part of a group, as its host reports.
fn may_have_part(all: &protocol::VmSnapshots, snapshot: SnapshotId) -> bool {
    let is_made = match &all.changing {
        Some(SnapshotChange::Prepare { snapshot: part } | SnapshotChange::Keep { snapshot: part }) => {
            part.id == snapshot
        }
        Some(SnapshotChange::Delete { snapshot: part }) => *part == snapshot,
        Some(SnapshotChange::Create { .. } | SnapshotChange::Revert { .. }) | None => false,
    };
    is_made || all.get(snapshot).is_some()
}

/// The other VMs of a VM's snapshot, for callers.
pub(super) fn group_view(index: &Index, vm: &VmRecord, snapshot: SnapshotId) -> Option<SnapshotGroup> {
    let group = index.group(snapshot)?;
    let has_it = |member: &&GroupMember| {
        let there = index.vm(member.vm).and_then(|vm| index.observed(vm.id));
        there.is_some_and(|seen| may_have_part(&seen.snapshots, snapshot))
    };
    let others = group.members.iter().filter(|member| member.vm != vm.id);
    let (with, without): (Vec<_>, Vec<_>) = others.partition(has_it);
    let names = |members: Vec<&GroupMember>| members.into_iter().map(|member| member.name.clone()).collect();
    Some(SnapshotGroup { with: names(with), deleted: names(without) })
}
