//! Sparse bytes for many threads: chunks of 1 MiB that exist once something other than zeroes may
//! be in them.
//!
//! They hang in a tree of three levels (TiB, GiB, MiB), so that the largest volume needs no more
//! memory than a small one before it is written to, finding a chunk takes no lock, and growing
//! costs nothing. Each chunk has its own lock; a block lies within one chunk, and so is read and
//! written as a whole.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use strongroom_io::Allocation;
use strongroom_types::{BLOCK_BYTES, Extent, MAX_VOLUME_BYTES};

const CHUNK_BYTES: u64 = 1 << 20;
/// Children of one node: a TiB has 1024 GiB, a GiB has 1024 chunks.
const FANOUT: u64 = 1024;
const GIB: u64 = FANOUT * CHUNK_BYTES;
const TIB: u64 = FANOUT * GIB;
const TIBS: usize = (MAX_VOLUME_BYTES / TIB) as usize;

type Chunk = RwLock<Option<Bytes>>;
type Node<Child> = OnceLock<Box<[Child]>>;

pub struct Chunks {
    tibs: [Node<Node<Chunk>>; TIBS],
    resident: AtomicU64,
}

impl Default for Chunks {
    fn default() -> Self {
        Self { tibs: [const { OnceLock::new() }; TIBS], resident: AtomicU64::new(0) }
    }
}

impl Chunks {
    /// Fills `into` with the bytes from `offset` on.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        let mut rest = into;
        for piece in pieces(extent_of(offset, rest.len())) {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(piece.length() as usize);
            rest = later;
            let chunk = self.chunk(piece.offset()).map(|chunk| chunk.read());
            match chunk.as_ref().and_then(|chunk| chunk.as_ref()) {
                Some(bytes) => now.copy_from_slice(&bytes[within_chunk(piece)]),
                None => now.fill(0),
            }
        }
    }

    /// Writes `from` at `offset`.
    pub fn write(&self, offset: u64, from: &[u8]) {
        let mut rest = from;
        for piece in pieces(extent_of(offset, from.len())) {
            let (now, later) = rest.split_at(piece.length() as usize);
            rest = later;
            let mut chunk = self.chunk_or_new(piece.offset()).write();
            let bytes = chunk.get_or_insert_with(|| {
                self.resident.fetch_add(CHUNK_BYTES, Ordering::Relaxed);
                Bytes::zeroed()
            });
            bytes[within_chunk(piece)].copy_from_slice(now);
        }
    }

    /// Zeroes the extent. Chunks that lie wholly within it are freed. Parts that never existed are
    /// skipped by the GiB and TiB, so the extent may be of any length.
    pub fn zero(&self, extent: Extent) {
        self.for_each_chunk(extent, &mut |piece, chunk| {
            let Some(chunk) = chunk else { return true };
            let mut chunk = chunk.write();
            if piece.length() < CHUNK_BYTES {
                if let Some(bytes) = chunk.as_mut() {
                    bytes[within_chunk(piece)].fill(0);
                }
            } else if chunk.take().is_some() {
                self.resident.fetch_sub(CHUNK_BYTES, Ordering::Relaxed);
            }
            true
        });
    }

    /// Reports existing blocks as data and the rest as holes, in runs, until `report` returns
    /// `false`.
    pub fn allocation(&self, extent: Extent, report: &mut dyn FnMut(Extent, Allocation) -> bool) {
        let mut run: Option<(Extent, Allocation)> = None;
        let mut stopped = false;
        let mut add = |piece: Extent, allocation| {
            match &mut run {
                Some((extent, of)) if *of == allocation => {
                    *extent = Extent::between(extent.offset(), piece.end());
                }
                _ => stopped = run.replace((piece, allocation)).is_some_and(|(run, of)| !report(run, of)),
            }
            !stopped
        };
        self.for_each_chunk(extent, &mut |piece, chunk| {
            let chunk = chunk.map(|chunk| chunk.read());
            let Some(bytes) = chunk.as_ref().and_then(|chunk| chunk.as_ref()) else {
                return add(piece, Allocation::Hole);
            };
            let blocks = piece.widened_to(BLOCK_BYTES);
            (blocks.offset()..blocks.end()).step_by(BLOCK_BYTES as usize).all(|offset| {
                let block = Extent::between(offset, offset + BLOCK_BYTES);
                let allocation =
                    if is_zero(&bytes[within_chunk(block)]) { Allocation::Hole } else { Allocation::Data };
                add(block.intersection(piece), allocation)
            })
        });
        if let (Some((run, of)), false) = (run, stopped) {
            report(run, of);
        }
    }

    pub fn resident_bytes(&self) -> u64 {
        self.resident.load(Ordering::Relaxed)
    }

    fn chunk(&self, offset: u64) -> Option<&Chunk> {
        let gibs = self.tibs.get((offset / TIB) as usize)?.get()?;
        let chunks = gibs[(offset / GIB % FANOUT) as usize].get()?;
        Some(&chunks[(offset / CHUNK_BYTES % FANOUT) as usize])
    }

    /// The chunk at `offset`, which is below the size of a volume.
    fn chunk_or_new(&self, offset: u64) -> &Chunk {
        let gibs = self.tibs[(offset / TIB) as usize].get_or_init(node);
        let chunks = gibs[(offset / GIB % FANOUT) as usize].get_or_init(node);
        &chunks[(offset / CHUNK_BYTES % FANOUT) as usize]
    }

    /// Visits the extent's pieces in order, each with the chunk that holds it. Where a whole GiB or
    /// TiB does not exist, its part of the extent is one piece without a chunk. Ends when `visit`
    /// returns `false`.
    fn for_each_chunk(&self, extent: Extent, visit: &mut dyn FnMut(Extent, Option<&Chunk>) -> bool) {
        let mut offset = extent.offset();
        while offset < extent.end() {
            let tib = self.tibs.get((offset / TIB) as usize).and_then(OnceLock::get);
            let gib = tib.and_then(|gibs| gibs[(offset / GIB % FANOUT) as usize].get());
            let chunk = gib.map(|chunks| &chunks[(offset / CHUNK_BYTES % FANOUT) as usize]);
            let unit = match (tib, gib) {
                (None, _) => TIB,
                (_, None) => GIB,
                _ => CHUNK_BYTES,
            };
            let end = extent.end().min((offset / unit + 1) * unit);
            if !visit(Extent::between(offset, end), chunk) {
                return;
            }
            offset = end;
        }
    }
}

