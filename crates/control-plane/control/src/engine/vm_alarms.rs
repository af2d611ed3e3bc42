//! The alarms of VMs. They are derived anew for VMs for which something has changed or whose time
//! has come; those of all others stay as they are.
//!
//! What they are derived from: the VM's record, its observed state, schedule, policy, host,
//! datastore and task, where hosts have it, its disks' counters, and the standings of its keys.
//! Each of these marks the VM after it has changed, and a review takes the mark before it reads.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use strongroom_api::alarm::{Alarm, AlarmKind, Severity};
use strongroom_api::key::KeyState;
use strongroom_api::vm::{DesiredPower, Lifecycle};
use strongroom_api::{ObjectKind, ObjectRef};
use strongroom_statistics::display_latency;
use strongroom_types::{VmId, counted};
use uuid::Uuid;

use super::alarms::{Wanted, expiry, expiry_times_ms};
use super::compliance::{deviations, schedule_of};
use super::data_keys::overdue_times_ms;
use super::due_snapshots::trouble;
use super::observe::Present;
use super::register::directory_name;
use super::settle::RESTARTS_MAX;
use super::slow_disks::STALLED_MS;
use super::strays::{Stray, is_moving_live, stray};
use super::{Control, HostSeat};
use crate::inventory::{ChangedObjects, Facet, Index, Row};
use crate::records::{ObservedRecord, VmRecord, alarm_id};

/// The alarms of each VM that has some, as they were when it was last looked at.
#[derive(Default)]
pub(super) struct VmAlarms(Mutex<BTreeMap<VmId, Vec<Alarm>>>);

impl VmAlarms {
    pub fn add_to(&self, wanted: &mut Wanted) {
        let all = self.0.lock();
        wanted.0.extend(all.values().flatten().map(|alarm| (alarm_id(alarm), alarm.clone())));
    }
}

/// What a look at a VM finds.
#[derive(Default)]
struct Review<'a> {
    wanted: Wanted,
    /// When it may find something else though nothing changes, in milliseconds since 1970.
    times_ms: Vec<u64>,
    /// Where the VM runs and does not belong.
    strays: Vec<Stray<'a>>,
}

impl Control {
    /// Looks at the VMs whose alarms may differ, and ends what runs where it does not belong.
    pub(super) fn review_vms(&self) {
        // Held until the end: of two reviews, the one that has read earlier must not be the last.
        let mut all = self.vm_alarms.0.lock();
        let mut marked = self.take_unreviewed(&all);
        self.ask_for_keys(&mut marked);
        let mut strays = Vec::new();
        {
            let now_ms = self.now_unix_ms();
            let index = self.inventory.read();
            for id in marked {
                let mut review = Review::default();
                if let Some(vm) = index.vm(id) {
                    self.review_vm(&index, vm, &mut review);
                }
                self.review_places(&index, id, &mut review);
                let Review { wanted, times_ms, strays: found } = review;
                if let Some(next) = times_ms.into_iter().filter(|time| *time > now_ms).min() {
                    self.unreviewed.mark_at(id, next);
                }
                match wanted.0.is_empty() {
                    true => drop(all.remove(&id)),
                    false => drop(all.insert(id, wanted.0.into_values().collect())),
                }
                strays.extend(found);
            }
        }
        // Each is ended again until its host says that it is off.
        self.unreviewed.mark(strays.iter().map(|stray| stray.vm));
        self.end_strays(&strays);
    }

    fn take_unreviewed(&self, known: &BTreeMap<VmId, Vec<Alarm>>) -> BTreeSet<VmId> {
        let mut taken = self.unreviewed.take(self.now_unix_ms());
        match self.inventory.take_unreviewed_vms() {
            ChangedObjects::Some(changed) => taken.extend(changed),
            ChangedObjects::All => {
                taken.extend(self.inventory.read().vms.iter().map(|vm| vm.id));
                taken.extend(known.keys());
            }
        }
        taken
    }

