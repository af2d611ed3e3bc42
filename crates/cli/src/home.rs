//! Where this program keeps what is its own, and no volume's: jobs, and what is set up on this machine.

use std::path::PathBuf;

use clap::Args;

use crate::error::CliError;

/// The environment variable with the directory.
const HOME_VARIABLE: &str = "STRONGROOM_HOME";

/// The directory of root's.
const ROOT_HOME: &str = "/var/lib/strongroom";

/// Where state is kept.
#[derive(Clone, Debug, Args)]
pub struct HomeArguments {
    /// Keep state in DIR; otherwise in what the environment variable STRONGROOM_HOME names, or in /var/lib/strongroom
    /// (root) or ~/.local/state/strongroom
    #[arg(long, value_name = "DIR")]
    home: Option<PathBuf>,
}

impl HomeArguments {
    /// The directory, which may not be there yet.
    pub fn path(&self) -> Result<PathBuf, CliError> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(home) = self.home.clone().or_else(|| variable(HOME_VARIABLE)) {
            return Ok(home);
        }
        if rustix::process::geteuid().is_root() {
            return Ok(ROOT_HOME.into());
        }
        let state = variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")));
        state.map(|state| state.join("strongroom")).ok_or_else(|| {
            CliError::Usage(format!("there is no place for state: give --home DIR, or set {HOME_VARIABLE}"))
        })
    }
}
