//! Fills disks with images: disks of an existing VM, or those of a new VM or disk.
//!
//! ```text
//! import       wish -> the host takes the image that came with the ticket -> the disk is filled
//!                                     its client is away -> it is awaited -> a ticket brings it to the host again
//!                                     the host was killed -> the image is awaited, from its beginning
//! create, add  wish -> the disk is there, empty -> its image is awaited -> it is filled -> the next one, or done
//!                                                   `-> no image, a bad one, a full disk, cancelled: all is taken back
//! ```
//!
//! A VM that was requested with an image exists with it or not at all. The client that brings the
//! image may be killed at any moment, so the control plane waits for the image, and undoes its work
//! if none arrives.

use std::time::Duration;

use strongroom_api::access::AccessKind;
use strongroom_api::task::{Task, TaskKind};
use strongroom_api::vm::{CreateVm, ImportDisk, Lifecycle, PowerState};
use strongroom_api::{ErrorCode, Problem};
use strongroom_host::protocol::{DiskName, ImageFormat, OperationKind, OperationOutcome, TicketId};

use super::advance::{End, Next, Step, keep_volumes};
use super::operate::Operated;
use super::wishes::{Caller, about, image_format, state, use_of};
use super::{Control, RETRY_PAUSE, Stop};
use crate::host::HostError;
use crate::inventory::{Draft, Failure, Row};
use crate::problems;
use crate::records::{DiskRecord, TaskRecord, VmRecord, VolumeRecord, Whole, Work};

/// How long it waits for an image, in milliseconds: that of a slow client.
const IMAGE_WITHIN_MS: u64 = 60_000;
/// How long it waits for a client whose host has lost what it had of the image, in milliseconds. As
/// long as a host waits for a client that it has lost.
const IMAGE_AGAIN_WITHIN_MS: u64 = 300_000;

/// The outcome of filling a disk: the VM's new record, and a draft that forgets the old volume.
enum Filled {
    Pending(Next),
    Done(VmRecord, Draft),
    Failed(VmRecord, Draft, Problem),
    /// The host did not fill it. The disk is unchanged, or has lost its volume.
    Not(VmRecord, Draft, Operated),
}

/// An image that was sent to the host.
#[derive(Clone, Copy)]
pub(super) struct SentImage<'a> {
    /// The ticket of the upload.
    pub ticket: &'a TicketId,
    pub format: ImageFormat,
}

