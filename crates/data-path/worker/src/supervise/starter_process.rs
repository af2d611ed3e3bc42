//! A process that starts a volume's workers, for a supervisor that has given up the rights to do
//! so.
//!
//! ```text
//! volume expose     the KEK; the volume's directory; no right, few system calls
//!    -> starter       its user's rights, no key; hears the supervisor alone
//!         -> workers   DEKs, one volume's file
//! ```
//!
//! The workers' program, the name of their cgroup, and the socket file to remove at the end are
//! given to it before the supervisor has any client. Later requests can name no program and no
//! path. If either of the two dies, the other one ends.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use strongroom_confine::{SupervisorFiles, confine_supervisor};
use strongroom_datastore::file::VolumeHead;
use strongroom_frontend::listen::SocketFile;

use super::SuperviseError;
use super::program::Program;
use super::quarters::Quarters;
use super::starter::{Born, NewWorker, ProgramNumber, StartsWorkers, WorkerStarter};
use super::timespec;
use crate::birth::{BirthError, BirthSocket, Frontend};
use crate::placement::Placement;

/// The most workers of a volume at once: one that serves, one of the newly installed program, and
/// one of the former program that replaces it again.
const WORKERS_MAX: usize = 3;
/// How long an ending supervisor waits for its starter, which copies the workers' last output.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// The first message to a starter.
#[derive(Debug, Serialize, Deserialize)]
pub struct StarterBirth {
    /// The volume's name, for the cgroups of workers.
    pub name: String,
    /// The file that it removes on request.
    pub socket_file: Option<SocketFile>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Ask {
    InstalledProgram,
    /// The listening socket is attached, the statistics page, if there is one, and the pages of
    /// its limits.
    Worker {
        program: ProgramNumber,
        frontend: Frontend,
        placement: Option<Placement>,
        limit_pages: usize,
    },
    Ended {
        pid: u32,
    },
    Kill {
        pid: u32,
    },
    RemoveSocketFile,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Done,
    Failed(String),
    Program(ProgramNumber),
    /// The worker's socket and its pidfd are attached.
    Worker {
        pid: u32,
    },
    Ended(Option<i32>),
}

/// The starter, from its supervisor's side.
#[derive(Debug)]
pub struct StarterProcess {
    /// One request at a time.
    socket: Mutex<BirthSocket>,
    pidfd: OwnedFd,
    /// Set when it is asked to end.
    is_ending: Arc<AtomicBool>,
}

impl StarterProcess {
    /// Starts `program`, which must call [`serve`].
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start(program: &Program, birth: &StarterBirth) -> io::Result<Arc<Self>> {
        let (socket, theirs) = BirthSocket::pair().map_err(io::Error::other)?;
        let child = program.command().stdin(theirs).stdout(Stdio::null()).spawn()?;
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        socket.send(birth, &[]).map_err(io::Error::other)?;
        Ok(Arc::new(Self { socket: Mutex::new(socket), pidfd, is_ending: Arc::default() }))
    }

    /// Ends this process when the starter has ended: a worker that dies could no longer be
    /// replaced.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn end_with(&self) -> io::Result<()> {
        let (pidfd, is_ending) = (self.pidfd.try_clone()?, Arc::clone(&self.is_ending));
        thread::Builder::new().name("starter".to_owned()).spawn(move || {
            while poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None).is_err() {}
            if is_ending.load(Ordering::SeqCst) {
                return;
            }
            tracing::error!("the process that starts the volume's workers is gone, and the exposure ends");
            std::process::exit(1);
        })?;
        Ok(())
    }

    /// Requests the removal of the socket's file.
    pub fn remove_socket_file(&self) {
        // A file that stays belongs to a dead socket, which the next server replaces.
        let _ = self.ask(&Ask::RemoveSocketFile, &[]);
    }

    fn ask(&self, ask: &Ask, files: &[BorrowedFd<'_>]) -> io::Result<(Answer, Vec<OwnedFd>)> {
        let mut socket = self.socket.lock();
        let answered = socket.send(ask, files).and_then(|()| socket.receive());
        match answered {
            Ok((Answer::Failed(why), _)) => Err(io::Error::other(why)),
            Ok(answered) => Ok(answered),
            Err(error) => Err(io::Error::other(format!("what starts workers does not answer: {error}"))),
        }
    }
}

impl Drop for StarterProcess {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::SeqCst);
        self.socket.get_mut().hang_up();
        let _ = poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&timespec(ENDS_WITHIN)));
    }
}

