//! A guest's console output, kept sealed in the VM's own volume `console`: a ring with the latest
//! output.
//!
//! One thread writes. Its callers never wait for a disk: output that does not fit into the queue is
//! lost, and the log records how much. The volume is open only while there is output to write, so
//! that it can be moved to another key.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use strongroom_datastore::file::describe;
use strongroom_datastore::file::storage::is_gone;
use strongroom_host::protocol::{GuestWelcome, OwnVolume, Problem, VmSpec};
use strongroom_keys::Kek;
use strongroom_streams::{Log, LogPiece, Shape, StreamError, StreamKind};
use strongroom_types::VolumeSize;
use zeroize::Zeroizing;

use crate::keys::VmKeys;
use crate::own_volume::{OpenOwnVolume, create_with, hold_key};

/// Bytes of a full record, including its header.
const SLOT_BYTES: u32 = 64 << 10;
/// The number of full records: 4 MiB, a long time for an ordinary guest.
const RING_SLOTS: u32 = 64;
/// The size of the volume: the ring, the tail twice, the first block.
const VOLUME_BYTES: u64 = (RING_SLOTS as u64 + 2) * SLOT_BYTES as u64 + 4096;
/// The most output, as time, that a crash of the host may lose.
const DURABLE_WITHIN: Duration = Duration::from_secs(1);
/// The volume is closed when there was no output for this long.
const QUIET: Duration = Duration::from_secs(5);
/// The pause before a volume that could not be opened is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(30);
/// The most queued pieces, of 4 KiB each: a guest's output while a disk is slow.
const WAITING_MAX: usize = 256;
/// How long a client may take to read the whole log.
const TAKEN_WITHIN: Duration = Duration::from_secs(60);

enum ToLog {
    Said(Zeroizing<Vec<u8>>),
    Read(UnixStream),
    LetGo { done: SyncSender<()>, until: Receiver<()> },
}

/// The log's volume stays closed while this value exists. Output is queued meanwhile.
#[derive(Debug)]
pub struct LetGo {
    /// Nothing is ever sent: dropping the sender is the signal.
    _until: SyncSender<()>,
}

/// Queues the guest's output for the log.
#[derive(Clone, Debug)]
pub struct LogSender {
    to: SyncSender<ToLog>,
    /// The bytes that were lost and are not recorded in the log yet.
    lost_bytes: u64,
}

/// The log of a running VM.
#[derive(Debug)]
pub struct ConsoleLog {
    sender: LogSender,
    writer: JoinHandle<()>,
}

impl ConsoleLog {
    /// Starts to write where an earlier start of the VM ended.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(spec: Box<VmSpec>, keys: Arc<VmKeys>) -> io::Result<Self> {
        let (to, from) = sync_channel(WAITING_MAX);
        let work = move || Writer { spec, keys, open: None, unsaved_since: None, failed_at: None }.run(&from);
        let writer = thread::Builder::new().name("console log".to_owned()).spawn(work)?;
        Ok(Self { sender: LogSender { to, lost_bytes: 0 }, writer })
    }

    /// Returns a sender for the guest's output.
    pub fn sender(&self) -> LogSender {
        self.sender.clone()
    }

    /// Sends the whole log to a client, after a welcome.
    ///
    /// # Errors
    /// If the queue is full.
    pub fn read(&self, client: UnixStream) -> Result<(), Problem> {
        let busy = |_| Problem::new("busy", "the console's log is being written; try again in a moment");
        self.sender.to.try_send(ToLog::Read(client)).map_err(busy)
    }

    /// Writes the rest, once every other sender is dropped.
    pub fn finish(self) {
        let Self { sender, writer } = self;
        drop(sender);
        let _ = writer.join();
    }
}

impl LogSender {
    /// Queues output of the guest.
    pub fn said(&mut self, said: &[u8]) {
        if self.lost_bytes > 0 {
            let note = format!("\r\n[strongroom: {} bytes are not in this log]\r\n", self.lost_bytes);
            if self.give(note.into_bytes()) {
                self.lost_bytes = 0;
            }
        }
        if self.lost_bytes > 0 || !self.give(said.to_vec()) {
            self.lost_bytes += said.len() as u64;
        }
    }

    /// Makes the log close its volume after it has written all earlier output. `None` if the log
    /// has ended.
    pub fn let_go(&self) -> Option<LetGo> {
        let (done, is_done) = sync_channel(1);
        let (until, is_over) = sync_channel(0);
        self.to.send(ToLog::LetGo { done, until: is_over }).ok()?;
        is_done.recv().ok()?;
        Some(LetGo { _until: until })
    }

    fn give(&self, said: Vec<u8>) -> bool {
        match self.to.try_send(ToLog::Said(Zeroizing::new(said))) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }
}

struct Writer {
    spec: Box<VmSpec>,
    keys: Arc<VmKeys>,
    open: Option<Log<OpenOwnVolume>>,
    unsaved_since: Option<Instant>,
    failed_at: Option<Instant>,
}

