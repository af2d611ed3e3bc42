//! The slow and obvious oracle of a volume's possible contents after a power cut.
//!
//! For each sector of 512 bytes it keeps every content that the sector may show: the last known
//! durable one, and all newer ones. A write is added when it is submitted. A successful flush makes
//! durable all writes completed before it was submitted, and a durable write makes itself durable;
//! older contents are then removed.
//!
//! No two concurrent requests touch the same sector, so the versions of a sector are ordered.

use std::sync::Arc;

use strongroom_types::{BLOCK_BYTES, Extent, SECTOR_BYTES};

const SECTOR: usize = SECTOR_BYTES as usize;
const SECTORS_PER_BLOCK: usize = (BLOCK_BYTES / SECTOR_BYTES) as usize;

/// A count of the guest's events.
pub type Time = u64;

/// The id of a guest's request.
pub type RequestId = u64;

pub type SectorBytes = Arc<[u8; SECTOR]>;

/// The effect of a request on a block.
#[derive(Clone, Debug)]
pub enum Effect {
    /// The block is written whole, with these sectors changed, by index in the block.
    Written(Vec<(usize, SectorBytes)>),
    /// The block becomes one of zeroes, which means "nothing here".
    Nothing,
}

#[derive(Clone, Debug)]
pub enum Event {
    Submitted { id: RequestId, effects: Vec<(usize, Effect)>, durable: bool },
    Ended { id: RequestId, succeeded: bool },
    FlushSubmitted { id: RequestId },
    FlushEnded { id: RequestId, succeeded: bool },
    Resized { blocks: usize },
}

#[derive(Clone, Debug)]
struct Version {
    content: Option<SectorBytes>,
    /// The block was "nothing here", without a later durable write.
    is_nothing: bool,
    request: RequestId,
    submitted: Time,
    ended: Option<Time>,
    failed: bool,
}

#[derive(Clone, Debug)]
struct Block {
    /// By sector, oldest first.
    sectors: Vec<Vec<Version>>,
    /// Writes of the block not known to be durable.
    rewrites: Vec<Version>,
}

#[derive(Clone, Debug)]
struct Request {
    id: RequestId,
    blocks: Vec<usize>,
    durable: bool,
}

/// The oracle of one volume.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    now: Time,
    blocks: Vec<Block>,
    in_flight: Vec<Request>,
    flushes: Vec<(RequestId, Time)>,
}

/// The verdict on an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Blocks that were "nothing here", were written once since, and were found whole or absent.
    pub first_writes: usize,
}

impl Oracle {
    /// The oracle of an unwritten volume.
    pub fn new(size_bytes: u64) -> Self {
        let mut oracle = Self::default();
        oracle.resize(size_bytes.div_ceil(BLOCK_BYTES) as usize);
        oracle
    }

    /// The oracle of a volume with this durable content, whatever its history.
    pub fn of(content: &[u8]) -> Self {
        let mut oracle = Self::new(content.len() as u64);
        let mut shown = content.chunks(SECTOR);
        for version in oracle.blocks.iter_mut().flat_map(|block| block.sectors.iter_mut().flatten()) {
            let mut whole = [0; SECTOR];
            // Bytes beyond the end appear as zeroes when the volume grows.
            if let Some(bytes) = shown.next() {
                whole[..bytes.len()].copy_from_slice(bytes);
            }
            // A sector of zeroes may be absent, or written zeroes.
            version.is_nothing = false;
            version.content = Some(Arc::new(whole));
        }
        oracle
    }

    fn resize(&mut self, blocks: usize) {
        let nothing = Version {
            content: Some(Arc::new([0; SECTOR])),
            is_nothing: true,
            request: 0,
            submitted: self.now,
            ended: Some(self.now),
            failed: false,
        };
        let block = Block { sectors: vec![vec![nothing]; SECTORS_PER_BLOCK], rewrites: Vec::new() };
        self.blocks.resize(blocks, block);
    }

    /// A sector's content once all requests in flight have completed; `None` if a failure leaves it
    /// open.
    pub fn latest(&self, sector: usize) -> Option<SectorBytes> {
        let versions = &self.blocks[sector / SECTORS_PER_BLOCK].sectors[sector % SECTORS_PER_BLOCK];
        let last_good = versions.iter().rposition(|version| !version.failed)?;
        if last_good + 1 < versions.len() { None } else { versions[last_good].content.clone() }
    }

    /// Whether a read may return these bytes of a sector without changes in flight.
    pub fn is_visible(&self, sector: usize, from: usize, found: &[u8]) -> bool {
        let versions = &self.blocks[sector / SECTORS_PER_BLOCK].sectors[sector % SECTORS_PER_BLOCK];
        let last_good = versions.iter().rposition(|version| !version.failed).unwrap_or(0);
        versions[last_good..].iter().any(|version| match &version.content {
            Some(content) => content[from..from + found.len()] == *found,
            None => true,
        })
    }

