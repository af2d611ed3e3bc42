//! Merges the hosts' reports about their VMs and themselves into the inventory when they change.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use parking_lot::MutexGuard;
use strongroom_api::vm::PowerState;
use strongroom_host::protocol::{self, ChangedObject, Epoch, ObservedVm, Operation, OperationId, VmSpec};
use strongroom_types::{DatastoreId, Redundancy, VmId};
use uuid::Uuid;

use super::{Control, HostSeat};
use crate::host::HostError;
use crate::inventory::{Draft, Failure};
use crate::records::ObservedRecord;

/// The most VMs that are merged in one transaction; each is a condition and at most two entries.
const TAKEN_AT_A_TIME: usize = 50;
/// The most ends of operations that nobody has asked for yet. Without one, the host is asked.
const ENDED_KEPT_MAX: usize = 4096;
/// The age at which a host's state is read again, in milliseconds: free memory and space change
/// without notice.
const STATE_AGE_MAX_MS: u64 = 5_000;

/// The state of a host outside the inventory. It is lost with the process, and read again.
#[derive(Default)]
pub(super) struct Seen {
    /// The last change that was read, with its epoch.
    read: Option<(Epoch, u64)>,
    /// The host's last answer about itself.
    pub state: Option<protocol::Host>,
    state_at_unix_ms: u64,
    /// How far its clock was ahead of the control plane's then, at least, in milliseconds; below
    /// zero if it was behind.
    pub clock_ahead_ms: i64,
    /// Why it does not answer, and since when, in milliseconds since 1970.
    pub down: Option<(String, u64)>,
    /// All of its VMs, in the inventory or not.
    pub vms: BTreeMap<VmId, Vec<Present>>,
    /// When grants were last sent to a VM, in milliseconds since 1970.
    pub supplied_unix_ms: HashMap<VmId, u64>,
}

impl Seen {
    /// Whether the host answers and has reported all its VMs.
    pub fn is_complete(&self) -> bool {
        self.down.is_none() && self.read.is_some()
    }
}

/// A VM directory of a host.
#[derive(Clone)]
pub(super) struct Present {
    pub name: String,
    pub directory: PathBuf,
    pub power: protocol::PowerState,
    pub generation: u64,
    pub spec: Option<Box<VmSpec>>,
}

impl From<&ObservedVm> for Present {
    fn from(vm: &ObservedVm) -> Self {
        let (name, directory) = (vm.name.to_string(), vm.directory.clone());
        Self { name, directory, power: vm.power, generation: vm.generation.0, spec: vm.spec.clone() }
    }
}

impl HostSeat {
    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock()
    }

    /// How many losses a datastore's data outlives, as the host says.
    pub(super) fn redundancy_of(&self, datastore: DatastoreId) -> Option<Redundancy> {
        let seen = self.seen();
        let told = seen.state.as_ref()?.datastores.iter().find(|told| told.id == Some(datastore))?;
        told.redundancy
    }

    fn looking(&self) -> MutexGuard<'_, ()> {
        self.looking.lock()
    }

    /// Whether it answered the last request.
    pub(super) fn is_up(&self) -> bool {
        let seen = self.seen();
        seen.down.is_none() && seen.state.is_some()
    }
}

/// The answer of a host about a VM.
pub(super) enum Look {
    /// The VM's state; `None` if the host does not have it.
    Seen(Option<Box<ObservedRecord>>),
    /// The host does not answer; the reason is for the task's note.
    Unanswered(String),
}

impl Control {
    /// The ids of the hosts.
    pub fn hosts(&self) -> Vec<Uuid> {
        self.hosts.iter().map(|seat| seat.id).collect()
    }

    /// Whether a host belongs to the site.
    pub fn has_host(&self, host: Uuid) -> bool {
        self.seat(host).is_some()
    }

