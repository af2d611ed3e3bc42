//! Where this program keeps what is its own, and no volume's: jobs, and what is set up on this
//! machine.

use std::path::PathBuf;

use clap::Args;
use strongroom_providers::{HOME_VARIABLE, home};

use crate::error::CliError;

/// Where state is kept.
#[derive(Clone, Debug, Default, Args)]
pub struct HomeArguments {
    /// Keep state in DIR, key providers among it; otherwise in what the environment variable
    /// STRONGROOM_HOME names, or in /var/lib/strongroom (root) or ~/.local/state/strongroom
    #[arg(long, value_name = "DIR")]
    home: Option<PathBuf>,
}

impl HomeArguments {
    /// Whether a person or the environment says where.
    pub fn is_named(&self) -> bool {
        self.home.is_some() || std::env::var_os(HOME_VARIABLE).is_some()
    }

    /// The directory, which may not be there yet.
    pub fn path(&self) -> Result<PathBuf, CliError> {
        home(self.home.as_deref()).ok_or_else(|| {
            CliError::Usage(format!("there is no place for state: give --home DIR, or set {HOME_VARIABLE}"))
        })
    }
}
