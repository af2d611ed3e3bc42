//! The storage process: it has the cluster's key, and no key of a volume. Workers and their
//! supervisor use its files ([`strongroom_remote`]).
//!
//! ```text
//! supervisor                               storage process
//! Birth                             ->     not dumpable; reads the cluster's configuration and the
//!                                          user's key; libraries loaded, confined
//!                                   <-     Ready, or Failed: it is connected, or cannot be
//! requests for directories          ->
//! ```
//!
//! All of it passes over one socket, its standard input. It ends when the supervisor has hung up
//! and nobody has a file of it open: a worker whose supervisor is gone still writes what it has to.
//!
//! A successor fences the instance of one that was killed before it writes ([`crate`]).
//!
//! Instead of serving, it may carry out one order about another host of the datastore, report that,
//! and end ([`HostOrder`]).

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::{Arc, Once};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, WaitOptions, pidfd_open, set_dumpable_behavior, waitpid,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use strongroom_confine::{Cgroup, SandboxError, UidLease, close_inherited, confine_client};
use strongroom_io::IdleReactor;
use strongroom_remote::{RemoteStorage, Server};
use strongroom_types::{CephMount, CephPools, CephUser};
use strongroom_wire::{FormatError, Formats, PacketError, PacketSocket, encode};
use thiserror::Error;

use crate::ceph::{self, CephError, ClusterConf, ClusterOptions, GivenConf};
use crate::conf::{self, ConfError};
use crate::storage::{RbdOptions, RbdStorage};

/// Format 1 is the first.
const FORMATS: Formats = Formats { oldest: 1, newest: 1 };

/// The longest message.
const MESSAGE_BYTES_MAX: usize = 16 << 10;

/// What a storage process is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Birth {
    /// The datastore, and the files with the cluster's configuration and the user's key.
    pub mount: CephMount,
    /// The user and group that it gets, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as: Option<(u32, u32)>,
    /// What it does instead of serving.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<HostOrder>,
}

/// An order about another host, by the user that it is to the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostOrder {
    /// [`RbdStorage::fence_host`].
    Fence(CephUser),
    /// [`RbdStorage::admit_host`].
    Admit(CephUser),
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Report {
    Ready,
    /// The order is carried out.
    Done,
    Failed {
        reason: String,
        /// This host was declared lost.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_fenced: bool,
    },
}

