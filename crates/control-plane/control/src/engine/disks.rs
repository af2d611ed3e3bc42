//! Adds, removes and grows disks of VMs, running or off.
//!
//! ```text
//! add     wish -> the host has it -> inventory: the VM has it         what fails is taken back by the host first
//! remove  wish -> the host has it no more -> inventory: nor has the VM
//! resize  wish -> the host has it larger -> inventory: the size
//! ```
//!
//! The task has the request from the beginning, and the VM's record has the state that the host
//! last reported. The host accepts each change again and goes by its effect, so the task continues
//! after any process was killed.

use strongroom_api::policy::PolicyRules;
use strongroom_api::task::{Task, TaskKind};
use strongroom_api::vm::{AddDisk, PowerState, ResizeDisk};
use strongroom_api::{ErrorCode, Problem};
use strongroom_host::protocol::{DiskChange, DiskName, OperationKind, OperationOutcome, VmSpec};
use strongroom_types::{IoLimits, VolumeSize};
use strongroom_vm::{DiskKind, Growth, MemorySize};

use super::advance::{End, Next, Step, keep_volumes};
use super::operate::Operated;
use super::place::{check, may_have_tags, told_without_key};
use super::snapshots::{snapshots_of, told_problem};
use super::wishes::{Caller, suspended, volumes_settled};
use super::{Control, RETRY_PAUSE};
use crate::host::HostError;
use crate::inventory::{Draft, Failure, Index};
use crate::problems;
use crate::records::{DatastorePaths, DiskRecord, TaskRecord, VmRecord, VolumeRecord, Whole, Work};

/// How often a host may fail, for example by the death of a VM's supervisor, before the task fails.
pub(super) const FAILURES_MAX: u32 = 5;
/// How often a volume may be busy, for example with the layer that its last snapshot has closed:
/// with [`RETRY_PAUSE`] some two minutes.
const BUSY_MAX: u32 = 60;

impl Control {
    /// Requests another disk for a VM.
    ///
    /// # Errors
    /// [`Problem`], as for all methods here.
    pub fn add_disk(&self, caller: &Caller, named: &str, wish: &AddDisk) -> Result<Task, Problem> {
        let rules = self.rules_of(named);
        let wanted = |vm: &VmRecord| {
            let Some(name) = vm.hardware.free_name(wish.kind) else {
                return Err(problems::invalid("too many disks"));
            };
            let Some(first) = vm.hardware.disks.first() else {
                let message = format!(
                    "VM {} has no disk, so nothing says under which key another one would be",
                    vm.name
                );
                return Err(problems::conflict(message).next("make a VM with a disk"));
            };
            // The disk gets the key of the VM's own volumes.
            let sealed = vm.hardware.disks.iter().find(|disk| disk.sealing.is_sealed());
            let sealing = sealed.unwrap_or(first).sealing.clone();
            let has_tags = rules.integrity_required && may_have_tags(wish.kind, &sealing);
            let disk = DiskRecord {
                name,
                size: wish.size_bytes,
                kind: wish.kind,
                frontend: wish.frontend,
                sealing,
                volume: None,
                pinned: false,
                least_generation: 0,
                thick: rules.thick_required,
                integrity: wish.integrity || has_tags,
                volume_name: None,
                shares_with: Vec::new(),
                limits: rules.disk_limits,
                datastore: None,
                moves_from: None,
                moves_to: None,
            };
            let mut with = vm.clone();
            with.hardware.disks.push(disk.clone());
            check(&with, &DatastorePaths::nowhere(&with))?;
            Ok((Work::AddDisk { disk: Box::new(disk), fill: wish.fill, failures: 0 }, with))
        };
        self.has_room(caller, named, wanted)?;
        self.disk_wish(caller, named, TaskKind::VmAddDisk, |_, vm| wanted(vm).map(|(work, _)| work))
    }

