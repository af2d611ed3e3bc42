//! What processes give up before they meet an attacker.
//!
//! **A worker** parses what a hostile guest or client sends, so it is built as if it would lose: it
//! gives up, before it has a key, whatever it will not need, and keeps what it was handed: its
//! volume's file, sockets, its threads and their rings. In this order, because each step needs a
//! right that a later one gives up:
//!
//! ```text
//! single thread   limits -> no swap -> namespaces and an empty root -> own user -> no capability, no new privileges
//!                 -> Landlock -> looked at again: is it all true?                                  confine
//! then            threads and their rings are made
//! all threads     no system call that a worker does not need: no process, no thread, no file        deny_system_calls
//! then            keys arrive, and guests
//! ```
//!
//! **A supervisor** holds KEKs, and hears workers. Another process, without keys, starts what the
//! supervisor needs started, so that it gives up the rights to ([`confine_supervisor`]). So does a
//! job of a VM that is off, which holds the same KEKs: its other process starts qemu-img, or gives
//! a new VM's directory its name. **A monitor** reads for a supervisor what QEMU says: `hypervisor`
//! starts it with QEMU's namespaces and a user of its own, and it denies itself all system calls
//! but those of two sockets ([`deny_to_monitor`]). **qemu-img** reads images of others, and is
//! executed under a filter ([`qemu_img_filter`]).
//!
//! Each wall stands without the others: what seccomp refuses is refused by the empty namespaces
//! too, and what the kernel is too old for is left to the walls that it has. What could not be had
//! is said ([`Report`]), and refused where the caller said that it must be had.
//!
//! For processes that start others: [`UidLease`], a user for each of them, and [`Cgroup`], their
//! memory and tasks.
#![forbid(unsafe_code)]

mod cgroup;
mod identity;
mod landlock;
mod limits;
mod namespaces;
mod system_calls;
mod uid_lease;

use std::fmt;
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use thiserror::Error;

pub use self::cgroup::{Cgroup, CgroupError};
pub use self::limits::{DESCRIPTORS_MAX, TASKS_MAX};
pub use self::system_calls::{deny_system_calls, deny_to_monitor, qemu_img_filter};
pub use self::uid_lease::{LeaseError, RUN_DIRECTORY, UidLease};

/// What a worker is to be confined to.
#[derive(Debug, Clone, Default)]
pub struct Confinement {
    /// Its own user and group, as numbers, which no other process has: of a [`UidLease`]. `None`
    /// leaves it those it has.
    pub user: Option<(u32, u32)>,
    /// What it must have. Without one of these it is not started; what else cannot be had is warned
    /// of.
    pub must: Vec<Measure>,
}

/// A wall of the sandbox that a kernel, or a caller's rights, may not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// A network, IPC, host name, mounts and cgroups of its own, with nothing in them.
    Namespaces,
    /// An empty root directory that nothing can be written to.
    EmptyRoot,
    /// A user and group that no other process has, and no supplementary groups.
    OwnUser,
    /// Landlock denies files, TCP, and what lies outside.
    Landlock,
    /// Its memory is never written to swap.
    NoSwap,
    /// Limits that its volume's file cannot run into.
    Limits,
}

impl fmt::Display for Measure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Namespaces => "own namespaces",
            Self::EmptyRoot => "an empty root directory",
            Self::OwnUser => "a user of its own",
            Self::Landlock => "Landlock",
            Self::NoSwap => "memory that is never swapped out",
            Self::Limits => "room for its files",
        })
    }
}

/// A wall that is missing or lower than it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortfall {
    /// Which.
    pub measure: Measure,
    /// Why, and where it can be said, what a person can do about it.
    pub reason: String,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.measure, self.reason)
    }
}

/// How the confinement of a worker went.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// What could not be had, in the order in which it was found; empty on a new kernel with all
    /// rights.
    pub shortfalls: Vec<Shortfall>,
    must: Vec<Measure>,
    /// For the log.
    who: &'static str,
}

impl Report {
    /// Notes a shortfall, or refuses where the caller said so.
    fn lacks(&mut self, measure: Measure, reason: impl Into<String>) -> Result<(), SandboxError> {
        let shortfall = Shortfall { measure, reason: reason.into() };
        if self.must.contains(&measure) {
            return Err(SandboxError::Lacks(shortfall));
        }
        // Nothing can be done about it by who is not root, and no worker of his has one.
        match measure == Measure::OwnUser && !rustix::process::geteuid().is_root() {
            true => tracing::info!("{} runs without {shortfall}", self.who),
            false => tracing::warn!("{} runs without {shortfall}", self.who),
        }
        self.shortfalls.push(shortfall);
        Ok(())
    }

