//! A volume in memory, for tests and for measuring the cost of the stages above.
//!
//! Like the file datastore it stores only bytes: a block of zeroes is an absent block, and any
//! other block was sealed under the one epoch that the disk was made with. Memory is allocated by
//! the MiB on first write. Nothing outlives the process, so a flush has nothing to do.

mod chunks;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use strongroom_io::{
    Allocation, Channel, Disk, Done, Io, IoError, Limits, Request, Sealed, TRANSFER_BYTES_MAX, Thread,
};
use strongroom_types::{BLOCK_BYTES, Extent, KeyEpoch, VolumeSize};
use thiserror::Error;

use chunks::Chunks;

/// The most bytes that a stage above may add to a frontend's largest transfer when it widens it to
/// whole blocks.
const WIDENING_BYTES_MAX: u32 = 2 * BLOCK_BYTES as u32;

/// Why a disk in memory cannot be made larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum GrowError {
    /// It would lose bytes.
    #[error("a disk of {from} cannot be grown to {to}, which is less")]
    Shrinks {
        /// Its present size, in bytes.
        from: u64,
        /// The size asked for.
        to: VolumeSize,
    },
}

/// A disk in memory.
#[derive(Debug)]
pub struct MemoryDisk {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    chunks: Chunks,
    size_bytes: AtomicU64,
    epoch: KeyEpoch,
}

impl MemoryDisk {
    /// An empty disk of `size`, rounded up to whole blocks. Blocks are written, and read back, as
    /// sealed under `epoch`.
    pub fn new(size: VolumeSize, epoch: KeyEpoch) -> Self {
        let size_bytes = AtomicU64::new(size.block_aligned_bytes());
        Self { shared: Arc::new(Shared { chunks: Chunks::default(), size_bytes, epoch }) }
    }

    /// Grows the disk, even while channels are open; the new part reads as zeroes.
    ///
    /// # Errors
    /// [`GrowError::Shrinks`].
    pub fn grow(&self, size: VolumeSize) -> Result<(), GrowError> {
        let to_bytes = size.block_aligned_bytes();
        let from = self.shared.size_bytes.fetch_max(to_bytes, Ordering::AcqRel);
        if from > to_bytes { Err(GrowError::Shrinks { from, to: size }) } else { Ok(()) }
    }

    /// Memory used for content, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.shared.chunks.resident_bytes()
    }
}

impl Disk<Sealed> for MemoryDisk {
    fn limits(&self) -> Limits {
        self.shared.limits()
    }

    fn open(&self, _: &Thread, depth: usize) -> Result<Box<dyn Channel<Sealed>>, IoError> {
        Ok(Box::new(MemoryChannel {
            shared: Arc::clone(&self.shared),
            submitted: VecDeque::with_capacity(depth),
        }))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        let disk = Extent::between(0, self.limits().size_bytes);
        self.shared.chunks.allocation(extent.intersection(disk), report);
        Ok(())
    }
}

impl Shared {
    fn limits(&self) -> Limits {
        Limits {
            size_bytes: self.size_bytes.load(Ordering::Acquire),
            block_bytes: BLOCK_BYTES as u32,
            preferred_bytes: BLOCK_BYTES as u32,
            transfer_bytes_max: TRANSFER_BYTES_MAX + WIDENING_BYTES_MAX,
            read_only: false,
            discards: true,
        }
    }

    fn perform(&self, request: &mut Request<Sealed>) -> Result<(), IoError> {
        self.limits().check(request)?;
        match request {
            Request::Read { extent, into } => {
                let (bytes, seals) = into.parts_mut();
                self.chunks.read(extent.offset(), bytes);
                for (block, seal) in bytes.chunks_exact(BLOCK_BYTES as usize).zip(seals) {
                    *seal = (!chunks::is_zero(block)).then_some(self.epoch);
                }
            }
            Request::Write { extent, from, durable: _ } => {
                let first_block = extent.offset() / BLOCK_BYTES;
                for (block, seal) in (first_block..).zip(from.seals()) {
                    // Only one epoch is stored, so the block would be read back with the wrong
                    // seal.
                    if let Some(epoch) = seal.filter(|epoch| *epoch != self.epoch) {
                        return Err(IoError::UnknownEpoch { block, epoch });
                    }
                }
                self.chunks.write(extent.offset(), from.bytes());
            }
            Request::Discard { extent } => self.chunks.zero(extent.narrowed_to(BLOCK_BYTES)),
            Request::WriteZeroes { extent, may_unmap: _, durable: _ } => self.chunks.zero(*extent),
            Request::Flush => {}
        }
        Ok(())
    }
}

struct MemoryChannel {
    shared: Arc<Shared>,
    submitted: VecDeque<Io<Sealed>>,
}

impl Channel<Sealed> for MemoryChannel {
    fn submit(&mut self, io: Io<Sealed>) {
        self.submitted.push_back(io);
    }

    fn kick(&mut self) {}

    fn poll(&mut self, done: &mut Vec<Done<Sealed>>) {
        for mut io in self.submitted.drain(..) {
            let result = self.shared.perform(&mut io.request);
            done.push(io.end(result));
        }
    }
}

#[cfg(test)]
mod tests {
    use strongroom_io::conformance::Conformance;

    use super::*;

    fn size(bytes: u64) -> VolumeSize {
        VolumeSize::new(bytes).unwrap()
    }

    #[test]
    fn it_is_a_disk() {
        for bytes in [4096, 5 << 20, 64 << 40] {
            let epoch = KeyEpoch::new(7).unwrap();
            let suite = Conformance::new(move || MemoryDisk::new(size(bytes), epoch)).epoch(epoch);
            if let Err(failure) = suite.run() {
                panic!("{bytes} bytes: {failure}");
            }
        }
    }

    #[test]
    fn it_grows_and_never_shrinks() {
        let disk = MemoryDisk::new(size(4608), KeyEpoch::FIRST);
        assert_eq!(disk.limits().size_bytes, 8192);
        disk.grow(size(1 << 20)).unwrap();
        assert_eq!(disk.limits().size_bytes, 1 << 20);
        assert_eq!(disk.grow(size(8192)), Err(GrowError::Shrinks { from: 1 << 20, to: size(8192) }));
        assert_eq!(disk.limits().size_bytes, 1 << 20);
    }

    #[test]
    fn a_write_under_another_epoch_is_refused_and_not_kept() {
        use strongroom_memory::{BufferPool, CHUNK_BYTES};
        let disk = MemoryDisk::new(size(1 << 20), KeyEpoch::FIRST);
        let mut from = BufferPool::new(CHUNK_BYTES).unwrap().take(8192).unwrap();
        from.bytes_mut().fill(1);
        let epoch = KeyEpoch::new(2).unwrap();
        from.seals_mut().copy_from_slice(&[Some(KeyEpoch::FIRST), Some(epoch)]);
        let mut write = Request::Write { extent: Extent::between(4096, 12_288), from, durable: false };
        assert_eq!(disk.shared.perform(&mut write), Err(IoError::UnknownEpoch { block: 2, epoch }));
        assert_eq!(disk.resident_bytes(), 0);
    }
}
