//! A running worker, inspected from outside: it has no privileges, only the files that it needs are
//! open, it holds no KEK, sleeps while it is idle, and its memory is closed to others.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use crate::worker_support::{DEADLINE, NbdClient, VerifiedIo, Worker, exposure, wait_until};
use strongroom_system_tests::{CommandLine, Protection, Scratch, Volume, family};

/// The value of a line of /proc/PID/status.
#[track_caller]
fn status(process: u32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {status}")).trim().to_owned()
}

#[test]
fn a_worker_is_nobody_and_may_do_nothing() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "64M", Protection::Encrypted);
    let exposed = volume.expose();
    let worker = Worker::of(&volume);
    assert_eq!(
        (status(worker.id, "Seccomp"), status(worker.id, "NoNewPrivs")),
        ("2".to_owned(), "1".to_owned())
    );
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(status(worker.id, set), "0000000000000000", "{set}");
    }
    if rustix::process::geteuid().is_root() {
        assert_eq!(status(worker.id, "CapBnd"), "0000000000000000");
        let uids: Vec<u32> =
            status(worker.id, "Uid").split_whitespace().map(|uid| uid.parse().unwrap()).collect();
        assert!(uids.iter().all(|uid| *uid == uids[0] && *uid >= 0x7000_0000), "{uids:?}");
        assert_eq!(status(worker.id, "Groups"), "");
    }
    let namespace = |process: u32, kind: &str| {
        fs::read_link(format!("/proc/{process}/ns/{kind}")).unwrap_or_else(|error| panic!("{kind}: {error}"))
    };
    // Only root may see the open files of a process that holds keys.
    let kinds = ["net", "ipc", "uts", "mnt", "cgroup"];
    for kind in kinds.into_iter().filter(|_| rustix::process::geteuid().is_root()) {
        let (outside, inside) = (namespace(exposed.process().id(), kind), namespace(worker.id, kind));
        assert_ne!(outside, inside, "the worker shares its {kind} namespace");
    }
    assert!(exposed.close().success());
}

/// The process with a volume's key can access only the volume's directory, and the privileged
/// process has no key. Neither continues without the other.
#[test]
fn what_holds_the_key_may_do_nothing_else_and_ends_with_what_starts_its_workers() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "64M", Protection::Encrypted);
    let exposed = volume.expose();
    let supervisor = exposed.process().id();
    let starter = family::only_child_of(supervisor);
    let confined = |process| (status(process, "Seccomp"), status(process, "NoNewPrivs"));
    assert_eq!(confined(supervisor), ("2".to_owned(), "1".to_owned()));
    assert_eq!(confined(starter), ("0".to_owned(), "0".to_owned()));
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(status(supervisor, set), "0000000000000000", "{set}");
    }

    // It replaces workers, moves to another key and grows all the same.
    kill_worker_and_await_next(&volume);
    volume.command("resize", &["--size", "128M"]).success();

    let worker = Worker::of(&volume);
    family::kill(starter);
    wait_until("the process with the key has ended", || !family::runs(supervisor));
    wait_until("the worker has ended", || !family::runs(worker.id));
    drop(exposed);
}

/// Kills a volume's worker, and waits for the next one.
fn kill_worker_and_await_next(volume: &Volume<'_>) {
    let worker = Worker::of(volume);
    family::kill(worker.id);
    wait_until("another worker serves", || {
        let now = exposure(volume)["worker_pid"].as_u64();
        now.is_some_and(|pid| pid != u64::from(worker.id))
    });
}

/// Root may expose another user's volume, and the process with the key keeps only the privilege to
/// open it.
#[test]
fn a_volume_of_another_users_is_served_by_root_with_one_right() {
    if !rustix::process::geteuid().is_root() {
        println!("only root opens what another user has");
        return;
    }
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "64M", Protection::Encrypted);
    for entry in fs::read_dir(volume.path()).unwrap().map(Result::unwrap) {
        std::os::unix::fs::chown(entry.path(), Some(1234), Some(1234)).unwrap();
    }
    std::os::unix::fs::chown(volume.path(), Some(1234), Some(1234)).unwrap();
    let exposed = volume.expose();
    let only_dac_override = "0000000000000002";
    assert_eq!(status(exposed.process().id(), "CapEff"), only_dac_override);
    kill_worker_and_await_next(&volume);
    assert!(exposed.close().success());
}

