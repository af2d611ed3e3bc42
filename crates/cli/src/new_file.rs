//! New files that are complete, durable and private, or do not exist.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use strongroom_files::FileError;

use crate::error::CliError;

/// A file under construction. It is removed unless it is finished.
pub struct NewFile<'a> {
    path: &'a Path,
    file: File,
    finished: bool,
}

impl<'a> NewFile<'a> {
    /// Creates the file, which must not exist.
    pub fn create(path: &'a Path) -> Result<Self, CliError> {
        let created = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
        let file = created.map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => CliError::DestinationExists { path: path.to_owned() },
            _ => CliError::File(FileError { action: "create", path: path.to_owned(), error }),
        })?;
        Ok(Self { path, file, finished: false })
    }

    /// The file, for writing.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Makes the content and the name durable.
    pub fn finish(mut self) -> Result<(), CliError> {
        let parent =
            self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let synced = self.file.sync_all().and_then(|()| File::open(parent)?.sync_all());
        synced.map_err(|error| {
            CliError::File(FileError { action: "write", path: self.path.to_owned(), error })
        })?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if !self.finished {
            // The failure is reported anyway; the file may remain.
            let _ = std::fs::remove_file(self.path);
        }
    }
}

/// A new file without a name in the directory of this one. It is gone with the process.
pub fn unnamed_beside(path: &Path) -> Result<File, CliError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR).map(File::from).map_err(|errno| {
        CliError::File(FileError {
            action: "make a file in",
            path: directory.to_owned(),
            error: errno.into(),
        })
    })
}
