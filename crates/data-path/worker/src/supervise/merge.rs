//! Merges layers of a volume while it is served.
//!
//! A snapshot was deleted, or a person asks for it: the descriptor marks two layers. Then:
//!
//! ```text
//! the top is the upper layer -> a new top takes the writes, in the same worker -> what was the top is complete
//! a successor serves, with the lower layer opened to be written -> it copies (`worker/src/merging.rs`)
//!     -> everything is durable in the lower layer -> a successor serves without the upper layer
//!     -> the descriptor has one layer, and marks the next two
//! ```
//!
//! Clients wait for each of these changes, the first as for a snapshot, the others as for an
//! upgrade. A worker that hands over in between tells its successor how far it has come. After a
//! worker has died, the copy begins anew. Whatever dies when, the upper layer answers for its
//! blocks until the descriptor has one layer or a worker serves without it, and before either
//! everything is durable in the lower one. The mark stays until then, so the next process that
//! exposes the volume goes on.

use std::time::{Duration, Instant};

use strongroom_datastore::file::{Access, DatastoreError, Merging, OpenLayer};

use super::child::ChildError;
use super::hand_over::{NotResumed, NotSuspended};
use super::snapshot::{NewTop, Refusal};
use super::{Exposure, Phase, Supervisor, refuse};
use crate::condition::{Completion, MergeState};
use crate::control::{Answer, MergeAct, MergeProgress, MergeStatus};
use crate::merging::MergeOrder;
use crate::pace::Throttle;

/// The pause after a step that failed for a reason that may pass, such as want of room for a
/// descriptor, or a key that cannot be had.
const RETRY: Duration = Duration::from_secs(30);

/// A merge that so many workers have died of is left alone.
const DEATHS_MAX: u32 = 3;

/// The merge of layers in the background. That it is wanted is in the descriptor.
#[derive(Debug)]
pub(super) struct LayerMerge {
    stage: Stage,
    /// When the next step is tried; `None` while the worker is waited for.
    due: Option<Instant>,
    /// Why the last step failed.
    reason: Option<String>,
    is_paused: bool,
    throttle: Throttle,
    /// How much is copied, as the last worker has handed it over.
    copied_bytes: u64,
    /// How many workers have died while they copied.
    deaths: u32,
    /// Whether the top is to be merged when no other layers are left.
    includes_top: bool,
}

/// How far a merge is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The lower layer must be opened to be written, whatever the worker has.
    Opening,
    /// The worker has to be told, if it can merge; otherwise the lower layer must be opened.
    Ordering,
    /// The worker copies.
    Copying,
    /// The worker serves without the upper layer, which the descriptor still has.
    Switched,
    /// It does not go on by itself.
    Failed,
}

/// Whether something was done, so that the next step may be due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    Yes,
    No,
}

impl LayerMerge {
    /// One that goes on with whatever the descriptor marks.
    pub(super) fn new() -> Self {
        Self {
            stage: Stage::Ordering,
            due: Some(Instant::now()),
            reason: None,
            is_paused: false,
            throttle: Throttle::default(),
            copied_bytes: 0,
            deaths: 0,
            includes_top: false,
        }
    }

    /// A worker has handed over, having copied so much.
    pub(super) fn handed_over(&mut self, copied_bytes: u64) {
        if self.stage == Stage::Copying {
            (self.stage, self.copied_bytes, self.due) = (Stage::Ordering, copied_bytes, Some(Instant::now()));
        }
    }

    /// A worker serves what the descriptor says, after another one has died.
    pub(super) fn begins_anew(&mut self) {
        self.copied_bytes = 0;
        if self.stage == Stage::Copying {
            self.deaths += 1;
        }
        if self.stage == Stage::Failed {
            return;
        }
        if self.deaths < DEATHS_MAX {
            (self.stage, self.due) = (Stage::Ordering, Some(Instant::now()));
        } else {
            self.fail(format!("{} workers have died while they merged", self.deaths));
        }
    }

    fn fail(&mut self, reason: String) {
        tracing::error!("layers of the volume are not merged any further: {reason}");
        (self.stage, self.reason, self.due) = (Stage::Failed, Some(reason), None);
    }

