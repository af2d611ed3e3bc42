//! The directories of a VM: its own in a datastore, and those of its disks in others.
//!
//! Its own: its volumes, the TPM state that swtpm keeps, and `vm.json`, the
//! clear configuration.
//!
//! - It gets its name when it is complete: a creation builds `.strongroom-vm-new-ID` beside its
//!   place. An interruption leaves only that, which the next creation of the same VM removes.
//! - A deletion is first recorded in `vm.json`, durably. A directory with that record can only be
//!   deleted again.
//! - `handover` is there while a VM moves to another host: the one that gives it up has written it.
//! - `vm.json` is replaced atomically. Nothing in it is secret, and no field of it is trusted where
//!   it would weaken a request of the control plane.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use strongroom_datastore::file::storage::{
    BY_PATH, Directory, EntryKind, is_gone, read_file, remove_file, replace_file,
};
use strongroom_datastore::file::{DatastoreError, delete};
use strongroom_types::{DESCRIPTOR_TAG_BYTES, ProviderKey, STORED_COUNT_MAX, VmId};
use thiserror::Error;

use crate::attestation::{Attestation, Attested};
use crate::protocol::{
    Dump, HandoverId, Problem, SavedMemory, SpecError, TPM_STATE, VmGeneration, VmSnapshots, VmSpec,
    disks_elsewhere,
};

/// The configuration file.
const CONFIGURATION: &str = "vm.json";
/// Its temporary name while it is written.
const CONFIGURATION_NEW: &str = "vm.json.new";
/// The file with the id of a handover to another host.
const HANDOVER: &str = "handover";
/// Its temporary name while it is written.
const HANDOVER_NEW: &str = "handover.new";
/// The files of a VM's directory.
const FILES: [&str; 4] = [HANDOVER_NEW, HANDOVER, CONFIGURATION_NEW, CONFIGURATION];
/// The longest handover, in bytes: a UUID and the end of its line.
const HANDOVER_BYTES_MAX: usize = 64;
/// The prefix of a VM directory's name while it is created.
const BUILDING_PREFIX: &str = ".strongroom-vm-new-";
/// The format of the configuration file.
const FORMAT: u32 = 1;
/// The longest configuration, in bytes: many times that of the largest VM.
const CONFIGURATION_BYTES_MAX: usize = 256 << 10;
/// Held while `vm.json` is read, changed and written: threads of a supervisor change different
/// parts of it. Another process changes it only while it holds the VM's lock.
static CHANGING: Mutex<()> = Mutex::new(());
/// How long a deletion waits for the last I/O of a killed worker on its volume.
const LET_GO_WITHIN: Duration = Duration::from_secs(3);

/// The content of `vm.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmRecord {
    format: u32,
    /// The number of the last start.
    pub generation: VmGeneration,
    /// Whether it is being deleted.
    #[serde(default)]
    pub deleting: bool,
    /// The saved memory that the next start resumes. It is recorded when the memory is durable, and
    /// the record is removed, durably, before the guest resumes. Without this record no memory of
    /// this VM is valid, whatever volume exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<SavedMemory>,
    /// The complete dumps of its guest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dumps: Vec<Dump>,
    /// The greatest number that a dump of it ever had, so that numbers are not reused.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub last_dump: u32,
    /// Its snapshots. A snapshot is in the list once all of its volumes durably have it.
    #[serde(default, skip_serializing_if = "VmSnapshots::is_empty")]
    pub snapshots: VmSnapshots,
    /// Its configuration.
    pub spec: VmSpec,
    /// Authenticates the configuration, if it has encrypted disks: made by the supervisor that
    /// wrote it, under their keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attestation: Option<Attestation>,
}

