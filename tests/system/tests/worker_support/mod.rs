//! Common parts of the tests of a worker's life: an NBD client that reconnects and verifies every
//! sector, and a worker that can be inspected and killed.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;
use strongroom_system_tests::Volume;

/// Timeout of anything that takes milliseconds on an idle machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

const BLOCK_BYTES: usize = 4096;
/// Blocks that the client works on.
const BLOCKS: u64 = 256;

const READ: u16 = 0;
const WRITE: u16 = 1;
const WRITE_ZEROES: u16 = 6;

/// The exposing process in `volume info --json`.
#[track_caller]
pub fn exposure(volume: &Volume<'_>) -> Value {
    let answer = volume.command("info", &["--json"]).success();
    let info: Value = serde_json::from_str(&answer).expect("the answer is JSON");
    info["exposure"].clone()
}

/// Waits until `is_so` returns true.
#[track_caller]
pub fn wait_until(awaited: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < until, "{awaited}: not within {DEADLINE:?}");
        std::thread::yield_now();
    }
}

/// A running worker.
pub struct Worker {
    pub id: u32,
    pidfd: OwnedFd,
}

impl Worker {
    /// Returns the worker of a volume; waits until there is one.
    #[track_caller]
    pub fn of(volume: &Volume<'_>) -> Self {
        let until = Instant::now() + DEADLINE;
        loop {
            if let Some(worker) = Self::now_of(volume) {
                return worker;
            }
            assert!(Instant::now() < until, "there is no worker");
        }
    }

    /// Returns the present worker of a volume, if there is one.
    #[track_caller]
    pub fn now_of(volume: &Volume<'_>) -> Option<Self> {
        let id = i32::try_from(exposure(volume)["worker_pid"].as_u64()?).ok()?;
        // It may have died since the query.
        let pidfd = pidfd_open(Pid::from_raw(id)?, PidfdFlags::empty()).ok()?;
        Some(Self { id: id.cast_unsigned(), pidfd })
    }

    /// Kills it (SIGKILL), and waits until it is gone.
    #[track_caller]
    pub fn kill(self) {
        pidfd_send_signal(&self.pidfd, Signal::KILL).expect("the worker can be killed");
        self.wait();
    }

    /// Waits until it is gone.
    #[track_caller]
    pub fn wait(self) {
        let deadline = Timespec { tv_sec: DEADLINE.as_secs().cast_signed(), tv_nsec: 0 };
        let ended = poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&deadline));
        assert_eq!(ended, Ok(1), "worker {} does not end", self.id);
    }
}

/// A minimal NBD client: one request at a time.
pub struct NbdClient {
    stream: UnixStream,
    /// The size that the server reported.
    pub size_bytes: u64,
}

impl NbdClient {
    /// Connects to the server's default export.
    pub fn connect(socket: &Path) -> io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        // Fixed newstyle, no zeroes; NBD_OPT_EXPORT_NAME with the empty name.
        stream.write_all(&3_u32.to_be_bytes())?;
        stream.write_all(&[b"IHAVEOPT".as_slice(), &1_u32.to_be_bytes(), &0_u32.to_be_bytes()].concat())?;
        let mut export = [0; 10];
        stream.read_exact(&mut export)?;
        let size_bytes = u64::from_be_bytes(*export.first_chunk().expect("ten bytes hold eight"));
        Ok(Self { stream, size_bytes })
    }

    fn request(&mut self, command: u16, offset: u64, payload: &[u8], length: usize) -> io::Result<()> {
        let mut packet = Vec::with_capacity(28 + payload.len());
        packet.extend(0x2560_9513_u32.to_be_bytes());
        packet.extend(0_u16.to_be_bytes());
        packet.extend(command.to_be_bytes());
        packet.extend(offset.to_be_bytes());
        packet.extend(offset.to_be_bytes());
        packet.extend((length as u32).to_be_bytes());
        packet.extend(payload);
        self.stream.write_all(&packet)?;
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        match u32::from_be_bytes([reply[4], reply[5], reply[6], reply[7]]) {
            0 => Ok(()),
            error => panic!("the server answered with error {error}"),
        }
    }

    /// Reads.
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.request(READ, offset, &[], into.len())?;
        self.stream.read_exact(into)
    }

    /// Makes a part read as zeroes.
    pub fn write_zeroes(&mut self, offset: u64, length: usize) -> io::Result<()> {
        self.request(WRITE_ZEROES, offset, &[], length)
    }

    /// Writes.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.request(WRITE, offset, bytes, bytes.len())
    }
}

