//! `strongroom keyserver bind`.

use std::fmt;

use clap::Args;
use serde::Serialize;
use strongroom_keyserver::grant::VmId;
use strongroom_keyserver::management::questions::BindKey;
use strongroom_keyserver::objects::id::ObjectId;

use super::administration::AdministrationArguments;
use crate::error::CliError;
use crate::output::Output;

/// The arguments of `bind`.
#[derive(Debug, Args)]
#[command(
    after_help = "From then on no grant releases the key for another VM. The control client must own the key. \
`strongroom serve` binds every key that it creates for a VM; this command is for other control planes. A key \
that is bound to a VM is only bound to another one with --from.

Example:
  strongroom keyserver bind --identity /etc/strongroom/control --server kms1:5697 --vm 5f0c2d9b-8a11-4a2c-9e53-0c6f7d1c0f1e --key-id 0b1a4c2e-55f7-4d5c-9d3e-1f2a3b4c5d6e"
)]
pub struct BindArguments {
    /// Id of the VM
    #[arg(long, value_name = "VM")]
    vm: VmId,

    /// Id of the key
    #[arg(long, value_name = "ID")]
    key_id: ObjectId,

    /// Id of the VM that the key is bound to, and leaves
    #[arg(long, value_name = "VM")]
    from: Option<VmId>,

    #[command(flatten)]
    server: AdministrationArguments,
}

#[derive(Serialize)]
struct Bound {
    key: String,
    vm: String,
}

impl BindArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        self.server.administrator()?.ask(BindKey { key: self.key_id, vm: self.vm, from: self.from })?;
        output.answer(&Bound { key: self.key_id.to_string(), vm: self.vm.to_string() })
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {} is granted to VM {} alone from now on", self.key, self.vm)
    }
}
