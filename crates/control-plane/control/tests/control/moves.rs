//! VMs that move between hosts which reach their datastore. The control plane is killed at every
//! moment, hosts are killed and cut off, and nothing is started twice.

use std::collections::BTreeSet;

use strongroom_api::host::EvacuateHost;
use strongroom_api::task::{Task, TaskState};
use strongroom_api::vm::{CreateVm, DesiredPower, MoveToHost, PowerState, StartVm, StopVm};
use strongroom_api::{ErrorCode, Problem};
use strongroom_control::engine::{Control, Next};
use strongroom_control::records::Work;
use strongroom_host::migration::Place;
use strongroom_host::protocol::PowerState as HostPower;

use super::placement::{host_of, maintenance, on, shared};
use crate::support::{Site, caller, killed_after, settle_down};

pub fn to(host: &str) -> MoveToHost {
    MoveToHost { host: Some(host.to_owned()), ..MoveToHost::default() }
}

/// A VM that does not move while it runs: it has a TPM, and these hosts are of an earlier version.
pub fn stays_on(name: &str, host: &str) -> CreateVm {
    CreateVm { tpm: true, ..on(name, host) }
}

pub fn ended(site: &Site, control: &Control, task: &Task) -> Task {
    assert!(settle_down(site, control));
    control.show_task(task.id).unwrap()
}

pub fn moved(site: &Site, control: &Control, request: u64, vm: &str, host: &str) -> Task {
    let task = control.move_to_host(&caller(request), vm, &to(host)).unwrap();
    ended(site, control, &task)
}

pub fn start(site: &Site, control: &Control, request: u64, vm: &str) {
    control.start_vm(&caller(request), vm, &StartVm::default()).unwrap();
    assert!(settle_down(site, control));
    assert_eq!(control.show_vm(vm).unwrap().summary.power, PowerState::Running);
}

pub fn no_violations(site: &Site) {
    for (name, host) in site.hosts() {
        assert_eq!(host.lock().violations, [""; 0], "{name}");
    }
}

#[test]
fn a_vm_that_is_off_moves_and_starts_on_its_next_host_only() {
    let (site, control) = shared(2);
    control.create_vm(&caller(1), &on("web1", "host1")).unwrap();
    assert!(settle_down(&site, &control));
    start(&site, &control, 2, "web1");
    control.stop_vm(&caller(4), "web1", &StopVm { force: true, timeout_s: None }).unwrap();
    assert!(settle_down(&site, &control));
    let here = control.move_to_host(&caller(5), "web1", &to("host1")).unwrap_err();
    assert!(here.message.contains("is on host host1 already"), "{here}");
    let task = moved(&site, &control, 6, "web1", "host2");
    assert_eq!(task.state, TaskState::Done, "{task:?}");
    assert_eq!(host_of(&control, "web1"), "host2");
    let id = control.show_vm("web1").unwrap().summary.id;
    assert!(!site.host.lock().vms.contains_key(&id), "the former host has it no more");
    start(&site, &control, 7, "web1");
    let generation = site.others[0].lock().vms[&id].generation;
    assert!(generation > 2, "{generation}");
    // Without a host it moves to the best of the others, and also back.
    control.stop_vm(&caller(8), "web1", &StopVm { force: true, timeout_s: None }).unwrap();
    assert!(settle_down(&site, &control));
    maintenance(&control, "host3", true);
    let task = control.move_to_host(&caller(9), "web1", &MoveToHost::default()).unwrap();
    assert_eq!(ended(&site, &control, &task).state, TaskState::Done);
    assert_eq!(host_of(&control, "web1"), "host1");
    start(&site, &control, 10, "web1");
    no_violations(&site);
}

#[test]
fn a_vm_moves_on_and_back_without_a_start_in_between() {
    let (site, control) = shared(2);
    control.create_vm(&caller(1), &on("web1", "host1")).unwrap();
    assert!(settle_down(&site, &control));
    for (request, host) in [(2, "host2"), (3, "host3"), (4, "host2"), (5, "host1"), (6, "host2")] {
        let task = moved(&site, &control, request, "web1", host);
        assert_eq!(task.state, TaskState::Done, "to {host}: {task:?}");
        assert_eq!(host_of(&control, "web1"), host);
    }
    start(&site, &control, 7, "web1");
    no_violations(&site);
}

