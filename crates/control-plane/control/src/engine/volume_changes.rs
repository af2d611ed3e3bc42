//! Changes of volumes, in batches: those that no VM has, and their way to VMs and back.
//!
//! A volume that no VM has is held by a [`VmRecord`] that is no VM (`holds_volume`): it has a
//! directory, a key, snapshots and clones as a VM has them, by the same tasks, and cannot be
//! started. Giving it to a VM, and taking it back, moves its files:
//!
//! ```text
//! bind    wish -> the VM gets the key -> host: the volume moves, the VM has it -> inventory -> the holder is deleted
//! unbind  wish -> host: a holder -> host: the VM has it no more, the volume moves -> inventory
//!              -> the holder gets the key -> host: the holder has it
//! ```
//!
//! What fails is taken back by the host first: each of the two undoes the other. The task works on
//! the VM and on the holder.

use strongroom_api::guard::Parts;
use strongroom_api::limits::VOLUME_CHANGES_MAX;
use strongroom_api::task::{Task, TaskKind};
use strongroom_api::vm::{
    AddDisk, Boot, CreateVm, DiskFrontend, EncryptionWish, Firmware, Growth, Lifecycle, Notes, PowerState,
    RestartPolicy,
};
use strongroom_api::volume::{
    BindVolume, ChangeAnswer, ChangeVolumes, CloneVolume, CreateVolume, DeleteVolume, DeleteVolumeSnapshot,
    ResizeVolume, RevertVolume, SnapshotVolume, UnbindVolume, VolumeChange, VolumeChanges,
};
use strongroom_api::{ErrorCode, Name, ObjectKind, Problem};
use strongroom_host::protocol::{
    DiskChange, HeldVolume, NewVmSnapshot, OperationKind, OperationOutcome, SnapshotChange, VolumeFacts,
};
use strongroom_types::{SnapshotId, VmId};
use strongroom_vm::{Board, Cpus, DiskKind, MemorySize};
use uuid::Uuid;

use super::advance::{End, Next, Step, keep_volumes, without_vm};
use super::clones::{CloneSealing, CloneWish};
use super::disks::{FAILURES_MAX, change_disk, disk_of};
use super::observe::Look;
use super::operate::Operated;
use super::place::{Placed, check};
use super::seal_disks::refuse_of_unfinished;
use super::snapshots::{numbered, snapshot_in, snapshots_of, told_problem};
use super::templates::{linked_clones, refuse_of_template, without_clones};
use super::wishes::{Caller, idle, idle_vm, suspended, volumes_settled};
use super::{Control, RETRY_PAUSE};
use crate::inventory::{Draft, Failure, Index, Row};
use crate::keys::KeyProblem;
use crate::problems;
use crate::records::{
    DatastorePaths, DiskRecord, Holding, Lineage, TaskRecord, VmRecord, VolumeRecord, Work,
};

/// The name of a volume's files in the directory of its holder, unless it was cloned.
const DISK: &str = "disk0";

impl Control {
    /// Requests changes of volumes. Each has its own answer.
    ///
    /// # Errors
    /// [`Problem`] for a batch that is empty or too long.
    pub fn change_volumes(&self, caller: &Caller, wanted: &ChangeVolumes) -> Result<VolumeChanges, Problem> {
        let count = wanted.changes.len();
        if count == 0 || count > VOLUME_CHANGES_MAX {
            let message = format!("changes: a request has 1 to {VOLUME_CHANGES_MAX} changes, not {count}");
            return Err(problems::invalid(message).next("GET /v1/volumes/limits says what is possible"));
        }
        let answer =
            |(at, change): (usize, &VolumeChange)| match self.permitted_change(caller.entry(at), change) {
                Ok(task) => ChangeAnswer::Task(Box::new(task)),
                Err(problem) => ChangeAnswer::Error(problem),
            };
        let changes: Vec<_> = wanted.changes.iter().enumerate().map(answer).collect();
        // With a task, its entry has given the receipt.
        if changes.iter().all(|change| matches!(change, ChangeAnswer::Error(_))) {
            caller.receipt.give();
        }
        Ok(VolumeChanges { changes })
    }

    /// Requests a change that the caller may make.
    fn permitted_change(&self, caller: Caller, change: &VolumeChange) -> Result<Task, Problem> {
        let recorded = |problem: Problem| match self.record_refusal(&caller, "volume_change", &problem) {
            Ok(()) => problem,
            Err(unrecorded) => unrecorded,
        };
        let admitted = self.admit_parts(caller.clone(), None, &Parts::of(change)).map_err(recorded)?;
        // A right that is lost since, or that only the state of the volume asks for.
        self.change_volume(&admitted, change).map_err(|problem| match problem.code {
            ErrorCode::Forbidden => recorded(problem),
            _ => problem,
        })
    }

