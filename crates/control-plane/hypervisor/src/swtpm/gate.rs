//! The gate of a TPM: it holds answers back until the states that they rest on are recorded.
//!
//! swtpm writes its state into its directory before it answers a command of the guest, and nobody
//! has recorded that state yet. So a process of its own, the *gate*, is between QEMU and swtpm:
//!
//! ```text
//! QEMU                       gate                         swtpm
//!   control     <-->           as it is        <-->         control
//!   commands     -->           as they are      -->         writes its state, if it is a new one,
//!   answers      <--           once recorded    <--         and answers
//!                   a new state |  ^ it is recorded
//!                               v  |
//!                            supervisor
//! ```
//!
//! QEMU sends the socket of the guest's commands over the control channel. The gate keeps that
//! socket, and sends swtpm one of its own. It reads neither commands nor answers: before it passes
//! on a byte of swtpm, it looks whether the state was replaced (inotify), which swtpm has done by
//! then if it does it at all.
//!
//! The gate outlives supervisors, as QEMU and swtpm do. Without a supervisor, commands that change
//! no state are answered, and others when there is one again. The gate ends with QEMU or swtpm, and
//! they lose each other when it is killed.

use std::ffi::CStr;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::path::Arg;
use strongroom_confine::deny_to_tpm_gate;

use super::STATE_FILE;
use super::states::{NEW_STATE, RECORDED};
use crate::launch::GateFiles;

/// The size of a read: more than the longest message of QEMU or swtpm, whose buffers have 4 KiB.
const BUFFER_BYTES: usize = 64 << 10;
/// Room for some events of the watch, with the longest names.
const EVENTS_BYTES: usize = 4096;

/// Watches the directory of a swtpm that has not started.
pub(super) fn watch(state: impl Arg) -> Result<OwnedFd, Errno> {
    let changes = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    // swtpm renames a new file over the former one.
    inotify::add_watch(&changes, state, WatchFlags::MOVED_TO | WatchFlags::CLOSE_WRITE)?;
    Ok(changes)
}

/// Passes on what QEMU and swtpm send each other, until one of them ends.
pub(crate) fn run(files: GateFiles) -> io::Result<()> {
    // The name in process lists.
    let _ = rustix::thread::set_name(c"strongroom-tpm");
    let (answers, commands) = UnixStream::pair()?;
    let GateFiles { qemu, swtpm, changes, supervisors } = files;
    let mut gate = Gate {
        listener: Some(qemu),
        qemu: None,
        swtpm,
        guest: None,
        answers,
        commands: Some(commands),
        changes,
        supervisors,
        supervisor: None,
        states: States::default(),
    };
    deny_to_tpm_gate().map_err(io::Error::other)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    while gate.wait_and_pass_on(&mut buffer)? {}
    Ok(())
}

struct Gate {
    /// Where QEMU connects, until it has.
    listener: Option<UnixListener>,
    /// QEMU's control channel.
    qemu: Option<UnixStream>,
    /// swtpm's control channel.
    swtpm: UnixStream,
    /// QEMU's socket of the guest's commands and their answers.
    guest: Option<UnixStream>,
    /// The socket that swtpm has in its place.
    answers: UnixStream,
    /// Its other end, until swtpm has it.
    commands: Option<UnixStream>,
    changes: OwnedFd,
    supervisors: UnixListener,
    supervisor: Option<UnixStream>,
    states: States,
}

/// What the gate has to attend to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ready {
    Connection,
    FromQemu,
    FromSwtpm,
    Command,
    Answer,
    State,
    NewSupervisor,
    FromSupervisor,
}

impl Gate {
    /// Returns `false` when QEMU or swtpm has ended.
    fn wait_and_pass_on(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        for ready in self.ready(None)? {
            if !self.attend(ready, buffer)? {
                return Ok(false);
            }
        }
        self.tell();
        Ok(true)
    }