/// Why there is no storage process.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// A person started it, not a supervisor.
    #[error("the process was not started by a supervisor")]
    NotBorn,
    /// It cannot be started.
    #[error("the storage process cannot be started: {0}")]
    Start(#[from] io::Error),
    /// The other process is gone, or does not keep to the protocol.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// A message cannot be read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The cluster's configuration, or the user's key, cannot be used.
    #[error(transparent)]
    Conf(#[from] ConfError),
    /// It cannot be confined.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// It cannot use the cluster.
    #[error(transparent)]
    Ceph(#[from] CephError),
    /// The storage process cannot use the cluster.
    #[error("{0}")]
    Refused(String),
    /// This host was declared lost, and the cluster refuses it.
    #[error("{0}")]
    Fenced(String),
    /// The kernel's error.
    #[error("the storage process failed: {0}")]
    System(#[from] Errno),
    /// The other host is neither fenced nor admitted.
    #[error("{user} cannot be {what} at the cluster: {errno}")]
    Order {
        /// The host's user.
        user: CephUser,
        /// What was wanted.
        what: &'static str,
        /// The cluster's error.
        errno: Errno,
    },
}

fn send<M: Serialize>(socket: &PacketSocket, message: &M) -> Result<(), ProcessError> {
    Ok(socket.send(&encode(FORMATS.newest, message)?, &[])?)
}

fn receive<M: DeserializeOwned>(socket: &PacketSocket) -> Result<(M, Vec<OwnedFd>), ProcessError> {
    let mut room = vec![0; MESSAGE_BYTES_MAX];
    let (bytes, files) = socket.receive(&mut room, 1)?;
    Ok((FORMATS.decode(bytes)?.1, files))
}

fn refused(reason: String, is_fenced: bool) -> ProcessError {
    if is_fenced { ProcessError::Fenced(reason) } else { ProcessError::Refused(reason) }
}

/// The name of the program's command that is a storage process.
pub const COMMAND: &str = "storage-process";

/// The command that is a storage process.
#[derive(Clone, Debug)]
pub struct StorageProgram {
    /// The path of the program.
    pub path: PathBuf,
    /// The arguments that make it a storage process.
    pub arguments: Vec<OsString>,
}

impl StorageProgram {
    /// This program's own command.
    ///
    /// # Errors
    /// If /proc is not mounted.
    pub fn this() -> io::Result<Self> {
        Ok(Self { path: std::env::current_exe()?, arguments: vec![COMMAND.into()] })
    }

    /// As [`StorageProcess::start`], without any of this process's environment.
    ///
    /// # Errors
    /// As there.
    pub fn start(
        &self,
        mount: &CephMount,
        cgroup: Option<&Cgroup>,
    ) -> Result<(StorageProcess, OwnedFd), ProcessError> {
        let mut command = Command::new(&self.path);
        StorageProcess::start(command.args(&self.arguments).env_clear(), mount, cgroup)
    }

    /// Has a storage process of its own carry out an order, and waits for its end.
    ///
    /// # Errors
    /// If the cluster cannot be used. A host that was to be fenced may still write then, and can
    /// perhaps not connect any more; the order may be repeated.
    pub fn carry_out(&self, mount: &CephMount, order: HostOrder) -> Result<(), ProcessError> {
        let mut command = Command::new(&self.path);
        let command = command.args(&self.arguments).env_clear();
        let (mut process, socket, report) = StorageProcess::begin(command, mount, None, Some(order))?;
        drop(socket);
        let _ = process.child.wait();
        match report {
            Report::Done => Ok(()),
            Report::Ready => {
                Err(ProcessError::Refused("the storage process carries out no orders".to_owned()))
            }
            Report::Failed { reason, is_fenced } => Err(refused(reason, is_fenced)),
        }
    }
}

/// A storage process, from its supervisor's side.
#[derive(Debug)]
pub struct StorageProcess {
    child: Child,
}

impl StorageProcess {
    /// Starts a process with this command, which must call [`process_main`] with its standard
    /// input, and waits until it is connected. Returns it with the socket of its storage. It gets a
    /// user of its own, if possible, and the limits of this cgroup.
    ///
    /// # Errors
    /// If it cannot be started, or cannot use the cluster.
    pub fn start(
        command: &mut Command,
        mount: &CephMount,
        cgroup: Option<&Cgroup>,
    ) -> Result<(Self, OwnedFd), ProcessError> {
        let (process, socket, report) = Self::begin(command, mount, cgroup, None)?;
        match report {
            Report::Ready => Ok((process, socket.into_socket())),
            Report::Done => Err(ProcessError::Refused("the storage process serves nothing".to_owned())),
            Report::Failed { reason, is_fenced } => Err(refused(reason, is_fenced)),
        }
    }

    /// Starts a process, and waits for its report.
    fn begin(
        command: &mut Command,
        mount: &CephMount,
        cgroup: Option<&Cgroup>,
        order: Option<HostOrder>,
    ) -> Result<(Self, PacketSocket, Report), ProcessError> {
        let (socket, theirs) = PacketSocket::pair()?;
        let child = command.stdin(theirs).stdout(Stdio::null()).spawn()?;
        // The command holds the other end.
        command.stdin(Stdio::null());
        if let Some(Err(error)) = cgroup.map(|cgroup| cgroup.add(Pid::from_child(&child))) {
            tracing::info!("the storage process is not in its cgroup: {error}");
        }
        let process = Self { child };
        let lease = UidLease::take_as_root();
        let birth = Birth { mount: mount.clone(), run_as: lease.as_ref().map(UidLease::user), order };
        let lease: Vec<_> = lease.iter().map(AsFd::as_fd).collect();
        socket.send(&encode(FORMATS.newest, &birth)?, &lease)?;
        let report = receive(&socket)?.0;
        Ok((process, socket, report))
    }

    /// Its pidfd.
    ///
    /// # Errors
    /// If the kernel has no descriptor left.
    pub fn pidfd(&self) -> Result<OwnedFd, Errno> {
        // It is not reaped yet, so its process id is still valid.
        pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())
    }

    /// Reaps it if it has ended. Returns whether it has.
    pub fn reap(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end. Returns whether it has ended.
    pub fn wait(&mut self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        if self.reap() {
            return true;
        }
        // Without a descriptor, it is not waited for.
        let Ok(pidfd) = self.pidfd() else { return false };
        while !self.reap() {
            // Rounded up to a millisecond, so that a deadline is over when poll says so.
            let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
            let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&left)) {
                Ok(0) => return self.reap(),
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Kills it, and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for StorageProcess {
    /// It goes on until nobody uses it, and is reaped then.
    fn drop(&mut self) {
        if self.reap() {
            return;
        }
        let process = Pid::from_child(&self.child);
        let wait = move || waitpid(Some(process), WaitOptions::empty());
        // Without a thread, it stays in the list of processes until this one ends.
        let _ = thread::Builder::new().name("reaping".to_owned()).spawn(wait);
    }
}

/// Starts the storage processes of a datastore, one after the other, in a process that may start
/// others.
#[derive(Debug)]
pub struct StorageStarter {
    program: StorageProgram,
    mount: CephMount,
    /// Those that have been started and not reaped.
    processes: Mutex<Vec<StorageProcess>>,
    /// Why the last one could not be started.
    refusal: Mutex<Option<Refusal>>,
}

/// Why a datastore cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason, for a person.
    pub reason: String,
    /// Whether this host was declared lost.
    pub is_fenced: bool,
}

impl From<&ProcessError> for Refusal {
    fn from(error: &ProcessError) -> Self {
        Self { reason: error.to_string(), is_fenced: matches!(error, ProcessError::Fenced(_)) }
    }
}

impl StorageStarter {
    /// Starts processes of this program.
    pub fn new(program: StorageProgram, mount: CephMount) -> Arc<Self> {
        Arc::new(Self { program, mount, processes: Mutex::default(), refusal: Mutex::default() })
    }

    /// The datastore. Its first use starts a process.
    pub fn storage(self: &Arc<Self>) -> RemoteStorage {
        let starter = Arc::clone(self);
        RemoteStorage::new(move || starter.start())
    }

    /// Why the last process could not be started.
    pub fn refusal(&self) -> Option<Refusal> {
        self.refusal.lock().clone()
    }

    fn start(&self) -> Result<OwnedFd, Errno> {
        let mut processes = self.processes.lock();
        processes.retain_mut(|process| !process.reap());
        let started = self.program.start(&self.mount, None);
        let refusal = started.as_ref().err().map(Refusal::from);
        let former = std::mem::replace(&mut *self.refusal.lock(), refusal.clone());
        if let Some(Refusal { reason, .. }) = refusal.filter(|now| former.as_ref() != Some(now)) {
            let CephPools { pool, namespace, .. } = &self.mount.pools;
            tracing::error!(%pool, %namespace, "the datastore cannot be reached: {reason}");
        }
        let (process, socket) = started.map_err(|_| Errno::NOTCONN)?;
        processes.push(process);
        Ok(socket)
    }
}

/// Serves as the storage process of the supervisor at the other end of `socket`.
///
/// # Errors
/// [`ProcessError::NotBorn`] if a person started it. Any other error is also reported to the
/// supervisor.
pub fn process_main(socket: OwnedFd) -> Result<(), ProcessError> {
    let socket = PacketSocket::adopt(socket).ok_or(ProcessError::NotBorn)?;
    close_inherited(Some(socket.as_fd()));
    match begin(&socket) {
        // The user id is reserved for this process as long as the lease is open.
        Ok((None, _lease)) => send(&socket, &Report::Done),
        Ok((Some(storage), _lease)) => {
            send(&socket, &Report::Ready)?;
            let notice = Notice::of(&storage);
            let server = Server::new(storage, || IdleReactor::new().map(Rc::new))
                .telling_errors(move |errno| notice.hear(errno));
            server.serve(socket.into_socket())?;
            server.wait_until_unused();
            Ok(())
        }
        Err(error) => {
            // If the supervisor is gone, the report cannot be delivered.
            let is_fenced = matches!(&error, ProcessError::Ceph(CephError::Fenced { .. }));
            let _ = send(&socket, &Report::Failed { reason: error.to_string(), is_fenced });
            Err(error)
        }
    }
}

/// Logs once that the cluster refuses this process.
struct Notice {
    user: String,
    once: Once,
}

impl Notice {
    fn of(storage: &RbdStorage) -> Self {
        Self { user: storage.own_user().to_owned(), once: Once::new() }
    }

    /// Hears the error of a request.
    fn hear(&self, errno: Errno) {
        // librados has one number for that, whatever the request was.
        if errno == Errno::SHUTDOWN {
            self.once.call_once(|| {
                tracing::error!(
                    user = %self.user,
                    "the cluster refuses this host, and nothing that it writes lands any more; if it was \
                     declared lost, restart its machine, then let it in again: `strongroom host admit HOST`"
                );
            });
        }
    }
}

/// Connects. Without a storage, the order is carried out.
fn begin(socket: &PacketSocket) -> Result<(Option<RbdStorage>, Vec<OwnedFd>), ProcessError> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let (Birth { mount: CephMount { pools, client }, run_as, order }, lease) = receive(socket)?;
    let (parameters, key) = conf::read(&client)?;
    ceph::load()?;
    confine_client("the storage process", run_as)?;
    let conf = ClusterConf::Given(Arc::new(GivenConf { parameters, key }));
    let cluster = ClusterOptions { conf, user: client.user.into() };
    let CephPools { pool, data_pool, namespace } = pools;
    let (pool, data_pool, namespace) = (pool.into(), data_pool.map(Into::into), namespace.into());
    let storage = RbdStorage::connect(&RbdOptions { cluster, pool, data_pool, namespace })?;
    let Some(order) = order else { return Ok((Some(storage), lease)) };
    let (done, user, what) = match order {
        HostOrder::Fence(user) => (storage.fence_host(user.as_str()).map(drop), user, "fenced"),
        HostOrder::Admit(user) => (storage.admit_host(user.as_str()), user, "admitted"),
    };
    done.map_err(|errno| ProcessError::Order { user, what, errno })?;
    Ok((None, lease))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A supervisor of this release must understand a storage process of the next one, and the
    /// other way round.
    #[test]
    fn messages_of_format_1_are_read() {
        let (ours, theirs) = PacketSocket::pair().unwrap();
        let theirs = PacketSocket::adopt(theirs).unwrap();
        let told = |text: &str| ours.send(text.as_bytes(), &[]).unwrap();
        told(
            r#"{"format":1,"message":{"mount":{"pools":{"pool":"rep2","data_pool":"ec21","namespace":"n"},"client":{"user":"client.a","conf":"/c","keyring":"/k"}},"run_as":[1,2]}}"#,
        );
        let (birth, _): (Birth, _) = receive(&theirs).unwrap();
        let CephMount { pools, client } = birth.mount;
        assert_eq!((client.user.as_str(), birth.run_as), ("client.a", Some((1, 2))));
        assert_eq!((pools.pool.as_str(), client.keyring), ("rep2", "/k".into()));
        told(r#"{"format":1,"message":"ready"}"#);
        assert_eq!(receive::<Report>(&theirs).unwrap().0, Report::Ready);
        told(r#"{"format":1,"message":{"failed":{"reason":"no"}}}"#);
        let failed = |is_fenced| Report::Failed { reason: "no".to_owned(), is_fenced };
        assert_eq!(receive::<Report>(&theirs).unwrap().0, failed(false));
        send(&ours, &failed(true)).unwrap();
        assert_eq!(receive::<Report>(&theirs).unwrap().0, failed(true));
        told(
            r#"{"format":1,"message":{"mount":{"pools":{"pool":"rep2","namespace":"n"},"client":{"user":"client.a","conf":"/c","keyring":"/k"}},"order":{"fence":"client.b"}}}"#,
        );
        let (birth, _): (Birth, _) = receive(&theirs).unwrap();
        assert_eq!(birth.order, Some(HostOrder::Fence("client.b".parse().unwrap())));
        told(r#"{"format":1,"message":"done"}"#);
        assert_eq!(receive::<Report>(&theirs).unwrap().0, Report::Done);
        told(r#"{"format":2,"message":"ready"}"#);
        assert!(matches!(receive::<Report>(&theirs), Err(ProcessError::Format(FormatError::Unknown { .. }))));
    }

    #[test]
    fn a_process_is_waited_for_until_it_ends_and_no_longer_than_said() {
        let child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut process = StorageProcess { child };
        assert!(!process.wait(Duration::from_millis(1)), "it reads");
        drop(process.child.stdin.take());
        assert!(process.wait(Duration::from_secs(60)));
        assert!(process.wait(Duration::ZERO), "it has ended");
    }
}
