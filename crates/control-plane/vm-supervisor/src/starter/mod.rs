//! The starter: starts the processes of a VM for the supervisor that holds its keys.
//!
//! Starting a worker, QEMU or swtpm takes most of root's privileges, and so does reaching them
//! afterwards: each runs as another user. The supervisor has none of these privileges. Before it
//! confines itself, it starts this second process, which has no key and takes requests only from
//! the supervisor. It does only what [`Ask`] names: the supervisor sends the VM's configuration at
//! the beginning, before anything could have captured the supervisor, and no request can change it.
//! It also runs no more processes at once than a VM needs: one QEMU, one swtpm with its gate if the
//! VM has a TPM, and a worker and its successor for each volume that a VM can have served.
//!
//! ```text
//! hostd -> supervisor   keys; talks with hostd, the monitor, workers, key servers; no right, few system calls
//!            -> starter   root's rights; talks with the supervisor
//!                 -> workers, QEMU, its monitors, swtpm, its gate, passt, filters: each a user of its own
//! ```
//!
//! QMP is JSON, and a captured QEMU can send anything. Only the *monitor*
//! ([`strongroom_hypervisor::monitor`]) reads it: the starter passes QEMU's socket to that process
//! at its start, and the other end of the monitor's connection to the supervisor.
//!
//! Supervisor and starter live equally long: when one ends, so does the other, and hostd starts
//! another pair.

mod server;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strongroom_hypervisor::launch::{Kills, ProcessFiles, Shortfall};
use strongroom_hypervisor::network::NetworkState;
use strongroom_hypervisor::qemu::{Findings, MachineFiles, MachineProcess};
use strongroom_hypervisor::swtpm::StateGate;
use strongroom_hypervisor::{Qemu, QemuIdentity, QemuProgram, RunDirectory, Swtpm};
use strongroom_types::DatastoreId;
use strongroom_worker::birth::Frontend;
use strongroom_worker::placement::Placement;
use strongroom_worker::supervise::{Born, NewWorker, ProgramNumber, StartsWorkers, Workers};
use uuid::Uuid;

pub(super) use self::server::serve;
use strongroom_host::orders::{Birth, RunTask, Task};
use strongroom_host::protocol::Problem;
use strongroom_host::run_directory::VmRunDirectory;
use strongroom_host::wire::{Wire, WireError};

use super::SupervisorError;
use crate::clusters::Clusters;

/// Timeout of the longest request: QEMU's start on a busy host.
const ANSWERS_WITHIN: Duration = Duration::from_secs(120);

/// The requests of a supervisor. A socket for the answer comes with each.
#[derive(Debug, Serialize, Deserialize)]
enum Ask {
    /// Open the installed program for workers.
    InstalledProgram,
    /// Start a worker. Its listening socket comes with the request, its page of counters if there
    /// is one, and the pages of its limits.
    Worker { program: ProgramNumber, frontend: Frontend, placement: Option<Placement>, limit_pages: usize },
    /// Start a storage process for one of the task's datastores on clusters.
    Storage { datastore: DatastoreId },
    /// Return how a worker has ended.
    WorkerEnded { pid: u32 },
    /// Kill a process that was started or found here.
    Kill { pid: u32 },
    /// Probe this host's QEMU.
    ProbeQemu,
    /// Empty the host's directory of a TPM whose states are kept elsewhere, and open a file for the
    /// state, unless swtpm starts without one.
    PlaceTpmState { is_empty: bool },
    /// Take the state in the VM's directory from the swtpm that has had it.
    TakeTpmState,
    /// Start swtpm. The pipe with its key comes with the request.
    Swtpm,
    /// Connect to swtpm's gate.
    TpmGate,
    /// Start QEMU with this generation id. `waiting` makes it wait for its memory.
    Qemu { generation_id: Uuid, waiting: bool },
    /// Start another monitor for the running QEMU.
    Monitor,
    /// Start a monitor of the guest's agent, in place of the former one.
    AgentMonitor,
    /// Find the QEMU, and the swtpm, of a previous supervisor.
    Orphan,
    /// Give the disk socket with this number to QEMU's user.
    GiveSocket { number: usize },
    /// Connect to one of QEMU's sockets.
    Connect { to: QemuSocket },
    /// Open the state of the VM's TPM, and its directory.
    TpmState,
    /// Watch that directory.
    WatchTpm,
}

