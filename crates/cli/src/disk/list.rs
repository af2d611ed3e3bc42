//! `strongroom disk list`.

use std::fmt;

use clap::Args;
use serde::Serialize;
use strongroom_api::Page;
use strongroom_api::limits::PAGE_MAX;
use strongroom_api::volume::{Volume, VolumeListQuery};
use strongroom_types::{counted, display_bytes};

use crate::api::ApiArguments;
use crate::error::CliError;
use crate::output::{Output, Table};

/// The arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  strongroom disk list\n  strongroom disk list --vm web1")]
pub struct ListArguments {
    /// Only those of this VM
    #[arg(long, value_name = "VM")]
    vm: Option<String>,

    /// Only those in this datastore
    #[arg(long, value_name = "NAME")]
    datastore: Option<String>,

    /// The most disks to list
    #[arg(long, value_name = "COUNT", default_value_t = PAGE_MAX)]
    limit: u32,

    #[command(flatten)]
    api: ApiArguments,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Listing(Page<Volume>);

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Page { items, total, .. } = &self.0;
        if items.is_empty() {
            return f.write_str("there are no disks");
        }
        let row = |volume: &Volume| {
            let vm = volume.vm_name.as_ref().zip(volume.disk.as_ref());
            [
                volume.name.as_ref().map(ToString::to_string).unwrap_or_default(),
                vm.map(|(vm, disk)| format!("{vm}/{disk}")).unwrap_or_default(),
                display_bytes(volume.size_bytes).to_string(),
                volume.space.as_ref().map(|space| display_bytes(space.committed_bytes)).unwrap_or_default(),
                volume.datastore.clone(),
                if volume.encrypted { "yes" } else { "NO" }.to_owned(),
                volume.id.to_string(),
            ]
        };
        let head = ["NAME", "VM", "SIZE", "USED", "DATASTORE", "ENCRYPTED", "ID"];
        write!(f, "{}", Table { head, rows: items.iter().map(row).collect() })?;
        match *total > items.len() as u64 {
            true => write!(f, "\n{} of {}", items.len(), counted(*total as usize, "disk")),
            false => Ok(()),
        }
    }
}

impl ListArguments {
    pub(super) fn run(&self, output: &Output) -> Result<(), CliError> {
        let query = VolumeListQuery {
            limit: Some(self.limit),
            cursor: None,
            vm: self.vm.clone(),
            datastore: self.datastore.clone(),
        };
        output.answer(&Listing(self.api.connect()?.query("/v1/volumes", &query)?))
    }
}
