//! The supervisor of a VM: one process for each running VM, and for each job that needs a VM's
//! keys.
//!
//! It is responsible for its whole VM: it fetches the keys with the VM's grants, keeps each volume
//! served by a worker, starts QEMU, and ends all of it in order when the VM is off. It outlives the
//! hostd that started it: the next hostd finds it through `state.json`, and verifies its identity
//! on its socket. If it dies, its workers end with it, QEMU's guest waits for its disks, and
//! another supervisor takes over QEMU.
//!
//! hostd never has a key, workers never have a KEK, and QEMU has no key at all: this is the only
//! process that holds the VM's KEK. It takes orders only from hostd, and can access only the VM's
//! files. Its [starter] does the privileged steps, and a job's [hand] those of a job.
//!
//! The messages between it and hostd, and the paths of a VM, are in `strongroom_host`. hostd does
//! not depend on this room: it starts this program, which becomes a supervisor here.
#![forbid(unsafe_code)]

mod another_host;
pub mod attestation;
mod check;
mod client_image;
mod clusters;
pub mod console;
mod console_log;
mod disk_move;
mod disks;
mod door;
mod dump;
mod export;
mod group_part;
mod guest_agent;
mod guest_client;
pub mod hand;
pub mod job;
mod keys;
mod look_only;
mod machine;
mod memory;
mod observe;
mod origin;
pub mod own_volume;
mod pages;
mod rekey;
mod room;
mod seal;
mod serial;
mod slowdown;
mod snapshots;
mod starter;
mod starting;
mod swap;
mod transfer;
mod vm;
mod volumes;
mod vtpm;
mod walls;

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread;

use strongroom_confine::{SandboxError, close_inherited};
use strongroom_host::orders::{Birth, Report, RunTask, Task};
use strongroom_host::proof::{PeerSecret, ProofError};
use strongroom_host::protocol::Problem;
use strongroom_host::run_directory::VmRunDirectory;
use strongroom_host::wire::{Wire, WireError};
use strongroom_rbd::process::StorageProgram;
use strongroom_worker::control::keep_sockets_of_clusters_in;
use thiserror::Error;

use self::door::Door;
use self::keys::VmKeys;
use self::pages::Pages;
use self::starter::Starter;
use self::vm::{Event, Vm, channel_of_events};

/// How the processes of a VM are started.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The path of this program.
    pub this: PathBuf,
    /// The arguments that make it a worker.
    pub worker: Vec<OsString>,
    /// The arguments that make it the launcher of QEMU.
    pub launcher: Vec<OsString>,
    /// The arguments that make it a storage process.
    pub storage: Vec<OsString>,
}

impl Programs {
    fn storage(&self) -> StorageProgram {
        StorageProgram { path: self.this.clone(), arguments: self.storage.clone() }
    }
}

/// Why a supervisor ended early.
#[derive(Debug, Error)]
pub enum SupervisorError {
    /// It was started by a person.
    #[error("the supervisor of a VM is started by hostd, and does nothing without it")]
    NotBorn,
    /// The connection to hostd failed.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The process is not fit to hold a key.
    #[error(transparent)]
    Process(#[from] strongroom_worker::ProcessError),
    /// Its secret cannot be used.
    #[error(transparent)]
    Proof(#[from] ProofError),
    /// /proc is missing.
    #[error("/proc cannot be read")]
    Proc,
    /// It could not be confined, and holds no key.
    #[error("the VM's supervisor is not confined: {0}")]
    Confine(#[from] SandboxError),
    /// A system call failed.
    #[error("the VM's supervisor cannot go on: {0}")]
    System(#[from] io::Error),
    /// A job failed. hostd has been told.
    #[error("{0}")]
    Job(Problem),
}

/// Does the task that hostd, which started this process, sends over standard input.
///
/// # Errors
/// [`SupervisorError::NotBorn`] if it was started by a person.
pub fn main(programs: &Programs) -> Result<(), SupervisorError> {
    let stdin = io::stdin().as_fd().try_clone_to_owned()?;
    let wire = Wire::adopt(stdin).ok_or(SupervisorError::NotBorn)?;
    close_inherited(Some(wire.as_fd()));
    close_stdin();
    // The supervisor survives hostd, and signals to hostd's process group.
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"strongroom-vm");
    strongroom_worker::prepare_for_keys()?;
    let (birth, files) = match wire.receive::<Birth>() {
        Err(WireError::Gone) => return Ok(()),
        received => received?,
    };
    let Birth { home, run, qemu, grants, clusters, task } = birth;
    let told = match task {
        Task::Run(task) => {
            let starter = Starter::start(&home, &run, &qemu, &clusters, &task, files.into_iter().next())?;
            clusters::mount_by_starter(clusters.keys(), &starter);
            let run = VmRunDirectory::existing(run);
            keep_sockets_of_clusters_in(&run.control_sockets());
            let mut directories = task.directories();
            directories.push(run.path().to_owned());
            walls::confine(&home, directories)?;
            starter.live_and_die_with()?;
            return live(&home, run, grants, task, wire, starter);
        }
        Task::StartProcesses(task) => {
            let run = VmRunDirectory::existing(run);
            return starter::serve(task, run, qemu, clusters, files.into_iter().next(), &wire, programs);
        }
        Task::Hand(task) => {
            clusters::mount_on_demand(&clusters, programs);
            return hand::serve(task, files, wire);
        }
        Task::Judge(spec) => {
            let mounted = clusters::mount_once(&clusters, programs);
            walls::confine(&home, spec.directories())?;
            let judged = mounted.and_then(|_processes| job::judge(&home, grants, &spec));
            let sent = wire.send(&judged.map_or_else(Report::Failed, Report::Judged), &[]);
            return Ok(sent?);
        }
        job => {
            let mounted = clusters::mount_once(&clusters, programs);
            mounted.and_then(|_processes| job::run(&home, &run, grants, clusters, job, files, &wire))
        }
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
    // The hostd that started this process needs no proof.
    door.admit(wire)?;
    living.run()
}

/// When the host shuts down, the guest is asked to shut down. Signals of a terminal are ignored.
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

/// Replaces the socket on standard input, so that child processes do not get it.
fn close_stdin() {
    if let Ok(nothing) = std::fs::File::open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&nothing);
    }
}
