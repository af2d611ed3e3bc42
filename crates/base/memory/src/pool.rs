//! Buffers for I/O, cut from chunks of one huge page each.
//!
//! A chunk is 2 MiB of anonymous memory, halved repeatedly (a buddy allocator) into buffers of 4
//! KiB to 2 MiB. A pool belongs to one thread and takes chunks as needed, up to its capacity; an
//! exhausted pool returns `None`, and the caller parks the request until a buffer is returned. The
//! pool takes no locks, and allocates nothing once the chunks in use have been taken.

use std::cell::RefCell;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use strongroom_types::{BLOCK_BYTES, KeyEpoch};
use thiserror::Error;

use crate::sealed_file::{SealedFileError, check_sealed_file, make_sealed_file};

/// Bytes of one chunk: a huge page of x86-64 and of arm64 with 4 KiB pages.
pub const CHUNK_BYTES: usize = 2 << 20;

/// The largest buffer: a whole chunk. The largest transfer of a frontend is half of it, so that an
/// unaligned transfer still fits after it has been widened to whole blocks.
pub const MAX_BUFFER_BYTES: usize = CHUNK_BYTES;

const BLOCK: usize = BLOCK_BYTES as usize;
const BLOCKS_PER_CHUNK: usize = CHUNK_BYTES / BLOCK;
/// Buffer sizes are `BLOCK << order`.
const ORDERS: usize = BLOCKS_PER_CHUNK.trailing_zeros() as usize + 1;

/// Names a chunk uniquely during this process's lifetime: memory that is freed and allocated again
/// gets a new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkId(u64);

impl ChunkId {
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Its number. Numbers are assigned in sequence.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// A whole chunk, for registration with the kernel: [`CHUNK_BYTES`] bytes from `start` on.
#[derive(Clone, Debug)]
pub struct ChunkMemory {
    /// Its start.
    pub start: NonNull<u8>,
    /// Dangles once the chunk has been unmapped.
    pub alive: Weak<()>,
}

/// The reasons why a pool cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PoolError {
    /// The capacity is less than one chunk.
    #[error("a buffer pool needs at least {CHUNK_BYTES} bytes, not {0}")]
    TooSmall(usize),
}

/// A source of buffers for one thread.
#[derive(Clone)]
pub struct BufferPool {
    shared: Rc<RefCell<Chunks>>,
}

impl BufferPool {
    /// A pool that takes at most `capacity_bytes` (at least [`CHUNK_BYTES`], rounded down to whole
    /// chunks), as needed.
    pub fn new(capacity_bytes: usize) -> Result<Self, PoolError> {
        let chunks_max = capacity_bytes / CHUNK_BYTES;
        if chunks_max == 0 {
            return Err(PoolError::TooSmall(capacity_bytes));
        }
        Ok(Self::of(chunks_max, Pages::Huge))
    }

    /// A pool of one chunk for a few reads or writes, as when a file is opened. It has no huge
    /// page: to clear one takes longer than they do.
    pub fn brief() -> Self {
        Self::of(1, Pages::Small)
    }

    /// A pool of all the chunks of a file of [`make_shared_chunks`], which another process maps
    /// too.
    ///
    /// The content of its buffers can change at any moment, so it is for transfers alone: it is
    /// copied by [`Buffer::copy_from`], or named to the kernel or a library by its address, and is
    /// never looked at in place. Two processes may use the same part of the file at the same time;
    /// within each of them a buffer has its memory to itself.
    ///
    /// # Errors
    /// For another kind of file, or if the kernel cannot map it.
    pub fn of_shared(file: impl AsFd, chunks: usize) -> Result<Self, SealedFileError> {
        check_sealed_file(&file, (chunks * CHUNK_BYTES) as u64)?;
        let pool = Self::of(chunks, Pages::Small);
        let mut shared = pool.shared.borrow_mut();
        for index in 0..chunks {
            shared.chunks.push(Chunk::share(&file, index)?);
            shared.free_blocks += BLOCKS_PER_CHUNK;
        }
        drop(shared);
        Ok(pool)
    }

