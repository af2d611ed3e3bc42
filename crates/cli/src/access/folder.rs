//! `strongroom folder`.

use clap::{Args, Subcommand};
use strongroom_api::access::{CreateFolder, Done, Folder, FolderUse, MoveVm, Quota, SetFolder};
use strongroom_api::{Name, Reference};
use strongroom_types::{display_bytes, parse_bytes};

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
    /// Set what the VMs and disks in a folder may have together
    Quota(QuotaArguments),
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

/// The arguments of `quota`.
#[derive(Debug, Args)]
#[command(
    after_help = "What is not named is not limited. What is in the folder stays, even if it has more: what would add to it is \
refused. 'strongroom folder list' shows what is used.

Examples:
  strongroom folder quota tenant1 --vms 20 --cpus 64 --memory 256G --disks 4T
  strongroom folder quota tenant1 --none"
)]
pub struct QuotaArguments {
    /// Name or id of the folder
    folder: String,

    #[command(flatten)]
    most: QuotaOptions,

    /// Limit nothing
    #[arg(long, conflicts_with = "QuotaOptions")]
    none: bool,

    #[command(flatten)]
    api: ApiArguments,
}

/// The limits of a quota.
#[derive(Debug, Args)]
struct QuotaOptions {
    /// Most VMs, and disks that no VM has
    #[arg(long, value_name = "N")]
    vms: Option<u64>,

    /// Most processors of VMs
    #[arg(long, value_name = "N")]
    cpus: Option<u64>,

    /// Most memory of VMs
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    memory: Option<u64>,

    /// Greatest size of all disks together
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    disks: Option<u64>,
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
                let head = ["NAME", "VMS AND DISKS", "CPUS", "MEMORY", "DISK SPACE", "ID"];
                table(output, folders, head, none, row)
            }
            Self::Quota(QuotaArguments { folder, most, none, api }) => {
                let QuotaOptions { vms, cpus, memory, disks } = *most;
                let quota = Quota { vms, cpus, memory_bytes: memory, disk_bytes: disks };
                if quota.is_unlimited() && !none {
                    return Err(CliError::Usage("say what is limited, as in --vms 20, or --none".to_owned()));
                }
                let path = format!("/v1/folders/{}", segment(folder));
                let set: Folder = api.connect()?.patch_for(&path, &SetFolder { quota })?;
                show(output, set, format_args!("quota of folder {folder}: {quota}"))
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

fn row(folder: &Folder) -> [String; 6] {
    let FolderUse { vms, cpus, memory_bytes, disk_bytes } = folder.used;
    let of = |used: String, most: Option<String>| match most {
        Some(most) => format!("{used} of {most}"),
        None => used,
    };
    let count = |used: u64, most: Option<u64>| of(used.to_string(), most.map(|most| most.to_string()));
    let bytes = |used: u64, most: Option<u64>| of(display_bytes(used), most.map(display_bytes));
    [
        folder.name.to_string(),
        count(vms, folder.quota.vms),
        count(cpus, folder.quota.cpus),
        bytes(memory_bytes, folder.quota.memory_bytes),
        bytes(disk_bytes, folder.quota.disk_bytes),
        folder.id.to_string(),
    ]
}
