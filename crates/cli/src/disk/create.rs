//! `strongroom disk create`.

use clap::Args;
use strongroom_api::volume::{CreateVolume, VolumeChange};
use strongroom_api::{Name, Reference};
use strongroom_types::VolumeSize;

use super::change;
use crate::api::{ApiArguments, WaitArguments, parse_reference};
use crate::error::CliError;
use crate::output::Output;
use crate::vm::parse_disk;

/// The arguments of `create`.
#[derive(Debug, Args)]
#[command(
    after_help = "The disk is empty, and under a key of its own, which goes with it to a VM and back. It has snapshots and clones as a \
VM's disks have them.

Examples:
  strongroom disk create data1 --size 20G
  strongroom disk bind data1 web1"
)]
pub struct CreateArguments {
    /// Name of the disk; VMs and disks do not have the same names
    name: Name,

    /// Size of the disk, such as 20G
    #[arg(long, value_name = "SIZE", value_parser = parse_disk)]
    size: VolumeSize,

    /// Datastore [default: the only one]
    #[arg(long, value_name = "NAME", value_parser = parse_reference)]
    datastore: Option<Reference>,

    /// Folder of the disk; roles that count in it count for the disk
    #[arg(long, value_name = "FOLDER", value_parser = parse_reference)]
    folder: Option<Reference>,

    /// Allocate all of its space now
    #[arg(long)]
    thick: bool,

    /// Store a keyed tag for each block: a block that was modified or replaced by an old one cannot
    /// be read
    #[arg(long, conflicts_with = "unencrypted")]
    integrity: bool,

    /// Key provider [default: the only one]
    #[arg(long, value_name = "NAME", conflicts_with = "unencrypted")]
    key_provider: Option<Name>,

    /// Do not encrypt the disk: anyone who can read the datastore can read it
    #[arg(long)]
    unencrypted: bool,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

impl CreateArguments {
    pub(super) fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let wish = CreateVolume {
            name: self.name.clone(),
            size_bytes: self.size,
            folder: self.folder.clone(),
            datastore: self.datastore.clone(),
            thick: self.thick,
            integrity: self.integrity,
            encrypted: !self.unencrypted,
            key_provider: self.key_provider.clone(),
        };
        let task = change(&api, VolumeChange::Create(wish))?;
        let sealed = if self.unencrypted { ", NOT encrypted" } else { "" };
        let said = format!(
            "made disk {}{sealed}; `strongroom disk bind {} VM` gives it to a VM",
            self.name, self.name
        );
        self.wait.finish(&api, output, "making", task, said)
    }
}
