//! Snapshots of a volume while it is served, alone or with others at one instant.
//!
//! ```text
//!            prepare              freeze                commit                 the old top is durable
//! no change ---------> Prepared ---------> Frozen --------------> Closing ----------------> snapshot
//!                         |  too late, or abandoned  |  lease over, or abandoned        Undecided, in a group
//!                         +------> no change <-------+                                  with a record
//! ```
//!
//! The worker that serves changes over to a new, empty top over the former top. Everything that
//! takes time comes before or after: the new top is made and named durably, and opened by the
//! worker on every client's thread, before the freeze, and the worker completes the old top when
//! clients are served again. Clients wait from the freeze to the commit: for the requests under
//! way, and for four messages. Nothing is synced.
//!
//! Several volumes have a snapshot of one instant if each is frozen when the first is committed. So
//! a freeze has a lease. While it lasts, no write is done; a commit that comes later is refused,
//! and the coordinator deletes the snapshot everywhere
//! ([`SnapshotGroup`](crate::control::SnapshotGroup)). The lease ends here first, since it begins
//! here before the worker is told; the worker also ends it by itself, so that clients go on if this
//! process hangs, and refuses a commit afterwards.
//!
//! Several volumes that no control plane knows have a record of their own: the descriptor of the
//! first one. The old top's layer, when it is durable, is a *part* and no snapshot, until its
//! supervisor is told that the first volume's descriptor has the decision.
//!
//! A snapshot exists when the old top is complete and durable, and the descriptor says so. If a
//! worker or a supervisor dies before, it leaves a layer that no snapshot needs, which a later
//! merge removes.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use strongroom_datastore::file::{
    Access, DatastoreError, Decision, Deks, Descriptor, GroupPart, GroupPlace, GroupTerms, NewSnapshot,
    NewTags, OpenLayer, Protection, VolumeHead,
};
use strongroom_types::{LayerId, SnapshotId, SnapshotName};

use super::child::{ChildError, WorkerProcess};
use super::restart::Outage;
use super::{Exposure, Phase, Supervisor, microseconds, refuse};
use crate::condition::Completion;
use crate::control::{Answer, FREEZE_LEASE_MAX, SNAPSHOT_WITHIN};
use crate::layers::top_log_bytes;

/// How long the layer below a new top is left alone after the change: meanwhile the other volumes
/// of the snapshot change over, whose clients wait.
const COMPLETES_AFTER: Duration = Duration::from_millis(100);

/// How long a snapshot stays prepared without a freeze.
const PREPARED_FOR: Duration = Duration::from_secs(60);

/// How long a part waits for its decision: as long as the slowest other part may take to become
/// durable.
const UNDECIDED_FOR: Duration = SNAPSHOT_WITHIN;

/// A snapshot that does not exist yet.
#[derive(Debug)]
pub(super) enum PendingSnapshot {
    /// There is an empty top, which the worker could serve.
    Prepared { snapshot: NewSnapshot, until: Instant },
    /// The worker holds clients' requests.
    Frozen { snapshot: NewSnapshot, at: Instant, until: Instant },
    /// The worker serves the new top, and completes the layer that was the top.
    Closing { snapshot: NewSnapshot, stall: Duration },
    /// The volume has a durable part of a group's snapshot.
    Undecided { snapshot: NewSnapshot, until: Instant },
}

/// What a new top is put on the volume for.
pub(super) enum NewTop<'a> {
    /// A snapshot or a change of the layers below.
    Plain,
    /// A part of a snapshot of several volumes that no control plane knows.
    Part(&'a NewSnapshot, GroupTerms),
    /// The volume is encrypted or decrypted from now on, with these tags.
    OfSeal(NewTags),
}

impl PendingSnapshot {
    fn snapshot(&self) -> &NewSnapshot {
        match self {
            Self::Prepared { snapshot, .. }
            | Self::Frozen { snapshot, .. }
            | Self::Closing { snapshot, .. }
            | Self::Undecided { snapshot, .. } => snapshot,
        }
    }

