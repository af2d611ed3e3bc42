//! The API over real TLS.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;

use crate::support::client::Client;
use crate::support::server::Server;
use serde_json::{Value, json};
use strongroom_api::guard::Guard;
use strongroom_api::limits::{
    ACCESS_LOG_HEADS_MAX, ACCESS_LOG_KEEP_MAX_S, ACCESS_LOG_KEEP_MIN_S, ACCESS_LOG_ROOM_MAX_BYTES,
    ACCESS_LOG_ROOM_MIN_BYTES, BEARER_TOKEN_BYTES_MAX, CAPACITY_DAYS_KEPT, CAPACITY_HOURS_KEPT,
    CLIENT_CERTIFICATE_BYTES_MAX, CLIENT_SECRET_BYTES_MAX, CODE_DIGITS, CRYPTOPERIOD_MAX_S,
    CRYPTOPERIOD_MIN_S, CRYPTOPERIOD_UNIT_S, DESCRIPTION_MAX_BYTES, DISK_LATENCY_P99_MAX_MS,
    EMERGENCY_REASON_BYTES_MAX, EMERGENCY_SECRET_BYTES_MAX, EVENT_NUMBER_MAX, HOST_TOKEN_MAX_S,
    HOST_TOKEN_MIN_S, LOSSES_SURVIVED_MAX, MAIL_ADDRESS_BYTES_MAX, MOVE_CHANNELS_MAX, MOVE_PAUSE_MAX_MS,
    MOVE_PAUSE_MIN_MS, NOTES_CHARACTERS_MAX, PASSWORD_BYTES_MAX, PASSWORD_BYTES_MIN,
    PROVIDER_ANSWER_BYTES_MAX, PROVIDER_PAGES_MAX, PROVIDER_SCOPES_MAX, PROVIDER_SESSION_MAX_S,
    PROVIDER_SESSION_MIN_S, PROVIDER_TEXT_BYTES_MAX, PROVIDER_URL_BYTES_MAX, QUOTA_BYTES_MAX,
    QUOTA_COUNT_MAX, REFERENCE_CHARACTERS_MAX, SCHEDULED_SNAPSHOTS_MAX, SNAPSHOT_PERIOD_MAX_S,
    SNAPSHOT_PERIOD_MIN_S, SNAPSHOT_PERIOD_UNIT_S, SNAPSHOT_RULES_MAX, SOCKET_ADDRESS_BYTES_MAX,
    STOP_TIMEOUT_MAX_S, TAG_KEY_BYTES_MAX, TAG_VALUE_BYTES_MAX, TAGS_MAX, VOLUME_CHANGES_MAX,
    WEBHOOK_AUTHORITY_BYTES_MAX, WEBHOOK_URL_BYTES_MAX,
};
use strongroom_api::{ErrorCode, OPERATIONS, TOUCHES_EXTENSION};
use strongroom_host::protocol::{OffReason, PowerState, READINGS_MAX};
use strongroom_types::{
    BANDWIDTH_MAX_BYTES, BANDWIDTH_MIN_BYTES, BLOCK_BYTES, CEPH_NAME_BYTES_MAX, ChunkSize, IOPS_MAX,
    IOPS_MIN, MAX_VOLUME_BYTES, MIN_VOLUME_BYTES, NAME_BYTES_MAX, PROVIDER_KEY_ID_BYTES_MAX, SECTOR_BYTES,
};
use strongroom_vm::limits::*;

fn with_datastore(client: &mut Client) {
    let added = client.post("/v1/datastores", &json!({ "name": "ds1", "path": "/srv/ds1" }));
    client.done(&added);
}

fn wish(name: &str) -> Value {
    json!({ "name": name, "memory_bytes": 2u64 << 30, "cpus": { "cores": 2 }, "disks": [{ "size_bytes": 20u64 << 30 }] })
}

