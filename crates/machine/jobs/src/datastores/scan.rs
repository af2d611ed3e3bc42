//! Looking through datastores for what their volumes need.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use strongroom_datastore::file::storage::{cluster_of, is_gone};
use strongroom_datastore::file::{DISKS_PREFIX, KeyNeeds, VM_FILE, VolumeNeeds, key_needs};
use strongroom_host::vm_directory::VmRecord;
use strongroom_keys::{KekSource, ProviderKey};
use strongroom_types::{VmId, without_numbers};

use super::KnownDatastores;
use super::clusters::Mounted;
use crate::error::JobError;

/// What was found.
#[derive(Debug, Default)]
pub struct Scan {
    /// The configurations of VMs that share layers with others, by directory. What the datastore
    /// says about that is believed here: it is only asked so that nobody takes a key's destruction
    /// for the end of content that others have.
    clones: BTreeMap<PathBuf, Shares>,
    /// The volumes, by path, each once.
    volumes: BTreeMap<PathBuf, VolumeNeeds>,
    /// What could not be looked into.
    unknown: Vec<UnknownNeeds>,
}

/// With whom a VM shares layers.
#[derive(Debug)]
enum Shares {
    With(Vec<VmId>),
    /// Its configuration cannot be read.
    Unknown,
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
                Ok(note) => {
                    let _mounted = Mounted::of(&note);
                    match note.check() {
                        Ok(()) => scan.look_through(&note.path),
                        Err(reason) => scan.leave_unknown(&note.path, &reason),
                    }
                }
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

    /// The directories of VMs that share layers with this one, or did, or may.
    pub fn clones_of(&self, vm: VmId) -> Vec<&Path> {
        let shares = |shares: &Shares| match shares {
            Shares::With(vms) => vms.contains(&vm),
            Shares::Unknown => true,
        };
        self.clones.iter().filter(|(_, with)| shares(with)).map(|(path, _)| path.as_path()).collect()
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
        let found = match cluster_of(datastore) {
            Some(_) => Ok(datastore.to_owned()),
            None => datastore.canonicalize().map_err(|error| error.to_string()),
        };
        let needs = found.and_then(|path| key_needs(&path).map_err(|error| error.to_string()));
        match needs {
            Ok(KeyNeeds { volumes, unreadable }) => {
                let directories = volumes.iter().filter_map(|volume| volume.path.parent());
                let directories: BTreeSet<PathBuf> = directories.map(Path::to_owned).collect();
                self.clones.extend(directories.into_iter().filter_map(shares_of));
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

/// With whom the VM in a directory shares layers; `None` if it is no VM's, or shares none.
fn shares_of(directory: PathBuf) -> Option<(PathBuf, Shares)> {
    let shares = match VmRecord::read(&directory) {
        Ok(None) => return None,
        Ok(Some(record)) if record.spec.lineage.shares_with.is_empty() => return None,
        Ok(Some(record)) => Shares::With(record.spec.lineage.shares_with),
        Err(_) => Shares::Unknown,
    };
    Some((directory, shares))
}

/// Which key of a provider it is, if it is one.
pub fn provider_key(source: &KekSource) -> Option<&ProviderKey> {
    match source {
        KekSource::Provider(key) => Some(key),
        KekSource::Passphrase(_) | KekSource::KeyFile {} => None,
    }
}

/// The VM whose volume is at `volume`, by the name of its directory, or by its id if that is in
/// another datastore; none if it is no VM's.
pub fn vm_of(volume: &Path) -> Option<String> {
    let directory = volume.parent()?;
    let name = directory.file_name()?.to_string_lossy().into_owned();
    match name.strip_prefix(DISKS_PREFIX) {
        Some(id) => Some(id.to_owned()),
        None => (!is_gone(&directory.join(VM_FILE))).then_some(name),
    }
}
