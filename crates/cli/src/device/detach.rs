//! `strongroom device detach`.

use std::fmt;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use strongroom_devices::process::refuse_used;
use strongroom_devices::record::DeviceName;
use strongroom_devices::status::State;
use strongroom_processes::Signals;

use super::{PlaceArguments, WhichArguments};
use crate::error::CliError;
use crate::output::Output;

/// How often it is looked how far a device is.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The arguments of `detach`.
#[derive(Debug, Args)]
#[command(
    after_help = "A device that a program has open, or that is mounted, is refused. A detached device \
stays detached after a start of the machine.

Examples:
  strongroom device detach osd0
  strongroom device detach --all"
)]
pub struct DetachArguments {
    #[command(flatten)]
    which: WhichArguments,

    #[command(flatten)]
    place: PlaceArguments,
}

#[derive(Serialize)]
struct Detached {
    detached: Vec<DeviceName>,
}

impl fmt::Display for Detached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.detached.iter().map(DeviceName::as_str).collect();
        write!(f, "detached {}", names.join(", "))
    }
}

impl DetachArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let (devices, run) = (self.place.devices()?, self.place.run_files()?);
        let names = self.which.names(&devices)?;
        names.iter().try_for_each(|name| refuse_used(name, &run))?;
        for name in &names {
            let mut device = devices.get(name)?;
            if device.attached {
                device.attached = false;
                devices.replace(&device)?;
            }
        }
        let signals = Signals::catch().map_err(CliError::Signals)?;
        for name in &names {
            let mut told = false;
            while let Some(status) = run.status(name)? {
                if let (State::Detaching { users }, false) = (&status.state, told) {
                    output.remark(&format!("{name} is in use by {users}; it is detached when that ends"));
                    told = true;
                }
                if signals.came() {
                    return Err(CliError::Interrupted);
                }
                std::thread::sleep(LOOK_EVERY);
            }
        }
        output.answer(&Detached { detached: names })
    }
}