#[test]
fn a_vm_lives_over_the_api() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut client = server.client();
    with_datastore(&mut client);
    let created = client.post("/v1/vms", &wish("web1"));
    client.done(&created);
    let shown = client.get("/v1/vms/web1").json();
    assert_eq!((&shown["power"], &shown["encrypted"]), (&json!("stopped"), &json!(true)));
    assert_eq!(shown["key"], json!({ "provider": "embedded", "key": "key-0" }));
    assert!(shown["disks"][0]["volume"].is_string());
    let started = client.ask("POST", "/v1/vms/web1/start", &[], None);
    client.done(&started);
    let id = shown["id"].as_str().unwrap();
    assert_eq!(client.get(&format!("/v1/vms/{id}")).json()["power"], "running");
    assert_eq!(client.get("/v1/vms?power=running&name=WEB").json()["total"], 1);
    let refused = client.ask("DELETE", "/v1/vms/web1", &[], None);
    assert_eq!((refused.status, refused.code().as_str()), (409, "conflict"));
    let ticket = client.post("/v1/vms/web1/tickets", &json!({ "operation": "console" }));
    assert_eq!((ticket.status, ticket.json()["ticket"].as_str()), (201, Some("07".repeat(16).as_str())));
    // A client on another machine connects there, to the owner of this certificate.
    let ticket = ticket.json();
    assert_eq!(ticket["address"], "192.0.2.1:5691");
    assert_eq!(ticket["certificate_sha256"], "ab".repeat(32));
    let stopped = client.post("/v1/vms/web1/stop", &json!({ "timeout_s": 5 }));
    client.done(&stopped);
    let version = client.get("/v1/vms/web1").json()["version"].as_u64().unwrap();
    let patch = json!({ "memory_bytes": 1u64 << 30 }).to_string();
    let changed = client.ask("PATCH", "/v1/vms/web1", &[("if-match", &version.to_string())], Some(&patch));
    client.done(&changed);
    assert_eq!(client.get("/v1/vms/web1").json()["memory_bytes"], 1u64 << 30);
    let stale = client.ask("PATCH", "/v1/vms/web1", &[("if-match", &version.to_string())], Some(&patch));
    assert_eq!((stale.status, stale.code().as_str()), (412, "stale"));
    let keys = client.get("/v1/vms/web1/key-status").json();
    assert_eq!((&keys["encrypted"], &keys["keys"][0]["state"]), (&json!(true), &json!("active")));
    let deleted = client.ask("DELETE", "/v1/vms/web1", &[], None);
    client.done(&deleted);
    assert_eq!(client.get("/v1/vms/web1").code(), "not_found");
    assert!(server.site.host.lock().vms.is_empty());
    let kinds: Vec<String> = client.get("/v1/tasks").json()["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|task| task["kind"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(kinds, ["vm_delete", "vm_configure", "vm_stop", "vm_start", "vm_create", "datastore_add"]);
}

#[test]
fn a_snapshot_schedule_is_set_and_read_over_the_api() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut client = server.client();
    with_datastore(&mut client);
    let created = client.post("/v1/vms", &wish("web1"));
    client.done(&created);
    let path = "/v1/vms/web1/snapshot-schedule";
    assert_eq!(client.get(path).json(), json!({ "version": 0, "rules": [] }));
    let rules = json!([{ "every_s": 3600, "keep": 18 }, { "every_s": 86400, "at_minutes": 120, "keep": 7 }]);
    let wish = json!({ "rules": rules }).to_string();
    let set = client.ask("PATCH", path, &[("if-match", "0")], Some(&wish));
    assert_eq!((set.status, &set.json()["state"]), (202, &json!("done")), "{}", set.body);
    let stale = client.ask("PATCH", path, &[("if-match", "0")], Some(&wish));
    assert_eq!((stale.status, stale.code().as_str()), (412, "stale"));
    let shown = client.get(path).json();
    let shown_rules: Vec<_> = shown["rules"].as_array().unwrap().iter().map(|one| &one["rule"]).collect();
    assert_eq!((&shown["version"], json!(shown_rules)), (&json!(1), rules));
    for (wish, code) in [
        (r#"{"rules":[{"every_s":60,"keep":1}]}"#, "invalid"),
        (r#"{"rules":[{"every_s":3600,"keep":1,"at":"02:00"}]}"#, "malformed"),
        ("{}", "malformed"),
    ] {
        assert_eq!(client.ask("PATCH", path, &[], Some(wish)).code(), code, "{wish}");
    }
    let metrics = client.get("/metrics").body;
    assert!(metrics.contains("strongroom_scheduled_snapshots_total{result=\"missed\"} 0"), "{metrics}");
}

#[test]
fn a_request_that_comes_twice_is_done_once() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut client = server.client();
    with_datastore(&mut client);
    let body = wish("web1").to_string();
    let key = [("idempotency-key", "a-4711")];
    let first = client.ask("POST", "/v1/vms", &key, Some(&body));
    let again = client.ask("POST", "/v1/vms", &key, Some(&body));
    assert_eq!(first.json()["id"], again.json()["id"]);
    assert_eq!(client.post("/v1/vms", &wish("web1")).code(), "name_taken");
    let other = client.ask("POST", "/v1/vms", &key, Some(&wish("web2").to_string()));
    assert_eq!((other.status, other.code().as_str()), (422, "key_reused"));
    client.done(&first);
    server.stop();
    // The same after a restart.
    let server = Server::start(home.path());
    let again = server.client().ask("POST", "/v1/vms", &key, Some(&body));
    assert_eq!(first.json()["id"], again.json()["id"]);
}

