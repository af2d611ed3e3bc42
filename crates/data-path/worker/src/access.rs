//! Access to a disk as to a file: any bytes, one call after the other, on the calling thread.
//!
//! It is for volumes that no guest uses, and that are small or are read or written sequentially.
//! Within a call several transfers are in flight, so large calls run at the disk's speed.

use std::fmt;
use std::rc::Rc;

use strongroom_io::{Disk, EventLoop, IoError, Plain};
use strongroom_memory::Buffer;
use strongroom_types::Extent;

use crate::client::{Client, DEPTH, pieces};
use crate::transfer::TransferError;

/// Access to a disk for one thread. After an error it must not be used again: transfers may still
/// be under way.
pub struct DiskAccess {
    client: Client,
    size_bytes: u64,
}

impl DiskAccess {
    /// Opens a disk, which stays open as long as this exists.
    ///
    /// # Errors
    /// If there is no event loop, or no memory.
    pub fn open(disk: &dyn Disk<Plain>) -> Result<Self, TransferError> {
        Ok(Self { client: Client::open(disk)?, size_bytes: disk.limits().size_bytes })
    }

    /// One on this thread's event loop.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn on(event_loop: Rc<dyn EventLoop>, disk: &dyn Disk<Plain>) -> Result<Self, TransferError> {
        Ok(Self { client: Client::on(event_loop, disk, DEPTH)?, size_bytes: disk.limits().size_bytes })
    }

    /// The disk's size, in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Reads at byte `offset`.
    ///
    /// # Errors
    /// Also if the range reaches beyond the end.
    pub fn read_at(&mut self, offset: u64, into: &mut [u8]) -> Result<(), TransferError> {
        let extent = self.extent(offset, into.len())?;
        let mut sink = |piece: Extent, read: Buffer| {
            let start = (piece.offset() - offset) as usize;
            into[start..start + read.len()].copy_from_slice(read.bytes());
            Ok(())
        };
        for piece in pieces(extent) {
            self.client.read(piece, &mut sink)?;
        }
        self.client.settle(0, &mut sink)
    }

    /// Writes at byte `offset`. The write is durable after the next [`flush`](Self::flush); any
    /// part of it may be earlier.
    ///
    /// # Errors
    /// Also if the range reaches beyond the end.
    pub fn write_at(&mut self, offset: u64, from: &[u8]) -> Result<(), TransferError> {
        let extent = self.extent(offset, from.len())?;
        for piece in pieces(extent) {
            let start = (piece.offset() - offset) as usize;
            self.client.write(piece, &from[start..start + piece.length() as usize])?;
        }
        self.client.settle_writes()
    }

    /// Makes `length_bytes` bytes at byte `offset` read as zeroes; durable like a write.
    ///
    /// # Errors
    /// Also if that reaches beyond the end.
    pub fn write_zeroes_at(&mut self, offset: u64, length_bytes: u64) -> Result<(), TransferError> {
        self.client.write_zeroes(self.extent(offset, length_bytes as usize)?)?;
        self.client.settle_writes()
    }

    /// Makes all writes durable.
    ///
    /// # Errors
    /// If the flush fails; then it is unknown which writes are durable.
    pub fn flush(&mut self) -> Result<(), TransferError> {
        self.client.flush()
    }

    fn extent(&self, offset: u64, length: usize) -> Result<Extent, TransferError> {
        let end = offset.checked_add(length as u64).filter(|end| *end <= self.size_bytes);
        let end = end.ok_or_else(|| {
            let extent = Extent::between(offset, offset.saturating_add(length as u64));
            TransferError::Volume(IoError::OutOfRange { extent, size_bytes: self.size_bytes })
        })?;
        Ok(Extent::between(offset, end))
    }
}

impl fmt::Debug for DiskAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DiskAccess({} bytes)", self.size_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use strongroom_datastore::file::{
        Access, CreateOptions, OpenOptions, Protection, Provisioning, create, open,
    };
    use strongroom_types::VolumeSize;

    use super::*;
    use crate::stack::assemble_destaged;

    const SIZE_BYTES: u64 = 40 << 20;

    fn access(path: &Path) -> DiskAccess {
        let (protection, access) = (Protection::Unencrypted, Access::ReadWrite);
        let options =
            OpenOptions { protection, access, lock_wait: Duration::from_secs(10), least_generation: 0 };
        DiskAccess::open(&*assemble_destaged(open(path, &options).unwrap()).unwrap()).unwrap()
    }

    #[test]
    fn what_is_written_anywhere_is_read_there_and_lasts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("volume");
        let size = VolumeSize::new(SIZE_BYTES).unwrap();
        let (provisioning, protection) = (Provisioning::Thin, Protection::Unencrypted);
        create(&path, &CreateOptions { size, provisioning, protection, log_bytes: None, integrity: None })
            .unwrap();
        // More pieces than are in flight at once, at offsets that are not block-aligned.
        let long: Vec<u8> = (0..20_000_003_u32).map(|at| (at % 251) as u8).collect();
        let offset = (3 << 20) + 7;
        let mut disk = access(&path);
        disk.write_at(offset, &long).unwrap();
        disk.write_at(SIZE_BYTES - 3, b"end").unwrap();
        disk.flush().unwrap();
        drop(disk);
        let mut disk = access(&path);
        let mut found = vec![0xff; long.len() + 2];
        disk.read_at(offset - 1, &mut found).unwrap();
        assert!(found[0] == 0 && found[1..=long.len()] == long && found[long.len() + 1] == 0);
        let mut end = [0; 3];
        disk.read_at(SIZE_BYTES - 3, &mut end).unwrap();
        assert_eq!(&end, b"end");
        disk.read_at(SIZE_BYTES, &mut []).unwrap();
        for (offset, length) in [(SIZE_BYTES - 2, 3), (u64::MAX, 1), (SIZE_BYTES + 1, 0)] {
            let beyond = disk.read_at(offset, &mut vec![0; length]);
            assert!(matches!(beyond, Err(TransferError::Volume(IoError::OutOfRange { .. }))), "{beyond:?}");
        }
    }
}
