//! A split virtqueue from the device's side (VIRTIO 1.2, 2.7): which chains the driver made
//! available, and which are used.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use strongroom_memory::{GuestAddress, GuestError, GuestMemory};
use thiserror::Error;

use super::in_flight::{InFlight, InFlightArea, InFlightError, Recovered};
use super::protocol::{DESCRIPTOR_BYTES, QUEUE_SIZE_MAX};

/// The errors after which a ring cannot be served any further.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum RingError {
    /// A part of it, or what it points to, is not in the guest's memory.
    #[error(transparent)]
    Memory(#[from] GuestError),
    /// A size that is no power of two, or too large.
    #[error("a queue of {0} entries; powers of two up to {QUEUE_SIZE_MAX} are served")]
    Size(u16),
    /// The driver's index runs ahead of what fits in the ring.
    #[error("the driver made {0} chains available at once, more than the ring holds")]
    Index(u16),
    /// A chain that starts outside of the descriptor table, or goes on there.
    #[error("descriptor {0} is not in its table")]
    Descriptor(u16),
    /// A chain that has more descriptors than its table.
    #[error("a chain of descriptors runs in a circle")]
    Circle,
    /// An indirect table that is not allowed there, or has an invalid length.
    #[error("an indirect table of {0} bytes is not allowed there")]
    Indirect(u32),
    /// A readable descriptor after a writable one.
    #[error("a descriptor for reading follows one for writing")]
    Order,
    /// No byte for the status of a request.
    #[error("a request has no byte for its status")]
    NoStatus,
    /// The record of requests in flight is unusable, or the driver contradicts it.
    #[error(transparent)]
    InFlight(#[from] InFlightError),
}

/// The addresses of a queue's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Count of entries.
    pub size: u16,
    /// Descriptor table.
    pub descriptors: GuestAddress,
    /// Available ring.
    pub available: GuestAddress,
    /// Used ring.
    pub used: GuestAddress,
}

impl Layout {
    /// Bytes of the descriptor table of a queue.
    pub fn descriptor_bytes(size: u16) -> u64 {
        DESCRIPTOR_BYTES * u64::from(size)
    }

    /// Bytes of its available ring.
    pub fn available_bytes(size: u16) -> u64 {
        6 + 2 * u64::from(size)
    }

    /// Bytes of its used ring.
    pub fn used_bytes(size: u16) -> u64 {
        6 + 8 * u64::from(size)
    }

    /// Whether a queue can have this size.
    pub fn check_size(size: u16) -> Result<(), RingError> {
        if size.is_power_of_two() && size <= QUEUE_SIZE_MAX { Ok(()) } else { Err(RingError::Size(size)) }
    }

    fn available_entry(&self, index: u16) -> GuestAddress {
        at(self.available, 4 + 2 * u64::from(index % self.size))
    }

    fn used_entry(&self, index: u16) -> GuestAddress {
        at(self.used, 4 + 8 * u64::from(index % self.size))
    }

    /// The field after the available ring: the used entry up to which the driver wants no
    /// interrupt.
    fn used_event(&self) -> GuestAddress {
        at(self.available, 4 + 2 * u64::from(self.size))
    }

    /// The field after the used ring: the available entry up to which we want no kick.
    fn available_event(&self) -> GuestAddress {
        at(self.used, 4 + 8 * u64::from(self.size))
    }
}

/// A mapped ring never extends beyond the address space; an address that wraps is not mapped.
fn at(start: GuestAddress, offset: u64) -> GuestAddress {
    GuestAddress(start.0.wrapping_add(offset))
}

/// The state of a queue.
pub struct SplitRing {
    memory: Arc<GuestMemory>,
    layout: Layout,
    event_index: bool,
    /// The next entry to take from the available ring.
    next_available: u16,
    /// The driver's index when it was last looked at.
    seen_available: u16,
    /// The next entry to fill in the used ring.
    next_used: u16,
    /// Our index as published to the driver.
    published_used: u16,
    /// Whether the driver has not been interrupted since this ring was taken up: then it is unknown
    /// which interrupts it got before.
    uncalled: bool,
    /// Whether the driver is asked not to kick.
    quiet: bool,
    /// The record of requests in flight, if the front end keeps one.
    in_flight: Option<InFlight>,
    /// Requests that a predecessor took and did not answer; they are repeated before any new one.
    replayed: VecDeque<u16>,
}

impl SplitRing {
    /// Takes up a queue at an entry of its available ring. An in-flight area, which comes with the
    /// queue's index in it, overrides the entry if it has one.
    pub fn new(
        memory: &Arc<GuestMemory>,
        layout: Layout,
        next_available: u16,
        event_index: bool,
        in_flight: Option<(&Arc<InFlightArea>, usize)>,
    ) -> Result<Self, RingError> {
        Layout::check_size(layout.size)?;
        let next_used = memory.load_u16(at(layout.used, 2))?;
        let recovered = in_flight
            .map(|(area, index)| InFlight::recover(area, index, layout.size, next_used))
            .transpose()?;
        let (in_flight, replayed, next_available) = match recovered {
            Some(Recovered { in_flight, heads, next_available: known }) => {
                (Some(in_flight), heads.into(), known.unwrap_or(next_available))
            }
            None => (None, VecDeque::new(), next_available),
        };
        // A predecessor may have asked not to be kicked.
        memory.store_u16(layout.used, 0)?;
        Ok(Self {
            memory: Arc::clone(memory),
            layout,
            event_index,
            next_available,
            seen_available: next_available,
            next_used,
            published_used: next_used,
            uncalled: true,
            quiet: false,
            in_flight,
            replayed,
        })
    }

