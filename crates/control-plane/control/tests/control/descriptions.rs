//! Names, notes and tags of VMs.

use std::thread;

use serde_json::{Value, json};
use strongroom_api::ErrorCode;
use strongroom_api::limits::TAGS_MAX;
use strongroom_api::task::{Task, TaskState};
use strongroom_api::vm::{DeleteVm, Lifecycle, PatchVm, PowerState, StartVm, StopVm, VmListQuery};
use strongroom_control::engine::Control;
use strongroom_control::engine::access::Rights;
use strongroom_control::inventory::Wanted;
use strongroom_control::records::Principal;
use strongroom_store::KeyRange;

use crate::support::{Site, caller, copy, create, settle_down, with_vms};

fn patch(patch: Value) -> PatchVm {
    serde_json::from_value(patch).unwrap()
}

fn name(name: &str) -> PatchVm {
    patch(json!({ "name": name }))
}

fn set_up(site: &Site, control: &Control, vm: &str, request: u64, wish: &PatchVm) -> Task {
    let task = control.set_vm(&caller(request), vm, wish, None).unwrap();
    assert!(settle_down(site, control));
    control.show_task(task.id).unwrap()
}

/// The names of VMs, and the names that the store keeps from being given twice.
fn names(site: &Site, control: &Control) -> (Vec<String>, Vec<String>) {
    let index = control.inventory.read();
    let named = index.vms_by_name("").map(|vm| vm.name.to_string()).collect();
    let taken = site.store.snapshot().unwrap().all(&KeyRange::prefix(*b"vm-name/")).unwrap();
    let taken = taken.iter().map(|entry| String::from_utf8_lossy(&entry.key).replace("vm-name/", ""));
    (named, taken.collect())
}

