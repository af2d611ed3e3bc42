//! What a supervisor gives up before it has a key.

use std::path::{Path, PathBuf};

use strongroom_confine::{SandboxError, SupervisorFiles, confine_supervisor};
use strongroom_providers::Registry;

/// What looking up the names of key servers takes, and what says where a volume lies.
const SYSTEM: [&str; 9] =
    ["/etc", "/usr", "/lib", "/lib64", "/run/systemd/resolve", "/proc", "/sys", "/dev/null", "/dev/urandom"];

/// Leaves this process, which has one thread, what is in these directories, and what fetching keys takes.
///
/// # Errors
/// The process must not have a key then.
pub fn confine(home: &Path, directories: Vec<PathBuf>) -> Result<(), SandboxError> {
    let mut read: Vec<PathBuf> = SYSTEM.into_iter().map(Into::into).collect();
    read.extend(Registry::of_home(home).directories());
    confine_supervisor(&SupervisorFiles { read, write: directories }).map(drop)
}
