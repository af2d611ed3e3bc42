//! An administrator without cryptography calls everything that the API has, about a VM whose guest
//! keeps a secret: the secret is in no answer and in no file, and no way to it is opened.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;
use strongroom_system_tests::{Scratch, Serving};

use crate::driven_api::Driven;
use crate::secret_search::Needles;

const ROLE: &str = "no-cryptography-administrator";
/// A text that is on the disk, in the memory and on the console of the guest, which joins it from
/// two halves.
const MARKER: &str = "strongroom-guest-marker-71b4";
const DISK_BYTES_MAX: u64 = 16 << 20;
/// One answer of so many, or more, is 2xx: of what the tool generates a tenth is.
const ACCEPTED_ONE_IN: usize = 50;
/// How long one run of the tool takes. What it has made is deleted after it.
const RUN: Duration = Duration::from_secs(60);

/// The length of the attack: `STRONGROOM_ATTACK_SECONDS`, or a minute.
fn attacks_for() -> Duration {
    let given = std::env::var("STRONGROOM_ATTACK_SECONDS").ok().and_then(|text| text.parse().ok());
    given.map_or(RUN, Duration::from_secs)
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn an_administrator_without_cryptography_neither_sees_nor_copies_what_a_guest_keeps() {
    // The test's own copies are in another directory.
    let (scratch, known) = (Scratch::new(), Scratch::new());
    let mut serving = Serving::start(&scratch);
    let guest = serving.test_guest();
    serving.runs("datastore add ds ds");
    let image = known.path("secret.raw");
    let content = MARKER.repeat((8 << 20) / MARKER.len() + 1);
    fs::write(&image, &content.as_bytes()[..8 << 20]).unwrap();
    serving.runs(&format!(
        "vm create secret1 --memory 256M --net none --disk 8M --image {} --machine pc {guest}",
        image.display()
    ));
    let _place = serving.take_place();
    serving.runs("vm start secret1");
    let mut console = serving.console("secret1");
    console.wait_until_ready();
    let (half, rest) = MARKER.split_at(MARKER.len() / 2);
    console.session.run(&format!("a={half}; b={rest}; whole=$a$b; echo $whole | tee text"));
    drop(console);
    // What the test itself has seen.
    fs::remove_file(scratch.path("console-secret1.log")).unwrap();
    serving.runs("vm snapshot create secret1 s1");
    let vm = serving.vm("secret1");
    // It may be given another name.
    let id = vm["id"].as_str().unwrap().to_owned();
    let disk = vm["disks"][0]["volume"].as_str().unwrap().to_owned();
    let token = serving.runs(&format!("access token create attacker --role {ROLE} --valid 1d"));
    let mut needles = Needles::default();
    needles.add("what the guest keeps", MARKER.as_bytes());

    let until = Instant::now() + attacks_for();
    let (mut runs, mut all, mut all_accepted) = (0_u64, 0, 0);
    while runs == 0 || Instant::now() < until {
        runs += 1;
        // What the role may do, and what would end the attack: the VM goes, or the token.
        let driven = Driven::of(&serving, &scratch)
            .without(&["vm_delete", "vm_unregister", "datastore_remove", "datastore_remove_host"])
            .without(&["token_rotate", "token_revoke", "session_end"])
            // All files are searched.
            .with_disks_of_at_most(DISK_BYTES_MAX)
            .about("vm", &["secret1", &id])
            .about("volume", &[&disk])
            .about("disk", &["disk0"])
            .about("snapshot", &["s1"])
            .about("datastore", &["ds"])
            .about("host", &["host1"])
            .about("user", &["admin"]);
        let mut drive = driven.command(token.trim());
        drive.args(["--checks", "not_a_server_error", "--generation-database", "none"]);
        drive.args(["--seed", &runs.to_string(), "--max-time", &RUN.as_secs().to_string()]);
        drive.args(["--report-har-path", "answers.har", "--output-truncate", "false"]);
        // A connection that is lost on a busy machine is a failure for the tool.
        let ran = drive.output().unwrap();
        let searched = needles.assert_not_under(&scratch.path("."));
        let Answers { count, accepted } = Answers::of(&scratch);
        println!("run {runs}: {count} answers, {accepted} of them 2xx; {searched} files were searched");
        // Of a caller who has lost its token.
        assert!(accepted > 0, "{count} answers, none 2xx: {}", String::from_utf8_lossy(&ran.stdout));
        (all, all_accepted) = (all + count, all_accepted + accepted);
        tidy(&serving, &scratch, &id);
        // An attack on a VM that is gone shows nothing.
        assert_eq!(serving.vm(&id)["lifecycle"], "present");
    }

    // Where a busy machine has a run end early, it has come no further than what is refused.
    assert!(all_accepted * ACCEPTED_ONE_IN > all, "{all} answers, {all_accepted} of them 2xx");

    // Nothing was opened: whatever a ticket is for that shows a guest's data, it was refused.
    let entries = on_record(&serving);
    assert!(entries.len() > 10, "{} entries", entries.len());
    let tickets = entries.iter().filter(|entry| entry["kind"] == "ticket");
    let opened: Vec<&Value> =
        tickets.filter(|entry| !entry["message"].as_str().unwrap().contains("check")).collect();
    assert!(opened.is_empty(), "{opened:?}");
    // The guest's disk has the content, and is encrypted.
    serving.runs(&format!("vm stop {id} --force"));
    let vm = serving.vm(&id);
    assert_eq!((&vm["encrypted"], &vm["partly_clear"]), (&Value::Bool(true), &Value::Bool(false)), "{vm}");
    serving.end();
}

/// The answers that the tool got.
struct Answers {
    count: usize,
    accepted: usize,
}

impl Answers {
    /// Those of the tool's report. None is an error of the server.
    fn of(scratch: &Scratch) -> Self {
        let report = fs::read(scratch.path("driven/answers.har")).unwrap();
        let report: Value = serde_json::from_slice(&report).unwrap();
        let entries = report["log"]["entries"].as_array().unwrap();
        let (mut count, mut accepted) = (0, 0);
        for entry in entries {
            let status = entry["response"]["status"].as_u64().unwrap_or(0);
            // 503 is documented: something is not reachable now.
            assert!(status < 500 || status == 503, "{entry}");
            count += usize::from(status != 0);
            accepted += usize::from((200..300).contains(&status));
        }
        Self { count, accepted }
    }
}

/// What the access log has about the attacker.
fn on_record(serving: &Serving<'_>) -> Vec<Value> {
    let mut entries: Vec<Value> = Vec::new();
    loop {
        let after = entries.last().map_or(0, |entry| entry["id"].as_u64().unwrap());
        let page = serving.json(&format!("access log --by attacker --after {after} --most 1000"));
        let page = page["items"].as_array().unwrap();
        if page.is_empty() {
            return entries;
        }
        entries.extend_from_slice(page);
    }
}

/// Removes what a run has made, and has the VM as it was.
fn tidy(serving: &Serving<'_>, scratch: &Scratch, id: &str) {
    let vms = serving.json("vm list");
    for vm in vms["items"].as_array().unwrap().iter().filter(|vm| vm["id"] != id) {
        // One that is still being made is deleted after the next run.
        let _ = serving.answer(&format!("vm delete {} --yes", vm["id"].as_str().unwrap()));
    }
    let _ = fs::remove_dir_all(scratch.path("driven"));
    serving.runs("host maintenance host1 off");
    let _ = serving.answer(&format!("vm template {id} --undo"));
    let _ = serving.answer(&format!("vm start {id}"));
}
