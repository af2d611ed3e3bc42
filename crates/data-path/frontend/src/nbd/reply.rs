//! Replies of transmission.

use strongroom_io::{Allocation, IoError};
use strongroom_types::Extent;

use super::protocol::{
    ALLOCATION_CONTEXT_ID, CHUNK_MAGIC, DESCRIPTORS_MAX, RUNS_MAX, SIMPLE_REPLY_MAGIC, allocation_state,
    chunk,
};

/// The error values that the protocol allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorNumber {
    /// EPERM
    NotPermitted = 1,
    /// EIO
    Io = 5,
    /// EINVAL
    Invalid = 22,
    /// ENOSPC
    NoSpace = 28,
    /// EOVERFLOW
    Overflow = 75,
    /// ESHUTDOWN
    Shutdown = 108,
}

impl ErrorNumber {
    /// The error number for a disk's error. `writes` tells whether the request changes the export.
    pub fn of(error: &IoError, writes: bool) -> Self {
        match error {
            IoError::OutOfRange { .. } if writes => Self::NoSpace,
            IoError::OutOfRange { .. } | IoError::Misaligned { .. } | IoError::TooLong { .. } => {
                Self::Invalid
            }
            IoError::ReadOnly => Self::NotPermitted,
            IoError::NoSpace => Self::NoSpace,
            IoError::Closed => Self::Shutdown,
            IoError::Device(_)
            | IoError::FilesFull { .. }
            | IoError::Short { .. }
            | IoError::UnknownEpoch { .. }
            | IoError::Integrity { .. }
            | IoError::FlushFailed
            | IoError::Cipher
            | IoError::Injected => Self::Io,
        }
    }
}

/// The fixed part of a reply, at most that of a data chunk. It needs no allocation.
#[derive(Clone, Copy, Debug)]
pub struct ReplyHeader {
    bytes: [u8; Self::BYTES_MAX],
    length: u8,
}

impl ReplyHeader {
    const BYTES_MAX: usize = 28;

    fn of(parts: &[&[u8]]) -> Self {
        let mut header = Self { bytes: [0; Self::BYTES_MAX], length: 0 };
        for part in parts {
            let at = usize::from(header.length);
            header.bytes[at..at + part.len()].copy_from_slice(part);
            header.length += part.len() as u8;
        }
        header
    }

    /// A simple reply of success, before a read's data if it has any.
    pub fn simple(cookie: u64) -> Self {
        Self::simple_with(cookie, 0)
    }

    /// A simple reply of failure.
    pub fn simple_error(cookie: u64, error: ErrorNumber) -> Self {
        Self::simple_with(cookie, error as u32)
    }

    fn simple_with(cookie: u64, error: u32) -> Self {
        Self::of(&[&SIMPLE_REPLY_MAGIC.to_be_bytes(), &error.to_be_bytes(), &cookie.to_be_bytes()])
    }

    /// The only chunk of a read's reply: the extent's content follows.
    pub fn data(cookie: u64, extent: Extent) -> Self {
        let payload_bytes = 8 + extent.length() as u32;
        Self::of(&[
            &CHUNK_MAGIC.to_be_bytes(),
            &chunk::DONE.to_be_bytes(),
            &chunk::OFFSET_DATA.to_be_bytes(),
            &cookie.to_be_bytes(),
            &payload_bytes.to_be_bytes(),
            &extent.offset().to_be_bytes(),
        ])
    }

    fn chunk(cookie: u64, kind: u16, payload_bytes: u32) -> Self {
        Self::of(&[
            &CHUNK_MAGIC.to_be_bytes(),
            &chunk::DONE.to_be_bytes(),
            &kind.to_be_bytes(),
            &cookie.to_be_bytes(),
            &payload_bytes.to_be_bytes(),
        ])
    }

    /// The bytes to send.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// A structured reply of failure, with a sentence for the client's user.
pub fn error_chunk(cookie: u64, error: ErrorNumber, text: &str) -> Vec<u8> {
    // The messages are our own and far shorter; the limit is the protocol's.
    let text = &text.as_bytes()[..text.len().min(super::protocol::STRING_BYTES_MAX)];
    let header = ReplyHeader::chunk(cookie, chunk::ERROR, 6 + text.len() as u32);
    let error = (error as u32).to_be_bytes();
    let length = (text.len() as u16).to_be_bytes();
    [header.bytes(), &error, &length, text].concat()
}

/// Collects an answer to BLOCK_STATUS: neighbours of one state become one descriptor.
#[derive(Debug)]
pub struct BlockStatus {
    extent: Extent,
    /// Where the next run must start.
    end: u64,
    runs: usize,
    descriptors_max: usize,
    descriptors: Vec<(u32, u32)>,
}

impl BlockStatus {
    /// An answer about `extent`, of one descriptor if `one`.
    pub fn new(extent: Extent, one: bool) -> Self {
        Self {
            extent,
            end: extent.offset(),
            runs: 0,
            descriptors_max: if one { 1 } else { DESCRIPTORS_MAX },
            descriptors: Vec::new(),
        }
    }

