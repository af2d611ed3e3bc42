//! A volume's part of a snapshot of several volumes that no control plane knows.
//!
//! ```text
//!            prepare             every volume has it durably
//! no mark -----------> Part ------------------------------------> a snapshot; in the first volume `Made` too
//!                        |  void: given up before that
//!                        +------> no mark
//! ```
//!
//! The one durable record of the group is the descriptor of its *first* volume. As long as that has
//! a part, nothing is decided; from the replacement on that makes a snapshot of it, the snapshot
//! exists in all volumes; without either it is void. The other volumes follow, each when it is told
//! or next opened. A part is no snapshot: nothing lists it, reads it or goes back to it.
//!
//! One volume cannot authenticate the descriptor of another, which may be under another key. So the
//! maker of the group draws a random [`Decision`]. Each part has its digest, authenticated by its
//! own volume's key, and the first volume's descriptor has the decision itself once it is made: who
//! edits that descriptor cannot pretend that an undecided group was made.

use std::fmt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use strongroom_crypto::{mac, random};
use strongroom_keys::KeyError;
use strongroom_types::{LayerId, SnapshotId, SnapshotName, hex};

use super::add_layer::remove_layers;
use super::descriptor::{Descriptor, SnapshotRecord};
use super::directory::VolumeDirectory;
use super::error::DatastoreError;
use super::head::VolumeHead;
use super::open::Protection;
use super::snapshots::NewSnapshot;
use super::storage::{BY_PATH, Storage};

/// The most volumes of a group. Its first volume's descriptor has the paths of all others.
pub const GROUP_VOLUMES_MAX: usize = 16;

/// Random bytes that exist outside their maker's memory only from the decision on that the snapshot
/// exists.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Decision(#[serde(with = "hex::array")] [u8; 32]);

/// The SHA-256 of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DecisionDigest(#[serde(with = "hex::array")] [u8; 32]);

impl Decision {
    /// Draws one.
    ///
    /// # Errors
    /// If there is no randomness.
    pub fn draw() -> Result<Self, KeyError> {
        let drawn = random::secret(32)?;
        let mut bytes = [0; 32];
        bytes.copy_from_slice(drawn.expose());
        Ok(Self(bytes))
    }

    /// What the parts have of it.
    pub fn digest(&self) -> DecisionDigest {
        DecisionDigest(mac::sha256(&self.0))
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Decision(..)")
    }
}

/// What a volume has of a group, beside its snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupMark {
    /// A part that may become a snapshot.
    Part(GroupPart),
    /// In the first volume: the snapshot was made, and another volume may still have a part.
    Made(MadeGroup),
}

/// A volume's part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupPart {
    /// The snapshot that it becomes. Its layer may be the one that is being completed.
    pub snapshot: SnapshotRecord,
    /// The group.
    pub terms: GroupTerms,
}

/// What a volume must know of the group before its snapshot is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupTerms {
    /// The volume's place in the group.
    pub place: GroupPlace,
    /// The digest of the decision that makes the snapshot.
    pub decision_sha256: DecisionDigest,
}

/// A volume's place in its group. The paths are absolute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupPlace {
    /// Its descriptor decides for these others.
    First(Vec<PathBuf>),
    /// This volume's descriptor decides.
    After(PathBuf),
}

/// The record that a snapshot was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MadeGroup {
    /// The snapshot. The first volume's own may be deleted already.
    pub snapshot: SnapshotId,
    /// Its name.
    pub name: SnapshotName,
    /// What proves it to the others.
    pub decision: Decision,
    /// The others.
    pub others: Vec<PathBuf>,
}

/// What is to become of a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The part is a snapshot.
    Made(Decision),
    /// There is no snapshot.
    Void,
    /// All other volumes have read the record.
    Read,
    /// Nothing is to be done now, for this reason.
    Stays(String),
}

impl GroupMark {
    /// The snapshot that it is about.
    pub fn snapshot(&self) -> SnapshotId {
        match self {
            Self::Part(part) => part.snapshot.id,
            Self::Made(made) => made.snapshot,
        }
    }

    /// The snapshot's name.
    fn name(&self) -> &SnapshotName {
        match self {
            Self::Part(part) => &part.snapshot.name,
            Self::Made(made) => &made.name,
        }
    }

    /// Refuses a mark that no program writes.
    pub(super) fn validate(&self, descriptor: &Descriptor) -> Result<(), String> {
        let others = match self {
            Self::Part(GroupPart { snapshot, terms }) => {
                match descriptor.layer(snapshot.layer) {
                    Some(_) if snapshot.layer != descriptor.top => {}
                    _ => {
                        return Err(format!(
                            "layer {} of a group's part takes writes, or is none",
                            snapshot.layer
                        ));
                    }
                }
                if descriptor.snapshot(snapshot.id).is_some()
                    || descriptor.snapshot_named(&snapshot.name).is_some()
                {
                    return Err(format!("snapshot {} is a group's part at the same time", snapshot.name));
                }
                match &terms.place {
                    GroupPlace::First(others) => others.as_slice(),
                    GroupPlace::After(first) => std::slice::from_ref(first),
                }
            }
            Self::Made(made) => made.others.as_slice(),
        };
        if others.is_empty()
            || others.len() >= GROUP_VOLUMES_MAX
            || !others.iter().all(|path| path.is_absolute())
        {
            return Err("it names the other volumes of a group wrongly".to_owned());
        }
        Ok(())
    }
}

