//! Who may do what: sign-in, roles, scopes, tokens, and the ways around them.

use std::fmt::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::client::{Answer, Client};
use crate::support::passwords::Argon2id;
use crate::support::server::Server;
use crate::support::{Site, create, settle_down, with_vms};
use serde_json::{Value, json};
use strongroom_api::access::{CreateGrant, CreateToken, CreateUser, Me, Scope};
use strongroom_api::guard::{Guard, Needs, Part};
use strongroom_api::task::TaskState;
use strongroom_api::{BuiltInRole, Name, OPERATIONS, Privilege, PrivilegeSet, Problem, operation};
use strongroom_control::engine::access::PathPart;
use strongroom_control::engine::{Caller, Control};
use strongroom_control::passwords::code_at;
use strongroom_control::records::Principal;

const PASSWORD: &str = "correct horse battery";
const NO_CRYPTOGRAPHY: &str = "no-cryptography-administrator";

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn from_base32(text: &str) -> Vec<u8> {
    let letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let bits: String = text.chars().map(|one| format!("{:05b}", letters.find(one).unwrap())).collect();
    (0..bits.len() / 8).map(|at| u8::from_str_radix(&bits[at * 8..at * 8 + 8], 2).unwrap()).collect()
}

fn code(made: &Answer) -> String {
    code_at(&from_base32(made.json()["totp_secret"].as_str().unwrap()), now())
}

/// A user with a role, signed in.
fn user(server: &Server, name: &str, role: &str, scope: &Value) -> Client {
    let mut admin = server.client();
    let made = admin.post("/v1/users", &json!({ "name": name, "password": PASSWORD }));
    assert_eq!(made.status, 201, "{}", made.body);
    grant(&mut admin, name, role, scope);
    let mut client = server.client();
    let signed =
        client.post("/v1/sessions", &json!({ "user": name, "password": PASSWORD, "code": code(&made) }));
    assert_eq!(signed.status, 201, "{}", signed.body);
    client.token = signed.json()["token"].as_str().unwrap().to_owned();
    client
}

fn grant(admin: &mut Client, user: &str, role: &str, scope: &Value) -> String {
    let granted = admin.post("/v1/grants", &json!({ "user": user, "role": role, "scope": scope }));
    assert_eq!(granted.status, 201, "{}", granted.body);
    granted.json()["id"].as_str().unwrap().to_owned()
}

fn site() -> Value {
    json!({ "type": "site" })
}

/// A server with an encrypted VM `web1` and one in plain text, `clear1`.
fn with_two_vms(home: &Path) -> Server {
    let server = Server::start(home);
    let mut admin = server.client();
    let added = admin.post("/v1/datastores", &json!({ "name": "ds1", "path": "/srv/ds1" }));
    admin.done(&added);
    for (name, encrypted) in [("web1", true), ("clear1", false)] {
        let wish = json!({ "name": name, "memory_bytes": 64 << 20, "disks": [{ "size_bytes": 1 << 20 }],
            "encryption": { "encrypted": encrypted } });
        let created = admin.post("/v1/vms", &wish);
        admin.done(&created);
    }
    server
}

#[test]
fn a_session_takes_a_password_and_a_code_that_counts_once() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut admin = server.client();
    let made = admin.post("/v1/users", &json!({ "name": "ada", "password": PASSWORD }));
    assert_eq!(made.status, 201, "{}", made.body);
    let code = code(&made);
    let mut client = server.client();
    client.token.clear();
    let mut sign_in = |user: &str, password: &str, code: &str| {
        client.post("/v1/sessions", &json!({ "user": user, "password": password, "code": code }))
    };
    let wrong_code = if code == "000000" { "000001" } else { "000000" };
    let refused = [
        sign_in("ada", "correct horse batterz", &code),
        sign_in("ada", PASSWORD, wrong_code),
        sign_in("bob", PASSWORD, &code),
    ];
    for answer in &refused {
        assert_eq!((answer.status, answer.problem()), (401, refused[0].problem()));
    }
    let signed = sign_in("ada", PASSWORD, &code);
    assert_eq!(signed.status, 201, "{}", signed.body);
    assert_eq!(sign_in("ada", PASSWORD, &code).status, 401, "a code counts once");
    let mut ada = server.client();
    ada.token = signed.json()["token"].as_str().unwrap().to_owned();
    let me = ada.get("/v1/me").json();
    assert_eq!((&me["name"], &me["site"]), (&json!("ada"), &json!([])));
    let store = std::fs::read(home.path().join("store.redb")).unwrap();
    for secret in [PASSWORD, &ada.token] {
        assert!(!store.windows(secret.len()).any(|here| here == secret.as_bytes()));
    }
    let log = admin.get("/v1/access/log").json();
    let kinds: Vec<&str> =
        log["items"].as_array().unwrap().iter().map(|entry| entry["kind"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        [
            "changed",
            "sign_in_refused",
            "sign_in_refused",
            "sign_in_refused",
            "signed_in",
            "sign_in_refused",
            "read"
        ]
    );
    assert!(log["items"].as_array().unwrap().iter().all(|entry| entry["from"] == "127.0.0.1"), "{log}");
    // Another password ends the sessions.
    let changed = admin.post("/v1/users/ada/password", &json!({ "password": "another long password" }));
    assert_eq!(changed.status, 200, "{}", changed.body);
    assert_eq!(ada.get("/v1/me").status, 401);
}