    /// Ends the waits for changes of hosts, because the process ends.
    pub fn end_changes(&self) {
        self.hosts.iter().for_each(|seat| seat.host.end_changes());
    }

    /// Waits up to `wait` for changes of a host, and merges them. Returns whether the host answers.
    ///
    /// # Errors
    /// [`Failure`]: what was heard is asked for again.
    pub fn observe(&self, host: Uuid, wait: Duration) -> Result<bool, Failure> {
        let Some(seat) = self.seat(host) else { return Ok(false) };
        let was_complete = seat.seen().is_complete();
        match self.hear(seat, wait) {
            Ok(()) => {
                let was_down = seat.seen().down.take().is_some();
                if was_down {
                    tracing::info!(host = %seat.name, "the host answers again");
                    self.wake_all();
                }
                if !was_complete {
                    self.unsettle_host(host);
                    self.unreview_host(seat);
                }
                Ok(true)
            }
            Err(Heard::Failure(failure)) => {
                seat.seen().read = None;
                if was_complete {
                    self.unreview_host(seat);
                }
                Err(failure)
            }
            Err(Heard::Host(error)) => {
                let now = self.now_unix_ms();
                let mut seen = seat.seen();
                seen.read = None;
                let since = seen.down.as_ref().map_or(now, |down| down.1);
                if seen.down.is_none() {
                    tracing::warn!(host = %seat.name, %error, "the host does not answer");
                }
                let was_up = seen.down.replace((error.to_string(), since)).is_none();
                drop(seen);
                if was_up {
                    self.unreview_host(seat);
                }
                Ok(false)
            }
        }
    }

    fn hear(&self, seat: &HostSeat, wait: Duration) -> Result<(), Heard> {
        let (read, state_at) = {
            let seen = seat.seen();
            (seen.read, seen.state_at_unix_ms)
        };
        // A clock that was set back does not make an old state new.
        if self.now_unix_ms().abs_diff(state_at) > STATE_AGE_MAX_MS {
            self.hear_state(seat)?;
        }
        let Some((epoch, number)) = read else { return self.hear_all(seat) };
        let Some(changes) = seat.host.changes(number, wait)? else { return Ok(()) };
        if changes.epoch != epoch || changes.read_all {
            return self.hear_all(seat);
        }
        self.hear_ends(seat, changes.ended);
        // An object that changed twice is read once.
        let mut changed: BTreeSet<VmId> = BTreeSet::new();
        for change in &changes.changes {
            match change.object {
                ChangedObject::Vm(vm) => drop(changed.insert(vm)),
                ChangedObject::Operation(operation) => self.wake_for(operation),
                ChangedObject::Host => self.hear_state(seat)?,
            }
        }
        if !changed.is_empty() {
            let _looking = seat.looking();
            let asked: Vec<VmId> = changed.iter().copied().collect();
            let mut vms = seat.host.vms_of(&asked)?;
            // Each that was asked for, once.
            vms.retain(|vm| changed.remove(&vm.vm));
            {
                let mut seen = seat.seen();
                asked.iter().for_each(|vm| drop(seen.vms.remove(vm)));
                seen.vms.extend(vms.iter().map(|vm| (vm.vm, vec![Present::from(vm)])));
            }
            self.unreviewed.mark(asked);
            self.take_over(seat, &vms)?;
        }
        seat.seen().read = Some((epoch, changes.number));
        Ok(())
    }

    /// Keeps the ends of operations that tasks wait for.
    fn hear_ends(&self, seat: &HostSeat, ended: Vec<Operation>) {
        let index = self.inventory.read();
        let mut heard = self.ended.lock();
        if heard.len() > ENDED_KEPT_MAX {
            heard.clear();
        }
        let awaited = ended.into_iter().filter(|told| index.task_of(told.operation).is_some());
        heard.extend(awaited.map(|told| ((seat.id, told.operation), told)));
    }

