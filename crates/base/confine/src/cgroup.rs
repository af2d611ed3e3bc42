//! A cgroup (version 2) for a worker: it forbids swap, limits the count of tasks, and is removed
//! with the worker.
//!
//! It is made below the supervisor's own cgroup, which a service gets with `Delegate=yes`. The
//! kernel gives controllers only to the children of a cgroup without processes, so a supervisor
//! that is alone in its own cgroup first moves into a leaf of it, as systemd's documentation of
//! delegation requires.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, getpid};
use thiserror::Error;

use super::limits::own_cgroup;

/// The name of the supervisor's own leaf.
const SUPERVISOR: &str = "supervisor";
/// The prefix of the workers' cgroups.
const PREFIX: &str = "worker-";
/// The controllers that limit a worker.
const CONTROLLERS: [&str; 2] = ["memory", "pids"];

/// The reasons why a worker has no cgroup. It can run without one.
#[derive(Debug, Error)]
pub enum CgroupError {
    /// There is no hierarchy of version 2, or it is not visible.
    #[error("this host has no cgroup hierarchy of version 2 mounted")]
    NoHierarchy,
    /// The caller may not divide its own cgroup.
    #[error("{path} cannot be divided: {error}; delegate it (Delegate=yes)")]
    NotDelegated {
        /// The caller's cgroup.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// A worker cannot be put into it.
    #[error("process {pid:?} cannot be moved into {path}: {error}")]
    Move {
        /// The process.
        pid: Pid,
        /// The cgroup.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
}

/// A worker's cgroup. It is removed on drop; the worker must have ended by then.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    warnings: Vec<String>,
}

impl Cgroup {
    /// Makes a cgroup below the caller's own. `name` distinguishes the workers of one supervisor;
    /// `tasks_max` limits the worker's threads together with those that the kernel makes for its
    /// rings ([`super::TASKS_MAX`] suffices).
    ///
    /// Limits that the kernel does not offer are listed in [`Self::warnings`], such as memory
    /// limits on a host that has them in hierarchies of version 1.
    pub fn create(name: &str, tasks_max: u32) -> Result<Self, CgroupError> {
        let own = own_cgroup().filter(|path| path.is_dir()).ok_or(CgroupError::NoHierarchy)?;
        // A supervisor that is already in its leaf divides the parent.
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
        // Without its controller, whose absence was reported, a limit has no file.
        let _ = fs::write(cgroup.path.join("memory.swap.max"), "0");
        let _ = fs::write(cgroup.path.join("pids.max"), tasks_max.to_string());
        Ok(cgroup)
    }

    /// Moves a process into it, before the process confines itself: its memory counts from then on.
    pub fn add(&self, pid: Pid) -> Result<(), CgroupError> {
        fs::write(self.path.join("cgroup.procs"), pid.as_raw_nonzero().to_string())
            .map_err(|error| CgroupError::Move { pid, path: self.path.clone(), error })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The limits that it lacks, and why.
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

/// Enables a controller for the children of a cgroup.
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

/// Moves this process into a leaf of a cgroup in which it is alone.
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

/// Removes the cgroups that killed supervisors left. The kernel keeps those that still have a
/// process.
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

/// The process id of the supervisor whose worker a cgroup was made for.
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

    /// A plain directory has no controllers, like a hierarchy of version 2 beside those of
    /// version 1.
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
        // A real cgroup has no files to remove.
        for file in ["memory.swap.max", "pids.max"] {
            fs::remove_file(path.join(file)).unwrap();
        }
        drop(cgroup);
        assert!(!path.exists());
    }
}
