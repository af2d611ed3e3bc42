//! One change of a file, and the parts of it that survive a power cut.

use std::sync::Arc;

use rand::Rng;
use rand::rngs::StdRng;
use strongroom_types::{BLOCK_BYTES, Extent, SECTOR_BYTES};

use crate::content::{Content, SpaceChange};

const SECTOR: usize = SECTOR_BYTES as usize;
const SECTORS_PER_BLOCK: u64 = BLOCK_BYTES / SECTOR_BYTES;

/// The effect of a change on the length.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Length {
    Set(u64),
    AtLeast(u64),
}

#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Sectors, each of which persists independently.
    Sectors {
        /// The first one's number.
        first: u64,
        bytes: Arc<[u8]>,
        /// Which of them are live; the others were replaced by later durable writes.
        live: Vec<bool>,
        /// New blocks, whose sectors persist together.
        fills: Vec<u64>,
    },
    /// A transaction of the file system, which persists whole or not at all.
    Transaction { ranges: Vec<Extent>, space: SpaceChange, length: Option<Length> },
}

impl Change {
    /// Whole sectors, starting at a sector boundary.
    pub(crate) fn sectors(offset: u64, bytes: Arc<[u8]>) -> Self {
        debug_assert!(offset.is_multiple_of(SECTOR_BYTES) && bytes.len().is_multiple_of(SECTOR));
        let live = vec![true; bytes.len() / SECTOR];
        Self::Sectors { first: offset / SECTOR_BYTES, bytes, live, fills: Vec::new() }
    }

    /// The same, but the sectors of each block that is not yet data (`is_data`) persist together.
    pub(crate) fn filling(mut self, is_data: impl Fn(u64) -> bool) -> Self {
        if let Self::Sectors { first, live, fills, .. } = &mut self {
            let sectors = *first..*first + live.len() as u64;
            let blocks = sectors.start / SECTORS_PER_BLOCK..sectors.end.div_ceil(SECTORS_PER_BLOCK);
            fills.extend(blocks.filter(|block| !is_data(*block)));
        }
        self
    }

    pub(crate) fn space(extent: Extent, space: SpaceChange) -> Self {
        Self::Transaction { ranges: vec![extent], space, length: None }
    }

    pub(crate) fn length(length: Length) -> Self {
        Self::Transaction { ranges: Vec::new(), space: SpaceChange::Reserve, length: Some(length) }
    }

    /// Whether it is content, or comes with content.
    pub(crate) fn follows_content(&self) -> bool {
        matches!(self, Self::Sectors { .. } | Self::Transaction { length: Some(Length::AtLeast(_)), .. })
    }

    pub(crate) fn truncate(length: u64) -> Self {
        // Beyond the end of any file, on a block boundary.
        let end = u64::MAX / BLOCK_BYTES * BLOCK_BYTES;
        let ranges = vec![Extent::between(length, end)];
        Self::Transaction { ranges, space: SpaceChange::Free, length: Some(Length::Set(length)) }
    }

    /// Applies the whole change.
    pub(crate) fn apply(&self, content: &mut Content) {
        self.apply_where(content, |_| true);
    }

    /// Applies the part that survives a power cut. Calls `persists` once for each independently
    /// persisting part.
    pub(crate) fn apply_torn(&self, content: &mut Content, mut persists: impl FnMut() -> bool) {
        match self {
            Self::Sectors { first, fills, .. } => {
                let mut filled: Option<(u64, bool)> = None;
                self.apply_where(content, |sector| {
                    let block = (first + sector as u64) / SECTORS_PER_BLOCK;
                    match filled {
                        Some((last, chosen)) if last == block => chosen,
                        _ if fills.contains(&block) => {
                            let chosen = persists();
                            filled = Some((block, chosen));
                            chosen
                        }
                        _ => persists(),
                    }
                });
            }
            Self::Transaction { .. } if persists() => self.apply(content),
            Self::Transaction { .. } => {}
        }
    }

    fn apply_where(&self, content: &mut Content, mut wanted: impl FnMut(usize) -> bool) {
        match self {
            Self::Sectors { first, bytes, live, .. } => {
                let mut run: Option<usize> = None;
                for sector in 0..=live.len() {
                    let taken = sector < live.len() && live[sector] && wanted(sector);
                    match (run, taken) {
                        (None, true) => run = Some(sector),
                        (Some(start), false) => {
                            let offset = (first + start as u64) * SECTOR_BYTES;
                            content.write(offset, &bytes[start * SECTOR..sector * SECTOR]);
                            run = None;
                        }
                        _ => {}
                    }
                }
            }
            Self::Transaction { ranges, space, length } => {
                for range in ranges {
                    content.change_space(*range, *space);
                }
                match length {
                    Some(Length::Set(length)) => content.set_length(*length),
                    Some(Length::AtLeast(length)) => content.set_length(content.length().max(*length)),
                    None => {}
                }
            }
        }
    }

