//! The area in which a server records requests taken from the rings and not answered ("Inflight I/O
//! tracking" of the vhost-user specification). The front end keeps it, and passes it to the
//! server's successor.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};

use strongroom_memory::{GuestAddress, GuestError, GuestMemory, GuestRegion};

/// Bytes before a queue's entries.
const HEADER_BYTES: u64 = 16;
/// Bytes of an entry.
const ENTRY_BYTES: u64 = 16;
/// Each queue's part begins at a multiple of this many bytes, as in libvhost-user.
const QUEUE_ALIGNMENT: u64 = 64;

/// The description of an area in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflightDescription {
    /// Count of bytes.
    pub mmap_size: u64,
    /// The area's offset in its file.
    pub mmap_offset: u64,
    /// Count of queues.
    pub queues: u16,
    /// Entries in each queue.
    pub queue_size: u16,
}

impl InflightDescription {
    /// Encodes it as a message's body, with the padding of QEMU's structure.
    pub fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.mmap_size.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.mmap_offset.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.queues.to_le_bytes());
        bytes[18..20].copy_from_slice(&self.queue_size.to_le_bytes());
        bytes
    }

    /// Decodes a message's body, padded or not.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (size, rest) = bytes.split_first_chunk()?;
        let (offset, rest) = rest.split_first_chunk()?;
        let (queues, rest) = rest.split_first_chunk()?;
        let (queue_size, padding) = rest.split_first_chunk()?;
        let description = Self {
            mmap_size: u64::from_le_bytes(*size),
            mmap_offset: u64::from_le_bytes(*offset),
            queues: u16::from_le_bytes(*queues),
            queue_size: u16::from_le_bytes(*queue_size),
        };
        matches!(padding.len(), 0 | 4).then_some(description)
    }
}

/// One descriptor's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Whether it is taken from the ring and not answered.
    pub in_flight: bool,
    /// The next entry of the last answered batch.
    pub next: u16,
    /// The order in which requests were taken.
    pub counter: u64,
}

/// An area, mapped.
pub struct InflightArea {
    description: InflightDescription,
    file: OwnedFd,
    memory: GuestMemory,
}

impl fmt::Debug for InflightArea {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InflightArea({:?})", self.description)
    }
}

impl InflightArea {
    /// Maps an area.
    pub fn map(description: InflightDescription, file: OwnedFd) -> Result<Self, GuestError> {
        let InflightDescription { mmap_size, mmap_offset, .. } = description;
        let region = GuestRegion::map(&file, mmap_offset, GuestAddress(0), mmap_size)?;
        Ok(Self { description, file, memory: GuestMemory::new(vec![region], None)? })
    }

    /// Its description in messages.
    pub fn description(&self) -> InflightDescription {
        self.description
    }

    /// Its file.
    pub fn file(&self) -> &impl AsFd {
        &self.file
    }

    /// A queue's part.
    pub fn queue(&self, index: u16) -> QueueArea<'_> {
        let bytes = HEADER_BYTES + ENTRY_BYTES * u64::from(self.description.queue_size);
        let start = u64::from(index) * bytes.next_multiple_of(QUEUE_ALIGNMENT);
        QueueArea { memory: &self.memory, start, size: self.description.queue_size }
    }
}

/// A queue's part of an area.
#[derive(Clone, Copy, Debug)]
pub struct QueueArea<'area> {
    memory: &'area GuestMemory,
    start: u64,
    size: u16,
}

