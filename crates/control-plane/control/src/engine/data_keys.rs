//! Renews the data keys of VMs whose cryptoperiod is over.
//!
//! ```text
//! Idle -> the period is over, it is the time of the day, and the VM allows it -> Renewing: an ordinary rotation -> done -> Idle
//!                                                                                 -> failed -> Idle, and again a day later
//! ```
//!
//! The stage is a part of the VM's schedule, and is looked at with it (`due_snapshots`): the task
//! and the new stage are one transaction. The end of the period is counted from the VM's last
//! renewal, so whatever was missed is done once.

use strongroom_api::limits::{CRYPTOPERIOD_MAX_S, CRYPTOPERIOD_MIN_S, CRYPTOPERIOD_UNIT_S};
use strongroom_api::task::{Task, TaskKind};
use strongroom_api::vm::{
    Cryptoperiod, CryptoperiodView, DayWindow, FailedRenewal, Lifecycle, PowerState, SetCryptoperiod,
};
use strongroom_api::{ObjectKind, Problem};
use strongroom_types::{VmId, counted, display_seconds, utc};
use uuid::Uuid;

use super::Control;
use super::due_snapshots::{Ended, RETRY_PAUSE_S, Scheduled, Seen, ended};
use super::due_times::DAY_S;
use super::rotate::rotation;
use super::seal_disks::refuse_of_unfinished;
use super::templates::refuse_of_template;
use super::wishes::{Caller, idle_vm};
use crate::inventory::{Failure, Index, Row};
use crate::problems;
use crate::records::{
    CryptoperiodRecord, RenewalStage, SCHEDULER, ScheduleRecord, TaskRecord, VmRecord, Work,
};

/// The most VMs of a host whose data is re-encrypted at once by themselves. Each reads and writes
/// all of its disks.
const RENEWALS_OF_HOST_MAX: usize = 2;
/// The pause before a renewal that failed is tried again, in seconds: a window comes once a day.
const FAILURE_PAUSE_S: u64 = DAY_S;
/// How long after the end of the period an alarm is raised, in seconds: in a day every VM has had
/// its window.
const OVERDUE_AFTER_S: u64 = DAY_S;

/// The right step for a VM's data keys.
pub(super) enum Renewal {
    /// The stage changes.
    Change(Box<CryptoperiodRecord>),
    /// The clock was wrong when the data keys were renewed: it is not known when that was.
    Forget,
    /// A rotation begins.
    Begin,
    /// Nothing before this time; with the reason if the period is over.
    Wait { until: u64, why: Option<String> },
}

impl Control {
    /// Sets how long a VM's data keys are used.
    ///
    /// # Errors
    /// [`Problem`], as for all requests here.
    pub fn set_cryptoperiod(
        &self,
        caller: &Caller,
        named: &str,
        wish: &SetCryptoperiod,
    ) -> Result<Task, Problem> {
        if let Some(wanted) = &wish.cryptoperiod {
            check(wanted)?;
        }
        let task = self.wish(caller, |index, id| {
            let vm = index.find_vm(named).ok_or_else(|| problems::not_found(ObjectKind::Vm, named))?;
            if vm.lifecycle == Lifecycle::Deleting {
                return Err(problems::conflict(format!("VM {} is being deleted", vm.name)));
            }
            if wish.cryptoperiod.is_some() && !vm.hardware.encrypted() {
                let message = format!("VM {} is not encrypted, so it has no data keys", vm.name);
                return Err(problems::conflict(message));
            }
            let known = index.schedule(vm.id);
            let before = known.and_then(|known| known.cryptoperiod.as_ref());
            let cryptoperiod = wish.cryptoperiod.as_ref().map(|wanted| match before {
                Some(before) => CryptoperiodRecord { wanted: wanted.clone(), ..before.clone() },
                None => CryptoperiodRecord::new(wanted.clone()),
            });
            let draft = self.draft().present(vm);
            let draft = match known {
                Some(known) => {
                    let schedule = ScheduleRecord { cryptoperiod, ..ScheduleRecord::clone(&known.record) };
                    draft.replace(known, &schedule)
                }
                None => {
                    draft.create(&ScheduleRecord { vm: vm.id, version: 0, rules: Vec::new(), cryptoperiod })
                }
            };
            Ok((self.task_done(id, TaskKind::VmCryptoperiod, vm.object(), caller), draft))
        })?;
        if let Some(id) = task.object.id {
            self.hasten_schedule(VmId::from_bytes(*id.as_bytes()));
        }
        Ok(task)
    }

