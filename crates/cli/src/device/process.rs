//! `strongroom device-process`: the process of one device. It is not for users.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use clap::Args;
use strongroom_devices::process::keep_attached;
use strongroom_devices::record::{Device, DeviceName};
use strongroom_files::FileError;
use strongroom_processes::Signals;

use super::PlaceArguments;
use crate::error::CliError;

/// Its name.
pub const DEVICE_PROCESS_COMMAND: &str = "device-process";

/// The arguments of `device-process`.
#[derive(Debug, Args)]
#[command(after_help = "Example of what starts one:
  strongroom device serve")]
pub struct DeviceProcessArguments {
    /// Name of the device
    name: DeviceName,

    #[command(flatten)]
    place: PlaceArguments,
}

impl DeviceProcessArguments {
    /// Keeps the device attached. `log` makes the exposure log as this process does.
    pub fn run(&self, log: &[OsString]) -> Result<(), CliError> {
        // Plain blocks pass through it.
        strongroom_worker::process::prepare_for_keys()?;
        let home = self.place.places()?.home;
        let program = std::env::current_exe().map_err(|error| {
            CliError::File(FileError { action: "open", path: "/proc/self/exe".into(), error })
        })?;
        let expose = |device: &Device, socket: &Path| {
            let mut address = OsString::from("unix:");
            address.push(socket);
            let mut command = Command::new(&program);
            command.args(log).arg("--ends-with").arg(std::process::id().to_string());
            command.args(["volume", "expose"]).arg(&device.volume).arg("--home").arg(&home);
            command.arg("--nbd").arg(address);
            command.arg("--expect-volume").arg(device.volume_id.to_string());
            command.arg("--least-generation").arg(device.least_generation.to_string());
            command
        };
        let signals = Signals::catch().map_err(CliError::Signals)?;
        Ok(keep_attached(&self.name, &self.place.devices()?, &self.place.run_files()?, &expose, &signals)?)
    }
}
