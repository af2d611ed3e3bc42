//! Alarms. Each review derives the alarms of the site, its hosts and datastores from the present
//! state, adds those of VMs ([`vm_alarms`](super::vm_alarms)), raises the new ones and clears those
//! that are over, each with its event, in one transaction.

use std::collections::BTreeMap;

use strongroom_api::alarm::{Alarm, AlarmKind, Severity};
use strongroom_api::key::KeyProvider;
use strongroom_api::{ObjectKind, ObjectRef};
use strongroom_host::protocol;
use strongroom_types::{CephPools, counted, display_bytes, display_seconds};
use uuid::Uuid;

use super::boards;
use super::recipients::{CLEARED, RAISED};
use super::{Control, HostSeat};
use crate::inventory::{Facet, Failure, Index, Row};
use crate::records::{DatastoreRecord, Mount, Record, alarm_id};

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
pub(super) struct Wanted(pub(super) BTreeMap<String, Alarm>);

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
        self.review_access_log(&mut wanted)?;
        self.review_backups(&mut wanted, now);
        self.review_vms();
        self.vm_alarms.add_to(&mut wanted);
        {
            let index = self.inventory.read();
            for seat in self.hosts.iter() {
                self.review_host(&index, seat, &mut wanted);
            }
            self.review_recipients(&index, &mut wanted, self.now_unix_ms());
            self.review_emergencies(&index, &mut wanted);
        }
        self.raise_and_clear(wanted)
    }

    fn raise_and_clear(&self, wanted: Wanted) -> Result<(), Failure> {
        let now = self.now_unix_ms();
        let (raised, cleared): (Vec<Alarm>, Vec<Row<Alarm>>) = {
            let index = self.inventory.read();
            let new = wanted.0.values().filter_map(|alarm| match index.alarms.get(&alarm.id()) {
                Some(raised) if raised.severity == alarm.severity => {
                    // What a person can do about it may change, as when another server is down now.
                    let since_unix_ms = raised.since_unix_ms;
                    let again = Alarm { since_unix_ms, ..alarm.clone() };
                    (raised.next_step != alarm.next_step).then_some(again)
                }
                _ => Some(Alarm { since_unix_ms: now, ..alarm.clone() }),
            });
            let over = index.alarms.iter().filter(|raised| !wanted.0.contains_key(&raised.id()));
            (new.collect(), over.cloned().collect())
        };
        for some in raised.chunks(CHANGED_AT_A_TIME) {
            let mut draft = self.draft();
            for alarm in some {
                draft = draft.put(alarm).alarm_event(RAISED, alarm, &alarm.message);
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
        let running = index.sums(&Facet::Host(seat.id)).running_bytes;
        if running > state.memory_bytes.into() {
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
    let provisioned = index.sums(&Facet::Datastore(datastore.id)).disk_bytes;
    if told.total_bytes > 0 && provisioned > told.total_bytes.into() {
        wanted.raise(
            AlarmKind::Overcommit,
            Severity::Warning,
            object,
            format!(
                "the volumes in datastore {} may grow to {}, and it has {}",
                datastore.name,
                display_bytes(provisioned.try_into().unwrap_or(u64::MAX)),
                display_bytes(told.total_bytes)
            ),
            "add another datastore before they do",
        );
    }
}

pub(super) fn expiry(
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

/// When [`expiry`] says something new of this end, in milliseconds since 1970.
pub(super) fn expiry_times_ms(end_s: u64) -> [u64; 2] {
    [end_s.saturating_sub(EXPIRY_NOTICE_S), end_s.saturating_add(1)].map(|time| time.saturating_mul(1000))
}

pub(super) fn host_object(seat: &HostSeat) -> ObjectRef {
    ObjectRef { kind: ObjectKind::Host, id: Some(seat.id), name: seat.name.to_string() }
}

pub(super) fn datastore_object(datastore: &DatastoreRecord) -> ObjectRef {
    let id = Uuid::from_bytes(*datastore.id.as_bytes());
    ObjectRef { kind: ObjectKind::Datastore, id: Some(id), name: datastore.name.to_string() }
}
