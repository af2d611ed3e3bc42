//! `strongroom vm disk remove`.

use clap::Args;

use super::super::remove::is_meant;
use crate::api::{ApiArguments, WaitArguments, segment};
use crate::error::CliError;
use crate::output::Output;

/// The arguments of `remove`.
#[derive(Debug, Args)]
#[command(after_help = "The content of the disk is lost. The guest of a running VM is asked to release it \
within a minute; stop using the disk in the guest first. The first disk of a VM cannot be removed.

Examples:
  strongroom vm disk remove web1 disk1
  strongroom vm disk remove web1 disk1 --yes")]
pub struct RemoveArguments {
    /// Name or id of the VM
    vm: String,

    /// Name of the disk, such as disk1
    disk: String,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

impl RemoveArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        if !self.yes {
            is_meant(&format!("Delete {} of VM {} and everything on it?", self.disk, self.vm))?;
        }
        let task = api.delete(&format!("/v1/vms/{}/disks/{}", segment(&self.vm), segment(&self.disk)))?;
        let said = format!("{} of {} is deleted", self.disk, self.vm);
        self.wait.finish(&api, output, "removing", task, said)
    }
}