    /// Requests the removal of a disk of a VM, and of its volume.
    pub fn remove_disk(&self, caller: &Caller, named: &str, disk: &str) -> Result<Task, Problem> {
        self.disk_wish(caller, named, TaskKind::VmRemoveDisk, |index, vm| {
            let found = disk_of(vm, disk)?;
            snapshots_of(index, vm).check_unneeded(&found.name).map_err(told_problem)?;
            if vm.hardware.disks.first() == Some(found) {
                let message = format!("{disk} is the first disk of VM {}: it starts from it", vm.name);
                return Err(problems::conflict(message)
                    .next(format!("`strongroom vm delete {}` deletes all of it", vm.name)));
            }
            let key = |vm: &VmRecord| vm.hardware.disks.iter().find_map(|disk| disk.sealing.key().cloned());
            let mut without = vm.clone();
            without.hardware.disks.retain(|known| known.name != found.name);
            if key(vm) != key(&without) {
                let message =
                    format!("what VM {} keeps beside its disks is under the key of {disk}", vm.name);
                return Err(problems::conflict(message)
                    .next(format!("`strongroom vm delete {}` deletes all of it", vm.name)));
            }
            Ok(Work::RemoveDisk { disk: found.name.clone(), failures: 0 })
        })
    }

    /// Requests a larger size for a disk of a VM.
    pub fn resize_disk(
        &self,
        caller: &Caller,
        named: &str,
        disk: &str,
        wish: &ResizeDisk,
    ) -> Result<Task, Problem> {
        let wanted = |vm: &VmRecord| {
            let found = disk_of(vm, disk)?;
            if wish.size_bytes <= found.size {
                let message = format!("{disk} of VM {} has {}, and a disk only grows", vm.name, found.size);
                return Err(problems::conflict(message).next("name a larger size"));
            }
            let mut with = vm.clone();
            let grown = with.hardware.disks.iter_mut().filter(|known| known.name == found.name);
            grown.for_each(|known| known.size = wish.size_bytes);
            Ok((Work::ResizeDisk { disk: found.name.clone(), size: wish.size_bytes, failures: 0 }, with))
        };
        self.has_room(caller, named, wanted)?;
        self.disk_wish(caller, named, TaskKind::VmResizeDisk, |index, vm| {
            let found = disk_of(vm, disk)?;
            if found.kind == DiskKind::Swap {
                // The memory of the snapshot needs it as it was.
                snapshots_of(index, vm).check_unneeded(&found.name).map_err(told_problem)?;
            }
            wanted(vm).map(|(work, _)| work)
        })
    }

    /// Requests limits for the requests of a disk of a VM, or of all of them together if none is
    /// named. They replace those that it has.
    pub fn limit_disk(
        &self,
        caller: &Caller,
        named: &str,
        disk: Option<&str>,
        limits: IoLimits,
    ) -> Result<Task, Problem> {
        self.disk_wish(caller, named, TaskKind::VmLimit, |_, vm| {
            let disk = disk.map(|disk| disk_of(vm, disk)).transpose()?.map(|disk| disk.name.clone());
            Ok(Work::Limit { disk, limits, failures: 0 })
        })
    }

    /// The rules of a VM's policy; none for a VM without one.
    fn rules_of(&self, named: &str) -> PolicyRules {
        let index = self.inventory.read();
        let policy = index.find_vm(named).and_then(|vm| index.policy_of(vm));
        policy.map(|policy| policy.rules.clone()).unwrap_or_default()
    }

    /// Asks a VM's host whether its datastore has room for the disks, so that the caller gets the
    /// error at once, and not from the task. If the host does not answer, or refuses for other
    /// reasons, the task itself reports it.
    fn has_room(
        &self,
        caller: &Caller,
        named: &str,
        wanted: impl Fn(&VmRecord) -> Result<(Work, VmRecord), Problem>,
    ) -> Result<(), Problem> {
        if self.known_request(caller)?.is_some() {
            return Ok(());
        }
        let vm = self.inventory.read().find_vm(named).cloned();
        let Some(vm) = vm.filter(|vm| vm.task.is_none()) else { return Ok(()) };
        let (Ok((_, with)), Ok(seat)) = (wanted(&vm), self.seat_of(&vm)) else { return Ok(()) };
        let spec = self.datastore_paths(&vm).and_then(|paths| told_without_key(&with, &paths));
        let Some(spec) = spec else { return Ok(()) };
        match seat.host.check(&disks_alone(spec)) {
            Err(error @ HostError::Refused(_)) => Err(problems::host(seat.name.as_str(), &error)),
            Ok(()) | Err(HostError::Unreachable(_)) => Ok(()),
        }
    }

