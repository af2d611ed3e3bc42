//! `strongroom folder`.

use clap::{Args, Subcommand};
use strongroom_api::access::{CreateFolder, Done, Folder, MoveVm};
use strongroom_api::{Name, Reference};

use crate::api::{ApiArguments, WaitArguments, parse_reference, segment, show, table};
use crate::error::CliError;
use crate::output::Output;

/// The commands for folders.
#[derive(Debug, Subcommand)]
pub enum FolderCommand {
    /// Create a folder
    #[command(after_help = "Example:\n  strongroom folder create tenant1")]
    Create(CreateArguments),
    /// List folders
    List(ListArguments),
    /// Delete a folder that nothing is in
    #[command(after_help = "Example:\n  strongroom folder delete tenant1")]
    Delete(DeleteArguments),
    /// Move a VM, or a disk that no VM has, into a folder or out of all
    Move(MoveArguments),
}

/// The arguments of `create`.
#[derive(Debug, Args)]
pub struct CreateArguments {
    /// Name of the folder
    name: Name,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom folder list")]
pub struct ListArguments {
    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `delete`.
#[derive(Debug, Args)]
pub struct DeleteArguments {
    /// Name or id of the folder
    folder: String,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `move`.
#[derive(Debug, Args)]
#[command(
    after_help = "The roles that count in the folder then count for the VM, so you need every privilege that they have.

Examples:
  strongroom folder move web1 tenant1
  strongroom folder move web1 --out"
)]
pub struct MoveArguments {
    /// Name or id of the VM or disk
    vm: String,

    /// Name or id of the folder
    #[arg(value_parser = parse_reference, required_unless_present = "out", conflicts_with = "out")]
    folder: Option<Reference>,

    /// Move it out of its folder
    #[arg(long)]
    out: bool,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

impl FolderCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::Create(CreateArguments { name, api }) => {
                let wish = CreateFolder { name: name.clone() };
                let folder: Folder = api.connect()?.post_for("/v1/folders", &wish)?;
                show(output, folder, format_args!("folder {name} is made"))
            }
            Self::List(ListArguments { api }) => {
                let none = "there are no folders; create one: strongroom folder create NAME";
                let folders = api.connect()?.list("/v1/folders")?;
                table(output, folders, ["NAME", "VMS AND DISKS", "ID"], none, |folder: &Folder| {
                    [folder.name.to_string(), folder.vms.to_string(), folder.id.to_string()]
                })
            }
            Self::Delete(DeleteArguments { folder, api }) => {
                api.connect()?.remove(&format!("/v1/folders/{}", segment(folder)))?;
                show(output, Done {}, format_args!("folder {folder} is deleted"))
            }
            Self::Move(MoveArguments { vm, folder, out: _, wait, api }) => {
                let api = api.connect()?;
                let wish = MoveVm { folder: folder.clone() };
                let task = api.post(&format!("/v1/vms/{}/folder", segment(vm)), &wish)?;
                let said = match folder {
                    Some(folder) => format!("{vm} is in folder {folder}"),
                    None => format!("{vm} is in no folder"),
                };
                wait.finish(&api, output, "moving", task, said)
            }
        }
    }
}