#[test]
fn nobody_gets_in_without_a_token() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mode = std::fs::metadata(home.path().join("token")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(std::fs::metadata(home.path().join("api.key")).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(server.fingerprint.len(), 64);
    let mut client = server.client();
    let good = std::mem::take(&mut client.token);
    for operation in OPERATIONS {
        let open = operation.guard == Guard::Everyone;
        let path = operation.path.replace(['{', '}'], "");
        let answer = client.ask(operation.method.as_str(), &path, &[], None);
        assert_eq!(answer.status == 401, !open, "{}: {}", operation.id, answer.status);
    }
    client.token = format!("{good}0");
    assert_eq!(client.get("/v1/vms").code(), "unauthorized");
    client.token = good.clone();
    assert_eq!(client.get("/v1/vms").status, 200);
    // The store does not contain the token.
    let store = std::fs::read(home.path().join("store.redb")).unwrap();
    assert!(!store.windows(good.len()).any(|here| here == good.as_bytes()));
}

#[test]
fn connections_without_a_token_keep_nobody_out_who_has_one() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut early = server.client();
    assert_eq!(early.get("/v1/vms").status, 200);
    // Silent connections, and connections that send requests without a token and stay open.
    let silent: Vec<_> = (0..600).map(|_| std::net::TcpStream::connect(server.address()).unwrap()).collect();
    let strangers: Vec<_> = (0..150)
        .map(|_| {
            let mut stranger = server.client();
            stranger.token.clear();
            assert_eq!(stranger.get("/v1/vms").status, 401);
            stranger
        })
        .collect();
    assert_eq!(server.client().get("/v1/vms").status, 200);
    assert_eq!(early.get("/v1/vms").status, 200);
    drop((silent, strangers));
}

#[test]
fn one_token_has_its_share_of_the_connections() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut open: Vec<_> = (0..384).map(|_| server.client()).collect();
    for client in &mut open {
        assert_eq!(client.get("/v1/vms").status, 200);
    }
    let refused = server.client().get("/v1/vms");
    assert_eq!((refused.status, refused.code().as_str()), (429, "too_many"), "{refused:?}");
    open.truncate(100);
    // Their ends are noticed after a while.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while server.client().get("/v1/vms").status != 200 {
        assert!(std::time::Instant::now() < until, "no place is free again");
    }
}

