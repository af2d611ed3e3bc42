//! Makes the snapshots that are due, and deletes those that are no longer to be kept.
//!
//! ```text
//! Idle -> a time is due -> Making: an ordinary task -> done -> Trimming: the oldest beyond `keep`, one by one -> Idle
//!              |                                    -> failed -> Idle; nothing is deleted
//!              +-> the VM has as many as it can have -> MakingRoom: the oldest of the rule -> Idle, still due
//! ```
//!
//! Each arrow is one transaction, and one that begins a task has the task in it, so a control plane
//! that is killed anywhere neither makes two snapshots for one time nor forgets one to delete.
//!
//! What is due is in one queue ordered by time. A VM is looked at when something of it is due, when
//! a task of it has ended, or when what was due has waited for [`RETRY_PAUSE_S`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use strongroom_api::task::{TaskKind, TaskState};
use strongroom_api::vm::{DiskKind, Lifecycle, PowerState, RunOutcome, ScheduledRun, SnapshotRule};
use strongroom_api::{ErrorCode, Problem};
use strongroom_host::protocol::{NewVmSnapshot, QuiesceWithin, SnapshotChange, VmSnapshots};
use strongroom_types::{SnapshotId, SnapshotName, VmId, counted, utc};
use strongroom_vm::limits::SNAPSHOTS_MAX;
use uuid::Uuid;

use super::Control;
use super::due::DueQueue;
use super::due_times::DueTimes;
use super::snapshots::{check_quiesce, snapshots_of};
use super::wishes::{Caller, idle_vm, volumes_settled};
use crate::inventory::{Failure, Index, Row};
use crate::problems;
use crate::records::{
    Deletion, MadeSnapshot, RuleRecord, RuleStage, SCHEDULER, ScheduleRecord, TaskRecord, VmRecord, Work,
};

/// The pause before a snapshot that is due and could not be made is tried again, in seconds.
pub(super) const RETRY_PAUSE_S: u64 = 30;
/// The most steps for one VM before another one gets its turn.
const STEPS_MAX: usize = 32;

/// What is due, and when. It is lost with the process, and found again.
#[derive(Default)]
pub(super) struct DueSnapshots {
    queue: Mutex<DueQueue<u64, VmId>>,
    /// Why what is due could not be done yet.
    refusals: Mutex<HashMap<(VmId, Scheduled), String>>,
    /// When the queue was looked at last.
    looked_at: AtomicU64,
    counts: Counts,
}

/// What a schedule does for a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Scheduled {
    /// Makes snapshots, by the rule of this period.
    Snapshots { every_s: u32 },
    /// Renews its data keys.
    DataKeys,
}

impl From<&SnapshotRule> for Scheduled {
    fn from(rule: &SnapshotRule) -> Self {
        Self::Snapshots { every_s: rule.every_s }
    }
}

/// Counts results since the start of the process.
#[derive(Default)]
struct Counts {
    made: AtomicU64,
    skipped: AtomicU64,
    missed: AtomicU64,
    failed: AtomicU64,
}

/// A snapshot or a deletion that should begin.
enum Deed {
    Make {
        due_unix_seconds: u64,
        snapshot: MadeSnapshot,
        name: SnapshotName,
        quiesce_within_s: Option<QuiesceWithin>,
    },
    MakeRoom {
        due_unix_seconds: u64,
        snapshot: SnapshotId,
    },
    Trim {
        snapshot: SnapshotId,
    },
}

/// The right step for a rule.
enum Step {
    /// The rule changes.
    Change(Box<RuleRecord>),
    /// A task begins.
    Begin(Deed),
    /// The next one is due, so this task is given up.
    GiveUp(Uuid),
    /// Nothing before this time; with the reason if something is due.
    Wait { until: u64, why: Option<String> },
}

/// How a task has ended.
pub(super) enum Ended {
    /// It has not.
    Open {
        cancelling: bool,
    },
    Done,
    Failed(String),
    Cancelled,
    /// It is not in the history any more.
    Unknown,
}

