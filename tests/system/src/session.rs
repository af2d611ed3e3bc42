//! Runs commands in a guest, over its serial line.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::transcript::Transcript;

/// Timeout from QEMU's start to the guest's READY: 2 to 4 s emulated on an idle machine.
const BOOT_DEADLINE: Duration = Duration::from_secs(120);
/// The default timeout of a command in the guest.
const COMMAND_DEADLINE: Duration = Duration::from_secs(180);
/// How often a condition is checked, with a tenth of a second in between by the guest's clock.
const WAIT_TENTHS: u32 = 1200;

/// The tags of commands are unique even if a guest continues in another session.
static COMMANDS: AtomicU64 = AtomicU64::new(1);

/// The line protocol with one guest, as described in `scripts/guest/session`.
pub struct Session {
    stream: UnixStream,
    received: Transcript,
}

impl Session {
    pub(crate) fn new(stream: UnixStream, log: &Path) -> Self {
        let reader = stream.try_clone().expect("a socket can be cloned");
        Self { stream, received: Transcript::of(reader, log) }
    }

    #[track_caller]
    pub(crate) fn wait_until_ready(&mut self) {
        // The firmware's output comes first on the same line.
        let is_ready = |line: &str| line.contains("STRONGROOM-GUEST READY");
        self.received.wait_for_line("the guest was ready", BOOT_DEADLINE, is_ready);
    }

    /// Runs a line of shell, which must succeed. Returns its output.
    #[track_caller]
    pub fn run(&mut self, command: &str) -> String {
        let output = self.try_run(command, COMMAND_DEADLINE);
        assert_eq!(output.status, 0, "in the guest: {command}\n{}", output.text);
        output.text
    }

    /// Runs a line of shell, whatever its status.
    #[track_caller]
    pub fn try_run(&mut self, command: &str, deadline: Duration) -> Output {
        self.start(command).finish(deadline)
    }

    /// Sends a line to a guest without a shell, and waits until it has answered with another one.
    #[track_caller]
    pub fn ask(&mut self, line: &str, answer: &str) {
        self.send(line);
        let answered = |line: &str| line.trim() == answer;
        self.received.wait_for_line(&format!("the guest answered {answer}"), COMMAND_DEADLINE, answered);
    }

    /// Waits in the guest until a condition of its shell holds.
    #[track_caller]
    pub fn wait_until(&mut self, condition: &str) {
        let tries = WAIT_TENTHS;
        let loop_with_deadline = format!(
            "n=0; until {condition}; do n=$((n+1)); [ $n -le {tries} ] || break; usleep 100000; done; [ $n -le {tries} ]"
        );
        let output = self.try_run(&loop_with_deadline, COMMAND_DEADLINE);
        assert_eq!(output.status, 0, "in the guest, never: {condition}\n{}", output.text);
    }

    /// Starts a line of shell without waiting for its end.
    pub fn start(&mut self, command: &str) -> RunningCommand<'_> {
        let tag = self.begin(command);
        RunningCommand { session: self, command: command.to_owned(), tag }
    }

    /// Sends a command with a tag that no output contains by chance. Returns the tag.
    pub(crate) fn begin(&mut self, command: &str) -> String {
        assert!(!command.contains('\n'), "the guest takes one line at a time: {command}");
        let number = COMMANDS.fetch_add(1, Ordering::Relaxed);
        let tag = format!("=={}-{number}==", std::process::id());
        self.send(&format!("{tag} {command}"));
        tag
    }

    fn send(&mut self, line: &str) {
        writeln!(self.stream, "{line}").unwrap_or_else(|error| panic!("the guest has hung up: {error}"));
    }
}

/// The result of a command in the guest.
#[derive(Debug)]
pub struct Output {
    /// Its exit status.
    pub status: u8,
    /// Its stdout and stderr, together.
    pub text: String,
}

/// A running command in the guest.
#[must_use = "the guest's next command waits for this one's end"]
pub struct RunningCommand<'session> {
    session: &'session mut Session,
    command: String,
    tag: String,
}

impl RunningCommand<'_> {
    /// Waits for a line of its output that `accept` accepts, and returns it.
    #[track_caller]
    pub fn wait_for_line(
        &mut self,
        awaited: &str,
        deadline: Duration,
        accept: impl Fn(&str) -> bool,
    ) -> String {
        self.session.received.wait_for_line(awaited, deadline, accept)
    }

    /// Sends a line to the command's stdin, if it reads the session's (`< /dev/ttyS0`).
    pub fn send_line(&mut self, line: &str) {
        self.session.send(line);
    }

    /// Waits for its end. Returns the output since the last line that was waited for.
    #[track_caller]
    pub fn finish(self, deadline: Duration) -> Output {
        let Self { session, command, tag } = self;
        let end_marker = format!("{tag} ").into_bytes();
        session.received.wait_for(&format!("the guest has done: {command}"), deadline, |bytes| {
            // The line feed before the marker is the protocol's. A serial port that moves to
            // another QEMU can lose one character.
            let marker_start = bytes.windows(end_marker.len()).position(|window| window == end_marker)?;
            let output_length = marker_start.saturating_sub(1);
            let status_start = marker_start + end_marker.len();
            let status_length = bytes[status_start..].iter().position(|byte| *byte == b'\n')?;
            let status = String::from_utf8_lossy(&bytes[status_start..status_start + status_length]);
            let status =
                status.parse().unwrap_or_else(|_| panic!("the guest answered the status {status:?}"));
            let text = String::from_utf8_lossy(&bytes[..output_length]).into_owned();
            Some((Output { status, text }, status_start + status_length + 1))
        })
    }
}
