//! `strongroom vm nic`: the network cards of a VM.

use std::fmt;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use strongroom_api::vm::{AddNic, Link, Nic, NicBackend, PatchNic, VmView};

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
    /// Add a network card to a VM; a guest that runs sees it at once
    #[command(after_help = "Example:\n  strongroom vm nic add web1 --net user")]
    Add(AddArguments),
    /// Connect a network card to another network, or pull its cable and plug it in again
    #[command(after_help = "Example:\n  strongroom vm nic set web1 nic1 --link down")]
    Set(SetArguments),
    /// Remove a network card of a VM; the numbers of those behind it fall by one
    ///
    /// The guest of a VM that runs has a minute to release the card.
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

/// The arguments of `set`.
#[derive(Debug, Args)]
#[group(id = "change", required = true, multiple = true, args = ["network", "link"])]
pub struct SetArguments {
    /// Name or id of the VM
    vm: String,

    /// The card: nic0 and so on, or its address
    nic: String,

    /// Its network: the name of one, user, tap=NAME, bridge=NAME or bridge=NAME,vlan=N; a guest
    /// that runs sees the card go and come back
    #[arg(long = "net", value_name = "NETWORK", value_parser = parse_network)]
    network: Option<NetworkArgument>,

    /// What the guest sees of its cable
    #[arg(long, value_enum)]
    link: Option<LinkArgument>,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// A state of a card's cable.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum LinkArgument {
    Up,
    Down,
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
                let wish = AddNic { nic: Nic::on(backend_of(network)?) };
                let api = api.connect()?;
                let task = api.post(&format!("/v1/vms/{}/nics", segment(vm)), &wish)?;
                ended(&api, output, *wait, "adding", task, &format!("{vm} has one more network card"))
            }
            Self::Set(SetArguments { vm, nic, network, link, wait, api }) => {
                let link = link.map(|link| match link {
                    LinkArgument::Up => Link::Up,
                    LinkArgument::Down => Link::Down,
                });
                let patch = PatchNic { backend: network.as_ref().map(backend_of).transpose()?, link };
                let api = api.connect()?;
                let task = api.patch(&format!("/v1/vms/{}/nics/{}", segment(vm), segment(nic)), &patch)?;
                ended(
                    &api,
                    output,
                    *wait,
                    "changing",
                    task,
                    &format!("{nic} of {vm} is connected as asked for"),
                )
            }
            Self::Remove(RemoveArguments { vm, nic, wait, api }) => {
                let api = api.connect()?;
                let task = api.delete(&format!("/v1/vms/{}/nics/{}", segment(vm), segment(nic)))?;
                ended(&api, output, *wait, "removing", task, &format!("{vm} has {nic} no more"))
            }
        }
    }
}

/// The network of a card.
fn backend_of(network: &NetworkArgument) -> Result<NicBackend, CliError> {
    match network {
        NetworkArgument::Backend(backend) => Ok(backend.clone()),
        NetworkArgument::None => Err(CliError::Usage("a card has a network: name one with --net".to_owned())),
    }
}
