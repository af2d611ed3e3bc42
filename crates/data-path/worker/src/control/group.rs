//! Snapshots of several exposed volumes at one instant.

use std::os::unix::fs::MetadataExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use strongroom_datastore::file::{
    Decision, GROUP_VOLUMES_MAX, GroupMark, GroupPlace, GroupTerms, Verdict, group_verdict,
};
use strongroom_types::{SnapshotId, SnapshotName};
use thiserror::Error;

use super::{Answer, Client, ControlError, Peer, Request, SNAPSHOT_WITHIN};

/// The longest that the volumes of a group are frozen, whatever happens to their coordinator.
const LEASE: Duration = Duration::from_secs(5);
/// The deadline for a new layer to be made and named, on a slow disk.
const PREPARED_WITHIN: Duration = Duration::from_secs(60);
/// The deadline for a worker to drain: beyond that its guests have waited too long already.
const FROZEN_WITHIN: Duration = Duration::from_secs(60);

/// A volume that is exposed, as the caller knows it.
#[derive(Clone, Debug)]
pub struct GroupVolume {
    /// The volume.
    pub path: PathBuf,
    /// The least generation that the caller knows to exist.
    pub least_generation: u64,
}

/// A snapshot of one volume of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupedSnapshot {
    /// The volume's descriptor's generation now.
    pub generation: u64,
    /// For how long its clients waited, in microseconds.
    pub stall_microseconds: u64,
}

/// The reasons why there is no snapshot of a group. None of its volumes has one.
#[derive(Debug, Error)]
pub enum GroupError {
    /// A volume is named twice.
    #[error("{path} is named twice")]
    Twice {
        /// The volume.
        path: PathBuf,
    },
    /// A volume is not exposed.
    #[error("{path} is not exposed; expose it, or make its snapshot alone")]
    NotExposed {
        /// The volume.
        path: PathBuf,
    },
    /// More volumes than a group can have.
    #[error("a snapshot is of at most {GROUP_VOLUMES_MAX} volumes at once, and {count} are named")]
    Many {
        /// Their number.
        count: usize,
    },
    /// A path that cannot be recorded.
    #[error("{path} cannot be recorded in a group of volumes: {reason}")]
    Path {
        /// The path.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A volume's supervisor refuses, or does not answer.
    #[error("{path}: {error}")]
    Volume {
        /// The volume.
        path: PathBuf,
        /// Why.
        error: ControlError,
    },
    /// A volume has its snapshot although the group's failed, and it cannot be deleted.
    #[error("{reason}; {path} has the snapshot all the same and does not let go of it: {error}")]
    Left {
        /// The volume.
        path: PathBuf,
        /// Why.
        error: ControlError,
        /// Why there is no snapshot of the group.
        reason: Box<Self>,
    },
}

impl GroupError {
    /// A stable name for programs.
    pub fn code(&self) -> &str {
        match self {
            Self::Twice { .. } | Self::Many { .. } | Self::Path { .. } => "usage",
            Self::NotExposed { .. } => "not_exposed",
            Self::Volume { error, .. } => error.code(),
            Self::Left { reason, .. } => reason.code(),
        }
    }
}

/// A snapshot of several volumes.
///
/// Its instant lies between the last answer to a freeze and the first commit. A volume that accepts
/// the commit has done no write since its answer: a lease that ends in between ends the freeze, and
/// the commit is refused. So if a snapshot has a write of one volume, it has all writes, of any
/// volume, that were completed before that write began.
#[derive(Debug)]
pub struct SnapshotGroup {
    /// Its id in all volumes.
    pub id: SnapshotId,
    /// Its name in all volumes.
    pub name: SnapshotName,
    /// The volumes, each once.
    pub volumes: Vec<GroupVolume>,
    /// The process of their supervisors.
    pub peer: Peer,
    /// What decides that it exists.
    pub record: GroupRecord,
}

/// The durable record of a group.
#[derive(Clone, Debug)]
pub enum GroupRecord {
    /// The caller keeps it: each volume lists the snapshot as soon as it has it durably.
    Callers,
    /// The descriptor of the first volume has it: no volume lists the snapshot before all have it
    /// durably, and then all do.
    FirstVolume(Decision),
}

/// A group whose volumes are prepared: their clients are still served, for up to a minute.
#[derive(Debug)]
#[must_use = "its volumes keep an empty top until they give up by themselves"]
pub struct PreparedGroup<'group>(&'group SnapshotGroup);

