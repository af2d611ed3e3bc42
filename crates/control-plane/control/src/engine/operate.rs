//! A host's operation from the point of view of its task.

use strongroom_api::task::{Passing, Progress, ProgressUnit};
use strongroom_api::{ErrorCode, Problem};
use strongroom_host::protocol::{
    self, DiskChange, Grant, Operation, OperationId, OperationKind, OperationOutcome, OperationRequest,
    OperationState,
};
use strongroom_types::ProviderKey;

use super::advance::Next;
use super::clones::origin_gone;
use super::wishes::confirmed;
use super::{Control, HostSeat, POLL_PAUSE, RETRY_PAUSE};
use crate::host::HostError;
use crate::inventory::{Failure, Row};
use crate::keys::{GrantFor, KeyProblem};
use crate::problems;
use crate::records::{DatastorePaths, TaskRecord, VmRecord};

/// The state of an operation.
pub(super) enum Operated {
    /// In progress.
    Pending(Next),
    /// Done.
    Done(Option<OperationOutcome>),
    /// Refused or failed.
    Failed(Problem),
    /// Cancelled with the task. The host did nothing.
    Cancelled,
    /// The host does not know the operation: it never received it, or has forgotten it. The task is
    /// being cancelled, or needs what its client had brought for it.
    Forgotten,
}

/// A host's answer to the request for an operation.
enum Asked {
    /// The operation is in progress.
    Accepted(Operation),
    /// The operation was refused, or is delayed.
    Ended(Operated),
}

impl Control {
    /// Makes a host carry out an operation, or reads its state. The operation's id is in the
    /// inventory before the host receives it, so a repetition is not a second operation; a host
    /// that was restarted meanwhile goes by the effect.
    pub(super) fn operate(
        &self,
        task: &Row<TaskRecord>,
        vm: &VmRecord,
        seat: &HostSeat,
        kind: impl FnOnce(&DatastorePaths) -> Option<OperationKind>,
    ) -> Result<Operated, Failure> {
        self.operate_while(task, vm, seat, task.task.cancelling, kind)
    }

    /// As [`operate`](Self::operate); `cancels` says whether the operation ends because the task
    /// does.
    pub(super) fn operate_while(
        &self,
        task: &Row<TaskRecord>,
        vm: &VmRecord,
        seat: &HostSeat,
        cancels: bool,
        kind: impl FnOnce(&DatastorePaths) -> Option<OperationKind>,
    ) -> Result<Operated, Failure> {
        let Some(operation) = task.operation else {
            if cancels {
                return Ok(Operated::Forgotten);
            }
            let operation = OperationId::random();
            let begun = TaskRecord { operation: Some(operation), ..TaskRecord::clone(&task.record) };
            self.inventory.commit(self.draft().replace(task, &begun))?;
            self.unsent.lock().insert(operation);
            return Ok(Operated::Pending(Next::Again));
        };
        let is_unsent = self.unsent.lock().remove(&operation);
        let ended = self.ended.lock().remove(&(seat.id, operation));
        let known = match (is_unsent, ended) {
            (true, _) => Ok(None),
            (false, Some(ended)) => Ok(Some(ended)),
            (false, None) => seat.host.operation(operation),
        };
        let known = match known {
            Ok(known) => known,
            Err(error) => return self.wait_for_host(task, seat, &error),
        };
        let state = match known {
            Some(state) => state,
            None if cancels => return Ok(Operated::Forgotten),
            None => match self.ask(task, vm, seat, (operation, is_unsent), kind)? {
                Asked::Accepted(state) => state,
                Asked::Ended(other) => return Ok(other),
            },
        };
        if cancels
            && !state.state.is_final()
            && let Err(error) = seat.host.cancel(operation)
        {
            return self.wait_for_host(task, seat, &error);
        }
        let away = state.progress.is_some_and(|progress| progress.client_is_away);
        if away && !state.state.is_final() {
            self.await_client(task)?;
            return Ok(Operated::Pending(Next::Wait(POLL_PAUSE)));
        }
        if task.task.note.is_some() && !state.state.is_final() {
            // What it waited for is there.
            let mut going = TaskRecord { waits_for_key: false, ..TaskRecord::clone(&task.record) };
            (going.task.note, going.task.awaits_image) = (None, None);
            self.inventory.commit(self.draft().replace(task, &going))?;
            return Ok(Operated::Pending(Next::Again));
        }
        Ok(self.judge(task, seat, state))
    }

