//! Writes a stream that has an end.

use std::io::{self, Read};

use strongroom_types::VolumeId;
use zeroize::Zeroizing;

use crate::error::StreamError;
use crate::header::{HEADER_BYTES, Header, Shape, StreamKind};
use crate::medium::Medium;
use crate::record::{self, FINAL, HEAD_BYTES, Place, content_bytes_max};

/// Writes a stream, record by record. Until it is [finished](Self::finish), a reader reports it as
/// unfinished.
#[derive(Debug)]
pub struct StreamWriter<M> {
    medium: M,
    header: Header,
    /// The slot of the record that is being filled.
    slot: Zeroizing<Vec<u8>>,
    filled_bytes: usize,
    number: u64,
    content_bytes: u64,
}

impl<M: Medium> StreamWriter<M> {
    /// Begins a stream in an empty volume. A reader gets `description` before the content; it must
    /// fit into one record. Records start every `slot_bytes`.
    ///
    /// # Errors
    /// [`StreamError::Limit`] for a size outside the limits of the format; [`StreamError::NoRoom`];
    /// and if the volume fails.
    pub fn begin(
        mut medium: M,
        kind: StreamKind,
        volume: VolumeId,
        slot_bytes: u32,
        description: &[u8],
    ) -> Result<Self, StreamError> {
        let header = Header::write(&mut medium, kind, volume, Shape { slot_bytes, ring_slots: 0 })?;
        let most = content_bytes_max(slot_bytes);
        if description.len() > most {
            let (actual, most) = (description.len() as u64, most as u64);
            return Err(StreamError::Limit { what: "a description in bytes", actual, least: 0, most });
        }
        let slot = Zeroizing::new(vec![0; slot_bytes as usize]);
        let mut writer = Self { medium, header, slot, filled_bytes: 0, number: 0, content_bytes: 0 };
        writer.fill(description);
        writer.put(0)?;
        Ok(writer)
    }

    /// Appends content.
    ///
    /// # Errors
    /// [`StreamError::NoRoom`], and if the volume fails.
    pub fn write(&mut self, mut content: &[u8]) -> Result<(), StreamError> {
        while !content.is_empty() {
            self.make_room()?;
            let count = content.len().min(self.room_bytes());
            self.fill(&content[..count]);
            self.content_bytes += count as u64;
            content = &content[count..];
        }
        Ok(())
    }

    /// Appends all of `source`. After each read `wanted` is called with the length of the content
    /// so far, in bytes; an error of `wanted` ends the copy.
    ///
    /// # Errors
    /// As [`write`](Self::write), and those of `source` and `wanted`.
    pub fn copy_from(
        &mut self,
        mut source: impl Read,
        mut wanted: impl FnMut(u64) -> io::Result<()>,
    ) -> Result<(), StreamError> {
        loop {
            self.make_room()?;
            let free = HEAD_BYTES + self.filled_bytes..;
            match source.read(&mut self.slot[free]) {
                Ok(0) => return Ok(()),
                Ok(count) => {
                    self.filled_bytes += count;
                    self.content_bytes += count as u64;
                    wanted(self.content_bytes)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Makes the content durable, then writes the end mark and makes it durable. Returns the length
    /// of the content in bytes, and the volume.
    ///
    /// # Errors
    /// If the volume fails; the stream is then unfinished.
    pub fn finish(mut self) -> Result<(u64, M), StreamError> {
        self.medium.flush()?;
        self.put(FINAL)?;
        self.medium.flush()?;
        Ok((self.content_bytes, self.medium))
    }

    /// The length of the content so far, in bytes.
    pub fn content_bytes(&self) -> u64 {
        self.content_bytes
    }

    fn room_bytes(&self) -> usize {
        content_bytes_max(self.header.slot_bytes) - self.filled_bytes
    }

    fn fill(&mut self, content: &[u8]) {
        self.slot[HEAD_BYTES + self.filled_bytes..][..content.len()].copy_from_slice(content);
        self.filled_bytes += content.len();
    }

    fn make_room(&mut self) -> Result<(), StreamError> {
        if self.room_bytes() == 0 { self.put(0) } else { Ok(()) }
    }

    fn put(&mut self, flags: u32) -> Result<(), StreamError> {
        let at = slot_at(&self.header, self.number)
            .filter(|at| at.saturating_add(self.header.slot_bytes.into()) <= self.medium.size_bytes())
            .ok_or(StreamError::NoRoom { size_bytes: self.medium.size_bytes() })?;
        let place = Place { number: self.number, flags, step: 0 };
        let sealed = record::seal(&self.header.key, place, &mut self.slot, self.filled_bytes)?;
        self.medium.write_at(at, sealed)?;
        self.number += 1;
        self.filled_bytes = 0;
        Ok(())
    }
}

/// The offset of a record's slot, in bytes; `None` if it overflows.
pub fn slot_at(header: &Header, number: u64) -> Option<u64> {
    number.checked_mul(header.slot_bytes.into())?.checked_add(HEADER_BYTES as u64)
}
