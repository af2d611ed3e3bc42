//! `strongroom vm disk encrypt` and `strongroom vm disk decrypt`.

use clap::Args;
use strongroom_api::Name;
use strongroom_api::vm::{EncryptDisk, PowerOptions};

use crate::api::{ApiArguments, WaitArguments, segment};
use crate::error::CliError;
use crate::output::Output;

/// The arguments of `encrypt`.
#[derive(Debug, Args)]
#[command(
    after_help = "The disk with its snapshots is rewritten, one layer after the other, under the VM's key; the \
datastore needs room for the largest layer once more. While the VM runs, everything that its guest writes is \
encrypted from the beginning. A VM without a key gets one, and what it keeps beside its disks is encrypted, too; \
for that it must be off. If the task is cancelled or fails, the disk is \
decrypted again. The old files are removed, not overwritten: what the disk below keeps of freed blocks is still \
readable there. A swap disk, a template and a VM that shares layers with linked clones are refused.

Examples:
  strongroom vm disk encrypt web1 disk1
  strongroom vm disk encrypt web1 disk2 --integrity"
)]
pub struct EncryptArguments {
    /// Name or id of the VM
    vm: String,

    /// Name of the disk; disk0 is the first
    disk: String,

    /// Store a keyed tag for each block: a block that was modified or replaced by an old one cannot
    /// be read
    #[arg(long)]
    integrity: bool,

    /// Key provider that makes the VM's key, if the VM has none; optional if there is only one
    #[arg(long, value_name = "NAME")]
    key_provider: Option<Name>,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

impl EncryptArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let path = format!("/v1/vms/{}/disks/{}/encrypt", segment(&self.vm), segment(&self.disk));
        let wish = EncryptDisk { integrity: self.integrity, key_provider: self.key_provider.clone() };
        let task = api.post(&path, &wish)?;
        let said = format!("{} of {} is encrypted", self.disk, self.vm);
        self.wait.finish(&api, output, "encrypting a disk of", task, said)
    }
}

/// The arguments of `decrypt`.
#[derive(Debug, Args)]
#[command(
    after_help = "The disk with its snapshots is rewritten in the clear, one layer after the other. While the VM \
runs, everything that its guest writes is in the clear from the beginning. With the last encrypted disk, what \
the VM keeps beside its disks is decrypted, too, also the memory in its snapshots and dumps, and the VM's key is \
deactivated; for that it must be off. If the task is cancelled or fails, the \
disk is encrypted again. The VM's policy may demand encryption. Data in the clear can be read by anyone who can \
read the datastore or a copy of it.

Example:
  strongroom vm disk decrypt web1 disk1"
)]
pub struct DecryptArguments {
    /// Name or id of the VM
    vm: String,

    /// Name of the disk; disk0 is the first
    disk: String,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

impl DecryptArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let path = format!("/v1/vms/{}/disks/{}/decrypt", segment(&self.vm), segment(&self.disk));
        let task = api.post(&path, &PowerOptions {})?;
        let said = format!("{} of {} is NOT encrypted any more", self.disk, self.vm);
        self.wait.finish(&api, output, "decrypting a disk of", task, said)
    }
}
