//! Moves disks of VMs to other datastores of their hosts.
//!
//! ```text
//! off      wish -> the host copies the volume, complete and durable -> inventory: the disk is there
//!          -> the host takes the copy, and deletes the former volume -> inventory: that is done
//! running  wish -> the host copies most of it -> inventory: the disk may be there
//!          -> the host switches it, and says where it is -> inventory: the disk is there, and so on
//! ```
//!
//! Of a VM that is off, the record of the disk in the inventory is the decision, and it is one
//! transaction: what fails or is cancelled before it leaves the disk where it was, and the host
//! removes the copy; after it the host only takes the copy. So there is one volume at each moment,
//! and the inventory says where.
//!
//! While a VM runs, its guest would wait for that transaction. Its host decides then, durably, and
//! the inventory has before that the disk may be at either place (`moves_to`): the host is asked
//! until it has said where, and nothing starts the VM anywhere meanwhile. A VM whose host has not
//! taken the copy does not start, either; another request goes on.

use std::path::PathBuf;

use strongroom_api::task::{Task, TaskKind};
use strongroom_api::vm::{MoveDisk, PowerState};
use strongroom_api::{ErrorCode, Problem};
use strongroom_host::protocol::{DiskChange, DiskMove, DiskName, DiskPlace, MoveStep, OperationOutcome};
use strongroom_types::DatastoreId;
use strongroom_vm::DiskKind;