    /// Requests the operation. One that may have been sent before is requested again, unless its
    /// client has to bring its image again.
    fn ask(
        &self,
        task: &Row<TaskRecord>,
        vm: &VmRecord,
        seat: &HostSeat,
        (operation, is_unsent): (OperationId, bool),
        kind: impl FnOnce(&DatastorePaths) -> Option<OperationKind>,
    ) -> Result<Asked, Failure> {
        // The last of the guards: no host is sent what a backup says about a VM.
        if let Err(problem) = confirmed(vm) {
            return Ok(Asked::Ended(Operated::Failed(problem)));
        }
        let Some(paths) = self.datastore_paths(vm) else {
            return Ok(Asked::Ended(Operated::Failed(problems::datastore_unknown(vm))));
        };
        let Some(mut kind) = kind(&paths) else {
            return Ok(Asked::Ended(Operated::Failed(problems::key_never_made(vm))));
        };
        if !is_unsent && matches!(kind, OperationKind::ImportDisk { .. }) {
            return Ok(Asked::Ended(Operated::Forgotten));
        }
        let standing = match &kind {
            OperationKind::FetchLive(_) | OperationKind::Receive(_) => GrantFor::Prepared,
            _ => GrantFor::Current,
        };
        let grants = match self.grants(task, vm, standing, seat, &keys_taken(&kind, vm))? {
            Ok(grants) => grants,
            Err(ended) => return Ok(Asked::Ended(ended)),
        };
        if let OperationKind::Create { from: Some(from), .. } = &mut kind {
            let origin = self.inventory.read().vm(from.spec.id).cloned();
            let Some(origin) = origin else {
                return Ok(Asked::Ended(Operated::Failed(origin_gone())));
            };
            from.grants =
                match self.grants(task, &origin, GrantFor::Current, seat, &origin.hardware.keys())? {
                    Ok(grants) => grants,
                    Err(ended) => return Ok(Asked::Ended(ended)),
                };
        }
        if let OperationKind::SnapshotGroup { members, .. } = &mut kind {
            for member in members {
                let known = self.inventory.read().vm(member.spec.id).cloned();
                let Some(known) = known else {
                    return Ok(Asked::Ended(Operated::Failed(problems::conflict(
                        "a VM is not there any more",
                    ))));
                };
                member.grants =
                    match self.grants(task, &known, GrantFor::Current, seat, &known.hardware.keys())? {
                        Ok(grants) => grants,
                        Err(ended) => return Ok(Asked::Ended(ended)),
                    };
            }
        }
        let request = OperationRequest { operation, generation: vm.generation(), kind, grants };
        match seat.host.operate(vm.id, &request) {
            Ok(state) => Ok(Asked::Accepted(state)),
            Err(HostError::Refused(problem)) => {
                Ok(Asked::Ended(Operated::Failed(problems::host_refused(seat.name.as_str(), &problem))))
            }
            Err(error) => self.wait_for_host(task, seat, &error).map(Asked::Ended),
        }
    }

    /// Returns a grant for each key of a VM; or why there is none.
    fn grants(
        &self,
        task: &Row<TaskRecord>,
        vm: &VmRecord,
        standing: GrantFor,
        seat: &HostSeat,
        keys: &[ProviderKey],
    ) -> Result<Result<Vec<Grant>, Operated>, Failure> {
        let mut grants = Vec::new();
        // Each grant is for one key, once.
        for _ in 0..keys.len() {
            match self.keys.grant(vm.id, vm.generation(), standing, seat.name.as_str(), keys) {
                Ok(more) => grants.extend(more),
                Err(KeyProblem::Unavailable(reason)) => {
                    self.note_key(task, format!("waiting for {}: {reason}", keys[0]))?;
                    return Ok(Err(Operated::Pending(Next::Wait(RETRY_PAUSE))));
                }
                Err(KeyProblem::Refused(reason)) => {
                    let message = format!("VM {}: no leave to use {}: {reason}", vm.name, keys[0]);
                    return Ok(Err(Operated::Failed(Problem::new(ErrorCode::KeyRevoked, message))));
                }
            }
        }
        Ok(Ok(grants))
    }

