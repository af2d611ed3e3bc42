//! Adds, removes and changes network cards of VMs, running or off.
//!
//! ```text
//! off       wish: the VM has the new cards -> the host writes them down       what fails is taken back
//! running   wish: the VM has the old and the new cards -> the host plugs in and out -> only the new ones
//!                                                      what fails is taken back by the host first
//! ```
//!
//! While a host plugs cards, the VM's record has those of before and those of after, so that no
//! network goes that the guest may still be, or may be again, connected to.

use strongroom_api::task::{Task, TaskKind};
use strongroom_api::vm::{AddNic, BootDevice, Nic, PatchNic, PowerState};
use strongroom_api::{ErrorCode, Problem};
use strongroom_host::protocol::{MacAddress, OperationKind};

use super::Control;
use super::advance::{End, Next, Step};
use super::describe::{host_plugs, host_reads};
use super::operate::Operated;
use super::place::addressed;
use super::seal_disks::refuse_of_unfinished;
use super::templates::refuse_of_template;
use super::wishes::{Caller, check_on_host, idle_vm, suspended, volumes_settled};
use crate::inventory::{Failure, Index};
use crate::problems;
use crate::records::{DatastorePaths, NicSet, TaskRecord, VmRecord, Work};

impl Control {
    /// Requests another network card for a VM, after all others.
    ///
    /// # Errors
    /// [`Problem`], as for all methods here.
    pub fn add_nic(&self, caller: &Caller, named: &str, wish: &AddNic) -> Result<Task, Problem> {
        self.nics_wish(caller, named, TaskKind::VmAddNic, |index, vm| {
            let nic = self.connected_on(index, vm.host, std::slice::from_ref(&wish.nic))?;
            vm.hardware.nics.extend(addressed(&nic)?);
            Ok(())
        })
    }

    /// Requests that a VM loses a network card: `nic0` and so on, or its address.
    pub fn remove_nic(&self, caller: &Caller, named: &str, nic: &str) -> Result<Task, Problem> {
        self.nics_wish(caller, named, TaskKind::VmRemoveNic, |_, vm| {
            let number = number_of(vm, nic)?;
            vm.hardware.nics.remove(number);
            vm.hardware.boot.without_nic(number);
            Ok(())
        })
    }

    /// Requests another network, or another state of the link, for a network card of a VM.
    pub fn set_nic(
        &self,
        caller: &Caller,
        named: &str,
        nic: &str,
        patch: &PatchNic,
    ) -> Result<Task, Problem> {
        self.nics_wish(caller, named, TaskKind::VmSetNic, |index, vm| {
            let number = number_of(vm, nic)?;
            let mut changed = vm.hardware.nics[number].clone();
            changed.link = patch.link.unwrap_or(changed.link);
            if let Some(backend) = &patch.backend {
                changed.backend = backend.clone();
                let connected = self.connected_on(index, vm.host, std::slice::from_ref(&changed))?;
                vm.hardware.nics.splice(number..=number, connected);
            } else {
                vm.hardware.nics[number] = changed;
            }
            Ok(())
        })
    }

    fn nics_wish(
        &self,
        caller: &Caller,
        named: &str,
        kind: TaskKind,
        change: impl Fn(&Index, &mut VmRecord) -> Result<(), Problem>,
    ) -> Result<Task, Problem> {
        self.wish(caller, |index, id| {
            let vm = idle_vm(index, named)?;
            refuse_of_template(vm, kind)?;
            refuse_of_unfinished(vm, kind)?;
            let power = self.power_of(index, vm);
            if power == PowerState::Suspended {
                return Err(suspended(vm, "its memory fits it as it is"));
            }
            volumes_settled(vm, power)?;
            let mut changed = VmRecord { task: Some(id), ..VmRecord::clone(&vm.record) };
            change(index, &mut changed)?;
            check_on_host(index, &changed)?;
            must_differ(&changed.hardware.nics)?;
            let seat = self.seat(vm.host);
            seat.map_or(Ok(()), |seat| host_reads(seat, &changed))?;
            let before = NicSet::of(&vm.hardware);
            let work = if power.is_on() {
                seat.map_or(Ok(()), |seat| host_plugs(seat, "the network cards"))?;
                let after = NicSet::of(&changed.hardware);
                before.with(&after).give_to(&mut changed.hardware);
                Work::SetNics { before: Box::new(before), after: Box::new(after), failures: 0 }
            } else {
                Work::Configure { before: Box::new(vm.hardware.clone()) }
            };
            let task = self.task(id, kind, vm.object(), caller);
            Ok((TaskRecord { vm: Some(vm.id), work, ..task }, self.draft().replace(vm, &changed)))
        })
    }

