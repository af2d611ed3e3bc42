//! A user learns the commands: creates a volume, inspects it, exposes, grows, checks and deletes
//! it; and a script does the same with `--json`.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use strongroom_system_tests::{CommandLine, Scratch};

const KEY: [u8; 32] = [0x5a; 32];
const CLOSES_WITHIN: Duration = Duration::from_secs(60);

#[test]
fn a_script_takes_a_volume_through_its_life() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    strongroom.write_key_file("vm1.key", &KEY);
    let key = ["--key-file", "vm1.key"];
    let volume = |verb, more: &[&str]| strongroom.json(&[&["volume", verb, "ds/vm1"], more, &key].concat());

    let created = volume("create", &["--size", "64M"]);
    assert_eq!(created["path"], "ds/vm1");
    assert_eq!(created["size_bytes"], 64 << 20);
    assert_eq!(created["provisioning"], "thin");
    assert_eq!(created["encryption"]["key_source"], "key_file");
    assert_eq!(created["generation"], 1);

    let listed = strongroom.json(&["volume", "list", "ds"]);
    assert_eq!(listed["items"], json!([created]));
    assert_eq!(listed["broken"], json!([]));

    assert_eq!(strongroom.json(&["volume", "info", "ds/vm1"])["authenticated"], false);
    let info = volume("info", &[]);
    assert_eq!(info["authenticated"], true);
    assert_eq!(info["volume_id"], created["volume_id"]);
    assert!(info["datastore"]["available_bytes"].as_u64() > Some(0));

    let resized = volume("resize", &["--size", "128M"]);
    assert_eq!((&resized["old_size_bytes"], &resized["size_bytes"]), (&json!(64 << 20), &json!(128 << 20)));
    assert_eq!(resized["generation"], 2);
    assert_eq!(volume("info", &["--least-generation", "2"])["size_bytes"], 128 << 20);

    assert_eq!(volume("check", &[]), json!({ "path": "ds/vm1", "clean": true, "findings": [] }));
    let deleted = strongroom.json(&["volume", "delete", "ds/vm1", "--yes"]);
    assert_eq!(deleted, json!({ "path": "ds/vm1", "deleted": true }));
    assert_eq!(strongroom.json(&["volume", "list", "ds"])["items"], json!([]));
}

#[test]
fn a_person_reads_sentences() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    std::fs::write(strongroom.path("passphrase"), "correct horse battery staple\n").unwrap();
    let with_passphrase =
        |arguments: &[&str]| strongroom.run_with_passphrase("passphrase", arguments).success();

    let created = with_passphrase(&["volume", "create", "ds/vm1", "--size", "20G"]);
    assert_eq!(created, "created ds/vm1: 20G, thin, encrypted\n");
    let created =
        strongroom.run(&["volume", "create", "ds/scrap", "--size", "4M", "--unencrypted", "--thick"]);
    assert_eq!(created.success(), "created ds/scrap: 4M, thick, NOT encrypted\n");

    let listed = strongroom.run(&["volume", "list", "ds"]).success();
    let words: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[0], ["NAME", "SIZE", "ALLOCATED", "SPACE", "KEY", "CREATED"]);
    // The size includes its descriptor and the spare ones.
    assert_eq!(words[1][..5], ["scrap", "4M", "4.03M", "thick", "NONE"]);
    assert_eq!((words[2][0], words[2][1], words[2][4]), ("vm1", "20G", "passphrase"));

    let info = with_passphrase(&["volume", "info", "ds/vm1"]);
    assert!(info.contains("20G (21474836480 bytes)"), "{info}");
    assert!(info.contains("authentic: the volume's key vouches for it"), "{info}");

    assert_eq!(
        with_passphrase(&["volume", "resize", "ds/vm1", "--size", "30G"]),
        "ds/vm1 grew from 20G to 30G\n"
    );
    assert_eq!(
        with_passphrase(&["volume", "check", "ds/vm1"]),
        "ds/vm1: no errors in its descriptor and files; its blocks were not read (--data reads them)\n"
    );
    let structural = strongroom.run(&["volume", "check", "ds/vm1", "--no-key"]).success();
    assert!(structural.starts_with("notice: without its key"), "{structural}");
    assert_eq!(strongroom.run(&["volume", "delete", "ds/vm1", "--yes"]).success(), "deleted ds/vm1\n");
}