/// A group whose volumes are all frozen: none does a write as long as its lease lasts.
#[derive(Debug)]
#[must_use = "its clients wait until it is committed or abandoned, or the lease is over"]
pub struct FrozenGroup<'group>(&'group SnapshotGroup);

impl SnapshotGroup {
    /// Makes the snapshot in all volumes. Returns the results in their order.
    ///
    /// # Errors
    /// [`GroupError`]; then no volume has the snapshot, unless the error says so.
    pub fn make(&self) -> Result<Vec<GroupedSnapshot>, GroupError> {
        self.prepare()?.freeze(LEASE)?.commit()
    }

    /// Prepares the snapshot in all volumes.
    ///
    /// # Errors
    /// [`GroupError`]; then no volume is prepared.
    pub fn prepare(&self) -> Result<PreparedGroup<'_>, GroupError> {
        for (at, volume) in self.volumes.iter().enumerate() {
            if self.volumes[..at].iter().any(|other| is_same(&other.path, &volume.path)) {
                return Err(GroupError::Twice { path: volume.path.clone() });
            }
        }
        match self.record {
            GroupRecord::Callers => {
                let prepare = |volume: &GroupVolume| Request::PrepareSnapshot {
                    id: self.id,
                    name: self.name.clone(),
                    least_generation: volume.least_generation,
                };
                self.all_or_abandon(PREPARED_WITHIN, prepare, &Answer::SnapshotPrepared)?;
            }
            GroupRecord::FirstVolume(decision) => self.prepare_parts(decision)?,
        }
        Ok(PreparedGroup(self))
    }

    /// Prepares the volumes' parts, each of which says which volume decides.
    fn prepare_parts(&self, decision: Decision) -> Result<(), GroupError> {
        let count = self.volumes.len();
        if count > GROUP_VOLUMES_MAX {
            return Err(GroupError::Many { count });
        }
        let paths: Vec<PathBuf> =
            self.volumes.iter().map(|volume| recorded(&volume.path)).collect::<Result<_, _>>()?;
        let prepare = |volume: &GroupVolume| Request::PreparePart {
            id: self.id,
            name: self.name.clone(),
            least_generation: volume.least_generation,
            terms: GroupTerms {
                place: match volume.path == self.volumes[0].path {
                    true => GroupPlace::First(paths[1..].to_vec()),
                    false => GroupPlace::After(paths[0].clone()),
                },
                decision_sha256: decision.digest(),
            },
        };
        self.all_or_abandon(PREPARED_WITHIN, prepare, &Answer::SnapshotPrepared)
    }

    /// Makes the parts, which all volumes have durably, a snapshot: first in the first volume,
    /// whose descriptor is the record. A volume that cannot be asked follows it later.
    fn decide(&self, decision: Decision) -> Result<(), GroupError> {
        let decide = |_: &GroupVolume| Request::DecideSnapshot { id: self.id, decision };
        let is_decided = |answer: &Answer| matches!(answer, Answer::SnapshotDecided { .. });
        let [first, others @ ..] = self.volumes.as_slice() else { return Ok(()) };
        if let Err(error) = self.ask_for(first, decide(first), PREPARED_WITHIN, is_decided) {
            self.confirm_void(first, error)?;
        }
        if let Err(error) = self.each(others, PREPARED_WITHIN, decide, is_decided) {
            tracing::warn!("{error}; the volume has the snapshot, and lists it when it is next used");
            return Ok(());
        }
        let end = Request::EndSnapshotGroup { id: self.id };
        if let Err(error) = self.ask_for(first, end, PREPARED_WITHIN, is_decided) {
            tracing::warn!("{error}; the record of the snapshot stays until the volume is next used");
        }
        Ok(())
    }

    /// The first volume's process has not said that it decided. It may have done so, and then the
    /// snapshot exists; otherwise it is void, and the error is returned.
    fn confirm_void(&self, first: &GroupVolume, reason: GroupError) -> Result<(), GroupError> {
        let abandon = Request::AbandonSnapshot { id: self.id };
        let abandoned = self
            .ask_for(first, abandon, PREPARED_WITHIN, |answer| matches!(answer, Answer::SnapshotAbandoned));
        // A process that is gone decides nothing any more, and the next one makes it void.
        let is_over = matches!(abandoned, Ok(_) | Err(GroupError::NotExposed { .. }));
        if self.is_made(&first.path) {
            return Ok(());
        }
        if is_over {
            self.abandon();
        }
        Err(reason)
    }

    /// Whether the first volume's descriptor says that the snapshot was made, where its process
    /// gave no answer.
    fn is_made(&self, first: &Path) -> bool {
        match group_verdict(first) {
            Ok(Some((GroupMark::Made(made), _))) => made.snapshot == self.id,
            _ => false,
        }
    }

    /// Asks all volumes concurrently, and abandons the snapshot unless all answer this.
    fn all_or_abandon(
        &self,
        deadline: Duration,
        request: impl Fn(&GroupVolume) -> Request + Sync,
        hoped_for: &Answer,
    ) -> Result<(), GroupError> {
        let asked = self.all(deadline, request, |answer| answer == hoped_for);
        asked.map(drop).inspect_err(|_| self.abandon())
    }

    /// Asks all volumes concurrently. All have answered when it returns. Returns the first failure
    /// in their order.
    fn all(
        &self,
        deadline: Duration,
        request: impl Fn(&GroupVolume) -> Request + Sync,
        is_hoped_for: impl Fn(&Answer) -> bool + Sync,
    ) -> Result<Vec<Answer>, GroupError> {
        self.each(&self.volumes, deadline, request, is_hoped_for)
    }

    /// As [`Self::all`], some of the volumes.
    fn each(
        &self,
        volumes: &[GroupVolume],
        deadline: Duration,
        request: impl Fn(&GroupVolume) -> Request + Sync,
        is_hoped_for: impl Fn(&Answer) -> bool + Sync,
    ) -> Result<Vec<Answer>, GroupError> {
        let ask = |volume: &GroupVolume| self.ask_for(volume, request(volume), deadline, &is_hoped_for);
        let ask = &ask;
        let answers: Vec<Result<Answer, GroupError>> = thread::scope(|scope| {
            let asked: Vec<_> = volumes.iter().map(|volume| scope.spawn(move || ask(volume))).collect();
            asked
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
                .collect()
        });
        answers.into_iter().collect()
    }

    /// Abandons the snapshot in all volumes. A volume that cannot be asked does so when its lease
    /// is over.
    fn abandon(&self) {
        let abandon = |_: &GroupVolume| Request::AbandonSnapshot { id: self.id };
        if let Err(error) =
            self.all(PREPARED_WITHIN, abandon, |answer| matches!(answer, Answer::SnapshotAbandoned))
        {
            tracing::warn!("a volume goes on when its lease is over: {error}");
        }
    }

    /// Deletes the snapshot in the volumes that have it although the group's failed.
    fn delete(&self, reason: GroupError) -> GroupError {
        for volume in &self.volumes {
            let request = Request::DeleteSnapshot { name: self.name.clone(), least_generation: 0 };
            let error = match self.ask(&volume.path, request, PREPARED_WITHIN) {
                Ok(Answer::SnapshotDeleted { .. }) => continue,
                Ok(Answer::Refused { code, .. }) if code == "no_snapshot" => continue,
                Ok(other) => ControlError::of_answer(&volume.path, other),
                Err(GroupError::Volume { error, .. }) => error,
                // No process serves it any more, so a snapshot that was not durable does not exist.
                Err(_) => continue,
            };
            let (path, reason) = (volume.path.clone(), Box::new(reason));
            return GroupError::Left { path, error, reason };
        }
        reason
    }

    /// Asks one volume, and refuses another answer than that which is hoped for.
    fn ask_for(
        &self,
        volume: &GroupVolume,
        request: Request,
        deadline: Duration,
        is_hoped_for: impl Fn(&Answer) -> bool,
    ) -> Result<Answer, GroupError> {
        let answer = self.ask(&volume.path, request, deadline)?;
        if is_hoped_for(&answer) {
            return Ok(answer);
        }
        let error = ControlError::of_answer(&volume.path, answer);
        Err(GroupError::Volume { path: volume.path.clone(), error })
    }

    fn ask(&self, path: &Path, request: Request, deadline: Duration) -> Result<Answer, GroupError> {
        let failed = |error| GroupError::Volume { path: path.to_owned(), error };
        let client = Client::connect_to(path, self.peer).map_err(failed)?;
        let client = client.ok_or_else(|| GroupError::NotExposed { path: path.to_owned() })?;
        client.ask(request, deadline).map_err(failed)
    }
}