    /// Has the host plug cards in and out. What fails may be half done, so it is taken back.
    pub(super) fn set_the_nics(
        &self,
        step: &Step,
        before: &NicSet,
        after: &NicSet,
        failures: u32,
    ) -> Result<Next, Failure> {
        let operated = self
            .operate(&step.task, &step.vm, step.seat, |datastore| plug(&step.vm, datastore, before, after))?;
        let undo = |problem| {
            let (before, after) = (Box::new(before.clone()), Box::new(after.clone()));
            Work::UndoSetNics { before, after, problem }
        };
        let again = || {
            let (before, after) = (Box::new(before.clone()), Box::new(after.clone()));
            Work::SetNics { before, after, failures: failures + 1 }
        };
        match operated {
            Operated::Done(_) => self.end(step, &having(&step.vm, after), self.draft(), End::Done),
            other => self.repeat_or_undo(step, other, &having(&step.vm, before), failures, again, undo),
        }
    }

    /// If a card cannot be taken back, the VM keeps it, so that it is visible and can be removed
    /// later.
    pub(super) fn undo_set_nics(
        &self,
        step: &Step,
        before: &NicSet,
        after: &NicSet,
        problem: Option<&Problem>,
    ) -> Result<Next, Failure> {
        let operated = self
            .operate_unless_cancelled(step, &step.vm, |datastore| plug(&step.vm, datastore, after, before))?;
        let ended = || problem.map_or(End::Cancelled, |problem| End::Failed(problem.clone()));
        match operated {
            Operated::Pending(next) => Ok(next),
            Operated::Done(_) => self.end(step, &having(&step.vm, before), self.draft(), ended()),
            Operated::Failed(_) | Operated::Cancelled | Operated::Forgotten => {
                let vm = having(&step.vm, &before.with(after));
                self.end(step, &vm, self.draft(), ended())
            }
        }
    }
}

/// The number of a VM's network card: `nic0` and so on, or its address.
fn number_of(vm: &VmRecord, nic: &str) -> Result<usize, Problem> {
    let is_it = |(number, known): &(usize, &Nic)| {
        BootDevice::Nic(*number).to_string() == nic
            || known.mac.is_some_and(|mac| mac.to_string().eq_ignore_ascii_case(nic))
    };
    let found = vm.hardware.nics.iter().enumerate().find(is_it);
    found.map(|(number, _)| number).ok_or_else(|| {
        let message = format!("VM {} has no {nic}", vm.name);
        Problem::new(ErrorCode::NotFound, message)
            .next(format!("`strongroom vm nic list {}` shows what there is", vm.name))
    })
}

/// Refuses cards of which two have one address: a running machine's are known by it.
fn must_differ(nics: &[Nic]) -> Result<(), Problem> {
    let is_twice = |(at, nic): &(usize, &Nic)| nics[..*at].iter().any(|other| other.mac == nic.mac);
    match nics.iter().enumerate().find(is_twice).and_then(|(_, nic)| nic.mac) {
        Some(mac) => Err(problems::invalid(format!("nics: two cards have the address {mac}"))),
        None => Ok(()),
    }
}

fn having(vm: &VmRecord, nics: &NicSet) -> VmRecord {
    let mut vm = vm.clone();
    nics.clone().give_to(&mut vm.hardware);
    vm
}

/// The order to go from one set of cards to another. The host opens the networks of the cards that
/// the first one does not have.
fn plug(vm: &VmRecord, datastore: &DatastorePaths, from: &NicSet, to: &NicSet) -> Option<OperationKind> {
    let spec = Box::new(having(vm, to).told(datastore)?);
    let is_new = |nic: &&Nic| !from.nics.iter().any(|had| had.mac == nic.mac && had.backend == nic.backend);
    let open: Vec<MacAddress> = to.nics.iter().filter(is_new).filter_map(|nic| nic.mac).collect();
    Some(OperationKind::SetNics { spec, open })
}
