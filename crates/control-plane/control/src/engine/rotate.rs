//! Moves a VM to another key.
//!
//! ```text
//! wish -> the key is made, unseen -> inventory: each disk has a next key -> host moves every volume -> inventory: that key alone
//!      -> the move is on the audit log -> the keys it has left are taken out of use
//! ```
//!
//! From the second step on, starts of the VM are granted both keys, so no failure loses anything:
//! another rotation continues with the existing new key.
//!
//! A rotation can renew the data keys, too. Whether it does is recorded with the VM until it is
//! done: a rotation that was begun without new data keys has volumes with old
//! ones under the new key, so it must end before another one can renew them.

use strongroom_api::task::{Task, TaskKind};
use strongroom_api::vm::{Lifecycle, PowerState, RotateKey};
use strongroom_api::{ErrorCode, ObjectKind, Problem};
use strongroom_host::protocol::{OperationKind, OperationOutcome};
use strongroom_types::{KeyRequestId, ProviderKey, ProviderName};

use super::advance::{End, Next, Step, keep_volumes};
use super::operate::Operated;
use super::place::provider_name;
use super::wishes::{Caller, idle, idle_vm, state};
use super::{Control, RETRY_PAUSE};
use crate::inventory::{Draft, Facet, Failure, Index, Row};
use crate::keys::{KeyProblem, MovedVm};
use crate::problems;
use crate::records::{AUTOMATIC, TaskRecord, VmRecord, Work};

/// The most VMs whose keys are queried at once.
const KEYS_AT_A_TIME: usize = 64;
/// How often a host may fail before the task fails.
const FAILURES_MAX: u32 = 5;