    pub fn apply(&mut self, event: &Event) {
        self.now += 1;
        match event {
            Event::Submitted { id, effects, durable } => {
                for (block, effect) in effects {
                    self.begin(*id, *block, effect);
                }
                let blocks = effects.iter().map(|(block, _)| *block).collect();
                self.in_flight.push(Request { id: *id, blocks, durable: *durable });
            }
            Event::Ended { id, succeeded } => self.end(*id, *succeeded),
            Event::FlushSubmitted { id } => self.flushes.push((*id, self.now)),
            Event::FlushEnded { id, succeeded } => {
                let Some(at) = self.flushes.iter().position(|(other, _)| other == id) else { return };
                let (_, horizon) = self.flushes.swap_remove(at);
                for block in &mut self.blocks {
                    match succeeded {
                        true => block.make_durable(|version| version.ended.is_some_and(|at| at <= horizon)),
                        false => block.may_be_lost(),
                    }
                }
            }
            Event::Resized { blocks } => self.resize(*blocks),
        }
    }

    fn begin(&mut self, request: RequestId, block: usize, effect: &Effect) {
        let submitted = self.now;
        let block = &mut self.blocks[block];
        let version = |content, is_nothing| Version {
            content,
            is_nothing,
            request,
            submitted,
            ended: None,
            failed: false,
        };
        match effect {
            Effect::Written(sectors) => {
                for (sector, content) in sectors {
                    block.sectors[*sector].push(version(Some(Arc::clone(content)), false));
                }
                block.rewrites.push(version(None, false));
            }
            Effect::Nothing => {
                for sector in &mut block.sectors {
                    sector.push(version(Some(Arc::new([0; SECTOR])), true));
                }
            }
        }
    }

    fn end(&mut self, id: RequestId, succeeded: bool) {
        let now = self.now;
        let Some(at) = self.in_flight.iter().position(|request| request.id == id) else { return };
        let Request { blocks, durable, .. } = self.in_flight.swap_remove(at);
        for block in blocks {
            let block = &mut self.blocks[block];
            let sectors = block.sectors.iter_mut().flatten();
            for version in sectors.chain(&mut block.rewrites).filter(|version| version.request == id) {
                (version.ended, version.failed) = (Some(now), !succeeded);
            }
            if durable && succeeded {
                block.make_durable(|version| version.request == id);
            }
        }
    }

    /// The writer was killed, and a successor sees this: all completed requests, and those in
    /// flight done or not, sector by sector. None of it is durable, and nothing is in flight any
    /// more. An error is the first wrong sector.
    ///
    /// A request that was in flight and is not visible may be partially done underneath: a discard
    /// is recorded before its block is freed. So a power cut may show it as long as nothing newer
    /// is durable.
    #[allow(dead_code, reason = "the real file systems' tests kill nobody")]
    pub fn killed(&mut self, shown: &[u8]) -> Result<(), usize> {
        self.now += 1;
        let now = self.now;
        self.resize(shown.len().div_ceil(BLOCK_BYTES as usize).max(self.blocks.len()));
        let blocks = self.blocks.iter_mut().zip(shown.chunks(BLOCK_BYTES as usize));
        for (index, (block, shown)) in blocks.enumerate() {
            for (sector, found) in shown.chunks(SECTOR).enumerate() {
                let versions = &mut block.sectors[sector];
                let is_shown = |version: &Version| match &version.content {
                    Some(content) => content[..found.len()] == *found,
                    None => true,
                };
                // No two requests in flight touch the same sector.
                if let Some(mut last) = versions.pop_if(|last| last.ended.is_none()) {
                    // If it changes nothing, it is unknown whether it was done.
                    (last.ended, last.is_nothing) = (Some(now), false);
                    let is_done = is_shown(&last);
                    last.failed = !is_done;
                    let at = if is_done { versions.len() } else { versions.len().saturating_sub(1) };
                    versions.insert(at, last);
                }
                let ended = versions.iter().rposition(|version| !version.failed).unwrap_or(0);
                if !versions[ended..].iter().any(is_shown) {
                    return Err(index * SECTORS_PER_BLOCK + sector);
                }
            }
            for write in &mut block.rewrites {
                write.ended.get_or_insert(now);
            }
        }
        self.in_flight.clear();
        self.flushes.clear();
        Ok(())
    }

