//! Looking through datastores for what their volumes need.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use strongroom_datastore::file::{KeyNeeds, VM_FILE, VolumeNeeds, key_needs};
use strongroom_keys::{KekSource, ProviderKey};
use strongroom_types::without_numbers;

use super::KnownDatastores;
use crate::error::JobError;

/// What was found.
#[derive(Debug, Default)]
pub struct Scan {
    /// The volumes, by path, each once.
    volumes: BTreeMap<PathBuf, VolumeNeeds>,
    /// What could not be looked into.
    unknown: Vec<UnknownNeeds>,
}

/// A datastore, or something in it, of which nobody can say which keys it needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnknownNeeds {
    /// The datastore, or the note of one.
    pub datastore: PathBuf,
    /// What is in the way.
    pub reason: String,
}

impl fmt::Display for UnknownNeeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.datastore.display(), self.reason)
    }
}

impl KnownDatastores {
    /// Looks through all that are noted, and through `more`. May block for disks.
    ///
    /// # Errors
    /// [`JobError::File`] if the notes cannot be listed. What cannot be looked into is in the scan.
    pub fn scan(&self, more: &[PathBuf]) -> Result<Scan, JobError> {
        let mut scan = Scan::default();
        for (file, note) in self.notes()? {
            match note {
                Ok(note) => match note.check() {
                    Ok(()) => scan.look_through(&note.path),
                    Err(reason) => scan.leave_unknown(&note.path, &reason),
                },
                Err(reason) => {
                    scan.leave_unknown(&file, &format!("this note of a datastore is damaged: {reason}"))
                }
            }
        }
        more.iter().for_each(|datastore| scan.look_through(datastore));
        Ok(scan)
    }
}

impl Scan {
    /// All volumes.
    pub fn volumes(&self) -> impl Iterator<Item = &VolumeNeeds> {
        self.volumes.values()
    }

    /// What could not be looked into.
    pub fn unknown(&self) -> &[UnknownNeeds] {
        &self.unknown
    }

    /// The volumes that need a key which `is_meant`.
    pub fn needing(&self, is_meant: impl Fn(&ProviderKey) -> bool) -> Vec<&VolumeNeeds> {
        let needs = |volume: &&VolumeNeeds| {
            volume.keks.iter().any(|kek| provider_key(&kek.source).is_some_and(&is_meant))
        };
        self.volumes().filter(needs).collect()
    }

    fn look_through(&mut self, datastore: &Path) {
        let found = datastore.canonicalize().map_err(|error| error.to_string());
        let needs = found.and_then(|path| key_needs(&path).map_err(|error| error.to_string()));
        match needs {
            Ok(KeyNeeds { volumes, unreadable }) => {
                self.volumes.extend(volumes.into_iter().map(|volume| (volume.path.clone(), volume)));
                unreadable.iter().for_each(|error| self.leave_unknown(datastore, &error.to_string()));
            }
            Err(reason) => self.leave_unknown(datastore, &reason),
        }
    }

    fn leave_unknown(&mut self, datastore: &Path, reason: &str) {
        let unknown = UnknownNeeds { datastore: datastore.to_owned(), reason: without_numbers(reason) };
        if !self.unknown.contains(&unknown) {
            self.unknown.push(unknown);
        }
    }
}

/// Which key of a provider it is, if it is one.
pub fn provider_key(source: &KekSource) -> Option<&ProviderKey> {
    match source {
        KekSource::Provider(key) => Some(key),
        KekSource::Passphrase(_) | KekSource::KeyFile {} => None,
    }
}

/// The VM whose volume is at `volume`, by the name of its directory; none if it is no VM's.
pub fn vm_of(volume: &Path) -> Option<String> {
    let directory = volume.parent().filter(|directory| directory.join(VM_FILE).exists())?;
    Some(directory.file_name()?.to_string_lossy().into_owned())
}
