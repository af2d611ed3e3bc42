//! `strongroom volume extents`.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::{
    ChunkMap, DatastoreError, MapForm, MapKind, MapRequest, View, describe, read_map,
};
use strongroom_types::{ChunkSize, Extent, SnapshotId, SnapshotName, counted, display_bytes, parse_bytes};

use crate::error::CliError;
use crate::output::{Output, Table};

/// The most extents of an answer: some 50 MiB as JSON.
const EXTENTS_MAX: usize = 1 << 20;

/// The arguments of `extents`.
#[derive(Debug, Args)]
#[command(
    after_help = "Without options: the chunks that have content; all others read as zeroes. Needs no key, and \
may run while the volume is used. The answer comes from the datastore's files and is not authenticated: it is as \
good as the datastore.

Examples:
  strongroom volume extents ./ds/vm1
  strongroom volume extents ./ds/vm1 --since before-upgrade --json
  strongroom volume extents ./ds/vm1 --snapshot before-upgrade --unshared --chunk 1M"
)]
pub struct ExtentsArguments {
    /// Path of the volume
    path: PathBuf,

    #[command(flatten)]
    map: MapArguments,
}

/// What to map, and which part.
#[derive(Debug, Args)]
pub struct MapArguments {
    /// Snapshot to map [default: the present content]
    #[arg(long, value_name = "SNAPSHOT")]
    pub snapshot: Option<SnapshotName>,

    /// Only chunks that were written or discarded since this snapshot
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "unshared")]
    pub since: Option<SnapshotName>,

    /// Only chunks that no other snapshot and no linked clone has
    #[arg(long)]
    pub unshared: bool,

    /// Size of a chunk, a power of two from 4K to 1G
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = parse_chunk)]
    pub chunk: ChunkSize,

    /// Where to begin, a multiple of the chunk's size
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_bytes)]
    pub start: u64,

    /// How much to map [default: to the end]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub length: Option<u64>,
}

fn parse_chunk(text: &str) -> Result<ChunkSize, String> {
    let bytes = parse_bytes(text).map_err(|error| error.to_string())?;
    ChunkSize::new(bytes).map_err(|error| error.to_string())
}

/// Extents of a volume.
#[derive(Serialize)]
pub struct Extents {
    /// The size of the content.
    pub size_bytes: u64,
    /// The size of a chunk.
    pub chunk_bytes: u64,
    /// Where the answer begins.
    pub start_bytes: u64,
    /// Its length, which is shorter than what was asked for if there are too many extents.
    pub length_bytes: u64,
    /// The extents, ascending.
    pub extents: Vec<FoundExtent>,
}

/// A run of bytes.
#[derive(Clone, Copy, Serialize)]
pub struct FoundExtent {
    /// Its first byte.
    pub start_bytes: u64,
    /// Its length.
    pub length_bytes: u64,
}

impl fmt::Display for Extents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |extent: &FoundExtent| [extent.start_bytes.to_string(), extent.length_bytes.to_string()];
        if !self.extents.is_empty() {
            let rows = self.extents.iter().map(row).collect();
            writeln!(f, "{}", Table { head: ["START", "LENGTH"], rows })?;
        }
        let bytes: u64 = self.extents.iter().map(|extent| extent.length_bytes).sum();
        let (found, of) = (display_bytes(bytes), display_bytes(self.length_bytes));
        write!(f, "{}, {found} of {of}", counted(self.extents.len(), "extent"))
    }
}

impl Extents {
    /// An answer without extents.
    pub fn new(map: &MapArguments) -> Self {
        Self {
            size_bytes: 0,
            chunk_bytes: map.chunk.bytes(),
            start_bytes: map.start,
            length_bytes: 0,
            extents: Vec::new(),
        }
    }

    /// Adds extents of the part that follows, up to `end`. Returns whether there is room for more.
    pub fn add(&mut self, extents: impl IntoIterator<Item = FoundExtent>, end: u64) -> bool {
        for extent in extents {
            match self.extents.last_mut() {
                Some(last) if last.start_bytes + last.length_bytes == extent.start_bytes => {
                    last.length_bytes += extent.length_bytes;
                }
                _ => self.extents.push(extent),
            }
        }
        self.length_bytes = end.saturating_sub(self.start_bytes);
        self.extents.len() < EXTENTS_MAX
    }
}

impl From<&Extent> for FoundExtent {
    fn from(extent: &Extent) -> Self {
        Self { start_bytes: extent.offset(), length_bytes: extent.length() }
    }
}

impl ExtentsArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let map = &self.map;
        let view = map.snapshot.as_ref().map(|name| snapshot(&self.path, name)).transpose()?;
        let kind = match (&map.since, map.unshared) {
            (Some(name), _) => MapKind::ChangedSince(snapshot(&self.path, name)?),
            (None, true) => MapKind::Unshared,
            (None, false) => MapKind::Allocated,
        };
        let mut request = MapRequest {
            volume: None,
            view: view.map_or(View::Present, View::Snapshot),
            kind,
            chunk: map.chunk,
            start_bytes: map.start,
            length_bytes: map.length,
            form: MapForm::Extents,
            seeks_next: false,
        };
        let until = map.length.map_or(u64::MAX, |length| map.start.saturating_add(length));
        let mut all = Extents::new(map);
        let mut generation = None;
        loop {
            let found: ChunkMap = read_map(&self.path, &request)?;
            if *generation.get_or_insert(found.generation) != found.generation {
                return Err(DatastoreError::KeepsChanging { path: self.path.clone() }.into());
            }
            // The next call names the volume that the first one found.
            request.volume = Some(found.volume);
            all.size_bytes = found.size.bytes();
            let end = found.covers.end();
            let goes_on = all.add(found.runs.iter().map(FoundExtent::from), end);
            if !goes_on || end >= until.min(found.size.bytes()) {
                break;
            }
            request.start_bytes = end;
            request.length_bytes = map.length.map(|_| until - end);
        }
        output.answer(&all)
    }
}

/// The id of a snapshot of a volume.
fn snapshot(path: &Path, name: &SnapshotName) -> Result<SnapshotId, CliError> {
    let descriptor = describe(path)?.descriptor;
    let found = descriptor.snapshot_named(name).map(|snapshot| snapshot.id);
    let none = || DatastoreError::NoSnapshot { path: path.to_owned(), snapshot: name.to_string() };
    Ok(found.ok_or_else(none)?)
}
