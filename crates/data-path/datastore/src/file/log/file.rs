//! The log's file: making it, and reading its superblock.

use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::Serialize;
use strongroom_memory::{Buffer, BufferPool};
use strongroom_types::{BLOCK_BYTES, LayerId, VolumeSize};
use thiserror::Error;

use super::Log;
use super::format::{
    BLOCK, LOG_BYTES_MAX, LOG_BYTES_MIN, LOG_BYTES_STEP, LogId, SEGMENTS, SEGMENTS_START, Superblock,
};
use crate::file::descriptor::{Descriptor, LayerRecord, LogRecord, Provisioning};
use crate::file::directory::{VolumeDirectory, log_name, system};
use crate::file::error::DatastoreError;
use crate::file::filesystem::FileSystem;
use crate::file::storage::StoredFile;

/// The ratio of a volume's size to its log's, so that a small volume is not mostly log,
const VOLUME_SHARE: u64 = 64;
/// within these bounds: a busy guest fills the least between two flushes, and a host of a thousand
/// volumes can spare the most.
const DEFAULT_BYTES_MIN: u64 = 1 << 20;
const DEFAULT_BYTES_MAX: u64 = 64 << 20;

/// The size of the writes that fill the first segment.
const PIECE_BYTES: usize = 1 << 20;

/// The reasons why a log cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LogError {
    /// It cannot be read.
    #[error("the log cannot be read: {0}")]
    Read(Errno),
    /// It cannot be written.
    #[error("the log cannot be written: {0}")]
    Write(Errno),
    /// It is not this layer's log, or not a log at all.
    #[error("the log is damaged: {0}")]
    Damaged(&'static str),
    /// No memory to read it with.
    #[error("there is no memory to read the log with")]
    Memory,
}

/// The log of a new top layer, of the nearest valid size to `asked`, or the default for a volume of
/// this size. A thick volume needs none, and none has it where blocks are never torn.
pub(in crate::file) fn record_for(
    file_system: &FileSystem,
    provisioning: Provisioning,
    asked: Option<u64>,
    size: VolumeSize,
) -> Option<LogRecord> {
    match provisioning {
        Provisioning::Thin if !file_system.writes_whole_blocks => {
            Some(LogRecord { bytes: bytes_for(asked, size) })
        }
        Provisioning::Thin | Provisioning::Thick => None,
    }
}

/// Bytes of a new volume's log.
fn bytes_for(asked: Option<u64>, size: VolumeSize) -> u64 {
    let bytes =
        asked.unwrap_or_else(|| (size.bytes() / VOLUME_SHARE).clamp(DEFAULT_BYTES_MIN, DEFAULT_BYTES_MAX));
    bytes.clamp(LOG_BYTES_MIN, LOG_BYTES_MAX) / LOG_BYTES_STEP * LOG_BYTES_STEP
}

/// How a new log appears to the process that opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::file) enum FileState {
    /// As if it had been closed empty.
    Closed,
    /// As if it were in use: nothing must be written to it before the first record.
    InUse,
}

/// Durably makes the log of a new layer. Space is allocated for all of it, so that no append lacks
/// any. Only the first segment is written, because a snapshot and a linked clone wait for this; the
/// destager fills the others ahead of the writers.
pub(in crate::file) fn create(
    directory: &VolumeDirectory,
    layer: LayerId,
    bytes: u64,
    state: FileState,
    path: &Path,
) -> Result<(), DatastoreError> {
    let failed = |errno| match errno {
        Errno::NOSPC | Errno::DQUOT => DatastoreError::Full {
            path: path.to_owned(),
            needed: strongroom_types::display_bytes(SEGMENTS_START + bytes),
        },
        errno => system("write the log of", path)(errno),
    };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let file = directory.file(&log_name(layer), flags).map_err(failed)?;
    file.allocate(0, SEGMENTS_START + bytes).map_err(failed)?;
    let segment_bytes = bytes / SEGMENTS as u64;
    let zeroes = vec![0; PIECE_BYTES.min(segment_bytes as usize)];
    for at in (0..segment_bytes).step_by(zeroes.len()) {
        let length = zeroes.len().min((segment_bytes - at) as usize);
        file.write_at(SEGMENTS_START + at, &zeroes[..length]).map_err(failed)?;
        file.begin_sync(SEGMENTS_START + at, length as u64);
    }
    let next = (state == FileState::Closed).then_some(1);
    let mut superblock = Superblock { layer, log: new_id(), generation: 0, tail: 1, next };
    let mut block = [0; BLOCK];
    // Write both, so that neither place is without a superblock.
    for generation in [0, 1] {
        superblock.generation = generation;
        superblock.encode(&mut block);
        file.write_at(superblock.offset(), &block).map_err(failed)?;
    }
    file.sync().map_err(failed)
}

