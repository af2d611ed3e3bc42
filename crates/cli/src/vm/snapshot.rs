//! `strongroom vm snapshot`: the content of a VM's disks at one instant, kept and restored.

use std::fmt;

use clap::{Args, Subcommand};
use serde::Serialize;
use strongroom_api::vm::{CreateSnapshot, RevertVm, Snapshot, SnapshotGroup};
use strongroom_api::{ListQuery, Page, Reference};
use strongroom_types::{SnapshotName, counted, display_bytes};
use strongroom_vm::limits::SNAPSHOTS_MAX;

use super::quiesce::QuiesceArguments;
use super::remove::is_meant;
use super::snapshot_schedule::ScheduleArguments;
use crate::api::{Api, ApiArguments, WaitArguments, parse_reference, segment};
use crate::error::CliError;
use crate::output::{Output, Table, utc};

/// Snapshots of VMs.
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Create a snapshot of all disks of a VM, running or off
    Create(CreateArguments),
    /// List a VM's snapshots
    List(ListArguments),
    /// Show a snapshot
    Show(ShowArguments),
    /// Revert the disks of a VM that is off to a snapshot
    Revert(RevertArguments),
    /// Delete a snapshot of a VM, running or off
    Delete(DeleteArguments),
    /// Show or change when a VM's snapshots are made automatically, and how many are kept
    Schedule(ScheduleArguments),
}

/// The arguments of `vm snapshot create`.
#[derive(Debug, Args)]
#[command(
    after_help = "The snapshot contains what the disks contain at one instant, as after a power cut: everything that the guest has \
flushed, and some of what it has not. The seed is not part of it; swap disks and the TPM are with --memory. A running guest continues after some milliseconds. Nothing is copied: from then on the guest writes to new layers, \
each with a key of its own.

With --quiesce, the guest agent (qemu-guest-agent) first freezes the guest's file systems, so that everything in them is on the disks; \
they are thawed when the snapshot is made. If there is no agent, or it does not do so in time, no snapshot is made. Of a VM that is off \
there is nothing to freeze.

With --with, other VMs get the snapshot too, and disks that no VM has, running or off: if one of them contains a write, all of them \
contain every write, to any of their disks, that was complete before that write began. Either all of them have the snapshot or none \
has. Each is reverted and deleted on its own.

With --memory, the guest's memory is part of it, sealed like the disks: the guest goes on where it was after a revert. It runs while \
its memory is saved, and is paused for the rest of it, which takes longer the faster it changes its memory. This needs up to two and \
a quarter times the guest's memory of free space.

Examples:
  strongroom vm snapshot create web1 before-upgrade
  strongroom vm snapshot create web1 for-backup --quiesce
  strongroom vm snapshot create web1 before-release --with web2 --with vault1
  strongroom vm snapshot create web1 in-the-middle --memory"
)]
pub struct CreateArguments {
    /// Name or id of the VM
    vm: String,

    /// Name of the snapshot
    name: SnapshotName,

    /// Another VM, or a disk that no VM has, that gets the snapshot at the same instant
    #[arg(long, value_name = "VM", value_parser = parse_reference)]
    with: Vec<Reference>,

    /// Include the memory of the guest, which must run
    #[arg(long, conflicts_with = "with")]
    memory: bool,

    #[command(flatten)]
    quiesce: QuiesceArguments,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `vm snapshot list`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom vm snapshot list web1")]
pub struct ListArguments {
    /// Name or id of the VM
    vm: String,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `vm snapshot show`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom vm snapshot show web1 before-upgrade")]
pub struct ShowArguments {
    /// Name or id of the VM
    vm: String,

