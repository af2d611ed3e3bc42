//! A chain of layers as one disk.
//!
//! ```text
//! crypt -> chain -> the top: tags -> blocks        takes what is written
//!            |  \-> discards-<id> of the top       what of it hides the layers below
//!            \---> the layer below, and the next   read where those above have nothing
//! ```
//!
//! A read goes to the top. Blocks that the top neither has nor hides by a record are read from the
//! next layer. A write goes to the top alone. Blocks that become zeroes there are recorded first
//! ([`discards`](super::discards)). A flush goes to the top, and to the layer below it until that
//! is complete ([`LowerFlushes`]).
//!
//! The stage learns which lower layer has a block by reading it, and reads it there from then on,
//! until the top gets it ([`owners`]).

mod channel;
mod closing;
mod owners;
mod read;

use std::cell::Cell;
use std::sync::Arc;

use strongroom_io::{Allocation, Channel, Disk, IoError, Limits, Sealed, Thread};
use strongroom_types::{BLOCK_BYTES, Extent};

use self::channel::ChainChannel;
pub use self::closing::LowerFlushes;
use self::owners::Owners;
use super::discards::Discards;

/// A layer that others lie on. It does not change.
#[derive(Clone)]
pub struct LowerLayer {
    /// Its blocks.
    pub blocks: Arc<dyn Disk<Sealed>>,
    /// Its record of discards, if there are layers below it.
    pub discards: Option<Arc<Discards>>,
    /// Whether the layer above is being merged into it. Then the blocks that this layer and the one
    /// above both have are in an unknown state here, and are not read: one that a power cut has
    /// torn does not match its tag.
    pub is_merged_into: bool,
}

/// Layers as one disk.
#[derive(Clone)]
pub struct ChainDisk {
    shared: Arc<Shared>,
}

struct Shared {
    top: Arc<dyn Disk<Sealed>>,
    discards: Arc<Discards>,
    /// Nearest first.
    lower: Vec<LowerLayer>,
    /// Flushes of the layer below the top, if its last writes may not be durable.
    lower_flushes: Option<Arc<LowerFlushes>>,
    /// Which lower layer has which block.
    owners: Owners,
}

impl ChainDisk {
    /// Puts `top` and its record of discards on other layers, nearest first.
    pub fn new(top: Arc<dyn Disk<Sealed>>, discards: Arc<Discards>, lower: Vec<LowerLayer>) -> Self {
        let is_closing = lower.first().is_some_and(|layer| !layer.blocks.limits().read_only);
        let lower_flushes = is_closing.then(Arc::default);
        let lower_bytes = lower.iter().map(|layer| layer.blocks.limits().size_bytes).max();
        let owners = Owners::new(lower_bytes.unwrap_or_default());
        Self { shared: Arc::new(Shared { top, discards, lower, lower_flushes, owners }) }
    }

    /// The flushes of the layer below the top, if that is not complete.
    pub fn lower_flushes(&self) -> Option<Arc<LowerFlushes>> {
        self.shared.lower_flushes.clone()
    }

    /// Whether recording has failed for good: nothing can be recorded until the volume is reopened.
    pub fn has_failed_record(&self) -> bool {
        self.shared.discards.have_failed()
    }
}

impl Shared {
    /// The blocks of a layer; the top is 0.
    fn blocks(&self, level: usize) -> Option<&Arc<dyn Disk<Sealed>>> {
        match level.checked_sub(1) {
            None => Some(&self.top),
            Some(lower) => self.lower.get(lower).map(|layer| &layer.blocks),
        }
    }

    /// Whether only those blocks of a layer may be read that no layer above has; the top is 0.
    fn is_merged_into(&self, level: usize) -> bool {
        let lower = level.checked_sub(1).and_then(|lower| self.lower.get(lower));
        lower.is_some_and(|layer| layer.is_merged_into)
    }

    /// The record of discards of a layer; the top is 0.
    fn discards(&self, level: usize) -> Option<&Arc<Discards>> {
        match level.checked_sub(1) {
            None => Some(&self.discards),
            Some(lower) => self.lower.get(lower)?.discards.as_ref(),
        }
    }

    /// The first block that no layer below the top reaches.
    fn lower_end_block(&self) -> u64 {
        self.lower.first().map_or(0, |layer| layer.blocks.limits().size_bytes / BLOCK_BYTES)
    }

    /// Reports the allocation of an extent in the layers from `level` down.
    fn allocation(
        &self,
        level: usize,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        let Some(blocks) = self.blocks(level) else {
            report(extent, Allocation::Hole);
            return Ok(());
        };
        let within = extent.intersection(Extent::between(0, blocks.limits().size_bytes));
        let (goes_on, mut failure) = (Cell::new(true), None);
        blocks.allocation(within, &mut |run, found| {
            let mut told = |run, found| {
                goes_on.set(report(run, found));
                goes_on.get()
            };
            if found == Allocation::Data {
                return told(run, found);
            }
            let below = |run, report: &mut dyn FnMut(Extent, Allocation) -> bool| {
                self.allocation(level + 1, run, &mut |run, below| {
                    // Space that the layer has allocated stays allocated, whatever is below.
                    report(run, if below == Allocation::Data { below } else { found })
                })
            };
            match self.discards(level) {
                Some(discards) => discards.runs(run, |run, hides| {
                    let result = match hides {
                        true => {
                            told(run, found);
                            Ok(())
                        }
                        false => below(run, &mut told),
                    };
                    failure = failure.or(result.err());
                    failure.is_none() && goes_on.get()
                }),
                None => failure = failure.or(below(run, &mut told).err()),
            }
            goes_on.get() && failure.is_none()
        })?;
        if let Some(error) = failure {
            return Err(error);
        }
        if goes_on.get() && within.end() < extent.end() {
            report(Extent::between(within.end().max(extent.offset()), extent.end()), Allocation::Hole);
        }
        Ok(())
    }
}

impl Disk<Sealed> for ChainDisk {
    fn limits(&self) -> Limits {
        self.shared.top.limits()
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Sealed>>, IoError> {
        Ok(Box::new(ChainChannel::open(Arc::clone(&self.shared), thread, depth)?))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        let extent = extent.intersection(Extent::between(0, self.limits().size_bytes));
        self.shared.allocation(0, extent, report)
    }
}