#[test]
fn what_does_not_belong_here_is_refused_with_its_reason() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut client = server.client();
    let long = "x".repeat(300 * 1024);
    for (method, path, body, status, code) in [
        ("GET", "/v1/nothing", None, 404, "no_such_path"),
        ("PUT", "/v1/vms", None, 405, "method_not_allowed"),
        ("POST", "/v1/vms", Some("{"), 400, "malformed"),
        ("POST", "/v1/vms", Some(r#"{"name":"web1","memory_bytes":1}"#), 400, "malformed"),
        ("POST", "/v1/vms", Some(r#"{"name":"web1","memory_bytes":67108864,"x":1}"#), 400, "malformed"),
        ("POST", "/v1/vms", Some(r#"{"name":"web1","memory_bytes":67108864}"#), 422, "invalid"),
        ("POST", "/v1/vms", Some(long.as_str()), 413, "too_large"),
        ("GET", "/v1/vms?limit=0", None, 422, "invalid"),
        ("GET", "/v1/vms?limit=x", None, 400, "malformed"),
        ("GET", "/v1/vms?colour=red", None, 400, "malformed"),
        ("GET", "/v1/tasks?cursor=x", None, 400, "bad_cursor"),
        ("GET", "/v1/tasks/x", None, 400, "malformed"),
        ("GET", "/v1/vms/web1", None, 404, "not_found"),
        ("GET", "/v1/vms/%FF", None, 400, "malformed"),
    ] {
        let answer = client.ask(method, path, &[], body);
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (status, code),
            "{method} {path}: {}",
            answer.body
        );
    }
    let typed = client.ask("POST", "/v1/vms", &[("content-type", "text/plain")], Some("{}"));
    assert_eq!(typed.code(), "unsupported_media_type");
    let head = client.ask("GET", "/v1/vms", &[("x-long", &"y".repeat(40 * 1024))], None);
    assert!(matches!(head.status, 0 | 431), "{}", head.status);
    assert_eq!(client.raw(b"\x16\x03\x01 nonsense\r\n\r\n").status, 400);
    assert_eq!(client.get("/healthz").status, 200);
}

#[test]
fn the_document_has_every_operation_and_what_it_touches() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let document = server.client().get("/openapi.json").json();
    let mut ids = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            let known = strongroom_api::operation(id).unwrap_or_else(|| panic!("{id} is not in the table"));
            assert_eq!(
                (known.path, known.method.as_str()),
                (path.as_str(), method.to_ascii_uppercase().as_str())
            );
            assert_eq!(operation[TOUCHES_EXTENSION], known.touches.as_str());
            ids.insert(id.to_owned());
        }
    }
    assert_eq!(ids.len(), OPERATIONS.len());
    // Each reference resolves.
    let text = document.to_string();
    for part in text.split("\"#/components/schemas/").skip(1) {
        let name = part.split('"').next().unwrap();
        assert!(document["components"]["schemas"][name].is_object(), "{name}");
    }
}

#[test]
fn a_refusal_leaves_the_connection_to_the_next_request_whatever_was_sent() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut client = server.client();
    let body = json!({ "name": "x".repeat(200 << 10) }).to_string();
    let refused = [
        ("POST", "/v1/no-such-path", 404),
        ("POST", "/v1/alarms", 405),
        ("POST", "/v1/vms/no-such-vm/start", 400),
        ("POST", "/v1/vms", 400),
    ];
    for (method, path, status) in refused {
        assert_eq!(client.ask(method, path, &[], Some(&body)).status, status, "{path}");
        assert_eq!(client.get("/v1/me").status, 200, "after {path}");
    }
    let token = std::mem::replace(&mut client.token, "wrong".to_owned());
    assert_eq!(client.ask("POST", "/v1/vms", &[], Some(&body)).status, 401);
    client.token = token;
    assert_eq!(client.get("/v1/me").status, 200);
}

/// Without a name of ours a generator of clients makes one up, such as `PageVmSummaryItemsItem`.
#[test]
fn each_type_of_the_document_has_a_name_for_generators_of_clients() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let document = server.client().get("/openapi.json").json();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let (mut titles, mut pages, mut spelt) = (BTreeSet::new(), 0, BTreeSet::new());
    for (name, schema) in schemas {
        // Generators spell names their own way.
        assert!(spelt.insert(name.replace('_', "").to_lowercase()), "{name} is spelt as another type");
        if let Some(entry) = name.strip_prefix("Page_") {
            let items = &schema["properties"]["items"]["items"]["$ref"];
            assert_eq!(*items, format!("#/components/schemas/{entry}"));
            pages += 1;
        }
        for variant in schema["oneOf"].as_array().into_iter().flatten().filter(|one| one["type"] == "object")
        {
            let title = variant["title"].as_str().unwrap_or_else(|| panic!("{name}: {variant}"));
            assert!(!schemas.contains_key(title) && titles.insert(title.to_owned()), "{title}");
        }
    }
    assert!(
        titles.contains("NicBackendBridge") && titles.contains("VolumeChangeDeleteSnapshot"),
        "{titles:?}"
    );
    assert!(pages > 20, "{pages}");
    // A body is one type, which may be absent.
    for (path, methods) in document["paths"].as_object().unwrap() {
        for operation in methods.as_object().unwrap().values() {
            let body = &operation["requestBody"]["content"]["application/json"]["schema"];
            assert!(body.is_null() || body["$ref"].is_string(), "{path}: {body}");
        }
    }
}

/// Every bound that a schema states, by the schema's name, the property and the bound's name.
fn bounds(schema: &Value, place: &str, found: &mut BTreeMap<String, u64>) {
    const BOUNDS: [&str; 6] = ["minimum", "maximum", "multipleOf", "maxLength", "minLength", "maxItems"];
    match schema {
        Value::Object(fields) => {
            for (name, value) in fields {
                if let (true, Some(number)) = (BOUNDS.contains(&name.as_str()), value.as_u64()) {
                    found.insert(format!("{place} {name}"), number);
                } else if name == "properties" {
                    for (property, value) in value.as_object().unwrap() {
                        bounds(value, &format!("{place}.{property}"), found);
                    }
                } else {
                    bounds(value, place, found);
                }
            }
        }
        Value::Array(choices) => choices.iter().for_each(|choice| bounds(choice, place, found)),
        _ => {}
    }
}

