//! Shared by the load's tests: our own server, on a disk in memory that may lie.

// Each test file uses only a part of it.
#![allow(dead_code, clippy::unwrap_used)]

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use strongroom_frontend::listen::{Address, Listener};
use strongroom_frontend::vhost_user_blk::{VhostUserConfig, VhostUserServer};
use strongroom_io::{Allocation, Channel, Disk, Done, Io, IoError, Limits, Plain, Request, Thread};
use strongroom_ring::Lanes;
use strongroom_types::Extent;
use tempfile::TempDir;

/// Bytes of the disk.
pub const DISK_BYTES: u64 = 8 << 20;

const QUEUES: u16 = 4;
const DEPTH: usize = 256;

/// A disk's misbehaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Nothing.
    None,
    /// A write is answered without being done.
    LostWrite,
    /// A read returns the content before the last write of each of its sectors.
    StaleRead,
    /// Only some bytes of a write's last sector arrive.
    TornSector,
    /// A write arrives at the wrong place.
    MisdirectedWrite,
    /// A read is answered without touching its memory.
    EmptyRead,
    /// A discard affects one sector too many.
    WideDiscard,
    /// A zeroing is answered without being done.
    LostZeroes,
    /// Bits change in transit.
    Noise,
}

/// A disk in memory, which lies on every 20th suitable request.
pub struct LyingDisk {
    lie: Lie,
    state: Mutex<State>,
}

struct State {
    content: Vec<u8>,
    /// The content that the last write of each sector replaced.
    before: Vec<u8>,
    requests: u64,
}

impl LyingDisk {
    pub fn new(lie: Lie) -> Arc<Self> {
        let zeroes = vec![0; DISK_BYTES as usize];
        let state = State { content: zeroes.clone(), before: zeroes, requests: 0 };
        Arc::new(Self { lie, state: Mutex::new(state) })
    }

    /// Its whole content.
    pub fn content(&self) -> Vec<u8> {
        self.state.lock().content.clone()
    }

    /// The number of served requests.
    pub fn requests(&self) -> u64 {
        self.state.lock().requests
    }
}

impl State {
    fn execute(&mut self, io: &mut Io<Plain>, lie: Lie) {
        self.requests += 1;
        let lies = |kind| lie == kind && self.requests.is_multiple_of(20);
        let extent = io.request.extent();
        let range = extent.offset() as usize..extent.end() as usize;
        match &mut io.request {
            Request::Read { .. } if lies(Lie::EmptyRead) => {}
            Request::Read { into, .. } if lies(Lie::StaleRead) => into.copy_from(0, &self.before[range]),
            Request::Read { into, .. } => into.copy_from(0, &self.content[range]),
            Request::Write { .. } if lies(Lie::LostWrite) => {}
            Request::Write { from, .. } => {
                let (torn, misdirected, noise) =
                    (lies(Lie::TornSector), lies(Lie::MisdirectedWrite), lies(Lie::Noise));
                self.before[range.clone()].copy_from_slice(&self.content[range.clone()]);
                let mut bytes = vec![0; range.len()];
                from.copy_to(0, &mut bytes);
                if torn {
                    let cut = range.len() - 100;
                    bytes[cut..].copy_from_slice(&self.content[range.end - 100..range.end]);
                }
                if noise {
                    bytes[5] ^= 0x40;
                }
                let range = match misdirected {
                    true if range.end + 4096 <= self.content.len() => range.start + 4096..range.end + 4096,
                    _ => range,
                };
                self.content[range].copy_from_slice(&bytes);
            }
            Request::Flush => {}
            Request::Discard { .. } => {
                let end = if lies(Lie::WideDiscard) { range.end + 512 } else { range.end };
                let end = end.min(self.content.len());
                self.content[range.start..end].fill(0);
            }
            Request::WriteZeroes { .. } if lies(Lie::LostZeroes) => {}
            Request::WriteZeroes { .. } => self.content[range].fill(0),
        }
    }
}

/// A wrapper, so that channels can outlive the borrow.
pub struct Served(pub Arc<LyingDisk>);

impl Disk<Plain> for Served {
    fn limits(&self) -> Limits {
        Limits {
            size_bytes: DISK_BYTES,
            block_bytes: 1,
            preferred_bytes: 4096,
            transfer_bytes_max: 1 << 20,
            read_only: false,
            discards: true,
        }
    }

    fn open(&self, _: &Thread, _: usize) -> Result<Box<dyn Channel<Plain>>, IoError> {
        Ok(Box::new(LyingChannel { disk: Arc::clone(&self.0), held: Vec::new() }))
    }

    fn allocation(&self, _: Extent, _: &mut dyn FnMut(Extent, Allocation) -> bool) -> Result<(), IoError> {
        Ok(())
    }
}

struct LyingChannel {
    disk: Arc<LyingDisk>,
    held: Vec<Io<Plain>>,
}

impl Channel<Plain> for LyingChannel {
    fn submit(&mut self, io: Io<Plain>) {
        self.held.push(io);
    }

    fn kick(&mut self) {}

    fn poll(&mut self, done: &mut Vec<Done<Plain>>) {
        let mut state = self.disk.state.lock();
        // The last first, so that nothing relies on the order.
        while let Some(mut io) = self.held.pop() {
            state.execute(&mut io, self.disk.lie);
            done.push(io.end(Ok(())));
        }
    }
}

/// A server in its own directory.
pub struct Local {
    pub server: VhostUserServer,
    pub socket: PathBuf,
    listener: Listener,
    directory: TempDir,
}

impl Local {
    pub fn start(disk: Arc<dyn Disk<Plain>>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("vhost.sock");
        let listener = Listener::bind(&Address::Unix(socket.clone())).unwrap();
        let server = serve(&listener, disk);
        Self { server, socket, listener, directory }
    }

    /// Ends the server and starts a new one on the same socket.
    pub fn restart(self, disk: Arc<dyn Disk<Plain>>) -> Self {
        self.server.stop().unwrap();
        let server = serve(&self.listener, disk);
        Self { server, ..self }
    }

    /// Hands all sessions over to a new server.
    pub fn upgrade(self, disk: Arc<dyn Disk<Plain>>) -> Self {
        let suspended = self.server.suspend().unwrap();
        let listener = adopt(&self.listener);
        let server = VhostUserServer::resume(config(), listener, disk, lanes(), suspended).unwrap();
        Self { server, ..self }
    }
}

fn serve(listener: &Listener, disk: Arc<dyn Disk<Plain>>) -> VhostUserServer {
    VhostUserServer::start(config(), adopt(listener), disk, lanes()).unwrap()
}

fn config() -> VhostUserConfig {
    VhostUserConfig { queues_max: QUEUES, ..VhostUserConfig::new("room-1") }
}

fn lanes() -> Lanes {
    Lanes::start("vhost-user", config().lanes(), DEPTH).unwrap()
}

fn adopt(listener: &Listener) -> Listener {
    Listener::adopt(listener.as_fd().try_clone_to_owned().unwrap()).unwrap()
}
