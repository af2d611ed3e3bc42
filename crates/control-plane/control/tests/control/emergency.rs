//! Emergency credentials: used once, seen by everyone, and leading nowhere else.

use serde_json::{Value, json};
use strongroom_api::access::{AccessEntry, AccessKind};
use strongroom_api::alarm::AlarmKind;
use strongroom_control::engine::{Control, SigningIn};
use strongroom_control::inventory::Wanted;

use crate::support::client::{Answer, Client};

use crate::support::server::Server;
use crate::support::{Site, caller};

fn create(admin: &mut Client, name: &str) -> String {
    let made = admin.post("/v1/emergency-credentials", &json!({ "name": name }));
    assert_eq!(made.status, 201, "{}", made.body);
    made.json()["secret"].as_str().unwrap().to_owned()
}

fn uses(server: &Server, secret: &str) -> Answer {
    let mut stranger = server.client();
    stranger.token.clear();
    stranger.post("/v1/emergency-sessions", &json!({ "secret": secret, "reason": "the provider is away" }))
}

fn signs_in(server: &Server, secret: &str) -> Client {
    let signed = uses(server, secret);
    assert_eq!(signed.status, 201, "{}", signed.body);
    let session = signed.json();
    let lasts = |field: &str| session["session"][field].as_u64().unwrap();
    assert_eq!(lasts("expires_unix_seconds") - lasts("created_unix_seconds"), 3600);
    let mut client = server.client();
    client.token = session["token"].as_str().unwrap().to_owned();
    client
}

fn alarms(admin: &mut Client) -> Vec<Value> {
    let all = admin.get("/v1/alarms").json();
    let all = all["items"].as_array().unwrap().iter();
    all.filter(|alarm| alarm["kind"] == "emergency_access").cloned().collect()
}

#[test]
fn an_emergency_credential_works_once_and_is_seen_until_somebody_else_acknowledges_it() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut admin = server.client();
    let secret = create(&mut admin, "envelope1");
    assert_eq!(secret.len(), 39, "{secret}");
    let typed = secret.to_lowercase().replace('-', " ");
    let mut emergency = signs_in(&server, &typed);
    assert_eq!(uses(&server, &secret).status, 401, "once");
    let store = std::fs::read(home.path().join("store.redb")).unwrap();
    for hidden in [secret.as_str(), &secret.replace('-', ""), &emergency.token] {
        assert!(!store.windows(hidden.len()).any(|here| here == hidden.as_bytes()));
    }

    // Without a review of alarms in between.
    let raised = alarms(&mut admin);
    assert_eq!((raised.len(), &raised[0]["severity"]), (1, &json!("critical")), "{raised:?}");
    assert!(raised[0]["message"].as_str().unwrap().contains("the provider is away"), "{raised:?}");
    let events = admin.get("/v1/events?limit=1000").json();
    let told = events["items"].as_array().unwrap().iter().filter(|event| {
        event["kind"] == "alarm.raised" && event["message"].as_str().unwrap().contains("envelope1")
    });
    assert_eq!(told.count(), 1);
    server.look();
    assert_eq!(alarms(&mut admin).len(), 1);

    // It is an administrator's.
    let me = emergency.get("/v1/me").json();
    assert_eq!(me["name"], "emergency:envelope1");
    assert_eq!(emergency.post("/v1/folders", &json!({ "name": "rescue" })).status, 201);
    let user = json!({ "name": "ada", "password": "correct horse battery" });
    assert_eq!(emergency.post("/v1/users", &user).status, 201);
    let role = json!({ "user": "ada", "role": "administrator", "scope": { "type": "site" } });
    assert_eq!(emergency.post("/v1/grants", &role).status, 201);
    // But it neither hides itself nor makes another way in.
    let token = json!({ "name": "t", "role": "operator", "scope": { "type": "site" },
        "expires_unix_seconds": 32_503_680_000_u64 });
    for (path, body) in [
        ("/v1/emergency-credentials", json!({ "name": "mine" })),
        ("/v1/emergency-credentials/envelope1/rotate", json!({})),
        ("/v1/emergency-credentials/envelope1/acknowledge", json!({})),
        ("/v1/tokens", token),
    ] {
        let refused = emergency.post(path, &body);
        assert_eq!(refused.code(), "forbidden", "{path}: {}", refused.body);
    }
    let revoked = emergency.ask("DELETE", "/v1/emergency-credentials/envelope1", &[], None);
    assert_eq!(revoked.code(), "forbidden");
    let revoked = admin.ask("DELETE", "/v1/emergency-credentials/envelope1", &[], None);
    assert_eq!(revoked.code(), "conflict", "nobody has acknowledged it");

    // On record, and in the review.
    let log = admin.get("/v1/access/log?by=emergency:envelope1&limit=1000").json();
    let kinds: Vec<_> = log["items"].as_array().unwrap().iter().map(|entry| entry["kind"].clone()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "signed_in").count(), 1);
    assert_eq!(kinds.iter().filter(|kind| **kind == "refused").count(), 5, "{log}");
    let review = admin.get("/v1/access").json();
    let listed = &review["emergency_credentials"][0];
    assert_eq!((&listed["usable"], &listed["last_use"]["from"]), (&json!(false), &json!("127.0.0.1")));

    let seen = admin.post("/v1/emergency-credentials/envelope1/acknowledge", &json!({}));
    assert_eq!((seen.status, &seen.json()["last_use"]["acknowledged_by"]), (200, &json!("admin")));
    assert_eq!(admin.post("/v1/emergency-credentials/envelope1/acknowledge", &json!({})).code(), "conflict");
    server.look();
    assert_eq!(alarms(&mut admin), [] as [Value; 0]);

    // Rotated, it works again, once; revoked, it ends with its session.
    let rotated = admin.post("/v1/emergency-credentials/envelope1/rotate", &json!({}));
    let again = rotated.json()["secret"].as_str().unwrap().to_owned();
    assert_eq!(uses(&server, &secret).status, 401);
    let mut second = signs_in(&server, &again);
    assert_eq!(alarms(&mut admin).len(), 1);
    assert_eq!(admin.post("/v1/emergency-credentials/envelope1/acknowledge", &json!({})).status, 200);
    assert_eq!(admin.ask("DELETE", "/v1/emergency-credentials/envelope1", &[], None).status, 200);
    assert_eq!((second.get("/v1/me").status, emergency.get("/v1/me").status), (401, 401));
}

