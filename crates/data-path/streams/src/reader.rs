//! Reads a stream that has an end.

use std::io::{self, Write};

use strongroom_types::VolumeId;
use zeroize::Zeroizing;

use crate::error::StreamError;
use crate::header::{Header, StreamKind};
use crate::medium::Medium;
use crate::record::{self, FINAL, Found, HEAD_BYTES};
use crate::writer::slot_at;

/// Reads a stream. Each record is verified before any of its content is passed on.
#[derive(Debug)]
pub struct StreamReader<M> {
    medium: M,
    header: Header,
    slot: Zeroizing<Vec<u8>>,
    description: Zeroizing<Vec<u8>>,
}

impl<M: Medium> StreamReader<M> {
    /// Opens the stream of this kind, written in this volume.
    ///
    /// # Errors
    /// If there is none, or if its first block or first record does not verify.
    pub fn open(mut medium: M, kind: StreamKind, volume: VolumeId) -> Result<Self, StreamError> {
        let header = Header::read(&mut medium, kind, volume)?;
        let slot = Zeroizing::new(vec![0; header.slot_bytes as usize]);
        let mut reader = Self { medium, header, slot, description: Zeroizing::default() };
        let (length_bytes, _) = reader.read_record(0)?;
        reader.description.extend_from_slice(&reader.slot[HEAD_BYTES..][..length_bytes]);
        Ok(reader)
    }

    /// The description that it was begun with.
    pub fn description(&self) -> &[u8] {
        &self.description
    }

    /// Verifies all of it, and returns the length of its content in bytes. After each record
    /// `wanted` is called with the length of the content verified so far; an error of `wanted` ends
    /// the verification.
    ///
    /// # Errors
    /// For the first record that does not verify; [`StreamError::Unfinished`]; and if the volume
    /// fails.
    pub fn verify(&mut self, wanted: impl FnMut(u64) -> io::Result<()>) -> Result<u64, StreamError> {
        self.copy_to(io::sink(), wanted)
    }

    /// Writes its content to `sink`, and returns the length in bytes. Each record is verified
    /// first, even after [`verify`](Self::verify). If a later record is damaged, `sink` has
    /// received the content before it. `wanted` is called as by [`verify`](Self::verify).
    ///
    /// # Errors
    /// As [`verify`](Self::verify), and those of `sink`.
    pub fn copy_to(
        &mut self,
        mut sink: impl Write,
        mut wanted: impl FnMut(u64) -> io::Result<()>,
    ) -> Result<u64, StreamError> {
        let mut content_bytes = 0;
        for number in 1.. {
            let (length_bytes, last) = self.read_record(number)?;
            sink.write_all(&self.slot[HEAD_BYTES..][..length_bytes])?;
            content_bytes += length_bytes as u64;
            wanted(content_bytes)?;
            if last {
                break;
            }
        }
        Ok(content_bytes)
    }

    /// Returns the volume.
    pub fn into_medium(self) -> M {
        self.medium
    }

    /// Reads a record into the slot. Returns the length of its content, and whether it is the last
    /// one.
    fn read_record(&mut self, number: u64) -> Result<(usize, bool), StreamError> {
        let slot_bytes = u64::from(self.header.slot_bytes);
        let inside = |at: &u64| at.saturating_add(slot_bytes) <= self.medium.size_bytes();
        let at = slot_at(&self.header, number)
            .filter(inside)
            .ok_or(StreamError::Unfinished { records: number })?;
        self.medium.read_at(at, &mut self.slot)?;
        match record::open(&self.header.key, &mut self.slot) {
            Found::Record { place, .. } if place.number != number => {
                Err(StreamError::Misplaced { number, found: place.number })
            }
            Found::Record { place, length_bytes } if place.step == 0 && place.flags & !FINAL == 0 => {
                Ok((length_bytes, place.flags == FINAL))
            }
            Found::Nothing => Err(StreamError::Unfinished { records: number }),
            Found::Record { .. } | Found::Damaged => Err(StreamError::Damaged { number }),
        }
    }
}
