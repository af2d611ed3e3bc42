//! `strongroom vm move`: a VM that is off moves to another host.

use clap::Args;
use strongroom_api::vm::MoveToHost;

use crate::api::{ApiArguments, WaitArguments, segment};
use crate::error::CliError;
use crate::output::Output;

/// The arguments of `vm move`.
#[derive(Debug, Args)]
#[command(
    after_help = "Both hosts reach the VM's datastore (`strongroom datastore add-host`), so no data is copied. The former \
host confirms that it has given the VM up before the other one has it. A host that does not answer cannot, and its VMs \
stay: they may run there.

Examples:
  strongroom vm move web1
  strongroom vm move web1 --host host2"
)]
pub struct MoveArguments {
    /// Name or id of the VM, which must be off, or of a volume that no VM has
    vm: String,

    /// Host that it moves to [default: the one that fits best]
    #[arg(long, value_name = "NAME")]
    host: Option<String>,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

impl MoveArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let Self { vm, host, .. } = self;
        let api = self.api.connect()?;
        let task = api.post(&format!("/v1/vms/{}/host", segment(vm)), &MoveToHost { host: host.clone() })?;
        let said = match host {
            Some(host) => format!("{vm} is on host {host}"),
            None => format!("{vm} is on another host; `strongroom vm show {vm}` says which"),
        };
        self.wait.finish(&api, output, "moving", task, said)
    }
}