impl fmt::Debug for Chunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunks({} bytes)", self.resident_bytes())
    }
}

/// The bytes of a chunk, on a page boundary: directly after the allocator's header, each copy to or
/// from a buffer would be misaligned by 16 bytes, and would stall the processor, which compares
/// addresses by their offset in a page.
struct Bytes {
    /// One page more than the chunk. The kernel provides zeroed memory of this size page by page,
    /// as it is used.
    memory: Box<[u8]>,
    start: usize,
}

impl Bytes {
    fn zeroed() -> Self {
        let memory = vec![0; (CHUNK_BYTES + BLOCK_BYTES) as usize].into_boxed_slice();
        let start = memory.as_ptr().align_offset(BLOCK_BYTES as usize);
        // `align_offset` may give no answer; then the chunk is slower.
        Self { start: if start < BLOCK_BYTES as usize { start } else { 0 }, memory }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + CHUNK_BYTES as usize]
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + CHUNK_BYTES as usize]
    }
}

/// Whether every byte is zero. Folding 64 bytes at a time lets the compiler use vector registers.
pub fn is_zero(bytes: &[u8]) -> bool {
    let mut lines = bytes.chunks_exact(64);
    lines.all(|line| line.iter().fold(0, |all, byte| all | byte) == 0)
        && bytes.chunks_exact(64).remainder().iter().all(|byte| *byte == 0)
}

fn node<Child: Default>() -> Box<[Child]> {
    (0..FANOUT).map(|_| Child::default()).collect()
}

fn extent_of(offset: u64, length: usize) -> Extent {
    Extent::between(offset, offset + length as u64)
}

/// The extent, cut where chunks end.
fn pieces(extent: Extent) -> impl Iterator<Item = Extent> {
    let mut offset = extent.offset();
    std::iter::from_fn(move || {
        let piece = Extent::between(offset, extent.end().min((offset / CHUNK_BYTES + 1) * CHUNK_BYTES));
        offset = piece.end();
        (!piece.is_empty()).then_some(piece)
    })
}

/// Where a piece lies in its chunk.
fn within_chunk(piece: Extent) -> std::ops::Range<usize> {
    let start = (piece.offset() % CHUNK_BYTES) as usize;
    start..start + piece.length() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(chunks: &Chunks, extent: Extent) -> Vec<(u64, u64, Allocation)> {
        let mut runs = Vec::new();
        chunks.allocation(extent, &mut |run, of| {
            runs.push((run.offset(), run.end(), of));
            true
        });
        runs
    }

    #[test]
    fn bytes_cross_chunks() {
        let chunks = Chunks::default();
        let data: Vec<u8> = (0..3 * CHUNK_BYTES).map(|byte| (byte % 251) as u8).collect();
        let offset = TIB - CHUNK_BYTES - 4096;
        chunks.write(offset, &data);
        let mut back = vec![1; data.len() + 8192];
        chunks.read(offset - 4096, &mut back);
        assert!(is_zero(&back[..4096]) && is_zero(&back[data.len() + 4096..]));
        assert!(back[4096..data.len() + 4096] == data);
        assert_eq!(chunks.resident_bytes(), 4 * CHUNK_BYTES);
    }

    #[test]
    fn zeroing_everything_is_quick_and_frees_everything() {
        let chunks = Chunks::default();
        for offset in [0, 5 * GIB, MAX_VOLUME_BYTES - 4096] {
            chunks.write(offset, &[7; 4096]);
        }
        chunks.zero(Extent::between(4096, MAX_VOLUME_BYTES));
        assert_eq!(chunks.resident_bytes(), CHUNK_BYTES);
        assert_eq!(
            runs(&chunks, Extent::between(0, MAX_VOLUME_BYTES)),
            [(0, 4096, Allocation::Data), (4096, MAX_VOLUME_BYTES, Allocation::Hole)]
        );
    }

    #[test]
    fn allocation_is_cut_and_can_be_stopped() {
        let chunks = Chunks::default();
        chunks.write(8192, &[1; 8192]);
        chunks.write(CHUNK_BYTES, &[1; 4096]);
        assert_eq!(
            runs(&chunks, Extent::between(100, CHUNK_BYTES + 100)),
            [
                (100, 8192, Allocation::Hole),
                (8192, 16384, Allocation::Data),
                (16384, CHUNK_BYTES, Allocation::Hole),
                (CHUNK_BYTES, CHUNK_BYTES + 100, Allocation::Data)
            ]
        );
        let mut calls = 0;
        chunks.allocation(Extent::between(0, GIB), &mut |_, _| {
            calls += 1;
            calls < 2
        });
        assert_eq!(calls, 2);
    }

    #[test]
    fn a_single_byte_makes_a_block_not_zero() {
        for at in [0, 63, 64, 4095, 4096, 4099] {
            let mut bytes = vec![0; 4100];
            assert!(is_zero(&bytes));
            bytes[at] = 1;
            assert!(!is_zero(&bytes), "{at}");
        }
    }
}
