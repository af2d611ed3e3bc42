//! Confines a supervisor before it has a key.

use std::path::{Path, PathBuf};

use strongroom_confine::{SandboxError, SupervisorFiles, confine_supervisor};
use strongroom_datastore::file::storage::cluster_of;
use strongroom_providers::Registry;

/// Confines this single-threaded process to these directories, and to fetching keys. Directories
/// on a cluster are a storage process's, which this process is connected to.
///
/// # Errors
/// If it cannot be confined. The process must then not have a key.
pub fn confine(home: &Path, mut directories: Vec<PathBuf>) -> Result<(), SandboxError> {
    directories.retain(|directory| cluster_of(directory).is_none());
    let read = Registry::of_home(home).directories();
    let files = SupervisorFiles { read, write: directories, are_other_users: false };
    confine_supervisor(&files).map(drop)
}
