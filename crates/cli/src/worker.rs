//! `strongroom worker`: the process that serves a volume, started by `strongroom volume expose` and by nobody else.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use strongroom_worker::birth::BirthError;
use strongroom_worker::process_main::{WorkerError, process_main};

use crate::error::CliError;

/// What the command is called.
pub const WORKER_COMMAND: &str = "worker";

/// Everything comes over the socket that it is born with.
#[derive(Debug, Args)]
#[command(after_help = "Example of what starts one:
  strongroom volume expose ./ds/vm1")]
pub struct WorkerArguments {}

impl WorkerArguments {
    /// Serves until the supervisor says that it is enough.
    pub fn run(&self) -> Result<ExitCode, CliError> {
        // Whoever ends all processes of a service ends the supervisor too, and that ends this one in order.
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            let ignored = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal, ignored).map_err(CliError::Signals)?;
        }
        match process_main() {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(WorkerError::Birth(BirthError::NotBorn)) => Err(CliError::Usage(
                "a worker is started by 'strongroom volume expose', and does nothing without it".to_owned(),
            )),
            Err(error) => {
                // The supervisor has been told, and says it.
                tracing::info!("the worker ends: {error}");
                Ok(ExitCode::FAILURE)
            }
        }
    }
}
