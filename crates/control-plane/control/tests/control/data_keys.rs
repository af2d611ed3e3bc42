//! Cryptoperiods of VMs' data keys with the embedded store, a host in memory, and a clock of the
//! test's own.

use std::time::Duration;

use crate::support::{Site, caller, create, settle_down, with_vms};
use strongroom_api::alarm::AlarmKind;
use strongroom_api::task::{Task, TaskKind, TaskState};
use strongroom_api::vm::{
    Cryptoperiod, CryptoperiodView, DayWindow, RotateKey, SetCryptoperiod, SetSnapshotSchedule, SnapshotRule,
    StartVm,
};
use strongroom_api::{ErrorCode, Problem};
use strongroom_control::engine::Control;
use strongroom_host::protocol::{OffReason, PowerState};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);
const DAY_S: u64 = 86_400;

fn every(days: u32) -> SetCryptoperiod {
    SetCryptoperiod { cryptoperiod: Some(Cryptoperiod { every_s: days * 86_400, window: None }) }
}

fn within(days: u32, from_hour: u32, to_hour: u32) -> SetCryptoperiod {
    let window = DayWindow { from_minutes: 60 * from_hour, to_minutes: 60 * to_hour };
    SetCryptoperiod { cryptoperiod: Some(Cryptoperiod { every_s: days * 86_400, window: Some(window) }) }
}

fn set(control: &Control, request: u64, vm: &str, wish: &SetCryptoperiod) {
    let task = control.set_cryptoperiod(&caller(request), vm, wish).unwrap();
    assert_eq!((task.kind, task.state), (TaskKind::VmCryptoperiod, TaskState::Done));
}

/// Lets this time pass in steps of ten minutes, and all parts work.
fn live(site: &Site, control: &Control, time: Duration) {
    let until = control.now_unix_ms() + time.as_millis() as u64;
    while control.now_unix_ms() < until {
        site.pass(Duration::from_secs(600));
        assert!(settle_down(site, control));
    }
}

/// Lets this time pass at once, as for a machine that was off.
fn skip(site: &Site, control: &Control, time: Duration) {
    site.pass(time);
    assert!(settle_down(site, control));
}

fn now(control: &Control) -> u64 {
    control.now_unix_ms() / 1000
}

fn shown(control: &Control) -> CryptoperiodView {
    control.show_vm("web1").unwrap().cryptoperiod.unwrap()
}

fn since(control: &Control) -> u64 {
    control.show_vm("web1").unwrap().data_keys_unix_seconds.unwrap()
}

fn rotations(control: &Control) -> Vec<Task> {
    let index = control.inventory.read();
    let tasks = index.tasks.iter().filter(|task| task.kind() == TaskKind::VmRotateKey);
    tasks.map(|task| task.task.clone()).collect()
}

/// The messages of alarms about data keys.
fn overdue(control: &Control) -> Vec<String> {
    let index = control.inventory.read();
    let alarms = index.alarms.iter().filter(|alarm| alarm.kind == AlarmKind::DataKeysOverdue);
    alarms.map(|alarm| alarm.message.clone()).collect()
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Problem>) -> (ErrorCode, String) {
    let problem = answer.unwrap_err();
    (problem.code, problem.message)
}

#[test]
fn data_keys_are_renewed_when_their_time_is_over_in_the_window() {
    let (site, control) = with_vms(&["web1"]);
    let created = since(&control);
    set(&control, 1, "web1", &within(90, 1, 5));
    let next = shown(&control).next_unix_seconds;
    assert!(next >= created + 90 * DAY_S && next < created + 91 * DAY_S, "{next}");
    assert!((1..5).contains(&(next % DAY_S / 3600)));
    skip(&site, &control, 89 * DAY);
    live(&site, &control, 22 * HOUR);
    assert_eq!((rotations(&control).len(), since(&control)), (0, created));
    live(&site, &control, 28 * HOUR);
    let [task] = &*rotations(&control) else { panic!("{:?}", rotations(&control)) };
    assert_eq!((task.state, task.by.as_str()), (TaskState::Done, "strongroom-schedule"));
    let renewed = since(&control);
    assert!((1..5).contains(&(renewed % DAY_S / 3600)), "{renewed}");
    assert!(renewed >= next && renewed < next + 3600, "{renewed} {next}");
    // The time is counted from the renewal, and a person's counts, too.
    assert!(shown(&control).next_unix_seconds >= renewed + 90 * DAY_S);
    skip(&site, &control, 30 * DAY);
    control.rotate_key(&caller(2), "web1", &RotateKey { data: true, ..RotateKey::default() }).unwrap();
    assert!(settle_down(&site, &control));
    let renewed = since(&control);
    assert!(now(&control) - renewed < 3600);
    // Another key alone renews no data keys.
    skip(&site, &control, 30 * DAY);
    control.rotate_key(&caller(3), "web1", &RotateKey::default()).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!((since(&control), rotations(&control).len()), (renewed, 3));
    assert_eq!((overdue(&control), site.host.lock().violations.clone()), (Vec::new(), Vec::new()));
}

