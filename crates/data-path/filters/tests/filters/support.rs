//! Stacks of stages to be tested.

use std::sync::Arc;

use parking_lot::Mutex;
use strongroom_crypto::xts::{KEY_BYTES, UnitSize, Xts};
use strongroom_datastore::memory::MemoryDisk;
use strongroom_filters::blocksize::BlocksizeDisk;
use strongroom_filters::crypt::{CryptDisk, EpochKeys};
use strongroom_filters::mixed::{MixedDisk, Writes};
use strongroom_io::{
    Allocation, Channel, Disk, Done, Io, IoError, Limits, Plain, RangeLocks, Request, RequestKind, Sealed,
    Thread,
};
use strongroom_memory::secret::SecretBytes;
use strongroom_types::{Extent, KeyEpoch, VolumeSize};

pub fn key() -> Arc<Xts> {
    Arc::new(Xts::new(&SecretBytes::random(KEY_BYTES).unwrap(), UnitSize::Bytes4096).unwrap())
}

pub fn memory(bytes: u64) -> Arc<MemoryDisk> {
    Arc::new(MemoryDisk::new(VolumeSize::new(bytes).unwrap(), KeyEpoch::FIRST))
}

/// One whose blocks are clear.
pub fn clear_memory(bytes: u64) -> Arc<MemoryDisk> {
    Arc::new(MemoryDisk::new(VolumeSize::new(bytes).unwrap(), KeyEpoch::CLEAR))
}

pub fn mixed(below: Arc<dyn Disk<Sealed>>, writes: Writes) -> MixedDisk {
    MixedDisk::new(below, Arc::new(EpochKeys::new(KeyEpoch::FIRST, key()).unwrap()), writes)
}

pub fn crypt(below: Arc<dyn Disk<Sealed>>) -> CryptDisk {
    CryptDisk::new(below, Arc::new(EpochKeys::new(KeyEpoch::FIRST, key()).unwrap()))
}

pub fn blocksize(below: Arc<dyn Disk<Plain>>, bytes: u64, unit_bytes: u32) -> BlocksizeDisk {
    BlocksizeDisk::new(below, bytes, unit_bytes, RangeLocks::new()).unwrap()
}

/// What a stage sent below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub kind: RequestKind,
    pub extent: Extent,
    pub durable: bool,
}

/// A disk that writes down what passes.
pub struct SpyDisk {
    below: Arc<dyn Disk<Plain>>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl SpyDisk {
    pub fn new(below: Arc<dyn Disk<Plain>>) -> Self {
        Self { below, seen: Arc::default() }
    }

    /// What passed since the last call.
    pub fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock())
    }
}

impl Disk<Plain> for SpyDisk {
    fn limits(&self) -> Limits {
        self.below.limits()
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Plain>>, IoError> {
        Ok(Box::new(SpyChannel { below: self.below.open(thread, depth)?, seen: Arc::clone(&self.seen) }))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        self.below.allocation(extent, report)
    }
}

struct SpyChannel {
    below: Box<dyn Channel<Plain>>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Channel<Plain> for SpyChannel {
    fn submit(&mut self, io: Io<Plain>) {
        let durable = match io.request {
            Request::Write { durable, .. } | Request::WriteZeroes { durable, .. } => durable,
            Request::Read { .. } | Request::Flush | Request::Discard { .. } => false,
        };
        let seen = Seen { kind: io.request.kind(), extent: io.request.extent(), durable };
        self.seen.lock().push(seen);
        self.below.submit(io);
    }

    fn kick(&mut self) {
        self.below.kick();
    }

    fn poll(&mut self, done: &mut Vec<Done<Plain>>) {
        self.below.poll(done);
    }
}