    /// Takes the buffer of `length` bytes at a [place](Buffer::place) that another process names.
    /// Returns `None` if that is not free, or is no place of a buffer of that length.
    pub fn take_at(&self, place: u64, length: usize) -> Option<Buffer> {
        let order = order_of(length)?;
        let block = usize::try_from(place / BLOCK_BYTES).ok()?;
        let (chunk, block) = (block / BLOCKS_PER_CHUNK, block % BLOCKS_PER_CHUNK);
        if !place.is_multiple_of(BLOCK_BYTES << order) || !self.shared.borrow_mut().claim(chunk, block, order)
        {
            return None;
        }
        Some(self.buffer(chunk, block, order, length))
    }

    fn of(chunks_max: usize, pages: Pages) -> Self {
        let chunks = Chunks { chunks: Vec::with_capacity(chunks_max), chunks_max, free_blocks: 0, pages };
        Self { shared: Rc::new(RefCell::new(chunks)) }
    }

    /// Takes a buffer of `length` bytes (1 to [`MAX_BUFFER_BYTES`]) that starts on a 4096-byte
    /// boundary. Its content is left over from earlier use, and every seal is cleared. Returns
    /// `None` while the pool is exhausted, or for a length out of range.
    pub fn take(&self, length: usize) -> Option<Buffer> {
        let order = order_of(length)?;
        let (chunk, block) = self.shared.borrow_mut().take(order)?;
        Some(self.buffer(chunk, block, order, length))
    }

    /// The buffer of blocks that were taken for it.
    fn buffer(&self, chunk: usize, block: usize, order: usize, length: usize) -> Buffer {
        let (id, (address, seals)) = {
            let chunk = &self.shared.borrow().chunks[chunk];
            (chunk.id, chunk.addresses(block))
        };
        let (chunk, block, order) = (chunk as u32, block as u16, order as u8);
        let pool = Rc::clone(&self.shared);
        let mut buffer = Buffer { pool, id, address, seals, length, chunk, block, order };
        buffer.seals_mut().fill(None);
        buffer
    }

    /// Bytes of chunks taken from the system so far.
    pub fn resident_bytes(&self) -> usize {
        self.shared.borrow().chunks.len() * CHUNK_BYTES
    }

    /// Bytes in use by buffers.
    pub fn used_bytes(&self) -> usize {
        let chunks = self.shared.borrow();
        (chunks.chunks.len() * BLOCKS_PER_CHUNK - chunks.free_blocks) * BLOCK
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferPool({} of {} bytes used)", self.used_bytes(), self.resident_bytes())
    }
}

/// Makes the file of a [shared pool](BufferPool::of_shared). Its pages are allocated when they are
/// first used.
///
/// # Errors
/// If the kernel cannot make it.
pub fn make_shared_chunks(chunks: usize) -> Result<OwnedFd, SealedFileError> {
    make_sealed_file("strongroom-transfers", (chunks * CHUNK_BYTES) as u64)
}

/// The order of a buffer of `length` bytes.
fn order_of(length: usize) -> Option<usize> {
    let is_length = (1..=MAX_BUFFER_BYTES).contains(&length);
    is_length.then(|| length.div_ceil(BLOCK).next_power_of_two().trailing_zeros() as usize)
}

struct Chunks {
    chunks: Vec<Chunk>,
    chunks_max: usize,
    free_blocks: usize,
    pages: Pages,
}

/// The pages that a chunk's memory comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pages {
    /// One for the chunk, if there is one.
    Huge,
    /// Of 4096 bytes.
    Small,
}

impl Chunks {
    /// Takes a free buffer of this order; returns its chunk and first block.
    fn take(&mut self, order: usize) -> Option<(usize, usize)> {
        let found =
            self.chunks.iter_mut().enumerate().find_map(|(index, chunk)| Some((index, chunk.split(order)?)));
        let (index, block) = match found {
            Some(found) => found,
            None if self.chunks.len() < self.chunks_max => {
                self.chunks.push(Chunk::map(self.pages)?);
                self.free_blocks += BLOCKS_PER_CHUNK;
                let index = self.chunks.len() - 1;
                (index, self.chunks[index].split(order)?)
            }
            None => return None,
        };
        self.free_blocks -= 1 << order;
        Some((index, block))
    }