#[test]
fn a_suspended_vm_has_an_alarm_and_is_renewed_when_it_runs() {
    let (site, control) = with_vms(&["web1"]);
    set(&control, 1, "web1", &every(30));
    control.start_vm(&caller(2), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    suspend(&site, true);
    skip(&site, &control, 30 * DAY + HOUR);
    // It is due, and says what it waits for; an alarm follows a day later.
    let waits = shown(&control).waits.unwrap();
    assert!(waits.contains("web1 is suspended"), "{waits}");
    assert_eq!(overdue(&control), [""; 0]);
    skip(&site, &control, DAY);
    let alarm = overdue(&control);
    assert!(alarm.len() == 1 && alarm[0].contains("web1 is suspended"), "{alarm:?}");
    assert_eq!(rotations(&control), []);
    suspend(&site, false);
    live(&site, &control, HOUR);
    assert_eq!((rotations(&control).len(), overdue(&control)), (1, Vec::new()));
    assert!(shown(&control).waits.is_none() && now(&control) - since(&control) < 2 * 3600);
}

fn suspend(site: &Site, is_suspended: bool) {
    site.host.guest("web1", |vm| {
        (vm.power, vm.reason) = match is_suspended {
            true => (PowerState::Suspended, Some(OffReason::Suspended)),
            false => (PowerState::Running, None),
        };
    });
}

#[test]
fn a_renewal_that_fails_has_an_alarm_and_is_tried_again_a_day_later() {
    let (site, control) = with_vms(&["web1"]);
    set(&control, 1, "web1", &every(30));
    site.host.lock().rekeys_that_fail = 6;
    skip(&site, &control, 30 * DAY);
    live(&site, &control, 2 * HOUR);
    assert_eq!(rotations(&control).iter().map(|task| task.state).collect::<Vec<_>>(), [TaskState::Failed]);
    let failed = shown(&control).failed.unwrap();
    assert_eq!((overdue(&control).len(), shown(&control).waits), (1, Some(failed.reason)));
    live(&site, &control, 20 * HOUR);
    assert_eq!(rotations(&control).len(), 1);
    site.host.lock().rekeys_that_fail = 0;
    live(&site, &control, 4 * HOUR);
    // The rotation goes on with the key that the failed one has made.
    assert_eq!((rotations(&control).len(), site.keys.lock().made.len()), (2, 2));
    assert_eq!((overdue(&control), shown(&control).failed), (Vec::new(), None));
    assert!(now(&control) - since(&control) < DAY_S);
}

#[test]
fn after_a_pause_of_the_control_plane_they_are_renewed_once_and_a_wrong_clock_does_no_lasting_harm() {
    let (site, control) = with_vms(&["web1"]);
    set(&control, 1, "web1", &within(30, 1, 5));
    drop(control);
    site.pass(100 * DAY);
    let control = site.control().unwrap();
    live(&site, &control, 2 * DAY);
    assert_eq!((rotations(&control).len(), overdue(&control)), (1, Vec::new()));
    // The clock goes back: nothing is renewed again.
    site.go_back(20 * HOUR);
    live(&site, &control, 5 * DAY);
    assert_eq!(rotations(&control).len(), 1);
    // It was years ahead, when they were renewed, and is right again: the time is not over in
    // years.
    let right = control.now_unix_ms();
    skip(&site, &control, 1000 * DAY);
    live(&site, &control, DAY);
    assert_eq!(rotations(&control).len(), 2);
    site.go_back(Duration::from_millis(control.now_unix_ms() - right));
    drop(control);
    let control = site.control().unwrap();
    assert!(settle_down(&site, &control));
    assert!(since(&control) <= now(&control));
    skip(&site, &control, 29 * DAY);
    assert_eq!(rotations(&control).len(), 2);
    live(&site, &control, 2 * DAY);
    assert_eq!((rotations(&control).len(), overdue(&control)), (3, Vec::new()));
}

#[test]
fn a_host_re_encrypts_two_vms_at_once_by_itself() {
    let names = ["web1", "web2", "web3", "web4"];
    let (site, control) = with_vms(&names);
    for (number, name) in names.iter().enumerate() {
        set(&control, 1 + number as u64, name, &every(30));
    }
    // The tasks wait for their keys.
    site.keys.lock().unavailable = true;
    skip(&site, &control, 31 * DAY);
    let open =
        |control: &Control| rotations(control).iter().filter(|task| task.state == TaskState::Running).count();
    assert_eq!(open(&control), 2);
    let waiting = names.iter().filter_map(|name| control.show_vm(name).unwrap().cryptoperiod.unwrap().waits);
    let waiting: Vec<_> = waiting.filter(|why| why.contains("re-encrypts 2 VMs already")).collect();
    assert_eq!(waiting.len(), 2, "{waiting:?}");
    site.keys.lock().unavailable = false;
    live(&site, &control, HOUR);
    assert_eq!((rotations(&control).len(), open(&control)), (4, 0));
}

#[test]
fn periods_are_checked_and_go_beside_the_rules_for_snapshots() {
    let (site, control) = with_vms(&["web1"]);
    let mut requests = 10..;
    let mut wish = |vm: &str, wish: &SetCryptoperiod| {
        control.set_cryptoperiod(&caller(requests.next().unwrap()), vm, wish)
    };
    let period = |every_s| SetCryptoperiod { cryptoperiod: Some(Cryptoperiod { every_s, window: None }) };
    for (wrong, says) in [
        (period(3600), "every 1d to 3660d, in whole days, and not every 1h"),
        (period(86_401), "in whole days"),
        (every(4000), "3660d"),
        (within(30, 3, 3), "ends at another time"),
        (within(30, 3, 24), "0 to 1439 minutes"),
    ] {
        let (code, message) = refused(wish("web1", &wrong));
        assert!(code == ErrorCode::Invalid && message.contains(says), "{message}");
    }
    assert_eq!(refused(wish("none", &every(30))).0, ErrorCode::NotFound);
    control.create_vm(&caller(2), &create("clear", false)).unwrap();
    assert!(settle_down(&site, &control));
    assert!(refused(wish("clear", &every(30))).1.contains("is not encrypted"));
    assert!(control.show_vm("clear").unwrap().data_keys_unix_seconds.is_none());
    // Rules for snapshots and the period are set and removed without each other.
    wish("web1", &every(30)).unwrap();
    let rule = SnapshotRule { every_s: 3600, at_minutes: None, keep: 3, quiesce_within_s: None };
    let schedule = SetSnapshotSchedule { rules: vec![rule] };
    control.set_snapshot_schedule(&caller(3), "web1", &schedule, Some(0)).unwrap();
    assert_eq!(shown(&control).period.every_s, 30 * 86_400);
    wish("web1", &SetCryptoperiod::default()).unwrap();
    assert!(control.show_vm("web1").unwrap().cryptoperiod.is_none());
    assert_eq!(control.snapshot_schedule("web1").unwrap().rules.len(), 1);
    skip(&site, &control, 40 * DAY);
    assert_eq!((rotations(&control), overdue(&control)), (Vec::new(), Vec::new()));
}

/// A renewal with a control plane that dies at this moment. Returns `false` if it did not die.
fn lives_through(moment: i64) -> bool {
    let (site, control) = with_vms(&["web1"]);
    set(&control, 1, "web1", &every(30));
    site.pass(30 * DAY);
    site.fuse.set(moment);
    let survived = settle_down(&site, &control);
    site.fuse.set(i64::MAX);
    drop(control);
    let control = site.control().unwrap();
    live(&site, &control, 2 * HOUR);
    let done = rotations(&control).iter().filter(|task| task.state == TaskState::Done).count();
    assert_eq!((done, rotations(&control).len()), (1, 1), "moment {moment}");
    assert_eq!((site.keys.lock().made.len(), overdue(&control)), (2, Vec::new()), "moment {moment}");
    assert!(now(&control) - since(&control) < DAY_S, "moment {moment}");
    !survived
}

#[test]
fn there_is_no_moment_at_which_a_kill_renews_twice_or_not_at_all() {
    let moments = (1..300).take_while(|moment| lives_through(*moment)).count();
    assert!((5..299).contains(&moments), "{moments}");
}