/// A schedule and its VM.
pub(super) struct Seen {
    pub vm: Row<VmRecord>,
    pub schedule: Row<ScheduleRecord>,
}

impl DueSnapshots {
    /// Why what is due could not be done yet.
    pub fn refusal(&self, vm: VmId, what: impl Into<Scheduled>) -> Option<String> {
        self.refusals.lock().get(&(vm, what.into())).cloned()
    }

    pub fn take_refusal(&self, vm: VmId, what: impl Into<Scheduled>) -> Option<String> {
        self.refusals.lock().remove(&(vm, what.into()))
    }

    pub fn refused(&self, vm: VmId, what: impl Into<Scheduled>, why: String) {
        self.refusals.lock().insert((vm, what.into()), why);
    }

    fn forget(&self, vm: VmId) {
        self.refusals.lock().retain(|(known, _), _| *known != vm);
    }

    fn count(&self, before: Option<&ScheduledRun>, now: Option<&ScheduledRun>) {
        let Some(now) = now.filter(|now| before != Some(*now)) else { return };
        let (count, times) = match &now.outcome {
            RunOutcome::Made { .. } => (&self.counts.made, 1),
            RunOutcome::Skipped {} => (&self.counts.skipped, 1),
            RunOutcome::Failed { .. } => (&self.counts.failed, 1),
            RunOutcome::Missed { times, .. } => (&self.counts.missed, times - missed_before(before)),
        };
        count.fetch_add(times, Ordering::Relaxed);
    }

    /// The results since the start of the process, by their names.
    pub fn counts(&self) -> [(&'static str, u64); 4] {
        let Counts { made, skipped, missed, failed } = &self.counts;
        [("made", made), ("skipped", skipped), ("missed", missed), ("failed", failed)]
            .map(|(name, count)| (name, count.load(Ordering::Relaxed)))
    }
}

impl Deed {
    fn kind(&self) -> TaskKind {
        match self {
            Self::Make { .. } => TaskKind::VmSnapshotCreate,
            Self::MakeRoom { .. } | Self::Trim { .. } => TaskKind::VmSnapshotDelete,
        }
    }

    fn change(&self) -> SnapshotChange {
        match self {
            Self::Make { snapshot, name, quiesce_within_s, .. } => {
                let disks = NewVmSnapshot::of_disks(snapshot.id, name.clone());
                let quiesce_within_s = *quiesce_within_s;
                SnapshotChange::Create { snapshot: NewVmSnapshot { quiesce_within_s, ..disks } }
            }
            Self::MakeRoom { snapshot, .. } | Self::Trim { snapshot } => {
                SnapshotChange::Delete { snapshot: *snapshot }
            }
        }
    }

    fn stage(self, task: Uuid) -> RuleStage {
        match self {
            Self::Make { due_unix_seconds, snapshot, name, .. } => {
                RuleStage::Making { due_unix_seconds, task, snapshot, name }
            }
            Self::MakeRoom { due_unix_seconds, snapshot } => {
                RuleStage::MakingRoom { due_unix_seconds, deletion: Deletion { task, snapshot } }
            }
            Self::Trim { snapshot } => RuleStage::Trimming { deletion: Some(Deletion { task, snapshot }) },
        }
    }
}

impl Control {
    /// Has all schedules looked at: at the start, and when the clock has gone back.
    pub(super) fn queue_schedules(&self, now: u64) {
        let index = self.inventory.read();
        let mut queue = self.due_snapshots.queue.lock();
        index.schedules.iter().for_each(|schedule| queue.hasten(schedule.vm, now));
    }

    /// Has a VM's schedule looked at now, because something has happened to it.
    pub(super) fn hasten_schedule(&self, vm: VmId) {
        if self.inventory.read().schedule(vm).is_some() {
            self.due_snapshots.queue.lock().hasten(vm, self.now_unix_ms() / 1000);
        }
    }

