//! The next request, at random from a seed: sizes from a sector to 1 MiB, any alignment, any shape.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use strongroom_types::{Extent, SECTOR_BYTES};

use super::oracle::Oracle;
use crate::vhost_user::disk_config::DiskConfig;
use crate::vhost_user::front_end::{CONTENT_BYTES_MAX, Settings};
use crate::vhost_user::protocol::feature;
use crate::vhost_user::queue::{DESCRIPTORS_MAX, Operation, Shape};

/// The most sectors of a request.
const SECTORS_MAX: u64 = CONTENT_BYTES_MAX / SECTOR_BYTES;
/// Half of all requests go to this many sectors at the beginning, so that they collide.
const HOT_SECTORS: u64 = 4096;
/// The most segments of a discard or zeroing, where the device allows them.
const SEGMENTS_MAX: u32 = 4;
/// Sectors per 4096 bytes.
const BLOCK_SECTORS: u64 = 8;
/// How often to search for a place without requests in flight.
const ATTEMPTS: usize = 8;
/// Descriptors of a chain beside its content: four of the header, one of the status.
const OTHER_DESCRIPTORS: usize = 5;
/// The most cuts of a header.
const HEADER_CUTS_MAX: usize = 3;
/// The widest gap between two pieces of content: with 126 of them, within a slot.
const GAP_BYTES_MAX: u32 = 500;

/// The plan of requests.
#[derive(Debug)]
pub struct Plan {
    random: StdRng,
    sectors: u64,
    disk: DiskConfig,
    features: u64,
    descriptors_max: usize,
    largest_sectors: u64,
}

