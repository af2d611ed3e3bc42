//! What a VM whose QEMU obeys an attacker can reach of another VM and of Strongroom: nothing. A program in QEMU's place tries
//! it, started by the whole stack as QEMU is; and once more as that VM's user outside of its namespaces, as if it had broken
//! out of them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use strongroom_system_tests::datastore::files_under;
use strongroom_system_tests::family::family_of;
use strongroom_system_tests::{Scratch, Serving};

/// Of a QEMU that has ended, to the end of its VM's start.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// What it tries, with each outcome as a line of the file `$1`. The rest are, for each kind, the objects to try it on.
const ATTEMPTS: &str = r#"
out=$1; shift
try() { name=$1; shift; if "$@" >/dev/null 2>&1; then echo "$name: done"; else echo "$name: refused"; fi >>"$out.new"; }
connect() { perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Type => SOCK_STREAM, Peer => $ARGV[0]) or IO::Socket::UNIX->new(Type => SOCK_SEQPACKET, Peer => $ARGV[0]) or exit 1' "$1"; }
first_byte() { perl -e 'open(F, "<", $ARGV[0]) && sysread(F, $b, 1) or exit 1' "$1"; }
attach() { perl -e 'exit(syscall(101, 16, $ARGV[0] + 0, 0, 0) == 0 ? 0 : 1)' "$1"; }
copy_memory() { perl -e '$b = "x" x 16; $l = pack("PQ", $b, 16); $r = pack("QQ", hex $ARGV[1], 16); exit(syscall(310, $ARGV[0] + 0, $l, 1, $r, 1, 0) > 0 ? 0 : 1)' "$1" "$2"; }
take_descriptor() { perl -e '$p = syscall(434, $ARGV[0] + 0, 0); exit($p >= 0 && syscall(438, $p, 0, 0) >= 0 ? 0 : 1)' "$1"; }
: >"$out.new"
for argument; do
    kind=${argument%%=*}; object=${argument#*=}
    case $kind in
    socket) try "connect to $object" connect "$object" ;;
    file) try "read $object" first_byte "$object" ;;
    directory) try "list $object" ls "$object"; try "write to $object" touch "$object/evil" ;;
    process)
        try "signal $object" perl -e 'exit(kill(0, $ARGV[0]) ? 0 : 1)' "$object"
        try "attach to $object" attach "$object"
        try "read memory of $object" first_byte "/proc/$object/mem"
        try "copy memory of $object" copy_memory "$object" 400000
        try "read maps of $object" first_byte "/proc/$object/maps"
        try "read environment of $object" first_byte "/proc/$object/environ"
        try "list files of $object" sh -c "ls /proc/$object/fd/ && ls /proc/$object/map_files/"
        try "take a file of $object" take_descriptor "$object" ;;
    port) try "connect to port $object" bash -c "exec 3<>/dev/tcp/127.0.0.1/$object" ;;
    own) try "own $object" touch "$object/own" ;;
    esac
done
id -u >"$out.user"; mv "$out.new" "$out"
"#;

#[test]
fn a_hostile_qemu_reaches_nothing_of_another_vm() {
    if !rustix::process::geteuid().is_root() {
        // Another user for each VM takes root; without it, namespaces alone are between them (crates/hypervisor, walls.rs).
        return;
    }
    let scratch = Scratch::new();
    let mut serving = Serving::start(&scratch);
    let guest = serving.test_guest();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs(&format!("vm create victim --memory 128M --net none --disk 16M --machine pc {guest}"));
    serving.runs("vm create evil --memory 128M --net none --disk 16M --machine pc");
    let _place = serving.take_place();
    serving.runs("vm start victim");
    let id = |vm: &str| serving.vm(vm)["id"].as_str().unwrap().to_owned();
    let (victim, evil) = (id("victim"), id("evil"));
    let objects = objects(&scratch, &serving, &victim);

    // Everybody who is asked for a QEMU from now on is given the attacker.
    serving.end();
    let elsewhere = Scratch::new();
    replace_qemu(&scratch, &elsewhere, &evil, &objects);
    serving.start_again();
    let tried = scratch.path(&format!("run/vms/{evil}/qemu/tried"));
    let mut starting = serving.strongroom.start_shell("start-evil", &script("vm start evil"));
    // `vm show` is a reason to wait, and as good as another one.
    serving.wait_until("evil", "has tried everything", |_| tried.exists());
    let inside = fs::read_to_string(&tried).unwrap();
    let user: u32 = fs::read_to_string(tried.with_extension("user")).unwrap().trim().parse().unwrap();
    let victims_user = fs::metadata(scratch.path(&format!("run/vms/{victim}/qemu"))).unwrap();
    assert_ne!(user, std::os::unix::fs::MetadataExt::uid(&victims_user), "they share a user");
    assert!(user > 0);
    let done: Vec<_> = inside.lines().filter(|line| line.ends_with(": done")).collect();
    assert_eq!(done.len(), 1, "only its own directory is its own: {done:?}");
    assert!(done[0].starts_with("own "), "{done:?}");
    let attempts = inside.lines().count();

    // The same as its user, but with the host's files, processes and network before it. Whoever listens on a port asks for a
    // certificate.
    let outside = scratch.make_directory("outside");
    fs::set_permissions(&outside, PermissionsExt::from_mode(0o777)).unwrap();
    let objects: Vec<_> = objects.into_iter().filter(|object| !object.starts_with("port=")).collect();
    let ids = [format!("--reuid={user}"), format!("--regid={user}")];
    let status = Command::new("setpriv")
        .args(ids)
        .args(["--clear-groups", "--no-new-privs", "--", "bash", "-c", ATTEMPTS, "attempts"])
        .arg(outside.join("tried"))
        .args(&objects)
        .status();
    assert!(status.unwrap().success());
    let told = fs::read_to_string(outside.join("tried")).unwrap();
    let done: Vec<_> = told.lines().filter(|line| line.ends_with(": done")).collect();
    assert!(done.is_empty(), "as user {user}: {done:?}");
    assert!(told.lines().count() > 40 && attempts > told.lines().count(), "{attempts}: {told}");

    // And it has harmed nobody.
    fs::write(tried.with_file_name("seen"), "").unwrap();
    assert!(!starting.wait(ENDS_WITHIN).success());
    assert_eq!(serving.vm("victim")["power"], "running");
    serving.runs("vm stop victim --force");
    serving.end();
}