    /// Has the task of an operation advanced.
    fn wake_for(&self, operation: OperationId) {
        let task = self.inventory.read().task_of(operation);
        task.into_iter().for_each(|task| self.schedule.wake(task));
    }

    /// Reads a host's state.
    pub(super) fn hear_state(&self, seat: &HostSeat) -> Result<(), HostError> {
        let asked = self.now_unix_ms();
        let state = seat.host.state()?;
        let answered = self.now_unix_ms();
        let mut seen = seat.seen();
        seen.clock_ahead_ms = state.now_unix_ms.map_or(0, |told| ahead_ms(told, asked, answered));
        (seen.state, seen.state_at_unix_ms) = (Some(state), answered);
        drop(seen);
        self.note_redundancy(seat);
        Ok(())
    }

    /// Reads all of a host's VMs again, for VMs that are new in the inventory: earlier reports
    /// about them were ignored. An error is repeated later.
    pub(super) fn look_at_all(&self, seat: &HostSeat) {
        match self.hear_all(seat) {
            Ok(()) => {}
            Err(Heard::Host(error)) => {
                tracing::debug!(host = %seat.name, %error, "its VMs could not be read again")
            }
            Err(Heard::Failure(error)) => tracing::debug!(%error, "what was read could not be written down"),
        }
    }

    fn hear_all(&self, seat: &HostSeat) -> Result<(), Heard> {
        self.hear_state(seat)?;
        let _looking = seat.looking();
        let all = seat.host.vms()?;
        let mut vms: BTreeMap<VmId, Vec<Present>> = BTreeMap::new();
        for vm in &all.vms {
            vms.entry(vm.vm).or_default().push(Present::from(vm));
        }
        self.take_over(seat, &all.vms)?;
        let former = {
            let mut seen = seat.seen();
            seen.read = Some((all.epoch, all.number));
            std::mem::replace(&mut seen.vms, vms)
        };
        self.unreviewed.mark(former.into_keys());
        self.unreview_host(seat);
        Ok(())
    }

    /// Reads a VM's state from its host, and merges it.
    pub(super) fn look_at(&self, seat: &HostSeat, vm: VmId) -> Result<Look, Failure> {
        let _looking = seat.looking();
        match seat.host.vm(vm) {
            Ok(Some(seen)) => {
                seat.seen().vms.insert(vm, vec![Present::from(&seen)]);
                self.unreviewed.mark([vm]);
                self.take_over(seat, std::slice::from_ref(&seen))?;
                Ok(Look::Seen(Some(Box::new(ObservedRecord::of(&seen)))))
            }
            Ok(None) => {
                seat.seen().vms.remove(&vm);
                self.unreviewed.mark([vm]);
                Ok(Look::Seen(None))
            }
            Err(error) => Ok(Look::Unanswered(format!("waiting for host {}: {error}", seat.name))),
        }
    }

