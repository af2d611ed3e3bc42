//! Which layer below the top has a block, as far as reads have found out.
//!
//! The layers below the top do not change, so what a read has found there stays true until the top
//! gets the block. A read that was under way when the top got it may have seen the top without it.
//! So a change makes the map forget the block when it ends, before the client learns of that, and
//! refuse what reads have found that began earlier ([`Stamp`]).
//!
//! The map is a cache of limited size. It holds a byte for each block, in regions that replace each
//! other.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use strongroom_types::BLOCK_BYTES;

use crate::file::descriptor::CHAIN_LAYERS_MAX;

/// The blocks of a region: 16 MiB.
const REGION_BLOCKS: u64 = 4096;

/// The most regions that are held: 8 MiB of memory, for 32 GiB of a volume.
const REGIONS_MAX: u64 = 2048;

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(u8);

const _: () = assert!(CHAIN_LAYERS_MAX < u8::MAX as usize);

impl Place {
    /// It is looked for from the top down. The top's own blocks are looked for there anyway.
    pub const UNKNOWN: Self = Self(0);
    /// No layer has it, or one hides it from those below: it reads as zeroes.
    pub const NOWHERE: Self = Self(u8::MAX);

    /// In this layer; the top is 0.
    pub fn level(level: usize) -> Self {
        u8::try_from(level).map_or(Self::UNKNOWN, Self)
    }

    /// The layer below the top that has it.
    pub fn lower(self) -> Option<usize> {
        (self != Self::UNKNOWN && self != Self::NOWHERE).then_some(usize::from(self.0))
    }
}

/// The state of a region when a read began. What the read finds is learned in this state only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp(u64);

pub(super) struct Owners {
    regions: Box<[RwLock<Region>]>,
    stamps: AtomicU64,
}

#[derive(Default)]
struct Region {
    number: u64,
    stamp: u64,
    /// Empty until the first read.
    places: Box<[Place]>,
}

impl Region {
    fn is(&self, number: u64) -> bool {
        self.number == number && !self.places.is_empty()
    }
}

impl Owners {
    /// A map that knows nothing, of layers of at most so many bytes.
    pub fn new(lower_bytes: u64) -> Self {
        let regions = lower_bytes.div_ceil(REGION_BLOCKS * BLOCK_BYTES).clamp(1, REGIONS_MAX);
        Self { regions: (0..regions).map(|_| RwLock::default()).collect(), stamps: AtomicU64::new(0) }
    }

    fn slot(&self, number: u64) -> &RwLock<Region> {
        &self.regions[(number % self.regions.len() as u64) as usize]
    }

