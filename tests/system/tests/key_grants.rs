//! A control plane grants, hosts fetch: the key server releases keys only to the host, for the VM
//! and in the period of a grant. Real processes, real mutual TLS.

use std::time::SystemTime;

use crate::key_site::{DEADLINE, Site, VM, tells};
use serde_json::Value;
use strongroom_keyserver::access::{CertificateSha256, PublicKeySha256};
use strongroom_keyserver::authority::claimed_identity;
use strongroom_keyserver::grant::{
    Grant, GrantPeriod, GrantSigner, GrantTime, GrantedOperation, GrantedOperations, VmGeneration, VmId,
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

    /// Signs grants with the certificate of `certified` and the key of `signer`.
    fn signer(&self, signer: &str, certified: &str) -> GrantSigner {
        let text = std::fs::read(self.strongroom.path(&format!("{signer}/key.pem"))).unwrap();
        let mut pkcs8 = pem::parse(text).unwrap().into_contents();
        let key = SecretBytes::from_slice_and_wipe(&mut pkcs8).unwrap();
        GrantSigner::new(&key, CertificateSha256::of(&self.certificate(certified))).unwrap()
    }
}

/// A grant as a control plane writes it, with fields that a test can change.
struct Wish {
    vm: VmId,
    host: PublicKeySha256,
    keys: Vec<String>,
    generation: u64,
    /// The validity, in seconds from now.
    good: (i64, i64),
}

impl Wish {
    fn new(host: PublicKeySha256, key: &str, generation: u64) -> Self {
        Self { vm: VM, host, keys: vec![key.to_owned()], generation, good: (0, 1800) }
    }

    fn signed(&self, signer: &GrantSigner) -> Vec<u8> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let at = |offset: i64| GrantTime(now.saturating_add_signed(offset));
        let operations = GrantedOperations::of(GrantedOperation::Get, &[GrantedOperation::ReadMetadata]);
        let generation = VmGeneration(self.generation);
        let time = GrantPeriod { not_before: at(self.good.0), expires: at(self.good.1) };
        let grant = Grant::new(self.vm, generation, self.host, operations, self.keys.clone(), time).unwrap();
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

/// The first word of a refusal.
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
    // A host cannot make keys.
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
    // The grant is used up, and the next one is for one host.
    let info = ["volume", "info", "ds/vm1", "--key-provider", "kms"];
    let told = site.is_refused("host1", &[&words(&with(&info, "first"))]);
    assert!(told.contains(&format!("key-unavailable: key provider kms, key {key}: ")), "{told}");
    assert!(told.contains("grant-replayed: "), "{told}");
    site.grant("host1", &key, "1", "second");
    let told = site.is_refused("host2", &[&words(&with(&info, "second"))]);
    assert!(told.contains("grant-other-host: "), "{told}");
    assert_eq!(site.json("host1", &[&words(&with(&info, "second"))])["authenticated"], true);

    // The key server is away: the grant is kept, and the volume is exposed as soon as the server is
    // back.
    site.grant("host1", &key, "2", "third");
    server.kill();
    let expose = with(&["volume", "expose", "ds/vm1"], "third");
    let mut exposed = site.strongroom.start_shell("expose", &Site::script("host1", &[&words(&expose)]));
    tells(&exposed, "Waiting for the key");
    let server = site.serve("keyserver-again", &[]);
    exposed.wait_for_line("that it is exposed", DEADLINE, |line| line.contains("is exposed by worker"));
    assert!(exposed.terminate(DEADLINE).success());

    // It also waits for a replacement of an invalid grant in the file.
    let mut exposed = site.strongroom.start_shell("expose-2", &Site::script("host1", &[&words(&expose)]));
    tells(&exposed, "grant-replayed");
    site.grant("host1", &key, "2", "third");
    exposed.wait_for_line("that it is exposed", DEADLINE, |line| line.contains("is exposed by worker"));

    // It keeps querying the key's state without a grant, and so notices the revocation.
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

