//! Encrypts and decrypts disks of VMs, while they are off or run.
//!
//! ```text
//! wish (-> the VM's first key is made) -> inventory: half clear -> host: every layer is rewritten
//!      -> inventory: the disk has its key, or none -> that is on the audit log
//!      (-> a key that is needed no more is taken out of use)
//! ```
//!
//! A VM with a half-clear disk is neither started nor changed; one that runs, runs on. With its
//! first encrypted disk, or the last one, a VM's own volumes are rewritten, too, which is done only
//! while it is off. What fails or is cancelled is taken back by the host. If that fails, too, the
//! disk stays half clear, and another request completes either direction: the inventory has the key
//! all the while.

use strongroom_api::task::{Task, TaskKind};
use strongroom_api::vm::{DesiredPower, EncryptDisk, PowerState};
use strongroom_api::{ErrorCode, Problem};
use strongroom_host::protocol::{DiskBecomes, DiskChange, DiskName, OperationOutcome};
use strongroom_types::{KeyRequestId, ProviderKey, VmId, VolumeId};
use strongroom_vm::DiskKind;

use super::advance::{End, Next, Step, keep_volumes};
use super::disk_moves::refuse_of_unsettled;
use super::disks::{FAILURES_MAX, change_disk, disk_of};
use super::operate::Operated;
use super::place::provider_name;
use super::rotate::without_unfinished_rotation;
use super::templates::without_shared_layers;
use super::wishes::{Caller, state, stop_it, suspended};
use super::{Control, RETRY_PAUSE};
use crate::inventory::{Failure, Index};
use crate::keys::{KeyProblem, MovedVm};
use crate::problems;
use crate::records::{DiskRecord, DiskSealing, KeyWish, VmRecord, Work};

/// What a task is to make of a disk.
#[derive(Clone, Copy)]
pub(super) struct SealWish<'a> {
    pub(super) disk: &'a DiskName,
    pub(super) becomes: DiskBecomes,
    pub(super) integrity: bool,
}

/// What a task takes back.
#[derive(Clone, Copy)]
pub(super) struct SealUndo<'a> {
    pub(super) disk: &'a DiskName,
    /// What the disk becomes again.
    pub(super) becomes: DiskBecomes,
    pub(super) failures: u32,
}

/// Volumes that were encrypted or decrypted.
#[derive(Clone, Copy)]
pub(super) struct SealedVolumes<'a> {
    pub(super) vm: Option<VmId>,
    pub(super) volumes: &'a [VolumeId],
    /// The key that they are under, or were.
    pub(super) key: &'a ProviderKey,
    pub(super) becomes: DiskBecomes,
}

impl SealWish<'_> {
    fn work(self, failures: u32) -> Work {
        let Self { disk, becomes, integrity } = self;
        Work::SealDisk { disk: disk.clone(), becomes, integrity, failures }
    }
}

impl Control {
    /// Requests that a disk of a VM is encrypted.
    ///
    /// # Errors
    /// [`Problem`], as for all methods here.
    pub fn encrypt_disk(
        &self,
        caller: &Caller,
        named: &str,
        disk: &str,
        wish: &EncryptDisk,
    ) -> Result<Task, Problem> {
        if self.providers().is_empty() {
            self.ask_providers();
        }
        if let Some(provider) = &wish.key_provider {
            self.must_be_provider(provider)?;
        }
        self.indexed_vm_wish(caller, named, TaskKind::VmEncryptDisk, |index, vm, power| {
            match disk_of(vm, disk)?.sealing {
                DiskSealing::Clear | DiskSealing::HalfClear { .. } => {}
                DiskSealing::Under { .. } | DiskSealing::Awaited => {
                    let problem =
                        problems::conflict(format!("{disk} of VM {} is encrypted already", vm.name));
                    return Err(problem.next("there is nothing to do"));
                }
            }
            let found = self.may_change_seal(index, vm, power, disk)?;
            if vm.hardware.keys().is_empty() {
                vm.key_wish = Some(self.first_key(index, vm, wish)?);
            } else if wish.key_provider.is_some() {
                let message = format!("VM {} has a key, under which its disks are encrypted", vm.name);
                return Err(problems::invalid(message).next("leave out `key_provider`"));
            }
            stays_off(vm, power);
            let (disk, integrity) = (found.name, wish.integrity);
            Ok(SealWish { disk: &disk, becomes: DiskBecomes::Encrypted, integrity }.work(0))
        })
    }