    /// Asks for the standings of keys that are due, and adds the VMs for which that changes
    /// something.
    fn ask_for_keys(&self, vms: &mut BTreeSet<VmId>) {
        {
            let index = self.inventory.read();
            let used = vms.iter().filter_map(|vm| index.vm(*vm));
            used.for_each(|vm| self.standings.want(vm.hardware.keys()));
        }
        let is_used = |key| !self.inventory.read().members(&Facet::Key(key)).is_empty();
        let changed = self.standings.refresh(&*self.keys, is_used, self.now_unix_ms());
        let index = self.inventory.read();
        for key in changed {
            let users = index.members(&Facet::Key(key)).iter();
            vms.extend(users.filter_map(|member| member.id().parse::<VmId>().ok()));
        }
    }

    /// Has the alarms of all VMs looked at that a host has, or should have.
    pub(super) fn unreview_host(&self, seat: &HostSeat) {
        self.unreviewed.mark(seat.seen().vms.keys().copied());
        let index = self.inventory.read();
        self.unreviewed.mark(index.vms_on(seat.id).map(|vm| vm.id));
    }

    /// Raises the alarms for where hosts have a VM, in the inventory or not.
    fn review_places<'a>(&'a self, index: &Index, id: VmId, review: &mut Review<'a>) {
        let known = index.vm(id);
        for seat in self.hosts.iter() {
            let seen = seat.seen();
            if !seen.is_complete() {
                continue;
            }
            match seen.vms.get(&id) {
                Some(places) => {
                    let coming = known.filter(|known| is_moving_live(index, known, seat.id));
                    if coming.is_none() {
                        review.strays.extend(stray(known, seat, id, places));
                        review_present(known, seat, id, places, &mut review.wanted);
                    }
                }
                None => review_absent(known, seat, &mut review.wanted),
            }
        }
    }

    /// Raises alarms for keys of a VM that expire soon or are gone.
    fn review_keys(&self, vm: &VmRecord, review: &mut Review<'_>) {
        let (now, object) = (self.now_unix_ms() / 1000, vm.object());
        for key in vm.hardware.keys() {
            let Some(standing) = self.standings.of(&key) else { continue };
            if let Some(end) = standing.expires_unix_seconds {
                review.times_ms.extend(expiry_times_ms(end));
                let message = format!("the cryptoperiod of {key} of VM {} ends", object.name);
                let step = format!("`strongroom vm key rotate {}`", object.name);
                expiry(&mut review.wanted, AlarmKind::KeyExpiry, object.clone(), end, now, message, step);
            }
            if matches!(standing.state, KeyState::Destroyed | KeyState::Compromised) {
                review.wanted.raise(
                    AlarmKind::KeyUnavailable,
                    Severity::Critical,
                    object.clone(),
                    format!("VM {}: {key} was revoked or destroyed", object.name),
                    format!(
                        "`strongroom vm key rotate {}` while it runs, or restore it from a backup",
                        object.name
                    ),
                );
            }
        }
    }

    fn review_disks(&self, vm: &VmRecord, seen: &ObservedRecord, wanted: &mut Wanted) {
        // A VM that waits for space has another alarm, a VM that is off has no disks, and nothing
        // is known about a host that does not answer.
        let answers = self.seat(vm.host).is_some_and(HostSeat::is_up);
        if !answers || !seen.power.is_on() || seen.reason_code() == "no_space" {
            return;
        }
        let (mut stalled, mut slow) = (None, None);
        self.samples.of_vm(vm.host, vm.id, |sample| {
            if sample.snapshot.stalled_ms >= STALLED_MS {
                worst(&mut stalled, &sample.disk, sample.snapshot.stalled_ms);
            } else if let Some(p99_ns) = sample.watch.slow_ns() {
                worst(&mut slow, &sample.disk, p99_ns);
            }
        });
        let look = format!("`strongroom vm stats {}`, then look at the datastore's device", vm.name);
        if let Some(DiskTrouble { disk, by }) = stalled {
            let message = format!(
                "VM {}: {disk} has completed nothing for {} seconds, with requests in flight",
                vm.name,
                by / 1000
            );
            wanted.raise(AlarmKind::DiskStalled, Severity::Critical, vm.object(), message, look.clone());
        }
        if let Some(DiskTrouble { disk, by }) = slow {
            let message = format!(
                "VM {}: one of 100 requests to {disk} takes {} or more",
                vm.name,
                display_latency(by)
            );
            wanted.raise(AlarmKind::DiskSlow, Severity::Warning, vm.object(), message, look);
        }
    }

    fn review_vm(&self, index: &Index, vm: &Row<VmRecord>, review: &mut Review<'_>) {
        let wanted = &mut review.wanted;
        let task = vm.task.and_then(|task| index.task(task)).filter(|task| task.waits_for_key);
        if let Some(note) = task.and_then(|task| task.task.note.as_deref()) {
            wanted.raise(
                AlarmKind::KeyUnavailable,
                Severity::Critical,
                vm.object(),
                format!("VM {}: {note}", vm.name),
                "see to its key provider (`strongroom key-provider list`); the task goes on by itself",
            );
        }
        let rules = index.schedule(vm.id).into_iter().flat_map(|schedule| &schedule.rules);
        if let Some(trouble) = rules.filter_map(|rule| trouble(vm, rule)).next() {
            wanted.raise(
                AlarmKind::SnapshotMissed,
                Severity::Warning,
                vm.object(),
                trouble.message,
                format!(
                    "`strongroom vm snapshot schedule {}`; the next one that is made clears this",
                    vm.name
                ),
            );
        }
        review.times_ms.extend(overdue_times_ms(index, vm));
        if let Some(message) = self.overdue_data_keys(index, vm) {
            wanted.raise(
                AlarmKind::DataKeysOverdue,
                Severity::Warning,
                vm.object(),
                message,
                format!(
                    "`strongroom vm key rotate {} --data` renews them now; otherwise it is tried again by itself",
                    vm.name
                ),
            );
        }
        let deviations =
            index.policy_of(vm).map(|policy| (policy, deviations(index, vm, schedule_of(index, vm), policy)));
        if let Some((policy, deviations)) = deviations
            && let Some(first) = deviations.first()
        {
            wanted.raise(
                AlarmKind::PolicyViolated,
                Severity::Warning,
                vm.object(),
                format!("policy {}: {}", policy.name, first.message),
                &first.next_step,
            );
        }
        if vm.from_backup {
            self.review_since_backup(index, vm, wanted);
        }
        self.review_keys(vm, review);
        let wanted = &mut review.wanted;
        let Some(seen) = index.observed(vm.id) else { return };
        if let Some(waiting) = seen.waiting_for.first() {
            wanted.raise(
                AlarmKind::KeyUnavailable,
                Severity::Critical,
                vm.object(),
                format!("VM {} waits for {}: {}", vm.name, waiting.key, waiting.reason),
                format!(
                    "`strongroom key-provider test {}`; the VM goes on by itself",
                    waiting.upstream.as_ref().unwrap_or(&waiting.key.provider)
                ),
            );
        }
        if seen.tpm_lost {
            wanted.raise(
                AlarmKind::TpmLost,
                Severity::Warning,
                vm.object(),
                format!("VM {} runs with a TPM that fails: swtpm has ended", vm.name),
                format!("`strongroom vm restart {}`, when its guest may", vm.name),
            );
        }
        if seen.network_lost {
            wanted.raise(
                AlarmKind::NetworkLost,
                Severity::Warning,
                vm.object(),
                format!("VM {} runs with a network that reaches nothing: passt has ended", vm.name),
                format!("`strongroom vm restart {}`, when its guest may", vm.name),
            );
        }
        if seen.reason_code() == "guest_may_be_frozen" {
            wanted.raise(
                AlarmKind::GuestMayBeFrozen,
                Severity::Critical,
                vm.object(),
                format!("the file systems of the guest of VM {} may be frozen after a snapshot", vm.name),
                format!(
                    "thaw them in the guest (`fsfreeze --unfreeze`), or `strongroom vm reset {}`",
                    vm.name
                ),
            );
        }
        self.review_disks(vm, seen, wanted);
        let off = !seen.power.is_on();
        review.times_ms.extend(self.restarts_again_at(vm));
        let wanted_on = vm.desired != DesiredPower::Stopped && vm.task.is_none();
        if off && wanted_on && !self.may_start_again(index, vm, seen) {
            let why =
                seen.reason.as_ref().map_or("its host does not say why", |reason| reason.message.as_str());
            let times = counted(vm.restarts_unix_ms.len().min(RESTARTS_MAX), "time");
            wanted.raise(
                AlarmKind::VmCrashed,
                Severity::Critical,
                vm.object(),
                format!("VM {} is off and should run: {why}; it was started by itself {times}", vm.name),
                format!("look into the reason, then `strongroom vm start {}`", vm.name),
            );
        }
    }
}