#[test]
fn an_exposed_volume_keeps_what_was_written_over_every_way_to_end() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    strongroom.write_key_file("vm1.key", &KEY);
    let key = ["--key-file", "vm1.key"];
    strongroom.json(&[&["volume", "create", "ds/vm1", "--size", "64M"], &key[..]].concat());
    for (index, signal) in [Signal::TERM, Signal::INT, Signal::HUP].into_iter().enumerate() {
        let (mut server, uri) = strongroom.expose("ds/vm1", &key);
        assert_eq!(uri, format!("nbd+unix:///vm1?socket={}", strongroom.path("vm.sock").display()));
        let before = format!("read -P {index} 1000 50000");
        let write = format!("write -P {} 1000 50000", index + 1);
        // Unwritten blocks are zero, and so is the first pattern. The client flushes nothing.
        let io = ["-f", "raw", "-t", "writeback", "-c", &before, "-c", &write, &uri];
        let said = strongroom.peer("qemu-io", &io);
        assert!(!said.contains("Pattern verification failed"), "{said}");
        server.signal(signal);
        assert_eq!(server.wait(CLOSES_WITHIN).code(), Some(0), "{signal:?}");
        assert!(!strongroom.path("vm.sock").exists());
    }
}

#[test]
fn two_readers_share_a_volume_and_neither_writes() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    strongroom.json(&["volume", "create", "ds/vm1", "--size", "4M", "--unencrypted"]);
    let flags = ["--read-only", "--unencrypted"];
    let (_first, uri) = strongroom.expose("ds/vm1", &flags);
    let export = ["volume", "export", "ds/vm1", "vm1.raw", "--format", "raw", "--unencrypted"];
    strongroom.json(&export);
    let info: Value = serde_json::from_str(&strongroom.peer("nbdinfo", &["--json", &uri])).unwrap();
    assert_eq!(info["exports"][0]["is_read_only"], true);
}

#[test]
fn without_an_address_the_socket_is_beside_the_volume() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    strongroom.json(&["volume", "create", "ds/vm1", "--size", "4M", "--unencrypted"]);
    let mut server = strongroom.start("expose", &["volume", "expose", "ds/vm1/", "--unencrypted"]);
    let uri = server.wait_for_line("its URI", CLOSES_WITHIN, |line| line.starts_with("nbd+unix:///vm1?"));
    assert!(uri.ends_with("/ds/vm1.sock"), "{uri}");
    strongroom.peer("nbdinfo", &[&uri]);
    let listed = strongroom.json(&["volume", "list", "ds"]);
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1), "{listed}");
    assert!(server.terminate(CLOSES_WITHIN).success());
    assert!(!strongroom.path("ds/vm1.sock").exists());
}

#[test]
fn what_is_exposed_is_told_as_json_too() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    strongroom.json(&["volume", "create", "ds/vm1", "--size", "4M", "--unencrypted"]);
    let arguments = ["--json", "volume", "expose", "ds/vm1", "--nbd", "unix:vm.sock", "--unencrypted"];
    let mut server = strongroom.start("expose", &arguments);
    server.wait_for_line("its URI", CLOSES_WITHIN, |line| {
        line.trim().starts_with("\"uri\": \"nbd+unix:///vm1?")
    });
    server.wait_for_line("the end of the document", CLOSES_WITHIN, |line| line == "}");
    assert!(server.terminate(CLOSES_WITHIN).success());
}

/// Certificates of an authority for a server and two clients, made by OpenSSL, in directories as
/// libnbd wants them.
fn make_certificates(strongroom: &CommandLine<'_>) {
    let script = r#"
        exec 2>openssl.log
        key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }
        key ca-key.pem
        openssl req -x509 -new -key ca-key.pem -subj /CN=authority -days 2 -out ca.pem
        sign() {
            key "$1-key.pem"
            printf 'subjectAltName=%s\n' "$2" >"$1.ext"
            openssl req -new -key "$1-key.pem" -subj "/CN=$1" |
                openssl x509 -req -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 2 -extfile "$1.ext" -out "$1.pem"
        }
        sign server DNS:localhost,IP:127.0.0.1
        for client in friend stranger; do
            sign $client DNS:$client.example.org
            mkdir $client
            cp ca.pem $client/ca-cert.pem
            cp $client.pem $client/client-cert.pem
            cp $client-key.pem $client/client-key.pem
        done
    "#;
    strongroom.run_shell(script).success();
}

