//! Idle VMs that are not in their desired state. Only those are looked at for which something has
//! changed ([`unsettled`](super::unsettled)).
//!
//! After a crash, a power cut or a restored inventory, the inventory has the desired state of a VM,
//! and its host the actual one. A VM that should run and does not is restarted. A VM whose guest
//! has shut down is no longer wanted on. A VM that runs without a request becomes wanted on: the
//! control plane never stops a guest by itself.

use strongroom_api::task::TaskKind;
use strongroom_api::vm::{DesiredPower, Lifecycle, PowerState, RestartPolicy};
use strongroom_host::protocol::OperationKind;
use strongroom_types::VmId;
use uuid::Uuid;

use super::restored::SinceBackup;
use super::wishes::Caller;
use super::{Control, HostSeat};
use crate::inventory::{Failure, Index, Row};
use crate::keys::{GrantFor, KeyProblem};
use crate::records::{AUTOMATIC, ObservedRecord, TaskRecord, VmRecord, Work};

/// How often a VM is restarted within [`RESTARTS_WINDOW_MS`] before a person must look at it.
pub(super) const RESTARTS_MAX: usize = 3;
/// Ten minutes.
const RESTARTS_WINDOW_MS: u64 = 10 * 60 * 1000;
/// The pause before grants are sent again, in milliseconds.
const SUPPLY_PAUSE_MS: u64 = 2_000;

/// The right step for a VM.
enum Verdict {
    /// None: it is in its desired state, or a person must look at it.
    Leave,
    /// None before this time, in milliseconds since 1970.
    LeaveUntil(u64),
    /// The desired state becomes the actual one.
    Want(DesiredPower, &'static str),
    /// It must be started.
    Start,
    /// It waits for grants.
    Supply,
    /// Its record is from a backup, and its host has the same.
    Confirm,
}

impl Control {
    /// Handles the idle VMs for which something has changed.
    ///
    /// # Errors
    /// [`Failure`]: the rest is looked at next time.
    pub fn settle(&self) -> Result<(), Failure> {
        let mut left = self.take_unsettled();
        while let Some(id) = left.pop_first() {
            match self.settle_vm(id) {
                // A task works on it now, or it has changed and will be looked at again.
                Ok(()) | Err(Failure::Raced) => {}
                Err(failure) => {
                    left.insert(id);
                    self.unsettled.mark(left);
                    return Err(failure);
                }
            }
        }
        self.forget_groups()
    }

    fn settle_vm(&self, id: VmId) -> Result<(), Failure> {
        let found = {
            let index = self.inventory.read();
            let idle = index.vm(id).filter(|vm| vm.task.is_none() && vm.lifecycle == Lifecycle::Present);
            let known = idle.filter(|vm| self.seat(vm.host).is_some_and(|seat| seat.seen().is_complete()));
            known
                .zip(index.observed(id))
                .map(|(vm, seen)| (vm.clone(), seen.clone(), self.verdict(&index, vm, seen)))
        };
        let Some((vm, seen, verdict)) = found else { return Ok(()) };
        match verdict {
            Verdict::Leave => Ok(()),
            Verdict::LeaveUntil(time) => {
                self.unsettled.mark_at(id, time);
                Ok(())
            }
            Verdict::Want(desired, why) => self.want(&vm, &seen, desired, why),
            Verdict::Start => self.start_again(&vm, &seen),
            Verdict::Confirm => self.confirm(&vm),
            Verdict::Supply => {
                self.supply(&vm, &seen);
                self.unsettled.mark_at(id, self.now_unix_ms() + SUPPLY_PAUSE_MS);
                Ok(())
            }
        }
    }

    fn verdict(&self, index: &Index, vm: &VmRecord, seen: &ObservedRecord) -> Verdict {
        use DesiredPower::{Paused, Running, Stopped};
        if vm.from_backup {
            return match self.since_backup(index, vm) {
                SinceBackup::Same => Verdict::Confirm,
                SinceBackup::Unknown | SinceBackup::Missing | SinceBackup::Changed(_) => Verdict::Leave,
            };
        }
        let this_start = seen.generation >= vm.generation;
        match (vm.desired, seen.power) {
            (_, PowerState::Unknown | PowerState::Stopping) => Verdict::Leave,
            (Stopped, PowerState::Stopped | PowerState::Crashed | PowerState::Suspended) => Verdict::Leave,
            (Stopped, PowerState::Paused) => Verdict::Want(Paused, "it runs on its host"),
            (Stopped, PowerState::Running | PowerState::Starting | PowerState::KeyUnavailable) => {
                Verdict::Want(Running, "it runs on its host")
            }
            (_, PowerState::Stopped)
                if this_start
                    && matches!(seen.reason_code(), "guest_shutdown" | "stopped" | "forced_off") =>
            {
                Verdict::Want(Stopped, "it was shut down")
            }
            (_, PowerState::Suspended) if this_start && seen.reason_code() == "suspended" => {
                Verdict::Want(Stopped, "it was suspended")
            }
            (_, PowerState::Stopped | PowerState::Crashed | PowerState::Suspended) => {
                match self.may_start_again(index, vm, seen) {
                    true => Verdict::Start,
                    false => self.restarts_again_at(vm).map_or(Verdict::Leave, Verdict::LeaveUntil),
                }
            }
            (Running, PowerState::Paused) if seen.reason_code() == "paused_by_request" => {
                Verdict::Want(Paused, "it was paused")
            }
            (Paused, PowerState::Running) => Verdict::Want(Running, "it was resumed"),
            _ if seen.waiting_for.iter().any(|waiting| waiting.grant_wanted) => Verdict::Supply,
            _ => Verdict::Leave,
        }
    }