    /// Results of schedules since the start of the process, by their names.
    pub fn scheduled_snapshots(&self) -> [(&'static str, u64); 4] {
        self.due_snapshots.counts()
    }

    /// Begins what is due, up to `most` tasks. Returns their number.
    pub fn make_due_snapshots(&self, most: usize) -> usize {
        let now = self.now_unix_ms() / 1000;
        if now < self.due_snapshots.looked_at.swap(now, Ordering::Relaxed) {
            self.queue_schedules(now);
        }
        let mut begun = 0;
        while begun < most {
            // The lock is not held while the VM is looked at.
            let due = self.due_snapshots.queue.lock().take(now);
            let Some(vm) = due else { break };
            let next = match self.attend(vm, now, &mut begun) {
                Ok(next) => next,
                Err(failure) => {
                    tracing::error!(%vm, %failure, "the snapshot schedule of a VM cannot go on");
                    Some(now + RETRY_PAUSE_S)
                }
            };
            if let Some(next) = next {
                // If something has happened meanwhile, it is in the queue already.
                self.due_snapshots.queue.lock().hasten(vm, next);
            }
        }
        begun
    }

    /// Does for a VM what is to be done. Returns when to look again.
    fn attend(&self, vm: VmId, now: u64, begun: &mut usize) -> Result<Option<u64>, Failure> {
        for _ in 0..STEPS_MAX {
            let Some((seen, steps)) = self.steps(vm, now) else {
                self.due_snapshots.forget(vm);
                return Ok(None);
            };
            let mut next = None;
            let mut moved = false;
            for (rule, step) in seen.schedule.rules.iter().zip(steps) {
                let until = match step {
                    Step::Change(changed) => {
                        self.change_rule(&seen, rule, *changed)?;
                        moved = true;
                        break;
                    }
                    Step::Begin(deed) => match self.begin(&seen, rule, deed.kind(), now) {
                        Ok(()) => {
                            *begun += 1;
                            moved = true;
                            break;
                        }
                        Err(problem) => {
                            self.due_snapshots.refused(seen.vm.id, &rule.rule, problem.message);
                            now + RETRY_PAUSE_S
                        }
                    },
                    Step::GiveUp(task) => {
                        self.give_up(&seen, rule, task);
                        now + RETRY_PAUSE_S
                    }
                    Step::Wait { until, why } => {
                        if let Some(why) = why {
                            self.due_snapshots.refused(seen.vm.id, &rule.rule, why);
                        }
                        until
                    }
                };
                next = Some(next.map_or(until, |next: u64| next.min(until)));
            }
            if !moved {
                let until = self.attend_data_keys(&seen, now, begun)?;
                return Ok([next, until].into_iter().flatten().min());
            }
        }
        Ok(Some(now))
    }

    /// The schedule of a VM, with the right step for each rule.
    fn steps(&self, vm: VmId, now: u64) -> Option<(Seen, Vec<Step>)> {
        let index = self.inventory.read();
        let seen = Seen { vm: index.vm(vm)?.clone(), schedule: index.schedule(vm)?.clone() };
        let steps = seen.schedule.rules.iter().map(|rule| self.step(&index, &seen.vm, rule, now)).collect();
        Some((seen, steps))
    }

    fn step(&self, index: &Index, vm: &Row<VmRecord>, rule: &RuleRecord, now: u64) -> Step {
        let all = snapshots_of(index, vm);
        let judge = Judge { vm, rule, all: &all, times: DueTimes::of(&rule.rule, vm.id), now };
        match &rule.stage {
            RuleStage::Idle => judge.idle(|| self.ready(index, vm)),
            RuleStage::MakingRoom { due_unix_seconds, deletion } => {
                judge.making_room(*due_unix_seconds, *deletion, ended(index, deletion.task))
            }
            RuleStage::Making { due_unix_seconds, task, snapshot, name } => {
                let why = || self.due_snapshots.refusal(vm.id, &rule.rule);
                judge.making(*due_unix_seconds, *task, *snapshot, name, ended(index, *task), why)
            }
            RuleStage::Trimming { deletion: Some(deletion) } => {
                judge.trimming(*deletion, ended(index, deletion.task))
            }
            RuleStage::Trimming { deletion: None } => judge.trim(|| self.ready(index, vm)),
        }
    }

    /// Whether a task can begin on a VM now. Returns the VM's power state.
    pub(super) fn ready(&self, index: &Index, vm: &Row<VmRecord>) -> Result<PowerState, Problem> {
        idle_vm(index, &vm.id.to_string())?;
        if vm.lifecycle != Lifecycle::Present {
            return Err(problems::conflict(format!("VM {} is not there", vm.name)));
        }
        let seat = self.seat_of(vm)?;
        if !seat.is_up() || index.observed(vm.id).is_none() {
            let message = format!("host {} does not say how VM {} is", seat.name, vm.name);
            return Err(Problem::new(ErrorCode::HostUnavailable, message));
        }
        let power = self.power_of(index, vm);
        volumes_settled(vm, power)?;
        Ok(power)
    }

    /// Makes a task, in one transaction with the rule's new stage.
    fn begin(&self, seen: &Seen, rule: &RuleRecord, kind: TaskKind, now: u64) -> Result<(), Problem> {
        let caller = Caller::machine(SCHEDULER);
        let (id, every_s) = (seen.vm.id, rule.rule.every_s);
        self.wish(&caller, |index, task| {
            let changed = || problems::conflict("its schedule was changed meanwhile");
            let vm = idle_vm(index, &id.to_string())?;
            let schedule = index.schedule(id).ok_or_else(changed)?;
            let at = schedule.rules.iter().position(|known| known.rule.every_s == every_s);
            let at = at.ok_or_else(changed)?;
            // It is judged again, as everything is now.
            let deed = match self.step(index, vm, &schedule.rules[at], now) {
                Step::Begin(deed) if deed.kind() == kind => deed,
                _ => return Err(changed()),
            };
            let work = Work::ChangeSnapshots { change: deed.change(), failures: 0, makes_template: false };
            let mut scheduled = ScheduleRecord::clone(&schedule.record);
            scheduled.rules[at].stage = deed.stage(task);
            let held = VmRecord { task: Some(task), ..VmRecord::clone(&vm.record) };
            let draft = self.draft().replace(vm, &held).replace(schedule, &scheduled);
            let record = self.task(task, kind, vm.object(), &caller);
            Ok((TaskRecord { vm: Some(id), work, ..record }, draft))
        })?;
        self.due_snapshots.take_refusal(id, &rule.rule);
        Ok(())
    }

    /// Records a rule's new stage and result.
    fn change_rule(&self, seen: &Seen, rule: &RuleRecord, changed: RuleRecord) -> Result<(), Failure> {
        let mut schedule = ScheduleRecord::clone(&seen.schedule.record);
        let places = schedule.rules.iter_mut().filter(|known| known.rule == rule.rule);
        places.for_each(|known| known.clone_from(&changed));
        let mut draft = self.draft().replace(&seen.schedule, &schedule).present(&seen.vm);
        let is_news = changed.last != rule.last;
        if let Some(trouble) = trouble(&seen.vm, &changed).filter(|_| is_news) {
            draft = draft.event(trouble.event, &seen.vm.object(), trouble.message, None);
        }
        match self.inventory.commit(draft) {
            Ok(()) => {
                self.due_snapshots.count(rule.last.as_ref(), changed.last.as_ref());
                if is_news {
                    self.due_snapshots.take_refusal(seen.vm.id, &rule.rule);
                }
                Ok(())
            }
            // A request has changed the rules, and they are looked at again.
            Err(Failure::Raced) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Cancels the task of a snapshot, because the next one is due. What it waited for is the
    /// reason why it was missed.
    fn give_up(&self, seen: &Seen, rule: &RuleRecord, task: Uuid) {
        let note = self.inventory.read().task(task).and_then(|task| task.task.note.clone());
        let why = note.unwrap_or_else(|| "it was not done when the next one was due".to_owned());
        self.due_snapshots.refused(seen.vm.id, &rule.rule, why);
        if let Err(problem) = self.cancel_task(&Caller::machine(SCHEDULER), task) {
            tracing::warn!(vm = %seen.vm.name, %problem, "a scheduled snapshot cannot be given up");
        }
    }
}

/// A rule, with all that decides about its next step.
struct Judge<'a> {
    vm: &'a VmRecord,
    rule: &'a RuleRecord,
    all: &'a VmSnapshots,
    times: DueTimes,
    now: u64,
}

impl Judge<'_> {
    fn idle(&self, ready: impl FnOnce() -> Result<PowerState, Problem>) -> Step {
        let Self { rule, times, now, .. } = self;
        let (due, settled) = (times.latest(*now), rule.settled_unix_seconds);
        if times.is_beyond(settled, *now) {
            return self.becomes(RuleRecord { settled_unix_seconds: due, ..self.rule.clone() });
        }
        if due <= settled {
            return Step::Wait { until: times.next(settled), why: None };
        }
        let missed = times.between(settled, due);
        if missed > 0 {
            let why = "the control plane did not run, or the VM was not free".to_owned();
            return self.missed(times.before(due), missed, why);
        }
        let power = match ready() {
            Ok(power) => power,
            Err(problem) => return self.waits(Some(problem.message)),
        };
        if self.is_unchanged(power) {
            return self.ends(due, RunOutcome::Skipped {});
        }
        if rule.rule.quiesce_within_s.is_some()
            && let Err(problem) = check_quiesce(self.vm, power)
        {
            return self.waits(Some(problem.message));
        }
        let Some(name) = self.free_name(due) else {
            let reason = "another snapshot has its name".to_owned();
            return self.ends(due, RunOutcome::Failed { reason });
        };
        if self.all.list.len() >= SNAPSHOTS_MAX {
            // At least one good snapshot stays.
            let existing: Vec<_> = self.existing().collect();
            return match existing.as_slice() {
                [oldest, _, ..] => Step::Begin(Deed::MakeRoom { due_unix_seconds: due, snapshot: oldest.id }),
                _ => {
                    let reason = format!(
                        "the VM has {SNAPSHOTS_MAX} snapshots, no VM has more, and the rule has none to spare"
                    );
                    self.ends(due, RunOutcome::Failed { reason })
                }
            };
        }
        let snapshot = MadeSnapshot {
            id: SnapshotId::random(),
            generation: self.vm.generation,
            while_off: !power.is_on(),
        };
        let quiesce_within_s = rule.rule.quiesce_within_s;
        Step::Begin(Deed::Make { due_unix_seconds: due, snapshot, name, quiesce_within_s })
    }

    fn making_room(&self, due: u64, deletion: Deletion, ended: Ended) -> Step {
        match ended {
            Ended::Open { .. } => self.waits(None),
            Ended::Done => self.becomes(self.without(deletion.snapshot, RuleStage::Idle)),
            Ended::Failed(reason) => self.ends(due, RunOutcome::Failed { reason }),
            Ended::Cancelled => self.missed(due, 1, "its task was cancelled".to_owned()),
            Ended::Unknown => self.becomes(RuleRecord { stage: RuleStage::Idle, ..self.rule.clone() }),
        }
    }

    fn making(
        &self,
        due: u64,
        task: Uuid,
        snapshot: MadeSnapshot,
        name: &SnapshotName,
        ended: Ended,
        why: impl FnOnce() -> Option<String>,
    ) -> Step {
        let exists = self.all.get(snapshot.id).is_some();
        let not_made = |step: Step| match step {
            // The host has it all the same, and it is to be deleted in its turn.
            Step::Change(mut rule) if exists => {
                rule.add(snapshot, |id| self.all.get(id).is_some());
                Step::Change(rule)
            }
            other => other,
        };
        match ended {
            Ended::Open { cancelling: false } if self.times.latest(self.now) > due => Step::GiveUp(task),
            Ended::Open { .. } => self.waits(None),
            Ended::Failed(reason) => not_made(self.ends(due, RunOutcome::Failed { reason })),
            Ended::Cancelled => {
                let why = why().unwrap_or_else(|| "its task was cancelled".to_owned());
                not_made(self.missed(due, 1, why))
            }
            Ended::Unknown if !exists => {
                let reason = "its task is not in the history any more".to_owned();
                self.ends(due, RunOutcome::Failed { reason })
            }
            Ended::Done | Ended::Unknown => {
                let mut rule = self.ended(due, RunOutcome::Made { snapshot: name.clone() });
                rule.add(snapshot, |id| self.all.get(id).is_some());
                if rule.existing(|id| self.all.get(id).is_some()).count() > self.keep() {
                    rule.stage = RuleStage::Trimming { deletion: None };
                }
                self.becomes(rule)
            }
        }
    }

    fn trimming(&self, deletion: Deletion, ended: Ended) -> Step {
        let (trims, idle) = (RuleStage::Trimming { deletion: None }, RuleStage::Idle);
        match ended {
            Ended::Open { .. } => self.waits(None),
            Ended::Done => self.becomes(self.without(deletion.snapshot, trims)),
            Ended::Failed(why) => {
                let reason = format!("the oldest one could not be deleted: {why}");
                self.ends(self.rule.settled_unix_seconds, RunOutcome::Failed { reason })
            }
            Ended::Cancelled | Ended::Unknown => {
                self.becomes(RuleRecord { stage: idle, ..self.rule.clone() })
            }
        }
    }

    fn trim(&self, ready: impl FnOnce() -> Result<PowerState, Problem>) -> Step {
        let existing: Vec<_> = self.existing().collect();
        let surplus = existing.first().filter(|_| existing.len() > self.keep());
        match (surplus, ready()) {
            (Some(oldest), Ok(_)) => Step::Begin(Deed::Trim { snapshot: oldest.id }),
            // The next one goes first.
            (Some(_), Err(_)) if self.times.latest(self.now) <= self.rule.settled_unix_seconds => {
                self.waits(None)
            }
            _ => self.becomes(RuleRecord { stage: RuleStage::Idle, ..self.rule.clone() }),
        }
    }

    /// Whether nothing has written to the disks of a VM since the last snapshot of the rule: it was
    /// off then, it is off, and it was not started, reverted or given another disk in between. A
    /// template does not change.
    fn is_unchanged(&self, power: PowerState) -> bool {
        if self.vm.template.is_some() {
            return true;
        }
        let Some(last) = self.rule.made.last().filter(|last| last.while_off && !power.is_on()) else {
            return false;
        };
        let Some(snapshot) = self.all.get(last.id) else { return false };
        let disks = self.vm.hardware.disks.iter().filter(|disk| disk.kind == DiskKind::Data);
        let has_all = disks.map(|disk| &disk.name).all(|disk| snapshot.volumes.contains(disk));
        let mut base = self.all.current;
        for _ in 0..self.all.list.len() {
            if base == Some(last.id) {
                break;
            }
            base = base.and_then(|id| self.all.get(id)).and_then(|snapshot| snapshot.parent);
        }
        last.generation == self.vm.generation && has_all && base == Some(last.id)
    }

    /// The name of the snapshot for a time, which a person may have given to another one.
    fn free_name(&self, due: u64) -> Option<SnapshotName> {
        let time = utc(due).replace(" UTC", "Z").replace(' ', "T").replace(':', "-");
        let name = format!("{}-{time}", self.rule.rule.name());
        let own =
            self.all.named(&name).is_some_and(|known| self.rule.made.iter().any(|made| made.id == known.id));
        let names = [name.clone(), format!("{name}-2")];
        let free = names.into_iter().find(|name| self.all.named(name).is_none()).filter(|_| !own)?;
        free.parse().ok()
    }

    fn existing(&self) -> impl Iterator<Item = &MadeSnapshot> {
        self.rule.existing(|id| self.all.get(id).is_some())
    }

    fn keep(&self) -> usize {
        usize::try_from(self.rule.rule.keep).unwrap_or(usize::MAX)
    }

    fn becomes(&self, rule: RuleRecord) -> Step {
        Step::Change(Box::new(rule))
    }

    fn waits(&self, why: Option<String>) -> Step {
        Step::Wait { until: self.now + RETRY_PAUSE_S, why }
    }

    /// The rule without a snapshot that was deleted.
    fn without(&self, snapshot: SnapshotId, stage: RuleStage) -> RuleRecord {
        let mut rule = RuleRecord { stage, ..self.rule.clone() };
        rule.made.retain(|made| made.id != snapshot);
        rule
    }

    /// The rule with the result of a time.
    fn ended(&self, due_unix_seconds: u64, outcome: RunOutcome) -> RuleRecord {
        RuleRecord {
            // The times may have been changed meanwhile.
            settled_unix_seconds: self.rule.settled_unix_seconds.max(due_unix_seconds),
            stage: RuleStage::Idle,
            last: Some(ScheduledRun { due_unix_seconds, outcome }),
            ..self.rule.clone()
        }
    }

    fn ends(&self, due: u64, outcome: RunOutcome) -> Step {
        self.becomes(self.ended(due, outcome))
    }

    fn missed(&self, last_due: u64, times: u64, reason: String) -> Step {
        let times = missed_before(self.rule.last.as_ref()) + times;
        self.ends(last_due, RunOutcome::Missed { times, reason })
    }
}

pub(super) fn ended(index: &Index, task: Uuid) -> Ended {
    let Some(task) = index.task(task).map(|task| &task.task) else { return Ended::Unknown };
    match task.state {
        TaskState::Running => Ended::Open { cancelling: task.cancelling },
        TaskState::Done => Ended::Done,
        TaskState::Cancelled => Ended::Cancelled,
        TaskState::Failed => {
            let why = task.error.as_ref().map(|problem| problem.message.clone());
            Ended::Failed(why.unwrap_or_else(|| "its task does not say why".to_owned()))
        }
    }
}

/// How many times were missed in a row.
fn missed_before(last: Option<&ScheduledRun>) -> u64 {
    match last.map(|last| &last.outcome) {
        Some(RunOutcome::Missed { times, .. }) => *times,
        _ => 0,
    }
}

/// What a person has to know of a rule whose last snapshot is not there.
pub(super) struct Trouble {
    /// The kind of the event.
    pub event: &'static str,
    /// One sentence.
    pub message: String,
}

/// Returns the trouble of a rule, if its last snapshot was missed or failed.
pub(super) fn trouble(vm: &VmRecord, rule: &RuleRecord) -> Option<Trouble> {
    let (last, name) = (rule.last.as_ref()?, rule.rule.name());
    let due = utc(last.due_unix_seconds);
    let (event, message) = match &last.outcome {
        RunOutcome::Made { .. } | RunOutcome::Skipped {} => return None,
        RunOutcome::Missed { times, reason } => {
            let missed = counted(usize::try_from(*times).unwrap_or(usize::MAX), "snapshot");
            let missed = format!("{missed} of its {name} rule not made, the last of {due}");
            ("snapshot.missed", format!("VM {}: {missed}: {reason}", vm.name))
        }
        RunOutcome::Failed { reason } => {
            ("snapshot.failed", format!("VM {}: the {name} snapshot of {due} failed: {reason}", vm.name))
        }
    };
    Some(Trouble { event, message })
}
