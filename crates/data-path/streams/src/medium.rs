//! The volume of a stream, as the stream sees it.

use std::io;

/// The content of a volume, for a process that holds its keys.
pub trait Medium {
    /// Its size, in bytes.
    fn size_bytes(&self) -> u64;

    /// Reads from byte `offset` on; content that was never written is zeroes.
    ///
    /// # Errors
    /// Includes an extent beyond the end.
    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes at byte `offset`. The data is durable after the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// Includes an extent beyond the end.
    fn write_at(&mut self, offset: u64, from: &[u8]) -> io::Result<()>;

    /// Makes all written data durable.
    ///
    /// # Errors
    /// If the data may not be durable.
    fn flush(&mut self) -> io::Result<()>;
}

impl<M: Medium + ?Sized> Medium for &mut M {
    fn size_bytes(&self) -> u64 {
        (**self).size_bytes()
    }

    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        (**self).read_at(offset, into)
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> io::Result<()> {
        (**self).write_at(offset, from)
    }

    fn flush(&mut self) -> io::Result<()> {
        (**self).flush()
    }
}

/// Memory, to examine the format without volumes.
impl Medium for Vec<u8> {
    fn size_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let at = range(offset, into.len(), self.len())?;
        into.copy_from_slice(&self[at]);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> io::Result<()> {
        let at = range(offset, from.len(), self.len())?;
        self[at].copy_from_slice(from);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn range(offset: u64, length_bytes: usize, size_bytes: usize) -> io::Result<std::ops::Range<usize>> {
    let start = usize::try_from(offset).ok();
    let end = start.and_then(|start| start.checked_add(length_bytes)).filter(|end| *end <= size_bytes);
    start.zip(end).map(|(start, end)| start..end).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
