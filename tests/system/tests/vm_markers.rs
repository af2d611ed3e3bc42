//! Guest data and volume keys are only where they belong: not in files, logs, answers, QMP traffic,
//! temporary files, core files, or the memory of processes that must not have them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::secret_search::Needles;
use rustix::process::{Pid, Signal, kill_process};
use strongroom_keys::ProviderKey;
use strongroom_providers::{GrantWallet, KeyGrant, ProviderKeyring};
use strongroom_system_tests::datastore::files_under;
use strongroom_system_tests::{CommandLine, Process, Scratch, Serving};

/// A text that the guest joins from two halves, so that the whole is in its memory and on its disk,
/// and was never sent.
const MARKER: &str = "strongroom-guest-marker-a81e";
/// A text in cloud-init's data.
const SEED_MARKER: &str = "strongroom-seed-marker-0c57";
/// Files larger than any that are made here are not our temporary files.
const TEMPORARY_BYTES_MAX: u64 = 64 << 20;
const TRACED_WITHIN: Duration = Duration::from_secs(60);

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn what_a_guest_keeps_and_its_keys_are_nowhere_else() {
    let begun = SystemTime::now();
    // The test's own copies are in another directory.
    let (scratch, known) = (Scratch::new(), Scratch::new());
    let serving = Serving::start_logging(&scratch, "trace");
    let guest = serving.test_guest();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    let user_data = known.path("user-data");
    fs::write(&user_data, format!("#cloud-config\npassword: {SEED_MARKER}\n")).unwrap();
    let create = "vm create web1 --memory 256M --net none --disk 64M --swap 32M --machine pc";
    serving.runs(&format!("{create} --user-data {} {guest}", user_data.display()));
    let id = serving.vm("web1")["id"].as_str().unwrap().to_owned();
    let _place = serving.take_place();
    serving.runs("vm start web1");
    let needles = needles(&serving, &scratch, &CommandLine::new(&known), &id);

    let (supervisor, monitor) = (serving.processes_of(&id)[0], serving.monitors_of(&id)[0]);
    let traces = [("supervisor", supervisor), ("monitor", monitor)].map(|(name, process)| {
        let into = scratch.path(&format!("{name}.trace"));
        (name, traces(&scratch, name, process, &into), into)
    });
    let mut console = serving.console("web1");
    console.wait_until_ready();
    let (half, rest) = MARKER.split_at(MARKER.len() / 2);
    console.session.run(&format!("a={half}; b={rest}; whole=$a$b; echo $whole > text"));
    for disk in ["vda", "vdb"] {
        console.session.run(&format!("dd if=text of=/dev/{disk} bs=4096 seek=64 conv=sync,fsync 2>&1"));
    }
    let read = "dd if=/dev/vda bs=4096 skip=64 count=1 2>/dev/null | tr -d '\\000' | wc -c";
    assert_eq!(console.session.run(read).trim(), (MARKER.len() + 1).to_string());
    drop(console);
    serving.runs("vm pause web1");
    serving.runs("vm resume web1");
    for (name, tracer, trace) in traces {
        let Some(tracer) = tracer else { continue };
        let _ = tracer.terminate(TRACED_WITHIN);
        let traced = fs::read_to_string(&trace).unwrap();
        let speaks_qmp = traced.contains(r#"\"execute\":\"stop\""#);
        assert_eq!(speaks_qmp, name == "monitor", "{}", trace.display());
        assert!(traced.contains("Stop"), "its request was not seen: {}", trace.display());
        needles.assert_not_in(&format!("what the {name} says and hears"), traced.as_bytes());
    }

    // The answers of the API.
    let mut answers = String::new();
    for asked in [
        "vm list",
        "vm show web1",
        "vm key status web1",
        "task list",
        "event list",
        "datastore list",
        "datastore contents ds",
        "host list",
        "event alarms",
        "policy list",
        "key-provider list",
    ] {
        answers.push_str(&serving.runs(&format!("--json {asked}")));
    }
    assert!(answers.contains(&id));
    needles.assert_not_in("the API's answers", answers.as_bytes());

    let mut ours: Vec<u32> = serving.processes().into_iter().map(|(pid, _)| pid).collect();
    ours.extend(serving.workers_of(&id).into_iter().map(number));
    assert!(ours.len() >= 9, "{ours:?}");
    needles.assert_not_seen_of(&ours);
    if rustix::process::geteuid().is_root() {
        // The control plane and hostd have names of keys, and see no guest data. The key server has
        // the KEK, and nothing else.
        for words in [&["serve", "--role host"][..], &["serve", "--role control"]] {
            let found = needles.found_in_memory(number(serving.process(words)));
            assert_eq!(found, Vec::new(), "{words:?}");
        }
        assert_eq!(needles.found_in_memory(number(monitor)), Vec::new(), "what speaks QMP");
        let guest_data = guest_markers();
        let found = guest_data.found_in_memory(number(serving.process(&["keyserver", "run"])));
        assert_eq!(found, Vec::new(), "the key server");
        // The supervisor has the KEK in memory that is locked and excluded from dumps.
        let held = needles.found_in_memory(number(supervisor));
        assert!(!held.is_empty() && held.iter().all(|found| found.is_protected), "{held:?}");
    }

    // After a suspension and a resumption, the processes with secrets die like programs that dump
    // core.
    serving.runs("vm suspend web1");
    serving.runs("vm start web1");
    let crash = |pid| kill_process(pid, Signal::SEGV).unwrap();
    serving.workers_of(&id).into_iter().for_each(crash);
    crash(serving.processes_of(&id)[0]);
    serving.console_when_taken_over("web1", &id);
    crash(serving.processes_of(&id)[1]);
    crash(serving.process(&["keyserver", "run"]));
    serving.wait_until("web1", "runs again", |vm| vm["power"] == "running" && vm["generation"] == 3);
    serving.runs("vm stop web1 --force");

    assert!(needles.assert_not_under(&scratch.path("")) > 20);
    let cores: Vec<PathBuf> =
        files_under(&scratch.path("")).into_iter().filter(|file| is_core(file)).collect();
    assert_eq!(cores, Vec::<PathBuf>::new());
    for file in temporary_files(begun, &[&scratch.path(""), &known.path("")]) {
        needles.assert_not_in(&file.display().to_string(), &fs::read(&file).unwrap_or_default());
    }
}

fn guest_markers() -> Needles {
    let mut needles = Needles::default();
    needles.add("what the guest keeps", MARKER.as_bytes());
    needles.add("what cloud-init is told", SEED_MARKER.as_bytes());
    needles
}

/// The guest's text, and the secrets of its disk derived by another implementation from the KEK
/// that its host gets.
fn needles(serving: &Serving<'_>, scratch: &Scratch, known: &CommandLine<'_>, vm: &str) -> Needles {
    let status = serving.json("vm key status web1");
    let key = ProviderKey {
        provider: "embedded".parse().unwrap(),
        key: status["keys"][0]["key"].as_str().unwrap().parse().unwrap(),
        wrapped: None,
    };
    let grant = known.path("grant");
    serving.runs(&format!(
        "keyserver grant --identity \"$PWD/home/control/identity\" --server {} --vm {vm} --vm-generation 1 --host host1 --key-id {} --into {}",
        serving.key_server_questions(),
        key.key,
        grant.display()
    ));
    let grant = pem::parse(fs::read(grant).unwrap()).unwrap().into_contents();
    let wallet = GrantWallet::new();
    wallet.add(KeyGrant::new(grant, [key.key.clone()], SystemTime::now() + Duration::from_secs(60)));
    let keyring = ProviderKeyring::of_home(&scratch.path("home/hostd")).with_grants(Some(Arc::new(wallet)));
    let kek = keyring.provider(&key.provider).unwrap().fetch(&key).unwrap();
    known.write_key_file("kek", kek.expose());
    let volume = scratch.path("ds/web1/disk0").display().to_string();
    Needles::of_volume(known, &volume, "--key-file kek").and(&guest_markers(), "the VM's")
}

/// Records every byte that a process sends and receives, in plain text, until it is dropped. Only
/// root can trace a process that holds keys.
fn traces(scratch: &Scratch, name: &str, process: Pid, into: &Path) -> Option<Process> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let mut strace = Command::new("strace");
    strace.args(["-f", "-s", "1000000", "-e", "trace=%network,read,write,readv,writev", "-p"]);
    strace.arg(number(process).to_string()).arg("-o").arg(into);
    let tracer = Process::start(scratch, &format!("strace-{name}"), &strace);
    let until = SystemTime::now() + TRACED_WITHIN;
    let status = format!("/proc/{}/status", number(process));
    while fs::read_to_string(&status).unwrap().contains("TracerPid:\t0\n") {
        assert!(SystemTime::now() < until, "{process:?} is not traced");
    }
    Some(tracer)
}

fn number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().cast_unsigned()
}

/// Whether it has a name that the kernel gives core files on this machine.
fn is_core(file: &Path) -> bool {
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name == "core" || name.starts_with("core.")
}

/// Files written since then in the usual places of temporary files and core files.
fn temporary_files(since: SystemTime, but: &[&Path]) -> Vec<PathBuf> {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let cores = Path::new(pattern.trim()).parent().filter(|directory| directory.is_absolute());
    let places = ["/tmp", "/var/tmp", "/dev/shm", "/run/strongroom"].map(Path::new);
    let is_new = |file: &PathBuf| {
        let found = fs::metadata(file).ok().filter(|found| found.len() <= TEMPORARY_BYTES_MAX);
        found.and_then(|found| found.modified().ok()).is_some_and(|modified| modified >= since)
    };
    let files = places.into_iter().chain(cores).flat_map(files_there);
    files.filter(is_new).filter(|file| !but.iter().any(|place| file.starts_with(place))).collect()
}

/// As `files_under`, for a directory that changes meanwhile.
fn files_there(directory: &Path) -> Vec<PathBuf> {
    let (mut files, mut unread) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(directory) = unread.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => unread.push(entry.path()),
                Ok(kind) if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files
}
