//! Small files that are replaced as a whole, and directories' entries.

use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::directory::VolumeDirectory;
use super::error::DatastoreError;
use super::filesystem::FileSystem;
use super::mounts::BY_PATH;
use super::storage::Directory;

/// What follows a file's name in that of its successor while that is written.
const NEW: &str = ".new";

/// Replaces a file, durably: after a power cut there is the old one or the new one, whole.
///
/// A file with the name of the new one is removed rather than written into: it may be a link to
/// another file, or a FIFO without a reader.
pub fn replace_file(directory: &dyn Directory, name: &str, content: &[u8]) -> Result<(), Errno> {
    let new = format!("{name}{NEW}");
    remove_file(directory, &new)?;
    let file = directory.open(&new, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
    file.write_at(0, content)?;
    file.sync()?;
    drop(file);
    directory.rename(&new, name)?;
    directory.sync()
}

/// Reads a file, at most its first `bytes_max`; `None` if there is none. Links are not followed
/// (`LOOP`).
pub fn read_file(directory: &dyn Directory, name: &str, bytes_max: usize) -> Result<Option<Vec<u8>>, Errno> {
    let file = match directory.open(name, OFlags::RDONLY) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened?,
    };
    let length = usize::try_from(file.length()?).unwrap_or(bytes_max).min(bytes_max);
    let mut content = vec![0; length];
    let count = file.read_at(0, &mut content)?;
    content.truncate(count);
    Ok(Some(content))
}

/// Removes a file, if there is one.
pub fn remove_file(directory: &dyn Directory, name: &str) -> Result<(), Errno> {
    match directory.remove(name) {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

/// Whether it is certain that nothing lies at the path, not even a link. A cluster that does not
/// answer, or a directory that must not be looked into, leaves that open.
pub fn is_gone(path: &Path) -> bool {
    !BY_PATH.exists(path) && matches!(BY_PATH.open_directory(path), Err(Errno::NOENT))
}

/// The file system of a datastore, or of a VM's directory in one, with its room.
///
/// # Errors
/// If the directory cannot be opened, or its file system cannot hold volumes.
pub fn file_system_of(path: &Path) -> Result<FileSystem, DatastoreError> {
    VolumeDirectory::open_datastore(BY_PATH, path)?.file_system()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::storage::EntryKind;

    #[test]
    fn a_file_is_replaced_and_nothing_is_written_through_what_lies_in_its_successors_place() {
        let scratch = tempfile::tempdir().unwrap();
        let (other, new) = (scratch.path().join("other"), scratch.path().join("note.new"));
        let directory = BY_PATH.open_directory(scratch.path()).unwrap();
        assert_eq!(read_file(&*directory, "note", 10).unwrap(), None);
        for content in [b"one".as_slice(), b"two"] {
            std::fs::write(&other, "somebody's").unwrap();
            std::fs::hard_link(&other, &new).unwrap();
            replace_file(&*directory, "note", content).unwrap();
            assert_eq!(read_file(&*directory, "note", 10).unwrap().as_deref(), Some(content));
            assert_eq!(std::fs::read(&other).unwrap(), b"somebody's");
        }
        assert_eq!(read_file(&*directory, "note", 2).unwrap().as_deref(), Some(b"tw".as_slice()));
        remove_file(&*directory, "note").unwrap();
        remove_file(&*directory, "note").unwrap();
        std::os::unix::fs::symlink(&other, scratch.path().join("note")).unwrap();
        assert_eq!(read_file(&*directory, "note", 10).unwrap_err(), Errno::LOOP);
    }

    #[test]
    fn what_is_there_is_not_gone_even_where_nobody_may_look() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = BY_PATH.open_directory(scratch.path()).unwrap();
        std::fs::write(scratch.path().join("file"), "").unwrap();
        std::fs::create_dir(scratch.path().join("directory")).unwrap();
        std::os::unix::fs::symlink("nowhere", scratch.path().join("link")).unwrap();
        for (name, kind) in
            [("file", EntryKind::File), ("directory", EntryKind::Directory), ("link", EntryKind::Other)]
        {
            assert_eq!(directory.kind(name), Ok(kind), "{name}");
            assert!(!is_gone(&scratch.path().join(name)), "{name}");
        }
        assert_eq!(directory.kind("none"), Err(Errno::NOENT));
        assert!(is_gone(&scratch.path().join("none")));
        let cluster = super::super::mounts::cluster_path(strongroom_types::DatastoreId::random());
        assert!(!is_gone(&cluster), "it is only not mounted");
    }
}
