//! Small files of the state directory, written so that they are there after a power cut, and the time they record.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Permission bits of whatever is written here: for its owner alone.
pub const PRIVATE_MODE: u32 = 0o600;

/// Writes a new file at `path`, in place of one that is there, and makes its content durable. Not its name: that is
/// [`sync_directory`]'s.
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE_MODE).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Replaces the file at `path` by `content`, durably and in one step.
pub fn replace(path: &Path, staged: &Path, content: &[u8]) -> io::Result<()> {
    write(staged, content)?;
    fs::rename(staged, path)?;
    sync_directory(path.parent().unwrap_or(Path::new("/")))
}

/// Makes the names in `directory` durable.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    File::open(directory)?.sync_all()
}

/// Now, for a record, in seconds since 1970; zero on a machine whose clock stands before.
pub fn unix_seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
