//! What a VM whose QEMU an attacker controls can reach of another VM and of Strongroom: nothing. A
//! program in QEMU's place tries, started by the whole stack like QEMU; and once more as that VM's
//! user outside its namespaces, as if it had broken out of them. Also what it can do to its own
//! VM's supervisor, which holds the keys: nothing that it sends over QMP gets there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::secret_search::Needles;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use strongroom_system_tests::datastore::files_under;
use strongroom_system_tests::family::{family_of, runs};
use strongroom_system_tests::{Scratch, Serving};

/// Timeout from the end of a QEMU to the end of its VM's start.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// The attempts. The outcome of each is a line of the file `$1`. The other arguments are, for each
/// kind, the objects to attack.
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
        // A user for each VM needs root. Without root, only namespaces separate VMs
        // (crates/control-plane/hypervisor, walls.rs).
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

    // From now on, every start of a QEMU starts the attacker.
    serving.end();
    let elsewhere = Scratch::new();
    replace_qemu(&scratch, &elsewhere, &attacker(&scratch, &evil, &objects));
    serving.start_again();
    let tried = scratch.path(&format!("run/vms/{evil}/qemu/tried"));
    let mut starting = serving.strongroom.start_shell("start-evil", &script("vm start evil"));
    // `vm show` serves only as a way to wait.
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

    // The same as its user, but with the host's files, processes and network. Servers on ports
    // require a certificate.
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

    // It has harmed no other process.
    fs::write(tried.with_file_name("seen"), "").unwrap();
    assert!(!starting.wait(ENDS_WITHIN).success());
    assert_eq!(serving.vm("victim")["power"], "running");
    serving.runs("vm stop victim --force");
    serving.end();
}

/// A text in each message of a QEMU that sends nonsense.
const NONSENSE: &str = "strongroom-nonsense-5d0c";

/// A program that behaves like QEMU, and puts nonsense wherever a newer QEMU may add text; then,
/// when the file `now` exists, it sends it without end.
const TALKS_NONSENSE: &str = r#"#!/usr/bin/perl
use IO::Socket::UNIX;
if ($ARGV[0] eq "--version") { print "QEMU emulator version 7.2.0
"; exit }
exit 1 unless "@ARGV" =~ /guest=evil/;
$SIG{CHLD} = "IGNORE";
my $listener = IO::Socket::UNIX->new(Type => SOCK_STREAM, Local => "OWN/qmp.sock", Listen => 1) or die;
while (my $client = $listener->accept) {
    $client->autoflush(1);
    print $client qq({"QMP":{"version":{"qemu":{"micro":0,"minor":2,"major":7},"package":"NONSENSE"},"capabilities":["NONSENSE"]}}
);
    while (my $line = <$client>) {
        my ($id) = $line =~ /"id":(\d+)\}$/ or next;
        print $client qq({"event":"NONSENSE","data":{"NONSENSE":["NONSENSE"]}}
) for 1..2000;
        print $client qq({"id":999999,"return":{"running":false,"status":"NONSENSE"}}
);
        print $client qq({"return":{"running":true,"status":"running","NONSENSE":{"NONSENSE":[null]}},"id":$id}
);
        next unless $line =~ /"cont"/;
        open(my $said, ">", "OWN/said");
        next if fork;
        select(undef, undef, undef, 0.1) until -e "OWN/now";
        print $client "NONSENSE" while 1;
    }
}
"#;

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn what_a_hostile_qemu_says_does_not_reach_the_process_with_the_keys() {
    if !rustix::process::geteuid().is_root() {
        // No other process can inspect that process.
        return;
    }
    let scratch = Scratch::new();
    let mut serving = Serving::start(&scratch);
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs("vm create evil --memory 128M --net none --disk 16M --machine pc --restart never");
    let id = serving.vm("evil")["id"].as_str().unwrap().to_owned();
    serving.end();
    let elsewhere = Scratch::new();
    let own = scratch.path(&format!("run/vms/{id}/qemu"));
    let text = TALKS_NONSENSE.replace("OWN", &own.display().to_string()).replace("NONSENSE", NONSENSE);
    replace_qemu(&scratch, &elsewhere, &text);
    serving.start_again();
    let _place = serving.take_place();
    serving.runs("vm start evil");
    wait_for(|| own.join("said").exists(), "it has said it");
    serving.wait_until("evil", "runs", |vm| vm["power"] == "running");

    let mut nonsense = Needles::default();
    nonsense.add("nonsense", NONSENSE.as_bytes());
    let (supervisor, monitor) = (serving.processes_of(&id)[0], serving.monitors_of(&id)[0]);
    assert!(!nonsense.found_in_memory(number(monitor)).is_empty(), "the search finds what is there");
    assert_eq!(nonsense.found_in_memory(number(supervisor)), []);
    assert_eq!(serving.monitors_of(&id), [monitor], "what a newer QEMU may say is no reason to end");

    fs::write(own.join("now"), "").unwrap();
    let vm = serving.wait_until("evil", "is given up", |vm| vm["power"] == "crashed");
    let reason = vm["reason"].as_str().unwrap();
    assert!(reason.contains("nobody could speak with QEMU") && reason.contains("bytes at once"), "{reason}");
    assert!(!vm.to_string().contains(NONSENSE), "{vm}");
    serving.end();
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_monitor_that_is_killed_or_stands_still_is_replaced_and_its_vm_goes_on() {
    let scratch = Scratch::new();
    let mut serving = Serving::start(&scratch);
    let guest = serving.test_guest();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs(&format!("vm create web1 --memory 128M --net none --disk 16M --machine pc {guest}"));
    let id = serving.vm("web1")["id"].as_str().unwrap().to_owned();
    let _place = serving.take_place();
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    console.session.run("mark=before");
    let processes = serving.processes_of(&id);

    let mut monitor = serving.monitors_of(&id)[0];
    assert_has_nothing(monitor, &processes);
    for signal in [Signal::KILL, Signal::ABORT, Signal::STOP] {
        kill_process(monitor, signal).unwrap();
        if signal == Signal::STOP {
            // A stopped monitor is not noticed before the next request.
            serving.is_refused("vm pause web1");
        }
        let is_other = || serving.monitors_of(&id).first().is_some_and(|other| *other != monitor);
        wait_for(is_other, "another monitor is there");
        monitor = serving.monitors_of(&id)[0];
        // A moment later the new one answers.
        serving.wait_until_told("vm pause web1", "");
        serving.wait_until("web1", "stands still", |vm| vm["power"] == "paused");
        serving.runs("vm resume web1");
        serving.wait_until("web1", "goes on", |vm| vm["power"] == "running");
        assert_eq!(console.session.run("echo $mark").trim(), "before");
        assert_eq!(serving.processes_of(&id), processes, "nobody else was replaced");
    }
    assert_has_nothing(monitor, &processes);
    drop(console);
    serving.runs("vm stop web1 --force");
    wait_for(|| !runs(number(monitor)), "it ends with its QEMU");
    serving.end();
}

/// Checks what the kernel says about a monitor: it has no privileges, can open nothing, and has two
/// sockets open.
fn assert_has_nothing(monitor: Pid, others: &[Pid]) {
    let field = |pid: Pid, name: &str| {
        let status = fs::read_to_string(format!("/proc/{}/status", number(pid))).unwrap();
        status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
    };
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(u64::from_str_radix(&field(monitor, set), 16), Ok(0), "{set}");
    }
    assert_eq!((field(monitor, "NoNewPrivs:"), field(monitor, "Seccomp:")), ("1".to_owned(), "2".to_owned()));
    if !rustix::process::geteuid().is_root() {
        return;
    }
    assert!(others.iter().all(|other| field(*other, "Uid:") != field(monitor, "Uid:")));
    let open = fs::read_dir(format!("/proc/{}/fd", number(monitor))).unwrap();
    let open: Vec<PathBuf> = open.map(|entry| fs::read_link(entry.unwrap().path()).unwrap()).collect();
    // Its standard error is in memory; the lease of its user is in the directory of users.
    let is_allowed = |file: &&PathBuf| {
        ["socket:", "/memfd:stderr", "/dev/null", "/run/strongroom/"]
            .iter()
            .any(|start| file.to_string_lossy().starts_with(start))
    };
    assert!(open.iter().all(|file| is_allowed(&file)) && open.len() <= 7, "{open:?}");
}

