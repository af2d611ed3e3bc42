//! People of identity providers: how they come in, what their groups give, and what ends it.

use serde_json::{Value, json};
use strongroom_api::identity::{BeginSignIn, FinishSignIn};
use strongroom_control::engine::SigningIn;
use strongroom_control::records::{Principal, Record};

use crate::support::Site;
use crate::support::client::{Answer, Client};
use crate::support::identity::Vouching;
use crate::support::server::Server;

const PASSWORD: &str = "correct horse battery";

fn add_provider(admin: &mut Client, name: &str) {
    let issuer = format!("https://{name}.example.com");
    let made = admin.post(
        "/v1/identity-providers",
        &json!({ "name": name, "issuer": issuer, "client_id": "strongroom" }),
    );
    assert_eq!(made.status, 201, "{}", made.body);
}

fn site() -> Value {
    json!({ "type": "site" })
}

fn grant(admin: &mut Client, provider: &str, group: &str, role: &str, scope: &Value) -> String {
    let group = json!({ "provider": provider, "group": group });
    let granted = admin.post("/v1/grants", &json!({ "group": group, "role": role, "scope": scope }));
    assert_eq!(granted.status, 201, "{}", granted.body);
    granted.json()["id"].as_str().unwrap().to_owned()
}

/// Begins a sign-in. Returns the flow and the state.
fn begin(stranger: &mut Client, provider: &str) -> (Value, Value) {
    let redirect = json!({ "redirect": format!("http://127.0.0.1:4711/callback/{provider}") });
    let begun = stranger.post(&format!("/v1/identity-providers/{provider}/sign-ins"), &redirect);
    assert_eq!(begun.status, 201, "{}", begun.body);
    let begun = begun.json();
    let url = begun["authorization_url"].as_str().unwrap();
    assert!(url.contains(begun["state"].as_str().unwrap()) && !url.contains(begun["flow"].as_str().unwrap()));
    (begun["flow"].clone(), begun["state"].clone())
}

fn finish(stranger: &mut Client, flow: &Value, state: &Value, code: &str) -> Answer {
    stranger.post("/v1/provider-sessions", &json!({ "flow": flow, "state": state, "code": code }))
}

fn stranger(server: &Server) -> Client {
    let mut client = server.client();
    client.token.clear();
    client
}

/// Somebody who comes in with these groups.
struct Somebody<'test> {
    provider: &'test str,
    subject: &'test str,
    user: &'test str,
    groups: &'test [&'test str],
}

impl Somebody<'_> {
    fn tries(&self, server: &Server) -> Answer {
        let mut stranger = stranger(server);
        let (flow, state) = begin(&mut stranger, self.provider);
        server.site.vouching.knows("code", self.provider, self.subject, self.user, self.groups);
        finish(&mut stranger, &flow, &state, "code")
    }

    fn signs_in(&self, server: &Server) -> Client {
        let signed = self.tries(server);
        assert_eq!(signed.status, 201, "{}", signed.body);
        let mut client = server.client();
        client.token = signed.json()["token"].as_str().unwrap().to_owned();
        client
    }
}

const ALICE: Somebody<'_> =
    Somebody { provider: "corp", subject: "4711", user: "alice", groups: &["ops", "staff"] };