    /// Whether a measure was had in full.
    pub fn has(&self, measure: Measure) -> bool {
        self.shortfalls.iter().all(|shortfall| shortfall.measure != measure)
    }
}

/// Why a process is not confined. It must not get keys, nor a guest.
#[derive(Debug, Error)]
pub enum SandboxError {
    /// Threads would stay behind outside.
    #[error("the sandbox is entered with one thread, and there are {0}")]
    Threads(usize),
    /// Something that it must have cannot be had.
    #[error("it must not run without {0}")]
    Lacks(Shortfall),
    /// A step that works on every kernel did not.
    #[error("the process cannot be confined: {step}: {errno}")]
    Step {
        /// What was tried.
        step: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
    /// Everything was done, and the kernel says that it is not so.
    #[error("the process is not confined: {0}")]
    Untrue(&'static str),
    /// The filter of system calls.
    #[error("system calls cannot be denied: {0}")]
    SystemCalls(#[from] seccompiler::Error),
}

impl SandboxError {
    fn step(step: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::Step { step, errno }
    }
}

/// Confines the calling process, which has one thread and no key yet; what it opened stays open. To
/// be called before the process makes threads, which are confined with it.
///
/// What could not be had is logged as a warning, each with its reason, and returned. On an error
/// the process may be confined in part, and must end.
pub fn confine(confinement: &Confinement) -> Result<Report, SandboxError> {
    expect_one_thread()?;
    // rustix looks it up at its first use, by ways that will be closed, and panics if it cannot.
    let _ = rustix::param::page_size();
    let mut report = Report { must: confinement.must.clone(), who: "the worker", ..Report::default() };
    limits::set(&mut report)?;
    limits::never_swap(&mut report)?;
    if identity::has(CapabilitySet::SYS_ADMIN)? {
        namespaces::enter(&mut report)?;
        identity::change_user(confinement.user, &mut report)?;
    } else {
        // A user namespace gives the rights for the others, but no way to another user.
        identity::change_user(confinement.user, &mut report)?;
        namespaces::enter_as_ordinary_user(&mut report)?;
    }
    if report.has(Measure::OwnUser) {
        limits::bound_tasks()?;
    }
    identity::give_up_privileges(CapabilitySet::empty())?;
    landlock::deny_everything(&mut report)?;
    let user = confinement.user.filter(|_| report.has(Measure::OwnUser));
    identity::assert_powerless(user, CapabilitySet::empty())?;
    Ok(report)
}

/// What looking up the names of key servers takes, and what says where a volume lies.
const SYSTEM: [&str; 9] =
    ["/etc", "/usr", "/lib", "/lib64", "/run/systemd/resolve", "/proc", "/sys", "/dev/null", "/dev/urandom"];

/// Which files a supervisor is left, beside those of the system that every program reads.
#[derive(Debug, Clone, Default)]
pub struct SupervisorFiles {
    /// What it reads: directories with all below, and files.
    pub read: Vec<PathBuf>,
    /// What it also makes, writes and removes.
    pub write: Vec<PathBuf>,
    /// Whether some of these are other users', and root opens them by its right to
    /// (`CAP_DAC_OVERRIDE`), which it keeps then. Landlock bounds that to these files.
    pub are_other_users: bool,
}

/// Confines the calling process, which has one thread, no key, and somebody who starts processes
/// for it. It stays the user that it is: the files of volumes are that user's.
///
/// What could not be had is logged as a warning, and returned. On an error the process may be
/// confined in part, and must end.
pub fn confine_supervisor(files: &SupervisorFiles) -> Result<Report, SandboxError> {
    expect_one_thread()?;
    let mut report = Report { who: "the supervisor", ..Report::default() };
    limits::lift_locked_memory();
    if identity::has(CapabilitySet::SYS_ADMIN)? {
        namespaces::enter_as_supervisor(&mut report)?;
    }
    identity::leave_groups()?;
    let kept = match files.are_other_users && identity::has(CapabilitySet::DAC_OVERRIDE)? {
        true => CapabilitySet::DAC_OVERRIDE,
        false => CapabilitySet::empty(),
    };
    identity::give_up_privileges(kept)?;
    let read: Vec<_> = SYSTEM.into_iter().map(PathBuf::from).chain(files.read.iter().cloned()).collect();
    landlock::allow_only(&read, &files.write, &mut report)?;
    identity::assert_powerless(None, kept)?;
    system_calls::deny_to_supervisor()?;
    Ok(report)
}

fn expect_one_thread() -> Result<(), SandboxError> {
    match std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count) {
        1 => Ok(()),
        threads => Err(SandboxError::Threads(threads)),
    }
}
