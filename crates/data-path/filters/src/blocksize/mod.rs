//! Lets a guest address bytes or sectors of a disk that knows only whole blocks.
//!
//! Above, transfers and zeroings may start and end on any multiple of the configured unit, down to
//! one byte, and the disk has its exact size; below, every extent is whole 4096-byte blocks. A
//! write that covers a part of a block reads the block, changes the part and writes the block back.
//!
//! This is also where a volume's range locks are taken. Whole-block reads and writes share their
//! range; partial writes, zeroings and discards have theirs alone, so that a partial write never
//! puts old bytes back over a write that ran beside it, on whichever channel. All stages of this
//! kind over one volume must be given the same [`RangeLocks`].
//!
//! It cannot deadlock: a request takes its lock first, then all its buffers at once, then goes
//! down, and never takes a second lock or more buffers. See
//! [`ReservedPool`](strongroom_memory::ReservedPool) for the buffers and
//! `docs/decisions/0004-partial-writes.md` for the whole argument.

mod channel;
mod span;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use strongroom_io::{
    Allocation, Channel, Disk, IoError, Limits, Plain, RangeLocks, TRANSFER_BYTES_MAX, Thread,
};
use strongroom_memory::MAX_BUFFER_BYTES;
use strongroom_types::{BLOCK_BYTES, Extent};
use thiserror::Error;

use channel::BlocksizeChannel;

/// What widening can add to a transfer: nearly a block at each end.
const WIDENING_BYTES_MAX: u32 = 2 * BLOCK_BYTES as u32;

/// Why the stage cannot be built, or the disk not be made larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BlocksizeError {
    /// Not a power of two from 1 to 4096.
    #[error("a unit of {0} bytes is not a power of two from 1 to {BLOCK_BYTES}")]
    Unit(u32),
    /// The size is not a multiple of the unit, so its last bytes could not be reached.
    #[error("a disk of {size_bytes} bytes cannot be addressed in units of {unit_bytes} bytes")]
    Size {
        /// The disk's size in bytes.
        size_bytes: u64,
        /// The unit in bytes.
        unit_bytes: u32,
    },
    /// The disk below is smaller.
    #[error("a disk of {size_bytes} bytes does not fit the {below_bytes} bytes of the disk below")]
    TooLarge {
        /// The size asked for, in bytes.
        size_bytes: u64,
        /// What is there, in bytes.
        below_bytes: u64,
    },
    /// The disk below takes no transfer of a few blocks.
    #[error("a disk that takes at most {0} bytes in one transfer cannot take widened ones")]
    TransferTooSmall(u32),
    /// A disk never gets smaller.
    #[error("a disk of {from_bytes} bytes cannot be grown to {to_bytes} bytes, which is less")]
    Shrinks {
        /// The size it has, in bytes.
        from_bytes: u64,
        /// The size asked for, in bytes.
        to_bytes: u64,
    },
}

/// A disk of bytes or sectors over a disk of whole blocks.
pub struct BlocksizeDisk {
    shared: Arc<Shared>,
}

struct Shared {
    below: Arc<dyn Disk<Plain>>,
    locks: Arc<RangeLocks>,
    size_bytes: AtomicU64,
    unit_bytes: u32,
}

impl BlocksizeDisk {
    /// A disk of exactly `size_bytes`, addressed in units of `unit_bytes` (a power of two from 1 to
    /// 4096: 1 for NBD, 512 for virtio), over `below`, which holds at least as many whole blocks.
    ///
    /// # Errors
    /// All but [`BlocksizeError::Shrinks`].
    pub fn new(
        below: Arc<dyn Disk<Plain>>,
        size_bytes: u64,
        unit_bytes: u32,
        locks: Arc<RangeLocks>,
    ) -> Result<Self, BlocksizeError> {
        if !unit_bytes.is_power_of_two() || u64::from(unit_bytes) > BLOCK_BYTES {
            return Err(BlocksizeError::Unit(unit_bytes));
        }
        let transfer_bytes_max = below.limits().transfer_bytes_max;
        if transfer_bytes_max < WIDENING_BYTES_MAX + BLOCK_BYTES as u32 {
            return Err(BlocksizeError::TransferTooSmall(transfer_bytes_max));
        }
        let shared = Shared { below, locks, size_bytes: AtomicU64::new(size_bytes), unit_bytes };
        shared.check_size(size_bytes)?;
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Makes the disk larger, also while channels are open. The disk below is grown first; its new
    /// blocks, and the rest of the block that the old end lay in, read as zeroes.
    ///
    /// # Errors
    /// [`BlocksizeError::Shrinks`], [`BlocksizeError::Size`], [`BlocksizeError::TooLarge`]: nothing
    /// is changed.
    pub fn grow(&self, size_bytes: u64) -> Result<(), BlocksizeError> {
        self.shared.check_size(size_bytes)?;
        let from_bytes = self.shared.size_bytes.fetch_max(size_bytes, Ordering::AcqRel);
        if from_bytes > size_bytes {
            return Err(BlocksizeError::Shrinks { from_bytes, to_bytes: size_bytes });
        }
        Ok(())
    }
}

impl Shared {
    fn check_size(&self, size_bytes: u64) -> Result<(), BlocksizeError> {
        let unit_bytes = self.unit_bytes;
        if !size_bytes.is_multiple_of(u64::from(unit_bytes)) {
            return Err(BlocksizeError::Size { size_bytes, unit_bytes });
        }
        let below_bytes = self.below.limits().size_bytes;
        let widened = Extent::between(0, size_bytes).widened_to(BLOCK_BYTES);
        if widened.end() < size_bytes || widened.end() > below_bytes {
            return Err(BlocksizeError::TooLarge { size_bytes, below_bytes });
        }
        Ok(())
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }
}

impl Disk<Plain> for BlocksizeDisk {
    fn limits(&self) -> Limits {
        let below = self.shared.below.limits();
        let widened_bytes_max = below.transfer_bytes_max.min(MAX_BUFFER_BYTES as u32);
        Limits {
            size_bytes: self.shared.size_bytes(),
            block_bytes: self.shared.unit_bytes,
            preferred_bytes: below.preferred_bytes.max(BLOCK_BYTES as u32),
            transfer_bytes_max: (widened_bytes_max - WIDENING_BYTES_MAX).min(TRANSFER_BYTES_MAX),
            ..below
        }
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Plain>>, IoError> {
        let channel = BlocksizeChannel::open(Arc::clone(&self.shared), self.limits(), thread, depth)?;
        Ok(Box::new(channel))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        let extent = extent.intersection(Extent::between(0, self.shared.size_bytes()));
        self.shared.below.allocation(extent.widened_to(BLOCK_BYTES), &mut |run, allocation| {
            let run = run.intersection(extent);
            run.is_empty() || report(run, allocation)
        })
    }
}