    /// Takes these blocks, if they are free.
    fn claim(&mut self, chunk: usize, block: usize, order: usize) -> bool {
        let is_taken = self.chunks.get_mut(chunk).is_some_and(|chunk| chunk.claim(block, order));
        if is_taken {
            self.free_blocks -= 1 << order;
        }
        is_taken
    }

    fn give_back(&mut self, chunk: usize, block: usize, order: usize) {
        self.free_blocks += 1 << order;
        self.chunks[chunk].join(block, order);
    }
}

/// One huge page and the seals of its blocks.
struct Chunk {
    id: ChunkId,
    alive: Rc<()>,
    memory: NonNull<u8>,
    seals: NonNull<Option<KeyEpoch>>,
    /// For each order, one bit per buffer of that size: set while the buffer is free and not part
    /// of a larger free one.
    free: [[u64; BLOCKS_PER_CHUNK / 64]; ORDERS],
}

impl Chunk {
    fn map(pages: Pages) -> Option<Self> {
        // Twice the size contains an aligned chunk at any address; the rest is unmapped at once.
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no existing
        // memory.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                2 * CHUNK_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .ok()?
        .cast::<u8>();
        let head = start.align_offset(CHUNK_BYTES);
        // SAFETY: head < CHUNK_BYTES, so head, chunk and tail are within the mapping just made,
        // which no other code knows; head and tail are unmapped once and never used again.
        let memory = unsafe {
            let memory = start.add(head);
            if head > 0 {
                let _ = munmap(start.cast(), head);
            }
            let _ = munmap(memory.add(CHUNK_BYTES).cast(), CHUNK_BYTES - head);
            // Errors are ignored: an old kernel or a small machine may refuse huge pages, and
            // DONTDUMP exists since Linux 3.4.
            if pages == Pages::Huge {
                let _ = madvise(memory.cast(), CHUNK_BYTES, Advice::LinuxHugepage);
            }
            let _ = madvise(memory.cast(), CHUNK_BYTES, Advice::LinuxDontDump);
            memory
        };
        Some(Self::of(NonNull::new(memory)?))
    }

    /// Maps a chunk of a file whose size was checked to be sealed.
    fn share(file: impl AsFd, index: usize) -> Result<Self, SealedFileError> {
        let (protection, offset) = (ProtFlags::READ | ProtFlags::WRITE, (index * CHUNK_BYTES) as u64);
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let memory =
            unsafe { mmap(std::ptr::null_mut(), CHUNK_BYTES, protection, MapFlags::SHARED, file, offset) }
                .map_err(SealedFileError::failed("map"))?;
        // SAFETY: the range is the mapping just made; the advice changes no content.
        let _ = unsafe { madvise(memory, CHUNK_BYTES, Advice::LinuxDontDump) };
        let failed = SealedFileError::failed("map");
        Ok(Self::of(NonNull::new(memory.cast()).ok_or(failed(rustix::io::Errno::FAULT))?))
    }

    /// A chunk with its own mapping of [`CHUNK_BYTES`], all of it free.
    fn of(memory: NonNull<u8>) -> Self {
        let seals: &mut [Option<KeyEpoch>] = Box::leak(vec![None; BLOCKS_PER_CHUNK].into_boxed_slice());
        let mut free = [[0; BLOCKS_PER_CHUNK / 64]; ORDERS];
        free[ORDERS - 1][0] = 1;
        Self { id: ChunkId::next(), alive: Rc::new(()), memory, seals: NonNull::from(seals).cast(), free }
    }

    /// The addresses of a block's content and seal.
    fn addresses(&self, block: usize) -> (NonNull<u8>, NonNull<Option<KeyEpoch>>) {
        assert!(block < BLOCKS_PER_CHUNK);
        // SAFETY: just checked: both addresses are within the chunk's two allocations.
        unsafe { (self.memory.add(block * BLOCK), self.seals.add(block)) }
    }