#[test]
fn a_second_factor_is_renewed_with_the_password_and_ends_sessions() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut ada = user(&server, "ada", "operator", &site());
    for body in [json!({}), json!({ "current": "correct horse batterz" })] {
        let refused = ada.post("/v1/users/ada/second-factor", &body);
        assert_eq!((refused.status, refused.code().as_str()), (403, "forbidden"), "{}", refused.body);
    }
    assert_eq!(ada.get("/v1/me").status, 200, "nothing was changed");
    let renewed = ada.post("/v1/users/ada/second-factor", &json!({ "current": PASSWORD }));
    assert_eq!(renewed.status, 201, "{}", renewed.body);
    assert_eq!(ada.get("/v1/me").status, 401);
    // One with every right of the user renews it without that password.
    let mut admin = server.client();
    let last = renewed;
    let renewed = admin.post("/v1/users/ada/second-factor", &json!({}));
    assert_eq!(renewed.status, 201, "{}", renewed.body);
    let mut sign_in = |made: &Answer| {
        // The user has signed in with the code of this step.
        let code = code_at(&from_base32(made.json()["totp_secret"].as_str().unwrap()), now() + 30);
        ada.post("/v1/sessions", &json!({ "user": "ada", "password": PASSWORD, "code": code })).status
    };
    assert_eq!((sign_in(&last), sign_in(&renewed)), (401, 201));
}

#[test]
fn a_caller_lists_the_grants_that_it_has_or_may_revoke() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut admin = server.client();
    assert_eq!(admin.post("/v1/folders", &json!({ "name": "tenant" })).status, 201);
    let folder = json!({ "type": "folder", "folder": "tenant" });
    let mut tess = user(&server, "tess", "administrator", &folder);
    let mut olga = user(&server, "olga", "operator", &folder);
    let mut bob = user(&server, "bob", "operator", &site());
    let mut audrey = user(&server, "audrey", "auditor", &site());
    let users = |client: &mut Client| {
        let list = client.get("/v1/grants").json();
        let items = list["items"].as_array().unwrap().iter();
        let mut users: Vec<String> = items.map(|one| one["user"].as_str().unwrap().to_owned()).collect();
        users.sort();
        users.join(" ")
    };
    assert_eq!(users(&mut tess), "olga tess");
    assert_eq!((users(&mut olga), users(&mut bob)), ("olga".to_owned(), "bob".to_owned()));
    assert_eq!(users(&mut audrey), "audrey bob olga tess");
    assert_eq!(users(&mut admin), "audrey bob olga tess");
}

#[test]
fn the_access_log_is_searched_by_caller_and_time() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let begun = now();
    let mut bob = user(&server, "bob", "operator", &site());
    assert_eq!(bob.get("/v1/access/log").status, 403);
    let mut admin = server.client();
    let kinds = |query: &str, admin: &mut Client| {
        let log = admin.get(&format!("/v1/access/log?{query}")).json();
        assert_eq!(log["total"], log["items"].as_array().unwrap().len(), "{log}");
        let kinds = log["items"].as_array().unwrap().iter().map(|entry| entry["kind"].as_str().unwrap());
        kinds.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(kinds("by=bob", &mut admin), "signed_in refused");
    assert_eq!(kinds(&format!("by=bob&since_unix_seconds={begun}"), &mut admin), "signed_in refused");
    assert_eq!(kinds("by=bob&after=0", &mut admin), "signed_in refused");
    assert_eq!(kinds(&format!("since_unix_seconds={}", begun + 3600), &mut admin), "");
    assert_eq!(kinds("by=eve", &mut admin), "");
    let review = admin.get("/v1/access").json();
    let last = review["users"][0]["last_sign_in_unix_seconds"].as_u64().unwrap();
    assert!((begun..=now()).contains(&last), "{review}");
}