    fn change_volume(&self, caller: &Caller, change: &VolumeChange) -> Result<Task, Problem> {
        match change {
            VolumeChange::Create(wish) => self.create_volume(caller, wish),
            VolumeChange::Clone(wish) => self.clone_volume(caller, wish),
            VolumeChange::Resize(wish) => self.resize_volume(caller, wish),
            VolumeChange::Snapshot(wish) => self.snapshot_volume(caller, wish),
            VolumeChange::Revert(wish) => self.revert_volume(caller, wish),
            VolumeChange::DeleteSnapshot(wish) => self.delete_volume_snapshot(caller, wish),
            VolumeChange::Bind(wish) => self.bind_volume(caller, wish),
            VolumeChange::Unbind(wish) => self.unbind_volume(caller, wish),
            VolumeChange::Delete(wish) => self.delete_volume(caller, wish),
        }
    }

    fn create_volume(&self, caller: &Caller, wish: &CreateVolume) -> Result<Task, Problem> {
        if self.providers().is_empty() {
            self.ask_providers();
        }
        if let Some(provider) = &wish.key_provider {
            self.must_be_provider(provider)?;
        }
        self.wish(caller, |index, id| {
            name_is_free(index, &wish.name)?;
            let disk = AddDisk {
                size_bytes: wish.size_bytes,
                kind: DiskKind::Data,
                frontend: DiskFrontend::default(),
                fill: false,
                integrity: wish.integrity,
            };
            let (encrypted, provider) = (wish.encrypted, wish.key_provider.clone());
            let encryption = EncryptionWish { encrypted, provider, key: None };
            let datastore = wish.datastore.as_ref().map(ToString::to_string);
            let mut holder = holder(&wish.name, datastore, vec![disk], encryption);
            holder.folder.clone_from(&wish.folder);
            let placed = self.place_holder(index, &holder, id)?;
            let draft = placed.told(self.draft(), id);
            let mut holder = placed.vm;
            holder.hardware.disks.iter_mut().for_each(|disk| disk.thick = wish.thick);
            let task = self.task(id, TaskKind::VolumeCreate, holder.object(), caller);
            let work = Work::Create { fill: Vec::new(), from: None };
            Ok((TaskRecord { vm: Some(holder.id), work, ..task }, draft.create_named(&holder)))
        })
    }

    fn clone_volume(&self, caller: &Caller, wish: &CloneVolume) -> Result<Task, Problem> {
        self.has_provider_of(wish.key_provider.as_ref())?;
        self.wish(caller, |index, id| {
            let Found { owner, disk } = find(index, wish.volume.as_str())?;
            let owner = idle(index, owner)?;
            name_is_free(index, &wish.name)?;
            let wanted = CloneWish {
                name: &wish.name,
                snapshot: wish.snapshot.as_ref().map(|snapshot| snapshot.as_str()),
                linked: wish.linked,
                quiesce_within_s: None,
                sealing: CloneSealing {
                    encrypted: wish.encrypted,
                    integrity: wish.integrity,
                    key_provider: wish.key_provider.clone(),
                },
            };
            let content = self.content_of_clone(index, owner, &wanted)?;
            let caller = &content.asked_for(index, caller, owner)?;
            if disk.kind == DiskKind::Swap {
                let message = format!("{} is a swap disk, which keeps nothing", disk.name);
                return Err(problems::conflict(message).next("clone a disk that keeps data"));
            }
            let of = std::slice::from_ref(disk);
            let encryption = wanted.encryption(owner, of)?;
            let copy = wanted.copy_of(disk, &encryption);
            let datastore =
                wish.datastore.as_ref().map_or_else(|| owner.datastore.to_string(), ToString::to_string);
            let mut made = holder(&wish.name, Some(datastore), vec![copy], encryption);
            made.host = Some(owner.host.to_string());
            let mut made = VmRecord { folder: owner.folder, ..self.place_holder(index, &made, id)?.vm };
            wanted.check_place(owner, &made)?;
            made.origin = Some(owner.lineage_of_clone(wish.linked));
            made.was_encrypted = owner.is_or_was_encrypted();
            for copy in &mut made.hardware.disks {
                (copy.name, copy.thick) = (disk.name.clone(), disk.thick);
            }
            let task = self.task(id, TaskKind::VolumeClone, made.object(), caller);
            let mut draft = wanted.told_clear(self.draft().create_named(&made), of, &made, caller, id);
            if content.new_snapshot.is_some() {
                draft = draft.replace(owner, &VmRecord { task: Some(id), ..VmRecord::clone(&owner.record) });
            }
            let (work, temporary) = content.work(owner);
            Ok((TaskRecord { vm: Some(made.id), work, temporary, ..task }, draft))
        })
    }