    /// Waits until something is ready, or for this long.
    fn ready(&self, within: Option<&Timespec>) -> io::Result<Vec<Ready>> {
        let answers = self.open_for_answers().then_some(self.answers.as_fd());
        let watched: Vec<(Ready, BorrowedFd<'_>)> = [
            (Ready::Connection, self.listener.as_ref().map(AsFd::as_fd)),
            (Ready::FromQemu, self.qemu.as_ref().map(AsFd::as_fd)),
            (Ready::FromSwtpm, Some(self.swtpm.as_fd())),
            (Ready::Command, self.guest.as_ref().map(AsFd::as_fd)),
            (Ready::Answer, answers),
            (Ready::State, Some(self.changes.as_fd())),
            (Ready::NewSupervisor, Some(self.supervisors.as_fd())),
            (Ready::FromSupervisor, self.supervisor.as_ref().map(AsFd::as_fd)),
        ]
        .into_iter()
        .filter_map(|(ready, file)| Some((ready, file?)))
        .collect();
        let mut polled: Vec<_> = watched.iter().map(|(_, file)| PollFd::new(file, PollFlags::IN)).collect();
        match poll(&mut polled, within) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(errno) => return Err(errno.into()),
        }
        let seen = watched.iter().zip(&polled).filter(|(_, polled)| !polled.revents().is_empty());
        Ok(seen.map(|((ready, _), _)| *ready).collect())
    }

    /// Whether an answer may pass: swtpm has the guest's socket, and each state that was seen is
    /// recorded.
    fn open_for_answers(&self) -> bool {
        self.guest.is_some() && self.states.are_recorded()
    }

    fn attend(&mut self, ready: Ready, buffer: &mut [u8]) -> io::Result<bool> {
        match ready {
            Ready::Connection => {
                if let Some(listener) = self.listener.take() {
                    self.qemu = Some(listener.accept()?.0);
                }
            }
            Ready::FromQemu => return self.pass_control(buffer),
            Ready::FromSwtpm => {
                let count = (&self.swtpm).read(buffer)?;
                let Some(mut qemu) = self.qemu.as_ref().filter(|_| count > 0) else { return Ok(false) };
                qemu.write_all(&buffer[..count])?;
            }
            Ready::Command => {
                let Some(mut guest) = self.guest.as_ref() else { return Ok(true) };
                let count = guest.read(buffer)?;
                (&self.answers).write_all(&buffer[..count])?;
                return Ok(count > 0);
            }
            Ready::Answer => {
                // A state that swtpm has written for this answer is seen here at the latest.
                self.look_for_states()?;
                let Some(mut guest) = self.guest.as_ref().filter(|_| self.states.are_recorded()) else {
                    return Ok(true);
                };
                let count = (&self.answers).read(buffer)?;
                guest.write_all(&buffer[..count])?;
                return Ok(count > 0);
            }
            Ready::State => self.look_for_states()?,
            Ready::NewSupervisor => {
                // The former one has died.
                let supervisor = self.supervisors.accept()?.0;
                self.hang_up();
                self.supervisor = Some(supervisor);
            }
            Ready::FromSupervisor => {
                let said = self.supervisor.as_ref().map(|mut supervisor| {
                    let mut word = [0];
                    supervisor.read(&mut word).map(|count| (count, word))
                });
                match said {
                    Some(Ok((1, [RECORDED]))) if self.states.recorded() => {}
                    // It has ended, or says what no supervisor says.
                    _ => self.hang_up(),
                }
            }
        }
        Ok(true)
    }

    /// Passes on a message of QEMU to swtpm, with the gate's socket in the place of QEMU's.
    fn pass_control(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        let Some(qemu) = &self.qemu else { return Ok(true) };
        let received = strongroom_wire::receive(qemu, buffer, 1)?;
        let mut message = &buffer[..received.bytes];
        let mut files = received.files.into_iter();
        if let Some(guest) = files.next() {
            let commands = self.commands.take();
            let commands = commands.ok_or_else(|| io::Error::other("QEMU sends a second socket"))?;
            let sent = strongroom_wire::send(&self.swtpm, message, &[commands.as_fd()], SendFlags::empty())?;
            message = &message[sent..];
            self.guest = Some(guest.into());
        }
        (&self.swtpm).write_all(message)?;
        Ok(received.bytes > 0)
    }

    /// Counts the states that swtpm has written since the last look.
    fn look_for_states(&mut self) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); EVENTS_BYTES];
        let mut events = Reader::new(&self.changes, &mut buffer);
        loop {
            match events.next() {
                Ok(event) => {
                    let is_state = event.file_name().map(CStr::to_bytes) == Some(STATE_FILE.as_bytes());
                    // Where the kernel had no room for events, one may have been of the state.
                    if is_state || event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                        self.states.seen += 1;
                    }
                }
                Err(Errno::WOULDBLOCK) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Tells the supervisor of states that it does not know.
    fn tell(&mut self) {
        let Some(mut supervisor) = self.supervisor.as_ref() else { return };
        if !self.states.are_to_be_told() {
            return;
        }
        match supervisor.write_all(&[NEW_STATE]) {
            Ok(()) => self.states.told = Some(self.states.seen),
            Err(_) => self.hang_up(),
        }
    }

    fn hang_up(&mut self) {
        self.supervisor = None;
        self.states.told = None;
    }
}

