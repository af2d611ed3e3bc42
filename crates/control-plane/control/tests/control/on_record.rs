//! Every operation that changes something, or reads the access log, is in the access log.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::support::Site;
use crate::support::browser::Browser;
use crate::support::client::{Answer, Client};
use crate::support::server::Server;
use serde_json::{Value, json};
use strongroom_api::access::{AccessEntry, AccessLogPage};
use strongroom_api::{OPERATIONS, operation};
use strongroom_control::passwords::code_at;

const PASSWORD: &str = "correct horse battery";

/// Calls operations with the first token, and looks for each in the access log.
struct Recorded {
    client: Client,
    browser: Browser,
    seen: BTreeSet<&'static str>,
}

impl Recorded {
    fn entries_after(&mut self, after: u64) -> Vec<AccessEntry> {
        let page = self.client.get(&format!("/v1/access/log?after={after}&limit=1000"));
        serde_json::from_str::<AccessLogPage>(&page.body).unwrap().items
    }

    fn last(&mut self) -> u64 {
        self.client.get("/v1/access/log/head").json()["id"].as_u64().unwrap()
    }

    /// Calls an operation, and waits for its task. The object fills the braces of its path.
    fn call(&mut self, id: &'static str, parts: &[&str], body: &Value) -> Value {
        self.call_as(id, parts, body, "admin")
    }

