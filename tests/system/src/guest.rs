//! QEMU guests, booted by `scripts/run-guest` from what `scripts/build-guest` made.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::build;
use crate::process::Process;
use crate::qmp::Qmp;
use crate::scratch::Scratch;
use crate::transcript::Transcript;

/// Emulated guests run at once, in one test program; each takes a whole processor of the two that CI has. Test
/// programs run one after another.
const GUESTS_AT_ONCE: usize = 2;

/// From starting QEMU to its first connection.
const QEMU_STARTS_WITHIN: Duration = Duration::from_secs(60);
/// From QEMU's start to the guest's READY: 2 to 4 s emulated on an idle machine.
const BOOT_DEADLINE: Duration = Duration::from_secs(120);
/// One command in the guest that is not given a deadline of its own.
const COMMAND_DEADLINE: Duration = Duration::from_secs(180);
/// From the end of the session to the end of QEMU, with every file system unmounted.
const POWER_OFF_DEADLINE: Duration = Duration::from_secs(120);

/// A running guest.
pub struct Guest {
    session: Session,
    qmp: Qmp,
    boot_time: Duration,
    // Fields drop in this order: QEMU is gone before the place it took is free.
    qemu: Process,
    _place: Place,
}

impl Guest {
    /// Boots a guest whose disks are the NBD servers on `sockets`: the first is `/dev/vda`. Returns when it is ready
    /// for commands. Waits for a place first when too many guests run.
    #[track_caller]
    pub fn boot(scratch: &Scratch, name: &str, sockets: &[&Path]) -> Self {
        Self::boot_with(scratch, name, "--disk", sockets)
    }

    /// As [`Guest::boot`], of vhost-user servers, which share the guest's memory.
    #[track_caller]
    pub fn boot_vhost_user(scratch: &Scratch, name: &str, sockets: &[&Path]) -> Self {
        Self::boot_with(scratch, name, "--vhost-user", sockets)
    }

    #[track_caller]
    fn boot_with(scratch: &Scratch, name: &str, option: &str, sockets: &[&Path]) -> Self {
        let place = Place::take();
        let (session_socket, qmp_socket) = (listen(scratch, name, "session"), listen(scratch, name, "qmp"));
        let mut command = Command::new(build::script("run-guest"));
        command.env("STRONGROOM_GUEST_DIR", build::guest_directory());
        command.arg("--serial").arg(&session_socket.1).arg("--qmp").arg(&qmp_socket.1);
        command.arg("--console").arg(scratch.path(&format!("{name}.console")));
        for socket in sockets {
            command.arg(option).arg(socket);
        }
        let started = Instant::now();
        let qemu = Process::start(scratch, &format!("qemu-{name}"), &command);
        let session = accept(&session_socket.0, &qemu);
        let qmp = Qmp::negotiate(accept(&qmp_socket.0, &qemu), &scratch.path(&format!("{name}.qmp")));
        let mut session = Session::new(session, &scratch.path(&format!("{name}.session")));
        session.wait_until_ready();
        Self { session, qmp, boot_time: started.elapsed(), qemu, _place: place }
    }

    /// From starting QEMU to the guest being ready for commands.
    pub fn boot_time(&self) -> Duration {
        self.boot_time
    }

    /// Runs a line of shell, and returns its output. A status other than 0 fails the test.
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

    /// Starts a line of shell, and returns while it runs.
    pub fn start(&mut self, command: &str) -> RunningCommand<'_> {
        let tag = self.session.begin(command);
        RunningCommand { session: &mut self.session, command: command.to_owned(), tag }
    }

    /// The QMP session with this guest's QEMU.
    pub fn qmp(&mut self) -> &mut Qmp {
        &mut self.qmp
    }

    /// Ends the session: the guest unmounts, flushes and powers off. Returns when QEMU has ended, successfully.
    #[track_caller]
    pub fn power_off(mut self) {
        self.session.begin("exit");
        let status = self.qemu.wait(POWER_OFF_DEADLINE);
        assert!(status.success(), "QEMU: {status}; its stderr is in {}", self.qemu.stderr_log().display());
    }

    /// Cuts the guest's power: it has no chance to flush anything.
    #[track_caller]
    pub fn cut_power(self) {
        self.qemu.kill();
    }
}