impl StartsWorkers for StarterProcess {
    fn installed_now(&self) -> io::Result<ProgramNumber> {
        match self.ask(&Ask::InstalledProgram, &[])?.0 {
            Answer::Program(number) => Ok(number),
            other => Err(unexpected(&other)),
        }
    }

    fn start(&self, program: ProgramNumber, worker: &NewWorker<'_>) -> io::Result<Born> {
        let (frontend, placement) = (worker.frontend.clone(), worker.placement);
        let limit_pages = worker.limits.len();
        match self.ask(&Ask::Worker { program, frontend, placement, limit_pages }, &worker.files())? {
            (Answer::Worker { pid }, files) => match <[OwnedFd; 2]>::try_from(files) {
                Ok([socket, pidfd]) => Ok(Born { pid, pidfd, socket }),
                Err(_) => Err(io::Error::other("what starts workers gave no files")),
            },
            (other, _) => Err(unexpected(&other)),
        }
    }

    fn ended(&self, pid: u32) -> Option<ExitStatus> {
        match self.ask(&Ask::Ended { pid }, &[]) {
            Ok((Answer::Ended(status), _)) => status.map(ExitStatus::from_raw),
            _ => None,
        }
    }

    fn kill(&self, pid: u32) {
        if let Err(error) = self.ask(&Ask::Kill { pid }, &[]) {
            tracing::error!("worker {pid} is not killed: {error}");
        }
    }
}

/// Confines this process, which has one thread and a starter of workers, to the volume's directory,
/// the paths in `read`, and the rights needed to fetch a key ([`strongroom_confine`]).
///
/// # Errors
/// If confinement fails; then the process must end.
pub fn confine(head: &VolumeHead, read: Vec<PathBuf>) -> Result<(), SuperviseError> {
    // Use its descriptor: the path to it may need rights that this process is about to lose.
    let directory = head.as_fd().map(|open| PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd())));
    let are_other_users = head.has_files_of_other_users();
    confine_supervisor(&SupervisorFiles { read, write: directory.into_iter().collect(), are_other_users })?;
    Ok(())
}

fn unexpected(answer: &Answer) -> io::Error {
    io::Error::other(format!("what starts workers answered {answer:?}"))
}

/// Starts workers of this program for the supervisor at the other end of `socket`, until the
/// supervisor hangs up and all workers have ended.
///
/// # Errors
/// [`BirthError::NotBorn`] if a person started it; if it does not understand its supervisor.
pub fn serve(socket: OwnedFd, program: Program) -> Result<(), BirthError> {
    let mut socket = BirthSocket::adopt(socket)?;
    let (StarterBirth { name, socket_file }, _) = socket.receive()?;
    let starter = WorkerStarter::new(program, Quarters::OfItsOwn).at_most(WORKERS_MAX);
    loop {
        let (ask, files) = match socket.receive() {
            Ok(asked) => asked,
            Err(BirthError::Gone) => break,
            Err(error) => return Err(error),
        };
        let answered = answer(&starter, &name, socket_file.as_ref(), ask, files);
        let (answer, files) =
            answered.unwrap_or_else(|error| (Answer::Failed(error.to_string()), Vec::new()));
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        match socket.send(&answer, &files) {
            Err(BirthError::Gone) => break,
            sent => sent?,
        }
    }
    starter.wait_for_all();
    Ok(())
}

fn answer(
    starter: &WorkerStarter,
    name: &str,
    socket_file: Option<&SocketFile>,
    ask: Ask,
    files: Vec<OwnedFd>,
) -> io::Result<(Answer, Vec<OwnedFd>)> {
    let done = |answer| Ok((answer, Vec::new()));
    match ask {
        Ask::InstalledProgram => done(Answer::Program(starter.installed_now()?)),
        Ask::Worker { program, frontend, placement, limit_pages } => {
            let worker = NewWorker::of_files(&frontend, placement, name, &files, limit_pages)?;
            let Born { pid, pidfd, socket } = starter.start(program, &worker)?;
            Ok((Answer::Worker { pid }, vec![socket, pidfd]))
        }
        Ask::Ended { pid } => done(Answer::Ended(starter.ended(pid).map(ExitStatusExt::into_raw))),
        Ask::Kill { pid } => {
            starter.kill(pid);
            done(Answer::Done)
        }
        Ask::RemoveSocketFile => {
            socket_file.map(SocketFile::remove);
            done(Answer::Done)
        }
    }
}
