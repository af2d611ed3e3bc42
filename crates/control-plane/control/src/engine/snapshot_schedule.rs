//! Requests for the schedule of a VM's snapshots, and its view. `due_snapshots` carries it out.

use strongroom_api::limits::{
    SCHEDULED_SNAPSHOTS_MAX, SNAPSHOT_PERIOD_MAX_S, SNAPSHOT_PERIOD_MIN_S, SNAPSHOT_PERIOD_UNIT_S,
    SNAPSHOT_RULES_MAX, SNAPSHOTS_UNSCHEDULED,
};
use strongroom_api::task::{Task, TaskKind};
use strongroom_api::vm::{Lifecycle, ScheduledRule, SetSnapshotSchedule, SnapshotRule, SnapshotSchedule};
use strongroom_api::{ObjectKind, Problem};
use strongroom_types::{VmId, display_seconds};
use strongroom_vm::limits::SNAPSHOTS_MAX;

use super::Control;
use super::due_times::{DAY_S, DueTimes};
use super::snapshots::snapshots_of;
use super::wishes::{Caller, must_be_as_read};
use crate::inventory::{Draft, Index};
use crate::problems;
use crate::records::{RuleRecord, ScheduleRecord, VmRecord};

impl Control {
    /// The schedule of a VM's snapshots.
    ///
    /// # Errors
    /// [`Problem`] if the VM does not exist.
    pub fn snapshot_schedule(&self, named: &str) -> Result<SnapshotSchedule, Problem> {
        let index = self.inventory.read();
        let vm = index.find_vm(named).ok_or_else(|| problems::not_found(ObjectKind::Vm, named))?;
        let Some(schedule) = index.schedule(vm.id) else {
            return Ok(SnapshotSchedule { version: 0, rules: Vec::new() });
        };
        let all = snapshots_of(&index, vm);
        let now = self.now_unix_ms() / 1000;
        let view = |known: &RuleRecord| {
            let times = DueTimes::of(&known.rule, vm.id);
            let latest = times.latest(now);
            let is_due = latest > known.settled_unix_seconds;
            let kept = known.existing(|id| all.get(id).is_some()).count();
            ScheduledRule {
                name: known.rule.name(),
                rule: known.rule.clone(),
                kept: u32::try_from(kept).unwrap_or(u32::MAX),
                next_unix_seconds: if is_due { latest } else { times.next(known.settled_unix_seconds) },
                waits: self.due_snapshots.refusal(vm.id, &known.rule).filter(|_| is_due),
                last: known.last.clone(),
            }
        };
        Ok(SnapshotSchedule { version: schedule.version, rules: schedule.rules.iter().map(view).collect() })
    }

    /// Requests other rules for a VM. `version` is the one that the caller has read.
    ///
    /// # Errors
    /// [`Problem`], as for all requests here.
    pub fn set_snapshot_schedule(
        &self,
        caller: &Caller,
        named: &str,
        wish: &SetSnapshotSchedule,
        version: Option<u64>,
    ) -> Result<Task, Problem> {
        check_snapshot_rules(&wish.rules)?;
        let task = self.wish(caller, |index, id| {
            let vm = index.find_vm(named).ok_or_else(|| problems::not_found(ObjectKind::Vm, named))?;
            if vm.lifecycle == Lifecycle::Deleting {
                return Err(problems::conflict(format!("VM {} is being deleted", vm.name)));
            }
            let known = index.schedule(vm.id);
            let present = known.map_or(0, |known| known.version);
            must_be_as_read(&format!("the snapshot schedule of VM {}", vm.name), present, version)?;
            let rules_before = known.map_or(&[][..], |known| &known.rules);
            let rules = self.changed(vm.id, rules_before, &wish.rules);
            let cryptoperiod = known.and_then(|known| known.cryptoperiod.clone());
            let schedule = ScheduleRecord { vm: vm.id, version: present + 1, rules, cryptoperiod };
            let draft = self.draft().present(vm);
            let draft = match known {
                Some(known) => draft.replace(known, &schedule),
                None => draft.create(&schedule),
            };
            Ok((self.task_done(id, TaskKind::VmSnapshotSchedule, vm.object(), caller), draft))
        })?;
        self.hasten_schedule_of(&task);
        Ok(task)
    }

