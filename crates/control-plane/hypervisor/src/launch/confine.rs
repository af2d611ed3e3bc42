//! The process's side: it drops its privileges, and becomes the program.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, unshare};
use rustix::fs::Mode;
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{
    Gid, Resource, Rlimit, Signal, Uid, getgid, getuid, set_parent_process_death_signal, setrlimit, umask,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};
use strongroom_confine::close_inherited;
use strongroom_wire::PacketSocket;

use super::message::{Become, Network, Plan, Report, Root, receive, send};
use super::root::enter_own_root;
use super::{FIRST_FILE, Files, LaunchError, Measure, Shortfall};

/// The most capabilities that a kernel can have; a kernel refuses those that it does not know.
const CAPABILITIES_MAX: u32 = 64;
/// The most open files: a vhost-user disk has some for each of up to 64 queues.
const DESCRIPTORS_MAX: u64 = 4096;
/// The limit at which the kernel neither writes a core file nor starts a program for one (core(5):
/// a limit of 0 does not stop a core that is piped to a program, but 1 does).
const CORE_LIMIT: u64 = 1;

/// The parts of this program that a process can become. Each returns when its work is over.
pub(crate) struct Parts {
    /// The frame filter, with the guest's side, the network's, and a socket for the addresses of
    /// the host.
    pub frame_filter: fn(OwnedFd, OwnedFd, OwnedFd) -> io::Result<()>,
    /// The monitor, with the supervisor's side and QEMU's.
    pub monitor: fn(OwnedFd, OwnedFd) -> io::Result<()>,
    /// The monitor of the guest agent, with the supervisor's side and the guest's channel.
    pub agent_monitor: fn(OwnedFd, OwnedFd) -> io::Result<()>,
    /// The gate of a TPM, with its files.
    pub tpm_gate: fn(GateFiles) -> io::Result<()>,
}

/// The files of the gate between QEMU and swtpm, in the order in which they come with its plan.
pub(crate) struct GateFiles {
    /// Where QEMU connects.
    pub qemu: UnixListener,
    /// swtpm's control channel.
    pub swtpm: UnixStream,
    /// The watch of swtpm's directory.
    pub changes: OwnedFd,
    /// Where supervisors connect.
    pub supervisors: UnixListener,
}

impl From<GateFiles> for Files {
    fn from(gate: GateFiles) -> Self {
        let GateFiles { qemu, swtpm, changes, supervisors } = gate;
        Self(vec![qemu.into(), swtpm.into(), changes, supervisors.into()])
    }
}

