//! A user runs the embedded key server: without a setup, through outages, and with changing
//! clients.

use std::time::{Duration, Instant};

use serde_json::Value;
use strongroom_system_tests::key_server::audit_files;
use strongroom_system_tests::{KeyServerUser, Process, Scratch, Serving};
use strongroom_test_peers::{CertificateFiles, ClientKind, run_client};

const DEADLINE: Duration = Duration::from_secs(60);

/// Replaces the first occurrence of a text in the audit log.
fn edit_audit_log(user: &KeyServerUser<'_>, from: &str, to: &str) {
    let file = &audit_files(&user.strongroom.path("home/keyserver/audit"))[0];
    let mut bytes = std::fs::read(file).unwrap();
    let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn with_nothing_to_set_up_a_volume_has_its_key_in_the_key_server() {
    let scratch = Scratch::new();
    let user = KeyServerUser::new(&scratch);
    let server = user.serve("keyserver");
    let created = user.json(&["volume", "create", "ds/vm1", "--size", "64M", "--key-provider", "embedded"]);
    assert_eq!(created["encryption"]["key_provider"], "embedded", "{created}");
    let info = ["volume", "info", "ds/vm1", "--key-provider", "embedded"];
    assert_eq!(user.json(&info)["authenticated"], true);
    let status = user.json(&["keyserver", "status"]);
    assert_eq!(status["root_protection"], "unprotected", "{status}");
    assert_eq!(status["backup"]["backup"], "unbacked", "{status}");
    let tried = user.json(&["key-provider", "test", "embedded"]);
    assert_eq!(tried["well"], true, "{tried}");

    // It dies; the error names it, and the attempt damages nothing.
    server.kill();
    let told = user.is_refused(&info);
    assert!(told.contains("key-unavailable: key provider embedded, key "), "{told}");
    let told = user.is_refused(&["volume", "expose", "ds/vm1", "--no-key-wait"]);
    assert!(told.contains("key-unavailable: key provider embedded, key "), "{told}");
    let mut waiting =
        user.strongroom.start_shell("expose", &KeyServerUser::script(&["volume", "expose", "ds/vm1"]));
    let waits = || {
        let told = std::fs::read_to_string(waiting.stderr_log()).unwrap();
        told.contains("Waiting for the key") && told.contains("key provider embedded, key ")
    };
    let begun = Instant::now();
    while !waits() {
        assert!(begun.elapsed() < DEADLINE, "it does not say that it waits");
        std::thread::yield_now();
    }
    // It is back, and the volume is exposed automatically.
    let server = user.serve("keyserver-again");
    waiting.wait_for_line("that it is exposed", DEADLINE, |line| line.contains("is exposed by worker"));
    assert_eq!(user.json(&info)["authenticated"], true);
    assert!(server.terminate(DEADLINE).success());
    // The exposure continues without the key server.
    assert!(waiting.terminate(DEADLINE).success());

    let released = |line: &Value| {
        let record = line.to_string();
        record.contains("\"Get\"") && record.contains("\"released\":\"plain\"")
    };
    let audit = user.audit();
    assert!(audit.iter().filter(|line| released(line)).count() >= 2, "{audit:#?}");
    // The last line is the signed head, of the line before it.
    let verified = user.json(&["audit", "verify"]);
    let number = |name: &str| verified[name].as_u64().unwrap();
    assert!(
        verified["whole"] == true && number("last_sequence") == number("signed_through") + 1,
        "{verified}"
    );
    edit_audit_log(&user, "\"Get\"", "\"Gat\"");
    let found = user.strongroom.run_shell(&KeyServerUser::script(&["audit", "verify"]));
    assert!(found.status.code() == Some(1) && found.stdout.contains("NOT whole"), "{found:?}");
}

#[test]
fn a_client_is_enrolled_by_a_token_once_and_let_in_until_it_is_revoked() {
    let scratch = Scratch::new();
    let user = KeyServerUser::new(&scratch);
    let server = user.serve("keyserver");
    // As a user does it: only the token goes to the file.
    user.runs(&["keyserver", "token", "create", "host1", "--role", "client", ">token"]);
    let enrol = |into| {
        ["keyserver", "enrol", "--server", &user.enrolment, "--token-fd", "3", "--into", into, "3<token"]
            .map(str::to_owned)
    };
    let enrol_into = |into| enrol(into).map(|argument| argument.to_owned());
    let first = enrol_into("host1");
    let enrolled = user.json(&first.each_ref().map(String::as_str));
    assert_eq!((&enrolled["name"], &enrolled["role"]), (&"host1".into(), &"client".into()), "{enrolled}");
    let second = enrol_into("thief");
    let told = user.is_refused(&second.each_ref().map(String::as_str));
    assert!(told.contains("used"), "{told}");

    let provider =
        ["--kmip", &user.kmip, "--ca", "host1/ca.pem", "--cert", "host1/cert.pem", "--key", "host1/key.pem"];
    user.runs(&[&["key-provider", "add", "kms"], &provider[..], &["--server-name", "localhost"]].concat());
    user.runs(&["volume", "create", "ds/vm1", "--size", "64M", "--key-provider", "kms"]);
    // Only its owner can use its keys.
    let clients = user.json(&["keyserver", "client", "list"]);
    let host = clients["items"].as_array().unwrap().iter().find(|client| client["name"] == "host1").unwrap();
    let id = host["id"].as_str().unwrap();
    let renewed =
        user.json(&["keyserver", "enrol", "--server", &user.enrolment, "--renew", "--into", "host1"]);
    assert_eq!(renewed["client"], id, "{renewed}");
    user.runs(&["volume", "info", "ds/vm1", "--key-provider", "kms"]);

    user.runs(&["keyserver", "client", "revoke", id, "--reason", "stolen"]);
    let told = user.is_refused(&["volume", "info", "ds/vm1", "--key-provider", "kms"]);
    assert!(told.contains("key-unavailable: key provider kms, key "), "{told}");
    let clients = user.json(&["keyserver", "client", "list"]);
    let revoked: Vec<_> =
        clients["items"].as_array().unwrap().iter().filter(|client| client["is_revoked"] == true).collect();
    assert_eq!(revoked.len(), 1, "{clients}");
    assert!(server.terminate(DEADLINE).success());
    let audit = user.audit();
    assert!(audit.iter().any(|line| line.to_string().contains("revoke client")), "{audit:#?}");
}

#[test]
fn others_clients_use_it() {
    let scratch = Scratch::new();
    let user = KeyServerUser::new(&scratch);
    let server = user.serve("keyserver");
    let identity =
        CertificateFiles { certificate: user.client_file("cert.pem"), key: user.client_file("key.pem") };
    // PyKMIP looks for the given address in the names of the server's certificate.
    let port = user.kmip.rsplit(':').next().unwrap();
    let address = format!("localhost:{port}");
    let runs = |kind, arguments: &[&str]| {
        run_client(kind, &address, &user.client_file("ca.pem"), &identity, arguments)
            .unwrap_or_else(|said| panic!("{arguments:?}: {said}"))
    };
    runs(ClientKind::PyKmip, &["vcenter", "life-cycle", "register"]);
    runs(ClientKind::KmipGo, &["vcenter", "life-cycle", "register", "wrapped-get", "batch"]);
    for version in ["1.0", "1.1", "1.2", "1.3", "1.4"] {
        runs(ClientKind::KmipGo, &["--version", version, "life-cycle"]);
    }
    assert!(server.terminate(DEADLINE).success());
}

#[test]
fn where_it_listens_is_remembered() {
    let scratch = Scratch::new();
    let user = KeyServerUser::new(&scratch);
    let server = user.serve("keyserver");
    user.runs(&["volume", "create", "ds/vm1", "--size", "64M", "--key-provider", "embedded"]);
    assert!(server.terminate(DEADLINE).success());
    let serves = |name: &str, arguments: &[&str]| {
        let mut server = user.start(name, &[&["keyserver", "run"], arguments].concat());
        server.wait_for_line("that it serves", DEADLINE, |line| line.contains("serves keys until"));
        user.runs(&["keyserver", "status"]);
        user.runs(&["volume", "info", "ds/vm1", "--key-provider", "embedded"]);
        assert!(server.terminate(DEADLINE).success());
    };
    serves("as-before", &[]);
    // The server moves, and this machine's client with it.
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (kmip, enrolment) = (free(), free());
    serves("elsewhere", &["--listen", &kmip, "--listen-enrolment", &enrolment]);
    serves("elsewhere-again", &[]);
    let settings = std::fs::read_to_string(user.strongroom.path("home/keyserver/server.json")).unwrap();
    assert!(settings.contains(&kmip) && settings.contains(&enrolment), "{settings}");
}

/// The port accepts connections but is flooded: commands of the server's machine use another way.
#[test]
fn this_machine_administers_it_whatever_comes_to_its_port() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    let user = KeyServerUser::new(&scratch);
    let server = user.serve("keyserver");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let settings = user.strongroom.path("home/keyserver/server.json");
    let text = std::fs::read_to_string(&settings).unwrap();
    let flooded = text.replace(&user.enrolment, &silent.local_addr().unwrap().to_string());
    assert_ne!(text, flooded);
    std::fs::write(&settings, flooded).unwrap();

    user.runs(&["keyserver", "status"]);
    user.runs(&["keyserver", "token", "create", "host1", "--role", "client", ">token"]);
    let enrol =
        ["keyserver", "enrol", "--server", &user.enrolment, "--token-fd", "3", "--into", "host1", "3<token"];
    let client = user.json(&enrol)["client"].as_str().unwrap().to_owned();
    user.runs(&["keyserver", "client", "revoke", &client, "--reason", "stolen"]);

    let socket = user.strongroom.path("home/keyserver/administration.sock");
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(server.terminate(DEADLINE).success());
    assert!(!socket.exists(), "it goes with the server");
    let audit = user.audit();
    let revoked = audit.iter().find(|line| line["action"] == "revoke client").unwrap();
    let address = revoked["actor"]["address"].as_str().unwrap();
    assert!(address.starts_with("administration socket, uid "), "{revoked}");
}