    /// Name or id of the snapshot
    snapshot: String,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `vm snapshot revert`.
#[derive(Debug, Args)]
#[command(
    after_help = "The disks get the content and the size that they had. Their present content is kept as another snapshot, unless \
--discard is given. Disks that were added after the snapshot was made stay as they are. If the revert is interrupted, the VM does not \
start until it is reverted again.

If the snapshot has the guest's memory, the VM is suspended afterwards, and `vm start` continues its guest. With --disks-only it boots. \
The memory of a VM with a TPM has the TPM's state, which is put back only with --tpm: its counters and its lock-out after wrong \
passwords go back, and keys that the guest has deleted since come back. The event log has it.

Examples:
  strongroom vm snapshot revert web1 before-upgrade --keep-as failed-upgrade
  strongroom vm snapshot revert web1 before-upgrade --discard"
)]
pub struct RevertArguments {
    /// Name or id of the VM
    vm: String,

    /// Name or id of the snapshot
    snapshot: String,

    /// Name of the snapshot that keeps the present content [default: before-revert-N]
    #[arg(long, value_name = "NAME", conflicts_with = "discard")]
    keep_as: Option<SnapshotName>,

    /// Do not keep the present content
    #[arg(long)]
    discard: bool,

    /// Leave the snapshot's memory: the VM boots at its next start
    #[arg(long)]
    disks_only: bool,

    /// Put the state of the VM's TPM back with the memory
    #[arg(long, conflicts_with = "disks_only")]
    tpm: bool,

    /// Do not ask before content is discarded
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `vm snapshot delete`.
#[derive(Debug, Args)]
#[command(
    after_help = "The VM keeps its content, and so do its other snapshots. Layers that only this snapshot needs are removed with their \
keys. Other layers are merged, which takes a while if the guest wrote much since.

Example:
  strongroom vm snapshot delete web1 before-upgrade"
)]
pub struct DeleteArguments {
    /// Name or id of the VM
    vm: String,

    /// Name or id of the snapshot
    snapshot: String,

    /// Do not ask
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Listing(Page<Snapshot>);

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = &self.0.items;
        if all.is_empty() {
            return f.write_str("there are no snapshots");
        }
        let row = |snapshot: &Snapshot| {
            [
                snapshot.name.to_string(),
                utc(snapshot.at_unix_seconds),
                parent_of(snapshot, all),
                if snapshot.is_current { "yes".to_owned() } else { String::new() },
                counted(snapshot.volumes.len(), "disk"),
                snapshot.memory.as_ref().map(|memory| display_bytes(memory.bytes)).unwrap_or_default(),
                if snapshot.quiesced { "yes".to_owned() } else { String::new() },
                snapshot.group.as_ref().map(others_of).unwrap_or_default(),
            ]
        };
        let head = ["SNAPSHOT", "MADE", "PARENT", "CURRENT", "DISKS", "MEMORY", "QUIESCED", "WITH"];
        write!(f, "{}", Table { head, rows: all.iter().map(row).collect() })
    }
}

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    snapshot: Snapshot,
    #[serde(skip)]
    parent: String,
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Snapshot { id, name, at_unix_seconds, volumes, is_current, memory, quiesced, group, .. } =
            &self.snapshot;
        writeln!(f, "snapshot    {name}")?;
        writeln!(f, "id          {id}")?;
        writeln!(f, "made        {}", utc(*at_unix_seconds))?;
        if !self.parent.is_empty() {
            writeln!(f, "parent      {}", self.parent)?;
        }
        writeln!(f, "disks       {}", volumes.join(", "))?;
        if let Some(memory) = memory {
            writeln!(f, "memory      {}", display_bytes(memory.bytes))?;
        }
        if *quiesced {
            writeln!(f, "quiesced    yes: the guest's file systems were frozen")?;
        }
        if let Some(group) = group {
            writeln!(f, "with        {}", others_of(group))?;
        }
        write!(f, "current     {}", if *is_current { "yes: the VM's content is based on it" } else { "no" })
    }
}

impl SnapshotCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::Create(arguments) => arguments.run(output),
            Self::List(ListArguments { vm, api }) => output.answer(&Listing(list(&api.connect()?, vm)?)),
            Self::Show(arguments) => arguments.run(output),
            Self::Revert(arguments) => arguments.run(output),
            Self::Delete(arguments) => arguments.run(output),
            Self::Schedule(arguments) => arguments.run(output),
        }
    }
}