impl Control {
    /// Requests that a disk is filled with an image that was sent with a ticket: a disk whose task
    /// waits for it, or a disk of an idle VM.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn import_disk(
        &self,
        caller: &Caller,
        named: &str,
        disk: &str,
        wish: &ImportDisk,
    ) -> Result<Task, Problem> {
        let ticket: TicketId = wish.ticket.parse().map_err(problems::invalid)?;
        let format = image_format(wish.format);
        if let Some(task) = self.image_has_come(caller, named, disk, SentImage { ticket: &ticket, format })? {
            return Ok(task);
        }
        self.vm_wish(caller, named, TaskKind::VmImportDisk, |vm, power| {
            if power.is_on() && power != PowerState::Unknown {
                return Err(state(vm, power, "its disks are in use"));
            }
            let Some(disk) = vm.hardware.fillable(disk) else {
                return Err(problems::no_such_disk(&vm.name, disk));
            };
            Ok(Work::ImportDisk { disk, ticket: ticket.clone(), format })
        })
    }

    /// Continues the task that waits for this image; `None` if no task does.
    fn image_has_come(
        &self,
        caller: &Caller,
        named: &str,
        disk: &str,
        SentImage { ticket, format }: SentImage<'_>,
    ) -> Result<Option<Task>, Problem> {
        let gone_on = self.race(|| {
            if let Some(known) = self.known_request(caller)? {
                return Ok(Some(known));
            }
            let (vm, task) = {
                let index = self.inventory.read();
                let vm = index.find_vm(named).cloned();
                let task = vm.as_ref().and_then(|vm| index.task(vm.task?).cloned());
                (vm, task)
            };
            let (Some(vm), Some(task)) = (vm, task) else { return Ok(None) };
            let filled = task.work.filled_disk().filter(|_| !task.task.cancelling);
            if filled.is_some_and(|filled| filled.as_str() == disk) && task.task.awaits_image.is_some() {
                return self.client_is_back(caller, &vm, &task).map(Some);
            }
            let Work::AwaitImage { fill, whole, .. } = &task.work else { return Ok(None) };
            let Some((awaited, rest)) = fill.split_first() else { return Ok(None) };
            if awaited.as_str() != disk || task.task.cancelling {
                return Ok(None);
            }
            if let Some((what, must)) = use_of(TaskKind::VmImportDisk) {
                self.put_on_record(caller, &vm, &format!("{what} of VM {} is asked for", vm.name), must)?;
            }
            let mut record = TaskRecord::clone(&task.record);
            record.work = Work::Fill {
                disk: awaited.clone(),
                ticket: ticket.clone(),
                format,
                fill: rest.to_vec(),
                whole: *whole,
            };
            record.task.awaits_image = None;
            let draft = self.noted(self.draft(), caller, record.task.id);
            let message = format!("an image was brought for {} of VM {}", awaited, vm.name);
            let entry = about(&record.task, caller.entry_of(AccessKind::Changed, message));
            self.commit_for(caller, draft.replace(&task, &record).unchanged(&vm), entry)?;
            Ok::<_, Stop>(Some(record.task))
        })?;
        if let Some(task) = &gone_on {
            self.schedule.wake(task.id);
        }
        Ok(gone_on)
    }

    /// Lets a task go on whose client has come back: its ticket has taken it to the host.
    fn client_is_back(
        &self,
        caller: &Caller,
        vm: &Row<VmRecord>,
        task: &Row<TaskRecord>,
    ) -> Result<Task, Stop> {
        let mut record = TaskRecord::clone(&task.record);
        (record.task.note, record.task.awaits_image) = (None, None);
        let draft = self.noted(self.draft(), caller, record.task.id);
        let message = format!("the image of a disk of VM {} was brought again", vm.name);
        let entry = about(&record.task, caller.entry_of(AccessKind::Changed, message));
        self.commit_for(caller, draft.replace(task, &record).unchanged(vm), entry)?;
        Ok(record.task)
    }

    /// Moves to the next disk that must be filled, or completes the task.
    pub(super) fn fill_next(
        &self,
        step: &Step,
        fill: Vec<DiskName>,
        whole: Whole,
        vm: VmRecord,
        draft: Draft,
    ) -> Result<Next, Failure> {
        if fill.is_empty() {
            let made = VmRecord { lifecycle: Lifecycle::Present, ..vm };
            return self.end(step, &made, draft, End::Done);
        }
        let until_unix_ms = self.now_unix_ms() + IMAGE_WITHIN_MS;
        self.turn_with(step, Work::AwaitImage { fill, until_unix_ms, whole }, vm, draft)
    }

    pub(super) fn await_image(
        &self,
        step: &Step,
        fill: &[DiskName],
        until_unix_ms: u64,
        whole: Whole,
    ) -> Result<Next, Failure> {
        let (vm, draft) = (VmRecord::clone(&step.vm.record), self.draft());
        let Some(disk) = fill.first() else { return self.fill_next(step, Vec::new(), whole, vm, draft) };
        if step.task.task.cancelling {
            return self.take_back(step, disk, whole, vm, draft, None);
        }
        let left_ms = until_unix_ms.saturating_sub(self.now_unix_ms());
        if left_ms > 0 {
            return Ok(Next::Wait(Duration::from_millis(left_ms)));
        }
        let message = format!("no image came for {disk} of VM {} in time", step.vm.name);
        let problem = Problem::new(ErrorCode::Timeout, message).next("ask for it again, and send the image");
        self.take_back(step, disk, whole, vm, draft, Some(problem))
    }

    pub(super) fn fill(
        &self,
        step: &Step,
        disk: &DiskName,
        image: SentImage<'_>,
        fill: &[DiskName],
        whole: Whole,
    ) -> Result<Next, Failure> {
        match self.put_in(step, disk, image)? {
            Filled::Pending(next) => Ok(next),
            Filled::Done(vm, draft) => self.fill_next(step, fill.to_vec(), whole, vm, draft),
            Filled::Failed(vm, draft, problem) => self.take_back(step, disk, whole, vm, draft, Some(problem)),
            Filled::Not(vm, draft, Operated::Forgotten) if !step.task.task.cancelling => {
                self.await_again(step, disk, fill, whole, vm, draft)
            }
            Filled::Not(vm, draft, ended) => {
                let problem = match ended {
                    Operated::Failed(problem) => Some(problem),
                    _ => None,
                };
                self.take_back(step, disk, whole, vm, draft, problem)
            }
        }
    }

    /// Fills a disk of an existing VM.
    pub(super) fn import(&self, step: &Step, disk: &DiskName, image: SentImage<'_>) -> Result<Next, Failure> {
        match self.put_in(step, disk, image)? {
            Filled::Pending(next) => Ok(next),
            Filled::Done(vm, draft) => self.end(step, &vm, draft, End::Done),
            Filled::Failed(vm, draft, problem) => self.end(step, &vm, draft, End::Failed(problem)),
            Filled::Not(vm, draft, Operated::Forgotten) if !step.task.task.cancelling => {
                self.await_again(step, disk, &[], Whole::Content, vm, draft)
            }
            Filled::Not(vm, draft, ended) => self.as_it_is_with(step, vm, draft, ended),
        }
    }

    /// Waits for an image of which the host has lost what was there: its client begins anew.
    fn await_again(
        &self,
        step: &Step,
        disk: &DiskName,
        rest: &[DiskName],
        whole: Whole,
        vm: VmRecord,
        draft: Draft,
    ) -> Result<Next, Failure> {
        let fill = std::iter::once(disk).chain(rest).cloned().collect();
        let until_unix_ms = self.now_unix_ms() + IMAGE_AGAIN_WITHIN_MS;
        self.turn_with(step, Work::AwaitImage { fill, until_unix_ms, whole }, vm, draft)
    }

    /// Makes the host fill a disk, which replaces its volume.
    fn put_in(
        &self,
        step: &Step,
        disk: &DiskName,
        SentImage { ticket, format }: SentImage<'_>,
    ) -> Result<Filled, Failure> {
        let operated = self.operate(&step.task, &step.vm, step.seat, |datastore| {
            let (spec, disk, ticket) = (Box::new(step.vm.told(datastore)?), disk.clone(), ticket.clone());
            Some(OperationKind::ImportDisk { spec, disk, ticket, format })
        })?;
        let mut vm = VmRecord::clone(&step.vm.record);
        let before = vm.hardware.volume(disk);
        let forget = |draft: Draft| match before {
            Some(before) => draft.discard::<VolumeRecord>(&before.to_string()),
            None => draft,
        };
        match operated {
            Operated::Pending(next) => Ok(Filled::Pending(next)),
            Operated::Done(outcome) => {
                if let Some(wait) = self.look_first(step)? {
                    return Ok(Filled::Pending(wait));
                }
                let volumes = OperationOutcome::into_volumes(outcome);
                vm.hardware.forget_volume(disk);
                let kept = keep_volumes(&self.inventory.read(), &mut vm, &volumes, forget(self.draft()));
                Ok(match kept {
                    Ok(draft) => Filled::Done(vm, draft),
                    Err(problem) => Filled::Failed(vm, forget(self.draft()), problem),
                })
            }
            ended => {
                // It may have failed after the old volume was deleted.
                let there = match step.seat.host.volume(vm.id, disk) {
                    Ok(there) => Some(there),
                    Err(HostError::Refused(_)) => None,
                    // A host that does not answer has not said that the volume is gone.
                    Err(error @ HostError::Unreachable(_)) => {
                        self.note(&step.task, format!("waiting for host {}: {error}", step.seat.name))?;
                        return Ok(Filled::Pending(Next::Wait(RETRY_PAUSE)));
                    }
                };
                let mut draft = self.draft();
                if there != before {
                    vm.hardware.forget_volume(disk);
                    draft = forget(draft);
                }
                Ok(Filled::Not(vm, draft, ended))
            }
        }
    }

    /// Undoes the task: an empty disk, or a VM with one, was not requested.
    fn take_back(
        &self,
        step: &Step,
        disk: &DiskName,
        whole: Whole,
        mut vm: VmRecord,
        mut draft: Draft,
        problem: Option<Problem>,
    ) -> Result<Next, Failure> {
        let found = vm.hardware.disks.iter().position(|known| known.name == *disk);
        match (whole, found) {
            (Whole::Disk, Some(at)) => {
                let known = vm.hardware.disks.remove(at);
                if let Some(volume) = known.volume {
                    draft = draft.discard::<VolumeRecord>(&volume.to_string());
                }
                let disk = Box::new(DiskRecord { volume: None, pinned: false, least_generation: 0, ..known });
                self.turn_with(step, Work::UndoAddDisk { disk, problem }, vm, draft)
            }
            (Whole::Disk, None) => self.end(step, &vm, draft, problem.map_or(End::Cancelled, End::Failed)),
            (Whole::Content, _) => self.end(step, &vm, draft, problem.map_or(End::Cancelled, End::Failed)),
            (Whole::Vm, _) => self.turn_with(step, Work::UndoCreate { problem }, vm, draft),
        }
    }
}

/// Returns the disks that must be filled before the requested VM is complete, in the order in which
/// their images are awaited.
///
/// # Errors
/// [`Problem`] if one of them cannot be filled with an image.
pub(super) fn to_be_filled(wish: &CreateVm, vm: &VmRecord) -> Result<Vec<DiskName>, Problem> {
    let disks = wish.disks.iter().zip(&vm.hardware.disks).filter(|(wished, _)| wished.fill);
    let mut fill = Vec::new();
    for name in disks.map(|(_, disk)| disk.name.as_str()).chain(wish.fill_seed.then_some("seed")) {
        let disk = vm.hardware.fillable(name);
        fill.push(disk.ok_or_else(|| {
            problems::invalid(format!("{name} of VM {} cannot be filled with an image", vm.name))
        })?);
    }
    Ok(fill)
}
