//! `strongroom device remove`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::{delete, describe};
use strongroom_devices::process::refuse_used;
use strongroom_devices::record::DeviceName;

use super::PlaceArguments;
use crate::error::CliError;
use crate::output::Output;
use crate::volume::delete::confirm;

/// A device that is not attached has no process.
const LOCK_WAIT: Duration = Duration::from_secs(3);

/// The arguments of `remove`.
#[derive(Debug, Args)]
#[command(after_help = "Deletes the data keys first, so that the blocks are unreadable wherever they remain.

Examples:
  strongroom device remove osd0
  strongroom device remove osd0 --yes")]
pub struct RemoveArguments {
    /// Name of the device, which is detached
    name: DeviceName,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    place: PlaceArguments,
}

#[derive(Serialize)]
struct Removed {
    name: DeviceName,
    volume: PathBuf,
}

impl fmt::Display for Removed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "removed device {} and {}", self.name, self.volume.display())
    }
}

impl RemoveArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let (devices, run) = (self.place.devices()?, self.place.run_files()?);
        let device = devices.get(&self.name)?;
        refuse_used(&self.name, &run)?;
        if device.attached || run.status(&self.name)?.is_some() {
            let text = format!("{0} is attached; `strongroom device detach {0}` first", self.name);
            return Err(CliError::Usage(text));
        }
        // Another volume is not deleted in its place; one that cannot be read is.
        if let Ok(found) = describe(&device.volume) {
            found.descriptor.expect_volume(&device.volume, Some(device.volume_id))?;
        }
        if !self.yes {
            let name = format!("device {}", self.name);
            confirm(output, &name, &format!("{name} and all its data"))?;
        }
        if device.volume.symlink_metadata().is_ok() {
            delete(&device.volume, LOCK_WAIT)?;
        }
        devices.remove(&self.name)?;
        output.answer(&Removed { name: self.name.clone(), volume: device.volume })
    }
}
