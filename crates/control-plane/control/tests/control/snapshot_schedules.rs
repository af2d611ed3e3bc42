//! Snapshot schedules with the embedded store, a host in memory, and a clock of the test's own.

use std::time::Duration;

use crate::support::{Site, caller, create, settle_down};
use strongroom_api::alarm::AlarmKind;
use strongroom_api::limits::SCHEDULED_SNAPSHOTS_MAX;
use strongroom_api::task::{Task, TaskKind, TaskState};
use strongroom_api::vm::{
    CreateSnapshot, DeleteVm, QuiesceWithin, RevertVm, RotateKey, RunOutcome, ScheduledRule,
    SetSnapshotSchedule, SnapshotRule, StartVm, StopVm,
};
use strongroom_api::{ErrorCode, Problem};
use strongroom_control::engine::Control;
use strongroom_vm::limits::SNAPSHOTS_MAX;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

fn rule(every: Duration, keep: u32) -> SnapshotRule {
    SnapshotRule { every_s: every.as_secs() as u32, at_minutes: None, keep, quiesce_within_s: None }
}

fn schedule(rules: &[SnapshotRule]) -> SetSnapshotSchedule {
    SetSnapshotSchedule { rules: rules.to_vec() }
}

/// A site with running VMs that have this schedule.
fn site(names: &[&str], rules: &[SnapshotRule]) -> (Site, Control) {
    let site = Site::new();
    let control = site.control().unwrap();
    let datastore = serde_json::from_str(r#"{"name":"ds1","path":"/srv/ds1"}"#).unwrap();
    control.add_datastore(&caller(900), &datastore).unwrap();
    for (number, name) in names.iter().enumerate() {
        let number = 1000 + 10 * number as u64;
        control.create_vm(&caller(number), &create(name, true)).unwrap();
        assert!(settle_down(&site, &control));
        control.start_vm(&caller(number + 1), name, &StartVm::default()).unwrap();
        if !rules.is_empty() {
            control.set_snapshot_schedule(&caller(number + 2), name, &schedule(rules), None).unwrap();
        }
    }
    assert!(settle_down(&site, &control));
    (site, control)
}

/// Lets this time pass, in steps of a minute, and all parts work.
fn live(site: &Site, control: &Control, time: Duration) {
    let until = control.now_unix_ms() + time.as_millis() as u64;
    while control.now_unix_ms() < until {
        site.pass(Duration::from_secs(60));
        assert!(settle_down(site, control));
    }
}

/// Lets time pass until the next snapshot of the first rule is due, and all parts work.
fn next_due(site: &Site, control: &Control) {
    let wait_ms = (1000 * first_rule(control).next_unix_seconds).saturating_sub(control.now_unix_ms());
    site.pass(Duration::from_millis(wait_ms + 1000));
    assert!(settle_down(site, control));
}

fn names(control: &Control) -> Vec<String> {
    control.list_snapshots("web1").unwrap().iter().map(|one| one.name.to_string()).collect()
}

fn first_rule(control: &Control) -> ScheduledRule {
    control.snapshot_schedule("web1").unwrap().rules[0].clone()
}

fn outcome(control: &Control) -> RunOutcome {
    first_rule(control).last.unwrap().outcome
}

fn alarms(control: &Control) -> Vec<AlarmKind> {
    control.inventory.read().alarms.iter().map(|alarm| alarm.kind).collect()
}

fn counted(control: &Control, result: &str) -> u64 {
    control.scheduled_snapshots().iter().find(|(name, _)| *name == result).unwrap().1
}

fn tasks(control: &Control, kind: TaskKind) -> Vec<Task> {
    let index = control.inventory.read();
    index.tasks.iter().filter(|task| task.kind() == kind).map(|task| task.task.clone()).collect()
}

fn snapshot(name: &str) -> CreateSnapshot {
    CreateSnapshot { name: name.parse().unwrap(), memory: false, quiesce_within_s: None, with: Vec::new() }
}

fn quiesced(rule: SnapshotRule) -> SnapshotRule {
    SnapshotRule { quiesce_within_s: Some(QuiesceWithin::default()), ..rule }
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Problem>) -> (ErrorCode, String) {
    let problem = answer.unwrap_err();
    (problem.code, problem.message)
}

#[test]
fn snapshots_are_made_when_they_are_due_and_the_oldest_of_the_rule_go() {
    let (site, control) = site(&["web1"], &[rule(HOUR, 3), rule(DAY, 2)]);
    assert_eq!(names(&control), [""; 0]);
    // A person's has a name as the schedule gives it.
    control.create_snapshot(&caller(1), "web1", &snapshot("hourly-2023-11-14T00-00Z")).unwrap();
    live(&site, &control, 5 * HOUR);
    let made = names(&control);
    let hourly: Vec<_> = made.iter().filter(|name| name.starts_with("hourly-2023-11-")).collect();
    assert_eq!(hourly.len(), 4, "the person's, and three: {made:?}");
    assert_eq!(hourly[0], "hourly-2023-11-14T00-00Z");
    let shown = first_rule(&control);
    assert_eq!((shown.name.as_str(), shown.kept), ("hourly", 3));
    assert_eq!(outcome(&control), RunOutcome::Made { snapshot: hourly[3].parse().unwrap() });
    let now = control.now_unix_ms() / 1000;
    assert!(shown.next_unix_seconds > now && shown.next_unix_seconds <= now + 3600);
    assert_eq!(shown.next_unix_seconds - shown.last.unwrap().due_unix_seconds, 3600);
    // They are ordinary tasks, and the history and the audit log say whose.
    let by = |kind| tasks(&control, kind).iter().map(|task| task.by.clone()).collect::<Vec<_>>();
    let created = by(TaskKind::VmSnapshotCreate);
    assert!(created.len() >= 6 && created[1..].iter().all(|by| by == "strongroom-schedule"), "{created:?}");
    assert!(by(TaskKind::VmSnapshotDelete).iter().all(|by| by == "strongroom-schedule"));
    let deletion = "the deletion of a snapshot of VM web1 is asked for, by strongroom-schedule";
    assert!(site.keys.lock().uses.iter().any(|used| used == deletion), "{:?}", site.keys.lock().uses);

    live(&site, &control, 3 * DAY);
    let made = names(&control);
    assert_eq!(made.iter().filter(|name| name.starts_with("daily-")).count(), 2, "{made:?}");
    assert_eq!((made.len(), alarms(&control)), (6, vec![]));
    assert_eq!(site.host.lock().violations, [""; 0]);
    assert_eq!((counted(&control, "failed"), counted(&control, "missed")), (0, 0));
}

#[test]
fn a_rule_can_have_its_snapshots_quiesced_and_waits_for_a_guest_that_is_paused() {
    let (site, control) = site(&["web1"], &[quiesced(rule(HOUR, 3))]);
    next_due(&site, &control);
    let made = control.list_snapshots("web1").unwrap();
    assert!(made.len() == 1 && made[0].quiesced, "{made:?}");
    control.pause_vm(&caller(1), "web1").unwrap();
    assert!(settle_down(&site, &control));
    next_due(&site, &control);
    let waits = first_rule(&control).waits.unwrap();
    assert!(waits.contains("web1 is paused") && names(&control).len() == 1, "{waits}");
    control.resume_vm(&caller(2), "web1").unwrap();
    live(&site, &control, Duration::from_secs(120));
    let made = control.list_snapshots("web1").unwrap();
    assert!(made.len() == 2 && made[1].quiesced, "{made:?}");
}

#[test]
fn rules_are_checked_and_a_stale_request_for_others_is_refused() {
    let (site, control) = site(&["web1"], &[]);
    let set = |number, rules: &[SnapshotRule], version| {
        control.set_snapshot_schedule(&caller(number), "web1", &schedule(rules), version)
    };
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    let at = |at_minutes, every| SnapshotRule { at_minutes: Some(at_minutes), ..rule(every, 1) };
    for (rules, says) in [
        (vec![rule(minutes(4), 1)], "every 5m to 366d"),
        (vec![rule(Duration::from_secs(330), 1)], "in whole minutes"),
        (vec![rule(367 * DAY, 1)], "every 5m to 366d"),
        (vec![rule(HOUR, 0)], "at least one"),
        (vec![at(1440, DAY)], "0 to 1439"),
        (vec![at(60, HOUR)], "hourly snapshots have no time of day"),
        (vec![rule(HOUR, 1), rule(HOUR, 2)], "two hourly rules"),
        (
            vec![rule(HOUR, 24), rule(DAY, 7)],
            "keep 31 snapshots together (24 hourly, 7 daily), and 26 is the most",
        ),
        ((1..=9).map(|number| rule(minutes(5 * number), 1)).collect(), "at most 8 snapshot rules"),
    ] {
        let (code, message) = refused(set(1, &rules, None));
        assert_eq!(code, ErrorCode::Invalid, "{message}");
        assert!(message.contains(says), "{message}");
    }
    assert_eq!(SCHEDULED_SNAPSHOTS_MAX, 26);
    let version = control.snapshot_schedule("web1").unwrap().version;
    let task = set(2, &[at(120, DAY), rule(HOUR, 19)], Some(version)).unwrap();
    assert_eq!((task.kind, task.state), (TaskKind::VmSnapshotSchedule, TaskState::Done));
    assert_eq!(set(2, &[at(120, DAY), rule(HOUR, 19)], Some(version)).unwrap().id, task.id);
    assert_eq!(refused(set(3, &[], Some(version))).0, ErrorCode::Stale);
    let rules = control.snapshot_schedule("web1").unwrap().rules;
    assert_eq!([&rules[0].name, &rules[1].name], ["hourly", "daily"]);
    // A snapshot does not make the version stale.
    let version = control.snapshot_schedule("web1").unwrap().version;
    live(&site, &control, HOUR);
    assert_eq!(names(&control).len(), 1);
    set(4, &[], Some(version)).unwrap();
    assert_eq!(refused(control.snapshot_schedule("web9")).0, ErrorCode::NotFound);
    // What a removed rule has made stays.
    live(&site, &control, 3 * HOUR);
    assert_eq!(names(&control).len(), 1);
}

#[test]
fn a_vm_that_is_off_has_no_second_snapshot_of_the_same_disks() {
    let (site, control) = site(&["web1"], &[rule(HOUR, 5)]);
    control.stop_vm(&caller(1), "web1", &StopVm { force: true, timeout_s: None }).unwrap();
    live(&site, &control, 3 * HOUR);
    // It has run before the first one.
    assert_eq!((names(&control).len(), outcome(&control)), (1, RunOutcome::Skipped {}));
    control.start_vm(&caller(2), "web1", &StartVm::default()).unwrap();
    control.stop_vm(&caller(3), "web1", &StopVm { force: true, timeout_s: None }).unwrap_err();
    assert!(settle_down(&site, &control));
    control.stop_vm(&caller(4), "web1", &StopVm { force: true, timeout_s: None }).unwrap();
    live(&site, &control, 3 * HOUR);
    assert_eq!(names(&control).len(), 2);
    // It goes back to other content, which is kept once.
    let first = names(&control)[0].clone();
    control.revert_vm(&caller(5), "web1", &first, &RevertVm::default()).unwrap();
    live(&site, &control, 3 * HOUR);
    let made = names(&control);
    assert_eq!((made.len(), made[2].as_str()), (4, "before-revert-1"), "{made:?}");
    // A person's snapshot of the same content changes nothing.
    control.create_snapshot(&caller(6), "web1", &snapshot("mine")).unwrap();
    live(&site, &control, 3 * HOUR);
    assert_eq!((names(&control).len(), alarms(&control)), (5, vec![]));
}

#[test]
fn what_is_missed_or_fails_is_told_until_the_next_one_succeeds() {
    let (site, control) = site(&["web1"], &[rule(HOUR, 2)]);
    (0..4).for_each(|_| next_due(&site, &control));
    let kept = names(&control);
    assert_eq!(kept.len(), 2);
    // Its host fails: nothing is deleted.
    site.host.lock().snapshot_changes_that_fail = vec!["volume_in_trouble"];
    next_due(&site, &control);
    assert_eq!((names(&control), alarms(&control)), (kept.clone(), vec![AlarmKind::SnapshotMissed]));
    assert!(matches!(outcome(&control), RunOutcome::Failed { reason } if reason.contains("it does not")));
    next_due(&site, &control);
    assert_eq!((names(&control).len(), alarms(&control)), (2, vec![]));
    assert_ne!(names(&control), kept);

    // Its key is unavailable: the task waits until the next one is due.
    site.keys.lock().unavailable = true;
    live(&site, &control, 2 * HOUR + HOUR / 2);
    let RunOutcome::Missed { times, reason } = outcome(&control) else { panic!("{:?}", outcome(&control)) };
    assert!(times >= 1 && reason.contains("waiting for"), "{times} {reason}");
    assert!(alarms(&control).contains(&AlarmKind::SnapshotMissed));
    let kept = names(&control);
    site.keys.lock().unavailable = false;
    live(&site, &control, HOUR);
    assert_eq!((names(&control).len(), alarms(&control)), (2, vec![]));
    assert_ne!(names(&control), kept);
    assert!(counted(&control, "missed") >= 1 && counted(&control, "failed") == 1);

    // Its host is down: no task is made.
    let before = tasks(&control, TaskKind::VmSnapshotCreate).len();
    site.host.lock().down = true;
    live(&site, &control, 2 * HOUR + HOUR / 2);
    assert_eq!(tasks(&control, TaskKind::VmSnapshotCreate).len(), before);
    assert!(matches!(outcome(&control), RunOutcome::Missed { times: 1 | 2, .. }), "{:?}", outcome(&control));
    assert!(first_rule(&control).waits.unwrap().contains("host1 does not say"));
    site.host.lock().down = false;
    live(&site, &control, HOUR / 2);
    assert_eq!((names(&control).len(), alarms(&control)), (2, vec![]));
    assert_eq!(site.host.lock().violations, [""; 0]);
}

#[test]
fn a_vm_that_is_busy_has_its_snapshot_afterwards() {
    let (site, control) = site(&["web1"], &[rule(HOUR, 2)]);
    // A rotation that waits for its provider.
    site.keys.lock().unavailable = true;
    let rotation = control.rotate_key(&caller(1), "web1", &RotateKey::default()).unwrap();
    let due = first_rule(&control).next_unix_seconds;
    while control.now_unix_ms() / 1000 <= due + 60 {
        site.pass(Duration::from_secs(60));
        assert!(settle_down(&site, &control));
    }
    assert_eq!(names(&control), [""; 0]);
    assert_eq!(
        first_rule(&control).waits.as_deref(),
        Some("a task works on VM web1: Move VM web1 to a new key")
    );
    site.keys.lock().unavailable = false;
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_task(rotation.id).unwrap().state, TaskState::Done);
    assert_eq!(names(&control).len(), 1);
    assert_eq!((alarms(&control), first_rule(&control).last.unwrap().due_unix_seconds), (vec![], due));
}

