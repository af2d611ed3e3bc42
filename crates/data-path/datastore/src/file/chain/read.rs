//! The progress of a read down the chain.

use std::ops::Range;

use strongroom_io::{IoError, TRANSFER_BYTES_MAX};
use strongroom_memory::Buffer;
use strongroom_types::{BLOCK_BYTES, Extent};

use super::owners::{Owners, Place, Stamp};
use crate::file::discards::Discards;

const BLOCK: usize = BLOCK_BYTES as usize;

/// The blocks of the longest transfer.
const BLOCKS_MAX: usize = TRANSFER_BYTES_MAX as usize / BLOCK + 2;

/// The part of a layer that a read is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// From the first block that is wanted to the last one: blocks between them are read in vain.
    Span,
    /// Only blocks that are wanted, one run after the other.
    Runs,
}

/// The blocks of a read that must be looked for in the next layer.
#[derive(Clone, Copy, Debug, Default)]
struct Open([u64; BLOCKS_MAX.div_ceil(64)]);

impl Open {
    fn all(blocks: usize) -> Self {
        let mut open = Self::default();
        (0..blocks).for_each(|block| open.0[block / 64] |= 1 << (block % 64));
        open
    }

    fn has(&self, block: usize) -> bool {
        self.0[block / 64] >> (block % 64) & 1 == 1
    }

    fn close(&mut self, block: usize) {
        self.0[block / 64] &= !(1 << (block % 64));
    }

    /// The first run of open blocks from `start` on.
    fn run_from(&self, start: usize, end: usize) -> Option<Range<usize>> {
        let first = (start..end).find(|block| self.has(*block))?;
        let end = (first..end).find(|block| !self.has(*block)).unwrap_or(end);
        Some(first..end)
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    fn first(&self) -> Option<usize> {
        let word = self.0.iter().position(|word| *word != 0)?;
        Some(word * 64 + self.0[word].trailing_zeros() as usize)
    }

    fn last(&self) -> Option<usize> {
        let word = self.0.iter().rposition(|word| *word != 0)?;
        Some(word * 64 + 63 - self.0[word].leading_zeros() as usize)
    }
}

/// A read on its way.
///
/// It looks for its blocks from the top down, or reads each where it is known to be: then several
/// layers have a part of it at once, and [`Self::level`] does not count.
pub(super) struct Read {
    pub tag: u64,
    extent: Extent,
    /// The memory that is read into, unless a layer has it just now.
    pub into: Option<Buffer>,
    open: Open,
    /// Blocks of the extent that the layer at `level` is asked for.
    asked: Range<usize>,
    /// The layer that is read; the top is 0.
    pub level: usize,
    /// Where the blocks are, or were found.
    places: [Place; BLOCKS_MAX],
    /// When it began, if it looks for the blocks and what it finds can be learned.
    stamp: Option<Stamp>,
    /// The layers that have a part of it.
    parts: usize,
    failure: Option<IoError>,
}

/// How a read begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// All of it at this layer, and what is not there at those below.
    At(usize),
    /// Each layer that is known to have some of the blocks reads those.
    Parts,
    /// No layer has any of the blocks.
    Nowhere,
}

/// What a read needs next.
pub(super) enum Next {
    /// Read this part of the layer at its level, into the whole of the read's own memory.
    Whole(Extent),
    /// Read this part of the layer, into separate memory.
    Part(Extent),
    Ended,
}

impl Read {
    /// A read that starts at the top, which has its memory.
    pub fn new(tag: u64, extent: Extent) -> Self {
        let blocks = (extent.length() / BLOCK_BYTES) as usize;
        Self {
            tag,
            extent,
            into: None,
            open: Open::all(blocks),
            asked: 0..blocks,
            level: 0,
            places: [Place::UNKNOWN; BLOCKS_MAX],
            stamp: None,
            parts: 0,
            failure: None,
        }
    }

    /// Decides where it begins. `runs_only` tells whether a layer may be asked for wanted blocks
    /// alone.
    pub fn begin(&mut self, owners: &Owners, runs_only: impl Fn(usize) -> bool) -> Start {
        let blocks = self.blocks();
        self.stamp = owners.look(blocks_of(self.extent), &mut self.places[..blocks]);
        let places = &self.places[..blocks];
        let are_known = !places.contains(&Place::UNKNOWN);
        let Some(first) = places.first().copied().filter(|_| are_known) else { return Start::At(0) };
        match (first.lower(), places.iter().all(|place| *place == first)) {
            (Some(level), true) => {
                (self.level, self.stamp) = (level, None);
                Start::At(level)
            }
            (None, true) => Start::Nowhere,
            (_, false) => {
                let mut lower = places.iter().filter_map(|place| place.lower());
                let is_in_runs = |level| self.span_of(level).is_none_or(|span| self.are_all_of(span, level));
                if lower.any(|level| runs_only(level) && !is_in_runs(level)) {
                    return Start::At(0);
                }
                self.stamp = None;
                Start::Parts
            }
        }
    }

    /// Takes the memory of a read in parts. What is nowhere is zeroes.
    pub fn hold(&mut self, mut into: Buffer) {
        let blocks = self.blocks();
        let (bytes, seals) = into.parts_mut();
        seals.fill(None);
        for block in (0..blocks).filter(|block| self.places[*block] == Place::NOWHERE) {
            bytes[block * BLOCK..][..BLOCK].fill(0);
            self.open.close(block);
        }
        self.into = Some(into);
    }

    /// The part that a layer is to be asked for: from its first wanted block to its last one.
    pub fn take_up_part(&mut self, level: usize) -> Option<Extent> {
        let span = self.span_of(level)?;
        self.parts += 1;
        Some(self.extent_of(span))
    }