impl Descriptor {
    /// Its part of a snapshot of several volumes that is not decided, as far as it knows.
    pub fn part(&self) -> Option<&GroupPart> {
        match &self.group {
            Some(GroupMark::Part(part)) => Some(part),
            Some(GroupMark::Made(_)) | None => None,
        }
    }

    /// The layers that snapshots have, also those of a group that may be made.
    pub(super) fn kept_layers_mut(&mut self) -> impl Iterator<Item = &mut LayerId> {
        let part = match &mut self.group {
            Some(GroupMark::Part(part)) => Some(&mut part.snapshot),
            Some(GroupMark::Made(_)) | None => None,
        };
        self.snapshots.iter_mut().chain(part).map(|snapshot| &mut snapshot.layer)
    }
}

/// Decides about the mark of a volume that nobody uses, or uses for other things than this group:
/// see [`verdict_in_use`] for one whose process may still be making it.
fn verdict(storage: &dyn Storage, mark: &GroupMark) -> Verdict {
    match mark {
        // The process that could decide is the owner of this descriptor.
        GroupMark::Part(GroupPart { terms: GroupTerms { place: GroupPlace::First(_), .. }, .. }) => {
            Verdict::Void
        }
        _ => verdict_in_use(storage, mark),
    }
}

/// As [`verdict`], where the first volume's process may still decide.
fn verdict_in_use(storage: &dyn Storage, mark: &GroupMark) -> Verdict {
    match mark {
        GroupMark::Part(GroupPart { snapshot, terms }) => match &terms.place {
            GroupPlace::First(_) => Verdict::Stays("it is not decided yet".to_owned()),
            GroupPlace::After(first) => verdict_of_first(storage, first, snapshot.id, terms.decision_sha256),
        },
        GroupMark::Made(made) => {
            let unread = |path: &&PathBuf| match read(storage, path) {
                Ok(Some(GroupMark::Part(part))) => part.snapshot.id == made.snapshot,
                Ok(_) => false,
                // A volume that is deleted has no part any more; any other error is not known to
                // be that.
                Err(error) => !is_gone(&error),
            };
            match made.others.iter().find(unread) {
                Some(path) => Verdict::Stays(format!("{} has not read it yet", path.display())),
                None => Verdict::Read,
            }
        }
    }
}

/// What the first volume of a group says.
fn verdict_of_first(
    storage: &dyn Storage,
    first: &Path,
    snapshot: SnapshotId,
    digest: DecisionDigest,
) -> Verdict {
    match read(storage, first) {
        Ok(Some(GroupMark::Made(made))) if made.snapshot == snapshot => {
            match made.decision.digest() == digest {
                true => Verdict::Made(made.decision),
                false => Verdict::Stays(format!("what {} says of it is forged", first.display())),
            }
        }
        Ok(Some(GroupMark::Part(part))) if part.snapshot.id == snapshot => {
            Verdict::Stays(format!("{} has not decided it", first.display()))
        }
        // A first volume keeps the record until all others have read it.
        Ok(_) => Verdict::Void,
        Err(error) => Verdict::Stays(format!("{} decides it, and cannot be read: {error}", first.display())),
    }
}

/// The mark of another volume, which nothing authenticates here. Its process may have been killed
/// before what is read was durable; it is now, because this volume's mark is changed by it.
fn read(storage: &dyn Storage, path: &Path) -> Result<Option<GroupMark>, DatastoreError> {
    let directory = VolumeDirectory::open(storage, path)?;
    let mark = directory.read_descriptor()?.unverified().group.clone();
    directory.sync()?;
    Ok(mark)
}

fn is_gone(error: &DatastoreError) -> bool {
    matches!(error, DatastoreError::NotAVolume { .. } | DatastoreError::System { errno: Errno::NOENT, .. })
}

/// What is to become of the mark of the volume at `path`, which is exposed; `None` if it has none.
/// Nothing is authenticated here: the process that exposes it checks the decision.
///
/// # Errors
/// Those of reading its descriptor.
pub fn group_verdict(path: &Path) -> Result<Option<(GroupMark, Verdict)>, DatastoreError> {
    group_verdict_on(BY_PATH, path)
}

/// As [`group_verdict`], on another file system.
pub fn group_verdict_on(
    storage: &dyn Storage,
    path: &Path,
) -> Result<Option<(GroupMark, Verdict)>, DatastoreError> {
    let mark = read(storage, path)?;
    Ok(mark.map(|mark| {
        let verdict = verdict_in_use(storage, &mark);
        (mark, verdict)
    }))
}