use super::Control;
use super::advance::{End, Next, Step, keep_volumes};
use super::datastores::speaks_of_switches;
use super::disks::{FAILURES_MAX, change_disk, disk_of};
use super::operate::Operated;
use super::place::find_datastore;
use super::rotate::without_unfinished_rotation;
use super::seal_disks::stays_off;
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
            if found.moves_to == Some(to.id) {
                return Ok(Work::SwitchDisk { disk: found.name, to: to.id, failures: 0 });
            }
            if found.moves_from.is_some() && vm.datastore_of(&found) == to.id {
                return Ok(Work::TakeDisk { disk: found.name, failures: 0 });
            }
            self.may_move_disk(index, vm, power, &found, to)?;
            stays_off(vm, power);
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
            PowerState::Running | PowerState::Paused => {
                speaks_of_switches(self.seat_of(vm)?).map_err(|problem| problem.next(stop_it(vm)))?;
            }
            PowerState::Suspended => return Err(suspended(vm, "its memory fits it as it is")),
            PowerState::Starting
            | PowerState::Stopping
            | PowerState::KeyUnavailable
            | PowerState::Unknown => {
                let why = "a disk moves to another datastore while its VM runs, or is off";
                return Err(state(vm, power, why).next("wait until it runs, or is off"));
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
        may_lie_in(index, vm, [disk], to)?;
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
        let copy = if speaks_of_switches(step.seat).is_ok() { MoveStep::CopyServed } else { MoveStep::Copy };
        let Some(change) = self.move_step(step, disk, from, to, copy) else {
            return self.turn(step, undo(Some(out_of_reach())), VmRecord::clone(&step.vm.record));
        };
        let operated = self.operate(&step.task, &step.vm, step.seat, |paths| {
            change_disk(step, paths, DiskChange::Move(change))
        })?;
        match operated {
            Operated::Done(Some(OperationOutcome::Copied)) => self.allow_switch(step, disk, to, failures),
            Operated::Done(_) => self.decide_move(step, disk, from, to),
            other => self.repeat_or_undo(step, other, &step.vm, failures, again, undo),
        }
    }

    /// Records that the host may decide that the disk is in its new datastore.
    fn allow_switch(
        &self,
        step: &Step,
        disk: &DiskName,
        to: DatastoreId,
        failures: u32,
    ) -> Result<Next, Failure> {
        if step.task.task.cancelling {
            let undo = Work::UndoMoveDisk { disk: disk.clone(), to, problem: None };
            return self.turn(step, undo, VmRecord::clone(&step.vm.record));
        }
        let switch = Work::SwitchDisk { disk: disk.clone(), to, failures };
        self.turn(step, switch, with_place(&step.vm, disk, |known| known.moves_to = Some(to)))
    }

    /// Asks the host until it has said where the disk is.
    pub(super) fn switch_the_disk(
        &self,
        step: &Step,
        disk: &DiskName,
        to: DatastoreId,
        failures: u32,
    ) -> Result<Next, Failure> {
        let found = step.vm.hardware.disk(disk.as_str()).filter(|found| found.moves_to == Some(to));
        let Some(found) = found else {
            return self.end(step, &step.vm, self.draft(), End::Done);
        };
        let from = step.vm.datastore_of(found);
        let Some(change) = self.move_step(step, disk, from, to, MoveStep::Switch) else {
            return self.end(step, &step.vm, self.draft(), End::Failed(out_of_reach()));
        };
        let operated = self.operate_unless_cancelled(step, &step.vm, |paths| {
            change_disk(step, paths, DiskChange::Move(change))
        })?;
        let again = Work::SwitchDisk { disk: disk.clone(), to, failures: failures + 1 };
        match operated {
            Operated::Pending(next) => Ok(next),
            Operated::Done(Some(OperationOutcome::Stays(problem))) => {
                let problem = problems::host_refused(step.seat.name.as_str(), &problem);
                self.disk_stays(step, disk, to, failures, problem)
            }
            Operated::Done(_) => self.decide_move(step, disk, from, to),
            Operated::Failed(problem) => self.ask_again_or_leave(step, found, again, failures, problem),
            Operated::Cancelled | Operated::Forgotten => {
                self.ask_again_or_leave(step, found, again, failures, forgotten())
            }
        }
    }

    /// The disk is where it was, as its host has said: it is copied again, or the move is undone.
    fn disk_stays(
        &self,
        step: &Step,
        disk: &DiskName,
        to: DatastoreId,
        failures: u32,
        problem: Problem,
    ) -> Result<Next, Failure> {
        let vm = with_place(&step.vm, disk, |known| known.moves_to = None);
        let disk = disk.clone();
        let work = if step.task.task.cancelling {
            Work::UndoMoveDisk { disk, to, problem: None }
        } else if failures < FAILURES_MAX {
            Work::MoveDisk { disk, to, failures: failures + 1 }
        } else {
            Work::UndoMoveDisk { disk, to, problem: Some(problem) }
        };
        self.turn(step, work, vm)
    }

    /// Asks the host again for what cannot be undone, or leaves that to another request.
    fn ask_again_or_leave(
        &self,
        step: &Step,
        disk: &DiskRecord,
        again: Work,
        failures: u32,
        problem: Problem,
    ) -> Result<Next, Failure> {
        if failures < FAILURES_MAX {
            return self.ask_host_again(step, again, format!("trying again: {problem}"));
        }
        let unsettled = unsettled_move(&self.inventory.read(), &step.vm, disk);
        let message = format!("{}: {}", unsettled.message, problem.message);
        self.end(step, &step.vm, self.draft(), End::Failed(Problem { message, ..unsettled }))
    }

    /// Records that the disk is in its new datastore. From here on nothing leads back.
    fn decide_move(
        &self,
        step: &Step,
        disk: &DiskName,
        from: DatastoreId,
        to: DatastoreId,
    ) -> Result<Next, Failure> {
        let vm = VmRecord::clone(&step.vm.record);
        let (draft, place) = {
            let index = self.inventory.read();
            let there = index.datastores.get(&to.to_string());
            let Some(there) = there.filter(|there| there.on(vm.host).is_some()) else {
                drop(index);
                // What its host has decided stays so.
                if vm.hardware.disk(disk.as_str()).is_some_and(|known| known.moves_to.is_some()) {
                    return self.end(step, &step.vm, self.draft(), End::Failed(out_of_reach()));
                }
                let undo = Work::UndoMoveDisk { disk: disk.clone(), to, problem: Some(out_of_reach()) };
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
        let vm = with_place(&vm, disk, |known| {
            (known.datastore, known.moves_from, known.moves_to) = (place, Some(from), None);
        });
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
            Operated::Cancelled | Operated::Forgotten => forgotten(),
        };
        let again = Work::TakeDisk { disk: disk.clone(), failures: failures + 1 };
        self.ask_again_or_leave(step, found, again, failures, problem)
    }

    fn disk_taken(
        &self,
        step: &Step,
        disk: &DiskName,
        outcome: Option<OperationOutcome>,
    ) -> Result<Next, Failure> {
        let mut vm = with_place(&step.vm, disk, |known| known.moves_from = None);
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

/// Checks that volumes of a VM can be moved to a datastore, wherever they are.
///
/// # Errors
/// What keeps them where they are.
pub(super) fn may_lie_in<'disk>(
    index: &Index,
    vm: &VmRecord,
    disks: impl IntoIterator<Item = &'disk DiskRecord>,
    to: &DatastoreRecord,
) -> Result<(), Problem> {
    let called = problems::called(vm);
    without_unfinished_rotation(vm)?;
    without_shared_layers(index, vm)?;
    if let Some(thick) = disks.into_iter().find(|disk| disk.thick && to.ceph.is_some()) {
        let message = format!(
            "{} of {called} has all of its space allocated, and nothing reserves space in datastore {}",
            thick.name, to.name
        );
        return Err(problems::conflict(message).next("name a datastore that is a directory"));
    }
    Ok(())
}

/// The VM with another place of a disk.
fn with_place(vm: &VmRecord, disk: &DiskName, put: impl Fn(&mut DiskRecord)) -> VmRecord {
    let mut vm = vm.clone();
    vm.hardware.disks.iter_mut().filter(|known| known.name == *disk).for_each(put);
    vm
}

/// Refuses what is not done to a VM with a disk that has not arrived where it moved, or of which
/// its host has not said where it is. That one asks its present host.
pub(super) fn refuse_of_unsettled(vm: &VmRecord, kind: TaskKind) -> Result<(), Problem> {
    let may_be_done = |disk: &DiskRecord| match kind {
        TaskKind::VmMove | TaskKind::VmMoveHost => disk.moves_to.is_none(),
        _ => matches!(
            kind,
            TaskKind::VmMoveDisk
                | TaskKind::VmDelete
                | TaskKind::VmStop
                | TaskKind::VmSnapshotSchedule
                | TaskKind::VmCryptoperiod
        ),
    };
    match vm.hardware.unsettled().filter(|disk| !may_be_done(disk)) {
        Some(disk) => Err(has_not_arrived(vm, disk, "DATASTORE")),
        None => Ok(()),
    }
}

fn unsettled_move(index: &Index, vm: &VmRecord, disk: &DiskRecord) -> Problem {
    let to = disk.moves_to.map(|to| name_of(index, to));
    has_not_arrived(vm, disk, &to.unwrap_or_else(|| index.datastore_name_of(vm, disk)))
}

fn has_not_arrived(vm: &VmRecord, disk: &DiskRecord, datastore: &str) -> Problem {
    let (vm, name) = (&vm.name, &disk.name);
    let message = match disk.moves_to {
        Some(_) => {
            format!("the host of VM {vm} has not said whether {name} is in the datastore that it moves to")
        }
        None => format!("{name} of VM {vm} has not arrived in the datastore that it moved to"),
    };
    Problem::new(ErrorCode::Conflict, message)
        .next(format!("go on with `strongroom vm disk move {vm} {name} --to {datastore}`"))
}

fn forgotten() -> Problem {
    problems::conflict("its host has forgotten it")
}

fn out_of_reach() -> Problem {
    problems::conflict("its host does not reach both datastores any more")
        .next("`strongroom datastore add-host` has a host use a datastore")
}

fn name_of(index: &Index, datastore: DatastoreId) -> String {
    let id = datastore.to_string();
    index.datastores.get(&id).map_or(id, |found| found.name.to_string())
}
