//! An attacker who takes the datastore, looks at the process from outside, or reads its log and
//! output, finds neither guest data nor any key: not in plain form, not in hexadecimal, not in
//! base64.

use std::fs;
use std::time::Instant;

use crate::secret_search::{DEADLINE, Found, Needles, own_user};
use strongroom_system_tests::{CommandLine, Scratch, datastore, family};

const PASSPHRASE: &str = "Gr%n passphrase of 1 test, nowhere else";
/// Occurs only in a client's data.
const MARKER: &str = "strongroom-secrets-marker-51c07d";

/// Writes the marker through the server in two ways, and reads it back.
fn use_volume(strongroom: &CommandLine<'_>, uri: &str) {
    let mut content = MARKER.repeat(2 << 20 >> 5).into_bytes();
    content.resize(4 << 20, 0);
    fs::write(strongroom.path("content"), &content).unwrap();
    strongroom.peer("nbdcopy", &["--flush", "content", uri]);
    // Unaligned: read, modify, write.
    strongroom.peer("qemu-io", &["-f", "raw", "-c", "write -s content 3145000 3000", "-c", "flush", uri]);
    strongroom.peer("qemu-io", &["-f", "raw", "-c", "read 0 4M", uri]);
}

fn search_while_exposed(key_name: &str, key_arguments: &str, secret: &[u8]) {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    strongroom.write_key_file("secret", secret);
    // Every command logs at the most verbose level.
    let trace = "--log trace volume";
    let mut said = Vec::new();
    let mut call = |verb: &str| {
        let script = format!("exec \"$STRONGROOM\" {trace} {verb} {key_arguments}");
        let finished = strongroom.run_shell(&script);
        assert!(finished.status.success(), "{finished:?}");
        said.extend([finished.stdout, finished.stderr].map(String::into_bytes));
    };
    call("create ds/vm1 --size 4M");
    call("info ds/vm1");
    call("check ds/vm1");

    let mut needles = Needles::of_volume(&strongroom, "ds/vm1", key_arguments);
    needles.add(key_name, secret);
    needles.add("the guest's marker", MARKER.as_bytes());
    let script =
        format!("exec \"$STRONGROOM\" {trace} expose ds/vm1 --nbd unix:vm.sock {key_arguments} 2>&1");
    let mut server = strongroom.start_shell("expose", &script);
    let uri = server.wait_for_line("its NBD URI", DEADLINE, |line| line.starts_with("nbd+unix:"));
    use_volume(&strongroom, &uri);

    needles.assert_not_seen_of(&family::family_of(server.id()));
    assert!(server.terminate(DEADLINE).success());
    call("resize ds/vm1 --size 5M");
    for text in &said {
        needles.assert_not_in("what a command said", text);
    }
    let log = fs::read(strongroom.path("expose-1.stdout")).unwrap();
    assert!(log.windows(5).any(|window| window == b"DEBUG"), "the server logged what it does");
    needles.assert_not_in("the server's log", &log);
    needles.assert_not_under(&strongroom.path("ds"));
    let is_volume = datastore::allocated_bytes(&strongroom.path("ds")) >= 2 << 20;
    assert!(is_volume, "what was written lies in the files that were searched");
}

#[test]
fn nothing_of_a_volume_under_a_passphrase_is_found() {
    let key = "--passphrase-fd 3 3<secret";
    search_while_exposed("the passphrase", key, PASSPHRASE.as_bytes());
}

#[test]
fn nothing_of_a_volume_under_a_key_file_is_found() {
    let key: [u8; 32] = std::array::from_fn(|index| (index as u8).wrapping_mul(89).wrapping_add(23));
    search_while_exposed("the key file", "--key-file secret", &key);
}

/// The searches above can find things: an unencrypted volume shows the marker.
#[test]
fn the_search_finds_what_is_not_protected() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    strongroom.json(&["volume", "create", "ds/vm1", "--size", "4M", "--unencrypted"]);
    let (server, uri) = strongroom.expose("ds/vm1", &["--unencrypted"]);
    use_volume(&strongroom, &uri);
    assert!(server.terminate(DEADLINE).success());
    assert!(datastore::occurrences(&strongroom.path("ds"), MARKER.as_bytes()) > 1000);
    let mut needles = Needles::default();
    needles.add("x", b"\x00\x10\x83\x10\x51\x87");
    assert_eq!(needles.found_in(b"..ABCDEFGH.."), [(2, "x as base64")]);
}