#[test]
fn two_administrators_hand_the_keys_of_a_lost_client_over() {
    let scratch = Scratch::new();
    let user = KeyServerUser::new(&scratch);
    let server = user.serve("keyserver");
    let enrol = |name: &str, role: &str| {
        user.runs(&["keyserver", "token", "create", name, "--role", role, ">token"]);
        let enrol =
            ["keyserver", "enrol", "--server", &user.enrolment, "--token-fd", "3", "--into", name, "3<token"];
        user.json(&enrol)["client"].as_str().unwrap().to_owned()
    };
    let (lost, heir) = (enrol("lost", "client"), enrol("heir", "client"));
    let bob = enrol("bob", "admin");
    let provider_of = |name: &str| {
        let files = ["ca", "cert", "key"].map(|file| format!("{name}/{file}.pem"));
        let add = ["key-provider", "add", "kms", "--kmip", &user.kmip, "--server-name", "localhost"];
        let files = ["--ca", &files[0], "--cert", &files[1], "--key", &files[2]];
        user.runs(&[&add[..], &files[..]].concat());
    };
    provider_of("lost");
    let created = user.json(&["volume", "create", "ds/vm1", "--size", "64M", "--key-provider", "kms"]);
    let key = created["encryption"]["provider_key_id"].as_str().unwrap();
    user.runs(&["keyserver", "client", "revoke", &lost, "--reason", "burnt"]);
    user.runs(&["key-provider", "remove", "kms", "--yes"]);
    provider_of("heir");
    let info = ["volume", "info", "ds/vm1", "--key-provider", "kms"];
    let told = user.is_refused(&info);
    assert!(told.contains("belongs to another client"), "{told}");

    let ask = |from: &str, to: &str| {
        ["keyserver", "hand-over", "ask", "--from", from, "--to", to, "--reason", "burnt"].map(str::to_owned)
    };
    let words = |words: &[String]| words.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
    let told = user.is_refused(&[&words(&ask(&lost, &bob))]);
    assert!(told.contains("go to no other role"), "{told}");
    let asked = user.json(&[&words(&ask(&lost, &heir))]);
    assert_eq!((&asked["keys"][0], asked["keys"].as_array().unwrap().len()), (&key.into(), 1), "{asked}");
    let id = asked["id"].as_str().unwrap();
    // The requester cannot confirm it, and until the confirmation nothing changes.
    let confirm = ["keyserver", "hand-over", "confirm", id];
    let told = user.is_refused(&confirm);
    assert!(told.contains("another administrator confirms it"), "{told}");
    user.is_refused(&info);
    assert!(user.runs(&["keyserver", "hand-over", "list"]).contains(key));

    let as_bob = ["--server", &user.enrolment, "--identity", "bob"];
    user.runs(&[&confirm[..], &as_bob[..]].concat());
    user.runs(&info);
    assert_eq!(user.json(&["keyserver", "hand-over", "list"])["items"].as_array().unwrap().len(), 0);
    // It belongs to the new owner in every respect, and no longer to the first.
    let told = user.is_refused(&[&words(&ask(&lost, &heir))]);
    assert!(told.contains("has no keys"), "{told}");
    let third = enrol("third", "client");
    let asked = user.json(&[&words(&ask(&heir, &third))]);
    assert_eq!(asked["keys"][0], key, "{asked}");
    user.runs(&["keyserver", "hand-over", "cancel", asked["id"].as_str().unwrap()]);
    user.runs(&info);

    assert!(server.terminate(DEADLINE).success());
    let audit = user.audit();
    let at =
        |action: &str| audit.iter().position(|line| line["action"] == action && line["outcome"] == "done");
    assert!(at("propose hand-over") < at("hand over keys") && at("hand over keys") < at("confirm hand-over"));
    let handed = audit.iter().find(|line| line["action"] == "hand over keys").unwrap();
    assert_eq!((&handed["objects"][0], handed["objects"].as_array().unwrap().len()), (&key.into(), 1));
    assert!(handed["fields"]["to"].as_str().unwrap().contains(&heir), "{handed}");
}

