//! Probes: this program runs itself, confined as a worker, does one deed and reports the result.

pub mod deeds;
pub mod duties;
pub mod outside;
pub mod probe;
pub mod raw;

use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::{fs, io::Read, net::TcpListener};

use rustix::io::Errno;
use tempfile::TempDir;

/// The user id of an ordinary user.
pub const NOBODY: u32 = 65534;
/// The user id of a confined probe, if it can have one; no running worker has it.
pub const LEASED: u32 = 0x7100_0000;
/// The content of the file that a probe could read before.
pub const SECRET: &str = "what another process wrote";

/// The confinement of a probe when it does its deed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walls {
    /// None, which shows that the deed succeeds unless it is prevented.
    None,
    /// Namespaces, user, capabilities and Landlock, without the filter of system calls.
    Confined,
    /// Everything, as for a worker.
    Sealed,
    /// Everything that a kernel without namespaces and Landlock supports.
    Old,
    /// Those of a supervisor, which keeps one directory.
    Supervisor,
    /// A monitor's filter of system calls, without the namespaces and the user that it is started
    /// with.
    Monitor,
}

/// How a deed ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was done.
    Done,
    /// It was refused.
    Refused(Errno),
    /// The process was killed for it.
    Killed(i32),
}

/// This program in a place where an ordinary user can run it, unlike perhaps the build directory.
pub struct Program {
    directory: TempDir,
}

impl Program {
    /// A copy of it.
    pub fn copy() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let copy = Self { directory };
        fs::copy(std::env::current_exe().unwrap(), copy.path()).unwrap();
        for path in [copy.directory.path(), &copy.path()] {
            fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
        }
        copy
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("probe")
    }
}

/// The environment of a probe, with everything that it tries to reach.
pub struct World {
    directory: TempDir,
    program: PathBuf,
    tcp: TcpListener,
    _path: UnixListener,
    _abstract: UnixListener,
    _datagrams: UnixDatagram,
}

impl World {
    /// An environment that an ordinary user can access.
    pub fn new(program: &Program) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let inside = |name| directory.path().join(name);
        let open_to_all = |path: &std::path::Path, mode| {
            fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        };
        open_to_all(directory.path(), 0o777);
        fs::write(inside("file"), SECRET).unwrap();
        open_to_all(&inside("file"), 0o666);
        fs::create_dir(inside(probe::OWN)).unwrap();
        open_to_all(&inside(probe::OWN), 0o777);
        let path = UnixListener::bind(inside("socket")).unwrap();
        open_to_all(&inside("socket"), 0o777);
        let name = probe::abstract_address(directory.path());
        let datagrams = SocketAddr::from_abstract_name(probe::datagrams_name(directory.path())).unwrap();
        Self {
            program: program.path(),
            tcp: TcpListener::bind("127.0.0.1:0").unwrap(),
            _path: path,
            _abstract: UnixListener::bind_addr(&name).unwrap(),
            _datagrams: UnixDatagram::bind_addr(&datagrams).unwrap(),
            directory,
        }
    }

    /// Starts a probe as `user`, or as our own user.
    pub fn start(&self, deed: &str, walls: Walls, user: Option<u32>, target: Option<u32>) -> Running {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut command = Command::new(&self.program);
        command
            .env(probe::DEED, deed)
            .env(probe::WALLS, format!("{walls:?}"))
            .env(probe::DIRECTORY, self.directory.path())
            .env(probe::PORT, self.tcp.local_addr().unwrap().port().to_string())
            .env(probe::TARGET, target.unwrap_or_else(std::process::id).to_string())
            .current_dir(self.directory.path())
            .env("RUST_BACKTRACE", "0")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        if let Some(user) = user {
            // The standard library drops the supplementary groups too.
            command.gid(user).uid(user);
        }
        let child = command.spawn().unwrap();
        drop(command);
        Running { child, socket: ours }
    }

    /// Runs a probe. Returns how its deed ended.
    pub fn try_deed(&self, deed: &str, walls: Walls, user: Option<u32>) -> Result<End, String> {
        self.start(deed, walls, user, None).end()
    }

    /// The present content of the file in it.
    pub fn file(&self) -> String {
        fs::read_to_string(self.directory.path().join("file")).unwrap()
    }

    /// The names in it.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// A probe; killed on drop.
pub struct Running {
    child: Child,
    /// The other end of its stdin.
    pub socket: UnixStream,
}

impl Running {
    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it reports that it is confined.
    pub fn wait_until_ready(&mut self) {
        let mut byte = [0];
        let said = self.socket.read(&mut byte);
        if !matches!(said, Ok(1)) {
            panic!("the probe ended early: {:?}", self.finish());
        }
    }

    /// Returns how its deed ended, or the output of a probe that failed.
    pub fn end(mut self) -> Result<End, String> {
        self.finish()
    }

    /// Waits for its end. Returns its exit status.
    pub fn status(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    fn finish(&mut self) -> Result<End, String> {
        let mut said = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        stderr.read_to_string(&mut said).unwrap();
        let status = self.child.wait().unwrap();
        match (status.code(), status.signal()) {
            (Some(probe::DONE), _) => Ok(End::Done),
            (Some(code), _) if (1..probe::DONE).contains(&code) && !said.contains("panicked") => {
                Ok(End::Refused(Errno::from_raw_os_error(code)))
            }
            (None, Some(signal)) => Ok(End::Killed(signal)),
            _ => Err(format!("{status}: {said}")),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only for one that has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The users that probes run as: root, whose workers are given a user, and an ordinary user; only
/// the latter if the tests run as one.
pub fn users() -> Vec<Option<u32>> {
    if rustix::process::geteuid().is_root() { vec![None, Some(NOBODY)] } else { vec![None] }
}

/// The name of such a user, for test names.
pub fn user_name(user: Option<u32>) -> &'static str {
    match user {
        None if rustix::process::geteuid().is_root() => "root",
        _ => "ordinary_user",
    }
}