/// Refuses to lose the record of a group that another volume still needs.
pub(super) fn refuse_an_unread_record(
    storage: &dyn Storage,
    path: &Path,
    mark: &GroupMark,
) -> Result<(), DatastoreError> {
    match (mark, verdict_in_use(storage, mark)) {
        (GroupMark::Made(made), Verdict::Stays(reason)) => {
            Err(DatastoreError::UnreadGroup { path: path.to_owned(), name: made.name.clone(), reason })
        }
        _ => Ok(()),
    }
}

impl VolumeHead {
    /// Decides about the volume's part of a group whose maker has died, or notices that all others
    /// have read the record. For the process that has just opened the volume for writing.
    ///
    /// # Errors
    /// If the descriptor cannot be replaced.
    pub fn resolve_group(&mut self, protection: Protection<'_>) -> Result<(), DatastoreError> {
        self.resolve_group_on(BY_PATH, protection)
    }

    /// As [`Self::resolve_group`], on another file system.
    pub fn resolve_group_on(
        &mut self,
        storage: &dyn Storage,
        protection: Protection<'_>,
    ) -> Result<(), DatastoreError> {
        let Some(mark) = self.descriptor.group.clone() else { return Ok(()) };
        let id = mark.snapshot();
        match verdict(storage, &mark) {
            Verdict::Made(decision) => self.decide_part(id, decision, protection),
            Verdict::Void => {
                tracing::warn!("the snapshot {id} of several volumes was interrupted, so there is none");
                self.abandon_part(id, protection)
            }
            Verdict::Read => self.end_group(id, protection),
            Verdict::Stays(reason) => {
                tracing::warn!("the snapshot {id} of several volumes is not decided here: {reason}");
                Ok(())
            }
        }
    }

    /// Refuses another group while the volume has a mark of one.
    ///
    /// # Errors
    /// [`DatastoreError::OtherGroup`].
    pub(in crate::file) fn refuse_a_second_group(&self) -> Result<(), DatastoreError> {
        match &self.descriptor.group {
            Some(mark) => Err(DatastoreError::OtherGroup {
                path: self.directory.path.clone(),
                name: mark.name().clone(),
            }),
            None => Ok(()),
        }
    }

    /// Makes the volume's part a snapshot. In the first volume this is the group's record. May be
    /// repeated.
    ///
    /// # Errors
    /// [`DatastoreError::NoSnapshot`] if it has no such part, or this is not its decision;
    /// [`DatastoreError::NotClosed`] if the part is not durable yet.
    pub fn decide_part(
        &mut self,
        id: SnapshotId,
        decision: Decision,
        protection: Protection<'_>,
    ) -> Result<(), DatastoreError> {
        let path = self.directory.path.clone();
        let Some(part) = self.descriptor.part().filter(|part| part.snapshot.id == id) else {
            return match self.descriptor.snapshot(id) {
                Some(_) => Ok(()),
                None => Err(DatastoreError::NoSnapshot { path, snapshot: id.to_string() }),
            };
        };
        if part.terms.decision_sha256 != decision.digest() {
            return Err(DatastoreError::NoSnapshot { path, snapshot: id.to_string() });
        }
        let snapshot = part.snapshot.clone();
        if self.descriptor.layer(snapshot.layer).is_some_and(|layer| layer.closing) {
            return Err(DatastoreError::NotClosed { path, layer: snapshot.layer });
        }
        let mut decided = self.descriptor.clone();
        decided.group = match &part.terms.place {
            GroupPlace::First(others) => Some(GroupMark::Made(MadeGroup {
                snapshot: id,
                name: snapshot.name.clone(),
                decision,
                others: others.clone(),
            })),
            GroupPlace::After(_) => None,
        };
        decided.snapshots.push(snapshot);
        decided.generation += 1;
        self.replace_descriptor(decided, &protection.keks())
    }

    /// Removes the volume's part; nothing if it has none of this snapshot. In the first volume this
    /// makes the group void.
    ///
    /// # Errors
    /// If the descriptor cannot be replaced.
    pub fn abandon_part(&mut self, id: SnapshotId, protection: Protection<'_>) -> Result<(), DatastoreError> {
        if self.descriptor.part().is_none_or(|part| part.snapshot.id != id) {
            return Ok(());
        }
        let mut without = self.descriptor.clone();
        without.group = None;
        without.generation += 1;
        let pruned = without.prune();
        self.replace_descriptor(without, &protection.keks())?;
        remove_layers(&self.directory, &pruned);
        Ok(())
    }

    /// Removes the record of a group that all other volumes have read. May be repeated.
    ///
    /// # Errors
    /// If the descriptor cannot be replaced.
    pub fn end_group(&mut self, id: SnapshotId, protection: Protection<'_>) -> Result<(), DatastoreError> {
        if !matches!(&self.descriptor.group, Some(GroupMark::Made(made)) if made.snapshot == id) {
            return Ok(());
        }
        let mut ended = self.descriptor.clone();
        ended.group = None;
        ended.generation += 1;
        self.replace_descriptor(ended, &protection.keks())
    }
}

impl GroupPart {
    /// The part of a volume whose layer `layer` is its content.
    pub(super) fn of(snapshot: &NewSnapshot, layer: LayerId, terms: GroupTerms) -> Self {
        Self { snapshot: snapshot.of(layer), terms }
    }
}
