//! A log in a ring: it keeps the latest output and overwrites the oldest.
//!
//! Whole records fill the ring in turn. The output since the last whole record is the *tail*. It is
//! written again each time, alternately to two slots, so that one of them is intact whenever power
//! is cut.

use strongroom_types::VolumeId;
use zeroize::Zeroizing;

use crate::error::StreamError;
use crate::header::{HEADER_BYTES, Header, Shape, StreamKind};
use crate::medium::Medium;
use crate::record::{self, Found, HEAD_BYTES, Place, TAIL, content_bytes_max};

/// The most whole records of a ring. It limits the work of a reader.
pub const RING_SLOTS_MAX: u32 = 4096;
/// Slots of the tail.
const TAILS: u64 = 2;

/// A log that is open for writing or reading.
#[derive(Debug)]
pub struct Log<M> {
    medium: M,
    header: Header,
    slot: Zeroizing<Vec<u8>>,
    /// The output since the last whole record.
    tail: Zeroizing<Vec<u8>>,
    /// The number of the tail's record.
    number: u64,
    step: u64,
    /// Whether part of the tail is not durable.
    behind: bool,
}

/// A piece of a log, in the order of writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogPiece<'a> {
    /// Output.
    Said(&'a [u8]),
    /// A record that does not verify.
    Damaged {
        /// The record's number, from 0.
        number: u64,
    },
}

impl<M: Medium> Log<M> {
    /// Begins a log in a volume and overwrites the previous content.
    ///
    /// # Errors
    /// [`StreamError::Limit`] for sizes outside the limits of the format; [`StreamError::NoRoom`];
    /// and if the volume fails.
    pub fn begin(
        mut medium: M,
        kind: StreamKind,
        volume: VolumeId,
        shape: Shape,
    ) -> Result<Self, StreamError> {
        let Shape { slot_bytes, ring_slots } = shape;
        check_ring(ring_slots)?;
        let bytes = (TAILS + u64::from(ring_slots)) * u64::from(slot_bytes) + HEADER_BYTES as u64;
        if bytes > medium.size_bytes() {
            return Err(StreamError::NoRoom { size_bytes: medium.size_bytes() });
        }
        let header = Header::write(&mut medium, kind, volume, shape)?;
        medium.flush()?;
        Ok(Self::of(medium, header))
    }

    /// Opens a log, to read it or to append to it.
    ///
    /// # Errors
    /// If there is none, if its first block does not verify, or if the volume fails. Damaged
    /// records cause no error here.
    pub fn open(mut medium: M, kind: StreamKind, volume: VolumeId) -> Result<Self, StreamError> {
        let header = Header::read(&mut medium, kind, volume)?;
        check_ring(header.ring_slots)?;
        let mut log = Self::of(medium, header);
        for slot in 0..u64::from(log.header.ring_slots) {
            if let Some((place, _)) = log.read_slot(TAILS + slot)?
                && place.flags == 0
                && log.slot_of(place.number) == TAILS + slot
            {
                log.number = log.number.max(place.number.saturating_add(1));
            }
        }
        let mut newest = None;
        for slot in 0..TAILS {
            let Some((place, length_bytes)) = log.read_slot(slot)? else { continue };
            if place.flags != TAIL {
                continue;
            }
            log.step = log.step.max(place.step);
            if place.number == log.number && newest.is_none_or(|newest| place.step > newest) {
                newest = Some(place.step);
                log.tail = Zeroizing::new(log.slot[HEAD_BYTES..][..length_bytes].to_vec());
            }
        }
        Ok(log)
    }

    fn of(medium: M, header: Header) -> Self {
        let slot = Zeroizing::new(vec![0; header.slot_bytes as usize]);
        let tail = Zeroizing::new(Vec::with_capacity(content_bytes_max(header.slot_bytes)));
        Self { medium, header, slot, tail, number: 0, step: 0, behind: false }
    }