#[test]
fn its_audit_log_is_kept_within_a_size_from_then_on() {
    let scratch = Scratch::new();
    let user = KeyServerUser::new(&scratch);
    let told = user.is_refused(&["keyserver", "init", "--audit-keep-size", "64M"]);
    assert!(told.contains("--audit-file-size"), "{told}");
    let server = user.serve_with("keyserver", &["--audit-file-size", "1M", "--audit-keep-size", "2M"]);
    assert!(server.terminate(DEADLINE).success());
    // The setting is kept.
    let server = user.serve("again");
    let settings = std::fs::read_to_string(user.strongroom.path("home/keyserver/server.json")).unwrap();
    assert!(settings.contains("\"keep_bytes\": 2097152"), "{settings}");
    let status = user.json(&["keyserver", "status"]);
    assert_eq!(status["audit_first_sequence"], 1, "{status}");
    assert!(status["audit_bytes"].as_u64().unwrap() > 0, "{status}");
    assert!(server.terminate(DEADLINE).success());
}

#[test]
fn its_audit_log_goes_to_a_collector() {
    let scratch = Scratch::new();
    let user = KeyServerUser::new(&scratch);
    let collector = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=logs \
        -addext subjectAltName=DNS:localhost -addext basicConstraints=CA:FALSE -keyout logs.key -out logs.pem 2> req.log && mkfifo input && \
        exec openssl s_server -accept 127.0.0.1:0 -cert logs.pem -key logs.key 0<>input";
    let mut collector = user.strongroom.start_shell("collector", collector);
    let listens = collector.wait_for_line("where it listens", DEADLINE, |line| line.starts_with("ACCEPT"));
    let address = format!("localhost:{}", listens.trim().rsplit(':').next().unwrap());
    let ship = ["--syslog", &address, "--syslog-ca", "logs.pem"];
    let server = user.serve_with("keyserver", &ship);
    user.runs(&["key-provider", "test", "embedded"]);
    let status = user.json(&["keyserver", "status"]);
    assert_eq!(status["collector"]["trouble"], Value::Null, "{status}");
    assert!(server.terminate(DEADLINE).success());
    // The collector has received the last records, line for line.
    let audit = user.audit();
    let last = audit.iter().rfind(|line| line["kind"] == "record").unwrap();
    assert_eq!(last["action"], "stop", "{last}");
    let previous = last["previous"].as_str().unwrap().to_owned();
    collector.wait_for_line("the end of the log", DEADLINE, |line| {
        line.contains("\"action\":\"stop\"") && line.contains(&previous)
    });
    collector.kill();

    // Without its collector it keeps serving, reports that, and loses nothing.
    let server = user.serve_with("keyserver-alone", &ship);
    let begun = Instant::now();
    loop {
        user.runs(&["key-provider", "test", "embedded"]);
        let status = user.json(&["keyserver", "status"]);
        if status["collector"]["trouble"].as_str().is_some_and(|trouble| trouble.contains(&address)) {
            break;
        }
        assert!(begun.elapsed() < DEADLINE, "{status}");
    }
    assert!(server.terminate(DEADLINE).success());
}

