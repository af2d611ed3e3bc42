//! Whoever takes the datastore, looks at the process from outside, or reads its log and output, finds neither what the
//! guest wrote nor any key: not as it is, not in hexadecimal, not in base64.

#![allow(clippy::unwrap_used, reason = "a test's own steps fail it by panicking")]

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use strongroom_system_tests::{CommandLine, Scratch, datastore, family};

const PASSPHRASE: &str = "Gr%n passphrase of 1 test, nowhere else";
/// Occurs nowhere but in what a client writes.
const MARKER: &str = "strongroom-secrets-marker-51c07d";
/// Whom a server of root's runs as, to be looked at by another process of the same user.
const NOBODY: u32 = 65_534;
const DEADLINE: Duration = Duration::from_secs(120);

/// What a search compares first.
const START_BYTES: usize = 4;

/// What must not be found, in one form.
struct Needle {
    name: String,
    bytes: Vec<u8>,
}

/// A secret as it is, in hexadecimal of both cases, and in base64 wherever in a longer text it could stand.
fn forms_of(name: &str, secret: &[u8]) -> Vec<Needle> {
    let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut forms = vec![
        ("as it is", secret.to_vec()),
        ("as hex", hex.to_uppercase().into_bytes()),
        ("as hex", hex.into_bytes()),
        // As Rust's Debug prints bytes.
        ("as a list", secret.iter().map(u8::to_string).collect::<Vec<_>>().join(", ").into_bytes()),
    ];
    for skipped in 0..3 {
        // Whole groups of three bytes have the same digits wherever the text around them begins.
        let whole = &secret[skipped..secret.len() - (secret.len() - skipped) % 3];
        forms.push(("as base64", base64(whole, b"+/")));
        forms.push(("as base64url", base64(whole, b"-_")));
    }
    let named = |(form, bytes)| Needle { name: format!("{name} {form}"), bytes };
    forms.into_iter().map(named).collect()
}

/// RFC 4648 over whole groups of three bytes.
fn base64(bytes: &[u8], last_two: &[u8; 2]) -> Vec<u8> {
    let digits: Vec<u8> = (b'A'..=b'Z').chain(b'a'..=b'z').chain(b'0'..=b'9').chain(*last_two).collect();
    let groups = bytes.as_chunks::<3>().0.iter();
    groups
        .flat_map(|[a, b, c]| {
            let bits = u32::from(*a) << 16 | u32::from(*b) << 8 | u32::from(*c);
            [18, 12, 6, 0].map(|shift| digits[(bits >> shift & 63) as usize])
        })
        .collect()
}

/// The secrets of a volume, worked out by another implementation.
fn secrets_of(strongroom: &CommandLine<'_>, volume: &str, key: &str) -> Vec<(String, Vec<u8>)> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/secrets/secrets_of_volume.py");
    let call = format!("exec /usr/bin/python3 {} {volume} {key}", script.display());
    let told = strongroom.peer("sh", &["-c", &call]);
    let secret = |line: &str| {
        let (name, hex) = line.split_once(' ').unwrap();
        let bytes = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap());
        (name.to_owned(), bytes.collect())
    };
    told.lines().map(secret).collect()
}

/// The forms in which they must not be found.
fn needles(strongroom: &CommandLine<'_>, volume: &str, key: &str) -> Vec<Needle> {
    let secrets = secrets_of(strongroom, volume, key);
    let needles: Vec<Needle> = secrets.iter().flat_map(|(name, secret)| forms_of(name, secret)).collect();
    assert!(needles.len() > 250, "KEK, DEK, halves and 26 round keys, each in ten forms");
    needles
}

/// Fails the test if a needle is in the content. All are looked for in one pass, by their first bytes.
#[track_caller]
fn assert_not_found(needles: &[Needle], place: &str, content: &[u8]) {
    let mut by_start: HashMap<&[u8], Vec<&Needle>> = HashMap::new();
    for needle in needles {
        by_start.entry(&needle.bytes[..START_BYTES]).or_default().push(needle);
    }
    for (at, window) in content.windows(START_BYTES).enumerate() {
        for needle in by_start.get(window).into_iter().flatten() {
            assert!(!content[at..].starts_with(&needle.bytes), "{} in {place} at byte {at}", needle.name);
        }
    }
}

