//! `strongroom vm migrate`: a VM moves to another host, running or off.

use clap::Args;
use strongroom_api::vm::MoveToHost;
use strongroom_types::Bandwidth;

use crate::api::{ApiArguments, WaitArguments, segment};
use crate::error::CliError;
use crate::output::Output;

/// The arguments of `vm migrate`.
#[derive(Debug, Args)]
#[command(
    after_help = "Both hosts reach the VM's datastore (`strongroom datastore add-host`), so no data of its disks is copied. \
Otherwise --datastore names one of the other host: the VM moves there with its volumes, snapshots and dumps, as they \
are stored, while it runs or is off.

A VM that runs goes on while its memory passes to the other host, encrypted under keys that only the two hosts have, \
unless the policy of a VM that was never encrypted says otherwise (`strongroom policy create --migration`). \
Then it stands still for a moment, and goes on there. If something fails before, or the task is cancelled, it goes on \
where it was. Connections over a network `user` end.

A VM that is off is handed over: the former host confirms that it has given the VM up before the other one has it. \
VMs of a host that does not answer stay: they may run there.

Examples:
  strongroom vm migrate web1
  strongroom vm migrate web1 --to host2 --pause-ms 100 --bandwidth 1G
  strongroom vm migrate web1 --to host3 --datastore local3"
)]
pub struct MigrateArguments {
    /// Name or id of the VM, or of a volume that no VM has
    vm: String,

    /// Host that it moves to [default: the one that fits best]
    #[arg(long, value_name = "HOST", alias = "host")]
    to: Option<String>,

    /// Datastore of that host, to which the VM's volumes move [default: they stay]
    #[arg(long, value_name = "DATASTORE", requires = "to")]
    datastore: Option<String>,

    /// Longest time for which a guest that runs may stand still, 10 to 60000 ms [default: 300]
    #[arg(long, value_name = "MS")]
    pause_ms: Option<u32>,

    /// Most bytes a second of memory and volumes together, such as 100M; 1M to 64G [default: what
    /// the network gives]
    #[arg(long, value_name = "SIZE")]
    bandwidth: Option<Bandwidth>,

    /// Channels over which the memory passes at a time, 1 to 8 [default: 1]
    #[arg(long, value_name = "N")]
    channels: Option<u8>,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

impl MigrateArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let Self { vm, to, datastore, pause_ms, bandwidth, channels, .. } = self;
        let api = self.api.connect()?;
        let wish = MoveToHost {
            host: to.clone(),
            datastore: datastore.clone(),
            pause_ms: *pause_ms,
            bytes_per_second: *bandwidth,
            channels: *channels,
        };
        let task = api.post(&format!("/v1/vms/{}/host", segment(vm)), &wish)?;
        let said = match to {
            Some(host) => format!("{vm} is on host {host}"),
            None => format!("{vm} is on another host; `strongroom vm show {vm}` says which"),
        };
        self.wait.finish(&api, output, "moving", task, said)
    }
}
