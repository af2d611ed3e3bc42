//! Completes a volume that is not served: brings the records that its last user left in the
//! first-write log to the layer.

use std::path::Path;

use strongroom_datastore::file::{Access, OpenOptions, open};

use crate::client::Client;
use crate::merge::MergeError;
use crate::stack::assemble_destaged;

/// Brings the volume at `path` into the state after an orderly end of its exposure: its log is
/// empty, and everything is durable. Then another layer can be put on it.
///
/// # Errors
/// If the volume is in use or cannot be written.
pub fn complete(path: &Path, options: &OpenOptions<'_>) -> Result<(), MergeError> {
    let volume = open(path, &OpenOptions { access: Access::ReadWrite, ..*options })?;
    let disk = assemble_destaged(volume)?;
    Client::open(&*disk)?.flush()?;
    // The log is emptied when the last reference to the disk is dropped, which is here.
    drop(disk);
    Ok(())
}
