//! Alarms. Each review derives the alarms from the present state, raises the new ones and clears
//! those that are over, each with its event, in one transaction.

use std::collections::BTreeMap;

use strongroom_api::alarm::{Alarm, AlarmKind, Severity};
use strongroom_api::key::{KeyProvider, KeyState};
use strongroom_api::vm::{DesiredPower, Lifecycle, PowerState};
use strongroom_api::{ObjectKind, ObjectRef};
use strongroom_host::protocol;
use strongroom_statistics::display_latency;
use strongroom_types::{CephPools, counted, display_bytes, display_seconds};
use uuid::Uuid;

use super::boards;
use super::compliance::{deviations, schedule_of};
use super::due_snapshots::trouble;
use super::recipients::{CLEARED, RAISED};
use super::register::directory_name;
use super::settle::RESTARTS_MAX;
use super::slow_disks::STALLED_MS;
use super::{Control, HostSeat};
use crate::inventory::{Failure, Index, Row};
use crate::records::{DatastoreRecord, Mount, ObservedRecord, Record, VmRecord, alarm_id};

/// How long before its expiry a certificate or key raises an alarm, in seconds: 30 days.
const EXPIRY_NOTICE_S: u64 = 30 * 86_400;
/// The age from which a key server's backup no longer counts, in seconds: 30 days.
const BACKUP_AGE_MAX_S: u64 = 30 * 86_400;
/// The fraction of a datastore that should be free: a twentieth.
const FREE_PART: u64 = 20;
/// How far a host's clock may be off, in milliseconds.
const CLOCK_OFF_MAX_MS: u64 = 5_000;
/// The most alarms that change in one transaction; each is two entries.
const CHANGED_AT_A_TIME: usize = 50;

/// A certificate of the API.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// What it is called in alarms.
    pub name: String,
    /// When it expires, in seconds since 1970.
    pub expires_unix_seconds: u64,
    /// What is to be done before.
    pub next_step: &'static str,
}

/// The alarms that should be raised.
#[derive(Default)]
pub(super) struct Wanted(BTreeMap<String, Alarm>);

impl Wanted {
    pub(super) fn raise(
        &mut self,
        kind: AlarmKind,
        severity: Severity,
        object: ObjectRef,
        message: impl Into<String>,
        next_step: impl Into<String>,
    ) {
        let (message, next_step) = (message.into(), next_step.into());
        let alarm = Alarm { kind, severity, object, message, next_step, since_unix_ms: 0 };
        self.0.insert(alarm_id(&alarm), alarm);
    }
}

impl Control {
    /// Sets the certificates whose expiry raises an alarm.
    pub fn watch_certificates(&self, certificates: Vec<Certificate>) {
        *self.certificates.lock() = certificates;
    }

    /// Returns the key providers with their last known state.
    pub fn providers(&self) -> Vec<KeyProvider> {
        self.providers.lock().clone()
    }

    /// Asks the key providers for their state. Blocks until they answer.
    pub fn ask_providers(&self) {
        let providers = self.keys.providers();
        *self.providers.lock() = providers;
    }