#[track_caller]
fn wait_for(is_so: impl Fn() -> bool, awaited: &str) {
    let until = Instant::now() + ENDS_WITHIN;
    while !is_so() {
        assert!(Instant::now() < until, "it is not so that {awaited}");
        std::thread::yield_now();
    }
}

fn number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().cast_unsigned()
}

/// The objects to attack.
fn objects(scratch: &Scratch, serving: &Serving<'_>, victim: &str) -> Vec<String> {
    let mut objects = Vec::new();
    let mut add = |kind: &str, object: &Path| objects.push(format!("{kind}={}", object.display()));
    let run = scratch.path("run");
    let sockets = serving.strongroom.peer("find", &["run", "-type", "s"]);
    assert!(sockets.lines().count() >= 5, "hostd's two, the supervisor's, QMP and a disk: {sockets}");
    sockets.lines().for_each(|socket| add("socket", &scratch.path(socket)));
    files_under(&run).iter().for_each(|file| add("file", file));
    // The user made the datastore's directory, and Strongroom the directories in it.
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

/// A QEMU that does an attacker's attempts.
fn attacker(scratch: &Scratch, evil: &str, objects: &[String]) -> String {
    let own = scratch.path(&format!("run/vms/{evil}/qemu"));
    let quoted: Vec<String> = objects.iter().map(|object| format!("'{object}'")).collect();
    format!(
        "#!/usr/bin/bash\nif [ \"$1\" = --version ]; then echo 'QEMU emulator version 7.2.0'; exit; fi\n\
         # Others ask it before what it can do; that is no VM's.\n\
         case \"$*\" in *guest=evil*) ;; *) exit 1 ;; esac\n\
         set -- '{own}/tried' 'own={own}' {}\n{ATTEMPTS}\nuntil [ -e '{own}/seen' ]; do sleep 0.1; done; echo 'has tried all' >&2; exit 1\n",
        quoted.join(" "),
        own = own.display(),
    )
}

/// Puts an attacker in QEMU's place. A QEMU sees the directory of its program, so that is
/// `elsewhere`.
fn replace_qemu(scratch: &Scratch, elsewhere: &Scratch, text: &str) {
    let program = elsewhere.make_directory("bin").join("qemu");
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    // Temporary directories are private to their owners, and so are others under a strict umask.
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