    /// Requests that a disk of a VM is decrypted.
    pub fn decrypt_disk(&self, caller: &Caller, named: &str, disk: &str) -> Result<Task, Problem> {
        self.indexed_vm_wish(caller, named, TaskKind::VmDecryptDisk, |index, vm, power| {
            match disk_of(vm, disk)?.sealing {
                DiskSealing::Under { .. } | DiskSealing::HalfClear { .. } => {}
                DiskSealing::Clear | DiskSealing::Awaited => {
                    return Err(problems::conflict(format!("{disk} of VM {} is not encrypted", vm.name)));
                }
            }
            let found = self.may_change_seal(index, vm, power, disk)?;
            let mut without = vm.clone();
            let clear = without.hardware.disks.iter_mut().filter(|known| known.name == found.name);
            clear.for_each(|known| known.sealing = DiskSealing::Clear);
            let own_key = |vm: &VmRecord| vm.hardware.keys().into_iter().next();
            if own_key(&without).is_some_and(|key| Some(key) != own_key(vm)) {
                let message =
                    format!("what VM {} keeps beside its disks is under the key of {disk}", vm.name);
                return Err(problems::conflict(message).next(format!(
                    "`strongroom vm clone {} NAME --unencrypted` makes a clear copy",
                    vm.name
                )));
            }
            stays_off(vm, power);
            let disk = found.name;
            Ok(SealWish { disk: &disk, becomes: DiskBecomes::Clear, integrity: false }.work(0))
        })
    }

    /// Returns the disk, if all of it can be rewritten now.
    fn may_change_seal(
        &self,
        index: &Index,
        vm: &VmRecord,
        power: PowerState,
        disk: &str,
    ) -> Result<DiskRecord, Problem> {
        let found = disk_of(vm, disk)?;
        match power {
            PowerState::Stopped | PowerState::Crashed => {}
            PowerState::Running | PowerState::Paused if has_another_encrypted(vm, found) => {}
            PowerState::Running | PowerState::Paused => {
                let why = format!(
                    "its own volumes are encrypted or decrypted together with {disk}, which is done while it is off"
                );
                return Err(state(vm, power, &why).next(stop_it(vm)));
            }
            PowerState::Suspended => return Err(suspended(vm, "its memory fits it as it is")),
            PowerState::Starting
            | PowerState::Stopping
            | PowerState::KeyUnavailable
            | PowerState::Unknown => {
                let why = "a disk is encrypted or decrypted while its VM is off or runs";
                return Err(state(vm, power, why).next(stop_it(vm)));
            }
        }
        if let Some(other) = vm.hardware.half_clear().filter(|other| other.name != found.name) {
            return Err(half_clear(vm, other));
        }
        if found.kind == DiskKind::Swap {
            let message = format!("{disk} of VM {} is a swap disk, which is made at each start", vm.name);
            return Err(problems::conflict(message).next("remove it, and add another one"));
        }
        without_unfinished_rotation(vm)?;
        without_shared_layers(index, vm)?;
        Ok(found.clone())
    }

    /// The request for the first key of a VM.
    fn first_key(&self, index: &Index, vm: &VmRecord, wish: &EncryptDisk) -> Result<KeyWish, Problem> {
        let policy = index.policy_of(vm);
        let provider =
            match (&wish.key_provider, policy.and_then(|policy| policy.rules.key_provider.as_ref())) {
                (Some(asked), Some(demanded)) if asked != demanded => {
                    return Err(problems::conflict(format!(
                        "the policy demands key provider {demanded}, and {asked} was asked for"
                    )));
                }
                (Some(name), _) | (None, Some(name)) => provider_name(name)?,
                (None, None) => self.only_provider()?,
            };
        Ok(KeyWish { provider, request: KeyRequestId::random() })
    }