    fn next_stamp(&self) -> u64 {
        self.stamps.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Tells where blocks are. `None` for blocks of two regions: nothing is known of them, and
    /// nothing is learned.
    pub fn look(&self, blocks: Range<u64>, places: &mut [Place]) -> Option<Stamp> {
        let number = blocks.start / REGION_BLOCKS;
        if blocks.is_empty() || (blocks.end - 1) / REGION_BLOCKS != number {
            return None;
        }
        let slot = self.slot(number);
        let region = slot.read();
        if region.is(number) {
            let first = (blocks.start % REGION_BLOCKS) as usize;
            places.copy_from_slice(&region.places[first..][..places.len()]);
            return Some(Stamp(region.stamp));
        }
        drop(region);
        let mut region = slot.write();
        if !region.is(number) {
            region.number = number;
            region.stamp = self.next_stamp();
            match region.places.is_empty() {
                true => region.places = vec![Place::UNKNOWN; REGION_BLOCKS as usize].into(),
                false => region.places.fill(Place::UNKNOWN),
            }
        }
        Some(Stamp(region.stamp))
    }

    /// Learns where a read that began at `stamp` has found the blocks from `first` on.
    pub fn learn(&self, stamp: Stamp, first: u64, places: &[Place]) {
        let number = first / REGION_BLOCKS;
        let mut region = self.slot(number).write();
        if region.is(number) && Stamp(region.stamp) == stamp {
            let first = (first % REGION_BLOCKS) as usize;
            region.places[first..][..places.len()].copy_from_slice(places);
        }
    }

    /// Forgets blocks that the top may have got, or that it may hide, and refuses what reads find
    /// that have begun before.
    pub fn forget(&self, blocks: Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        let numbers = blocks.start / REGION_BLOCKS..blocks.end.div_ceil(REGION_BLOCKS);
        // Many regions: each slot holds one of them at most.
        let slots = self.regions.len() as u64;
        for number in numbers.start..numbers.end.min(numbers.start + slots) {
            let mut region = self.slot(number).write();
            if region.places.is_empty() || !numbers.contains(&region.number) {
                continue;
            }
            let first = region.number * REGION_BLOCKS;
            let within = |block: u64| (block.clamp(first, first + REGION_BLOCKS) - first) as usize;
            region.places[within(blocks.start)..within(blocks.end)].fill(Place::UNKNOWN);
            region.stamp = self.next_stamp();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(owners: &Owners, blocks: Range<u64>) -> Vec<Place> {
        let mut places = vec![Place::UNKNOWN; (blocks.end - blocks.start) as usize];
        owners.look(blocks, &mut places).unwrap();
        places
    }

    fn learn(owners: &Owners, first: u64, level: usize) {
        let stamp = owners.look(first..first + 1, &mut [Place::UNKNOWN]).unwrap();
        owners.learn(stamp, first, &[Place::level(level)]);
    }

    #[test]
    fn what_was_found_is_known_until_it_changes() {
        let owners = Owners::new(1 << 30);
        learn(&owners, 5, 3);
        learn(&owners, 6, 31);
        let places = known(&owners, 4..8);
        assert_eq!(places, [0, 3, 31, 0].map(Place::level));
        assert_eq!(
            places.iter().map(|place| place.lower()).collect::<Vec<_>>(),
            [None, Some(3), Some(31), None]
        );
        assert_eq!(Place::NOWHERE.lower(), None);
        owners.forget(0..6);
        assert_eq!(known(&owners, 4..8), [0, 0, 31, 0].map(Place::level));
    }

    #[test]
    fn what_was_found_before_a_change_is_not_learned() {
        let owners = Owners::new(1 << 30);
        let before = owners.look(7..8, &mut [Place::UNKNOWN]).unwrap();
        owners.forget(7..8);
        owners.learn(before, 7, &[Place::level(2)]);
        assert_eq!(known(&owners, 7..8), [Place::UNKNOWN]);
    }

    #[test]
    fn regions_replace_each_other_and_are_never_mistaken() {
        let owners = Owners::new(2 * REGION_BLOCKS * BLOCK_BYTES);
        let other = 2 * REGION_BLOCKS + 7;
        let before = owners.look(7..8, &mut [Place::UNKNOWN]).unwrap();
        learn(&owners, 7, 1);
        learn(&owners, other, 2);
        assert_eq!(known(&owners, other..other + 1), [Place::level(2)]);
        assert_eq!(known(&owners, 7..8), [Place::UNKNOWN], "its region is held anew");
        owners.learn(before, 7, &[Place::level(1)]);
        assert_eq!(known(&owners, 7..8), [Place::UNKNOWN], "it could have changed while it was not held");
        assert_eq!(owners.look(REGION_BLOCKS - 1..REGION_BLOCKS + 1, &mut [Place::UNKNOWN; 2]), None);
    }

    #[test]
    fn a_large_change_forgets_all_of_it() {
        let owners = Owners::new(4 * REGION_BLOCKS * BLOCK_BYTES);
        let blocks = [3, REGION_BLOCKS, 3 * REGION_BLOCKS + 9];
        for block in blocks {
            learn(&owners, block, 1);
        }
        owners.forget(4..u64::MAX / BLOCK_BYTES);
        assert_eq!(blocks.map(|block| known(&owners, block..block + 1)[0]), [1, 0, 0].map(Place::level));
    }
}