#[test]
fn after_a_pause_of_the_control_plane_one_is_made_and_after_a_jump_of_the_clock_none_twice() {
    let (site, control) = site(&["web1"], &[rule(HOUR, 20)]);
    (0..3).for_each(|_| next_due(&site, &control));
    assert_eq!(names(&control).len(), 3);
    drop(control);
    site.pass(10 * HOUR);
    let control = site.control().unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!((names(&control).len(), alarms(&control)), (4, vec![]));
    assert!(matches!(counted(&control, "missed"), 8 | 9));
    // The clock goes back by some hours: the times that were dealt with are not dealt with again.
    site.go_back(3 * HOUR);
    live(&site, &control, 2 * HOUR);
    assert_eq!(names(&control).len(), 4);
    live(&site, &control, 3 * HOUR);
    assert!((5..=6).contains(&names(&control).len()), "{:?}", names(&control));
    // It was years ahead, and is right again.
    let now = control.now_unix_ms();
    site.pass(1000 * DAY);
    live(&site, &control, HOUR);
    let ahead = names(&control).len();
    site.go_back(Duration::from_millis(control.now_unix_ms() - now));
    live(&site, &control, 3 * HOUR);
    assert!(names(&control).len() >= ahead + 2, "{:?}", names(&control));
    assert_eq!(site.host.lock().violations, [""; 0]);
}

