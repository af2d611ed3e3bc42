//! `strongroom device attach`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use strongroom_devices::DeviceError;
use strongroom_devices::record::DeviceName;
use strongroom_devices::status::{RunFiles, State};
use strongroom_processes::Signals;

use super::list::in_words;
use super::{PlaceArguments, WhichArguments};
use crate::error::CliError;
use crate::output::Output;

/// How often it is looked how far a device is.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The arguments of `attach`.
#[derive(Debug, Args)]
#[command(after_help = "The service strongroom-devices attaches them, and again after each start of the \
machine. While a key is unavailable, the command waits; Control-C ends the waiting, and the device is \
attached when its key is back.

Examples:
  strongroom device attach osd0
  strongroom device attach --all --no-wait")]
pub struct AttachArguments {
    #[command(flatten)]
    which: WhichArguments,

    /// Do not wait until the devices are attached
    #[arg(long)]
    no_wait: bool,

    #[command(flatten)]
    place: PlaceArguments,
}

#[derive(Serialize)]
struct Attached {
    devices: Vec<AttachedDevice>,
}

#[derive(Serialize)]
struct AttachedDevice {
    name: DeviceName,
    link: PathBuf,
    /// The block device that the link leads to; `None` with --no-wait, if it is not attached yet.
    block_device: Option<PathBuf>,
}

impl fmt::Display for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, AttachedDevice { name, link, block_device }) in self.devices.iter().enumerate() {
            if number > 0 {
                writeln!(f)?;
            }
            match block_device {
                Some(block_device) => write!(f, "{name}: {} ({})", link.display(), block_device.display())?,
                None => write!(f, "{name}: {}, not yet attached", link.display())?,
            }
        }
        Ok(())
    }
}

impl AttachArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let (devices, run) = (self.place.devices()?, self.place.run_files()?);
        let names = self.which.names(&devices)?;
        if run.served_by()?.is_none() {
            return Err(DeviceError::NotServed.into());
        }
        for name in &names {
            let mut device = devices.get(name)?;
            if !device.attached {
                device.attached = true;
                devices.replace(&device)?;
            }
        }
        let signals = Signals::catch().map_err(CliError::Signals)?;
        let attached = names.into_iter().map(|name| self.await_attached(name, &run, &signals, output));
        output.answer(&Attached { devices: attached.collect::<Result<_, _>>()? })
    }

    fn await_attached(
        &self,
        name: DeviceName,
        run: &RunFiles,
        signals: &Signals,
        output: &Output,
    ) -> Result<AttachedDevice, CliError> {
        let link = RunFiles::link(&name);
        let mut told = String::new();
        loop {
            let status = run.status(&name)?;
            if let Some(status) =
                status.as_ref().filter(|status| self.no_wait || status.state == State::Attached)
            {
                return Ok(AttachedDevice { name, link, block_device: status.block_device.clone() });
            }
            if self.no_wait {
                return Ok(AttachedDevice { name, link, block_device: None });
            }
            if let Some(status) = status.filter(|status| status.state != State::Starting) {
                let words = in_words(&status.state, &link);
                if words != told {
                    output.remark(&format!("{name}: {words}"));
                    told = words;
                }
            }
            if signals.came() {
                return Err(CliError::Interrupted);
            }
            if run.served_by()?.is_none() {
                return Err(DeviceError::NotServed.into());
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}
