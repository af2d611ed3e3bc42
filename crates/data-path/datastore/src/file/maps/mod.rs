//! Where a volume has content, where two of its snapshots differ, and what its files take: for
//! backup programs and lists, without a key.
//!
//! A map is answered in chunks. It comes from what the file system and the volume's own records say
//! about its layers: their maps of data, the first-write log, the records of discards. No block is
//! read. Nothing is locked, so a reading never delays the process that uses the volume, nor a
//! merge: the descriptor is read before and after, and a reading during which it changed is
//! repeated.
//!
//! What a map promises about a volume in use: everything that was complete before the reading began
//! is in it; what is written meanwhile may be. So the log is read before the map of its layer: a
//! block that has left the log since is in the layer. The log and the records are read with
//! `O_DIRECT`, as their writer writes them: a cached page beside a direct write makes the writer's
//! next sync fail.
//!
//! Nothing of it is authenticated. Maps of data are the file system's, the log's checks and the
//! descriptor can be forged by those who can write to the datastore, and tags need a key. So a map
//! is as good as the datastore; `docs/THREAT_MODEL.md` says what follows.
//!
//! Bounds: a reading of a map takes at most [`STEPS_MAX`] steps and answers as far as it came. The
//! memory is that of the log's index (16,384 blocks), of the records of discards of
//! [`WINDOW_BYTES`], and of the answer.

mod scan;
mod space;

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strongroom_types::{ChunkSize, Extent, LayerId, SnapshotId, VolumeId, VolumeSize};

use self::scan::{Scan, Source};
pub use self::space::{Space, ViewSpace, space, space_on};
use super::descriptor::{Descriptor, LayerRecord};
use super::directory::VolumeDirectory;
use super::disk::{LayerBlocks, OpenLayer};
use super::error::DatastoreError;
use super::filesystem::FileSystem;
use super::log;
use super::open::{Access, OpenOptions, Protection};
use super::open_files::{Opening, chain_of};
use super::storage::{BY_PATH, Storage};

/// The most chunks of a bitmap: 32 KiB.
pub const CHUNKS_MAX: u64 = 1 << 18;
/// The most extents of an answer: 64 KiB.
pub const EXTENTS_MAX: usize = 4096;
/// The most steps of a reading: runs that the file system, the log and the records report, times
/// the layers that are looked through for each. Some tens of milliseconds.
const STEPS_MAX: u64 = 1 << 16;
/// The part of a volume whose records of discards are in memory at once: half a MiB for a layer.
const WINDOW_BYTES: u64 = 16 << 30;
/// How often a reading is repeated because the volume's layers changed.
const ATTEMPTS_MAX: usize = 8;

/// One content of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum View {
    /// Its present content.
    Present,
    /// That of a snapshot.
    Snapshot(SnapshotId),
}

/// What a chunk is in a map for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum MapKind {
    /// It has content. All others read as zeroes.
    Allocated,
    /// It has content in layers that no other snapshot, and no other volume, has.
    Unshared,
    /// It was written or discarded since this snapshot, or between the two if neither comes from
    /// the other. All others are the same in both.
    ChangedSince(SnapshotId),
}

/// The form of an answer, which decides its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MapForm {
    /// At most [`EXTENTS_MAX`] extents.
    Extents,
    /// A bit for each of at most [`CHUNKS_MAX`] chunks.
    Bitmap,
}

/// A request for a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapRequest {
    /// Refuses another volume than this one.
    pub volume: Option<VolumeId>,
    /// The content.
    pub view: View,
    /// What is asked about its chunks.
    pub kind: MapKind,
    /// The size of a chunk.
    pub chunk: ChunkSize,
    /// Where the map begins: a multiple of the chunk's size.
    pub start_bytes: u64,
    /// Its length; without, to the end of the content.
    pub length_bytes: Option<u64>,
    /// The form of the answer.
    pub form: MapForm,
    /// Whether the next chunk beyond the map is looked for.
    pub seeks_next: bool,
}

/// A map of a part of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkMap {
    /// The volume.
    pub volume: VolumeId,
    /// The generation of the descriptor that it is a map of.
    pub generation: u64,
    /// The size of the content.
    pub size: VolumeSize,
    /// The size of a chunk.
    pub chunk: ChunkSize,
    /// The part that it covers, which may be shorter than what was asked for: ask for the rest.
    pub covers: Extent,
    /// Runs of chunks that are in it, ascending and apart from each other. The last chunk of the
    /// content may be a shorter one.
    pub runs: Vec<Extent>,
    /// If it was asked for: from the end of `covers` up to here no chunk is in the map. `None` if
    /// none is up to the end of the content. It may be nearer than the next chunk that is, where
    /// looking for it takes too long.
    pub next_bytes: Option<u64>,
}

