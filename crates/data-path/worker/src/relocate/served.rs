//! Copies a volume beside the process that exposes it, which keeps its descriptor.
//!
//! ```text
//! a new top takes the writes -> the layers below are complete -> they are copied -> the same again
//!     -> little is left, or it does not get less -> the exposure ends -> the rest is copied
//! ```
//!
//! What is copied does not change any more, so the last step alone keeps clients waiting. Each
//! round leaves a layer, which a later merge removes. Clients that write as fast as it is copied
//! can be slowed down for further rounds ([`ServedCopy::catch_up`]).

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use strongroom_datastore::file::{
    CopiedVolume, LeftToRelocate, RelocateOptions, RelocateProgress, Relocation, RelocationBeside,
    begin_relocation_beside, describe,
};

use super::rounds::{Rounds, has_grown, has_layers_free, is_little, keeps_changing, put_new_top};
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
    /// How fast the last round has passed.
    bytes_per_second: u64,
}

/// The rounds for which clients are slowed down. Then they write hardly anything, or the copy
/// passes hardly at all.
const SLOWED_ROUNDS_MAX: u32 = 8;

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
    let copied = CopiedVolume::default();
    let mut copy = ServedCopy { served, options: *options, beside, copied, left, bytes_per_second: 0 };
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

    /// Goes on with rounds as long as clients write as fast as they pass. Before each, `slow` is to
    /// slow the clients down: it gets the number of the round, from one, and how fast the last one
    /// has passed, in bytes per second.
    ///
    /// # Errors
    /// As [`copy_served`].
    pub fn catch_up(
        &mut self,
        throttle: Throttle,
        stop: &AtomicBool,
        report: &mut dyn FnMut(RelocateProgress),
        slow: &mut dyn FnMut(u32, u64),
    ) -> Result<(), ServedError> {
        for round in 1..=SLOWED_ROUNDS_MAX {
            if is_little(self.left.bytes) || !has_layers_free(self.served.path)? {
                break;
            }
            slow(round, self.bytes_per_second);
            if self.round_unless_ended(throttle, stop, report)? == Exposure::Ended {
                break;
            }
        }
        Ok(())
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
        let (began, before_bytes) = (Instant::now(), self.copied.read_bytes);
        let before = RelocateProgress { done_bytes: before_bytes, left_bytes, left_layers };
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
                let bytes = self.copied.read_bytes - before_bytes;
                self.bytes_per_second = bytes_per_second(bytes, began.elapsed());
                return Ok(());
            }
            patience.pause()?;
        }
    }
}

/// How fast so much has passed.
pub fn bytes_per_second(bytes: u64, within: Duration) -> u64 {
    (bytes as f64 / within.as_secs_f64().max(0.001)) as u64
}

fn sum(one: CopiedVolume, other: CopiedVolume) -> CopiedVolume {
    CopiedVolume {
        layers: one.layers + other.layers,
        shared_layers: one.shared_layers + other.shared_layers,
        read_bytes: one.read_bytes + other.read_bytes,
        written_bytes: one.written_bytes + other.written_bytes,
    }
}
