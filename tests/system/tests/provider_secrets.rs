//! A volume whose key is in the key server: the key is not in anything that either program writes,
//! prints or exposes, nor in memory outside the pages for keys.

use std::fs;
use std::path::PathBuf;

use crate::secret_search::{DEADLINE, Found, Needles, own_user};
use crate::worker_support::{VerifiedIo, wait_until};
use serde_json::Value;
use strongroom_keys::ProviderKey;
use strongroom_kmip::protocol::{CryptographicAlgorithm, CryptographicUsageMask};
use strongroom_memory::secret::SecretBytes;
use strongroom_providers::ProviderKeyring;
use strongroom_system_tests::key_server::free_addresses;
use strongroom_system_tests::{CommandLine, KeyServerUser, Process, Scratch, family};

/// A key server and volumes under its keys. All files are in the test's directory; the test's own
/// copies of the keys are in another.
struct Stage<'test> {
    user: KeyServerUser<'test>,
    known: CommandLine<'test>,
}

impl<'test> Stage<'test> {
    fn new(scratch: &'test Scratch, known: &'test Scratch) -> (Self, Process) {
        let mut user = KeyServerUser::new(scratch);
        // Every program logs at the most verbose level.
        user.logs_everything();
        let stage = Self { user, known: CommandLine::new(known) };
        let server = stage.serve();
        // A short lease.
        let terms = ["--renew", "1", "--lease", "10", "--outage-allowance", "0"];
        stage.user.add_provider("kms", &terms);
        (stage, server)
    }

    fn serve(&self) -> Process {
        self.user.serve_with("keyserver", &["2>&1"])
    }

    fn expose(&self) -> Process {
        self.user.expose("ds/vm1")
    }

    /// Its output is kept in the test's directory, as its log is.
    #[track_caller]
    fn says(&self, arguments: &[&str]) -> String {
        self.user.runs(arguments)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.user.strongroom.path(name)
    }

    fn info(&self) -> Value {
        self.user.json(&["volume", "info", "ds/vm1"])
    }

    /// Every secret of the volume, derived by another implementation from the key that the provider
    /// returns.
    fn needles(&self) -> Needles {
        let key = ProviderKey {
            provider: "kms".parse().unwrap(),
            key: self.info()["encryption"]["provider_key_id"].as_str().unwrap().parse().unwrap(),
            wrapped: None,
        };
        let provider = ProviderKeyring::of_home(&self.path("home")).provider(&key.provider).unwrap();
        self.known.write_key_file("kek", provider.fetch(&key).unwrap().expose());
        let volume = self.path("ds/vm1").display().to_string();
        Needles::of_volume(&self.known, &volume, "--key-file kek")
    }
}

#[test]
fn nothing_of_a_providers_key_is_found_in_files_logs_or_from_outside() {
    let (scratch, known) = (Scratch::new(), Scratch::new());
    let (stage, server) = Stage::new(&scratch, &known);
    stage.says(&["volume", "create", "ds/vm1", "--size", "64M", "--key-provider", "kms"]);
    stage.says(&["key-provider", "test", "kms"]);
    let before = stage.needles();
    let exposed = stage.expose();
    let io = VerifiedIo::start(&stage.path("vm.sock"));
    io.wait_for_more(20);
    stage.says(&["volume", "rekey", "--kek", "ds/vm1", "--to-key-provider", "kms"]);
    io.wait_for_more(20);
    let needles = stage.needles().and(&before, "the former");
    needles.assert_not_seen_of(&family::family_of(exposed.id()));
    needles.assert_not_seen_of(&family::family_of(server.id()));
    io.stop();
    assert!(exposed.terminate(DEADLINE).success());
    stage.says(&["volume", "rekey", "--kek", "ds/vm1", "--to-key-provider", "kms"]);
    let needles = stage.needles().and(&needles, "and");
    stage.says(&["volume", "check", "ds/vm1", "--key-provider", "kms"]);
    assert!(server.terminate(DEADLINE).success());

    // The key server's home and the datastore, and the output of both programs.
    let files = needles.assert_not_under(&stage.path("."));
    println!("{files} files were searched");
    for log in ["keyserver-1.stdout", "expose-1.stdout"] {
        let said = fs::read_to_string(stage.path(log)).unwrap();
        assert!(said.contains("DEBUG"), "{log} says nothing of what it does: {said}");
    }
}

