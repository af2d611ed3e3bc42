//! `strongroom vm-supervisor` and `strongroom launcher`: the process that answers for a VM, started
//! by hostd, and the one that becomes its QEMU, started by that. By nobody else.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;
use strongroom_files::FileError;
use strongroom_vm_supervisor::{self as supervisor, Programs, SupervisorError};

use crate::error::CliError;
use crate::worker::WORKER_COMMAND;

/// What the supervisor's command is called.
pub const SUPERVISOR_COMMAND: &str = "vm-supervisor";
/// What the launcher's command is called.
pub const LAUNCHER_COMMAND: &str = "launcher";

/// Everything comes over the socket that it is born with.
#[derive(Debug, Args)]
#[command(after_help = "Example of what has hostd start one:\n  strongroom vm start web1")]
pub struct SupervisorArguments {}

/// The same.
#[derive(Debug, Args)]
#[command(after_help = "Example of what has a supervisor start one:\n  strongroom vm start web1")]
pub struct LauncherArguments {}

impl SupervisorArguments {
    /// Answers for a VM until it is off. `log` is what makes its workers log as this process does.
    pub fn run(&self, log: &[OsString]) -> Result<ExitCode, CliError> {
        let this = std::env::current_exe().map_err(|error| {
            CliError::File(FileError { action: "find", path: "/proc/self/exe".into(), error })
        })?;
        let command = |name: &str| log.iter().cloned().chain([name.into()]).collect();
        let programs =
            Programs { this, worker: command(WORKER_COMMAND), launcher: command(LAUNCHER_COMMAND) };
        match supervisor::main(&programs) {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(error @ SupervisorError::NotBorn) => Err(CliError::Usage(error.to_string())),
            Err(error) => {
                // hostd has been told, and says it.
                tracing::info!("the VM's supervisor ends: {error}");
                Ok(ExitCode::FAILURE)
            }
        }
    }
}

impl LauncherArguments {
    /// Becomes what it is told to become.
    pub fn run(&self) -> Result<ExitCode, CliError> {
        let error = strongroom_hypervisor::process_main();
        tracing::info!("the launcher ends: {error}");
        Ok(ExitCode::FAILURE)
    }
}