/// A socket on which QEMU listens.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum QemuSocket {
    Console,
    Vnc,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Done,
    Failed(Problem),
    Program(ProgramNumber),
    /// Its socket and pidfd come with the answer.
    Worker {
        pid: u32,
    },
    WorkerEnded(Option<i32>),
    Qemu(Box<Findings>),
    /// Its pidfd and standard error come with the answer; for QEMU, the connection to its monitor
    /// comes first.
    Process {
        identity: QemuIdentity,
        networks: Vec<NetworkState>,
        shortfalls: Vec<Shortfall>,
    },
    /// For QEMU as above; then swtpm's pidfd.
    Orphan {
        swtpm: bool,
    },
}

#[derive(Serialize, Deserialize)]
struct Asked {
    ask: Ask,
}

#[derive(Serialize, Deserialize)]
struct Answered {
    answer: Answer,
}

/// Whether swtpm's directory is not in the VM's own one, where the supervisor keeps each state: the
/// VM is on a cluster, or its guest has come from another host.
pub(super) fn keeps_tpm_apart(task: &RunTask, run: &VmRunDirectory) -> bool {
    // A start without it removes it.
    let has_come = task.incoming.is_some() || (task.adopt.is_some() && run.tpm_state().exists());
    task.spec.is_on_cluster() || has_come
}

