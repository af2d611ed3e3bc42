//! A program's memory is closed to other processes of the program's own user. Root can read
//! everything, so if root runs the test, another user runs the program and looks at it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;

use rustix::process::Signal;
use strongroom_system_tests::{CommandLine, Process};

use super::DEADLINE;

/// The user that root's programs run as.
const NOBODY: u32 = 65_534;

/// The beginning of a shell command that runs as the program's user, with the program as
/// `./strongroom`. The test's directory is given to that user.
pub fn own_user(strongroom: &CommandLine<'_>) -> String {
    // A copy of the test's own: a build directory may be closed to others. Another process writes
    // it: otherwise a program that another test starts meanwhile would hold it open for writing,
    // and it could not be executed.
    strongroom.peer("cp", &["--", strongroom.program().to_str().unwrap(), "strongroom"]);
    fs::set_permissions(strongroom.path("strongroom"), PermissionsExt::from_mode(0o755)).unwrap();
    if !rustix::process::geteuid().is_root() {
        return String::new();
    }
    strongroom.peer("chown", &["-R", &format!("{NOBODY}:{NOBODY}"), "."]);
    format!("setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups --pdeathsig KILL --")
}

/// Whether a process of that user can read the memory of another.
pub fn can_read(strongroom: &CommandLine<'_>, as_user: &str, process: u32) -> bool {
    strongroom.run_shell(&format!("exec {as_user} head -c 0 /proc/{process}/mem")).status.success()
}

/// Fails the test if a process's own user can read its memory, or if it would be dumped.
#[track_caller]
pub fn assert_closed(strongroom: &CommandLine<'_>, as_user: &str, process: u32) {
    assert!(!can_read(strongroom, as_user, process), "the memory of {process} can be read");
    let limits = fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert!(core.split_whitespace().skip(4).take(2).all(|limit| ["0", "1"].contains(&limit)), "{core}");
}

/// Aborts it, which dumps core where that is allowed. Fails the test if it does.
#[track_caller]
pub fn assert_aborts_without_core(mut process: Process) {
    process.signal(Signal::ABORT);
    let status = process.wait(DEADLINE);
    assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()));
    assert!(!status.core_dumped());
}