/// What other processes may see of a process, as far as the kernel lets us look.
fn seen_from_outside(process: u32) -> Vec<(PathBuf, Vec<u8>)> {
    let process = PathBuf::from(format!("/proc/{process}"));
    let files = ["cmdline", "environ", "comm", "status", "maps", "limits"].map(|name| process.join(name));
    files.into_iter().filter_map(|path| Some((path.clone(), fs::read(&path).ok()?))).collect()
}

/// Writes the marker through the server, in two ways, and reads it back.
fn use_volume(strongroom: &CommandLine<'_>, uri: &str) {
    let mut content = MARKER.repeat(2 << 20 >> 5).into_bytes();
    content.resize(4 << 20, 0);
    fs::write(strongroom.path("content"), &content).unwrap();
    strongroom.peer("nbdcopy", &["--flush", "content", uri]);
    // Not aligned to anything: read, modify, write.
    strongroom.peer("qemu-io", &["-f", "raw", "-c", "write -s content 3145000 3000", "-c", "flush", uri]);
    strongroom.peer("qemu-io", &["-f", "raw", "-c", "read 0 4M", uri]);
}

fn search_while_exposed(key_name: &str, key_arguments: &str, secret: &[u8]) {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    strongroom.write_key_file("secret", secret);
    // Every command logs all that it has to say.
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

    let mut needles = needles(&strongroom, "ds/vm1", key_arguments);
    needles.extend(forms_of(key_name, secret));
    needles.extend(forms_of("the guest's marker", MARKER.as_bytes()));
    let script =
        format!("exec \"$STRONGROOM\" {trace} expose ds/vm1 --nbd unix:vm.sock {key_arguments} 2>&1");
    let mut server = strongroom.start_shell("expose", &script);
    let uri = server.wait_for_line("its NBD URI", DEADLINE, |line| line.starts_with("nbd+unix:"));
    use_volume(&strongroom, &uri);

    for process in family::family_of(server.id()) {
        for (path, content) in seen_from_outside(process) {
            assert_not_found(&needles, &path.display().to_string(), &content);
        }
    }
    assert!(server.terminate(DEADLINE).success());
    call("resize ds/vm1 --size 5M");
    for text in &said {
        assert_not_found(&needles, "what a command said", text);
    }
    let log = fs::read(strongroom.path("expose-1.stdout")).unwrap();
    assert!(log.windows(5).any(|window| window == b"DEBUG"), "the server logged what it does");
    assert_not_found(&needles, "the server's log", &log);
    for file in datastore::files_under(&strongroom.path("ds")) {
        assert_not_found(&needles, &file.display().to_string(), &fs::read(&file).unwrap());
    }
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

/// The searches above would find what is there: an unencrypted volume shows the marker.
#[test]
fn the_search_finds_what_is_not_protected() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    strongroom.json(&["volume", "create", "ds/vm1", "--size", "4M", "--unencrypted"]);
    let (server, uri) = strongroom.expose("ds/vm1", &["--unencrypted"]);
    use_volume(&strongroom, &uri);
    assert!(server.terminate(DEADLINE).success());
    assert!(datastore::occurrences(&strongroom.path("ds"), MARKER.as_bytes()) > 1000);
    let forms = forms_of("x", b"\x00\x10\x83\x10\x51\x87");
    assert!(forms.iter().any(|needle| needle.bytes == b"ABCDEFGH"));
}

/// Another process of the same user reads no memory of a server, attaches to nothing, and gets no core file.
#[test]
fn a_servers_memory_is_closed_to_its_own_user() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    let key: [u8; 32] = [0x77; 32];
    strongroom.write_key_file("vm1.key", &key);
    strongroom.json(&["volume", "create", "ds/vm1", "--size", "4M", "--key-file", "vm1.key"]);
    let as_user = become_nobody_if_root(&strongroom);

    // Without protection a user's process is an open book to the user.
    let open = strongroom.start_shell("unprotected", &format!("exec {as_user} sleep 600"));
    let mut server = strongroom.start_shell(
        "expose",
        &format!(
            "exec {as_user} ./strongroom volume expose ds/vm1 --nbd unix:vm.sock --key-file vm1.key 2>&1"
        ),
    );
    server.wait_for_line("its NBD URI", DEADLINE, |line| line.starts_with("nbd+unix:"));
    let can_read = |pid: u32| {
        let look = format!("exec {as_user} head -c 0 /proc/{pid}/mem");
        strongroom.run_shell(&look).status.success()
    };
    strongroom.run_shell(&format!("until {as_user} head -c 0 /proc/{}/mem; do :; done", open.id())).success();
    assert!(can_read(open.id()));
    let family = family::family_of(server.id());
    assert_eq!(family.len(), 2, "the server and its worker");
    for process in family {
        assert!(!can_read(process), "the memory of {process} can be read");
        let limits = fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        assert_eq!(core.split_whitespace().skip(4).take(2).collect::<Vec<_>>(), ["0", "0"], "{core}");
    }
    server.signal(Signal::ABORT);
    let status = server.wait(DEADLINE);
    assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()));
    assert!(!status.core_dumped());
}