/// The messages of refused sign-ins on the access log.
fn refusals(admin: &mut Client) -> Vec<String> {
    let log = admin.get("/v1/access/log?limit=1000").json();
    let refused = log["items"].as_array().unwrap().iter().filter(|entry| entry["kind"] == "sign_in_refused");
    refused.map(|entry| entry["message"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_group_gives_its_roles_and_takes_them_at_once() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut admin = server.client();
    add_provider(&mut admin, "corp");
    let refused = ALICE.tries(&server);
    assert_eq!((refused.status, refused.code().as_str()), (401, "unauthorized"));
    assert!(!refused.body.contains("ops"), "{}", refused.body);
    assert!(refusals(&mut admin).pop().unwrap().contains("none of the groups of corp:alice has a role"));

    let operator = grant(&mut admin, "corp", "ops", "operator", &site());
    let mut alice = ALICE.signs_in(&server);
    let me = alice.get("/v1/me").json();
    assert_eq!(me["name"], "corp:alice");
    assert_eq!(me["grants"][0]["group"], json!({ "provider": "corp", "group": "ops" }));
    assert_eq!(alice.get("/v1/hosts").status, 200);
    assert_eq!(alice.get("/v1/access").status, 403);
    // A role that a group of the session gets later counts; one of another group does not.
    grant(&mut admin, "corp", "staff", "auditor", &site());
    grant(&mut admin, "corp", "board", "administrator", &site());
    assert_eq!(alice.get("/v1/access").status, 200);
    assert_eq!(alice.post("/v1/folders", &json!({ "name": "x" })).status, 403);
    // What is on record names the subject, which does not change.
    let log = admin.get("/v1/access/log?by=corp:alice&limit=1000").json();
    let signed: Vec<_> =
        log["items"].as_array().unwrap().iter().filter(|entry| entry["kind"] == "signed_in").collect();
    assert!(signed[0]["message"].as_str().unwrap().contains("subject 4711 of https://corp.example.com"));
    let review = admin.get("/v1/access").json();
    assert_eq!(review["identity_providers"][0]["name"], "corp");
    assert_eq!(review["group_grants"].as_array().unwrap().len(), 3);
    assert_eq!(review["sessions"][0]["user"], "corp:alice");

    assert_eq!(admin.ask("DELETE", &format!("/v1/grants/{operator}"), &[], None).status, 200);
    assert_eq!(alice.get("/v1/hosts").status, 200, "an auditor views, too");
    let power = alice.post("/v1/vms/web1/start", &json!({}));
    assert_ne!(power.status, 202, "{}", power.body);
    assert_eq!(admin.ask("DELETE", "/v1/identity-providers/corp", &[], None).status, 200);
    assert_eq!(alice.get("/v1/me").status, 401);
    let review = admin.get("/v1/access").json();
    assert_eq!((&review["group_grants"], &review["sessions"]), (&json!([]), &json!([])));
    // Another provider of the same name has nothing of the first one.
    add_provider(&mut admin, "corp");
    assert_eq!(ALICE.tries(&server).status, 401);
}

#[test]
fn groups_of_two_providers_are_different_whatever_they_are_called() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut admin = server.client();
    for provider in ["corp", "lab"] {
        add_provider(&mut admin, provider);
    }
    grant(&mut admin, "corp", "ops", "administrator", &site());
    let of_lab = Somebody { provider: "lab", ..ALICE };
    assert_eq!(of_lab.tries(&server).status, 401);
    grant(&mut admin, "lab", "ops", "auditor", &site());
    let mut alice = of_lab.signs_in(&server);
    assert_eq!(alice.get("/v1/me").json()["name"], "lab:alice");
    assert_eq!(alice.post("/v1/folders", &json!({ "name": "x" })).status, 403);
    assert_eq!(ALICE.signs_in(&server).post("/v1/folders", &json!({ "name": "x" })).status, 201);
    // A group that is spelt otherwise is another one.
    let spelt = Somebody { groups: &["OPS", "ops ", " ops", "op"], ..ALICE };
    assert_eq!(spelt.tries(&server).status, 401);
}

#[test]
fn a_sign_in_is_finished_once_by_the_one_who_began_it() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut admin = server.client();
    for provider in ["corp", "lab"] {
        add_provider(&mut admin, provider);
        grant(&mut admin, provider, "ops", "operator", &site());
    }
    let vouching = &server.site.vouching;
    let mut stranger = stranger(&server);
    let mut refused = |flow: &Value, state: &Value, code: &str, of: &str| {
        let answer = finish(&mut stranger, flow, state, code);
        assert_eq!((answer.status, answer.code().as_str()), (401, "unauthorized"), "{of}: {}", answer.body);
    };
    let knows = |code: &str| vouching.knows(code, "corp", "4711", "alice", &["ops"]);
    let mut other = server.client();
    other.token.clear();
    // With the code and the state alone, which a browser's history has.
    let (flow, state) = begin(&mut other, "corp");
    knows("c1");
    refused(&state, &state, "c1", "the state in the place of the flow");
    refused(&json!("guessed"), &state, "c1", "a guessed flow");
    // Another's code and state, slipped to somebody who has begun (login CSRF).
    let (mallory, mallorys_state) = begin(&mut other, "corp");
    refused(&flow, &mallorys_state, "c1", "the state of another sign-in");
    refused(&flow, &state, "c1", "a sign-in that has failed already");
    // Replayed.
    let signed = finish(&mut other, &mallory, &mallorys_state, "c1");
    assert_eq!(signed.status, 201, "{}", signed.body);
    knows("c1");
    refused(&mallory, &mallorys_state, "c1", "a second time");
    // The code of one provider for the sign-in by another (mix-up).
    let (flow, state) = begin(&mut other, "lab");
    knows("c2");
    refused(&flow, &state, "c2", "the code of another provider");
    // A provider that is deleted meanwhile, and one that is away.
    let (flow, state) = begin(&mut other, "lab");
    assert_eq!(admin.ask("DELETE", "/v1/identity-providers/lab", &[], None).status, 200);
    vouching.knows("c3", "lab", "1", "bob", &["ops"]);
    refused(&flow, &state, "c3", "a provider that was deleted");
    let (flow, state) = begin(&mut other, "corp");
    *vouching.is_away.lock() = true;
    let away = finish(&mut other, &flow, &state, "c2");
    assert_eq!(away.code(), "identity_provider_unavailable", "{}", away.body);
    let refused = refusals(&mut admin);
    assert_eq!(refused.len(), 8, "{refused:?}");
    assert!(refused[2].contains("the state of another sign-in"), "{refused:?}");
    assert!(refused[6].contains("deleted"), "{refused:?}");
    assert!(refused[7].contains("it does not answer"), "{refused:?}");
}