    /// How long a VM's data keys are used, and when they are renewed.
    pub(super) fn cryptoperiod_view(&self, index: &Index, vm: &VmRecord) -> Option<CryptoperiodView> {
        let known = index.schedule(vm.id)?.cryptoperiod.as_ref()?;
        let now = self.now_unix_ms() / 1000;
        let due = due(vm, known);
        let next_unix_seconds = match &known.wanted.window {
            Some(window) if due > now => begin(*window, due),
            _ => due,
        };
        Some(CryptoperiodView {
            period: known.wanted.clone(),
            next_unix_seconds,
            waits: self.due_snapshots.refusal(vm.id, Scheduled::DataKeys).filter(|_| due <= now),
            failed: known.failed.clone(),
        })
    }

    /// Does for a VM's data keys what is to be done. Returns when to look again; `None` if they
    /// have no period, or at once.
    pub(super) fn attend_data_keys(
        &self,
        seen: &Seen,
        now: u64,
        begun: &mut usize,
    ) -> Result<Option<u64>, Failure> {
        let Some(known) = &seen.schedule.cryptoperiod else { return Ok(None) };
        let step = self.renewal(&self.inventory.read(), &seen.vm, known, now);
        match step {
            Renewal::Change(changed) => self.change_cryptoperiod(seen, known, *changed).map(|()| Some(now)),
            Renewal::Forget => {
                let vm = VmRecord { data_keys_unix_seconds: Some(now), ..VmRecord::clone(&seen.vm.record) };
                match self.inventory.commit(self.draft().replace(&seen.vm, &vm)) {
                    Ok(()) | Err(Failure::Raced) => Ok(Some(now)),
                    Err(failure) => Err(failure),
                }
            }
            Renewal::Begin => match self.begin_renewal(seen, now) {
                Ok(()) => {
                    *begun += 1;
                    Ok(Some(now + RETRY_PAUSE_S))
                }
                Err(problem) => {
                    self.due_snapshots.refused(seen.vm.id, Scheduled::DataKeys, problem.message);
                    Ok(Some(now + RETRY_PAUSE_S))
                }
            },
            Renewal::Wait { until, why } => {
                match why {
                    Some(why) => self.due_snapshots.refused(seen.vm.id, Scheduled::DataKeys, why),
                    None => drop(self.due_snapshots.take_refusal(seen.vm.id, Scheduled::DataKeys)),
                }
                Ok(Some(until))
            }
        }
    }

    fn renewal(&self, index: &Index, vm: &Row<VmRecord>, known: &CryptoperiodRecord, now: u64) -> Renewal {
        let waits = |until: u64, why: String| Renewal::Wait { until, why: Some(why) };
        if let RenewalStage::Renewing { task } = known.stage {
            let failed = |reason: String| Some(FailedRenewal { at_unix_seconds: now, reason });
            let failed = match ended(index, task) {
                Ended::Open { .. } => return Renewal::Wait { until: now + RETRY_PAUSE_S, why: None },
                Ended::Done | Ended::Unknown => None,
                Ended::Failed(reason) => failed(reason),
                Ended::Cancelled => failed("its task was cancelled".to_owned()),
            };
            let wanted = known.wanted.clone();
            return Renewal::Change(Box::new(CryptoperiodRecord {
                wanted,
                stage: RenewalStage::Idle,
                failed,
            }));
        }
        if vm.data_keys_since() > now.saturating_add(DAY_S) {
            return Renewal::Forget;
        }
        let due = due(vm, known);
        if now < due {
            return Renewal::Wait { until: due, why: None };
        }
        if let Some(failed) = &known.failed
            && (failed.at_unix_seconds..failed.at_unix_seconds.saturating_add(FAILURE_PAUSE_S)).contains(&now)
        {
            return waits(failed.at_unix_seconds + FAILURE_PAUSE_S, failed.reason.clone());
        }
        if let Some(window) = known.wanted.window {
            let begin = begin(window, now);
            if begin > now {
                return waits(begin, format!("its window begins at {}", utc(begin)));
            }
        }
        let host_has = renewals_of(index, vm.host);
        if host_has >= RENEWALS_OF_HOST_MAX {
            let why = format!("its host re-encrypts {} already", counted(host_has, "VM"));
            return waits(now + RETRY_PAUSE_S, why);
        }
        match self.renewed(index, vm) {
            Ok(_) => Renewal::Begin,
            Err(problem) => waits(now + RETRY_PAUSE_S, problem.message),
        }
    }