/// What there is to reach.
fn objects(scratch: &Scratch, serving: &Serving<'_>, victim: &str) -> Vec<String> {
    let mut objects = Vec::new();
    let mut add = |kind: &str, object: &Path| objects.push(format!("{kind}={}", object.display()));
    let run = scratch.path("run");
    let sockets = serving.strongroom.peer("find", &["run", "-type", "s"]);
    assert!(sockets.lines().count() >= 5, "hostd's two, the supervisor's, QMP and a disk: {sockets}");
    sockets.lines().for_each(|socket| add("socket", &scratch.path(socket)));
    files_under(&run).iter().for_each(|file| add("file", file));
    // The datastore's directory is as the user made it; what is in it is ours.
    for directory in ["home", "home/keyserver", "home/hostd", "home/control", "ds/victim"] {
        add("directory", &scratch.path(directory));
    }
    add("directory", &run.join("vms").join(victim));
    files_under(&scratch.path("ds")).iter().for_each(|file| add("file", file));
    for file in ["home/control/token", "home/hostd/host.json", "home/control/api.key"] {
        assert!(scratch.path(file).exists(), "{file}");
        add("file", &scratch.path(file));
    }
    let serve = serving.process(&["serve", "--role host"]);
    let processes = serving.processes_of(victim);
    let mut pids = family_of(processes[0].as_raw_nonzero().get().cast_unsigned());
    pids.extend([processes[1], serve].map(|pid| pid.as_raw_nonzero().get().cast_unsigned()));
    pids.sort_unstable();
    pids.dedup();
    objects.extend(pids.iter().map(|pid| format!("process={pid}")));
    let api = fs::read(scratch.path("home/control/api.json")).unwrap();
    let api: Value = serde_json::from_slice(&api).unwrap();
    let port = api["url"].as_str().unwrap().rsplit(':').next().unwrap();
    objects.push(format!("port={}", port.trim_end_matches('/')));
    objects
}

/// Puts the attacker in QEMU's place. A QEMU sees what it is installed with, so that is `elsewhere`.
fn replace_qemu(scratch: &Scratch, elsewhere: &Scratch, evil: &str, objects: &[String]) {
    let program = elsewhere.make_directory("bin").join("qemu");
    let own = scratch.path(&format!("run/vms/{evil}/qemu"));
    let quoted: Vec<String> = objects.iter().map(|object| format!("'{object}'")).collect();
    let text = format!(
        "#!/usr/bin/bash\nif [ \"$1\" = --version ]; then echo 'QEMU emulator version 7.2.0'; exit; fi\n\
         # Others ask it before what it can do; that is no VM's.\n\
         case \"$*\" in *guest=evil*) ;; *) exit 1 ;; esac\n\
         set -- '{own}/tried' 'own={own}' {}\n{ATTEMPTS}\nuntil [ -e '{own}/seen' ]; do sleep 0.1; done; echo 'has tried all' >&2; exit 1\n",
        quoted.join(" "),
        own = own.display(),
    );
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    // Temporary directories are their makers' alone, and so are others under a strict umask.
    for directory in [scratch.path(""), elsewhere.path(""), elsewhere.path("bin")] {
        fs::set_permissions(directory, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let path = scratch.path("home/hostd/host.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["qemu"] = json!(program);
    fs::write(&path, config.to_string()).unwrap();
}

fn script(arguments: &str) -> String {
    format!("export STRONGROOM_HOME=\"$PWD/home\"; exec \"$STRONGROOM\" {arguments}")
}
