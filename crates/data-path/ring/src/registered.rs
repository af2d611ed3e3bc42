//! Registers memory with the kernel.
//!
//! For registered memory the kernel need not look up and reference the pages for each transfer,
//! which takes some 0.35 microseconds (`docs/PERFORMANCE.md`). So a pool's chunks are registered as
//! a whole when one of their buffers is first transferred, and stay registered until they are
//! freed.
//!
//! Registration is optional. If the kernel has no such table, if the process may lock no more
//! memory, or if the table is full, the transfer names its memory by address. The limit on locked
//! memory is shared by all processes of a user, and since Linux 6.14 the rings themselves count
//! too: if the limit is low, it is left to them.

use std::rc::Weak;

use io_uring::IoUring;
use rustix::process::{Resource, geteuid, getrlimit};
use strongroom_memory::{Buffer, CHUNK_BYTES, ChunkId};

/// The most chunks that a ring registers, 128 MiB of them. A queue at a depth of 128 with pieces of
/// 1 MiB uses that many.
const CHUNKS_MAX: usize = 64;

/// The lowest limit of locked memory at which a ring registers chunks: two full tables, in bytes.
const LOCKED_BYTES_MIN: u64 = 2 * (CHUNKS_MAX * CHUNK_BYTES) as u64;

/// A ring's table of registered chunks. A chunk has one place, found by the chunk's name, which is
/// never reused.
#[derive(Debug)]
pub(crate) struct RegisteredChunks {
    places: Vec<Option<Registered>>,
    /// Whether the kernel accepts chunks.
    enabled: bool,
}

#[derive(Debug)]
struct Registered {
    chunk: ChunkId,
    alive: Weak<()>,
}

impl RegisteredChunks {
    /// Makes an empty table in a ring that is not enabled yet, if the kernel supports it (5.19).
    pub(crate) fn new(ring: &IoUring) -> Self {
        let places = || (0..CHUNKS_MAX).map(|_| None).collect();
        if !may_lock_much() {
            return Self { places: places(), enabled: false };
        }
        let made = ring.submitter().register_buffers_sparse(CHUNKS_MAX as u32);
        let enabled = made.inspect_err(|error| tracing::debug!(%error, "buffers are not registered")).is_ok();
        Self { places: places(), enabled }
    }

    /// The place of the buffer's chunk, which is registered now if necessary; `None` if it cannot
    /// be.
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
        // SAFETY: the range is that of a live chunk, mapped and writable, and the buffer keeps it
        // so during the call; the kernel takes its own references to the pages. It reads or writes
        // them only for an entry that names this place, and `place_of` names it only for a buffer
        // of this very chunk, which the entry's job keeps. So they are never accessed after the
        // chunk was unmapped, even if a new chunk has its address.
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

    /// Makes the kernel release the chunks that have been freed, whose memory it would otherwise
    /// keep.
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

    /// The count of chunks that the kernel holds.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.places.iter().flatten().count()
    }
}

/// Whether this process may lock enough memory that rings do not run short. Root has no limit.
fn may_lock_much() -> bool {
    let limit = getrlimit(Resource::Memlock).current;
    limit.is_none_or(|bytes| bytes >= LOCKED_BYTES_MIN) || geteuid().is_root()
}
