//! `strongroom keyserver fence`.

use std::fmt;

use clap::Args;
use serde::Serialize;
use strongroom_keyserver::grant::{VmGeneration, VmId};
use strongroom_keyserver::management::protocol::FenceAnswer;
use strongroom_keyserver::management::questions::FenceVm;

use super::administration::AdministrationArguments;
use crate::error::CliError;
use crate::output::Output;

/// The arguments of `fence`.
#[derive(Debug, Args)]
#[command(
    after_help = "Invalidates all grants for the VM below generation N: unused grants, and the right of \
hosts with used ones to ask for the state of its keys. Using a grant of a higher generation has the same \
effect; this command is for a host that is given up before the VM is started elsewhere. Keys in a host's \
memory remain there until their leases end.

Example:
  strongroom keyserver fence --identity /etc/strongroom/control --server kms1:5697 --vm 5f0c2d9b-8a11-4a2c-9e53-0c6f7d1c0f1e --vm-generation 4"
)]
pub struct FenceArguments {
    /// Id of the VM
    #[arg(long, value_name = "VM")]
    vm: VmId,

    /// Lowest valid generation from now on
    #[arg(long, value_name = "N")]
    vm_generation: u64,

    #[command(flatten)]
    server: AdministrationArguments,
}

#[derive(Serialize)]
struct Fenced {
    vm: String,
    vm_generation: u64,
}

impl FenceArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let question = FenceVm { vm: self.vm, generation: VmGeneration(self.vm_generation) };
        let answer: FenceAnswer = self.server.administrator()?.ask(question)?;
        output.answer(&Fenced { vm: answer.vm.to_string(), vm_generation: answer.generation.0 })
    }
}

impl fmt::Display for Fenced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "what was granted for VM {} below generation {} is void", self.vm, self.vm_generation)
    }
}
