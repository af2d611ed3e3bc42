//! kill -9 at every step: a test runs itself in a separate process, which is killed at a given
//! step.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Signal, getpid, kill_process};

const PLACE: &str = "STRONGROOM_TEST_KILL_PLACE";
const KILL_AT: &str = "STRONGROOM_TEST_KILL_AT";

/// Counts down to the step at which this process is killed.
pub(crate) struct Countdown(Option<u64>);

impl Countdown {
    /// The countdown of a process that may be killed.
    pub(crate) fn of_this_process() -> Self {
        Self(std::env::var(KILL_AT).ok().map(|at| at.parse().unwrap()))
    }

    /// The countdown of a process that is not killed.
    pub(crate) fn never() -> Self {
        Self(None)
    }

    pub(crate) fn step(&mut self) {
        match &mut self.0 {
            None => {}
            Some(0) => kill_process(getpid(), Signal::KILL).unwrap(),
            Some(left) => *left -= 1,
        }
    }
}

/// Runs `test`, by its path in this crate, in a separate process that works in `place`. Returns
/// whether it was killed.
pub(crate) fn is_killed(test: &str, place: &Path, kill_at: Option<u64>) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(PLACE, place).env_remove(KILL_AT);
    if let Some(at) = kill_at {
        command.env(KILL_AT, at.to_string());
    }
    let output = command.output().unwrap();
    if output.status.signal() == Some(Signal::KILL.as_raw()) {
        return true;
    }
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
    false
}

/// The directory of this process, if it is one that may be killed.
pub(crate) fn place() -> Option<PathBuf> {
    std::env::var_os(PLACE).map(PathBuf::from)
}