/// Each way that leads to what an encrypted guest keeps. The same requests are possible for a VM in
/// plain text, and for an administrator.
#[test]
fn an_administrator_without_cryptography_reaches_no_content() {
    let home = tempfile::tempdir().unwrap();
    let server = with_two_vms(home.path());
    let mut admin = server.client();
    let snapshot = admin.post("/v1/vms/web1/snapshots", &json!({ "name": "monday" }));
    admin.done(&snapshot);
    let mut mallory = user(&server, "mallory", NO_CRYPTOGRAPHY, &site());
    let ways: &[(&str, &str, &str, Value)] = &[
        ("guest agent", "POST", "/v1/vms/web1/snapshots", json!({ "name": "q", "quiesce_within_s": 5 })),
        (
            "guest agent",
            "PATCH",
            "/v1/vms/web1/snapshot-schedule",
            json!({ "rules": [{ "every_s": 3600, "keep": 1, "quiesce_within_s": 5 }] }),
        ),
        ("screen", "POST", "/v1/vms/web1/tickets", json!({ "operation": "vnc" })),
        ("screen", "PATCH", "/v1/vms/web1", json!({ "vnc": true })),
        ("console", "POST", "/v1/vms/web1/tickets", json!({ "operation": "console" })),
        ("console", "POST", "/v1/vms/web1/tickets", json!({ "operation": "console", "read_only": true })),
        ("console", "POST", "/v1/vms/web1/tickets", json!({ "operation": "console_log" })),
        ("seed", "POST", "/v1/vms/web1/tickets", json!({ "operation": "upload", "disk": "seed" })),
        ("seed", "POST", "/v1/vms/web1/disks/seed/import", json!({ "ticket": "0".repeat(32) })),
        ("ISO", "PATCH", "/v1/vms/web1", json!({ "cdrom": { "type": "image", "path": "/srv/boot/x.iso" } })),
        ("kernel", "PATCH", "/v1/vms/web1", json!({ "boot": { "type": "kernel", "kernel": "/srv/boot/k" } })),
        ("boot order", "PATCH", "/v1/vms/web1", json!({ "boot": { "type": "disk" } })),
        ("devices", "PATCH", "/v1/vms/web1", json!({ "nics": [] })),
        ("devices", "POST", "/v1/vms/web1/disks", json!({ "size_bytes": 1 << 20 })),
        ("dump", "POST", "/v1/vms/web1/dumps", json!({})),
        ("dump", "POST", "/v1/vms/web1/tickets", json!({ "operation": "dump", "number": 1 })),
        (
            "export",
            "POST",
            "/v1/vms/web1/tickets",
            json!({ "operation": "export", "disk": "disk0", "format": "raw" }),
        ),
        ("revert, NVRAM", "POST", "/v1/vms/web1/snapshots/monday/revert", json!({})),
        ("clone", "POST", "/v1/vms/web1/clone", json!({ "name": "copy" })),
        ("clone", "POST", "/v1/vms/web1/clone", json!({ "name": "copy", "encrypted": false })),
        (
            "clone",
            "POST",
            "/v1/vms/web1/clone",
            json!({ "name": "copy", "linked": true, "snapshot": "monday" }),
        ),
        (
            "restore",
            "POST",
            "/v1/vms",
            json!({ "name": "v", "memory_bytes": 64 << 20, "disks": [{ "size_bytes": 1 << 20 }] }),
        ),
        (
            "key",
            "POST",
            "/v1/vms",
            json!({ "name": "v", "memory_bytes": 64 << 20, "disks": [{ "size_bytes": 1 << 20 }],
            "encryption": { "key": "key-0" } }),
        ),
        ("key", "POST", "/v1/vms/web1/key/rotate", json!({})),
        ("decryption", "POST", "/v1/vms/web1/disks/disk0/decrypt", json!({})),
        ("encryption", "POST", "/v1/vms/clear1/disks/disk0/encrypt", json!({})),
        ("policy downgrade", "POST", "/v1/policies", json!({ "name": "lax" })),
        ("policy downgrade", "PATCH", "/v1/policies/any", json!({ "rules": {} })),
        ("policy downgrade", "DELETE", "/v1/policies/any", json!({})),
        (
            "changed VM",
            "POST",
            "/v1/vms/register",
            json!({ "directory": "web9", "accept_configuration": true }),
        ),
        ("changed VM", "POST", "/v1/vms/register", json!({ "directory": "web9" })),
        ("changed VM", "POST", "/v1/datastores/ds1/rebuild", json!({ "accept_configuration": true })),
        ("role", "POST", "/v1/roles", json!({ "name": "mine", "privileges": ["access"] })),
        (
            "role",
            "POST",
            "/v1/grants",
            json!({ "user": "mallory", "role": "administrator", "scope": site() }),
        ),
        (
            "token",
            "POST",
            "/v1/tokens",
            json!({ "name": "t", "role": "administrator", "scope": site(),
            "expires_unix_seconds": now() + 3600 }),
        ),
    ];
    for (way, method, path, body) in ways {
        let answer = mallory.ask(method, path, &[], Some(&body.to_string()));
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (403, "forbidden"),
            "{way}: {path} {body}: {}",
            answer.body
        );
    }
    for change in [
        json!({ "change": "clone", "volume": "web1/disk0", "name": "copy" }),
        json!({ "change": "unbind", "volume": "web1/disk0", "name": "mine" }),
        json!({ "change": "create", "name": "sealed", "size_bytes": 1 << 20 }),
    ] {
        let answer = mallory.post("/v1/volumes/changes", &json!({ "changes": [change] })).json();
        assert_eq!(answer["changes"][0]["error"]["code"], "forbidden", "{answer}");
    }
    // A datastore in or over another one's directory.
    for path in ["/srv/ds1/web1", "/srv", "/srv/ds1"] {
        let added = mallory.post("/v1/datastores", &json!({ "name": "ds2", "path": path }));
        assert_eq!((added.status, added.code().as_str()), (409, "name_taken"), "{}", added.body);
    }
    let up = mallory.post("/v1/datastores", &json!({ "name": "ds2", "path": "/srv/x/../ds1" }));
    assert_eq!((up.status, up.code().as_str()), (422, "invalid"), "{}", up.body);
    // What it may: run the VM, see it, and everything with one that is not encrypted.
    assert_eq!(mallory.get("/v1/vms/web1").status, 200);
    let started = mallory.post("/v1/vms/web1/start", &json!({}));
    mallory.done(&started);
    let started = mallory.post("/v1/vms/clear1/start", &json!({}));
    mallory.done(&started);
    assert_eq!(mallory.post("/v1/vms/clear1/tickets", &json!({ "operation": "console" })).status, 201);
    let task = admin.get("/v1/tasks?limit=1").json();
    assert_eq!(
        (&task["items"][0]["by"], &task["items"][0]["from"]),
        (&json!("mallory"), &json!("127.0.0.1"))
    );
    let log = admin.get("/v1/access/log?limit=1000").json();
    let refusals = log["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["kind"] == "refused" && entry["by"] == "mallory");
    assert_eq!(refusals.count(), 20, "the first of an hour are recorded");
    // The same ways are open to an administrator of the site.
    let ticket = admin.post("/v1/vms/web1/tickets", &json!({ "operation": "console" }));
    assert_eq!(ticket.status, 201, "{}", ticket.body);
}

#[test]
fn a_ticket_ends_with_its_callers_right_to_it() {
    let home = tempfile::tempdir().unwrap();
    let server = with_two_vms(home.path());
    let mut admin = server.client();
    let mut ada = user(&server, "ada", "auditor", &site());
    let granted = grant(&mut admin, "ada", "administrator", &site());
    let console = json!({ "operation": "console" });
    for client in [&mut ada, &mut admin] {
        assert_eq!(client.post("/v1/vms/web1/tickets", &console).status, 201);
    }
    let void = || server.site.host.lock().void_tickets.len();
    // Another change ends none.
    let made = admin.post("/v1/users", &json!({ "name": "bob", "password": PASSWORD }));
    assert_eq!((made.status, void()), (201, 0), "{}", made.body);
    let withdrawn = admin.ask("DELETE", &format!("/v1/grants/{granted}"), &[], None);
    assert_eq!((withdrawn.status, void()), (200, 1), "{}", withdrawn.body);
    assert_eq!(ada.post("/v1/vms/web1/tickets", &console).status, 403);
}