/// Starts this program again with a task of its own: a process that has the privileges of this one,
/// but not its keys.
pub(super) fn start_this_program(birth: &Birth, files: &[BorrowedFd<'_>]) -> Result<Wire, SupervisorError> {
    let (wire, theirs) = Wire::pair()?;
    Command::new("/proc/self/exe")
        .arg0(std::env::args_os().next().unwrap_or_default())
        .args(std::env::args_os().skip(1))
        .env_clear()
        .process_group(0)
        .stdin(theirs)
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()?;
    wire.send(birth, files)?;
    Ok(wire)
}

/// The supervisor's connection to its starter.
#[derive(Clone, Debug)]
pub struct Starter(Arc<Wire>);

impl Starter {
    /// Starts the starter: this program again, for the VM of this task. The CD-ROM image comes with
    /// the task.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(
        home: &Path,
        run: &Path,
        qemu: &Path,
        clusters: &Clusters,
        task: &RunTask,
        cdrom: Option<OwnedFd>,
    ) -> Result<Self, SupervisorError> {
        let task = Task::StartProcesses(task.clone());
        let (home, run, qemu) = (home.to_owned(), run.to_owned(), qemu.to_owned());
        let clusters = clusters.clone();
        let birth = Birth { home, run, qemu, grants: Vec::new(), clusters, task };
        let cdrom: Vec<_> = cdrom.iter().map(AsFd::as_fd).collect();
        Ok(Self(Arc::new(start_this_program(&birth, &cdrom)?)))
    }

    /// Ends this process when the starter ends: the next supervisor starts another.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn live_and_die_with(&self) -> io::Result<()> {
        let wire = Arc::clone(&self.0);
        thread::Builder::new().name("starter".to_owned()).spawn(move || {
            // The starter sends nothing here, so this returns when it is gone.
            let gone = wire.receive::<Answered>();
            tracing::error!(
                "the process that starts the VM's processes is gone ({:?}), and so is its supervisor",
                gone.err()
            );
            std::process::exit(1);
        })?;
        Ok(())
    }

    fn ask(&self, ask: Ask, files: &[BorrowedFd<'_>]) -> Result<(Answer, Files), Problem> {
        let failed = |error: WireError| {
            Problem::new("starter", format!("what starts the VM's processes does not answer: {error}"))
        };
        let (reply, theirs) = Wire::pair().map_err(failed)?;
        let files: Vec<_> = std::iter::once(theirs.as_fd()).chain(files.iter().copied()).collect();
        self.0.send(&Asked { ask }, &files).map_err(failed)?;
        // Without these copies, its end is noticed even if it does not answer.
        drop(files);
        drop(theirs);
        match reply.receive_within(ANSWERS_WITHIN).map_err(failed)? {
            (Answered { answer: Answer::Failed(problem) }, _) => Err(problem),
            (Answered { answer }, files) => Ok((answer, Files(files.into_iter()))),
        }
    }

    fn done(&self, ask: Ask) -> Result<(), Problem> {
        self.ask(ask, &[]).map(drop)
    }

    /// Starts workers.
    pub fn workers(&self) -> Workers {
        Workers::of(Arc::new(self.clone()))
    }

    /// Starts a storage process for a datastore, and returns the socket of its storage and its
    /// pidfd.
    ///
    /// # Errors
    /// If the cluster cannot be reached.
    pub fn storage(&self, datastore: DatastoreId) -> Result<[OwnedFd; 2], Problem> {
        let (_, mut files) = self.ask(Ask::Storage { datastore }, &[])?;
        Ok([files.next()?, files.next()?])
    }

    /// Probes this host's QEMU.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn probe_qemu(&self) -> Result<QemuProgram, Problem> {
        match self.ask(Ask::ProbeQemu, &[])? {
            (Answer::Qemu(findings), _) => Ok(QemuProgram::found(*findings)),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Empties the host's directory of a TPM that is [kept elsewhere](keeps_tpm_apart). Returns a
    /// file for the state with which swtpm starts, unless it starts without one.
    ///
    /// # Errors
    /// If the VM has no such directory, or swtpm runs.
    pub fn place_tpm_state(&self, is_empty: bool) -> io::Result<Option<OwnedFd>> {
        let (_, mut files) = self.ask(Ask::PlaceTpmState { is_empty }, &[]).map_err(io::Error::other)?;
        Ok(files.0.next())
    }

    /// Takes the state in the VM's directory from the swtpm that has had it, maybe on another host:
    /// the supervisor replaces it from now on.
    ///
    /// # Errors
    /// If there is something else, or the VM's swtpm has it.
    pub fn take_tpm_state(&self) -> io::Result<()> {
        self.done(Ask::TakeTpmState).map_err(io::Error::other)
    }

    /// Starts the VM's swtpm with this key, in a pipe.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_tpm(&self, run: &RunDirectory, key: &OwnedFd) -> Result<Swtpm, Problem> {
        match self.ask(Ask::Swtpm, &[key.as_fd()])? {
            (Answer::Process { identity, .. }, mut files) => self.swtpm(run, identity, &mut files),
            (other, _) => Err(unexpected(&other)),
        }
    }

    fn swtpm(&self, run: &RunDirectory, identity: QemuIdentity, files: &mut Files) -> Result<Swtpm, Problem> {
        let files = ProcessFiles { pidfd: files.next()?, stderr: files.0.next() };
        Swtpm::elsewhere(run, identity, files, self.killer()).map_err(Problem::system)
    }

    /// Starts the VM's QEMU.
    ///
    /// # Errors
    /// If it does not start, or does not answer.
    pub fn start_qemu(&self, generation_id: Uuid, waiting: bool) -> Result<Qemu, Problem> {
        match self.ask(Ask::Qemu { generation_id, waiting }, &[])? {
            (Answer::Process { identity, networks, shortfalls }, mut files) => {
                let machine = self.machine(identity, shortfalls, &mut files)?;
                Qemu::take_up(machine, networks).map_err(|error| Problem::new("qemu", error.to_string()))
            }
            (other, _) => Err(unexpected(&other)),
        }
    }

    fn machine(
        &self,
        identity: QemuIdentity,
        shortfalls: Vec<Shortfall>,
        files: &mut Files,
    ) -> Result<MachineProcess, Problem> {
        let (monitor, pidfd) = (files.next()?, files.next()?);
        let files = MachineFiles { process: ProcessFiles { pidfd, stderr: files.0.next() }, monitor };
        let machine = MachineProcess::elsewhere(identity, files, shortfalls, self.killer());
        machine.map_err(Problem::system)
    }

    /// Finds the VM's running QEMU, and its swtpm if that is running.
    ///
    /// # Errors
    /// If that QEMU has ended, or is another process.
    pub fn find_orphan(
        &self,
        run: &RunDirectory,
        orphan: strongroom_host::orders::Orphan,
    ) -> Result<(Qemu, Option<Swtpm>), Problem> {
        match self.ask(Ask::Orphan, &[])? {
            (Answer::Orphan { swtpm }, mut files) => {
                let mut of_swtpm = Files(Vec::new().into_iter());
                if swtpm {
                    of_swtpm.0 = vec![files.next()?].into_iter();
                }
                let machine = self.machine(orphan.qemu, Vec::new(), &mut files)?;
                let another = || self.start_monitor().map_err(|problem| problem.message);
                let found = Qemu::take_over(machine, another);
                let found = found.map_err(|error| Problem::new("qemu", error.to_string()))?;
                let swtpm = orphan.swtpm.filter(|_| swtpm);
                let swtpm = swtpm.map(|identity| self.swtpm(run, identity, &mut of_swtpm)).transpose()?;
                Ok((found, swtpm))
            }
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Starts another monitor for the VM's running QEMU, whose former one was lost.
    ///
    /// # Errors
    /// If QEMU does not accept a connection.
    pub fn start_monitor(&self) -> Result<OwnedFd, Problem> {
        self.ask(Ask::Monitor, &[])?.1.next()
    }

    /// Starts a monitor of the guest's agent. It ends with the connection to it.
    ///
    /// # Errors
    /// If the VM has no channel to an agent, or does not run.
    pub fn start_agent_monitor(&self) -> Result<OwnedFd, Problem> {
        self.ask(Ask::AgentMonitor, &[])?.1.next()
    }

    /// Lets QEMU connect to a disk's socket.
    ///
    /// # Errors
    /// If the socket does not exist.
    pub fn give_socket(&self, number: usize) -> Result<(), Problem> {
        self.done(Ask::GiveSocket { number })
    }

    /// Connects to one of QEMU's sockets.
    ///
    /// # Errors
    /// If QEMU does not listen on it.
    pub(super) fn connect(&self, to: QemuSocket) -> io::Result<UnixStream> {
        let (_, mut files) = self.ask(Ask::Connect { to }, &[]).map_err(io::Error::other)?;
        files.next().map(UnixStream::from).map_err(io::Error::other)
    }

    /// Returns the file of the TPM's state and its directory, if the file exists.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn tpm_state(&self) -> io::Result<Option<[OwnedFd; 2]>> {
        let (_, mut files) = self.ask(Ask::TpmState, &[]).map_err(io::Error::other)?;
        Ok(files.0.next().zip(files.0.next()).map(<[OwnedFd; 2]>::from))
    }

    /// Returns a descriptor that is readable when the TPM's state has changed (inotify(7)).
    ///
    /// # Errors
    /// If it cannot be watched.
    pub fn watch_tpm(&self) -> io::Result<OwnedFd> {
        let (_, mut files) = self.ask(Ask::WatchTpm, &[]).map_err(io::Error::other)?;
        files.next().map_err(io::Error::other)
    }

    /// Connects to the gate of the VM's TPM; `None` if there is none: an earlier program has
    /// started swtpm, or the gate has ended.
    ///
    /// # Errors
    /// If the gate does not accept a connection.
    pub fn tpm_gate(&self) -> io::Result<Option<StateGate>> {
        let (_, mut files) = self.ask(Ask::TpmGate, &[]).map_err(io::Error::other)?;
        files.0.next().map(StateGate::adopt).transpose()
    }

    fn killer(&self) -> Arc<dyn Kills> {
        Arc::new(self.clone())
    }
}

impl Kills for Starter {
    fn kill(&self, pid: u32) {
        if let Err(problem) = self.done(Ask::Kill { pid }) {
            tracing::error!("process {pid} is not killed: {problem}");
        }
    }
}

impl StartsWorkers for Starter {
    fn installed_now(&self) -> io::Result<ProgramNumber> {
        match self.ask(Ask::InstalledProgram, &[]) {
            Ok((Answer::Program(number), _)) => Ok(number),
            Ok((other, _)) => Err(io::Error::other(unexpected(&other).message)),
            Err(problem) => Err(io::Error::other(problem.message)),
        }
    }

    fn start(&self, program: ProgramNumber, worker: &NewWorker<'_>) -> io::Result<Born> {
        let (frontend, placement) = (worker.frontend.clone(), worker.placement);
        let ask = Ask::Worker { program, frontend, placement, limit_pages: worker.limits.len() };
        match self.ask(ask, &worker.files()) {
            Ok((Answer::Worker { pid }, mut files)) => {
                let mut next = || files.next().map_err(|problem| io::Error::other(problem.message));
                Ok(Born { pid, socket: next()?, pidfd: next()? })
            }
            Ok((other, _)) => Err(io::Error::other(unexpected(&other).message)),
            Err(problem) => Err(io::Error::other(problem.message)),
        }
    }

    fn ended(&self, pid: u32) -> Option<ExitStatus> {
        match self.ask(Ask::WorkerEnded { pid }, &[]) {
            Ok((Answer::WorkerEnded(status), _)) => status.map(ExitStatus::from_raw),
            _ => None,
        }
    }

    fn kill(&self, pid: u32) {
        Kills::kill(self, pid);
    }
}

/// The files that came with an answer.
struct Files(std::vec::IntoIter<OwnedFd>);

impl Files {
    fn next(&mut self) -> Result<OwnedFd, Problem> {
        self.0.next().ok_or_else(|| Problem::new("starter", "what starts the VM's processes gave no file"))
    }
}

fn unexpected(answer: &Answer) -> Problem {
    Problem::new("starter", format!("what starts the VM's processes answered {answer:?}"))
}
