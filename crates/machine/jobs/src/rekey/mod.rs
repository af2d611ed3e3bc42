//! Volumes move to other keys. Nothing is copied: the keys of the data are wrapped anew. Each key
//! is replaced by one: volumes that shared a key share the next.
//!
//! In this order: the wish for a new key is noted, durably; the key is made, noted, and fetched
//! again; each volume is moved, by way of a descriptor under both keys. Killed anywhere, the same
//! call goes on with the same new keys.

mod journal;
mod mover;
mod new_keys;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use strongroom_datastore::file::{ListedVolume, list};
use strongroom_files::FileError;
use strongroom_keys::Keyring;

pub(crate) use self::journal::{Done, Journal};
use self::mover::Moved;
pub(crate) use self::mover::Mover;
pub use self::mover::{Freshness, ReplacedKek};
pub use self::new_keys::NewKeySource;
pub(crate) use self::new_keys::NewKeys;
use crate::datastores::KnownDatastores;
use crate::error::{FailedVolume, JobError};
use crate::present_keys::PresentKeys;

/// The volumes of a job, by their absolute paths, in order, each once.
#[derive(Debug)]
pub struct Volumes {
    paths: Vec<PathBuf>,
    /// What of them tells one job from another.
    scope: String,
    is_datastore: bool,
}

impl Volumes {
    /// These.
    ///
    /// # Errors
    /// [`JobError::File`] for one that is not there.
    pub fn these(paths: &[PathBuf]) -> Result<Self, JobError> {
        let paths = found(paths.to_vec())?;
        let scope = paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
        Ok(Self { paths, scope, is_datastore: false })
    }

    /// All of a datastore that are encrypted, or cannot be read.
    ///
    /// # Errors
    /// [`JobError::Datastore`] for a datastore that cannot be listed.
    pub fn of_datastore(datastore: &Path) -> Result<Self, JobError> {
        let is_wanted = |listed: &ListedVolume| match listed {
            ListedVolume::Volume(volume) => volume.descriptor.encryption.is_some(),
            // What cannot be read fails, volume by volume.
            ListedVolume::Broken { path, .. } => !is_hidden(path),
        };
        let listed = list(datastore)?;
        let wanted = listed.iter().filter(|listed| is_wanted(listed));
        let paths = found(wanted.map(|listed| listed.path().to_owned()).collect())?;
        let scope = match datastore.canonicalize() {
            Ok(datastore) => format!("all of {}", datastore.display()),
            Err(_) => paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "),
        };
        Ok(Self { paths, scope, is_datastore: true })
    }

    /// Whether it is one volume that was named.
    pub fn is_one(&self) -> bool {
        self.paths.len() == 1 && !self.is_datastore
    }
}

/// A job.
pub struct Rekey<'a> {
    /// Where jobs are noted.
    pub home: &'a Path,
    /// Which volumes.
    pub volumes: &'a Volumes,
    /// Where their new keys come from.
    pub to: &'a NewKeySource<'a>,
    /// Whatever reaches the key providers.
    pub keyring: &'a dyn Keyring,
    /// Where their present keys come from.
    pub present: &'a dyn PresentKeys,
    /// What is known of the volume, if it is one.
    pub freshness: Freshness,
    /// How long to wait for a process that has a volume.
    pub lock_wait: Duration,
    /// Whether a person wants the job to stop before its next volume.
    pub is_interrupted: &'a dyn Fn() -> bool,
}

/// What a job has done.
#[derive(Debug, Serialize)]
pub struct Rekeyed {
    /// The file with what was done.
    pub job: PathBuf,
    /// Whether an earlier call had begun it.
    pub resumed: bool,
    /// Whether all volumes are under their new keys.
    pub finished: bool,
    /// Where the new keys come from.
    pub target: String,
    /// The volumes that are under their new keys.
    pub volumes: Vec<RekeyedVolume>,
    /// The others.
    pub failed: Vec<FailedVolume>,
    /// Which of these volumes no longer need.
    pub replaced_keks: Vec<ReplacedKek>,
}

/// A volume that is under its new key.
#[derive(Debug, Serialize)]
pub struct RekeyedVolume {
    /// Where it is.
    pub path: PathBuf,
    /// Its id.
    pub volume_id: String,
    /// The new key's id.
    pub kek_id: String,
    /// Where the new key comes from.
    pub key: String,
    /// The least generation of it from now on.
    pub generation: u64,
}

impl Rekey<'_> {
    /// Moves the volumes, or goes on with that.
    ///
    /// # Errors
    /// [`JobError::JobRuns`], [`JobError::Interrupted`], [`JobError::OtherNewKey`], and what keeps
    /// the job from being noted. What keeps one volume from being moved is in the answer.
    pub fn carry_out(&self) -> Result<Rekeyed, JobError> {
        let mut keys = NewKeys::new(self.to, self.keyring);
        let mut journal =
            Journal::open(self.home, &format!("{} to {}", self.volumes.scope, keys.identity()?))?;
        let mover = Mover {
            present: self.present,
            datastores: &KnownDatastores::of_home(self.home),
            in_place_of: None,
            freshness: self.freshness,
            lock_wait: self.lock_wait,
        };
        let mut rekeyed = Rekeyed {
            job: journal.path().to_owned(),
            resumed: journal.is_resumed(),
            finished: false,
            target: self.to.to_string(),
            volumes: Vec::new(),
            failed: Vec::new(),
            replaced_keks: Vec::new(),
        };
        for path in &self.volumes.paths {
            if (self.is_interrupted)() {
                return Err(JobError::Interrupted);
            }
            match mover.move_volume(path, &mut journal, &mut keys) {
                Ok(Moved { done, key, replaced }) => {
                    journal.set_done(done.clone())?;
                    let replaced = replaced.filter(|replaced| !rekeyed.replaced_keks.contains(replaced));
                    rekeyed.replaced_keks.extend(replaced);
                    rekeyed.volumes.push(RekeyedVolume {
                        path: path.clone(),
                        volume_id: done.volume.to_string(),
                        kek_id: done.kek.to_string(),
                        key,
                        generation: done.generation,
                    });
                }
                Err(error @ JobError::OtherNewKey { .. }) => return Err(error),
                Err(error) => rekeyed.failed.push(FailedVolume::new(path.clone(), &error)),
            }
        }
        rekeyed.finished = rekeyed.failed.is_empty();
        if rekeyed.finished {
            journal.finish()?;
        }
        Ok(rekeyed)
    }
}

fn found(mut paths: Vec<PathBuf>) -> Result<Vec<PathBuf>, JobError> {
    for path in &mut paths {
        let found = path.canonicalize();
        *path =
            found.map_err(|error| JobError::File(FileError { action: "find", path: path.clone(), error }))?;
    }
    paths.sort();
    paths.dedup();
    Ok(paths)
}

/// What an interrupted creation or deletion has left is no volume.
fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
}