    /// The VM and the work of a rotation that renews its data keys, if one can begin now.
    fn renewed(&self, index: &Index, vm: &Row<VmRecord>) -> Result<(VmRecord, Work), Problem> {
        let power: PowerState = self.ready(index, vm)?;
        refuse_of_template(vm, TaskKind::VmRotateKey)?;
        refuse_of_unfinished(vm, TaskKind::VmRotateKey)?;
        let mut changed = VmRecord::clone(&vm.record);
        let work = rotation(&mut changed, power, None, true)?;
        Ok((changed, work))
    }

    /// Makes the task, in one transaction with the new stage.
    fn begin_renewal(&self, seen: &Seen, now: u64) -> Result<(), Problem> {
        let caller = Caller::machine(SCHEDULER);
        let id = seen.vm.id;
        self.wish(&caller, |index, task| {
            let changed = || problems::conflict("its cryptoperiod was changed meanwhile");
            let vm = idle_vm(index, &id.to_string())?;
            let schedule = index.schedule(id).ok_or_else(changed)?;
            let known = schedule.cryptoperiod.as_ref().ok_or_else(changed)?;
            // It is judged again, as everything is now.
            let Renewal::Begin = self.renewal(index, vm, known, now) else { return Err(changed()) };
            let (mut held, work) = self.renewed(index, vm)?;
            held.task = Some(task);
            let stage = RenewalStage::Renewing { task };
            let scheduled = ScheduleRecord {
                cryptoperiod: Some(CryptoperiodRecord { stage, ..known.clone() }),
                ..ScheduleRecord::clone(&schedule.record)
            };
            let draft = self.draft().replace(vm, &held).replace(schedule, &scheduled);
            let record = self.task(task, TaskKind::VmRotateKey, vm.object(), &caller);
            Ok((TaskRecord { vm: Some(id), work, ..record }, draft))
        })?;
        self.due_snapshots.take_refusal(id, Scheduled::DataKeys);
        Ok(())
    }

