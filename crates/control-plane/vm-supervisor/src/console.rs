//! The serial console of a VM: one thread between QEMU's socket and everybody who looks on.
//!
//! QEMU serves one client, which is this. What the guest said last is kept in a ring, so that
//! whoever comes sees what happened before. There are many readers and one writer: the first who
//! wants to be, until it goes. A reader that does not read misses what it has no room for, and is
//! told how much; the guest never waits for one. All of it goes into the [log](super::console_log)
//! too.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use strongroom_host::protocol::GuestWelcome;

use crate::console_log::LogSender;

/// What is kept of what the guest said, in bytes: some thousand lines, a boot.
pub const RING_BYTES: usize = 64 << 10;
/// What a reader may be behind, in bytes.
const BEHIND_BYTES_MAX: usize = 256 << 10;
/// Readers at once.
const READERS_MAX: usize = 16;
/// What is read at once, in bytes.
const PIECE_BYTES: usize = 4 << 10;
/// What is read of the guest before everybody else has their turn, in bytes.
const TURN_BYTES: usize = 64 << 10;
/// Clients that wait to be taken up.
const WAITING_MAX: usize = 4;

/// A console that is read.
#[derive(Debug)]
pub struct Console {
    clients: SyncSender<(UnixStream, bool)>,
    woken: OwnedFd,
    hub: JoinHandle<()>,
}

impl Console {
    /// Reads the console that QEMU serves, until QEMU ends.
    ///
    /// # Errors
    /// If there is no thread.
    pub fn start(guest: UnixStream, log: Option<LogSender>) -> io::Result<Self> {
        guest.set_nonblocking(true)?;
        let woken = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (clients, received) = sync_channel(WAITING_MAX);
        let hub = Hub {
            guest,
            received,
            woken: woken.try_clone()?,
            ring: VecDeque::with_capacity(RING_BYTES),
            readers: Vec::new(),
            to_guest: Vec::new(),
            log,
        };
        let hub = thread::Builder::new().name("console".to_owned()).spawn(move || hub.run())?;
        Ok(Self { clients, woken, hub })
    }

    /// Ends it, with what the guest has said until now.
    pub fn finish(self) {
        let Self { clients, woken, hub } = self;
        drop(clients);
        let _ = rustix::io::write(&woken, &1_u64.to_ne_bytes());
        let _ = hub.join();
    }

    /// Takes a client up, which wants to write unless it is `read_only`; it is told whether it may.
    /// Nothing happens if too many wait, but that it is hung up on.
    pub fn attach(&self, client: OwnedFd, read_only: bool) {
        if self.clients.try_send((UnixStream::from(client), !read_only)).is_ok() {
            let _ = rustix::io::write(&self.woken, &1_u64.to_ne_bytes());
        }
    }
}

struct Hub {
    guest: UnixStream,
    received: Receiver<(UnixStream, bool)>,
    woken: OwnedFd,
    ring: VecDeque<u8>,
    readers: Vec<Reader>,
    /// What the writer said and the guest has not taken yet. While there is some, no more is read
    /// of the writer.
    to_guest: Vec<u8>,
    log: Option<LogSender>,
}

struct Reader {
    stream: UnixStream,
    writes: bool,
    behind: VecDeque<u8>,
    /// What it had no room for.
    missed_bytes: usize,
}

impl Hub {
    fn run(mut self) {
        while self.wait() {
            let _ = rustix::io::read(&self.woken, &mut [0; 8]);
            // First of all: a writer that is gone makes room for the next one.
            self.hear_writer();
            let ends = loop {
                match self.received.try_recv() {
                    Ok((stream, wants_to_write)) => self.admit(stream, wants_to_write),
                    Err(TryRecvError::Empty) => break false,
                    Err(TryRecvError::Disconnected) => break true,
                }
            };
            if !self.hear_guest() || ends {
                self.readers.retain_mut(Reader::flush);
                return;
            }
            if flush(&mut self.guest, &mut self.to_guest).is_err() {
                return;
            }
            self.readers.retain_mut(Reader::flush);
        }
    }

