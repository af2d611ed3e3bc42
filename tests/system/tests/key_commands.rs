//! A user manages keys: lists them, rotates them while volumes are in use, and destroys those that
//! nothing needs.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::worker_support::VerifiedIo;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use strongroom_system_tests::{KeyServerUser, Scratch};
use strongroom_test_peers::{Pki, Server, ServerKind};

/// Longer than the key server's interval between checks for due actions.
const DEADLINE: Duration = Duration::from_secs(180);
/// A smaller number in CI.
const VOLUMES: usize = if cfg!(feature = "full") { 200 } else { 8 };

/// The id of a volume's key at its provider.
fn key_of(user: &KeyServerUser<'_>, volume: &str) -> String {
    let info = user.json(&["volume", "info", volume]);
    info["encryption"]["provider_key_id"].as_str().unwrap_or_else(|| panic!("{info}")).to_owned()
}

fn state_of(user: &KeyServerUser<'_>, key: &str) -> Value {
    user.json(&["key", "show", key])["state"].clone()
}

/// The second administrator.
fn enrol_second_admin(user: &KeyServerUser<'_>) {
    let made = user.json(&["keyserver", "token", "create", "bob", "--role", "admin"]);
    std::fs::write(user.strongroom.path("token"), made["token"].as_str().unwrap()).unwrap();
    let into = ["--token-fd", "3", "--into", "bob", "3<token"];
    user.runs(&[&["keyserver", "enrol", "--server", &user.enrolment], &into[..]].concat());
}

#[test]
fn a_key_is_destroyed_when_nothing_needs_it_after_a_delay_and_a_second_persons_word() {
    let scratch = Scratch::new();
    let user = KeyServerUser::new(&scratch);
    let server = user.serve_with("keyserver", &["--destroy-delay-min", "1s"]);
    user.runs(&["volume", "create", "ds/vm1", "--size", "64M", "--key-provider", "embedded"]);
    let key = key_of(&user, "ds/vm1");
    let listed = user.json(&["key", "list"]);
    let expected = [Value::from("active"), Value::from(1), Value::Null];
    assert_eq!(["state", "volumes", "destruction"].map(|field| listed["items"][0][field].clone()), expected);

    // Refused while a volume needs it, and while that is unknown.
    let destroy = ["key", "destroy", &key, "--reason", "'the customer left'", "--delay", "1s"];
    let told = user.is_refused(&destroy);
    assert!(told.contains("still needed by 1 volume: ") && told.contains("/ds/vm1"), "{told}");
    user.strongroom.run_shell("mv ds aside; mkdir ds").success();
    let told = user.is_refused(&destroy);
    assert!(told.contains("is it not mounted?") && told.contains("--forget-datastore"), "{told}");
    // Refused even if the home forgets the datastore: the server is asked about a given one.
    user.strongroom.run_shell("rmdir ds; mv aside ds").success();
    assert_eq!(state_of(&user, &key), "active");

    // An unknown copy, to see its fate.
    user.strongroom.run_shell("mkdir kept; cp -a ds/vm1 kept/copy").success();
    let told = user.is_refused(&[&destroy[..], &["--datastore", "kept"]].concat());
    assert!(told.contains("still needed by 2 volumes") && told.contains("/kept/copy"), "{told}");
    user.strongroom.write_key_file("new.key", &[2; 32]);
    user.runs(&["volume", "rekey", "--kek", "ds/vm1", "--to-key-file", "new.key"]);
    let told = user.is_refused(&destroy);
    assert!(told.contains("still needed by 1 volume") && told.contains("/kept/copy"), "{told}");
    let destroy = [&destroy[..], &["--forget-datastore", "kept"]].concat();

    // Scheduled, and cancelled.
    let scheduled = user.json(&destroy);
    assert_eq!((&scheduled["step"], &scheduled["enforced"]), (&"scheduled".into(), &true.into()));
    assert_eq!(user.json(&["key", "list"])["items"][0]["destruction"]["requested_by"], "admin");
    assert_eq!(state_of(&user, &key), "deactivated");
    let sealing =
        ["volume", "create", "ds/vm2", "--size", "1M", "--key-provider", "embedded", "--key-id", &key];
    let told = user.is_refused(&sealing);
    assert!(told.contains("was taken out of use"), "{told}");
    user.runs(&["volume", "check", "kept/copy"]);
    user.runs(&["key", "destroy", &key, "--cancel"]);
    assert!(user.is_refused(&["key", "destroy", &key, "--cancel"]).contains("no destruction"), "{key}");

    // Scheduled again: one person alone cannot confirm it.
    user.runs(&destroy);
    let confirm = ["key", "destroy", &key, "--confirm"];
    let told = user.is_refused(&confirm);
    assert!(told.contains("the second person must be another"), "{told}");
    enrol_second_admin(&user);
    let by_bob = ["--server", &user.enrolment, "--identity", "bob"];
    user.runs(&[&confirm[..], &by_bob].concat());
    let begun = Instant::now();
    while state_of(&user, &key) != "destroyed" {
        assert!(begun.elapsed() < DEADLINE, "it is not destroyed");
    }
    let told = user.is_refused(&["volume", "check", "kept/copy"]);
    assert!(told.contains("key-unavailable") && told.contains("destroyed"), "{told}");
    user.runs(&["volume", "check", "ds/vm1", "--key-file", "new.key"]);
    assert!(user.is_refused(&destroy).contains("destroyed"), "a destroyed key is not destroyed again");

    // Each query of the state is on record, too.
    let history = user.json(&["key", "history", &key, "--most", "1000"]);
    let of =
        |event: &Value| format!("{} {}", event["what"].as_str().unwrap(), event["outcome"].as_str().unwrap());
    let events: Vec<_> = history["events"].as_array().unwrap().iter().map(of).collect();
    let expected = [
        "Create done",
        "Get done",
        "schedule destruction done",
        "cancel destruction done",
        "cancel destruction failed",
        "confirm destruction failed",
        "confirm destruction done",
        "Destroy done",
    ];
    let mut left = events.iter();
    let is_in_order = expected.iter().all(|wanted| left.any(|event| event == wanted));
    assert!(is_in_order && history["complete"] == true, "{events:?}");
    assert_eq!(user.json(&["key", "history", &key, "--most", "2"])["events"].as_array().unwrap().len(), 2);
    assert!(server.terminate(DEADLINE).success());
    assert_eq!(user.json(&["audit", "verify"])["whole"], true);
}

