//! `strongroom guest-relay`: the control plane starts it for consoles and screens in browsers. It
//! carries guest data, and has no key, no file of the site's and no inventory. It is not for users.

use std::os::fd::AsFd;
use std::process::ExitCode;

use clap::Args;
use strongroom_control::guest_relay::{GuestRelay, HandedOver, NotTaken};
use strongroom_files::FileError;
use strongroom_guest_relay::{HandedFiles, Handover, Relay, RunError, relay_main};
use strongroom_worker::prepare_for_keys;

use crate::error::CliError;

/// The name of the relay's command.
pub const GUEST_RELAY_COMMAND: &str = "guest-relay";

/// The relay gets everything over the socket that it inherits.
#[derive(Debug, Args)]
#[command(after_help = "Example of what starts one:
  strongroom serve")]
pub struct GuestRelayArguments {}

impl GuestRelayArguments {
    /// Carries guest data until the control plane is gone.
    pub fn run(&self) -> Result<ExitCode, CliError> {
        let failed = |error| CliError::File(FileError { action: "use", path: "/dev/stdin".into(), error });
        let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
        let _ = rustix::thread::set_name(c"strongroom-gues");
        // Neither another process nor a core has what passes.
        prepare_for_keys().map_err(|error| CliError::Usage(error.to_string()))?;
        match relay_main(socket) {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(RunError::NotBorn) => Err(CliError::Usage(RunError::NotBorn.to_string())),
            Err(error) => {
                tracing::error!("{error}");
                Ok(ExitCode::FAILURE)
            }
        }
    }
}

/// The relay of the control plane.
pub struct BrowsersRelay(pub Relay);

impl GuestRelay for BrowsersRelay {
    fn take(&self, connection: HandedOver) -> Result<(), NotTaken> {
        let HandedOver { secrets, browser, leash, ticket, host } = connection;
        let handover = Handover::new(secrets, ticket).map_err(|error| NotTaken(error.to_string()))?;
        let host = host.as_ref().map(AsFd::as_fd);
        let files = HandedFiles { browser: browser.as_fd(), leash: leash.as_fd(), host };
        self.0.take(&handover, files).map_err(|error| NotTaken(error.to_string()))
    }
}
