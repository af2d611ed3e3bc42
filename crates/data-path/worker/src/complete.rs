//! Completes a volume that is not served: brings the records that its last user left in the
//! first-write log to the layer.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use strongroom_datastore::file::{Access, OpenOptions, describe, open};

use crate::client::Client;
use crate::merge::{MergeError, merge_next};
use crate::stack::assemble_destaged;
use crate::transfer::Progress;

/// Brings the volume at `path` into the state after an orderly end of its exposure: its log is
/// empty, everything is durable, and it has no part of an interrupted snapshot of several volumes.
/// Then another layer can be put on it.
///
/// # Errors
/// If the volume is in use or cannot be written.
pub fn complete(path: &Path, options: &OpenOptions<'_>) -> Result<(), MergeError> {
    let mut volume = open(path, &OpenOptions { access: Access::ReadWrite, ..*options })?;
    volume.head.resolve_group(options.protection)?;
    let disk = assemble_destaged(volume)?;
    Client::open(&*disk)?.flush()?;
    // The log is emptied when the last reference to the disk is dropped, which is here.
    drop(disk);
    Ok(())
}

/// As [`complete`], and ends a merge that is marked, so that no layer is incomplete. It stops when
/// `stop` is set.
///
/// # Errors
/// Those of [`complete`] and [`merge_next`].
pub fn settle(path: &Path, options: &OpenOptions<'_>, stop: &AtomicBool) -> Result<(), MergeError> {
    complete(path, options)?;
    let mut progress = Progress { stop, report: &mut |_| {} };
    while describe(path)?.descriptor.merging.is_some() {
        merge_next(path, options, &mut progress)?;
    }
    Ok(())
}
