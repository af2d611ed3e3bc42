//! The driver's side of a split virtqueue (VIRTIO 1.2, 2.7): free descriptors, chains in flight,
//! and used chains.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use strongroom_memory::{GuestAddress, GuestError, GuestMemory};
use thiserror::Error;

use super::guest::Run;
use super::protocol::{DESCRIPTOR_BYTES, descriptor_flag as flag};

/// A protocol violation by the device, or a ring outside memory.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum RingError {
    /// A part of it is not in the guest's memory.
    #[error(transparent)]
    Memory(#[from] GuestError),
    /// The device returned a chain twice, or one that was not in flight.
    #[error("the device used chain {0}, which was not in flight")]
    NotInFlight(u32),
    /// The device's index is ahead of the available chains.
    #[error("the device used {0} chains at once, more than were in flight")]
    Index(u16),
}

/// The addresses of a ring's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPlace {
    /// Descriptor table.
    pub descriptors: GuestAddress,
    /// Available ring.
    pub available: GuestAddress,
    /// Used ring.
    pub used: GuestAddress,
}

impl RingPlace {
    /// The parts of a ring of `size` entries, one after another from `start` on.
    pub fn at(start: GuestAddress, size: u16) -> Self {
        let available = start.0 + DESCRIPTOR_BYTES * u64::from(size);
        let used = (available + 6 + 2 * u64::from(size)).next_multiple_of(4);
        Self { descriptors: start, available: GuestAddress(available), used: GuestAddress(used) }
    }

    /// The bytes of a ring of `size` entries.
    pub fn bytes(size: u16) -> u64 {
        Self::at(GuestAddress(0), size).used.0 + 6 + 8 * u64::from(size)
    }
}

/// One descriptor of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Its memory.
    pub run: Run,
    /// Whether the device writes it; otherwise it reads it.
    pub device_writes: bool,
}

/// A chain that the device has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Its first descriptor.
    pub head: u16,
    /// The number of bytes that the device reports as written.
    pub written_bytes: u32,
}

/// The driver's half of a ring.
#[derive(Debug)]
pub struct DriverRing {
    memory: Arc<GuestMemory>,
    place: RingPlace,
    size: u16,
    event_index: bool,
    free: Vec<u16>,
    /// By head: the descriptors of the chain in flight that begins there.
    chains: Vec<Vec<u16>>,
    next_available: u16,
    published: u16,
    next_used: u16,
}

impl DriverRing {
    /// An empty ring of `size` entries, a power of two.
    pub fn new(memory: &Arc<GuestMemory>, place: RingPlace, size: u16, event_index: bool) -> Self {
        Self {
            memory: Arc::clone(memory),
            place,
            size,
            event_index,
            free: (0..size).rev().collect(),
            chains: vec![Vec::new(); usize::from(size)],
            next_available: 0,
            published: 0,
            next_used: 0,
        }
    }

    /// The addresses of its parts.
    pub fn place(&self) -> RingPlace {
        self.place
    }

    /// Count of entries.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// The number of free descriptors.
    pub fn free_descriptors(&self) -> usize {
        self.free.len()
    }

    /// The used ring's index, as published by the device.
    pub fn used_index(&self) -> Result<u16, GuestError> {
        self.memory.load_u16(at(self.place.used, 2))
    }

    /// Makes a chain available, in an indirect table if a place for one is given. Returns its head,
    /// or `None` if too few descriptors are free. The device sees it after [`Self::publish`].
    pub fn put(
        &mut self,
        parts: &[Descriptor],
        table: Option<GuestAddress>,
    ) -> Result<Option<u16>, RingError> {
        let needed = if table.is_some() { 1 } else { parts.len() };
        if self.free.len() < needed || needed == 0 {
            return Ok(None);
        }
        let own: Vec<u16> = self.free.drain(self.free.len() - needed..).rev().collect();
        match table {
            Some(table) => {
                let places: Vec<u16> = (0..parts.len() as u16).collect();
                self.write_chain(table, &places, parts)?;
                let run = (table, DESCRIPTOR_BYTES as u32 * parts.len() as u32);
                self.write_descriptor(self.place.descriptors, own[0], run, flag::INDIRECT, 0)?;
            }
            None => self.write_chain(self.place.descriptors, &own, parts)?,
        }
        let head = own[0];
        self.chains[usize::from(head)] = own;
        self.make_available(head)?;
        Ok(Some(head))
    }

    /// Puts a head into the available ring without checking its chain.
    pub fn make_available(&mut self, head: u16) -> Result<(), GuestError> {
        let entry = at(self.place.available, 4 + 2 * u64::from(self.next_available % self.size));
        self.memory.store_u16(entry, head)?;
        self.next_available = self.next_available.wrapping_add(1);
        Ok(())
    }

    fn write_chain(
        &self,
        table: GuestAddress,
        places: &[u16],
        parts: &[Descriptor],
    ) -> Result<(), GuestError> {
        for (index, part) in parts.iter().enumerate() {
            let write = if part.device_writes { flag::WRITE } else { 0 };
            let (next, flags) = match places.get(index + 1) {
                Some(next) => (*next, write | flag::NEXT),
                None => (0, write),
            };
            self.write_descriptor(table, places[index], part.run, flags, next)?;
        }
        Ok(())
    }