/// A failed step.
pub(super) enum Failure {
    Step { step: &'static str, reason: String },
    Lacks(Shortfall),
}

/// The walls that could not be built so far.
pub(super) struct Walls {
    must: Vec<Measure>,
    shortfalls: Vec<Shortfall>,
}

impl Walls {
    /// Records a missing wall, or fails if it is mandatory.
    pub fn lacks(&mut self, measure: Measure, reason: impl Into<String>) -> Result<(), Failure> {
        let shortfall = Shortfall { measure, reason: reason.into() };
        if self.must.contains(&measure) {
            return Err(Failure::Lacks(shortfall));
        }
        self.shortfalls.push(shortfall);
        Ok(())
    }
}

/// Turns the error of a step into a [`Failure`].
pub(super) fn step<E: std::fmt::Display>(step: &'static str) -> impl Fn(E) -> Failure {
    move |error| Failure::Step { step, reason: error.to_string() }
}

/// Becomes the program, or the part of this one, that the supervisor names. The supervisor's socket
/// is this process's standard input. Returns only on an error, which has then been reported to the
/// supervisor.
pub(crate) fn become_program(parts: &Parts) -> LaunchError {
    let stdin = io::stdin();
    let is_ours = PacketSocket::adopt(&stdin).is_some();
    let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    if !is_ours || threads != 1 {
        return LaunchError::NotLaunched;
    }
    close_inherited(None);
    let Ok(socket) = stdin.as_fd().try_clone_to_owned() else { return LaunchError::NotLaunched };
    let (plan, files) = match receive::<Plan>(&socket) {
        Ok(Some(received)) => received,
        _ => return LaunchError::NotLaunched,
    };
    let program = plan.becomes.to_string();
    let report = match become_it(&plan, parts, files, &socket) {
        Failure::Lacks(shortfall) => Report::Lacks { shortfall },
        Failure::Step { step, reason } => Report::Failed { step: step.to_owned(), reason },
    };
    let _ = send(&socket, &report, &[]);
    match report {
        Report::Failed { step, reason } => LaunchError::Step { program, step, reason },
        Report::Lacks { shortfall } => LaunchError::Lacks { program, shortfall },
        Report::Confined { .. } => LaunchError::NotLaunched,
    }
}

fn become_it(plan: &Plan, parts: &Parts, files: Vec<OwnedFd>, socket: &OwnedFd) -> Failure {
    let shortfalls = match confine(plan, &files) {
        Err(failure) => return failure,
        Ok(shortfalls) => shortfalls,
    };
    // This comes before the report: if the starting process is already gone by then, the report
    // fails.
    let ends_with_us = match plan.becomes {
        Become::Monitor | Become::AgentMonitor => set_parent_process_death_signal(Some(Signal::KILL)),
        Become::Program(_) | Become::FrameFilter | Become::TpmGate => Ok(()),
    };
    if let Err(errno) = ends_with_us {
        return step("end with the process that starts it")(errno);
    }
    if let Err(errno) = send(socket, &Report::Confined { shortfalls }, &[]) {
        return step("report to the supervisor")(errno);
    }
    match &plan.becomes {
        Become::Program(path) => {
            let mut command = Command::new(path);
            command.args(&plan.arguments).env_clear().current_dir("/");
            command.stdin(Stdio::null()).stdout(Stdio::null());
            step("begin the program")(command.exec())
        }
        Become::FrameFilter => {
            let mut files = files.into_iter();
            let (Some(guest), Some(network), Some(addresses)) = (files.next(), files.next(), files.next())
            else {
                return step("begin the filter")("it has no sockets");
            };
            // The other files, such as the lease of its user, stay open.
            let _held: Vec<OwnedFd> = files.collect();
            match (parts.frame_filter)(guest, network, addresses) {
                Ok(()) => std::process::exit(0),
                Err(error) => step("filter")(error),
            }
        }
        Become::Monitor => become_monitor(parts.monitor, files),
        Become::AgentMonitor => become_monitor(parts.agent_monitor, files),
        Become::TpmGate => {
            let mut files = files.into_iter();
            let (Some(qemu), Some(swtpm), Some(changes), Some(supervisors)) =
                (files.next(), files.next(), files.next(), files.next())
            else {
                return step("begin the gate")("it has no sockets");
            };
            let _held: Vec<OwnedFd> = files.collect();
            let (qemu, swtpm, supervisors) = (qemu.into(), swtpm.into(), supervisors.into());
            match (parts.tpm_gate)(GateFiles { qemu, swtpm, changes, supervisors }) {
                Ok(()) => std::process::exit(0),
                Err(error) => step("be the gate")(error),
            }
        }
    }
}

fn become_monitor(monitor: fn(OwnedFd, OwnedFd) -> io::Result<()>, files: Vec<OwnedFd>) -> Failure {
    let mut files = files.into_iter();
    let (Some(supervisor), Some(qemu)) = (files.next(), files.next()) else {
        return step("begin the monitor")("it has no sockets");
    };
    let _held: Vec<OwnedFd> = files.collect();
    match monitor(supervisor, qemu) {
        Ok(()) => std::process::exit(0),
        Err(error) => step("be the monitor")(error),
    }
}

fn confine(plan: &Plan, files: &[OwnedFd]) -> Result<Vec<Shortfall>, Failure> {
    keep(plan, files)?;
    set_limits()?;
    let mut walls = Walls { must: plan.must.clone(), shortfalls: Vec::new() };
    let privileged = has(CapabilitySet::SYS_ADMIN)?;
    enter_namespaces(plan, privileged, &mut walls)?;
    change_user(plan, privileged, &mut walls)?;
    give_up_privileges()?;
    Ok(walls.shortfalls)
}

/// Keeps the files open in the program, under the numbers in its arguments.
fn keep(plan: &Plan, files: &[OwnedFd]) -> Result<(), Failure> {
    let in_order = files.iter().zip(FIRST_FILE..).all(|(file, number)| file.as_raw_fd() == number);
    if files.len() != plan.files || !in_order {
        return Err(step("take over files")("they did not come as they were sent"));
    }
    files.iter().try_for_each(|file| fcntl_setfd(file, FdFlags::empty())).map_err(step("take over files"))
}

fn set_limits() -> Result<(), Failure> {
    let limit = |resource, most| setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) });
    // The starting process may have a lower limit, which only a privileged process can raise.
    let most =
        rustix::process::getrlimit(Resource::Core).maximum.map_or(CORE_LIMIT, |most| most.min(CORE_LIMIT));
    limit(Resource::Core, CORE_LIMIT)
        .or_else(|_| limit(Resource::Core, most))
        .map_err(step("limit core files"))?;
    let most = rustix::process::getrlimit(Resource::Nofile).maximum;
    limit(Resource::Nofile, most.map_or(DESCRIPTORS_MAX, |most| most.min(DESCRIPTORS_MAX)))
        .map_err(step("limit open files"))?;
    // If a core file is written all the same, it has no memory in it: unlike the non-dumpable flag,
    // this filter survives exec.
    std::fs::write("/proc/self/coredump_filter", "0").map_err(step("keep memory out of core files"))?;
    Ok(())
}

