//! Small files of the home: there whole or not at all, and durable when they are said to be.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::SystemTime;

use serde::Serialize;

use crate::error::CliError;
use crate::keyserver::make_directories;

/// Puts `content` at `path` as JSON, in place of what is there, durably. The directory is made if it is missing.
pub fn replace(path: &Path, content: &impl Serialize) -> Result<(), CliError> {
    let directory = path.parent().unwrap_or(Path::new("."));
    make_directories(directory)?;
    // Each process has its own, and none is taken for a file of its kind.
    let staged = directory.join(format!(".{}", std::process::id()));
    let failed = |error: io::Error| CliError::File { action: "write", path: path.to_owned(), error };
    let mut text = serde_json::to_vec_pretty(content).map_err(|error| failed(error.into()))?;
    text.push(b'\n');
    let write = || {
        let open = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&staged);
        let mut file = open?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&staged, path)?;
        sync_directory(directory)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&staged);
        failed(error)
    })
}

/// Removes a file, durably; whether it was there.
pub fn remove(path: &Path) -> Result<bool, CliError> {
    let remove = || match fs::remove_file(path) {
        Ok(()) => sync_directory(path.parent().unwrap_or(Path::new("."))).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    };
    remove().map_err(|error| CliError::File { action: "remove", path: path.to_owned(), error })
}

/// Makes the names in it durable.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Now, in seconds since 1970.
pub fn unix_seconds_now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
