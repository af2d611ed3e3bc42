//! Where volumes are whose keys providers keep: noted in the home, so that before a key is
//! destroyed it can be looked what needs it.
//!
//! ```text
//! <home>/datastores/<datastore's id>-<digest of its path>.json     one for each place where a datastore was used
//! ```
//!
//! - A command that makes a volume under a provider's key, or moves one to such a key, notes its
//!   datastore first: it is on the disk before the envelope is. The note says the datastore's path
//!   and which one it is, by a mark that it bears itself ([`identify`]), so that a disk that is not
//!   mounted is not taken for an empty one.
//! - What is noted and cannot be read leaves it unknown what needs a key, until it is there again
//!   or a person says that it is gone for good.
//! - Nobody notes a volume that is copied or moved by other means than this program's.

mod clusters;
mod needs;
mod scan;

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use strongroom_crypto::mac;
use strongroom_datastore::file::storage::{cluster_of, cluster_path};
use strongroom_datastore::file::{identify, identity};
use strongroom_files::FileError;
use strongroom_types::{CephMount, DatastoreId, hex, unix_seconds_now};

pub use self::needs::{KeyNeeded, check_unneeded};
pub use self::scan::{Scan, UnknownNeeds, provider_key, vm_of};
use crate::error::JobError;
use crate::state_file;

const DIRECTORY: &str = "datastores";
const ENDING: &str = ".json";
const FORMAT: u32 = 1;

/// The datastores that a home knows of.
#[derive(Clone, Debug)]
pub struct KnownDatastores {
    directory: PathBuf,
}

/// What is noted of a datastore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Note {
    format: u32,
    /// Which datastore.
    datastore: DatastoreId,
    /// Where it was.
    path: PathBuf,
    noted_unix_seconds: u64,
    /// Where it lies, if on a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ceph: Option<CephMount>,
}

/// A file of the directory, and its note or why it says nothing.
type NotedFile = (PathBuf, Result<Note, String>);

impl KnownDatastores {
    /// Those of a home, which need not be there yet.
    pub fn of_home(home: &Path) -> Self {
        Self { directory: home.join(DIRECTORY) }
    }

    /// Notes the datastore at `path`, which is made if only it is missing; durable when this
    /// returns.
    ///
    /// # Errors
    /// [`JobError`]; then it is not noted.
    pub fn note(&self, path: &Path) -> Result<(), JobError> {
        if let Some(known) = self.known_on_cluster(path)? {
            return self.write(known);
        }
        let datastore = identify(path)?;
        let found = |error| JobError::File(FileError { action: "find", path: path.to_owned(), error });
        let path = path.canonicalize().map_err(found)?;
        self.write(Note {
            format: FORMAT,
            datastore,
            path,
            noted_unix_seconds: unix_seconds_now(),
            ceph: None,
        })
    }

    /// Notes a datastore on a cluster; durable when this returns.
    ///
    /// # Errors
    /// [`JobError`]; then it is not noted.
    pub fn note_on_cluster(&self, datastore: DatastoreId, mount: &CephMount) -> Result<(), JobError> {
        let (path, ceph) = (cluster_path(datastore), Some(mount.clone()));
        self.write(Note { format: FORMAT, datastore, path, noted_unix_seconds: unix_seconds_now(), ceph })
    }

    /// What is noted of the datastore on a cluster that this path names.
    fn known_on_cluster(&self, path: &Path) -> Result<Option<Note>, JobError> {
        let Some(wanted) = cluster_of(path) else { return Ok(None) };
        let known =
            self.notes()?.into_iter().find_map(|(_, note)| note.ok().filter(|note| note.datastore == wanted));
        known.map(Some).ok_or_else(|| {
            let error = io::Error::other("no datastore on a cluster is known by this path");
            JobError::File(FileError { action: "use", path: path.to_owned(), error })
        })
    }

    fn write(&self, note: Note) -> Result<(), JobError> {
        let file = self.file(note.datastore, &note.path);
        if Note::read(&file).is_ok_and(|found| found.path == note.path && found.ceph == note.ceph) {
            // Its writer may have been killed before it was durable.
            let synced = strongroom_files::sync_directory(&self.directory);
            return synced.map_err(|error| JobError::File(FileError { action: "sync", path: file, error }));
        }
        state_file::replace(&file, &note)
    }