/// Why a VM's directory cannot be used.
#[derive(Debug, Error)]
pub enum VmDirectoryError {
    /// Another VM, or something else, has its name.
    #[error("{path} exists already, and is not this VM's; choose another name")]
    Taken {
        /// The path.
        path: PathBuf,
    },
    /// There is no VM.
    #[error("there is no VM in {path}")]
    NoVm {
        /// The path.
        path: PathBuf,
    },
    /// It is another VM's directory.
    #[error("{path} is the directory of VM {found}, not of VM {wanted}")]
    OtherVm {
        /// The path.
        path: PathBuf,
        /// The VM in it.
        found: VmId,
        /// The requested VM.
        wanted: VmId,
    },
    /// It is being deleted.
    #[error("the deletion of {path} has begun; delete it again")]
    Deleting {
        /// The path.
        path: PathBuf,
    },
    /// Its configuration cannot be parsed.
    #[error("the configuration in {path} cannot be used: {reason}")]
    Configuration {
        /// The path.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// It contains something that Strongroom must not remove.
    #[error("{path} holds something that is not the VM's ({stranger}); move it away first")]
    Stranger {
        /// The path.
        path: PathBuf,
        /// The name of the foreign entry.
        stranger: String,
    },
    /// A volume failed.
    #[error(transparent)]
    Volume(#[from] DatastoreError),
    /// A system call failed.
    #[error("cannot {action} {path}: {error}")]
    System {
        /// The action.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
}

impl VmDirectoryError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Taken { .. } => "name_taken",
            Self::NoVm { .. } => "no_such_vm",
            Self::OtherVm { .. } => "other_vm",
            Self::Deleting { .. } => "deleting",
            Self::Configuration { .. } => "bad_configuration",
            Self::Stranger { .. } => "stranger",
            Self::Volume(error) => error.code(),
            Self::System { .. } => "system",
        }
    }
}

fn system(action: &'static str, path: &Path) -> impl Fn(Errno) -> VmDirectoryError {
    move |errno| match errno {
        Errno::LOOP => DatastoreError::Link { path: path.to_owned() }.into(),
        Errno::NOMEDIUM => DatastoreError::NotMounted { path: path.to_owned() }.into(),
        errno => VmDirectoryError::System { action, path: path.to_owned(), error: errno.into() },
    }
}