    /// Whether a VM that should run and does not may be restarted automatically.
    pub(super) fn may_start_again(&self, index: &Index, vm: &VmRecord, seen: &ObservedRecord) -> bool {
        let policy = index.policy_of(vm);
        let rule = policy.and_then(|policy| policy.rules.restart).unwrap_or(vm.restart);
        rule == RestartPolicy::OnFailure
            && seen.reason_code() != "key_revoked"
            && vm.hardware.half_clear().is_none()
            && vm.hardware.unsettled().is_none()
            && self.counted(vm).len() < RESTARTS_MAX
            && index.host_of(vm).is_none_or(|host| !host.maintenance)
    }

    /// The automatic restarts within the window.
    fn counted(&self, vm: &VmRecord) -> Vec<u64> {
        let now = self.now_unix_ms();
        let counts = |at: &u64| at.saturating_add(RESTARTS_WINDOW_MS) > now;
        vm.restarts_unix_ms.iter().copied().filter(counts).collect()
    }

    /// When a VM that was restarted too often may be restarted again.
    pub(super) fn restarts_again_at(&self, vm: &VmRecord) -> Option<u64> {
        let counted = self.counted(vm);
        let oldest = counted.iter().min().filter(|_| counted.len() >= RESTARTS_MAX);
        oldest.map(|oldest| oldest.saturating_add(RESTARTS_WINDOW_MS))
    }

    fn want(
        &self,
        vm: &Row<VmRecord>,
        seen: &ObservedRecord,
        desired: DesiredPower,
        why: &str,
    ) -> Result<(), Failure> {
        let generation = vm.generation.max(seen.generation);
        let now = VmRecord { desired, generation, ..VmRecord::clone(&vm.record) };
        let message = format!("VM {} is wanted {} from now on: {why}", vm.name, word(desired));
        self.inventory.commit(self.draft().replace(vm, &now).event("vm.desired", &vm.object(), message, None))
    }

    fn start_again(&self, vm: &Row<VmRecord>, seen: &ObservedRecord) -> Result<(), Failure> {
        let now = self.now_unix_ms();
        let id = Uuid::now_v7();
        let mut restarts = self.counted(vm);
        restarts.push(now);
        let started = VmRecord {
            generation: vm.generation_after(seen.generation),
            desired: DesiredPower::Running,
            task: Some(id),
            restarts_unix_ms: restarts,
            ..VmRecord::clone(&vm.record)
        };
        let task = TaskRecord {
            vm: Some(vm.id),
            work: Work::Start { discard_memory: false, paused: false },
            ..self.task(id, TaskKind::VmStart, vm.object(), &Caller::machine(AUTOMATIC))
        };
        let why = seen.reason.as_ref().map_or("it is off", |reason| reason.message.as_str());
        let message = format!("VM {} is started again: {why}", vm.name);
        let draft = self.draft().replace(vm, &started).create(&task);
        self.inventory.commit(draft.event("vm.restarted", &vm.object(), message, Some(id)))?;
        self.schedule.wake(id);
        Ok(())
    }

    /// Sends grants to a VM that waits for them. Lost grants are sent again.
    fn supply(&self, vm: &VmRecord, seen: &ObservedRecord) {
        let Some(seat) = self.seat(vm.host) else { return };
        if !due(seat, vm.id, self.now_unix_ms()) {
            return;
        }
        let wanted = seen.waiting_for.iter().filter(|waiting| waiting.grant_wanted);
        let keys: Vec<_> = wanted.map(|waiting| waiting.key.clone()).collect();
        let generation = strongroom_host::protocol::VmGeneration(seen.generation);
        let grants = match self.keys.grant(vm.id, generation, GrantFor::Current, seat.name.as_str(), &keys) {
            Ok(grants) if !grants.is_empty() => grants,
            // No grant is needed; the supervisor fetches the key itself.
            Ok(_) => return,
            Err(KeyProblem::Unavailable(reason) | KeyProblem::Refused(reason)) => {
                tracing::debug!(vm = %vm.name, %reason, "no leave for the keys that a VM waits for");
                return;
            }
        };
        if let Err(error) = seat.order(vm.id, generation, OperationKind::SupplyGrants, grants) {
            tracing::debug!(vm = %vm.name, %error, "grants could not be brought");
        }
    }

    /// Sends grants to a VM whose start waits for them. A task works on it, so
    /// [`settle`](Self::settle) skips it.
    pub(super) fn supply_waiting(&self, vm: &VmRecord, seen: &ObservedRecord) {
        if seen.waiting_for.iter().any(|waiting| waiting.grant_wanted) {
            self.supply(vm, seen);
        }
    }
}

/// Whether something that is repeated for a VM of a host is due again.
pub(super) fn due(seat: &HostSeat, vm: VmId, now_unix_ms: u64) -> bool {
    let mut seen = seat.seen();
    let last = seen.supplied_unix_ms.get(&vm).copied();
    let due = last.is_none_or(|last| last.saturating_add(SUPPLY_PAUSE_MS) <= now_unix_ms);
    if due {
        seen.supplied_unix_ms.insert(vm, now_unix_ms);
    }
    due
}

fn word(desired: DesiredPower) -> &'static str {
    match desired {
        DesiredPower::Stopped => "off",
        DesiredPower::Running => "running",
        DesiredPower::Paused => "paused",
    }
}
