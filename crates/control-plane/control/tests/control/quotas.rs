//! Quotas of folders: no operation goes beyond one, and no two at the same time.

use std::thread;

use serde_json::{Value, json};
use strongroom_api::access::{CreateFolder, Folder, FolderUse, MoveVm, Quota, SetFolder};
use strongroom_api::task::{Task, TaskState};
use strongroom_api::vm::{AddDisk, CreateVm, DeleteVm, PatchVm, ResizeDisk, StartVm, TemplateVm};
use strongroom_api::volume::{ChangeAnswer, ChangeVolumes};
use strongroom_api::{ErrorCode, Problem, Reference};
use strongroom_control::engine::Control;
use strongroom_control::engine::access::Rights;
use strongroom_control::records::Principal;

use crate::support::{Site, caller, copy, create, settle_down, with_vms};

const MIB: u64 = 1 << 20;

fn make_folder(control: &Control, name: &str, quota: Quota) {
    control.create_folder(&caller(0), &CreateFolder { name: name.parse().unwrap() }).unwrap();
    control.set_folder(&caller(0), name, &SetFolder { quota }).unwrap();
}

/// A request for a VM of 64 MiB in a folder, with a disk of 1 MiB.
fn inside(name: &str, folder: &str) -> CreateVm {
    CreateVm { folder: Some(Reference::try_from(folder.to_owned()).unwrap()), ..create(name, true) }
}

fn folder(control: &Control, name: &str) -> Folder {
    let rights = Rights::of(&control.inventory.read(), Principal::Machine);
    control.list_folders(&rights).into_iter().find(|folder| folder.name.as_str() == name).unwrap()
}

fn change_volume(control: &Control, request: u64, change: &Value) -> Result<Task, Problem> {
    let batch: ChangeVolumes = serde_json::from_value(json!({ "changes": [change] })).unwrap();
    match control.change_volumes(&caller(request), &batch).unwrap().changes.remove(0) {
        ChangeAnswer::Task(task) => Ok(*task),
        ChangeAnswer::Error(problem) => Err(problem),
    }
}

fn larger(bytes: u64) -> ResizeDisk {
    serde_json::from_value(json!({ "size_bytes": bytes })).unwrap()
}

fn disk(bytes: u64) -> AddDisk {
    serde_json::from_value(json!({ "size_bytes": bytes })).unwrap()
}

fn set(patch: Value) -> PatchVm {
    serde_json::from_value(patch).unwrap()
}

/// Checks that a request was refused for a folder's quota, for this part of it.
fn is_over(refused: Result<Task, Problem>, noun: &str) {
    let problem = refused.unwrap_err();
    assert_eq!(problem.code, ErrorCode::QuotaExceeded, "{problem}");
    assert!(problem.message.starts_with(&format!("{noun} of folder tenant1: ")), "{problem}");
    assert!(problem.next_step.unwrap().contains("`strongroom folder quota`"));
}