#[test]
fn nobody_gives_or_takes_over_what_it_does_not_have() {
    let home = tempfile::tempdir().unwrap();
    let server = with_two_vms(home.path());
    let mut admin = server.client();
    let made = admin.post("/v1/folders", &json!({ "name": "tenant" }));
    assert_eq!(made.status, 201, "{}", made.body);
    drop(user(&server, "ada", "administrator", &site()));
    let mut tess = user(&server, "tess", "administrator", &json!({ "type": "folder", "folder": "tenant" }));
    let mut mallory = user(&server, "mallory", NO_CRYPTOGRAPHY, &site());
    let forbidden = |answer: &Answer| assert_eq!(answer.status, 403, "{}", answer.body);
    // The password of one that may do more, and its deletion.
    forbidden(&mallory.post("/v1/users/ada/password", &json!({ "password": "a password of mine" })));
    forbidden(&mallory.post("/v1/users/ada/second-factor", &json!({})));
    forbidden(&mallory.ask("DELETE", "/v1/users/ada", &[], None));
    // An administrator of a folder does not raise its quota.
    let quota = json!({ "quota": { "vms": 1 } }).to_string();
    let set = |client: &mut Client| client.ask("PATCH", "/v1/folders/tenant", &[], Some(&quota));
    forbidden(&set(&mut tess));
    assert_eq!(set(&mut admin).json()["quota"], json!({ "vms": 1 }));
    // In the folder, Tess may read what the VM keeps.
    forbidden(&mallory.post("/v1/vms/web1/folder", &json!({ "folder": "tenant" })));
    let moved = admin.post("/v1/vms/web1/folder", &json!({ "folder": "tenant" }));
    admin.done(&moved);
    // What it has, it gives.
    let role = mallory.post("/v1/roles", &json!({ "name": "starter", "privileges": ["view", "power"] }));
    assert_eq!(role.status, 201, "{}", role.body);
    let mut bob = user(&server, "bob", "starter", &json!({ "type": "vm", "vm": "web1" }));
    let started = bob.post("/v1/vms/web1/start", &json!({}));
    bob.done(&started);
    forbidden(&bob.post("/v1/vms/web1/snapshots", &json!({ "name": "s" })));
    forbidden(&bob.post("/v1/users", &json!({ "name": "eve", "password": PASSWORD })));
    forbidden(&bob.post("/v1/grants", &json!({ "user": "bob", "role": "starter", "scope": site() })));
    assert_eq!(admin.ask("DELETE", "/v1/roles/starter", &[], None).code(), "in_use");
}

#[test]
fn a_tenant_connects_its_vms_to_the_networks_that_it_was_given_and_to_no_bridge() {
    let home = tempfile::tempdir().unwrap();
    let server = with_two_vms(home.path());
    let mut admin = server.client();
    assert_eq!(admin.post("/v1/folders", &json!({ "name": "tenant" })).status, 201);
    for name in ["lan", "dmz"] {
        let made = admin.post("/v1/networks", &json!({ "name": name, "vlan": 20 }));
        admin.done(&made);
        let on = json!({ "host": "host1", "bridge": "br0" });
        let put = admin.post(&format!("/v1/networks/{name}/hosts"), &on);
        admin.done(&put);
    }
    for (role, privileges) in [("guest", ["view", "connect"]), ("maker", ["view", "create"])] {
        let made = admin.post("/v1/roles", &json!({ "name": role, "privileges": privileges }));
        assert_eq!(made.status, 201, "{}", made.body);
    }
    let mut tess = user(&server, "tess", "administrator", &json!({ "type": "folder", "folder": "tenant" }));
    grant(&mut admin, "tess", "maker", &json!({ "type": "datastore", "datastore": "ds1" }));
    let given = grant(&mut admin, "tess", "guest", &json!({ "type": "network", "network": "lan" }));
    let networks = tess.get("/v1/networks").json();
    assert_eq!((&networks["total"], &networks["items"][0]["name"]), (&json!(1), &json!("lan")));
    let network = |name: &str| json!({ "type": "network", "network": name });
    let [bridge, tap] = ["bridge", "tap"].map(|kind| json!({ "type": kind, "device": "br0" }));
    let wish = |name: &str, backend: &Value| {
        json!({ "name": name, "folder": "tenant", "memory_bytes": 64 << 20, "disks": [{ "size_bytes": 1 << 20 }],
            "nics": [{ "backend": backend }] })
    };
    let made = tess.post("/v1/vms", &wish("web2", &network("lan")));
    tess.done(&made);
    let made = tess.post("/v1/vms", &wish("web3", &json!({ "type": "user" })));
    tess.done(&made);
    for (backend, status) in [(network("dmz"), 404), (network("absent"), 404), (bridge, 403), (tap, 403)] {
        let refused = tess.post("/v1/vms", &wish("web4", &backend));
        assert_eq!(refused.status, status, "{backend}: {}", refused.body);
        let patch = json!({ "nics": [{ "backend": backend }] }).to_string();
        let refused = tess.ask("PATCH", "/v1/vms/web3", &[], Some(&patch));
        assert_eq!(refused.status, status, "{backend}: {}", refused.body);
    }
    for (method, path, body) in [
        ("POST", "/v1/networks", json!({ "name": "mine" })),
        ("POST", "/v1/networks/lan/hosts", json!({ "host": "host1", "bridge": "br1" })),
        ("DELETE", "/v1/networks/lan/hosts/host1", json!({})),
        ("DELETE", "/v1/networks/lan", json!({})),
    ] {
        let refused = tess.ask(method, path, &[], Some(&body.to_string()));
        assert_eq!((refused.status, refused.code().as_str()), (403, "forbidden"), "{path}: {}", refused.body);
    }
    // Without the role, what is connected stays, and nothing more is.
    assert_eq!(admin.ask("DELETE", &format!("/v1/grants/{given}"), &[], None).status, 200);
    assert_eq!(tess.post("/v1/vms", &wish("web4", &network("lan"))).status, 404);
    assert_eq!(admin.get("/v1/networks/lan").json()["vms"], 1);
}