/// A client that writes, reads back and compares until it is told to stop, and reconnects whenever
/// necessary. A lost acknowledged write, or an error answer of a server, fails the test.
pub struct VerifiedIo {
    stop: Arc<AtomicBool>,
    operations: Arc<AtomicU64>,
    connections: Arc<AtomicU64>,
    thread: JoinHandle<Duration>,
}

impl VerifiedIo {
    pub fn start(socket: &Path) -> Self {
        let (stop, operations, connections) = <(Arc<AtomicBool>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let thread = std::thread::spawn({
            let (stop, operations, connections) =
                (Arc::clone(&stop), Arc::clone(&operations), Arc::clone(&connections));
            let socket = socket.to_owned();
            move || {
                let mut client =
                    Verifier { socket, client: None, written: vec![0; BLOCKS as usize], connections };
                let mut longest = Duration::ZERO;
                for number in 1.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let began = Instant::now();
                    client.step(number);
                    longest = longest.max(began.elapsed());
                    operations.fetch_add(1, Ordering::SeqCst);
                }
                (0..BLOCKS).for_each(|block| client.verify(block));
                longest
            }
        });
        Self { stop, operations, connections, thread }
    }

    /// Waits until it has done this many more operations.
    #[track_caller]
    pub fn wait_for_more(&self, more: u64) {
        let enough = self.operations.load(Ordering::SeqCst) + more;
        let until = Instant::now() + DEADLINE;
        while self.operations.load(Ordering::SeqCst) < enough {
            assert!(!self.thread.is_finished(), "the client failed");
            assert!(Instant::now() < until, "no I/O within {DEADLINE:?}");
            std::thread::yield_now();
        }
    }

    /// The number of its connections.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::SeqCst)
    }

    /// Verifies everything once more. Returns the number of operations, and the longest duration of
    /// one.
    #[track_caller]
    pub fn stop(self) -> (u64, Duration) {
        self.stop.store(true, Ordering::SeqCst);
        let longest = self.thread.join().expect("every operation succeeded and everything was as written");
        (self.operations.load(Ordering::SeqCst), longest)
    }
}

struct Verifier {
    socket: PathBuf,
    client: Option<NbdClient>,
    /// The last number written to each block; zero for none.
    written: Vec<u64>,
    connections: Arc<AtomicU64>,
}

impl Verifier {
    /// Writes one block and verifies another, both chosen by the number.
    fn step(&mut self, number: u64) {
        let at = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let block = at(number) % BLOCKS;
        self.until_done(|client| client.write(block * BLOCK_BYTES as u64, &content(number)));
        self.written[block as usize] = number;
        self.verify(at(number + 1) % BLOCKS);
    }

    fn verify(&mut self, block: u64) {
        let mut found = vec![0; BLOCK_BYTES];
        self.until_done(|client| client.read(block * BLOCK_BYTES as u64, &mut found));
        assert!(
            found == content(self.written[block as usize]),
            "block {block} does not hold what was written"
        );
    }

    /// Repeats the request on new connections until it is answered.
    fn until_done(&mut self, mut request: impl FnMut(&mut NbdClient) -> io::Result<()>) {
        let until = Instant::now() + DEADLINE;
        loop {
            if self.client.is_none() {
                self.client = NbdClient::connect(&self.socket).ok();
                self.connections.fetch_add(u64::from(self.client.is_some()), Ordering::SeqCst);
            }
            match self.client.as_mut().map(&mut request) {
                Some(Ok(())) => return,
                Some(Err(_)) | None => self.client = None,
            }
            assert!(Instant::now() < until, "not answered within {DEADLINE:?}");
        }
    }
}

fn content(number: u64) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(BLOCK_BYTES).collect()
}