#[test]
fn no_operation_goes_beyond_the_quota_of_a_folder() {
    let (site, control) = with_vms(&["outside"]);
    let quota =
        Quota { vms: Some(3), cpus: Some(2), memory_bytes: Some(160 * MIB), disk_bytes: Some(4 * MIB) };
    make_folder(&control, "tenant1", quota);
    make_folder(&control, "tenant2", Quota::default());
    control.create_vm(&caller(1), &inside("web1", "tenant1")).unwrap();
    control.create_vm(&caller(2), &inside("web2", "tenant1")).unwrap();
    let data = json!({ "change": "create", "name": "data1", "size_bytes": 2 * MIB, "folder": "tenant2" });
    change_volume(&control, 3, &data).unwrap();
    assert!(settle_down(&site, &control));
    let full = FolderUse { vms: 2, cpus: 2, memory_bytes: 128 * MIB, disk_bytes: 2 * MIB };
    assert_eq!(folder(&control, "tenant1").used, full);
    assert_eq!(folder(&control, "tenant1").quota, quota);

    is_over(control.create_vm(&caller(10), &inside("web3", "tenant1")), "processors");
    is_over(control.clone_vm(&caller(11), "web1", &copy("web3")), "processors");
    let here = MoveVm { folder: Some(Reference::try_from("tenant1".to_owned()).unwrap()) };
    is_over(control.move_vm(&caller(12), "outside", &here), "processors");
    let more = set(json!({ "cpus": { "sockets": 1, "cores": 2, "threads": 1 } }));
    is_over(control.set_vm(&caller(13), "web1", &more, None), "processors");
    is_over(control.set_vm(&caller(14), "web1", &set(json!({ "memory_bytes": 128 * MIB })), None), "memory");
    is_over(control.add_disk(&caller(15), "web1", &disk(3 * MIB)), "disk space");
    is_over(control.resize_disk(&caller(16), "web1", "disk0", &larger(4 * MIB)), "disk space");
    let bind = json!({ "change": "bind", "volume": "data1", "vm": "web1" });
    control.resize_disk(&caller(17), "web2", "disk0", &larger(2 * MIB)).unwrap();
    assert!(settle_down(&site, &control));
    is_over(change_volume(&control, 18, &bind), "disk space");
    let volume = |name: &str, bytes: u64| json!({ "change": "create", "name": name, "size_bytes": bytes, "folder": "tenant1" });
    is_over(change_volume(&control, 19, &volume("data2", 2 * MIB)), "disk space");
    change_volume(&control, 20, &volume("data2", MIB)).unwrap();
    assert!(settle_down(&site, &control));
    let grow = json!({ "change": "resize", "volume": "data2", "size_bytes": 2 * MIB });
    is_over(change_volume(&control, 21, &grow), "disk space");
    let copied = json!({ "change": "clone", "volume": "data2", "name": "data3" });
    is_over(change_volume(&control, 22, &copied), "VMs and volumes");
    assert!(settle_down(&site, &control));
    let used = folder(&control, "tenant1").used;
    assert_eq!(
        used,
        FolderUse { vms: 3, disk_bytes: 4 * MIB, ..full },
        "refused requests have added nothing"
    );
    assert_eq!(site.host.lock().violations, Vec::<String>::new());

    // What adds nothing goes on, and what is deleted makes room.
    control.set_vm(&caller(30), "web1", &set(json!({ "memory_bytes": 32 * MIB })), None).unwrap();
    control.delete_vm(&caller(31), "web2", &DeleteVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    change_volume(&control, 32, &bind).unwrap();
    assert_eq!(folder(&control, "tenant1").used.disk_bytes, 4 * MIB, "it counts from the request on");
    assert!(settle_down(&site, &control));
    let bound = FolderUse { vms: 2, cpus: 1, memory_bytes: 32 * MIB, disk_bytes: 4 * MIB };
    assert_eq!(folder(&control, "tenant1").used, bound);
    assert_eq!(folder(&control, "tenant2").used, FolderUse::default());
}

#[test]
fn a_template_uses_processors_again_when_it_is_a_vm_again() {
    let (site, control) = with_vms(&[]);
    make_folder(&control, "tenant1", Quota { cpus: Some(1), ..Quota::default() });
    control.create_vm(&caller(1), &inside("golden", "tenant1")).unwrap();
    assert!(settle_down(&site, &control));
    control.template_vm(&caller(2), "golden", &TemplateVm { undo: false }).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(folder(&control, "tenant1").used.cpus, 0);
    control.create_vm(&caller(3), &inside("web1", "tenant1")).unwrap();
    assert!(settle_down(&site, &control));
    is_over(control.template_vm(&caller(4), "golden", &TemplateVm { undo: true }), "processors");
}

#[test]
fn a_lower_quota_leaves_what_is_there_and_refuses_more() {
    let (site, control) = with_vms(&[]);
    make_folder(&control, "tenant1", Quota::default());
    control.create_vm(&caller(1), &inside("web1", "tenant1")).unwrap();
    control.create_vm(&caller(2), &inside("web2", "tenant1")).unwrap();
    assert!(settle_down(&site, &control));
    let one = SetFolder { quota: Quota { vms: Some(1), disk_bytes: Some(0), ..Quota::default() } };
    control.set_folder(&caller(3), "tenant1", &one).unwrap();
    is_over(control.create_vm(&caller(4), &inside("web3", "tenant1")), "VMs and volumes");
    is_over(control.add_disk(&caller(5), "web1", &disk(MIB)), "disk space");
    control.set_vm(&caller(6), "web1", &set(json!({ "memory_bytes": 128 * MIB })), None).unwrap();
    let many = SetFolder { quota: Quota { cpus: Some(1_000_001), ..Quota::default() } };
    let refused = control.set_folder(&caller(7), "tenant1", &many).unwrap_err();
    assert_eq!(refused.message, "quota.cpus is at most 1000000; without it there is no limit");
    // A list is no object: its nulls would end all limits.
    for list in
        [json!({ "quota": [null, null, null, null] }), json!({ "quota": [] }), json!({ "quota": null })]
    {
        assert!(serde_json::from_value::<SetFolder>(list).is_err());
    }
    assert_eq!(control.set_folder(&caller(8), "tenant9", &one).unwrap_err().code, ErrorCode::NotFound);
    control.set_folder(&caller(9), "tenant1", &SetFolder { quota: Quota::default() }).unwrap();
    control.create_vm(&caller(10), &inside("web3", "tenant1")).unwrap();
}

/// A disk that is being added takes its room from its request on. If it fails, the room is free.
#[test]
fn what_a_task_adds_counts_until_it_has_failed() {
    let (site, control) = with_vms(&[]);
    make_folder(&control, "tenant1", Quota { disk_bytes: Some(4 * MIB), ..Quota::default() });
    control.create_vm(&caller(1), &inside("web1", "tenant1")).unwrap();
    control.create_vm(&caller(2), &inside("web2", "tenant1")).unwrap();
    assert!(settle_down(&site, &control));
    site.host.lock().disk_changes_that_fail = vec!["no_space"; 6];
    control.add_disk(&caller(3), "web1", &disk(2 * MIB)).unwrap();
    assert_eq!(folder(&control, "tenant1").used.disk_bytes, 4 * MIB);
    is_over(control.add_disk(&caller(4), "web2", &disk(MIB)), "disk space");
    is_over(control.resize_disk(&caller(5), "web2", "disk0", &larger(2 * MIB)), "disk space");
    assert!(settle_down(&site, &control));
    assert_eq!(folder(&control, "tenant1").used.disk_bytes, 2 * MIB, "the disk was not added");
    site.host.lock().disk_changes_that_fail.clear();
    control.resize_disk(&caller(6), "web2", "disk0", &larger(3 * MIB)).unwrap();
    is_over(control.add_disk(&caller(7), "web1", &disk(MIB)), "disk space");
}

#[test]
fn requests_at_the_same_time_do_not_use_the_same_room() {
    const ROOM: u64 = 5;
    let site = Site::new();
    let control = site.control().unwrap();
    let datastore = serde_json::from_str(r#"{"name":"ds1","path":"/srv/ds1"}"#).unwrap();
    control.add_datastore(&caller(900), &datastore).unwrap();
    assert!(settle_down(&site, &control));
    make_folder(&control, "tenant1", Quota { vms: Some(ROOM), ..Quota::default() });
    let made: usize = thread::scope(|scope| {
        let ask = |number: u64| {
            let control = &control;
            scope.spawn(move || {
                let wish = inside(&format!("web{number}"), "tenant1");
                match control.create_vm(&caller(number), &wish) {
                    Ok(_) => 1,
                    Err(problem) if problem.code == ErrorCode::QuotaExceeded => 0,
                    Err(problem) => panic!("{problem}"),
                }
            })
        };
        let asked: Vec<_> = (0..16).map(ask).collect();
        asked.into_iter().map(|one| one.join().unwrap()).sum()
    });
    assert_eq!((made as u64, folder(&control, "tenant1").used.vms), (ROOM, ROOM));
}

#[test]
fn what_a_running_vm_grows_to_counts_from_the_request_on_and_until_it_is_taken() {
    let (site, control) = with_vms(&["outside"]);
    let quota = Quota { cpus: Some(4), memory_bytes: Some(512 * MIB), ..Quota::default() };
    make_folder(&control, "tenant1", quota);
    let growth =
        serde_json::from_value(json!({ "max_cpus": 8, "max_memory_bytes": (64 + 1024) * MIB })).unwrap();
    control.create_vm(&caller(1), &CreateVm { growth, ..inside("web1", "tenant1") }).unwrap();
    assert!(settle_down(&site, &control));
    control.start_vm(&caller(2), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    let used = || {
        let used = folder(&control, "tenant1").used;
        (used.cpus, used.memory_bytes / MIB)
    };
    let host_has = || {
        let host = site.host.lock();
        let vm = host.vms.values().find(|vm| vm.spec.name.as_str() == "web1").unwrap();
        (u64::from(vm.spec.cpus.count()), vm.spec.memory_bytes.bytes() / MIB)
    };
    let sizes =
        |cpus: u32, memory: u64| set(json!({ "cpus": { "cores": cpus }, "memory_bytes": memory * MIB }));
    let before = used();
    // Beyond the quota, and before the guest has anything.
    is_over(control.set_vm(&caller(3), "web1", &sizes(5, 64), None), "processors");
    is_over(control.set_vm(&caller(4), "web1", &sizes(1, 64 + 512), None), "memory");
    for (request, wish, says) in [
        (5, sizes(9, 64), "at most 8 CPUs"),
        (6, sizes(1, 100), "multiples of 128M"),
        (7, sizes(1, 32), "only grows"),
        (8, set(json!({ "memory_bytes": 192 * MIB, "restart": "never" })), "has to be off"),
    ] {
        let problem = control.set_vm(&caller(request), "web1", &wish, None).unwrap_err();
        assert_eq!(problem.code, ErrorCode::Conflict, "{problem}");
        assert!(problem.message.contains(says), "{problem}");
    }
    assert_eq!((used(), host_has()), (before, before));
    control.set_vm(&caller(10), "web1", &sizes(4, 64 + 256), None).unwrap();
    assert_eq!((used(), host_has()), ((4, 320), before), "it counts before the guest has it");
    assert!(settle_down(&site, &control));
    assert_eq!((used(), host_has()), ((4, 320), (4, 320)));
    // What is given back counts until the guest has released it.
    control.set_vm(&caller(11), "web1", &sizes(2, 320), None).unwrap();
    assert_eq!((used(), host_has()), ((4, 320), (4, 320)));
    assert!(settle_down(&site, &control));
    assert_eq!((used(), host_has()), ((2, 320), (2, 320)));
    // A failure after the guest has its memory leaves what cannot be taken back.
    site.host.lock().size_changes_that_fail = vec!["guest_keeps_cpu"];
    let task = control.set_vm(&caller(12), "web1", &sizes(3, 320 + 128), None).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_task(task.id).unwrap().state, TaskState::Failed);
    assert_eq!((used(), host_has()), ((2, 448), (2, 448)));
}
