//! `strongroom vm limit` and `strongroom vm disk limit`.

use clap::Args;
use strongroom_api::vm::SetLimits;
use strongroom_types::IoLimits;

use crate::api::{ApiArguments, WaitArguments, segment};
use crate::error::CliError;
use crate::limits::LimitArguments;
use crate::output::Output;

/// The arguments of `vm limit`.
#[derive(Debug, Args)]
#[command(after_help = "Limits the requests of all disks of a VM together, beside the limits of each of \
them ('vm disk limit'). The VM may run or be off: its guest goes on, and the limits hold at once and from \
then on. They replace those that the VM has: one that is not named ends.

Reads and writes count with their bytes, and as one operation for each started 256K; a discard or a \
zeroing counts as one operation, and a flush as none. What is too much waits. A clone has the limits of \
its origin, and a VM that is reverted to a snapshot keeps its present ones.

Examples:
  strongroom vm limit web1 --iops 2000
  strongroom vm limit web1 --iops 2000 --iops-burst 10000 --bandwidth 100M
  strongroom vm limit web1 --none")]
pub struct LimitVmArguments {
    /// Name or id of the VM
    vm: String,

    #[command(flatten)]
    limits: WantedLimits,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `vm disk limit`.
#[derive(Debug, Args)]
#[command(after_help = "Limits the requests of a disk, beside those of all disks of the VM together ('vm \
limit', which says what counts). The VM may run or be off: its guest goes on, and the limits hold at once \
and from then on. They replace those that the disk has: one that is not named ends.

Examples:
  strongroom vm disk limit web1 disk0 --iops 2000 --bandwidth 100M
  strongroom vm disk limit web1 disk0 --none")]
pub struct LimitDiskArguments {
    /// Name or id of the VM
    vm: String,

    /// Name of the disk; disk0 is the first
    disk: String,

    #[command(flatten)]
    limits: WantedLimits,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// Limits, or expressly none.
#[derive(Debug, Args)]
struct WantedLimits {
    #[command(flatten)]
    limits: LimitArguments,

    /// End all limits
    #[arg(long, conflicts_with_all = ["iops", "bandwidth"])]
    none: bool,
}

impl WantedLimits {
    fn limits(&self) -> Result<IoLimits, CliError> {
        let limits = self.limits.limits();
        match limits.is_none() && !self.none {
            true => Err(CliError::Usage("say what is limited, as in --iops 2000, or --none".to_owned())),
            false => Ok(limits),
        }
    }
}

impl LimitVmArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let limits = self.limits.limits()?;
        let api = self.api.connect()?;
        let task = api.patch(&format!("/v1/vms/{}/limits", segment(&self.vm)), &SetLimits { limits })?;
        let said = format!("all disks of {} together: {limits}", self.vm);
        self.wait.finish(&api, output, "limiting", task, said)
    }
}

impl LimitDiskArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let limits = self.limits.limits()?;
        let api = self.api.connect()?;
        let path = format!("/v1/vms/{}/disks/{}/limits", segment(&self.vm), segment(&self.disk));
        let task = api.patch(&path, &SetLimits { limits })?;
        let said = format!("{} of {}: {limits}", self.disk, self.vm);
        self.wait.finish(&api, output, "limiting", task, said)
    }
}
