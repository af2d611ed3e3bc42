//! The identity of a datastore.
//!
//! A path is not enough: a disk may not be mounted, and the empty mount point looks like a
//! datastore without volumes. So a datastore whose volumes must be found again has a mark, a small
//! file with a random id, which a returning process compares. The mark is no protection against an
//! attacker who can write to the datastore; it tells a missing disk from an empty one.

use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use strongroom_types::DatastoreId;

use super::create::make_datastore;
use super::directory::system;
use super::error::DatastoreError;
use super::storage::{BY_PATH, Directory, Storage};

/// The mark's name. It is hidden, so that it is not taken for a volume.
pub(super) const MARK: &str = ".strongroom-datastore";

/// The longest mark that is read, in bytes: an id in text and a line end have 37.
const MARK_BYTES_MAX: u64 = 64;

/// Durably marks the datastore at `path`, unless it has a mark. Creates the directory if only it is
/// missing. Returns the datastore's id.
///
/// # Errors
/// [`DatastoreError::Damaged`] if the mark is not valid; if there is no room or no permission.
pub fn identify(path: &Path) -> Result<DatastoreId, DatastoreError> {
    identify_on(BY_PATH, path)
}

/// As [`identify`], on another file system.
pub fn identify_on(storage: &dyn Storage, path: &Path) -> Result<DatastoreId, DatastoreError> {
    make_datastore(storage, path)?;
    let datastore = storage.open_directory(path).map_err(system("open", path))?;
    datastore.file_system(path)?;
    if let Some(found) = read(&*datastore, path)? {
        // The process that made the mark may have been killed before it was durable.
        datastore.sync().map_err(system("sync", path))?;
        return Ok(found);
    }
    let id = DatastoreId::random();
    let building = format!("{MARK}-{id}");
    let write = || {
        let file = datastore.open(&building, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
        file.write_at(0, format!("{id}\n").as_bytes())?;
        file.sync()?;
        storage.rename(&path.join(&building), &path.join(MARK))
    };
    let written = write();
    if written.is_err() {
        let _ = datastore.remove(&building);
    }
    match written {
        // Another process was faster.
        Err(Errno::EXIST) => {}
        written => written.map_err(system("mark", path))?,
    }
    datastore.sync().map_err(system("sync", path))?;
    read(&*datastore, path)?.ok_or_else(|| system("mark", path)(Errno::NOENT))
}

/// The id of the datastore at `path`; `None` if it has no mark.
///
/// # Errors
/// If the directory cannot be read, or its mark is not valid.
pub fn identity(path: &Path) -> Result<Option<DatastoreId>, DatastoreError> {
    identity_on(BY_PATH, path)
}

/// As [`identity`], on another file system.
pub fn identity_on(storage: &dyn Storage, path: &Path) -> Result<Option<DatastoreId>, DatastoreError> {
    let datastore = storage.open_directory(path).map_err(system("open", path))?;
    read(&*datastore, path)
}

fn read(datastore: &dyn Directory, path: &Path) -> Result<Option<DatastoreId>, DatastoreError> {
    let file = match datastore.open(MARK, OFlags::RDONLY) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(system("read the mark of", path)(errno)),
    };
    let length = file.length().map_err(system("read the mark of", path))?.min(MARK_BYTES_MAX);
    let mut bytes = vec![0; length as usize];
    let count = file.read_at(0, &mut bytes).map_err(system("read the mark of", path))?;
    let text = std::str::from_utf8(&bytes[..count]).ok().map(str::trim_end);
    text.and_then(|text| text.parse().ok())
        .map(Some)
        .ok_or_else(|| DatastoreError::UnknownMark { path: path.to_owned(), mark: path.join(MARK) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::list;

    #[test]
    fn a_datastore_is_known_again_and_an_empty_directory_is_another() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("ds");
        let id = identify(&path).unwrap();
        assert_eq!(identify(&path).unwrap(), id);
        assert_eq!(identity(&path).unwrap(), Some(id));
        assert!(list(&path).unwrap().is_empty(), "the mark is no volume");
        std::fs::remove_file(path.join(MARK)).unwrap();
        assert_eq!(identity(&path).unwrap(), None);
        assert_ne!(identify(&path).unwrap(), id);
        std::fs::write(path.join(MARK), "no id").unwrap();
        let error = identify(&path).unwrap_err();
        assert_eq!(error.code(), "unknown_mark");
        assert!(identity(&scratch.path().join("none")).is_err());
    }

    #[test]
    fn of_many_that_mark_at_once_all_find_the_same() {
        let scratch = tempfile::tempdir().unwrap();
        let found: Vec<_> = std::thread::scope(|scope| {
            let marking: Vec<_> = (0..8).map(|_| scope.spawn(|| identify(scratch.path()).unwrap())).collect();
            marking.into_iter().map(|marking| marking.join().unwrap()).collect()
        });
        assert!(found.iter().all(|id| *id == found[0]), "{found:?}");
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 1);
    }
}
