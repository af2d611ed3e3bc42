//! A control plane grants, hosts fetch: keys come out of the key server for the host, the VM and the moment that a grant
//! says, and for nobody and nothing else. Real processes, real mutual TLS.

#![allow(clippy::unwrap_used, reason = "a test's own steps fail it by panicking")]

mod key_site;
mod kmip_client;

use std::time::SystemTime;

use key_site::{DEADLINE, Site, VM, tells};
use serde_json::Value;
use strongroom_keyserver::access::{CertificateSha256, PublicKeySha256};
use strongroom_keyserver::authority::claimed_identity;
use strongroom_keyserver::grant::{
    Grant, GrantSigner, GrantTime, GrantedOperation, GrantedOperations, VmGeneration,
};
use strongroom_kmip::client::{Client, ClientError};
use strongroom_kmip::protocol::{AttributeName, RevocationReasonCode, State};
use strongroom_memory::secret::SecretBytes;
use strongroom_system_tests::Scratch;

impl Site<'_> {
    fn certificate(&self, name: &str) -> Vec<u8> {
        let text = std::fs::read(self.strongroom.path(&format!("{name}/cert.pem"))).unwrap();
        pem::parse(text).unwrap().into_contents()
    }

    fn public_key(&self, name: &str) -> PublicKeySha256 {
        claimed_identity(&self.certificate(name).into()).unwrap().public_key
    }

    /// What signs grants in the name of `certified`, with the key of `signer`.
    fn signer(&self, signer: &str, certified: &str) -> GrantSigner {
        let text = std::fs::read(self.strongroom.path(&format!("{signer}/key.pem"))).unwrap();
        let mut pkcs8 = pem::parse(text).unwrap().into_contents();
        let key = SecretBytes::from_slice_and_wipe(&mut pkcs8).unwrap();
        GrantSigner::new(&key, CertificateSha256::of(&self.certificate(certified))).unwrap()
    }
}

/// A grant as a control plane would write it, but for what a test changes.
struct Wish {
    host: PublicKeySha256,
    keys: Vec<String>,
    generation: u64,
    /// In seconds from now.
    good: (i64, i64),
}

impl Wish {
    fn new(host: PublicKeySha256, key: &str, generation: u64) -> Self {
        Self { host, keys: vec![key.to_owned()], generation, good: (0, 1800) }
    }

    fn signed(&self, signer: &GrantSigner) -> Vec<u8> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let at = |offset: i64| GrantTime(now.saturating_add_signed(offset));
        let operations = GrantedOperations::of(GrantedOperation::Get, &[GrantedOperation::ReadMetadata]);
        let (generation, time) = (VmGeneration(self.generation), (at(self.good.0), at(self.good.1)));
        let grant = Grant::new(VM, generation, self.host, operations, self.keys.clone(), time).unwrap();
        grant.sign(signer).unwrap()
    }
}

/// The key that a host gets for a grant.
fn fetch(client: &Client, key: &str, grant: &[u8]) -> Result<SecretBytes, String> {
    let granted = client.get_granted(key, &[AttributeName::State], grant);
    match granted.map(|granted| granted.key) {
        Ok(Ok(key)) => Ok(key.secret),
        Ok(Err(refusal)) => Err(refusal.message),
        Err(ClientError::Refused { refusal, .. }) => Err(refusal.message),
        Err(other) => panic!("{other}"),
    }
}

/// The word that a refusal begins with.
fn code(refusal: &str) -> &str {
    refusal.split(':').next().unwrap()
}

