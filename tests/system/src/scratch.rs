//! The directory of one test.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A fresh directory for all files of one test: its datastore, sockets, keys and logs.
///
/// It is removed when the test passes. When the test fails, the directory stays, and its path is
/// printed.
pub struct Scratch {
    directory: Option<TempDir>,
}

impl Scratch {
    /// Makes the directory, in `$TMPDIR` or `/tmp`: unix sockets need a short path (108 bytes,
    /// `unix(7)`), which the target directory of a checkout is not.
    pub fn new() -> Self {
        let directory = tempfile::Builder::new()
            .prefix("strongroom-")
            .tempdir()
            .expect("a temporary directory can be made");
        Self { directory: Some(directory) }
    }

    /// The path of `name` in this directory; nothing is created.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    /// Makes the directory `name` in this one.
    pub fn make_directory(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("cannot make {}: {error}", path.display()));
        path
    }

    fn root(&self) -> &Path {
        self.directory.as_ref().expect("the directory is taken only on drop").path()
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(directory) = self.directory.take()
        {
            eprintln!("the test's datastore and logs are kept in {}", directory.keep().display());
        }
    }
}