    /// Whether layers have parts of it.
    pub fn is_in_parts(&self) -> bool {
        self.parts > 0
    }

    /// Takes the part of a layer. Returns what is next after the last one.
    pub fn take_part(&mut self, level: usize, content: Result<Option<Buffer>, IoError>) -> Option<Next> {
        self.parts -= 1;
        match (content, self.span_of(level)) {
            // Blocks between them that another layer has are that one's.
            (Ok(Some(content)), Some(span)) => {
                self.copy(&content, span, level, |place| place == Place::level(level));
            }
            (Ok(_), _) => {}
            (Err(error), _) => self.failure = self.failure.or(Some(error)),
        }
        if self.parts > 0 {
            return None;
        }
        let (Some(first), Some(last), None) = (self.open.first(), self.open.last(), self.failure) else {
            return Some(Next::Ended);
        };
        // A layer has no longer what it had: as if nothing were known.
        (self.level, self.asked) = (0, first..last + 1);
        Some(Next::Part(self.extent_of(self.asked.clone())))
    }

    /// The error of a read in parts.
    pub fn failure(&self) -> Result<(), IoError> {
        self.failure.map_or(Ok(()), Err)
    }

    /// Lets the map learn what a read that looked for its blocks has found.
    pub fn teach(&mut self, owners: &Owners) {
        let Some(stamp) = self.stamp.take() else { return };
        let blocks = self.blocks();
        for block in (0..blocks).filter(|block| self.open.has(*block)) {
            self.places[block] = Place::NOWHERE;
        }
        owners.learn(stamp, self.extent.offset() / BLOCK_BYTES, &self.places[..blocks]);
    }

    /// Takes the blocks that a layer has, and settles those that it hides.
    pub fn take(&mut self, content: Buffer, discards: Option<&Discards>) -> Result<(), IoError> {
        let first_block = self.extent.offset() / BLOCK_BYTES;
        match &mut self.into {
            None => {
                let (seals, place) = (content.seals(), Place::level(self.level));
                for block in self.asked.clone().filter(|block| seals[*block].is_some()) {
                    self.open.close(block);
                    self.places[block] = place;
                }
                self.into = Some(content);
            }
            Some(_) => self.copy(&content, self.asked.clone(), self.level, |_| true),
        }
        if let Some(discards) = discards.filter(|_| !self.open.is_empty()) {
            let recorded = discards.recorded();
            for block in self.asked.clone() {
                if self.open.has(block) && recorded.has(first_block + block as u64)? {
                    self.open.close(block);
                    self.places[block] = Place::NOWHERE;
                }
            }
        }
        Ok(())
    }

    /// Copies the open blocks of a span that a layer has, as far as they are wanted of it.
    fn copy(
        &mut self,
        content: &Buffer,
        span: Range<usize>,
        level: usize,
        is_wanted: impl Fn(Place) -> bool,
    ) {
        let Some(into) = &mut self.into else { return };
        let (bytes, seals) = into.parts_mut();
        for (block, at) in span.zip(0..) {
            let is_open = self.open.has(block) && is_wanted(self.places[block]);
            if is_open && content.seals()[at].is_some() {
                bytes[block * BLOCK..][..BLOCK].copy_from_slice(&content.bytes()[at * BLOCK..][..BLOCK]);
                seals[block] = content.seals()[at];
                self.open.close(block);
                self.places[block] = Place::level(level);
            }
        }
    }

    /// Goes down to a layer of `layer_bytes` bytes.
    pub fn descend(&mut self, layer_bytes: u64, reach: Reach) -> Next {
        let first_block = self.extent.offset() / BLOCK_BYTES;
        let reaches = (layer_bytes / BLOCK_BYTES).saturating_sub(first_block) as usize;
        let blocks = self.blocks();
        for block in reaches..blocks {
            if self.open.has(block) {
                self.open.close(block);
                self.places[block] = Place::NOWHERE;
            }
        }
        let (Some(first), Some(last)) = (self.open.first(), self.open.last()) else { return Next::Ended };
        self.level += 1;
        self.asked = match reach {
            Reach::Span => first..last + 1,
            Reach::Runs => self.open.run_from(first, blocks).unwrap_or(first..first),
        };
        // No block was found yet, so the memory holds nothing to keep.
        let extent = self.extent_of(self.asked.clone());
        match self.asked == (0..blocks) && (0..blocks).all(|block| self.open.has(block)) {
            true => Next::Whole(extent),
            false => Next::Part(extent),
        }
    }

    /// Goes on to the next run of wanted blocks in the same layer, which is read in runs.
    pub fn next_run(&mut self) -> Option<Next> {
        self.asked = self.open.run_from(self.asked.end, self.blocks())?;
        Some(Next::Part(self.extent_of(self.asked.clone())))
    }

    fn blocks(&self) -> usize {
        (self.extent.length() / BLOCK_BYTES) as usize
    }

    fn span_of(&self, level: usize) -> Option<Range<usize>> {
        let (places, place) = (&self.places[..self.blocks()], Place::level(level));
        let first = places.iter().position(|found| *found == place)?;
        let last = places.iter().rposition(|found| *found == place)?;
        Some(first..last + 1)
    }

    fn are_all_of(&self, span: Range<usize>, level: usize) -> bool {
        self.places[span].iter().all(|place| *place == Place::level(level))
    }

    fn extent_of(&self, blocks: Range<usize>) -> Extent {
        let place = |block: usize| self.extent.offset() + block as u64 * BLOCK_BYTES;
        Extent::between(place(blocks.start), place(blocks.end))
    }
}

/// The whole blocks of an extent.
pub(super) fn blocks_of(extent: Extent) -> Range<u64> {
    extent.offset() / BLOCK_BYTES..extent.end() / BLOCK_BYTES
}
