//! Copies a volume to another datastore: one that nobody serves, and, in [`served`], most of one
//! that another process serves. [`sessions`] takes the clients of such a volume to its new place,
//! and [`departing`] reads one for another host. `datastore/file/relocate` has the steps of a move,
//! and what its caller must do between them.

mod departing;
mod rounds;
mod served;
mod sessions;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use strongroom_datastore::file::{
    Access, CopiedVolume, OpenOptions, RelocateOptions, RelocateProgress, Relocation, begin_relocation,
};

use crate::complete;
use crate::merge::MergeError;
use crate::transfer::TransferError;

pub use self::departing::ServedDeparture;
pub use self::rounds::Rounds;
pub use self::served::{ServedCopy, bytes_per_second, copy_served};
pub use self::sessions::{ChangedPlace, NotMoved, NotServed, PARKED_MAX, PlaceKeeper};

/// Copies the volume at `from` to where it will be at `to`, or goes on with that: the log is
/// emptied first, and a marked merge is ended. The volume is locked from then on, and its caller
/// goes on with [`Relocation::take_place`]. It stops when `stop` is set, and the next call finds
/// what was copied.
///
/// # Errors
/// Those of [`begin_relocation`] and [`Relocation::copy`]; [`TransferError::Stopped`]. The volume
/// is where it was.
pub fn copy_volume<'a>(
    from: &Path,
    to: &Path,
    options: &RelocateOptions<'a>,
    stop: &AtomicBool,
    report: &mut dyn FnMut(RelocateProgress),
) -> Result<(Relocation<'a>, CopiedVolume), MergeError> {
    settle(from, options, stop)?;
    copy_rest(begin_relocation(from, to, options)?, stop, report)
}

/// Brings a volume that nobody serves into the state in which it can be moved.
fn settle(from: &Path, options: &RelocateOptions<'_>, stop: &AtomicBool) -> Result<(), MergeError> {
    let RelocateOptions { protection, lock_wait, least_generation } = *options;
    let to_open = OpenOptions { protection, access: Access::ReadWrite, lock_wait, least_generation };
    complete::settle(from, &to_open, stop)
}

/// Copies what a move has left.
fn copy_rest<'a>(
    mut moving: Relocation<'a>,
    stop: &AtomicBool,
    report: &mut dyn FnMut(RelocateProgress),
) -> Result<(Relocation<'a>, CopiedVolume), MergeError> {
    let copied = moving.copy(&mut |progress| {
        report(progress);
        if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    match copied {
        Some(copied) => Ok((moving, copied)),
        None => Err(TransferError::Stopped.into()),
    }
}
