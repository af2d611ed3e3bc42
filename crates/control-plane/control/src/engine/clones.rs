//! Clones: new VMs that begin with the content of another one.
//!
//! A clone is made like a new VM, with the hardware of its origin, and with a key, an id,
//! addresses, a TPM and a seed of its own. Its host copies the volumes, re-encrypted, before the VM
//! has its name. The volumes of a linked clone share the layers of a snapshot instead:
//!
//! ```text
//! linked      the clone's key -> the origin's new snapshot, unless one was named -> the clone's volumes
//! of a VM     the clone's key -> the origin's temporary snapshot -> the clone's volumes, copied -> the clone is there
//!   that runs                        `-> what fails is taken back --------------------------------> or is not
//!                                                                             -> the temporary snapshot is deleted
//! ```
//!
//! The task works on the origin, too, until it has the snapshot, and again while it deletes it.
//! Between the two, other tasks may. Whoever is killed, the task has the snapshot's id from the
//! beginning, and does not end while its host reports it: [`super::temporary`].

use strongroom_api::guard::Part;
use strongroom_api::task::{Task, TaskKind};
use strongroom_api::vm::{AddDisk, Boot, CloneVm, CreateVm, EncryptionWish, Nic, Notes};
use strongroom_api::{ErrorCode, Name, Problem};
use strongroom_host::protocol::{
    CloneSource, DiskName, NewVmSnapshot, OperationKind, OperationOutcome, SnapshotChange, VmSnapshots,
};
use strongroom_types::{SnapshotId, VmId};
use strongroom_vm::{DiskKind, QuiesceWithin};
use uuid::Uuid;

use super::access;
use super::advance::{Next, Step, keep_volumes};
use super::disks::failures_max;
use super::observe::Look;
use super::operate::Operated;
use super::place::{Placed, provider_of};
use super::snapshots::{check_quiesce, free_name, snapshot_in, snapshots_of, told_problem};
use super::volume_changes::name_is_free;
use super::wishes::{Caller, idle_vm, volumes_settled};
use super::{Control, RETRY_PAUSE};
use crate::inventory::{Draft, Failure, Index, Row};
use crate::problems;
use crate::records::{CloneOf, DiskRecord, DiskSealing, TaskRecord, TemporarySnapshot, VmRecord, Work};

/// What a clone begins with.
pub(super) struct CloneWish<'a> {
    pub(super) name: &'a Name,
    pub(super) snapshot: Option<&'a str>,
    pub(super) linked: bool,
    pub(super) quiesce_within_s: Option<QuiesceWithin>,
    pub(super) sealing: CloneSealing,
}

/// How a copy is stored; what is absent is as in its origin.
#[derive(PartialEq, Eq, Default)]
pub(super) struct CloneSealing {
    pub(super) encrypted: Option<bool>,
    pub(super) integrity: Option<bool>,
    pub(super) key_provider: Option<Name>,
}