fn has(capability: CapabilitySet) -> Result<bool, Failure> {
    Ok(capabilities(None).map_err(step("read capabilities"))?.effective.contains(capability))
}

fn enter_namespaces(plan: &Plan, privileged: bool, walls: &mut Walls) -> Result<(), Failure> {
    let mut namespaces = CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWCGROUP;
    if plan.network == Network::Own {
        namespaces |= CloneFlags::CLONE_NEWNET;
    }
    let (uid, gid) = (getuid(), getgid());
    if !privileged {
        namespaces |= CloneFlags::CLONE_NEWUSER;
    }
    if let Err(errno) = unshare(namespaces) {
        let reason = if privileged {
            format!("the kernel gives none ({errno}), though this process has the right to them")
        } else {
            format!(
                "this user may make no user namespace ({errno}); see user.max_user_namespaces, \
                 kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns"
            )
        };
        walls.lacks(Measure::Namespaces, reason)?;
        return walls.lacks(Measure::OwnRoot, "it takes a mount namespace");
    }
    if !privileged {
        // The user stays the same: the user owns the sockets.
        let map = |file: &str, inside: u32| {
            std::fs::write(format!("/proc/self/{file}"), format!("{inside} {inside} 1"))
        };
        std::fs::write("/proc/self/setgroups", "deny")
            .and_then(|()| map("uid_map", uid.as_raw()))
            .and_then(|()| map("gid_map", gid.as_raw()))
            .map_err(step("stay the same user in a user namespace"))?;
    }
    if plan.root == Root::Hosts {
        return Ok(());
    }
    // Others may enter the directories of the root; the program's own files are private.
    umask(Mode::from_raw_mode(0o022));
    let entered = enter_own_root(&plan.visible, &plan.becomes);
    umask(Mode::from_raw_mode(0o077));
    // Between two roots, no path can be trusted.
    entered.map_err(|reason| Failure::Step { step: "enter a root directory of its own", reason })
}

fn change_user(plan: &Plan, privileged: bool, walls: &mut Walls) -> Result<(), Failure> {
    let Some((uid, gid)) = plan.user else {
        return walls.lacks(Measure::OwnUser, "none was given to it; it runs as the user that started it");
    };
    if !privileged {
        return walls
            .lacks(Measure::OwnUser, "only root can give it one; it runs as the user that started it");
    }
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let groups: Vec<Gid> = plan.groups.iter().map(|group| Gid::from_raw(*group)).collect();
    // The process has one thread, so the thread's credentials are the process's.
    set_thread_groups(&groups)
        .and_then(|()| set_thread_res_gid(gid, gid, gid))
        .and_then(|()| empty_bounding_set())
        .and_then(|()| set_thread_res_uid(uid, uid, uid))
        .map_err(step("become another user"))
}

fn empty_bounding_set() -> Result<(), Errno> {
    for bit in 0..CAPABILITIES_MAX {
        // The kernel refuses numbers that it does not know.
        let _ = remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit));
    }
    Ok(())
}

fn give_up_privileges() -> Result<(), Failure> {
    if has(CapabilitySet::SETPCAP)? {
        empty_bounding_set().map_err(step("give up capabilities"))?;
    }
    set_no_new_privs(true).map_err(step("refuse new privileges"))?;
    let _ = clear_ambient_capability_set();
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none).map_err(step("give up capabilities"))
}
