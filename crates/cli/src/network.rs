//! `strongroom network`.

use clap::{Args, Subcommand};
use strongroom_api::network::{AddNetworkHost, CreateNetwork, Network};
use strongroom_api::{ListQuery, Name, Page};
use strongroom_vm::{InterfaceName, VlanId};

use crate::api::{ApiArguments, WaitArguments, segment, show, table};
use crate::error::CliError;
use crate::inventory::ended;
use crate::output::Output;

/// The commands for networks.
#[derive(Debug, Subcommand)]
pub enum NetworkCommand {
    /// List the networks
    List(ListArguments),
    /// Create a network, which no host has yet
    Create(CreateArguments),
    /// Show a network, and the hosts that have it
    #[command(after_help = "Example:\n  strongroom network show lan")]
    Show(NetworkArguments),
    /// Say on which bridge a host has a network
    AddHost(AddHostArguments),
    /// Say that a host has a network no more; none of its VMs is connected to it
    #[command(after_help = "Example:\n  strongroom network remove-host lan --host host1")]
    RemoveHost(RemoveHostArguments),
    /// Delete a network that no VM is connected to
    #[command(after_help = "Example:\n  strongroom network delete lan")]
    Delete(NetworkArguments),
}

/// The arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom network list")]
pub struct ListArguments {
    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `create`.
#[derive(Debug, Args)]
#[command(
    after_help = "VMs are connected to it by its name, wherever they run; a host has it on one of its bridges. `strongroom role grant` \
with --network says who may connect VMs to it.

Example:
  strongroom network create lan --vlan 20"
)]
pub struct CreateArguments {
    /// Name of the network
    name: Name,

    /// VLAN on the bridges [default: untagged]
    #[arg(long, value_name = "N", value_parser = parse_vlan)]
    vlan: Option<VlanId>,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `add-host`.
#[derive(Debug, Args)]
#[command(after_help = "The bridge exists there, and the host's host.json must allow it (`interfaces`).

Example:
  strongroom network add-host lan --host host1 --bridge br0")]
pub struct AddHostArguments {
    /// Name or id of the network
    network: String,

    /// Host that has it
    #[arg(long, value_name = "NAME")]
    host: String,

    /// Bridge of the host
    #[arg(long, value_name = "NAME", value_parser = parse_bridge)]
    bridge: InterfaceName,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `remove-host`.
#[derive(Debug, Args)]
pub struct RemoveHostArguments {
    /// Name or id of the network
    network: String,

    /// Host that has it no more
    #[arg(long, value_name = "NAME")]
    host: String,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of commands on a network.
#[derive(Debug, Args)]
pub struct NetworkArguments {
    /// Name or id of the network
    network: String,

    #[command(flatten)]
    api: ApiArguments,
}

fn parse_vlan(text: &str) -> Result<VlanId, String> {
    let number = text.parse().map_err(|_| format!("'{text}' is no VLAN; write 1 to 4094"))?;
    VlanId::new(number).map_err(|error| error.to_string())
}

fn parse_bridge(text: &str) -> Result<InterfaceName, String> {
    text.parse().map_err(|error: strongroom_vm::NetworkError| error.to_string())
}

impl NetworkCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let wait = WaitArguments::default();
        match self {
            Self::List(ListArguments { api }) => {
                let all: Page<Network> = api.connect()?.query("/v1/networks", &ListQuery::default())?;
                let none = "there are no networks; create one: strongroom network create NAME";
                table(output, all, ["NAME", "VLAN", "VMS", "HOSTS"], none, |one| {
                    let hosts = one.hosts.iter().map(|on| format!("{} ({})", on.host, on.bridge));
                    let vlan = one.vlan.map_or_else(|| "untagged".to_owned(), |vlan| vlan.to_string());
                    [one.name.to_string(), vlan, one.vms.to_string(), hosts.collect::<Vec<_>>().join(", ")]
                })
            }
            Self::Create(CreateArguments { name, vlan, api }) => {
                let api = api.connect()?;
                let task = api.post("/v1/networks", &CreateNetwork { name: name.clone(), vlan: *vlan })?;
                ended(
                    &api,
                    output,
                    wait,
                    "creating",
                    task,
                    &format!("{name} is a network, which no host has yet"),
                )
            }
            Self::Show(NetworkArguments { network, api }) => {
                let found: Network = api.connect()?.get(&format!("/v1/networks/{}", segment(network)))?;
                let text = text(&found);
                show(output, found, text)
            }
            Self::AddHost(AddHostArguments { network, host, bridge, api }) => {
                let api = api.connect()?;
                let wish = AddNetworkHost { host: host.clone(), bridge: bridge.clone() };
                let task = api.post(&format!("/v1/networks/{}/hosts", segment(network)), &wish)?;
                ended(
                    &api,
                    output,
                    wait,
                    "adding",
                    task,
                    &format!("host {host} has network {network} on {bridge}"),
                )
            }
            Self::RemoveHost(RemoveHostArguments { network, host, api }) => {
                let api = api.connect()?;
                let path = format!("/v1/networks/{}/hosts/{}", segment(network), segment(host));
                let task = api.delete(&path)?;
                ended(
                    &api,
                    output,
                    wait,
                    "removing",
                    task,
                    &format!("host {host} has network {network} no more"),
                )
            }
            Self::Delete(NetworkArguments { network, api }) => {
                let api = api.connect()?;
                let task = api.delete(&format!("/v1/networks/{}", segment(network)))?;
                ended(&api, output, wait, "deleting", task, &format!("{network} is deleted"))
            }
        }
    }
}

/// A network for people.
fn text(found: &Network) -> String {
    let vlan = found.vlan.map_or_else(|| "none: untagged".to_owned(), |vlan| vlan.to_string());
    let mut lines = vec![
        format!("name  {}", found.name),
        format!("id    {}", found.id),
        format!("VLAN  {vlan}"),
        format!("VMs   {}", found.vms),
    ];
    lines.extend(found.hosts.iter().map(|on| format!("on    {}, {}", on.host, on.bridge)));
    lines.join("\n")
}