impl QueueArea<'_> {
    /// The layout's version: 1, or 0 before the server has set it up.
    pub fn version(&self) -> Result<u16, GuestError> {
        self.memory.load_u16(self.at(8))
    }

    /// Count of entries.
    pub fn descriptor_count(&self) -> Result<u16, GuestError> {
        self.memory.load_u16(self.at(10))
    }

    /// The entry that was answered last.
    pub fn last_batch_head(&self) -> Result<u16, GuestError> {
        self.memory.load_u16(self.at(12))
    }

    /// The index of the used ring up to which the entries are current.
    pub fn used_index(&self) -> Result<u16, GuestError> {
        self.memory.load_u16(self.at(14))
    }

    /// Sets the layout's version.
    pub fn set_version(&self, version: u16) -> Result<(), GuestError> {
        self.memory.store_u16(self.at(8), version)
    }

    /// Sets the count of entries.
    pub fn set_descriptor_count(&self, count: u16) -> Result<(), GuestError> {
        self.memory.store_u16(self.at(10), count)
    }

    /// Sets the entry that was answered last.
    pub fn set_last_batch_head(&self, head: u16) -> Result<(), GuestError> {
        self.memory.store_u16(self.at(12), head)
    }

    /// Sets the index of the used ring up to which the entries are current.
    pub fn set_used_index(&self, index: u16) -> Result<(), GuestError> {
        self.memory.store_u16(self.at(14), index)
    }

    /// The entry of the descriptor `head`.
    pub fn entry(&self, head: u16) -> Result<Entry, GuestError> {
        let word = u128::from_le_bytes(self.memory.read(self.entry_at(head))?);
        let (in_flight, next, counter) = (word as u8, (word >> 48) as u16, (word >> 64) as u64);
        Ok(Entry { in_flight: in_flight != 0, next, counter })
    }

    /// Sets the entry of the descriptor `head`.
    pub fn set_entry(&self, head: u16, entry: Entry) -> Result<(), GuestError> {
        let Entry { in_flight, next, counter } = entry;
        let word = u128::from(in_flight) | u128::from(next) << 48 | u128::from(counter) << 64;
        self.memory.write(self.entry_at(head), &word.to_le_bytes())
    }

    /// The heads that a successor will find in flight with `used_index` in the used ring, in the
    /// order in which they were taken.
    pub fn in_flight(&self, used_index: u16) -> Result<Vec<u16>, GuestError> {
        let mut heads = Vec::new();
        for head in 0..self.size {
            let entry = self.entry(head)?;
            if entry.in_flight {
                heads.push((entry.counter, head));
            }
        }
        // The last batch was answered, even if the server could not record that here.
        let mut answered = self.last_batch_head()?;
        for _ in 0..used_index.wrapping_sub(self.used_index()?).min(self.size) {
            heads.retain(|(_, head)| *head != answered);
            if answered >= self.size {
                break;
            }
            answered = self.entry(answered)?.next;
        }
        heads.sort_unstable();
        Ok(heads.into_iter().map(|(_, head)| head).collect())
    }

    fn entry_at(&self, head: u16) -> GuestAddress {
        self.at(HEADER_BYTES + ENTRY_BYTES * u64::from(head))
    }

    fn at(&self, offset: u64) -> GuestAddress {
        GuestAddress(self.start + offset)
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    fn area() -> InflightArea {
        let description = InflightDescription { mmap_size: 4096, mmap_offset: 0, queues: 2, queue_size: 8 };
        let file = memfd_create("inflight", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 4096).unwrap();
        InflightArea::map(description, file).unwrap()
    }

    #[test]
    fn descriptions_are_padded_as_qemu_has_them() {
        let description = area().description();
        let bytes = description.to_bytes();
        assert_eq!(bytes[16..], [2, 0, 8, 0, 0, 0, 0, 0]);
        assert_eq!(InflightDescription::from_bytes(&bytes), Some(description));
        assert_eq!(InflightDescription::from_bytes(&bytes[..20]), Some(description));
        assert_eq!(InflightDescription::from_bytes(&bytes[..19]), None);
    }

    #[test]
    fn entries_lie_where_the_specification_puts_them() {
        let area = area();
        let entry = Entry { in_flight: true, next: 0x1234, counter: 7 };
        area.queue(1).set_entry(2, entry).unwrap();
        let start = 192 + 16 + 2 * 16;
        let bytes: [u8; 16] = area.memory.read(GuestAddress(start)).unwrap();
        assert_eq!(bytes, [1, 0, 0, 0, 0, 0, 0x34, 0x12, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(area.queue(1).entry(2), Ok(entry));
    }

    #[test]
    fn the_last_batch_is_not_in_flight_whatever_its_entries_say() {
        let area = area();
        let queue = area.queue(0);
        for (head, next, counter) in [(3, 5, 10), (5, 1, 9), (1, 0, 8), (6, 0, 2)] {
            queue.set_entry(head, Entry { in_flight: true, next, counter }).unwrap();
        }
        queue.set_last_batch_head(3).unwrap();
        queue.set_used_index(u16::MAX).unwrap();
        assert_eq!(queue.in_flight(u16::MAX).unwrap(), [6, 1, 5, 3]);
        assert_eq!(queue.in_flight(1).unwrap(), [6, 1]);
    }
}
