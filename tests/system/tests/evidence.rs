//! An auditor gets a signed file about keys, verifies it without any program of ours, and finds it
//! true: nothing that is left of a volume opens under the data keys that the file calls unneeded.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::worker_support::NbdClient;
use serde_json::Value;
use strongroom_system_tests::{Finished, KeyServerUser, Scratch, Serving};

const FINDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/find-marker.py");
const VERIFIER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/verify-evidence");
const MARKER: &str = "a secret of the guest";
const BLOCK: usize = 4096;
const DEADLINE: Duration = Duration::from_secs(180);

/// A volume with tags and a snapshot, whose layers have the marker.
fn make_volume(user: &KeyServerUser<'_>) {
    let create = ["volume", "create", "ds/vm1", "--size", "4M", "--key-provider", "embedded", "--integrity"];
    user.runs(&create);
    let exposed = user.expose("ds/vm1");
    write(&user.strongroom.path("vm.sock"), 0..200, "first");
    user.runs(&["volume", "snapshot", "create", "ds/vm1", "one"]);
    write(&user.strongroom.path("vm.sock"), 100..300, "second");
    assert!(exposed.terminate(DEADLINE).success());
}

fn write(socket: &Path, blocks: std::ops::Range<u64>, text: &str) {
    let mut client = NbdClient::connect(socket).unwrap();
    for number in blocks {
        let line = format!("{MARKER}, {text}, block {number}\n");
        let block: Vec<u8> = line.bytes().cycle().take(BLOCK).collect();
        client.write(number * BLOCK as u64, &block).unwrap();
    }
}

/// Looks in the datastore for what the data keys and tags of `kept`, a copy of the volume, open.
fn find(user: &KeyServerUser<'_>) -> Finished {
    let script = format!(
        "'{FINDER}' kept/descriptor --key-file old.key --marker '{MARKER}' --old-tags kept/tags* kept/discards* -- ds"
    );
    user.strongroom.run_shell(&script)
}

fn key_of(user: &KeyServerUser<'_>, volume: &str) -> String {
    let info = user.json(&["volume", "info", volume]);
    info["encryption"]["provider_key_id"].as_str().unwrap_or_else(|| panic!("{info}")).to_owned()
}

/// What the evidence about a key says of it.
fn conclusion(user: &KeyServerUser<'_>, key: &str, file: &str) -> Value {
    let written = user.json(&["evidence", "--key", key, "--challenge", "'audit of May'", "--output", file]);
    let keys = written["keys"].as_array().unwrap();
    assert_eq!((keys.len(), &keys[0]["key"]), (1, &Value::from(key)), "{written}");
    keys[0]["conclusion"].clone()
}

