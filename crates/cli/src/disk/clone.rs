//! `strongroom disk clone`.

use clap::Args;
use strongroom_api::volume::{CloneVolume, VolumeChange};
use strongroom_api::{Name, Reference};

use super::change;
use crate::api::{ApiArguments, WaitArguments, parse_reference};
use crate::error::CliError;
use crate::output::Output;
use crate::vm::SealingArguments;

/// The arguments of `clone`.
#[derive(Debug, Args)]
#[command(
    after_help = "The new disk has a key of its own. The content is copied, or with --linked shared: the new disk then begins with the \
files of a snapshot, and takes no space and no time at first. Of a disk of a VM that runs, a snapshot is copied, which is made for that \
and deleted afterwards.

Examples:
  strongroom disk clone data1 data2
  strongroom disk clone data1 data2 --linked
  strongroom disk clone web1/disk1 data3 --snapshot before-upgrade"
)]
pub struct CloneArguments {
    /// Name or id of the disk, or VM/DISK for one of a VM
    #[arg(value_parser = parse_reference)]
    disk: Reference,

    /// Name of the new disk
    name: Name,

    /// Name or id of the snapshot to clone [default: the present content]
    #[arg(long, value_name = "SNAPSHOT", value_parser = parse_reference)]
    snapshot: Option<Reference>,

    /// Share the snapshot's files instead of copying its content
    #[arg(long)]
    linked: bool,

    /// Datastore of the same host [default: that of the disk]
    #[arg(long, value_name = "DATASTORE", conflicts_with = "linked", value_parser = parse_reference)]
    datastore: Option<Reference>,

    #[command(flatten)]
    sealing: SealingArguments,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

impl CloneArguments {
    pub(super) fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let wish = CloneVolume {
            volume: self.disk.clone(),
            name: self.name.clone(),
            snapshot: self.snapshot.clone(),
            datastore: self.datastore.clone(),
            linked: self.linked,
            encrypted: self.sealing.encrypted(),
            integrity: self.sealing.integrity(),
            key_provider: self.sealing.key_provider(),
        };
        let task = change(&api, VolumeChange::Clone(wish))?;
        let kind = if self.linked { "linked clone" } else { "clone" };
        let said = format!("{} is a {kind} of {}", self.name, self.disk);
        self.wait.finish(&api, output, "cloning", task, said)
    }
}
