//! What tasks are called.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use strongroom_api::task::TaskKind;
use strongroom_api::{ObjectKind, ObjectRef};
use strongroom_control::engine::Control;

use crate::moves::to;
use crate::placement::shared;
use crate::support::server::Server;
use crate::support::{caller, create, settle_down};

#[test]
fn each_kind_of_task_has_a_title_in_words() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let document = server.client().get("/openapi.json").json();
    let kinds = document["components"]["schemas"]["TaskKind"]["enum"].as_array().unwrap();
    let object = ObjectRef { kind: ObjectKind::Vm, id: None, name: "web1".to_owned() };
    let mut titles = BTreeSet::new();
    for kind in kinds {
        let kind: TaskKind = serde_json::from_value(kind.clone()).unwrap();
        let title = kind.title(&object);
        assert!(title.starts_with(|first: char| first.is_ascii_uppercase()), "{title}");
        assert!(!title.contains('_') && !title.ends_with('.'), "{title}");
        assert!(title.contains("VM web1") || kind == TaskKind::HostsBalance, "{title}");
        titles.insert(title);
    }
    // Kinds for several kinds of objects have the same words.
    assert!(kinds.len() > 55 && titles.len() > 40, "{titles:?}");
}

fn newest(control: &Control) -> String {
    control.inventory.read().tasks.last().unwrap().task.title.clone()
}

#[test]
fn a_title_names_what_its_task_is_about() {
    let (site, control) = shared(1);
    control.create_vm(&caller(1), &create("web1", true)).unwrap();
    assert_eq!(newest(&control), "Create VM web1");
    assert!(settle_down(&site, &control));
    let wish = |value: Value| value.to_string();
    let snapshot = wish(json!({ "name": "before" }));
    control.create_snapshot(&caller(2), "web1", &serde_json::from_str(&snapshot).unwrap()).unwrap();
    assert_eq!(newest(&control), "Make snapshot before of VM web1");
    assert!(settle_down(&site, &control));
    control.delete_snapshot(&caller(3), "web1", "before").unwrap();
    assert_eq!(newest(&control), "Delete snapshot before of VM web1");
    assert!(settle_down(&site, &control));
    let former = control.show_vm("web1").unwrap().summary.host.unwrap();
    let other = if former == "host1" { "host2" } else { "host1" };
    let task = control.move_to_host(&caller(4), "web1", &to(other)).unwrap();
    assert_eq!(task.title, format!("Move VM web1 to host {other}"));
    let busy = control.create_snapshot(&caller(5), "web1", &serde_json::from_str(&snapshot).unwrap());
    let message = busy.unwrap_err().message;
    assert_eq!(message, format!("a task works on VM web1: {}", task.title));
    assert!(settle_down(&site, &control));
    control.evacuate_host(&caller(6), other, &serde_json::from_str("{}").unwrap()).unwrap();
    assert_eq!(newest(&control), format!("Evacuate host {other}"));
    assert!(settle_down(&site, &control));
    let index = control.inventory.read();
    // The moves that it has begun are named, too.
    let back = format!("Move VM web1 to host {former}");
    assert!(index.tasks.iter().any(|task| task.task.title == back));
    let said = index.events().iter().any(|event| event.message == format!("Evacuate host {other}, by test"));
    assert!(said, "{:?}", index.events().iter().map(|event| event.message.clone()).collect::<Vec<_>>());
}