#[test]
fn the_documents_bounds_are_the_limits() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let document = server.client().get("/openapi.json").json();
    let mut found = BTreeMap::new();
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        bounds(schema, name, &mut found);
    }
    // Of a number that cannot be negative, and of a text that cannot be empty.
    found.retain(|_, number| *number > 1);
    let text = |bytes: usize| u64::try_from(bytes).unwrap();
    let mut expected = BTreeMap::new();
    let mut bound = |place: &str, number: u64| expected.insert(place.to_owned(), number);
    bound("AddDatastore.host maxLength", text(NAME_BYTES_MAX));
    bound("AddDatastore.path maxLength", text(HOST_PATH_BYTES_MAX));
    bound("AddDatastoreHost.host maxLength", text(NAME_BYTES_MAX));
    bound("AddDatastoreHost.path maxLength", text(HOST_PATH_BYTES_MAX));
    bound("CephAccess.conf maxLength", text(HOST_PATH_BYTES_MAX));
    bound("CephAccess.keyring maxLength", text(HOST_PATH_BYTES_MAX));
    bound("CephName maxLength", text(CEPH_NAME_BYTES_MAX));
    bound("CephUser minLength", text("client.x".len()));
    bound("CephUser maxLength", text("client.".len() + CEPH_NAME_BYTES_MAX));
    bound("FenceHost.confirm maxLength", text(NAME_BYTES_MAX));
    bound("CreateVm.host maxLength", text(NAME_BYTES_MAX));
    bound("EvacuateHost.timeout_s maximum", u64::from(STOP_TIMEOUT_MAX_S));
    bound("MoveToHost.pause_ms minimum", u64::from(MOVE_PAUSE_MIN_MS));
    bound("MoveToHost.pause_ms maximum", u64::from(MOVE_PAUSE_MAX_MS));
    bound("MoveToHost.channels maximum", u64::from(MOVE_CHANNELS_MAX));
    bound("BalanceHosts.plan maxLength", 64);
    bound("MoveToHost.host maxLength", text(NAME_BYTES_MAX));
    bound("MoveToHost.datastore maxLength", text(NAME_BYTES_MAX));
    for place in ["Boot.kernel", "Boot.initrd", "Cdrom.path"] {
        bound(&format!("{place} maxLength"), text(HOST_PATH_BYTES_MAX));
    }
    bound("Boot.arguments maxLength", text(KERNEL_ARGUMENTS_BYTES_MAX));
    for place in ["Cpus.sockets", "Cpus.cores", "Cpus.threads", "Growth.max_cpus"] {
        bound(&format!("{place} maximum"), u64::from(CPUS_MAX));
    }
    for place in ["CreateVm.datastore", "CreateVm.policy", "RegisterVm.datastore", "Name"] {
        bound(&format!("{place} maxLength"), text(NAME_BYTES_MAX));
    }
    for place in ["CloneVm.snapshot", "CloneVm.datastore"] {
        bound(&format!("{place} maxLength"), text(NAME_BYTES_MAX));
    }
    bound("CreateVm.disks maxItems", text(DISKS_MAX));
    bound("DatastoreCapacity.hours maxItems", text(CAPACITY_HOURS_KEPT));
    bound("DatastoreCapacity.days maxItems", text(CAPACITY_DAYS_KEPT));
    bound("CreateVm.nics maxItems", text(NICS_MAX));
    bound("PatchVm.nics maxItems", text(NICS_MAX));
    for place in ["CreateVm.tags", "TagChanges.set", "TagChanges.remove"] {
        bound(&format!("{place} maxItems"), text(TAGS_MAX));
    }
    bound("Notes maxLength", text(NOTES_CHARACTERS_MAX));
    bound("Tag maxLength", text(TAG_KEY_BYTES_MAX + "=".len() + TAG_VALUE_BYTES_MAX));
    bound("TagKey maxLength", text(TAG_KEY_BYTES_MAX));
    for request in ["AddDisk", "ResizeDisk", "VolumeChange"] {
        let place = format!("{request}.size_bytes");
        bound(&format!("{place} minimum"), MIN_VOLUME_BYTES);
        bound(&format!("{place} maximum"), MAX_VOLUME_BYTES);
        bound(&format!("{place} multipleOf"), SECTOR_BYTES);
    }
    bound("DumpVm.label maxLength", text(DUMP_LABEL_BYTES_MAX));
    bound("EncryptionWish.key maxLength", text(PROVIDER_KEY_ID_BYTES_MAX));
    for name in ["Iops", "IopsBurst"] {
        bound(&format!("{name} maximum"), IOPS_MAX);
    }
    bound("Iops minimum", IOPS_MIN);
    for name in ["Bandwidth", "BandwidthBurst"] {
        bound(&format!("{name} maximum"), BANDWIDTH_MAX_BYTES);
    }
    bound("Bandwidth minimum", BANDWIDTH_MIN_BYTES);
    bound("BandwidthBurst minimum", BLOCK_BYTES);
    bound("ImportDisk.ticket minLength", 32);
    bound("ImportDisk.ticket maxLength", 32);
    bound("Memory minimum", MEMORY_MIN_BYTES);
    bound("Memory maximum", MEMORY_MAX_BYTES);
    bound("Memory multipleOf", MEMORY_UNIT_BYTES);
    bound("NicBackend.device maxLength", text(INTERFACE_NAME_BYTES_MAX));
    bound("NicBackend.vlan maximum", u64::from(VLAN_MAX));
    bound("PolicyRules.disk_latency_p99_ms maximum", u64::from(DISK_LATENCY_P99_MAX_MS));
    bound("PolicyRules.losses_survived maximum", u64::from(LOSSES_SURVIVED_MAX));
    bound("CreateHostToken.address maxLength", text(SOCKET_ADDRESS_BYTES_MAX));
    bound("CreateHostToken.valid_seconds minimum", u64::from(HOST_TOKEN_MIN_S));
    bound("CreateHostToken.valid_seconds maximum", u64::from(HOST_TOKEN_MAX_S));
    bound("AddNetworkHost.host maxLength", text(NAME_BYTES_MAX));
    for place in ["AddNetworkHost", "BridgePort", "NetworkHost"] {
        bound(&format!("{place}.bridge maxLength"), text(INTERFACE_NAME_BYTES_MAX));
    }
    for place in ["CreateNetwork", "BridgePort", "Network"] {
        bound(&format!("{place}.vlan maximum"), u64::from(VLAN_MAX));
    }
    bound("Boot.order maxItems", text(BOOT_DEVICES_MAX));
    bound("CreatePolicy.description maxLength", text(DESCRIPTION_MAX_BYTES));
    for place in ["Board", "CreateVm", "PatchVm", "VmView"] {
        bound(&format!("{place}.machine_type maxLength"), text(QEMU_NAME_BYTES_MAX));
        bound(&format!("{place}.processor maxLength"), text(QEMU_NAME_BYTES_MAX));
    }
    bound("PolicyRules.processor maxLength", text(QEMU_NAME_BYTES_MAX));
    bound("QuiesceWithin maximum", u64::from(QUIESCE_WITHIN_MAX_S));
    bound("SetSnapshotSchedule.rules maxItems", text(SNAPSHOT_RULES_MAX));
    bound("SetPlacementGroup.add maxItems", 64);
    bound("SetPlacementGroup.remove maxItems", 64);
    bound("PolicyRules.snapshots maxItems", text(SNAPSHOT_RULES_MAX));
    bound("SnapshotRule.every_s minimum", u64::from(SNAPSHOT_PERIOD_MIN_S));
    bound("SnapshotRule.every_s maximum", u64::from(SNAPSHOT_PERIOD_MAX_S));
    bound("SnapshotRule.every_s multipleOf", u64::from(SNAPSHOT_PERIOD_UNIT_S));
    bound("SnapshotRule.at_minutes maximum", 24 * 60 - 1);
    bound("SnapshotRule.keep maximum", text(SCHEDULED_SNAPSHOTS_MAX));
    bound("Cryptoperiod.every_s minimum", u64::from(CRYPTOPERIOD_MIN_S));
    bound("Cryptoperiod.every_s maximum", u64::from(CRYPTOPERIOD_MAX_S));
    bound("Cryptoperiod.every_s multipleOf", u64::from(CRYPTOPERIOD_UNIT_S));
    bound("DayWindow.from_minutes maximum", 24 * 60 - 1);
    bound("DayWindow.to_minutes maximum", 24 * 60 - 1);
    bound("StopVm.timeout_s maximum", u64::from(STOP_TIMEOUT_MAX_S));
    bound("ReadVolumes.readings maxItems", text(READINGS_MAX));
    bound("ChangeVolumes.changes maxItems", text(VOLUME_CHANGES_MAX));
    bound("Password minLength", text(PASSWORD_BYTES_MIN));
    bound("Password maxLength", text(PASSWORD_BYTES_MAX));
    bound("SignIn.code minLength", text(CODE_DIGITS));
    bound("SignIn.code maxLength", text(CODE_DIGITS));
    bound("PageSignIn.code minLength", text(CODE_DIGITS));
    bound("PageSignIn.code maxLength", text(CODE_DIGITS));
    bound("BearerToken maxLength", text(BEARER_TOKEN_BYTES_MAX));
    bound("AccessLogHead.id maximum", EVENT_NUMBER_MAX);
    bound("AccessLogHead.hash minLength", 64);
    bound("AccessLogHead.hash maxLength", 64);
    for (limit, most) in [
        ("Quota.vms", QUOTA_COUNT_MAX),
        ("Quota.cpus", QUOTA_COUNT_MAX),
        ("Quota.memory_bytes", QUOTA_BYTES_MAX),
        ("Quota.disk_bytes", QUOTA_BYTES_MAX),
    ] {
        bound(&format!("{limit} maximum"), most);
    }
    bound("SetAccessLogRetention.keep_s minimum", ACCESS_LOG_KEEP_MIN_S);
    bound("SetAccessLogRetention.keep_s maximum", ACCESS_LOG_KEEP_MAX_S);
    bound("SetAccessLogRetention.room_bytes minimum", ACCESS_LOG_ROOM_MIN_BYTES);
    bound("SetAccessLogRetention.room_bytes maximum", ACCESS_LOG_ROOM_MAX_BYTES);
    bound("VerifyAccessLog.heads maxItems", text(ACCESS_LOG_HEADS_MAX));
    bound("WebhookUrl minLength", text("https://h".len()));
    bound("WebhookUrl maxLength", text(WEBHOOK_URL_BYTES_MAX));
    bound("Destination.authorities maxLength", text(WEBHOOK_AUTHORITY_BYTES_MAX));
    bound("MailAddress minLength", text("o@h".len()));
    bound("MailAddress maxLength", text(MAIL_ADDRESS_BYTES_MAX));
    for place in ["IssuerUrl", "PageUrl"] {
        bound(&format!("{place} minLength"), text("https://h".len()));
        bound(&format!("{place} maxLength"), text(PROVIDER_URL_BYTES_MAX));
    }
    bound("RedirectUrl minLength", text("http://h".len()));
    bound("RedirectUrl maxLength", text(PROVIDER_URL_BYTES_MAX));
    bound("ProviderText maxLength", text(PROVIDER_TEXT_BYTES_MAX));
    bound("ClientCertificate maxLength", text(CLIENT_CERTIFICATE_BYTES_MAX));
    bound("ClientSecret maxLength", text(CLIENT_SECRET_BYTES_MAX));
    bound("ProviderAnswer maxLength", text(PROVIDER_ANSWER_BYTES_MAX));
    bound("CreateIdentityProvider.scopes maxItems", text(PROVIDER_SCOPES_MAX));
    bound("CreateIdentityProvider.pages maxItems", text(PROVIDER_PAGES_MAX));
    bound("CreateIdentityProvider.authorities maxLength", text(WEBHOOK_AUTHORITY_BYTES_MAX));
    bound("CreateIdentityProvider.session_s minimum", u64::from(PROVIDER_SESSION_MIN_S));
    bound("CreateIdentityProvider.session_s maximum", u64::from(PROVIDER_SESSION_MAX_S));
    bound("EmergencySecret maxLength", text(EMERGENCY_SECRET_BYTES_MAX));
    bound("EmergencyReason maxLength", text(EMERGENCY_REASON_BYTES_MAX));
    bound("Reference maxLength", text(REFERENCE_CHARACTERS_MAX));
    bound("VolumeReading.chunk_bytes minimum", ChunkSize::LEAST.bytes());
    bound("VolumeReading.chunk_bytes maximum", ChunkSize::MOST.bytes());
    for place in ["VolumeReading.start_bytes", "VolumeReading.length_bytes"] {
        bound(&format!("{place} maximum"), MAX_VOLUME_BYTES);
    }
    for place in ["VolumeReading.snapshot", "VolumeReading.since"] {
        bound(&format!("{place} maxLength"), 64);
    }
    assert_eq!(found, expected);
}

