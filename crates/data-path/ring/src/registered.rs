//! Which memory the kernel keeps at hand.
//!
//! Of memory that it is told of beforehand the kernel need not look up the pages for each transfer,
//! nor take and drop a count of them: some 0.35 microseconds of each (`docs/PERFORMANCE.md`). So a
//! pool's chunks are registered with the ring whole, when first a buffer of theirs is transferred,
//! and stay so until they are gone.
//!
//! It is a wish. A kernel that knows no such table, a process that may lock no more memory, a full
//! table: the transfer names its memory by the address then, as any other does. What a user may
//! lock is shared by all of his processes, and since Linux 6.14 the rings themselves count too:
//! where that is little, it is left to them.

use std::rc::Weak;

use io_uring::IoUring;
use rustix::process::{Resource, geteuid, getrlimit};
use strongroom_memory::{Buffer, CHUNK_BYTES, ChunkId};

/// Chunks that a ring knows at most, 128 MiB of them. A queue at a depth of 128 with pieces of 1
/// MiB has as many in use.
const CHUNKS_MAX: usize = 64;

/// The least that a user may lock for a ring to register chunks: two full tables, in bytes.
const LOCKED_BYTES_MIN: u64 = 2 * (CHUNKS_MAX * CHUNK_BYTES) as u64;

/// A ring's table of registered chunks. A chunk has one place in it that is found by its name,
/// which is never another's.
#[derive(Debug)]
pub(crate) struct RegisteredChunks {
    places: Vec<Option<Registered>>,
    /// Whether the kernel takes any.
    enabled: bool,
}

#[derive(Debug)]
struct Registered {
    chunk: ChunkId,
    alive: Weak<()>,
}

impl RegisteredChunks {
    /// Makes an empty table in a ring that is not enabled yet, where the kernel has such (5.19).
    pub(crate) fn new(ring: &IoUring) -> Self {
        let places = || (0..CHUNKS_MAX).map(|_| None).collect();
        if !may_lock_much() {
            return Self { places: places(), enabled: false };
        }
        let made = ring.submitter().register_buffers_sparse(CHUNKS_MAX as u32);
        let enabled = made.inspect_err(|error| tracing::debug!(%error, "buffers are not registered")).is_ok();
        Self { places: places(), enabled }
    }

    /// The place of the buffer's chunk, which is registered now if it was not; `None` where it
    /// cannot be.
    pub(crate) fn place_of(&mut self, ring: &IoUring, buffer: &Buffer) -> Option<u16> {
        let chunk = buffer.chunk();
        let index = (chunk.number() % CHUNKS_MAX as u64) as usize;
        match &self.places[index] {
            Some(registered) if registered.chunk == chunk => Some(index as u16),
            _ if !self.enabled => None,
            Some(registered) if registered.alive.strong_count() > 0 => None,
            _ => self.register(ring, buffer, index),
        }
    }

    fn register(&mut self, ring: &IoUring, buffer: &Buffer, index: usize) -> Option<u16> {
        let memory = buffer.chunk_memory();
        let vector = libc::iovec { iov_base: memory.start.as_ptr().cast(), iov_len: CHUNK_BYTES };
        // SAFETY: the range is a live chunk's, mapped and writable, which the buffer keeps so
        // during the call; the kernel takes its own hold of the pages. It reads or writes them only
        // for an entry that names this place, and `place_of` names it only for a buffer of this
        // very chunk, which the entry's job keeps: never after the chunk was unmapped, also where a
        // new one has its address.
        let done = unsafe { ring.submitter().register_buffers_update(index as u32, &[vector], None) };
        match done {
            Ok(()) => {
                self.places[index] = Some(Registered { chunk: buffer.chunk(), alive: memory.alive });
                Some(index as u16)
            }
            Err(error) => {
                tracing::debug!(%error, "no more buffers are registered");
                self.enabled = false;
                None
            }
        }
    }

    /// Has the kernel let go of chunks that are gone, whose memory it would otherwise keep.
    pub(crate) fn release(&mut self, ring: &IoUring) {
        for (index, place) in self.places.iter_mut().enumerate() {
            let gone = place.take_if(|registered| registered.alive.strong_count() == 0);
            if gone.is_some() {
                let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
                // SAFETY: an empty vector clears the place; no memory is named.
                let done = unsafe { ring.submitter().register_buffers_update(index as u32, &[none], None) };
                if let Err(error) = done {
                    tracing::debug!(%error, "a registered buffer stays");
                }
            }
        }
    }

    /// How many chunks the kernel holds.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.places.iter().flatten().count()
    }
}

/// Whether this process may lock so much memory that rings need not go short. Root's is not
/// counted.
fn may_lock_much() -> bool {
    let limit = getrlimit(Resource::Memlock).current;
    limit.is_none_or(|bytes| bytes >= LOCKED_BYTES_MIN) || geteuid().is_root()
}
