//! `strongroom vm disk move`.

use clap::Args;
use strongroom_api::Reference;
use strongroom_api::vm::MoveDisk;

use crate::api::{ApiArguments, WaitArguments, parse_reference, segment};
use crate::error::CliError;
use crate::output::Output;

/// The arguments of `move`.
#[derive(Debug, Args)]
#[command(after_help = "The VM runs, or is off and stays so until the disk is there. The disk is copied \
with its snapshots as it is stored, without being decrypted; then the former one is deleted. Until that is \
done it takes its space in both datastores. A guest that runs writes to it meanwhile, and waits for it while \
the last part is copied. A cancellation before all of it is copied leaves it where it was. \
The VM's other disks, its configuration and its TPM stay where they are.

Example:
  strongroom vm disk move web1 disk0 --to fast")]
pub struct MoveArguments {
    /// Name or id of the VM
    vm: String,

    /// Name of the disk; disk0 is the first
    disk: String,

    /// Datastore that it moves to, by name or id; the VM's host reaches it
    #[arg(long, value_name = "DATASTORE", value_parser = parse_reference)]
    to: Reference,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

impl MoveArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let path = format!("/v1/vms/{}/disks/{}/move", segment(&self.vm), segment(&self.disk));
        let task = api.post(&path, &MoveDisk { datastore: self.to.clone() })?;
        let said = format!("{} of {} is in datastore {}", self.disk, self.vm, self.to.as_str());
        self.wait.finish(&api, output, "moving", task, said)
    }
}
