//! Moves disks of VMs that are off to other datastores of their hosts.
//!
//! ```text
//! wish -> the host copies the volume, complete and durable -> inventory: the disk is there
//!      -> the host takes the copy, and deletes the former volume -> inventory: that is done
//! ```
//!
//! The record of the disk in the inventory is the decision, and it is one transaction: what fails
//! or is cancelled before it leaves the disk where it was, and the host removes the copy; after it
//! the host only takes the copy. So there is one volume at each moment, and the inventory says
//! where. A VM whose host has not taken the copy does not start; another request goes on.

use std::path::PathBuf;

use strongroom_api::task::{Task, TaskKind};
use strongroom_api::vm::{DesiredPower, MoveDisk, PowerState};
use strongroom_api::{ErrorCode, Problem};
use strongroom_host::protocol::{DiskChange, DiskMove, DiskName, DiskPlace, MoveStep, OperationOutcome};
use strongroom_types::DatastoreId;
use strongroom_vm::DiskKind;

use super::Control;
use super::advance::{End, Next, Step, keep_volumes};
use super::disks::{FAILURES_MAX, change_disk, disk_of};
use super::operate::Operated;
use super::place::find_datastore;
use super::templates::without_shared_layers;
use super::wishes::{Caller, state, stop_it, suspended};
use crate::inventory::{Failure, Index};
use crate::problems;
use crate::records::{DatastoreRecord, DiskRecord, VmRecord, Work};

