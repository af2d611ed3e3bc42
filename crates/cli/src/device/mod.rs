//! `strongroom device`: volumes as block devices of this machine. One file per command.

mod attach;
mod create;
mod detach;
mod list;
pub mod process;
mod rekey;
mod remove;
mod serve;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use strongroom_devices::DeviceError;
use strongroom_devices::record::{DeviceName, Devices};
use strongroom_devices::status::RunFiles;

use crate::error::CliError;
use crate::home::HomeArguments;
use crate::output::Output;
use crate::serve::Places;

/// The commands for devices.
#[derive(Debug, Subcommand)]
pub enum DeviceCommand {
    /// Create a device: a volume that becomes a block device of this machine
    Create(Box<create::CreateArguments>),
    /// List devices, and what they wait for
    List(list::ListArguments),
    /// Attach devices, now and after each start of the machine
    Attach(attach::AttachArguments),
    /// Detach devices that no program uses
    Detach(detach::DetachArguments),
    /// Move devices to new keys, even while they are used; no data is copied
    Rekey(rekey::RekeyArguments),
    /// Delete a detached device and its data
    Remove(remove::RemoveArguments),
    /// Attach all devices until a signal comes; the service strongroom-devices runs it
    Serve(serve::ServeArguments),
}

impl DeviceCommand {
    /// Runs the command. `log` makes other processes log as this one does.
    pub fn run(&self, output: &Output, log: &[OsString]) -> Result<ExitCode, CliError> {
        strongroom_worker::process::prepare_for_keys()?;
        if !rustix::process::geteuid().is_root() {
            let text = "devices of this machine are root's: run this as root";
            return Err(CliError::Usage(text.to_owned()));
        }
        match self {
            Self::Create(arguments) => arguments.run(output),
            Self::List(arguments) => arguments.run(output),
            Self::Attach(arguments) => arguments.run(output),
            Self::Detach(arguments) => arguments.run(output),
            Self::Rekey(arguments) => return arguments.run(output),
            Self::Remove(arguments) => arguments.run(output),
            Self::Serve(arguments) => arguments.run(log),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Where devices are kept.
#[derive(Clone, Debug, Args)]
pub struct PlaceArguments {
    #[command(flatten)]
    home: HomeArguments,

    /// Directory for run-time files [default: STRONGROOM_RUN, or /run/strongroom]
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,
}

impl PlaceArguments {
    fn places(&self) -> Result<Places, CliError> {
        Places::of(&self.home, self.run.as_deref())
    }

    fn devices(&self) -> Result<Devices, CliError> {
        Ok(Devices::of_home(&self.places()?.home))
    }

    fn run_files(&self) -> Result<RunFiles, CliError> {
        Ok(RunFiles::of_run(&self.places()?.run))
    }
}

/// Devices by name, or all of them.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct WhichArguments {
    /// Names of the devices
    names: Vec<DeviceName>,

    /// All devices of this machine
    #[arg(long)]
    all: bool,
}

impl WhichArguments {
    fn names(&self, devices: &Devices) -> Result<Vec<DeviceName>, CliError> {
        if !self.all {
            // Each is there before the first is changed.
            self.names.iter().try_for_each(|name| devices.get(name).map(drop))?;
            return Ok(self.names.clone());
        }
        let all: Result<Vec<_>, DeviceError> = devices.all()?.into_iter().collect();
        Ok(all?.into_iter().map(|device| device.name).collect())
    }
}
