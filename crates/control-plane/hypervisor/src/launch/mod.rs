//! The moment between fork and QEMU.
//!
//! QEMU, swtpm and passt are not ours, and cannot confine themselves as a worker does. So our own
//! program is started first, in a process of its own; it gives up what is not needed, says how that
//! went, and becomes the other program:
//!
//! ```text
//! supervisor                          process
//!   starts it, puts it in the cgroup
//!   plan and open files     -->       limits, namespaces, root directory, user, capabilities
//!                           <--       what could not be had, or why it ends
//!   end of the socket       <--       exec
//! ```
//!
//! What it becomes has the process's number from the start, so that there is nothing to be mistaken
//! about.

mod confine;
mod message;
mod process;
mod root;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use strongroom_confine::{LeaseError, UidLease};
use thiserror::Error;

pub use self::confine::process_main;
pub(crate) use self::message::{Become, Network, Plan, Root, Visible};
pub use self::process::{Kills, ProcessFiles, ProcessIdentity};
pub(crate) use self::process::{Process, launch, readable};

/// How our own program is called to become another one: it must call [`process_main`], and do
/// nothing before.
#[derive(Clone, Debug)]
pub struct Launcher {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Launcher {
    /// The program that runs now, with these arguments; whatever is installed in its place
    /// meanwhile.
    pub fn this_program(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self {
            program: PathBuf::from("/proc/self/exe"),
            arguments: arguments.into_iter().map(Into::into).collect(),
        }
    }
}

/// What a machine's processes are kept apart by.
#[derive(Clone, Debug)]
pub struct Isolation<'a> {
    /// What starts them.
    pub launcher: &'a Launcher,
    /// QEMU's user and group, which no other process has; `None` leaves them ours.
    pub user: Option<(u32, u32)>,
    /// What holds that user. QEMU keeps it open, so that nobody gets the user while it lives.
    pub lease: Option<BorrowedFd<'a>>,
    /// Where each process beside QEMU gets a user of its own ([`RUN_DIRECTORY`]); `None` has it be
    /// QEMU's.
    pub users: Option<&'a Path>,
    /// The VM's cgroup (version 2).
    pub cgroup: Option<&'a Path>,
    /// What they must not run without. What else cannot be had is in [`Shortfall`]s.
    pub must: &'a [Measure],
}

impl<'a> Isolation<'a> {
    /// Whatever can be had as the user who asks.
    pub fn of_caller(launcher: &'a Launcher) -> Self {
        Self { launcher, user: None, lease: None, users: None, cgroup: None, must: &[] }
    }

    /// A user for a process beside QEMU: whoever has taken over QEMU, or that process, reaches no
    /// other.
    pub(crate) fn user_beside(&self) -> Result<UserBeside, LaunchError> {
        match self.users {
            None => Ok(UserBeside { lease: None, shared: self.user }),
            Some(directory) => Ok(UserBeside { lease: Some(UidLease::take(directory)?), shared: None }),
        }
    }
}

/// The user of a process beside QEMU.
#[derive(Debug)]
pub(crate) struct UserBeside {
    lease: Option<UidLease>,
    shared: Option<(u32, u32)>,
}

impl UserBeside {
    /// What it is kept apart by.
    pub fn isolation<'a>(&'a self, of_qemu: &Isolation<'a>) -> Isolation<'a> {
        match &self.lease {
            Some(lease) => {
                Isolation { user: Some(lease.user()), lease: Some(lease.as_fd()), ..of_qemu.clone() }
            }
            None => Isolation { user: self.shared, ..of_qemu.clone() },
        }
    }
}

/// A wall that a kernel, or the caller's rights, may not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// IPC, host name, mounts and cgroups of its own, and a network of its own where it needs none.
    Namespaces,
    /// A root directory with nothing in it but programs and what the machine is made of.
    OwnRoot,
    /// A user and group that no other process has.
    OwnUser,
    /// A cgroup, without swap.
    NoSwap,
}

impl fmt::Display for Measure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Namespaces => "own namespaces",
            Self::OwnRoot => "a root directory of its own",
            Self::OwnUser => "a user of its own",
            Self::NoSwap => "memory that is never swapped out",
        })
    }
}

/// A wall that is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shortfall {
    /// Which.
    pub measure: Measure,
    /// Why, and what can be done about it.
    pub reason: String,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.measure, self.reason)
    }
}

/// Why a program was not started.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// There is no user for it.
    #[error(transparent)]
    User(#[from] LeaseError),
    /// A person called, not a supervisor.
    #[error("this command is for the supervisor of a VM, and does nothing without it")]
    NotLaunched,
    /// Not even a process.
    #[error("cannot start a process for {program}: {error}")]
    Spawn {
        /// The program.
        program: String,
        /// Why not.
        error: io::Error,
    },
    /// A step on the way.
    #[error("{program} cannot be started: {step}: {reason}")]
    Step {
        /// The program.
        program: String,
        /// What was tried.
        step: String,
        /// Why it failed.
        reason: String,
    },
    /// It must have what cannot be had.
    #[error("{program} must not run without {shortfall}")]
    Lacks {
        /// The program.
        program: String,
        /// What.
        shortfall: Shortfall,
    },
    /// The process is gone before it became the program.
    #[error("the process that was to become {program} has ended: {said}")]
    Ended {
        /// The program.
        program: String,
        /// What it said on its standard error.
        said: String,
    },
    /// The process does nothing.
    #[error("the process that was to become {program} has not done so within {within:?}")]
    Silent {
        /// The program.
        program: String,
        /// How long was waited.
        within: std::time::Duration,
    },
}

/// Files that a program gets, beside the numbers under which it has them.
#[derive(Debug, Default)]
pub(crate) struct Files(Vec<OwnedFd>);

/// The number of the first file that a program gets: after its standard input, output and error,
/// and the socket it is launched over, which closes as the program begins.
pub(crate) const FIRST_FILE: i32 = 4;

impl Files {
    /// Adds one; its number in the program.
    pub fn add(&mut self, file: OwnedFd) -> i32 {
        self.0.push(file);
        FIRST_FILE + i32::try_from(self.0.len() - 1).unwrap_or(i32::MAX)
    }

    /// All of them, in the order of their numbers.
    pub fn as_slice(&self) -> &[OwnedFd] {
        &self.0
    }
}
