//! `strongroom volume extents`.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use strongroom_api::volume::ByteExtent;
use strongroom_datastore::file::{DatastoreError, MapForm, MapKind, MapRequest, View, describe, read_map};
use strongroom_types::{ChunkSize, Extent, SnapshotId, SnapshotName, counted, display_bytes, parse_bytes};

use super::snapshot::find;
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
    pub extents: Vec<ByteExtent>,
}

/// A part of a map: some extents, and what they are all of.
pub struct Part {
    /// The generation of the volume's descriptor.
    pub generation: u64,
    /// The size of the content.
    pub size_bytes: u64,
    /// The end of the part.
    pub end: u64,
    /// The extents of the part, ascending.
    pub extents: Vec<ByteExtent>,
}

impl fmt::Display for Extents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |extent: &ByteExtent| [extent.start_bytes.to_string(), extent.length_bytes.to_string()];
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
    /// Reads a map part by part. `read` reads the one that begins at a byte, of that length or to
    /// the end. `changed` is the error if the layers of the volume change meanwhile.
    pub fn read(
        map: &MapArguments,
        mut read: impl FnMut(u64, Option<u64>) -> Result<Part, CliError>,
        changed: impl FnOnce() -> CliError,
    ) -> Result<Self, CliError> {
        let until = map.length.map_or(u64::MAX, |length| map.start.saturating_add(length));
        let mut all = Self {
            size_bytes: 0,
            chunk_bytes: map.chunk.bytes(),
            start_bytes: map.start,
            length_bytes: 0,
            extents: Vec::new(),
        };
        let (mut start, mut generation) = (map.start, None);
        loop {
            let part = read(start, map.length.map(|_| until - start))?;
            if *generation.get_or_insert(part.generation) != part.generation {
                return Err(changed());
            }
            all.size_bytes = part.size_bytes;
            all.add(part.extents, part.end);
            let is_whole = part.end >= until.min(part.size_bytes);
            // A part that covers nothing would not end.
            if is_whole || part.end <= start || all.extents.len() >= EXTENTS_MAX {
                return Ok(all);
            }
            start = part.end;
        }
    }

    /// Adds extents of the part that follows, up to `end`.
    fn add(&mut self, extents: Vec<ByteExtent>, end: u64) {
        for extent in extents {
            match self.extents.last_mut() {
                Some(last) if last.start_bytes + last.length_bytes == extent.start_bytes => {
                    last.length_bytes += extent.length_bytes;
                }
                _ => self.extents.push(extent),
            }
        }
        self.length_bytes = end.saturating_sub(self.start_bytes);
    }
}

impl ExtentsArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let Self { path, map } = self;
        let id = |name: &SnapshotName| -> Result<SnapshotId, CliError> {
            Ok(find(path, &describe(path)?.descriptor, name)?.id)
        };
        let view = map.snapshot.as_ref().map(id).transpose()?.map_or(View::Present, View::Snapshot);
        let kind = match (&map.since, map.unshared) {
            (Some(name), _) => MapKind::ChangedSince(id(name)?),
            (None, true) => MapKind::Unshared,
            (None, false) => MapKind::Allocated,
        };
        let mut volume = None;
        let read = |start_bytes, length_bytes| {
            let (chunk, form) = (map.chunk, MapForm::Extents);
            let request =
                MapRequest { volume, view, kind, chunk, start_bytes, length_bytes, form, seeks_next: false };
            let found = read_map(path, &request)?;
            // The next part is of the volume that the first one found.
            volume = Some(found.volume);
            Ok(Part {
                generation: found.generation,
                size_bytes: found.size.bytes(),
                end: found.covers.end(),
                extents: found.runs.iter().map(extent).collect(),
            })
        };
        let changed = || DatastoreError::KeepsChanging { path: path.clone() }.into();
        output.answer(&Extents::read(map, read, changed)?)
    }
}

fn extent(run: &Extent) -> ByteExtent {
    ByteExtent { start_bytes: run.offset(), length_bytes: run.length() }
}