    /// Takes a free buffer of this order, and halves a larger one if necessary; returns its first
    /// block.
    fn split(&mut self, order: usize) -> Option<usize> {
        let (from, index) = (order..ORDERS).find_map(|from| {
            let words = self.free[from].iter().enumerate();
            let mut set = words.filter(|(_, word)| **word != 0);
            set.next().map(|(at, word)| (from, at * 64 + word.trailing_zeros() as usize))
        })?;
        self.flip(from, index);
        let mut index = index;
        for smaller in (order..from).rev() {
            index *= 2;
            self.flip(smaller, index + 1);
        }
        Some(index << order)
    }

    /// Takes the buffer of this order at `block`, and halves a larger one if necessary. Returns
    /// `false` if it is not free.
    fn claim(&mut self, block: usize, order: usize) -> bool {
        let Some(from) = (order..ORDERS).find(|from| self.is_free(*from, block >> from)) else {
            return false;
        };
        self.flip(from, block >> from);
        for smaller in order..from {
            self.flip(smaller, (block >> smaller) ^ 1);
        }
        true
    }

    /// Returns a buffer, and merges it with its free neighbours.
    fn join(&mut self, block: usize, order: usize) {
        let mut order = order;
        let mut index = block >> order;
        while order < ORDERS - 1 && self.is_free(order, index ^ 1) {
            self.flip(order, index ^ 1);
            index /= 2;
            order += 1;
        }
        debug_assert!(!self.is_free(order, index), "a buffer was given back twice");
        self.flip(order, index);
    }

    fn is_free(&self, order: usize, index: usize) -> bool {
        self.free[order][index / 64] >> (index % 64) & 1 == 1
    }

    fn flip(&mut self, order: usize, index: usize) {
        self.free[order][index / 64] ^= 1 << (index % 64);
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: every buffer holds the `Rc` that owns this chunk, so no buffer is left; the
        // memory was mapped in `map` or `share`, and the seals were leaked in `of`, with these
        // sizes, and are freed once.
        unsafe {
            let _ = munmap(self.memory.as_ptr().cast(), CHUNK_BYTES);
            drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.seals.as_ptr(), BLOCKS_PER_CHUNK)));
        }
    }
}

/// Memory for one transfer. It belongs to its holder, and returns to its pool when it is dropped.
pub struct Buffer {
    pool: Rc<RefCell<Chunks>>,
    address: NonNull<u8>,
    seals: NonNull<Option<KeyEpoch>>,
    length: usize,
    id: ChunkId,
    chunk: u32,
    block: u16,
    order: u8,
}

