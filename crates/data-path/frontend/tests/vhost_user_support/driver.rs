//! A virtio block driver of one queue.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use strongroom_memory::{GuestAddress, GuestMemory};

use super::DEADLINE;
use super::front_end::{EVENT_INDEX, INDIRECT, event};

/// Entries of a queue.
pub const QUEUE_SIZE: u16 = 256;

/// Memory of one queue's parts: descriptors, available ring at 0x2000, used ring at 0x4000, from
/// 0x8000 on 256 bytes for each slot (header, status, indirect table).
pub const QUEUE_BYTES: u64 = 1 << 16;

/// Where the content of slots starts.
const CONTENT: u64 = 1 << 20;

/// The most content of one slot.
pub const CONTENT_BYTES: u64 = 512 << 10;

/// Requests in flight; each has its own four descriptors.
pub const SLOTS: u16 = 64;

pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const FLUSH: u32 = 4;
pub const GET_ID: u32 = 8;
pub const DISCARD: u32 = 11;
pub const WRITE_ZEROES: u32 = 13;

pub struct Driver {
    pub memory: Arc<GuestMemory>,
    pub kick: OwnedFd,
    pub call: OwnedFd,
    pub error: OwnedFd,
    index: u64,
    features: u64,
    next_available: u16,
    next_used: u16,
    pub kicks: u64,
    pub calls: u64,
}

impl Driver {
    pub fn new(memory: &Arc<GuestMemory>, index: u64, features: u64, next: u16) -> Self {
        let memory = Arc::clone(memory);
        let (kick, call, error) = (event(), event(), event());
        Self {
            memory,
            kick,
            call,
            error,
            index,
            features,
            next_available: next,
            next_used: next,
            kicks: 0,
            calls: 0,
        }
    }

    /// The address of a part of this queue.
    pub fn at(&self, offset: u64) -> GuestAddress {
        GuestAddress(self.index * QUEUE_BYTES + offset)
    }

    /// Where a slot's content is.
    pub fn content(&self, slot: u16) -> GuestAddress {
        GuestAddress(CONTENT + (self.index * u64::from(SLOTS) + u64::from(slot)) * CONTENT_BYTES)
    }

    pub fn set_content(&self, slot: u16, bytes: &[u8]) {
        self.memory.write(self.content(slot), bytes).unwrap();
    }

    pub fn get_content(&self, slot: u16, length: usize) -> Vec<u8> {
        let start = self.content(slot).0;
        let sectors = (0..length as u64).step_by(512);
        sectors
            .flat_map(|at| self.memory.read::<512>(GuestAddress(start + at)).unwrap())
            .take(length)
            .collect()
    }

    pub fn put_descriptor(
        &self,
        at: GuestAddress,
        address: GuestAddress,
        length: u32,
        flags: u16,
        next: u16,
    ) {
        let word = u128::from(address.0)
            | u128::from(length) << 64
            | u128::from(flags) << 96
            | u128::from(next) << 112;
        self.memory.write(at, &word.to_le_bytes()).unwrap();
    }

    /// Puts a request into the available ring, its content in two descriptors, for the device to
    /// read or write.
    pub fn submit(&mut self, slot: u16, kind: u32, sector: u64, length: u32) {
        let place = 0x8000 + 256 * u64::from(slot);
        let (header, status) = (self.at(place), self.at(place + 16));
        let word = u128::from(kind) | u128::from(sector) << 64;
        self.memory.write(header, &word.to_le_bytes()).unwrap();
        self.memory.write(status, &[0xFF]).unwrap();
        let indirect = self.features & INDIRECT != 0 && slot.is_multiple_of(2);
        let first = 4 * slot;
        let (table, base) = if indirect { (self.at(place + 32), 0) } else { (self.at(0), first) };
        let split = (length / 3 / 512 * 512).max(length.min(1));
        let written = if matches!(kind, IN | GET_ID) { 2 } else { 0 };
        let content = self.content(slot);
        let rest = GuestAddress(content.0 + u64::from(split));
        let parts =
            [(header, 16, 0), (content, split, written), (rest, length - split, written), (status, 1, 2)];
        let parts: Vec<_> = parts.into_iter().filter(|part| part.1 > 0).collect();
        for (index, (address, length, flags)) in parts.iter().enumerate() {
            let own = base + index as u16;
            let next = u16::from(index + 1 < parts.len());
            let at = GuestAddress(table.0 + 16 * u64::from(own));
            self.put_descriptor(at, *address, *length, flags | next, own + 1);
        }
        if indirect {
            let at = self.at(16 * u64::from(first));
            self.put_descriptor(at, table, 16 * parts.len() as u32, 4, 0);
        }
        self.make_available(first);
    }