fn verify(user: &KeyServerUser<'_>, arguments: &str) -> Finished {
    user.strongroom.run_shell(&format!("'{VERIFIER}' {arguments}"))
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn the_report_of_a_re_encryption_is_true_and_says_what_is_left() {
    let scratch = Scratch::new();
    let user = KeyServerUser::new(&scratch);
    let server = user.serve("keyserver");
    make_volume(&user);
    let old = key_of(&user, "ds/vm1");
    let secret = crate::kmip_client::client(&user.kmip, &user.client_file(".")).get(&old).unwrap().secret;
    fs::write(scratch.path("old.key"), secret.expose()).unwrap();
    user.strongroom.run_shell("cp -a ds/vm1 kept").success();
    assert_eq!(conclusion(&user, &old, "1.evidence"), "needed");
    let found = find(&user).failure();
    assert!(found.contains("show the marker"), "{found}");

    user.runs(&["volume", "rekey", "--data", "ds/vm1", "--to-key-provider", "embedded"]);
    assert_ne!(key_of(&user, "ds/vm1"), old);
    assert_eq!(conclusion(&user, &old, "2.evidence"), "unneeded");
    println!("{}", find(&user).success());
    let told =
        verify(&user, "2.evidence --key home/keyserver/audit.pub --audit home/keyserver/audit").success();
    assert!(told.contains(&format!("key {old}: active; nothing that is known refers to it")), "{told}");
    assert!(told.contains("local (client): released ") && told.contains("What it cannot say:"), "{told}");

    // A snapshot of the storage that somebody has left: the reader finds it, and the file names it.
    for (left, name) in [("descriptor", "ds/left"), ("layer-*", "ds/left"), ("tags*", "ds/left")] {
        user.strongroom.run_shell(&format!("mkdir -p {name}; cp -a kept/{left} {name}")).success();
        let is_named = left == "descriptor";
        assert_eq!(find(&user).status.success(), is_named, "{left}: an envelope alone opens no block");
        assert_eq!(conclusion(&user, &old, &format!("left-{}.evidence", left.len())), "needed");
    }
    let told = verify(&user, "left-5.evidence --key home/keyserver/audit.pub").success();
    assert!(told.contains(&format!("key {old}: active; NEEDED")) && told.contains("/ds/left"), "{told}");
    user.strongroom.run_shell("rm ds/left/layer-* ds/left/descriptor").success();
    let found = find(&user);
    assert!(!found.status.success() && found.stdout.contains("has an old tag"), "{found:?}");
    user.strongroom.run_shell("rm -r ds/left").success();

    // Without a record nobody claims that the data keys are gone.
    let second = key_of(&user, "ds/vm1");
    user.runs(&["volume", "rekey", "--kek", "ds/vm1", "--to-key-provider", "embedded"]);
    assert_eq!(conclusion(&user, &second, "3.evidence"), "unneeded_without_record");
    let destroy = |key: &str| user.runs(&["key", "destroy", key, "--reason", "left", "--delay", "1h"]);
    assert!(destroy(&old).contains("was re-encrypted, by the audit log"));
    assert!(destroy(&second).contains("no re-encryption of what was under this key is on record"));
    assert!(server.terminate(DEADLINE).success());
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn the_report_of_an_encryption_says_what_was_freed_in_clear() {
    let scratch = Scratch::new();
    let user = KeyServerUser::new(&scratch);
    let server = user.serve("keyserver");
    user.runs(&["volume", "create", "ds/vm1", "--size", "4M", "--unencrypted"]);
    let socket = user.strongroom.path("vm.sock");
    let words = ["volume", "expose", "ds/vm1", "--nbd", "unix:vm.sock", "--unencrypted"];
    let mut exposed = user.start("expose", &words);
    exposed.wait_for_line("its NBD URI", DEADLINE, |line| line.starts_with("nbd+unix:"));
    write(&socket, 0..200, "first");
    user.runs(&["volume", "snapshot", "create", "ds/vm1", "one"]);
    write(&socket, 100..300, "second");
    user.strongroom.run_shell("mkdir kept; cp -a ds/vm1/layer-* ds/vm1/descriptor kept").success();
    // Nothing opens the copy's descriptor, as it is clear.
    let find = || {
        let marker = format!("kept/descriptor --marker '{MARKER}' ds");
        user.strongroom.run_shell(&format!("'{FINDER}' {marker}"))
    };
    assert!(find().failure().contains("show the marker"));

    user.runs(&["volume", "encrypt", "ds/vm1", "--to-key-provider", "embedded", "--integrity"]);
    let key = key_of(&user, "ds/vm1");
    println!("{}", find().success());
    assert_eq!(conclusion(&user, &key, "1.evidence"), "needed");
    verify(&user, "1.evidence --key home/keyserver/audit.pub --audit home/keyserver/audit").success();
    let evidence = fs::read_to_string(scratch.path("1.evidence")).unwrap();
    let evidence: Value = serde_json::from_str(evidence.lines().nth(1).unwrap()).unwrap();
    let records = evidence["records"].to_string();
    let freed = records.split(r#""clear_bytes_freed":""#).nth(1).unwrap_or_else(|| panic!("{records}"));
    let freed: usize = freed.split('"').next().unwrap().parse().unwrap();
    // Both layers, of which one is in its log when the job begins.
    assert!((200 * BLOCK..8 << 20).contains(&freed), "{freed}");
    assert!(evidence["not_known"].to_string().contains("or in clear if the volume was clear"));
    // What somebody has kept is what nobody can know of.
    user.strongroom.run_shell("cp -a kept/layer-* ds").success();
    assert!(find().failure().contains("show the marker"));
    user.strongroom.run_shell("rm ds/layer-*").success();

    // And back: nothing is under the key any more.
    user.runs(&["volume", "decrypt", "ds/vm1"]);
    assert_eq!(conclusion(&user, &key, "2.evidence"), "unneeded");
    verify(&user, "2.evidence --key home/keyserver/audit.pub --audit home/keyserver/audit").success();
    assert!(exposed.terminate(DEADLINE).success());
    let reader = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/read-layer.py");
    user.strongroom.run_shell(&format!("'{reader}' ds/vm1 --unencrypted > plain")).success();
    let plain = fs::read(scratch.path("plain")).unwrap();
    for number in 0..300 {
        let text = if number < 100 { "first" } else { "second" };
        let line = format!("{MARKER}, {text}, block {number}\n");
        let block: Vec<u8> = line.bytes().cycle().take(BLOCK).collect();
        assert!(plain[number * BLOCK..][..BLOCK] == block, "block {number}");
    }
    assert!(server.terminate(DEADLINE).success());
}

#[test]
fn a_file_that_was_forged_cut_or_repeated_is_refused() {
    let scratch = Scratch::new();
    let user = KeyServerUser::new(&scratch);
    let server = user.serve("keyserver");
    user.runs(&["volume", "create", "ds/vm1", "--size", "1M", "--key-provider", "embedded"]);
    let key = key_of(&user, "ds/vm1");
    let other = "openssl ecparam -name prime256v1 -genkey | openssl ec -pubout -outform DER -out other.pub";
    user.strongroom.run_shell(&format!("cp home/keyserver/audit.pub kept.pub; {other}")).success();
    user.runs(&["audit", "head", "--json", ">", "before.json"]);
    assert_eq!(conclusion(&user, &key, "good"), "needed");
    user.runs(&["audit", "head", "--json", ">", "after.json"]);
    let good = fs::read_to_string(scratch.path("good")).unwrap();
    let asked =
        format!("--challenge 'audit of May' --about {key} --head before.json --audit home/keyserver/audit");
    let accepted = |file: &str, asked: &str| verify(&user, &format!("{file} --key kept.pub {asked}"));
    accepted("good", &asked).success();

    // Whoever changes it has no key, and a part of it is no file.
    let unneeded = good.replace("\"conclusion\":\"needed\"", "\"conclusion\":\"unneeded\"");
    assert_ne!(unneeded, good);
    let lines: Vec<&str> = good.lines().collect();
    let forged = [
        ("changed", unneeded, "its signature is wrong"),
        ("form", good.replace("evidence 1\n", "evidence 2\n"), "of another version"),
        ("cut", good[..good.len() - 2].to_owned(), "does not have three lines"),
        ("without-end", format!("{}\n{}\n", lines[0], lines[1]), "does not have three lines"),
        ("longer", format!("{good}{{}}\n"), "does not have three lines"),
        (
            "of-a-head",
            format!("{}\n{}\n{}\n", lines[0], lines[1], head_signature(&scratch)),
            "its signature is wrong",
        ),
        ("twice", good.replace("\"signature\":", "\"signature\":\"00\",\"signature\":"), "twice"),
        ("empty", String::new(), "does not begin with"),
    ];
    for (name, text, refusal) in forged {
        fs::write(scratch.path(name), text).unwrap();
        let told = accepted(name, "").failure();
        assert!(told.contains("REFUSED") && told.contains(refusal), "{name}: {told}");
    }

    // It is of this key server, and the answer to this question.
    let told = verify(&user, "good --key other.pub").failure();
    assert!(told.contains("signed by another key"), "{told}");
    for (asked, refusal) in [
        ("--challenge 'audit of June'", "and not the one that you asked with"),
        ("--head after.json", "it is older than after.json"),
        ("--vm 5f0c2d9b-8a11-4a2c-9e53-0c6f7d1c0f1e", "it is about VM None"),
        ("--about 5f0c2d9b-8a11-4a2c-9e53-0c6f7d1c0f1e", "it is not about key"),
    ] {
        let told = accepted("good", asked).failure();
        assert!(told.contains("REFUSED") && told.contains(refusal), "{asked}: {told}");
    }

    // Its records are the log's: one that was changed there is found.
    user.strongroom
        .run_shell(
            "cp -a home/keyserver/audit log; sed -i 's/\"action\":\"Create\"/\"action\":\"Delete\"/' log/*",
        )
        .success();
    let told = accepted("good", "--audit log").failure();
    assert!(told.contains("REFUSED") && told.contains("audit log"), "{told}");
    user.strongroom
        .run_shell(
            "rm -r log; cp -a home/keyserver/audit log; sed -i '/\"action\":\"make evidence\"/,$d' log/*",
        )
        .success();
    let told = accepted("good", "--audit log").failure();
    assert!(told.contains("does not say that this file was made"), "{told}");
    let told = user.is_refused(&["evidence", "--output", "good"]);
    assert!(told.contains("good"), "an existing file stays: {told}");
    assert!(server.terminate(DEADLINE).success());
}

/// The signature over a head of the log, as the last line of an evidence.
fn head_signature(scratch: &Scratch) -> String {
    let head: Value = serde_json::from_slice(&fs::read(scratch.path("after.json")).unwrap()).unwrap();
    format!(r#"{{"key":{},"signature":{}}}"#, head["key"], head["signature"])
}

#[test]
fn of_a_vm_it_says_whether_the_data_keys_of_before_are_in_use() {
    let scratch = Scratch::new();
    let mut serving = Serving::start(&scratch);
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs("vm create web1 --memory 256M --net none --disk 64M");
    let id = serving.vm("web1")["id"].as_str().unwrap().to_owned();
    let conclusions = |vm: &str, file: &str| {
        let written = serving.json(&format!("evidence --vm {vm} --output {file}"));
        let keys = written["keys"].as_array().unwrap().iter();
        let mut all: Vec<_> = keys.map(|key| key["conclusion"].as_str().unwrap().to_owned()).collect();
        all.sort();
        all
    };
    assert_eq!(conclusions("web1", "1"), ["needed"]);
    serving.runs("vm key rotate web1");
    assert_eq!(conclusions("web1", "2"), ["data_keys_in_use", "needed"]);
    serving.runs("vm key rotate web1 --data");
    assert_eq!(conclusions("web1", "3"), ["needed", "unneeded", "unneeded"]);
    // A linked clone has layers under the data keys of before.
    serving.runs("vm clone web1 web2 --linked");
    serving.runs("vm key rotate web1 --data");
    assert_eq!(conclusions("web1", "4"), ["data_keys_in_use", "needed", "unneeded", "unneeded"]);
    serving.runs("vm delete web2 --yes");
    serving.runs("vm delete web1 --yes");
    let refused = serving.is_refused("evidence --vm web1 --output 5");
    assert!(refused.contains("web1"), "{refused}");
    let after = conclusions(&id, "5");
    assert!(after.len() == 4 && !after.contains(&"needed".to_owned()), "{after:?}");
    let told = scratch_verify(
        &scratch,
        &format!("5 --key home/keyserver/audit.pub --vm {id} --audit home/keyserver/audit"),
    );
    assert!(told.contains("What it cannot say:"), "{told}");
    serving.end();
}

fn scratch_verify(scratch: &Scratch, arguments: &str) -> String {
    strongroom_system_tests::CommandLine::new(scratch)
        .run_shell(&format!("'{VERIFIER}' {arguments}"))
        .success()
}