#[test]
fn a_vm_of_a_host_that_is_away_stays_where_it_may_run() {
    let (site, control) = shared(1);
    control.create_vm(&caller(1), &on("web1", "host1")).unwrap();
    assert!(settle_down(&site, &control));
    site.host.lock().down = true;
    assert!(settle_down(&site, &control));
    let refused = control.move_to_host(&caller(2), "web1", &to("host2")).unwrap_err();
    assert_eq!(refused.code, ErrorCode::HostUnavailable);
    assert!(refused.message.contains("may run there"), "{refused}");
    site.host.lock().down = false;
    assert!(settle_down(&site, &control));

    // It goes away after the request. The task waits, and the VM remains its own.
    let task = control.move_to_host(&caller(3), "web1", &to("host2")).unwrap();
    assert!(matches!(control.advance(task.id), Ok(Next::Again)));
    site.host.lock().down = true;
    for _ in 0..10 {
        assert!(matches!(control.advance(task.id), Ok(Next::Wait(_))));
        site.pass(std::time::Duration::from_secs(60));
    }
    let waits = control.show_task(task.id).unwrap();
    assert!(waits.note.as_deref().unwrap().starts_with("waiting for host host1"), "{waits:?}");
    assert_eq!(host_of(&control, "web1"), "host1");
    assert_eq!(site.others[0].lock().vms.len(), 0);
    control.cancel_task(&caller(4), task.id).unwrap();
    site.host.lock().down = false;
    assert_eq!(ended(&site, &control, &task).state, TaskState::Cancelled);
    assert_eq!(host_of(&control, "web1"), "host1");
    start(&site, &control, 5, "web1");
    no_violations(&site);
}

#[test]
fn what_the_next_host_does_not_take_goes_back() {
    for code in ["other_datastore", "system"] {
        let (site, control) = shared(1);
        control.create_vm(&caller(1), &on("web1", "host1")).unwrap();
        assert!(settle_down(&site, &control));
        site.others[0].lock().moves_that_fail = vec![code];
        let task = moved(&site, &control, 2, "web1", "host2");
        assert_eq!(task.state, TaskState::Failed);
        assert!(task.error.unwrap().message.contains("it does not arrive"));
        assert_eq!(host_of(&control, "web1"), "host1");
        start(&site, &control, 3, "web1");
        assert_eq!(site.others[0].lock().vms.len(), 0);
        no_violations(&site);
    }
    // The former host fails in the middle, and has it again.
    let (site, control) = shared(1);
    control.create_vm(&caller(1), &on("web1", "host1")).unwrap();
    assert!(settle_down(&site, &control));
    site.host.lock().moves_that_fail = vec!["system"];
    assert_eq!(moved(&site, &control, 2, "web1", "host2").state, TaskState::Failed);
    start(&site, &control, 3, "web1");
    no_violations(&site);
}

#[test]
fn a_host_refuses_before_the_former_one_has_given_the_vm_up() {
    let (site, control) = shared(1);
    control.create_vm(&caller(1), &on("web1", "host1")).unwrap();
    assert!(settle_down(&site, &control));
    site.others[0].lock().refuses = Some("no_such_interface");
    let task = moved(&site, &control, 2, "web1", "host2");
    assert_eq!(task.error.unwrap().code, ErrorCode::Invalid);
    assert!(site.host.lock().residences.is_empty(), "it was not given up");
    site.others[0].lock().refuses = None;
    // In maintenance from after the request on.
    let task = control.move_to_host(&caller(3), "web1", &to("host2")).unwrap();
    maintenance(&control, "host2", true);
    assert_eq!(ended(&site, &control, &task).error.unwrap().code, ErrorCode::NoHost);
    assert!(site.host.lock().residences.is_empty());
}