#[test]
fn a_host_has_a_volume_whose_key_it_is_granted_each_time() {
    let scratch = Scratch::new();
    let site = Site::new(&scratch);
    let server = site.serve("keyserver", &[]);
    for (name, role) in [("control", "control"), ("host1", "host"), ("host2", "host")] {
        site.enrol(name, role);
    }
    let key = site.make_key();
    let create = ["volume", "create", "ds/vm1", "--size", "64M", "--key-provider", "kms", "--key-id", &key];
    let told = site.is_refused("host1", &create);
    assert!(told.contains("a host needs a grant for that"), "{told}");
    let told = site.is_refused("control", &create);
    assert!(told.contains("the role control may not Get"), "{told}");
    // A host makes no keys.
    let told =
        site.is_refused("host1", &["volume", "create", "ds/vm2", "--size", "64M", "--key-provider", "kms"]);
    assert!(told.contains("the role host may not Create"), "{told}");

    let granted = site.grant("host1", &key, "1", "first");
    assert_eq!((&granted["host"], &granted["grant"]), (&"host1".into(), &Value::Null), "{granted}");
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(site.strongroom.path("first")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let with = |arguments: &[&str], grant| -> Vec<String> {
        arguments.iter().chain(&["--grant", grant]).map(|word| (*word).to_owned()).collect()
    };
    let words = |words: &[String]| words.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
    let created = site.json("host1", &[&words(&with(&create, "first"))]);
    assert_eq!(created["encryption"]["provider_key_id"], key, "{created}");
    // It is used up; and the next one is not for everybody.
    let info = ["volume", "info", "ds/vm1", "--key-provider", "kms"];
    let told = site.is_refused("host1", &[&words(&with(&info, "first"))]);
    assert!(told.contains(&format!("key-unavailable: key provider kms, key {key}: ")), "{told}");
    assert!(told.contains("grant-replayed: "), "{told}");
    site.grant("host1", &key, "1", "second");
    let told = site.is_refused("host2", &[&words(&with(&info, "second"))]);
    assert!(told.contains("grant-other-host: "), "{told}");
    assert_eq!(site.json("host1", &[&words(&with(&info, "second"))])["authenticated"], true);

    // The key server is away: the grant is kept, and the volume exposed as soon as it is back.
    site.grant("host1", &key, "2", "third");
    server.kill();
    let expose = with(&["volume", "expose", "ds/vm1"], "third");
    let mut exposed = site.strongroom.start_shell("expose", &Site::script("host1", &[&words(&expose)]));
    tells(&exposed, "Waiting for the key");
    let server = site.serve("keyserver-again", &[]);
    exposed.wait_for_line("that it is exposed", DEADLINE, |line| line.contains("is exposed by worker"));
    assert!(exposed.terminate(DEADLINE).success());

    // A grant that is void is waited out, too: the file gets another one.
    let mut exposed = site.strongroom.start_shell("expose-2", &Site::script("host1", &[&words(&expose)]));
    tells(&exposed, "grant-replayed");
    site.grant("host1", &key, "2", "third");
    exposed.wait_for_line("that it is exposed", DEADLINE, |line| line.contains("is exposed by worker"));

    // It asks on for the key's state without a grant, and so hears of its end.
    site.client("control").revoke(&key, RevocationReasonCode::KeyCompromise, "seen").unwrap();
    tells(&exposed, "was revoked as compromised, and was wiped here");
    assert!(exposed.terminate(DEADLINE).success());
    assert!(server.terminate(DEADLINE).success());
}

#[test]
fn a_grant_is_good_once_for_its_host_its_keys_and_its_time() {
    let scratch = Scratch::new();
    let site = Site::new(&scratch);
    let server = site.serve("keyserver", &[]);
    let roles = [("control", "control"), ("gone", "control"), ("host1", "host"), ("host2", "host")];
    let ids = roles.map(|(name, role)| site.enrol(name, role));
    let (key, other) = (site.make_key(), site.make_key());
    let (host, thief) = (site.client("host1"), site.client("host2"));
    let (to_host, to_thief) = (site.public_key("host1"), site.public_key("host2"));
    let control = site.signer("control", "control");
    let wish = |generation| Wish::new(to_host, &key, generation);

    // A stolen certificate by itself: no key, not what is known of one, not even that there are any.
    let refused = |error: ClientError| error.refusal().unwrap().message.clone();
    assert_eq!(refused(host.get(&key).unwrap_err()), "a host needs a grant for that");
    assert_eq!(refused(host.state(&key).unwrap_err()), "a host needs a grant for that");
    assert!(host.locate(Vec::new(), 100).unwrap().is_empty());
    // The control plane knows of every key and sees none, grant or not.
    let plane = site.client("control");
    assert_eq!(plane.state(&key).unwrap(), State::Active);
    assert_eq!(refused(plane.get(&key).unwrap_err()), "the role control may not Get");
    let own = Wish::new(site.public_key("control"), &key, 1).signed(&control);
    assert_eq!(code(&fetch(&plane, &key, &own).unwrap_err()), "grant-not-a-host");

    let good = wish(3).signed(&control);
    let secret = fetch(&host, &key, &good).unwrap();
    assert_eq!(secret.len(), 32);
    let is_refused = |client: &Client, key: &str, grant: &[u8], why: &str| {
        assert_eq!(code(&fetch(client, key, grant).unwrap_err()), why);
    };
    is_refused(&host, &key, &good, "grant-replayed");
    is_refused(&thief, &key, &wish(3).signed(&control), "grant-other-host");
    is_refused(&host, &other, &wish(3).signed(&control), "grant-other-object");
    is_refused(&host, &key, &wish(2).signed(&control), "grant-superseded");
    let timed = |good| Wish { good, ..wish(3) }.signed(&control);
    is_refused(&host, &key, &timed((-3600, -60)), "grant-expired");
    is_refused(&host, &key, &timed((600, 900)), "grant-not-yet-valid");
    is_refused(&host, &key, &timed((0, 3601)), "grant-too-long-lived");
    // Forged: by a host, by somebody in the control plane's name, by a control plane that is one no longer.
    is_refused(
        &thief,
        &key,
        &Wish::new(to_thief, &key, 3).signed(&site.signer("host2", "host2")),
        "grant-signer-not-control",
    );
    is_refused(
        &thief,
        &key,
        &Wish::new(to_thief, &key, 3).signed(&site.signer("host2", "control")),
        "grant-bad-signature",
    );
    let early = wish(3).signed(&site.signer("gone", "gone"));
    site.json("server", &["keyserver", "client", "revoke", &ids[1], "--reason", "left"]);
    is_refused(&host, &key, &early, "grant-signer-revoked");
    is_refused(&host, &key, b"SGR1 and nothing else", "grant-malformed");
    let mut changed = wish(3).signed(&control);
    changed[43] ^= 4;
    is_refused(&host, &key, &changed, "grant-bad-signature");

    // Who fetched a key hears what becomes of it, under no grant, until the VM goes on elsewhere.
    assert_eq!(host.state(&key).unwrap(), State::Active);
    assert_eq!(refused(thief.state(&key).unwrap_err()), "a host needs a grant for that");
    plane.revoke(&key, RevocationReasonCode::KeyCompromise, "seen").unwrap();
    assert_eq!(host.state(&key).unwrap(), State::Compromised);
    let moved = Wish { host: to_thief, ..wish(4) }.signed(&control);
    assert!(fetch(&thief, &key, &moved).is_ok_and(|moved| moved == secret));
    assert_eq!(refused(host.state(&key).unwrap_err()), "a host needs a grant for that");
    is_refused(&host, &key, &wish(3).signed(&control), "grant-superseded");
    let (vm, from) = (VM.to_string(), site.enrolment.as_str());
    let fence = [
        "keyserver",
        "fence",
        "--identity",
        "control",
        "--server",
        from,
        "--vm",
        &vm,
        "--vm-generation",
        "5",
    ];
    let fenced = site.json("control", &fence);
    assert_eq!((&fenced["vm"], &fenced["vm_generation"]), (&vm.as_str().into(), &5.into()), "{fenced}");
    assert_eq!(refused(thief.state(&key).unwrap_err()), "a host needs a grant for that");
    is_refused(&thief, &key, &Wish { host: to_thief, ..wish(4) }.signed(&control), "grant-superseded");
    // Not even under a grant is a host let in that is revoked.
    let late = wish(5).signed(&control);
    site.json("server", &["keyserver", "client", "revoke", &ids[2], "--reason", "stolen"]);
    assert!(host.get_granted(&key, &[AttributeName::State], &late).is_err());

    // Who may not grant is told so: a host, an administrator, whoever names no host.
    let grant = |as_whom: &str, host: &str| {
        let to = ["--host", host, "--vm", &vm, "--vm-generation", "6", "--key-id", &key];
        let by = ["keyserver", "grant", "--identity", as_whom, "--server", from];
        site.is_refused("control", &[&by[..], &to[..]].concat())
    };
    assert!(grant("host2", "host2").contains("this one's role is host"));
    assert!(grant("server/keyserver/admin", "host2").contains("this one's role is admin"));
    assert!(grant("control", "host1").contains("no host 'host1'"));
    let as_admin = ["keyserver", "fence", "--identity", "server/keyserver/admin", "--server", from];
    let told = site.is_refused("control", &[&as_admin[..], &["--vm", &vm, "--vm-generation", "9"]].concat());
    assert!(told.contains("the role admin may not do that"), "{told}");

    assert!(server.terminate(DEADLINE).success());
    let audit = site.audit();
    let denied = |why: &str| {
        let is_it = |line: &&Value| {
            let line = line.to_string();
            line.contains(&format!("\"reason\":\"{why}")) && line.contains("denied")
        };
        audit.iter().filter(is_it).count()
    };
    for why in [
        "a host needs a grant for that",
        "the role control may not Get",
        "grant-not-a-host",
        "grant-replayed",
        "grant-other-host",
        "grant-other-object",
        "grant-superseded",
        "grant-expired",
        "grant-not-yet-valid",
        "grant-too-long-lived",
        "grant-signer-not-control",
        "grant-bad-signature",
        "grant-signer-revoked",
        "grant-malformed",
    ] {
        assert!(denied(why) >= 1, "not on record: {why}\n{audit:#?}");
    }
    // Every release says under which grant, and for which VM.
    let released: Vec<_> =
        audit.iter().map(Value::to_string).filter(|line| line.contains("\"released\":\"plain\"")).collect();
    assert!(
        released.len() == 2 && released.iter().all(|line| line.contains(&vm) && line.contains("granted_by")),
        "{released:#?}"
    );
    let verified = site.json("server", &["audit", "verify"]);
    assert_eq!(verified["whole"], true, "{verified}");
}
