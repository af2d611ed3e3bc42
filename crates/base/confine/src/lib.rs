//! Confines processes before they handle an attacker's input.
//!
//! **A worker** parses the input of hostile guests and clients, so it is designed to be
//! compromised. Before it has a key it gives up everything that it will not need, and keeps what it
//! was given: its volume's file, sockets, its threads and their rings. The order matters, because
//! each step needs a right that a later step gives up:
//!
//! ```text
//! single thread   limits -> no swap -> namespaces and an empty root -> own user
//!                 -> no capability, no new privileges -> Landlock -> verify all of it   confine
//! then            threads and their rings are made
//! all threads     only the system calls that a worker needs: none that make a process,
//!                 a thread or a file                                          deny_system_calls
//! then            keys arrive, and guests
//! ```
//!
//! **A supervisor** holds KEKs and parses messages of workers. Another process, without keys,
//! starts its children, so the supervisor gives up the right to do so ([`confine_supervisor`]). The
//! same holds for a job on a VM that is off, which holds the same KEKs: its other process starts
//! qemu-img, or renames a new VM's directory. **A monitor** reads QEMU's output for a supervisor:
//! `hypervisor` starts it in QEMU's namespaces with its own user, and it denies itself all system
//! calls except those for two sockets ([`deny_to_monitor`]). **A gate** before a TPM does the same
//! ([`deny_to_tpm_gate`]). **qemu-img** reads untrusted images,
//! and is executed under a filter ([`qemu_img_filter`]).
//!
//! Each barrier works without the others: what seccomp refuses, the empty namespaces refuse too,
//! and if the kernel is too old for one barrier, the others remain. A missing barrier is reported
//! ([`Report`]), or is an error if the caller requires it.
//!
//! For processes that start others: [`UidLease`] gives each child its own user, and [`Cgroup`]
//! limits memory and tasks.
#![forbid(unsafe_code)]

mod cgroup;
mod identity;
mod landlock;
mod limits;
mod namespaces;
mod system_calls;
mod uid_lease;

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use thiserror::Error;

pub use self::cgroup::{Cgroup, CgroupError};
pub use self::limits::{DESCRIPTORS_MAX, TASKS_MAX, cgroup_of};
pub use self::system_calls::{deny_system_calls, deny_to_monitor, deny_to_tpm_gate, qemu_img_filter};
pub use self::uid_lease::{LeaseError, RUN_DIRECTORY, UidLease};

/// The confinement of a worker.
#[derive(Debug, Clone, Default)]
pub struct Confinement {
    /// Its own user and group, as numbers that no other process has, from a [`UidLease`]. `None`
    /// keeps the present ones.
    pub user: Option<(u32, u32)>,
    /// The required measures. If one of them is unavailable, confinement fails; other missing
    /// measures cause a warning.
    pub must: Vec<Measure>,
}

/// A measure of the sandbox that may be unavailable for lack of kernel support or of rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Own, empty namespaces for network, IPC, host name, mounts and cgroups.
    Namespaces,
    /// An empty root directory that cannot be written to.
    EmptyRoot,
    /// A user and group that no other process has, and no supplementary groups.
    OwnUser,
    /// Landlock denies files, TCP, and signals and abstract sockets to the outside.
    Landlock,
    /// Its memory is never written to swap.
    NoSwap,
    /// Limits that are high enough for its volume's file.
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

/// A measure that is missing or incomplete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortfall {
    /// The measure.
    pub measure: Measure,
    /// The reason, and if possible what a person can do about it.
    pub reason: String,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.measure, self.reason)
    }
}

/// The result of confining a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The missing measures, in the order in which they were found; empty on a new kernel with all
    /// rights.
    pub shortfalls: Vec<Shortfall>,
    must: Vec<Measure>,
    /// The name of the process in the log.
    who: &'static str,
}

impl Report {
    /// Records a shortfall, or returns an error if the measure is required.
    fn lacks(&mut self, measure: Measure, reason: impl Into<String>) -> Result<(), SandboxError> {
        let shortfall = Shortfall { measure, reason: reason.into() };
        if self.must.contains(&measure) {
            return Err(SandboxError::Lacks(shortfall));
        }
        // An ordinary user cannot change this, and none of their workers has its own user.
        match measure == Measure::OwnUser && !rustix::process::geteuid().is_root() {
            true => tracing::info!("{} runs without {shortfall}", self.who),
            false => tracing::warn!("{} runs without {shortfall}", self.who),
        }
        self.shortfalls.push(shortfall);
        Ok(())
    }

