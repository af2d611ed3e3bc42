//! The program that a worker runs.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, Mode, OFlags, fstat, openat};

/// A program's open file, whatever is installed at its path meanwhile: a dead worker is replaced by
/// one of the same program, and only an upgrade looks at the path again.
#[derive(Debug)]
pub struct Program {
    path: PathBuf,
    file: OwnedFd,
    arguments: Vec<OsString>,
}

impl Program {
    /// Opens the program at `path` as it is now, to be run with these arguments.
    pub fn at(path: &Path, arguments: Vec<OsString>) -> io::Result<Self> {
        let file = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { path: path.to_owned(), file, arguments })
    }

    /// Opens the program that is at the same path now.
    pub(super) fn installed_now(&self) -> io::Result<Self> {
        Self::at(&self.path, self.arguments.clone())
    }

    /// Whether both are the same file.
    pub(super) fn is_same_file(&self, other: &Self) -> bool {
        let identity = |program: &Self| fstat(&program.file).map(|found| (found.st_dev, found.st_ino));
        matches!((identity(self), identity(other)), (Ok(one), Ok(other)) if one == other)
    }

    /// The path where it was found.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A command that runs it in a separate process group (Control-C is for the supervisor) and
    /// with an empty environment.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        command.arg0(self.path.file_name().unwrap_or(self.path.as_os_str()));
        command.args(&self.arguments).env_clear().process_group(0);
        command
    }
}