    /// The guest's memory.
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// Where the parts are.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// How many requests of a predecessor are left to be repeated.
    pub fn replayed(&self) -> usize {
        self.replayed.len()
    }

    /// The entry at which a successor takes up the queue.
    pub fn next_available(&self) -> u16 {
        self.next_available
    }

    /// The first descriptor of the next chain, if there is one.
    pub fn take(&mut self) -> Result<Option<u16>, RingError> {
        if let Some(head) = self.replayed.pop_front() {
            return Ok(Some(head));
        }
        if !self.look_for_new()? {
            return Ok(None);
        }
        let head = u16::from_le_bytes(self.memory.read(self.layout.available_entry(self.next_available))?);
        if head >= self.layout.size {
            return Err(RingError::Descriptor(head));
        }
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.take(head)?;
        }
        self.next_available = self.next_available.wrapping_add(1);
        Ok(Some(head))
    }

    /// Checks whether there is a chain to take.
    pub fn look_for_new(&mut self) -> Result<bool, RingError> {
        if self.seen_available == self.next_available {
            let seen = self.memory.load_u16(at(self.layout.available, 2))?;
            let count = seen.wrapping_sub(self.next_available);
            if count > self.layout.size {
                return Err(RingError::Index(count));
            }
            self.seen_available = seen;
        }
        Ok(self.seen_available != self.next_available)
    }

    /// Puts a chain into the used ring, with the count of bytes written to its memory. The driver
    /// sees it after [`Self::publish`].
    pub fn put_used(&mut self, head: u16, written_bytes: u32) -> Result<(), RingError> {
        let mut entry = [0; 8];
        entry[..4].copy_from_slice(&u32::from(head).to_le_bytes());
        entry[4..].copy_from_slice(&written_bytes.to_le_bytes());
        self.memory.write(self.layout.used_entry(self.next_used), &entry)?;
        self.next_used = self.next_used.wrapping_add(1);
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.put_used(head)?;
        }
        Ok(())
    }

    /// Publishes the used ring to the driver. Returns whether the driver wants an interrupt for it.
    pub fn publish(&mut self) -> Result<bool, RingError> {
        let (old, new) = (self.published_used, self.next_used);
        if old == new {
            return Ok(false);
        }
        let show = || -> Result<(), RingError> { Ok(self.memory.store_u16(at(self.layout.used, 2), new)?) };
        match &mut self.in_flight {
            Some(in_flight) => in_flight.publish(new, show)?,
            None => show()?,
        }
        self.published_used = new;
        // The driver writes its request and then reads our index; we write the index and then read
        // the request. With a full fence on both sides, at least one of the two sees the other's
        // write.
        fence(Ordering::SeqCst);
        let wanted = if self.event_index {
            let event = self.memory.load_u16(self.layout.used_event())?;
            is_passed(event, new, old)
        } else {
            const NO_INTERRUPT: u16 = 1;
            self.memory.load_u16(self.layout.available)? & NO_INTERRUPT == 0
        };
        Ok(wanted | std::mem::take(&mut self.uncalled))
    }

    /// Asks the driver to kick for the next chain, before the queue sleeps. Returns `true` if one
    /// came meanwhile.
    pub fn listen(&mut self) -> Result<bool, RingError> {
        if self.event_index {
            self.memory.store_u16(self.layout.available_event(), self.next_available)?;
        } else if self.quiet {
            self.memory.store_u16(self.layout.used, 0)?;
        }
        self.quiet = false;
        fence(Ordering::SeqCst);
        self.look_for_new()
    }

    /// Asks the driver not to kick, while the queue is awake anyway.
    pub fn be_quiet(&mut self) -> Result<(), RingError> {
        if self.quiet {
            return Ok(());
        }
        self.quiet = true;
        const NO_NOTIFY: u16 = 1;
        match self.event_index {
            // The chain before the next one: entries that the driver adds do not pass it.
            true => {
                self.memory.store_u16(self.layout.available_event(), self.next_available.wrapping_sub(1))?
            }
            false => self.memory.store_u16(self.layout.used, NO_NOTIFY)?,
        }
        Ok(())
    }
}

/// Whether `event` is one of the entries from `old` up to, but not including, `new` (2.7.10.1).
fn is_passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_passed_once_also_where_indices_wrap() {
        assert!(is_passed(5, 6, 5) && !is_passed(6, 6, 5) && !is_passed(4, 6, 5));
        assert!(
            is_passed(u16::MAX, 3, u16::MAX - 1) && is_passed(2, 3, u16::MAX) && !is_passed(3, 3, u16::MAX)
        );
    }

    #[test]
    fn sizes_are_powers_of_two_within_the_limit() {
        assert!([1, 2, 128, 1024].iter().all(|size| Layout::check_size(*size).is_ok()));
        assert!([0, 3, 2048, u16::MAX].iter().all(|size| Layout::check_size(*size).is_err()));
    }
}