    fn judge(&self, task: &Row<TaskRecord>, seat: &HostSeat, operation: Operation) -> Operated {
        match operation.state {
            OperationState::Queued | OperationState::Running => {
                self.set_progress(task.task.id, operation.progress.map(progress));
                Operated::Pending(Next::Wait(POLL_PAUSE))
            }
            OperationState::Done => Operated::Done(operation.outcome),
            OperationState::Cancelled => Operated::Cancelled,
            OperationState::Failed => {
                let problem = operation.error.unwrap_or_else(|| {
                    protocol::Problem::new("failed", format!("{} failed without a reason", operation.kind))
                });
                Operated::Failed(problems::host_refused(seat.name.as_str(), &problem))
            }
        }
    }

    fn wait_for_host(
        &self,
        task: &Row<TaskRecord>,
        seat: &HostSeat,
        error: &HostError,
    ) -> Result<Operated, Failure> {
        self.note(task, format!("waiting for host {}: {error}", seat.name))?;
        Ok(Operated::Pending(Next::Wait(RETRY_PAUSE)))
    }

    /// Has a task wait for the client whose image a disk is being filled with.
    fn await_client(&self, task: &Row<TaskRecord>) -> Result<(), Failure> {
        let Some(disk) = task.work.filled_disk().filter(|_| task.task.awaits_image.is_none()) else {
            return Ok(());
        };
        let note = format!("the client with the image for {disk} is away: bring it again to go on");
        let mut waits = TaskRecord::clone(&task.record);
        (waits.task.note, waits.task.awaits_image) = (Some(note.clone()), Some(disk));
        let draft = self.draft().event("task.waiting", &task.task.object, note, Some(task.task.id));
        self.inventory.commit(draft.replace(task, &waits))
    }

    /// Sets a task's note about what it waits for, if it has changed.
    pub(super) fn note(&self, task: &Row<TaskRecord>, note: String) -> Result<(), Failure> {
        self.say(task, note, false)
    }

    /// Sets the note of a task that waits for a key, for which there is an alarm.
    pub(super) fn note_key(&self, task: &Row<TaskRecord>, note: String) -> Result<(), Failure> {
        self.say(task, note, true)
    }

    fn say(&self, task: &Row<TaskRecord>, note: String, waits_for_key: bool) -> Result<(), Failure> {
        if task.task.note.as_deref() == Some(note.as_str()) {
            return Ok(());
        }
        let mut noted = TaskRecord { waits_for_key, ..TaskRecord::clone(&task.record) };
        noted.task.note = Some(note.clone());
        let draft = self.draft().event("task.waiting", &task.task.object, note, Some(task.task.id));
        self.inventory.commit(draft.replace(task, &noted))
    }

    /// Returns the paths of a VM's datastores on its host.
    pub(super) fn datastore_paths(&self, vm: &VmRecord) -> Option<DatastorePaths> {
        self.inventory.read().paths_of(vm, vm.host)
    }
}

/// Returns the keys that an operation needs.
fn keys_taken(kind: &OperationKind, vm: &VmRecord) -> Vec<ProviderKey> {
    match kind {
        // The VM does not have the disk yet.
        OperationKind::ChangeDisk { change: DiskChange::Bind { disk, .. }, .. } => {
            let bound = disk.key.provider_key().cloned();
            let mut keys = vm.hardware.keys();
            keys.extend(bound.filter(|bound| !keys.contains(bound)));
            keys
        }
        OperationKind::Create { .. }
        | OperationKind::Start { .. }
        | OperationKind::Configure { .. }
        | OperationKind::Rekey { .. }
        | OperationKind::ChangeDisk { .. }
        | OperationKind::SetNics { .. }
        | OperationKind::SetSizes { .. }
        | OperationKind::ChangeSnapshots { .. }
        | OperationKind::ImportDisk { .. }
        | OperationKind::FetchLive(_)
        | OperationKind::Receive(_)
        | OperationKind::Fetch { .. }
        | OperationKind::SupplyGrants => vm.hardware.keys(),
        _ => Vec::new(),
    }
}

fn progress(told: protocol::Progress) -> Progress {
    let unit = match told.unit {
        protocol::ProgressUnit::Bytes => ProgressUnit::Bytes,
        protocol::ProgressUnit::Volumes => ProgressUnit::Steps,
    };
    let passing = told.passing.map(|told| {
        let protocol::Passing { bytes_per_second, changed_bytes_per_second, seconds_left, slowed_percent } =
            told;
        Passing { bytes_per_second, changed_bytes_per_second, seconds_left, slowed_percent }
    });
    Progress { done: told.done, total: told.total, unit, passing }
}
