//! Copies a volume beside the process that exposes it, which keeps its descriptor.
//!
//! ```text
//! a new top takes the writes -> the layers below are complete -> they are copied -> the same again
//!     -> little is left, or it does not get less -> the exposure ends -> the rest is copied
//! ```
//!
//! What is copied does not change any more, so the last step alone keeps clients waiting. Each
//! round leaves a layer, which a later merge removes.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use strongroom_datastore::file::{
    CopiedVolume, LeftToRelocate, RelocateOptions, RelocateProgress, Relocation, RelocationBeside,
    begin_relocation_beside, describe,
};

use super::rounds::{Rounds, has_grown, has_layers_free, keeps_changing, put_new_top};
use super::{copy_rest, settle};
use crate::beside::{Beside, Patience, ServedError, ServedVolume};
use crate::control::Client;
use crate::merge::MergeError;
use crate::pace::Throttle;
use crate::transfer::TransferError;

/// Whether the volume is still served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exposure {
    GoesOn,
    Ended,
}

/// A volume that is being copied while it is served.
pub struct ServedCopy<'a> {
    pub(super) served: ServedVolume<'a>,
    pub(super) options: RelocateOptions<'a>,
    pub(super) beside: RelocationBeside<'a>,
    copied: CopiedVolume,
    left: LeftToRelocate,
}

/// Copies the volume that is served to where it will be at `to`, apart from what clients write
/// last. The job leaves clients what the throttle says of their speed. It stops when `stop` is set.
///
/// # Errors
/// [`ServedError::Control`] if no process exposes the volume any more, or it refuses;
/// [`TransferError::Stopped`]; and what keeps a layer from being copied. The volume is where it
/// was.
pub fn copy_served<'a>(
    served: ServedVolume<'a>,
    to: &Path,
    options: &RelocateOptions<'a>,
    throttle: Throttle,
    stop: &AtomicBool,
    report: &mut dyn FnMut(RelocateProgress),
) -> Result<ServedCopy<'a>, ServedError> {
    let beside = begin_relocation_beside(served.path, to, options)?;
    let left = beside.left()?;
    let mut copy = ServedCopy { served, options: *options, beside, copied: CopiedVolume::default(), left };
    let mut rounds = Rounds::before(copy.left.bytes);
    loop {
        let ended = copy.round_unless_ended(throttle, stop, report)? == Exposure::Ended;
        if ended || !rounds.go_on(copy.left.bytes) || !has_layers_free(served.path)? {
            return Ok(copy);
        }
    }
}

impl<'a> ServedCopy<'a> {
    /// What was copied until now.
    pub fn copied(&self) -> CopiedVolume {
        self.copied
    }

    /// What is copied when the exposure has ended, if nothing more is written.
    pub fn left(&self) -> LeftToRelocate {
        self.left
    }

    /// Copies again what clients have written since, if that has become much.
    ///
    /// # Errors
    /// As [`copy_served`].
    pub fn keep_up(
        &mut self,
        throttle: Throttle,
        stop: &AtomicBool,
        report: &mut dyn FnMut(RelocateProgress),
    ) -> Result<(), ServedError> {
        let before = self.left.bytes;
        self.left = self.beside.left()?;
        if has_grown(before, self.left.bytes) && has_layers_free(self.served.path)? {
            self.round_unless_ended(throttle, stop, report)?;
        }
        Ok(())
    }

    /// Goes on with the volume, whose exposure has ended: the rest is copied.
    ///
    /// # Errors
    /// [`DatastoreError::InUse`] if it is exposed again, and those of
    /// [`copy_volume`](super::copy_volume). The volume is where it was.
    pub fn finish(
        mut self,
        stop: &AtomicBool,
        report: &mut dyn FnMut(RelocateProgress),
    ) -> Result<(Relocation<'a>, CopiedVolume), MergeError> {
        if describe(self.served.path)?.descriptor.merging.is_some() {
            // It is ended first, and what it changes is copied anew.
            self.beside.unlock();
        }
        settle(self.served.path, &self.options, stop)?;
        let moving = self.beside.closed()?;
        let (moving, rest) = copy_rest(moving, stop, report)?;
        Ok((moving, sum(self.copied, rest)))
    }

    /// A round. If the exposure ends meanwhile, the rest is copied then.
    fn round_unless_ended(
        &mut self,
        throttle: Throttle,
        stop: &AtomicBool,
        report: &mut dyn FnMut(RelocateProgress),
    ) -> Result<Exposure, ServedError> {
        match self.round(throttle, stop, report) {
            Ok(()) => Ok(Exposure::GoesOn),
            Err(error) if stop.load(Ordering::Relaxed) => Err(error),
            Err(error) => match Client::connect_to(self.served.path, self.served.supervisor)? {
                Some(_) => Err(error),
                None => Ok(Exposure::Ended),
            },
        }
    }

    /// Puts a new top on, and copies what is below.
    fn round(
        &mut self,
        throttle: Throttle,
        stop: &AtomicBool,
        report: &mut dyn FnMut(RelocateProgress),
    ) -> Result<(), ServedError> {
        let served = self.served;
        let LeftToRelocate { layers: left_layers, bytes: left_bytes } = self.left;
        let before = RelocateProgress { done_bytes: self.copied.read_bytes, left_bytes, left_layers };
        let mut patience = Patience::new(served.path, stop, before, report, keeps_changing);
        put_new_top(served, self.options.least_generation, &mut patience)?;
        let mut pace = Beside::new(served, throttle, stop);
        loop {
            let done_bytes = self.copied.read_bytes;
            let copied = self.beside.copy(&mut |progress| {
                patience.tell(RelocateProgress { done_bytes: done_bytes + progress.done_bytes, ..progress });
                pace.keep(progress.done_bytes);
                if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            let Some(copied) = copied else {
                return Err(ServedError::Rewrite(TransferError::Stopped.into()));
            };
            self.copied = sum(self.copied, copied);
            self.left = self.beside.left()?;
            // Others wait for a merge.
            if self.left.layers <= 1 {
                return Ok(());
            }
            patience.pause()?;
        }
    }
}

fn sum(one: CopiedVolume, other: CopiedVolume) -> CopiedVolume {
    CopiedVolume {
        layers: one.layers + other.layers,
        shared_layers: one.shared_layers + other.shared_layers,
        read_bytes: one.read_bytes + other.read_bytes,
        written_bytes: one.written_bytes + other.written_bytes,
    }
}
