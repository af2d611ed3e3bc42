//! Bytes that were received and not yet parsed.

use strongroom_memory::{Buffer, BufferPool};

/// Bytes of an inbox: a full queue of small writes, or a part of a large one, in one system call.
/// More would not make the calls fewer by much, and would not stay in the processor's cache.
pub const INBOX_BYTES: usize = 256 << 10;

/// A window over received bytes: filled at the end, consumed at the front. It lies in pool memory,
/// because it holds a guest's plaintext, which must stay out of core dumps.
#[derive(Debug)]
pub struct Inbox {
    bytes: Buffer,
    start: usize,
    end: usize,
}

impl Inbox {
    /// An empty inbox; `None` if the pool is exhausted.
    pub fn new(pool: &BufferPool) -> Option<Self> {
        Some(Self { bytes: pool.take(INBOX_BYTES)?, start: 0, end: 0 })
    }

    /// The bytes that were received and not consumed.
    pub fn unread(&self) -> &[u8] {
        &self.bytes.bytes()[self.start..self.end]
    }

    /// Whether there is nothing to read.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Whether there is no room for more.
    pub fn is_full(&self) -> bool {
        self.end - self.start == INBOX_BYTES
    }

    /// Drops the first `count` unread bytes, at most all.
    pub fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Moves the first unread bytes into `into`. Returns how many.
    pub fn move_to(&mut self, into: &mut [u8]) -> usize {
        let count = into.len().min(self.unread().len());
        into[..count].copy_from_slice(&self.unread()[..count]);
        self.consume(count);
        count
    }

    /// Room for more bytes. Unread bytes move to the front if they are few compared with the room
    /// that they block.
    pub fn space(&mut self) -> &mut [u8] {
        let unread = self.end - self.start;
        if self.start > 0 && unread < self.start && INBOX_BYTES - self.end < INBOX_BYTES / 2
            || self.end == INBOX_BYTES
        {
            self.bytes.bytes_mut().copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, unread);
        }
        &mut self.bytes.bytes_mut()[self.end..]
    }

    /// Notes that the first `count` bytes of the space were filled.
    pub fn filled(&mut self, count: usize) {
        self.end = (self.end + count).min(INBOX_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_in_order_whatever_the_steps() {
        let pool = BufferPool::new(2 << 20).unwrap();
        let mut inbox = Inbox::new(&pool).unwrap();
        let (mut written, mut read, mut step) = (0_usize, 0_usize, 1_usize);
        while read < 3 * INBOX_BYTES {
            step = step * 31 % 100_003;
            let space = inbox.space();
            let count = space.len().min(step);
            space[..count].iter_mut().enumerate().for_each(|(at, byte)| *byte = (written + at) as u8);
            inbox.filled(count);
            written += count;
            step = step * 31 % 100_003;
            let mut part = vec![0; step];
            let count = inbox.move_to(&mut part);
            let expected = (read..read + count).map(|at| at as u8);
            assert!(part[..count].iter().copied().eq(expected));
            read += count;
        }
    }

    #[test]
    fn a_full_inbox_has_room_once_something_was_consumed() {
        let pool = BufferPool::new(2 << 20).unwrap();
        let mut inbox = Inbox::new(&pool).unwrap();
        inbox.filled(INBOX_BYTES);
        assert!(inbox.is_full() && inbox.space().is_empty());
        inbox.consume(10);
        assert_eq!(inbox.space().len(), 10);
    }
}