    fn disk_wish(
        &self,
        caller: &Caller,
        named: &str,
        kind: TaskKind,
        wanted: impl Fn(&Index, &VmRecord) -> Result<Work, Problem>,
    ) -> Result<Task, Problem> {
        self.indexed_vm_wish(caller, named, kind, |index, vm, power| {
            if power == PowerState::Suspended {
                return Err(suspended(vm, "its memory fits it as it is"));
            }
            volumes_settled(vm, power)?;
            wanted(index, vm)
        })
    }

    /// A failed addition may be half done, so it is undone.
    pub(super) fn add_the_disk(
        &self,
        step: &Step,
        disk: &DiskRecord,
        fill: bool,
        failures: u32,
    ) -> Result<Next, Failure> {
        let operated = self.operate(&step.task, &step.vm, step.seat, |datastore| {
            let disk = Box::new(disk.told(datastore)?);
            change_disk(step, datastore, DiskChange::Add { disk })
        })?;
        let undo = |problem| Work::UndoAddDisk { disk: Box::new(disk.clone()), problem };
        let again = || Work::AddDisk { disk: Box::new(disk.clone()), fill, failures: failures + 1 };
        match operated {
            Operated::Done(outcome) => {
                let mut vm = VmRecord::clone(&step.vm.record);
                vm.hardware.disks.push(disk.clone());
                match self.disk_kept(&mut vm, outcome) {
                    Ok(draft) => {
                        let fill = if fill { vec![disk.name.clone()] } else { Vec::new() };
                        self.fill_next(step, fill, Whole::Disk, vm, draft)
                    }
                    Err(problem) => self.end(step, &step.vm, self.draft(), End::Failed(problem)),
                }
            }
            other => self.repeat_or_undo(step, other, &step.vm, failures, again, undo),
        }
    }

    /// If a part of the disk cannot be removed, the VM keeps the disk, so that it is visible and
    /// can be removed later.
    pub(super) fn undo_add_disk(
        &self,
        step: &Step,
        disk: &DiskRecord,
        problem: Option<&Problem>,
    ) -> Result<Next, Failure> {
        let change = DiskChange::Remove { disk: disk.name.clone() };
        let mut vm = VmRecord::clone(&step.vm.record);
        let operated =
            self.operate_unless_cancelled(step, &step.vm, |datastore| change_disk(step, datastore, change))?;
        let end = match operated {
            Operated::Pending(next) => return Ok(next),
            Operated::Done(_) => problem.map_or(End::Cancelled, |problem| End::Failed(problem.clone())),
            _ => {
                let message = problem.map_or_else(|| "it was cancelled".to_owned(), ToString::to_string);
                let message = format!("{} of VM {} was not added whole: {message}", disk.name, vm.name);
                let problem = Problem::new(ErrorCode::HostFailed, message)
                    .next(format!("`strongroom vm disk remove {} {}`", vm.name, disk.name));
                vm.hardware.disks.push(disk.clone());
                End::Failed(problem)
            }
        };
        self.end(step, &vm, self.draft(), end)
    }

    pub(super) fn remove_the_disk(
        &self,
        step: &Step,
        disk: &DiskName,
        failures: u32,
    ) -> Result<Next, Failure> {
        let change = DiskChange::Remove { disk: disk.clone() };
        let operated =
            self.operate(&step.task, &step.vm, step.seat, |datastore| change_disk(step, datastore, change))?;
        let again = Work::RemoveDisk { disk: disk.clone(), failures: failures + 1 };
        match operated {
            Operated::Done(outcome) => {
                let mut vm = VmRecord::clone(&step.vm.record);
                let gone = vm.hardware.disks.iter().position(|known| known.name == *disk);
                let gone = gone.and_then(|at| vm.hardware.disks.remove(at).volume);
                vm.hardware.boot.without_disk(disk);
                self.disk_done(step, vm, outcome, gone)
            }
            other => self.not_changed(step, other, again, failures),
        }
    }

    pub(super) fn resize_the_disk(
        &self,
        step: &Step,
        disk: &DiskName,
        size: VolumeSize,
        failures: u32,
    ) -> Result<Next, Failure> {
        let change = DiskChange::Resize { disk: disk.clone(), size_bytes: size };
        let operated =
            self.operate(&step.task, &step.vm, step.seat, |datastore| change_disk(step, datastore, change))?;
        let again = Work::ResizeDisk { disk: disk.clone(), size, failures: failures + 1 };
        match operated {
            Operated::Done(outcome) => {
                let mut vm = VmRecord::clone(&step.vm.record);
                let grown = vm.hardware.disks.iter_mut().filter(|known| known.name == *disk);
                grown.for_each(|known| known.size = size);
                self.disk_done(step, vm, outcome, None)
            }
            other => self.not_changed(step, other, again, failures),
        }
    }