#[test]
fn an_earlier_start_on_a_host_that_is_not_the_vms_is_ended_and_never_taken_as_wanted() {
    let (site, control) = shared(1);
    control.create_vm(&caller(1), &on("web1", "host1")).unwrap();
    assert!(settle_down(&site, &control));
    let id = control.show_vm("web1").unwrap().summary.id;
    let before = site.host.lock().vms[&id].clone();
    assert_eq!(moved(&site, &control, 2, "web1", "host2").state, TaskState::Done);
    // A host that has lost what it had recorded, and runs the VM.
    {
        let mut inside = site.host.lock();
        inside.residences.clear();
        let mut forged = before.clone();
        (forged.power, forged.reason) = (HostPower::Running, None);
        inside.vms.insert(id, forged);
    }
    site.host.guest("web1", |_| {});
    assert!(settle_down(&site, &control));
    assert!(!site.host.lock().vms.contains_key(&id), "it was ended, and nothing of it has stayed");
    let vm = control.show_vm("web1").unwrap();
    assert_eq!((vm.summary.power, vm.summary.desired), (PowerState::Stopped, DesiredPower::Stopped));
    assert_eq!(host_of(&control, "web1"), "host2");

    // A later start there decides nothing: neither is it ended, nor is another one begun.
    site.host.lock().vms.insert(id, before);
    let running = |vm: &mut crate::support::site::FakeVm| {
        (vm.power, vm.reason, vm.generation) = (HostPower::Running, None, 99);
    };
    site.host.guest("web1", running);
    assert!(settle_down(&site, &control));
    assert_eq!(site.host.lock().vms[&id].power, HostPower::Running);
    let task = control.start_vm(&caller(3), "web1", &StartVm::default()).unwrap();
    let task = ended(&site, &control, &task);
    assert!(task.error.unwrap().message.contains("runs on host host1, which is not its host"));
    assert_eq!(control.show_vm("web1").unwrap().summary.desired, DesiredPower::Stopped);
}

/// The control plane is killed at each moment of a move, hosts are restarted then, and a start that
/// was sent before comes late.
#[test]
fn a_move_completes_whenever_the_control_plane_was_killed() {
    let moments = (1_i64..).find(|moments| !is_killed_at(*moments)).unwrap();
    println!("killed at each of the first {moments} moments of a move");
    assert!(moments > 20, "{moments}");
}

/// Returns `false` if the move was over before that moment.
fn is_killed_at(moments: i64) -> bool {
    let (site, control) = shared(1);
    control.create_vm(&caller(1), &on("web1", "host1")).unwrap();
    assert!(settle_down(&site, &control));
    let id = control.show_vm("web1").unwrap().summary.id;
    let task = control.move_to_host(&caller(2), "web1", &to("host2")).unwrap();
    let (control, killed) = killed_after(&site, control, moments);
    let task = ended(&site, &control, &task);
    assert_eq!(task.state, TaskState::Done, "killed at {moments}: {task:?}");
    assert_eq!(host_of(&control, "web1"), "host2");
    let residences = [&site.host, &site.others[0]].map(|host| host.lock().residences[&id]);
    assert_eq!(residences.map(|known| known.place), [Place::Left, Place::Here], "at {moments}");
    assert!(residences[0].generation < residences[1].generation);
    start(&site, &control, 3, "web1");
    no_violations(&site);
    killed
}

/// A move is cancelled at each of its steps: the VM is on one host then, and starts there.
#[test]
fn a_move_that_is_cancelled_leaves_the_vm_on_one_host() {
    let mut ends = BTreeSet::new();
    for steps in 0..12 {
        for forgets in [false, true] {
            let (site, control) = shared(1);
            control.create_vm(&caller(1), &on("web1", "host1")).unwrap();
            assert!(settle_down(&site, &control));
            let task = control.move_to_host(&caller(2), "web1", &to("host2")).unwrap();
            for _ in 0..steps {
                let _ = control.advance(task.id);
                for (_, host) in site.hosts() {
                    host.work();
                }
            }
            if forgets {
                site.hosts().iter().for_each(|(_, host)| host.restart());
            }
            control.cancel_task(&caller(3), task.id).unwrap();
            let task = ended(&site, &control, &task);
            let host = host_of(&control, "web1");
            let expected = if task.state == TaskState::Done { "host2" } else { "host1" };
            assert_eq!(host, expected, "after {steps} steps: {task:?}");
            ends.insert(host);
            start(&site, &control, 4, "web1");
            no_violations(&site);
        }
    }
    assert_eq!(ends.len(), 2, "cancelled too early and too late: {ends:?}");
}

fn evacuated(site: &Site, control: &Control, request: u64, shut_down: bool) -> Result<Task, Problem> {
    let how = EvacuateHost { shut_down, timeout_s: Some(5), ..EvacuateHost::default() };
    control.evacuate_host(&caller(request), "host1", &how).map(|task| ended(site, control, &task))
}