    /// Whether a measure is completely in effect.
    pub fn has(&self, measure: Measure) -> bool {
        self.shortfalls.iter().all(|shortfall| shortfall.measure != measure)
    }
}

/// The reasons why a process is not confined. It must get neither keys nor a guest then.
#[derive(Debug, Error)]
pub enum SandboxError {
    /// There are other threads, which would stay outside the sandbox.
    #[error("the sandbox is entered with one thread, and there are {0}")]
    Threads(usize),
    /// A required measure is unavailable.
    #[error("it must not run without {0}")]
    Lacks(Shortfall),
    /// A step that should work on every kernel failed.
    #[error("the process cannot be confined: {step}: {errno}")]
    Step {
        /// The step.
        step: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
    /// All steps succeeded, but the kernel reports another state.
    #[error("the process is not confined: {0}")]
    Untrue(&'static str),
    /// The filter of system calls could not be built or installed.
    #[error("system calls cannot be denied: {0}")]
    SystemCalls(#[from] seccompiler::Error),
}

impl SandboxError {
    fn step(step: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::Step { step, errno }
    }
}

/// Confines the calling process, which has one thread and no key yet; files that it has open stay
/// open. Call it before the process makes threads, which inherit the confinement.
///
/// Missing measures are logged as warnings with their reasons, and returned. On an error the
/// process may be partly confined, and must end.
pub fn confine(confinement: &Confinement) -> Result<Report, SandboxError> {
    expect_one_thread()?;
    // rustix looks it up at its first use, in ways that will be denied, and panics if it cannot.
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

/// The paths that name resolution of key servers and the discovery of a volume's device need.
const SYSTEM: [&str; 9] =
    ["/etc", "/usr", "/lib", "/lib64", "/run/systemd/resolve", "/proc", "/sys", "/dev/null", "/dev/urandom"];

/// The files that a supervisor may access, besides those of the system that every program reads.
#[derive(Debug, Clone, Default)]
pub struct SupervisorFiles {
    /// The files that it reads, and the directories with all content.
    pub read: Vec<PathBuf>,
    /// The files and directories that it also creates, writes and removes.
    pub write: Vec<PathBuf>,
    /// Whether some of these belong to other users, and root opens them by the capability
    /// `CAP_DAC_OVERRIDE`, which it then keeps. Landlock limits it to these files.
    pub are_other_users: bool,
}

/// Confines the calling process, which has one thread and no key, and for which another process
/// starts children. It keeps its user, who owns the files of its volumes.
///
/// Missing measures are logged as warnings, and returned. On an error the process may be partly
/// confined, and must end.
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

/// Confines the calling process, which has one thread, and which talks to other machines: `who`, as
/// the log names it. It has no key of a volume. Its libraries are loaded already. It keeps the
/// network and threads; it writes no file, and starts no process.
///
/// Missing measures are logged as warnings, and returned. On an error the process may be partly
/// confined, and must end.
pub fn confine_client(who: &'static str, user: Option<(u32, u32)>) -> Result<Report, SandboxError> {
    expect_one_thread()?;
    let mut report = Report { who, ..Report::default() };
    limits::set(&mut report)?;
    identity::change_user(user, &mut report)?;
    identity::give_up_privileges(CapabilitySet::empty())?;
    let read: Vec<_> = SYSTEM.into_iter().map(PathBuf::from).collect();
    landlock::allow_only(&read, &[], &mut report)?;
    let user = user.filter(|_| report.has(Measure::OwnUser));
    identity::assert_powerless(user, CapabilitySet::empty())?;
    system_calls::deny_to_client()?;
    Ok(report)
}

/// Closes what this process inherited beside its standard streams and `except`. To be called
/// before it has opened a file: another process may have had descriptors that are not for it.
pub fn close_inherited(except: Option<BorrowedFd<'_>>) {
    let except = except.map(|file| file.as_raw_fd());
    let numbers = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers: Vec<i32> = numbers
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|number| *number > 2 && Some(*number) != except)
        .collect();
    for number in numbers {
        // The descriptor of the directory itself is already closed.
        let _ = nix::unistd::close(number);
    }
}

fn expect_one_thread() -> Result<(), SandboxError> {
    match std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count) {
        1 => Ok(()),
        threads => Err(SandboxError::Threads(threads)),
    }
}
