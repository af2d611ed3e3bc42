//! Gives VMs that run more processors and memory, and takes processors from them.
//!
//! ```text
//! wish: the VM has the larger of before and after, within quotas and its host's room
//!    -> the host has plugged in or out -> the VM has what was asked for     what fails is taken back first
//! ```
//!
//! So what a guest may have counts from the request on, and until the host has taken it.

use strongroom_api::Problem;
use strongroom_api::vm::{Cpus, MemorySize, PatchVm};
use strongroom_host::protocol::OperationKind;

use super::Control;
use super::advance::{End, Next, Step};
use super::describe::host_plugs;
use super::operate::Operated;
use super::snapshots::told_problem;
use crate::inventory::Failure;
use crate::problems;
use crate::records::{DatastorePaths, Sizes, VmRecord, Work};

/// The change of a running VM's sizes that a request asks for; `None` for a request about anything
/// else.
pub(super) fn of_running(vm: &VmRecord, patch: &PatchVm) -> Option<Sizes> {
    let PatchVm { cpus, memory_bytes, .. } = *patch;
    let is_all = *patch == PatchVm { cpus, memory_bytes, ..PatchVm::default() };
    // Without a bound of its own, the VM changes while it is off.
    if !is_all || vm.hardware.growth.is_none() {
        return None;
    }
    let hardware = &vm.hardware;
    Some(Sizes { cpus: cpus.unwrap_or(hardware.cpus), memory: memory_bytes.unwrap_or(hardware.memory) })
}

impl Control {
    /// Begins a change of a running VM's sizes: returns its work, and changes the VM's record.
    ///
    /// # Errors
    /// If the machine cannot have them before its next start, or its host is of an earlier version.
    pub(super) fn begin_resizing(&self, vm: &mut VmRecord, after: Sizes) -> Result<Work, Problem> {
        if let Some(seat) = self.seat(vm.host) {
            host_plugs(seat, "the sizes")?;
        }
        let told = vm.told(&DatastorePaths::nowhere(vm)).ok_or_else(|| problems::key_never_made(vm))?;
        told.check_growth_to(after.cpus, after.memory).map_err(told_problem)?;
        let before = Sizes { cpus: vm.hardware.cpus, memory: vm.hardware.memory };
        give(vm, before.or(after));
        Ok(Work::SetSizes { before, after, failures: 0 })
    }

    /// Has the host plug in and out. What fails may be half done, so it is taken back.
    pub(super) fn set_the_sizes(
        &self,
        step: &Step,
        before: Sizes,
        after: Sizes,
        failures: u32,
    ) -> Result<Next, Failure> {
        let operated =
            self.operate(&step.task, &step.vm, step.seat, |datastore| order(&step.vm, datastore, after))?;
        let undo = |problem| Work::UndoSetSizes { before, after, memory_stays: false, problem };
        let again = || Work::SetSizes { before, after, failures: failures + 1 };
        match operated {
            Operated::Done(_) => self.end(step, &having(&step.vm, after), self.draft(), End::Done),
            other => self.repeat_or_undo(step, other, &having(&step.vm, before), failures, again, undo),
        }
    }

    /// What cannot be taken back stays the VM's, so that it counts until the VM is off.
    pub(super) fn undo_set_sizes(
        &self,
        step: &Step,
        undone: UndoneSizes,
        problem: Option<&Problem>,
    ) -> Result<Next, Failure> {
        let UndoneSizes { before, after, memory_stays } = undone;
        let to = if memory_stays { Sizes { memory: after.memory, ..before } } else { before };
        let operated =
            self.operate_unless_cancelled(step, &step.vm, |datastore| order(&step.vm, datastore, to))?;
        let ended = || problem.map_or(End::Cancelled, |problem| End::Failed(problem.clone()));
        match operated {
            Operated::Pending(next) => Ok(next),
            Operated::Done(_) => self.end(step, &having(&step.vm, to), self.draft(), ended()),
            // The guest has the memory: the processors are taken back.
            Operated::Failed(_) if !memory_stays && after.memory > before.memory => {
                let problem = problem.cloned();
                let again = Work::UndoSetSizes { before, after, memory_stays: true, problem };
                self.turn(step, again, VmRecord::clone(&step.vm.record))
            }
            Operated::Failed(_) | Operated::Cancelled | Operated::Forgotten => {
                self.end(step, &having(&step.vm, before.or(after)), self.draft(), ended())
            }
        }
    }
}

/// A change of sizes that is taken back.
#[derive(Clone, Copy, Debug)]
pub(super) struct UndoneSizes {
    /// What the VM had.
    pub before: Sizes,
    /// What it was to have.
    pub after: Sizes,
    /// Whether the guest has the memory already, which it keeps.
    pub memory_stays: bool,
}

impl Sizes {
    /// The larger of each.
    fn or(self, other: Self) -> Self {
        let cpus: Cpus = if other.cpus.count() > self.cpus.count() { other.cpus } else { self.cpus };
        let memory: MemorySize = self.memory.max(other.memory);
        Self { cpus, memory }
    }
}

fn give(vm: &mut VmRecord, sizes: Sizes) {
    (vm.hardware.cpus, vm.hardware.memory) = (sizes.cpus, sizes.memory);
}

fn having(vm: &VmRecord, sizes: Sizes) -> VmRecord {
    let mut vm = vm.clone();
    give(&mut vm, sizes);
    vm
}

fn order(vm: &VmRecord, datastore: &DatastorePaths, sizes: Sizes) -> Option<OperationKind> {
    Some(OperationKind::SetSizes { spec: Box::new(having(vm, sizes).told(datastore)?) })
}
