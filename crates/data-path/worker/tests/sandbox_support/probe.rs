//! The code that runs inside a probe.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};
use strongroom_confine::{
    Confinement, Report, SupervisorFiles, confine, confine_supervisor, deny_system_calls, deny_to_monitor,
};
use strongroom_ring::Lanes;

use super::{LEASED, Walls, deeds, duties};

/// The variable that names the deed.
pub const DEED: &str = "STRONGROOM_PROBE_DEED";
/// The variable that names the confinement.
pub const WALLS: &str = "STRONGROOM_PROBE_WALLS";
/// The variable with the directory of the files that it could use before.
pub const DIRECTORY: &str = "STRONGROOM_PROBE_DIRECTORY";
/// The directory in it that a supervisor keeps.
pub const OWN: &str = "own";
/// The variable with the port of a server on the loopback network.
pub const PORT: &str = "STRONGROOM_PROBE_PORT";
/// The variable with the process that it tries to harm.
pub const TARGET: &str = "STRONGROOM_PROBE_TARGET";
/// The exit status if the deed was done; otherwise it is an error number, all of which are lower.
pub const DONE: i32 = 200;

/// The data and open files that a probe has from before it was confined.
pub struct Before {
    pub directory: PathBuf,
    pub port: u16,
    pub target: Pid,
    /// The open directory.
    pub beneath: OwnedFd,
    /// The target's directory below `/proc`.
    pub process: OwnedFd,
    /// The host's network.
    pub network: File,
    /// The target.
    pub pidfd: OwnedFd,
    /// A socket of the outer network.
    pub datagrams: UnixDatagram,
    /// A pair of connected sockets.
    pub pair: (UnixStream, UnixStream),
    /// A server's socket, with a client that waits.
    pub listener: UnixListener,
    /// The client.
    pub _client: UnixStream,
    /// A file handle of a file in the directory.
    pub handle: deeds::FileHandle,
    /// The threads of a worker.
    pub lanes: Option<Lanes>,
    /// The report of the confinement.
    pub report: Report,
}

/// Runs as a probe if this process was started as one.
pub fn run_if_asked() {
    let Ok(deed) = std::env::var(DEED) else { return };
    let end = enter(&walls()).and_then(|before| match deeds::find(&deed).or_else(|| duties::find(&deed)) {
        Some(act) => act(&before),
        None => panic!("no such deed: {deed}"),
    });
    std::process::exit(match end {
        Ok(()) => DONE,
        Err(errno) => errno.raw_os_error(),
    });
}

fn walls() -> Walls {
    let name = std::env::var(WALLS).unwrap();
    [Walls::None, Walls::Confined, Walls::Sealed, Walls::Old, Walls::Supervisor, Walls::Monitor]
        .into_iter()
        .find(|walls| format!("{walls:?}") == name)
        .unwrap()
}

fn enter(walls: &Walls) -> Result<Before, Errno> {
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).unwrap());
    let target = std::env::var(TARGET).unwrap();
    let process = Path::new("/proc").join(&target);
    let open_directory =
        |path: &Path| openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let target = Pid::from_raw(target.parse().unwrap()).unwrap();
    let beneath = open_directory(&directory);
    let address = SocketAddr::from_abstract_name(std::process::id().to_string()).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    let mut before = Before {
        _client: UnixStream::connect_addr(&address).unwrap(),
        listener,
        handle: deeds::FileHandle::of(beneath.as_fd(), c"file"),
        port: std::env::var(PORT).unwrap().parse().unwrap(),
        network: File::open("/proc/self/ns/net").unwrap(),
        process: open_directory(&process),
        pidfd: pidfd_open(target, PidfdFlags::empty()).unwrap(),
        datagrams: UnixDatagram::unbound().unwrap(),
        pair: UnixStream::pair().unwrap(),
        lanes: None,
        report: Report::default(),
        beneath,
        directory,
        target,
    };
    if *walls == Walls::None {
        return Ok(before);
    }
    if *walls == Walls::Supervisor {
        let write = vec![before.directory.join(OWN)];
        before.report = confine_supervisor(&SupervisorFiles { write, ..SupervisorFiles::default() }).unwrap();
        return Ok(before);
    }
    if *walls == Walls::Monitor {
        deny_to_monitor().unwrap();
        return Ok(before);
    }
    if *walls == Walls::Old {
        answer_as_an_old_kernel();
    }
    let user = geteuid().is_root().then_some((LEASED, LEASED));
    before.report = confine(&Confinement { user, must: Vec::new() }).unwrap();
    before.lanes = Some(Lanes::start("lane", 2, 8).unwrap());
    if *walls != Walls::Confined {
        deny_system_calls().unwrap();
    }
    Ok(before)
}

/// Makes the kernel refuse namespaces, and not support Landlock.
pub fn answer_as_an_old_kernel() {
    for (call, errno) in [(libc::SYS_unshare, libc::EPERM), (libc::SYS_landlock_create_ruleset, libc::ENOSYS)]
    {
        let refuse = SeccompAction::Errno(errno.cast_unsigned());
        let rules = [(call, Vec::new())].into_iter().collect();
        let architecture = std::env::consts::ARCH.try_into().unwrap();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture).unwrap();
        apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
    }
}

/// Reports that the probe is confined.
pub fn say_ready() {
    let stdin = io::stdin();
    let socket = UnixStream::from(stdin.as_fd().try_clone_to_owned().unwrap());
    (&socket).write_all(b"r").unwrap();
}

/// An abstract address that receives datagrams.
pub fn datagrams_name(directory: &Path) -> Vec<u8> {
    [directory.as_os_str().as_bytes(), b"/datagrams"].concat()
}

/// The abstract address of a server.
pub fn abstract_address(directory: &Path) -> SocketAddr {
    SocketAddr::from_abstract_name(directory.as_os_str().as_bytes()).unwrap()
}
