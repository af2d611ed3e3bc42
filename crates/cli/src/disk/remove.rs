//! `strongroom disk delete`.

use clap::Args;
use strongroom_api::Reference;
use strongroom_api::volume::{DeleteVolume, VolumeChange};

use super::change;
use crate::api::{ApiArguments, WaitArguments, parse_reference};
use crate::error::CliError;
use crate::output::Output;
use crate::vm::is_meant;

/// The arguments of `delete`.
#[derive(Debug, Args)]
#[command(
    after_help = "Its content and its snapshots are lost. Its key stays at its provider. A disk with linked clones is not deleted unless \
what they share with it may stay.

Example:
  strongroom disk delete data1 --yes"
)]
pub struct DeleteArguments {
    /// Name or id of the disk
    #[arg(value_parser = parse_reference)]
    disk: Reference,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    /// Delete a disk with linked clones. They keep reading what they share, under their own keys
    #[arg(long)]
    leave_to_clones: bool,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

impl DeleteArguments {
    pub(super) fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        if !self.yes {
            is_meant(&format!("Delete disk {} and everything on it?", self.disk))?;
        }
        let wish = DeleteVolume { volume: self.disk.clone(), leave_to_clones: self.leave_to_clones };
        let task = change(&api, VolumeChange::Delete(wish))?;
        self.wait.finish(&api, output, "deleting", task, format!("disk {} is deleted", self.disk))
    }
}