/// Another process of the same user cannot read a server's memory or attach to it, and gets no core
/// file.
#[test]
fn a_servers_memory_is_closed_to_its_own_user() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    let key: [u8; 32] = [0x77; 32];
    strongroom.write_key_file("vm1.key", &key);
    strongroom.json(&["volume", "create", "ds/vm1", "--size", "4M", "--key-file", "vm1.key"]);
    let as_user = own_user::own_user(&strongroom);

    // Without protection, a user can read the memory of the user's own processes.
    let open = strongroom.start_shell("unprotected", &format!("exec {as_user} sleep 600"));
    let mut server = strongroom.start_shell(
        "expose",
        &format!(
            "exec {as_user} ./strongroom volume expose ds/vm1 --nbd unix:vm.sock --key-file vm1.key 2>&1"
        ),
    );
    server.wait_for_line("its NBD URI", DEADLINE, |line| line.starts_with("nbd+unix:"));
    strongroom.run_shell(&format!("until {as_user} head -c 0 /proc/{}/mem; do :; done", open.id())).success();
    assert!(own_user::can_read(&strongroom, &as_user, open.id()));
    let family = family::family_of(server.id());
    assert_eq!(family.len(), 3, "the server, its worker, and what starts that");
    for process in family {
        own_user::assert_closed(&strongroom, &as_user, process);
    }
    own_user::assert_aborts_without_core(server);
}

/// A worker never sees the KEK, and the supervisor keeps no DEK once the worker has it.
#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn the_kek_is_not_in_the_worker_and_the_dek_not_in_the_supervisor() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root can read their memory");
        return;
    }
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    let key: [u8; 32] = std::array::from_fn(|index| (index as u8).wrapping_mul(71).wrapping_add(5));
    strongroom.write_key_file("vm1.key", &key);
    strongroom.json(&["volume", "create", "ds/vm1", "--size", "4M", "--key-file", "vm1.key"]);
    let all = Needles::of_volume(&strongroom, "ds/vm1", "--key-file vm1.key");
    let (kek, dek) = (all.only("kek"), all.only("dek"));

    let (server, uri) = strongroom.expose("ds/vm1", &["--key-file", "vm1.key"]);
    strongroom.peer("qemu-io", &["-f", "raw", "-c", "write 0 1M", &uri]);
    let supervisor = server.id();
    // Only a child that stays: a worker that has been replaced takes a moment to end.
    let worker = || -> u32 {
        let until = Instant::now() + DEADLINE;
        loop {
            let info = strongroom.json(&["volume", "info", "ds/vm1"]);
            if let Some(pid) = info["exposure"]["worker_pid"].as_u64() {
                return u32::try_from(pid).unwrap();
            }
            assert!(Instant::now() < until, "there is no worker");
        }
    };
    assert_eq!(kek.found_in_memory(worker()), []);
    assert_eq!(dek.found_in_memory(supervisor), []);
    let starter = family::only_child_of(supervisor);
    assert_eq!((kek.found_in_memory(starter).len(), dek.found_in_memory(starter).len()), (0, 0));
    // The search works: the supervisor has the KEK, once.
    let found = kek.found_in_memory(supervisor);
    assert!(matches!(found[..], [Found { is_protected: true, .. }]), "{found:?}");
    // The same after it has passed the keys to two more workers.
    strongroom.json(&["volume", "upgrade", "ds/vm1"]);
    strongroom.run_shell(&format!("kill -9 {}", worker())).success();
    strongroom.peer("qemu-io", &["-f", "raw", "-c", "read 0 1M", &uri]);
    assert_eq!(kek.found_in_memory(worker()), []);
    assert_eq!(dek.found_in_memory(supervisor), []);
    assert!(server.terminate(DEADLINE).success());
}
