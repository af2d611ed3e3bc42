//! VMs and disks that exist with their images or not at all, whatever is killed meanwhile, and the
//! fate of their keys.

use std::time::Duration;

use crate::support::{Site, caller, create, settle_down};
use strongroom_api::task::{Task, TaskState};
use strongroom_api::vm::{AddDisk, CreateVm, DeleteVm, ImportDisk, Lifecycle};
use strongroom_api::{ErrorCode, Name};
use strongroom_control::engine::{Control, Next};

const DISK: &str = "disk0";

fn site() -> (Site, Control) {
    let site = Site::new();
    let control = site.control().unwrap();
    let datastore = serde_json::from_str(r#"{"name":"ds1","path":"/srv/ds1"}"#).unwrap();
    control.add_datastore(&caller(900), &datastore).unwrap();
    assert!(settle_down(&site, &control));
    (site, control)
}

/// A VM whose disk and seed are filled with images.
fn filled(name: &str) -> CreateVm {
    let mut wish = create(name, true);
    wish.disks[0].fill = true;
    (wish.seed, wish.fill_seed) = (true, true);
    wish
}

fn image() -> ImportDisk {
    serde_json::from_value(serde_json::json!({ "ticket": "07".repeat(16) })).unwrap()
}

/// Lets all parts work until the task waits for an image or has ended.
fn awaited(site: &Site, control: &Control, task: &Task) -> Task {
    for _ in 0..50 {
        let now = control.show_task(task.id).unwrap();
        if now.awaits_image.is_some() || now.state.is_over() {
            return now;
        }
        for host in control.hosts() {
            control.observe(host, Duration::ZERO).unwrap();
        }
        while control.advance(task.id).unwrap() == Next::Again {}
        site.host.work();
    }
    panic!("it neither waits nor ends: {:?}", control.show_task(task.id));
}

fn events(control: &Control) -> String {
    let index = control.inventory.read();
    let all = index.events().iter().map(|event| format!("{} {}\n", event.kind, event.message));
    all.collect()
}

#[test]
fn a_vm_is_made_when_its_images_have_come() {
    let (site, control) = site();
    let task = control.create_vm(&caller(1), &filled("web1")).unwrap();
    let name = |text: &str| Some(Name::new(text).unwrap());
    let waits = awaited(&site, &control, &task);
    assert_eq!((waits.state, waits.awaits_image), (TaskState::Running, name(DISK)));
    assert_eq!(control.show_vm("web1").unwrap().summary.lifecycle, Lifecycle::Creating);
    // An image for another disk is refused, and so is any other request.
    let refused = control.import_disk(&caller(2), "web1", "seed", &image()).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Busy);
    assert_eq!(
        control.delete_vm(&caller(3), "web1", &DeleteVm::default()).unwrap_err().code,
        ErrorCode::Busy
    );
    let volume = control.show_vm("web1").unwrap().disks[0].volume;
    let went_on = control.import_disk(&caller(4), "web1", DISK, &image()).unwrap();
    assert_eq!((went_on.id, went_on.awaits_image), (task.id, None));
    assert_eq!(control.import_disk(&caller(4), "web1", DISK, &image()).unwrap().id, task.id, "sent again");
    assert_eq!(awaited(&site, &control, &task).awaits_image, name("seed"));
    control.import_disk(&caller(5), "web1", "seed", &image()).unwrap();
    assert_eq!(awaited(&site, &control, &task).state, TaskState::Done);
    let vm = control.show_vm("web1").unwrap();
    assert_eq!((vm.summary.lifecycle, vm.summary.task), (Lifecycle::Present, None));
    assert_ne!(vm.disks[0].volume, volume, "another volume is in its place");
    assert!(site.keys.lock().retired.is_empty());
    assert_eq!(site.keys.lock().uses.len(), 2, "both are on record");
    control.start_vm(&caller(6), "web1", &Default::default()).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(site.host.lock().violations, Vec::<String>::new());
}

