//! `strongroom vm nic`: the network cards of a VM.

use std::fmt;

use clap::{Args, Subcommand};
use serde::Serialize;
use strongroom_api::vm::{AddNic, Nic, VmView};

use super::hardware::{self, Line};
use super::options::{NetworkArgument, parse_network};
use crate::api::{ApiArguments, WaitArguments, segment};
use crate::error::CliError;
use crate::inventory::ended;
use crate::output::Output;

/// The commands for network cards.
#[derive(Debug, Subcommand)]
pub enum NicCommand {
    /// List a VM's network cards
    #[command(after_help = "Example:\n  strongroom vm nic list web1")]
    List(ListArguments),
    /// Add a network card to a VM that is off
    #[command(after_help = "Example:\n  strongroom vm nic add web1 --net user")]
    Add(AddArguments),
    /// Remove a network card of a VM that is off; the numbers of those behind it fall by one
    #[command(after_help = "Example:\n  strongroom vm nic remove web1 nic1")]
    Remove(RemoveArguments),
}

/// The arguments of `list`.
#[derive(Debug, Args)]
pub struct ListArguments {
    /// Name or id of the VM
    vm: String,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `add`.
#[derive(Debug, Args)]
pub struct AddArguments {
    /// Name or id of the VM
    vm: String,

    /// Network of the card: the name of one, user, tap=NAME, bridge=NAME or bridge=NAME,vlan=N
    #[arg(long = "net", value_name = "NETWORK", value_parser = parse_network)]
    network: NetworkArgument,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `remove`.
#[derive(Debug, Args)]
pub struct RemoveArguments {
    /// Name or id of the VM
    vm: String,

    /// The card: nic0 and so on, or its address
    nic: String,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

#[derive(Serialize)]
struct Cards {
    items: Vec<Nic>,
    #[serde(skip)]
    lines: Vec<Line>,
}

impl fmt::Display for Cards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> =
            self.lines.iter().map(|Line { name, text }| format!("{name:7}  {text}")).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl NicCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::List(ListArguments { vm, api }) => {
                let api = api.connect()?;
                let vm: VmView = api.get(&format!("/v1/vms/{}", segment(vm)))?;
                let lines = hardware::network(&vm, hardware::host_of(&api, &vm).as_ref());
                output.answer(&Cards { items: vm.nics, lines })
            }
            Self::Add(AddArguments { vm, network, wait, api }) => {
                let NetworkArgument::Backend(backend) = network else {
                    return Err(CliError::Usage("a card has a network: name one with --net".to_owned()));
                };
                let api = api.connect()?;
                let wish = AddNic { nic: Nic { backend: backend.clone(), mac: None } };
                let task = api.post(&format!("/v1/vms/{}/nics", segment(vm)), &wish)?;
                let said = format!("{vm} has one more network card, from its next start on");
                ended(&api, output, *wait, "adding", task, &said)
            }
            Self::Remove(RemoveArguments { vm, nic, wait, api }) => {
                let api = api.connect()?;
                let task = api.delete(&format!("/v1/vms/{}/nics/{}", segment(vm), segment(nic)))?;
                ended(&api, output, *wait, "removing", task, &format!("{vm} has {nic} no more"))
            }
        }
    }
}
