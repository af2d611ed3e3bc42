//! What events say of objects that are gone: whoever watches them asks for nothing that is not
//! there any more.

use serde_json::{Value, json};
use strongroom_api::access::{CreateFolder, CreateGrant, CreateUser, Scope};
use strongroom_api::event::Event;
use strongroom_api::vm::DeleteVm;
use strongroom_control::engine::Control;
use strongroom_control::engine::access::Rights;
use strongroom_control::records::Principal;
use uuid::Uuid;

use crate::support::client::Client;
use crate::support::passwords::Argon2id;
use crate::support::server::Server;
use crate::support::{caller, settle_down, with_vms};

fn wish(name: &str) -> Value {
    json!({ "name": name, "memory_bytes": 2u64 << 30, "disks": [{ "size_bytes": 20u64 << 30 }] })
}

/// Deletes the object at a path, and returns its id and the ids that events since have as gone.
fn deleted(client: &mut Client, path: &str) -> (Value, Vec<Value>) {
    let id = client.get(path).json()["id"].clone();
    let last = client.get("/v1/events?limit=1").json()["items"][0]["id"].clone();
    let answer = client.ask("DELETE", path, &[], None);
    if answer.status == 202 {
        client.done(&answer);
    }
    let since = client.get(&format!("/v1/events?after={last}")).json();
    let of_object = since["items"].as_array().unwrap().iter().filter(|event| event["object"]["id"] == id);
    let gone = of_object.flat_map(|event| event["gone"].as_array().cloned().unwrap_or_default()).collect();
    (id, gone)
}

#[test]
fn the_event_of_each_deletion_says_what_is_gone() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut client = server.client();
    for (path, body) in [
        ("/v1/datastores", json!({ "name": "ds1", "path": "/srv/ds1" })),
        ("/v1/vms", wish("web1")),
        ("/v1/networks", json!({ "name": "lan" })),
        ("/v1/policies", json!({ "name": "gold", "rules": {} })),
        ("/v1/placement-groups", json!({ "name": "apart", "keep": "apart" })),
        (
            "/v1/recipients",
            json!({ "name": "ops", "to": { "type": "webhook", "url": "https://ops.example.com/x" } }),
        ),
    ] {
        let answer = client.post(path, &body);
        if answer.status == 202 {
            client.done(&answer);
        }
        assert!(answer.status < 300, "{path}: {}", answer.body);
    }
    let volume = client.get("/v1/vms/web1").json()["disks"][0]["volume"].clone();
    let all = client.get("/v1/events?limit=1000").json();
    assert!(all["items"].as_array().unwrap().iter().all(|event| event["gone"].is_null()), "{all}");
    let (vm, gone) = deleted(&mut client, "/v1/vms/web1");
    assert!(gone.len() == 2 && gone.contains(&vm) && gone.contains(&volume), "{gone:?}");
    for path in [
        "/v1/networks/lan",
        "/v1/policies/gold",
        "/v1/placement-groups/apart",
        "/v1/recipients/ops",
        "/v1/datastores/ds1",
    ] {
        let (id, gone) = deleted(&mut client, path);
        assert!(id.is_string(), "{path}");
        assert_eq!(gone, [id], "{path}");
    }
}

fn user(control: &Control, name: &str, scope: Value) -> Rights {
    let machine = strongroom_control::engine::Caller::machine("test");
    let wish =
        CreateUser { name: name.parse().unwrap(), password: "correct horse battery".to_owned().into() };
    let user = control.create_user(&machine, &wish, &Argon2id).unwrap().user;
    let grant = CreateGrant {
        user: Some(name.to_owned().try_into().unwrap()),
        group: None,
        role: "operator".parse().unwrap(),
        scope: serde_json::from_value::<Scope>(scope).unwrap(),
    };
    control.create_grant(&machine, &grant).unwrap();
    Rights::of(&control.inventory.read(), Principal::User(user.id))
}

#[test]
fn who_may_view_a_vm_or_its_folder_sees_that_it_is_gone_and_nobody_else_does() {
    let (site, control) = with_vms(&["web1", "web2"]);
    for name in ["shop", "lab"] {
        control.create_folder(&caller(1), &CreateFolder { name: name.parse().unwrap() }).unwrap();
    }
    let folder = serde_json::from_value(json!({ "folder": "shop" })).unwrap();
    control.move_vm(&caller(2), "web1", &folder).unwrap();
    assert!(settle_down(&site, &control));
    let of_shop = user(&control, "ada", json!({ "type": "folder", "folder": "shop" }));
    let of_lab = user(&control, "ben", json!({ "type": "folder", "folder": "lab" }));
    let of_web1 = user(&control, "cleo", json!({ "type": "vm", "vm": "web1" }));
    let of_web2 = user(&control, "dan", json!({ "type": "vm", "vm": "web2" }));
    let ids =
        ["web1", "web2"].map(|name| Uuid::from_bytes(*control.show_vm(name).unwrap().summary.id.as_bytes()));
    for (request, name) in [(3, "web1"), (4, "web2")] {
        control.delete_vm(&caller(request), name, &DeleteVm::default()).unwrap();
        assert!(settle_down(&site, &control));
    }
    let index = control.inventory.read();
    let ends = |id: Uuid| -> Event {
        let event = index.events().iter().find(|event| event.gone.contains(&id)).unwrap();
        Event::clone(&event.record)
    };
    let sees = |event: &Event| {
        [&of_shop, &of_lab, &of_web1, &of_web2].map(|rights| {
            let row = index.events().iter().find(|row| row.id == event.id).unwrap();
            rights.sees_event(&index, row)
        })
    };
    assert_eq!(sees(&ends(ids[0])), [true, false, true, false]);
    assert_eq!(sees(&ends(ids[1])), [false, false, false, true]);
}