    pub(super) fn seal_the_disk(
        &self,
        step: &Step,
        wish: SealWish<'_>,
        failures: u32,
    ) -> Result<Next, Failure> {
        let SealWish { disk, becomes, .. } = wish;
        let Some(found) = step.vm.hardware.disk(disk.as_str()) else {
            let problem = problems::no_such_disk(&step.vm.name, disk.as_str());
            return self.end(step, &step.vm, self.draft(), End::Failed(problem));
        };
        if found.sealing.becomes() != Some(becomes) {
            return self.begin_seal(step, wish, found);
        }
        let change = DiskChange::Seal { disk: disk.clone() };
        let operated =
            self.operate(&step.task, &step.vm, step.seat, |datastore| change_disk(step, datastore, change))?;
        let undo = |problem| Work::UndoSealDisk {
            disk: disk.clone(),
            becomes: becomes.reversed(),
            failures: 0,
            left: Vec::new(),
            problem,
        };
        let problem = match operated {
            Operated::Pending(next) => return Ok(next),
            Operated::Done(outcome) => return self.sealed(step, wish, outcome),
            Operated::Failed(problem) => {
                match self.tries_once_more(step, &problem, wish.work(failures + 1), failures)? {
                    Some(next) => return Ok(next),
                    None => Some(problem),
                }
            }
            Operated::Cancelled | Operated::Forgotten => None,
        };
        self.turn(step, undo(problem), VmRecord::clone(&step.vm.record))
    }

    /// Records that the disk is half clear, before the host changes its volume.
    fn begin_seal(&self, step: &Step, wish: SealWish<'_>, found: &DiskRecord) -> Result<Next, Failure> {
        if step.task.task.cancelling {
            let mut vm = VmRecord::clone(&step.vm.record);
            if !vm.hardware.encrypted() {
                vm.key_wish = None;
            }
            return self.end(step, &vm, self.draft(), End::Cancelled);
        }
        let (mut draft, mut integrity) = (self.draft(), found.integrity);
        let known = match &found.sealing {
            DiskSealing::Under { key, kek, .. } | DiskSealing::HalfClear { key, kek, .. } => {
                Some((key.clone(), *kek))
            }
            DiskSealing::Clear | DiskSealing::Awaited => {
                integrity = wish.integrity;
                step.vm.hardware.disks.iter().find_map(|other| match &other.sealing {
                    DiskSealing::Under { key, kek, next: None } => Some((key.clone(), *kek)),
                    DiskSealing::Under { .. }
                    | DiskSealing::Clear
                    | DiskSealing::Awaited
                    | DiskSealing::HalfClear { .. } => None,
                })
            }
        };
        let (key, kek) = match known {
            Some(known) => known,
            None => match self.make_first_key(step)? {
                FirstKey::Made(key) => {
                    let message = format!("{key} was made for VM {}, which had none", step.vm.name);
                    draft = draft.event("vm.key", &step.vm.object(), message, Some(step.task.task.id));
                    (key, None)
                }
                FirstKey::NotYet(next) => return Ok(next),
                FirstKey::Never(problem) => {
                    let vm = VmRecord { key_wish: None, ..VmRecord::clone(&step.vm.record) };
                    return self.end(step, &vm, self.draft(), End::Failed(problem));
                }
            },
        };
        let mut vm = VmRecord::clone(&step.vm.record);
        for disk in vm.hardware.disks.iter_mut().filter(|known| known.name == found.name) {
            disk.sealing = DiskSealing::HalfClear { key: key.clone(), kek, becomes: wish.becomes };
            disk.integrity = integrity;
        }
        self.turn_with(step, wish.work(0), vm, draft)
    }

    /// Has a key made for a VM without one. The request has been in the inventory since the task
    /// was made.
    fn make_first_key(&self, step: &Step) -> Result<FirstKey, Failure> {
        let Some(wish) = &step.vm.key_wish else {
            let message = format!("VM {} wants no key", step.vm.name);
            return Ok(FirstKey::Never(Problem::new(ErrorCode::Internal, message)));
        };
        Ok(match self.keys.create_key(&wish.provider, wish.request, step.vm.id) {
            Ok(key) => FirstKey::Made(key),
            Err(KeyProblem::Unavailable(reason)) => {
                self.note_key(&step.task, format!("waiting for key provider {}: {reason}", wish.provider))?;
                FirstKey::NotYet(Next::Wait(RETRY_PAUSE))
            }
            Err(KeyProblem::Refused(reason)) => {
                let message =
                    format!("key provider {} made no key for VM {}: {reason}", wish.provider, step.vm.name);
                FirstKey::Never(
                    Problem::new(ErrorCode::KeyUnavailable, message)
                        .next(format!("`strongroom key-provider test {}`", wish.provider)),
                )
            }
        })
    }