/// How often the secrets are in unprotected memory, and in protected memory.
fn count(found: &[Found]) -> (usize, usize) {
    let is_protected = found.iter().filter(|found| found.is_protected).count();
    (found.len() - is_protected, is_protected)
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_providers_key_is_held_once_in_memory_for_keys_and_wiped_with_its_lease() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root can read their memory");
        return;
    }
    let (scratch, known) = (Scratch::new(), Scratch::new());
    let (stage, server) = Stage::new(&scratch, &known);
    stage.says(&["volume", "create", "ds/vm1", "--size", "64M", "--key-provider", "kms"]);
    let exposed = stage.expose();
    let io = VerifiedIo::start(&stage.path("vm.sock"));
    let before = stage.needles();
    let worker = || family::worker_of(exposed.id());
    let supervisor = |needles: &Needles| needles.found_in_memory(exposed.id());

    // An idle server has released keys, and has none outside the memory for keys.
    let at_rest = before.found_in_memory(server.id());
    assert_eq!(count(&at_rest).0, 0, "{at_rest:?}");
    println!("the key server at rest: {at_rest:?}");
    let mut root = Needles::default();
    root.add("the root key", &fs::read(stage.path("home/keyserver/root-1.key")).unwrap());
    let found = root.found_in_memory(server.id());
    assert_eq!(count(&found).0, 0, "{found:?}");
    let held = supervisor(&before);
    assert_eq!(count(&held), (0, 1), "{held:?}");
    assert_eq!(before.only("kek").found_in_memory(worker()), []);

    // Under another key: the old one is nowhere.
    io.wait_for_more(20);
    stage.says(&["volume", "rekey", "--kek", "ds/vm1", "--to-key-provider", "kms"]);
    io.wait_for_more(20);
    let after = stage.needles();
    assert_eq!(supervisor(&before.only("kek")), []);
    let held = supervisor(&after);
    assert_eq!(count(&held), (0, 1), "{held:?}");
    assert_eq!(after.only("kek").found_in_memory(worker()), []);
    let at_rest = after.and(&before, "the former");
    let at_rest_now = at_rest.found_in_memory(server.id());
    assert_eq!(count(&at_rest_now).0, 0, "{at_rest_now:?}");

    // Its lease ends, and no process has it any more.
    server.kill();
    let lease = || stage.info()["exposure"]["key"]["state"].clone();
    wait_until("the lease has ended", || lease() == "waiting");
    assert_eq!(supervisor(&at_rest), []);
    let server = stage.serve();
    wait_until("the key is held again", || lease() == "held");
    let held = supervisor(&at_rest);
    assert_eq!(count(&held), (0, 1), "{held:?}");
    io.stop();
    assert!(exposed.terminate(DEADLINE).success());
    assert!(server.terminate(DEADLINE).success());
}

/// A client sends a key of its own to the server, and then only the client has it.
#[test]
fn a_registered_key_is_left_in_no_buffer_of_the_server() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root can read its memory");
        return;
    }
    let (scratch, known) = (Scratch::new(), Scratch::new());
    let (stage, server) = Stage::new(&scratch, &known);
    let client = crate::kmip_client::client(&stage.user.kmip, &stage.path("home/key-providers/embedded"));
    let mut key: [u8; 32] = std::array::from_fn(|index| (index as u8).wrapping_mul(41).wrapping_add(19));
    let mut needles = Needles::default();
    needles.add("the registered key", &key);
    let secret = SecretBytes::from_slice_and_wipe(&mut key).unwrap();
    let mask = CryptographicUsageMask::ENCRYPT | CryptographicUsageMask::DECRYPT;
    let id = client.register_key(CryptographicAlgorithm::Aes, &secret, mask, Vec::new()).unwrap();
    let found = needles.found_in_memory(server.id());
    assert_eq!(count(&found).0, 0, "{found:?}");
    // The key is returned on the same connection.
    assert_eq!(client.get(&id).unwrap().secret, secret);
    let found = needles.found_in_memory(server.id());
    assert_eq!(count(&found).0, 0, "{found:?}");
    assert!(server.terminate(DEADLINE).success());
    needles.assert_not_under(&stage.path("."));
}

/// Another process of the same user cannot read a key server's memory, and gets no core file.
#[test]
fn a_key_servers_memory_is_closed_to_its_own_user() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    let as_user = own_user::own_user(&strongroom);
    let (kmip, enrolment) = free_addresses();
    let mut server = strongroom.start_shell(
        "keyserver",
        &format!(
            "ulimit -c unlimited 2> ulimit.log || :; exec {as_user} ./strongroom keyserver run --home home --listen {kmip} \
             --listen-enrolment {enrolment} 2>&1"
        ),
    );
    server.wait_for_line("that it serves", DEADLINE, |line| line.contains("serves keys until"));
    own_user::assert_closed(&strongroom, &as_user, server.id());
    own_user::assert_aborts_without_core(server);
}