    fn order(&self) -> MergeOrder {
        MergeOrder { copied_bytes: self.copied_bytes, throttle: self.throttle, is_paused: self.is_paused }
    }
}

/// Why a step was not done.
pub(super) enum Failure {
    /// It is tried again.
    Later(String),
    /// Only a person can see to it.
    Final(String),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Later(refusal.message)
    }
}

impl From<DatastoreError> for Failure {
    fn from(error: DatastoreError) -> Self {
        match error {
            DatastoreError::Shared { .. } => Self::Final(error.to_string()),
            error => Self::Later(error.to_string()),
        }
    }
}

/// The worker's layers are not those of the descriptor.
pub(super) fn other_layers() -> Failure {
    Failure::Final("the worker serves other layers; expose the volume anew".to_owned())
}

impl Supervisor {
    /// Begins to merge, or goes on, or pauses.
    pub(super) fn merge(&mut self, act: MergeAct, least_generation: u64) -> Answer {
        let head = &mut self.exposure.head;
        if let Err(error) = head.descriptor().expect_generation(head.path(), least_generation) {
            return refuse(&error);
        }
        match act {
            MergeAct::Pause => {}
            MergeAct::Start { .. } => {
                let marked = match self.exposure.kek.now() {
                    Ok(kek) => head.mark_merge(kek.protection()),
                    Err(error) => Err(DatastoreError::Key { path: head.path().to_owned(), error }),
                };
                match marked {
                    Ok(Some(marked)) => self.merge.includes_top |= marked.from != head.descriptor().top,
                    Ok(None) => return Answer::NothingToMerge,
                    Err(error) => return refuse(&error),
                }
            }
        }
        let merge = &mut self.merge;
        match act {
            MergeAct::Pause => merge.is_paused = true,
            MergeAct::Start { throttle } => {
                (merge.is_paused, merge.throttle) = (false, throttle);
                (merge.deaths, merge.reason) = (0, None);
                if merge.stage == Stage::Failed {
                    // What the worker has in memory of the lower layer may be unusable.
                    (merge.stage, merge.copied_bytes) = (Stage::Opening, 0);
                }
                if merge.stage != Stage::Copying {
                    merge.due = Some(Instant::now());
                }
            }
        }
        if merge.stage == Stage::Copying
            && let Phase::Serving(worker) = &mut self.phase
            && let Err(error) = worker.merge(merge.order())
        {
            tracing::warn!("the worker does not hear how it is to merge: {error}");
        }
        match self.merge_status() {
            Some(status) => Answer::Merging(status),
            None => Answer::NothingToMerge,
        }
    }

    /// A snapshot was deleted, whose layer the top lies on or not.
    pub(super) fn merge_deleted(&mut self, is_below_top: bool) {
        self.merge.includes_top |= is_below_top;
        if self.merge.stage != Stage::Copying {
            self.merge.due.get_or_insert_with(Instant::now);
        }
    }

    /// When [`Self::go_on_with_merge`] has something to do that no event tells of.
    pub(super) fn merge_deadline(&self) -> Option<Instant> {
        let head = &self.exposure.head;
        // Each of these ends with an event.
        let waits = self.merge.is_paused
            || self.is_held_up()
            || !matches!(self.phase, Phase::Serving(_))
            || head.descriptor().closing().is_some();
        let is_wanted = head.access() == Access::ReadWrite && head.descriptor().merge_in_use().is_some();
        self.merge.due.filter(|_| is_wanted && !waits)
    }

    /// Whether layers are merged now, or soon without anybody's doing.
    pub(super) fn is_merging(&self) -> bool {
        self.merge_status().is_some_and(|merge| match merge.state {
            MergeProgress::Running | MergeProgress::Waiting => true,
            MergeProgress::Paused | MergeProgress::Failed => false,
        })
    }

