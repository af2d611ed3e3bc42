//! The supervisor of a VM: one process for each VM that runs, and for each job that needs a VM's
//! keys.
//!
//! It answers for everything of its VM: it fetches the keys under the VM's grants, keeps each
//! volume served by a worker, starts QEMU over them, and ends all of it in order when the VM is
//! off. It outlives the hostd that started it: the next one finds it by `state.json`, and proves on
//! its socket who it is. When it dies, its workers end with it, QEMU's guest waits for its disks,
//! and another supervisor takes QEMU over.
//!
//! hostd never has a key, workers never a KEK, and QEMU none at all: the one process that holds the
//! VM's KEK is this. It takes orders from nobody but hostd, and has no right to anything but the
//! VM's files: what takes rights is done by its [starter], and for a job by its [hand].
//!
//! What it and hostd say to each other, and where they find a VM, is in `strongroom_host`. hostd
//! knows nothing of this room: it starts this program, which becomes a supervisor here.
#![forbid(unsafe_code)]

pub mod attestation;
mod check;
pub mod console;
mod console_log;
mod disks;
mod door;
mod dump;
mod export;
mod guest_client;
pub mod hand;
pub mod job;
mod keys;
mod machine;
mod memory;
mod observe;
pub mod own_volume;
mod pages;
mod rekey;
mod room;
mod starter;
mod starting;
mod swap;
mod vm;
mod volumes;
mod vtpm;
mod walls;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::thread;

use strongroom_confine::SandboxError;
use strongroom_host::orders::{Birth, Report, RunTask, Task};
use strongroom_host::proof::{PeerSecret, ProofError};
use strongroom_host::protocol::Problem;
use strongroom_host::run_directory::VmRunDirectory;
use strongroom_host::wire::{Wire, WireError};
use thiserror::Error;

use self::door::Door;
use self::keys::VmKeys;
use self::pages::Pages;
use self::starter::Starter;
use self::vm::{Event, Vm, channel_of_events};

/// How the processes of a VM are started.
#[derive(Clone, Debug)]
pub struct Programs {
    /// This very program.
    pub this: PathBuf,
    /// What makes it a worker.
    pub worker: Vec<OsString>,
    /// What makes it the launcher of QEMU.
    pub launcher: Vec<OsString>,
}

/// Why a supervisor ended early.
#[derive(Debug, Error)]
pub enum SupervisorError {
    /// A person started it.
    #[error("the supervisor of a VM is started by hostd, and does nothing without it")]
    NotBorn,
    /// hostd.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The process must not touch a key.
    #[error(transparent)]
    Process(#[from] strongroom_worker::ProcessError),
    /// Its secret.
    #[error(transparent)]
    Proof(#[from] ProofError),
    /// There is no /proc.
    #[error("/proc cannot be read")]
    Proc,
    /// It holds no key unless it is confined.
    #[error("the VM's supervisor is not confined: {0}")]
    Confine(#[from] SandboxError),
    /// The operating system.
    #[error("the VM's supervisor cannot go on: {0}")]
    System(#[from] io::Error),
    /// A job was not done. hostd was told.
    #[error("{0}")]
    Job(Problem),
}

/// Does what hostd, from which this process was born, says over its standard input.
///
/// # Errors
/// [`SupervisorError::NotBorn`] if a person started it.
pub fn main(programs: &Programs) -> Result<(), SupervisorError> {
    let stdin = io::stdin().as_fd().try_clone_to_owned()?;
    let wire = Wire::adopt(stdin).ok_or(SupervisorError::NotBorn)?;
    close_inherited(&wire);
    // hostd's end, and a signal to its group, is none of ours.
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"strongroom-vm");
    strongroom_worker::prepare_for_keys()?;
    let (birth, files) = match wire.receive::<Birth>() {
        Err(WireError::Gone) => return Ok(()),
        received => received?,
    };
    let Birth { home, run, qemu, grants, task } = birth;
    let told = match task {
        Task::Run(task) => {
            let starter = Starter::start(&home, &run, &qemu, &task, files.into_iter().next())?;
            let run = VmRunDirectory::existing(run);
            walls::confine(&home, vec![task.spec.directory(), run.path().to_owned()])?;
            starter.live_and_die_with()?;
            return live(&home, run, grants, task, wire, starter);
        }
        Task::StartProcesses(task) => {
            let run = VmRunDirectory::existing(run);
            return starter::serve(task, run, qemu, files.into_iter().next(), &wire, programs);
        }
        Task::Hand(task) => return hand::serve(task, files, wire),
        Task::Judge(spec) => {
            walls::confine(&home, vec![spec.directory()])?;
            let judged = job::judge(&home, grants, &spec);
            let sent = wire.send(&judged.map_or_else(Report::Failed, Report::Judged), &[]);
            return Ok(sent?);
        }
        job => job::run(&home, &run, grants, job, files, &wire),
    };
    let report = match &told {
        Ok(volumes) => Report::Done(volumes.clone()),
        Err(problem) => Report::Failed(problem.clone()),
    };
    let sent = wire.send(&report, &[]);
    told.map(drop).map_err(SupervisorError::Job).and(Ok(sent?))
}

/// Runs a VM until it is off.
fn live(
    home: &Path,
    run: VmRunDirectory,
    grants: Vec<strongroom_host::protocol::Grant>,
    task: RunTask,
    wire: Wire,
    starter: Starter,
) -> Result<(), SupervisorError> {
    let vm = task.spec.id;
    let secret = PeerSecret::read(&run.secret()).map_err(ProofError::from)?;
    let keys = VmKeys::new(home, &task.spec.name)?;
    keys.add_grants(grants);
    let (events, inbox) = channel_of_events();
    hear_signals(events.clone())?;
    let pages = Pages::default();
    let door = Door::new(events.clone(), pages.clone());
    door.open(&run, secret, vm)?;
    let living = Vm::start(task, run, keys, starter, events, inbox, pages)?;
    // Who started us needs to prove nothing.
    door.admit(wire)?;
    living.run()
}

/// The host goes down: the guest is asked to end. A terminal's signals are not for us.
fn hear_signals(events: std::sync::mpsc::Sender<Event>) -> io::Result<()> {
    use std::io::Read;
    let (mut heard, said) = std::os::unix::net::UnixStream::pair()?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGTERM, said)?;
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, std::sync::Arc::default())?;
    }
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        while heard.read(&mut [0; 1]).is_ok_and(|count| count > 0) {
            let _ = events.send(Event::HostEnds);
        }
    })?;
    Ok(())
}

/// Closes what hostd did not mean for us, and leaves nothing of the socket on standard input for
/// those that are started from here.
fn close_inherited(wire: &Wire) {
    let ours = wire.as_fd().as_raw_fd();
    let numbers = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers: Vec<i32> = numbers
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|number| *number > 2 && *number != ours)
        .collect();
    for number in numbers {
        // Nothing here has opened a file yet. The directory that was read is closed already, and
        // not there.
        let _ = nix::unistd::close(number);
    }
    if let Ok(nothing) = std::fs::File::open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&nothing);
    }
}
