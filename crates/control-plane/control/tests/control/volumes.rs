//! Volumes in the API: their cached list, and batches of readings.

use std::time::Duration;

use crate::support::client::Client;
use crate::support::server::Server;
use crate::support::{Site, caller, create, settle_down};
use serde_json::{Value, json};
use strongroom_api::volume::{Volume, VolumeListQuery};
use strongroom_control::engine::Control;
use strongroom_types::VolumeId;

/// A control plane with VMs of this number.
fn with_vms(site: &Site, count: u64) -> Control {
    let control = site.control().unwrap();
    let datastore = serde_json::from_str(r#"{"name":"ds1","path":"/srv/ds1"}"#).unwrap();
    control.add_datastore(&caller(1), &datastore).unwrap();
    for number in 0..count {
        control.create_vm(&caller(10 + number), &create(&format!("web{number}"), true)).unwrap();
    }
    assert!(settle_down(site, &control));
    control
}

fn list(control: &Control, query: &VolumeListQuery) -> Vec<Volume> {
    control.list_volumes(query).unwrap().items
}

#[test]
fn a_list_asks_no_host_and_says_how_old_its_figures_are() {
    let site = Site::new();
    let control = with_vms(&site, 3);
    let all = VolumeListQuery::default();
    let listed = list(&control, &all);
    assert_eq!(listed.len(), 3);
    assert!(listed.iter().all(|volume| volume.space.is_none() && volume.datastore == "ds1"));
    control.read_spaces();
    assert_eq!(site.host.lock().readings, 3);
    let first = list(&control, &all);
    let read_at = first[0].space.as_ref().unwrap().read_unix_ms;
    assert!(first.iter().all(|volume| volume.space.as_ref().unwrap().read_unix_ms == read_at));
    assert_eq!(site.host.lock().readings, 3, "a list reads nothing");
    control.read_spaces();
    assert_eq!(site.host.lock().readings, 3, "they are not old yet");
    site.pass(Duration::from_secs(61));
    site.host.lock().down = true;
    control.read_spaces();
    assert_eq!(list(&control, &all), first, "the last reading stays, with its age");
    site.host.lock().down = false;
    site.pass(Duration::from_secs(61));
    control.read_spaces();
    let later = list(&control, &all);
    assert_eq!(site.host.lock().readings, 6);
    assert!(later[0].space.as_ref().unwrap().read_unix_ms >= read_at + 122_000);
}

#[test]
fn a_list_is_filtered_and_read_in_pages() {
    let site = Site::new();
    let control = with_vms(&site, 5);
    let of_vm = VolumeListQuery { vm: Some("web3".to_owned()), ..VolumeListQuery::default() };
    let [volume] = <[Volume; 1]>::try_from(list(&control, &of_vm)).unwrap();
    assert_eq!((volume.vm_name.unwrap().as_str(), volume.disk.unwrap().as_str()), ("web3", "disk0"));
    let of_datastore =
        |named: &str| VolumeListQuery { datastore: Some(named.to_owned()), ..VolumeListQuery::default() };
    assert_eq!(list(&control, &of_datastore("ds1")).len(), 5);
    let refused = control.list_volumes(&of_datastore("../ds1")).unwrap_err();
    assert_eq!(refused.code, strongroom_api::ErrorCode::NotFound);
    let (mut cursor, mut names) = (None, Vec::new());
    loop {
        let query = VolumeListQuery { limit: Some(2), cursor: cursor.take(), ..VolumeListQuery::default() };
        let page = control.list_volumes(&query).unwrap();
        assert_eq!(page.total, 5);
        names.extend(page.items.into_iter().filter_map(|volume| volume.vm_name).map(|name| name.to_string()));
        match page.next {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    assert_eq!(names, ["web0", "web1", "web2", "web3", "web4"]);
    let foreign = control.list_vms(&serde_json::from_str(r#"{"limit":1}"#).unwrap()).unwrap().next;
    let query = VolumeListQuery { cursor: foreign, ..VolumeListQuery::default() };
    assert_eq!(control.list_volumes(&query).unwrap_err().code, strongroom_api::ErrorCode::BadCursor);
}

/// A served VM, and its volume's id.
fn served(home: &std::path::Path) -> (Server, Client, String) {
    let server = Server::start(home);
    let mut client = server.client();
    let added = client.post("/v1/datastores", &json!({ "name": "ds1", "path": "/srv/ds1" }));
    client.done(&added);
    let made = client.post("/v1/vms", &serde_json::to_value(create("web1", true)).unwrap());
    client.done(&made);
    let listed = client.get("/v1/volumes").json();
    let volume = listed["items"][0]["id"].as_str().unwrap().to_owned();
    (server, client, volume)
}

fn read(client: &mut Client, readings: &[Value]) -> Vec<Value> {
    let answer = client.post("/v1/volumes/readings", &json!({ "readings": readings }));
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["readings"].as_array().unwrap().clone()
}

#[test]
fn each_reading_of_a_batch_has_its_own_answer() {
    let home = tempfile::tempdir().unwrap();
    let (_server, mut client, volume) = served(home.path());
    let made = client.post("/v1/vms/web1/snapshots", &json!({ "name": "monday" }));
    client.done(&made);
    let answers = read(
        &mut client,
        &[
            json!({ "volume": volume, "kind": "space" }),
            json!({ "volume": VolumeId::random().to_string(), "kind": "space" }),
            json!({ "volume": volume, "kind": "allocated", "chunk_bytes": 4096, "length_bytes": 8192, "next": true }),
            json!({ "volume": volume, "kind": "changed", "since": "monday", "length_bytes": 1 << 20 }),
            json!({ "volume": volume, "kind": "changed", "since": "tuesday" }),
            json!({ "volume": volume, "kind": "changed" }),
            json!({ "volume": volume, "kind": "allocated", "since": "monday" }),
            json!({ "volume": volume, "kind": "space", "snapshot": "monday" }),
            json!({ "volume": volume, "kind": "unshared", "snapshot": "../monday" }),
            json!({ "volume": volume, "kind": "allocated", "start_bytes": 2_u64 << 30 }),
        ],
    );
    assert_eq!(answers[0]["space"]["other_bytes"], 8192);
    let map = &answers[2]["map"];
    assert_eq!(
        (&map["chunk_bytes"], &map["length_bytes"], &map["next_bytes"]),
        (&json!(4096), &json!(8192), &json!(8192))
    );
    assert_eq!(map["extents"], json!([{ "start_bytes": 0, "length_bytes": 4096 }]));
    assert_eq!(answers[3]["map"]["chunk_bytes"], 65536);
    let codes =
        [1, 4, 5, 6, 7, 8, 9].map(|at: usize| answers[at]["error"]["code"].as_str().unwrap().to_owned());
    assert_eq!(codes, ["not_found", "not_found", "invalid", "invalid", "invalid", "not_found", "invalid"]);
}

#[test]
fn what_no_batch_can_be_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let (server, mut client, volume) = served(home.path());
    let limits = client.get("/v1/volumes/limits").json();
    let most = limits["readings_max"].as_u64().unwrap() as usize;
    let reading = json!({ "volume": volume, "kind": "allocated", "length_bytes": 65536 });
    assert_eq!(read(&mut client, &vec![reading.clone(); most]).len(), most);
    let code = |client: &mut Client, readings: Value| {
        let answer = client.post("/v1/volumes/readings", &json!({ "readings": readings }));
        (answer.status, answer.json()["error"]["code"].as_str().unwrap().to_owned())
    };
    let refused = |status: u16, code: &str| (status, code.to_owned());
    assert_eq!(code(&mut client, json!(vec![reading; most + 1])), refused(422, "invalid"));
    assert_eq!(code(&mut client, json!([])), refused(422, "invalid"));
    for wrong in [
        json!({ "volume": volume, "kind": "allocated", "chunk_bytes": 0 }),
        json!({ "volume": volume, "kind": "allocated", "chunk_bytes": 12288 }),
        json!({ "volume": volume, "kind": "allocated", "chunk_bytes": 2_147_483_648_u64 }),
        json!({ "volume": volume, "kind": "allocated", "start_bytes": -1 }),
        json!({ "volume": volume, "kind": "allocated", "path": "/etc/passwd" }),
        json!({ "volume": "../../etc/passwd", "kind": "allocated" }),
        json!({ "volume": volume, "kind": "everything" }),
    ] {
        assert_eq!(code(&mut client, json!([wrong])), refused(400, "malformed"), "{wrong}");
    }
    for (part, number) in [
        ("start_bytes", u64::MAX),
        ("length_bytes", u64::MAX),
        ("length_bytes", (64 << 40) + 1),
        ("length_bytes", 0),
    ] {
        // The document bounds them, whatever is asked.
        for kind in ["allocated", "space"] {
            let wrong = json!([{ "volume": volume, "kind": kind, part: number }]);
            assert_eq!(code(&mut client, wrong), refused(422, "invalid"), "{kind}, {part}: {number}");
        }
    }
    server.site.host.lock().down = true;
    let answers = read(&mut client, &[json!({ "volume": volume, "kind": "space" })]);
    assert_eq!(answers[0]["error"]["code"], "host_unavailable");
}