#[test]
fn over_tcp_only_who_is_authorized_gets_in() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    make_certificates(&strongroom);
    strongroom.json(&["volume", "create", "ds/vm1", "--size", "4M", "--unencrypted"]);
    let expose = ["volume", "expose", "ds/vm1", "--unencrypted", "--nbd", "tcp:127.0.0.1:0"];
    let tls = ["--tls-ca", "ca.pem", "--tls-cert", "server.pem", "--tls-key", "server-key.pem"];
    let authorized = [&expose[..], &tls, &["--authorize", "dns:friend.example.org"]].concat();
    let mut server = strongroom.start("expose", &authorized);
    let uri =
        server.wait_for_line("its NBD URI", CLOSES_WITHIN, |line| line.starts_with("nbds://127.0.0.1:"));
    let look = |client: &str| {
        let directory = strongroom.path(client);
        strongroom.run_shell(&format!("exec nbdinfo --size '{uri}?tls-certificates={}'", directory.display()))
    };
    assert_eq!(look("friend").success(), "4194304\n");
    assert_eq!(look("stranger").status.code(), Some(1));
    let in_the_clear = uri.replace("nbds:", "nbd:");
    assert!(!strongroom.run_shell(&format!("exec nbdinfo --size '{in_the_clear}'")).status.success());
    assert!(server.terminate(CLOSES_WITHIN).success());
}

#[test]
fn errors_are_json_for_those_who_ask() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    for (arguments, status, code) in [
        (&["volume", "info", "ds/none"][..], 1, "system"),
        (&["volume", "create", "ds/vm1", "--size", "0", "--unencrypted"], 2, "usage"),
        (&["volume", "create", "ds/vm1", "--size", "4M"], 1, "no_key"),
        (&["volume", "nonsense"], 2, "usage"),
    ] {
        let finished = strongroom.run(&[&["--json"], arguments].concat());
        assert_eq!((finished.status.code(), finished.stdout.as_str()), (Some(status), ""), "{arguments:?}");
        let error: Value =
            serde_json::from_str(&finished.stderr).unwrap_or_else(|error| panic!("{error}: {finished:?}"));
        assert_eq!(error["error"]["code"], code);
        assert!(error["error"]["message"].is_string());
    }
}

#[test]
fn nobody_is_asked_where_nobody_is() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    std::fs::write(strongroom.path("passphrase"), "correct horse").unwrap();
    strongroom.run_with_passphrase("passphrase", &["volume", "create", "ds/vm1", "--size", "4M"]).success();
    strongroom.is_refused(
        &["volume", "create", "ds/vm2", "--size", "4M"],
        1,
        "ds/vm2 needs its key: give --key-file FILE or --passphrase-fd N, or run in a terminal to be asked for a passphrase",
    );
    strongroom.is_refused(
        &["volume", "check", "ds/vm1"],
        1,
        "ds/vm1 needs its key: give --passphrase-fd N, or run in a terminal to be asked for its passphrase",
    );
    strongroom.is_refused(
        &["volume", "delete", "ds/vm1"],
        2,
        "nobody is at a terminal to be asked whether ds/vm1 is to be deleted; give --yes if it is",
    );
    assert!(strongroom.path("ds/vm1/descriptor").exists() && !strongroom.path("ds/vm2").exists());
}

#[test]
fn completions_and_manual_pages_come_from_the_same_source() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    for shell in ["bash", "zsh", "fish"] {
        let script = strongroom.run(&["completions", shell]).success();
        assert!(script.contains("expose") && script.contains("passphrase-fd"), "{shell}");
    }
    let written = strongroom.json(&["man", "man1"]);
    let pages = written["pages"].as_array().unwrap();
    assert!(pages.contains(&json!("strongroom-volume-expose.1")));
    for page in pages {
        let text = std::fs::read_to_string(strongroom.path("man1").join(page.as_str().unwrap())).unwrap();
        assert!(text.contains(".SH NAME"), "{page}");
    }
    let version = strongroom.run(&["--version"]).success();
    assert!(version.contains("volume format: writes up to 9, reads up to 9"), "{version}");
}