impl Buffer {
    /// Count of bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Always false: a buffer has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The content.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the range is in a live chunk, was zeroed by the kernel and belongs to this buffer
        // alone.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.length) }
    }

    /// The content, mutably.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `&mut self` makes the reference the only one.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.length) }
    }

    /// The key epoch that sealed each 4096-byte block of the content; `None` for a block that is
    /// absent.
    pub fn seals(&self) -> &[Option<KeyEpoch>] {
        // SAFETY: there is a seal for each block of the chunk, and this buffer's blocks belong to
        // it alone.
        unsafe { std::slice::from_raw_parts(self.seals.as_ptr(), self.length.div_ceil(BLOCK)) }
    }

    /// The seals, mutably.
    pub fn seals_mut(&mut self) -> &mut [Option<KeyEpoch>] {
        // SAFETY: as in `seals`; `&mut self` makes the reference the only one.
        unsafe { std::slice::from_raw_parts_mut(self.seals.as_ptr(), self.length.div_ceil(BLOCK)) }
    }

    /// Content and seals together.
    pub fn parts_mut(&mut self) -> (&mut [u8], &mut [Option<KeyEpoch>]) {
        // SAFETY: as in `bytes_mut` and `seals_mut`; the two ranges are different memory.
        unsafe {
            (
                std::slice::from_raw_parts_mut(self.address.as_ptr(), self.length),
                std::slice::from_raw_parts_mut(self.seals.as_ptr(), self.length.div_ceil(BLOCK)),
            )
        }
    }

    /// The address of the content, for the kernel. It is valid and does not change while the buffer
    /// lives, even if the buffer is moved.
    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Copies the content of `from`, as much as both have. One of the two may be of a
    /// [shared pool](BufferPool::of_shared).
    pub fn copy_from(&mut self, from: &Buffer) {
        let length = self.length.min(from.length);
        // SAFETY: both ranges are mapped while the buffers live. They are apart: `self` has its
        // memory to itself in this process, and no file is mapped by two pools of a process that
        // copies between them. Another process may change the memory of a shared one meanwhile: the
        // copy is then a mixture, and no reference to that memory is made here.
        unsafe { std::ptr::copy_nonoverlapping(from.address.as_ptr(), self.address.as_ptr(), length) };
    }

    /// Its place in its pool, in bytes, by which another process that shares the pool names it.
    pub fn place(&self) -> u64 {
        (self.chunk as usize * BLOCKS_PER_CHUNK + usize::from(self.block)) as u64 * BLOCK_BYTES
    }

    /// The chunk that contains it.
    pub fn chunk(&self) -> ChunkId {
        self.id
    }

    /// The memory of that chunk.
    pub fn chunk_memory(&self) -> ChunkMemory {
        let chunk = &self.pool.borrow().chunks[self.chunk as usize];
        ChunkMemory { start: chunk.memory, alive: Rc::downgrade(&chunk.alive) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Self { chunk, block, order, .. } = *self;
        self.pool.borrow_mut().give_back(chunk as usize, block.into(), order.into());
    }
}