    /// Sleeps until there is something to do.
    fn wait(&self) -> bool {
        let mut watched = vec![PollFd::new(&self.woken, PollFlags::IN)];
        let guest = if self.to_guest.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        watched.push(PollFd::new(&self.guest, guest));
        for reader in &self.readers {
            // Of readers only, what they say is read and forgotten: it shows that they are gone.
            let hear =
                if reader.writes && !self.to_guest.is_empty() { PollFlags::empty() } else { PollFlags::IN };
            let tell = if reader.behind.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            watched.push(PollFd::new(&reader.stream, hear | tell));
        }
        matches!(poll(&mut watched, None), Ok(_) | Err(Errno::INTR))
    }

    fn admit(&mut self, stream: UnixStream, wants_to_write: bool) {
        if self.readers.len() >= READERS_MAX || stream.set_nonblocking(true).is_err() {
            return;
        }
        let writes = wants_to_write && !self.readers.iter().any(|reader| reader.writes);
        let Ok(mut welcome) = serde_json::to_vec(&GuestWelcome::Console { writer: writes }) else { return };
        welcome.push(b'\n');
        let behind = welcome.into_iter().chain(self.ring.iter().copied()).collect();
        self.readers.push(Reader { stream, writes, behind, missed_bytes: 0 });
    }