impl Writer {
    fn run(mut self, from: &Receiver<ToLog>) {
        loop {
            let wait = match self.unsaved_since {
                Some(since) => DURABLE_WITHIN.saturating_sub(since.elapsed()),
                None => QUIET,
            };
            let done = match from.recv_timeout(wait) {
                Ok(ToLog::Said(said)) => self.say(&said),
                Ok(ToLog::Read(client)) => self.persist().map(|()| self.give(client)),
                Ok(ToLog::LetGo { done, until }) => {
                    let closed = self.persist().and_then(|()| self.close());
                    let _ = done.send(());
                    let _ = until.recv();
                    closed
                }
                Err(RecvTimeoutError::Timeout) if self.unsaved_since.is_some() => self.persist(),
                Err(RecvTimeoutError::Timeout) => self.close(),
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let overdue = self.unsaved_since.is_some_and(|since| since.elapsed() >= DURABLE_WITHIN);
            let done = if done.is_ok() && overdue { self.persist() } else { done };
            if let Err(problem) = done {
                self.failed(&problem);
            }
        }
        if let Err(problem) = self.persist().and_then(|()| self.close()) {
            self.failed(&problem);
        }
    }

    fn failed(&mut self, problem: &Problem) {
        tracing::warn!("VM {}: its console is not logged: {problem}", self.spec.name);
        (self.open, self.unsaved_since, self.failed_at) = (None, None, Some(Instant::now()));
    }

    fn say(&mut self, said: &[u8]) -> Result<(), Problem> {
        if self.failed_at.is_some_and(|at| at.elapsed() < TRY_AGAIN) {
            return Ok(());
        }
        self.failed_at = None;
        if self.open.is_none() {
            let kek =
                hold_key(&self.keys, &self.spec, OwnVolume::Console).map_err(|error| error.problem())?;
            self.open = Some(open_to_write(&self.spec, kek.as_deref())?);
        }
        if let Some(log) = &mut self.open {
            log.say(said).map_err(stream_problem)?;
            self.unsaved_since.get_or_insert_with(Instant::now);
        }
        Ok(())
    }

    fn persist(&mut self) -> Result<(), Problem> {
        self.unsaved_since = None;
        self.open.as_mut().map_or(Ok(()), |log| log.persist().map_err(stream_problem))
    }

    fn close(&mut self) -> Result<(), Problem> {
        let Some(log) = self.open.take() else { return Ok(()) };
        log.into_medium().close().map_err(|error| error.problem())
    }

    /// Reads the whole log, and sends it to the client on a thread of its own: the client may be
    /// slow.
    fn give(&mut self, client: UnixStream) {
        let read = match &mut self.open {
            Some(log) => contents(log),
            None => hold_key(&self.keys, &self.spec, OwnVolume::Console)
                .map_err(|error| error.problem())
                .and_then(|kek| read(&self.spec, kek.as_deref())),
        };
        let given = thread::Builder::new().name("console log".to_owned()).spawn(move || give(client, read));
        if let Err(error) = given {
            tracing::warn!("VM {}: its console's log is not given: {error}", self.spec.name);
        }
    }
}

/// Returns the recorded output of a VM that is off.
///
/// # Errors
/// If there is no log, or its volume cannot be read. Damaged records are noted in the output.
pub fn read(spec: &VmSpec, kek: Option<&Kek>) -> Result<Zeroizing<Vec<u8>>, Problem> {
    let path = spec.own_volume_path(OwnVolume::Console);
    if is_gone(&path) {
        return Err(Problem::new("no_log", format!("VM {} has said nothing yet", spec.name)));
    }
    let mut log = open(&path, kek)?;
    let contents = contents(&mut log);
    log.into_medium().close().map_err(|error| error.problem())?;
    contents
}

/// Sends a log to a client, after a welcome; or the error.
pub fn give(mut client: UnixStream, read: Result<Zeroizing<Vec<u8>>, Problem>) {
    let _ = client.set_nonblocking(false).and_then(|()| client.set_write_timeout(Some(TAKEN_WITHIN)));
    let (line, said) = match read {
        Ok(said) => (serde_json::to_vec(&GuestWelcome::ConsoleLog), said),
        Err(error) => {
            (serde_json::to_vec(&strongroom_host::protocol::ProblemBody { error }), Zeroizing::default())
        }
    };
    let mut line = line.unwrap_or_default();
    line.push(b'\n');
    // A client that has disconnected does not want it.
    let _ = client.write_all(&line).and_then(|()| client.write_all(&said));
}

fn open_to_write(spec: &VmSpec, kek: Option<&Kek>) -> Result<Log<OpenOwnVolume>, Problem> {
    let path = spec.own_volume_path(OwnVolume::Console);
    let size = VolumeSize::new(VOLUME_BYTES).map_err(|error| Problem::new("bad_size", error.to_string()))?;
    create_with(&path, size, kek, &[]).map_err(|error| error.problem())?;
    open(&path, kek)
}

/// Opens the log in the volume, and begins one in an unused volume.
fn open(path: &Path, kek: Option<&Kek>) -> Result<Log<OpenOwnVolume>, Problem> {
    let volume = describe(path)?.descriptor.volume;
    let mut medium = OpenOwnVolume::open(path, kek).map_err(|error| error.problem())?;
    match Log::open(&mut medium, StreamKind::Console, volume) {
        Ok(log) => drop(log),
        Err(StreamError::NotThere) => {
            let shape = Shape { slot_bytes: SLOT_BYTES, ring_slots: RING_SLOTS };
            Log::begin(&mut medium, StreamKind::Console, volume, shape).map_err(stream_problem)?;
        }
        Err(error) => return Err(stream_problem(error)),
    }
    Log::open(medium, StreamKind::Console, volume).map_err(stream_problem)
}

fn contents(log: &mut Log<OpenOwnVolume>) -> Result<Zeroizing<Vec<u8>>, Problem> {
    // Allocated for the whole log, so that a reallocation leaves no copy behind.
    let mut said = Zeroizing::new(Vec::with_capacity(VOLUME_BYTES as usize));
    log.read(|piece| match piece {
        LogPiece::Said(piece) => said.extend_from_slice(piece),
        LogPiece::Damaged { number } => {
            let note = format!("\r\n[strongroom: record {number} of this log is damaged]\r\n");
            said.extend_from_slice(note.as_bytes());
        }
    })
    .map_err(stream_problem)?;
    Ok(said)
}

fn stream_problem(error: StreamError) -> Problem {
    Problem::new("console_log", format!("the console's log: {error}"))
}