#[test]
fn a_query_that_an_operation_does_not_know_is_refused_everywhere() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut client = server.client();
    for operation in OPERATIONS {
        let path = operation.path.replace("{task}", &"0".repeat(32)).replace("{dump}", "1");
        let path = format!("{}?nonsense=1", path.replace(['{', '}'], ""));
        let answer = client.ask(operation.method.as_str(), &path, &[], None);
        assert_eq!(answer.status, 400, "{}: {}", operation.id, answer.body);
        assert_eq!(answer.code(), "malformed", "{}", operation.id);
        assert!(answer.body.contains("nonsense"), "{}: {}", operation.id, answer.body);
    }
    for (path, says) in [
        ("/v1/vms?limit=many", "a whole number from 1 to 1000"),
        ("/v1/vms?power=foo", "one of stopped, "),
        ("/v1/tasks?state=null", "one of running, done, failed, cancelled"),
        ("/v1/events?after=9223372036854775808", "a whole number from 0 to 9223372036854775807"),
    ] {
        let answer = client.get(path);
        assert_eq!(answer.code(), "malformed", "{path}");
        assert!(
            answer.body.contains(says) && !answer.body.contains("deserialize"),
            "{path}: {}",
            answer.body
        );
    }
}

#[test]
fn the_document_names_each_status_and_the_codes_that_have_it() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let document = server.client().get("/openapi.json").json();
    let mut named = BTreeSet::new();
    for operation in
        document["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap().values())
    {
        let answers = operation["responses"].as_object().unwrap();
        for (status, answer) in answers.iter().filter(|(status, _)| !status.starts_with('2')) {
            let number: u16 =
                status.parse().unwrap_or_else(|_| panic!("{status} of {}", operation["operationId"]));
            let text = answer["description"].as_str().unwrap();
            let codes = text.split('`').skip(1).step_by(2).filter(|code| *code != "next_step");
            for code in codes {
                let code: ErrorCode = serde_json::from_value(code.into()).unwrap();
                assert_eq!(code.http_status(), number, "{text}");
                named.insert(format!("{code:?}"));
            }
        }
    }
    // Two codes are not answers of an operation.
    assert_eq!(named.len(), ErrorCode::ALL.len() - 2, "{named:?}");
}

