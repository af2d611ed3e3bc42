//! The serial console of a VM: one thread between QEMU's socket and all clients.
//!
//! QEMU serves one client, which is this thread. The guest's last output is kept in a ring, so that
//! a new client sees it. There are many readers and one writer: the first client that wants to
//! write, until it disconnects or another one takes over, whose name it is told. A slow reader
//! loses output for which it has no room, and is told how much; the guest never waits for a reader.
//! All output also goes into the [log](super::console_log).

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use strongroom_host::protocol::{GuestWelcome, NEWS_COMMAND};
use uuid::Uuid;

use crate::console_log::LogSender;
use crate::look_only::LookOnly;

/// The size of the output ring, in bytes: some thousand lines, or a boot.
pub const RING_BYTES: usize = 64 << 10;
/// The most output that is queued for a reader, in bytes.
const BEHIND_BYTES_MAX: usize = 256 << 10;
/// The most readers.
const READERS_MAX: usize = 16;
/// The size of a read, in bytes.
const PIECE_BYTES: usize = 4 << 10;
/// The most guest output that is read before the other clients get their turn, in bytes.
const TURN_BYTES: usize = 64 << 10;
/// The most clients that wait to be admitted.
const WAITING_MAX: usize = 4;
/// The most of a name that is shown, in characters.
const NAME_CHARACTERS_MAX: usize = 128;

/// What a client of the console wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wants {
    /// Only to read.
    Read,
    /// To write, unless another client does.
    Write,
    /// To write in the place of the client that does, which reads from then on.
    TakeOver {
        /// Who takes over, for the other one.
        by: String,
    },
}

/// The console of a running VM.
#[derive(Debug)]
pub struct Console {
    clients: SyncSender<(UnixStream, Wants)>,
    woken: OwnedFd,
    hub: JoinHandle<()>,
}

impl Console {
    /// Reads the console that QEMU serves, until QEMU ends.
    ///
    /// # Errors
    /// If the thread cannot be started.
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

    /// Ends the console, after all output of the guest so far.
    pub fn finish(self) {
        let Self { clients, woken, hub } = self;
        drop(clients);
        let _ = rustix::io::write(&woken, &1_u64.to_ne_bytes());
        let _ = hub.join();
    }

    /// Admits a client; the welcome tells it whether it may write. If too many clients wait, the
    /// connection is closed.
    pub fn attach(&self, client: OwnedFd, wants: Wants) {
        if self.clients.try_send((UnixStream::from(client), wants)).is_ok() {
            let _ = rustix::io::write(&self.woken, &1_u64.to_ne_bytes());
        }
    }
}

struct Hub {
    guest: UnixStream,
    received: Receiver<(UnixStream, Wants)>,
    woken: OwnedFd,
    ring: VecDeque<u8>,
    readers: Vec<Reader>,
    /// Input of the writer that the guest has not taken yet. While there is some, the writer is not
    /// read.
    to_guest: Vec<u8>,
    log: Option<LogSender>,
}

struct Reader {
    stream: UnixStream,
    writes: bool,
    behind: VecDeque<u8>,
    /// The bytes that this reader has lost.
    missed_bytes: usize,
    /// By what it knows news of this console from what the guest says.
    news: String,
}