/// What a command in the guest left.
#[derive(Debug)]
pub struct Output {
    /// Its exit status.
    pub status: u8,
    /// Its stdout and stderr, together.
    pub text: String,
}

/// A command that runs in the guest.
#[must_use = "the guest's next command waits for this one's end"]
pub struct RunningCommand<'guest> {
    session: &'guest mut Session,
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

    /// Sends a line to the command's stdin, if that was taken from the session (`< /dev/ttyS0`).
    pub fn send_line(&mut self, line: &str) {
        self.session.send(line);
    }

    /// Waits for its end. The output is what came since the last line that was waited for.
    #[track_caller]
    pub fn finish(self, deadline: Duration) -> Output {
        let Self { session, command, tag } = self;
        let end_marker = format!("\n{tag} ").into_bytes();
        session.received.wait_for(&format!("the guest has done: {command}"), deadline, |bytes| {
            let output_length = bytes.windows(end_marker.len()).position(|window| window == end_marker)?;
            let status_start = output_length + end_marker.len();
            let status_length = bytes[status_start..].iter().position(|byte| *byte == b'\n')?;
            let status = String::from_utf8_lossy(&bytes[status_start..status_start + status_length]);
            let status =
                status.parse().unwrap_or_else(|_| panic!("the guest answered the status {status:?}"));
            let text = String::from_utf8_lossy(&bytes[..output_length]).into_owned();
            Some((Output { status, text }, status_start + status_length + 1))
        })
    }
}

/// The line protocol that `scripts/guest/session` describes.
struct Session {
    stream: UnixStream,
    received: Transcript,
    commands: u64,
}

impl Session {
    fn new(stream: UnixStream, log: &Path) -> Self {
        let reader = stream.try_clone().expect("a socket can be cloned");
        Self { stream, received: Transcript::of(reader, log), commands: 0 }
    }

    #[track_caller]
    fn wait_until_ready(&mut self) {
        let is_ready = |line: &str| line.starts_with("STRONGROOM-GUEST READY");
        self.received.wait_for_line("the guest was ready", BOOT_DEADLINE, is_ready);
    }

    /// Sends a command under a tag that no output contains by chance, and returns the tag.
    fn begin(&mut self, command: &str) -> String {
        assert!(!command.contains('\n'), "the guest takes one line at a time: {command}");
        self.commands += 1;
        let tag = format!("=={}-{}==", std::process::id(), self.commands);
        self.send(&format!("{tag} {command}"));
        tag
    }

    fn send(&mut self, line: &str) {
        writeln!(self.stream, "{line}").unwrap_or_else(|error| panic!("the guest has hung up: {error}"));
    }
}

/// A guest's place among those that may run at once.
struct Place;

static PLACES_TAKEN: Mutex<usize> = Mutex::new(0);
static PLACE_FREED: Condvar = Condvar::new();

impl Place {
    fn take() -> Self {
        let taken = PLACES_TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        // Without a deadline: whoever has a place is bound by deadlines, and frees it even by failing.
        let mut taken = PLACE_FREED
            .wait_while(taken, |taken| *taken >= GUESTS_AT_ONCE)
            .unwrap_or_else(PoisonError::into_inner);
        *taken += 1;
        Self
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *PLACES_TAKEN.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        PLACE_FREED.notify_one();
    }
}

/// Listens before QEMU starts, and QEMU connects: so nobody has to find out when the other is there.
fn listen(scratch: &Scratch, name: &str, purpose: &str) -> (UnixListener, std::path::PathBuf) {
    let path = (1..)
        .map(|boot| scratch.path(&format!("{name}-{boot}.{purpose}.sock")))
        .find(|path| !path.exists())
        .expect("numbers do not run out");
    let listener = UnixListener::bind(&path)
        .unwrap_or_else(|error| panic!("cannot listen on {}: {error}", path.display()));
    (listener, path)
}

#[track_caller]
fn accept(listener: &UnixListener, qemu: &Process) -> UnixStream {
    let timeout = Timespec { tv_sec: QEMU_STARTS_WITHIN.as_secs().cast_signed(), tv_nsec: 0 };
    let ready =
        poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&timeout)).expect("a socket can be polled");
    assert!(ready == 1, "QEMU has not connected; its stderr is in {}", qemu.stderr_log().display());
    listener.accept().expect("a connection waits").0
}