    /// The host has rewritten all of it, and the VM's directory says so.
    fn sealed(
        &self,
        step: &Step,
        wish: SealWish<'_>,
        outcome: Option<OperationOutcome>,
    ) -> Result<Next, Failure> {
        let mut vm = VmRecord::clone(&step.vm.record);
        let sealed = |disk: &&DiskRecord| disk.sealing.key().is_some();
        let is_alone = vm.hardware.disks.iter().filter(sealed).count() == 1;
        let half = vm.hardware.half_clear();
        let Some(key) = half.and_then(|disk| disk.sealing.key().cloned()) else {
            return self.end(step, &vm, self.draft(), End::Done);
        };
        let left = vm.hardware.complete_half_clear();
        let facts = OperationOutcome::into_volumes(outcome);
        let draft = match keep_volumes(&self.inventory.read(), &mut vm, &facts, self.draft()) {
            Ok(draft) => draft,
            Err(problem) => return self.end(step, &step.vm, self.draft(), End::Failed(problem)),
        };
        // With the only disk that has a key, the VM's own volumes were rewritten, too.
        let own = vm.hardware.own_volumes.iter().filter(|_| is_alone).map(|own| own.volume);
        let disk = vm.hardware.disk(wish.disk.as_str()).and_then(|disk| disk.volume);
        let volumes = disk.into_iter().chain(own).collect();
        let whole = is_alone.then_some(vm.id);
        let becomes = wish.becomes;
        match becomes {
            DiskBecomes::Encrypted if is_alone => {
                vm.data_keys_unix_seconds = Some(self.now_unix_ms() / 1000);
            }
            DiskBecomes::Clear if is_alone => vm.key_wish = None,
            DiskBecomes::Encrypted | DiskBecomes::Clear => {}
        }
        self.turn_with(step, Work::RecordSeal { vm: whole, volumes, key, becomes, left }, vm, draft)
    }

    pub(super) fn record_seal(
        &self,
        step: &Step,
        sealed: SealedVolumes<'_>,
        left: &[ProviderKey],
    ) -> Result<Next, Failure> {
        let SealedVolumes { vm, volumes, key, becomes } = sealed;
        let (from, to) = match becomes {
            DiskBecomes::Encrypted => (Vec::new(), Some(key.clone())),
            DiskBecomes::Clear => (vec![key.clone()], None),
        };
        let volumes = volumes.to_vec();
        let moved = MovedVm { vm, volumes, from, to, renewed: true, is_shared: false };
        self.record_and_retire(step, Some(&moved), left)
    }

