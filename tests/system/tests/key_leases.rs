//! A volume is in use while its key server dies, comes back, and revokes its key.

use std::time::{Duration, Instant};

use crate::worker_support::{VerifiedIo, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use strongroom_keys::ProviderKey;
use strongroom_providers::{ProviderKeyring, Revocation};
use strongroom_system_tests::{KeyServerUser, Process, Scratch, family};

const DEADLINE: Duration = Duration::from_secs(60);

/// A lease that outlasts the test, renewed every second.
const LONG: [&str; 6] = ["--renew", "1", "--lease", "3600", "--outage-allowance", "0"];
/// A short lease without an allowance for outages.
const SHORT: [&str; 6] = ["--renew", "1", "--lease", "10", "--outage-allowance", "0"];
/// How long a holder may take to notice a revocation with such a lease.
const NOTICE: Duration = Duration::from_secs(11);

/// A key server, and a volume under one of its keys that a client uses.
struct Stage<'test> {
    user: KeyServerUser<'test>,
}

impl<'test> Stage<'test> {
    /// The key provider `kms` is the key server, with these lease terms.
    fn new(scratch: &'test Scratch, terms: &[&str]) -> (Self, Process) {
        let stage = Self { user: KeyServerUser::new(scratch) };
        let server = stage.serve();
        stage.user.add_provider("kms", terms);
        stage.runs(&["volume", "create", "ds/vm1", "--size", "64M", "--key-provider", "kms"]);
        (stage, server)
    }

    fn serve(&self) -> Process {
        self.user.serve("keyserver")
    }

    fn expose(&self) -> (Process, VerifiedIo) {
        let exposed = self.user.expose("ds/vm1");
        let io = VerifiedIo::start(&self.user.strongroom.path("vm.sock"));
        io.wait_for_more(20);
        (exposed, io)
    }

    #[track_caller]
    fn runs(&self, arguments: &[&str]) -> String {
        self.user.runs(arguments)
    }

    #[track_caller]
    fn is_refused(&self, arguments: &[&str]) -> String {
        self.user.is_refused(arguments)
    }

    #[track_caller]
    fn exposure(&self) -> Value {
        self.user.json(&["volume", "info", "ds/vm1"])["exposure"].clone()
    }

    fn lease(&self) -> String {
        self.exposure()["key"]["state"].as_str().unwrap_or_default().to_owned()
    }

    fn says(&self, state: &str) {
        wait_until(&format!("the key's lease is {state}"), || self.lease() == state);
    }

    /// Revokes the volume's key as compromised.
    fn compromise(&self) {
        let info = self.user.json(&["volume", "info", "ds/vm1"]);
        let key = ProviderKey {
            provider: "kms".parse().unwrap(),
            key: info["encryption"]["provider_key_id"].as_str().unwrap().parse().unwrap(),
            wrapped: None,
        };
        let keyring = ProviderKeyring::of_home(&self.user.strongroom.path("home"));
        keyring.provider(&key.provider).unwrap().revoke(&key, Revocation::Compromised).unwrap();
    }