fn list(api: &Api, vm: &str) -> Result<Page<Snapshot>, CliError> {
    let limit = u32::try_from(SNAPSHOTS_MAX).ok();
    api.query(&path(vm, None), &ListQuery { limit, ..ListQuery::default() })
}

fn path(vm: &str, snapshot: Option<&str>) -> String {
    let all = format!("/v1/vms/{}/snapshots", segment(vm));
    snapshot.map_or_else(|| all.clone(), |snapshot| format!("{all}/{}", segment(snapshot)))
}

/// The other VMs of a snapshot of several.
pub fn others_of(group: &SnapshotGroup) -> String {
    let deleted = group.deleted.iter().map(|name| format!("{name} (deleted)"));
    group.with.iter().map(ToString::to_string).chain(deleted).collect::<Vec<_>>().join(", ")
}

fn parent_of(snapshot: &Snapshot, all: &[Snapshot]) -> String {
    let parent = all.iter().find(|other| snapshot.parent == Some(other.id));
    parent.map_or_else(String::new, |parent| parent.name.to_string())
}

impl CreateArguments {
    fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let quiesce_within_s = self.quiesce.within();
        let wish = CreateSnapshot {
            name: self.name.clone(),
            memory: self.memory,
            quiesce_within_s,
            with: self.with.clone(),
        };
        let task = api.post(&path(&self.vm, None), &wish)?;
        let said = made(&self.name, &self.vm, &self.with);
        self.wait.finish(&api, output, "making the snapshot", task, said)
    }
}

/// Says what was made.
pub fn made(name: &SnapshotName, first: &str, with: &[Reference]) -> String {
    let others = with.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match others.is_empty() {
        true => format!("made snapshot {name} of {first}"),
        false => format!("made snapshot {name} of {first}, {others}, of one instant"),
    }
}

impl ShowArguments {
    fn run(&self, output: &Output) -> Result<(), CliError> {
        let all = list(&self.api.connect()?, &self.vm)?.items;
        let is = |one: &&Snapshot| one.name.as_str() == self.snapshot || one.id.to_string() == self.snapshot;
        let Some(snapshot) = all.iter().find(is).cloned() else {
            return Err(CliError::Usage(format!(
                "VM {0} has no snapshot {1}; `strongroom vm snapshot list {0}` shows what there is",
                self.vm, self.snapshot
            )));
        };
        let parent = parent_of(&snapshot, &all);
        output.answer(&Shown { snapshot, parent })
    }
}

impl RevertArguments {
    fn run(&self, output: &Output) -> Result<(), CliError> {
        let Self { vm, snapshot, keep_as, discard, disks_only, tpm, .. } = self;
        let api = self.api.connect()?;
        if *discard && !self.yes {
            is_meant(&format!("Discard what the disks of VM {vm} contain now?"))?;
        }
        let (discard, disks_only, tpm) = (*discard, *disks_only, *tpm);
        let wish = RevertVm { keep_as: keep_as.clone(), discard, disks_only, tpm };
        let task = api.post(&format!("{}/revert", path(vm, Some(snapshot))), &wish)?;
        let said = format!("reverted {vm} to snapshot {snapshot}");
        self.wait.finish(&api, output, "reverting", task, said)
    }
}

impl DeleteArguments {
    fn run(&self, output: &Output) -> Result<(), CliError> {
        let Self { vm, snapshot, .. } = self;
        let api = self.api.connect()?;
        if !self.yes {
            is_meant(&format!("Delete snapshot {snapshot} of VM {vm}?"))?;
        }
        let task = api.delete(&path(vm, Some(snapshot)))?;
        let said = format!("deleted snapshot {snapshot} of {vm}");
        self.wait.finish(&api, output, "deleting", task, said)
    }
}