    pub(super) fn limit_the_disk(
        &self,
        step: &Step,
        disk: Option<&DiskName>,
        limits: IoLimits,
        failures: u32,
    ) -> Result<Next, Failure> {
        let change = DiskChange::Limit { disk: disk.cloned(), limits };
        let operated =
            self.operate(&step.task, &step.vm, step.seat, |datastore| change_disk(step, datastore, change))?;
        let again = Work::Limit { disk: disk.cloned(), limits, failures: failures + 1 };
        match operated {
            Operated::Done(outcome) => {
                let mut vm = VmRecord::clone(&step.vm.record);
                vm.hardware.limit(disk, limits);
                self.disk_done(step, vm, outcome, None)
            }
            other => self.not_changed(step, other, again, failures),
        }
    }

    fn disk_done(
        &self,
        step: &Step,
        mut vm: VmRecord,
        outcome: Option<OperationOutcome>,
        gone: Option<strongroom_types::VolumeId>,
    ) -> Result<Next, Failure> {
        let mut draft = match self.disk_kept(&mut vm, outcome) {
            Ok(draft) => draft,
            Err(problem) => return self.end(step, &step.vm, self.draft(), End::Failed(problem)),
        };
        if let Some(gone) = gone {
            draft = draft.discard::<VolumeRecord>(&gone.to_string());
        }
        self.end(step, &vm, draft, End::Done)
    }

    fn disk_kept(&self, vm: &mut VmRecord, outcome: Option<OperationOutcome>) -> Result<Draft, Problem> {
        let volumes = OperationOutcome::into_volumes(outcome);
        keep_volumes(&self.inventory.read(), vm, &volumes, self.draft())
    }

    /// Ends or repeats a change of the VM's volumes that the host has not done.
    pub(super) fn not_changed(
        &self,
        step: &Step,
        operated: Operated,
        again: Work,
        failures: u32,
    ) -> Result<Next, Failure> {
        let end = match operated {
            Operated::Pending(next) => return Ok(next),
            Operated::Failed(problem) => match self.tries_once_more(step, &problem, again, failures)? {
                Some(next) => return Ok(next),
                None => End::Failed(problem),
            },
            Operated::Done(_) | Operated::Cancelled | Operated::Forgotten => End::Cancelled,
        };
        self.end(step, &step.vm, self.draft(), end)
    }

    /// Repeats a change that the host has not done, or has it undone: it may be half done. One that
    /// was not begun leaves the VM as `before`.
    pub(super) fn repeat_or_undo(
        &self,
        step: &Step,
        operated: Operated,
        before: &VmRecord,
        failures: u32,
        again: impl FnOnce() -> Work,
        undo: impl FnOnce(Option<Problem>) -> Work,
    ) -> Result<Next, Failure> {
        let problem = match operated {
            Operated::Pending(next) => return Ok(next),
            Operated::Failed(problem) => match self.tries_once_more(step, &problem, again(), failures)? {
                Some(next) => return Ok(next),
                None => Some(problem),
            },
            Operated::Forgotten if step.task.operation.is_none() => {
                return self.end(step, before, self.draft(), End::Cancelled);
            }
            Operated::Done(_) | Operated::Cancelled | Operated::Forgotten => None,
        };
        self.turn(step, undo(problem), VmRecord::clone(&step.vm.record))
    }

    /// The supervisor that did it may have been killed. The operation is repeated with new grants,
    /// for which a new supervisor may be waiting.
    pub(super) fn tries_once_more(
        &self,
        step: &Step,
        problem: &Problem,
        again: Work,
        failures: u32,
    ) -> Result<Option<Next>, Failure> {
        if failures >= failures_max(problem.code) || step.task.task.cancelling {
            return Ok(None);
        }
        self.ask_host_again(step, again, format!("trying again: {problem}")).map(Some)
    }

    /// Notes that the host is asked again after a pause, with new grants.
    pub(super) fn ask_host_again(&self, step: &Step, again: Work, note: String) -> Result<Next, Failure> {
        let mut task = TaskRecord::clone(&step.task.record);
        (task.work, task.operation) = (again, None);
        task.task.note = Some(note);
        self.inventory.commit(self.draft().replace(&step.task, &task).unchanged(&step.vm))?;
        Ok(Next::Wait(RETRY_PAUSE))
    }
}