    /// Has the schedule of a task's VM looked at.
    pub(super) fn hasten_schedule_of(&self, task: &Task) {
        if let Some(id) = task.object.id {
            self.hasten_schedule(VmId::from_bytes(*id.as_bytes()));
        }
    }

    /// The transaction with the schedule of a new VM that its policy demands.
    pub(super) fn with_demanded_schedule(&self, index: &Index, vm: &VmRecord, draft: Draft) -> Draft {
        let demanded = index.policy_of(vm).map_or(&[][..], |policy| &policy.rules.snapshots);
        if demanded.is_empty() {
            return draft;
        }
        let rules = self.changed(vm.id, &[], demanded);
        draft.create(&ScheduleRecord { vm: vm.id, version: 1, rules, cryptoperiod: None })
    }

    /// The rules as they are wanted. One with the period of a known one is that one: it keeps its
    /// snapshots, and continues where it is.
    fn changed(&self, vm: VmId, before: &[RuleRecord], wanted: &[SnapshotRule]) -> Vec<RuleRecord> {
        let now = self.now_unix_ms() / 1000;
        let rule = |rule: &SnapshotRule| {
            let latest = DueTimes::of(rule, vm).latest(now);
            match before.iter().find(|known| known.rule.every_s == rule.every_s) {
                Some(known) if known.rule.at_minutes == rule.at_minutes => {
                    RuleRecord { rule: rule.clone(), ..known.clone() }
                }
                Some(known) => {
                    RuleRecord { rule: rule.clone(), settled_unix_seconds: latest, ..known.clone() }
                }
                None => RuleRecord::new(rule.clone(), latest),
            }
        };
        let mut rules: Vec<_> = wanted.iter().map(rule).collect();
        rules.sort_by_key(|known| known.rule.every_s);
        rules
    }
}

/// Checks rules against their limits.
pub(super) fn check_snapshot_rules(rules: &[SnapshotRule]) -> Result<(), Problem> {
    if rules.len() > SNAPSHOT_RULES_MAX {
        return Err(problems::invalid(format!("a VM has at most {SNAPSHOT_RULES_MAX} snapshot rules")));
    }
    for (number, rule) in rules.iter().enumerate() {
        let SnapshotRule { every_s, at_minutes, keep, quiesce_within_s: _ } = *rule;
        let fits = (SNAPSHOT_PERIOD_MIN_S..=SNAPSHOT_PERIOD_MAX_S).contains(&every_s);
        if !fits || !every_s.is_multiple_of(SNAPSHOT_PERIOD_UNIT_S) {
            let [least, most] =
                [SNAPSHOT_PERIOD_MIN_S, SNAPSHOT_PERIOD_MAX_S].map(|s| display_seconds(s.into()));
            return Err(problems::invalid(format!(
                "snapshots are made every {least} to {most}, in whole minutes, and not every {}",
                display_seconds(every_s.into())
            )));
        }
        if at_minutes.is_some_and(|minutes| u64::from(minutes) >= DAY_S / 60) {
            return Err(problems::invalid("a time of day is 0 to 1439 minutes after midnight"));
        }
        if at_minutes.is_some() && !u64::from(every_s).is_multiple_of(DAY_S) {
            let message = format!("{} snapshots have no time of day", rule.name());
            return Err(problems::invalid(message).next("leave it out, or make them every 1d"));
        }
        if keep == 0 {
            let message = format!("of the {} snapshots at least one is kept", rule.name());
            return Err(problems::invalid(message).next("leave the rule out to make none"));
        }
        if rules[..number].iter().any(|other| other.every_s == every_s) {
            let problem = problems::invalid(format!("there are two {} rules", rule.name()));
            return Err(problem.next("leave one of them out"));
        }
    }
    let kept = rules.iter().fold(0_u64, |all, rule| all + u64::from(rule.keep));
    if kept > SCHEDULED_SNAPSHOTS_MAX as u64 {
        let names: Vec<_> = rules.iter().map(|rule| format!("{} {}", rule.keep, rule.name())).collect();
        let message = format!(
            "the rules keep {kept} snapshots together ({}), and {SCHEDULED_SNAPSHOTS_MAX} is the most: of the \
             {SNAPSHOTS_MAX} that a VM can have, {SNAPSHOTS_UNSCHEDULED} are left for people and for the one that is \
             made before the oldest is deleted",
            names.join(", ")
        );
        return Err(problems::invalid(message).next("keep fewer of some rule"));
    }
    Ok(())
}