impl ChunkMap {
    /// A bit for each chunk, from the first: bit n % 8 of byte n / 8 is that of chunk n.
    pub fn bitmap(&self) -> Vec<u8> {
        let (start, chunk) = (self.covers.offset(), self.chunk.bytes());
        let chunks = self.covers.length().div_ceil(chunk);
        let mut bits = vec![0_u8; chunks.div_ceil(8) as usize];
        for run in &self.runs {
            let first = (run.offset() - start) / chunk;
            let end = (run.end() - start).div_ceil(chunk);
            let from = first.div_ceil(8);
            let whole = from..(end / 8).max(from);
            bits[whole.start as usize..whole.end as usize].fill(0xFF);
            let edges = (first..end.min(whole.start * 8)).chain(first.max(whole.end * 8)..end);
            edges.for_each(|at| bits[(at / 8) as usize] |= 1 << (at % 8));
        }
        bits
    }
}

/// Reads a map of the volume at `path`, which may be in use.
///
/// # Errors
/// [`DatastoreError::BadRange`], [`DatastoreError::NoSnapshot`], and those of reading its
/// descriptor and opening its files.
pub fn read_map(path: &Path, request: &MapRequest) -> Result<ChunkMap, DatastoreError> {
    read_map_on(BY_PATH, path, request)
}

/// As [`read_map`], on another file system.
pub fn read_map_on(
    storage: &dyn Storage,
    path: &Path,
    request: &MapRequest,
) -> Result<ChunkMap, DatastoreError> {
    unchanged(storage, path, |directory, descriptor| {
        descriptor.expect_volume(path, request.volume)?;
        let file_system = directory.file_system()?;
        Reading { directory, descriptor, request, file_system }.map()
    })
}

/// Reads something of a volume, and again if the descriptor was replaced meanwhile: a merge or a
/// deletion may then have changed the files under the reader.
fn unchanged<T>(
    storage: &dyn Storage,
    path: &Path,
    mut read: impl FnMut(&VolumeDirectory, &Descriptor) -> Result<T, DatastoreError>,
) -> Result<T, DatastoreError> {
    let directory = VolumeDirectory::open(storage, path)?;
    let mut encoded = directory.read_descriptor()?;
    for _ in 0..ATTEMPTS_MAX {
        let answer = read(&directory, encoded.unverified());
        let again = directory.read_descriptor()?;
        if again.bytes() == encoded.bytes() {
            return answer;
        }
        encoded = again;
    }
    Err(DatastoreError::KeepsChanging { path: path.to_owned() })
}

/// The layers of a view, the top first.
fn layers_of(descriptor: &Descriptor, view: View) -> impl Iterator<Item = &LayerRecord> {
    let top = match view {
        View::Present => Some(descriptor.top),
        View::Snapshot(id) => descriptor.snapshot(id).map(|snapshot| snapshot.layer),
    };
    descriptor.chain_from(top)
}

/// All views of a volume.
fn views(descriptor: &Descriptor) -> impl Iterator<Item = View> {
    let snapshots = descriptor.snapshots.iter().map(|snapshot| View::Snapshot(snapshot.id));
    std::iter::once(View::Present).chain(snapshots)
}

/// The uppermost layers of a view that no other view of the volume, and no other volume, has.
fn own_layers<'a>(
    directory: &VolumeDirectory,
    descriptor: &'a Descriptor,
    view: View,
) -> Vec<&'a LayerRecord> {
    let others = views(descriptor).filter(|other| *other != view);
    let others: Vec<LayerId> =
        others.flat_map(|other| layers_of(descriptor, other)).map(|layer| layer.id).collect();
    let is_own = |layer: &&LayerRecord| !others.contains(&layer.id) && !directory.shares(layer);
    layers_of(descriptor, view).take_while(is_own).collect()
}

/// One reading of a map, under one descriptor.
struct Reading<'a> {
    directory: &'a VolumeDirectory,
    descriptor: &'a Descriptor,
    request: &'a MapRequest,
    /// Found out once: that reads the mount table.
    file_system: FileSystem,
}

