//! A user backs up the key server with custodians, and restores it: over a server that lost keys,
//! on a new machine, and after kill -9.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use strongroom_keys::{ProviderKey, ProviderName};
use strongroom_providers::{KeyProvider, ProviderKeyring, Revocation};
use strongroom_system_tests::{CommandLine, KeyServerUser, Process, Scratch, datastore};

const DEADLINE: Duration = Duration::from_secs(120);
const CUSTODIANS: [&str; 3] = ["ada", "grace", "emmy"];
/// How often a restore is killed.
const KILLS: u32 = 8;
/// The home of another machine.
const NEW: [&str; 2] = ["--home", "new"];

/// Each custodian makes a key of their own: two elliptic-curve keys, one RSA key.
fn make_custodians(strongroom: &CommandLine<'_>) {
    let kinds = ["EC -pkeyopt ec_paramgen_curve:P-256", "EC -pkeyopt ec_paramgen_curve:P-384"];
    let kinds = [kinds[0], kinds[1], "RSA -pkeyopt rsa_keygen_bits:3072"];
    for (name, kind) in CUSTODIANS.iter().zip(kinds) {
        let private = format!("openssl genpkey -quiet -algorithm {kind} -out {name}.key");
        let public = format!("openssl pkey -in {name}.key -pubout -out {name}.pem");
        strongroom.run_shell(&format!("{private}; {public}")).success();
    }
}

/// `keyserver backup` into a file, which two of the custodians can open.
fn backup(out: &str) -> Vec<String> {
    let custodians =
        CUSTODIANS.iter().flat_map(|name| ["--custodian".to_owned(), format!("{name}={name}.pem")]);
    let arguments = ["keyserver", "backup", out, "--threshold", "2"].map(str::to_owned);
    arguments.into_iter().chain(custodians).collect()
}

/// Each custodian opens their share of a backup, into `NAME.BACKUP.share`.
fn open_shares(user: &KeyServerUser<'_>, backup: &str) {
    for name in CUSTODIANS {
        let (key, share) = (format!("{name}.key"), format!("{name}.{backup}.share"));
        user.runs(&["keyserver", "custodian", "open-share", backup, "--key", &key, ">", &share]);
    }
}

/// `keyserver restore` of a backup, with these shares, each `NAME.BACKUP`.
fn restore(backup: &str, shares: &[&str], more: &[&str]) -> Vec<String> {
    let shares = shares.iter().flat_map(|share| ["--share".to_owned(), format!("{share}.share")]);
    let arguments = ["keyserver", "restore", backup].map(str::to_owned);
    arguments.into_iter().chain(shares).chain(more.iter().map(|more| (*more).to_owned())).collect()
}

