//! A VM that is off moves to a host that does not reach its datastore: with its volumes.
//!
//! ```text
//! fetch   next host: it fetches the volumes from the former one, and has a copy of the VM
//! leave   former host: it has given the VM up, durably -> inventory: it is of the next host, and in its datastore
//! arrive  next host: it has the VM, durably -> the inventory has its state, and knows its volumes there
//! remove  former host: what it had of the VM is deleted
//! ```
//!
//! What fails, or is cancelled, before the next host has the VM leads back: the copy is deleted,
//! and the former host has the VM, whose volumes nobody has changed. What cannot be deleted is
//! left, and an event says where.

use std::ops::ControlFlow;

use strongroom_api::{ErrorCode, Problem};
use strongroom_host::protocol::{
    HandoverId, MigrationSettings, OperationKind, OperationOutcome, Ticket, TicketRequest, VolumeFacts,
    VolumesElsewhere,
};
use strongroom_types::DatastoreId;
use uuid::Uuid;

use super::advance::{End, Next, Step, keep_volumes};
use super::datastores::speaks_of_fetched_vms;
use super::disk_moves::may_lie_in;
use super::disks::failures_max;
use super::live_moves::{limit_of, without_address};
use super::moves::{NotAwaited, next_generation};
use super::operate::Operated;
use super::tickets::MustRecord;
use super::wishes::Caller;
use super::{Control, HostSeat, RETRY_PAUSE};
use crate::host::HostError;
use crate::inventory::{Failure, Index};
use crate::problems;
use crate::records::{Carried, CarriedStage, DatastoreRecord, VmRecord, Work};

/// Checks that a VM that is off can move with its volumes.
///
/// # Errors
/// What keeps it where it is.
pub(super) fn may_be_carried(
    index: &Index,
    vm: &VmRecord,
    former: &HostSeat,
    next: &HostSeat,
    to: &DatastoreRecord,
) -> Result<(), Problem> {
    let called = problems::called(vm);
    speaks_of_fetched_vms(former)?;
    speaks_of_fetched_vms(next)?;
    if let Some(disk) = vm.disk_elsewhere() {
        let message = format!("{} of {called} is in another datastore than the VM", disk.name);
        return Err(problems::conflict(message).next(format!(
            "move it back first: `strongroom vm disk move {} {} --to {}`",
            vm.name,
            disk.name,
            index.datastore_name(vm)
        )));
    }
    if vm.hardware.tpm {
        let message = format!("{called} has a TPM, whose state is in a directory of its host");
        return Err(problems::conflict(message).next("move it between hosts that share its datastore"));
    }
    may_lie_in(index, vm, &vm.hardware.disks, to)
}

impl Carried {
    fn next(&self, stage: CarriedStage) -> Work {
        Work::Carry(Box::new(Self { stage, failures: 0, ..self.clone() }))
    }

    fn after_failure(&self) -> Work {
        Work::Carry(Box::new(Self { failures: self.failures + 1, ..self.clone() }))
    }
}

impl Control {
    /// Advances a move with volumes.
    pub(super) fn carry(&self, step: &Step, carried: &Carried) -> Result<Next, Failure> {
        match &carried.stage {
            CarriedStage::Fetch => self.fetch_volumes(step, carried),
            CarriedStage::Leave { volumes } => self.leave_with_volumes(step, carried, volumes),
            CarriedStage::Arrive { volumes } => self.arrive_with_volumes(step, carried, volumes),
            CarriedStage::RemoveFormer => self.remove_former_copy(step, carried),
            CarriedStage::Return { problem } => self.return_with_volumes(step, carried, problem.as_ref()),
            CarriedStage::RemoveCopy { problem } => self.remove_next_copy(step, carried, problem.as_ref()),
        }
    }