impl Plan {
    /// A plan for the first `sectors` of a disk.
    pub fn new(seed: u64, sectors: u64, disk: DiskConfig, features: u64, settings: Settings) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            sectors,
            disk,
            features,
            descriptors_max: usize::from(settings.queue_size).min(DESCRIPTORS_MAX),
            largest_sectors: SECTORS_MAX.min(sectors),
        }
    }

    /// Extends the plan to the first `sectors`, if these are more.
    pub fn extend(&mut self, sectors: u64) {
        self.sectors = self.sectors.max(sectors);
        self.largest_sectors = SECTORS_MAX.min(self.sectors);
    }

    /// The next request; `None` if requests are in flight in all tried places.
    pub fn operation(&mut self, oracle: &Oracle) -> Option<Operation> {
        let kind = self.random.random_range(0..100);
        match kind {
            0..44 => Some(Operation::Read(self.extent())),
            44..50 if self.features & feature::FLUSH != 0 => Some(Operation::Flush),
            50..51 => Some(Operation::Identify),
            51..56 if self.features & feature::DISCARD != 0 => {
                let (segments, sectors) = (self.disk.discard_segments_max, self.disk.discard_sectors_max);
                self.free_extents(oracle, segments, sectors).map(Operation::Discard)
            }
            56..61 if self.features & feature::WRITE_ZEROES != 0 => {
                let (segments, sectors) = (self.disk.zero_segments_max, self.disk.zero_sectors_max);
                let extents = self.free_extents(oracle, segments, sectors)?;
                Some(Operation::WriteZeroes(extents, self.random.random()))
            }
            _ => self.free_extents(oracle, 1, u32::MAX).map(|extents| Operation::Write(extents[0])),
        }
    }

    /// The layout of a request in memory.
    pub fn shape(&mut self, operation: &Operation) -> Shape {
        let bytes = operation.content_bytes();
        let indirect = self.features & feature::RING_INDIRECT_DESC != 0 && self.random.random_bool(0.6);
        let room = self.descriptors_max.saturating_sub(OTHER_DESCRIPTORS);
        let segments_max = room.min(self.disk.segments_max.max(1) as usize).max(1);
        let pieces = match self.random.random_range(0..20) {
            0 => segments_max,
            1..10 => self.random.random_range(1..=segments_max.min(9)),
            _ => 1,
        };
        let spare = self.descriptors_max.saturating_sub(pieces + 2).min(HEADER_CUTS_MAX);
        let header_cuts = if self.random.random_bool(0.3) { spare } else { 0 };
        Shape {
            header_cuts: self.cuts(header_cuts, 16),
            content_cuts: self.cuts(pieces - 1, bytes),
            gap_bytes: self.random.random_range(0..=GAP_BYTES_MAX),
            indirect,
            status_joined: self.random.random_bool(0.25),
        }
    }

    fn cuts(&mut self, count: usize, bytes: u32) -> Vec<u32> {
        if bytes < 2 {
            return Vec::new();
        }
        let mut cuts: Vec<u32> = (0..count).map(|_| self.random.random_range(1..bytes)).collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts
    }

    fn free_extents(&mut self, oracle: &Oracle, segments: u32, sectors_max: u32) -> Option<Vec<Extent>> {
        let wanted = self.random.random_range(1..=segments.clamp(1, SEGMENTS_MAX));
        let mut extents: Vec<Extent> = Vec::new();
        for _ in 0..ATTEMPTS {
            let extent = self.extent();
            let bytes = extent.length().min(u64::from(sectors_max) * SECTOR_BYTES);
            let extent = Extent::between(extent.offset(), extent.offset() + bytes);
            let is_apart = extents.iter().all(|other| !other.overlaps(extent));
            if !extent.is_empty() && is_apart && oracle.may_change(extent) {
                extents.push(extent);
            }
            if extents.len() == wanted as usize {
                break;
            }
        }
        (!extents.is_empty()).then_some(extents)
    }

    fn extent(&mut self) -> Extent {
        let largest = self.largest_sectors;
        let sectors = match self.random.random_range(0..100) {
            0..30 => 1,
            30..60 => self.random.random_range(1..=BLOCK_SECTORS.min(largest)),
            60..90 => self.random.random_range(1..=64.min(largest)),
            90..98 => self.random.random_range(1..=512.min(largest)),
            98 => largest,
            _ => self.random.random_range(1..=largest),
        };
        let area =
            if self.random.random() { self.sectors } else { self.sectors.min(HOT_SECTORS.max(sectors)) };
        let start = self.random.random_range(0..=area - sectors);
        let aligned = start / BLOCK_SECTORS * BLOCK_SECTORS;
        let start = if self.random.random() { aligned } else { start };
        Extent::between(start * SECTOR_BYTES, (start + sectors) * SECTOR_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_stay_in_their_limits_and_reach_them() {
        let disk = DiskConfig {
            sectors: 9000,
            segments_max: 126,
            discard_sectors_max: 100,
            discard_segments_max: 16,
            zero_sectors_max: 50,
            zero_segments_max: 1,
        };
        let oracle = Oracle::new(1, 9000);
        let features =
            feature::FLUSH | feature::DISCARD | feature::WRITE_ZEROES | feature::RING_INDIRECT_DESC;
        let mut plan = Plan::new(1, 9000, disk, features, Settings::new(1, 1));
        let (mut longest, mut pieces) = (0, 0);
        for _ in 0..5000 {
            let operation = plan.operation(&oracle).unwrap();
            let shape = plan.shape(&operation);
            pieces = pieces.max(shape.content_cuts.len() + 1);
            assert!(shape.content_cuts.len() + shape.header_cuts.len() + 3 <= 128);
            for extent in operation.extents() {
                assert!(extent.end() <= 9000 * 512 && extent.is_aligned_to(512) && !extent.is_empty());
                longest = longest.max(extent.length());
            }
            let sectors = operation.extents().iter().map(|extent| extent.length() / 512).max();
            match &operation {
                Operation::Discard(extents) => assert!(extents.len() <= 4 && sectors <= Some(100)),
                Operation::WriteZeroes(extents, _) => assert!(extents.len() == 1 && sectors <= Some(50)),
                _ => {}
            }
        }
        assert_eq!((longest, pieces), (1 << 20, 123));
    }
}
