//! Memory for the suite's transfers, of either payload.

use rand::Rng;
use rand::rngs::StdRng;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::sync::Arc;

use strongroom_memory::{
    Buffer, BufferPool, CHUNK_BYTES, GuestAddress, GuestMemory, GuestRegion, GuestSlice,
};
use strongroom_types::{BLOCK_BYTES, Extent, KeyEpoch};

use super::Violation;
use crate::error::IoError;
use crate::request::{Payload, Plain, Sealed};

/// Memory for 64 of the longest transfers, each of which takes a chunk; it is mapped as needed.
const POOL_BYTES: usize = 64 * 2 * CHUNK_BYTES;

/// The fill of a read's memory before the read: a byte that is never written as content.
const BEFORE_A_READ: u8 = 0xEE;

/// The source of the suite's memory. It is never the thread's pool, which belongs to the stages.
#[derive(Debug)]
pub struct TestMemory {
    pool: BufferPool,
    epoch: KeyEpoch,
}

impl TestMemory {
    /// Memory for one thread; sealed writes have the seal of `epoch`.
    pub fn new(epoch: KeyEpoch) -> Result<Self, Violation> {
        let pool = BufferPool::new(POOL_BYTES).map_err(|_| out_of_memory())?;
        Ok(Self { pool, epoch })
    }

    /// Memory with `content`, for a write.
    pub fn with<P: TestPayload>(&self, content: &[u8], random: &mut StdRng) -> Result<P::Memory, Violation> {
        let mut memory = P::memory(self, content.len(), random).ok_or_else(out_of_memory)?;
        P::fill(&mut memory, content);
        Ok(memory)
    }

    /// Memory for a read, filled with bytes that must not remain in it.
    pub fn blank<P: TestPayload>(&self, length: usize, random: &mut StdRng) -> Result<P::Memory, Violation> {
        self.with::<P>(&vec![BEFORE_A_READ; length], random)
    }
}

fn out_of_memory() -> Violation {
    Violation::Setup(IoError::from(rustix::io::Errno::NOMEM))
}

/// The operations on a payload that the suite needs.
pub trait TestPayload: Payload {
    /// Some memory of this length, at least one byte.
    fn memory(source: &TestMemory, length: usize, random: &mut StdRng) -> Option<Self::Memory>;

    /// Fills all of the memory, which has the length of `content`.
    fn fill(memory: &mut Self::Memory, content: &[u8]);

    /// The content of the memory.
    fn content(memory: &Self::Memory) -> Vec<u8>;

    /// The address of its first byte, which identifies the memory.
    fn address(memory: &Self::Memory) -> usize;

    /// Checks the seals of what was read.
    fn check_seals(source: &TestMemory, extent: Extent, memory: &Self::Memory) -> Result<(), Violation>;
}

impl TestPayload for Plain {
    /// Either a buffer, as for a network client, or pieces of a guest's memory that begin and end
    /// anywhere.
    fn memory(source: &TestMemory, length: usize, random: &mut StdRng) -> Option<GuestSlice> {
        if random.random() {
            source.pool.take(length).map(GuestSlice::from_buffer)
        } else {
            scattered(length, random)
        }
    }

    fn fill(memory: &mut GuestSlice, content: &[u8]) {
        memory.copy_from(0, content);
    }

    fn content(memory: &GuestSlice) -> Vec<u8> {
        let mut content = vec![0; memory.len()];
        memory.copy_to(0, &mut content);
        content
    }

    fn address(memory: &GuestSlice) -> usize {
        memory.segments(0, memory.len()).next().map_or(0, |first| first.host().addr().get())
    }

    fn check_seals(_: &TestMemory, _: Extent, _: &GuestSlice) -> Result<(), Violation> {
        Ok(())
    }
}

fn scattered(length: usize, random: &mut StdRng) -> Option<GuestSlice> {
    const GAP_BYTES: usize = 40;
    let mut cuts: Vec<usize> =
        (0..random.random_range(0..6)).map(|_| random.random_range(0..=length)).collect();
    cuts.push(0);
    cuts.push(length);
    cuts.sort_unstable();
    let gaps = cuts.len() * GAP_BYTES;
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).ok()?;
    ftruncate(&file, (length + gaps) as u64).ok()?;
    let region = GuestRegion::map(&file, 0, GuestAddress(0), (length + gaps) as u64).ok()?;
    let memory = Arc::new(GuestMemory::new(vec![region], None).ok()?);
    let ranges = cuts.windows(2).enumerate().map(|(index, piece)| {
        (GuestAddress((piece[0] + index * GAP_BYTES) as u64), (piece[1] - piece[0]) as u32)
    });
    GuestSlice::from_guest(&memory, ranges, Vec::new()).ok()
}

impl TestPayload for Sealed {
    fn memory(source: &TestMemory, length: usize, _: &mut StdRng) -> Option<Buffer> {
        let mut buffer = source.pool.take(length)?;
        buffer.seals_mut().fill(Some(source.epoch));
        Some(buffer)
    }

    fn fill(memory: &mut Buffer, content: &[u8]) {
        memory.bytes_mut().copy_from_slice(content);
    }

    fn content(memory: &Buffer) -> Vec<u8> {
        memory.bytes().to_vec()
    }

    fn address(memory: &Buffer) -> usize {
        memory.address().addr().get()
    }

    fn check_seals(source: &TestMemory, extent: Extent, memory: &Buffer) -> Result<(), Violation> {
        let blocks = memory.bytes().chunks(BLOCK_BYTES as usize).zip(memory.seals());
        for (block, (content, seal)) in (extent.offset() / BLOCK_BYTES..).zip(blocks) {
            let is_zero = content.iter().all(|byte| *byte == 0);
            let expected = if is_zero { None } else { Some(source.epoch) };
            if *seal != expected {
                return Err(Violation::Seal { block, seal: *seal, is_zero });
            }
        }
        Ok(())
    }
}
