//! `strongroom vm key`: shows the state of a VM's keys, and rotates them.

use std::fmt;

use clap::{Args, Subcommand};
use serde::Serialize;
use strongroom_api::Name;
use strongroom_api::key::{KeyStanding, KeyState, KeyStatus};
use strongroom_api::vm::{RotateKey, VmView};

use crate::api::{ApiArguments, Begun, WaitArguments, follow, segment};
use crate::error::CliError;
use crate::output::{Output, Table, utc};

/// The commands for a VM's keys.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Show the state of a VM's keys at their provider
    Status(KeyStatusArguments),
    /// Move a VM to a new key; with --data, re-encrypt all of its data
    Rotate(RotateArguments),
}

/// The arguments of `status`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom vm key status web1")]
pub struct KeyStatusArguments {
    /// Name or id of the VM
    vm: String,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `rotate`.
#[derive(Debug, Args)]
#[command(
    after_help = "Creates a new key, and moves every volume of the VM to it: disks, firmware variables, \
TPM, console log, memory. No data is copied, and a running guest is not affected. The old key is \
deactivated: it opens only old copies of the volumes' descriptors, as in backups, until 'key destroy'. \
If the command is interrupted, run it again to continue. A running `strongroom serve` rotates the keys \
of VMs by itself when they are due.

With --data every volume, with its snapshots, is rewritten under new data keys, which the old key never \
opens. The VM may run meanwhile: its guest pauses for some milliseconds for each layer, and the job \
pauses so that it keeps 80 % of its speed. Nothing else is done with the VM until it has ended or is cancelled. The datastore needs \
room for the largest layer once more. If it is cancelled or fails, the same command continues. Layers that \
linked clones share are kept for them under the old data keys. \
'strongroom evidence --vm web1' writes a signed report of it.

Examples:
  strongroom vm key rotate web1
  strongroom vm key rotate web1 --data
  strongroom vm key rotate web1 --key-provider corp"
)]
pub struct RotateArguments {
    /// Name or id of the VM
    vm: String,

    /// Key provider of the new key [default: that of the present key]
    #[arg(long, value_name = "NAME")]
    key_provider: Option<Name>,

    /// Rewrite all data under new data keys; the VM may run, but not be suspended
    #[arg(long)]
    data: bool,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Standing(KeyStatus);

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KeyStatus { encrypted, keys, .. } = &self.0;
        if !encrypted {
            return f.write_str("the VM is NOT encrypted");
        }
        let row = |key: &KeyStanding| {
            let state = state_word(key.state);
            let expires = key.expires_unix_seconds.map(utc).unwrap_or_default();
            [key.provider.clone(), key.key.clone(), state, expires, key.reason.clone().unwrap_or_default()]
        };
        let head = ["PROVIDER", "KEY", "STATE", "REPLACE BY", "REASON"];
        write!(f, "{}", Table { head, rows: keys.iter().map(row).collect() })
    }
}

/// A key's state, as named in the API.
pub fn state_word(state: KeyState) -> String {
    let state = serde_json::to_value(state).ok();
    state.as_ref().and_then(|state| state.as_str()).unwrap_or("unknown").to_owned()
}

#[derive(Serialize)]
#[serde(transparent)]
struct Rotated(VmView);

impl fmt::Display for Rotated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VmView { summary, key, .. } = &self.0;
        match key {
            Some(key) => write!(f, "{} is under key {} of {}", summary.name, key.key, key.provider),
            None => write!(f, "{} is NOT encrypted", summary.name),
        }
    }
}

impl KeyCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::Status(KeyStatusArguments { vm, api }) => {
                let path = format!("/v1/vms/{}/key-status", segment(vm));
                output.answer(&Standing(api.connect()?.get(&path)?))
            }
            Self::Rotate(arguments) => arguments.run(output),
        }
    }
}

impl RotateArguments {
    fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let vm = format!("/v1/vms/{}", segment(&self.vm));
        let how = RotateKey { key_provider: self.key_provider.clone(), data: self.data };
        let task = api.post(&format!("{vm}/key/rotate"), &how)?;
        if self.wait.no_wait {
            return output.answer(&Begun(task));
        }
        let doing = if self.data { "re-encrypting under a new key" } else { "moving to a new key" };
        follow(&api, output, doing, task)?;
        if self.data {
            output.remark(&format!("a signed report: `strongroom evidence --vm {} --output FILE`", self.vm));
        }
        output.answer(&Rotated(api.get(&vm)?))
    }
}