    /// Writes a descriptor without checking it.
    pub fn write_descriptor(
        &self,
        table: GuestAddress,
        index: u16,
        (address, length): Run,
        flags: u16,
        next: u16,
    ) -> Result<(), GuestError> {
        let word = u128::from(address.0)
            | u128::from(length) << 64
            | u128::from(flags) << 96
            | u128::from(next) << 112;
        self.memory.write(at(table, DESCRIPTOR_BYTES * u64::from(index)), &word.to_le_bytes())
    }

    /// Publishes available chains to the device; returns whether it wants a kick.
    pub fn publish(&mut self) -> Result<bool, RingError> {
        let (old, new) = (self.published, self.next_available);
        if old == new {
            return Ok(false);
        }
        self.memory.store_u16(at(self.place.available, 2), new)?;
        self.published = new;
        // Write our index before reading its wish. The device does the two in reverse order, so
        // that at least one side sees the other's value.
        fence(Ordering::SeqCst);
        if self.event_index {
            let event = self.memory.load_u16(at(self.place.used, 4 + 8 * u64::from(self.size)))?;
            Ok(new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old))
        } else {
            const NO_NOTIFY: u16 = 1;
            Ok(self.memory.load_u16(self.place.used)? & NO_NOTIFY == 0)
        }
    }

    /// The number of used chains not taken yet.
    pub fn used_ahead(&self) -> Result<u16, RingError> {
        let ahead = self.used_index()?.wrapping_sub(self.next_used);
        if ahead > self.size { Err(RingError::Index(ahead)) } else { Ok(ahead) }
    }

    /// Takes an existing entry of the used ring: a head, and the number of bytes written. It is for
    /// callers that use [`Self::make_available`], and track the heads in flight themselves.
    pub fn take_entry(&mut self) -> Result<(u32, u32), RingError> {
        let entry = self.next_entry()?;
        self.next_used = self.next_used.wrapping_add(1);
        Ok(entry)
    }

    fn next_entry(&self) -> Result<(u32, u32), RingError> {
        let entry = at(self.place.used, 4 + 8 * u64::from(self.next_used % self.size));
        let entry = u64::from_le_bytes(self.memory.read(entry)?);
        Ok((entry as u32, (entry >> 32) as u32))
    }

    /// The next chain that the device has used.
    pub fn take_used(&mut self) -> Result<Option<Used>, RingError> {
        if self.used_ahead()? == 0 {
            return Ok(None);
        }
        let (head, written_bytes) = self.next_entry()?;
        let chain = self.chains.get_mut(head as usize).map(std::mem::take).unwrap_or_default();
        if chain.is_empty() {
            return Err(RingError::NotInFlight(head));
        }
        self.free.extend(chain.into_iter().rev());
        self.next_used = self.next_used.wrapping_add(1);
        Ok(Some(Used { head: head as u16, written_bytes }))
    }

    /// Requests a call for the next used chain, before the driver sleeps; returns `true` if there
    /// already is one.
    pub fn listen(&mut self) -> Result<bool, RingError> {
        if self.event_index {
            self.memory.store_u16(at(self.place.available, 4 + 2 * u64::from(self.size)), self.next_used)?;
            fence(Ordering::SeqCst);
        }
        Ok(self.used_index()? != self.next_used)
    }
}

fn at(start: GuestAddress, offset: u64) -> GuestAddress {
    GuestAddress(start.0 + offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vhost_user::guest::{Guest, Pages};

    fn ring(event_index: bool) -> DriverRing {
        let guest = Guest::new(&[(GuestAddress(0), 1 << 16)], Pages::Small).unwrap();
        DriverRing::new(guest.memory(), RingPlace::at(GuestAddress(0), 4), 4, event_index)
    }

    fn use_chain(ring: &DriverRing, index: u16, head: u32) {
        let entry = at(ring.place.used, 4 + 8 * u64::from(index % 4));
        ring.memory.write(entry, &head.to_le_bytes()).unwrap();
        ring.memory.store_u16(at(ring.place.used, 2), index.wrapping_add(1)).unwrap();
    }

    const PART: Descriptor = Descriptor { run: (GuestAddress(4096), 16), device_writes: false };

    #[test]
    fn descriptors_are_taken_and_given_back() {
        let mut ring = ring(false);
        let first = ring.put(&[PART; 3], None).unwrap().unwrap();
        assert_eq!(ring.put(&[PART; 2], None).unwrap(), None);
        let second = ring.put(&[PART; 2], Some(GuestAddress(8192))).unwrap().unwrap();
        assert!(ring.publish().unwrap());
        assert!(!ring.publish().unwrap());
        use_chain(&ring, 0, u32::from(second));
        assert_eq!(ring.take_used().unwrap().map(|used| used.head), Some(second));
        assert_eq!(ring.take_used().unwrap(), None);
        use_chain(&ring, 1, u32::from(first));
        assert_eq!(ring.take_used().unwrap().map(|used| used.head), Some(first));
        assert_eq!(ring.free.len(), 4);
    }

    #[test]
    fn a_device_that_invents_or_repeats_is_found_out() {
        let mut ring = ring(true);
        let head = u32::from(ring.put(&[PART], None).unwrap().unwrap());
        use_chain(&ring, 0, head);
        assert!(ring.listen().unwrap());
        assert!(ring.take_used().unwrap().is_some());
        use_chain(&ring, 1, head);
        assert_eq!(ring.take_used(), Err(RingError::NotInFlight(head)));
        use_chain(&ring, 1, 77);
        assert_eq!(ring.take_used(), Err(RingError::NotInFlight(77)));
        use_chain(&ring, 9, head);
        assert_eq!(ring.take_used(), Err(RingError::Index(9)));
    }
}
