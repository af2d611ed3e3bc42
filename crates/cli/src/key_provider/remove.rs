//! `strongroom key-provider remove`.

use std::fmt;

use clap::Args;
use serde::Serialize;
use strongroom_keys::ProviderName;
use strongroom_providers::Registry;

use crate::error::CliError;
use crate::home::HomeArguments;
use crate::output::Output;

/// Which provider.
#[derive(Debug, Args)]
#[command(
    after_help = "Forgets how the provider is reached. Its keys stay there, and volumes that need them are key-unavailable \
until a provider of the same name is added again.

Examples:
  strongroom key-provider remove corp"
)]
pub struct RemoveArguments {
    /// The provider
    name: ProviderName,

    #[command(flatten)]
    home: HomeArguments,
}

#[derive(Serialize)]
struct Removed {
    name: ProviderName,
    removed: bool,
}

impl fmt::Display for Removed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "removed {}; its keys stay where they are", self.name)
    }
}

impl RemoveArguments {
    /// Forgets it.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        Registry::of_home(&self.home.path()?).remove(&self.name)?;
        output.answer(&Removed { name: self.name.clone(), removed: true })
    }
}
