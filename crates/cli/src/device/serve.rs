//! `strongroom device serve`.

use std::ffi::OsString;
use std::process::{Command, Stdio};

use clap::Args;
use strongroom_devices::record::DeviceName;
use strongroom_devices::service::serve;
use strongroom_files::FileError;
use strongroom_processes::Signals;

use super::PlaceArguments;
use super::process::DEVICE_PROCESS_COMMAND;
use crate::error::CliError;
use crate::readiness;
use crate::serve::Places;

/// The arguments of `serve`.
#[derive(Debug, Args)]
#[command(
    after_help = "Runs in the foreground. SIGTERM, SIGINT (Control-C) and SIGHUP end it: programs that use \
devices get a minute to end, and devices are flushed and detached. If it is killed, devices stay \
attached, and the next 'serve' takes them over.

Examples:
  strongroom device serve"
)]
pub struct ServeArguments {
    #[command(flatten)]
    place: PlaceArguments,
}

impl ServeArguments {
    /// Runs the command.
    pub fn run(&self, log: &[OsString]) -> Result<(), CliError> {
        let Places { home, run, .. } = self.place.places()?;
        let program = std::env::current_exe().map_err(|error| {
            CliError::File(FileError { action: "open", path: "/proc/self/exe".into(), error })
        })?;
        let start = |name: &DeviceName| {
            let mut command = Command::new(&program);
            command.args(log).arg(DEVICE_PROCESS_COMMAND).arg(name.as_str());
            command.arg("--home").arg(&home).arg("--run").arg(&run);
            // It outlives this process, whose service manager hears from this one alone.
            command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stdout(Stdio::null());
            command
        };
        let signals = Signals::catch().map_err(CliError::Signals)?;
        Ok(serve(
            &self.place.devices()?,
            &self.place.run_files()?,
            &home,
            &start,
            &readiness::tell,
            &signals,
        )?)
    }
}