    fn resize_volume(&self, caller: &Caller, wish: &ResizeVolume) -> Result<Task, Problem> {
        self.held_wish(caller, wish.volume.as_str(), TaskKind::VolumeResize, |_, held, _| {
            let disk = only_disk(held)?;
            if wish.size_bytes <= disk.size {
                let message = format!("volume {} has {}, and a volume only grows", held.name, disk.size);
                return Err(problems::conflict(message).next("name a larger size"));
            }
            Ok(Work::ResizeDisk { disk: disk.name.clone(), size: wish.size_bytes, failures: 0 })
        })
    }

    fn snapshot_volume(&self, caller: &Caller, wish: &SnapshotVolume) -> Result<Task, Problem> {
        let snapshot = NewVmSnapshot::of_disks(SnapshotId::random(), wish.name.clone());
        if !wish.with.is_empty() {
            let (kind, with) = (TaskKind::VolumeSnapshotCreate, &wish.with);
            return self.snapshot_group(
                caller,
                kind,
                |index| held(index, wish.volume.as_str()),
                with,
                &snapshot,
            );
        }
        self.held_wish(caller, wish.volume.as_str(), TaskKind::VolumeSnapshotCreate, |index, held, _| {
            snapshots_of(index, held).check_new(&snapshot).map_err(told_problem)?;
            Ok(changes_snapshots(SnapshotChange::Create { snapshot: snapshot.clone() }))
        })
    }

    fn revert_volume(&self, caller: &Caller, wish: &RevertVolume) -> Result<Task, Problem> {
        if wish.discard && wish.keep_as.is_some() {
            let message = "the present content is kept under a name, or discarded, and not both";
            return Err(problems::invalid(message).next("leave out `keep_as` or `discard`"));
        }
        let id = SnapshotId::random();
        self.held_wish(caller, wish.volume.as_str(), TaskKind::VolumeSnapshotRevert, |index, held, _| {
            let all = snapshots_of(index, held);
            let to = snapshot_in(&all, held, wish.snapshot.as_str())?.id;
            let name = wish.keep_as.clone().map_or_else(|| numbered(&all, "before-revert"), Ok)?;
            let keep = NewVmSnapshot::of_disks(id, name);
            all.check_new(&keep).map_err(told_problem)?;
            let discard = wish.discard;
            let (disks_only, tpm) = (false, false);
            Ok(changes_snapshots(SnapshotChange::Revert { to, keep, discard, disks_only, tpm }))
        })
    }

    fn delete_volume_snapshot(&self, caller: &Caller, wish: &DeleteVolumeSnapshot) -> Result<Task, Problem> {
        self.held_wish(caller, wish.volume.as_str(), TaskKind::VolumeSnapshotDelete, |index, held, _| {
            let snapshot = snapshot_in(&snapshots_of(index, held), held, wish.snapshot.as_str())?.id;
            Ok(changes_snapshots(SnapshotChange::Delete { snapshot }))
        })
    }

    fn delete_volume(&self, caller: &Caller, wish: &DeleteVolume) -> Result<Task, Problem> {
        self.held_wish(caller, wish.volume.as_str(), TaskKind::VolumeDelete, |index, held, _| {
            if !wish.leave_to_clones {
                without_clones(index, held)?;
            }
            held.lifecycle = Lifecycle::Deleting;
            Ok(Work::Delete)
        })
    }

    fn bind_volume(&self, caller: &Caller, wish: &BindVolume) -> Result<Task, Problem> {
        self.wish(caller, |index, id| {
            let held = idle(index, held(index, wish.volume.as_str())?)?;
            let vm = idle_vm(index, wish.vm.as_str())?;
            self.takes_disks(index, vm, TaskKind::VolumeBind)?;
            let disk = only_disk(held)?;
            let stays = |why: String| problems::conflict(format!("volume {} {why}", held.name));
            if held.datastore != vm.datastore {
                return Err(stays(format!("is not in the datastore of VM {}", vm.name))
                    .next("clone it into that datastore, and bind the clone"));
            }
            if held.host != vm.host {
                let host = self.seat(vm.host).map_or("", |seat| seat.name.as_str());
                return Err(stays(format!("is on another host than VM {}", vm.name))
                    .next(format!("`strongroom vm migrate {} --to {host}` moves it there", held.name)));
            }
            if disk.sealing.key().is_some() != vm.hardware.encrypted() {
                let (one, other) = if vm.hardware.encrypted() { ("not ", "") } else { ("", "not ") };
                return Err(stays(format!("is {one}encrypted, and VM {} is {other}encrypted", vm.name))
                    .next("bind a volume that is sealed as the VM's disks are"));
            }
            if !snapshots_of(index, held).list.is_empty() {
                return Err(stays("has snapshots, which VMs do not take over".to_owned())
                    .next("delete them first, or clone the volume and bind the clone"));
            }
            if !linked_clones(index, held).is_empty() {
                return Err(stays("has linked clones, which find it under its name".to_owned())
                    .next("clone it once more, and bind that clone"));
            }
            let Some(name) = vm.hardware.free_name(disk.kind) else {
                return Err(problems::invalid("too many disks"));
            };
            let shares_with = held.origin.iter().flat_map(|origin| &origin.shares_with).copied().collect();
            let disk = DiskRecord { name, volume_name: Some(held.name.clone()), shares_with, ..disk.clone() };
            let mut with = VmRecord { task: Some(id), ..VmRecord::clone(&vm.record) };
            with.hardware.disks.push(disk.clone());
            check(&with, &DatastorePaths::nowhere(&with))?;
            with.hardware.disks.pop();
            let task = self.task(id, TaskKind::VolumeBind, vm.object(), caller);
            let work = Work::BindVolume { holder: held.id, disk: Box::new(disk), failures: 0 };
            let busy = VmRecord { task: Some(id), ..VmRecord::clone(&held.record) };
            let draft = self.draft().replace(vm, &with).replace(held, &busy);
            Ok((TaskRecord { vm: Some(vm.id), work, ..task }, draft))
        })
    }