impl Reading<'_> {
    fn map(&self) -> Result<ChunkMap, DatastoreError> {
        let MapRequest { view, chunk, form, seeks_next, .. } = *self.request;
        let of_view = self.as_of(view)?;
        let size = of_view.size_bytes;
        let wanted = self.wanted(size)?;
        let mut scan = Scan::new(self.sources(&of_view)?, chunk);
        let runs_max = match form {
            MapForm::Extents => EXTENTS_MAX,
            MapForm::Bitmap => CHUNKS_MAX as usize,
        };
        let unreadable = |error| DatastoreError::UnreadableMap { path: self.directory.path.clone(), error };
        let (end, mut runs) = scan.runs(wanted, runs_max).map_err(unreadable)?;
        let all = Extent::between(0, size.bytes());
        let next_bytes = match seeks_next {
            true => scan.next(Extent::between(end, size.block_aligned_bytes())).map_err(unreadable)?,
            false => None,
        };
        runs.iter_mut().for_each(|run| *run = run.intersection(all));
        Ok(ChunkMap {
            volume: self.descriptor.volume,
            generation: self.descriptor.generation,
            size,
            chunk,
            covers: Extent::between(wanted.offset(), end).intersection(all),
            runs,
            next_bytes,
        })
    }

    /// The descriptor of a volume that has the content of a view.
    fn as_of(&self, view: View) -> Result<Descriptor, DatastoreError> {
        match view {
            View::Present => Ok(self.descriptor.clone()),
            View::Snapshot(snapshot) => self.descriptor.as_of(snapshot).ok_or_else(|| self.no(snapshot)),
        }
    }

    fn no(&self, snapshot: SnapshotId) -> DatastoreError {
        DatastoreError::NoSnapshot { path: self.directory.path.clone(), snapshot: snapshot.to_string() }
    }

    /// The part of the content that the answer may cover, in whole blocks.
    fn wanted(&self, size: VolumeSize) -> Result<Extent, DatastoreError> {
        let MapRequest { chunk, start_bytes: start, length_bytes, form, .. } = *self.request;
        let bad = |reason: String| DatastoreError::BadRange { path: self.directory.path.clone(), reason };
        let (chunk, most) = (chunk.bytes(), size.block_aligned_bytes());
        if start % chunk != 0 {
            return Err(bad(format!("byte {start} is no multiple of {chunk}, the size of a chunk")));
        }
        if start > most {
            return Err(bad(format!("byte {start} is beyond the end of the content at {}", size.bytes())));
        }
        let asked_end = match length_bytes {
            None => most,
            Some(0) => return Err(bad("a length of 0 bytes; name a length, or none".to_owned())),
            Some(length) => start.checked_add(length).ok_or_else(|| {
                bad(format!("{length} bytes from byte {start} on end beyond 2^64; name a shorter length"))
            })?,
        };
        let end = asked_end.min(most).div_ceil(chunk) * chunk;
        let end = match form {
            MapForm::Extents => end,
            MapForm::Bitmap => end.min(start + CHUNKS_MAX * chunk),
        };
        Ok(Extent::between(start, end.min(most)))
    }

    /// What says which chunks are in the map.
    fn sources(&self, of_view: &Descriptor) -> Result<Vec<Source>, DatastoreError> {
        let view = self.request.view;
        match self.request.kind {
            MapKind::Allocated => self.chain(of_view, &chain_of(&self.directory.path, of_view)?),
            MapKind::Unshared => self.chain(of_view, &own_layers(self.directory, self.descriptor, view)),
            MapKind::ChangedSince(snapshot) => {
                self.descriptor.snapshot(snapshot).ok_or_else(|| self.no(snapshot))?;
                let [of_view, of_other] = [view, View::Snapshot(snapshot)]
                    .map(|view| layers_of(self.descriptor, view).collect::<Vec<_>>());
                let has = |layers: &[&LayerRecord], id| layers.iter().any(|layer| layer.id == id);
                let mut sources = Vec::new();
                let only_here = of_view.iter().filter(|layer| !has(&of_other, layer.id));
                let only_there = of_other.iter().filter(|layer| !has(&of_view, layer.id));
                for layer in only_here.chain(only_there) {
                    let opened = self.open(self.descriptor, layer)?;
                    sources.extend(self.blocks(opened).map(|(blocks, _)| Source::changes(blocks))?);
                }
                Ok(sources)
            }
        }
    }

    /// The content of the uppermost of a view's layers; nothing without one.
    fn chain(&self, of_view: &Descriptor, layers: &[&LayerRecord]) -> Result<Vec<Source>, DatastoreError> {
        let [top, lower @ ..] = layers else { return Ok(Vec::new()) };
        let mut top = self.open(of_view, top)?;
        top.lower = lower.iter().map(|layer| self.open(of_view, layer)).collect::<Result<_, _>>()?;
        let (top, lower) = self.blocks(top)?;
        Ok(vec![Source::chain(top, lower)])
    }

    /// Opens a layer's files to read their maps, without locks.
    fn open(&self, descriptor: &Descriptor, layer: &LayerRecord) -> Result<OpenLayer, DatastoreError> {
        let options = OpenOptions {
            // Not looked at: no envelope is opened.
            protection: Protection::Unencrypted,
            access: Access::ReadOnly,
            lock_wait: Duration::ZERO,
            least_generation: 0,
        };
        let (directory, file_system) = (self.directory, self.file_system);
        let opening = Opening { directory, file_system, descriptor, options: &options, sharing: None };
        let mut opened = opening.open(layer)?;
        // A log that was closed empty says nothing, and its index would take longer than the map.
        let is_empty = opened.log.as_ref().map(|log| log::is_closed_empty(&**log, layer.id)).transpose();
        if is_empty.map_err(log::damaged(&directory.path, layer.id))? == Some(true) {
            (opened.log, opened.facts.log) = (None, None);
        }
        Ok(opened)
    }

    fn blocks(&self, layer: OpenLayer) -> Result<(LayerBlocks, Vec<LayerBlocks>), DatastoreError> {
        layer.into_blocks().map_err(log::damaged(&self.directory.path, self.descriptor.top))
    }
}