#[test]
fn browsers_come_back_to_their_own_machine_or_to_a_page_of_the_provider() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut admin = server.client();
    let made = admin.post(
        "/v1/identity-providers",
        &json!({ "name": "corp", "issuer": "https://corp.example.com", "client_id": "strongroom",
            "pages": ["https://strongroom.example.com/callback"] }),
    );
    assert_eq!(made.status, 201, "{}", made.body);
    let mut stranger = stranger(&server);
    let mut begins = |redirect: &str| {
        stranger.post("/v1/identity-providers/corp/sign-ins", &json!({ "redirect": redirect })).status
    };
    for right in [
        "http://127.0.0.1:4711/callback/corp",
        "http://[::1]:1/callback/corp",
        "https://strongroom.example.com/callback",
    ] {
        assert_eq!(begins(right), 201, "{right}");
    }
    for wrong in [
        "https://evil.example/callback",
        "https://strongroom.example.com/callback/more",
        "https://strongroom.example.com.evil.example/callback",
        "http://127.0.0.1:4711/callback/lab",
        "http://127.0.0.1:4711/callback/corp?x=1",
        "http://127.0.0.1:4711/callback/corp/../lab",
        "http://127.0.0.1:4711@evil.example/callback/corp",
        "http://127.0.0.1.evil.example:80/callback/corp",
        "http://127.0.0.1:0/callback/corp",
        "http://127.0.0.1:+80/callback/corp",
        "http://localhost:4711/callback/corp",
    ] {
        assert_eq!(begins(wrong), 422, "{wrong}");
    }
}

#[test]
fn a_name_from_outside_is_no_users_and_one_subjects_at_a_time() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut admin = server.client();
    add_provider(&mut admin, "corp");
    grant(&mut admin, "corp", "ops", "operator", &site());
    for (path, body) in [
        (
            "/v1/identity-providers",
            json!({ "name": "emergency", "issuer": "https://e.example", "client_id": "x" }),
        ),
        ("/v1/users", json!({ "name": "corp:alice", "password": PASSWORD })),
    ] {
        let refused = admin.post(path, &body).status;
        assert!(refused == 400 || refused == 422, "{path}: {refused}");
    }
    assert_eq!(admin.post("/v1/users", &json!({ "name": "alice", "password": PASSWORD })).status, 201);
    let mut alice = ALICE.signs_in(&server);
    // Nothing of the user of that name is hers.
    for name in ["alice", "corp:alice"] {
        let changed = alice.post(
            &format!("/v1/users/{name}/password"),
            &json!({ "password": "another long password", "current": PASSWORD }),
        );
        assert_eq!(changed.status, 403, "{}", changed.body);
    }
    let sessions = alice.get("/v1/sessions").json();
    assert_eq!(sessions["items"].as_array().unwrap().len(), 1);
    assert_eq!(sessions["items"][0]["user"], "corp:alice");
    // Somebody else who calls herself so.
    let another = Somebody { subject: "666", ..ALICE };
    assert_eq!(another.tries(&server).status, 401);
    assert!(refusals(&mut admin).pop().unwrap().contains("another subject has the name corp:alice"));
    let id = sessions["items"][0]["id"].as_str().unwrap();
    assert_eq!(alice.ask("DELETE", &format!("/v1/sessions/{id}"), &[], None).status, 200);
    assert_eq!(alice.get("/v1/me").status, 401);
    another.signs_in(&server);
    for user in ["al\u{7}ice", "", &"a".repeat(257)] {
        assert_eq!(Somebody { user, ..ALICE }.tries(&server).status, 401, "{user:?}");
    }
    let many: Vec<String> = (0..201).map(|number| format!("g{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).chain(["ops"]).collect();
    assert_eq!(Somebody { groups: &many, ..ALICE }.tries(&server).status, 401);
}

#[test]
fn nobody_gives_groups_what_it_does_not_have_or_takes_their_provider_over() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut admin = server.client();
    add_provider(&mut admin, "corp");
    grant(&mut admin, "corp", "half", "no-cryptography-administrator", &site());
    let half = Somebody { provider: "corp", subject: "2", user: "bob", groups: &["half"] };
    let mut bob = half.signs_in(&server);
    let group = json!({ "provider": "corp", "group": "half" });
    let gives = |role: &str| json!({ "group": group, "role": role, "scope": site() });
    assert_eq!(bob.post("/v1/grants", &gives("administrator")).code(), "forbidden");
    assert_eq!(bob.post("/v1/grants", &gives("operator")).status, 201);
    let both = json!({ "group": group, "user": "ada", "role": "operator", "scope": site() });
    assert_eq!(bob.post("/v1/grants", &both).code(), "invalid");
    assert_eq!(bob.post("/v1/grants", &json!({ "role": "operator", "scope": site() })).code(), "invalid");
    let secret = json!({ "client_secret": "mine" }).to_string();
    let set = |client: &mut Client| client.ask("PATCH", "/v1/identity-providers/corp", &[], Some(&secret));
    assert_eq!(set(&mut bob).status, 200);
    // From now on its groups have more than he.
    let board = grant(&mut admin, "corp", "board", "administrator", &site());
    assert_eq!(set(&mut bob).code(), "forbidden");
    assert_eq!(bob.ask("DELETE", "/v1/identity-providers/corp", &[], None).code(), "forbidden");
    assert_eq!(bob.ask("DELETE", &format!("/v1/grants/{board}"), &[], None).code(), "forbidden");
    assert_eq!(set(&mut admin).status, 200);
    assert_eq!(server.site.vouching.secrets.lock().values().collect::<Vec<_>>(), ["mine"]);
    assert!(!admin.get("/v1/identity-providers").body.contains("mine"));
    // A token that he makes outlives his session, so it takes the privilege to give roles.
    let in_an_hour =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() + 3600;
    let token = |role: &str| json!({ "name": format!("t-{role}"), "role": role, "scope": site(), "expires_unix_seconds": in_an_hour });
    assert_eq!(bob.post("/v1/tokens", &token("auditor")).status, 201);
    assert_eq!(bob.post("/v1/tokens", &token("administrator")).code(), "forbidden");
    grant(&mut admin, "corp", "ops", "operator", &site());
    assert_eq!(ALICE.signs_in(&server).post("/v1/tokens", &token("operator")).code(), "forbidden");
    // A role that a group has stays.
    let custom = json!({ "name": "starter", "privileges": ["view"] });
    assert_eq!(admin.post("/v1/roles", &custom).status, 201);
    grant(&mut admin, "corp", "ops", "starter", &site());
    assert_eq!(admin.ask("DELETE", "/v1/roles/starter", &[], None).code(), "in_use");
}