    /// Has the host take the change back. If it cannot, the disk stays half clear.
    pub(super) fn undo_seal_disk(
        &self,
        step: &Step,
        undo: SealUndo<'_>,
        left: &[ProviderKey],
        problem: Option<&Problem>,
    ) -> Result<Next, Failure> {
        let SealUndo { disk, becomes, failures } = undo;
        let mut vm = VmRecord::clone(&step.vm.record);
        let end = || problem.map_or(End::Cancelled, |problem| End::Failed(problem.clone()));
        let work = |failures, left| {
            let (disk, problem) = (disk.clone(), problem.cloned());
            Work::UndoSealDisk { disk, becomes, failures, left, problem }
        };
        let found = vm.hardware.disks.iter_mut().find(|known| known.name == *disk);
        match found.map(|found| &mut found.sealing) {
            Some(DiskSealing::HalfClear { becomes: present, .. }) if *present != becomes => {
                *present = becomes;
                return self.turn(step, work(0, Vec::new()), vm);
            }
            Some(DiskSealing::HalfClear { .. }) => {}
            Some(DiskSealing::Clear | DiskSealing::Awaited | DiskSealing::Under { .. }) | None => {
                // It is taken back. A key that was made for it has nothing under it.
                let draft = self.retire_keys(step, left, self.draft());
                return self.end(step, &vm, draft, end());
            }
        }
        let change = DiskChange::Seal { disk: disk.clone() };
        let operated =
            self.operate_unless_cancelled(step, &step.vm, |datastore| change_disk(step, datastore, change))?;
        let failed = match operated {
            Operated::Pending(next) => return Ok(next),
            Operated::Done(outcome) => {
                let left = vm.hardware.complete_half_clear();
                let volumes = OperationOutcome::into_volumes(outcome);
                let draft = match keep_volumes(&self.inventory.read(), &mut vm, &volumes, self.draft()) {
                    Ok(draft) => draft,
                    Err(problem) => return self.end(step, &step.vm, self.draft(), End::Failed(problem)),
                };
                if !left.is_empty() {
                    vm.key_wish = None;
                }
                return self.turn_with(step, work(0, left), vm, draft);
            }
            Operated::Failed(failed) => failed,
            Operated::Cancelled | Operated::Forgotten => problems::conflict("its host has forgotten it"),
        };
        if failures < FAILURES_MAX {
            let note = format!("trying again to take it back: {failed}");
            return self.ask_host_again(step, work(failures + 1, Vec::new()), note);
        }
        let half = step.vm.hardware.half_clear().map(|disk| half_clear(&step.vm, disk));
        let message = match problem {
            Some(problem) => format!("{}, and it was not taken back: {failed}", problem.message),
            None => format!("it was not taken back: {failed}"),
        };
        let problem = Problem::new(ErrorCode::HostFailed, message);
        let problem = match half.and_then(|half| half.next_step) {
            Some(next) => problem.next(next),
            None => problem,
        };
        self.end(step, &step.vm, self.draft(), End::Failed(problem))
    }
}

/// Has a VM that is off stay so until a task with its disk has ended.
pub(super) fn stays_off(vm: &mut VmRecord, power: PowerState) {
    if !power.is_on() {
        vm.desired = DesiredPower::Stopped;
    }
}

/// Whether the VM has a key without this disk.
fn has_another_encrypted(vm: &VmRecord, disk: &DiskRecord) -> bool {
    vm.hardware.disks.iter().any(|other| other.name != disk.name && other.sealing.key().is_some())
}

/// The first key of a VM.
enum FirstKey {
    Made(ProviderKey),
    NotYet(Next),
    Never(Problem),
}

/// Refuses what is not done to a VM with a disk that is half clear, or has not arrived where it
/// moved.
pub(super) fn refuse_of_unfinished(vm: &VmRecord, kind: TaskKind) -> Result<(), Problem> {
    refuse_of_unsettled(vm, kind)?;
    let uses_it = matches!(
        kind,
        TaskKind::VmStart
            | TaskKind::VmRestart
            | TaskKind::VmSuspend
            | TaskKind::VmConfigure
            | TaskKind::VmAddNic
            | TaskKind::VmRemoveNic
            | TaskKind::VmSetNic
            | TaskKind::VmAddDisk
            | TaskKind::VmRemoveDisk
            | TaskKind::VmResizeDisk
            | TaskKind::VmMoveDisk
            | TaskKind::VmLimit
            | TaskKind::VmImportDisk
            | TaskKind::VmSnapshotCreate
            | TaskKind::VmSnapshotRevert
            | TaskKind::VmSnapshotDelete
            | TaskKind::VolumeSnapshotCreate
            | TaskKind::VmTemplate
            | TaskKind::VmRotateKey
            | TaskKind::VolumeBind
            | TaskKind::VolumeUnbind
    );
    match vm.hardware.half_clear().filter(|_| uses_it) {
        Some(disk) => Err(half_clear(vm, disk)),
        None => Ok(()),
    }
}

fn half_clear(vm: &VmRecord, disk: &DiskRecord) -> Problem {
    let (vm, disk) = (&vm.name, &disk.name);
    problems::conflict(format!("{disk} of VM {vm} is not encrypted as a whole yet, or not decrypted")).next(
        format!(
            "go on with `strongroom vm disk encrypt {vm} {disk}` or `strongroom vm disk decrypt {vm} {disk}`"
        ),
    )
}
