//! The program under test, called as a user calls it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::build;
use crate::process::{Finished, Process, run, run_until};
use crate::scratch::Scratch;

/// Timeout of a command that copies a few hundred megabytes on a loaded machine.
const COMMAND_DEADLINE: Duration = Duration::from_secs(300);
/// Timeout from the start of the server to the line that says that it is ready.
const EXPOSE_DEADLINE: Duration = Duration::from_secs(60);

/// The program under test, in the directory of the test: paths, also in messages, are relative to
/// it.
///
/// It runs in a session of its own without a terminal, so it cannot ask the person who runs the
/// tests.
pub struct CommandLine<'test> {
    scratch: &'test Scratch,
}

impl<'test> CommandLine<'test> {
    /// Runs commands in this directory.
    pub fn new(scratch: &'test Scratch) -> Self {
        Self { scratch }
    }

    /// Runs `strongroom ARGUMENTS`.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> Finished {
        run(self.scratch, self.command("setsid").arg(build::program()).args(arguments), COMMAND_DEADLINE)
    }

    /// Runs `strongroom ARGUMENTS --passphrase-fd 3`, with the content of a file of the test on
    /// that descriptor.
    #[track_caller]
    pub fn run_with_passphrase(&self, file: &str, arguments: &[&str]) -> Finished {
        let mut command = self.command("setsid");
        command.args(["sh", "-c", r#"exec 3<"$0" && exec "$@" --passphrase-fd 3"#, file]);
        run(self.scratch, command.arg(build::program()).args(arguments), COMMAND_DEADLINE)
    }

    /// Runs `strongroom --json ARGUMENTS`, which must succeed. Returns its answer.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let answer = self.run(&[&["--json"], arguments].concat()).success();
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error} in the answer: {answer}"))
    }

    /// Runs `strongroom ARGUMENTS`, which must fail with this status and exactly this message.
    #[track_caller]
    pub fn is_refused(&self, arguments: &[&str], status: i32, message: &str) {
        assert_refused(&self.run(arguments), status, message);
    }

    /// Runs a shell script as root of a mount namespace of its own, whose mounts end with it.
    /// Without root, it is root of a user namespace. `$STRONGROOM` is the program.
    #[track_caller]
    pub fn run_with_own_mounts(&self, script: &str) -> Finished {
        let mut command = self.command("setsid");
        command.args(["unshare", "--mount", "--propagation", "private"]);
        if !rustix::process::geteuid().is_root() {
            command.arg("--map-root-user");
        }
        command.args(["sh", "-euc", script]).env("STRONGROOM", build::program());
        run(self.scratch, &command, COMMAND_DEADLINE)
    }

    /// Starts `strongroom ARGUMENTS` and leaves it running; its stderr is merged into stdout.
    #[track_caller]
    pub fn start(&self, name: &str, arguments: &[&str]) -> Process {
        let mut command = self.command("setsid");
        command.args(["sh", "-c", r#"exec "$0" "$@" 2>&1"#]).arg(build::program()).args(arguments);
        Process::start(self.scratch, name, &command)
    }

    /// Runs a shell script. `$STRONGROOM` is the program.
    #[track_caller]
    pub fn run_shell(&self, script: &str) -> Finished {
        run(self.scratch, &self.shell(script), COMMAND_DEADLINE)
    }

    /// Runs a shell script, which must finally `exec` the program, and kills it (SIGKILL) when
    /// `is_time` returns true; the result is then `None`. The program is gone when this returns,
    /// and its locks are released.
    #[track_caller]
    pub fn run_shell_until(&self, script: &str, is_time: impl FnMut() -> bool) -> Option<Finished> {
        run_until(self.scratch, &self.shell(script), is_time).ok()
    }

    /// Starts a shell script and leaves it running. `$STRONGROOM` is the program.
    #[track_caller]
    pub fn start_shell(&self, name: &str, script: &str) -> Process {
        Process::start(self.scratch, name, &self.shell(script))
    }

    /// The path of the program.
    pub fn program(&self) -> &'static Path {
        build::program()
    }

    /// Starts `strongroom volume expose VOLUME --nbd unix:vm.sock ARGUMENTS`, and waits until it is
    /// ready. Returns the server and its URI.
    #[track_caller]
    pub fn expose(&self, volume: &str, arguments: &[&str]) -> (Process, String) {
        let mut server = self
            .start("expose", &[&["volume", "expose", volume, "--nbd", "unix:vm.sock"], arguments].concat());
        let uri = server.wait_for_line("its NBD URI", EXPOSE_DEADLINE, |line| line.starts_with("nbd+unix:"));
        (server, uri)
    }

    /// Runs `strongroom volume expose VOLUME --nbd unix:vm.sock ARGUMENTS` to its end, for an
    /// exposure that is refused.
    #[track_caller]
    pub fn try_expose(&self, volume: &str, arguments: &[&str]) -> Finished {
        self.run(&[&["volume", "expose", volume, "--nbd", "unix:vm.sock"], arguments].concat())
    }

    /// As [`try_expose`](Self::try_expose), which must be refused with exactly this message.
    #[track_caller]
    pub fn expose_is_refused(&self, volume: &str, arguments: &[&str], message: &str) {
        assert_refused(&self.try_expose(volume, arguments), 1, message);
    }

    /// Runs another program in the directory of the test; it must succeed.
    #[track_caller]
    pub fn peer(&self, program: &str, arguments: &[&str]) -> String {
        run(self.scratch, self.command(program).args(arguments), COMMAND_DEADLINE).success()
    }

    /// The absolute path of a file of the test.
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.path(name)
    }

    /// Writes a key file that only its owner can read.
    pub fn write_key_file(&self, name: &str, key: &[u8]) {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(self.path(name), key).expect("the key file can be written");
        std::fs::set_permissions(self.path(name), PermissionsExt::from_mode(0o600))
            .expect("the key file is ours");
    }

    fn shell(&self, script: &str) -> Command {
        let mut command = self.command("setsid");
        command.args(["sh", "-euc", script]).env("STRONGROOM", build::program());
        command
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.scratch.path(".")).env_remove("STRONGROOM_LOG");
        command
    }
}

/// Fails the test unless the program refused with this status and exactly this message.
#[track_caller]
pub fn assert_refused(finished: &Finished, status: i32, message: &str) {
    assert_eq!(finished.stderr.trim_end(), format!("error: {message}"));
    assert_eq!(finished.status.code(), Some(status), "{}", finished.stderr);
    assert_eq!(finished.stdout, "", "a refusal has no answer");
}