#[test]
fn without_room_the_oldest_of_the_rule_goes_first_unless_it_is_the_only_one() {
    let (site, control) = site(&["web1"], &[rule(HOUR, 4)]);
    (0..2).for_each(|_| next_due(&site, &control));
    let fill = |from: u64| {
        for number in from.. {
            if names(&control).len() == SNAPSHOTS_MAX {
                return;
            }
            control.create_snapshot(&caller(number), "web1", &snapshot(&format!("p{number}"))).unwrap();
            assert!(settle_down(&site, &control));
        }
    };
    fill(100);
    let own = |control: &Control| {
        names(control).into_iter().filter(|name| name.starts_with("hourly-")).collect::<Vec<_>>()
    };
    let before = own(&control);
    assert_eq!(before.len(), 2);
    next_due(&site, &control);
    let after = own(&control);
    assert_eq!((after.len(), &after[0], names(&control).len()), (2, &before[1], SNAPSHOTS_MAX));
    assert_eq!(alarms(&control), []);
    // Now the rule has only one.
    control.delete_snapshot(&caller(1), "web1", &after[0]).unwrap();
    assert!(settle_down(&site, &control));
    fill(200);
    next_due(&site, &control);
    assert_eq!((own(&control), alarms(&control)), (after[1..].to_vec(), vec![AlarmKind::SnapshotMissed]));
    let RunOutcome::Failed { reason } = outcome(&control) else { panic!("{:?}", outcome(&control)) };
    assert!(reason.contains("the VM has 31 snapshots"), "{reason}");
    let first = names(&control).into_iter().find(|name| name.starts_with('p')).unwrap();
    control.delete_snapshot(&caller(2), "web1", &first).unwrap();
    next_due(&site, &control);
    assert_eq!((own(&control).len(), alarms(&control)), (2, vec![]));
}

