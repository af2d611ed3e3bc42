//! Reads and writes small files of a program's own: settings, notes, keys and certificates.
//!
//! - **Atomic.** The content is written completely to the disk before the file gets its name in one
//!   step; if the process is killed before, the old content remains. Leftovers of a killed process
//!   have names that begin with a dot.
//! - **Durable** when a call returns, including the name, unless stated otherwise.
//! - **Private.** Written files have the mode [`PRIVATE_MODE`].
//! - **Limited.** The caller gives the greatest length of a file; a longer one is not read.
//!
//! Out of scope: formats, and files that grow (volumes, stores, logs).

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

/// Permission bits of written files.
pub const PRIVATE_MODE: u32 = 0o600;

/// A file that something was tried with, and why it failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path}: {error}")]
pub struct FileError {
    /// What was tried, as in "read".
    pub action: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Why not.
    pub error: io::Error,
}

/// Writes `content` to `path`, and replaces an existing file.
///
/// # Errors
/// Those of the file system; the existing file is then unchanged.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    put(path, content, |staged| fs::rename(staged, path))
}

/// Writes `content` to `path`, which must not exist.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`], and those of the file system; nothing is changed then.
pub fn create(path: &Path, content: &[u8]) -> io::Result<()> {
    put(path, content, |staged| Ok(renameat_with(CWD, staged, CWD, path, RenameFlags::NOREPLACE)?))
}

/// Writes a new file at `path`, replaces an existing one, and makes its content durable, but not
/// its name; [`sync_directory`] does that. For files that are not read until another file names
/// them.
///
/// # Errors
/// Those of the file system; part of the file may then exist.
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE_MODE).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Removes a file. Returns whether it existed.
///
/// # Errors
/// Those of the file system.
pub fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => sync_directory(directory_of(path)).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads a file of at most `bytes_max` bytes.
///
/// # Errors
/// [`io::ErrorKind::FileTooLarge`] for a longer one, and those of the file system.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_open(&File::open(path)?, bytes_max)
}

/// Reads the rest of an open file, of at most `bytes_max` bytes.
///
/// # Errors
/// As [`read`].
pub fn read_open(file: &File, bytes_max: u64) -> io::Result<Vec<u8>> {
    // One more byte than the file has. Otherwise the buffer would grow when the end is read, and
    // leave a copy of the content in freed memory.
    let length_bytes = file.metadata()?.len().min(bytes_max);
    let mut content = Vec::with_capacity(usize::try_from(length_bytes).unwrap_or_default().saturating_add(1));
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > bytes_max {
        let reason = format!("it has more than {bytes_max} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(content)
}

/// The files of a directory whose names have this ending and do not begin with a dot, ordered by
/// name; none if the directory does not exist.
///
/// # Errors
/// Those of the file system.
pub fn list(directory: &Path, ending: &str) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(ending) && !name.starts_with('.') {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Makes the names in `directory` durable; the empty path is the current directory.
///
/// # Errors
/// Those of the file system.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    File::open(directory)?.sync_all()
}

/// The directory of a file.
pub fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        None => path,
    }
}

fn put(path: &Path, content: &[u8], into_place: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    let staged = staged_of(path);
    let outcome = write(&staged, content).and_then(|()| into_place(&staged));
    if outcome.is_err() {
        let _ = fs::remove_file(&staged);
    }
    outcome?;
    sync_directory(directory_of(path))
}

/// The path of a file before it gets its name; each thread of the machine uses its own.
fn staged_of(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}", rustix::thread::gettid().as_raw_nonzero()));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_for_its_owner_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cert.pem");
        // Other files beside it are not touched.
        fs::write(path.with_extension("new"), "somebody's").unwrap();
        for content in ["first", "the second"] {
            replace(&path, content.as_bytes()).unwrap();
            assert_eq!(read(&path, 10).unwrap(), content.as_bytes());
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, PRIVATE_MODE);
        }
        assert_eq!(names(directory.path()), ["cert.new", "cert.pem"]);
        assert_eq!(fs::read(path.with_extension("new")).unwrap(), b"somebody's");
        // A file cannot replace a directory, and the attempt leaves nothing behind.
        let taken = directory.path().join("taken");
        fs::create_dir(&taken).unwrap();
        replace(&taken, b"x").unwrap_err();
        assert_eq!(names(directory.path()), ["cert.new", "cert.pem", "taken"]);
    }

    #[test]
    fn what_is_there_is_not_created_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("corp.json");
        create(&path, b"one").unwrap();
        assert_eq!(create(&path, b"other").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(
            (names(directory.path()), read(&path, 3).unwrap()),
            (vec!["corp.json".into()], b"one".into())
        );
        assert!(remove(&path).unwrap() && !remove(&path).unwrap());
        create(&path, b"other").unwrap();
    }

    #[test]
    fn what_cannot_be_told_is_not_taken_for_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        // A path below a file is an error, not a missing file.
        assert_eq!(remove(&file.join("note")).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        assert_eq!(list(&file, ".json").unwrap_err().kind(), io::ErrorKind::NotADirectory);
        assert!(write(&file.join("note"), b"x").is_err());
        assert!(sync_directory(&directory.path().join("none")).is_err());
    }

    #[test]
    fn a_name_alone_is_in_the_directory_that_one_is_in() {
        let directories = ["note", "a/note", "/note", "/"].map(|path| directory_of(Path::new(path)));
        assert_eq!(directories, [".", "a", "/", "/"].map(Path::new));
    }

    #[test]
    fn what_is_too_long_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("note");
        replace(&path, &[7; 8]).unwrap();
        assert_eq!(read(&path, 8).unwrap(), [7; 8]);
        assert_eq!(read(&path, 7).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        // This file does not report its length.
        assert_eq!(read(Path::new("/dev/zero"), 9).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn files_are_listed_by_their_ending_without_what_was_left_behind() {
        let directory = tempfile::tempdir().unwrap();
        assert!(list(&directory.path().join("none"), ".json").unwrap().is_empty());
        for name in ["b.json", "a.json", ".c.json", "d.pem", "staged"] {
            fs::write(directory.path().join(name), "").unwrap();
        }
        fs::write(staged_of(&directory.path().join("e.json")), "").unwrap();
        let expected = ["a.json", "b.json"].map(|name| directory.path().join(name));
        assert_eq!(list(directory.path(), ".json").unwrap(), expected);
    }
}
