//! Common parts of the tests of full and dying disks: file systems of their own, and a volume's
//! reports about itself.

#[cfg(feature = "full")]
pub mod dying;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use strongroom_system_tests::{Finished, Process, Scratch, Volume, run};

/// Timeout of anything that takes a moment on an idle machine.
pub const DEADLINE: Duration = Duration::from_secs(90);

/// A mount namespace of its own. A user who is not root is root of a user namespace in it, which is
/// enough for tmpfs.
pub struct Mounts<'test> {
    scratch: &'test Scratch,
    holder: Process,
}

impl<'test> Mounts<'test> {
    #[track_caller]
    pub fn new(scratch: &'test Scratch) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private"]);
        if !rustix::process::geteuid().is_root() {
            command.arg("--map-root-user");
        }
        command.args(["sh", "-c", "echo mounted; exec sleep 86400"]);
        let mut holder = Process::start(scratch, "mounts", &command);
        holder.wait_for_line("that it has its mounts", DEADLINE, |line| line == "mounted");
        Self { scratch, holder }
    }

    /// Runs a shell script in the namespace, as its root.
    #[track_caller]
    pub fn run(&self, script: &str) -> Finished {
        run(self.scratch, self.command().args(["sh", "-euc", script]), DEADLINE)
    }

    /// A command that runs in the namespace.
    pub fn command(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.holder.id())).arg("--mount");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--preserve-credentials"]);
        }
        command
    }

    /// The path outside the namespace for a path in it.
    pub fn outside(&self, path: &Path) -> PathBuf {
        let below = path.strip_prefix("/").expect("a path of the mounts starts at their root");
        Path::new("/proc").join(self.holder.id().to_string()).join("root").join(below)
    }

    /// Makes the future volume `name` be in a directory of the namespace.
    #[track_caller]
    pub fn place(&self, name: &str, directory: &Path) {
        let (link, target) = (self.scratch.path(&format!("{name}.ds")), self.outside(directory));
        symlink(&target, &link).unwrap_or_else(|error| panic!("cannot link {}: {error}", link.display()));
    }

    /// Mounts a tmpfs of this many MiB. Returns its path.
    #[track_caller]
    pub fn tmpfs(&self, name: &str, mib: u32) -> PathBuf {
        let place = self.scratch.make_directory(name);
        let mount = format!("mount -t tmpfs -o size={mib}M,mode=0700 tmpfs '{}'", place.display());
        self.run(&mount).success();
        place
    }

    /// Grows a tmpfs. Its present options are not repeated: its owner's id is shown as seen from
    /// outside, and is invalid in a user namespace.
    #[track_caller]
    pub fn resize_tmpfs(&self, place: &Path, mib: u32) {
        let place = place.display();
        self.run(&format!("mount --options-mode=ignore -o remount,size={mib}M tmpfs '{place}'")).success();
    }
}

/// The condition of an exposed volume in `volume info --json`.
#[track_caller]
pub fn condition(volume: &Volume<'_>) -> Value {
    let answer = volume.command("info", &["--json"]).success();
    let info: Value = serde_json::from_str(&answer).expect("the answer is JSON");
    info["exposure"]["condition"].clone()
}

/// Waits until the volume reports a state.
#[track_caller]
pub fn await_state(volume: &Volume<'_>, state: &str) -> Value {
    await_condition(volume, state, |condition| condition["state"] == state)
}

/// Waits until a volume's condition satisfies `is_it`.
#[track_caller]
pub fn await_condition(volume: &Volume<'_>, awaited: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    let until = Instant::now() + DEADLINE;
    loop {
        let condition = condition(volume);
        if is_it(&condition) {
            return condition;
        }
        assert!(Instant::now() < until, "never {awaited}: {condition}");
    }
}

/// The stderr of a process so far.
#[track_caller]
pub fn log_of(process: &Process) -> String {
    let path = process.stderr_log();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

/// Waits until a process has written this to stderr.
#[track_caller]
pub fn await_log(process: &Process, text: &str) {
    await_any_log(process, &[text]);
}

/// Waits until a process has written one of these to stderr. Returns the line.
#[track_caller]
pub fn await_any_log(process: &Process, texts: &[&str]) -> String {
    let until = Instant::now() + DEADLINE;
    loop {
        let log = log_of(process);
        let line = log.lines().find(|line| texts.iter().any(|text| line.contains(text)));
        if let Some(line) = line {
            return line.to_owned();
        }
        assert!(Instant::now() < until, "never said any of {texts:?}: {log}");
        std::thread::yield_now();
    }
}
