//! Memory of either payload for the suite's transfers.

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

/// Memory for 64 of the longest transfers, of which each takes a chunk; it is mapped as it is
/// needed.
const POOL_BYTES: usize = 64 * 2 * CHUNK_BYTES;

/// What a transfer that reads finds in its memory: no content that is ever written.
const BEFORE_A_READ: u8 = 0xEE;

/// Where the suite's memory comes from: never from the pool of the thread, which belongs to the
/// stages.
#[derive(Debug)]
pub struct TestMemory {
    pool: BufferPool,
    epoch: KeyEpoch,
}

impl TestMemory {
    /// Memory for one thread; sealed writes bear the seal of `epoch`.
    pub fn new(epoch: KeyEpoch) -> Result<Self, Violation> {
        let pool = BufferPool::new(POOL_BYTES).map_err(|_| out_of_memory())?;
        Ok(Self { pool, epoch })
    }

    /// Memory that holds `content`, to be written.
    pub fn with<P: TestPayload>(&self, content: &[u8], random: &mut StdRng) -> Result<P::Memory, Violation> {
        let mut memory = P::memory(self, content.len(), random).ok_or_else(out_of_memory)?;
        P::fill(&mut memory, content);
        Ok(memory)
    }

    /// Memory to be read into, full of what must not be left in it.
    pub fn blank<P: TestPayload>(&self, length: usize, random: &mut StdRng) -> Result<P::Memory, Violation> {
        self.with::<P>(&vec![BEFORE_A_READ; length], random)
    }
}

fn out_of_memory() -> Violation {
    Violation::Setup(IoError::from(rustix::io::Errno::NOMEM))
}

/// What the suite must know of a payload.
pub trait TestPayload: Payload {
    /// Some memory of this length, at least one byte.
    fn memory(source: &TestMemory, length: usize, random: &mut StdRng) -> Option<Self::Memory>;

    /// Fills all of the memory, which is as long.
    fn fill(memory: &mut Self::Memory, content: &[u8]);

    /// What is in the memory.
    fn content(memory: &Self::Memory) -> Vec<u8>;

    /// Where its first byte is: it tells one memory from another.
    fn address(memory: &Self::Memory) -> usize;

    /// Checks the seals of what was read.
    fn check_seals(source: &TestMemory, extent: Extent, memory: &Self::Memory) -> Result<(), Violation>;
}

impl TestPayload for Plain {
    /// A buffer, as a network client's, or pieces of a guest's memory that begin and end anywhere.
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