    // A stolen certificate alone gives no key, no information about one, and no list of keys.
    let refused = |error: ClientError| error.refusal().unwrap().message.clone();
    assert_eq!(refused(host.get(&key).unwrap_err()), "grant-needed: a host needs a grant for that");
    assert_eq!(refused(host.state(&key).unwrap_err()), "grant-needed: a host needs a grant for that");
    assert!(host.locate(Vec::new(), 100).unwrap().is_empty());
    // The control plane knows every key and sees none, with or without a grant.
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
    // Forged grants: by a host, in the control plane's name, and by a former control plane.
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

    // A host that fetched a key can query its state without a grant, until the VM runs elsewhere.
    assert_eq!(host.state(&key).unwrap(), State::Active);
    assert_eq!(refused(thief.state(&key).unwrap_err()), "grant-needed: a host needs a grant for that");
    plane.revoke(&key, RevocationReasonCode::KeyCompromise, "seen").unwrap();
    assert_eq!(host.state(&key).unwrap(), State::Compromised);
    let moved = Wish { host: to_thief, ..wish(4) }.signed(&control);
    assert!(fetch(&thief, &key, &moved).is_ok_and(|moved| moved == secret));
    assert_eq!(refused(host.state(&key).unwrap_err()), "grant-needed: a host needs a grant for that");
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
    assert_eq!(refused(thief.state(&key).unwrap_err()), "grant-needed: a host needs a grant for that");
    is_refused(&thief, &key, &Wish { host: to_thief, ..wish(4) }.signed(&control), "grant-superseded");
    // Even with a grant, a revoked host is refused.
    let late = wish(5).signed(&control);
    site.json("server", &["keyserver", "client", "revoke", &ids[2], "--reason", "stolen"]);
    assert!(host.get_granted(&key, &[AttributeName::State], &late).is_err());

    // Callers that may not grant: a host, an administrator, a caller that names no host.
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
        "grant-needed",
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
    // Every release names its grant and its VM.
    let released: Vec<_> =
        audit.iter().map(Value::to_string).filter(|line| line.contains("\"released\":\"plain\"")).collect();
    assert!(
        released.len() == 2 && released.iter().all(|line| line.contains(&vm) && line.contains("granted_by")),
        "{released:#?}"
    );
    let verified = site.json("server", &["audit", "verify"]);
    assert_eq!(verified["whole"], true, "{verified}");
}