    fn fetch_volumes(&self, step: &Step, carried: &Carried) -> Result<Next, Failure> {
        let back = |problem| carried.next(CarriedStage::RemoveCopy { problem });
        let same = || VmRecord::clone(&step.vm.record);
        let there = self.at_next(step, carried);
        let Some(target) = self.seat(carried.to) else {
            return self.turn(step, back(Some(host_gone())), same());
        };
        match self.volumes_may_pass(step, &there, target)? {
            None => {}
            Some(ControlFlow::Continue(next)) => return Ok(next),
            Some(ControlFlow::Break(problem)) => return self.turn(step, back(Some(problem)), same()),
        }
        let mut trouble = None;
        let operated = self.operate(&step.task, &there, target, |paths| {
            let spec = Box::new(there.told(paths)?);
            match self.volumes_at_former(step) {
                Ok(from) => {
                    let (handover, bytes_per_second) = (carried.handover, carried.bytes_per_second);
                    Some(OperationKind::Fetch { spec, handover, from: Box::new(from), bytes_per_second })
                }
                Err(problem) => {
                    trouble = Some(problem);
                    None
                }
            }
        })?;
        match (operated, trouble) {
            (Operated::Pending(next), _) => Ok(next),
            (Operated::Done(outcome), _) => {
                let volumes = OperationOutcome::into_volumes(outcome);
                self.turn(step, carried.next(CarriedStage::Leave { volumes }), same())
            }
            // The next host has not heard of it.
            (_, Some(problem)) if problem.code == ErrorCode::HostUnavailable => {
                self.note(&step.task, format!("waiting: {}", problem.message))?;
                Ok(Next::Wait(RETRY_PAUSE))
            }
            (Operated::Failed(_), Some(problem)) => self.turn(step, back(Some(problem)), same()),
            (Operated::Failed(problem), None) => {
                if step.task.task.cancelling || carried.failures >= failures_max(problem.code) {
                    return self.turn(step, back(Some(problem)), same());
                }
                // It goes on with what has arrived.
                self.ask_host_again(step, carried.after_failure(), format!("trying again: {problem}"))
            }
            (Operated::Cancelled | Operated::Forgotten, _) => self.turn(step, back(None), same()),
        }
    }

    /// Looks, before a host fetches the volumes of a VM, whether it still takes it, and puts it on
    /// record. Returns what is done instead: something is waited for, or the VM stays where it is.
    pub(super) fn volumes_may_pass(
        &self,
        step: &Step,
        there: &VmRecord,
        target: &HostSeat,
    ) -> Result<Option<ControlFlow<Problem, Next>>, Failure> {
        if step.task.operation.is_some() || step.task.task.cancelling {
            return Ok(None);
        }
        match self.is_awaited(there, target.id) {
            Ok(()) => {}
            Err(NotAwaited::Refused(problem)) => return Ok(Some(ControlFlow::Break(problem))),
            Err(NotAwaited::Unanswered(problem)) => {
                self.note(&step.task, problem.message)?;
                return Ok(Some(ControlFlow::Continue(Next::Wait(RETRY_PAUSE))));
            }
        }
        // Guest data passes to another machine.
        let what = format!("the volumes of VM {} pass to host {}", step.vm.name, target.name);
        let by = Caller::machine(&step.task.task.by);
        Ok(self.put_on_record(&by, &step.vm, &what, MustRecord::OfEncrypted).err().map(ControlFlow::Break))
    }

    /// Where the former host gives the volumes, once, within seconds.
    pub(super) fn volumes_at_former(&self, step: &Step) -> Result<VolumesElsewhere, Problem> {
        let (source, vm) = (step.seat, &step.vm);
        let request = TicketRequest::Volumes { spec: self.told(vm)?, grants: self.log_grants(vm)? };
        let told = source.host.ticket(vm.id, &request).map_err(|error| match error {
            HostError::Unreachable(_) => {
                let message = format!("host {}, which has the volumes: {error}", source.name);
                Problem::new(ErrorCode::HostUnavailable, message)
            }
            error @ HostError::Refused(_) => problems::host(source.name.as_str(), &error),
        })?;
        reached_at(source, told)
    }

