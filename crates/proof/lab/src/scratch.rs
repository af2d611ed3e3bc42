//! A directory of a command's own.

use std::fs;
use std::path::{Path, PathBuf};

use strongroom_lab::programs::ProgramError;

/// A directory that is removed on drop, with all its contents.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Makes a directory in `parent`, whose name begins with `prefix`. It should be short, because
    /// a socket's path has 107 bytes at most.
    pub fn new(parent: &Path, prefix: &str) -> Result<Self, ProgramError> {
        let path = parent.join(format!("{prefix}-{}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => Ok(Self(path)),
            Err(error) => Err(ProgramError::File { action: "make", path, error }),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("strongroom-lab: cannot delete {}: {error}; delete it by hand", self.0.display());
        }
    }
}
