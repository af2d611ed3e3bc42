//! Goes through the runs that the layers report, and joins them to runs of chunks.

use std::sync::Arc;

use strongroom_io::{Allocation, Disk, IoError, Sealed};
use strongroom_types::{ChunkSize, Extent};

use super::{STEPS_MAX, WINDOW_BYTES};
use crate::file::chain::{ChainDisk, LowerLayer};
use crate::file::discards::{Discards, DiscardsFacts};
use crate::file::disk::{FileDisk, LayerBlocks};
use crate::file::storage::StoredFile;

/// The first part in which the next chunk is looked for; each further one is twice as long.
const NEAR_BYTES: u64 = 256 << 20;

/// Something that says which blocks are in a map.
pub(super) enum Source {
    /// The content of layers on each other.
    Chain(LayerBlocks, Vec<LayerBlocks>),
    /// The data of one layer.
    Data(Arc<FileDisk>),
    /// What one layer has discarded.
    Discards(Arc<dyn StoredFile>, DiscardsFacts, u64),
}

impl Source {
    pub fn chain(top: LayerBlocks, lower: Vec<LayerBlocks>) -> Self {
        Self::Chain(top, lower)
    }

    /// Everything that was done to a layer.
    pub fn changes(layer: LayerBlocks) -> impl Iterator<Item = Self> {
        let layer_bytes = layer.disk.limits().size_bytes;
        let discards = layer.discards.map(|(file, facts)| Self::Discards(file, facts, layer_bytes));
        std::iter::once(Self::Data(layer.disk)).chain(discards)
    }

    /// The layers that are looked through for a run.
    fn layers(&self) -> u64 {
        match self {
            Self::Chain(_, lower) => 1 + lower.len() as u64,
            Self::Data(_) | Self::Discards(..) => 1,
        }
    }

    /// Reports the runs of a part, ascending, and whether they are in the map.
    fn report(&self, part: Extent, report: &mut dyn FnMut(Extent, bool) -> bool) -> Result<(), IoError> {
        match self {
            Self::Chain(top, lower) => {
                let disk = chain(top, lower, part)?;
                disk.allocation(part, &mut |run, found| report(run, found == Allocation::Data))
            }
            Self::Data(disk) => {
                disk.allocation(part, &mut |run, found| report(run, found == Allocation::Data))
            }
            Self::Discards(file, facts, layer_bytes) => {
                let part = part.intersection(Extent::between(0, *layer_bytes));
                if !part.is_empty() {
                    Discards::unverified(file, *facts, *layer_bytes, part)?.runs(part, report);
                }
                Ok(())
            }
        }
    }
}

/// The layers as one disk, of which only the allocation is asked for, and only within `part`.
fn chain(top: &LayerBlocks, lower: &[LayerBlocks], part: Extent) -> Result<Arc<dyn Disk<Sealed>>, IoError> {
    let discards = |layer: &LayerBlocks| match &layer.discards {
        Some((file, facts)) => {
            let layer_bytes = layer.disk.limits().size_bytes;
            Discards::unverified(file, *facts, layer_bytes, part).map(|discards| Some(Arc::new(discards)))
        }
        None => Ok(None),
    };
    let blocks = |layer: &LayerBlocks| Arc::clone(&layer.disk) as Arc<dyn Disk<Sealed>>;
    let Some(of_top) = discards(top)? else { return Ok(blocks(top)) };
    let lower = lower.iter().map(|layer| {
        let (blocks, discards) = (blocks(layer), discards(layer)?);
        Ok(LowerLayer { blocks, discards, is_merged_into: layer.is_merged_into })
    });
    Ok(Arc::new(ChainDisk::new(blocks(top), of_top, lower.collect::<Result<_, IoError>>()?)))
}

/// A reading of a map.
pub(super) struct Scan {
    sources: Vec<Source>,
    chunk: u64,
}

impl Scan {
    pub fn new(sources: Vec<Source>, chunk: ChunkSize) -> Self {
        Self { sources, chunk: chunk.bytes() }
    }

    /// The runs of chunks that are in the map, at most `runs_max`, and the end of the part that
    /// they are all of. It begins at a chunk.
    pub fn runs(&mut self, wanted: Extent, runs_max: usize) -> Result<(u64, Vec<Extent>), IoError> {
        let mut found = Runs::default();
        let (mut steps, mut at) = (self.budget(), wanted.offset());
        while at < wanted.end() {
            let part = Extent::between(at, wanted.end().min(at + WINDOW_BYTES));
            let (end, runs) = self.part(part, &mut steps)?;
            runs.into_iter().for_each(|run| found.push(run));
            at = end;
            if let Some(beyond) = found.0.get(runs_max) {
                let end = beyond.offset();
                found.0.truncate(runs_max);
                return Ok((end, found.0));
            }
            if end < part.end() {
                break;
            }
        }
        Ok((at, found.0))
    }

    /// The first chunk of an extent that is in the map, or as far as was looked; `None` if no chunk
    /// is. It begins at a chunk, and may be empty.
    pub fn next(&mut self, within: Extent) -> Result<Option<u64>, IoError> {
        let (mut steps, mut at, mut length) = (self.budget(), within.offset(), NEAR_BYTES.max(self.chunk));
        while at < within.end() {
            let part = Extent::between(at, within.end().min(at + length));
            let (end, runs) = self.part(part, &mut steps)?;
            if let Some(first) = runs.first() {
                return Ok(Some(first.offset()));
            }
            if end < part.end() {
                return Ok(Some(end));
            }
            (at, length) = (end, (length * 2).min(WINDOW_BYTES));
        }
        Ok(None)
    }

    /// The steps that each source may take.
    fn budget(&self) -> Vec<u64> {
        let of_each = STEPS_MAX / (self.sources.len() as u64).max(1);
        self.sources.iter().map(|source| of_each / source.layers()).collect()
    }

    /// The runs of chunks of a part, and its end, which is nearer where the steps are used up. At
    /// least one chunk is looked through.
    fn part(&self, part: Extent, steps: &mut [u64]) -> Result<(u64, Vec<Extent>), IoError> {
        let chunk = self.chunk;
        let mut end = part.end();
        let mut all = Vec::new();
        for (source, steps) in self.sources.iter().zip(steps) {
            let mut own = Runs::default();
            source.report(Extent::between(part.offset(), end), &mut |run, is_in| {
                *steps = steps.saturating_sub(1);
                if is_in {
                    own.push(run.widened_to(chunk));
                }
                if *steps > 0 {
                    return true;
                }
                // A chunk that is in the map needs no further look.
                let is_done = own.0.last().is_some_and(|last| last.end() > run.end());
                let done =
                    if is_in || is_done { run.end().div_ceil(chunk) } else { run.end() / chunk } * chunk;
                if done > part.offset() {
                    end = end.min(done);
                }
                end != done
            })?;
            all.extend(own.0);
        }
        all.sort_unstable_by_key(|run| run.offset());
        let mut joined = Runs::default();
        for run in all {
            let run = run.intersection(Extent::between(part.offset(), end));
            if !run.is_empty() {
                joined.push(run);
            }
        }
        Ok((end, joined.0))
    }
}

/// Runs in ascending order, apart from each other.
#[derive(Default)]
struct Runs(Vec<Extent>);

impl Runs {
    /// Adds a run that begins at or behind the beginning of the last one.
    fn push(&mut self, run: Extent) {
        match self.0.last_mut() {
            Some(last) if run.offset() <= last.end() => {
                *last = Extent::between(last.offset(), last.end().max(run.end()));
            }
            _ => self.0.push(run),
        }
    }
}
