//! `strongroom worker`, `strongroom worker-starter` and `strongroom storage-process`: the process
//! that serves a volume, the one that starts it for `strongroom volume expose`, and the one that
//! has the files of volumes on a cluster. They are not for users.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use strongroom_files::FileError;
use strongroom_worker::birth::BirthError;
use strongroom_worker::process::close_memory;
use strongroom_worker::process_main::{WorkerError, process_main};
use strongroom_worker::supervise::{Program, serve_starter};

use crate::error::CliError;

/// The name of the worker's command.
pub const WORKER_COMMAND: &str = "worker";
/// The name of the command of the process that starts workers.
pub const STARTER_COMMAND: &str = "worker-starter";

/// The name of the command of the process that has the files of volumes on a cluster.
pub const STORAGE_COMMAND: &str = strongroom_rbd::process::COMMAND;

/// The worker gets everything over the socket that it inherits.
#[derive(Debug, Args)]
#[command(after_help = "Example of what starts one:
  strongroom volume expose ./ds/vm1")]
pub struct WorkerArguments {}

impl WorkerArguments {
    /// Runs the command.
    pub fn run(&self) -> Result<ExitCode, CliError> {
        leave_signals_to_the_supervisor()?;
        match process_main() {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(WorkerError::Birth(BirthError::NotBorn)) => Err(not_born()),
            Err(error) => {
                // The supervisor has been told, and reports it.
                tracing::info!("the worker ends: {error}");
                Ok(ExitCode::FAILURE)
            }
        }
    }
}

/// The starter gets everything over the socket that it inherits.
#[derive(Debug, Args)]
#[command(after_help = "Example of what starts one:
  strongroom volume expose ./ds/vm1")]
pub struct StarterArguments {}

impl StarterArguments {
    /// Starts workers until its supervisor has ended. `log` makes them log as this process does.
    pub fn run(&self, log: &[OsString]) -> Result<ExitCode, CliError> {
        // For a moment it holds the sockets over which workers get their keys.
        close_memory()?;
        leave_signals_to_the_supervisor()?;
        let failed = |error| CliError::File(FileError { action: "use", path: "/dev/stdin".into(), error });
        let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
        match serve_starter(socket, this_program(log, WORKER_COMMAND)?) {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(BirthError::NotBorn) => Err(not_born()),
            Err(error) => {
                tracing::error!("no workers are started any more: {error}");
                Ok(ExitCode::FAILURE)
            }
        }
    }
}

/// The storage process gets everything over the socket that it inherits.
#[derive(Debug, Args)]
#[command(after_help = "Example of what starts one:
  strongroom serve")]
pub struct StorageArguments {}

impl StorageArguments {
    /// Serves the files of a cluster until nobody uses them.
    pub fn run(&self) -> Result<ExitCode, CliError> {
        leave_signals_to_the_supervisor()?;
        let failed = |error| CliError::File(FileError { action: "use", path: "/dev/stdin".into(), error });
        let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
        match strongroom_rbd::process::process_main(socket) {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(strongroom_rbd::process::ProcessError::NotBorn) => Err(not_born()),
            Err(error) => {
                // The supervisor has been told, and reports it.
                tracing::info!("the storage process ends: {error}");
                Ok(ExitCode::FAILURE)
            }
        }
    }
}

/// This program's own executable, prepared to run one of its commands that logs as this process
/// does.
pub fn this_program(log: &[OsString], command: &str) -> Result<Program, CliError> {
    let path = std::env::current_exe().map_err(|error| {
        CliError::File(FileError { action: "open", path: "/proc/self/exe".into(), error })
    })?;
    let mut arguments = log.to_vec();
    arguments.push(command.into());
    Program::at(&path, arguments).map_err(|error| CliError::File(FileError { action: "open", path, error }))
}

/// A signal to all processes of a service also ends the supervisor, which ends this process in
/// order.
fn leave_signals_to_the_supervisor() -> Result<(), CliError> {
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        let ignored = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal, ignored).map_err(CliError::Signals)?;
    }
    Ok(())
}

fn not_born() -> CliError {
    let text = "a worker is started by 'strongroom volume expose', and does nothing without it";
    CliError::Usage(text.to_owned())
}
