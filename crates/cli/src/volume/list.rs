//! `strongroom volume list`.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::{ListedVolume, list};
use strongroom_types::display_bytes;

use super::describe::VolumeFacts;
use crate::error::CliError;
use crate::output::{Output, Table, utc};

/// The arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = "Needs no key: the list is read from the datastore and not authenticated.

Examples:
  strongroom volume list ./ds
  strongroom volume list ./ds --json | jq -r '.items[].path'")]
pub struct ListArguments {
    /// Directory of the datastore
    datastore: PathBuf,
}

#[derive(Serialize)]
struct Listing {
    datastore: PathBuf,
    #[serde(rename = "items")]
    volumes: Vec<VolumeFacts>,
    broken: Vec<Broken>,
}

#[derive(Serialize)]
struct Broken {
    path: PathBuf,
    reason: String,
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.volumes.is_empty() && self.broken.is_empty() {
            return write!(f, "{} holds no volumes", self.datastore.display());
        }
        let row = |volume: &VolumeFacts| {
            [
                self.name(&volume.path),
                display_bytes(volume.size_bytes),
                display_bytes(volume.allocated_bytes),
                volume.provisioning.to_owned(),
                volume
                    .encryption
                    .as_ref()
                    .map_or("NONE".to_owned(), |facts| facts.key_source.replace('_', " ")),
                utc(volume.created_unix_seconds),
            ]
        };
        let head = ["NAME", "SIZE", "ALLOCATED", "SPACE", "KEY", "CREATED"];
        if !self.volumes.is_empty() {
            write!(f, "{}", Table { head, rows: self.volumes.iter().map(row).collect() })?;
        }
        for (index, broken) in self.broken.iter().enumerate() {
            let separator = if index > 0 || !self.volumes.is_empty() { "\n" } else { "" };
            write!(f, "{separator}broken: {}: {}", self.name(&broken.path), broken.reason)?;
        }
        Ok(())
    }
}

impl Listing {
    /// The name of a volume in the datastore, preceded by the VM's name if it belongs to one.
    fn name(&self, path: &Path) -> String {
        path.strip_prefix(&self.datastore).unwrap_or(path).to_string_lossy().into_owned()
    }
}

impl ListArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let (mut volumes, mut broken) = (Vec::new(), Vec::new());
        for listed in list(&self.datastore)? {
            match listed {
                ListedVolume::Volume(volume) => volumes.push(VolumeFacts::from(&*volume)),
                ListedVolume::Broken { path, reason } => broken.push(Broken { path, reason }),
            }
        }
        output.answer(&Listing { datastore: self.datastore.clone(), volumes, broken })
    }
}
