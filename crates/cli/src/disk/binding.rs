//! `strongroom disk bind`, `unbind`.

use clap::Args;
use strongroom_api::volume::{BindVolume, UnbindVolume, VolumeChange};
use strongroom_api::{Name, Reference};

use super::change;
use crate::api::{ApiArguments, WaitArguments, parse_reference};
use crate::error::CliError;
use crate::output::Output;

/// The arguments of `bind`.
#[derive(Debug, Args)]
#[command(
    after_help = "The VM gets the disk as its next one, with its content and its key. A running guest sees it at once. The disk is in the \
VM's datastore and has no snapshots; both are encrypted, or neither is. The VM is not deleted while it has the disk, unless the disk is to \
be deleted too.

Example:
  strongroom disk bind data1 web1"
)]
pub struct BindArguments {
    /// Name or id of the disk
    #[arg(value_parser = parse_reference)]
    disk: Reference,

    /// Name or id of the VM
    #[arg(value_parser = parse_reference)]
    vm: Reference,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `unbind`.
#[derive(Debug, Args)]
#[command(
    after_help = "A running guest is asked to release the disk first, as for `vm disk remove`. The disk keeps its content and its key. A \
disk under the VM's own key stays with the VM, and so does one that a snapshot of the VM needs: clone it instead.

Examples:
  strongroom disk unbind web1/disk1
  strongroom disk unbind web1/disk1 --name data2"
)]
pub struct UnbindArguments {
    /// VM/DISK, or the id of the disk
    #[arg(value_parser = parse_reference)]
    disk: Reference,

    /// Its name from then on [default: the name that it had]
    #[arg(long, value_name = "NAME")]
    name: Option<Name>,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

impl BindArguments {
    pub(super) fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let wish = BindVolume { volume: self.disk.clone(), vm: self.vm.clone() };
        let task = change(&api, VolumeChange::Bind(wish))?;
        self.wait.finish(&api, output, "binding", task, format!("VM {} has disk {}", self.vm, self.disk))
    }
}

impl UnbindArguments {
    pub(super) fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let wish = UnbindVolume { volume: self.disk.clone(), name: self.name.clone() };
        let task = change(&api, VolumeChange::Unbind(wish))?;
        let named = self.name.as_ref().map_or_else(String::new, |name| format!(", as {name}"));
        let said = format!("no VM has {} any more; it is kept{named}", self.disk);
        self.wait.finish(&api, output, "unbinding", task, said)
    }
}
