//! The control plane is killed between any two external actions, and continues as if it had not
//! been.

use std::collections::BTreeMap;

use crate::support::{Site, caller, copy, create, settle_down};
use proptest::prelude::*;
use strongroom_api::datastore::RebuildDatastore;
use strongroom_api::task::{Task, TaskState};
use strongroom_api::vm::{
    AddDisk, AddNic, CloneVm, CreateVm, DeleteVm, DesiredPower, EncryptDisk, Lifecycle, PatchVm, RotateKey,
    StartVm, StopVm,
};
use strongroom_api::{ErrorCode, Problem};
use strongroom_control::engine::{Caller, Control};
use strongroom_control::inventory::Wanted;
use strongroom_host::protocol::PowerState;
use strongroom_store::KeyRange;

const NAMES: [&str; 3] = ["web1", "db1", "mail1"];

/// An action of a user or of the environment.
#[derive(Clone, Copy, Debug)]
enum Act {
    Create(usize, bool),
    /// A linked clone of the first one, with the name of the second one.
    Link(usize, usize),
    /// A copy of the first one, likewise.
    Copy(usize, usize),
    Start(usize),
    Stop(usize),
    Restart(usize),
    Pause(usize),
    Resume(usize),
    Delete(usize),
    Unregister(usize),
    Rebuild,
    GuestShutsDown(usize),
    HostRestarts,
    PowerFails,
}

fn act() -> impl Strategy<Value = Act> {
    let vm = 0..NAMES.len();
    prop_oneof![
        4 => (vm.clone(), any::<bool>()).prop_map(|(vm, sealed)| Act::Create(vm, sealed)),
        3 => (vm.clone(), vm.clone()).prop_map(|(of, vm)| Act::Link(of, vm)),
        2 => (vm.clone(), vm.clone()).prop_map(|(of, vm)| Act::Copy(of, vm)),
        4 => vm.clone().prop_map(Act::Start),
        2 => vm.clone().prop_map(Act::Stop),
        1 => vm.clone().prop_map(Act::Restart),
        1 => vm.clone().prop_map(Act::Pause),
        1 => vm.clone().prop_map(Act::Resume),
        2 => vm.clone().prop_map(Act::Delete),
        1 => vm.clone().prop_map(Act::Unregister),
        1 => Just(Act::Rebuild),
        1 => vm.prop_map(Act::GuestShutsDown),
        1 => Just(Act::HostRestarts),
        1 => Just(Act::PowerFails),
    ]
}

fn ask(control: &Control, by: &Caller, act: Act) -> Option<Result<Task, Problem>> {
    let stop = StopVm { force: false, timeout_s: Some(5) };
    Some(match act {
        Act::Create(vm, sealed) => control.create_vm(by, &create(NAMES[vm], sealed)),
        Act::Link(of, vm) | Act::Copy(of, vm) => {
            let linked = matches!(act, Act::Link(..));
            control.clone_vm(by, NAMES[of], &CloneVm { linked, ..copy(NAMES[vm]) })
        }
        Act::Start(vm) => control.start_vm(by, NAMES[vm], &StartVm::default()),
        Act::Stop(vm) => control.stop_vm(by, NAMES[vm], &stop),
        Act::Restart(vm) => control.restart_vm(by, NAMES[vm], &stop),
        Act::Pause(vm) => control.pause_vm(by, NAMES[vm]),
        Act::Resume(vm) => control.resume_vm(by, NAMES[vm]),
        Act::Delete(vm) => {
            control.delete_vm(by, NAMES[vm], &DeleteVm { leave_to_clones: true, with_volumes: false })
        }
        Act::Unregister(vm) => control.unregister_vm(by, NAMES[vm]),
        Act::Rebuild => {
            control.rebuild_datastore(by, "ds1", &RebuildDatastore { accept_configuration: true })
        }
        _ => return None,
    })
}

