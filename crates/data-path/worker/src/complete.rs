//! Completes a volume that is not served: brings the records that its last user left in the
//! first-write log to the layer.

use std::path::Path;

use strongroom_datastore::file::{Access, OpenOptions, open};

use crate::client::Client;
use crate::merge::MergeError;
use crate::stack::assemble_destaged;

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