    fn unbind_volume(&self, caller: &Caller, wish: &UnbindVolume) -> Result<Task, Problem> {
        self.wish(caller, |index, id| {
            let Found { owner, disk } = find(index, wish.volume.as_str())?;
            if owner.holds_volume {
                return Err(problems::conflict(format!("no VM has volume {}", owner.name)));
            }
            let vm = idle(index, owner)?;
            self.takes_disks(index, vm, TaskKind::VolumeUnbind)?;
            let name = wish.name.clone().or_else(|| disk.volume_name.clone()).ok_or_else(|| {
                problems::invalid("the volume has no name of its own yet").next("name it: `name`")
            })?;
            name_is_free(index, &name)?;
            snapshots_of(index, vm).check_unneeded(&disk.name).map_err(told_problem)?;
            if disk.datastore.is_some() {
                let message = format!("{} of VM {} is in another datastore than its VM", disk.name, vm.name);
                return Err(problems::conflict(message).next(format!(
                    "move it first: `strongroom vm disk move {} {} --to {}`",
                    vm.name,
                    disk.name,
                    index.datastore_name(vm)
                )));
            }
            check_parts(vm, disk)?;
            let mut wanted = holder(
                &name,
                Some(vm.datastore.to_string()),
                Vec::new(),
                EncryptionWish { encrypted: false, ..EncryptionWish::default() },
            );
            wanted.host = Some(vm.host.to_string());
            let holder = VmRecord { folder: vm.folder, ..self.place_holder(index, &wanted, id)?.vm };
            let task = self.task(id, TaskKind::VolumeUnbind, vm.object(), caller);
            let holding = Holding { holder: holder.id, disk: disk.name.clone() };
            let work = Work::MakeHolder { holding };
            let busy = VmRecord { task: Some(id), ..VmRecord::clone(&vm.record) };
            let draft = self.draft().create_named(&holder).replace(vm, &busy);
            Ok((TaskRecord { vm: Some(vm.id), work, ..task }, draft))
        })
    }

    /// Makes the record of a holder: with no machine type, since it is never started.
    fn place_holder(&self, index: &Index, wish: &CreateVm, task: Uuid) -> Result<Placed, Problem> {
        let mut placed = self.place(index, wish, task)?;
        placed.vm.hardware.board = Board::default();
        placed.vm.holds_volume = true;
        Ok(placed)
    }

    /// Checks that a VM's disks can come and go.
    fn takes_disks(&self, index: &Index, vm: &VmRecord, kind: TaskKind) -> Result<(), Problem> {
        refuse_of_template(vm, kind)?;
        refuse_of_unfinished(vm, kind)?;
        let power = self.power_of(index, vm);
        if power == PowerState::Suspended {
            return Err(suspended(vm, "its memory fits it as it is"));
        }
        volumes_settled(vm, power)
    }

    /// A request about a volume that no VM has.
    fn held_wish(
        &self,
        caller: &Caller,
        named: &str,
        kind: TaskKind,
        change: impl Fn(&Index, &mut VmRecord, PowerState) -> Result<Work, Problem>,
    ) -> Result<Task, Problem> {
        self.wish_about(caller, kind, |index| idle(index, held(index, named)?), change)
    }