    /// Appends output. Whole records are written at once, and the rest by
    /// [`persist`](Self::persist).
    ///
    /// # Errors
    /// If the volume fails.
    pub fn say(&mut self, mut said: &[u8]) -> Result<(), StreamError> {
        while !said.is_empty() {
            let room = content_bytes_max(self.header.slot_bytes).saturating_sub(self.tail.len());
            let count = said.len().min(room);
            self.tail.extend_from_slice(&said[..count]);
            self.behind = true;
            said = &said[count..];
            if count == room {
                self.put_whole()?;
            }
        }
        Ok(())
    }

    /// Makes all output durable.
    ///
    /// # Errors
    /// If the volume fails.
    pub fn persist(&mut self) -> Result<(), StreamError> {
        if !self.behind {
            return Ok(());
        }
        self.step += 1;
        let place = Place { number: self.number, flags: TAIL, step: self.step };
        self.put(self.step % TAILS, place)?;
        self.medium.flush()?;
        self.behind = false;
        Ok(())
    }

    /// Calls `hear` with all output that the ring still has, the oldest first.
    ///
    /// # Errors
    /// If the volume fails. Damaged records are passed to `hear` as such.
    pub fn read(&mut self, mut hear: impl FnMut(LogPiece<'_>)) -> Result<(), StreamError> {
        let oldest = self.number.saturating_sub(self.header.ring_slots.into());
        for number in oldest..self.number {
            match self.read_slot(self.slot_of(number))? {
                Some((place, length_bytes)) if place == (Place { number, flags: 0, step: 0 }) => {
                    hear(LogPiece::Said(&self.slot[HEAD_BYTES..][..length_bytes]));
                }
                // Its slot is that of the record that was being written when power was cut.
                _ if number + u64::from(self.header.ring_slots) == self.number => {}
                _ => hear(LogPiece::Damaged { number }),
            }
        }
        hear(LogPiece::Said(&self.tail));
        Ok(())
    }

    /// Returns the volume. Output that was not [persisted](Self::persist) is lost.
    pub fn into_medium(self) -> M {
        self.medium
    }

    /// The volume.
    #[cfg(test)]
    pub(crate) fn medium(&mut self) -> &mut M {
        &mut self.medium
    }

    /// Writes the tail as a whole record. If power is cut meanwhile, it still is the tail.
    fn put_whole(&mut self) -> Result<(), StreamError> {
        self.persist()?;
        self.put(self.slot_of(self.number), Place { number: self.number, flags: 0, step: 0 })?;
        self.medium.flush()?;
        self.number += 1;
        self.tail.clear();
        Ok(())
    }

    fn put(&mut self, slot: u64, place: Place) -> Result<(), StreamError> {
        let length_bytes = self.tail.len();
        self.slot[HEAD_BYTES..][..length_bytes].copy_from_slice(&self.tail);
        let sealed = record::seal(&self.header.key, place, &mut self.slot, length_bytes)?;
        Ok(self.medium.write_at(HEADER_BYTES as u64 + slot * u64::from(self.header.slot_bytes), sealed)?)
    }

    fn slot_of(&self, number: u64) -> u64 {
        TAILS + number % u64::from(self.header.ring_slots)
    }

    fn read_slot(&mut self, slot: u64) -> Result<Option<(Place, usize)>, StreamError> {
        self.medium
            .read_at(HEADER_BYTES as u64 + slot * u64::from(self.header.slot_bytes), &mut self.slot)?;
        Ok(match record::open(&self.header.key, &mut self.slot) {
            Found::Record { place, length_bytes } => Some((place, length_bytes)),
            Found::Nothing | Found::Damaged => None,
        })
    }
}

fn check_ring(ring_slots: u32) -> Result<(), StreamError> {
    let (actual, most) = (ring_slots.into(), RING_SLOTS_MAX.into());
    let possible = (1..=RING_SLOTS_MAX).contains(&ring_slots);
    possible.then_some(()).ok_or(StreamError::Limit { what: "a ring's records", actual, least: 1, most })
}