    /// Notes the datastore in which a volume is or will be.
    ///
    /// # Errors
    /// As [`KnownDatastores::note`].
    pub fn note_of_volume(&self, volume: &Path) -> Result<(), JobError> {
        let parent = volume.parent().filter(|parent| !parent.as_os_str().is_empty());
        self.note(parent.unwrap_or(Path::new(".")))
    }

    /// Forgets what was noted of `path`: a person's word that no volume there needs a key any more.
    /// Whether anything was.
    ///
    /// # Errors
    /// [`JobError::File`].
    pub fn forget(&self, path: &Path) -> Result<bool, JobError> {
        let found = |error| JobError::File(FileError { action: "find", path: path.to_owned(), error });
        let absolute = std::path::absolute(path).map_err(found)?;
        let canonical = path.canonicalize().unwrap_or_else(|_| absolute.clone());
        let mut forgotten = false;
        for (file, note) in self.notes()? {
            if note.is_ok_and(|note| note.path == absolute || note.path == canonical) {
                forgotten |= state_file::remove(&file)?;
            }
        }
        Ok(forgotten)
    }

    /// All that is noted, file by file, or why one says nothing.
    fn notes(&self) -> Result<Vec<NotedFile>, JobError> {
        let failed =
            |error| JobError::File(FileError { action: "read", path: self.directory.clone(), error });
        let files = strongroom_files::list(&self.directory, ENDING).map_err(failed)?;
        let noted = files.into_iter().map(|file| {
            let note = Note::read(&file).map_err(|error| error.to_string());
            (file, note)
        });
        Ok(noted.collect())
    }

    fn file(&self, datastore: DatastoreId, path: &Path) -> PathBuf {
        let digest = mac::sha256(path.as_os_str().as_encoded_bytes());
        self.directory.join(format!("{datastore}-{}{ENDING}", hex::encode(&digest[..8])))
    }
}

impl Note {
    fn read(file: &Path) -> io::Result<Self> {
        state_file::read(file, FORMAT)
    }

    /// Whether what is at its path is the datastore that was there.
    fn check(&self) -> Result<(), String> {
        match identity(&self.path) {
            Ok(Some(found)) if found == self.datastore => Ok(()),
            Ok(_) => {
                Err("what is there now is not the datastore that was there; is it not mounted?".to_owned())
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_datastore_is_noted_once_for_each_place_and_forgotten_by_its_path() {
        let scratch = tempfile::tempdir().unwrap();
        let known = KnownDatastores::of_home(&scratch.path().join("home"));
        let (ds, moved) = (scratch.path().join("ds"), scratch.path().join("moved"));
        assert!(known.notes().unwrap().is_empty());
        known.note_of_volume(&ds.join("vm1")).unwrap();
        known.note(&ds).unwrap();
        let paths = || {
            let notes = known.notes().unwrap().into_iter().map(|(_, note)| note.unwrap());
            let mut paths: Vec<_> = notes.map(|note| (note.check().is_ok(), note.path)).collect();
            paths.sort();
            paths
        };
        assert_eq!(paths(), [(true, ds.clone())]);
        // It may have been copied and not moved: both places count until a person says otherwise.
        fs::rename(&ds, &moved).unwrap();
        known.note(&moved).unwrap();
        assert_eq!(paths(), [(false, ds.clone()), (true, moved.clone())]);
        // An empty directory at its place is not the datastore.
        fs::create_dir(&ds).unwrap();
        assert_eq!(paths(), [(false, ds.clone()), (true, moved.clone())]);
        assert!(known.forget(&ds).unwrap() && !known.forget(&ds).unwrap());
        assert_eq!(paths(), [(true, moved)]);
    }

    #[test]
    fn a_damaged_note_is_told_and_not_passed_over() {
        let scratch = tempfile::tempdir().unwrap();
        let known = KnownDatastores::of_home(scratch.path());
        known.note(&scratch.path().join("ds")).unwrap();
        let (file, _) = known.notes().unwrap().remove(0);
        for text in ["", "{}", r#"{"format":2,"datastore":"","path":"","noted_unix_seconds":1}"#] {
            fs::write(&file, text).unwrap();
            assert!(known.notes().unwrap()[0].1.is_err(), "{text}");
        }
        known.note(&scratch.path().join("ds")).unwrap();
        assert!(known.notes().unwrap()[0].1.is_ok(), "it is written anew");
    }
}