    pub(super) fn bind_the_volume(
        &self,
        step: &Step,
        holder: VmId,
        disk: &DiskRecord,
        failures: u32,
    ) -> Result<Next, Failure> {
        let Some(held) = self.holder_of(step, holder) else {
            let problem = problems::conflict("the volume does not exist any more");
            return self.end(step, &step.vm, self.draft(), End::Failed(problem));
        };
        match self.give_key(step, disk, holder, step.vm.id)? {
            KeyGiven::Yes => {}
            KeyGiven::NotYet(next) => return Ok(next),
            KeyGiven::Never(problem) => return self.end_with_holder(step, &held, End::Failed(problem)),
        }
        let operated = self.operate(&step.task, &step.vm, step.seat, |datastore| {
            let (disk, from) = (Box::new(disk.told(datastore)?), place_in(&held)?);
            change_disk(step, datastore, DiskChange::Bind { disk, from })
        })?;
        let again = || Work::BindVolume { holder, disk: Box::new(disk.clone()), failures: failures + 1 };
        let undo = |problem| Work::UndoBind { holder, disk: Box::new(disk.clone()), problem };
        let vm = VmRecord::clone(&step.vm.record);
        let problem = match operated {
            Operated::Pending(next) => return Ok(next),
            Operated::Done(outcome) => return self.bound(step, &held, disk, outcome),
            Operated::Failed(problem) => match self.tries_once_more(step, &problem, again(), failures)? {
                Some(next) => return Ok(next),
                None => Some(problem),
            },
            Operated::Cancelled | Operated::Forgotten => None,
        };
        self.turn(step, undo(problem), vm)
    }

    /// The VM has the volume.
    fn bound(
        &self,
        step: &Step,
        held: &Row<VmRecord>,
        disk: &DiskRecord,
        outcome: Option<OperationOutcome>,
    ) -> Result<Next, Failure> {
        let mut vm = VmRecord::clone(&step.vm.record);
        vm.hardware.disks.push(disk.clone());
        vm.was_encrypted |= held.is_or_was_encrypted();
        let volumes = OperationOutcome::into_volumes(outcome);
        let holder = held.id;
        match self.with_volume(&mut vm, disk, volumes) {
            Ok(draft) => {
                // It has nothing more, and is deleted.
                let mut empty = VmRecord::clone(&held.record);
                (empty.hardware.disks, empty.lifecycle) = (Vec::new(), Lifecycle::Deleting);
                let draft = draft.replace(held, &empty);
                self.turn_with(step, Work::DropHolder { holder, gives_up: false, problem: None }, vm, draft)
            }
            Err(problem) => {
                let undo = Work::UndoBind { holder, disk: Box::new(disk.clone()), problem: Some(problem) };
                self.turn(step, undo, VmRecord::clone(&step.vm.record))
            }
        }
    }

    /// Gives the volume back to its holder.
    pub(super) fn undo_bind(
        &self,
        step: &Step,
        holder: VmId,
        disk: &DiskRecord,
        problem: Option<&Problem>,
    ) -> Result<Next, Failure> {
        let Some(held) = self.holder_of(step, holder) else {
            return self.end(step, &step.vm, self.draft(), End::Cancelled);
        };
        let operated = self.operate_unless_cancelled(step, &step.vm, |datastore| {
            change_disk(step, datastore, DiskChange::Unbind { disk: disk.name.clone(), to: place_in(&held)? })
        })?;
        match operated {
            Operated::Pending(next) => return Ok(next),
            Operated::Failed(failure) => {
                tracing::warn!(vm = %step.vm.name, %failure, "a volume may not be back where it was");
            }
            Operated::Done(_) | Operated::Cancelled | Operated::Forgotten => {}
        }
        if let KeyGiven::NotYet(next) = self.give_key(step, disk, step.vm.id, holder)? {
            return Ok(next);
        }
        let end = problem.map_or(End::Cancelled, |problem| End::Failed(problem.clone()));
        self.end_with_holder(step, &held, end)
    }

    /// Deletes an empty holder, and ends the task.
    pub(super) fn drop_holder(
        &self,
        step: &Step,
        holder: VmId,
        gives_up: bool,
        problem: Option<&Problem>,
    ) -> Result<Next, Failure> {
        let end = match problem {
            Some(problem) => End::Failed(problem.clone()),
            None if gives_up => End::Cancelled,
            None => End::Done,
        };
        let Some(held) = self.holder_of(step, holder) else {
            return self.end(step, &step.vm, self.draft(), end);
        };
        let operated = self.operate_unless_cancelled(step, &held, |_| Some(OperationKind::Delete))?;
        if let Operated::Pending(next) = operated {
            return Ok(next);
        }
        // What cannot be deleted is an empty directory: the alarm for orphans names it.
        let draft = without_vm(self.draft(), &held);
        self.end(step, &step.vm, draft, end)
    }