impl CloneWish<'_> {
    /// How a copy of these disks of a VM or volume is sealed.
    pub(super) fn encryption(
        &self,
        origin: &VmRecord,
        disks: &[DiskRecord],
    ) -> Result<EncryptionWish, Problem> {
        let asked = &self.sealing;
        if self.linked && *asked != CloneSealing::default() {
            let message = "a linked clone shares layers, which stay as they are";
            return Err(problems::invalid(message)
                .next("leave out `encrypted`, `integrity` and `key_provider`, or make a full clone"));
        }
        let mut sealed = disks.iter().filter(|disk| disk.sealing != DiskSealing::Clear);
        let (key, count) = (sealed.clone().find_map(|disk| disk.sealing.key()), sealed.by_ref().count());
        if asked.encrypted.is_none() && count > 0 && count < disks.len() {
            let message =
                format!("some disks of {} are encrypted, and others are not", problems::called(origin));
            return Err(problems::conflict(message)
                .next("say how all of the copy are to be stored: --encrypt or --unencrypted"));
        }
        let encrypted = asked.encrypted.unwrap_or(count > 0);
        let of_origin = || key.map(provider_of).transpose();
        let provider = match &asked.key_provider {
            Some(provider) => Some(provider.clone()),
            None if encrypted => of_origin()?,
            None => None,
        };
        Ok(EncryptionWish { encrypted, provider, key: None })
    }

    /// The request for a copy of a disk, sealed in this way.
    pub(super) fn copy_of(&self, disk: &DiskRecord, encryption: &EncryptionWish) -> AddDisk {
        let asked = self.sealing.integrity;
        let as_before = disk.integrity && encryption.encrypted;
        AddDisk {
            size_bytes: disk.size,
            kind: disk.kind,
            frontend: disk.frontend,
            fill: false,
            integrity: asked.map_or(as_before, |asked| asked && disk.kind == DiskKind::Data),
        }
    }

    /// An event that says that a copy of what is encrypted is not, if that is so.
    pub(super) fn told_clear(
        &self,
        draft: Draft,
        disks: &[DiskRecord],
        clone: &VmRecord,
        caller: &Caller,
        task: Uuid,
    ) -> Draft {
        let was_sealed = disks.iter().any(|disk| disk.sealing != DiskSealing::Clear);
        if !was_sealed || clone.hardware.encrypted() {
            return draft;
        }
        let message = format!(
            "{} is an unencrypted copy of what is encrypted, by {}",
            problems::called(clone),
            caller.name
        );
        draft.event("vm.copied_in_the_clear", &clone.object(), message, Some(task))
    }

    /// Checks that the clone can be made where it is placed.
    pub(super) fn check_place(&self, origin: &VmRecord, clone: &VmRecord) -> Result<(), Problem> {
        let called = problems::called(origin);
        if let Some(disk) = origin.disk_elsewhere().filter(|_| self.linked) {
            let message =
                format!("{} of {called} is in another datastore, where a clone shares nothing", disk.name);
            return Err(problems::conflict(message).next(format!(
                "make a full clone, or move it back: `strongroom vm disk move {} {} --to DATASTORE`",
                origin.name, disk.name
            )));
        }
        if self.linked && clone.datastore != origin.datastore {
            let message = format!("{called} is in another datastore, and shares nothing there");
            return Err(problems::invalid(message).next("leave out the datastore, or make a full clone"));
        }
        Ok(())
    }
}

/// The snapshot that a clone begins with, or one that is made first; neither for what its origin
/// has while it is off.
pub(super) struct CloneContent {
    pub(super) snapshot: Option<SnapshotId>,
    pub(super) new_snapshot: Option<NewVmSnapshot>,
    linked: bool,
}

impl CloneContent {
    /// The caller of the request for a clone of this VM. What the clone leaves there takes what a
    /// snapshot does.
    pub(super) fn asked_for(&self, index: &Index, caller: &Caller, of: &VmRecord) -> Result<Caller, Problem> {
        match self.new_snapshot {
            Some(_) if self.linked => access::asked_for(index, caller, Part::Snapshot, of.id),
            _ => Ok(caller.clone()),
        }
    }

    /// The work of a task that makes the clone of this VM, with the snapshot that it deletes when
    /// everything is copied.
    pub(super) fn work(self, of: &VmRecord) -> (Work, Option<TemporarySnapshot>) {
        let Self { snapshot, new_snapshot, linked } = self;
        let temporary = new_snapshot.as_ref().filter(|_| !linked).map(|made| TemporarySnapshot {
            vm: of.id,
            snapshot: made.id,
            name: made.name.clone(),
        });
        let from = CloneOf { vm: of.id, snapshot, new_snapshot, linked, failures: 0 };
        (Work::Create { fill: Vec::new(), from: Some(from) }, temporary)
    }
}

