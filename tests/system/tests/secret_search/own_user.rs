//! A program's memory is closed to other processes of the program's own user. Root reads
//! everything, so where root runs the test the program is run, and looked at, by somebody else.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;

use rustix::process::Signal;
use strongroom_system_tests::{CommandLine, Process};

use super::DEADLINE;

/// Whom root's programs run as.
const NOBODY: u32 = 65_534;

/// What a shell begins a command with that runs as the program's user, and has `./strongroom`. All
/// that is in the test's directory becomes that user's.
pub fn own_user(strongroom: &CommandLine<'_>) -> String {
    // The test's own copy: a build directory may be closed to others. Another process writes it: a
    // program that another test starts meanwhile would hold it open for writing, and it could not
    // be run.
    strongroom.peer("cp", &["--", strongroom.program().to_str().unwrap(), "strongroom"]);
    fs::set_permissions(strongroom.path("strongroom"), PermissionsExt::from_mode(0o755)).unwrap();
    if !rustix::process::geteuid().is_root() {
        return String::new();
    }
    strongroom.peer("chown", &["-R", &format!("{NOBODY}:{NOBODY}"), "."]);
    format!("setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups --pdeathsig KILL --")
}

/// Whether a process of that user reads the memory of another.
pub fn can_read(strongroom: &CommandLine<'_>, as_user: &str, process: u32) -> bool {
    strongroom.run_shell(&format!("exec {as_user} head -c 0 /proc/{process}/mem")).status.success()
}

/// Fails the test if the memory of a process can be read by its own user, or would be dumped.
#[track_caller]
pub fn assert_closed(strongroom: &CommandLine<'_>, as_user: &str, process: u32) {
    assert!(!can_read(strongroom, as_user, process), "the memory of {process} can be read");
    let limits = fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert!(core.split_whitespace().skip(4).take(2).all(|limit| ["0", "1"].contains(&limit)), "{core}");
}

/// Has it abort, which dumps a core where that is allowed; fails the test if it does.
#[track_caller]
pub fn assert_aborts_without_core(mut process: Process) {
    process.signal(Signal::ABORT);
    let status = process.wait(DEADLINE);
    assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()));
    assert!(!status.core_dumped());
}