/// Raises the alarms for a VM that a host has.
fn review_present(
    known: Option<&Row<VmRecord>>,
    seat: &HostSeat,
    id: VmId,
    places: &[Present],
    wanted: &mut Wanted,
) {
    if let Some(known) = known.filter(|known| known.host != seat.id)
        && places.iter().any(|place| !place.power.is_off())
    {
        wanted.raise(
            AlarmKind::RunsElsewhere,
            Severity::Critical,
            known.object(),
            format!("VM {} runs on host {}, which is not its host", known.name, seat.name),
            "an earlier start is ended there; otherwise see which host is right before anything is started",
        );
    }
    let named = known.map(|known| known.name.to_string());
    let known = known.is_some();
    if known && places.len() < 2 {
        return;
    }
    let id = Some(Uuid::from_bytes(*id.as_bytes()));
    let first = places.first();
    let name = named.or_else(|| first.map(|place| place.name.clone())).unwrap_or_default();
    let directory = first.map_or_else(String::new, directory_name);
    let paths: Vec<_> = places.iter().map(|place| place.directory.display().to_string()).collect();
    let (message, step) = if known {
        (
            format!("VM {name} is there more than once: {}", paths.join(", ")),
            "a copy has the same id; move the copy out of the datastore".to_owned(),
        )
    } else {
        let runs = places.iter().any(|place| !place.power.is_off());
        let how = if runs { "runs" } else { "lies" };
        (
            format!(
                "VM {name} {how} on host {} and is not in the inventory: {}",
                seat.name,
                paths.join(", ")
            ),
            format!("`strongroom vm register {directory}`, or remove its directory"),
        )
    };
    let object = ObjectRef { kind: ObjectKind::Vm, id, name };
    wanted.raise(AlarmKind::Orphan, Severity::Warning, object, message, step);
}

/// Raises the alarm for a VM that its host does not have.
fn review_absent(known: Option<&Row<VmRecord>>, seat: &HostSeat, wanted: &mut Wanted) {
    let expected =
        |vm: &&Row<VmRecord>| vm.host == seat.id && vm.lifecycle == Lifecycle::Present && vm.task.is_none();
    let Some(vm) = known.filter(expected) else { return };
    wanted.raise(
        AlarmKind::VmMissing,
        Severity::Critical,
        vm.object(),
        format!("VM {} is not in its datastore any more", vm.name),
        format!("mount the datastore, or `strongroom vm unregister {}`", vm.name),
    );
}

/// A disk of a VM in trouble. An alarm is identified by its kind and object, so a VM's alarm is
/// about its worst disk.
struct DiskTrouble {
    disk: String,
    /// How long it has completed nothing, in milliseconds, or its latency, in nanoseconds.
    by: u64,
}

fn worst(worst: &mut Option<DiskTrouble>, disk: &str, by: u64) {
    if worst.as_ref().is_none_or(|known| known.by < by) {
        *worst = Some(DiskTrouble { disk: disk.to_owned(), by });
    }
}