impl Control {
    /// Requests that a disk of a VM moves to another datastore.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn move_disk(
        &self,
        caller: &Caller,
        named: &str,
        disk: &str,
        wish: &MoveDisk,
    ) -> Result<Task, Problem> {
        self.indexed_vm_wish(caller, named, TaskKind::VmMoveDisk, |index, vm, power| {
            let found = disk_of(vm, disk)?.clone();
            let to = find_datastore(index, Some(wish.datastore.as_str()))?;
            if found.moves_from.is_some() && vm.datastore_of(&found) == to.id {
                return Ok(Work::TakeDisk { disk: found.name, failures: 0 });
            }
            self.may_move_disk(index, vm, power, &found, to)?;
            vm.desired = DesiredPower::Stopped;
            Ok(Work::MoveDisk { disk: found.name, to: to.id, failures: 0 })
        })
    }

    /// Whether all of a disk can be in a datastore, and its VM can be without it meanwhile.
    fn may_move_disk(
        &self,
        index: &Index,
        vm: &VmRecord,
        power: PowerState,
        disk: &DiskRecord,
        to: &DatastoreRecord,
    ) -> Result<(), Problem> {
        let (name, called) = (&disk.name, problems::called(vm));
        if let Some(unsettled) = vm.hardware.unsettled() {
            return Err(unsettled_move(index, vm, unsettled));
        }
        match power {
            PowerState::Stopped | PowerState::Crashed => {}
            PowerState::Suspended => return Err(suspended(vm, "its memory fits it as it is")),
            PowerState::Running
            | PowerState::Paused
            | PowerState::Starting
            | PowerState::Stopping
            | PowerState::KeyUnavailable
            | PowerState::Unknown => {
                let why = "a disk moves to another datastore while its VM is off";
                return Err(state(vm, power, why).next(stop_it(vm)));
            }
        }
        if disk.kind == DiskKind::Swap {
            let message = format!("{name} of {called} is a swap disk, which is made at each start");
            return Err(problems::conflict(message).next("remove it, and add another one"));
        }
        if vm.datastore_of(disk) == to.id {
            let message = format!("{name} of {called} is in datastore {} already", to.name);
            return Err(problems::conflict(message).next("there is nothing to do"));
        }
        if vm.hardware.next_key().is_some() {
            let message = format!("a rotation of the key of {called} is not finished");
            let next = format!("finish it first: `strongroom vm key rotate {}`", vm.name);
            return Err(problems::conflict(message).next(next));
        }
        without_shared_layers(index, vm)?;
        if disk.thick && to.ceph.is_some() {
            let message = format!(
                "{name} of {called} has all of its space allocated, and nothing reserves space in datastore {}",
                to.name
            );
            return Err(problems::conflict(message).next("name a datastore that is a directory"));
        }
        self.reaches(self.seat_of(vm)?, to)
    }

    pub(super) fn move_the_disk(
        &self,
        step: &Step,
        disk: &DiskName,
        to: DatastoreId,
        failures: u32,
    ) -> Result<Next, Failure> {
        let Some(found) = step.vm.hardware.disk(disk.as_str()) else {
            let problem = problems::no_such_disk(&step.vm.name, disk.as_str());
            return self.end(step, &step.vm, self.draft(), End::Failed(problem));
        };
        let from = step.vm.datastore_of(found);
        let again = || Work::MoveDisk { disk: disk.clone(), to, failures: failures + 1 };
        let undo = |problem| Work::UndoMoveDisk { disk: disk.clone(), to, problem };
        let Some(change) = self.move_step(step, disk, from, to, MoveStep::Copy) else {
            return self.turn(step, undo(Some(out_of_reach())), VmRecord::clone(&step.vm.record));
        };
        let operated = self.operate(&step.task, &step.vm, step.seat, |paths| {
            change_disk(step, paths, DiskChange::Move(change))
        })?;
        match operated {
            Operated::Done(_) => self.decide_move(step, disk, from, to),
            other => self.repeat_or_undo(step, other, &step.vm, failures, again, undo),
        }
    }

    /// Records that the disk is in its new datastore. From here on nothing leads back.
    fn decide_move(
        &self,
        step: &Step,
        disk: &DiskName,
        from: DatastoreId,
        to: DatastoreId,
    ) -> Result<Next, Failure> {
        let mut vm = VmRecord::clone(&step.vm.record);
        let (draft, place) = {
            let index = self.inventory.read();
            let there = index.datastores.get(&to.to_string());
            let Some(there) = there.filter(|there| there.on(vm.host).is_some()) else {
                let undo = Work::UndoMoveDisk { disk: disk.clone(), to, problem: Some(out_of_reach()) };
                drop(index);
                return self.turn(step, undo, vm);
            };
            let message = format!(
                "{disk} of {} is in datastore {} from now on, and no more in {}",
                problems::called(&vm),
                there.name,
                name_of(&index, from)
            );
            let draft = self.draft().event("vm.disk_moved", &vm.object(), message, Some(step.task.task.id));
            // Written again, so that a request that takes it away at the same time looks once more.
            (draft.replace(there, &there.record), Some(to).filter(|to| *to != vm.datastore))
        };
        for known in vm.hardware.disks.iter_mut().filter(|known| known.name == *disk) {
            (known.datastore, known.moves_from) = (place, Some(from));
        }
        self.turn_with(step, Work::TakeDisk { disk: disk.clone(), failures: 0 }, vm, draft)
    }

    /// Nothing leads back from here, so neither a cancellation nor a failure ends anywhere else.
    pub(super) fn take_the_disk(&self, step: &Step, disk: &DiskName, failures: u32) -> Result<Next, Failure> {
        let found = step.vm.hardware.disk(disk.as_str());
        let Some((found, from)) = found.and_then(|found| Some((found, found.moves_from?))) else {
            return self.end(step, &step.vm, self.draft(), End::Done);
        };
        let Some(change) = self.move_step(step, disk, from, step.vm.datastore_of(found), MoveStep::Take)
        else {
            return self.end(step, &step.vm, self.draft(), End::Failed(out_of_reach()));
        };
        let operated = self.operate_unless_cancelled(step, &step.vm, |paths| {
            change_disk(step, paths, DiskChange::Move(change))
        })?;
        let problem = match operated {
            Operated::Pending(next) => return Ok(next),
            Operated::Done(outcome) => return self.disk_taken(step, disk, outcome),
            Operated::Failed(problem) => problem,
            Operated::Cancelled | Operated::Forgotten => problems::conflict("its host has forgotten it"),
        };
        if failures < FAILURES_MAX {
            let again = Work::TakeDisk { disk: disk.clone(), failures: failures + 1 };
            return self.ask_host_again(step, again, format!("trying again: {problem}"));
        }
        let unsettled = unsettled_move(&self.inventory.read(), &step.vm, found);
        let message = format!("{}: {}", unsettled.message, problem.message);
        self.end(step, &step.vm, self.draft(), End::Failed(Problem { message, ..unsettled }))
    }

    fn disk_taken(
        &self,
        step: &Step,
        disk: &DiskName,
        outcome: Option<OperationOutcome>,
    ) -> Result<Next, Failure> {
        let mut vm = VmRecord::clone(&step.vm.record);
        let moved = vm.hardware.disks.iter_mut().filter(|known| known.name == *disk);
        moved.for_each(|known| known.moves_from = None);
        let volumes = OperationOutcome::into_volumes(outcome);
        let kept = keep_volumes(&self.inventory.read(), &mut vm, &volumes, self.draft());
        match kept {
            Ok(draft) => self.end(step, &vm, draft, End::Done),
            Err(problem) => self.end(step, &step.vm, self.draft(), End::Failed(problem)),
        }
    }

    /// What cannot be removed now is removed by the next move there, or with the VM.
    pub(super) fn undo_move_disk(
        &self,
        step: &Step,
        disk: &DiskName,
        to: DatastoreId,
        problem: Option<&Problem>,
    ) -> Result<Next, Failure> {
        let from = step.vm.hardware.disk(disk.as_str()).map(|found| step.vm.datastore_of(found));
        let left = match from.and_then(|from| self.move_step(step, disk, from, to, MoveStep::Abandon)) {
            None => Some(out_of_reach()),
            Some(change) => {
                let operated = self.operate_unless_cancelled(step, &step.vm, |paths| {
                    change_disk(step, paths, DiskChange::Move(change))
                })?;
                match operated {
                    Operated::Pending(next) => return Ok(next),
                    Operated::Done(_) | Operated::Cancelled | Operated::Forgotten => None,
                    Operated::Failed(left) => Some(left),
                }
            }
        };
        let mut draft = self.draft();
        if let Some(left) = left {
            let name = name_of(&self.inventory.read(), to);
            let message = format!("a part of {disk} is left in datastore {name}: {left}");
            draft = draft.event("vm.disk_left", &step.vm.object(), message, Some(step.task.task.id));
        }
        let end = problem.map_or(End::Cancelled, |problem| End::Failed(problem.clone()));
        self.end(step, &step.vm, draft, end)
    }

    /// A step for the VM's host; `None` if that does not reach both datastores.
    fn move_step(
        &self,
        step: &Step,
        disk: &DiskName,
        from: DatastoreId,
        to: DatastoreId,
        what: MoveStep,
    ) -> Option<DiskMove> {
        let index = self.inventory.read();
        let place = |datastore: DatastoreId| {
            let mount = index.datastores.get(&datastore.to_string())?.on(step.vm.host)?;
            let place = DiskPlace { datastore, path: PathBuf::from(&mount.path) };
            Some(Some(place).filter(|_| datastore != step.vm.datastore))
        };
        Some(DiskMove { disk: disk.clone(), from: place(from)?, to: place(to)?, step: what })
    }
}