#[test]
fn a_vm_whose_image_does_not_come_is_taken_back_with_its_key() {
    let (site, control) = site();
    // No image arrives: the client was killed.
    let task = control.create_vm(&caller(1), &filled("web1")).unwrap();
    awaited(&site, &control, &task);
    assert!(settle_down(&site, &control));
    let ended = control.show_task(task.id).unwrap();
    let problem = ended.error.unwrap();
    assert_eq!(
        (ended.state, problem.code, ended.awaits_image),
        (TaskState::Failed, ErrorCode::Timeout, None)
    );
    let key = "its key key-0 was deactivated";
    assert!(problem.message.starts_with("no image came for disk0 of VM web1 in time"), "{problem}");
    assert!(problem.message.contains(key), "{problem}");
    // The import of the image fails.
    site.host.lock().imports_that_fail.push("bad_image");
    let task = control.create_vm(&caller(2), &filled("web1")).unwrap();
    awaited(&site, &control, &task);
    control.import_disk(&caller(3), "web1", DISK, &image()).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_task(task.id).unwrap().error.unwrap().code, ErrorCode::Invalid);
    // The task is cancelled.
    let task = control.create_vm(&caller(4), &filled("web1")).unwrap();
    awaited(&site, &control, &task);
    control.cancel_task(&caller(9_000), task.id).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_task(task.id).unwrap().state, TaskState::Cancelled);

    assert_eq!(control.show_vm("web1").unwrap_err().code, ErrorCode::NotFound);
    assert!(site.host.lock().vms.is_empty());
    let keys = site.keys.lock();
    assert_eq!((keys.made.len(), keys.retired.len()), (3, 3));
    assert_eq!(events(&control).matches("VM web1 was not made; key provider embedded, key key-").count(), 3);
}

#[test]
fn a_task_waits_for_a_client_that_was_lost() {
    let (site, control) = site();
    control.create_vm(&caller(1), &create("web1", true)).unwrap();
    assert!(settle_down(&site, &control));
    let volume = control.show_vm("web1").unwrap().disks[0].volume;
    site.host.lock().client_is_away = true;
    let task = control.import_disk(&caller(2), "web1", DISK, &image()).unwrap();
    let waits = awaited(&site, &control, &task);
    assert_eq!(
        (waits.state, waits.awaits_image.as_ref().map(Name::as_str)),
        (TaskState::Running, Some(DISK))
    );
    assert!(waits.note.unwrap().contains("the client with the image for disk0 is away"));
    assert!(events(&control).contains("task.waiting the client with the image for disk0 is away"));
    // One with an image for another disk is not the one.
    assert_eq!(control.import_disk(&caller(3), "web1", "disk1", &image()).unwrap_err().code, ErrorCode::Busy);
    // It comes back, and is lost once more.
    let back = control.import_disk(&caller(4), "web1", DISK, &image()).unwrap();
    assert_eq!((back.id, back.awaits_image, back.note), (task.id, None, None));
    assert!(awaited(&site, &control, &task).awaits_image.is_some());
    site.host.lock().client_is_away = false;
    control.import_disk(&caller(5), "web1", DISK, &image()).unwrap();
    assert!(settle_down(&site, &control));
    let ended = control.show_task(task.id).unwrap();
    assert_eq!((ended.state, ended.awaits_image, ended.note), (TaskState::Done, None, None));
    assert_ne!(control.show_vm("web1").unwrap().disks[0].volume, volume);
    // It is cancelled while it waits.
    site.host.lock().client_is_away = true;
    let task = control.import_disk(&caller(6), "web1", DISK, &image()).unwrap();
    awaited(&site, &control, &task);
    control.cancel_task(&caller(7), task.id).unwrap();
    assert_eq!(
        control.import_disk(&caller(8), "web1", DISK, &image()).unwrap_err().code,
        ErrorCode::Busy,
        "nobody brings an image to a task that is being cancelled"
    );
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_task(task.id).unwrap().state, TaskState::Cancelled);
}