impl Control {
    /// Requests a clone of a VM, or of a snapshot of it. For a linked clone, and for one of a VM
    /// that runs, a snapshot is made unless one is named.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn clone_vm(&self, caller: &Caller, named: &str, wish: &CloneVm) -> Result<Task, Problem> {
        self.has_provider_of(wish.key_provider.as_ref())?;
        let task = self.wish(caller, |index, id| {
            // What the caller may do depends on the origin: without it, nothing else is told.
            let origin = idle_vm(index, named)?;
            name_is_free(index, &wish.name)?;
            let wanted = CloneWish {
                name: &wish.name,
                snapshot: wish.snapshot.as_deref(),
                linked: wish.linked,
                quiesce_within_s: wish.quiesce_within_s,
                sealing: CloneSealing {
                    encrypted: wish.encrypted,
                    integrity: wish.integrity,
                    key_provider: wish.key_provider.clone(),
                },
            };
            let content = self.content_of_clone(index, origin, &wanted)?;
            let caller = &content.asked_for(index, caller, origin)?;
            let Placed { mut vm, .. } = self.place(index, &like(origin, wish, &wanted)?, id)?;
            vm.folder = origin.folder;
            wanted.check_place(origin, &vm)?;
            vm.origin = Some(origin.lineage_of_clone(wish.linked));
            vm.was_encrypted = origin.is_or_was_encrypted();
            for (disk, of) in vm.hardware.disks.iter_mut().zip(&origin.hardware.disks) {
                (disk.name, disk.limits) = (of.name.clone(), of.limits);
                disk.thick = of.thick || (disk.thick && !wish.linked);
            }
            vm.hardware.limits = origin.hardware.limits;
            vm.hardware.boot = origin.hardware.boot.clone();
            let task = self.task(id, TaskKind::VmClone, vm.object(), caller);
            let mut draft = self.with_demanded_schedule(index, &vm, self.draft().create_named(&vm));
            draft = wanted.told_clear(draft, &origin.hardware.disks, &vm, caller, id);
            if content.new_snapshot.is_some() {
                draft =
                    draft.replace(origin, &VmRecord { task: Some(id), ..VmRecord::clone(&origin.record) });
            }
            let (work, temporary) = content.work(origin);
            Ok((TaskRecord { vm: Some(vm.id), work, temporary, ..task }, draft))
        })?;
        self.hasten_schedule_of(&task);
        Ok(task)
    }

    /// Checks that the key provider of a copy exists.
    pub(super) fn has_provider_of(&self, provider: Option<&Name>) -> Result<(), Problem> {
        provider.map_or(Ok(()), |provider| self.must_be_provider(provider))
    }

    /// Returns the content of a clone: a snapshot of its origin, a new one, or what the origin has
    /// while it is off.
    pub(super) fn content_of_clone(
        &self,
        index: &Index,
        origin: &VmRecord,
        wish: &CloneWish<'_>,
    ) -> Result<CloneContent, Problem> {
        let power = self.power_of(index, origin);
        let all = snapshots_of(index, origin);
        let mut content = CloneContent { snapshot: None, new_snapshot: None, linked: wish.linked };
        match wish.snapshot {
            Some(named) => content.snapshot = Some(snapshot_in(&all, origin, named)?.id),
            None if origin.template.is_some() => content.snapshot = origin.template,
            None => {
                volumes_settled(origin, power)?;
                let quiesce_within_s = wish.quiesce_within_s;
                if quiesce_within_s.is_some() {
                    check_quiesce(origin, power)?;
                }
                // The disks of a VM that is off do not change while they are copied.
                if wish.linked || power.is_on() {
                    let snapshot = snapshot_for(&all, wish.name)?;
                    content.new_snapshot = Some(NewVmSnapshot { quiesce_within_s, ..snapshot });
                }
            }
        }
        if wish.quiesce_within_s.is_some() && content.snapshot.is_some() {
            let message = "no snapshot is made for this clone, so no guest becomes quiet for it";
            return Err(problems::invalid(message).next(
                "make a quiesced snapshot first: `strongroom vm snapshot create --quiesce`, and clone it",
            ));
        }
        Ok(content)
    }

    /// Has the host make the snapshot that a clone begins with.
    pub(super) fn snapshot_origin(
        &self,
        step: &Step,
        fill: &[DiskName],
        from: &CloneOf,
        snapshot: &NewVmSnapshot,
    ) -> Result<Next, Failure> {
        let Some(origin) = self.origin_held(step, from.vm) else {
            return self.drop_unmade(step, Some(origin_gone()));
        };
        let change = SnapshotChange::Create { snapshot: snapshot.clone() };
        let operated = self.operate(&step.task, &origin, step.seat, |datastore| {
            Some(OperationKind::ChangeSnapshots { spec: Box::new(origin.told(datastore)?), change })
        })?;
        let vm = VmRecord::clone(&step.vm.record);
        match operated {
            Operated::Pending(next) => Ok(next),
            Operated::Done(outcome) => {
                if let Look::Unanswered(reason) = self.look_at(step.seat, origin.id)? {
                    self.note(&step.task, reason)?;
                    return Ok(Next::Wait(RETRY_PAUSE));
                }
                let volumes = OperationOutcome::into_volumes(outcome);
                let mut free = VmRecord { task: None, ..VmRecord::clone(&origin.record) };
                let kept = keep_volumes(&self.inventory.read(), &mut free, &volumes, self.draft());
                let draft = match kept {
                    Ok(draft) => draft.replace(&origin, &free),
                    Err(problem) => return self.drop_unmade(step, Some(problem)),
                };
                let from =
                    CloneOf { snapshot: Some(snapshot.id), new_snapshot: None, failures: 0, ..from.clone() };
                let work = Work::Create { fill: fill.to_vec(), from: Some(from) };
                self.turn_with(step, work, vm, draft)
            }
            Operated::Failed(problem) => {
                if from.failures >= failures_max(problem.code) || step.task.task.cancelling {
                    return self.drop_unmade(step, Some(problem));
                }
                let from = CloneOf { failures: from.failures + 1, ..from.clone() };
                self.turn(step, Work::Create { fill: fill.to_vec(), from: Some(from) }, vm)?;
                Ok(Next::Wait(RETRY_PAUSE))
            }
            Operated::Cancelled | Operated::Forgotten => self.drop_unmade(step, None),
        }
    }

    /// The origin of a clone, as long as the task works on it.
    fn origin_held(&self, step: &Step, origin: VmId) -> Option<Row<VmRecord>> {
        let origin = self.inventory.read().vm(origin).cloned();
        origin.filter(|origin| origin.task == Some(step.task.task.id))
    }

    /// Releases the origin of a clone, if the task still works on it.
    pub(super) fn release_origin(&self, task: &TaskRecord, draft: Draft) -> Draft {
        let Work::Create { from: Some(CloneOf { vm, .. }), .. } = &task.work else { return draft };
        let origin = self.inventory.read().vm(*vm).cloned();
        match origin.filter(|origin| origin.task == Some(task.task.id)) {
            Some(origin) => {
                draft.replace(&origin, &VmRecord { task: None, ..VmRecord::clone(&origin.record) })
            }
            None => draft,
        }
    }

    /// Converts the origin of a clone for its host, without grants; `None` if it is gone, or lacks
    /// a key.
    pub(super) fn origin_told(&self, of: &CloneOf) -> Option<CloneSource> {
        let origin = self.inventory.read().vm(of.vm).cloned()?;
        let spec = origin.told(&self.datastore_paths(&origin)?)?;
        Some(CloneSource { spec, snapshot: of.snapshot, linked: of.linked, grants: Vec::new() })
    }
}