    /// How far the merge has come, if one is wanted.
    pub(super) fn merge_status(&self) -> Option<MergeStatus> {
        let descriptor = self.exposure.head.descriptor();
        let merging = descriptor.merge_in_use()?;
        let merge = &self.merge;
        let state = match merge.stage {
            Stage::Failed => MergeProgress::Failed,
            _ if merge.is_paused => MergeProgress::Paused,
            _ if merge.reason.is_some() => MergeProgress::Waiting,
            Stage::Opening | Stage::Ordering | Stage::Copying | Stage::Switched => MergeProgress::Running,
        };
        let of_worker = match (&self.phase, merge.stage) {
            (Phase::Serving(worker), Stage::Copying) => worker.condition().merge.as_ref(),
            _ => None,
        };
        let upper = descriptor.layer(merging.from)?;
        let total_bytes = descriptor.layer_size(upper).block_aligned_bytes();
        let copied_bytes = match (of_worker, merge.stage) {
            (Some(report), _) => report.copied_bytes,
            (None, Stage::Switched) => total_bytes,
            (None, _) => merge.copied_bytes,
        };
        let speed = of_worker.map_or(0, |report| report.bytes_per_second);
        let left = total_bytes.saturating_sub(copied_bytes).checked_div(speed);
        let seconds_left = left.filter(|_| state == MergeProgress::Running);
        Some(MergeStatus { state, copied_bytes, total_bytes, seconds_left, reason: merge.reason.clone() })
    }

    /// Does what the merge needs next, as far as the worker has come.
    pub(super) fn go_on_with_merge(&mut self) {
        while let Some(merging) = self.exposure.head.descriptor().merge_in_use() {
            if self.exposure.head.access() == Access::ReadOnly || self.is_held_up() {
                return;
            }
            match self.next_step(merging) {
                Ok(Moved::Yes) => self.merge.reason = None,
                Ok(Moved::No) => return,
                Err(Failure::Later(reason)) => {
                    tracing::warn!("the merge of layers waits: {reason}");
                    self.merge.reason = Some(reason);
                    self.merge.due = Some(Instant::now() + RETRY);
                    return;
                }
                Err(Failure::Final(reason)) => return self.merge.fail(reason),
            }
        }
    }

    /// Whether another change of the volume is under way.
    fn is_held_up(&self) -> bool {
        self.is_changing_layers() || self.rewrap.is_some()
    }

    fn next_step(&mut self, merging: Merging) -> Result<Moved, Failure> {
        let Phase::Serving(worker) = &mut self.phase else { return Ok(Moved::No) };
        let descriptor = self.exposure.head.descriptor();
        match self.merge.stage {
            Stage::Failed => return Ok(Moved::No),
            Stage::Copying if self.merge.due.is_some_and(|due| Instant::now() < due) => return Ok(Moved::No),
            Stage::Copying => {
                self.merge.due = None;
                return match worker.condition().merge.as_ref().map(|merge| &merge.state) {
                    None | Some(MergeState::UnderWay) => Ok(Moved::No),
                    Some(MergeState::Failed { reason }) => Err(Failure::Final(reason.clone())),
                    Some(MergeState::Complete) => self.switch(merging),
                };
            }
            Stage::Opening | Stage::Ordering | Stage::Switched => {}
        }
        if self.merge.is_paused || self.merge.due.is_none_or(|due| Instant::now() < due) {
            return Ok(Moved::No);
        }
        if self.merge.stage == Stage::Switched {
            return self.finish_merge();
        }
        if descriptor.closing().is_some() {
            return match &worker.condition().completion {
                Some(Completion::Failed { reason }) => Err(Failure::Final(reason.clone())),
                // The worker tells when that has changed.
                _ => Ok(Moved::No),
            };
        }
        if merging.from == descriptor.top {
            return self.put_top_on();
        }
        if self.merge.stage == Stage::Opening || !worker.can_merge() {
            return self.open_lower();
        }
        let told = worker.merge(self.merge.order());
        told.map_err(|error| Failure::Later(format!("the worker does not merge: {error}")))?;
        (self.merge.stage, self.merge.due) = (Stage::Copying, None);
        Ok(Moved::Yes)
    }

