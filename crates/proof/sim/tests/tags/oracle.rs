//! A slow and obvious oracle of the possible content of each sector of a few blocks: the last known
//! durable version, and every newer one.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::volume::{BLOCK, SECTOR, pattern};

pub type RequestId = u64;

/// Blocks that are checked together.
const RUN_BLOCKS: u64 = 128;

#[derive(Clone, Debug)]
pub enum Event {
    /// Each of the blocks becomes this version, or nothing (0).
    Submitted {
        id: RequestId,
        blocks: Vec<u64>,
        version: u64,
    },
    Ended {
        id: RequestId,
        succeeded: bool,
        durable: bool,
    },
    FlushSubmitted {
        id: RequestId,
    },
    FlushEnded {
        id: RequestId,
        succeeded: bool,
    },
}

#[derive(Clone, Debug)]
struct Version {
    shown: Shown,
    request: RequestId,
    ended: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub struct Oracle {
    now: u64,
    /// Oldest first. A block that was never touched is not in it.
    blocks: BTreeMap<u64, Vec<Version>>,
    flushes: BTreeMap<RequestId, u64>,
}

#[derive(Clone, Debug)]
enum Shown {
    Nothing,
    Pattern(u64),
    Mixture(Arc<[u8]>),
}

const NOTHING: Version = Version { shown: Shown::Nothing, request: 0, ended: Some(0) };

impl Oracle {
    pub fn apply(&mut self, event: &Event) {
        self.now += 1;
        let now = self.now;
        match event {
            Event::Submitted { id, blocks, version } => {
                for block in blocks {
                    let versions = self.blocks.entry(*block).or_insert_with(|| vec![NOTHING]);
                    let shown = if *version == 0 { Shown::Nothing } else { Shown::Pattern(*version) };
                    versions.push(Version { shown, request: *id, ended: None });
                }
            }
            Event::Ended { id, succeeded, durable } => {
                for versions in self.blocks.values_mut() {
                    let Some(at) = versions.iter().position(|version| version.request == *id) else {
                        continue;
                    };
                    versions[at].ended = succeeded.then_some(now);
                    if *succeeded && *durable {
                        versions.drain(..at);
                    }
                }
                if *durable && !succeeded {
                    self.may_be_lost();
                }
            }
            Event::FlushSubmitted { id } => {
                self.flushes.insert(*id, now);
            }
            Event::FlushEnded { id, succeeded } => {
                let Some(asked) = self.flushes.remove(id) else { return };
                if !succeeded {
                    return self.may_be_lost();
                }
                for versions in self.blocks.values_mut() {
                    let covered = |version: &Version| version.ended.is_some_and(|ended| ended < asked);
                    if let Some(at) = versions.iter().rposition(covered) {
                        versions.drain(..at);
                    }
                }
            }
        }
    }

    /// A sync has failed: the versions it should have covered may never become durable, even if
    /// later syncs succeed.
    fn may_be_lost(&mut self) {
        for version in self.blocks.values_mut().flat_map(|versions| versions.iter_mut().skip(1)) {
            version.ended = None;
        }
    }

    /// The blocks that were ever touched, in runs.
    pub fn touched(&self) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for block in self.blocks.keys().copied() {
            match runs.last_mut() {
                Some(run) if run.end == block && block - run.start < RUN_BLOCKS => run.end += 1,
                _ => runs.push(block..block + 1),
            }
        }
        runs
    }

    /// The number of blocks that may show other content than their last durable version.
    pub fn unsettled(&self) -> usize {
        self.blocks.values().filter(|versions| versions.len() > 1).count()
    }

    /// Whether a block may show this content.
    pub fn allows(&self, block: u64, content: &[u8]) -> bool {
        let untouched = [NOTHING];
        let versions = self.blocks.get(&block).map_or(&untouched[..], Vec::as_slice);
        assert_eq!(content.len(), BLOCK);
        content
            .chunks(SECTOR)
            .enumerate()
            .all(|(at, sector)| versions.iter().any(|version| version.shown.is(block, at, sector)))
    }

    /// Records a block's content after a power cut, which is durable: a version, or a mixture of
    /// versions.
    pub fn settle(&mut self, block: u64, content: &[u8]) {
        if let Some(versions) = self.blocks.get_mut(&block) {
            let found = Shown::Mixture(content.into());
            *versions = vec![Version { shown: found, request: 0, ended: Some(0) }];
        }
    }
}

impl Shown {
    fn is(&self, block: u64, at: usize, sector: &[u8]) -> bool {
        match self {
            Self::Nothing => sector.iter().all(|byte| *byte == 0),
            Self::Pattern(number) => *sector == pattern(*number, block, at),
            Self::Mixture(content) => *sector == content[at * SECTOR..(at + 1) * SECTOR],
        }
    }
}