impl<'group> PreparedGroup<'group> {
    /// Freezes all volumes. Each goes on without the snapshot when its lease is over.
    ///
    /// # Errors
    /// [`GroupError`]; then no volume is frozen or prepared.
    pub fn freeze(self, lease: Duration) -> Result<FrozenGroup<'group>, GroupError> {
        let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        let freeze = |_: &GroupVolume| Request::FreezeForSnapshot { id: self.0.id, lease_ms };
        self.0.all_or_abandon(FROZEN_WITHIN, freeze, &Answer::Frozen)?;
        Ok(FrozenGroup(self.0))
    }

    /// Abandons the snapshot in all volumes.
    pub fn abandon(self) {
        self.0.abandon();
    }
}

impl FrozenGroup<'_> {
    /// Makes the snapshot in all volumes. Returns the results in their order, when all of them are
    /// durable.
    ///
    /// # Errors
    /// [`GroupError`], for example if the lease of a volume is over; then no volume has the
    /// snapshot, unless the error says so.
    pub fn commit(self) -> Result<Vec<GroupedSnapshot>, GroupError> {
        let group = self.0;
        let commit = |_: &GroupVolume| Request::CommitSnapshot { id: group.id };
        let committed =
            group.all(SNAPSHOT_WITHIN, commit, |answer| matches!(answer, Answer::Snapshotted { .. }));
        match committed {
            Ok(answers) => {
                if let GroupRecord::FirstVolume(decision) = group.record {
                    group.decide(decision)?;
                }
                Ok(answers.into_iter().filter_map(snapshotted).collect())
            }
            Err(error) => {
                group.abandon();
                Err(group.delete(error))
            }
        }
    }

    /// Abandons the snapshot, and has all clients served again.
    pub fn abandon(self) {
        self.0.abandon();
    }
}