#[test]
fn a_key_that_was_made_for_a_vm_is_granted_to_that_vm_alone() {
    let scratch = Scratch::new();
    let site = Site::new(&scratch);
    let server = site.serve("keyserver", &[]);
    for (name, role) in [("control", "control"), ("other", "control"), ("host1", "host")] {
        site.enrol(name, role);
    }
    let (key, unbound) = (site.make_key(), site.make_key());
    let (host, control) = (site.client("host1"), site.signer("control", "control"));
    let foreign = VmId::from_bytes([6; 16]);
    let granted = |vm, key: &str| {
        let grant = Wish { vm, ..Wish::new(site.public_key("host1"), key, 1) }.signed(&control);
        fetch(&host, key, &grant)
    };
    // A key that a user shares among VMs stays shared.
    granted(VM, &unbound).unwrap();
    granted(foreign, &unbound).unwrap();

    let vm = VM.to_string();
    let bind = |as_whom: &'static str, vm: &str, key: &str| -> Vec<String> {
        let words = ["keyserver", "bind", "--identity", as_whom, "--server", &site.enrolment];
        let words = [&words[..], &["--vm", vm, "--key-id", key]].concat();
        words.into_iter().map(str::to_owned).collect()
    };
    let refused = |machine: &str, words: Vec<String>| {
        site.is_refused(machine, &words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    // Callers that may not bind: a host, an administrator, another control plane.
    assert!(refused("host1", bind("host1", &vm, &key)).contains("may not do that"));
    assert!(refused("server", bind("server/keyserver/admin", &vm, &key)).contains("may not do that"));
    let told = refused("other", bind("other", &vm, &key));
    assert!(told.contains("owns no key"), "{told}");

    for _ in 0..2 {
        let words = bind("control", &vm, &key);
        let bound = site.json("control", &words.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!((&bound["key"], &bound["vm"]), (&key.as_str().into(), &vm.as_str().into()), "{bound}");
    }
    let told = refused("control", bind("control", &foreign.to_string(), &key));
    assert!(told.contains("was made for another VM"), "{told}");
    granted(VM, &key).unwrap();
    assert_eq!(code(&granted(foreign, &key).unwrap_err()), "grant-other-vm");
    assert!(site.audit().iter().any(|line| line.to_string().contains("grant-other-vm")));
    assert!(server.terminate(DEADLINE).success());

    // The same after a restart.
    let _server = site.serve("again", &[]);
    assert_eq!(code(&granted(foreign, &key).unwrap_err()), "grant-other-vm");
    let mut next = Wish::new(site.public_key("host1"), &key, 2);
    next.good = (-10, 1800);
    fetch(&host, &key, &next.signed(&control)).unwrap();
}

#[test]
fn a_client_that_lost_its_certificate_or_keeps_its_own_key_is_enrolled() {
    let scratch = Scratch::new();
    let site = Site::new(&scratch);
    let _server = site.serve("keyserver", &[]);
    let id = site.enrol("app1", "client");
    site.enrol("app2", "client");
    let key = {
        let made = site.json("app1", &["key-provider", "create-key", "kms"]);
        made["key"].as_str().unwrap().to_owned()
    };
    let secret = site.client("app1").get(&key).unwrap().secret;

    let clients = || site.json("server", &["keyserver", "client", "list"])["items"].as_array().unwrap().len();
    let before = clients();
    // A client that has lost its certificate keeps its keys, and the lost certificate is refused.
    std::fs::rename(site.strongroom.path("app1"), site.strongroom.path("found-by-a-thief")).unwrap();
    assert!(
        site.is_refused("server", &["keyserver", "token", "replace", "nobody"])
            .contains("no client 'nobody'")
    );
    let write_token = |arguments: &[&str]| {
        let made = site.json("server", &[&["keyserver", "token"], arguments].concat());
        std::fs::write(site.strongroom.path("token"), made["token"].as_str().unwrap()).unwrap();
    };
    write_token(&["replace", "app1"]);
    assert!(site.client("found-by-a-thief").get(&key).is_ok(), "until the token is used");
    let enrol = |into: &str, more: &[&str]| {
        let from = ["keyserver", "enrol", "--server", &site.enrolment, "--token-fd", "3"];
        site.json("anywhere", &[&from[..], &["--into", into, "3<token"], more].concat())
    };
    let enrolled = enrol("app1", &[]);
    assert_eq!((enrolled["client"].as_str(), enrolled["name"].as_str()), (Some(id.as_str()), Some("app1")));
    assert_eq!(site.client("app1").get(&key).unwrap().secret, secret);
    assert!(site.client("found-by-a-thief").get(&key).is_err());
    assert!(site.client("app2").get(&key).is_err());
    assert_eq!(clients(), before);

    // A private key that never leaves its owner, and a request for a certificate of many years.
    let openssl = "openssl req -new -newkey rsa:3072 -nodes -keyout own.key -subj /CN=anything -out own.csr 2>req.log && \
                   openssl req -in own.csr -outform DER -out own.der";
    site.strongroom.run_shell(openssl).success();
    let told = site.is_refused(
        "server",
        &["keyserver", "token", "create", "vc", "--role", "client", "--certificate-days", "826"],
    );
    assert!(told.contains("825 days"), "{told}");
    for (name, request) in [("vc1", "own.csr"), ("vc2", "own.der")] {
        write_token(&["create", name, "--role", "client", "--certificate-days", "825"]);
        let enrolled = enrol(name, &["--csr", request]);
        assert!(enrolled.get("key").is_none(), "{enrolled}");
        assert!(!site.strongroom.path(&format!("{name}/key.pem")).exists());
        let days = format!("openssl x509 -in {name}/cert.pem -noout -checkend $((824 * 86400))");
        site.strongroom.run_shell(&days).success();
        std::fs::copy(site.strongroom.path("own.key"), site.strongroom.path(&format!("{name}/key.pem")))
            .unwrap();
        assert!(site.client(name).locate(Vec::new(), 1).unwrap().is_empty());
    }
}