    fn leave_with_volumes(
        &self,
        step: &Step,
        carried: &Carried,
        volumes: &[VolumeFacts],
    ) -> Result<Next, Failure> {
        let same = || VmRecord::clone(&step.vm.record);
        let was_asked = step.task.operation.is_some();
        let operated = self.operate(&step.task, &step.vm, step.seat, |paths| {
            let spec = Box::new(step.vm.told(paths)?);
            Some(OperationKind::Leave { spec, handover: carried.handover })
        })?;
        let back = |problem| carried.next(CarriedStage::RemoveCopy { problem });
        match operated {
            Operated::Pending(next) => Ok(next),
            Operated::Done(_) => self.decide_carried(step, carried, volumes),
            // It did nothing, for example because the VM runs.
            Operated::Failed(problem) if problem.code == ErrorCode::Conflict => {
                self.turn(step, back(Some(problem)), same())
            }
            Operated::Failed(problem) => self.give_back_carried(step, carried, Some(problem)),
            Operated::Cancelled => self.turn(step, back(None), same()),
            Operated::Forgotten if !was_asked => self.turn(step, back(None), same()),
            // The host may have given it up before it forgot the operation.
            Operated::Forgotten => self.give_back_carried(step, carried, None),
        }
    }

    /// Records that the VM is the next host's.
    fn decide_carried(
        &self,
        step: &Step,
        carried: &Carried,
        volumes: &[VolumeFacts],
    ) -> Result<Next, Failure> {
        let vm = self.now_on(carried.to, next_generation(&step.vm));
        let vm = VmRecord { datastore: carried.to_datastore, ..vm };
        let draft = {
            let index = self.inventory.read();
            let there = index.datastores.get(&carried.to_datastore.to_string());
            there.filter(|there| there.on(carried.to).is_some()).map(|there| {
                let message = format!(
                    "host {} has given {} up, which is of host {} from now on, and in datastore {} with its volumes",
                    step.seat.name,
                    problems::called(&vm),
                    self.name_of(carried.to),
                    there.name
                );
                let draft = self.draft().event("vm.left", &vm.object(), message, Some(step.task.task.id));
                // Written again, so that a request that takes it away meanwhile looks once more.
                draft.replace(there, &there.record)
            })
        };
        let Some(draft) = draft else {
            let problem = problems::conflict("the next host does not reach the datastore any more");
            return self.give_back_carried(step, carried, Some(problem));
        };
        let stage = CarriedStage::Arrive { volumes: volumes.to_vec() };
        self.turn_with(step, carried.next(stage), vm, draft)
    }

    fn arrive_with_volumes(
        &self,
        step: &Step,
        carried: &Carried,
        volumes: &[VolumeFacts],
    ) -> Result<Next, Failure> {
        let operated = self.operate(&step.task, &step.vm, step.seat, |paths| {
            let (spec, handover) = (Box::new(step.vm.told(paths)?), Some(carried.handover));
            Some(OperationKind::Arrive { spec, handover })
        })?;
        match operated {
            Operated::Pending(next) => Ok(next),
            Operated::Done(_) => {
                if let Some(wait) = self.look_first(step)? {
                    return Ok(wait);
                }
                // From here on nothing leads back to the former volumes, which are older.
                let mut vm = VmRecord::clone(&step.vm.record);
                let kept = keep_volumes(&self.inventory.read(), &mut vm, volumes, self.draft());
                match kept {
                    Ok(draft) => self.turn_with(step, carried.next(CarriedStage::RemoveFormer), vm, draft),
                    Err(problem) => self.give_back_carried(step, carried, Some(problem)),
                }
            }
            Operated::Failed(problem) => self.give_back_carried(step, carried, Some(problem)),
            Operated::Cancelled | Operated::Forgotten => self.give_back_carried(step, carried, None),
        }
    }

    /// Makes a VM that did not move its former host's again.
    fn give_back_carried(
        &self,
        step: &Step,
        carried: &Carried,
        problem: Option<Problem>,
    ) -> Result<Next, Failure> {
        let vm = self.now_on(carried.from, next_generation(&step.vm));
        let vm = VmRecord { datastore: carried.from_datastore, ..vm };
        self.turn(step, carried.next(CarriedStage::Return { problem }), vm)
    }

