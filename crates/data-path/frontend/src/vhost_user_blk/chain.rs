//! From a chain of descriptors to runs of guest memory.
//!
//! The guest controls the chain, so it may contain anything. Each descriptor is copied once and
//! only the copy is used; the walk ends after as many descriptors as the tables have; every run is
//! checked to be in the guest's memory.

use strongroom_memory::{GuestAddress, GuestMemory};

use super::protocol::{DESCRIPTOR_BYTES, INDIRECT_DESCRIPTORS_MAX, descriptor_flag as flag};
use super::split_ring::{Layout, RingError};

/// A run of guest memory that is contiguous here too.
pub type Run = (GuestAddress, u32);

/// The memory of a request: the parts that we read, then those that we write. It is reused, so that
/// no request allocates.
#[derive(Debug, Default)]
pub struct Chain {
    /// The runs that we read.
    pub readable: Vec<Run>,
    /// The runs that we write.
    pub writable: Vec<Run>,
}

struct Table {
    start: GuestAddress,
    descriptors: u32,
}

impl Chain {
    /// Follows the chain that starts at `head`.
    pub fn walk(
        &mut self,
        memory: &GuestMemory,
        layout: &Layout,
        head: u16,
        indirect_allowed: bool,
    ) -> Result<(), RingError> {
        self.readable.clear();
        self.writable.clear();
        let mut table = Table { start: layout.descriptors, descriptors: u32::from(layout.size) };
        let mut may_be_indirect = indirect_allowed;
        let mut index = head;
        let mut left = table.descriptors;
        loop {
            if u32::from(index) >= table.descriptors {
                return Err(RingError::Descriptor(index));
            }
            left = left.checked_sub(1).ok_or(RingError::Circle)?;
            let place = table.start.0.wrapping_add(DESCRIPTOR_BYTES * u64::from(index));
            let descriptor = Descriptor::parse(&memory.read(GuestAddress(place))?);
            if descriptor.flags & flag::INDIRECT != 0 {
                table = descriptor.table(may_be_indirect)?;
                may_be_indirect = false;
                index = 0;
                left = table.descriptors;
                continue;
            }
            self.add(memory, &descriptor)?;
            if descriptor.flags & flag::NEXT == 0 {
                return Ok(());
            }
            index = descriptor.next;
        }
    }

    /// Adds a descriptor's memory, as one run per region.
    fn add(&mut self, memory: &GuestMemory, descriptor: &Descriptor) -> Result<(), RingError> {
        let runs = if descriptor.flags & flag::WRITE != 0 {
            &mut self.writable
        } else if self.writable.is_empty() {
            &mut self.readable
        } else {
            return Err(RingError::Order);
        };
        let (mut address, mut length) = (descriptor.address, descriptor.length);
        while length > 0 {
            let run = memory.run_length(address, length)?;
            runs.push((address, run));
            // The run is within a region, so its end does not overflow.
            address = GuestAddress(address.0 + u64::from(run));
            length -= run;
        }
        Ok(())
    }
}

struct Descriptor {
    address: GuestAddress,
    length: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn parse(bytes: &[u8; DESCRIPTOR_BYTES as usize]) -> Self {
        let word = u128::from_le_bytes(*bytes);
        Self {
            address: GuestAddress(word as u64),
            length: (word >> 64) as u32,
            flags: (word >> 96) as u16,
            next: (word >> 112) as u16,
        }
    }

    /// The table that an indirect descriptor refers to. The descriptor ends its chain, and its
    /// table must not contain another indirect one (2.7.5.3).
    fn table(&self, allowed: bool) -> Result<Table, RingError> {
        let descriptors = self.length / DESCRIPTOR_BYTES as u32;
        let whole = self.length.is_multiple_of(DESCRIPTOR_BYTES as u32);
        let fits = (1..=INDIRECT_DESCRIPTORS_MAX).contains(&descriptors);
        if !allowed || self.flags & flag::NEXT != 0 || !whole || !fits {
            return Err(RingError::Indirect(self.length));
        }
        Ok(Table { start: self.address, descriptors })
    }
}

/// Count of bytes of runs.
pub fn total_bytes(runs: &[Run]) -> u64 {
    runs.iter().map(|run| u64::from(run.1)).sum()
}

/// Takes the first N bytes out of runs; `None` if there are fewer.
pub fn take_first<const N: usize>(
    memory: &GuestMemory,
    runs: &mut Vec<Run>,
) -> Result<Option<[u8; N]>, RingError> {
    if total_bytes(runs) < N as u64 {
        return Ok(None);
    }
    let mut bytes = [0; N];
    let (mut filled, mut emptied) = (0, 0);
    while filled < N {
        let (address, length) = &mut runs[emptied];
        let taken = if filled == 0 && *length as usize >= N {
            bytes = memory.read(*address)?;
            N
        } else {
            [bytes[filled]] = memory.read(*address)?;
            1
        };
        filled += taken;
        *address = GuestAddress(address.0 + taken as u64);
        *length -= taken as u32;
        emptied += usize::from(*length == 0);
    }
    runs.drain(..emptied);
    Ok(Some(bytes))
}

/// Takes the last byte out of runs. Returns its address.
pub fn take_last(runs: &mut Vec<Run>) -> Option<GuestAddress> {
    let (address, length) = runs.last_mut()?;
    *length -= 1;
    let last = GuestAddress(address.0 + u64::from(*length));
    if *length == 0 {
        runs.pop();
    }
    Some(last)
}

#[cfg(test)]
#[path = "chain_tests.rs"]
mod tests;
