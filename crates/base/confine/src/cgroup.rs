//! A cgroup (version 2) for a worker: no swap, a bounded number of tasks, and gone with it.
//!
//! It is made below the supervisor's own cgroup, which a service gets with `Delegate=yes`. The
//! kernel gives controllers only to the children of a cgroup without processes, so a supervisor
//! that is alone in its own moves into a leaf of it first, as systemd's documentation of delegation
//! asks for.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, getpid};
use thiserror::Error;

use super::limits::own_cgroup;

/// The supervisor's own leaf.
const SUPERVISOR: &str = "supervisor";
/// Before the name of each worker's.
const PREFIX: &str = "worker-";
/// What limits a worker.
const CONTROLLERS: [&str; 2] = ["memory", "pids"];

/// Why there is no cgroup for a worker, which can run without.
#[derive(Debug, Error)]
pub enum CgroupError {
    /// No hierarchy of version 2, or not visible.
    #[error("this host has no cgroup hierarchy of version 2 mounted")]
    NoHierarchy,
    /// The caller's own cgroup is not its own to divide.
    #[error("{path} cannot be divided: {error}; delegate it (Delegate=yes)")]
    NotDelegated {
        /// The caller's cgroup.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// A worker cannot be put into it.
    #[error("process {pid:?} cannot be moved into {path}: {error}")]
    Move {
        /// Which process.
        pid: Pid,
        /// Where to.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
}

/// A worker's cgroup; removed on drop, when the worker must be gone.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    warnings: Vec<String>,
}

impl Cgroup {
    /// Makes one below the caller's own. `name` tells the workers of one supervisor apart;
    /// `tasks_max` bounds the worker's threads together with those that the kernel makes for its
    /// rings ([`super::TASKS_MAX`] will do).
    ///
    /// What the kernel does not offer, such as memory limits on a host that has them in hierarchies
    /// of version 1, is in [`Self::warnings`].
    pub fn create(name: &str, tasks_max: u32) -> Result<Self, CgroupError> {
        let own = own_cgroup().filter(|path| path.is_dir()).ok_or(CgroupError::NoHierarchy)?;
        // A supervisor in its leaf divides the cgroup above.
        let parent = match (own.file_name(), own.parent()) {
            (Some(leaf), Some(parent)) if leaf == SUPERVISOR => parent.to_owned(),
            _ => own,
        };
        Self::create_in(&parent, name, tasks_max)
    }

    fn create_in(parent: &Path, name: &str, tasks_max: u32) -> Result<Self, CgroupError> {
        remove_abandoned(parent);
        let mut warnings = Vec::new();
        for controller in CONTROLLERS {
            if let Err(reason) = enable(parent, controller) {
                warnings.push(reason);
            }
        }
        let path = parent.join(format!("{PREFIX}{}-{name}", getpid().as_raw_nonzero()));
        let refused = |error| CgroupError::NotDelegated { path: parent.to_owned(), error };
        fs::create_dir(&path).map_err(refused)?;
        let cgroup = Self { path, warnings };
        // Without its controller, whose lack was said, a limit has no file.
        let _ = fs::write(cgroup.path.join("memory.swap.max"), "0");
        let _ = fs::write(cgroup.path.join("pids.max"), tasks_max.to_string());
        Ok(cgroup)
    }

    /// Puts a process into it, before that one confines itself: its memory counts from here on.
    pub fn add(&self, pid: Pid) -> Result<(), CgroupError> {
        fs::write(self.path.join("cgroup.procs"), pid.as_raw_nonzero().to_string())
            .map_err(|error| CgroupError::Move { pid, path: self.path.clone(), error })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it cannot limit, and why.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.path) {
            tracing::warn!("{} stays behind: {error}", self.path.display());
        }
    }
}

/// Gives a controller to the children of a cgroup.
fn enable(parent: &Path, controller: &str) -> Result<(), String> {
    let read = |file| fs::read_to_string(parent.join(file)).unwrap_or_default();
    let listed = |list: &str| list.split_whitespace().any(|word| word == controller);
    if listed(&read("cgroup.subtree_control")) {
        return Ok(());
    }
    if !listed(&read("cgroup.controllers")) {
        return Err(format!(
            "no {controller} limits in {}: not delegated to it, or this host has them in a hierarchy of version 1 \
             (boot with systemd.unified_cgroup_hierarchy=1)",
            parent.display()
        ));
    }
    let command = format!("+{controller}");
    let switch_on = || fs::write(parent.join("cgroup.subtree_control"), &command);
    switch_on().or_else(|_| move_into_leaf(parent).and_then(|()| switch_on())).map_err(|error| {
        format!("no {controller} limits in {}: {error}; other processes may be in it", parent.display())
    })
}

/// Moves this process into a leaf of a cgroup that it is alone in.
fn move_into_leaf(parent: &Path) -> io::Result<()> {
    let own = getpid().as_raw_nonzero().to_string();
    if fs::read_to_string(parent.join("cgroup.procs"))?.trim() != own {
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    let leaf = parent.join(SUPERVISOR);
    match fs::create_dir(&leaf) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    fs::write(leaf.join("cgroup.procs"), own)
}

/// Removes what killed supervisors left: the kernel keeps those that still have a process.
fn remove_abandoned(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let abandoned = name.to_str().and_then(supervisor_of).is_some_and(|pid| {
            pid != getpid().as_raw_nonzero().get() && !Path::new("/proc").join(pid.to_string()).exists()
        });
        if abandoned {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Whose worker a cgroup was made for.
fn supervisor_of(name: &str) -> Option<i32> {
    name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_whose_worker_it_is() {
        assert_eq!(supervisor_of("worker-17-vm-1"), Some(17));
        for other in ["worker-17", "worker-x-1", "supervisor", ""] {
            assert_eq!(supervisor_of(other), None);
        }
    }

    /// A plain directory has no controllers, as a hierarchy of version 2 beside those of version 1.
    #[test]
    fn missing_controllers_are_said_and_abandoned_groups_removed() {
        let parent = tempfile::tempdir().unwrap();
        let abandoned = parent.path().join(format!("{PREFIX}{}-old", i32::MAX));
        fs::create_dir(&abandoned).unwrap();
        let cgroup = Cgroup::create_in(parent.path(), "vm", 16).unwrap();
        assert!(!abandoned.exists());
        assert_eq!(cgroup.warnings().len(), CONTROLLERS.len(), "{:?}", cgroup.warnings());
        assert!(cgroup.warnings()[0].contains("no memory limits"));
        let path = cgroup.path().to_owned();
        assert!(path.is_dir());
        // A real one has no files to remove.
        for file in ["memory.swap.max", "pids.max"] {
            fs::remove_file(path.join(file)).unwrap();
        }
        drop(cgroup);
        assert!(!path.exists());
    }
}