#[test]
fn a_vm_is_renamed_while_it_runs_and_nothing_of_it_moves() {
    let (site, control) = with_vms(&["web1", "db1"]);
    control.start_vm(&caller(1), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    let before = control.show_vm("web1").unwrap();
    let orders = site.host.lock().vms[&before.summary.id].clone();
    let task = set_up(&site, &control, "web1", 2, &name("shop1"));
    assert_eq!((task.state, task.object.name.as_str()), (TaskState::Done, "shop1"));
    let after = control.show_vm("shop1").unwrap();
    assert_eq!(after.summary.id, before.summary.id);
    assert_eq!(after.directory.as_ref().map(|name| name.as_str()), Some("web1"));
    assert_eq!(after.summary.power, PowerState::Running);
    assert_eq!(control.show_vm("web1").unwrap_err().code, ErrorCode::NotFound);
    assert_eq!(site.host.lock().vms[&before.summary.id].spec, orders.spec, "no host was asked");
    let told = control.inventory.read();
    let renamed = told.events().iter().find(|event| event.kind == "vm.renamed").unwrap();
    assert_eq!(renamed.message, "VM web1 is named shop1 now, by test");
    drop(told);

    // The name is free, but not the directory.
    control.create_vm(&caller(3), &create("web1", true)).unwrap();
    assert!(settle_down(&site, &control));
    let second = control.show_vm("web1").unwrap();
    assert_eq!(second.summary.lifecycle, Lifecycle::Present);
    let directory = second.directory.unwrap().to_string();
    assert!(directory.starts_with("web1-") && directory.len() <= 63, "{directory}");
    // The host learns the name with the next order, and keeps the directory.
    control.stop_vm(&caller(4), "shop1", &StopVm { force: true, timeout_s: None }).unwrap();
    assert!(settle_down(&site, &control));
    control.start_vm(&caller(5), "shop1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    let spec = site.host.lock().vms[&before.summary.id].spec.clone();
    assert_eq!((spec.name.as_str(), spec.directory().to_str().unwrap()), ("shop1", "/srv/ds1/web1"));
    assert_eq!(control.show_vm("shop1").unwrap().summary.power, PowerState::Running);
    let contents = control.datastore_contents("ds1").unwrap();
    let standings: Vec<_> = contents.iter().map(|found| (found.directory.as_str(), found.standing)).collect();
    assert_eq!(standings.len(), 3, "{standings:?}");
    assert!(
        standings.iter().all(|(_, standing)| *standing == strongroom_api::datastore::Standing::Registered),
        "{standings:?}"
    );
    // Back again, the directory is the VM's own.
    control.delete_vm(&caller(6), "web1", &DeleteVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    set_up(&site, &control, "shop1", 7, &name("web1"));
    assert_eq!(control.show_vm("web1").unwrap().directory, None);
    assert_eq!(names(&site, &control).0, ["db1", "web1"]);
    assert_eq!(site.host.lock().violations, [""; 0]);
}

#[test]
fn what_speaks_of_a_vm_follows_its_name() {
    let (site, control) = with_vms(&["web1"]);
    control.clone_vm(&caller(1), "web1", &copy("clone1")).unwrap();
    assert!(settle_down(&site, &control));
    set_up(&site, &control, "web1", 2, &name("shop1"));
    set_up(&site, &control, "clone1", 3, &name("shop2"));
    let clone = control.show_vm("shop2").unwrap();
    assert_eq!(clone.summary.origin.unwrap().name.as_str(), "shop1");
    let unregistered = control.unregister_vm(&caller(4), "shop1").unwrap();
    assert_eq!(unregistered.state, TaskState::Done);
    // The directory says who it is.
    let wish = serde_json::from_value(json!({ "directory": "web1", "accept_configuration": true })).unwrap();
    assert!(settle_down(&site, &control));
    control.register_vm(&caller(5), &wish).unwrap();
    let names = names(&site, &control);
    assert_eq!(names.0, names.1);
}

#[test]
fn a_name_in_use_is_refused_and_so_is_a_vm_at_work() {
    let (site, control) = with_vms(&["web1", "db1"]);
    let refused = control.set_vm(&caller(1), "web1", &name("db1"), None).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NameTaken);
    let volume = json!({ "changes": [{ "change": "create", "name": "data1", "size_bytes": 1 << 20 }] });
    control.change_volumes(&caller(2), &serde_json::from_value(volume).unwrap()).unwrap();
    let refused = control.set_vm(&caller(3), "web1", &name("data1"), None).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NameTaken, "volumes have directories, too");
    control.start_vm(&caller(4), "web1", &StartVm::default()).unwrap();
    let both = patch(json!({ "name": "shop1", "tags": { "set": ["env=prod"] } }));
    assert_eq!(control.set_vm(&caller(5), "web1", &both, None).unwrap_err().code, ErrorCode::Busy);
    // No task has to do with notes and tags.
    let tags = patch(json!({ "notes": "of the shop", "tags": { "set": ["env=prod"] } }));
    assert_eq!(control.set_vm(&caller(6), "web1", &tags, None).unwrap().state, TaskState::Done);
    assert!(settle_down(&site, &control));
    let shown = control.show_vm("web1").unwrap();
    assert_eq!((shown.summary.power, shown.notes.as_str()), (PowerState::Running, "of the shop"));
    // What is about the machine takes a VM that is off, with all that is asked for beside it.
    let larger = patch(json!({ "name": "shop1", "memory_bytes": 128 << 20 }));
    assert_eq!(control.set_vm(&caller(7), "web1", &larger, None).unwrap_err().code, ErrorCode::Conflict);
    let same = control.set_vm(&caller(8), "web1", &name("web1"), None).unwrap();
    assert_eq!(same.state, TaskState::Done);
    let read = shown.version;
    let stale = control.set_vm(&caller(9), "web1", &tags, Some(read)).unwrap_err();
    assert_eq!(stale.code, ErrorCode::Stale);
    let larger = set_up(&site, &control, "db1", 10, &larger);
    assert_eq!((larger.state, larger.object.name.as_str()), (TaskState::Done, "shop1"));
    assert_eq!(control.show_vm("shop1").unwrap().summary.memory_bytes, 128 << 20);
}

/// All at the same time: renames onto one name, a creation, and names that go round in a circle.
#[test]
fn a_name_belongs_to_one_vm_whoever_is_faster() {
    let (site, control) = with_vms(&["web0", "web1", "web2", "web3"]);
    for round in 0..20_u64 {
        let index = control.inventory.read();
        let ids: Vec<String> = index.vms.iter().map(|vm| vm.id.to_string()).take(4).collect();
        drop(index);
        let won = thread::scope(|scope| {
            let (control, ids) = (&control, &ids);
            let rename = |at: usize, to: String| {
                let request = 10_000 + round * 100 + at as u64;
                scope.spawn(move || control.set_vm(&caller(request), &ids[at], &name(&to), None))
            };
            let same = [rename(0, format!("same{round}")), rename(1, format!("same{round}"))];
            let apart = [rename(2, format!("a{round}")), rename(3, format!("b{round}"))];
            let made = scope.spawn(move || {
                let wish = create(&format!("same{round}"), false);
                control.create_vm(&caller(20_000 + round), &wish)
            });
            for task in apart {
                task.join().unwrap().unwrap();
            }
            let won = same.into_iter().map(|task| task.join().unwrap()).chain([made.join().unwrap()]);
            won.map(|task| match task {
                Ok(_) => 1,
                Err(problem) => {
                    assert_eq!(problem.code, ErrorCode::NameTaken, "{problem}");
                    0
                }
            })
            .sum::<usize>()
        });
        assert_eq!(won, 1, "round {round}");
        assert!(settle_down(&site, &control));
        let (named, taken) = names(&site, &control);
        assert_eq!(named, taken, "round {round}");
        assert_eq!(named.len(), control.inventory.read().vms.len(), "round {round}");
    }
    let directories: Vec<_> =
        site.host.lock().vms.values().map(|vm| vm.spec.directory().display().to_string()).collect();
    let mut apart = directories.clone();
    apart.sort_unstable();
    apart.dedup();
    assert_eq!(apart.len(), directories.len(), "{directories:?}");
}

#[test]
fn a_vm_has_its_old_or_its_new_name_at_whatever_moment_the_control_plane_is_killed() {
    for moments in 1.. {
        let (site, control) = with_vms(&["web1"]);
        site.fuse.set(moments);
        let _ = control.set_vm(&caller(1), "web1", &name("shop1"), None);
        let killed = site.fuse.is_burnt();
        drop(control);
        site.fuse.set(i64::MAX);
        let control = site.control().unwrap();
        assert!(settle_down(&site, &control));
        let (named, taken) = names(&site, &control);
        assert!(named == ["web1"] || named == ["shop1"], "{named:?} after {moments}");
        assert_eq!(named, taken, "after {moments}");
        // The same request once more completes it, once.
        let task = control.set_vm(&caller(1), &named[0], &name("shop1"), None).unwrap();
        assert_eq!(names(&site, &control), (vec!["shop1".to_owned()], vec!["shop1".to_owned()]));
        let wanted = Wanted { after: None, since_unix_ms: None, by: None, limit: 1000 };
        let log = control.inventory.access_log().unwrap().page(&wanted).unwrap();
        let entries = log.items.iter().filter(|entry| entry.task == Some(task.id)).count();
        assert_eq!(entries, 1, "on record once, after {moments}");
        if !killed {
            println!("killed at each of the first {} moments of a rename", moments - 1);
            return;
        }
    }
}

fn tagged(control: &Control, tag: &str) -> Vec<String> {
    let rights = Rights::of(&control.inventory.read(), Principal::Machine);
    let mut query = VmListQuery { tag: Some(tag.to_owned()), limit: Some(2), ..VmListQuery::default() };
    let mut found = Vec::new();
    loop {
        let page = control.list_vms_for(&rights, &query).unwrap();
        found.extend(page.items.iter().map(|vm| vm.name.to_string()));
        assert!(page.total as usize >= found.len());
        query.cursor = page.next;
        if query.cursor.is_none() {
            return found;
        }
    }
}

#[test]
fn vms_are_found_by_their_tags() {
    let (site, control) = with_vms(&["db1", "mail1", "web1", "web2"]);
    let tag = |request: u64, vm: &str, set: Value, remove: Value| {
        let wish = patch(json!({ "tags": { "set": set, "remove": remove } }));
        control.set_vm(&caller(request), vm, &wish, None)
    };
    for (at, vm) in ["db1", "web1", "web2"].into_iter().enumerate() {
        tag(at as u64, vm, json!(["env=prod"]), json!([])).unwrap();
    }
    tag(10, "mail1", json!(["env=test", "mail"]), json!([])).unwrap();
    tag(11, "web1", json!(["web"]), json!([])).unwrap();
    tag(12, "web2", json!(["web"]), json!([])).unwrap();
    assert_eq!(tagged(&control, "env=prod"), ["db1", "web1", "web2"]);
    assert_eq!(tagged(&control, "env"), ["db1", "mail1", "web1", "web2"]);
    assert_eq!(tagged(&control, "env=prod,web"), ["web1", "web2"]);
    assert_eq!(tagged(&control, "web=x"), [""; 0]);
    // One value for each key; what is not named stays.
    tag(13, "web2", json!(["env=test"]), json!(["nothing"])).unwrap();
    assert_eq!(tagged(&control, "env=test"), ["mail1", "web2"]);
    assert_eq!(tagged(&control, "web"), ["web1", "web2"]);
    tag(14, "web2", json!([]), json!(["env", "web"])).unwrap();
    assert_eq!(control.show_vm("web2").unwrap().summary.tags, []);
    for (request, set, remove) in [
        (20, json!(["env=a", "env=b"]), json!([])),
        (21, json!(["env=a"]), json!(["env"])),
        (22, json!((0..=TAGS_MAX).map(|at| format!("k{at}")).collect::<Vec<_>>()), json!([])),
    ] {
        assert_eq!(tag(request, "web1", set, remove).unwrap_err().code, ErrorCode::Invalid);
    }
    let many: Vec<_> = (0..TAGS_MAX - 2).map(|at| format!("k{at}")).collect();
    tag(23, "web1", json!(many), json!([])).unwrap();
    assert_eq!(tag(24, "web1", json!(["more"]), json!([])).unwrap_err().code, ErrorCode::Invalid);
    let wrong = VmListQuery { tag: Some("env=prod,".to_owned()), ..VmListQuery::default() };
    let rights = Rights::of(&control.inventory.read(), Principal::Machine);
    assert_eq!(control.list_vms_for(&rights, &wrong).unwrap_err().code, ErrorCode::Invalid);
    // Tags of two callers at the same time are both there.
    thread::scope(|scope| {
        for at in 0..8_u64 {
            let control = &control;
            scope.spawn(move || {
                let wish = patch(json!({ "tags": { "set": [format!("from{at}")] } }));
                control.set_vm(&caller(100 + at), "db1", &wish, None).unwrap();
            });
        }
    });
    assert_eq!(control.show_vm("db1").unwrap().summary.tags.len(), 9);
    // A clone has none of its origin's.
    control.clone_vm(&caller(30), "db1", &copy("db2")).unwrap();
    assert!(settle_down(&site, &control));
    let clone = control.show_vm("db2").unwrap();
    assert_eq!((clone.summary.tags, clone.notes.as_str()), (Vec::new(), ""));
    // What a caller may do depends on the origin: without it, no name is told to be taken.
    let gone = control.clone_vm(&caller(31), "db9", &copy("db2")).unwrap_err();
    assert_eq!(gone.code, ErrorCode::NotFound);
}

#[test]
fn a_host_of_an_earlier_version_is_told_nothing_that_it_does_not_know() {
    let (site, control) = with_vms(&["web1"]);
    site.host.lock().is_old = true;
    site.host.restart();
    site.pass(std::time::Duration::from_secs(60));
    assert!(settle_down(&site, &control));
    for wish in [name("shop1"), patch(json!({ "boot": { "type": "disk", "order": ["disk0"] } }))] {
        let refused = control.set_vm(&caller(1), "web1", &wish, None).unwrap_err();
        assert_eq!(refused.code, ErrorCode::NoHost, "{refused}");
    }
    let tags = patch(json!({ "tags": { "set": ["env=prod"] } }));
    control.set_vm(&caller(2), "web1", &tags, None).unwrap();
    control.start_vm(&caller(3), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_vm("web1").unwrap().summary.power, PowerState::Running);
}