/// Refuses what is not done to a VM with a disk that has not arrived where it moved.
pub(super) fn refuse_of_unsettled(vm: &VmRecord, kind: TaskKind) -> Result<(), Problem> {
    let may_be_done = matches!(
        kind,
        TaskKind::VmMoveDisk
            | TaskKind::VmDelete
            | TaskKind::VmStop
            | TaskKind::VmMove
            | TaskKind::VmMoveHost
            | TaskKind::VmSnapshotSchedule
            | TaskKind::VmCryptoperiod
    );
    match vm.hardware.unsettled().filter(|_| !may_be_done) {
        Some(disk) => Err(has_not_arrived(vm, disk, "DATASTORE")),
        None => Ok(()),
    }
}

fn unsettled_move(index: &Index, vm: &VmRecord, disk: &DiskRecord) -> Problem {
    has_not_arrived(vm, disk, &index.datastore_name_of(vm, disk))
}

fn has_not_arrived(vm: &VmRecord, disk: &DiskRecord, datastore: &str) -> Problem {
    let (vm, disk) = (&vm.name, &disk.name);
    let message = format!("{disk} of VM {vm} has not arrived in the datastore that it moved to");
    Problem::new(ErrorCode::Conflict, message)
        .next(format!("go on with `strongroom vm disk move {vm} {disk} --to {datastore}`"))
}

fn out_of_reach() -> Problem {
    problems::conflict("its host does not reach both datastores any more")
        .next("`strongroom datastore add-host` has a host use a datastore")
}

fn name_of(index: &Index, datastore: DatastoreId) -> String {
    let id = datastore.to_string();
    index.datastores.get(&id).map_or(id, |found| found.name.to_string())
}