    /// Puts a new top on the volume, so that the upper layer takes no more writes.
    pub(super) fn put_top_on(&mut self) -> Result<Moved, Failure> {
        self.prepare_top(NewTop::Plain)?;
        let stall = self.change_to_prepared_top()?;
        tracing::info!("a new top is on the volume; clients waited for {stall:?}");
        Ok(Moved::Yes)
    }

    /// Has a successor serve that can write to the lower layer.
    fn open_lower(&mut self) -> Result<Moved, Failure> {
        let kek = self.exposure.kek.now().map_err(|error| Failure::Later(error.to_string()))?;
        // Before clients wait.
        let place = self.exposure.head.extend_merged_into(kek.protection())?;
        drop(kek);
        let stall = self.hand_over_changed(|exposure, lower| {
            let lower = lower.get_mut(place).ok_or_else(other_layers)?;
            // The descriptor has the mark, so no reader begins from now on; one may have begun.
            lower
                .claim()
                .map_err(|errno| Failure::Later(format!("the lower layer is being read: {errno}")))?;
            let kek = exposure.kek.now().map_err(|error| Failure::Later(error.to_string()))?;
            (_, *lower) = exposure.head.open_merged_into(kek.protection())?;
            Ok(())
        })?;
        tracing::info!("layers are merged from now on; clients waited for {stall:?}");
        self.merge.stage = Stage::Ordering;
        Ok(Moved::Yes)
    }

    /// Has a successor serve without the upper layer.
    fn switch(&mut self, merging: Merging) -> Result<Moved, Failure> {
        let chain = self.exposure.head.descriptor().chain();
        let place = chain.skip(1).position(|layer| layer.id == merging.from);
        let stall = self.hand_over_changed(|_, lower| {
            let place = place.filter(|place| place + 1 < lower.len()).ok_or_else(other_layers)?;
            lower.remove(place);
            let facts = &mut lower[place].facts;
            (facts.read_only, facts.is_merged_into) = (true, false);
            Ok(())
        })?;
        tracing::info!("two layers are one; clients waited for {stall:?}");
        (self.merge.stage, self.merge.due) = (Stage::Switched, Some(Instant::now()));
        Ok(Moved::Yes)
    }

    /// Replaces the two layers by one, and goes on with the next two.
    fn finish_merge(&mut self) -> Result<Moved, Failure> {
        let kek = self.exposure.kek.now().map_err(|error| Failure::Later(error.to_string()))?;
        let head = &mut self.exposure.head;
        head.finish_merge(kek.protection())?;
        self.merge = LayerMerge {
            is_paused: self.merge.is_paused,
            throttle: self.merge.throttle,
            includes_top: self.merge.includes_top,
            ..LayerMerge::new()
        };
        let is_last = head.descriptor().merging.is_none();
        if is_last && std::mem::take(&mut self.merge.includes_top) {
            head.mark_merge(kek.protection())?;
        }
        Ok(Moved::Yes)
    }

    /// Has a successor serve the same sessions over changed layers.
    pub(super) fn hand_over_changed(
        &mut self,
        change: impl FnOnce(&mut Exposure, &mut Vec<OpenLayer>) -> Result<(), Failure>,
    ) -> Result<Duration, Failure> {
        let later = |error: ChildError| Failure::Later(format!("the new worker does not start: {error}"));
        let successor = self.successor_of(&self.exposure.workers).map_err(later)?;
        let mut suspended = self.suspend().map_err(|error| match error {
            NotSuspended::Down => Failure::Later("no worker serves now".to_owned()),
            NotSuspended::Kept(reason) => Failure::Final(reason),
            NotSuspended::Lost(error) => {
                Failure::Later(format!("the worker did not hand over and is replaced: {error}"))
            }
        })?;
        if let Err(failure) = change(&mut self.exposure, suspended.lower_mut()) {
            self.take_back(suspended);
            return Err(failure);
        }
        match self.resume(suspended, successor) {
            Ok(stall) => Ok(stall),
            Err(NotResumed::Refused { suspended, reason }) => {
                self.take_back(*suspended);
                Err(Failure::Later(format!("the new worker refused the sessions: {reason}")))
            }
            Err(NotResumed::Lost(error)) => Err(Failure::Later(error)),
        }
    }
}