    /// Records the news of a host about its VMs, with its events.
    fn take_over(&self, seat: &HostSeat, vms: &[ObservedVm]) -> Result<(), Failure> {
        for some in vms.chunks(TAKEN_AT_A_TIME) {
            // A VM that is removed meanwhile makes the transaction of its chunk fail, and the chunk
            // is tried again.
            for _ in 0..super::RACES_MAX {
                match self.inventory.commit(self.taken_over(seat, some)) {
                    Err(Failure::Raced) => self.inventory.catch_up()?,
                    other => {
                        other?;
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn taken_over(&self, seat: &HostSeat, vms: &[ObservedVm]) -> Draft {
        let index = self.inventory.read();
        let mut draft = self.draft();
        for told in vms {
            // What a host says about another one's VM is no state of it.
            let Some(vm) = index.vm(told.vm).filter(|vm| vm.host == seat.id) else { continue };
            let (now, before) = (ObservedRecord::of(told), index.observed(told.vm));
            if before.is_some_and(|before| *before.record == now) {
                continue;
            }
            let changed = before.is_some_and(|before| before.power != now.power);
            if changed {
                let why = now.reason.as_ref().map(|reason| format!(": {}", reason.message));
                let message = format!("VM {} is {}{}", vm.name, now.power.as_str(), why.unwrap_or_default());
                draft = draft.event("vm.power", &vm.object(), message, vm.task);
            }
            for volume in died_since(told, before.map(|before| &**before)) {
                let how = volume.last_end.as_deref().unwrap_or("ended");
                let message =
                    format!("the worker of {}/{} {how}, and was started again", vm.name, volume.disk);
                draft = draft.event("volume.worker_restarted", &vm.object(), message, None);
            }
            let same_start = before.filter(|before| before.generation == now.generation);
            if now.supervisor_deaths > same_start.map_or(0, |before| before.supervisor_deaths) {
                let message = format!(
                    "the supervisor of VM {} died, and another one took over; its guest waited for its disks meanwhile",
                    vm.name
                );
                draft = draft.event("vm.supervisor_restarted", &vm.object(), message, None);
            }
            if now.tpm_lost && !same_start.is_some_and(|before| before.tpm_lost) {
                let message = format!(
                    "the TPM of VM {} ended (swtpm died): its guest sees one that fails, until the VM is stopped and started",
                    vm.name
                );
                draft = draft.event("vm.tpm_lost", &vm.object(), message, None);
            }
            if now.network_lost && !same_start.is_some_and(|before| before.network_lost) {
                let message = format!(
                    "the network of VM {} ended (passt died): its guest reaches nothing, until the VM is stopped and started",
                    vm.name
                );
                draft = draft.event("vm.network_lost", &vm.object(), message, None);
            }
            draft = draft.put(&now).present(vm);
            if let Some(task) = vm.task {
                self.schedule.wake(task);
            }
        }
        draft
    }

    fn wake_all(&self) {
        for task in self.inventory.read().open_tasks() {
            self.schedule.wake(task.task.id);
        }
    }

    /// Returns the last known state of a VM.
    pub fn power(&self, vm: &crate::records::VmRecord) -> PowerState {
        let up = self.seat(vm.host).is_some_and(HostSeat::is_up);
        let index = self.inventory.read();
        self.power_in(&index, vm, up)
    }

    /// As [`power`](Self::power), for a caller that holds the index.
    pub(super) fn power_in(
        &self,
        index: &crate::inventory::Index,
        vm: &crate::records::VmRecord,
        host_is_up: bool,
    ) -> PowerState {
        let seen = index.observed(vm.id).filter(|_| host_is_up);
        seen.map_or(PowerState::Unknown, |seen| seen.power)
    }
}

/// Returns the volumes whose worker has died since the last report. A new start or supervisor
/// counts from zero.
fn died_since<'a>(
    told: &'a ObservedVm,
    before: Option<&ObservedRecord>,
) -> impl Iterator<Item = &'a protocol::ObservedVolume> {
    let known = before.filter(|before| before.generation == told.generation.0);
    let known = known.map(|before| before.worker_restarts.clone()).unwrap_or_default();
    told.volumes.iter().filter(move |volume| {
        let counted = known.get(volume.disk.as_str()).copied().unwrap_or(0);
        volume.restarts > counted
    })
}

/// Why there was no answer.
enum Heard {
    Host(HostError),
    Failure(Failure),
}

impl From<HostError> for Heard {
    fn from(error: HostError) -> Self {
        Self::Host(error)
    }
}

impl From<Failure> for Heard {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}
/// How far the clock that was told is ahead, if the answer came at any moment in between.
fn ahead_ms(told_unix_ms: u64, asked_unix_ms: u64, answered_unix_ms: u64) -> i64 {
    let nearest = told_unix_ms.clamp(asked_unix_ms, answered_unix_ms.max(asked_unix_ms));
    told_unix_ms.wrapping_sub(nearest).cast_signed()
}