    /// Whether the guest is still there.
    fn hear_guest(&mut self) -> bool {
        let mut piece = [0; PIECE_BYTES];
        for _ in 0..TURN_BYTES / PIECE_BYTES {
            match self.guest.read(&mut piece) {
                Ok(0) => return false,
                Ok(count) => {
                    let said = &piece[..count];
                    let over = (self.ring.len() + count).saturating_sub(RING_BYTES);
                    self.ring.drain(..over);
                    self.ring.extend(said);
                    self.readers.iter_mut().for_each(|reader| reader.hear(said));
                    if let Some(log) = &mut self.log {
                        log.said(said);
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        true
    }

    fn hear_writer(&mut self) {
        let Self { readers, to_guest, .. } = self;
        readers.retain_mut(|reader| {
            if reader.writes && !to_guest.is_empty() {
                return true;
            }
            let mut piece = [0; PIECE_BYTES];
            match reader.stream.read(&mut piece) {
                Ok(0) => false,
                Ok(count) => {
                    if reader.writes {
                        to_guest.extend_from_slice(&piece[..count]);
                    }
                    true
                }
                Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
            }
        });
    }
}

impl Reader {
    /// The guest has said this. What it has no room for is missed, until it has taken half of what
    /// it has.
    fn hear(&mut self, said: &[u8]) {
        let room = if self.missed_bytes == 0 { BEHIND_BYTES_MAX } else { BEHIND_BYTES_MAX / 2 };
        if self.behind.len() + said.len() > room {
            self.missed_bytes += said.len();
            return;
        }
        if self.missed_bytes > 0 {
            let missed = std::mem::take(&mut self.missed_bytes);
            let note = format!(
                "\r\n[strongroom: {missed} bytes are missing here: they came faster than they were read]\r\n"
            );
            self.behind.extend(note.into_bytes());
        }
        self.behind.extend(said);
    }

    /// Whether it is still there.
    fn flush(&mut self) -> bool {
        while !self.behind.is_empty() {
            let (piece, _) = self.behind.as_slices();
            match self.stream.write(piece) {
                Ok(0) => return false,
                Ok(count) => drop(self.behind.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        true
    }
}

/// Writes what can be written now.
fn flush(stream: &mut UnixStream, bytes: &mut Vec<u8>) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => drop(bytes.drain(..count)),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Connects a client with a server, until either hangs up; on a thread of its own.
///
/// # Errors
/// If there is no thread.
pub fn relay(client: OwnedFd, server: UnixStream) -> io::Result<()> {
    let client = UnixStream::from(client);
    thread::Builder::new().name("vnc".to_owned()).spawn(move || {
        for stream in [&client, &server] {
            let _ = stream.set_nonblocking(false);
        }
        thread::scope(|scope| {
            scope.spawn(|| copy(&client, &server));
            copy(&server, &client);
        });
    })?;
    Ok(())
}

fn copy(mut from: &UnixStream, mut to: &UnixStream) {
    let mut piece = vec![0; 16 * PIECE_BYTES];
    loop {
        match from.read(&mut piece) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Ok(count) if count > 0 && to.write_all(&piece[..count]).is_ok() => {}
            _ => break,
        }
    }
    for stream in [from, to] {
        let _ = rustix::net::shutdown(stream.as_fd(), rustix::net::Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    use super::*;

    struct Guest {
        _directory: tempfile::TempDir,
        console: Console,
        serial: UnixStream,
    }

    fn guest() -> Guest {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("console.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let console = Console::start(UnixStream::connect(&socket).unwrap(), None).unwrap();
        let serial = listener.accept().unwrap().0;
        Guest { _directory: directory, console, serial }
    }

    fn client(guest: &Guest, read_only: bool) -> (BufReader<UnixStream>, bool) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        guest.console.attach(theirs.into(), read_only);
        let mut reader = BufReader::new(ours);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let GuestWelcome::Console { writer } = serde_json::from_str(&line).unwrap() else { panic!("{line}") };
        (reader, writer)
    }

    fn read(reader: &mut BufReader<UnixStream>) -> String {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        line
    }

    #[test]
    fn there_are_many_readers_one_writer_and_what_was_said_before() {
        let mut guest = guest();
        let (mut first, writes) = client(&guest, false);
        assert!(writes);
        guest.serial.write_all(b"booting\n").unwrap();
        assert_eq!(read(&mut first), "booting\n");
        let (mut second, writes) = client(&guest, false);
        assert!(!writes, "there is one already");
        assert_eq!(read(&mut second), "booting\n");
        second.get_mut().write_all(b"unheard\n").unwrap();
        first.get_mut().write_all(b"root\n").unwrap();
        let mut heard = [0; 5];
        guest.serial.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"root\n");
        guest.serial.write_all(b"login\n").unwrap();
        assert_eq!((read(&mut first), read(&mut second)), ("login\n".to_owned(), "login\n".to_owned()));
        drop(first);
        // Its going is seen before another one is admitted.
        let (_third, writes) = client(&guest, false);
        assert!(writes);
    }

    #[test]
    fn a_reader_that_does_not_read_does_not_stop_the_guest() {
        let mut guest = guest();
        let (mut idle, _) = client(&guest, true);
        let line = [b'x'; 1023];
        for _ in 0..4 * BEHIND_BYTES_MAX / line.len() {
            guest.serial.write_all(&line).unwrap();
        }
        guest.serial.write_all(b"\nend\n").unwrap();
        let (mut late, _) = client(&guest, true);
        assert!(read(&mut late).ends_with("xxx\n"));
        assert_eq!(read(&mut late), "end\n");
        // It takes all that it has, and hears how much it has missed with the next word.
        idle.get_ref().set_nonblocking(true).unwrap();
        let mut had = Vec::new();
        while !had.ends_with(b"again\n") {
            match idle.read_until(b'\n', &mut had) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    guest.serial.write_all(b"again\n").unwrap();
                    std::thread::yield_now();
                }
                read => assert!(read.unwrap() > 0, "it is not hung up on"),
            }
        }
        let had = String::from_utf8(had).unwrap();
        let note = had.lines().find(|line| line.starts_with("[strongroom: ")).unwrap();
        assert!(note.contains("bytes are missing here"), "{note}");
    }
}
