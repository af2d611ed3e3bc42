//! `strongroom vm disk resize`.

use clap::Args;
use strongroom_api::vm::ResizeDisk;
use strongroom_types::{VolumeSize, display_bytes};

use super::super::options::parse_disk;
use crate::api::{ApiArguments, WaitArguments, segment};
use crate::error::CliError;
use crate::output::Output;

/// The arguments of `resize`.
#[derive(Debug, Args)]
#[command(after_help = "A disk can grow, not shrink. A running guest sees the new size at once; grow its \
partitions and file systems in the guest. While a VM runs, its disks on NBD and its swap disks cannot \
grow.

Example:
  strongroom vm disk resize web1 disk0 --size 40G")]
pub struct ResizeArguments {
    /// Name or id of the VM
    vm: String,

    /// Name of the disk; disk0 is the first
    disk: String,

    /// New size, such as 40G
    #[arg(long, value_name = "SIZE", value_parser = parse_disk)]
    size: VolumeSize,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

impl ResizeArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let path = format!("/v1/vms/{}/disks/{}", segment(&self.vm), segment(&self.disk));
        let task = api.patch(&path, &ResizeDisk { size_bytes: self.size })?;
        let said = format!("{} of {} has {}", self.disk, self.vm, display_bytes(self.size.bytes()));
        self.wait.finish(&api, output, "resizing", task, said)
    }
}