    fn kill_worker(&self) -> u64 {
        let worker = self.exposure()["worker_pid"].as_u64().unwrap();
        family::kill(u32::try_from(worker).unwrap());
        worker
    }
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn an_outage_disturbs_nothing() {
    let scratch = Scratch::new();
    let (stage, server) = Stage::new(&scratch, &LONG);
    let (mut exposed, io) = stage.expose();
    stage.says("held");

    // A server that does not answer delays nothing.
    server.signal(Signal::STOP);
    stage.says("outage");
    io.wait_for_more(50);
    server.signal(Signal::CONT);
    stage.says("held");

    server.kill();
    stage.says("outage");
    let exposure = stage.exposure();
    assert_eq!(exposure["key"]["provider"], "kms", "{exposure}");
    assert!(exposure["key"]["reason"].as_str().unwrap().contains("is the server running"), "{exposure}");
    exposed.wait_for_line("the outage", DEADLINE, |line| line.contains("cannot be confirmed"));
    io.wait_for_more(50);
    // Within the lease the key is available for any use.
    let worker = stage.kill_worker();
    wait_until("another worker serves", || {
        stage.exposure()["worker_pid"].as_u64().is_some_and(|now| now != worker)
    });
    io.wait_for_more(50);
    let server = stage.serve();
    stage.says("held");
    let (operations, longest) = io.stop();
    println!("{operations} verified operations, the longest took {longest:.1?}");
    // It does not delay the end either.
    server.signal(Signal::STOP);
    stage.says("outage");
    assert!(exposed.terminate(DEADLINE).success());
    server.signal(Signal::CONT);
    assert!(server.terminate(DEADLINE).success());
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn what_needs_a_key_whose_lease_has_ended_waits_for_it() {
    let scratch = Scratch::new();
    let (stage, server) = Stage::new(&scratch, &SHORT);
    let (mut exposed, io) = stage.expose();
    stage.says("held");
    let killed = Instant::now();
    server.kill();

    // The lease ends, and the guest does not notice.
    stage.says("waiting");
    println!("the key was given up {:.1?} after the server was killed", killed.elapsed());
    exposed.wait_for_line("the end of the lease", DEADLINE, |line| line.contains("was wiped"));
    io.wait_for_more(50);
    let resize = ["volume", "resize", "ds/vm1", "--size", "128M"];
    let told = stage.is_refused(&resize);
    assert!(told.contains("key-unavailable: key provider kms, key "), "{told}");

    // A worker that dies now cannot be replaced.
    stage.kill_worker();
    wait_until("it says that the key is missing", || {
        stage.exposure()["condition"]["state"] == "key_unavailable"
    });
    let told = stage.runs(&["volume", "info", "ds/vm1"]);
    assert!(told.contains("key-unavailable") && told.contains("WAITING since"), "{told}");
    assert!(stage.exposure()["worker_pid"].is_null());

    // The key server is back, and everything recovers automatically.
    let server = stage.serve();
    let back = Instant::now();
    io.wait_for_more(50);
    println!("clients are served again {:.1?} after the server was back", back.elapsed());
    stage.says("held");
    let exposure = stage.exposure();
    assert_eq!((&exposure["restarts"], &exposure["condition"]["state"]), (&1.into(), &"running".into()));
    stage.runs(&resize);
    io.stop();
    assert!(exposed.terminate(DEADLINE).success());
    assert!(server.terminate(DEADLINE).success());
}

#[test]
fn a_revoked_key_is_noticed_and_moved_away_from_while_the_volume_is_used() {
    let scratch = Scratch::new();
    let (stage, server) = Stage::new(&scratch, &SHORT);
    let (mut exposed, io) = stage.expose();
    let revoked = Instant::now();
    stage.compromise();
    stage.says("revoked");
    println!("the revocation reached its holder within {:.1?}; at most {NOTICE:?}", revoked.elapsed());
    exposed.wait_for_line("the revocation", DEADLINE, |line| line.contains("was revoked as compromised"));
    assert_eq!(stage.exposure()["key"]["how"], "compromised");
    io.wait_for_more(50);
    let told = stage.is_refused(&["volume", "info", "ds/vm1", "--key-provider", "kms"]);
    assert!(told.contains("revoked as compromised"), "{told}");

    // Its worker dies and cannot be replaced until the volume is under another key.
    stage.kill_worker();
    wait_until("it says that the key is missing", || {
        stage.exposure()["condition"]["state"] == "key_unavailable"
    });
    stage.runs(&["volume", "rekey", "--kek", "ds/vm1", "--to-key-provider", "kms"]);
    io.wait_for_more(50);
    stage.says("held");
    io.stop();
    assert!(exposed.terminate(DEADLINE).success());
    stage.runs(&["volume", "check", "ds/vm1", "--key-provider", "kms"]);
    assert!(server.terminate(DEADLINE).success());
}

#[test]
fn where_it_is_set_up_so_a_revocation_ends_the_exposure() {
    let scratch = Scratch::new();
    let (stage, server) = Stage::new(&scratch, &[&SHORT[..], &["--on-revocation", "stop"]].concat());
    let (mut exposed, io) = stage.expose();
    io.stop();
    stage.compromise();
    exposed.wait_for_line("why it ends", DEADLINE, |line| line.contains("on_revocation: stop"));
    assert_eq!(exposed.wait(DEADLINE).code(), Some(1));
    // It was closed in order, so there is nothing to recover.
    stage.runs(&["volume", "rekey", "--kek", "ds/vm1", "--to-key-provider", "kms"]);
    stage.runs(&["volume", "check", "ds/vm1", "--key-provider", "kms"]);
    assert!(server.terminate(DEADLINE).success());
}