#[test]
fn an_evacuation_moves_what_is_off_and_what_it_may_shut_down() {
    let (site, control) = shared(2);
    for number in 1..=6 {
        control.create_vm(&caller(number), &stays_on(&format!("web{number}"), "host1")).unwrap();
    }
    control.create_vm(&caller(7), &on("other1", "host2")).unwrap();
    assert!(settle_down(&site, &control));
    start(&site, &control, 8, "web1");
    start(&site, &control, 9, "web2");
    control.pause_vm(&caller(10), "web2").unwrap();
    assert!(settle_down(&site, &control));
    let task = evacuated(&site, &control, 11, false).unwrap();
    assert_eq!(task.state, TaskState::Failed);
    let error = task.error.unwrap();
    for part in [
        "2 VMs could not be moved, and 4 were",
        "VM web1: VM web1 does not move",
        "VM web2: VM web2 does not move",
    ] {
        assert!(error.message.contains(part), "{part}: {error}");
    }
    assert!(control.show_host("host1").unwrap().maintenance);
    let task = evacuated(&site, &control, 12, true).unwrap();
    let error = task.error.unwrap();
    assert!(error.message.contains("1 VM could not be moved, and 1 were"), "{error}");
    let vm = control.show_vm("web1").unwrap();
    assert_eq!((vm.summary.power, vm.summary.desired), (PowerState::Running, DesiredPower::Running));
    assert_ne!(host_of(&control, "web1"), "host1");
    control.stop_vm(&caller(13), "web2", &StopVm { force: true, timeout_s: None }).unwrap();
    assert!(settle_down(&site, &control));
    let task = evacuated(&site, &control, 14, true).unwrap();
    assert_eq!(task.state, TaskState::Done, "{task:?}");
    assert_eq!(site.host.lock().vms.len(), 0);
    assert_eq!(host_of(&control, "other1"), "host2");
    no_violations(&site);
}

#[test]
fn an_evacuation_says_why_nothing_moves_and_leaves_guests_running() {
    let (site, control) = shared(1);
    control.create_vm(&caller(1), &on("web1", "host1")).unwrap();
    assert!(settle_down(&site, &control));
    start(&site, &control, 2, "web1");
    maintenance(&control, "host2", true);
    let task = evacuated(&site, &control, 3, true).unwrap();
    let error = task.error.unwrap();
    assert!(error.message.contains("host2 is in maintenance"), "{error}");
    let vm = control.show_vm("web1").unwrap();
    assert_eq!((vm.summary.power, vm.generation), (PowerState::Running, 1), "it was not shut down");
    let task = control.evacuate_host(&caller(4), "host1", &EvacuateHost::default()).unwrap();
    let second = control.evacuate_host(&caller(5), "host1", &EvacuateHost::default()).unwrap_err();
    assert_eq!(second.code, ErrorCode::Busy);
    control.cancel_task(&caller(6), task.id).unwrap();
    assert_eq!(ended(&site, &control, &task).state, TaskState::Cancelled);
}

/// The control plane is killed at each moment of an evacuation that shuts a guest down.
#[test]
fn an_evacuation_completes_whenever_the_control_plane_was_killed() {
    let mut moments = 1;
    while is_evacuation_killed_at(moments) {
        // Each moment of the last steps, and some of the many before.
        moments += 3;
    }
    println!("killed at every third of the first {moments} moments of an evacuation");
    assert!(moments > 40, "{moments}");
}

fn is_evacuation_killed_at(moments: i64) -> bool {
    let (site, control) = shared(1);
    for (number, name) in ["web1", "web2"].into_iter().enumerate() {
        control.create_vm(&caller(number as u64), &stays_on(name, "host1")).unwrap();
    }
    assert!(settle_down(&site, &control));
    start(&site, &control, 8, "web1");
    let how = EvacuateHost { shut_down: true, timeout_s: Some(5), ..EvacuateHost::default() };
    let task = control.evacuate_host(&caller(9), "host1", &how).unwrap();
    site.fuse.set(moments);
    let killed = !settle_down(&site, &control);
    site.fuse.set(i64::MAX);
    let control = if killed { site.control().unwrap() } else { control };
    let task = ended(&site, &control, &task);
    assert_eq!(task.state, TaskState::Done, "killed at {moments}: {task:?}");
    for (name, power) in [("web1", PowerState::Running), ("web2", PowerState::Stopped)] {
        let vm = control.show_vm(name).unwrap();
        assert_eq!(
            (vm.summary.power, vm.summary.host.as_deref()),
            (power, Some("host2")),
            "{name} at {moments}"
        );
    }
    let evacuation = control.inventory.read().task(task.id).map(|task| task.work.clone());
    let Some(Work::Evacuate(evacuation)) = evacuation else { panic!("{evacuation:?}") };
    assert_eq!((evacuation.vms.done, evacuation.vms.left.len()), (2, 0), "each VM is counted once");
    no_violations(&site);
    killed
}