#[test]
fn what_a_caller_may_not_view_does_not_exist_for_it() {
    let home = tempfile::tempdir().unwrap();
    let server = with_two_vms(home.path());
    let mut admin = server.client();
    assert_eq!(admin.post("/v1/folders", &json!({ "name": "tenant" })).status, 201);
    let moved = admin.post("/v1/vms/clear1/folder", &json!({ "folder": "tenant" }));
    admin.done(&moved);
    let web1 = admin.get("/v1/vms/web1").json();
    let (id, volume) = (web1["id"].as_str().unwrap(), web1["disks"][0]["volume"].as_str().unwrap());
    let mut tess = user(&server, "tess", "administrator", &json!({ "type": "folder", "folder": "tenant" }));
    for (path, name) in [("/v1/vms", "name"), ("/v1/vms?name=1", "name"), ("/v1/volumes", "vm_name")] {
        let list = tess.get(path).json();
        assert_eq!(
            (&list["total"], list["items"].as_array().unwrap().len()),
            (&json!(1), 1),
            "{path}: {list}"
        );
        let named = list["items"][0][name].to_string();
        assert!(named.contains("clear1"), "{path}: {list}");
    }
    assert_eq!(tess.get("/v1/vms?name=web").json()["total"], 0);
    assert_eq!(tess.get("/v1/datastores").json()["total"], 0);
    for path in ["/v1/events?limit=1000", "/v1/tasks", "/v1/alarms"] {
        let list = tess.get(path);
        assert_eq!(list.status, 200, "{path}: {}", list.body);
        assert!(!list.body.contains("web1") && !list.body.contains("ds1"), "{path}: {}", list.body);
    }
    for path in ["/v1/hosts", "/metrics", "/v1/users", "/v1/access", "/v1/access/log"] {
        assert_eq!(tess.get(path).status, 403, "{path}");
    }
    // A hidden object is refused as an absent one is, by name and by id.
    for named in ["web1", id] {
        for (method, path, body) in [
            ("GET", "/v1/vms/{}", None),
            ("GET", "/v1/vms/{}/stats", None),
            ("DELETE", "/v1/vms/{}", None),
            ("POST", "/v1/vms/{}/start", Some("not JSON")),
            ("POST", "/v1/vms/{}/tickets", Some(r#"{"operation":"console"}"#)),
        ] {
            let absent = "nobody1";
            let hidden = tess.ask(method, &path.replace("{}", named), &[], body);
            let none = tess.ask(method, &path.replace("{}", absent), &[], body);
            assert_eq!(hidden.status, none.status, "{path}");
            let told = hidden.problem().to_string().replace(named, absent);
            assert_eq!(told, none.problem().to_string(), "{path}");
        }
    }
    assert_eq!(tess.get(&format!("/v1/volumes/{volume}")).code(), "not_found");
    let read = json!({ "readings": [{ "volume": volume, "kind": "space" }] });
    assert_eq!(tess.post("/v1/volumes/readings", &read).json()["readings"][0]["error"]["code"], "not_found");
    let bind = json!({ "changes": [{ "change": "snapshot", "volume": "web1/disk0", "name": "s" }] });
    assert_eq!(tess.post("/v1/volumes/changes", &bind).json()["changes"][0]["error"]["code"], "not_found");
    // In its folder, an administrator does everything.
    let started = tess.post("/v1/vms/clear1/start", &json!({}));
    tess.done(&started);
    let with = tess.post("/v1/vms/clear1/snapshots", &json!({ "name": "s", "with": ["web1"] }));
    assert_eq!(with.code(), "not_found", "{}", with.body);
}

#[test]
fn a_token_has_a_role_an_end_and_no_more_than_its_user() {
    let home = tempfile::tempdir().unwrap();
    let server = with_two_vms(home.path());
    let mut admin = server.client();
    let mut ada = user(&server, "ada", "operator", &json!({ "type": "vm", "vm": "web1" }));
    let wish = |expires: u64| json!({ "name": "backup", "role": "operator", "scope": { "type": "vm", "vm": "web1" }, "expires_unix_seconds": expires });
    assert_eq!(ada.post("/v1/tokens", &wish(now() - 1)).code(), "invalid");
    assert_eq!(ada.post("/v1/tokens", &wish(now() + 400 * 86_400)).code(), "invalid");
    let made = ada.post("/v1/tokens", &wish(now() + 3600));
    assert_eq!(made.status, 201, "{}", made.body);
    let mut program = server.client();
    program.token = made.json()["token"].as_str().unwrap().to_owned();
    let started = program.post("/v1/vms/web1/start", &json!({}));
    program.done(&started);
    assert_eq!(program.get("/v1/vms").json()["total"], 1);
    // It makes no tokens that would outlive it.
    assert_eq!(
        program
            .post(
                "/v1/tokens",
                &json!({ "name": "more", "role": "operator",
        "scope": { "type": "vm", "vm": "web1" }, "expires_unix_seconds": now() + 3600 })
            )
            .status,
        403
    );
    let rotated = ada.post("/v1/tokens/backup/rotate", &json!({}));
    assert_eq!(rotated.status, 201, "{}", rotated.body);
    assert_eq!(program.get("/v1/vms").status, 401, "the old one has ended");
    program.token = rotated.json()["token"].as_str().unwrap().to_owned();
    assert_eq!(program.get("/v1/vms/web1").status, 200);
    // Its user loses the role, and the token with it.
    let review = admin.get("/v1/access").json();
    let granted = review["users"][0]["grants"][0]["id"].as_str().unwrap();
    assert_eq!(admin.ask("DELETE", &format!("/v1/grants/{granted}"), &[], None).status, 200);
    assert_eq!(program.get("/v1/vms/web1").code(), "not_found");
    assert_eq!(ada.get("/v1/vms").json()["total"], 0);
    assert_eq!(ada.ask("DELETE", "/v1/tokens/backup", &[], None).status, 200);
    assert_eq!(program.get("/v1/me").status, 401);
}

#[test]
fn a_linked_clone_that_leaves_a_snapshot_takes_what_a_snapshot_does() {
    let home = tempfile::tempdir().unwrap();
    let server = with_two_vms(home.path());
    let mut admin = server.client();
    let role = json!({ "name": "copier", "privileges": ["view", "create"] });
    assert_eq!(admin.post("/v1/roles", &role).status, 201);
    let mut eve = user(&server, "eve", "copier", &site());
    let link = |name: &str| json!({ "name": name, "linked": true });
    let change = json!({ "changes": [
        { "change": "clone", "volume": "clear1/disk0", "name": "copied" },
        { "change": "clone", "volume": "clear1/disk0", "name": "linked", "linked": true },
    ] });
    let lacks = |problem: &Value| {
        assert_eq!(problem["error"]["code"], "forbidden", "{problem}");
        assert!(problem["error"]["message"].as_str().unwrap().contains("snapshot"), "{problem}");
    };
    let refused = eve.post("/v1/vms/clear1/clone", &link("link"));
    assert_eq!(refused.status, 403, "{}", refused.body);
    lacks(&refused.json());
    let copied = eve.post("/v1/vms/clear1/clone", &json!({ "name": "copy" }));
    eve.done(&copied);
    let changes = eve.post("/v1/volumes/changes", &change).json();
    lacks(&changes["changes"][1]);
    let copied = changes["changes"][0]["task"]["id"].as_str().unwrap();
    assert_eq!(eve.get(&format!("/v1/tasks/{copied}?wait_s=20")).json()["state"], "done");
    let listed = admin.get("/v1/access/log?by=eve").json();
    let refusals = listed["items"].as_array().unwrap().iter().filter(|entry| entry["kind"] == "refused");
    let operations: Vec<_> = refusals.map(|entry| entry["operation"].as_str().unwrap()).collect();
    assert_eq!(operations, ["vm_clone", "volume_change"], "{listed}");
    let snapshots = admin.get("/v1/vms/clear1/snapshots").json();
    assert_eq!(snapshots["items"], json!([]), "{snapshots}");

    // One that is there already is shared, and so is a template's.
    let made = admin.post("/v1/vms/clear1/snapshots", &json!({ "name": "monday" }));
    admin.done(&made);
    let linked =
        eve.post("/v1/vms/clear1/clone", &json!({ "name": "link1", "linked": true, "snapshot": "monday" }));
    eve.done(&linked);
    let template = admin.post("/v1/vms/clear1/template", &json!({}));
    admin.done(&template);
    let linked = eve.post("/v1/vms/clear1/clone", &link("link2"));
    eve.done(&linked);
}

#[test]
fn a_move_to_another_host_takes_migrate_and_an_evacuation_what_its_steps_take() {
    let home = tempfile::tempdir().unwrap();
    let server = with_two_vms(home.path());
    let mut admin = server.client();
    let mut with = |name: &str, privileges: &[&str]| {
        let role = admin.post("/v1/roles", &json!({ "name": name, "privileges": privileges }));
        assert_eq!(role.status, 201, "{}", role.body);
        let token =
            json!({ "name": name, "role": name, "scope": site(), "expires_unix_seconds": now() + 3600 });
        let made = admin.post("/v1/tokens", &token);
        let mut client = server.client();
        client.token = made.json()["token"].as_str().unwrap().to_owned();
        client
    };
    let mut mover = with("mover", &["view", "migrate"]);
    let mut changer = with("changer", &["view", "configure", "power"]);
    let mut evacuator = with("evacuator", &["view", "configure", "power", "migrate"]);
    let refused = changer.post("/v1/vms/web1/host", &json!({ "host": "host1" }));
    assert_eq!(refused.code(), "forbidden", "{}", refused.body);
    assert!(refused.body.contains("migrate"), "{}", refused.body);
    // It is there already, which is said to those only who may move it.
    assert_eq!(mover.post("/v1/vms/web1/host", &json!({ "host": "host1" })).code(), "conflict");
    assert_eq!(mover.ask("PATCH", "/v1/vms/web1", &[], Some(r#"{"notes":"x"}"#)).code(), "forbidden");
    for lacking in [&mut mover, &mut changer] {
        assert_eq!(lacking.post("/v1/hosts/host1/evacuate", &json!({})).code(), "forbidden");
    }
    let with_volumes = json!({ "with_volumes": true });
    let refused = evacuator.post("/v1/hosts/host1/evacuate", &with_volumes);
    assert_eq!(refused.code(), "forbidden", "{}", refused.body);
    let evacuated = evacuator.post("/v1/hosts/host1/evacuate", &json!({}));
    assert_eq!(evacuated.status, 202, "{}", evacuated.body);
    // The former evacuation may still be under way, which is said to those only who may evacuate.
    let mut placer = with("placer", &["view", "configure", "power", "migrate", "create"]);
    let placed = placer.post("/v1/hosts/host1/evacuate", &with_volumes);
    assert!(placed.status == 202 || placed.code() == "busy", "{}", placed.body);
}

#[test]
fn a_task_whose_caller_loses_its_role_begins_nothing() {
    let (site, control) = with_vms(&["web1"]);
    let machine = Caller::machine("test");
    let wish = CreateUser { name: "ada".parse().unwrap(), password: PASSWORD.to_owned().into() };
    let ada = control.create_user(&machine, &wish, &Argon2id).unwrap().user;
    let grant = CreateGrant {
        user: Some("ada".to_owned().try_into().unwrap()),
        group: None,
        role: "operator".parse().unwrap(),
        scope: Scope::Site {},
    };
    let start = || {
        let caller = Caller { principal: Principal::User(ada.id), ..Caller::machine("ada") };
        let path = PathPart { parameter: "vm", value: "web1" };
        let admitted = control.admit(caller, operation("vm_start").unwrap(), Some(path))?;
        control.start_vm(&admitted.caller, "web1", &serde_json::from_str("{}").unwrap())
    };
    assert!(start().is_err(), "without a role");
    let granted = control.create_grant(&machine, &grant).unwrap();
    let task = start().unwrap();
    control.delete_grant(&machine, granted.id).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_task(task.id).unwrap().state, TaskState::Cancelled);
    let power = control.show_vm("web1").unwrap().summary.power;
    assert_eq!(power, strongroom_api::vm::PowerState::Stopped);
    // With the role all the way, the same task is done.
    control.create_grant(&machine, &grant).unwrap();
    let task = start().unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_task(task.id).unwrap().state, TaskState::Done);
}

/// A site with places of each kind: VM `web1`, encrypted, and `clear1` in folder `tenant`, `web2`
/// and `clear2` in none; two datastores, two networks.
fn with_places() -> (Site, Control) {
    let (site, control) = with_vms(&["web1", "web2"]);
    let machine = Caller::machine("test");
    for name in ["clear1", "clear2"] {
        control.create_vm(&machine, &create(name, false)).unwrap();
    }
    assert!(settle_down(&site, &control));
    let folder = serde_json::from_value(json!({ "name": "tenant" })).unwrap();
    control.create_folder(&machine, &folder).unwrap();
    for vm in ["web1", "clear1"] {
        let into = serde_json::from_value(json!({ "folder": "tenant" })).unwrap();
        control.move_vm(&machine, vm, &into).unwrap();
    }
    let datastore = serde_json::from_value(json!({ "name": "ds2", "path": "/srv/ds2" })).unwrap();
    control.add_datastore(&machine, &datastore).unwrap();
    for (name, vlan) in [("net1", 7), ("net2", 8)] {
        let network = serde_json::from_value(json!({ "name": name, "vlan": vlan })).unwrap();
        control.create_network(&machine, &network).unwrap();
    }
    assert!(settle_down(&site, &control));
    (site, control)
}

/// What `GET /v1/me` says of an object: what counts everywhere and at the places that it is or is
/// in.
fn said_of(me: &Me, parameter: &str, value: &str) -> PrivilegeSet {
    let folder = ["web1", "clear1"].contains(&value).then_some("tenant");
    let covers = |scope: &Scope| match scope {
        Scope::Site {} => true,
        Scope::Folder { folder: named } => folder == Some(named.as_str()),
        Scope::Vm { vm } => parameter == "vm" && vm.as_str() == value,
        Scope::Datastore { datastore } => parameter == "datastore" && datastore.as_str() == value,
        Scope::Network { network } => parameter == "network" && network.as_str() == value,
    };
    let mut all = me.site.clone();
    me.places.iter().filter(|at| covers(&at.scope)).for_each(|at| all.add(&at.privileges));
    all
}

/// Every operation on every object is admitted for a caller exactly if its `me` says so. Returns
/// how many were admitted and how many refused.
fn me_is_true(control: &Control, caller: &Caller, who: &str) -> (usize, usize) {
    let me = control.me(caller);
    let (mut admitted, mut refused) = (0, 0);
    for operation in OPERATIONS {
        let Guard::Needs(needs) = operation.guard else { continue };
        let parameter = operation.path.split('{').nth(1).and_then(|rest| rest.split('}').next());
        let objects: &[&str] = match parameter {
            Some("vm") => &["web1", "web2", "clear1", "clear2"],
            Some("datastore") => &["ds1", "ds2"],
            Some("network") => &["net1", "net2"],
            _ => &[""],
        };
        for object in objects {
            let at_place = !object.is_empty();
            let path = parameter.map(|parameter| PathPart { parameter, value: object });
            let held = said_of(&me, parameter.unwrap_or_default(), object);
            let more = if object.starts_with("web") { needs.if_encrypted } else { &[] };
            let said = needs.always.iter().chain(more).all(|needed| held.has(*needed))
                && (!at_place || held.has(Privilege::View));
            // A volume is one that a VM has; which is judged there.
            let path = path.filter(|part| part.parameter != "volume");
            let judged = control.admit(caller.clone(), operation, path).is_ok();
            assert_eq!(judged, said, "{who}: {} {object}: {me:?}", operation.id);
            match judged {
                true => admitted += 1,
                false => refused += 1,
            }
        }
    }
    (admitted, refused)
}

#[test]
fn what_a_caller_is_told_that_it_may_is_what_it_may() {
    let (_site, control) = with_places();
    let machine = Caller::machine("test");
    let scopes = [
        json!({ "type": "site" }),
        json!({ "type": "folder", "folder": "tenant" }),
        json!({ "type": "vm", "vm": "web1" }),
        json!({ "type": "vm", "vm": "clear2" }),
        json!({ "type": "datastore", "datastore": "ds2" }),
        json!({ "type": "network", "network": "net1" }),
    ];
    let scopes = scopes.map(|scope| serde_json::from_value::<Scope>(scope).unwrap());
    // One that may change what it may not look at.
    let blind = json!({ "name": "blind", "privileges": ["power", "configure", "datastores"] });
    control.create_role(&machine, &serde_json::from_value(blind).unwrap()).unwrap();
    let roles = BuiltInRole::ALL.map(BuiltInRole::as_str).into_iter().chain(["blind"]);
    let roles: Vec<Name> = roles.map(|role| role.parse().unwrap()).collect();
    let (mut admitted, mut refused) = (0, 0);
    let mut check = |caller: &Caller, who: &str| {
        let (yes, no) = me_is_true(&control, caller, who);
        (admitted, refused) = (admitted + yes, refused + no);
    };
    let expires_unix_seconds = control.now_unix_ms() / 1000 + 3600;
    let token_of = |maker: &Caller, name: &str, role: &Name, scope: &Scope| {
        let wish = CreateToken {
            name: name.parse().unwrap(),
            role: role.clone(),
            scope: scope.clone(),
            expires_unix_seconds,
            certificate: None,
        };
        let made = control.create_token(maker, &wish)?;
        Ok::<_, Problem>(Caller { principal: Principal::Token(made.info.id), ..Caller::machine(name) })
    };
    for (at, role) in roles.iter().enumerate() {
        for (of, scope) in scopes.iter().enumerate() {
            let name = format!("user{at}-{of}");
            let user = CreateUser { name: name.parse().unwrap(), password: PASSWORD.to_owned().into() };
            let user = control.create_user(&machine, &user, &Argon2id).unwrap().user;
            let grant = CreateGrant {
                user: Some(name.clone().try_into().unwrap()),
                group: None,
                role: role.clone(),
                scope: scope.clone(),
            };
            control.create_grant(&machine, &grant).unwrap();
            let ada = Caller { principal: Principal::User(user.id), ..Caller::machine(&name) };
            check(&ada, &format!("a user with {role} at {scope:?}"));
            let program = token_of(&machine, &format!("token{at}-{of}"), role, scope).unwrap();
            check(&program, &format!("a token with {role} at {scope:?}"));
            assert!(control.me(&program).grants.is_empty());
        }
    }
    // A token that its user made has no more than the user has by then: roles at other places.
    let all = [("administrator", 0), ("operator", 1), ("auditor", 2), ("blind", 1), ("operator", 5)];
    for (at, (first, of)) in all.into_iter().enumerate() {
        let name = format!("maker{at}");
        let user = CreateUser { name: name.parse().unwrap(), password: PASSWORD.to_owned().into() };
        let user = control.create_user(&machine, &user, &Argon2id).unwrap().user;
        let give = |role: &str, scope: &Scope| {
            let grant = CreateGrant {
                user: Some(name.clone().try_into().unwrap()),
                group: None,
                role: role.parse().unwrap(),
                scope: scope.clone(),
            };
            control.create_grant(&machine, &grant).unwrap().id
        };
        let whole = give("administrator", &scopes[0]);
        let ada = Caller { principal: Principal::User(user.id), ..Caller::machine(&name) };
        let programs: Vec<_> = scopes
            .iter()
            .enumerate()
            .map(|(number, scope)| {
                token_of(&ada, &format!("by{at}-{number}"), &"administrator".parse().unwrap(), scope).unwrap()
            })
            .collect();
        // What is left of the maker's rights is at one place, and a token's at another.
        give(first, &scopes[of]);
        give("operator", &scopes[3]);
        control.delete_grant(&machine, whole).unwrap();
        for (program, scope) in programs.iter().zip(&scopes) {
            check(program, &format!("a token at {scope:?} of a user with {first} at {:?}", scopes[of]));
        }
    }
    check(&machine, "the first token");
    assert!(admitted > 500 && refused > 5000, "{admitted} were admitted and {refused} refused");
}

fn permits(role: BuiltInRole, needs: Needs, encrypted: bool) -> bool {
    let more = if encrypted { needs.if_encrypted } else { &[] };
    needs.always.iter().chain(more).all(|needed| role.privileges().has(*needed))
}

fn cells(needs: Needs) -> String {
    let cell = |role| match (permits(role, needs, false), permits(role, needs, true)) {
        (true, true) => "yes",
        (true, false) => "in plain text",
        (false, _) => "no",
    };
    BuiltInRole::ALL.map(|role| format!(" {} |", cell(role))).concat()
}

fn names(privileges: &[Privilege]) -> String {
    privileges.iter().map(|one| format!("`{}`", one.as_str())).collect::<Vec<_>>().join(", ")
}

/// The tables of docs/ROLES.md, from the tables that the server goes by.
fn matrix() -> String {
    let roles = BuiltInRole::ALL.map(|role| format!(" {} |", role.as_str())).concat();
    let mut text =
        format!("| operation | takes | if encrypted, also |{roles}\n|---|---|---|---|---|---|---|\n");
    for operation in OPERATIONS {
        let (always, more, cells) = match operation.guard {
            Guard::Everyone => ("no token".to_owned(), String::new(), " yes |".repeat(4)),
            Guard::Callers => ("a token".to_owned(), String::new(), " what it may view |".repeat(4)),
            Guard::Request | Guard::Entries => {
                ("see the fields".to_owned(), String::new(), " see the fields |".repeat(4))
            }
            Guard::Needs(needs) => (names(needs.always), names(needs.if_encrypted), cells(needs)),
        };
        writeln!(text, "| `{}` | {always} | {more} |{cells}", operation.id).unwrap();
    }
    write!(text, "\n| fields | take | if encrypted, also |{roles}\n|---|---|---|---|---|---|---|\n").unwrap();
    for part in Part::ALL {
        let needs = part.needs();
        let (always, more) = (names(needs.always), names(needs.if_encrypted));
        writeln!(text, "| {} | {always} | {more} |{}", part.fields(), cells(needs)).unwrap();
    }
    text
}

#[test]
fn the_document_of_roles_is_what_the_server_goes_by() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/ROLES.md");
    let (begin, end) = ("<!-- matrix -->\n", "<!-- end of matrix -->\n");
    let text = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = text.split_once(begin).unwrap();
    let (there, tail) = rest.split_once(end).unwrap();
    if std::env::var_os("STRONGROOM_TRANSCRIBE").is_some() {
        std::fs::write(&path, format!("{head}{begin}{}{end}{tail}", matrix())).unwrap();
        return;
    }
    assert_eq!(there, matrix(), "STRONGROOM_TRANSCRIBE=1 writes it anew");
}

/// A privilege that guards nothing would be a promise without effect.
#[test]
fn every_privilege_guards_something() {
    let of_operations = OPERATIONS.iter().filter_map(|operation| match operation.guard {
        Guard::Needs(needs) => Some(needs),
        Guard::Everyone | Guard::Callers | Guard::Request | Guard::Entries => None,
    });
    let all: Vec<Needs> = of_operations.chain(Part::ALL.map(Part::needs)).collect();
    for privilege in Privilege::ALL {
        let guards = all
            .iter()
            .any(|needs| needs.always.iter().chain(needs.if_encrypted).any(|one| *one == privilege));
        assert!(guards, "{privilege:?} guards nothing");
    }
}
