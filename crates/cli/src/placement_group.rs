//! `strongroom placement-group`: VMs that are kept on different hosts, or near each other.

use std::fmt;

use clap::{Args, Subcommand};
use serde::Serialize;
use strongroom_api::access::Done;
use strongroom_api::placement::{CreatePlacementGroup, Keep, PlacementGroup, SetPlacementGroup};
use strongroom_api::{ListQuery, Name, Page, Reference};

use crate::api::{ApiArguments, parse_reference, segment, show, table, word};
use crate::error::CliError;
use crate::output::Output;

/// The commands for placement groups.
#[derive(Debug, Subcommand)]
pub enum PlacementGroupCommand {
    /// Create a placement group
    Create(CreateArguments),
    /// List placement groups
    #[command(after_help = "Example:\n  strongroom placement-group list")]
    List(ListArguments),
    /// Show a placement group with its VMs and their hosts
    #[command(after_help = "Example:\n  strongroom placement-group show db")]
    Show(GroupArguments),
    /// Add VMs to a placement group
    #[command(after_help = "Example:\n  strongroom placement-group add shop shop1 shop2")]
    Add(MemberArguments),
    /// Remove VMs from a placement group
    #[command(after_help = "Example:\n  strongroom placement-group remove shop shop2")]
    Remove(MemberArguments),
    /// Delete a placement group; its VMs stay
    #[command(after_help = "Example:\n  strongroom placement-group delete db")]
    Delete(GroupArguments),
}

/// The arguments of `create`.
#[derive(Debug, Args)]
#[command(
    after_help = "VMs that are kept apart are never placed on one host: a creation, a move or an evacuation that would do so is refused, or \
takes another host. VMs that are kept together are placed on one host as long as it fits. 'vm create --placement-group' creates a VM in a group.

Examples:
  strongroom placement-group create db --apart
  strongroom placement-group create shop --together"
)]
pub struct CreateArguments {
    /// Name of the placement group
    name: Name,

    #[command(flatten)]
    keep: KeepArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// Where the VMs are placed.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct KeepArguments {
    /// Never two of its VMs on one host
    #[arg(long)]
    apart: bool,

    /// Its VMs on one host, as far as that has room
    #[arg(long)]
    together: bool,
}

impl KeepArguments {
    fn keep(&self) -> Keep {
        if self.apart { Keep::Apart } else { Keep::Together }
    }
}

/// The arguments of `list`.
#[derive(Debug, Args)]
pub struct ListArguments {
    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of commands on a placement group.
#[derive(Debug, Args)]
pub struct GroupArguments {
    /// Name or id of the placement group
    group: String,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `add` and `remove`.
#[derive(Debug, Args)]
pub struct MemberArguments {
    /// Name or id of the placement group
    group: String,

    /// Names or ids of the VMs
    #[arg(required = true, value_name = "VM", value_parser = parse_reference)]
    vms: Vec<Reference>,

    #[command(flatten)]
    api: ApiArguments,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Shown(PlacementGroup);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PlacementGroup { id: _, name, keep, vms } = &self.0;
        write!(f, "{name}  kept {}", word(keep))?;
        if vms.is_empty() {
            return write!(f, "\nno VMs");
        }
        vms.iter()
            .try_for_each(|vm| write!(f, "\n{}  on host {}", vm.name, vm.host.as_deref().unwrap_or("?")))
    }
}

impl PlacementGroupCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::Create(CreateArguments { name, keep, api }) => {
                let wish = CreatePlacementGroup { name: name.clone(), keep: keep.keep() };
                let made: PlacementGroup = api.connect()?.post_for("/v1/placement-groups", &wish)?;
                show(output, made, format!("placement group {name} is made"))
            }
            Self::List(ListArguments { api }) => {
                let all: Page<PlacementGroup> =
                    api.connect()?.query("/v1/placement-groups", &ListQuery::default())?;
                table(output, all, ["NAME", "KEPT", "VMS"], "there are no placement groups", |group| {
                    let vms: Vec<&str> = group.vms.iter().map(|vm| vm.name.as_str()).collect();
                    [group.name.to_string(), word(group.keep), vms.join(", ")]
                })
            }
            Self::Show(GroupArguments { group, api }) => {
                output.answer(&Shown(api.connect()?.get(&path(group))?))
            }
            Self::Add(arguments) => {
                arguments.set(output, |add| SetPlacementGroup { add, remove: Vec::new() })
            }
            Self::Remove(arguments) => {
                arguments.set(output, |remove| SetPlacementGroup { add: Vec::new(), remove })
            }
            Self::Delete(GroupArguments { group, api }) => {
                api.connect()?.remove(&path(group))?;
                show(output, Done {}, format!("placement group {group} is deleted"))
            }
        }
    }
}

impl MemberArguments {
    fn set(
        &self,
        output: &Output,
        wish: impl Fn(Vec<Reference>) -> SetPlacementGroup,
    ) -> Result<(), CliError> {
        let set = self.api.connect()?.patch_for(&path(&self.group), &wish(self.vms.clone()))?;
        output.answer(&Shown(set))
    }
}

fn path(group: &str) -> String {
    format!("/v1/placement-groups/{}", segment(group))
}