/// The layer and its log, the listening socket, the socket that it was started with, the standard
/// streams, and its rings; no directory, no other file, and no descriptor that the supervisor
/// inherited, such as a passphrase.
#[test]
fn a_worker_has_open_what_it_needs_and_nothing_else() {
    if !rustix::process::geteuid().is_root() {
        println!("the kernel shows root alone what a process that holds keys has open");
        return;
    }
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    fs::write(strongroom.path("secret"), "correct horse").unwrap();
    strongroom.run_with_passphrase("secret", &["volume", "create", "ds/vm1", "--size", "4M"]).success();
    let script = "exec \"$STRONGROOM\" volume expose ds/vm1 --nbd unix:vm.sock --passphrase-fd 3 3<secret";
    let mut server = strongroom.start_shell("expose", script);
    server.wait_for_line("its NBD URI", DEADLINE, |line| line.starts_with("nbd+unix:"));
    let worker = family::worker_of(server.id());

    let mut open: BTreeMap<String, usize> = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{worker}/fd")).unwrap().map(Result::unwrap) {
        let number = entry.file_name().into_string().unwrap();
        let target = fs::read_link(entry.path()).unwrap().into_os_string().into_string().unwrap();
        // Not the log file itself, which it could truncate.
        assert!(number != "2" || target.starts_with("pipe:"), "{target}");
        let kind = match target.as_str() {
            _ if ["1", "2"].contains(&number.as_str()) => "standard stream",
            "anon_inode:[io_uring]" | "anon_inode:[eventfd]" => "ring",
            socket if socket.starts_with("socket:") => "socket",
            layer if layer.contains("/ds/vm1/layer-") => "layer",
            log if log.contains("/ds/vm1/log-") => "log",
            lease if lease.starts_with("/run/strongroom/users/") => "lease of its user",
            other => other,
        };
        *open.entry(kind.to_owned()).or_default() += 1;
    }
    assert_eq!(open.remove("lease of its user"), Some(1));
    assert!(open.remove("ring").is_some());
    // The volume's files are open once: for I/O, and to be passed to a successor.
    let expected = [("layer", 1), ("log", 1), ("socket", 3), ("standard stream", 2)];
    assert_eq!(open, expected.map(|(kind, count)| (kind.to_owned(), count)).into());
    // The supervisor keeps no copy of the layer: its lock must end with the worker's last I/O.
    for entry in fs::read_dir(format!("/proc/{}/fd", server.id())).unwrap().map(Result::unwrap) {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        let target = target.to_string_lossy();
        assert!(!target.contains("layer-") && !target.contains("log-"), "{target}");
    }
    assert!(server.terminate(DEADLINE).success());
}

/// Neither supervisor nor worker wakes up while it is idle.
#[test]
fn an_idle_worker_sleeps() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "64M", Protection::Encrypted);
    let exposed = volume.expose();
    let worker = Worker::of(&volume);
    let mut client = NbdClient::connect(exposed.socket()).unwrap();
    client.write(0, &[1; 4096]).unwrap();
    let switches = |process: u32| -> u64 {
        let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap().map(Result::unwrap);
        let of_task = |status: String| -> u64 {
            let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
            lines.map(|line| line.split_whitespace().last().unwrap().parse::<u64>().unwrap()).sum()
        };
        tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok()).map(of_task).sum()
    };
    let processes = [exposed.process().id(), worker.id];
    // First the effects of the last request subside, including deferred work.
    let came_to_rest = (0..60).any(|_| {
        let before = processes.map(switches);
        CommandLine::new(&scratch).run_shell("sleep 2").success();
        processes.map(switches) == before
    });
    assert!(came_to_rest, "somebody wakes up again and again");
    client.read(0, &mut [0; 4096]).unwrap();
    assert!(exposed.close().success());
}

/// A client that sends nonsense on the control socket, or nothing at all, delays neither others nor
/// a restart.
#[test]
fn nonsense_on_the_control_socket_harms_nobody() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "64M", Protection::Encrypted);
    let exposed = volume.expose();
    let control = volume.path().join("control");
    assert_eq!(fs::metadata(&control).unwrap().permissions().mode() & 0o777, 0o600);
    let answer_to = |line: &[u8]| {
        let mut stream = UnixStream::connect(&control).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        // The server may close the connection before it has read everything.
        let _ = stream.write_all(line);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    let _silent: Vec<UnixStream> = (0..4).map(|_| UnixStream::connect(&control).unwrap()).collect();
    let io = VerifiedIo::start(exposed.socket());
    for nonsense in [b"\n".as_slice(), b"{}\n", b"\xff\xfe\n", b"{\"format\":1,\"request\":\"dance\"}\n"] {
        let answer = answer_to(nonsense);
        assert!(answer.contains("\"code\":\"request\""), "{answer}");
    }
    let newer = answer_to(b"{\"format\":2,\"request\":\"status\"}\n");
    assert!(newer.contains("speaks format 2; this one reads format 1."), "{newer}");
    assert_eq!(answer_to(&vec![b' '; 1 << 20]), "", "an endless line is not read to its end");
    Worker::of(&volume).kill();
    io.wait_for_more(100);
    assert_eq!(exposure(&volume)["restarts"], 1);
    io.stop();
    assert!(exposed.close().success());
    assert!(!control.exists());
}
