//! `strongroom vm-supervisor` and `strongroom launcher`: hostd starts the first, the process that
//! manages one VM; that one starts the second, which becomes the VM's QEMU. They are not for users.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;
use strongroom_files::FileError;
use strongroom_vm_supervisor::{self as supervisor, Programs, SupervisorError};

use crate::error::CliError;
use crate::worker::{STORAGE_COMMAND, WORKER_COMMAND};

/// The name of the supervisor's command.
pub const SUPERVISOR_COMMAND: &str = "vm-supervisor";
/// The name of the launcher's command.
pub const LAUNCHER_COMMAND: &str = "launcher";

/// The supervisor gets everything over the socket that it inherits.
#[derive(Debug, Args)]
#[command(after_help = "Example of what has hostd start one:\n  strongroom vm start web1")]
pub struct SupervisorArguments {}

/// The launcher gets everything over the socket that it inherits.
#[derive(Debug, Args)]
#[command(after_help = "Example of what has a supervisor start one:\n  strongroom vm start web1")]
pub struct LauncherArguments {}

impl SupervisorArguments {
    /// Manages a VM until it is off. `log` makes its workers log as this process does.
    pub fn run(&self, log: &[OsString]) -> Result<ExitCode, CliError> {
        let this = std::env::current_exe().map_err(|error| {
            CliError::File(FileError { action: "find", path: "/proc/self/exe".into(), error })
        })?;
        let command = |name: &str| log.iter().cloned().chain([name.into()]).collect();
        let programs = Programs {
            this,
            worker: command(WORKER_COMMAND),
            launcher: command(LAUNCHER_COMMAND),
            storage: command(STORAGE_COMMAND),
        };
        match supervisor::main(&programs) {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(error @ SupervisorError::NotBorn) => Err(CliError::Usage(error.to_string())),
            Err(error) => {
                // hostd has been told, and reports it.
                tracing::info!("the VM's supervisor ends: {error}");
                Ok(ExitCode::FAILURE)
            }
        }
    }
}

impl LauncherArguments {
    /// Runs the command.
    pub fn run(&self) -> Result<ExitCode, CliError> {
        let error = strongroom_hypervisor::process_main();
        tracing::info!("the launcher ends: {error}");
        Ok(ExitCode::FAILURE)
    }
}