    /// Has the host make the directory for a volume that leaves a VM.
    pub(super) fn make_holder(&self, step: &Step, holding: &Holding) -> Result<Next, Failure> {
        let Some(held) = self.holder_of(step, holding.holder) else {
            return self.end(step, &step.vm, self.draft(), End::Cancelled);
        };
        let operated = self.operate(&step.task, &held, step.seat, |datastore| {
            Some(OperationKind::Create { spec: Box::new(held.told(datastore)?), from: None })
        })?;
        let vm = VmRecord::clone(&step.vm.record);
        let problem = match operated {
            Operated::Pending(next) => return Ok(next),
            Operated::Done(_) => {
                return self.turn(step, Work::UnbindVolume { holding: holding.clone(), failures: 0 }, vm);
            }
            Operated::Failed(problem) => Some(problem),
            Operated::Cancelled | Operated::Forgotten => None,
        };
        self.turn(step, Work::DropHolder { holder: holding.holder, gives_up: true, problem }, vm)
    }

    pub(super) fn unbind_the_volume(
        &self,
        step: &Step,
        holding: &Holding,
        failures: u32,
    ) -> Result<Next, Failure> {
        let vm = VmRecord::clone(&step.vm.record);
        let (Some(held), Some(disk)) =
            (self.holder_of(step, holding.holder), step.vm.hardware.disk(holding.disk.as_str()).cloned())
        else {
            return self.end(step, &vm, self.draft(), End::Cancelled);
        };
        let operated = self.operate(&step.task, &step.vm, step.seat, |datastore| {
            change_disk(step, datastore, DiskChange::Unbind { disk: disk.name.clone(), to: place_in(&held)? })
        })?;
        let again = || Work::UnbindVolume { holding: holding.clone(), failures: failures + 1 };
        let problem = match operated {
            Operated::Pending(next) => return Ok(next),
            Operated::Done(outcome) => return self.unbound(step, &held, &disk, outcome),
            Operated::Failed(problem) => match self.tries_once_more(step, &problem, again(), failures)? {
                Some(next) => return Ok(next),
                None => Some(problem),
            },
            Operated::Cancelled | Operated::Forgotten => None,
        };
        self.turn(step, Work::UndoUnbind { holding: holding.clone(), problem }, vm)
    }

    /// Gives the volume back to the VM.
    pub(super) fn undo_unbind(
        &self,
        step: &Step,
        holding: &Holding,
        problem: Option<&Problem>,
    ) -> Result<Next, Failure> {
        let held = self.holder_of(step, holding.holder);
        let disk = step.vm.hardware.disk(holding.disk.as_str());
        if let (Some(held), Some(disk)) = (held, disk) {
            let operated = self.operate_unless_cancelled(step, &step.vm, |datastore| {
                let (disk, from) = (Box::new(disk.told(datastore)?), place_in(&held)?);
                change_disk(step, datastore, DiskChange::Bind { disk, from })
            })?;
            match operated {
                Operated::Pending(next) => return Ok(next),
                Operated::Failed(failure) => {
                    tracing::warn!(vm = %step.vm.name, %failure, "a disk may not be back where it was");
                }
                Operated::Done(_) | Operated::Cancelled | Operated::Forgotten => {}
            }
        }
        let work = Work::DropHolder { holder: holding.holder, gives_up: true, problem: problem.cloned() };
        self.turn(step, work, VmRecord::clone(&step.vm.record))
    }

    /// The holder has the volume's files.
    fn unbound(
        &self,
        step: &Step,
        held: &Row<VmRecord>,
        disk: &DiskRecord,
        outcome: Option<OperationOutcome>,
    ) -> Result<Next, Failure> {
        let mut vm = VmRecord::clone(&step.vm.record);
        vm.hardware.disks.retain(|known| known.name != disk.name);
        vm.hardware.boot.without_disk(&disk.name);
        let volumes = OperationOutcome::into_volumes(outcome);
        let kept = keep_volumes(&self.inventory.read(), &mut vm, &volumes, self.draft());
        let give_up = |problem| {
            let holding = Holding { holder: held.id, disk: disk.name.clone() };
            let work = Work::UndoUnbind { holding, problem: Some(problem) };
            self.turn(step, work, VmRecord::clone(&step.vm.record))
        };
        let (mut draft, place) = match (kept, place_in(held)) {
            (Ok(draft), Some(place)) => (draft, place),
            (Ok(_), None) => {
                return give_up(problems::invalid(format!("{} is no name of a volume", held.name)));
            }
            (Err(problem), _) => return give_up(problem),
        };
        let mut holder = VmRecord::clone(&held.record);
        if let Some(volume) = disk.volume {
            draft = draft.put(&VolumeRecord { volume, vm: holder.id, disk: place.disk.clone() });
        }
        if !disk.shares_with.is_empty() {
            let shares_with = disk.shares_with.clone();
            holder.origin = Some(Lineage { vm: vm.id, name: vm.name.clone(), shares_with });
        }
        let moved =
            DiskRecord { name: place.disk, volume_name: None, shares_with: Vec::new(), ..disk.clone() };
        holder.hardware.disks = vec![moved];
        holder.was_encrypted = step.vm.is_or_was_encrypted();
        let work = Work::KeepVolume { holder: holder.id, failures: 0 };
        self.turn_with(step, work, vm, draft.replace(held, &holder))
    }

