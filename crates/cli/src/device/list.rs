//! `strongroom device list`.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::describe;
use strongroom_devices::record::{ClusterName, Device, DeviceName};
use strongroom_devices::status::{RunFiles, State, Status};
use strongroom_types::{display_bytes, without_numbers};

use super::PlaceArguments;
use crate::error::CliError;
use crate::output::{Output, Table};

/// The arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  strongroom device list
  strongroom device list osd0 --json")]
pub struct ListArguments {
    /// Names of devices [default: all]
    names: Vec<DeviceName>,

    #[command(flatten)]
    place: PlaceArguments,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Listed(Vec<DeviceFacts>);

#[derive(Serialize)]
struct DeviceFacts {
    name: DeviceName,
    /// Where it is, or will be when it is attached.
    link: PathBuf,
    volume: PathBuf,
    /// `None` if its volume cannot be read.
    size_bytes: Option<u64>,
    allocated_bytes: Option<u64>,
    cluster: Option<ClusterName>,
    key_provider: Option<String>,
    kek_id: Option<String>,
    /// Whether it is to be attached.
    wanted: bool,
    /// What it is now; `None` if it is detached.
    status: Option<Status>,
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |device: &DeviceFacts| {
            [
                device.name.to_string(),
                device.size_bytes.map_or_else(|| "-".to_owned(), display_bytes),
                device.cluster.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
                device.key_provider.clone().unwrap_or_else(|| "-".to_owned()),
                state_of(device),
            ]
        };
        let head = ["NAME", "SIZE", "CLUSTER", "KEY PROVIDER", "STATE"];
        write!(f, "{}", Table { head, rows: self.0.iter().map(row).collect() })
    }
}

fn state_of(device: &DeviceFacts) -> String {
    match &device.status {
        None if device.wanted => "not attached; strongroom-devices does not run".to_owned(),
        None => "detached".to_owned(),
        Some(status) => in_words(&status.state, &device.link),
    }
}

/// A state, for people.
pub fn in_words(state: &State, link: &std::path::Path) -> String {
    match state {
        State::Starting => "starting".to_owned(),
        State::WaitingForKey { reason } => {
            let reason = reason.trim_start_matches("Waiting for the key. ");
            format!("waiting for the key: {}", without_numbers(reason))
        }
        State::Attached => format!("attached: {}", link.display()),
        State::Interrupted { reason } => format!("interrupted: {reason}"),
        State::Detaching { users } => format!("detaching; in use by {users}"),
    }
}

impl ListArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let (devices, run) = (self.place.devices()?, self.place.run_files()?);
        let wanted: Vec<Device> = if self.names.is_empty() {
            let all = devices.all()?;
            // One that cannot be read hides no other.
            all.into_iter()
                .filter_map(|device| device.map_err(|error| output.remark(&error.to_string())).ok())
                .collect()
        } else {
            self.names.iter().map(|name| devices.get(name)).collect::<Result<_, _>>()?
        };
        output
            .answer(&Listed(wanted.into_iter().map(|device| facts(device, &run)).collect::<Result<_, _>>()?))
    }
}

fn facts(device: Device, run: &RunFiles) -> Result<DeviceFacts, CliError> {
    let described = describe(&device.volume).ok();
    let encryption = described.as_ref().and_then(|volume| volume.descriptor.encryption.as_ref());
    let provider = encryption.and_then(|encryption| encryption.kek.source.provider_key());
    Ok(DeviceFacts {
        link: RunFiles::link(&device.name),
        size_bytes: described.as_ref().map(|volume| volume.descriptor.size_bytes.bytes()),
        allocated_bytes: described.as_ref().map(|volume| volume.space.committed_bytes),
        key_provider: provider.map(|key| key.provider.to_string()),
        kek_id: encryption.map(|encryption| encryption.kek.id.to_string()),
        status: run.status(&device.name)?,
        wanted: device.attached,
        name: device.name,
        volume: device.volume,
        cluster: device.cluster,
    })
}
