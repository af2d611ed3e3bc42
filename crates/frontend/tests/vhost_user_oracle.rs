//! Requests of all kinds through the vhost-user server, against a vector of bytes.
#![allow(clippy::unwrap_used)]

mod vhost_user_support;

use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use strongroom_types::Extent;

use vhost_user_support::driver::{
    CONTENT_BYTES, DISCARD, Driver, FLUSH as FLUSH_REQUEST, IN, OUT, SLOTS, WRITE_ZEROES,
};
use vhost_user_support::front_end::{BASIC, EVENT_INDEX, FLUSH, FrontEnd, INDIRECT, WCE};
use vhost_user_support::{DISK_BYTES, Local, disk};

const REQUESTS: usize = 1500;

/// What the disk must hold.
struct Oracle {
    content: Vec<u8>,
    /// By sector: was discarded, and may be as before or zero.
    vague: Vec<bool>,
    in_flight: Vec<Option<(u32, Extent, Vec<u8>)>>,
}

impl Oracle {
    fn check(&self, extent: Extent, found: &[u8]) {
        for (index, sector) in found.chunks(512).enumerate() {
            let at = extent.offset() as usize + 512 * index;
            let zero = self.vague[at / 512] && sector.iter().all(|byte| *byte == 0);
            assert!(zero || *sector == self.content[at..at + 512], "wrong content at {at}");
        }
    }

    fn settle(&mut self, place: usize, driver: &Driver, (slot, status, written_bytes): (u16, u8, u32)) {
        let (kind, extent, bytes) = self.in_flight[place].take().unwrap();
        assert_eq!(status, 0, "{kind} {extent}");
        let content = extent.offset() as usize..extent.end() as usize;
        let sectors = content.start / 512..content.end / 512;
        match kind {
            IN => {
                assert_eq!(u64::from(written_bytes), extent.length() + 1);
                self.check(extent, &driver.get_content(slot, extent.length() as usize));
                return;
            }
            OUT => self.content[content].copy_from_slice(&bytes),
            WRITE_ZEROES => self.content[content].fill(0),
            DISCARD => return self.vague[sectors].fill(true),
            _ => return,
        }
        self.vague[sectors].fill(false);
    }
}

/// Keeps `depth` requests in flight on each queue, none of which touches another's sectors.
fn exercise(queues: u64, depth: u16, features: u64, seed: u64) {
    let local = Local::start(disk());
    let mut front_end = FrontEnd::connect(&local.socket, BASIC | FLUSH | WCE | features);
    let mut drivers: Vec<_> = (0..queues).map(|index| front_end.start(index, 0)).collect();
    let mut random = StdRng::seed_from_u64(seed);
    let places = usize::from(SLOTS) * drivers.len();
    let mut oracle = Oracle {
        content: vec![0; DISK_BYTES as usize],
        vague: vec![false; (DISK_BYTES / 512) as usize],
        in_flight: (0..places).map(|_| None).collect(),
    };
    let place = |queue: usize, slot: u16| queue * usize::from(SLOTS) + usize::from(slot);
    for _ in 0..REQUESTS / usize::from(depth) + 2 {
        for (queue, driver) in drivers.iter_mut().enumerate() {
            for slot in 0..depth {
                if oracle.in_flight[place(queue, slot)].is_some() {
                    continue;
                }
                let sectors = if random.random_bool(0.1) {
                    random.random_range(1..=CONTENT_BYTES / 512)
                } else {
                    random.random_range(1..=24)
                };
                let start = 512 * random.random_range(0..=DISK_BYTES / 512 - sectors);
                let extent = Extent::between(start, start + 512 * sectors);
                let is_free = |busy: &Option<(u32, Extent, Vec<u8>)>| {
                    busy.as_ref().is_none_or(|(_, other, _)| !other.overlaps(extent))
                };
                if !oracle.in_flight.iter().all(is_free) {
                    continue;
                }
                let kind = match random.random_range(0..20) {
                    0..9 => IN,
                    9..17 => OUT,
                    17 => FLUSH_REQUEST,
                    18 => DISCARD,
                    _ => WRITE_ZEROES,
                };
                let mut bytes = vec![0; if kind == OUT { extent.length() as usize } else { 0 }];
                random.fill_bytes(&mut bytes);
                let length = match kind {
                    IN => extent.length() as u32,
                    OUT => {
                        driver.set_content(slot, &bytes);
                        extent.length() as u32
                    }
                    DISCARD | WRITE_ZEROES => {
                        let unmap = u128::from(kind == WRITE_ZEROES && random.random());
                        let word = u128::from(start / 512) | u128::from(sectors) << 64 | unmap << 96;
                        driver.set_content(slot, &word.to_le_bytes());
                        16
                    }
                    _ => 0,
                };
                let sector = if matches!(kind, IN | OUT) { start / 512 } else { 0 };
                driver.submit(slot, kind, sector, length);
                let extent = if kind == FLUSH_REQUEST { Extent::default() } else { extent };
                oracle.in_flight[place(queue, slot)] = Some((kind, extent, bytes));
            }
            driver.publish();
        }
        for (queue, driver) in drivers.iter_mut().enumerate() {
            let done = driver.complete();
            oracle.settle(place(queue, done.0), driver, done);
            while let Some(done) = driver.try_complete() {
                oracle.settle(place(queue, done.0), driver, done);
            }
        }
    }
    for (queue, driver) in drivers.iter_mut().enumerate() {
        let first = place(queue, 0);
        while oracle.in_flight[first..first + usize::from(SLOTS)].iter().any(Option::is_some) {
            let done = driver.complete();
            oracle.settle(place(queue, done.0), driver, done);
        }
        assert!(driver.kicks > 0 && driver.kicks <= 2 * REQUESTS as u64);
    }
    let step = CONTENT_BYTES as usize;
    for at in (0..DISK_BYTES).step_by(step) {
        assert_eq!(drivers[0].run(IN, at / 512, step as u32), 0);
        oracle.check(Extent::between(at, at + step as u64), &drivers[0].get_content(0, step));
    }
    local.server.stop().unwrap();
}

#[test]
fn one_queue_without_any_extras() {
    exercise(1, 1, 0, 1);
    exercise(1, 16, 0, 2);
}

#[test]
fn one_queue_with_event_index_and_indirect_tables() {
    exercise(1, 1, EVENT_INDEX | INDIRECT, 3);
    exercise(1, 64, EVENT_INDEX | INDIRECT, 4);
}

#[test]
fn two_queues_at_depth_32() {
    exercise(2, 32, EVENT_INDEX, 5);
    exercise(2, 32, INDIRECT, 6);
}

#[test]
fn four_queues_at_depth_64() {
    exercise(4, 64, EVENT_INDEX | INDIRECT, 7);
}
