//! Finds the records of a log when it is opened.
//!
//! It looks for every record with a sequence number from the tail on, wherever it lies: records are
//! written concurrently, so after a power cut one can be present and an earlier one missing. A
//! block whose content does not match its check was still being written and is skipped; the other
//! blocks of its record are valid.

use strongroom_memory::BufferPool;
use strongroom_types::{BLOCK_BYTES, VolumeSize};

use super::file::{LogError, read};
use super::format::{BLOCK, LogEntry, SEGMENTS, Superblock, content_check, decode_record};
use super::state::State;
use crate::file::storage::StoredFile;

/// Blocks that are read at once: more than the longest record.
const PIECE_BLOCKS: u32 = 512;

/// One record that was found.
struct Found {
    sequence: u64,
    segment: usize,
    /// For each entry: its place in the record, the entry, and the block of the segment with its
    /// content.
    entries: Vec<(usize, LogEntry, u32)>,
}

/// Loads the content of the log into the state.
pub(super) fn recover(
    file: &dyn StoredFile,
    superblock: &Superblock,
    state: &mut State,
    size: VolumeSize,
    pool: &BufferPool,
) -> Result<(), LogError> {
    let mut found = Vec::new();
    for segment in 0..SEGMENTS {
        scan(file, superblock, state, segment, pool, &mut found)?;
    }
    found.sort_unstable_by_key(|record| record.sequence);
    let log_blocks = u64::from(state.segment_blocks()) * SEGMENTS as u64;
    let blocks = size.block_aligned_bytes() / BLOCK_BYTES;
    for Found { sequence, segment, entries } in &found {
        let beyond = entries.iter().any(|(_, entry, _)| match *entry {
            LogEntry::Data { block, .. } => block >= blocks,
            LogEntry::Nothing { first, count } => {
                // Only blocks that were in the log are made "nothing here" through it.
                count > log_blocks || first.checked_add(count).is_none_or(|end| end > blocks)
            }
        });
        if beyond {
            return Err(LogError::Damaged("it has blocks that the volume cannot have"));
        }
        state.recover(*segment, *sequence, entries);
    }
    Ok(())
}

/// Rewrites the segments that hold records, unchanged and in the same places; the caller must sync
/// them. Records that are found may not be durable, and after a failed sync a later one may not
/// make them so. Blocks must not be brought to the layer, where they could be torn, before their
/// records are durable.
pub(super) fn rewrite(file: &dyn StoredFile, state: &State, pool: &BufferPool) -> Result<(), LogError> {
    for segment in state.segments_with_records() {
        for first in (0..state.used_blocks(segment)).step_by(PIECE_BLOCKS as usize) {
            let blocks = PIECE_BLOCKS.min(state.used_blocks(segment) - first);
            let mut buffer = pool.take(blocks as usize * BLOCK).ok_or(LogError::Memory)?;
            let offset = state.offset(segment, first);
            read(file, offset, &mut buffer)?;
            file.write_at(offset, buffer.bytes()).map_err(LogError::Write)?;
        }
    }
    Ok(())
}

/// Looks for records in a segment, block by block.
fn scan(
    file: &dyn StoredFile,
    superblock: &Superblock,
    state: &State,
    segment: usize,
    pool: &BufferPool,
    found: &mut Vec<Found>,
) -> Result<(), LogError> {
    let end = state.segment_blocks();
    let mut at = 0;
    while at < end {
        let count = PIECE_BLOCKS.min(end - at);
        let mut piece = pool.take(count as usize * BLOCK).ok_or(LogError::Memory)?;
        read(file, state.offset(segment, at), &mut piece)?;
        let blocks: Vec<&[u8]> = piece.bytes().chunks(BLOCK).collect();
        let mut here = 0;
        while here < blocks.len() {
            let record = decode_record(blocks[here], &superblock.log);
            let Some((sequence, entries)) = record.filter(|(sequence, _)| *sequence >= superblock.tail)
            else {
                here += 1;
                continue;
            };
            let contents = entries.iter().filter(|entry| matches!(entry, LogEntry::Data { .. })).count();
            let length = 1 + contents;
            if here + length > blocks.len() && at + (blocks.len() as u32) < end && here > 0 {
                // The next piece begins with this record, and has all of it.
                break;
            }
            let mut content = here;
            let mut whole = Vec::with_capacity(entries.len());
            for (place, entry) in entries.into_iter().enumerate() {
                if let LogEntry::Data { block, check } = entry {
                    content += 1;
                    let fits = blocks
                        .get(content)
                        .is_some_and(|bytes| content_check(bytes, sequence, block) == check);
                    if !fits {
                        continue;
                    }
                }
                whole.push((place, entry, at + content as u32));
            }
            found.push(Found { sequence, segment, entries: whole });
            here += length;
        }
        at += (here as u32).min(count);
    }
    Ok(())
}