impl Control {
    /// Requests a move to a new key for a VM.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn rotate_key(&self, caller: &Caller, named: &str, how: &RotateKey) -> Result<Task, Problem> {
        if let Some(provider) = &how.key_provider {
            self.must_be_provider(provider)?;
        }
        let asked = how.key_provider.as_ref().map(provider_name).transpose()?;
        self.rotate_key_of(caller, asked.as_ref(), how.data, |index| idle_vm(index, named))
    }

    fn rotate_key_of(
        &self,
        caller: &Caller,
        asked: Option<&ProviderName>,
        renews_data_keys: bool,
        find: impl Fn(&Index) -> Result<&Row<VmRecord>, Problem>,
    ) -> Result<Task, Problem> {
        self.wish_about(caller, TaskKind::VmRotateKey, find, |_, vm, power| {
            rotation(vm, power, asked, renews_data_keys)
        })
    }

    /// Requests the same for every VM whose key has expired. Returns their number.
    pub fn rotate_due_keys(&self) -> usize {
        let now = self.now_unix_ms() / 1000;
        let mut vms = Vec::new();
        {
            let index = self.inventory.read();
            for vm in index.vms.iter().filter(|vm| vm.lifecycle == Lifecycle::Present && vm.task.is_none()) {
                vms.extend(vm.hardware.keys().into_iter().map(|key| (key, vm.id.to_string())));
            }
        }
        let mut due = Vec::new();
        for some in vms.chunks(KEYS_AT_A_TIME) {
            let keys: Vec<_> = some.iter().map(|(key, _)| key.clone()).collect();
            for (standing, (_, vm)) in self.keys.states(&keys).into_iter().zip(some) {
                let is_over = standing.expires_unix_seconds.is_some_and(|end| end <= now);
                if is_over && !due.contains(vm) {
                    due.push(vm.clone());
                }
            }
        }
        let caller = Caller::machine(AUTOMATIC);
        let begun = due.iter().filter(|vm| {
            match self.rotate_key_of(&caller, None, false, |index| idle_any(index, vm)) {
                Ok(_) => true,
                Err(problem) => {
                    tracing::warn!(vm, %problem, "a key whose time is over is not rotated");
                    false
                }
            }
        });
        begun.count()
    }

    /// The request has been in the inventory since the task was made.
    pub(super) fn make_next_key(
        &self,
        step: &Step,
        provider: &ProviderName,
        request: KeyRequestId,
    ) -> Result<Next, Failure> {
        let vm = &step.vm;
        if step.task.task.cancelling {
            return self.end(step, vm, self.draft(), End::Cancelled);
        }
        match self.keys.create_key(provider, request, vm.id) {
            Ok(key) => {
                let mut moving = VmRecord::clone(&vm.record);
                moving.hardware.move_to(&key);
                let mut task = TaskRecord::clone(&step.task.record);
                let to = Some(key.clone());
                task.work = Work::RotateKey { provider: provider.clone(), request, to, failures: 0 };
                (task.task.note, task.waits_for_key) = (None, false);
                let message = format!("{key} was made for VM {}, to move to", vm.name);
                let draft = self.draft().event("vm.key", &vm.object(), message, Some(task.task.id));
                self.inventory.commit(draft.replace(vm, &moving).replace(&step.task, &task))?;
                Ok(Next::Again)
            }
            Err(KeyProblem::Unavailable(reason)) => {
                self.note_key(&step.task, format!("waiting for key provider {provider}: {reason}"))?;
                Ok(Next::Wait(RETRY_PAUSE))
            }
            Err(KeyProblem::Refused(reason)) => {
                let message = format!("key provider {provider} made no key for VM {}: {reason}", vm.name);
                let problem = Problem::new(ErrorCode::KeyUnavailable, message)
                    .next(format!("`strongroom key-provider test {provider}`"));
                self.end(step, vm, self.draft(), End::Failed(problem))
            }
        }
    }

    /// After a failure both keys are known, and the VM can be started.
    pub(super) fn move_to_next_key(&self, step: &Step) -> Result<Next, Failure> {
        let operated = self.operate(&step.task, &step.vm, step.seat, |datastore| {
            let data = step.vm.renews_data_keys;
            Some(OperationKind::Rekey { spec: Box::new(step.vm.told(datastore)?), data })
        })?;
        let mut vm = VmRecord::clone(&step.vm.record);
        let volumes = match operated {
            Operated::Pending(next) => return Ok(next),
            Operated::Done(Some(OperationOutcome::Volumes(volumes))) => volumes,
            Operated::Failed(problem) => {
                if let Some(next) = self.tries_again(step, &problem)? {
                    return Ok(next);
                }
                let data = if vm.renews_data_keys { " --data" } else { "" };
                let again = format!("`strongroom vm key rotate {}{data}` goes on with it", vm.name);
                let problem = if problem.next_step.is_some() { problem } else { problem.next(again) };
                return self.end(step, &vm, self.draft(), End::Failed(problem));
            }
            Operated::Done(_) | Operated::Cancelled | Operated::Forgotten => {
                return self.end(step, &vm, self.draft(), End::Cancelled);
            }
        };
        let keys = vm.hardware.moved();
        let renewed = std::mem::take(&mut vm.renews_data_keys);
        if renewed {
            vm.data_keys_unix_seconds = Some(self.now_unix_ms() / 1000);
        }
        if let (Some(wish), Work::RotateKey { provider, request, .. }) = (&mut vm.key_wish, &step.task.work) {
            (wish.provider, wish.request) = (provider.clone(), *request);
        }
        let kept = keep_volumes(&self.inventory.read(), &mut vm, &volumes, self.draft());
        let draft = match kept {
            Ok(draft) => draft,
            Err(problem) => return self.end(step, &vm, self.draft(), End::Failed(problem)),
        };
        let draft = if renewed {
            let but = match self.shares_layers(&vm) {
                true => "; VMs that share layers with it keep those under the old ones",
                false => "",
            };
            let message = format!("all data of VM {} is under new data keys{but}", vm.name);
            draft.event("vm.key", &vm.object(), message, Some(step.task.task.id))
        } else {
            draft
        };
        self.inventory.commit(draft)?;
        self.turn(step, Work::RetireKeys { keys, renewed: Some(renewed) }, vm)
    }

    /// The move that ended, for the audit log.
    fn moved(&self, vm: &Row<VmRecord>, from: &[ProviderKey], renewed: bool) -> Option<MovedVm> {
        let to = vm.hardware.keys().into_iter().next()?;
        let own = vm.hardware.own_volumes.iter().map(|own| own.volume);
        let encrypted = vm.hardware.disks.iter().filter(|disk| disk.sealing.key().is_some());
        Some(MovedVm {
            vm: Some(vm.id),
            volumes: encrypted.filter_map(|disk| disk.volume).chain(own).collect(),
            from: from.to_vec(),
            to: Some(to),
            renewed,
            is_shared: self.shares_layers(vm),
        })
    }

    /// Whether other VMs may have layers of this one.
    fn shares_layers(&self, vm: &VmRecord) -> bool {
        let index = self.inventory.read();
        !index.members(&Facet::LayersOf(vm.id)).is_empty()
            || vm.shared().any(|shared| index.vm(shared).is_some())
    }

    /// The supervisor that did it may have been killed, or a volume may have been in use. The
    /// operation is repeated with new grants.
    fn tries_again(&self, step: &Step, problem: &Problem) -> Result<Option<Next>, Failure> {
        let mut again = step.task.work.clone();
        match &mut again {
            Work::RotateKey { failures, .. } if *failures < FAILURES_MAX && !step.task.task.cancelling => {
                *failures += 1;
            }
            _ => return Ok(None),
        }
        self.ask_host_again(step, again, format!("trying again: {problem}")).map(Some)
    }

    pub(super) fn retire(
        &self,
        step: &Step,
        keys: &[ProviderKey],
        renewed: Option<bool>,
    ) -> Result<Next, Failure> {
        let moved = renewed.and_then(|renewed| self.moved(&step.vm, keys, renewed));
        self.record_and_retire(step, moved.as_ref(), keys)
    }

    /// Puts a move on record, and deactivates the keys that the VM needs no more.
    ///
    /// A key that cannot be deactivated is harmless and expires in time, so this is not repeated.
    /// What is on record of the move is all that evidence is made of, so the key server is waited
    /// for, unless the task is cancelled.
    pub(super) fn record_and_retire(
        &self,
        step: &Step,
        moved: Option<&MovedVm>,
        keys: &[ProviderKey],
    ) -> Result<Next, Failure> {
        let vm = &step.vm;
        let mut draft = self.draft();
        match moved.map(|moved| self.keys.record_move(moved)) {
            None | Some(Ok(())) => {}
            Some(Err(KeyProblem::Unavailable(reason))) if !step.task.task.cancelling => {
                self.note_key(&step.task, format!("waiting for the key server's audit log: {reason}"))?;
                return Ok(Next::Wait(RETRY_PAUSE));
            }
            Some(Err(problem)) => {
                let message = format!("the audit log does not have the move of VM {}: {problem}", vm.name);
                draft = draft.event("vm.key", &vm.object(), message, Some(step.task.task.id));
            }
        }
        let draft = self.retire_keys(step, keys, draft);
        self.end(step, vm, draft, End::Done)
    }

    /// Deactivates keys that the VM needs no more, unless another VM does.
    pub(super) fn retire_keys(&self, step: &Step, keys: &[ProviderKey], mut draft: Draft) -> Draft {
        let vm = &step.vm;
        for key in keys {
            let shared = !self.inventory.read().members(&Facet::Key(key.clone())).is_empty();
            let message = if shared {
                format!("{key} stays in use: another VM needs it")
            } else {
                match self.keys.retire(key) {
                    Ok(()) => {
                        format!("VM {} has left {key}, which opens only old copies of it now", vm.name)
                    }
                    Err(problem) => {
                        format!("VM {} has left {key}, which is still active: {problem}", vm.name)
                    }
                }
            };
            draft = draft.event("vm.key", &vm.object(), message, Some(step.task.task.id));
        }
        draft
    }
}