/// The command in the first pair of backquotes after `before`.
fn command_after<'a>(text: &'a str, before: &str) -> &'a str {
    let at = text.find(before).unwrap_or_else(|| panic!("no '{before}' in: {text}"));
    text[at..].split('`').nth(1).unwrap_or_else(|| panic!("no command in: {text}"))
}

#[test]
fn an_unprotected_root_key_is_told_with_the_command_that_seals_it() {
    let scratch = Scratch::new();
    let mut serving = Serving::start(&scratch);
    let told = std::fs::read_to_string(scratch.path("serve-1-1.stderr")).unwrap();
    let command = command_after(&told, "unprotected: ").to_owned();
    let status = serving.json("keyserver status");
    assert_eq!(status["root_protection"], "unprotected", "{status}");
    let warnings = status["warnings"].to_string();
    assert_eq!(command_after(&warnings, "unprotected: "), command, "{status}");
    // The machine that runs the tests may lack other things, so doctor's exit status may not be 0.
    let doctor = serving.strongroom.run_shell(&KeyServerUser::script(&["doctor"])).stdout;
    assert!(doctor.contains(&command), "{doctor}");
    serving.end();

    // As a user types it, but without the terminal's prompts.
    std::fs::write(scratch.path("words"), "correct horse battery staple\n").unwrap();
    std::fs::write(scratch.path("short"), "horse\n").unwrap();
    let arguments = command.strip_prefix("strongroom ").unwrap();
    let refused = serving.is_refused(&format!("{arguments} --secret-fd 3 3<short"));
    assert!(refused.contains("a new passphrase has at least 12 bytes; this one has 5"), "{refused}");
    serving.runs(&format!("{arguments} --secret-fd 3 3<words"));
    let shown = serving.json("keyserver root show");
    assert_eq!(shown["protection"], "passphrase", "{shown}");
}

