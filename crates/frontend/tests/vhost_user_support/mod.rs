//! What the tests of the vhost-user server share: a disk, and a front end with a driver of its own.

// Each test file uses a part of it, and all of it is tests.
#![allow(dead_code, clippy::unwrap_used)]

pub mod driver;
pub mod front_end;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use strongroom_crypto::xts::{UnitSize, Xts};
use strongroom_datastore::memory::MemoryDisk;
use strongroom_filters::blocksize::BlocksizeDisk;
use strongroom_filters::crypt::{CryptDisk, EpochKeys};
use strongroom_frontend::vhost_user_blk::{VhostUserConfig, VhostUserServer};
use strongroom_io::{
    Allocation, Channel, Disk, Done, Io, IoError, Limits, Plain, RangeLocks, Request, RequestKind, Sealed,
    Thread,
};
use strongroom_memory::secret::SecretBytes;
use strongroom_types::{Extent, KeyEpoch, VolumeSize};
use tempfile::TempDir;

/// How long a test waits for what must happen.
pub const DEADLINE: Duration = Duration::from_secs(60);

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

/// A server in a directory of its own.
pub struct Local {
    pub server: VhostUserServer,
    pub directory: TempDir,
    pub socket: PathBuf,
}

impl Local {
    pub fn start(disk: Arc<dyn Disk<Plain>>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("vhost.sock");
        let config = VhostUserConfig { queues_max: 4, ..VhostUserConfig::new(socket.clone(), "room-1") };
        let server = VhostUserServer::start(config, disk).unwrap();
        Self { server, directory, socket }
    }
}

/// What a disk was asked to write or flush: the kind, the bytes, and whether it had to be durable.
pub type Log = Arc<Mutex<Vec<(RequestKind, u64, bool)>>>;

/// A disk that remembers what it was asked for.
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
        self.1.lock().unwrap().push(entry);
        self.0.submit(io);
    }

    fn kick(&mut self) {
        self.0.kick();
    }

    fn poll(&mut self, done: &mut Vec<Done<Plain>>) {
        self.0.poll(done);
    }
}