    /// When it is given up, unless it proceeds before.
    fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Prepared { until, .. } | Self::Frozen { until, .. } | Self::Undecided { until, .. } => {
                Some(*until)
            }
            Self::Closing { .. } => None,
        }
    }

    /// Whether it has a top to which nothing may be written yet.
    fn has_new_top(&self) -> bool {
        match self {
            Self::Prepared { .. } | Self::Frozen { .. } => true,
            Self::Closing { .. } | Self::Undecided { .. } => false,
        }
    }
}

impl Supervisor {
    /// Makes a snapshot, or begins to; then the answer comes when it is durable.
    pub(super) fn snapshot(&mut self, snapshot: NewSnapshot, least_generation: u64) -> Option<Answer> {
        let prepared = self.prepare(&snapshot, least_generation, None);
        let changed = prepared.and_then(|()| self.change_to_prepared_top());
        self.await_completion(snapshot, changed)
    }

    /// Prepares a snapshot that is made together with those of other volumes.
    pub(super) fn prepare_snapshot(&mut self, snapshot: NewSnapshot, least_generation: u64) -> Answer {
        self.prepare_in_group(snapshot, least_generation, None)
    }

    /// Prepares a volume's part of a snapshot that no control plane knows.
    pub(super) fn prepare_part(
        &mut self,
        snapshot: NewSnapshot,
        least_generation: u64,
        terms: GroupTerms,
    ) -> Answer {
        self.prepare_in_group(snapshot, least_generation, Some(terms))
    }

    fn prepare_in_group(
        &mut self,
        snapshot: NewSnapshot,
        least_generation: u64,
        terms: Option<GroupTerms>,
    ) -> Answer {
        match self.prepare(&snapshot, least_generation, terms) {
            Ok(()) => {
                let until = Instant::now() + PREPARED_FOR;
                self.snapshot = Some(PendingSnapshot::Prepared { snapshot, until });
                Answer::SnapshotPrepared
            }
            Err(refusal) => refusal.into(),
        }
    }

    /// Freezes the volume for a prepared snapshot, as long as the lease lasts.
    pub(super) fn freeze_for_snapshot(&mut self, id: SnapshotId, lease: Duration) -> Answer {
        let snapshot = match self.snapshot.take() {
            Some(PendingSnapshot::Prepared { snapshot, .. }) if snapshot.id == id => snapshot,
            other => {
                self.snapshot = other;
                return Refusal::because("this snapshot is not prepared".to_owned()).into();
            }
        };
        let lease = lease.min(FREEZE_LEASE_MAX);
        // Before the worker is told: its own lease ends later.
        let until = Instant::now() + lease;
        match self.freeze(lease) {
            Ok(at) => {
                self.snapshot = Some(PendingSnapshot::Frozen { snapshot, at, until });
                Answer::Frozen
            }
            Err(refusal) => refusal.into(),
        }
    }

    /// Makes the snapshot for which the volume is frozen. The answer comes when it is durable.
    pub(super) fn commit_snapshot(&mut self, id: SnapshotId) -> Option<Answer> {
        self.end_overdue_snapshot();
        let (snapshot, frozen_at) = match self.snapshot.take() {
            Some(PendingSnapshot::Frozen { snapshot, at, .. }) if snapshot.id == id => (snapshot, at),
            other => {
                self.snapshot = other;
                let reason = "the volume is not frozen for this snapshot, or not any more".to_owned();
                return Some(Refusal { code: "not_frozen", message: reason }.into());
            }
        };
        let changed = self.change_top(frozen_at, COMPLETES_AFTER);
        self.await_completion(snapshot, changed)
    }

    /// Abandons a prepared snapshot, and serves clients again.
    pub(super) fn abandon_snapshot(&mut self, id: SnapshotId) -> Answer {
        match self.snapshot.take() {
            Some(pending) if pending.snapshot().id == id => self.give_up(pending),
            other => self.snapshot = other,
        }
        match self.abandon_part(id) {
            Ok(()) => Answer::SnapshotAbandoned,
            Err(error) => refuse(&error),
        }
    }