/// The work of a move to a new key, which a VM in this state can begin.
pub(super) fn rotation(
    vm: &mut VmRecord,
    power: PowerState,
    asked: Option<&ProviderName>,
    renews_data_keys: bool,
) -> Result<Work, Problem> {
    let Some(present) = vm.hardware.keys().into_iter().next() else {
        let problem = problems::conflict(format!("VM {} is not encrypted, so it has no key", vm.name));
        return Err(problem.next("encrypt its disks: it gets a key then"));
    };
    match power {
        PowerState::Starting | PowerState::Stopping => {
            return Err(state(vm, power, "wait until it is on or off"));
        }
        PowerState::KeyUnavailable => {
            return Err(state(vm, power, "it takes the present key to move to another one")
                .next("see to its key provider: `strongroom key-provider list`"));
        }
        _ if renews_data_keys => refuse_fixed_data(vm, power)?,
        _ => {}
    }
    let made_by = vm.key_wish.as_ref().map_or(present.provider, |wish| wish.provider.clone());
    let provider = asked.cloned().unwrap_or(made_by);
    let to = vm.hardware.next_key().cloned();
    if to.is_some() && renews_data_keys && !vm.renews_data_keys {
        let message = format!(
            "a rotation of the key of VM {} is not finished, and has data keys under the new key already",
            vm.name
        );
        let next = format!("finish it first: `strongroom vm key rotate {}`", vm.name);
        return Err(problems::conflict(message).next(next));
    }
    vm.renews_data_keys = renews_data_keys;
    Ok(Work::RotateKey { provider, request: KeyRequestId::random(), to, failures: 0 })
}

/// Refuses to rewrite the data of a VM whose memory fits it as it is, or of whom nothing is known.
fn refuse_fixed_data(vm: &VmRecord, power: PowerState) -> Result<(), Problem> {
    match power {
        PowerState::Stopped
        | PowerState::Crashed
        | PowerState::Running
        | PowerState::Paused
        | PowerState::Starting
        | PowerState::Stopping
        | PowerState::KeyUnavailable => Ok(()),
        PowerState::Suspended => Err(state(vm, power, "its memory fits its data as it is")
            .next(format!("`strongroom vm start {}`, and try it again", vm.name))),
        PowerState::Unknown => Err(state(vm, power, "its data is re-encrypted while its host answers")),
    }
}

/// Returns the VM or holder with this id, if no task works on it.
fn idle_any<'index>(index: &'index Index, id: &str) -> Result<&'index Row<VmRecord>, Problem> {
    idle(index, index.find_any(id).ok_or_else(|| problems::not_found(ObjectKind::Vm, id))?)
}

/// Refuses what is not done to the volumes of a VM between two keys.
pub(super) fn without_unfinished_rotation(vm: &VmRecord) -> Result<(), Problem> {
    if vm.hardware.next_key().is_none() {
        return Ok(());
    }
    let message = format!("a rotation of the key of {} is not finished", problems::called(vm));
    Err(problems::conflict(message).next(format!("finish it first: `strongroom vm key rotate {}`", vm.name)))
}