    fn call_as(&mut self, id: &'static str, parts: &[&str], body: &Value, by: &str) -> Value {
        let known = operation(id).unwrap();
        let mut path = known.path.to_owned();
        for part in parts {
            let (begin, rest) = path.split_once('{').unwrap();
            path = format!("{begin}{part}{}", rest.split_once('}').unwrap().1);
        }
        let last = self.last();
        let text = body.to_string();
        let sent = (known.method.as_str() != "GET").then_some(text.as_str());
        // The page's operations take its header, and a session of the page is known by its cookie.
        let answer: Answer = match id.starts_with("page_") {
            true => self.browser.page(known.method.as_str(), &path, sent.map(|_| body)),
            false => self.client.ask(known.method.as_str(), &path, &[], sent),
        };
        assert!((200..300).contains(&answer.status), "{id}: {}", answer.body);
        let answered = answer.json();
        let mut task = None;
        if answer.status == 202 {
            task = answered["id"].as_str().map(str::to_owned);
            if answered["awaits_image"].is_null() && id != "task_cancel" {
                let ended =
                    self.client.get(&format!("/v1/tasks/{}?wait_s=20", task.as_ref().unwrap())).json();
                // The host's stand-in suspends nothing. The request is on record all the same.
                assert!(ended["state"] == "done" || id == "vm_suspend", "{id}: {ended}");
            }
        }
        let entries = self.entries_after(last);
        let mine: Vec<_> = entries.iter().filter(|entry| entry.operation.as_deref() == Some(id)).collect();
        // The log is read to look into it.
        let mine = if id == "access_log" { &mine[..1] } else { &mine[..] };
        assert_eq!(mine.len(), 1, "{id}: {entries:?}");
        assert_eq!((Some(mine[0].kind), mine[0].by.as_str()), (known.on_record, by), "{id}");
        assert_eq!(mine[0].from.as_deref(), Some("127.0.0.1"), "{id}");
        assert_eq!(mine[0].task.map(|task| task.to_string()), task, "{id}");
        assert_eq!(mine[0].object.is_some(), task.is_some() || id == "vm_ticket", "{id}");
        self.seen.insert(id);
        answered
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn from_base32(text: &str) -> Vec<u8> {
    let letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let bits: String = text.chars().map(|one| format!("{:05b}", letters.find(one).unwrap())).collect();
    (0..bits.len() / 8).map(|at| u8::from_str_radix(&bits[at * 8..at * 8 + 8], 2).unwrap()).collect()
}

fn people(log: &mut Recorded) {
    log.call("user_create", &[], &json!({ "name": "ada", "password": PASSWORD }));
    log.call("user_password", &["ada"], &json!({ "password": PASSWORD }));
    let made = log.call("user_second_factor", &["ada"], &json!({}));
    let code = code_at(&from_base32(made["totp_secret"].as_str().unwrap()), unix_seconds());
    let sign_in = json!({ "user": "ada", "password": PASSWORD, "code": code });
    let session = log.call_as("sign_in", &[], &sign_in, "ada");
    log.call("session_end", &[session["session"]["id"].as_str().unwrap()], &json!({}));
    let by_token = json!({ "by": "token", "token": log.client.token });
    for ends in ["page_sign_out", "page_sign_out_everywhere"] {
        log.call("page_sign_in", &[], &by_token);
        log.call(ends, &[], &json!({}));
    }
    log.call("role_create", &[], &json!({ "name": "starter", "privileges": ["view", "power"] }));
    log.call("folder_create", &[], &json!({ "name": "tenant" }));
    log.call("folder_set", &["tenant"], &json!({ "quota": { "vms": 20 } }));
    let scope = json!({ "type": "folder", "folder": "tenant" });
    let grant = log.call("grant_create", &[], &json!({ "user": "ada", "role": "starter", "scope": scope }));
    log.call("grant_delete", &[grant["id"].as_str().unwrap()], &json!({}));
    let token = json!({ "name": "backup", "role": "starter", "scope": scope,
        "expires_unix_seconds": unix_seconds() + 3600 });
    log.call("token_create", &[], &token);
    log.call("token_rotate", &["backup"], &json!({}));
    log.call("token_revoke", &["backup"], &json!({}));
    log.call("role_delete", &["starter"], &json!({}));
    log.call("user_delete", &["ada"], &json!({}));
    log.call("access_review", &[], &json!({}));
    log.call("access_log", &[], &json!({}));
    log.call("access_log_head", &[], &json!({}));
    log.call("access_log_verify", &[], &json!({}));
    log.call("access_log_retention_set", &[], &json!({ "keep_s": 400 * 86_400 }));
}

fn people_from_outside(log: &mut Recorded, server: &Server) {
    let corp = json!({ "name": "corp", "issuer": "https://id.example.com", "client_id": "strongroom",
        "client_secret": "s3cret" });
    log.call("identity_provider_create", &[], &corp);
    log.call("identity_provider_set", &["corp"], &json!({ "client_secret": "another" }));
    let group = json!({ "provider": "corp", "group": "ops" });
    let site = json!({ "type": "site" });
    log.call("grant_create", &[], &json!({ "group": group, "role": "operator", "scope": site }));
    let redirect = json!({ "redirect": "http://127.0.0.1:4711/callback/corp" });
    let begun = log.client.post("/v1/identity-providers/corp/sign-ins", &redirect).json();
    server.site.vouching.knows("code", "corp", "4711", "alice", &["ops"]);
    let answer = json!({ "flow": begun["flow"], "state": begun["state"], "code": "code" });
    log.call_as("provider_sign_in", &[], &answer, "corp:alice");
    log.call("identity_provider_delete", &["corp"], &json!({}));
    let made = log.call("emergency_create", &[], &json!({ "name": "envelope1" }));
    let signs_in = json!({ "secret": made["secret"], "reason": "all others are away" });
    log.call_as("emergency_sign_in", &[], &signs_in, "emergency:envelope1");
    log.call("emergency_acknowledge", &["envelope1"], &json!({}));
    log.call("emergency_rotate", &["envelope1"], &json!({}));
    log.call("emergency_revoke", &["envelope1"], &json!({}));
}

fn disks(log: &mut Recorded) {
    log.call("vm_set", &["web1"], &json!({ "vnc": true }));
    log.call("vm_add_nic", &["web1"], &json!({ "nic": { "backend": { "type": "user" } } }));
    log.call("vm_set_nic", &["web1", "nic0"], &json!({ "link": "down" }));
    log.call("vm_remove_nic", &["web1", "nic0"], &json!({}));
    log.call("vm_add_disk", &["web1"], &json!({ "size_bytes": 1 << 20 }));
    log.call("vm_resize_disk", &["web1", "disk1"], &json!({ "size_bytes": 2 << 20 }));
    log.call("vm_limit_disk", &["web1", "disk1"], &json!({ "limits": { "iops": { "per_second": 2000 } } }));
    log.call("vm_limit", &["web1"], &json!({ "limits": {} }));
    log.call("datastore_add", &[], &json!({ "name": "fast", "path": "/srv/fast", "host": "host1" }));
    log.call("vm_move_disk", &["web1", "disk1"], &json!({ "datastore": "fast" }));
    log.call("vm_remove_disk", &["web1", "disk1"], &json!({}));
    log.call("datastore_remove", &["fast"], &json!({}));
    log.call("vm_encrypt_disk", &["clear1", "disk0"], &json!({}));
    log.call("vm_decrypt_disk", &["clear1", "disk0"], &json!({}));
    log.call("vm_import_disk", &["web1", "disk0"], &json!({ "ticket": "07".repeat(16) }));
    log.call("vm_snapshot_create", &["web1"], &json!({ "name": "monday" }));
    log.call("vm_snapshot_revert", &["web1", "monday"], &json!({}));
    log.call("vm_snapshot_delete", &["web1", "monday"], &json!({}));
    log.call("vm_snapshot_schedule_set", &["web1"], &json!({ "rules": [] }));
    log.call("vm_cryptoperiod_set", &["web1"], &json!({ "cryptoperiod": { "every_s": 86_400 } }));
    log.call("vm_rotate_key", &["web1"], &json!({}));
    let change = json!({ "changes": [{ "change": "create", "name": "data1", "size_bytes": 1 << 20 }] });
    let last = log.last();
    let changed = log.client.post("/v1/volumes/changes", &change).json();
    let task = &changed["changes"][0]["task"]["id"];
    let entry = log.entries_after(last).remove(0);
    assert_eq!(entry.operation.as_deref(), Some("volume_change"), "{changed}");
    assert_eq!(json!(entry.task), *task);
    log.seen.insert("volume_change");
}

fn power(log: &mut Recorded) {
    for id in ["vm_start", "vm_pause", "vm_resume", "vm_reset", "vm_dump", "vm_restart", "vm_suspend"] {
        log.call(id, &["web1"], &json!({}));
    }
    log.call("vm_ticket", &["web1"], &json!({ "operation": "console" }));
    log.call("vm_stop", &["web1"], &json!({}));
    log.call("vm_dump_delete", &["web1", "1"], &json!({}));
}

/// The VMs of the first host run for a while, and one of them goes to the second host and back.
fn balance(log: &mut Recorded, server: &Server) {
    for (_, host) in server.site.hosts() {
        host.lock().memory_bytes = 256 << 20;
    }
    for vm in ["web1", "clear1"] {
        let starts = log.client.post(&format!("/v1/vms/{vm}/start"), &json!({}));
        log.client.done(&starts);
    }
    let until = Instant::now() + Duration::from_secs(60);
    let plan = loop {
        let planned = log.client.get("/v1/balance").json();
        if planned["plan"].is_string() {
            break planned["plan"].clone();
        }
        assert!(Instant::now() < until, "{planned}");
        std::thread::sleep(Duration::from_millis(20));
    };
    log.call("hosts_balance", &[], &json!({ "plan": plan }));
    for vm in ["web1", "clear1"] {
        let stops = log.client.post(&format!("/v1/vms/{vm}/stop"), &json!({ "force": true }));
        log.client.done(&stops);
        if log.client.get(&format!("/v1/vms/{vm}")).json()["host"] == "host2" {
            let moves = log.client.post(&format!("/v1/vms/{vm}/host"), &json!({ "host": "host1" }));
            log.client.done(&moves);
        }
    }
}

#[test]
fn every_operation_that_changes_something_is_on_record() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::with_hosts(home.path(), Site::with_others(1));
    let browser = Browser::of(&server);
    let mut log = Recorded { client: server.client(), browser, seen: BTreeSet::new() };
    people(&mut log);
    people_from_outside(&mut log, &server);
    for name in ["ds1", "ds2"] {
        let wish = json!({ "name": name, "path": format!("/srv/{name}"), "host": "host1" });
        log.call("datastore_add", &[], &wish);
    }
    log.call("datastore_remove", &["ds2"], &json!({}));
    log.call("datastore_add_host", &["ds1"], &json!({ "host": "host2" }));
    log.call("host_evacuate", &["host2"], &json!({}));
    log.call("host_set", &["host2"], &json!({ "maintenance": false }));
    let pools = json!({ "pool": "vms", "client": { "user": "client.host1" } });
    log.call("datastore_add", &[], &json!({ "name": "big", "host": "host1", "ceph": pools }));
    let access = json!({ "host": "host2", "ceph": { "user": "client.host2" } });
    log.call("datastore_add_host", &["big"], &access);
    log.call("host_fence", &["host2"], &json!({ "confirm": "host2", "even_if_it_answers": true }));
    server.site.others[0].lock().boot_id = Some("0001".to_owned());
    log.call("host_admit", &["host2"], &json!({ "has_started_again": true }));
    log.call("datastore_remove", &["big"], &json!({}));
    log.call("host_token", &[], &json!({ "name": "host3", "address": "10.0.0.6:5691" }));
    log.call("host_remove", &["host3"], &json!({}));
    log.call("network_create", &[], &json!({ "name": "lan", "vlan": 20 }));
    log.call("network_add_host", &["lan"], &json!({ "host": "host2", "bridge": "br0" }));
    log.call("network_remove_host", &["lan", "host2"], &json!({}));
    log.call("network_delete", &["lan"], &json!({}));
    let webhook = json!({ "type": "webhook", "url": "https://desk.example.com/" });
    log.call("recipient_create", &[], &json!({ "name": "desk", "to": webhook }));
    log.call("recipient_test", &["desk"], &json!({}));
    log.call("recipient_delete", &["desk"], &json!({}));
    log.call("inventory_backup", &[], &json!({}));
    let group = json!({ "name": "db", "keep": "apart" });
    log.call("placement_group_create", &[], &group);
    log.call("placement_group_set", &["db"], &json!({}));
    log.call("placement_group_delete", &["db"], &json!({}));
    log.call("policy_create", &[], &json!({ "name": "sealed", "description": "", "rules": {} }));
    log.call("policy_set", &["sealed"], &json!({ "rules": { "tpm_required": true } }));
    log.call("policy_apply", &["sealed"], &json!({}));
    log.call("policy_delete", &["sealed"], &json!({}));
    for (name, encrypted) in [("web1", true), ("clear1", false)] {
        let wish = json!({ "name": name, "memory_bytes": 64 << 20, "disks": [{ "size_bytes": 1 << 20 }],
            "encryption": { "encrypted": encrypted }, "host": "host2" });
        log.call("vm_create", &[], &wish);
        log.call("vm_move_host", &[name], &json!({ "host": "host1" }));
    }
    balance(&mut log, &server);
    log.call("datastore_remove_host", &["ds1", "host2"], &json!({}));
    disks(&mut log);
    power(&mut log);
    log.call("vm_move", &["web1"], &json!({ "folder": "tenant" }));
    log.call("vm_move", &["web1"], &json!({}));
    log.call("folder_delete", &["tenant"], &json!({}));
    log.call("vm_clone", &["web1"], &json!({ "name": "copy1" }));
    log.call("vm_template", &["copy1"], &json!({}));
    log.call("vm_delete", &["copy1"], &json!({}));
    log.call("vm_unregister", &["clear1"], &json!({}));
    log.call("vm_register", &[], &json!({ "directory": "clear1", "accept_configuration": true }));
    log.call("datastore_rebuild", &["ds1"], &json!({}));
    let filled = json!({ "name": "filled1", "memory_bytes": 64 << 20,
        "disks": [{ "size_bytes": 1 << 20, "fill": true }], "encryption": { "encrypted": true } });
    let waits = log.client.post("/v1/vms", &filled).json();
    log.call("task_cancel", &[waits["id"].as_str().unwrap()], &json!({}));

    let recorded = OPERATIONS.iter().filter(|operation| operation.on_record.is_some());
    let forgotten: Vec<_> =
        recorded.map(|operation| operation.id).filter(|id| !log.seen.contains(id)).collect();
    assert_eq!(forgotten, [""; 0], "each operation is called here");
}

/// Nothing but these may change nothing with a method that changes something, or the reverse.
#[test]
fn only_readings_are_not_on_record() {
    let unusual = OPERATIONS
        .iter()
        .filter(|operation| (operation.method.as_str() == "GET") == operation.on_record.is_some());
    let unusual: Vec<_> = unusual.map(|operation| operation.id).collect();
    let expected = [
        "volume_read",
        "provider_sign_in_begin",
        "page_sign_in_begin",
        "access_review",
        "access_explain",
        "access_log",
        "access_log_head",
    ];
    assert_eq!(unusual, expected);
}

#[test]
fn a_refusal_behind_the_door_is_on_record() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut admin = server.client();
    let made = admin.post("/v1/users", &json!({ "name": "eve", "password": PASSWORD })).json();
    let role = json!({ "user": "eve", "role": "no-cryptography-administrator", "scope": { "type": "site" } });
    assert_eq!(admin.post("/v1/grants", &role).status, 201);
    let code = code_at(&from_base32(made["totp_secret"].as_str().unwrap()), unix_seconds());
    let signed = admin.post("/v1/sessions", &json!({ "user": "eve", "password": PASSWORD, "code": code }));
    let mut eve = server.client();
    eve.token = signed.json()["token"].as_str().unwrap().to_owned();
    // Admitted as one who makes roles, and refused because of what this one has.
    let refused = eve.post("/v1/roles", &json!({ "name": "all", "privileges": ["access"] }));
    assert_eq!(refused.code(), "forbidden");
    // An entry of a batch.
    let change = json!({ "change": "create", "name": "data1", "size_bytes": 1 << 20, "encrypted": true });
    let refused = eve.post("/v1/volumes/changes", &json!({ "changes": [change] }));
    assert_eq!(refused.json()["changes"][0]["error"]["code"], "forbidden", "{}", refused.body);
    let log = admin.get("/v1/access/log?by=eve").json();
    let log: Vec<_> = log["items"].as_array().unwrap().iter().collect();
    let told: Vec<_> = log.iter().map(|entry| (entry["kind"].clone(), entry["operation"].clone())).collect();
    assert_eq!(
        told,
        [("signed_in", "sign_in"), ("refused", "role_create"), ("refused", "volume_change")]
            .map(|(kind, operation)| (json!(kind), json!(operation)))
    );
}