#[test]
fn the_first_start_seals_the_root_key_by_the_tpm() {
    let scratch = Scratch::new();
    let user = KeyServerUser::new(&scratch);
    let state = scratch.make_directory("tpm");
    let socket = scratch.path("tpm/socket");
    let mut command = std::process::Command::new("swtpm");
    command
        .args(["socket", "--tpm2", "--flags", "not-need-init,startup-clear", "--tpmstate"])
        .arg(format!("dir={}", state.display()))
        .arg("--server")
        .arg(format!("type=unixio,path={}", socket.display()))
        .arg("--ctrl")
        .arg(format!("type=unixio,path={}.ctrl", socket.display()));
    let tpm = Process::start(&scratch, "swtpm", &command);
    let begun = Instant::now();
    while std::os::unix::net::UnixStream::connect(&socket).is_err() {
        assert!(begun.elapsed() < DEADLINE, "swtpm does not listen");
        std::thread::yield_now();
    }
    let server = user.serve_with("keyserver", &["--tpm-device", "tpm/socket"]);
    let status = user.json(&["keyserver", "status"]);
    assert_eq!(status["root_protection"], "tpm", "{status}");
    assert!(server.terminate(DEADLINE).success());
    let server = user.serve("keyserver-again");
    assert!(server.terminate(DEADLINE).success());
    tpm.kill();
}