impl Hub {
    fn run(mut self) {
        while self.wait() {
            let _ = rustix::io::read(&self.woken, &mut [0; 8]);
            // A writer that has disconnected makes room for the next one, so this comes first.
            self.hear_writer();
            let ends = loop {
                match self.received.try_recv() {
                    Ok((stream, wants)) => self.admit(stream, &wants),
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

    /// Waits until there is something to do.
    fn wait(&self) -> bool {
        let mut watched = vec![PollFd::new(&self.woken, PollFlags::IN)];
        let guest = if self.to_guest.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        watched.push(PollFd::new(&self.guest, guest));
        for reader in &self.readers {
            // Input of readers is discarded; reading it detects their disconnection.
            let hear =
                if reader.writes && !self.to_guest.is_empty() { PollFlags::empty() } else { PollFlags::IN };
            let tell = if reader.behind.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            watched.push(PollFd::new(&reader.stream, hear | tell));
        }
        matches!(poll(&mut watched, None), Ok(_) | Err(Errno::INTR))
    }

    fn admit(&mut self, stream: UnixStream, wants: &Wants) {
        if self.readers.len() >= READERS_MAX || stream.set_nonblocking(true).is_err() {
            return;
        }
        let writer = self.readers.iter_mut().find(|reader| reader.writes);
        let writes = match (wants, writer) {
            (Wants::Read, _) | (Wants::Write, Some(_)) => false,
            (Wants::Write | Wants::TakeOver { .. }, None) => true,
            (Wants::TakeOver { by }, Some(writer)) => {
                writer.gives_way_to(by);
                true
            }
        };
        let recorded_bytes = Some(self.ring.len() as u64);
        let news = Uuid::new_v4().simple().to_string();
        let welcome = GuestWelcome::Console { writer: writes, recorded_bytes, news: Some(news.clone()) };
        let Ok(mut welcome) = serde_json::to_vec(&welcome) else { return };
        welcome.push(b'\n');
        let behind = welcome.into_iter().chain(self.ring.iter().copied()).collect();
        self.readers.push(Reader { stream, writes, behind, missed_bytes: 0, news });
    }

    /// Reads the guest's output. Returns whether the guest is still connected.
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
    /// Reads only from now on, and is told for whom.
    fn gives_way_to(&mut self, by: &str) {
        self.writes = false;
        let by: String = by.chars().filter(|one| !one.is_control()).take(NAME_CHARACTERS_MAX).collect();
        // It is told even if it has no room for output: this comes once, and no terminal shows it.
        self.behind.extend(format!("\x1b]{NEWS_COMMAND};{};{by}\x07", self.news).into_bytes());
        let note = format!("\r\n[strongroom: {by} has taken over this console; you can only look now]\r\n");
        self.hear(note.as_bytes());
    }

    /// Queues output of the guest. A reader without room loses output until it has taken half of
    /// its queue.
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

    /// Sends queued output. Returns whether the reader is still connected.
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

/// Writes as much as the socket takes now.
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

/// Relays between a client and a VNC server until either closes its connection, on a thread of its
/// own. Of a client that only looks, what [changes nothing](LookOnly) is relayed.
///
/// # Errors
/// If the thread cannot be started.
pub fn relay(client: OwnedFd, server: UnixStream, looks: Option<LookOnly>) -> io::Result<()> {
    let client = UnixStream::from(client);
    thread::Builder::new().name("vnc".to_owned()).spawn(move || {
        for stream in [&client, &server] {
            let _ = stream.set_nonblocking(false);
        }
        thread::scope(|scope| {
            scope.spawn(|| copy(&client, &server, looks));
            copy(&server, &client, None);
        });
    })?;
    Ok(())
}

fn copy(mut from: &UnixStream, mut to: &UnixStream, mut looks: Option<LookOnly>) {
    let mut piece = vec![0; 16 * PIECE_BYTES];
    let mut pass = |said: &[u8]| match &mut looks {
        None => to.write_all(said),
        Some(looks) => {
            let mut passed = Vec::with_capacity(said.len());
            looks.hear(said, &mut passed).and_then(|()| to.write_all(&passed))
        }
    };
    loop {
        match from.read(&mut piece) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Ok(count) if count > 0 && pass(&piece[..count]).is_ok() => {}
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
        let Welcomed { reader, writer, .. } =
            welcomed(guest, if read_only { Wants::Read } else { Wants::Write });
        (reader, writer)
    }

    struct Welcomed {
        reader: BufReader<UnixStream>,
        writer: bool,
        recorded_bytes: u64,
        news: String,
    }

    fn welcomed(guest: &Guest, wants: Wants) -> Welcomed {
        let (ours, theirs) = UnixStream::pair().unwrap();
        guest.console.attach(theirs.into(), wants);
        let mut reader = BufReader::new(ours);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let GuestWelcome::Console { writer, recorded_bytes, news } = serde_json::from_str(&line).unwrap()
        else {
            panic!("{line}")
        };
        Welcomed { reader, writer, recorded_bytes: recorded_bytes.unwrap(), news: news.unwrap() }
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
        // The disconnection is noticed before another client is admitted.
        let (_third, writes) = client(&guest, false);
        assert!(writes);
    }

    #[test]
    fn one_that_takes_over_writes_and_the_other_one_is_told_and_reads() {
        let mut guest = guest();
        let Welcomed { reader: mut first, news, .. } = welcomed(&guest, Wants::Write);
        guest.serial.write_all(b"login: ").unwrap();
        let mut prompt = [0; 7];
        first.read_exact(&mut prompt).unwrap();
        // Names are of accounts, some of which others have named.
        let by = "bob\x1b[2J\u{7f}\r\n".to_owned();
        let Welcomed { reader: mut second, writer, recorded_bytes, news: of_second } =
            welcomed(&guest, Wants::TakeOver { by });
        assert!(writer);
        assert_eq!(recorded_bytes, 7);
        assert_ne!(of_second, news, "who writes now cannot pretend to be the supervisor");
        let mut former = [0; 7];
        second.read_exact(&mut former).unwrap();
        assert_eq!(&former, b"login: ");
        assert_eq!(read(&mut first), format!("\x1b]{NEWS_COMMAND};{news};bob[2J\x07\r\n"));
        let note = read(&mut first);
        assert_eq!(note, "[strongroom: bob[2J has taken over this console; you can only look now]\r\n");
        first.get_mut().write_all(b"unheard\n").unwrap();
        second.get_mut().write_all(b"root\n").unwrap();
        let mut heard = [0; 5];
        guest.serial.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"root\n");
        guest.serial.write_all(b"both\n").unwrap();
        assert_eq!((read(&mut first), read(&mut second)), ("both\n".to_owned(), "both\n".to_owned()));
        // Nobody writes: it is not taken from anybody.
        drop(second);
        assert!(welcomed(&guest, Wants::TakeOver { by: "eve".to_owned() }).writer);
        guest.serial.write_all(b"alone\n").unwrap();
        assert_eq!(read(&mut first), "alone\n");
    }

    #[test]
    fn one_that_does_not_read_is_told_all_the_same_that_another_one_writes() {
        let mut guest = guest();
        let Welcomed { reader: mut idle, news, .. } = welcomed(&guest, Wants::Write);
        for _ in 0..4 * BEHIND_BYTES_MAX / 1024 {
            guest.serial.write_all(&[b'x'; 1024]).unwrap();
        }
        guest.serial.write_all(b"\nend\n").unwrap();
        let (mut late, _) = client(&guest, true);
        while read(&mut late) != "end\n" {}
        assert!(welcomed(&guest, Wants::TakeOver { by: "bob".to_owned() }).writer);
        // It reads at last, while the console is there: what waits for it comes.
        let told = format!("\x1b]{NEWS_COMMAND};{news};bob\x07");
        let (mut had, mut piece) = (String::new(), [0; 64 << 10]);
        while !had.contains(&told) {
            let count = idle.read(&mut piece).unwrap();
            assert!(count > 0, "it was never told");
            had.push_str(std::str::from_utf8(&piece[..count]).unwrap());
        }
    }

    #[test]
    fn a_screen_for_looking_takes_no_keys() {
        for (looks, reach) in [(None, true), (Some(LookOnly::new()), false)] {
            let (mut viewer, client) = UnixStream::pair().unwrap();
            let (server, mut qemu) = UnixStream::pair().unwrap();
            relay(client.into(), server, looks).unwrap();
            qemu.write_all(b"RFB 003.008\n").unwrap();
            let mut greeting = [0; 12];
            viewer.read_exact(&mut greeting).unwrap();
            let (key, ask) = ([4, 1, 0, 0, 0, 0, 0, 97], [3, 1, 0, 0, 0, 0, 4, 0, 3, 0]);
            viewer.write_all(b"RFB 003.008\n\x01\x01").unwrap();
            viewer.write_all(&key).unwrap();
            viewer.write_all(&ask).unwrap();
            let mut heard = Vec::new();
            drop(viewer);
            qemu.read_to_end(&mut heard).unwrap();
            assert_eq!(heard.windows(8).any(|part| part == key), reach);
            assert!(heard.ends_with(&ask));
        }
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
        // It reads its whole queue, and learns with the next output how much it has lost.
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