#[test]
fn a_stream_of_events_goes_on_where_it_was_cut_off() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut client = server.client();
    with_datastore(&mut client);
    let created = client.post("/v1/vms", &wish("web1"));
    client.done(&created);
    let first = client.stream("/v1/events/stream?after=0", "", |text| text.contains("VM web1 was made"));
    let id: u64 = first.lines().find_map(|line| line.strip_prefix("id: ")).unwrap().parse().unwrap();
    let rest = client.stream("/v1/events/stream", &format!("last-event-id: {id}\r\n"), |text| {
        text.contains("VM web1 was made")
    });
    let ids = |text: &str| -> Vec<u64> {
        text.lines().filter_map(|line| line.strip_prefix("id: ")).map(|id| id.parse().unwrap()).collect()
    };
    assert_eq!(ids(&first)[1..], ids(&rest));
    // Later events arrive as well.
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let streaming = scope.spawn(|| {
            server.client().stream("/v1/events/stream", "", |text| {
                if text.contains("events of Strongroom") {
                    let _ = sender.send(());
                }
                text.contains("VM web1 runs")
            })
        });
        receiver.recv().unwrap();
        let started = client.ask("POST", "/v1/vms/web1/start", &[], None);
        client.done(&started);
        streaming.join().unwrap();
    });
}

