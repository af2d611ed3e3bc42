//! `strongroom vm disk list`.

use std::fmt;

use clap::Args;
use serde::Serialize;
use strongroom_api::vm::{Disk, DiskBecomes, DiskKind, VmView, VolumeState};
use strongroom_types::display_bytes;

use super::super::options::frontend_word;
use crate::api::{ApiArguments, segment};
use crate::error::CliError;
use crate::output::{Output, Table};

/// The arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom vm disk list web1")]
pub struct ListArguments {
    /// Name or id of the VM
    vm: String,

    #[command(flatten)]
    api: ApiArguments,
}

#[derive(Serialize)]
struct Disks {
    #[serde(rename = "items")]
    disks: Vec<Disk>,
}

impl fmt::Display for Disks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.disks.is_empty() {
            return f.write_str("the VM has no disk");
        }
        let row = |disk: &Disk| {
            let kind = match disk.kind {
                DiskKind::Data => "data",
                DiskKind::Swap => "swap",
            };
            let in_use = match disk.state {
                VolumeState::Idle => "no",
                VolumeState::Exposed => "yes",
                VolumeState::Troubled => "in trouble",
                VolumeState::Unknown => "not known",
            };
            let volume = match (disk.volume, disk.kind) {
                (Some(volume), _) => volume.to_string(),
                (None, DiskKind::Swap) => "new at each start".to_owned(),
                (None, DiskKind::Data) => String::new(),
            };
            let half = match disk.becomes {
                Some(DiskBecomes::Encrypted) => "NOT encrypted as a whole yet: ",
                Some(DiskBecomes::Clear) => "NOT encrypted as a whole any more: ",
                None => "",
            };
            let key = disk.key.as_ref().map_or_else(
                || "NOT encrypted".to_owned(),
                |key| format!("{half}{} at {}", key.key, key.provider),
            );
            let size = display_bytes(disk.size_bytes).to_string();
            let frontend = frontend_word(disk.frontend).to_owned();
            [
                disk.name.clone(),
                size,
                kind.to_owned(),
                disk.datastore.clone(),
                frontend,
                in_use.to_owned(),
                volume,
                key,
            ]
        };
        let head = ["NAME", "SIZE", "KIND", "DATASTORE", "FRONTEND", "IN USE", "VOLUME", "KEY"];
        write!(f, "{}", Table { head, rows: self.disks.iter().map(row).collect() })
    }
}

impl ListArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let vm: VmView = self.api.connect()?.get(&format!("/v1/vms/{}", segment(&self.vm)))?;
        output.answer(&Disks { disks: vm.disks })
    }
}
