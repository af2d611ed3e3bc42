//! The key server in front of an external KMIP server: hosts get its keys with grants and have no
//! credentials for it, the control plane never sees a key, and an outage of either server is an
//! event.

use std::path::Path;
use std::time::Instant;

use crate::key_site::{DEADLINE, Site, tells};
use serde_json::Value;
use strongroom_kmip::client::{Client, ClientOptions, TlsFiles};
use strongroom_kmip::protocol::RevocationReasonCode;
use strongroom_system_tests::key_server::audit_lines;
use strongroom_system_tests::{Scratch, Serving};
use strongroom_test_peers::{Pki, Server, ServerKind};

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn hosts_get_an_external_servers_keys_under_grants_alone() {
    let (pki, objects) = (Pki::new(), tempfile::tempdir().unwrap());
    let mut external = Server::start(ServerKind::KmipGo, &pki, objects.path(), &[]);
    let scratch = Scratch::new();
    let site = Site::new(&scratch);
    let identity = pki.client("broker");
    let path = |path: &Path| path.display().to_string();
    let (ca, certificate, key) = (path(&pki.authority()), path(&identity.certificate), path(&identity.key));
    let add = ["key-provider", "add", "corp", "--kmip", &external.address()];
    site.json("server", &[&add[..], &["--ca", &ca, "--cert", &certificate, "--key", &key]].concat());
    let told = site.is_refused("server", &["keyserver", "run", "--broker", "nobody"]);
    assert!(told.contains("no key provider 'nobody' is set up here"), "{told}");

    let server = site.serve("keyserver", &["--broker", "corp"]);
    site.enrol("control", "control");
    site.enrol("host1", "host");
    let broker = |arguments: &[&str]| {
        let as_control = ["--identity", "control", "--server", &site.enrolment];
        site.json("control", &[&["keyserver", "broker"], arguments, &as_control].concat())
    };
    let made = broker(&["create", "corp"]);
    let key = made["id"].as_str().unwrap();
    // A key that was there before is adopted once.
    let there = site.json("server", &["key-provider", "create-key", "corp"]);
    let there = there["key"].as_str().unwrap();
    let taken_in = broker(&["add", "corp", there]);
    assert_eq!(broker(&["add", "corp", there]), taken_in);
    let listed = broker(&["list"]);
    let found: Vec<_> = listed["items"].as_array().unwrap().iter().map(|key| &key["id"]).collect();
    assert_eq!(found, [&made["id"], &taken_in["id"]], "{listed}");
    let told = site.is_refused(
        "control",
        &[
            "keyserver",
            "broker",
            "add",
            "corp",
            "no-such-key",
            "--identity",
            "control",
            "--server",
            &site.enrolment,
        ],
    );
    assert!(told.contains("no server of it has that key"), "{told}");

    let create = ["volume", "create", "ds/vm1", "--size", "64M", "--key-provider", "kms", "--key-id", key];
    let told = site.is_refused("control", &create);
    assert!(told.contains("the role control may not Get"), "{told}");
    site.grant("host1", key, "1", "grant");
    let created = site.json("host1", &[&create[..], &["--grant", "grant"]].concat());
    assert_eq!(created["encryption"]["provider_key_id"], key, "{created}");

    // The external server is away: the missing key is reported with its local and its external
    // name.
    external.kill();
    site.grant("host1", key, "1", "grant");
    let expose = ["volume", "expose", "ds/vm1", "--grant", "grant"];
    let mut exposed = site.strongroom.start_shell("expose", &Site::script("host1", &expose));
    tells(&exposed, &format!("key-unavailable: key provider kms, key {key}: "));
    let upstream_key = made["key"].as_str().unwrap();
    let away = "it comes from key provider corp, which is unavailable: key";
    tells(&exposed, &format!("{away} {upstream_key}: "));
    // The grant is as good as before.
    external.restart();
    exposed.wait_for_line("that it is exposed", DEADLINE, |line| line.contains("is exposed by worker"));

    // An exposed volume survives an outage, and notices a revocation at the external server.
    external.kill();
    tells(&exposed, &format!("cannot be confirmed: {away}"));
    external.restart();
    tells(&exposed, "is held and confirmed again");
    let tls = TlsFiles {
        authority: pki.authority(),
        certificate: identity.certificate.clone(),
        key: identity.key.clone(),
    };
    let owner = Client::new(ClientOptions::new(external.address().parse().unwrap(), tls)).unwrap();
    owner.revoke(upstream_key, RevocationReasonCode::KeyCompromise, "seen").unwrap();
    tells(&exposed, "was revoked as compromised, and was wiped here");
    assert!(exposed.terminate(DEADLINE).success());
    let listed = broker(&["list"]);
    assert_eq!(listed["items"][0]["state"], "compromised", "{listed}");
    assert!(server.terminate(DEADLINE).success());

    let audit: Vec<_> = site.audit().iter().map(Value::to_string).collect();
    let of_upstream = |line: &&String| {
        line.contains("\"upstream_provider\":\"corp\"")
            && line.contains(&format!("\"upstream_key\":\"{upstream_key}\""))
            && line.contains("granted_by")
    };
    let found: Vec<_> = audit.iter().filter(of_upstream).collect();
    let released = found.iter().filter(|line| line.contains("\"released\":\"plain\"")).count();
    assert_eq!(released, 2, "{found:#?}");
    let unused = |line: &&&String| line.contains("denied") && line.contains("\"grant_used\":\"no\"");
    assert!(found.iter().filter(unused).any(|line| line.contains("upstream-unavailable")), "{found:#?}");
    assert!(!audit.iter().any(|line| line.contains("grant-replayed")), "{audit:#?}");
    assert_eq!(site.json("server", &["audit", "verify"])["whole"], true);
}