/// What a host reports can be forged by an attacker with the datastore, and has nothing deleted.
#[test]
fn a_forged_list_of_snapshots_has_nothing_deleted() {
    let (site, control) = site(&["web1"], &[rule(HOUR, 2)]);
    live(&site, &control, 3 * HOUR);
    let forged: Vec<_> = (0..5).map(|number| format!("hourly-2023-11-1{number}T00-00Z")).collect();
    site.host.guest("web1", |vm| {
        let one = vm.snapshots.list[0].clone();
        for name in &forged {
            let id = strongroom_types::SnapshotId::random();
            vm.snapshots.list.insert(
                0,
                strongroom_host::protocol::VmSnapshot { id, name: name.parse().unwrap(), ..one.clone() },
            );
        }
    });
    live(&site, &control, 5 * HOUR);
    let left = names(&control);
    assert!(forged.iter().all(|name| left.contains(name)), "{left:?}");
    assert_eq!(left.len(), forged.len() + 2, "{left:?}");
}

#[test]
fn not_all_that_is_due_begins_at_once() {
    let vms: Vec<String> = (0..12).map(|number| format!("web{number}")).collect();
    let vms: Vec<&str> = vms.iter().map(String::as_str).collect();
    let (site, control) = site(&vms, &[rule(HOUR, 2)]);
    site.pass(2 * HOUR);
    for host in control.hosts() {
        control.observe(host, Duration::ZERO).unwrap();
    }
    let begun: Vec<_> = (0..4).map(|_| control.make_due_snapshots(5)).collect();
    assert_eq!(begun, [5, 5, 2, 0]);
    assert!(settle_down(&site, &control));
    assert!(counted(&control, "made") >= 12);
    assert_eq!(alarms(&control), []);
}