fn new_id() -> LogId {
    // A layer id is random, and is as unique as a log id must be.
    *LayerId::random().as_bytes()
}

/// Refuses a log whose length is not the one in its layer's record, or that belongs to another
/// layer.
pub(in crate::file) fn check_identity(
    path: &Path,
    layer: LayerId,
    file: &dyn StoredFile,
    record: LogRecord,
) -> Result<(), DatastoreError> {
    let found = file.length().map_err(system("examine the log of", path))?;
    if found != SEGMENTS_START + record.bytes {
        let error = LogError::Damaged("it has another length than its volume says");
        return Err(damaged(path, layer)(error));
    }
    read_superblock(file, Some(layer)).map(|_| ()).map_err(damaged(path, layer))
}

/// Whether it was closed empty: then everything ever written to it is in the layer.
pub(in crate::file) fn is_closed_empty(file: &dyn StoredFile, layer: LayerId) -> Result<bool, LogError> {
    read_superblock(file, Some(layer)).map(|superblock| superblock.next.is_some())
}

/// The size and use of a layer's first-write log, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LogUse {
    /// Bytes for records.
    pub size_bytes: u64,
    /// Bytes of blocks that it holds and the layer does not yet. Approximate while the volume is in
    /// use.
    pub used_bytes: u64,
}

/// Describes the log of a layer, which may be in use; `None` if it has none. Reads all of it,
/// unless it was closed empty.
pub(in crate::file) fn describe(
    directory: &VolumeDirectory,
    descriptor: &Descriptor,
    layer: &LayerRecord,
) -> Result<Option<LogUse>, DatastoreError> {
    let Some(record) = layer.log else { return Ok(None) };
    let (path, layer) = (&directory.path, layer.id);
    let opened = directory.file(&log_name(layer), OFlags::RDONLY | OFlags::DIRECT);
    let opened = match opened {
        Err(Errno::INVAL) => directory.file(&log_name(layer), OFlags::RDONLY),
        opened => opened,
    };
    let file = opened.map_err(|errno| match errno {
        Errno::NOENT => DatastoreError::MissingLog { path: path.clone(), layer },
        errno => system("open the log of", path)(errno),
    })?;
    check_identity(path, layer, &*file, record)?;
    let used_bytes = Log::held_bytes(&*file, record, descriptor.size_bytes).map_err(damaged(path, layer))?;
    Ok(Some(LogUse { size_bytes: record.bytes, used_bytes }))
}

/// The error of a log that cannot be used.
pub(in crate::file) fn damaged(path: &Path, layer: LayerId) -> impl Fn(LogError) -> DatastoreError {
    move |error| DatastoreError::Log { path: path.to_owned(), layer, error }
}

/// Reads the newer superblock. It must belong to `layer`, if that is given.
pub(super) fn read_superblock(file: &dyn StoredFile, layer: Option<LayerId>) -> Result<Superblock, LogError> {
    let mut buffer = BufferPool::brief().take(2 * BLOCK).ok_or(LogError::Memory)?;
    read(file, 0, &mut buffer)?;
    let newest =
        buffer.bytes().chunks(BLOCK).filter_map(Superblock::decode).max_by_key(|found| found.generation);
    match newest {
        None => Err(LogError::Damaged("it has no superblock")),
        Some(found) if layer.is_some_and(|layer| layer != found.layer) => {
            Err(LogError::Damaged("it is the log of another layer"))
        }
        Some(found) => Ok(found),
    }
}

/// Writes a superblock to its place, durably.
pub(super) fn write_superblock(
    file: &dyn StoredFile,
    superblock: &Superblock,
    pool: &BufferPool,
) -> Result<(), LogError> {
    let mut buffer = pool.take(BLOCK).ok_or(LogError::Memory)?;
    superblock.encode(buffer.bytes_mut());
    file.write_at(superblock.offset(), buffer.bytes()).map_err(LogError::Write)?;
    file.sync().map_err(LogError::Write)
}

/// Fills a buffer whose memory is suitable for O_DIRECT.
pub(super) fn read(file: &dyn StoredFile, offset: u64, buffer: &mut Buffer) -> Result<(), LogError> {
    debug_assert!(offset.is_multiple_of(BLOCK_BYTES));
    let wanted = buffer.len();
    match file.read_at(offset, buffer.bytes_mut()).map_err(LogError::Read)? {
        found if found == wanted => Ok(()),
        _ => Err(LogError::Damaged("it ends early")),
    }
}
