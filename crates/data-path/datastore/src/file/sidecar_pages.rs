//! Reads the pages of a sidecar when it is opened, before there is a queue.

use std::ops::Range;

use rustix::io::Errno;
use strongroom_io::IoError;
use strongroom_memory::BufferPool;

use super::storage::StoredFile;
use super::tagging::PAGE_BYTES;

/// Bytes that are read at once.
const PART_BYTES: u64 = 1 << 20;

/// Whether the content that is found is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It is durable, or nothing relies on its durability.
    Durable,
    /// Its writer may have been killed before it was durable, or have had a failed sync, after
    /// which a later sync may not help. So it is rewritten and synced, because blocks that are
    /// found recorded are not recorded again.
    NotYet,
}

/// Reads those of these bytes that were ever written, in whole pages, and reports each page's
/// number, counted from the first byte, and content. When this returns, all of it is durable.
pub(super) fn read(
    file: &dyn StoredFile,
    bytes: Range<u64>,
    found: Found,
    mut take: impl FnMut(u64, &[u8]) -> Result<(), IoError>,
) -> Result<(), IoError> {
    const PAGE: u64 = PAGE_BYTES as u64;
    let pool = BufferPool::brief();
    let mut rewritten = false;
    let mut at = bytes.start;
    while at < bytes.end {
        at = match file.next_data(at) {
            Ok(data) => data.max(at) / PAGE * PAGE,
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        if at >= bytes.end {
            break;
        }
        let wanted_bytes = (bytes.end - at).min(PART_BYTES);
        let mut part = pool.take(wanted_bytes as usize).ok_or(IoError::from(Errno::NOMEM))?;
        let done_bytes = file.read_at(at, part.bytes_mut())? as u64;
        if done_bytes < wanted_bytes {
            return Err(IoError::Short { done_bytes, wanted_bytes });
        }
        if found == Found::NotYet && part.bytes().iter().any(|byte| *byte != 0) {
            file.write_at(at, part.bytes())?;
            rewritten = true;
        }
        let first = (at - bytes.start) / PAGE;
        (first..)
            .zip(part.bytes().chunks_exact(PAGE_BYTES))
            .try_for_each(|(number, page)| take(number, page))?;
        at += wanted_bytes;
    }
    if rewritten { file.sync().map_err(Into::into) } else { Ok(()) }
}