impl CloneOf {
    /// The origin for another attempt after the host could not read it yet; `None` if it will not
    /// be able to, or was tried often enough.
    pub(super) fn after(&self, problem: &Problem) -> Option<Self> {
        let is_for_now = problem.code == ErrorCode::TooMany && self.failures < failures_max(problem.code);
        is_for_now.then(|| Self { failures: self.failures + 1, ..self.clone() })
    }
}

/// The snapshot that is made for a clone, named after it.
fn snapshot_for(all: &VmSnapshots, clone: &Name) -> Result<NewVmSnapshot, Problem> {
    let name = free_name(all, &format!("clone-{clone}"))?;
    let snapshot = NewVmSnapshot::of_disks(SnapshotId::random(), name);
    all.check_new(&snapshot).map_err(told_problem)?;
    Ok(snapshot)
}

/// The request for a VM with the hardware of another one.
fn like(origin: &VmRecord, wish: &CloneVm, wanted: &CloneWish<'_>) -> Result<CreateVm, Problem> {
    let hardware = &origin.hardware;
    let encryption = wanted.encryption(origin, &hardware.disks)?;
    Ok(CreateVm {
        name: wish.name.clone(),
        datastore: Some(wish.datastore.clone().unwrap_or_else(|| origin.datastore.to_string())),
        // Its host reads the origin.
        host: Some(origin.host.to_string()),
        folder: None,
        policy: origin.policy.map(|policy| policy.to_string()),
        placement_group: None,
        board: hardware.board.clone(),
        firmware: hardware.firmware,
        cpus: hardware.cpus,
        memory_bytes: hardware.memory,
        growth: hardware.growth,
        disks: hardware.disks.iter().map(|disk| wanted.copy_of(disk, &encryption)).collect(),
        nics: Some(hardware.nics.iter().map(|nic| Nic { mac: None, ..nic.clone() }).collect()),
        tpm: hardware.tpm,
        seed: hardware.seed,
        fill_seed: false,
        // The order names disks, which get their names later.
        boot: Boot::of(hardware.boot.kernel(), Vec::new()),
        cdrom: hardware.cdrom.clone(),
        encryption,
        restart: origin.restart,
        notes: Notes::default(),
        tags: Vec::new(),
    })
}

/// Why the origin of a clone cannot be read.
pub(super) fn origin_gone() -> Problem {
    Problem::new(ErrorCode::NotFound, "the VM whose clone it is does not exist any more")
}
