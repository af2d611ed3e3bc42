//! Buffers for a stage that waits for them, with a guarantee that it gets them.

use crate::pool::{Buffer, BufferPool, CHUNK_BYTES};

/// A thread's shared pool, and a reserve that belongs to one stage's channel alone.
///
/// All stages of a thread take from one pool, and a request on its way down holds buffers of
/// several of them. With the pool alone, the upper stages could take the last buffer while each of
/// their requests waits for a buffer in the stage below: a deadlock. So every channel that waits
/// for buffers has a reserve that is large enough for any one of its requests, used only when the
/// shared pool is exhausted. Then
/// - while a request waits, another request of its channel holds the reserve or a part of it, and
///   will wake the thread when it ends; so buffers that are returned elsewhere need no
///   notification;
/// - the lowest waiting stage always makes progress, therefore the one above it does, and so on up.
///
/// This requires that a channel takes all buffers of a request in one [`take_all`](Self::take_all),
/// serves waiting requests in order, and takes its locks before its buffers.
#[derive(Debug)]
pub struct ReservedPool {
    shared: BufferPool,
    reserve: BufferPool,
}

impl ReservedPool {
    /// Adds a reserve of `reserve_bytes`, rounded up to whole chunks, to `shared`. Its memory is
    /// allocated when it is first needed.
    ///
    /// A buffer of up to half a chunk can share a chunk with others; count a larger one as a whole
    /// chunk.
    pub fn new(shared: &BufferPool, reserve_bytes: usize) -> Self {
        let chunks = reserve_bytes.div_ceil(CHUNK_BYTES).max(1);
        let reserve = BufferPool::new(chunks.saturating_mul(CHUNK_BYTES)).expect("a chunk or more is a pool");
        Self { shared: shared.clone(), reserve }
    }

    /// As [`BufferPool::take`], from the shared pool, or else from the reserve.
    pub fn take(&self, length: usize) -> Option<Buffer> {
        self.take_all(|pool| pool.take(length))
    }

    /// Takes all buffers of one request, or none: `take` is called with the shared pool and, if it
    /// returns `None`, with the reserve.
    pub fn take_all<T>(&self, take: impl Fn(&BufferPool) -> Option<T>) -> Option<T> {
        take(&self.shared).or_else(|| take(&self.reserve))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_serves_one_request_when_the_pool_is_exhausted() {
        let shared = BufferPool::new(CHUNK_BYTES).unwrap();
        let pool = ReservedPool::new(&shared, CHUNK_BYTES + 1);
        let others = shared.take(CHUNK_BYTES).unwrap();
        let two = |pool: &BufferPool| Some([pool.take(CHUNK_BYTES)?, pool.take(4096)?]);
        let held = pool.take_all(two).unwrap();
        assert!(pool.take_all(two).is_none());
        assert!(pool.take(4096).is_some(), "what is left of the reserve");
        drop(held);
        assert!(pool.take_all(two).is_some());
        drop(others);
        let shared_first = pool.take(4096).unwrap();
        assert_eq!((shared.used_bytes(), shared_first.len()), (4096, 4096));
    }

    #[test]
    fn what_does_not_suffice_is_given_back() {
        let shared = BufferPool::new(CHUNK_BYTES).unwrap();
        let pool = ReservedPool::new(&shared, CHUNK_BYTES);
        let two = |pool: &BufferPool| Some([pool.take(CHUNK_BYTES)?, pool.take(CHUNK_BYTES)?]);
        assert!(pool.take_all(two).is_none());
        assert_eq!(shared.used_bytes(), 0);
        assert!(pool.take(CHUNK_BYTES).is_some());
    }

    #[test]
    fn an_untouched_reserve_takes_no_memory() {
        let shared = BufferPool::new(CHUNK_BYTES).unwrap();
        let pool = ReservedPool::new(&shared, 2 * CHUNK_BYTES);
        let _buffer = pool.take(4096).unwrap();
        assert_eq!(pool.reserve.resident_bytes(), 0);
    }
}
