//! Shared parts of the vhost-user server's tests: a disk, and a front end with its own driver.

// Each test file uses only a part of it, and it is all test code.
#![allow(dead_code, clippy::unwrap_used)]

pub mod driver;
pub mod front_end;

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use strongroom_crypto::xts::{UnitSize, Xts};
use strongroom_datastore::memory::MemoryDisk;
use strongroom_filters::blocksize::BlocksizeDisk;
use strongroom_filters::crypt::{CryptDisk, EpochKeys};
use strongroom_frontend::listen::{Address, Listener};
use strongroom_frontend::vhost_user_blk::{VhostUserConfig, VhostUserServer};
use strongroom_io::{
    Allocation, Channel, Disk, Done, Io, IoError, Limits, Plain, RangeLocks, Request, RequestKind, Sealed,
    Thread,
};
use strongroom_memory::secret::SecretBytes;
use strongroom_ring::Lanes;
use strongroom_types::{Extent, KeyEpoch, VolumeSize};
use tempfile::TempDir;

/// How long a test waits for an event that must happen.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Queues of a server.
pub const QUEUES: u16 = 4;

/// Bytes of the disk of most tests.
pub const DISK_BYTES: u64 = 16 << 20;

/// An encrypted disk in memory, with every stage of a real one.
pub fn disk() -> Arc<dyn Disk<Plain>> {
    stages().1
}

/// The lowest and the highest stage of such a disk, both of which can grow.
pub fn stages() -> (Arc<MemoryDisk>, Arc<BlocksizeDisk>) {
    let blocks = Arc::new(MemoryDisk::new(VolumeSize::new(DISK_BYTES).unwrap(), KeyEpoch::FIRST));
    let cipher = Xts::new(&SecretBytes::random(64).unwrap(), UnitSize::Bytes4096).unwrap();
    let keys = EpochKeys::new(KeyEpoch::FIRST, Arc::new(cipher)).unwrap();
    let crypt = CryptDisk::new(Arc::clone(&blocks) as Arc<dyn Disk<Sealed>>, Arc::new(keys));
    let highest = BlocksizeDisk::new(Arc::new(crypt), DISK_BYTES, 1, RangeLocks::new()).unwrap();
    (blocks, Arc::new(highest))
}

/// A server in its own directory. The test owns the socket, so that one server can follow another.
pub struct Local {
    pub server: VhostUserServer,
    pub directory: TempDir,
    pub socket: PathBuf,
    listener: Listener,
}

impl Local {
    pub fn start(disk: Arc<dyn Disk<Plain>>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("vhost.sock");
        let listener = Listener::bind(&Address::Unix(socket.clone())).unwrap();
        let server = VhostUserServer::start(config(), adopt(&listener), disk, lanes()).unwrap();
        Self { server, directory, socket, listener }
    }

    /// Hands all sessions over to a new server, perhaps with another disk.
    pub fn upgrade(self, disk: Arc<dyn Disk<Plain>>) -> Self {
        let suspended = self.server.suspend().unwrap();
        let server =
            VhostUserServer::resume(config(), adopt(&self.listener), disk, lanes(), suspended).unwrap();
        Self { server, ..self }
    }

    /// Ends the server and starts a new one on the same socket.
    pub fn restart(self, disk: Arc<dyn Disk<Plain>>) -> Self {
        self.server.stop().unwrap();
        let server = VhostUserServer::start(config(), adopt(&self.listener), disk, lanes()).unwrap();
        Self { server, ..self }
    }
}

pub fn config() -> VhostUserConfig {
    VhostUserConfig { queues_max: QUEUES, ..VhostUserConfig::new("room-1") }
}

pub fn lanes() -> Lanes {
    Lanes::start("lane", config().lanes(), 256).unwrap()
}

fn adopt(listener: &Listener) -> Listener {
    Listener::adopt(listener.as_fd().try_clone_to_owned().unwrap()).unwrap()
}

/// The writes and flushes of a disk: the kind, the bytes, and whether it had to be durable.
pub type Log = Arc<Mutex<Vec<(RequestKind, u64, bool)>>>;

/// A disk that records its requests.
pub struct Recorded {
    pub disk: Arc<dyn Disk<Plain>>,
    pub log: Log,
    pub read_only: bool,
}

struct RecordedChannel(Box<dyn Channel<Plain>>, Log);

impl Disk<Plain> for Recorded {
    fn limits(&self) -> Limits {
        Limits { read_only: self.read_only, ..self.disk.limits() }
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Plain>>, IoError> {
        Ok(Box::new(RecordedChannel(self.disk.open(thread, depth)?, Arc::clone(&self.log))))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        self.disk.allocation(extent, report)
    }
}

impl Channel<Plain> for RecordedChannel {
    fn submit(&mut self, io: Io<Plain>) {
        let durable = match &io.request {
            Request::Write { durable, .. } | Request::WriteZeroes { durable, .. } => *durable,
            Request::Read { .. } | Request::Flush | Request::Discard { .. } => false,
        };
        let entry = (io.request.kind(), io.request.extent().length(), durable);
        self.1.lock().push(entry);
        self.0.submit(io);
    }

    fn kick(&mut self) {
        self.0.kick();
    }

    fn poll(&mut self, done: &mut Vec<Done<Plain>>) {
        self.0.poll(done);
    }
}