/// The model: a simple and obvious one, with the state after everything has come to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vm {
    Off,
    On,
    Paused,
    /// Off, with its files still there.
    Unregistered,
}

fn expected(model: &mut BTreeMap<usize, Vm>, act: Act) -> Option<Result<(), ErrorCode>> {
    use Vm::{Off, On, Paused, Unregistered};
    let registered = |model: &BTreeMap<usize, Vm>, vm: usize| {
        model.get(&vm).copied().filter(|state| *state != Unregistered).ok_or(ErrorCode::NotFound)
    };
    let to = |model: &mut BTreeMap<usize, Vm>, vm: usize, from: &[Vm], state: Vm| {
        let now = registered(model, vm)?;
        if !from.contains(&now) {
            return Err(ErrorCode::Conflict);
        }
        model.insert(vm, state);
        Ok(())
    };
    Some(match act {
        Act::Create(vm, _) => match model.get(&vm) {
            None => {
                model.insert(vm, Off);
                Ok(())
            }
            // Its directory still exists, so the task fails.
            Some(Unregistered) => Ok(()),
            Some(_) => Err(ErrorCode::NameTaken),
        },
        Act::Link(of, vm) | Act::Copy(of, vm) => {
            let origin = registered(model, of).map(drop);
            origin.and_then(|()| match model.get(&vm) {
                Some(Off | On | Paused) => Err(ErrorCode::NameTaken),
                // If its directory still exists, the task fails.
                None | Some(Unregistered) => {
                    model.entry(vm).or_insert(Off);
                    Ok(())
                }
            })
        }
        Act::Start(vm) => to(model, vm, &[Off], On),
        Act::Stop(vm) => to(model, vm, &[Off, On, Paused], Off),
        Act::Restart(vm) => to(model, vm, &[Off, On, Paused], On),
        Act::Pause(vm) => to(model, vm, &[On], Paused),
        Act::Resume(vm) => to(model, vm, &[Paused], On),
        Act::Delete(vm) => to(model, vm, &[Off], Off).map(|()| {
            model.remove(&vm);
        }),
        Act::Unregister(vm) => to(model, vm, &[Off], Unregistered),
        Act::Rebuild => {
            for state in model.values_mut().filter(|state| **state == Unregistered) {
                *state = Off;
            }
            Ok(())
        }
        Act::GuestShutsDown(vm) => {
            if matches!(model.get(&vm), Some(On)) {
                model.insert(vm, Off);
            }
            return None;
        }
        Act::PowerFails => {
            // Running VMs run again, and so do paused ones, since their memory is lost.
            for state in model.values_mut().filter(|state| **state == Paused) {
                *state = On;
            }
            return None;
        }
        Act::HostRestarts => return None,
    })
}

/// Kills after these numbers of moments, one after the other; then none.
struct Killer<'a> {
    site: &'a Site,
    kills: std::vec::IntoIter<u16>,
    control: Control,
    killed: usize,
}

impl<'a> Killer<'a> {
    fn new(site: &'a Site, kills: Vec<u16>) -> Self {
        let control = site.control().unwrap();
        let mut killer = Self { site, kills: kills.into_iter(), control, killed: 0 };
        killer.load();
        killer
    }

    fn load(&mut self) {
        let moments = self.kills.next().map_or(i64::MAX, |moments| i64::from(moments) + 1);
        self.site.fuse.set(moments);
    }

    fn rise(&mut self) {
        self.killed += 1;
        loop {
            self.load();
            if let Some(control) = self.site.control() {
                self.control = control;
                return;
            }
        }
    }

    /// Repeats the request, with the same key, until it is answered.
    fn ask(&mut self, by: &Caller, act: Act) -> Option<Result<Task, Problem>> {
        loop {
            // A new control plane first reads the host, as in production.
            let known = settle_down(self.site, &self.control);
            if known {
                let answer = ask(&self.control, by, act)?;
                if !self.site.fuse.is_burnt() {
                    return Some(answer);
                }
            }
            self.rise();
        }
    }