/// How often a change of volumes may fail in this way before its task fails.
pub(super) const fn failures_max(code: ErrorCode) -> u32 {
    match code {
        // A supervisor that took over may have used the grants itself.
        ErrorCode::HostFailed | ErrorCode::KeyUnavailable => FAILURES_MAX,
        ErrorCode::TooMany => BUSY_MAX,
        _ => 0,
    }
}

/// The VM reduced to its disks, so that the host cannot lack anything else.
fn disks_alone(spec: VmSpec) -> VmSpec {
    VmSpec {
        memory_bytes: MemorySize::MIN,
        growth: Growth::default(),
        nics: Vec::new(),
        kernel: None,
        boot_order: Vec::new(),
        cdrom: None,
        ..spec
    }
}

/// A change to a VM as it is in the inventory.
pub(super) fn change_disk(
    step: &Step,
    datastore: &DatastorePaths,
    change: DiskChange,
) -> Option<OperationKind> {
    Some(OperationKind::ChangeDisk { spec: Box::new(step.vm.told(datastore)?), change })
}

pub(super) fn disk_of<'vm>(vm: &'vm VmRecord, disk: &str) -> Result<&'vm DiskRecord, Problem> {
    let found = vm.hardware.disk(disk);
    found.ok_or_else(|| problems::no_such_disk(&vm.name, disk))
}

#[cfg(test)]
mod tests {
    use strongroom_vm::DiskKind;

    #[test]
    fn a_volume_that_the_former_release_has_noted_is_not_pinned() {
        let text = r#"{"name":"disk0","size":1048576,"frontend":"vhost_user","sealing":"clear",
            "volume":"6f1c5bde-8d09-4b4c-9f5f-3f0f8f0f0001","least_generation":3}"#;
        let mut disk: crate::records::DiskRecord = serde_json::from_str(text).unwrap();
        let vm = serde_json::json!({ "id": "6f1c5bde-8d09-4b4c-9f5f-3f0f8f0f0001", "name": "web1",
            "datastore": "6f1c5bde-8d09-4b4c-9f5f-3f0f8f0f0002", "host": "6f1c5bde-8d09-4b4c-9f5f-3f0f8f0f0003",
            "hardware": { "machine": "q35", "firmware": "bios", "cpus": {}, "memory": 268435456, "nics": [],
                "tpm": false, "boot": { "type": "disk" }, "vnc": true, "guest_agent": true, "disks": [] },
            "lifecycle": "present", "desired": "stopped", "restart": "never", "generation": 0,
            "created_unix_seconds": 0 });
        let paths = super::DatastorePaths::nowhere(&serde_json::from_value(vm).unwrap());
        assert_eq!(disk.told(&paths).unwrap().volume, None);
        disk.pinned = true;
        assert_eq!(disk.told(&paths).unwrap().volume, disk.volume);
    }

    #[test]
    fn the_disks_of_a_vm_that_grows_are_asked_about_alone() {
        let text = r#"{"id":"6f1c5bde-8d09-4b4c-9f5f-3f0f8f0f0001","name":"web1","datastore":"/srv/ds",
            "memory_bytes":2147483648,"growth":{"max_memory_bytes":17179869184},"disks":[]}"#;
        let spec: super::VmSpec = serde_json::from_str(text).unwrap();
        spec.check().unwrap();
        super::disks_alone(spec).check().unwrap();
    }

    #[test]
    fn a_name_that_is_free_is_the_first() {
        let text = r#"{"machine":"q35","firmware":"bios","cpus":{},"memory":268435456,"nics":[],"tpm":false,"boot":{"type":"disk"},
            "vnc":true,"guest_agent":true,"disks":[
            {"name":"disk0","size":1048576,"frontend":"vhost_user","sealing":"clear"},
            {"name":"disk2","size":1048576,"frontend":"vhost_user","sealing":"clear"}]}"#;
        let hardware: crate::records::Hardware = serde_json::from_str(text).unwrap();
        assert_eq!(hardware.free_name(DiskKind::Data).unwrap().as_str(), "disk1");
        assert_eq!(hardware.free_name(DiskKind::Swap).unwrap().as_str(), "swap0");
    }
}
