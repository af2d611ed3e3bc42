//! Completing a volume that nobody serves: what its last user left in the first-write log is
//! brought to its layer.

use std::path::Path;

use strongroom_datastore::file::{Access, OpenOptions, open};

use crate::client::Client;
use crate::merge::MergeError;
use crate::stack::assemble_destaged;

/// Leaves the volume at `path` as an orderly end of its exposure does: its log is empty, and
/// everything is durable. Another layer can be put on it then.
///
/// # Errors
/// While the volume is in use; if it cannot be written.
pub fn complete(path: &Path, options: &OpenOptions<'_>) -> Result<(), MergeError> {
    let volume = open(path, &OpenOptions { access: Access::ReadWrite, ..*options })?;
    let disk = assemble_destaged(volume)?;
    Client::open(&*disk)?.flush()?;
    // The log is emptied when the last of the disk is gone, which this is.
    drop(disk);
    Ok(())
}