#[test]
fn the_rights_of_a_session_end_with_it_also_for_its_tasks() {
    let site = Site::new();
    let control = site.control().unwrap();
    control.identify_with(Vouching::of(&site.vouching));
    let admin = crate::support::caller(1);
    let corp =
        json!({ "name": "corp", "issuer": "https://corp.example.com", "client_id": "x", "session_s": 600 });
    control.create_identity_provider(&admin, &serde_json::from_value(corp).unwrap()).unwrap();
    let group = json!({ "group": { "provider": "corp", "group": "ops" }, "role": "operator", "scope": { "type": "site" } });
    control.create_grant(&admin, &serde_json::from_value(group).unwrap()).unwrap();
    let from = "192.0.2.1".parse().unwrap();
    let redirect = json!({ "redirect": "http://127.0.0.1:4711/callback/corp" });
    let redirect: BeginSignIn = serde_json::from_value(redirect).unwrap();
    let signs_in = || {
        let begun = control.begin_sign_in(from, "corp", &redirect).unwrap();
        site.vouching.knows("code", "corp", "4711", "alice", &["ops"]);
        let answer = json!({ "flow": begun.flow.expose(), "state": begun.state, "code": "code" });
        let answer: FinishSignIn = serde_json::from_value(answer).unwrap();
        control.finish_sign_in(&SigningIn::program(from, "provider_sign_in"), &answer).unwrap()
    };
    let session = signs_in().session;
    assert_eq!(session.expires_unix_seconds - session.created_unix_seconds, 600);
    let sees = || control.rights(Principal::Token(session.id)).sees_site();
    assert!(sees());
    control.inventory.prune(session.expires_unix_seconds * 1000 - 1).unwrap();
    assert!(sees());
    control.inventory.prune(session.expires_unix_seconds * 1000).unwrap();
    assert!(!sees());
    // The most sessions of one, of which the oldest ends.
    let sessions: Vec<_> = (0..17).map(|_| signs_in().session.id).collect();
    let index = control.inventory.read();
    let there: Vec<_> = index.outside_sessions.iter().map(|session| session.id).collect();
    assert_eq!(there.len(), 16);
    assert!(there.iter().all(|id| sessions.contains(id)));
    assert!(index.outside_sessions.iter().all(|session| session.key().starts_with("outside-session/")));
}