#[test]
fn an_image_is_brought_again_after_its_host_was_killed() {
    let (site, control) = site();
    control.create_vm(&caller(1), &create("web1", true)).unwrap();
    assert!(settle_down(&site, &control));
    let volume = |control: &Control| control.show_vm("web1").unwrap().disks[0].volume;
    let before = volume(&control);
    let begin = |caller_number| {
        site.host.lock().client_is_away = true;
        let task = control.import_disk(&caller(caller_number), "web1", DISK, &image()).unwrap();
        awaited(&site, &control, &task);
        control.import_disk(&caller(caller_number + 1), "web1", DISK, &image()).unwrap();
        site.host.restart();
        site.host.lock().client_is_away = false;
        let waits = awaited(&site, &control, &task);
        assert_eq!(waits.awaits_image.as_ref().map(Name::as_str), Some(DISK), "{waits:?}");
        task
    };
    // Nobody brings it: the disk is what it was.
    let task = begin(2);
    assert!(settle_down(&site, &control));
    let ended = control.show_task(task.id).unwrap();
    assert_eq!(ended.error.unwrap().code, ErrorCode::Timeout);
    assert_eq!(volume(&control), before);
    let task = begin(4);
    control.import_disk(&caller(6), "web1", DISK, &image()).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_task(task.id).unwrap().state, TaskState::Done);
    assert_ne!(volume(&control), before);
    assert_eq!(site.host.lock().violations, Vec::<String>::new());
}

#[test]
fn a_key_that_somebody_else_made_outlives_a_vm_that_is_not_made() {
    let (site, control) = site();
    let mut wish = filled("web1");
    wish.encryption.key = Some("key-of-old".to_owned());
    let task = control.create_vm(&caller(1), &wish).unwrap();
    awaited(&site, &control, &task);
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_task(task.id).unwrap().state, TaskState::Failed);
    assert!(site.keys.lock().retired.is_empty());
}

#[test]
fn a_creation_that_its_host_fails_takes_its_key_out_of_use() {
    let (site, control) = site();
    site.host.lock().datastores.clear();
    let task = control.create_vm(&caller(1), &create("web1", true)).unwrap();
    assert!(settle_down(&site, &control));
    let problem = control.show_task(task.id).unwrap().error.unwrap();
    assert!(
        problem.message.ends_with("(VM web1 was not made, and its key key-0 was deactivated)"),
        "{problem}"
    );
    assert_eq!(site.keys.lock().retired.len(), 1);
}

#[test]
fn a_disk_that_is_added_has_its_image_or_is_not_there() {
    let (site, control) = site();
    control.create_vm(&caller(1), &create("web1", true)).unwrap();
    assert!(settle_down(&site, &control));
    let wish: AddDisk = serde_json::from_str(r#"{"size_bytes":1048576,"fill":true}"#).unwrap();
    let names = |control: &Control| {
        let vm = control.show_vm("web1").unwrap();
        vm.disks.into_iter().map(|disk| disk.name.to_string()).collect::<Vec<_>>()
    };
    let task = control.add_disk(&caller(2), "web1", &wish).unwrap();
    awaited(&site, &control, &task);
    assert!(settle_down(&site, &control), "nobody brings an image");
    assert_eq!(control.show_task(task.id).unwrap().error.unwrap().code, ErrorCode::Timeout);
    assert_eq!(names(&control), [DISK]);
    assert_eq!(site.host.lock().vms.values().next().unwrap().volumes.len(), 1);
    let task = control.add_disk(&caller(3), "web1", &wish).unwrap();
    let waits = awaited(&site, &control, &task);
    control.import_disk(&caller(4), "web1", waits.awaits_image.unwrap().as_str(), &image()).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_task(task.id).unwrap().state, TaskState::Done);
    assert_eq!(names(&control), [DISK, "disk1"]);
    assert!(site.keys.lock().retired.is_empty(), "the VM's key is in use");
}

/// The control plane is killed between any two of its steps, and its client with it.
#[test]
fn whoever_is_killed_a_vm_without_its_image_is_taken_back() {
    for steps in 0.. {
        let (site, control) = site();
        site.fuse.set(steps);
        let task = control.create_vm(&caller(1), &filled("web1"));
        if task.is_ok() {
            settle_down(&site, &control);
        }
        let ended = !site.fuse.is_burnt();
        site.fuse.set(i64::MAX);
        let control = site.control().unwrap();
        assert!(settle_down(&site, &control));
        assert_eq!(control.show_vm("web1").unwrap_err().code, ErrorCode::NotFound, "after {steps} steps");
        assert!(site.host.lock().vms.is_empty(), "after {steps} steps");
        let keys = site.keys.lock();
        assert_eq!(keys.made.len(), keys.retired.len(), "after {steps} steps");
        if ended {
            assert!(steps > 10, "it was never killed");
            return;
        }
    }
}
