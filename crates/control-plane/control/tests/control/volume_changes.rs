//! Volumes that no VM has: their changes in batches, and their way to VMs and back, whatever is
//! killed.

use crate::support::server::Server;
use crate::support::{Site, caller, create, settle_down};
use serde_json::{Value, json};
use strongroom_api::task::{Task, TaskState};
use strongroom_api::vm::DeleteVm;
use strongroom_api::volume::{ChangeAnswer, ChangeVolumes, Volume, VolumeListQuery};
use strongroom_api::{ErrorCode, Problem};
use strongroom_control::engine::{Caller, Control};

/// A control plane with a datastore and a VM, `web1`.
pub fn with_vm(site: &Site) -> Control {
    let control = site.control().unwrap();
    let datastore = serde_json::from_str(r#"{"name":"ds1","path":"/srv/ds1"}"#).unwrap();
    control.add_datastore(&caller(1), &datastore).unwrap();
    control.create_vm(&caller(2), &create("web1", true)).unwrap();
    assert!(settle_down(site, &control));
    control
}

fn batch(changes: Value) -> ChangeVolumes {
    serde_json::from_value(json!({ "changes": changes })).unwrap()
}

fn change(control: &Control, by: &Caller, change: Value) -> Result<Task, Problem> {
    let answer = control.change_volumes(by, &batch(json!([change]))).unwrap().changes.remove(0);
    match answer {
        ChangeAnswer::Task(task) => Ok(*task),
        ChangeAnswer::Error(problem) => Err(problem),
    }
}

/// Makes a change, and returns how its task ended.
fn changed(site: &Site, control: &Control, number: u64, wanted: Value) -> Task {
    let task = change(control, &caller(number), wanted).unwrap();
    assert!(settle_down(site, control));
    let index = control.inventory.read();
    index.task(task.id).unwrap().task.clone()
}

pub fn done(site: &Site, control: &Control, number: u64, wanted: Value) {
    let task = changed(site, control, number, wanted);
    assert_eq!(task.state, TaskState::Done, "{task:?}");
    assert_eq!(site.host.lock().violations, Vec::<String>::new());
}

fn refused(control: &Control, number: u64, wanted: Value) -> Problem {
    change(control, &caller(number), wanted).unwrap_err()
}

fn volumes(control: &Control) -> Vec<Volume> {
    control.list_volumes(&VolumeListQuery::default()).unwrap().items
}

/// Where each volume is: its own name, and its VM and disk.
pub fn places(control: &Control) -> Vec<String> {
    let place = |volume: Volume| {
        let name = volume.name.map_or_else(String::new, |name| name.to_string());
        let vm = volume.vm_name.zip(volume.disk).map(|(vm, disk)| format!("{vm}/{disk}"));
        format!("{name} {}", vm.unwrap_or_default()).trim().to_owned()
    };
    volumes(control).into_iter().map(place).collect()
}

#[test]
fn a_volume_is_made_given_to_a_vm_and_taken_back() {
    let site = Site::new();
    let control = with_vm(&site);
    done(&site, &control, 10, json!({ "change": "create", "name": "data1", "size_bytes": 1 << 20 }));
    assert_eq!(places(&control), ["data1", "web1/disk0"]);
    let id = volumes(&control)[0].id;
    // It is no VM.
    assert_eq!(control.list_vms(&serde_json::from_str("{}").unwrap()).unwrap().items.len(), 1);
    assert_eq!(control.show_vm("data1").unwrap_err().code, ErrorCode::NotFound);
    let start = serde_json::from_str("{}").unwrap();
    assert_eq!(control.start_vm(&caller(11), "data1", &start).unwrap_err().code, ErrorCode::NotFound);
    let taken = json!({ "change": "create", "name": "web1", "size_bytes": 1 << 20 });
    assert_eq!(refused(&control, 12, taken).message, "there is a VM web1 already");
    let vm = control.create_vm(&caller(13), &create("data1", true)).unwrap_err();
    assert_eq!(vm.message, "there is a volume data1 already");

    done(&site, &control, 20, json!({ "change": "bind", "volume": "data1", "vm": "web1" }));
    assert_eq!(places(&control), ["web1/disk0", "data1 web1/disk1"]);
    assert_eq!(volumes(&control)[1].id, id, "a volume has one id for life");
    assert_eq!(site.host.lock().vms.len(), 1, "its holder is gone");
    let kept = control.delete_vm(&caller(21), "web1", &DeleteVm::default()).unwrap_err();
    assert_eq!(kept.code, ErrorCode::InUse, "{kept}");
    let own =
        refused(&control, 22, json!({ "change": "resize", "volume": "web1/disk1", "size_bytes": 2 << 20 }));
    assert_eq!(own.code, ErrorCode::InUse, "{own}");

    done(&site, &control, 30, json!({ "change": "unbind", "volume": "web1/disk1" }));
    assert_eq!(places(&control), ["data1", "web1/disk0"]);
    assert_eq!(volumes(&control)[0].id, id);
    done(&site, &control, 31, json!({ "change": "bind", "volume": id, "vm": "web1" }));
    done(&site, &control, 32, json!({ "change": "unbind", "volume": id, "name": "data2" }));
    assert_eq!(places(&control), ["data2", "web1/disk0"]);
    done(&site, &control, 40, json!({ "change": "delete", "volume": "data2" }));
    assert_eq!(places(&control), ["web1/disk0"]);
    let disk = refused(&control, 41, json!({ "change": "unbind", "volume": "web1/disk0", "name": "data3" }));
    assert_eq!(disk.code, ErrorCode::Conflict, "{disk}");
    control.delete_vm(&caller(50), "web1", &DeleteVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    assert!(site.host.lock().vms.is_empty());
}

#[test]
fn what_vms_do_not_take_over_stays_where_it_is() {
    let site = Site::new();
    let control = with_vm(&site);
    control.create_vm(&caller(3), &create("clear1", false)).unwrap();
    let other = serde_json::from_str(r#"{"name":"ds2","path":"/srv/ds2"}"#).unwrap();
    control.add_datastore(&caller(4), &other).unwrap();
    assert!(settle_down(&site, &control));
    let make = |number, name: &str, datastore: &str, encrypted: bool| {
        done(
            &site,
            &control,
            number,
            json!({ "change": "create", "name": name, "size_bytes": 1 << 20,
            "datastore": datastore, "encrypted": encrypted }),
        );
    };
    make(10, "sealed", "ds1", true);
    make(11, "clear", "ds1", false);
    make(12, "elsewhere", "ds2", true);
    make(13, "golden", "ds1", true);
    done(
        &site,
        &control,
        14,
        json!({ "change": "clone", "volume": "golden", "name": "copy", "linked": true }),
    );
    let why = |number, volume: &str, vm: &str| {
        let problem = refused(&control, number, json!({ "change": "bind", "volume": volume, "vm": vm }));
        assert!(matches!(problem.code, ErrorCode::Conflict | ErrorCode::NotFound), "{problem}");
        assert!(problem.next_step.is_some(), "{problem}");
        problem.message
    };
    assert_eq!(why(20, "sealed", "clear1"), "volume sealed is encrypted, and VM clear1 is not encrypted");
    assert_eq!(why(21, "clear", "web1"), "volume clear is not encrypted, and VM web1 is encrypted");
    assert_eq!(why(22, "elsewhere", "web1"), "volume elsewhere is not in the datastore of VM web1");
    assert!(why(23, "golden", "web1").starts_with("volume golden has"));
    assert_eq!(why(24, "sealed", "nothing"), "there is no VM nothing");
    assert_eq!(why(25, "nothing", "web1"), "there is no volume nothing");
    // The clone shares layers with its origin, wherever it is.
    done(&site, &control, 30, json!({ "change": "bind", "volume": "copy", "vm": "web1" }));
    let shared = refused(&control, 31, json!({ "change": "delete", "volume": "golden" }));
    assert_eq!(shared.code, ErrorCode::InUse);
    assert!(shared.message.contains("web1"), "{shared}");
    done(&site, &control, 32, json!({ "change": "unbind", "volume": "web1/disk1" }));
    assert!(
        refused(&control, 33, json!({ "change": "delete", "volume": "golden" })).message.contains("copy")
    );
    done(&site, &control, 34, json!({ "change": "delete", "volume": "golden", "leave_to_clones": true }));
    // Once the VM's key has moved, every disk is under it, and none can leave with it.
    done(&site, &control, 40, json!({ "change": "bind", "volume": "sealed", "vm": "web1" }));
    control.rotate_key(&caller(41), "web1", &serde_json::from_str("{}").unwrap()).unwrap();
    assert!(settle_down(&site, &control));
    let under = refused(&control, 42, json!({ "change": "unbind", "volume": "web1/disk1" }));
    assert!(under.message.contains("under the VM's key"), "{under}");
    done(&site, &control, 43, json!({ "change": "clone", "volume": "web1/disk1", "name": "sealed2" }));
    assert_eq!(
        places(&control),
        ["clear", "clear1/disk0", "copy", "elsewhere", "sealed2", "web1/disk0", "sealed web1/disk1"]
    );
}

#[test]
fn a_copy_is_sealed_as_it_was_asked_for() {
    let site = Site::new();
    let control = with_vm(&site);
    let create = |number, name: &str, encrypted: bool| {
        let wish = json!({ "change": "create", "name": name, "size_bytes": 1 << 20, "encrypted": encrypted });
        done(&site, &control, number, wish);
    };
    create(10, "clear", false);
    create(11, "sealed", true);
    let clone = |of: &str, name: &str, mut wanted: Value| {
        let more = json!({ "change": "clone", "volume": of, "name": name });
        wanted.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        wanted
    };
    done(&site, &control, 20, clone("clear", "a", json!({ "encrypted": true, "integrity": true })));
    done(&site, &control, 21, clone("sealed", "b", json!({ "encrypted": false })));
    done(&site, &control, 22, clone("a", "c", json!({})));
    let encrypted = |name: &str| control.show_volume(name).unwrap().volume.encrypted;
    assert_eq!(["a", "b", "c", "clear", "sealed"].map(encrypted), [true, false, true, false, true]);
    {
        let host = site.host.lock();
        let tagged = |name: &str| {
            host.vms.values().any(|vm| vm.spec.name.as_str() == name && vm.spec.disks[0].integrity)
        };
        assert_eq!(["a", "b", "c"].map(tagged), [true, false, true]);
    }
    let index = control.inventory.read();
    let told: Vec<_> = index.events().iter().filter(|event| event.kind == "vm.copied_in_the_clear").collect();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].message, "volume b is an unencrypted copy of what is encrypted, by test");
    drop(index);
    let linked =
        json!({ "change": "clone", "volume": "sealed", "name": "d", "linked": true, "encrypted": false });
    assert_eq!(refused(&control, 30, linked).code, ErrorCode::Invalid);
    let tags = clone("sealed", "d", json!({ "encrypted": false, "integrity": true }));
    assert_eq!(refused(&control, 31, tags).code, ErrorCode::Invalid);
    let away = clone("clear", "d", json!({ "encrypted": true, "key_provider": "nowhere" }));
    assert_eq!(refused(&control, 32, away).code, ErrorCode::NotFound);
}

#[test]
fn a_failed_move_is_undone() {
    let site = Site::new();
    let control = with_vm(&site);
    done(&site, &control, 10, json!({ "change": "create", "name": "data1", "size_bytes": 1 << 20 }));
    let bind = || json!({ "change": "bind", "volume": "data1", "vm": "web1" });
    let unbind = || json!({ "change": "unbind", "volume": "web1/disk1" });
    site.host.lock().disk_changes_that_fail = vec!["no_room"; 6];
    let failed = changed(&site, &control, 11, bind());
    assert_eq!(failed.state, TaskState::Failed, "{failed:?}");
    assert_eq!(places(&control), ["data1", "web1/disk0"]);
    done(&site, &control, 12, bind());
    site.host.lock().disk_changes_that_fail = vec!["guest_keeps_disk"];
    let failed = changed(&site, &control, 13, unbind());
    assert_eq!(failed.state, TaskState::Failed, "{failed:?}");
    assert_eq!(places(&control), ["web1/disk0", "data1 web1/disk1"]);
    {
        let host = site.host.lock();
        assert_eq!(host.vms.len(), 1, "the new holder is gone");
        let vm = host.vms.values().next().unwrap();
        assert_eq!(vm.spec.disks.len(), 2, "the guest has its disk again");
    }
    done(&site, &control, 14, unbind());
    // A volume that completes the layer of its last snapshot is busy for a while.
    site.host.lock().snapshot_changes_that_fail = vec!["busy"; 20];
    done(&site, &control, 15, json!({ "change": "snapshot", "volume": "data1", "name": "monday" }));
    let monday = json!({ "change": "delete_snapshot", "volume": "data1", "snapshot": "monday" });
    done(&site, &control, 16, monday);
    site.host.lock().snapshot_changes_that_fail = vec!["busy"; 20];
    let copy = json!({ "change": "clone", "volume": "data1", "name": "copy", "linked": true });
    done(&site, &control, 17, copy);
    done(&site, &control, 18, json!({ "change": "delete", "volume": "copy" }));
    done(
        &site,
        &control,
        19,
        json!({ "change": "delete_snapshot", "volume": "data1", "snapshot": "clone-copy" }),
    );
    done(&site, &control, 20, bind());
    assert_eq!(places(&control), ["web1/disk0", "data1 web1/disk1"]);
}

#[test]
fn a_move_goes_on_whatever_moment_the_control_plane_is_killed_at() {
    let mut kills = 0;
    for change_at in 0..2 {
        for moments in 1.. {
            let site = Site::new();
            let control = with_vm(&site);
            done(&site, &control, 10, json!({ "change": "create", "name": "data1", "size_bytes": 1 << 20 }));
            let bind = json!({ "change": "bind", "volume": "data1", "vm": "web1" });
            let unbind = json!({ "change": "unbind", "volume": "web1/disk1" });
            let wanted = if change_at == 0 {
                bind
            } else {
                done(&site, &control, 11, bind);
                unbind
            };
            site.fuse.set(moments);
            let by = caller(20);
            let _ = change(&control, &by, wanted.clone());
            let lived = settle_down(&site, &control);
            site.fuse.set(i64::MAX);
            let control = if lived { control } else { site.control().unwrap() };
            // A client that has no answer asks once more, with the same key.
            let task = change(&control, &by, wanted).unwrap();
            assert!(settle_down(&site, &control));
            let ended = control.inventory.read().task(task.id).unwrap().task.clone();
            assert_eq!(ended.state, TaskState::Done, "killed after {moments}: {ended:?}");
            let expected: &[&str] =
                if change_at == 0 { &["web1/disk0", "data1 web1/disk1"] } else { &["data1", "web1/disk0"] };
            assert_eq!(places(&control), expected, "killed after {moments}");
            let host = site.host.lock();
            assert_eq!(host.violations, Vec::<String>::new());
            assert_eq!(host.vms.len(), 1 + change_at, "killed after {moments}");
            for vm in host.vms.values() {
                assert_eq!(vm.attested.as_ref().map(|spec| spec.disks.len()), Some(vm.volumes.len()));
            }
            if lived {
                break;
            }
            kills += 1;
        }
    }
    assert!(kills > 20, "{kills} kills");
}

#[test]
fn each_change_of_a_batch_has_its_own_answer() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut client = server.client();
    let added = client.post("/v1/datastores", &json!({ "name": "ds1", "path": "/srv/ds1" }));
    client.done(&added);
    let create = |name: &str| json!({ "change": "create", "name": name, "size_bytes": 1 << 20 });
    let sent = json!({ "changes": [
        create("data1"), create("data1"), create("data2"), { "change": "delete", "volume": "data9" },
        { "change": "snapshot", "volume": "data1", "name": "monday" },
    ] });
    // The first change is not done when the last one is looked at.
    server.site.host.lock().by_itself = false;
    let answer = client.post("/v1/volumes/changes", &sent);
    server.site.host.lock().by_itself = true;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let changes = answer.json()["changes"].as_array().unwrap().clone();
    assert_eq!(changes.len(), 5);
    assert_eq!(changes[0]["task"]["kind"], "volume_create");
    assert_eq!(changes[0]["task"]["object"]["kind"], "volume");
    assert_eq!(changes[1]["error"]["code"], "name_taken");
    assert_eq!(changes[2]["task"]["object"]["name"], "data2");
    assert_eq!(changes[3]["error"]["code"], "not_found");
    assert_eq!(changes[4]["error"]["code"], "busy", "a change waits for no other one");
    // A list is no object, whatever serde makes of one.
    let listed = client.post("/v1/volumes/changes", &json!([[create("data3")]]));
    assert_eq!((listed.status, listed.json()["error"]["code"].clone()), (400, json!("malformed")));
    for wrong in [json!({ "changes": [] }), json!({ "changes": vec![create("data3"); 65] })] {
        let refused = client.post("/v1/volumes/changes", &wrong);
        assert_eq!((refused.status, refused.json()["error"]["code"].clone()), (422, json!("invalid")));
    }
    for wrong in [
        json!({ "change": "create", "name": "../data", "size_bytes": 1 << 20 }),
        json!({ "change": "create", "name": "data3", "size_bytes": 1000 }),
        json!({ "change": "burn", "volume": "data1" }),
        json!({ "change": "delete", "volume": "data1", "force": true }),
        json!({ "change": "delete", "volume": "d".repeat(129) }),
    ] {
        let refused = client.post("/v1/volumes/changes", &json!({ "changes": [wrong] }));
        assert_eq!((refused.status, refused.json()["error"]["code"].clone()), (400, json!("malformed")));
    }
}