    fn return_with_volumes(
        &self,
        step: &Step,
        carried: &Carried,
        problem: Option<&Problem>,
    ) -> Result<Next, Failure> {
        match self.back_at_former(step, problem)? {
            ControlFlow::Break(next) => Ok(next),
            ControlFlow::Continue(problem) => {
                let stage = CarriedStage::RemoveCopy { problem };
                self.turn(step, carried.next(stage), VmRecord::clone(&step.vm.record))
            }
        }
    }

    /// Deletes what the former host has of a VM that has moved.
    fn remove_former_copy(&self, step: &Step, carried: &Carried) -> Result<Next, Failure> {
        let former = VmRecord {
            host: carried.from,
            datastore: carried.from_datastore,
            ..VmRecord::clone(&step.vm.record)
        };
        self.remove_copy(step, &former, End::Done)
    }

    /// Deletes what the next host has of a VM that has not moved.
    fn remove_next_copy(
        &self,
        step: &Step,
        carried: &Carried,
        problem: Option<&Problem>,
    ) -> Result<Next, Failure> {
        let there = self.at_next(step, carried);
        self.remove_copy(step, &there, problem.cloned().map_or(End::Cancelled, End::Failed))
    }

    /// Deletes what a host that has not the VM has of it, and ends the task.
    pub(super) fn remove_copy(&self, step: &Step, copy: &VmRecord, end: End) -> Result<Next, Failure> {
        let left = match self.seat(copy.host) {
            None => Some("it is not known any more".to_owned()),
            Some(seat) => {
                let operated = self.operate_at(step, copy, seat, |paths| {
                    Some(OperationKind::RemoveCopy { spec: Box::new(copy.told(paths)?) })
                })?;
                match operated {
                    // A task that is cancelled does not wait for a host that is away.
                    Operated::Pending(Next::Wait(_)) if step.task.task.cancelling && !seat.is_up() => {
                        Some("it does not answer".to_owned())
                    }
                    Operated::Pending(next) => return Ok(next),
                    Operated::Done(_) => None,
                    Operated::Failed(problem) => Some(problem.message),
                    Operated::Cancelled | Operated::Forgotten => Some("it has forgotten that".to_owned()),
                }
            }
        };
        let mut draft = self.draft();
        if let Some(why) = left {
            let message = format!(
                "a copy of {} may be left on host {}, in datastore {}: {why}",
                problems::called(&step.vm),
                self.name_of(copy.host),
                self.inventory.read().datastore_name(copy)
            );
            draft = draft.event("vm.copy_left", &step.vm.object(), message, Some(step.task.task.id));
        }
        self.end(step, &step.vm, draft, end)
    }

    /// The record of the VM as it is on the next host.
    fn at_next(&self, step: &Step, carried: &Carried) -> VmRecord {
        let vm = self.now_on(carried.to, VmRecord::clone(&step.vm.record));
        VmRecord { datastore: carried.to_datastore, ..vm }
    }
}

/// Where other hosts present a ticket of this one.
fn reached_at(source: &HostSeat, told: Ticket) -> Result<VolumesElsewhere, Problem> {
    let joined = source.address.as_deref().and_then(|address| address.parse().ok());
    let own = told.port.as_ref().map(|port| port.listen);
    let own = own.filter(|listens| !listens.ip().is_loopback() && !listens.ip().is_unspecified());
    match (joined.or(own), told.port) {
        (Some(address), Some(port)) => {
            Ok(VolumesElsewhere { address, certificate_sha256: port.certificate_sha256, ticket: told.ticket })
        }
        _ => Err(without_address(source)),
    }
}

fn host_gone() -> Problem {
    problems::conflict("the host that it moves to is not known any more")
}

/// A move of this VM with its volumes, which has not begun.
pub(super) fn carried(
    vm: &VmRecord,
    to: Uuid,
    to_datastore: DatastoreId,
    settings: MigrationSettings,
) -> Carried {
    Carried {
        from: vm.host,
        from_datastore: vm.datastore,
        to,
        to_datastore,
        handover: HandoverId::random(),
        bytes_per_second: limit_of(settings),
        stage: CarriedStage::Fetch,
        failures: 0,
    }
}
