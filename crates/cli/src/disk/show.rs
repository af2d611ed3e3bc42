//! `strongroom disk show`.

use std::fmt;

use clap::Args;
use serde::Serialize;
use strongroom_api::vm::{Snapshot, VmView};
use strongroom_api::volume::VolumeView;
use strongroom_types::display_bytes;

use crate::api::{Api, ApiArguments, segment};
use crate::error::CliError;
use crate::output::{Output, utc};
use crate::vm::others_of;

/// The arguments of `show`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  strongroom disk show data1\n  strongroom disk show web1/disk1")]
pub struct ShowArguments {
    /// Name or id of the disk, or VM/DISK for one of a VM
    disk: String,

    #[command(flatten)]
    api: ApiArguments,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Shown(VolumeView);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VolumeView { volume, snapshots, linked_clones, task } = &self.0;
        if let Some(name) = &volume.name {
            writeln!(f, "disk        {name}")?;
        }
        writeln!(f, "id          {}", volume.id)?;
        match (&volume.vm_name, &volume.disk) {
            (Some(vm), Some(disk)) => writeln!(f, "vm          {vm}, as {disk}")?,
            _ => writeln!(f, "vm          none")?,
        }
        writeln!(f, "size        {}", display_bytes(volume.size_bytes))?;
        if let Some(space) = &volume.space {
            writeln!(f, "used        {}", display_bytes(space.committed_bytes))?;
        }
        writeln!(f, "datastore   {}", volume.datastore)?;
        if let Some(task) = task {
            writeln!(f, "task        {task}")?;
        }
        if !linked_clones.is_empty() {
            let names: Vec<_> = linked_clones.iter().map(ToString::to_string).collect();
            writeln!(f, "clones      {}", names.join(", "))?;
        }
        let current = |snapshot: &Snapshot| if snapshot.is_current { ", current" } else { "" };
        for snapshot in snapshots {
            let made = utc(snapshot.at_unix_seconds);
            let with = snapshot.group.as_ref().map(|group| format!(", with {}", others_of(group)));
            let with = with.unwrap_or_default();
            writeln!(f, "snapshot    {}, made {made}{with}{}", snapshot.name, current(snapshot))?;
        }
        write!(f, "encrypted   {}", if volume.encrypted { "yes" } else { "NO" })
    }
}

impl ShowArguments {
    pub(super) fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let named = match self.disk.split_once('/') {
            Some((vm, disk)) => id_in(&api, vm, disk)?,
            None => self.disk.clone(),
        };
        output.answer(&Shown(api.get(&format!("/v1/volumes/{}", segment(&named)))?))
    }
}

/// The id of a VM's disk.
fn id_in(api: &Api, vm: &str, disk: &str) -> Result<String, CliError> {
    let found: VmView = api.get(&format!("/v1/vms/{}", segment(vm)))?;
    let volume = found.disks.iter().find(|known| known.name == disk).and_then(|known| known.volume);
    volume.map(|volume| volume.to_string()).ok_or_else(|| {
        let list = format!("`strongroom vm disk list {vm}` shows what there is");
        CliError::Usage(format!("VM {vm} has no disk {disk} with a volume; {list}"))
    })
}
