//! Begins the encryption or decryption of a volume before it is served.

use std::path::Path;

use strongroom_datastore::file::{NewTags, OpenOptions, Protection, open};

use crate::complete::complete;
use crate::layers::top_log_bytes;
use crate::merge::MergeError;

/// Puts the mark and a new top of another sort on a volume that nobody serves, in one descriptor,
/// as the process that serves a volume does when that begins. `before` is how the volume opens now,
/// for writing; `meanwhile` is how it opens from then on. `tags` are those of the new layers.
///
/// # Errors
/// If the volume is in use, or there is no room for the rewritten layers. It opens as `before`
/// then.
pub fn change_over(
    path: &Path,
    before: &OpenOptions<'_>,
    meanwhile: Protection<'_>,
    tags: NewTags,
) -> Result<(), MergeError> {
    complete(path, before)?;
    let mut volume = open(path, before)?;
    let log_bytes = top_log_bytes(volume.descriptor());
    Ok(volume.head.prepare_layer_of(meanwhile, tags, log_bytes)?)
}