    /// Whether the volume has a part of this snapshot, which is not decided.
    fn has_part(&self, id: SnapshotId) -> bool {
        self.exposure.head.descriptor().part().is_some_and(|part| part.snapshot.id == id)
    }

    /// Removes the volume's part of this snapshot, if it has one. What is read stays as it is; the
    /// next merge takes its layer.
    fn abandon_part(&mut self, id: SnapshotId) -> Result<(), DatastoreError> {
        if !self.has_part(id) {
            return Ok(());
        }
        self.change_head(|head, protection| head.abandon_part(id, protection))
    }

    /// Changes the descriptor under the key that is held now.
    pub(super) fn change_head<T>(
        &mut self,
        change: impl FnOnce(&mut VolumeHead, Protection<'_>) -> Result<T, DatastoreError>,
    ) -> Result<T, DatastoreError> {
        let Exposure { head, kek, .. } = &mut self.exposure;
        let kek = kek.now().map_err(|error| DatastoreError::Key { path: head.path().to_owned(), error })?;
        change(head, kek.protection())
    }

    /// Makes the volume's part a snapshot.
    pub(super) fn decide_snapshot(&mut self, id: SnapshotId, decision: Decision) -> Answer {
        let decided = self.change_head(|head, protection| head.decide_part(id, decision, protection));
        if let Err(error) = decided {
            return refuse(&error);
        }
        self.snapshot = self.snapshot.take().filter(|pending| pending.snapshot().id != id);
        Answer::SnapshotDecided { generation: self.exposure.head.descriptor().generation }
    }

    /// Removes the record of a group that all volumes know of.
    pub(super) fn end_snapshot_group(&mut self, id: SnapshotId) -> Answer {
        match self.change_head(|head, protection| head.end_group(id, protection)) {
            Ok(()) => Answer::SnapshotDecided { generation: self.exposure.head.descriptor().generation },
            Err(error) => refuse(&error),
        }
    }

    /// Abandons a snapshot that is not committed, before the volume is closed.
    pub(super) fn leave_snapshot(&mut self) {
        if self.is_changing_layers()
            && let Some(pending) = self.snapshot.take()
        {
            self.give_up(pending);
        }
    }

    /// When [`Self::end_overdue_snapshot`] has something to do.
    pub(super) fn snapshot_deadline(&self) -> Option<Instant> {
        self.snapshot.as_ref().and_then(PendingSnapshot::deadline)
    }

    /// Gives up a prepared snapshot whose time is over, or whose worker has died.
    pub(super) fn end_overdue_snapshot(&mut self) {
        let Some(deadline) = self.snapshot_deadline() else { return };
        let is_down = self.is_changing_layers() && matches!(self.phase, Phase::Down(_));
        if !is_down && Instant::now() < deadline {
            return;
        }
        let Some(pending) = self.snapshot.take() else { return };
        tracing::warn!("snapshot {} is given up: it was not made in time", pending.snapshot().name);
        self.give_up(pending);
    }

    /// Whether a change of layers is under way for which other changes must wait.
    pub(super) fn is_changing_layers(&self) -> bool {
        self.snapshot.as_ref().is_some_and(PendingSnapshot::has_new_top)
    }

    fn check_snapshot(&self, snapshot: &NewSnapshot, least_generation: u64) -> Result<(), DatastoreError> {
        let head = &self.exposure.head;
        let (path, descriptor) = (head.path(), head.descriptor());
        descriptor.expect_generation(path, least_generation)?;
        if head.access() == Access::ReadOnly {
            let errno = rustix::io::Errno::ROFS;
            return Err(DatastoreError::ReadOnly { path: path.to_owned(), errno });
        }
        snapshot.check(path, descriptor)
    }

    /// Prepares a new top for a snapshot.
    fn prepare(
        &mut self,
        snapshot: &NewSnapshot,
        least_generation: u64,
        terms: Option<GroupTerms>,
    ) -> Result<(), Refusal> {
        if self.snapshot.is_some() || self.rewrap.is_some() {
            let reason = "another snapshot, or a move to another key, is under way".to_owned();
            return Err(Refusal::because(reason));
        }
        self.check_snapshot(snapshot, least_generation).map_err(|error| Refusal::of(&error))?;
        if self.exposure.head.descriptor().closing().is_some() {
            let reason = "the layer below the top is still being completed; try again in a minute";
            return Err(Refusal { code: "busy", message: reason.to_owned() });
        }
        self.prepare_top(terms.map_or(NewTop::Plain, |terms| NewTop::Part(snapshot, terms)))
    }

    /// Durably names a new top, and has the worker prepare it.
    pub(super) fn prepare_top(&mut self, what: NewTop<'_>) -> Result<(), Refusal> {
        let worker = self.worker()?;
        if !worker.changes_top() {
            let reason = format!(
                "its worker's program, {}, is too old to change layers while it serves; \
                 `strongroom volume upgrade` moves the volume to the installed one",
                worker.program()
            );
            return Err(Refusal::because(reason));
        }
        // A cycle that is under way ends meanwhile, or its end would be waited for.
        if let Err(error) = worker.hold_destaging(true) {
            tracing::warn!("clients may wait longer for the change: {error}");
        }
        let (top, deks) = self.new_top(what).inspect_err(|_| self.release_destaging())?;
        let kek = &self.exposure.kek;
        let Phase::Serving(worker) = &mut self.phase else { return Err(Refusal::down()) };
        match worker.prepare_top(top, deks, kek) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.not_followed("the worker does not take the new layer", error)),
        }
    }

    /// Durably names a new top, and opens it. Returns the keys of its own epochs with it.
    fn new_top(&mut self, what: NewTop<'_>) -> Result<(OpenLayer, Deks), Refusal> {
        let path = PathBuf::from(self.exposure.head.path());
        let kek = self.exposure.kek.now();
        let kek = kek.map_err(|error| Refusal::of(&DatastoreError::Key { path, error }))?;
        let head = &mut self.exposure.head;
        let log_bytes = top_log_bytes(head.descriptor());
        let prepared = match what {
            NewTop::Plain => head.prepare_layer(kek.protection(), log_bytes),
            NewTop::Part(snapshot, terms) => head.prepare_part(snapshot, terms, kek.protection(), log_bytes),
            NewTop::OfSeal(tags) => head.prepare_layer_of(kek.protection(), tags, log_bytes),
        };
        prepared.map_err(|error| Refusal::of(&error))?;
        let opened = head.open_prepared(kek.protection());
        drop(kek);
        opened.map_err(|error| {
            self.withdraw();
            Refusal::of(&error)
        })
    }

    pub(super) fn worker(&mut self) -> Result<&mut WorkerProcess, Refusal> {
        match &mut self.phase {
            Phase::Serving(worker) => Ok(worker),
            Phase::Down(_) => Err(Refusal::down()),
        }
    }

    /// A step that the worker has not followed. One that refuses serves as before, so the new top
    /// is withdrawn. Any other is replaced; its layers are opened as those of a dead worker, below
    /// the new top.
    fn not_followed(&mut self, what: &str, error: ChildError) -> Refusal {
        match error {
            ChildError::Refused(reason) => {
                self.put_back();
                Refusal::because(format!("{what}: {reason}"))
            }
            error => {
                self.phase = Phase::Down(Outage::new(Instant::now()));
                Refusal::because(format!("{what}, and is replaced: {error}"))
            }
        }
    }

    /// Makes the worker hold clients' requests, after which it no longer writes. Returns when they
    /// began to wait.
    fn freeze(&mut self, lease: Duration) -> Result<Instant, Refusal> {
        let at = Instant::now();
        match self.worker()?.freeze(lease) {
            Ok(()) => Ok(at),
            Err(error) => Err(self.not_followed("the worker does not hold the volume still", error)),
        }
    }

    /// Returns the answer of a snapshot whose change has failed. Any other one exists, and is
    /// answered, once the worker has completed the layer that was the top.
    fn await_completion(
        &mut self,
        snapshot: NewSnapshot,
        changed: Result<Duration, Refusal>,
    ) -> Option<Answer> {
        match changed {
            Ok(stall) => {
                tracing::info!("snapshot {}: clients waited for {stall:?}", snapshot.name);
                self.snapshot = Some(PendingSnapshot::Closing { snapshot, stall });
                None
            }
            Err(refusal) => Some(refusal.into()),
        }
    }

    /// Holds clients' requests, and has the worker go on with the prepared top and complete the
    /// layer below it at once. Returns how long clients waited.
    pub(super) fn change_to_prepared_top(&mut self) -> Result<Duration, Refusal> {
        let frozen_at = self.freeze(FREEZE_LEASE_MAX)?;
        self.change_top(frozen_at, Duration::ZERO)
    }

    /// Has the worker go on with the new top, and complete the layer below it after a delay.
    /// Returns how long clients waited.
    fn change_top(&mut self, frozen_at: Instant, completes_after: Duration) -> Result<Duration, Refusal> {
        let former = match self.worker()?.change_top(completes_after) {
            Ok(former) => former,
            Err(error) => {
                return Err(self.not_followed("the worker does not go on with the new layer", error));
            }
        };
        let stall = frozen_at.elapsed();
        // Clients no longer write to the former top, so its snapshot can be read beside the worker.
        // A process that must wait for a dead worker's last writes takes an exclusive lock, as
        // before.
        if let Err(errno) = former.share_locks() {
            tracing::warn!("the new snapshot cannot be read while the volume is in use: {errno}");
        }
        Ok(stall)
    }

    /// Removes the new top, and serves clients again if they are not.
    fn give_up(&mut self, pending: PendingSnapshot) {
        match pending {
            PendingSnapshot::Prepared { .. } | PendingSnapshot::Frozen { .. } => self.put_back(),
            // The layers stay, without a snapshot of the lower one.
            PendingSnapshot::Closing { .. } => {}
            PendingSnapshot::Undecided { snapshot, .. } => self.leave_undecided(snapshot.id),
        }
    }

    /// Its maker has died, or is too late. The first volume makes the group void; the others follow
    /// its descriptor when they are told or opened anew.
    fn leave_undecided(&mut self, id: SnapshotId) {
        let is_first = |part: &GroupPart| matches!(part.terms.place, GroupPlace::First(_));
        if self.exposure.head.descriptor().part().is_some_and(is_first)
            && let Err(error) = self.abandon_part(id)
        {
            tracing::error!("the undecided part of a snapshot stays on the volume: {error}");
        }
    }

    /// Has clients served as before, and removes the new top. Where no worker serves, the layers
    /// are opened as they are: the empty top stays.
    fn put_back(&mut self) {
        let Phase::Serving(worker) = &mut self.phase else { return };
        match worker.withdraw_top() {
            Ok(()) => self.withdraw(),
            Err(error) => {
                tracing::error!("the worker does not forget a new layer, and is replaced: {error}");
                self.phase = Phase::Down(Outage::new(Instant::now()));
            }
        }
    }

    /// Lets the worker bring first writes to the layer again.
    fn release_destaging(&mut self) {
        if let Phase::Serving(worker) = &mut self.phase
            && let Err(error) = worker.hold_destaging(false)
        {
            tracing::warn!("the first-write log is emptied only when it is full: {error}");
        }
    }

    /// Removes the new top, to which nothing was written. If that fails, the volume is reopened as
    /// its descriptor describes it.
    fn withdraw(&mut self) {
        self.release_destaging();
        let withdrawn = match self.exposure.kek.now() {
            Ok(kek) => self.exposure.head.withdraw_layer(kek.protection()).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = withdrawn {
            tracing::error!("an empty layer stays on the volume, and its worker is replaced: {error}");
            self.phase = Phase::Down(Outage::new(Instant::now()));
        }
    }

    /// Records that the layer below the top is complete, once the worker has reported that, and
    /// answers the request for its snapshot.
    pub(super) fn go_on_with_snapshot(&mut self) {
        let Phase::Serving(worker) = &self.phase else { return };
        // Before the commit the worker reports on an earlier change.
        if self.is_changing_layers() || self.exposure.head.descriptor().closing().is_none() {
            return;
        }
        let outcome = match worker.completion() {
            Some(Completion::Complete) => match self.settle() {
                Some(outcome) => outcome.map_err(|error| Refusal::of(&error)),
                None => return,
            },
            Some(Completion::Failed { reason }) => Err(Refusal::because(format!(
                "what was written before the snapshot cannot be made durable, so there is none: {reason}"
            ))),
            Some(Completion::UnderWay) | None => return,
        };
        // A layer that a dead supervisor left behind belongs to no snapshot.
        let Some(PendingSnapshot::Closing { snapshot, stall }) = self.snapshot.take() else { return };
        if self.has_part(snapshot.id) {
            let until = Instant::now() + UNDECIDED_FOR;
            self.snapshot = Some(PendingSnapshot::Undecided { snapshot: snapshot.clone(), until });
        }
        let answer = outcome.map_or_else(Answer::from, |()| Answer::Snapshotted {
            snapshot: snapshot.id,
            generation: self.exposure.head.descriptor().generation,
            stall_microseconds: microseconds(stall),
        });
        if let Some(control) = &mut self.control {
            control.answer_late(answer);
        }
    }

    /// Records that the layer below the top is complete; `None` as long as the key is not
    /// available.
    fn settle(&mut self) -> Option<Result<(), DatastoreError>> {
        let kek = match self.exposure.kek.now() {
            Ok(kek) => kek,
            Err(error) => {
                tracing::warn!("a snapshot waits for the volume's key: {error}");
                self.exposure.kek.ask_for(&error);
                return None;
            }
        };
        let snapshot = match &self.snapshot {
            // A part is in the descriptor already, and is no snapshot yet.
            Some(PendingSnapshot::Closing { snapshot, .. }) => {
                Some(snapshot).filter(|snapshot| !self.has_part(snapshot.id))
            }
            _ => None,
        };
        Some(self.exposure.head.settle_layer(snapshot, kek.protection()))
    }

    /// Deletes a snapshot. What is read stays as it is; layers that no snapshot needs any more are
    /// merged from then on.
    pub(super) fn delete_snapshot(&mut self, name: &SnapshotName, least_generation: u64) -> Answer {
        let head = &self.exposure.head;
        let path = PathBuf::from(head.path());
        if let Err(error) = head.descriptor().expect_generation(&path, least_generation) {
            return refuse(&error);
        }
        let Some(found) = head.descriptor().snapshot_named(name) else {
            return refuse(&DatastoreError::NoSnapshot { path, snapshot: name.to_string() });
        };
        let (snapshot, is_below_top) = (found.id, is_below_top(head.descriptor(), found.layer));
        let deleted = self.change_head(|head, protection| head.delete_snapshot(snapshot, protection));
        if let Err(error) = deleted {
            return refuse(&error);
        }
        self.merge_deleted(is_below_top);
        let descriptor = self.exposure.head.descriptor();
        Answer::SnapshotDeleted {
            generation: descriptor.generation,
            layers_to_merge: descriptor.has_layers_to_merge(),
            is_merging: self.is_merging(),
        }
    }
}

/// Whether the top lies on this layer.
fn is_below_top(descriptor: &Descriptor, layer: LayerId) -> bool {
    descriptor.layer(descriptor.top).and_then(|top| top.parent) == Some(layer)
}

/// The reason why a snapshot was refused.
pub(super) struct Refusal {
    pub code: &'static str,
    pub message: String,
}

impl Refusal {
    pub(super) fn because(message: String) -> Self {
        Self { code: "snapshot", message }
    }

    fn down() -> Self {
        Self::because("no worker serves now; one is being started".to_owned())
    }

    pub(super) fn of(error: &DatastoreError) -> Self {
        Self { code: error.code(), message: error.to_string() }
    }
}

impl From<Refusal> for Answer {
    fn from(Refusal { code, message }: Refusal) -> Self {
        Self::Refused { code: code.to_owned(), message }
    }
}