#[test]
fn a_key_is_rotated_for_all_its_volumes_by_a_command_that_is_killed_at_random() {
    let scratch = Scratch::new();
    let user = KeyServerUser::new(&scratch);
    let server = user.serve("keyserver");
    user.strongroom.write_key_file("old.key", &[1; 32]);
    let numbers = 0..VOLUMES;
    let volumes: Vec<_> = numbers.map(|number| format!("ds{}/vm{number}", number % 2)).collect();
    for volume in &volumes {
        user.runs(&["volume", "create", volume, "--size", "1M", "--key-file", "old.key"]);
    }
    let all: Vec<&str> = volumes.iter().map(String::as_str).collect();
    let first = [&["volume", "rekey", "--kek"], &all[..], &["--key-file", "old.key"]].concat();
    user.runs(&[&first[..], &["--to-key-provider", "embedded"]].concat());
    let old = key_of(&user, &volumes[0]);
    assert_eq!(user.json(&["key", "show", &old])["volumes"].as_array().unwrap().len(), VOLUMES);
    let last = volumes.last().unwrap();
    let script = KeyServerUser::script(&["volume", "expose", last, "--nbd", "unix:vm.sock"]);
    let mut exposed = user.strongroom.start_shell("expose", &script);
    exposed.wait_for_line("that it is exposed", DEADLINE, |line| line.contains("is exposed by worker"));
    let io = VerifiedIo::start(&user.strongroom.path("vm.sock"));
    io.wait_for_more(50);

    // The named volume moves within the first few milliseconds; it stays the same rotation.
    let (mut random, mut longest_ms, mut kills) = (StdRng::seed_from_u64(7), 150, 0);
    let mut rotate = KeyServerUser::script(&["--json", "key", "rotate", "--volume", &volumes[0]]);
    let rotated = loop {
        let time = Instant::now() + Duration::from_millis(random.random_range(1..=longest_ms));
        match user.strongroom.run_shell_until(&rotate, || Instant::now() >= time) {
            Some(rotated) => break rotated.success(),
            None => kills += 1,
        }
        // Killed after the work was done, and before it was reported: named by its volume, the new
        // key would be rotated next.
        if state_of(&user, &old) == "deactivated" {
            rotate = KeyServerUser::script(&["--json", "key", "rotate", &old]);
        }
        // On a loaded machine it may take longer than the time to the kill, so the kills come later
        // and later.
        longest_ms += longest_ms / 10 + 1;
    };
    let rotated: Value = serde_json::from_str(&rotated).unwrap();
    println!("{VOLUMES} volumes, {kills} kills");
    let rotation = &rotated["rotated"][0];
    assert_eq!((&rotation["key"], &rotation["old_state"]), (&old.as_str().into(), &"deactivated".into()));
    io.wait_for_more(50);
    io.stop();
    assert!(exposed.terminate(DEADLINE).success());

    // Exactly one new key for all of them.
    let new = key_of(&user, &volumes[0]);
    for volume in &volumes {
        assert_eq!(key_of(&user, volume), new, "{volume}");
        user.runs(&["volume", "check", volume]);
    }
    let listed = user.json(&["key", "list"]);
    let mut keys: Vec<_> = listed["items"].as_array().unwrap().iter().collect();
    keys.sort_by_key(|key| key["volumes"].as_u64());
    let facts: Vec<_> =
        keys.iter().map(|key| (key["key"].as_str().unwrap(), key["state"].as_str().unwrap())).collect();
    assert_eq!(facts, [(old.as_str(), "deactivated"), (new.as_str(), "active")]);

    // It is complete: a repetition has nothing to do, and nothing is due.
    let again = user.json(&["key", "rotate", &old]);
    assert_eq!(
        (&again["finished"], &again["rotated"][0]["new_key"]),
        (&true.into(), &Value::Null),
        "{again}"
    );
    assert_eq!(user.json(&["key", "rotate", "--all-due"])["rotated"], Value::Array(Vec::new()));
    let history = user.runs(&["key", "history", &old]);
    assert!(["Create", "Get", "Revoke"].iter().all(|what| history.contains(what)), "{history}");
    let told = user.is_refused(&["key", "destroy", &new, "--reason", "wrong"]);
    assert!(told.contains(&format!("still needed by {VOLUMES} volumes")), "{told}");
    assert!(server.terminate(DEADLINE).success());
}

