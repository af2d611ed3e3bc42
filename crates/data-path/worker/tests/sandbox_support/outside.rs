//! A confined worker from outside: its state, and the actions that other processes can take against
//! it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libtest_mimic::Trial;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use strongroom_confine::{Cgroup, DESCRIPTORS_MAX, TASKS_MAX};

use super::{End, LEASED, NOBODY, Program, Running, Walls, World, user_name};

/// The deeds that another user tries against a worker.
const INTRUSIONS: &[&str] = &[
    "attach to a process",
    "read a process's memory",
    "open a process's memory by its path",
    "read a process's environment by its path",
    "read a process's mappings by their path",
    "list a process's files by their path",
    "take a descriptor of a process",
];

/// All of them, with a worker that `user` starts.
pub fn trials(program: &Arc<Program>, user: Option<u32>, walled: bool) -> Vec<Trial> {
    let named = |name: &str| format!("{}::outside::{name}", user_name(user)).replace(' ', "_");
    let seen = |name, look: fn(&World, Option<u32>)| {
        let program = Arc::clone(program);
        Trial::test(named(name), move || {
            look(&World::new(&program), user);
            Ok(())
        })
    };
    let mut trials = vec![seen("a crash leaves no core", crash_leaves_no_core)];
    if walled {
        trials.push(seen("it is what it should be", looks_powerless));
    }
    // Here there is a cgroup hierarchy of version 2, and we may create groups in it.
    if user.is_none() && Cgroup::create("probe", TASKS_MAX).is_ok() {
        trials.push(seen("it has a cgroup, which goes with it", has_a_cgroup));
    }
    // The same user, if the worker has no user of its own: being non-dumpable keeps that user out
    // too.
    for deed in INTRUSIONS {
        let program = Arc::clone(program);
        trials.push(Trial::test(named(&format!("an ordinary user cannot {deed}")), move || {
            let world = World::new(&program);
            let worker = serving(&world, user);
            let intruder = geteuid().is_root().then_some(NOBODY);
            let end = world.start(deed, Walls::None, intruder, Some(worker.pid())).end()?;
            let kept_out = matches!(end, End::Refused(Errno::ACCESS | Errno::PERM));
            if kept_out { Ok(()) } else { Err(format!("{end:?}").into()) }
        }));
    }
    trials
}

/// A worker that is at work.
fn serving(world: &World, user: Option<u32>) -> Running {
    let mut worker = world.start("serve", Walls::Sealed, user, None);
    worker.wait_until_ready();
    worker
}

fn looks_powerless(world: &World, user: Option<u32>) {
    let worker = serving(world, user);
    let process = PathBuf::from(format!("/proc/{}", worker.pid()));
    let status = status_of(&process);
    let root = geteuid().is_root();
    let uid = if root && user.is_none() { LEASED } else { user.unwrap_or(geteuid().as_raw()) };
    assert_eq!(status["Uid"], [uid.to_string().as_str(); 4].join("\t"));
    if root {
        assert_eq!(status["Gid"], [uid.to_string().as_str(); 4].join("\t"));
        assert_eq!(status["Groups"], "");
    }
    let mut threads = 0;
    for thread in fs::read_dir(process.join("task")).unwrap() {
        let status = status_of(&thread.unwrap().path());
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(u64::from_str_radix(&status[set], 16), Ok(0), "{set}");
        }
        assert_eq!((status["NoNewPrivs"].as_str(), status["Seccomp"].as_str()), ("1", "2"));
        threads += 1;
    }
    assert!(threads > 1, "the lanes are confined with it");
    assert_eq!(status["VmSwap"], "0 kB");
    // Only root may examine the rest: the worker is not dumpable.
    if !root {
        return;
    }
    for namespace in ["net", "ipc", "uts", "mnt", "cgroup"] {
        let of = |process: &Path| fs::read_link(process.join("ns").join(namespace)).unwrap();
        assert_ne!(of(&process), of(Path::new("/proc/self")), "{namespace}");
    }
    let mounts = fs::read_to_string(process.join("mounts")).unwrap();
    assert_eq!(mounts.lines().count(), 1, "{mounts}");
    assert_eq!(fs::read_dir(process.join("root")).unwrap().count(), 0);
    assert!(fs::write(process.join("root/new"), "").is_err());
    let limits = fs::read_to_string(process.join("limits")).unwrap();
    let hard_limit = |name| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(hard_limit("Max core file size"), "0");
    // Its memory is locked if there is no limit on locked memory; otherwise a host without swap
    // suffices.
    let may_lock = hard_limit("Max locked memory") == "unlimited";
    assert!(!may_lock || status["VmLck"] != "0 kB", "{status:?}");
    assert_eq!(hard_limit("Max open files"), DESCRIPTORS_MAX.to_string());
    if user.is_none() {
        assert_eq!(hard_limit("Max processes"), TASKS_MAX.to_string());
    }
}

fn has_a_cgroup(world: &World, user: Option<u32>) {
    let worker = serving(world, user);
    let pid = Pid::from_raw(worker.pid().cast_signed()).unwrap();
    let cgroup = Cgroup::create("trial", TASKS_MAX).unwrap();
    cgroup.add(pid).unwrap();
    let path = cgroup.path().to_owned();
    let processes = fs::read_to_string(path.join("cgroup.procs")).unwrap();
    assert_eq!(processes.trim(), worker.pid().to_string());
    let limit = |name| fs::read_to_string(path.join(name)).map(|limit| limit.trim().to_owned());
    for (controller, file, wanted) in
        [("memory", "memory.swap.max", "0"), ("pids", "pids.max", &*TASKS_MAX.to_string())]
    {
        let missing = cgroup.warnings().iter().any(|warning| warning.contains(controller));
        // Without its controller a limit does not exist, and a warning says so.
        assert!(limit(file).map_or(missing, |limit| limit == wanted && !missing), "{:?}", cgroup.warnings());
    }
    drop(worker);
    drop(cgroup);
    assert!(!path.exists());
}

fn crash_leaves_no_core(world: &World, user: Option<u32>) {
    let names = world.names();
    let worker = serving(world, user);
    let pid = Pid::from_raw(worker.pid().cast_signed()).unwrap();
    // The standard library handles SIGSEGV itself, and SIGQUIT is ignored when tests run in the
    // background. The kernel dumps core for SIGABRT too.
    kill_process(pid, Signal::ABORT).unwrap();
    let status = worker.status();
    // Neither a file nor a `core_pattern` program got a core: the kernel reports whether it made
    // one.
    assert_eq!((status.signal(), status.core_dumped()), (Some(libc::SIGABRT), false));
    assert_eq!(world.names(), names);
}

fn status_of(process: &Path) -> BTreeMap<String, String> {
    let status = fs::read_to_string(process.join("status")).unwrap();
    let fields = status.lines().filter_map(|line| line.split_once(':'));
    fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}