    pub fn make_available(&mut self, head: u16) {
        let entry = self.at(0x2004 + 2 * u64::from(self.next_available % QUEUE_SIZE));
        self.memory.store_u16(entry, head).unwrap();
        self.next_available = self.next_available.wrapping_add(1);
    }

    /// Publishes the submitted requests, and kicks the device if it wants that.
    pub fn publish(&mut self) {
        let index = self.at(0x2002);
        let old = self.memory.load_u16(index).unwrap();
        self.memory.store_u16(index, self.next_available).unwrap();
        fence(Ordering::SeqCst);
        let wanted = if self.features & EVENT_INDEX != 0 {
            let event = self.memory.load_u16(self.at(0x4004 + 8 * u64::from(QUEUE_SIZE))).unwrap();
            let passed = self.next_available.wrapping_sub(event).wrapping_sub(1);
            passed < self.next_available.wrapping_sub(old)
        } else {
            self.memory.load_u16(self.at(0x4000)).unwrap() & 1 == 0
        };
        if wanted {
            self.kick();
        }
    }

    pub fn kick(&mut self) {
        self.kicks += 1;
        rustix::io::write(&self.kick, &1_u64.to_ne_bytes()).unwrap();
    }

    /// Waits for the next used request. Returns its slot, its status, and how many bytes were
    /// written.
    pub fn complete(&mut self) -> (u16, u8, u32) {
        loop {
            if let Some(done) = self.try_complete() {
                return done;
            }
            if self.features & EVENT_INDEX != 0 {
                self.memory.store_u16(self.at(0x2004 + 2 * u64::from(QUEUE_SIZE)), self.next_used).unwrap();
                fence(Ordering::SeqCst);
                if self.memory.load_u16(self.at(0x4002)).unwrap() != self.next_used {
                    continue;
                }
            }
            await_event(&self.call);
            self.calls += 1;
        }
    }

    pub fn try_complete(&mut self) -> Option<(u16, u8, u32)> {
        if self.memory.load_u16(self.at(0x4002)).unwrap() == self.next_used {
            return None;
        }
        let entry = self.at(0x4004 + 8 * u64::from(self.next_used % QUEUE_SIZE));
        let entry = u64::from_le_bytes(self.memory.read(entry).unwrap());
        self.next_used = self.next_used.wrapping_add(1);
        let slot = (entry as u32 / 4) as u16;
        let [status] = self.memory.read(self.at(0x8010 + 256 * u64::from(slot))).unwrap();
        Some((slot, status, (entry >> 32) as u32))
    }

    /// Does one request. Returns its status; `None` if this queue's rings or the request were
    /// overwritten meanwhile, which other requests of the same guest may do.
    pub fn run_unless_hit(&mut self, kind: u32, sector: u64, length: u32) -> Option<u8> {
        self.submit(0, kind, sector, length);
        self.publish();
        let parts = |driver: &Self| {
            let header = driver.memory.read::<16>(driver.at(0x8000)).unwrap();
            let table = driver.memory.read::<64>(driver.at(0x8020)).unwrap();
            let descriptors = driver.memory.read::<64>(driver.at(0)).unwrap();
            let available = driver.memory.read::<4>(driver.at(0x2000)).unwrap();
            let entry = driver.at(0x2004 + 2 * u64::from(driver.next_available.wrapping_sub(1) % QUEUE_SIZE));
            (header, table, descriptors, available, driver.memory.read::<2>(entry).unwrap())
        };
        let expected = self.next_available.to_le_bytes();
        let written = parts(self);
        let begun = Instant::now();
        loop {
            let now = parts(self);
            if now != written || now.3[2..] != expected {
                return None;
            }
            if let Some((_, status, _)) = self.try_complete() {
                return Some(status);
            }
            assert!(begun.elapsed() < DEADLINE, "nothing came in time");
            // The interrupt may have come before, or the request for it may have been overwritten.
            let moment = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            poll(&mut [PollFd::new(&self.call, PollFlags::IN)], Some(&moment)).unwrap();
            let _ = rustix::io::read(&self.call, &mut [0_u8; 8]);
        }
    }

    /// Does one request. Returns its status.
    pub fn run(&mut self, kind: u32, sector: u64, length: u32) -> u8 {
        self.submit(0, kind, sector, length);
        self.publish();
        self.complete().1
    }
}

/// Waits until an eventfd is signalled, and resets it.
pub fn await_event(file: &OwnedFd) {
    let timeout = Timespec { tv_sec: DEADLINE.as_secs() as i64, tv_nsec: 0 };
    let count = poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&timeout)).unwrap();
    assert_eq!(count, 1, "nothing came in time");
    rustix::io::read(file, &mut [0_u8; 8]).unwrap();
}