    /// Kills at this moment of what `ask` asks for, once. Returns its task when that is over.
    fn killed_at(&mut self, moments: u16, ask: impl Fn(&Control) -> Result<Task, Problem>) -> Task {
        self.kills = vec![moments].into_iter();
        self.load();
        let task = loop {
            if settle_down(self.site, &self.control) {
                let asked = ask(&self.control);
                if !self.site.fuse.is_burnt() {
                    break asked.unwrap();
                }
            }
            self.rise();
        };
        self.rest();
        self.control.show_task(task.id).unwrap()
    }

    fn rest(&mut self) {
        while !settle_down(self.site, &self.control) {
            self.rise();
        }
    }
}

fn with_datastore(site: &Site) {
    let control = site.control().unwrap();
    let wish = serde_json::from_str(r#"{"name":"ds1","path":"/srv/ds1"}"#).unwrap();
    control.add_datastore(&caller(u64::MAX), &wish).unwrap();
}

/// The invariants whenever everything is at rest.
fn check(site: &Site, control: &Control) {
    let log = control.look_at_access_log(&[]).unwrap();
    assert!(log.whole, "{log:?}");
    let index = control.inventory.read();
    assert_eq!(index.open_tasks_count(), 0);
    let inside = site.host.lock();
    assert_eq!(inside.violations, Vec::<String>::new());
    for vm in index.vms.iter() {
        assert_eq!((vm.task, vm.lifecycle), (None, Lifecycle::Present), "{}", vm.name);
        let real = inside.vms.get(&vm.id).unwrap_or_else(|| panic!("{} is nowhere", vm.name));
        let power = match vm.desired {
            DesiredPower::Stopped => PowerState::Stopped,
            DesiredPower::Running => PowerState::Running,
            DesiredPower::Paused => PowerState::Paused,
        };
        assert_eq!(real.power, power, "{}", vm.name);
        for disk in &vm.hardware.disks {
            assert_eq!(disk.volume, real.volumes.get(disk.name.as_str()).copied());
            assert_eq!(index.volume(disk.volume.unwrap()).unwrap().vm, vm.id);
        }
    }
    let disks: usize = index.vms.iter().map(|vm| vm.hardware.disks.len()).sum();
    assert_eq!(index.volumes.len(), disks, "volumes of nobody");
    let names = site.store.snapshot().unwrap().all(&KeyRange::prefix(*b"vm-name/")).unwrap();
    assert_eq!(names.len(), index.vms.len(), "names of nobody");
    // At most one key for each VM, however often it was requested.
    let keys = site.keys.lock();
    let mut owners: Vec<_> = keys.made.values().map(|(vm, _)| *vm).collect();
    let made = owners.len();
    owners.sort_unstable();
    owners.dedup();
    assert_eq!(owners.len(), made, "two keys for one VM");
}

/// The number of the snapshots of all VMs, at their host.
fn snapshots_of(site: &Site) -> usize {
    site.host.lock().vms.values().map(|vm| vm.snapshots.list.len()).sum()
}

fn state_of(site: &Site, control: &Control) -> BTreeMap<usize, Vm> {
    let index = control.inventory.read();
    let inside = site.host.lock();
    let state = |(number, name): (usize, &&str)| {
        let real = inside.vms.values().find(|vm| vm.spec.name.as_str() == *name)?;
        let state = match real.power {
            _ if index.find_vm(name).is_none() => Vm::Unregistered,
            PowerState::Running => Vm::On,
            PowerState::Paused => Vm::Paused,
            _ => Vm::Off,
        };
        Some((number, state))
    };
    NAMES.iter().enumerate().filter_map(state).collect()
}

/// Returns how often the control plane was killed.
fn run(acts: &[Act], kills: Vec<u16>) -> usize {
    let site = Site::new();
    with_datastore(&site);
    let mut killer = Killer::new(&site, kills);
    let mut model = BTreeMap::new();
    for (number, act) in acts.iter().enumerate() {
        match act {
            Act::GuestShutsDown(vm) => site.host.guest(NAMES[*vm], |vm| {
                if vm.power == PowerState::Running {
                    let reason = Some(strongroom_host::protocol::OffReason::GuestShutdown);
                    (vm.power, vm.reason) = (PowerState::Stopped, reason);
                }
            }),
            Act::HostRestarts => site.host.restart(),
            Act::PowerFails => site.host.lose_power(),
            _ => {}
        }
        // The limit of automatic restarts is not tested here.
        site.pass(std::time::Duration::from_secs(1200));
        let expected = expected(&mut model, *act);
        let snapshots = snapshots_of(&site);
        let answer = killer.ask(&caller(number as u64), *act);
        match (expected, answer) {
            (Some(Ok(())), Some(Ok(task))) => {
                killer.rest();
                let wanted = Wanted { after: None, since_unix_ms: None, by: None, limit: 1000 };
                let log = killer.control.inventory.access_log().unwrap().page(&wanted).unwrap();
                let entries = log.items.iter().filter(|entry| entry.task == Some(task.id)).count();
                assert_eq!(entries, 1, "{act:?} is on record once");
                let task = killer.control.show_task(task.id).unwrap();
                let in_the_way = matches!(act, Act::Create(vm, _) | Act::Link(_, vm) | Act::Copy(_, vm)
                    if model[vm] == Vm::Unregistered);
                let state = if in_the_way { TaskState::Failed } else { TaskState::Done };
                assert_eq!(task.state, state, "{act:?}: {task:?}");
            }
            (Some(Err(code)), Some(Err(problem))) => assert_eq!(problem.code, code, "{act:?}: {problem}"),
            (None, None) => {}
            (expected, answer) => panic!("{act:?}: {expected:?} is expected, {answer:?} is the answer"),
        }
        killer.rest();
        check(&site, &killer.control);
        if matches!(act, Act::Copy(..)) {
            assert_eq!(snapshots_of(&site), snapshots, "a copy leaves no snapshot");
        }
        assert_eq!(state_of(&site, &killer.control), model, "after {act:?}");
    }
    killer.killed
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_killed_control_plane_does_what_one_that_lives_does(
        acts in prop::collection::vec(act(), 1..14),
        kills in prop::collection::vec(0u16..60, 0..40),
    ) {
        run(&acts, kills);
    }
}

#[test]
fn nobody_is_killed() {
    let started = std::time::Instant::now();
    run(&[Act::Create(0, true), Act::Start(0), Act::Stop(0)], Vec::new());
    println!("three acts: {:?}", started.elapsed());
}

/// Kills at each moment of a rotation once: one moment later in each round.
#[test]
fn a_rotation_that_is_done_is_on_the_audit_log_whenever_it_was_killed() {
    for moments in 0_u16.. {
        let site = Site::new();
        with_datastore(&site);
        let mut killer = Killer::new(&site, Vec::new());
        assert!(killer.ask(&caller(0), Act::Create(0, true)).unwrap().is_ok());
        killer.rest();
        let with_data = RotateKey { data: true, ..RotateKey::default() };
        let ask = |control: &Control| control.rotate_key(&caller(1), NAMES[0], &with_data);
        assert_eq!(killer.killed_at(moments, ask).state, TaskState::Done);
        let keys = site.keys.lock();
        // A repeated entry says the same.
        let moved = keys.moves.first().unwrap_or_else(|| panic!("not on record: killed at {moments}"));
        assert!(moved.renewed && keys.moves.iter().all(|other| other == moved), "{:?}", keys.moves);
        assert_eq!((keys.retired.len(), keys.made.len()), (1, 2));
        drop(keys);
        if killer.killed == 0 {
            println!("killed at each of the first {moments} moments of a rotation");
            return;
        }
    }
}

/// Kills at each moment of an encryption, and of a decryption, once: of the only disk of a VM that
/// is off, and of the second one of a VM that runs.
#[test]
fn a_disk_becomes_what_was_asked_for_whenever_it_was_killed() {
    for (encrypts, runs) in [(true, false), (false, false), (true, true), (false, true)] {
        let moments = (0_u16..).find(|moments| !is_killed_at(*moments, encrypts, runs));
        println!("killed at each of the first {} moments", moments.unwrap());
    }
}

/// Returns `false` if the task was over before that moment.
fn is_killed_at(moments: u16, encrypts: bool, runs: bool) -> bool {
    let site = Site::new();
    with_datastore(&site);
    let mut killer = Killer::new(&site, Vec::new());
    assert!(killer.ask(&caller(0), Act::Create(0, runs || !encrypts)).unwrap().is_ok());
    killer.rest();
    if runs {
        let second: AddDisk = serde_json::from_str(r#"{"size_bytes":1048576}"#).unwrap();
        killer.control.add_disk(&caller(10), NAMES[0], &second).unwrap();
        killer.rest();
        if encrypts {
            killer.control.decrypt_disk(&caller(11), NAMES[0], "disk1").unwrap();
            killer.rest();
        }
        killer.control.start_vm(&caller(12), NAMES[0], &StartVm::default()).unwrap();
        killer.rest();
    }
    let disk = if runs { "disk1" } else { "disk0" };
    site.keys.lock().moves.clear();
    let task = killer.killed_at(moments, |control| match encrypts {
        true => control.encrypt_disk(&caller(1), NAMES[0], disk, &EncryptDisk::default()),
        false => control.decrypt_disk(&caller(1), NAMES[0], disk),
    });
    assert_eq!(task.state, TaskState::Done, "at {moments}");
    let vm = killer.control.show_vm(NAMES[0]).unwrap();
    let found = vm.disks.iter().find(|found| found.name.as_str() == disk).unwrap();
    assert_eq!((found.key.is_some(), found.becomes), (encrypts, None), "at {moments}");
    assert_eq!(vm.summary.power.is_on(), runs, "at {moments}");
    let keys = site.keys.lock();
    assert_eq!((keys.made.len(), keys.retired.len()), (1, usize::from(!encrypts && !runs)), "at {moments}");
    let moved = keys.moves.first().unwrap_or_else(|| panic!("not on record: killed at {moments}"));
    assert!(keys.moves.iter().all(|other| other == moved), "{:?}", keys.moves);
    assert_eq!((moved.from.is_empty(), moved.to.is_some()), (encrypts, encrypts));
    assert_eq!(moved.volumes, [found.volume.unwrap()]);
    drop(keys);
    assert_eq!(site.host.lock().violations, [""; 0], "at {moments}");
    killer.killed > 0
}

/// Kills at each moment of a change of a running VM's network cards, once: of one that is made, and
/// of one that is taken back.
#[test]
fn network_cards_become_what_was_asked_for_or_what_they_were_whenever_it_was_killed() {
    for fails in [false, true] {
        let moments = (0_u16..).find(|moments| !cards_are_killed_at(*moments, fails));
        println!("killed at each of the first {} moments", moments.unwrap());
    }
}

/// Returns `false` if the task was over before that moment.
fn cards_are_killed_at(moments: u16, fails: bool) -> bool {
    let site = Site::new();
    with_datastore(&site);
    let mut killer = Killer::new(&site, Vec::new());
    assert!(killer.ask(&caller(0), Act::Create(0, true)).unwrap().is_ok());
    killer.rest();
    killer.control.start_vm(&caller(12), NAMES[0], &StartVm::default()).unwrap();
    killer.rest();
    let cards = || {
        let host = site.host.lock();
        let nics = &host.vms.values().next().unwrap().spec.nics;
        nics.iter().map(|nic| nic.mac.to_string()).collect::<Vec<_>>()
    };
    let before = cards();
    if fails {
        site.host.lock().nic_changes_that_fail = vec!["guest_keeps_nic"];
    }
    let wish: AddNic = serde_json::from_str(r#"{"nic":{"backend":{"type":"user"}}}"#).unwrap();
    let task = killer.killed_at(moments, |control| control.add_nic(&caller(1), NAMES[0], &wish));
    let state = if fails { TaskState::Failed } else { TaskState::Done };
    assert_eq!(task.state, state, "at {moments}");
    let vm = killer.control.show_vm(NAMES[0]).unwrap();
    let known: Vec<_> = vm.nics.iter().map(|nic| nic.mac.unwrap().to_string()).collect();
    assert_eq!(known, cards(), "at {moments}");
    assert_eq!(known.len(), before.len() + usize::from(!fails), "at {moments}");
    assert!(vm.summary.power.is_on(), "at {moments}");
    assert_eq!(site.host.lock().violations, [""; 0], "at {moments}");
    killer.killed > 0
}

/// Kills at each moment of a running VM's growth, once: of one that is made, and of one that fails
/// when the guest has the memory, which stays.
#[test]
fn a_vm_grows_as_was_asked_for_whenever_it_was_killed() {
    for fails in [false, true] {
        let moments = (0_u16..).find(|moments| !growth_is_killed_at(*moments, fails));
        println!("killed at each of the first {} moments", moments.unwrap());
    }
}

/// Returns `false` if the task was over before that moment.
fn growth_is_killed_at(moments: u16, fails: bool) -> bool {
    let site = Site::new();
    with_datastore(&site);
    let mut killer = Killer::new(&site, Vec::new());
    let growth = serde_json::from_str(r#"{"max_cpus":4,"max_memory_bytes":335544320}"#).unwrap();
    let wish = CreateVm { growth, ..create(NAMES[0], true) };
    killer.control.create_vm(&caller(0), &wish).unwrap();
    killer.rest();
    killer.control.start_vm(&caller(12), NAMES[0], &StartVm::default()).unwrap();
    killer.rest();
    if fails {
        site.host.lock().size_changes_that_fail = vec!["guest_keeps_cpu"];
    }
    let wish: PatchVm = serde_json::from_str(r#"{"cpus":{"cores":4},"memory_bytes":335544320}"#).unwrap();
    let task = killer.killed_at(moments, |control| control.set_vm(&caller(1), NAMES[0], &wish, None));
    let state = if fails { TaskState::Failed } else { TaskState::Done };
    assert_eq!(task.state, state, "at {moments}");
    let vm = killer.control.show_vm(NAMES[0]).unwrap();
    let cpus = if fails { 1 } else { 4 };
    assert_eq!((vm.summary.cpus, vm.summary.memory_bytes), (cpus, 320 << 20), "at {moments}");
    let host = site.host.lock();
    let spec = &host.vms.values().next().unwrap().spec;
    assert_eq!((spec.cpus.count(), spec.memory_bytes.bytes()), (cpus, 320 << 20), "at {moments}");
    assert_eq!(host.violations, [""; 0], "at {moments}");
    drop(host);
    killer.killed > 0
}

/// Kills at each moment of a whole life once: one moment later in each round.
#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn there_is_no_moment_at_which_a_kill_does_harm() {
    let life = [
        Act::Create(0, true),
        Act::Start(0),
        Act::Link(0, 1),
        Act::Copy(0, 2),
        Act::Restart(0),
        Act::PowerFails,
        Act::Stop(0),
        Act::Unregister(0),
        Act::Rebuild,
        Act::Delete(0),
    ];
    let mut moments = 0;
    while run(&life, vec![moments]) > 0 {
        moments += 1;
    }
    println!("killed at each of the first {moments} moments of a life");
}
