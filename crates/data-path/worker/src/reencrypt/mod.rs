//! Rewrites all layers of a volume under other keys: of one that nobody serves, and, in [`served`],
//! of one that another process serves. [`change_over`] begins that of a volume that is about to be
//! served.
//!
//! `datastore/file/reencrypt` has the order of what is written. A layer is rewritten as a merge
//! moves it: [`Copying`] reads what it has and hides, and writes that into the new one.

mod change_over;
mod served;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use strongroom_datastore::file::{
    Access, DatastoreError, Descriptor, LeftToReencrypt, OpenOptions, OpenRewrite, ReencryptOptions,
    begin_reencryption, describe,
};

use crate::complete;
use crate::layers::MergeStages;
use crate::merge::{Copying, MergeError, UNSERVED, copy_all};
use crate::transfer::TransferError;

pub use self::change_over::change_over;
pub use self::served::{begin_served, cancel_served, reencrypt_served};

/// How far a re-encryption is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReencryptProgress {
    /// Bytes that this call has written.
    pub done_bytes: u64,
    /// Bytes that layers have allocated which are still to be rewritten.
    pub left_bytes: u64,
    /// Those layers.
    pub left_layers: usize,
}

/// The result of a re-encryption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reencrypted {
    /// The volume's new descriptor.
    pub descriptor: Descriptor,
    /// Bytes that this call has written.
    pub rewritten_bytes: u64,
    /// Layers that this call has rewritten.
    pub rewritten_layers: usize,
    /// Of these, those whose old files other volumes keep, under the old DEKs.
    pub kept_by_others: usize,
}

impl Reencrypted {
    /// A volume of which nothing was rewritten.
    pub fn of(descriptor: Descriptor) -> Self {
        Self { descriptor, rewritten_bytes: 0, rewritten_layers: 0, kept_by_others: 0 }
    }
}

/// Re-encrypts the volume at `path`, or goes on with that. It stops when `stop` is set, and the
/// next call goes on with the layer that it was at.
///
/// # Errors
/// If the volume is in use; if a layer cannot be read or written; [`TransferError::Stopped`].
/// Nothing is lost.
pub fn reencrypt(
    path: &Path,
    options: &ReencryptOptions<'_>,
    stop: &AtomicBool,
    report: &mut dyn FnMut(ReencryptProgress),
) -> Result<Reencrypted, MergeError> {
    settle(path, options, stop)?;
    let mut job = begin_reencryption(path, options)?;
    let (mut rewritten_bytes, mut rewritten_layers, mut kept_by_others) = (0, 0, 0);
    loop {
        let LeftToReencrypt { layers: left_layers, bytes } = job.left();
        let Some(opened) = job.open_next()? else { break };
        let OpenRewrite { size_bytes, layers, keys, rewritten } = opened;
        let stages = MergeStages::rewriting(layers, keys)?;
        let moved_bytes = copy_all(&stages, size_bytes, UNSERVED, &mut |copying: &Copying<'_>| {
            let moved_bytes = copying.moved_bytes();
            let left_bytes = bytes.saturating_sub(moved_bytes);
            report(ReencryptProgress { done_bytes: rewritten_bytes + moved_bytes, left_bytes, left_layers });
            if stop.load(Ordering::Relaxed) { Err(TransferError::Stopped) } else { Ok(()) }
        })?;
        drop(stages);
        let is_kept = rewritten.is_kept_by_others();
        job.replace(rewritten)?;
        rewritten_bytes += moved_bytes;
        rewritten_layers += 1;
        kept_by_others += usize::from(is_kept);
    }
    let descriptor = job.finish()?;
    report(ReencryptProgress { done_bytes: rewritten_bytes, left_bytes: 0, left_layers: 0 });
    Ok(Reencrypted { descriptor, rewritten_bytes, rewritten_layers, kept_by_others })
}

/// Brings the volume into the state after an orderly end, without a marked merge: under what it is
/// under before the job, after it, or meanwhile if it was in use then. One that opens under none of
/// these was not used since the job began.
fn settle(path: &Path, options: &ReencryptOptions<'_>, stop: &AtomicBool) -> Result<(), MergeError> {
    let ReencryptOptions { from, to, lock_wait, least_generation, .. } = *options;
    let is_begun = describe(path)?.descriptor.reencrypting.is_some();
    let of = |protection| OpenOptions { protection, access: Access::ReadWrite, lock_wait, least_generation };
    for options in [of(from), of(to), of(options.meanwhile())] {
        match complete::settle(path, &options, stop) {
            Ok(()) => return Ok(()),
            Err(MergeError::Datastore(error)) if is_begun && is_between(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether a volume does not open because a re-encryption has its layers under different keys.
fn is_between(error: &DatastoreError) -> bool {
    matches!(
        error,
        DatastoreError::Reencrypting { .. }
            | DatastoreError::Key { .. }
            | DatastoreError::Encrypted { .. }
            | DatastoreError::NotEncrypted { .. }
    )
}
