//! The key server in front of an external KMIP server: hosts get its keys with grants and have no
//! credentials for it, the control plane never sees a key, and an outage of either server is an
//! event.

use std::path::Path;

use crate::key_site::{DEADLINE, Site, tells};
use serde_json::Value;
use strongroom_kmip::client::{Client, ClientOptions, TlsFiles};
use strongroom_kmip::protocol::RevocationReasonCode;
use strongroom_system_tests::Scratch;
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
    tells(&exposed, &format!("upstream-unavailable: key provider corp, key {upstream_key}: "));
    external.restart();
    site.grant("host1", key, "1", "grant");
    exposed.wait_for_line("that it is exposed", DEADLINE, |line| line.contains("is exposed by worker"));

    // An exposed volume survives an outage, and notices a revocation at the external server.
    external.kill();
    tells(&exposed, "cannot be confirmed: upstream-unavailable: key provider corp");
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
    assert!(found.iter().any(|line| line.contains("denied") && line.contains("upstream-unavailable")));
    assert_eq!(site.json("server", &["audit", "verify"])["whole"], true);
}