    /// Gives the holder the key, and has the host record that the volume is the holder's.
    pub(super) fn keep_the_volume(&self, step: &Step, holder: VmId, failures: u32) -> Result<Next, Failure> {
        let Some(held) = self.holder_of(step, holder) else {
            return self.end(step, &step.vm, self.draft(), End::Done);
        };
        let end = |end| self.end_with_holder(step, &held, end);
        for disk in &held.hardware.disks {
            match self.give_key(step, disk, step.vm.id, holder)? {
                KeyGiven::Yes => {}
                KeyGiven::NotYet(next) => return Ok(next),
                KeyGiven::Never(problem) => return end(End::Failed(problem)),
            }
        }
        let operated = self.operate_unless_cancelled(step, &held, |datastore| {
            Some(OperationKind::Configure { spec: Box::new(held.told(datastore)?) })
        })?;
        match operated {
            Operated::Pending(next) => Ok(next),
            Operated::Done(_) | Operated::Cancelled | Operated::Forgotten => end(End::Done),
            Operated::Failed(problem) if failures < FAILURES_MAX => {
                tracing::info!(volume = %held.name, %problem, "trying again to record whose it is");
                let work = Work::KeepVolume { holder, failures: failures + 1 };
                self.turn(step, work, VmRecord::clone(&step.vm.record))?;
                Ok(Next::Wait(RETRY_PAUSE))
            }
            Operated::Failed(problem) => end(End::Failed(problem)),
        }
    }

    /// Lets hosts fetch a volume's key for another owner.
    fn give_key(&self, step: &Step, disk: &DiskRecord, from: VmId, to: VmId) -> Result<KeyGiven, Failure> {
        let Some(key) = disk.sealing.key() else { return Ok(KeyGiven::Yes) };
        Ok(match self.keys.hand_over(key, from, to) {
            Ok(()) => KeyGiven::Yes,
            Err(KeyProblem::Unavailable(reason)) => {
                self.note_key(&step.task, format!("waiting for {key}: {reason}"))?;
                KeyGiven::NotYet(Next::Wait(RETRY_PAUSE))
            }
            Err(KeyProblem::Refused(reason)) => {
                let message = format!("{key} cannot be handed over: {reason}");
                KeyGiven::Never(Problem::new(ErrorCode::KeyRevoked, message))
            }
        })
    }

    /// Records that a volume is the VM's, and no longer its holder's.
    fn with_volume(
        &self,
        vm: &mut VmRecord,
        disk: &DiskRecord,
        volumes: Vec<VolumeFacts>,
    ) -> Result<Draft, Problem> {
        let mut draft = self.draft();
        let (bound, others): (Vec<_>, Vec<_>) =
            volumes.into_iter().partition(|facts| facts.disk == disk.name);
        for facts in bound {
            if disk.volume.is_some_and(|volume| volume != facts.volume) {
                let message = format!("{} of VM {} is not the volume that was bound", disk.name, vm.name);
                return Err(Problem::new(ErrorCode::HostFailed, message));
            }
            let least = vm.hardware.disks.iter_mut().filter(|known| known.name == disk.name);
            least.for_each(|known| known.least_generation = known.least_generation.max(facts.generation));
            draft = draft.put(&VolumeRecord { volume: facts.volume, vm: vm.id, disk: disk.name.clone() });
        }
        keep_volumes(&self.inventory.read(), vm, &others, draft)
    }

    /// The holder that this task works on.
    fn holder_of(&self, step: &Step, holder: VmId) -> Option<Row<VmRecord>> {
        let found = self.inventory.read().vm(holder).cloned();
        found.filter(|found| found.holds_volume && found.task == Some(step.task.task.id))
    }

    /// Ends the task, and releases its VM and its holder.
    fn end_with_holder(&self, step: &Step, held: &Row<VmRecord>, end: End) -> Result<Next, Failure> {
        if let Look::Unanswered(reason) = self.look_at(step.seat, held.id)? {
            self.note(&step.task, reason)?;
            return Ok(Next::Wait(RETRY_PAUSE));
        }
        let free = VmRecord { task: None, lifecycle: Lifecycle::Present, ..VmRecord::clone(&held.record) };
        self.end(step, &step.vm, self.draft().replace(held, &free), end)
    }
}