    /// Raises and clears alarms, and ends what runs where it does not belong.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn review(&self) -> Result<(), Failure> {
        let mut wanted = Wanted::default();
        let now = self.now_unix_ms() / 1000;
        self.review_providers(&mut wanted, now);
        self.review_keys(&mut wanted, now);
        self.review_access_log(&mut wanted)?;
        self.review_backups(&mut wanted, now);
        self.end_strays();
        {
            let index = self.inventory.read();
            for seat in self.hosts.iter() {
                self.review_host(&index, seat, &mut wanted);
            }
            for vm in index.vms.iter() {
                self.review_vm(&index, vm, &mut wanted);
                if vm.from_backup {
                    self.review_since_backup(&index, vm, &mut wanted);
                }
            }
            self.review_recipients(&index, &mut wanted, self.now_unix_ms());
            self.review_emergencies(&index, &mut wanted);
        }
        self.raise_and_clear(wanted)
    }

    fn raise_and_clear(&self, wanted: Wanted) -> Result<(), Failure> {
        let (raised, cleared): (Vec<Alarm>, Vec<Row<Alarm>>) = {
            let index = self.inventory.read();
            let new = wanted.0.values().filter(|alarm| {
                index.alarms.get(&alarm.id()).is_none_or(|raised| raised.severity != alarm.severity)
            });
            let over = index.alarms.iter().filter(|raised| !wanted.0.contains_key(&raised.id()));
            (new.cloned().collect(), over.cloned().collect())
        };
        let now = self.now_unix_ms();
        for some in raised.chunks(CHANGED_AT_A_TIME) {
            let mut draft = self.draft();
            for alarm in some {
                let alarm = Alarm { since_unix_ms: now, ..alarm.clone() };
                draft = draft.put(&alarm).alarm_event(RAISED, &alarm, &alarm.message);
            }
            self.inventory.commit(draft)?;
        }
        for some in cleared.chunks(CHANGED_AT_A_TIME) {
            let mut draft = self.draft();
            for alarm in some {
                let message = format!("over: {}", alarm.message);
                draft = draft.remove(alarm).alarm_event(CLEARED, alarm, message);
            }
            self.inventory.commit(draft)?;
        }
        Ok(())
    }

    fn review_providers(&self, wanted: &mut Wanted, now: u64) {
        for provider in self.providers() {
            let object = ObjectRef { kind: ObjectKind::KeyProvider, id: None, name: provider.name.clone() };
            if !provider.healthy {
                let why = provider.reason.as_deref().unwrap_or("it does not say why");
                wanted.raise(
                    AlarmKind::KeyProviderDown,
                    Severity::Critical,
                    object.clone(),
                    format!("key provider {} cannot be used: {why}", provider.name),
                    format!("`strongroom key-provider test {}`", provider.name),
                );
            }
            if let Some(end) = provider.certificate_expires_unix_seconds {
                let message = format!("the certificate for key provider {} ends", provider.name);
                let step = format!("`strongroom key-provider test {}` names it; renew it", provider.name);
                expiry(wanted, AlarmKind::CertificateExpiry, object.clone(), end, now, message, step);
            }
            if let Some(backup) = provider.last_backup_unix_seconds
                && backup.saturating_add(BACKUP_AGE_MAX_S) < now
            {
                wanted.raise(
                    AlarmKind::KeyServerUnbacked,
                    Severity::Warning,
                    object,
                    format!("the key server {} has no backup of the last 30 days", provider.name),
                    "`strongroom keyserver backup`, and keep the file away from this machine",
                );
            }
        }
        let certificates = self.certificates.lock().clone();
        for Certificate { name, expires_unix_seconds, next_step } in certificates {
            let message = format!("the API's certificate ({name}) ends");
            let object = ObjectRef { kind: ObjectKind::Control, id: None, name };
            let kind = AlarmKind::CertificateExpiry;
            expiry(wanted, kind, object, expires_unix_seconds, now, message, next_step.to_owned());
        }
    }

    /// Raises alarms for keys of VMs that expire soon or are gone.
    fn review_keys(&self, wanted: &mut Wanted, now: u64) {
        let mut users = Vec::new();
        {
            let index = self.inventory.read();
            for vm in index.vms.iter() {
                users.extend(vm.hardware.keys().into_iter().map(|key| (key, vm.object())));
            }
        }
        let keys: Vec<_> = users.iter().map(|(key, _)| key.clone()).collect();
        let standings = self.standings.of(&*self.keys, &keys, self.now_unix_ms());
        for (key, object) in &users {
            let Some(standing) = standings.get(key) else { continue };
            if let Some(end) = standing.expires_unix_seconds {
                let message = format!("the cryptoperiod of {key} of VM {} ends", object.name);
                let step = format!("`strongroom vm key rotate {}`", object.name);
                expiry(wanted, AlarmKind::KeyExpiry, object.clone(), end, now, message, step);
            }
            if matches!(standing.state, KeyState::Destroyed | KeyState::Compromised) {
                wanted.raise(
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

    fn review_host(&self, index: &Index, seat: &HostSeat, wanted: &mut Wanted) {
        let object = host_object(seat);
        if index.hosts.get(&seat.id.to_string()).is_some_and(|host| host.maintenance) {
            wanted.raise(
                AlarmKind::HostMaintenance,
                Severity::Warning,
                object.clone(),
                format!("host {} is in maintenance: no VM is placed or started there", seat.name),
                format!("`strongroom host maintenance {} off` ends it", seat.name),
            );
        }
        let seen = seat.seen();
        if let Some((reason, _)) = &seen.down {
            wanted.raise(
                AlarmKind::HostDown,
                Severity::Critical,
                object,
                format!("host {} does not answer: {reason}", seat.name),
                "see to it that hostd runs there; VMs that run go on meanwhile",
            );
            return;
        }
        let Some(state) = &seen.state else { return };
        review_crypto_safe(seat, &state.crypto_safe, wanted);
        review_clock(seat, seen.clock_ahead_ms, wanted);
        boards::review(index, seat, state, wanted);
        let on = |vm: &&Row<VmRecord>| {
            index.observed(vm.id).is_some_and(|seen| seen.power.is_on() && seen.power != PowerState::Unknown)
        };
        let running: u64 = index.vms_on(seat.id).filter(on).map(|vm| vm.hardware.memory.bytes()).sum();
        if running > state.memory_bytes {
            wanted.raise(
                AlarmKind::Overcommit,
                Severity::Warning,
                object.clone(),
                format!(
                    "the VMs that run on host {} may take {running} bytes of memory, and it has {}",
                    seat.name, state.memory_bytes
                ),
                "stop VMs, or give them less memory",
            );
        }
        for datastore in index.datastores.iter() {
            if let Some(mount) = datastore.on(seat.id) {
                review_datastore(index, OnHost { datastore, mount, seat }, state, wanted);
            }
        }
        if !seen.is_complete() {
            return;
        }
        for (vm, places) in &seen.vms {
            let known = index.vm(*vm);
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
                continue;
            }
            let id = Some(Uuid::from_bytes(*vm.as_bytes()));
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
        for vm in index.vms_on(seat.id) {
            let expected = vm.lifecycle == Lifecycle::Present && vm.task.is_none();
            if expected && !seen.vms.contains_key(&vm.id) {
                wanted.raise(
                    AlarmKind::VmMissing,
                    Severity::Critical,
                    vm.object(),
                    format!("VM {} is not in its datastore any more", vm.name),
                    format!("mount the datastore, or `strongroom vm unregister {}`", vm.name),
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

    fn review_vm(&self, index: &Index, vm: &Row<VmRecord>, wanted: &mut Wanted) {
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
            index.policy_of(vm).map(|policy| (policy, deviations(vm, schedule_of(index, vm), policy)));
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
        let Some(seen) = index.observed(vm.id) else { return };
        if let Some(waiting) = seen.waiting_for.first() {
            wanted.raise(
                AlarmKind::KeyUnavailable,
                Severity::Critical,
                vm.object(),
                format!("VM {} waits for {}: {}", vm.name, waiting.key, waiting.reason),
                format!("`strongroom key-provider test {}`; the VM goes on by itself", waiting.key.provider),
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

/// Raises one alarm for all leaks. Running VMs are not touched.
fn review_crypto_safe(seat: &HostSeat, told: &protocol::CryptoSafe, wanted: &mut Wanted) {
    let (severity, consequence) = match told.state {
        protocol::CryptoSafeState::PendingIncapable => {
            (Severity::Critical, "its VMs with encrypted disks run on, and none is started")
        }
        protocol::CryptoSafeState::Incapable if told.required => {
            (Severity::Warning, "no VM with encrypted disks is started there")
        }
        _ => return,
    };
    wanted.raise(
        AlarmKind::HostNotCryptoSafe,
        severity,
        host_object(seat),
        format!("host {} is not crypto-safe: {}; {consequence}", seat.name, told.reasons.join("; ")),
        "`strongroom doctor` on that host says how to mend it",
    );
}

fn review_clock(seat: &HostSeat, ahead_ms: i64, wanted: &mut Wanted) {
    let off_ms = ahead_ms.unsigned_abs();
    if off_ms <= CLOCK_OFF_MAX_MS {
        return;
    }
    let (off, direction) =
        (display_seconds(off_ms.div_ceil(1000)), if ahead_ms > 0 { "ahead of" } else { "behind" });
    wanted.raise(
        AlarmKind::ClockOff,
        Severity::Warning,
        host_object(seat),
        format!("the clock of host {} is {off} {direction} the control plane's", seat.name),
        "certificates, grants and codes depend on both: have NTP keep them, and see `strongroom doctor` there",
    );
}

/// A datastore on one of its hosts.
#[derive(Clone, Copy)]
struct OnHost<'a> {
    datastore: &'a Row<DatastoreRecord>,
    mount: &'a Mount,
    seat: &'a HostSeat,
}

fn review_datastore(
    index: &Index,
    OnHost { datastore, mount, seat }: OnHost<'_>,
    host: &protocol::Host,
    wanted: &mut Wanted,
) {
    let object = datastore_object(datastore);
    let told = host.datastores.iter().find(|told| told.path == std::path::Path::new(&mount.path));
    let right = told.filter(|told| told.id == Some(datastore.id));
    let Some(told) = right.filter(|told| told.state != protocol::DatastoreState::Missing) else {
        let why = told.and_then(|told| told.reason.clone()).unwrap_or_else(|| "it is not there".to_owned());
        let on = if datastore.is_shared() { format!(" on host {}", seat.name) } else { String::new() };
        let (place, next) = match &datastore.ceph {
            None => (mount.path.clone(), "mount it; VMs in it go on when it is there"),
            Some(CephPools { pool, namespace, .. }) => (
                format!("pool {pool}, namespace {namespace}"),
                "see `ceph health detail`, and whether the host's user may use the pools; VMs in it go on when the cluster answers",
            ),
        };
        wanted.raise(
            AlarmKind::DatastoreUnavailable,
            Severity::Critical,
            object,
            format!("datastore {} ({place}{on}) cannot be used: {why}", datastore.name),
            next,
        );
        return;
    };
    let hardly_any = told.free_bytes < told.total_bytes / FREE_PART;
    if told.state == protocol::DatastoreState::Full || hardly_any {
        let full = told.state == protocol::DatastoreState::Full;
        wanted.raise(
            AlarmKind::DatastoreFull,
            if full { Severity::Critical } else { Severity::Warning },
            object.clone(),
            format!(
                "datastore {} has {} of {} free",
                datastore.name,
                display_bytes(told.free_bytes),
                display_bytes(told.total_bytes)
            ),
            "make room; VMs whose writes wait go on by themselves",
        );
    }
    let provisioned: u64 = index.vms_in(datastore.id).map(|vm| vm.hardware.disk_bytes()).sum();
    if told.total_bytes > 0 && provisioned > told.total_bytes {
        wanted.raise(
            AlarmKind::Overcommit,
            Severity::Warning,
            object,
            format!(
                "the volumes in datastore {} may grow to {}, and it has {}",
                datastore.name,
                display_bytes(provisioned),
                display_bytes(told.total_bytes)
            ),
            "add another datastore before they do",
        );
    }
}

fn expiry(
    wanted: &mut Wanted,
    kind: AlarmKind,
    object: ObjectRef,
    end: u64,
    now: u64,
    message: String,
    step: String,
) {
    if end > now.saturating_add(EXPIRY_NOTICE_S) {
        return;
    }
    let (severity, when) = match end.checked_sub(now) {
        Some(left) => (
            Severity::Warning,
            format!("in {}", counted(usize::try_from(left / 86_400).unwrap_or(usize::MAX), "day")),
        ),
        None => (Severity::Critical, "already".to_owned()),
    };
    wanted.raise(kind, severity, object, format!("{message} {when}"), step);
}

pub(super) fn host_object(seat: &HostSeat) -> ObjectRef {
    ObjectRef { kind: ObjectKind::Host, id: Some(seat.id), name: seat.name.to_string() }
}

pub(super) fn datastore_object(datastore: &DatastoreRecord) -> ObjectRef {
    let id = Uuid::from_bytes(*datastore.id.as_bytes());
    ObjectRef { kind: ObjectKind::Datastore, id: Some(id), name: datastore.name.to_string() }
}