fn words(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

/// Makes a volume. Returns the place of its key.
fn create_volume(user: &KeyServerUser<'_>, volume: &str) -> ProviderKey {
    let created = user.json(&["volume", "create", volume, "--size", "64M", "--key-provider", "embedded"]);
    let key = created["encryption"]["provider_key_id"].as_str().unwrap().to_owned();
    ProviderKey { provider: embedded(), key: key.try_into().unwrap(), wrapped: None }
}

fn embedded() -> ProviderName {
    "embedded".parse().unwrap()
}

/// The key server as a home's volumes use it.
fn provider(user: &KeyServerUser<'_>, home: &str) -> Arc<dyn KeyProvider> {
    ProviderKeyring::of_home(&user.strongroom.path(home)).provider(&embedded()).unwrap()
}

/// Whether a volume's key is available.
fn opens(user: &KeyServerUser<'_>, home: &[&str], volume: &str) -> bool {
    let info = ["--json", "volume", "info", volume, "--key-provider", "embedded"];
    let info = user.strongroom.run_shell(&KeyServerUser::script(&[&info, home].concat()));
    info.status.success() && info.stdout.contains("\"authenticated\": true")
}

fn status(user: &KeyServerUser<'_>, home: &[&str]) -> Value {
    user.json(&[&["keyserver", "status"], home].concat())["backup"].clone()
}

/// Starts the key server of the other machine.
fn serve_new(user: &KeyServerUser<'_>) -> Process {
    let script = KeyServerUser::script(&[&["keyserver", "run"], &NEW[..]].concat());
    let mut server = user.strongroom.start_shell("new", &script);
    server.wait_for_line("that it serves", DEADLINE, |line| line.contains("serves keys until"));
    server
}

/// Fails the test if one of the keys is in the clear in any of the server's files: states, backups,
/// shares, logs.
fn assert_nowhere(user: &KeyServerUser<'_>, keys: &[Vec<u8>]) {
    for key in keys {
        let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        for form in [key.as_slice(), hex.as_bytes(), hex.to_uppercase().as_bytes()] {
            assert_eq!(datastore::occurrences(&user.strongroom.path("."), form), 0, "a key lies in a file");
        }
    }
}

#[test]
fn a_lost_key_server_comes_back_by_two_of_three_custodians() {
    let scratch = Scratch::new();
    let user = KeyServerUser::new(&scratch);
    make_custodians(&user.strongroom);
    let server = user.serve("keyserver");
    assert_eq!(status(&user, &[])["backup"], "unbacked");
    let (kept, shredded) = (create_volume(&user, "ds/kept"), create_volume(&user, "ds/shredded"));
    let keys = [&kept, &shredded].map(|key| provider(&user, "home").fetch(key).unwrap().expose().to_vec());
    let made = user.json(&words(&backup("first")));
    assert_eq!(made["counts"]["objects"], 2, "{made}");
    assert_eq!(status(&user, &[])["changes_since"], 0);
    // Other custodians: this needs another administrator.
    let others = ["--custodian ada=ada.pem", "--custodian mallory=mallory.pem", "--threshold 2"];
    let own = "openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 | openssl pkey -pubout -out mallory.pem";
    user.strongroom.run_shell(own).success();
    let told = user.is_refused(&[&["keyserver", "backup", "theirs"], &others[..]].concat());
    assert!(told.contains("--change-custodians") && !user.strongroom.path("theirs").exists(), "{told}");
    let asked = user.json(&[&["keyserver", "backup", "theirs", "--change-custodians"], &others[..]].concat());
    assert!(!user.strongroom.path("theirs").exists());
    let confirm = ["keyserver", "custody", "confirm", asked["id"].as_str().unwrap()];
    let told = user.is_refused(&confirm);
    assert!(told.contains("another administrator confirms them"), "{told}");
    assert!(
        user.is_refused(&[&["keyserver", "backup", "theirs"], &others[..]].concat())
            .contains("two administrators")
    );
    assert!(user.runs(&["keyserver", "custody", "show"]).contains("mallory"));
    // A repetition with the present custodians withdraws it.
    let same = backup("none");
    let asked = user.json(&[&words(&same)[..], &["--change-custodians"]].concat());
    let made = user.json(&["keyserver", "token", "create", "bob", "--role", "admin"]);
    std::fs::write(user.strongroom.path("token"), made["token"].as_str().unwrap()).unwrap();
    let into = ["--token-fd", "3", "--into", "bob", "3<token"];
    user.runs(&[&["keyserver", "enrol", "--server", &user.enrolment], &into[..]].concat());
    let by_bob = ["--server", &user.enrolment, "--identity", "bob"];
    let refused = user.is_refused(&[&confirm[..], &by_bob].concat());
    assert!(refused.contains("others were since"), "{refused}");
    let confirm = ["keyserver", "custody", "confirm", asked["id"].as_str().unwrap()];
    assert!(user.runs(&[&confirm[..], &by_bob].concat()).contains("2 of 3"));

    // After the backup, a key is shredded although its volume was copied, and another key is made.
    user.strongroom.run_shell("mkdir copy; cp -r ds/shredded copy/").success();
    user.runs(&["volume", "delete", "ds/shredded", "--yes"]);
    provider(&user, "home").revoke(&shredded, Revocation::Superseded).unwrap();
    provider(&user, "home").destroy(&shredded).unwrap();
    create_volume(&user, "ds/later");
    assert!(status(&user, &[])["changes_since"].as_u64().unwrap() >= 3);
    user.json(&words(&backup("second")));
    ["first", "second"].iter().for_each(|backup| open_shares(&user, backup));
    let told = user.is_refused(&words(&restore("first", &["ada.first", "emmy.first"], &["--replace"])));
    assert!(told.contains("in use"), "{told}");
    assert!(server.terminate(DEADLINE).success());

    // One share is not enough, even if given twice; a share of another backup is named.
    for (shares, says) in [
        (["ada.first"].as_slice(), "1 of 2 shares"),
        (&["ada.first", "ada.first"], "share 1 was given already"),
        (&["ada.first", "grace.second"], "grace.second.share: share 2 is of backup"),
        (&["ada.first", "emmy.first"], "--replace"),
    ] {
        let told = user.is_refused(&words(&restore("first", shares, &[])));
        assert!(told.contains(says), "{told}");
    }
    let told = user.is_refused(&words(&restore("first", &["ada.first", "emmy.first"], &NEW)));
    assert!(told.contains("keyserver init"), "{told}");

    // Over the present server: keys that were shredded since stay dead, keys that were made since
    // are gone.
    let restored = user.json(&words(&restore("first", &["ada.first", "emmy.first"], &["--replace"])));
    assert_eq!((&restored["buried"], &restored["recertified"]), (&json!(1), &json!([])), "{restored}");
    let server = user.serve("keyserver-restored");
    let opened = ["ds/kept", "copy/shredded", "ds/later"].map(|volume| opens(&user, &[], volume));
    assert_eq!(opened, [true, false, false]);
    assert!(server.terminate(DEADLINE).success());

    // On a new machine, the certificates of its own clients work, and those of the lost machine's
    // clients.
    let ports = ["--listen", &user.kmip, "--listen-enrolment", &user.enrolment];
    user.runs(&[&["keyserver", "init"], &ports[..], &NEW].concat());
    let shares = ["--share-fd", "3", "--share-fd", "4", "3<grace.second.share", "4<emmy.second.share"];
    let restored = user.json(&[&["keyserver", "restore", "second"], &NEW[..], &shares].concat());
    assert_eq!(restored["recertified"], json!(["admin", "local"]), "{restored}");
    let server = serve_new(&user);
    for home in [&[][..], &NEW] {
        let opened = ["ds/kept", "copy/shredded", "ds/later"].map(|volume| opens(&user, home, volume));
        assert_eq!(opened, [true, false, true], "{home:?}");
    }
    assert_eq!(provider(&user, "new").fetch(&kept).unwrap().expose(), keys[0]);
    assert!(provider(&user, "new").fetch(&shredded).is_err());
    assert_eq!(status(&user, &NEW)["backup"], "backed");
    assert!(server.terminate(DEADLINE).success());
    assert_eq!(user.json(&[&["audit", "verify"], &NEW[..]].concat())["whole"], true);
    assert_nowhere(&user, &keys);
    // The record has the custodians who opened it, and the backup's requester with its recipients.
    let audit = user.audit();
    let tells = |action: &str, more: &str| {
        audit.iter().any(|line| line["action"] == action && line["fields"].to_string().contains(more))
    };
    assert!(tells("restore", "emmy") && tells("make backup", "custodian grace"), "{audit:#?}");
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_restore_that_is_killed_leaves_a_server_that_starts() {
    let scratch = Scratch::new();
    let user = KeyServerUser::new(&scratch);
    make_custodians(&user.strongroom);
    let server = user.serve("keyserver");
    let volumes = ["ds/vm1", "ds/vm2", "ds/vm3"];
    for volume in volumes {
        create_volume(&user, volume);
    }
    user.json(&words(&backup("first")));
    open_shares(&user, "first");
    create_volume(&user, "ds/later");
    assert!(server.terminate(DEADLINE).success());
    user.strongroom.run_shell("cp -r home whole").success();

    let restore = restore("first", &["ada.first", "grace.first"], &["--replace"]);
    let begun = Instant::now();
    user.runs(&words(&restore));
    let (takes, mut within) = (begun.elapsed(), begun.elapsed());
    let mut random = StdRng::seed_from_u64(1);
    let (mut killed, mut old) = (0, 0);
    while killed < KILLS {
        user.strongroom.run_shell("rm -r home; cp -r whole home").success();
        // Early kills are more frequent: the store is replaced in the first half.
        let after = within.mul_f64(random.random_range(0.1_f64..1.0).powi(2));
        let begun = Instant::now();
        let script = KeyServerUser::script(&words(&restore));
        if let Some(restored) = user.strongroom.run_shell_until(&script, || begun.elapsed() >= after) {
            // It was faster than the previous one.
            restored.success();
            within = within.mul_f64(0.8);
            continue;
        }
        killed += 1;
        let server = user.serve(&format!("keyserver-{killed}"));
        for volume in volumes {
            assert!(opens(&user, &[], volume), "{volume} after kill {killed}, at {after:?}");
        }
        old += u32::from(opens(&user, &[], "ds/later"));
        assert!(!user.strongroom.path("home/keyserver/store.redb.restoring").exists());
        assert!(server.terminate(DEADLINE).success());
    }
    // An interrupted restore is repeated.
    user.runs(&words(&restore));
    let server = user.serve("keyserver-done");
    assert!(opens(&user, &[], "ds/vm1") && !opens(&user, &[], "ds/later"));
    assert!(server.terminate(DEADLINE).success());
    println!("{KILLS} restores of {takes:?} killed: {old} times the old server, else the new one");
}
