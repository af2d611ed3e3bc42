//! The directory for this program's own state: jobs, and this machine's configuration.

use std::path::PathBuf;

use clap::Args;
use strongroom_providers::{HOME_VARIABLE, home};

use crate::error::CliError;

/// The directory for state.
#[derive(Clone, Debug, Default, Args)]
pub struct HomeArguments {
    /// Directory for state, such as key providers [default: STRONGROOM_HOME, or /var/lib/strongroom
    /// (root) or ~/.local/state/strongroom]
    #[arg(long, value_name = "DIR")]
    home: Option<PathBuf>,
}

impl HomeArguments {
    /// Whether an option or the environment names it.
    pub fn is_named(&self) -> bool {
        self.home.is_some() || std::env::var_os(HOME_VARIABLE).is_some()
    }

    /// The directory, which may not exist yet.
    pub fn path(&self) -> Result<PathBuf, CliError> {
        home(self.home.as_deref()).ok_or_else(|| {
            CliError::Usage(format!("there is no place for state: give --home DIR, or set {HOME_VARIABLE}"))
        })
    }
}