/// Omits the content, which may be guest data.
impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_apart() {
        let pool = BufferPool::new(2 * CHUNK_BYTES).unwrap();
        let mut held = Vec::new();
        for length in [1, 512, 4096, 4097, 65_536, 1 << 20, (1 << 20) - 4096] {
            let mut buffer = pool.take(length).unwrap();
            assert_eq!((buffer.len(), buffer.address().as_ptr() as usize % BLOCK), (length, 0));
            buffer.bytes_mut().fill(held.len() as u8);
            held.push(buffer);
        }
        for (index, buffer) in held.iter().enumerate() {
            assert!(buffer.bytes().iter().all(|byte| *byte == index as u8));
        }
    }

    #[test]
    fn a_pool_ends_and_recovers() {
        let pool = BufferPool::new(CHUNK_BYTES).unwrap();
        let held: Vec<_> = (0..BLOCKS_PER_CHUNK).map(|_| pool.take(4096).unwrap()).collect();
        assert!(pool.take(1).is_none());
        assert_eq!(pool.used_bytes(), CHUNK_BYTES);
        drop(held);
        assert_eq!(pool.used_bytes(), 0);
        assert!(pool.take(CHUNK_BYTES).is_some(), "free halves join again");
        assert!(pool.take(CHUNK_BYTES + 1).is_none() && pool.take(0).is_none());
    }

    #[test]
    fn seals_start_clear_and_follow_their_buffer() {
        let pool = BufferPool::new(CHUNK_BYTES).unwrap();
        let mut first = pool.take(8192).unwrap();
        let second = pool.take(8192).unwrap();
        first.seals_mut().fill(Some(KeyEpoch::FIRST));
        assert_eq!(second.seals(), [None, None]);
        drop(first);
        assert_eq!(pool.take(5000).unwrap().seals(), [None, None]);
    }

    #[test]
    fn random_use_keeps_the_books() {
        let pool = BufferPool::new(4 * CHUNK_BYTES).unwrap();
        let mut held: Vec<(Buffer, u8)> = Vec::new();
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        for round in 0..20_000_u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = (state >> 33) as usize;
            if random.is_multiple_of(3) && !held.is_empty() {
                let (buffer, fill) = held.swap_remove(random % held.len());
                assert!(buffer.bytes().iter().step_by(509).all(|byte| *byte == fill));
            } else if let Some(mut buffer) = pool.take(1 + random % (300 << 10)) {
                buffer.bytes_mut().fill(round as u8);
                held.push((buffer, round as u8));
            }
        }
        drop(held);
        assert_eq!(pool.used_bytes(), 0);
        assert!(pool.resident_bytes() <= 4 * CHUNK_BYTES);
    }

    #[test]
    fn a_chunk_is_named_once() {
        let pool = BufferPool::new(2 * CHUNK_BYTES).unwrap();
        let (first, second) = (pool.take(4096).unwrap(), pool.take(8192).unwrap());
        assert_eq!(first.chunk(), second.chunk());
        let memory = first.chunk_memory();
        let start = memory.start.as_ptr() as usize;
        for buffer in [&first, &second] {
            let place = buffer.address().as_ptr() as usize;
            assert!(start <= place && place + buffer.len() <= start + CHUNK_BYTES);
        }
        let old = first.chunk();
        assert!(memory.alive.upgrade().is_some());
        drop((first, second, pool));
        assert!(memory.alive.upgrade().is_none());
        // Its address may be that of the old chunk.
        let pool = BufferPool::new(CHUNK_BYTES).unwrap();
        assert_ne!(pool.take(4096).unwrap().chunk(), old);
    }

    #[test]
    fn two_processes_mean_the_same_memory_by_a_place() {
        let file = make_shared_chunks(2).unwrap();
        let (ours, theirs) =
            (BufferPool::of_shared(&file, 2).unwrap(), BufferPool::of_shared(&file, 2).unwrap());
        let private = BufferPool::brief();
        let mut content = private.take(5000).unwrap();
        let held: Vec<_> = (0..300).map(|_| ours.take(8192).unwrap()).collect();
        let mut sent = ours.take(5000).unwrap();
        content.bytes_mut().fill(7);
        sent.copy_from(&content);
        let found = theirs.take_at(sent.place(), 5000).unwrap();
        content.bytes_mut().fill(0);
        content.copy_from(&found);
        assert!(content.bytes().iter().all(|byte| *byte == 7));
        assert_eq!(theirs.used_bytes(), 8192);
        drop((held, found));
        assert_eq!(theirs.used_bytes(), 0);
    }

    #[test]
    fn a_place_that_is_taken_unaligned_or_outside_is_refused() {
        let file = make_shared_chunks(2).unwrap();
        let pool = BufferPool::of_shared(&file, 2).unwrap();
        let held = pool.take_at(3 * 4096, 4096).unwrap();
        for (place, length) in [
            (3 * 4096, 4096),
            (3 * 4096, 1),
            (2 * 4096, 8192),
            (0, 16_384),
            (0, CHUNK_BYTES),
            (4096, 8192),
            (100, 100),
            (2 * CHUNK_BYTES as u64, 4096),
            (u64::MAX - 4095, 4096),
            (0, 0),
            (0, CHUNK_BYTES + 1),
            (0, usize::MAX),
        ] {
            assert!(pool.take_at(place, length).is_none(), "{length} bytes at {place}");
        }
        let beside = pool.take_at(2 * 4096, 4096).unwrap();
        assert_eq!((beside.place(), pool.used_bytes()), (8192, 8192));
        drop((held, beside));
        assert!(
            pool.take_at(CHUNK_BYTES as u64, CHUNK_BYTES).is_some() && pool.take_at(0, CHUNK_BYTES).is_some()
        );
    }

    #[test]
    fn a_shared_pool_over_another_file_is_refused() {
        let file = make_shared_chunks(1).unwrap();
        assert!(matches!(BufferPool::of_shared(&file, 2), Err(SealedFileError::NotSealed { .. })));
        assert!(BufferPool::of_shared(std::fs::File::open("/dev/null").unwrap(), 1).is_err());
    }

    #[test]
    fn a_pool_below_a_chunk_is_refused() {
        assert_eq!(BufferPool::new(4096).unwrap_err(), PoolError::TooSmall(4096));
    }
}