    /// Whether it removes a block's data.
    pub(crate) fn frees(&self, block: u64) -> bool {
        let block = Extent::between(block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES);
        self.ranges().iter().any(|range| matches!(self, Self::Transaction { .. }) && range.overlaps(block))
    }

    /// Whether it changes any of these bytes.
    pub(crate) fn touches(&self, within: Extent) -> bool {
        self.ranges().iter().any(|range| range.overlaps(within))
    }

    /// The byte after the last that it writes.
    pub(crate) fn end(&self) -> u64 {
        match self {
            Self::Sectors { first, live, .. } => (first + live.len() as u64) * SECTOR_BYTES,
            Self::Transaction { .. } => 0,
        }
    }

    /// The ranges it wrote, over which an earlier, non-durable change cannot reappear.
    fn ranges(&self) -> Vec<Extent> {
        match self {
            Self::Sectors { first, live, .. } => {
                vec![Extent::between(first * SECTOR_BYTES, (first + live.len() as u64) * SECTOR_BYTES)]
            }
            Self::Transaction { space: SpaceChange::Reserve, .. } => Vec::new(),
            Self::Transaction { ranges, .. } => ranges.clone(),
        }
    }

    /// Removes the parts that a later, durable change has replaced.
    pub(crate) fn replace_by(&mut self, later: &Change) {
        let replaced = later.ranges();
        match self {
            Self::Sectors { first, live, .. } => {
                for (sector, live) in live.iter_mut().enumerate() {
                    let at = (*first + sector as u64) * SECTOR_BYTES;
                    let sector = Extent::between(at, at + SECTOR_BYTES);
                    *live &= !replaced.iter().any(|range| range.overlaps(sector));
                }
            }
            Self::Transaction { ranges, length, .. } => {
                for taken in &replaced {
                    let left = ranges.iter().flat_map(|range| subtract(*range, *taken));
                    *ranges = left.collect();
                }
                if let Self::Transaction { length: Some(_), .. } = later {
                    *length = None;
                }
            }
        }
    }

    /// Silently flips one bit of the written data.
    pub(crate) fn corrupt(&mut self, random: &mut StdRng) {
        if let Self::Sectors { bytes, .. } = self {
            let mut wrong = bytes.to_vec();
            let at = random.random_range(0..wrong.len());
            wrong[at] ^= 1 << random.random_range(0..8);
            *bytes = wrong.into();
        }
    }

    /// Silently moves the written data by some sectors, within `end_sector`.
    pub(crate) fn misdirect(&mut self, end_sector: u64, random: &mut StdRng) {
        if let Self::Sectors { first, live, .. } = self
            && end_sector > live.len() as u64
        {
            let elsewhere = random.random_range(0..end_sector - live.len() as u64);
            *first = if elsewhere >= *first { elsewhere + 1 } else { elsewhere };
        }
    }

    /// Removes sectors at random, like a device that fails half-way.
    pub(crate) fn lose_some(&mut self, random: &mut StdRng) {
        if let Self::Sectors { first, live, fills, .. } = self {
            for (sector, live) in live.iter_mut().enumerate() {
                // A new block does not appear unless all of it was written.
                let is_filled = fills.contains(&((*first + sector as u64) / SECTORS_PER_BLOCK));
                *live &= !is_filled && random.random::<bool>();
            }
        }
    }

    /// Keeps only the first blocks, those written before the writer was killed.
    pub(crate) fn interrupt(&mut self, random: &mut StdRng) {
        if let Self::Sectors { first, live, .. } = self {
            let start = *first / SECTORS_PER_BLOCK;
            let end = (*first + live.len() as u64).div_ceil(SECTORS_PER_BLOCK);
            let end = random.random_range(start..=end) * BLOCK_BYTES;
            self.cut_short(end);
        }
    }

    /// Keeps only the part before `end`, a sector boundary.
    pub(crate) fn cut_short(&mut self, end: u64) {
        if let Self::Sectors { first, live, .. } = self {
            for (sector, live) in live.iter_mut().enumerate() {
                *live &= (*first + sector as u64) * SECTOR_BYTES < end;
            }
        }
    }
}

fn subtract(from: Extent, taken: Extent) -> impl Iterator<Item = Extent> {
    let both = from.intersection(taken);
    let (left, right) = match both.is_empty() {
        true => (from, Extent::default()),
        false => (Extent::between(from.offset(), both.offset()), Extent::between(both.end(), from.end())),
    };
    [left, right].into_iter().filter(|extent| !extent.is_empty())
}