#[test]
fn a_batch_that_is_sent_again_does_nothing_again() {
    let site = Site::new();
    let control = with_vm(&site);
    let create = |name: &str| json!({ "change": "create", "name": name, "size_bytes": 1 << 20 });
    let wanted = batch(json!([create("data1"), create("data2"), create("data1")]));
    let first = control.change_volumes(&caller(10), &wanted).unwrap();
    assert!(settle_down(&site, &control));
    let again = control.change_volumes(&caller(10), &wanted).unwrap();
    let id = |answer: &ChangeAnswer| match answer {
        ChangeAnswer::Task(task) => Ok(task.id),
        ChangeAnswer::Error(problem) => Err(problem.code),
    };
    let ids = |answers: &[ChangeAnswer]| answers.iter().map(id).collect::<Vec<_>>();
    assert_eq!(ids(&first.changes), ids(&again.changes));
    assert_eq!(places(&control), ["data1", "data2", "web1/disk0"]);
}

#[test]
fn a_lost_inventory_finds_volumes_as_volumes() {
    let mut site = Site::new();
    let control = with_vm(&site);
    for (number, name) in [(10, "data1"), (11, "data2")] {
        done(&site, &control, number, json!({ "change": "create", "name": name, "size_bytes": 1 << 20 }));
    }
    done(&site, &control, 12, json!({ "change": "bind", "volume": "data2", "vm": "web1" }));
    drop(control);
    site.store = std::sync::Arc::new(
        strongroom_store::Engine::with_backend(redb::backends::InMemoryBackend::new(), "inventory").unwrap(),
    );
    let control = site.control().unwrap();
    let datastore = serde_json::from_str(r#"{"name":"ds1","path":"/srv/ds1"}"#).unwrap();
    control.add_datastore(&caller(1), &datastore).unwrap();
    control.rebuild_datastore(&caller(2), "ds1", &serde_json::from_str("{}").unwrap()).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(places(&control), ["data1", "web1/disk0", "web1/disk1"]);
    let start = serde_json::from_str("{}").unwrap();
    assert_eq!(control.start_vm(&caller(3), "data1", &start).unwrap_err().code, ErrorCode::NotFound);
}