/// The readable memory of a process, which root alone can read: each mapping's place, and what is in it.
fn memory_of(process: u32) -> Vec<(String, Vec<u8>)> {
    let memory = File::open(format!("/proc/{process}/mem")).unwrap();
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let readable =
        maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|mode| mode.starts_with('r')));
    let mappings = readable.filter_map(|line| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        let mut content = vec![0; usize::try_from(end - start).ok()?];
        // Pages of the kernel's own, and those of a ring, cannot be read so.
        memory.read_exact_at(&mut content, start).ok()?;
        Some((format!("process {process}, {line}"), content))
    });
    mappings.collect()
}

/// In how many places of a process's memory a secret is, as it is, in hexadecimal or in base64.
fn occurrences_in_memory(process: u32, needles: &[Needle]) -> Vec<String> {
    let mut found = Vec::new();
    for (place, content) in memory_of(process) {
        for needle in needles {
            let mut windows = content.windows(needle.bytes.len());
            if windows.any(|window| window[0] == needle.bytes[0] && window == needle.bytes) {
                found.push(format!("{} in {place}", needle.name));
            }
        }
    }
    found
}

/// A worker never sees the KEK, and the supervisor keeps no DEK once the worker has it.
#[test]
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
    let secrets = secrets_of(&strongroom, "ds/vm1", "--key-file vm1.key");
    let forms = |wanted: &str| -> Vec<Needle> {
        let (name, secret) = secrets.iter().find(|(name, _)| name == wanted).unwrap();
        forms_of(name, secret)
    };
    let (kek, dek) = (forms("kek"), forms("dek"));

    let (server, uri) = strongroom.expose("ds/vm1", &["--key-file", "vm1.key"]);
    strongroom.peer("qemu-io", &["-f", "raw", "-c", "write 0 1M", &uri]);
    let supervisor = server.id();
    // Not just any child: one that has been replaced takes a moment to end.
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
    assert_eq!(occurrences_in_memory(worker(), &kek), [""; 0]);
    assert_eq!(occurrences_in_memory(supervisor, &dek), [""; 0]);
    // The search finds what is there: the supervisor has the KEK, once.
    assert_eq!(occurrences_in_memory(supervisor, &kek).len(), 1);
    // The same after it has given the keys to two more workers.
    strongroom.json(&["volume", "upgrade", "ds/vm1"]);
    strongroom.run_shell(&format!("kill -9 {}", worker())).success();
    strongroom.peer("qemu-io", &["-f", "raw", "-c", "read 0 1M", &uri]);
    assert_eq!(occurrences_in_memory(worker(), &kek), [""; 0]);
    assert_eq!(occurrences_in_memory(supervisor, &dek), [""; 0]);
    assert!(server.terminate(DEADLINE).success());
}

/// Root reads everything, so a server of root's is run, and looked at, by somebody else. Returns what starts a program
/// as that user.
fn become_nobody_if_root(strongroom: &CommandLine<'_>) -> String {
    // The test's own copy: a build directory may be closed to others. Another process writes it: a program that another
    // test starts meanwhile would hold it open for writing, and it could not be run.
    strongroom.peer("cp", &["--", strongroom.program().to_str().unwrap(), "strongroom"]);
    fs::set_permissions(strongroom.path("strongroom"), PermissionsExt::from_mode(0o755)).unwrap();
    if !rustix::process::geteuid().is_root() {
        return String::new();
    }
    for entry in [".", "ds", "ds/vm1", "vm1.key"] {
        chown(strongroom.path(entry), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    for file in datastore::files_under(&strongroom.path("ds")) {
        chown(file, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    format!("setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups --pdeathsig KILL --")
}
