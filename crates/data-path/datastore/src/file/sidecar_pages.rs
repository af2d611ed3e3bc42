//! The pages of a sidecar, read when it is opened: in the moments in which there is no queue yet.

use std::ops::Range;

use rustix::io::Errno;
use strongroom_io::IoError;
use strongroom_memory::{BufferPool, CHUNK_BYTES};

use super::storage::StoredFile;
use super::tagging::PAGE_BYTES;

/// Read at once.
const PART_BYTES: u64 = 1 << 20;

/// Whether what is found is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nobody has written since it was durable, or nothing rests upon it.
    Durable,
    /// Whoever wrote it may have been killed before it was durable, or have had a sync that failed,
    /// after which no later one need help: it is written once more, and synced. What is taken for
    /// recorded is not recorded again.
    NotYet,
}

/// Reads what was ever written of these bytes, whole pages, and reports it page by page: the page's
/// number, counted from the first byte, and its content. When this returns all of it is durable.
pub(super) fn read(
    file: &dyn StoredFile,
    bytes: Range<u64>,
    found: Found,
    mut take: impl FnMut(u64, &[u8]) -> Result<(), IoError>,
) -> Result<(), IoError> {
    const PAGE: u64 = PAGE_BYTES as u64;
    let pool = BufferPool::new(CHUNK_BYTES).map_err(|_| IoError::from(Errno::NOMEM))?;
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
