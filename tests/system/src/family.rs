//! A process and its descendants, as the kernel shows them in `/proc` (`proc(5)`).

use std::fs;
use std::io;

use rustix::process::{Pid, Signal, kill_process};

/// The process ids of `process` and all its descendants, itself first.
#[track_caller]
pub fn family_of(process: u32) -> Vec<u32> {
    let mut family = vec![process];
    let mut next = 0;
    while next < family.len() {
        family.extend(children_of(family[next]));
        next += 1;
    }
    family
}

/// How many descriptors a process and its descendants have open.
#[track_caller]
pub fn open_descriptors(process: u32) -> usize {
    let count = |process: u32| {
        let directory = format!("/proc/{process}/fd");
        fs::read_dir(&directory).unwrap_or_else(|error| panic!("cannot read {directory}: {error}")).count()
    };
    family_of(process).into_iter().map(count).sum()
}

/// The worker of a running `volume expose`: the only child of its starter.
#[track_caller]
pub fn worker_of(supervisor: u32) -> u32 {
    only_child_of(only_child_of(supervisor))
}

/// The only child of a process.
#[track_caller]
pub fn only_child_of(process: u32) -> u32 {
    match children_of(process)[..] {
        [child] => child,
        ref children => panic!("process {process} has the children {children:?} instead of one"),
    }
}

/// Kills a process (SIGKILL) that may be another process's child.
#[track_caller]
pub fn kill(process: u32) {
    let pid = Pid::from_raw(process.cast_signed()).expect("a process id is positive");
    kill_process(pid, Signal::KILL).unwrap_or_else(|error| panic!("cannot kill {process}: {error}"));
}

/// Each thread has its own list of children; a thread that has just ended has none.
fn children_of(process: u32) -> Vec<u32> {
    let tasks = format!("/proc/{process}/task");
    let tasks = fs::read_dir(&tasks).unwrap_or_else(|error| panic!("cannot read {tasks}: {error}"));
    let mut children = Vec::new();
    for task in tasks {
        let task = task.expect("a directory of /proc can be read to its end");
        match fs::read_to_string(task.path().join("children")) {
            Ok(text) => children.extend(text.split_whitespace().filter_map(|word| word.parse::<u32>().ok())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {}
            Err(error) => panic!("cannot read the children of {process}: {error}"),
        }
    }
    children
}

/// Whether a process is running, and not a zombie.
pub fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Process, Scratch};
    use std::process::Command;
    use std::time::Duration;

    #[test]
    fn a_family_has_children_and_grandchildren() {
        let scratch = Scratch::new();
        let mut command = Command::new("sh");
        command.args(["-c", "setpriv --pdeathsig KILL sleep 60 & echo here; wait"]);
        let mut process = Process::start(&scratch, "family", &command);
        process.wait_for_line("that the child is there", Duration::from_secs(30), |line| line == "here");
        assert_eq!(family_of(process.id()).len(), 2);
        assert!(open_descriptors(process.id()) >= 6, "each has its three standard streams");
        process.kill();
    }
}
