//! `strongroom vm template`: a VM that is only cloned.

use clap::Args;
use strongroom_api::vm::TemplateVm;

use crate::api::{ApiArguments, WaitArguments, segment};
use crate::error::CliError;
use crate::output::Output;

/// The arguments of `vm template`.
#[derive(Debug, Args)]
#[command(
    after_help = "A template is off, and is neither started nor changed; it can be cloned and deleted, and its key rotated. It gets a snapshot \
of its content, on which its linked clones hang.

Examples:
  strongroom vm template web1
  strongroom vm template web1 --undo"
)]
pub struct TemplateArguments {
    /// Name or id of the VM, which must be off
    vm: String,

    /// Make a template a VM again; its snapshot stays
    #[arg(long)]
    undo: bool,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

impl TemplateArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let Self { vm, undo, .. } = self;
        let api = self.api.connect()?;
        let task = api.post(&format!("/v1/vms/{}/template", segment(vm)), &TemplateVm { undo: *undo })?;
        let said = match undo {
            false => format!("{vm} is a template; `strongroom vm clone {vm} NAME --linked` makes a VM of it"),
            true => format!("{vm} is a template no more"),
        };
        self.wait.finish(&api, output, "making a snapshot", task, said)
    }
}
