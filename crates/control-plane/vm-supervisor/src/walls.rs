//! Confines a supervisor before it has a key.

use std::path::{Path, PathBuf};

use strongroom_confine::{SandboxError, SupervisorFiles, confine_supervisor};
use strongroom_providers::Registry;

/// Confines this single-threaded process to these directories, and to fetching keys.
///
/// # Errors
/// If it cannot be confined. The process must then not have a key.
pub fn confine(home: &Path, directories: Vec<PathBuf>) -> Result<(), SandboxError> {
    let read = Registry::of_home(home).directories();
    let files = SupervisorFiles { read, write: directories, are_other_users: false };
    confine_supervisor(&files).map(drop)
}