    fn change_cryptoperiod(
        &self,
        seen: &Seen,
        known: &CryptoperiodRecord,
        changed: CryptoperiodRecord,
    ) -> Result<(), Failure> {
        let news = changed.failed.as_ref().filter(|_| changed.failed != known.failed);
        let message = news
            .map(|failed| format!("VM {}: its data keys were not renewed: {}", seen.vm.name, failed.reason));
        let schedule =
            ScheduleRecord { cryptoperiod: Some(changed), ..ScheduleRecord::clone(&seen.schedule.record) };
        let mut draft = self.draft().replace(&seen.schedule, &schedule).present(&seen.vm);
        if let Some(message) = message {
            draft = draft.event("vm.data_keys_not_renewed", &seen.vm.object(), message, None);
        }
        match self.inventory.commit(draft) {
            // A request has changed it, and it is looked at again.
            Ok(()) | Err(Failure::Raced) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// What a person has to know of data keys that are used for too long.
    pub(super) fn overdue_data_keys(&self, index: &Index, vm: &VmRecord) -> Option<String> {
        let known = index.schedule(vm.id)?.cryptoperiod.as_ref()?;
        let (due, now) = (due(vm, known), self.now_unix_ms() / 1000);
        let is_under_way = matches!(known.stage, RenewalStage::Renewing { .. });
        let is_overdue = now >= due.saturating_add(OVERDUE_AFTER_S) || (now >= due && known.failed.is_some());
        if is_under_way || !is_overdue {
            return None;
        }
        let failed = || known.failed.as_ref().map(|failed| failed.reason.clone());
        let why = self.due_snapshots.refusal(vm.id, Scheduled::DataKeys).or_else(failed);
        let why = why.unwrap_or_else(|| "the control plane did not run".to_owned());
        Some(format!(
            "the data keys of VM {} are of {}, and were to be renewed by {}: {why}",
            vm.name,
            utc(vm.data_keys_since()),
            utc(due)
        ))
    }
}

/// When [`Control::overdue_data_keys`] may say something new of a VM, in milliseconds since 1970.
pub(super) fn overdue_times_ms(index: &Index, vm: &VmRecord) -> Vec<u64> {
    let known = index.schedule(vm.id).and_then(|schedule| schedule.cryptoperiod.as_ref());
    let due = known.map(|known| due(vm, known));
    let times = due.into_iter().flat_map(|due| [due, due.saturating_add(OVERDUE_AFTER_S)]);
    times.map(|time| time.saturating_mul(1000)).collect()
}

/// When the period of a VM's data keys is over.
fn due(vm: &VmRecord, known: &CryptoperiodRecord) -> u64 {
    vm.data_keys_since().saturating_add(known.wanted.every_s.into())
}

/// The first second from this time on that lies in the window.
fn begin(window: DayWindow, time: u64) -> u64 {
    let minute = time % DAY_S / 60;
    if window.contains(u32::try_from(minute).unwrap_or(0)) {
        return time;
    }
    let today = time - time % DAY_S + u64::from(window.from_minutes) * 60;
    if today > time { today } else { today + DAY_S }
}

/// How many VMs of a host are being re-encrypted.
fn renewals_of(index: &Index, host: Uuid) -> usize {
    let vms =
        index.open_tasks().filter(|task| task.kind() == TaskKind::VmRotateKey).filter_map(|task| task.vm);
    vms.filter_map(|vm| index.vm(vm)).filter(|vm| vm.host == host && vm.renews_data_keys).count()
}

/// Checks a cryptoperiod against its limits.
fn check(wanted: &Cryptoperiod) -> Result<(), Problem> {
    let Cryptoperiod { every_s, window } = *wanted;
    let fits = (CRYPTOPERIOD_MIN_S..=CRYPTOPERIOD_MAX_S).contains(&every_s);
    if !fits || !every_s.is_multiple_of(CRYPTOPERIOD_UNIT_S) {
        let [least, most] = [CRYPTOPERIOD_MIN_S, CRYPTOPERIOD_MAX_S].map(|s| display_seconds(s.into()));
        return Err(problems::invalid(format!(
            "data keys are renewed every {least} to {most}, in whole days, and not every {}",
            display_seconds(every_s.into())
        )));
    }
    let Some(DayWindow { from_minutes, to_minutes }) = window else { return Ok(()) };
    if [from_minutes, to_minutes].into_iter().any(|minutes| u64::from(minutes) >= DAY_S / 60) {
        return Err(problems::invalid("a time of day is 0 to 1439 minutes after midnight"));
    }
    if from_minutes == to_minutes {
        let problem = problems::invalid("a window ends at another time than it begins");
        return Err(problem.next("leave it out to renew data keys at any time"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_may_pass_midnight() {
        const DAY: u64 = 1000 * DAY_S;
        let window = |from: u32, to: u32| DayWindow { from_minutes: 60 * from, to_minutes: 60 * to };
        let at = |hour: u64| DAY + hour * 3600;
        let hours = |window, hour| (begin(window, at(hour)) - DAY) / 3600;
        assert_eq!([0, 1, 4, 5, 23].map(|hour| hours(window(1, 5), hour)), [1, 1, 4, 25, 25]);
        assert_eq!([0, 1, 2, 22, 23].map(|hour| hours(window(22, 2), hour)), [0, 1, 22, 22, 23]);
    }
}