/// Tells the process that exposes the volume at `path` what has become of its part of a snapshot of
/// several volumes, whose maker may have died. Nothing happens to a volume without one, and to a
/// first volume: its process decides itself.
///
/// # Errors
/// [`GroupError`].
pub fn resolve_exposed(path: &Path) -> Result<(), GroupError> {
    let failed = |error: ControlError| GroupError::Volume { path: path.to_owned(), error };
    let Ok(Some((mark, verdict))) = group_verdict(path) else { return Ok(()) };
    let id = mark.snapshot();
    let request = match verdict {
        Verdict::Made(decision) => Request::DecideSnapshot { id, decision },
        Verdict::Void => Request::AbandonSnapshot { id },
        Verdict::Read => Request::EndSnapshotGroup { id },
        Verdict::Stays(_) => return Ok(()),
    };
    let Some(client) = Client::connect(path).map_err(failed)? else { return Ok(()) };
    match client.ask(request, PREPARED_WITHIN).map_err(failed)? {
        Answer::SnapshotDecided { .. } | Answer::SnapshotAbandoned => Ok(()),
        other => Err(failed(ControlError::of_answer(path, other))),
    }
}

/// A volume's path as its group's descriptors have it.
fn recorded(path: &Path) -> Result<PathBuf, GroupError> {
    let wrong = |reason: String| GroupError::Path { path: path.to_owned(), reason };
    let path = path.canonicalize().map_err(|error| wrong(error.to_string()))?;
    match path.to_str() {
        Some(_) => Ok(path),
        None => Err(wrong("it is not UTF-8".to_owned())),
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    one == other || identity(one).is_some_and(|found| identity(other) == Some(found))
}

fn snapshotted(answer: Answer) -> Option<GroupedSnapshot> {
    match answer {
        Answer::Snapshotted { generation, stall_microseconds, .. } => {
            Some(GroupedSnapshot { generation, stall_microseconds })
        }
        _ => None,
    }
}