/// Whether hosts can fetch a key for its new owner.
enum KeyGiven {
    Yes,
    NotYet(Next),
    Never(Problem),
}

/// A volume, and the VM or holder that has it.
pub(super) struct Found<'index> {
    pub(super) owner: &'index Row<VmRecord>,
    pub(super) disk: &'index DiskRecord,
}

/// Returns the volume with this id, this name of its own, or this VM and disk.
pub(super) fn find<'index>(index: &'index Index, named: &str) -> Result<Found<'index>, Problem> {
    let none = || problems::not_found(ObjectKind::Volume, named);
    let in_vm = |owner: &'index Row<VmRecord>, disk: &str| {
        owner.hardware.disk(disk).map(|disk| Found { owner, disk }).ok_or_else(none)
    };
    if let Some((vm, disk)) = named.split_once('/') {
        return in_vm(index.find_vm(vm).ok_or_else(none)?, disk);
    }
    if let Some(held) = index.find_holder(named) {
        return Ok(Found { owner: held, disk: held.hardware.disks.first().ok_or_else(none)? });
    }
    let known = named.parse().ok().and_then(|id| index.volume(id)).ok_or_else(none)?;
    in_vm(index.vm(known.vm).ok_or_else(none)?, known.disk.as_str())
}

/// Returns the holder of the volume with this name or id.
fn held<'index>(index: &'index Index, named: &str) -> Result<&'index Row<VmRecord>, Problem> {
    let Found { owner, disk } = find(index, named)?;
    if owner.holds_volume {
        return Ok(owner);
    }
    let message = format!("volume {named} is {} of VM {}", disk.name, owner.name);
    Err(Problem::new(ErrorCode::InUse, message)
        .next("change it with its VM (`strongroom vm disk`, `strongroom vm snapshot`), or unbind it first"))
}

fn only_disk(held: &VmRecord) -> Result<&DiskRecord, Problem> {
    held.hardware
        .disks
        .first()
        .ok_or_else(|| problems::conflict(format!("volume {} is not there", held.name)))
}

/// Checks that a disk can leave its VM with its volume.
fn check_parts(vm: &VmRecord, disk: &DiskRecord) -> Result<(), Problem> {
    if disk.kind == DiskKind::Swap {
        let message = format!("{} of VM {} is a swap disk, which keeps nothing", disk.name, vm.name);
        return Err(problems::conflict(message).next("remove it with `strongroom vm disk remove`"));
    }
    if vm.hardware.disks.first() == Some(disk) {
        let message = format!("{} is the first disk of VM {}: it starts from it", disk.name, vm.name);
        return Err(problems::conflict(message).next("clone it, and keep the clone"));
    }
    let others = || vm.hardware.disks.iter().filter(|other| other.name != disk.name);
    if disk.sealing.key().is_some() && others().any(|other| other.sealing.key() == disk.sealing.key()) {
        let message =
            format!("{} of VM {} is under the VM's key, which stays with the VM", disk.name, vm.name);
        return Err(problems::conflict(message).next("clone it: a clone has a key of its own"));
    }
    disk_of(vm, disk.name.as_str()).map(drop)
}

pub(super) fn name_is_free(index: &Index, name: &Name) -> Result<(), Problem> {
    match index.find_any(name.as_str()) {
        Some(taken) => Err(problems::name_taken(taken.kind(), name.as_str())),
        None => Ok(()),
    }
}

fn changes_snapshots(change: SnapshotChange) -> Work {
    Work::ChangeSnapshots { change, failures: 0, makes_template: false }
}

/// Where a host finds the files of a held volume.
fn place_in(held: &VmRecord) -> Option<HeldVolume> {
    let disk = held.hardware.disks.first().map_or_else(|| DISK.parse().ok(), |disk| Some(disk.name.clone()));
    Some(HeldVolume { holder: held.id, name: held.directory().as_str().parse().ok()?, disk: disk? })
}

/// The request for a holder: the least machine that a host takes. It is never started.
fn holder(
    name: &Name,
    datastore: Option<String>,
    disks: Vec<AddDisk>,
    encryption: EncryptionWish,
) -> CreateVm {
    CreateVm {
        name: name.clone(),
        datastore,
        host: None,
        folder: None,
        placement_group: None,
        policy: None,
        board: Board::default(),
        firmware: Firmware::Bios,
        cpus: Cpus::default(),
        memory_bytes: MemorySize::MIN,
        growth: Growth::default(),
        disks,
        nics: Some(Vec::new()),
        tpm: false,
        seed: false,
        fill_seed: false,
        boot: Boot::default(),
        cdrom: strongroom_api::vm::Cdrom::default(),
        encryption,
        restart: RestartPolicy::default(),
        notes: Notes::default(),
        tags: Vec::new(),
    }
}