#[test]
fn a_schedule_goes_with_its_vm() {
    let (site, control) = site(&["web1"], &[rule(HOUR, 2)]);
    control.stop_vm(&caller(1), "web1", &StopVm { force: true, timeout_s: None }).unwrap();
    assert!(settle_down(&site, &control));
    control.delete_vm(&caller(2), "web1", &DeleteVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    assert!(control.inventory.read().schedules.is_empty());
    site.pass(3 * HOUR);
    assert_eq!(control.make_due_snapshots(usize::MAX), 0);
}

/// A life with a schedule, in which the control plane is killed at this moment. Returns whether it
/// was.
fn lives_through(moment: i64) -> bool {
    let (site, control) = site(&["web1"], &[]);
    control.create_snapshot(&caller(1), "web1", &snapshot("hourly-2023-11-14T00-00Z")).unwrap();
    assert!(settle_down(&site, &control));
    let mut control = Some(control);
    let mut killed = false;
    site.fuse.set(moment);
    let wish = schedule(&[rule(HOUR, 2)]);
    let mut due_ms = 0;
    for hour in 0..5 {
        if let Some(control) = control.as_ref().filter(|_| hour > 0) {
            if hour == 1 {
                due_ms = 1000 * (first_rule(control).next_unix_seconds + 1);
            }
            site.pass(Duration::from_millis(due_ms - control.now_unix_ms()));
            due_ms += HOUR.as_millis() as u64;
        }
        loop {
            if let Some(control) = &control {
                let set = control.set_snapshot_schedule(&caller(2), "web1", &wish, Some(0));
                if settle_down(&site, control) {
                    assert_eq!(set.unwrap().state, TaskState::Done);
                    break;
                }
            }
            killed = true;
            site.fuse.set(i64::MAX);
            control = site.control();
        }
    }
    let control = control.unwrap();
    let made = names(&control);
    assert_eq!((made.len(), made[0].as_str()), (3, "hourly-2023-11-14T00-00Z"), "moment {moment}: {made:?}");
    let task =
        |kind| tasks(&control, kind).into_iter().filter(|task| task.by == "strongroom-schedule").count();
    let (created, deleted) = (task(TaskKind::VmSnapshotCreate), task(TaskKind::VmSnapshotDelete));
    assert_eq!((created, deleted), (4, 2), "moment {moment}");
    assert_eq!((first_rule(&control).kept, alarms(&control)), (2, vec![]), "moment {moment}");
    assert_eq!(site.host.lock().violations, [""; 0], "moment {moment}");
    killed
}

#[test]
fn there_is_no_moment_at_which_a_kill_makes_two_or_forgets_one() {
    let mut moment = 1;
    while lives_through(moment) {
        moment += 1;
    }
    assert!(moment > 50, "only {moment} moments");
}