    /// Adds the next run. Returns `false` once the answer is full.
    pub fn add(&mut self, run: Extent, allocation: Allocation) -> bool {
        // Cut what the stage reports beyond the requested extent, so that lengths fit into 32 bits
        // as the request's does.
        let run = run.intersection(Extent::between(self.end, self.extent.end()));
        if run.is_empty() {
            return self.end < self.extent.end();
        }
        // A gap in the report has unknown content, so it counts as data.
        let gap = run.offset() - self.end;
        self.append(gap as u32, 0)
            && self.append(run.length() as u32, state(allocation))
            && self.runs < RUNS_MAX
            && self.end < self.extent.end()
    }

    fn append(&mut self, length: u32, state: u32) -> bool {
        if length == 0 {
            return true;
        }
        self.runs += 1;
        let is_full = self.descriptors.len() == self.descriptors_max;
        match self.descriptors.last_mut() {
            Some(last) if last.1 == state => last.0 += length,
            _ if is_full => return false,
            _ => self.descriptors.push((length, state)),
        }
        self.end += u64::from(length);
        true
    }

    /// Builds the reply. An extent about which nothing was reported counts as data.
    pub fn into_chunk(mut self, cookie: u64) -> Vec<u8> {
        if self.descriptors.is_empty() {
            self.descriptors.push((self.extent.length() as u32, 0));
        }
        let payload_bytes = 4 + 8 * self.descriptors.len() as u32;
        let header = ReplyHeader::chunk(cookie, chunk::BLOCK_STATUS, payload_bytes);
        let mut bytes = [header.bytes(), &ALLOCATION_CONTEXT_ID.to_be_bytes()].concat();
        bytes.reserve_exact(8 * self.descriptors.len());
        for (length, state) in self.descriptors {
            bytes.extend(length.to_be_bytes());
            bytes.extend(state.to_be_bytes());
        }
        bytes
    }
}

fn state(allocation: Allocation) -> u32 {
    match allocation {
        Allocation::Data => 0,
        Allocation::Zero => allocation_state::ZERO,
        Allocation::Hole => allocation_state::HOLE | allocation_state::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(offset: u64, length: u64) -> Extent {
        Extent::new(offset, length).unwrap()
    }

    fn descriptors(chunk: &[u8]) -> Vec<(u32, u32)> {
        let numbers: Vec<u32> =
            chunk[20..].chunks(4).map(|number| u32::from_be_bytes(number.try_into().unwrap())).collect();
        assert_eq!(numbers[0], ALLOCATION_CONTEXT_ID);
        numbers[1..].chunks(2).map(|pair| (pair[0], pair[1])).collect()
    }

    #[test]
    fn headers_have_the_protocols_lengths() {
        assert_eq!(ReplyHeader::simple(1).bytes().len(), 16);
        let data = ReplyHeader::data(2, extent(0x1234, 512));
        assert_eq!(data.bytes().len(), 28);
        assert_eq!(data.bytes()[16..20], 520_u32.to_be_bytes());
        let error = error_chunk(3, ErrorNumber::Io, "broken");
        assert_eq!((error.len(), &error[26..]), (32, &b"broken"[..]));
    }

    #[test]
    fn runs_are_merged_cut_and_their_gaps_filled() {
        let mut status = BlockStatus::new(extent(1000, 9000), false);
        assert!(status.add(extent(0, 2000), Allocation::Hole));
        assert!(status.add(extent(2000, 1000), Allocation::Hole));
        assert!(status.add(extent(4000, 1000), Allocation::Data));
        assert!(!status.add(extent(5000, 1 << 40), Allocation::Zero));
        assert_eq!(descriptors(&status.into_chunk(0)), [(2000, 3), (2000, 0), (5000, 2)]);
    }

    #[test]
    fn one_descriptor_means_one_and_merges_until_the_state_changes() {
        let mut status = BlockStatus::new(extent(0, 9000), true);
        assert!(status.add(extent(0, 10), Allocation::Data));
        assert!(status.add(extent(10, 10), Allocation::Data));
        assert!(!status.add(extent(20, 10), Allocation::Hole));
        assert_eq!(descriptors(&status.into_chunk(0)), [(20, 0)]);
    }

    #[test]
    fn a_long_answer_ends_and_an_empty_one_is_data() {
        let mut status = BlockStatus::new(extent(0, 1 << 20), false);
        let kinds = [Allocation::Data, Allocation::Hole];
        let mut runs = (0_usize..).map(|index| (extent(index as u64, 1), kinds[index % 2]));
        while runs.next().is_some_and(|(run, kind)| status.add(run, kind)) {}
        assert_eq!(descriptors(&status.into_chunk(0)).len(), DESCRIPTORS_MAX);

        let mut merged = BlockStatus::new(extent(0, 1 << 20), false);
        let added = (0..).take_while(|index| merged.add(extent(*index, 1), Allocation::Data));
        assert_eq!(added.count() + 1, RUNS_MAX);

        let unknown = BlockStatus::new(extent(7, 1 << 20), false);
        assert_eq!(descriptors(&unknown.into_chunk(0)), [(1 << 20, 0)]);
    }
}