    /// Checks an image's content; an error is the first wrong sector.
    pub fn check(&self, content: &[u8]) -> Result<Verdict, usize> {
        let mut verdict = Verdict::default();
        // The new part of a volume that is growing is still empty.
        let known = (self.blocks.len() * BLOCK_BYTES as usize).min(content.len());
        if content[known..].iter().any(|byte| *byte != 0) {
            return Err(known / SECTOR - 1);
        }
        for (index, (block, shown)) in
            self.blocks.iter().zip(content.chunks(BLOCK_BYTES as usize)).enumerate()
        {
            for (sector, found) in shown.chunks(SECTOR).enumerate() {
                let versions = &block.sectors[sector];
                let allowed = versions.iter().any(|version| match &version.content {
                    Some(content) => content[..found.len()] == *found,
                    None => true,
                });
                if !allowed {
                    return Err(index * SECTORS_PER_BLOCK + sector);
                }
            }
            match block.first_write(shown) {
                FirstWrite::Torn(sector) => return Err(index * SECTORS_PER_BLOCK + sector),
                FirstWrite::Whole => verdict.first_writes += 1,
                FirstWrite::Other => {}
            }
        }
        Ok(verdict)
    }

    /// Describes a sector's possible contents for a person.
    pub fn describe(&self, sector: usize) -> String {
        let block = &self.blocks[sector / SECTORS_PER_BLOCK];
        let versions = block.sectors[sector % SECTORS_PER_BLOCK].iter().map(|version| {
            let start = version.content.as_ref().map(|content| content[..8].to_vec());
            let ended = version.ended.map_or("in flight".to_owned(), |at| format!("ended {at}"));
            format!("request {} ({ended}, failed {}): {start:02x?}", version.request, version.failed)
        });
        versions.collect::<Vec<_>>().join("; ")
    }
}

impl Block {
    /// Drops the versions that the last durable one of each sector replaces.
    fn make_durable(&mut self, is_durable: impl Fn(&Version) -> bool) {
        let is_durable = |version: &Version| !version.failed && is_durable(version);
        for versions in &mut self.sectors {
            if let Some(last) = versions.iter().rposition(is_durable) {
                versions.drain(..last);
            }
        }
        // A durable write of the block left no sector of it "nothing".
        let written = self.rewrites.iter().filter(|version| is_durable(version)).map(|write| write.submitted);
        if let Some(written) = written.max() {
            for version in self.sectors.iter_mut().flatten() {
                version.is_nothing &= version.submitted > written;
            }
            self.rewrites.retain(|write| write.submitted > written);
        }
    }

    /// A flush has failed: non-durable versions may never become durable, even if later flushes
    /// succeed.
    fn may_be_lost(&mut self) {
        for versions in &mut self.sectors {
            versions.iter_mut().skip(1).filter(|version| version.ended.is_some()).for_each(|version| {
                version.failed = true;
            });
        }
        self.rewrites.iter_mut().filter(|write| write.ended.is_some()).for_each(|write| write.failed = true);
    }

    /// How a block shows its first write, if there was exactly one.
    fn first_write(&self, shown: &[u8]) -> FirstWrite {
        let [rewrite] = &self.rewrites[..] else { return FirstWrite::Other };
        let mut states = Vec::new();
        for (sector, (versions, found)) in self.sectors.iter().zip(shown.chunks(SECTOR)).enumerate() {
            match &versions[..] {
                [nothing] if nothing.is_nothing => {}
                [nothing, first] if nothing.is_nothing && first.request == rewrite.request => {
                    let Some(content) = &first.content else { return FirstWrite::Other };
                    // Written zeroes look like an absent block.
                    if content.iter().any(|byte| *byte != 0) {
                        states.push((sector, content[..found.len()] == *found));
                    }
                }
                _ => return FirstWrite::Other,
            }
        }
        match states.iter().find(|(_, is_there)| *is_there != states[0].1) {
            Some((sector, _)) => FirstWrite::Torn(*sector),
            None if states.is_empty() => FirstWrite::Other,
            None => FirstWrite::Whole,
        }
    }
}

enum FirstWrite {
    /// The write is there whole, or not at all.
    Whole,
    /// This sector differs in state from those before it.
    Torn(usize),
    /// There were more writes, or it cannot be determined.
    Other,
}

/// The blocks that an extent touches, with the range of bytes in each.
pub fn blocks_of(extent: Extent) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
    let (first, end) = (extent.offset() / BLOCK_BYTES, extent.end().div_ceil(BLOCK_BYTES));
    (first..end).map(move |block| {
        let within = extent.intersection(Extent::between(block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES));
        let start = (within.offset() - block * BLOCK_BYTES) as usize;
        (block as usize, start..start + within.length() as usize)
    })
}