/// A start waits for the provider behind the broker: it says so, try after try, and goes on when
/// the provider is back.
#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_start_waits_for_the_provider_behind_the_broker_and_names_it() {
    let (pki, objects) = (Pki::new(), tempfile::tempdir().unwrap());
    let mut external = Server::start(ServerKind::KmipGo, &pki, objects.path(), &[]);
    let scratch = Scratch::new();
    let mut serving = Serving::not_started_yet(&scratch);
    let identity = pki.client("broker");
    let path = |path: &Path| path.display().to_string();
    serving.runs(&format!(
        "key-provider add corp --kmip {} --ca {} --cert {} --key {}",
        external.address(),
        path(&pki.authority()),
        path(&identity.certificate),
        path(&identity.key)
    ));
    serving.runs(&format!("keyserver init --broker corp {}", serving.key_server_options()));
    serving.start_again();
    serving.runs("datastore add ds ds");
    serving.runs("vm create web1 --memory 64M --disk 8M --net none --key-provider corp");
    let key = serving.vm("web1")["key"]["key"].as_str().unwrap().to_owned();

    external.kill();
    serving.runs("vm start web1 --no-wait");
    let audit =
        || audit_lines(&scratch.path("home/keyserver/audit")).into_iter().map(|line| line.to_string());
    let tries = || audit().filter(|line| line.contains("upstream-unavailable")).count();
    let waits = format!("waiting for key provider embedded, key {key}: it comes from key provider corp, ");
    let begun = Instant::now();
    while tries() < 4 {
        let vm = serving.vm("web1");
        if vm["power"] == "key_unavailable" {
            let reason = vm["reason"].as_str().unwrap();
            assert!(reason.starts_with(&waits), "after {} tries: {reason}", tries());
        }
        assert!(begun.elapsed() < DEADLINE, "{} tries: {vm}", tries());
    }
    let alarm = || {
        let alarms = serving.json("event alarms");
        let mut items = alarms["items"].as_array().unwrap().iter();
        items.find(|alarm| alarm["kind"] == "key_unavailable").cloned()
    };
    let raised = alarm().expect("the VM waits");
    let message = raised["message"].as_str().unwrap();
    assert!(message.contains(&format!("key {key}: it comes from key provider corp, ")), "{message}");
    let next_step = raised["next_step"].as_str().unwrap();
    assert!(next_step.contains("strongroom key-provider test corp"), "{next_step}");

    external.restart();
    serving.wait_until("web1", "is running", |vm| vm["power"] == "running");
    let begun = Instant::now();
    while let Some(alarm) = alarm() {
        assert!(begun.elapsed() < DEADLINE, "{alarm}");
    }
    assert!(!audit().any(|line| line.contains("grant-replayed")), "{:#?}", audit().collect::<Vec<_>>());
    let released = audit().filter(|line| line.contains("\"released\":\"plain\"")).count();
    assert_eq!(released, 2, "its creation and its start: {:#?}", audit().collect::<Vec<_>>());
}