#[test]
fn alarms_are_raised_and_cleared_by_themselves() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut client = server.client();
    with_datastore(&mut client);
    for name in ["web1", "web2"] {
        let created = client.post("/v1/vms", &wish(name));
        client.done(&created);
    }
    let last = client.get("/v1/events?limit=1").json()["items"][0]["id"].as_u64().unwrap();
    server.site.host.lock().free_bytes = 1 << 30;
    let from = format!("/v1/events/stream?after={last}");
    let raised = client.stream(&from, "", |text| text.contains("event: alarm.raised"));
    assert!(raised.contains("datastore ds1 has"), "{raised}");
    assert_eq!(client.get("/v1/alarms").json()["items"][0]["kind"], "datastore_full");
    server.site.host.lock().free_bytes = 900 << 30;
    client.stream(&from, "", |text| text.contains("event: alarm.cleared"));
    // A VM whose guest has shut down is no longer wanted on.
    let started = client.ask("POST", "/v1/vms/web1/start", &[], None);
    client.done(&started);
    server.site.host.guest("web1", |vm| {
        (vm.power, vm.reason) = (PowerState::Stopped, Some(OffReason::GuestShutdown));
    });
    client.stream(&from, "", |text| text.contains("VM web1 is wanted off"));
    assert_eq!(client.get("/v1/vms/web1").json()["desired"], "stopped");
    let metrics = client.get("/metrics").body;
    assert!(metrics.contains("strongroom_vms 2\n"), "{metrics}");
}