/// Opens a VM's directory, or a datastore.
fn open(path: &Path) -> Result<Arc<dyn Directory>, Errno> {
    BY_PATH.open_directory(path)
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl VmRecord {
    /// The record of a VM that was never started.
    pub fn new(spec: VmSpec, attestation: Option<Attestation>) -> Self {
        Self {
            format: FORMAT,
            generation: VmGeneration(0),
            deleting: false,
            suspended: None,
            dumps: Vec::new(),
            last_dump: 0,
            snapshots: VmSnapshots::default(),
            spec,
            attestation,
        }
    }

    /// Replaces the configuration, and attests it.
    ///
    /// # Errors
    /// The errors of `tag`, as for [`Attestation::make`].
    pub fn become_attested<E>(
        &mut self,
        spec: &VmSpec,
        tag: impl FnMut(&ProviderKey, &Attested<'_>) -> Result<[u8; DESCRIPTOR_TAG_BYTES], E>,
    ) -> Result<(), E> {
        self.attestation = Attestation::make(spec, self.generation, tag)?;
        self.spec = spec.clone();
        Ok(())
    }

    /// Reads the record of the directory at `path`; `None` if it is not a VM's.
    ///
    /// # Errors
    /// If it cannot be read or parsed.
    pub fn read(path: &Path) -> Result<Option<Self>, VmDirectoryError> {
        read_configuration(path)?.map(|text| Self::parse(path, &text)).transpose()
    }

    /// The record with this text, as it was stored; `path` names the directory in errors.
    ///
    /// # Errors
    /// If it cannot be parsed.
    pub fn parse(path: &Path, text: &[u8]) -> Result<Self, VmDirectoryError> {
        let unusable = |reason: String| VmDirectoryError::Configuration { path: path.to_owned(), reason };
        if text.len() > CONFIGURATION_BYTES_MAX {
            return Err(unusable("it is longer than a configuration is".to_owned()));
        }
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let head: Head = serde_json::from_slice(text).map_err(|error| unusable(error.to_string()))?;
        if head.format != FORMAT {
            return Err(unusable(format!(
                "it is of format {}; this program reads format {FORMAT}",
                head.format
            )));
        }
        let record: Self = serde_json::from_slice(text).map_err(|error| {
            // Fields of a newer version must not be lost.
            let newer = error.to_string().starts_with("unknown");
            let newer = if newer { "; a newer version has written it: upgrade the program" } else { "" };
            unusable(format!("{error}{newer}"))
        })?;
        record.spec.check().map_err(|error: SpecError| unusable(error.to_string()))?;
        if record.generation.0 > STORED_COUNT_MAX {
            return Err(unusable(format!("no VM has had {} starts", record.generation)));
        }
        Ok(record)
    }

    /// As [`read`](Self::read), for a VM that must exist and have this id.
    ///
    /// # Errors
    /// Also if there is no VM, it is another one, or it is being deleted.
    pub fn read_of(path: &Path, vm: VmId) -> Result<Self, VmDirectoryError> {
        let path = path.to_owned();
        match Self::read(&path)? {
            None => Err(VmDirectoryError::NoVm { path }),
            Some(record) if record.spec.id != vm => {
                Err(VmDirectoryError::OtherVm { path, found: record.spec.id, wanted: vm })
            }
            Some(record) if record.deleting => Err(VmDirectoryError::Deleting { path }),
            Some(record) => Ok(record),
        }
    }

    /// Changes the record of a VM: reads it, has `change` edit it, and writes it if it differs. It
    /// is durable in any case. Returns the result of `change`.
    ///
    /// # Errors
    /// Those of [`read_of`](Self::read_of), of `change` and of [`write`](Self::write); the file is
    /// then as before.
    pub fn change<T>(
        spec: &VmSpec,
        change: impl FnOnce(&mut Self) -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        let _turn = CHANGING.lock();
        let directory = spec.directory();
        let before = Self::read_of(&directory, spec.id)?;
        let mut record = before.clone();
        let changed = change(&mut record)?;
        if record == before {
            // A process that was killed may have written it without making its name durable.
            sync(&directory).map_err(system("sync", &directory))?;
        } else {
            record.write(&directory)?;
        }
        Ok(changed)
    }

    /// Writes the record into the directory at `path`, durably and atomically.
    ///
    /// # Errors
    /// If the file system is full or the directory is not writable; the old file then stays.
    pub fn write(&self, path: &Path) -> Result<(), VmDirectoryError> {
        let unwritable = |error: serde_json::Error| VmDirectoryError::Configuration {
            path: path.to_owned(),
            reason: error.to_string(),
        };
        let mut text = serde_json::to_vec_pretty(self).map_err(unwritable)?;
        text.push(b'\n');
        let written = open(path).and_then(|directory| replace_file(&*directory, CONFIGURATION, &text));
        written.map_err(system("write the configuration in", path))
    }
}

/// Reads the text of the record of the directory at `path`; `None` if it is not a VM's.
///
/// # Errors
/// If it cannot be read.
pub fn read_configuration(path: &Path) -> Result<Option<Vec<u8>>, VmDirectoryError> {
    let text = read(path, CONFIGURATION, CONFIGURATION_BYTES_MAX + 1);
    text.map_err(system("read the configuration in", path))
}

/// Writes the id of a handover into a VM's directory, durably.
///
/// # Errors
/// If the directory cannot be written.
pub fn write_handover(path: &Path, handover: HandoverId) -> Result<(), VmDirectoryError> {
    let text = format!("{handover}\n");
    let written = open(path).and_then(|directory| replace_file(&*directory, HANDOVER, text.as_bytes()));
    written.map_err(system("write the handover in", path))
}

/// Whether this handover was written into a VM's directory, as this host sees it.
///
/// # Errors
/// If the file is there and cannot be read.
pub fn has_handover(path: &Path, handover: HandoverId) -> Result<bool, VmDirectoryError> {
    let text = read(path, HANDOVER, HANDOVER_BYTES_MAX).map_err(system("read the handover in", path))?;
    let text = text.as_deref().and_then(|text| std::str::from_utf8(text).ok());
    Ok(text.is_some_and(|text| text.trim_end() == handover.to_string()))
}

/// Removes a handover from a VM's directory, if there is one.
///
/// # Errors
/// If it cannot be removed.
pub fn remove_handover(path: &Path) -> Result<(), VmDirectoryError> {
    let removed = match open(path) {
        Err(Errno::NOENT) => Ok(()),
        directory => directory.and_then(|directory| remove_file(&*directory, HANDOVER)),
    };
    removed.map_err(system("remove the handover in", path))
}

/// Reads a file of the directory at `path`; `None` if either is missing. Symbolic links are not
/// followed, neither as the directory nor as the file.
fn read(path: &Path, name: &str, bytes_max: usize) -> Result<Option<Vec<u8>>, Errno> {
    match open(path) {
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        directory => read_file(&*directory?, name, bytes_max),
    }
}

/// A VM's directory under construction.
#[derive(Debug)]
pub struct StagedVm {
    building: PathBuf,
    place: PathBuf,
}

impl StagedVm {
    /// Begins a creation, and clears the remains of an earlier attempt. Returns `None` if the VM
    /// already exists.
    ///
    /// # Errors
    /// If its name is taken, or the remains cannot be removed.
    pub fn begin(spec: &VmSpec) -> Result<Option<Self>, VmDirectoryError> {
        if is_complete(spec)? {
            return Ok(None);
        }
        let staged = Self::of(spec);
        clear(&staged.building)?;
        staged.make()?;
        Ok(Some(staged))
    }

    /// As [`begin`](Self::begin), and keeps what an earlier attempt has left, for a caller that
    /// believes none of it.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn go_on(spec: &VmSpec) -> Result<Option<Self>, VmDirectoryError> {
        if is_complete(spec)? {
            return Ok(None);
        }
        let staged = Self::of(spec);
        if is_gone(&staged.building) {
            staged.make()?;
        } else {
            refuse_strangers(&staged.building)?;
        }
        Ok(Some(staged))
    }

    fn make(&self) -> Result<(), VmDirectoryError> {
        // Other users must not see a VM's contents, not even their names.
        BY_PATH.make_directory(&self.building).map_err(system("create", &self.building))
    }

    /// A creation that this or another process has begun.
    pub fn of(spec: &VmSpec) -> Self {
        Self { building: building(&spec.datastore, spec.id), place: spec.directory() }
    }

    /// Its path until it is complete.
    pub fn path(&self) -> &Path {
        &self.building
    }

    /// Removes what a creation that failed has left.
    ///
    /// # Errors
    /// If it contains something foreign.
    pub fn abandon(self) -> Result<(), VmDirectoryError> {
        clear(&self.building)
    }

    /// Gives it its name, durably. Its configuration must be in it.
    ///
    /// # Errors
    /// If another directory has taken the name.
    pub fn take_name(self) -> Result<(), VmDirectoryError> {
        match BY_PATH.rename(&self.building, &self.place) {
            Err(Errno::EXIST) => return Err(VmDirectoryError::Taken { path: self.place }),
            renamed => renamed.map_err(system("create", &self.place))?,
        }
        let datastore = self.place.parent().unwrap_or(Path::new("/"));
        sync(datastore).map_err(system("sync", datastore))
    }
}

/// Whether a VM's directory is there with its name, durably; if not, the name is free.
fn is_complete(spec: &VmSpec) -> Result<bool, VmDirectoryError> {
    let place = spec.directory();
    match VmRecord::read(&place)? {
        Some(record) if record.spec.id != spec.id => Err(VmDirectoryError::Taken { path: place }),
        Some(record) if record.deleting => Err(VmDirectoryError::Deleting { path: place }),
        Some(_) => {
            // The process that created it may have been killed before the name was durable.
            sync(&spec.datastore).map_err(system("sync", &spec.datastore))?;
            Ok(true)
        }
        None if !is_gone(&place) => Err(VmDirectoryError::Taken { path: place }),
        None => Ok(false),
    }
}

/// Deletes a VM's directory and all volumes in it, including the remains of an earlier deletion or
/// creation.
///
/// # Errors
/// If a volume is in use, or the directory contains something foreign.
pub fn delete_vm(datastore: &Path, place: &Path, vm: VmId) -> Result<(), VmDirectoryError> {
    clear(&building(datastore, vm))?;
    let Some(mut record) = VmRecord::read(place)? else { return Ok(()) };
    if record.spec.id != vm {
        // This VM is already gone, and another has its name.
        return Ok(());
    }
    refuse_strangers(place)?;
    let was_deleting = record.deleting;
    if !was_deleting {
        record.deleting = true;
        record.write(place)?;
    }
    let before = volumes(place)?.len();
    if let Err(error) = delete_volumes(place) {
        if volumes(place).is_ok_and(|left| left.len() == before) && !was_deleting {
            // No volume is lost yet, so the deletion is undone.
            record.deleting = false;
            record.write(place)?;
        }
        return Err(error);
    }
    remove_rest(place)?;
    sync(datastore).map_err(system("sync", datastore))
}

/// Makes the directory of a VM's disks in a datastore other than its own, durably. Does nothing if
/// it exists.
///
/// # Errors
/// If the datastore cannot be written.
pub fn make_disks_elsewhere(datastore: &Path, vm: VmId) -> Result<(), VmDirectoryError> {
    let directory = disks_elsewhere(datastore, vm);
    match BY_PATH.make_directory(&directory) {
        Err(Errno::EXIST) => {}
        made => made.map_err(system("create", &directory))?,
    }
    sync(datastore).map_err(system("sync", datastore))
}

/// Removes the directory of a VM's disks in a datastore other than its own, durably, if it is
/// empty.
///
/// # Errors
/// If the datastore cannot be read or written.
pub fn remove_disks_elsewhere(datastore: &Path, vm: VmId) -> Result<(), VmDirectoryError> {
    let directory = disks_elsewhere(datastore, vm);
    if is_gone(&directory) || !entries_of(&directory)?.is_empty() {
        return Ok(());
    }
    BY_PATH.remove_directory(&directory).map_err(system("delete", &directory))?;
    sync(datastore).map_err(system("sync", datastore))
}

/// Deletes all volumes of a VM in a datastore other than its own, and their directory, including
/// what a move of a disk has left there.
///
/// # Errors
/// If a volume is in use, or the directory contains something foreign.
pub fn delete_disks_elsewhere(datastore: &Path, vm: VmId) -> Result<(), VmDirectoryError> {
    let directory = disks_elsewhere(datastore, vm);
    if is_gone(&directory) {
        return Ok(());
    }
    let found = entries_of(&directory)?;
    if let Some((stranger, _)) = found.into_iter().find(|(_, kind)| *kind != EntryKind::Directory) {
        return Err(VmDirectoryError::Stranger { path: directory, stranger });
    }
    delete_volumes(&directory)?;
    remove_disks_elsewhere(datastore, vm)
}

fn building(datastore: &Path, vm: VmId) -> PathBuf {
    datastore.join(format!("{BUILDING_PREFIX}{vm}"))
}

/// Removes the remains of a creation.
fn clear(building: &Path) -> Result<(), VmDirectoryError> {
    if is_gone(building) {
        return Ok(());
    }
    refuse_strangers(building)?;
    delete_volumes(building)?;
    remove_rest(building)
}

/// The entries of a directory, sorted by their names.
fn entries(directory: &dyn Directory) -> Result<Vec<(String, EntryKind)>, Errno> {
    let mut found = Vec::new();
    for name in directory.names()? {
        match directory.kind(&name) {
            Err(Errno::NOENT) => {}
            kind => found.push((name, kind?)),
        }
    }
    Ok(found)
}

/// The entries of a VM's directory, sorted by their names.
///
/// # Errors
/// If it cannot be read.
pub fn entries_of(directory: &Path) -> Result<Vec<(String, EntryKind)>, VmDirectoryError> {
    open(directory).and_then(|opened| entries(&*opened)).map_err(system("read", directory))
}

/// Returns the volumes in it: all directories but swtpm's.
fn volumes(directory: &Path) -> Result<Vec<PathBuf>, VmDirectoryError> {
    let found = entries_of(directory)?;
    let is_volume = |(name, kind): &(String, _)| *kind == EntryKind::Directory && name != TPM_STATE;
    Ok(found.into_iter().filter(is_volume).map(|(name, _)| directory.join(name)).collect())
}

fn refuse_strangers(directory: &Path) -> Result<(), VmDirectoryError> {
    let stranger =
        |stranger: String| Err(VmDirectoryError::Stranger { path: directory.to_owned(), stranger });
    let found = entries_of(directory)?;
    for (name, kind) in found {
        if kind != EntryKind::Directory && !FILES.contains(&name.as_str()) {
            return stranger(name);
        }
    }
    let state = directory.join(TPM_STATE);
    let Some(opened) = tpm_state(&state)? else { return Ok(()) };
    let found = entries(&*opened).map_err(system("read", &state))?;
    match found.into_iter().find(|(_, kind)| *kind != EntryKind::File) {
        Some((name, _)) => stranger(state.join(name).display().to_string()),
        None => Ok(()),
    }
}

/// Opens swtpm's state directory, if there is one.
fn tpm_state(state: &Path) -> Result<Option<Arc<dyn Directory>>, VmDirectoryError> {
    match BY_PATH.open_volume(state) {
        Err(Errno::NOENT) => Ok(None),
        opened => opened.map(Some).map_err(system("read", state)),
    }
}

fn delete_tpm_state(directory: &Path) -> Result<(), VmDirectoryError> {
    let state = directory.join(TPM_STATE);
    let Some(opened) = tpm_state(&state)? else { return Ok(()) };
    for name in opened.names().map_err(system("read", &state))? {
        remove_file(&*opened, &name).map_err(system("delete", &state.join(name)))?;
    }
    BY_PATH.remove_directory(&state).map_err(system("delete", &state))
}

fn delete_volumes(directory: &Path) -> Result<(), VmDirectoryError> {
    volumes(directory)?.iter().try_for_each(|volume| Ok(delete(volume, LET_GO_WITHIN)?))
}

/// Removes the configuration last, so that an interrupted deletion can still identify the VM.
fn remove_rest(directory: &Path) -> Result<(), VmDirectoryError> {
    delete_tpm_state(directory)?;
    let opened = open(directory).map_err(system("delete", directory))?;
    for name in FILES {
        remove_file(&*opened, name).map_err(system("delete", directory))?;
    }
    BY_PATH.remove_directory(directory).map_err(system("delete", directory))
}

fn sync(directory: &Path) -> Result<(), Errno> {
    open(directory)?.sync()
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, Mode};
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use strongroom_datastore::file::{CreateOptions, Protection, Provisioning, create, identify};
    use strongroom_types::VolumeSize;

    use super::*;

    fn spec(datastore: &Path, name: &str) -> VmSpec {
        let id = VmId::random();
        let disk = r#"{"name":"disk0","size_bytes":1048576,"key":"unencrypted"}"#;
        let datastore = serde_json::to_string(datastore).unwrap();
        let text = format!(
            r#"{{"id":"{id}","name":"{name}","datastore":{datastore},"memory_bytes":33554432,"disks":[{disk}]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn add_volume(directory: &Path) {
        let options = CreateOptions {
            size: VolumeSize::new(1 << 20).unwrap(),
            provisioning: Provisioning::Thin,
            protection: Protection::Unencrypted,
            log_bytes: None,
            integrity: None,
        };
        create(&directory.join("disk0"), &options).unwrap();
    }

    fn entries(datastore: &Path) -> usize {
        std::fs::read_dir(datastore).unwrap().count()
    }

    #[test]
    fn a_vm_has_its_name_when_it_is_complete_and_a_rest_is_cleared_away() {
        let scratch = tempfile::tempdir().unwrap();
        let spec = spec(scratch.path(), "web1");
        let killed = StagedVm::begin(&spec).unwrap().unwrap();
        add_volume(killed.path());
        assert!(!spec.directory().exists());
        let staged = StagedVm::begin(&spec).unwrap().unwrap();
        add_volume(staged.path());
        VmRecord::new(spec.clone(), None).write(staged.path()).unwrap();
        staged.take_name().unwrap();
        assert!(StagedVm::begin(&spec).unwrap().is_none(), "it is there");
        assert_eq!(VmRecord::read_of(&spec.directory(), spec.id).unwrap().spec, spec);
        assert_eq!(entries(scratch.path()), 1);
        let other = VmSpec { id: VmId::random(), ..spec.clone() };
        assert_eq!(StagedVm::begin(&other).unwrap_err().code(), "name_taken");
        delete_vm(&spec.datastore, &spec.directory(), other.id).unwrap();
        assert!(spec.directory().exists(), "another VM's name");
        delete_vm(&spec.datastore, &spec.directory(), spec.id).unwrap();
        delete_vm(&spec.datastore, &spec.directory(), spec.id).unwrap();
        assert_eq!(entries(scratch.path()), 0);
    }

    #[test]
    fn what_is_not_the_vms_is_left_alone() {
        let scratch = tempfile::tempdir().unwrap();
        let spec = spec(scratch.path(), "web1");
        let staged = StagedVm::begin(&spec).unwrap().unwrap();
        add_volume(staged.path());
        VmRecord::new(spec.clone(), None).write(staged.path()).unwrap();
        staged.take_name().unwrap();
        std::fs::write(spec.directory().join("notes.txt"), "mine").unwrap();
        let error = delete_vm(&spec.datastore, &spec.directory(), spec.id).unwrap_err();
        assert_eq!(error.code(), "stranger");
        VmRecord::read_of(&spec.directory(), spec.id).unwrap();
        std::fs::remove_file(spec.directory().join("notes.txt")).unwrap();
        // swtpm's files belong to the VM; another program's files beside them do not.
        let state = spec.tpm_state_path();
        std::fs::create_dir_all(state.join("notes")).unwrap();
        std::fs::write(state.join("tpm2-00.permall"), "sealed").unwrap();
        let error = delete_vm(&spec.datastore, &spec.directory(), spec.id).unwrap_err();
        assert_eq!(error.code(), "stranger");
        std::fs::remove_dir(state.join("notes")).unwrap();
        delete_vm(&spec.datastore, &spec.directory(), spec.id).unwrap();
        assert_eq!(entries(scratch.path()), 0);
        std::fs::create_dir(scratch.path().join("other")).unwrap();
        let taken = VmSpec { name: "other".parse().unwrap(), ..spec };
        assert_eq!(StagedVm::begin(&taken).unwrap_err().code(), "name_taken");
    }

    #[test]
    fn a_link_is_neither_a_vms_directory_nor_its_configuration_nor_the_state_of_its_tpm() {
        let scratch = tempfile::tempdir().unwrap();
        let (own, other) = (scratch.path().join("own"), scratch.path().join("other"));
        for datastore in [&own, &other] {
            std::fs::create_dir(datastore).unwrap();
            identify(datastore).unwrap();
        }
        let (target, spec) = (spec(&other, "web1"), spec(&own, "web2"));
        for spec in [&target, &spec] {
            let staged = StagedVm::begin(spec).unwrap().unwrap();
            add_volume(staged.path());
            VmRecord::new(spec.clone(), None).write(staged.path()).unwrap();
            staged.take_name().unwrap();
        }
        let (theirs, ours) = (target.directory(), spec.directory());
        symlink(&theirs, own.join("web1")).unwrap();
        assert_eq!(VmRecord::read(&own.join("web1")).unwrap_err().code(), "link");
        assert_eq!(delete_vm(&own, &own.join("web1"), target.id).unwrap_err().code(), "link");
        std::fs::create_dir(target.tpm_state_path()).unwrap();
        std::fs::write(target.tpm_state_path().join("tpm2-00.permall"), "sealed").unwrap();
        symlink(target.tpm_state_path(), spec.tpm_state_path()).unwrap();
        assert_eq!(delete_vm(&own, &ours, spec.id).unwrap_err().code(), "stranger");
        std::fs::remove_file(spec.tpm_state_path()).unwrap();
        std::fs::remove_file(ours.join(CONFIGURATION)).unwrap();
        symlink(theirs.join(CONFIGURATION), ours.join(CONFIGURATION)).unwrap();
        assert_eq!(VmRecord::read(&ours).unwrap_err().code(), "link");
        assert!(theirs.join("disk0").exists() && target.tpm_state_path().join("tpm2-00.permall").exists());
    }

    #[test]
    fn what_lies_in_the_place_of_a_new_configuration_is_neither_written_nor_waited_for() {
        let scratch = tempfile::tempdir().unwrap();
        let (new, other) = (scratch.path().join(CONFIGURATION_NEW), scratch.path().join("other"));
        let record = VmRecord::new(spec(scratch.path(), "web1"), None);
        std::fs::write(&other, "somebody's").unwrap();
        std::fs::hard_link(&other, &new).unwrap();
        record.write(scratch.path()).unwrap();
        assert_eq!(std::fs::read(&other).unwrap(), b"somebody's");
        rustix::fs::mknodat(CWD, &new, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let (done, written) = std::sync::mpsc::channel();
        let path = scratch.path().to_owned();
        std::thread::spawn(move || done.send(record.write(&path).is_ok()));
        assert_eq!(written.recv_timeout(Duration::from_secs(60)), Ok(true), "nobody reads the FIFO");
    }

    /// Between the removal of what lies there and the creation an attacker may put it back.
    #[test]
    fn a_file_that_is_linked_there_again_and_again_is_not_written_into() {
        let scratch = tempfile::tempdir().unwrap();
        let (new, other) = (scratch.path().join(CONFIGURATION_NEW), scratch.path().join("other"));
        let record = VmRecord::new(spec(scratch.path(), "web1"), None);
        std::fs::write(&other, "somebody's").unwrap();
        let is_over = AtomicBool::new(false);
        let lost = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let _ = std::fs::hard_link(&other, &new);
                }
            });
            // The attacker wins some of these races, and the writer fails then.
            let lost = (0..200).filter(|_| record.write(scratch.path()).is_err()).count();
            is_over.store(true, Ordering::Relaxed);
            lost
        });
        println!("{lost} of 200 writes failed");
        assert_eq!(std::fs::read(&other).unwrap(), b"somebody's");
    }

    #[test]
    fn a_configuration_that_is_damaged_or_newer_is_told() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("web1");
        std::fs::create_dir(&directory).unwrap();
        assert!(VmRecord::read(&directory).unwrap().is_none());
        let spec = spec(scratch.path(), "web1");
        let mut counted = VmRecord::new(spec, None);
        counted.generation = VmGeneration(u64::MAX);
        let counted = serde_json::to_string(&counted).unwrap();
        for text in ["", "{}", r#"{"format":2}"#, r#"{"format":1}"#, &counted] {
            std::fs::write(directory.join(CONFIGURATION), text).unwrap();
            assert_eq!(VmRecord::read(&directory).unwrap_err().code(), "bad_configuration", "{text}");
        }
    }

    #[test]
    fn a_handover_is_found_where_it_was_written_and_in_no_copy() {
        let scratch = tempfile::tempdir().unwrap();
        let spec = spec(scratch.path(), "web1");
        let staged = StagedVm::begin(&spec).unwrap().unwrap();
        add_volume(staged.path());
        VmRecord::new(spec.clone(), None).write(staged.path()).unwrap();
        staged.take_name().unwrap();
        let (directory, first, second) = (spec.directory(), HandoverId::random(), HandoverId::random());
        assert!(!has_handover(&directory, first).unwrap());
        write_handover(&directory, first).unwrap();
        assert!(has_handover(&directory, first).unwrap() && !has_handover(&directory, second).unwrap());
        write_handover(&directory, second).unwrap();
        assert!(has_handover(&directory, second).unwrap() && !has_handover(&directory, first).unwrap());
        remove_handover(&directory).unwrap();
        remove_handover(&directory).unwrap();
        assert!(!has_handover(&directory, second).unwrap());
        // Neither a link nor a text that is none is one, and a VM with one can be deleted.
        symlink("/etc/passwd", directory.join(HANDOVER)).unwrap();
        assert_eq!(has_handover(&directory, second).unwrap_err().code(), "link");
        remove_handover(&directory).unwrap();
        std::fs::write(directory.join(HANDOVER), [0xff; 100]).unwrap();
        assert!(!has_handover(&directory, second).unwrap());
        delete_vm(&spec.datastore, &directory, spec.id).unwrap();
        assert_eq!(entries(scratch.path()), 0);
    }
}
