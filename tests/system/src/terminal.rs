//! A user at a terminal.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Signal, pidfd_send_signal};

use crate::build;
use crate::process::{pidfd_of, wait_for_end};
use crate::scratch::Scratch;
use crate::transcript::Transcript;

/// Timeout of a question.
const ASKS_WITHIN: Duration = Duration::from_secs(60);
/// Timeout of a program's end after its last answer.
const ENDS_WITHIN: Duration = Duration::from_secs(120);

/// A shell script in a terminal of its own (made by `script(1)`), with a user who reads and types.
/// Killed on drop.
pub struct Terminal {
    child: Child,
    pidfd: OwnedFd,
    keys: ChildStdin,
    screen: Transcript,
}

impl Terminal {
    /// Starts a script in a directory. `$STRONGROOM` is the program.
    #[track_caller]
    pub fn start(scratch: &Scratch, directory: &Path, name: &str, script: &str) -> Self {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "script", "--quiet", "--return", "--flush"]);
        // Tabs, line ends and colours are kept as they are.
        command.args(["--echo", "never", "--command", script, "/dev/null"]);
        command.current_dir(directory).env("STRONGROOM", build::program()).env("TERM", "dumb");
        command.env("SHELL", "/bin/sh").env_remove("STRONGROOM_LOG");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start script(1): {error}"));
        let keys = child.stdin.take().expect("stdin is piped");
        let screen = child.stdout.take().expect("stdout is piped");
        let screen = Transcript::of(screen, &scratch.path(&format!("{name}.screen")));
        let pidfd = pidfd_of(&child);
        Self { child, pidfd, keys, screen }
    }

    /// Waits until the screen shows a text. Returns the output since the last wait, up to and
    /// including it.
    #[track_caller]
    pub fn shows(&mut self, text: &str) -> String {
        self.screen.wait_for(&format!("the terminal showed {text:?}"), ASKS_WITHIN, |bytes| {
            let end = bytes.windows(text.len()).position(|part| part == text.as_bytes())? + text.len();
            Some((String::from_utf8_lossy(&bytes[..end]).into_owned(), end))
        })
    }

    /// Presses keys.
    #[track_caller]
    pub fn types(&mut self, keys: &str) {
        let typed = self.keys.write_all(keys.as_bytes()).and_then(|()| self.keys.flush());
        typed.unwrap_or_else(|error| panic!("the terminal is gone: {error}"));
    }

    /// Waits for the end of the script. Returns its status and the output since the last wait.
    #[track_caller]
    pub fn ends(mut self) -> (ExitStatus, String) {
        let shown = self.screen.wait_for_end("the terminal was left", ENDS_WITHIN);
        let status = wait_for_end(&mut self.child, &self.pidfd, ENDS_WITHIN);
        (status.expect("script(1) ends when its terminal was left"), shown)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The terminal ends with it, which hangs up its processes. This fails only if it has
        // already ended.
        let _ = pidfd_send_signal(&self.pidfd, Signal::TERM);
        if wait_for_end(&mut self.child, &self.pidfd, ENDS_WITHIN).is_none() {
            eprintln!("script(1), process {}, does not end", self.child.id());
        }
    }
}
