//! What a supervisor gives up before it has a key.

use std::path::{Path, PathBuf};

use strongroom_confine::{SandboxError, SupervisorFiles, confine_supervisor};
use strongroom_providers::Registry;

/// Leaves this process, which has one thread, what is in these directories, and what fetching keys
/// takes.
///
/// # Errors
/// The process must not have a key then.
pub fn confine(home: &Path, directories: Vec<PathBuf>) -> Result<(), SandboxError> {
    let read = Registry::of_home(home).directories();
    let files = SupervisorFiles { read, write: directories, are_other_users: false };
    confine_supervisor(&files).map(drop)
}