/// The states that swtpm has written, as their numbers.
#[derive(Debug, Default)]
struct States {
    /// The last one that was seen.
    seen: u64,
    /// The last one when the supervisor was told, until it answers.
    told: Option<u64>,
    /// The last one that is recorded.
    recorded: u64,
}

impl States {
    fn are_recorded(&self) -> bool {
        self.recorded == self.seen
    }

    fn are_to_be_told(&self) -> bool {
        self.told.is_none() && !self.are_recorded()
    }

    /// Notes the supervisor's answer. Returns `false` if it was not told of a state.
    fn recorded(&mut self) -> bool {
        match self.told.take() {
            Some(told) => {
                self.recorded = told;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::swtpm::states::{Notice, StateGate};

    /// Longer than any step takes on a busy machine.
    const SOON: Duration = Duration::from_secs(60);

    /// A gate without its confinement, with the other ends of its files.
    struct Subject {
        gate: Gate,
        buffer: Vec<u8>,
        scratch: tempfile::TempDir,
        swtpm: UnixStream,
    }

    impl Subject {
        fn new() -> Self {
            let scratch = tempfile::tempdir().unwrap();
            let path = |name: &str| scratch.path().join(name);
            std::fs::create_dir(path("state")).unwrap();
            let changes = watch(path("state")).unwrap();
            let (ours, swtpm) = UnixStream::pair().unwrap();
            swtpm.set_read_timeout(Some(SOON)).unwrap();
            let (answers, commands) = UnixStream::pair().unwrap();
            let gate = Gate {
                listener: Some(UnixListener::bind(path("qemu")).unwrap()),
                qemu: None,
                swtpm: ours,
                guest: None,
                answers,
                commands: Some(commands),
                changes,
                supervisors: UnixListener::bind(path("supervisors")).unwrap(),
                supervisor: None,
                states: States::default(),
            };
            Self { gate, buffer: vec![0; BUFFER_BYTES], scratch, swtpm }
        }

        fn path(&self, name: &str) -> std::path::PathBuf {
            self.scratch.path().join(name)
        }

        /// Has the gate attend to what is ready, until nothing is. Returns `false` if it ends.
        fn settle(&mut self) -> bool {
            loop {
                let ready = self.gate.ready(Some(&Timespec::default())).unwrap();
                if ready.is_empty() {
                    return true;
                }
                for ready in ready {
                    if !self.gate.attend(ready, &mut self.buffer).unwrap() {
                        return false;
                    }
                }
                self.gate.tell();
            }
        }

        fn supervise(&mut self) -> StateGate {
            let supervisor = StateGate::connect(&self.path("supervisors")).unwrap().unwrap();
            assert!(self.gate.attend(Ready::NewSupervisor, &mut self.buffer).unwrap());
            self.gate.tell();
            supervisor
        }

        /// Connects QEMU, which hands over its socket. Returns its control channel, its commands,
        /// and what swtpm has instead.
        fn connect_qemu(&mut self) -> (UnixStream, UnixStream, UnixStream) {
            let qemu = UnixStream::connect(self.path("qemu")).unwrap();
            let (commands, theirs) = UnixStream::pair().unwrap();
            strongroom_wire::send(&qemu, b"\0\0\0\x10", &[theirs.as_fd()], SendFlags::empty()).unwrap();
            assert!(self.settle());
            let mut message = [0; 16];
            let received = strongroom_wire::receive(&self.swtpm, &mut message, 1).unwrap();
            assert_eq!(&message[..received.bytes], b"\0\0\0\x10");
            let instead = UnixStream::from(received.files.into_iter().next().unwrap());
            for socket in [&qemu, &commands, &instead] {
                socket.set_read_timeout(Some(SOON)).unwrap();
            }
            (qemu, commands, instead)
        }
    }

    fn write_state(directory: &Path) {
        std::fs::write(directory.join("TMP2-00.permall"), "sealed").unwrap();
        std::fs::rename(directory.join("TMP2-00.permall"), directory.join(STATE_FILE)).unwrap();
    }

    fn is_silent(socket: &UnixStream) -> bool {
        socket.set_nonblocking(true).unwrap();
        let read = (&mut &*socket).read(&mut [0; 16]);
        socket.set_nonblocking(false).unwrap();
        matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    fn hears(mut socket: &UnixStream, text: &[u8]) {
        let mut heard = vec![0; text.len()];
        socket.read_exact(&mut heard).unwrap();
        assert_eq!(heard, text);
    }

    #[test]
    fn an_answer_waits_for_the_record_of_its_state_and_no_other_answer_does() {
        let mut subject = Subject::new();
        let (mut qemu, mut commands, mut swtpm) = subject.connect_qemu();
        qemu.write_all(b"init").unwrap();
        commands.write_all(b"random?").unwrap();
        swtpm.write_all(b"random").unwrap();
        subject.swtpm.write_all(b"done").unwrap();
        assert!(subject.settle());
        hears(&subject.swtpm, b"init");
        hears(&qemu, b"done");
        hears(&swtpm, b"random?");
        hears(&commands, b"random");

        // Without a supervisor, and with one that has not recorded it.
        write_state(&subject.path("state"));
        swtpm.write_all(b"written").unwrap();
        assert!(subject.settle());
        assert!(is_silent(&commands));
        let supervisor = subject.supervise();
        assert_eq!(supervisor.notice().unwrap(), Notice::NewState);
        assert_eq!(supervisor.notice().unwrap(), Notice::Nothing);
        assert!(subject.settle());
        assert!(is_silent(&commands));
        // Its successor is told once more. swtpm's other channel is open meanwhile.
        drop(supervisor);
        let supervisor = subject.supervise();
        assert_eq!(supervisor.notice().unwrap(), Notice::NewState);
        qemu.write_all(b"cancel").unwrap();
        assert!(subject.settle());
        hears(&subject.swtpm, b"cancel");
        supervisor.recorded().unwrap();
        assert!(subject.settle());
        hears(&commands, b"written");

        // A state that comes while another one is recorded has a turn of its own.
        write_state(&subject.path("state"));
        assert!(subject.settle());
        assert_eq!(supervisor.notice().unwrap(), Notice::NewState);
        write_state(&subject.path("state"));
        swtpm.write_all(b"both").unwrap();
        assert!(subject.settle());
        supervisor.recorded().unwrap();
        assert!(subject.settle());
        assert!(is_silent(&commands));
        assert_eq!(supervisor.notice().unwrap(), Notice::NewState);
        supervisor.recorded().unwrap();
        assert!(subject.settle());
        hears(&commands, b"both");
    }

    #[test]
    fn other_files_of_swtpm_are_no_states() {
        let mut subject = Subject::new();
        let (_qemu, commands, mut swtpm) = subject.connect_qemu();
        for name in [".lock", "TMP2-00.permall", "tpm2-00.volatilestate"] {
            std::fs::write(subject.path("state").join(name), "").unwrap();
        }
        swtpm.write_all(b"answer").unwrap();
        assert!(subject.settle());
        hears(&commands, b"answer");
    }

    #[test]
    fn it_ends_with_qemu_and_with_swtpm_and_takes_one_socket_of_commands() {
        let mut subject = Subject::new();
        let (qemu, commands, swtpm) = subject.connect_qemu();
        drop(commands);
        assert!(!subject.settle());
        drop((qemu, swtpm));
        let mut subject = Subject::new();
        let kept = subject.connect_qemu();
        subject.swtpm.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(!subject.settle());
        drop(kept);
        let mut subject = Subject::new();
        let (qemu, _commands, _swtpm) = subject.connect_qemu();
        let (_, another) = UnixStream::pair().unwrap();
        strongroom_wire::send(&qemu, b"\0\0\0\x10", &[another.as_fd()], SendFlags::empty()).unwrap();
        let refused = subject.gate.attend(Ready::FromQemu, &mut subject.buffer).unwrap_err();
        assert!(refused.to_string().contains("second"), "{refused}");
    }

    #[test]
    fn a_supervisor_that_says_what_none_says_records_nothing() {
        let mut subject = Subject::new();
        let supervisor = subject.supervise();
        supervisor.recorded().unwrap();
        assert!(subject.gate.attend(Ready::FromSupervisor, &mut subject.buffer).unwrap());
        assert!(subject.gate.supervisor.is_none());
        assert_eq!(supervisor.notice().unwrap(), Notice::Gone);
    }
}
