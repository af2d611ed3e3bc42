//! `strongroom vm clone`: a new VM with the content of another one.

use clap::Args;
use strongroom_api::Name;
use strongroom_api::vm::CloneVm;

use super::clone_sealing::SealingArguments;
use super::quiesce::QuiesceArguments;
use crate::api::{ApiArguments, WaitArguments, segment};
use crate::error::CliError;
use crate::output::Output;

/// The arguments of `vm clone`.
#[derive(Debug, Args)]
#[command(
    after_help = "The clone has the hardware of the VM and everything on its disks, copied and encrypted under a key of its own. Its network \
addresses, its id and its TPM are its own; its seed for cloud-init is empty (`strongroom vm seed`). The consoles' records and dumps are \
not copied, nor is the memory of a suspended VM. Of a VM that runs, a snapshot is copied, which is made for that and deleted \
afterwards; it goes on writing meanwhile. With --quiesce, the guest agent freezes the guest's file systems while that snapshot is made. \
If the copy fails or is cancelled, nothing is left of the clone and of that snapshot.

A linked clone copies nothing: its disks begin with the files of a snapshot, which the VM and all its clones share, each under its own \
key. Writes go to the clone alone. It takes no space and no time at first, and the VM is not deleted before it. The snapshot that is \
made for it stays.

A copy can be stored otherwise than its origin: --encrypt makes an encrypted VM of one that is not, and --unencrypted the reverse, \
which the event log has. Nothing of the origin changes.

Examples:
  strongroom vm clone web1 web2
  strongroom vm clone old1 sealed1 --encrypt
  strongroom vm clone web1 web2 --linked
  strongroom vm clone web1 web2 --snapshot before-upgrade"
)]
pub struct CloneArguments {
    /// Name or id of the VM
    vm: String,

    /// Name of the new VM
    name: Name,

    /// Name or id of the snapshot to clone [default: the present content of the VM; of a template,
    /// its snapshot]
    #[arg(long, value_name = "SNAPSHOT")]
    snapshot: Option<String>,

    /// Share the snapshot's files with the VM instead of copying its content
    #[arg(long)]
    linked: bool,

    /// Datastore of the same host [default: that of the VM]
    #[arg(long, value_name = "DATASTORE", conflicts_with = "linked")]
    datastore: Option<String>,

    #[command(flatten)]
    sealing: SealingArguments,

    #[command(flatten)]
    quiesce: QuiesceArguments,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

impl CloneArguments {
    /// Makes the clone.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let Self { vm, name, snapshot, linked, datastore, .. } = self;
        let api = self.api.connect()?;
        let (snapshot, datastore) = (snapshot.clone(), datastore.clone());
        let quiesce_within_s = self.quiesce.within();
        let sealing = &self.sealing;
        let wish = CloneVm {
            name: name.clone(),
            snapshot,
            datastore,
            linked: *linked,
            quiesce_within_s,
            encrypted: sealing.encrypted(),
            integrity: sealing.integrity(),
            key_provider: sealing.key_provider(),
        };
        let task = api.post(&format!("/v1/vms/{}/clone", segment(vm)), &wish)?;
        let kind = if *linked { "linked clone" } else { "clone" };
        let said = format!("{name} is a {kind} of {vm}; `strongroom vm start {name}` starts it");
        self.wait.finish(&api, output, "cloning", task, said)
    }
}