#[test]
fn only_who_may_do_everything_makes_an_emergency_credential() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut admin = server.client();
    let token = json!({ "name": "half", "role": "no-cryptography-administrator", "scope": { "type": "site" },
        "expires_unix_seconds": std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() + 60 });
    let mut half = server.client();
    half.token = admin.post("/v1/tokens", &token).json()["token"].as_str().unwrap().to_owned();
    assert_eq!(half.post("/v1/emergency-credentials", &json!({ "name": "mine" })).code(), "forbidden");
    create(&mut admin, "envelope1");
    assert_eq!(half.post("/v1/emergency-credentials/envelope1/rotate", &json!({})).code(), "forbidden");
    let revoked = half.ask("DELETE", "/v1/emergency-credentials/envelope1", &[], None);
    assert_eq!(revoked.code(), "forbidden");
    assert!(!admin.get("/v1/emergency-credentials").body.contains("sha256"));
}

#[test]
fn wrong_guesses_keep_nobody_out() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let secret = create(&mut server.client(), "envelope1");
    std::thread::scope(|scope| {
        for number in 0..24 {
            let server = &server;
            scope.spawn(move || {
                let guessed = uses(server, &format!("GUESS-{number}"));
                assert_eq!(guessed.status, 401, "{}", guessed.body);
            });
        }
        signs_in(&server, &secret);
    });
    // They are on record, and do not fill it.
    let log = server.client().get("/v1/access/log?limit=1000").json();
    let refused = log["items"].as_array().unwrap().iter().filter(|entry| entry["kind"] == "sign_in_refused");
    assert_eq!(refused.count(), 20);
    for wrong in
        [json!({ "secret": secret }), json!({ "secret": secret, "reason": " " }), json!({ "reason": "x" })]
    {
        let mut stranger = server.client();
        stranger.token.clear();
        assert_eq!(stranger.post("/v1/emergency-sessions", &wrong).status, 400, "{wrong}");
    }
}

/// What is left of a use: who may come in, and what says so.
#[derive(Debug, PartialEq, Eq)]
struct Left {
    sessions: usize,
    is_spent: bool,
    alarms: usize,
    on_record: usize,
}

fn left(control: &Control) -> Left {
    let wanted = Wanted { after: None, since_unix_ms: None, by: None, limit: 1000 };
    let log = control.inventory.access_log().unwrap().page(&wanted).unwrap();
    let signed_in = |entry: &&AccessEntry| entry.kind == AccessKind::SignedIn;
    let index = control.inventory.read();
    Left {
        sessions: index.outside_sessions.len(),
        is_spent: index.emergencies.iter().all(|credential| credential.sha256.is_none()),
        alarms: index.alarms.iter().filter(|alarm| alarm.kind == AlarmKind::EmergencyAccess).count(),
        on_record: log.items.iter().filter(signed_in).count(),
    }
}

#[test]
fn a_use_that_is_cut_short_at_any_moment_gives_no_access_that_is_not_on_record() {
    let unused = Left { sessions: 0, is_spent: false, alarms: 0, on_record: 0 };
    let used = Left { sessions: 1, is_spent: true, alarms: 1, on_record: 1 };
    let (mut before, mut after) = (0, 0);
    for moments in 1.. {
        let site = Site::new();
        let control = site.control().unwrap();
        let wish = serde_json::from_value(json!({ "name": "envelope1" })).unwrap();
        let secret = control.create_emergency(&caller(1), &wish).unwrap().secret;
        let wish = serde_json::from_value(json!({ "secret": secret, "reason": "all are away" })).unwrap();
        let signing_in = SigningIn::program("10.0.0.9".parse().unwrap(), "emergency_sign_in");
        site.fuse.set(moments);
        let answer = control.sign_in_emergency(&signing_in, &wish);
        let was_killed = site.fuse.is_burnt();
        drop(control);
        site.fuse.set(i64::MAX);
        let control = site.control().unwrap();
        let left = left(&control);
        match (&answer, left.is_spent) {
            (Ok(_), _) | (Err(_), true) => assert_eq!(left, used, "killed after {moments}"),
            (Err(_), false) => assert_eq!(left, unused, "killed after {moments}"),
        }
        *if left == used { &mut after } else { &mut before } += 1;
        if !was_killed {
            answer.unwrap();
            break;
        }
    }
    assert!(before > 0 && after > 1, "killed before it {before} times, and {after} times after it");
}