#[test]
fn another_providers_keys_are_listed_rotated_and_wait_in_the_home_to_be_destroyed() {
    let (scratch, pki, objects) = (Scratch::new(), Pki::new(), tempfile::tempdir().unwrap());
    let kmip = Server::start(ServerKind::KmipGo, &pki, objects.path(), &[]);
    let user = KeyServerUser::new(&scratch);
    let identity = pki.client("host1");
    let text = |path: &Path| path.display().to_string();
    let (address, ca) = (kmip.address(), text(&pki.authority()));
    let (certificate, key) = (text(&identity.certificate), text(&identity.key));
    let files = ["--kmip", &address, "--ca", &ca, "--cert", &certificate, "--key", &key];
    user.runs(&[&["key-provider", "add", "corp", "--cryptoperiod", "30"], &files[..]].concat());
    user.runs(&["volume", "create", "ds/vm1", "--size", "1M", "--key-provider", "corp"]);
    let old = key_of(&user, "ds/vm1");
    let shown = user.json(&["key", "show", &old]);
    assert!(shown["expires_unix_seconds"].as_u64() > shown["created_unix_seconds"].as_u64(), "{shown}");
    assert!(user.runs(&["key", "history", &old]).contains("activated"));
    assert!(user.is_refused(&["key", "show", "no-such-key"]).contains("strongroom key list"));

    let rotated = user.json(&["key", "rotate", &old]);
    assert_eq!(
        (&rotated["finished"], &rotated["rotated"][0]["old_state"]),
        (&true.into(), &"deactivated".into())
    );
    let new = key_of(&user, "ds/vm1");
    assert_ne!(new, old);
    let told = user.is_refused(&["key", "destroy", &new, "--reason", "old"]);
    assert!(told.contains("still needed by 1 volume"), "{told}");
    assert!(user.is_refused(&["key", "destroy", &old, "--confirm"]).contains("no destruction"), "{told}");
    let told = user.is_refused(&["key", "destroy", &old, "--reason", "old", "--delay", "30m"]);
    assert!(told.contains("from 1h to 400d"), "{told}");
    let scheduled = user.json(&["key", "destroy", &old, "--reason", "old", "--delay", "1h"]);
    assert_eq!((&scheduled["step"], &scheduled["enforced"]), (&"scheduled".into(), &false.into()));
    assert!(user.is_refused(&["key", "destroy", &old, "--confirm"]).contains("is scheduled, and due"));
    let listed = user.json(&["key", "list", "--provider", "corp"]);
    let waiting = listed["items"].as_array().unwrap().iter().filter(|key| !key["destruction"].is_null());
    assert_eq!(waiting.map(|key| key["key"].as_str().unwrap()).collect::<Vec<_>>(), [old.as_str()]);
    user.runs(&["key", "destroy", &old, "--cancel"]);
    assert_eq!(state_of(&user, &old), "deactivated");

    // Values that the provider does not report are shown as unknown, and so are those that could
    // not be checked.
    drop(kmip);
    user.strongroom.run_shell("mv ds aside").success();
    let told = user.strongroom.run_shell(&KeyServerUser::script(&["key", "list"]));
    assert_eq!(told.status.code(), Some(1));
    assert!(told.stdout.contains("broken: corp: ") && told.stdout.contains("not counted: "), "{told:?}");
}
