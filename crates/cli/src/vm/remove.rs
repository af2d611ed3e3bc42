//! `strongroom vm delete`, `register`, `unregister`.

use std::fmt;

use clap::Args;
use serde::Serialize;
use strongroom_api::Name;
use strongroom_api::key::{KeyStanding, KeyStatus};
use strongroom_api::task::Task;
use strongroom_api::vm::{DeleteVm, PowerOptions, RegisterVm};

use super::key::state_word;
use crate::api::{ApiArguments, Begun, WaitArguments, follow, segment};
use crate::error::CliError;
use crate::output::Output;
use crate::terminal::{Terminal, TerminalError};

/// The arguments of `delete`.
#[derive(Debug, Args)]
#[command(
    after_help = "The content of its disks is lost. Its key stays at its provider, and opens existing \
backups; the answer names the key and the `strongroom key destroy` that destroys it. A VM with linked clones is not deleted \
unless what they share with it may stay: they read it under their own keys, also when the VM's key is destroyed.

Examples:
  strongroom vm delete web1
  strongroom vm delete web1 --yes
  strongroom vm delete web1 --leave-to-clones"
)]
pub struct DeleteArguments {
    /// Name or id of the VM
    vm: String,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    /// Delete a VM with linked clones. What they share with it stays on the datastore for them,
    /// under their keys; destroying the VM's key does not destroy it
    #[arg(long)]
    leave_to_clones: bool,

    /// Delete the volumes that were given to it with `disk bind`, too
    #[arg(long)]
    with_volumes: bool,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `register`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom vm register web1 --datastore ds1")]
pub struct RegisterArguments {
    /// Directory of the VM in the datastore
    directory: Name,

    /// Datastore [default: the only one]
    #[arg(long, value_name = "NAME")]
    datastore: Option<String>,

    /// Register an encrypted VM even if its keys do not authenticate the configuration in its
    /// directory. Without this option, the mismatches and all ways in which its data could get out
    /// (unencrypted disks, networks, a kernel or an image of the host) are listed
    #[arg(long)]
    accept_configuration: bool,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `unregister`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom vm unregister web1")]
pub struct UnregisterArguments {
    /// Name or id of the VM
    vm: String,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

#[derive(Serialize)]
struct Deleted {
    #[serde(flatten)]
    task: Task,
    /// The keys of its volumes.
    remaining_keys: Vec<KeyStanding>,
    #[serde(skip)]
    vm: String,
    #[serde(skip)]
    left_to_clones: bool,
}

impl fmt::Display for Deleted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "deleted {}", self.vm)?;
        // A key that was requested but not made has no name.
        for KeyStanding { provider, key, state, .. } in
            self.remaining_keys.iter().filter(|key| !key.key.is_empty())
        {
            write!(
                f,
                "\nIts key {key} of {provider} remains ({}), and opens backups of its volumes. Where there are none to keep:\n  \
                 strongroom key destroy {key} --reason 'VM {} was deleted'{}",
                state_word(*state),
                self.vm,
                if self.left_to_clones { " --leave-to-clones" } else { "" }
            )?;
        }
        Ok(())
    }
}

/// Asks for confirmation of a deletion.
///
/// # Errors
/// If it is not confirmed, or if there is no terminal.
pub fn is_meant(question: &str) -> Result<(), CliError> {
    match Terminal::open().map(|mut terminal| terminal.confirm(question)) {
        Some(Ok(true)) => Ok(()),
        Some(Ok(false) | Err(TerminalError::Interrupted)) => Err(CliError::Declined),
        Some(Err(error)) => Err(CliError::Usage(format!("nobody can be asked: {error}"))),
        None => Err(CliError::Usage(format!(
            "{question} Nobody is at a terminal to answer; give --yes if it is meant"
        ))),
    }
}

impl DeleteArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        if !self.yes {
            is_meant(&format!("Delete VM {} and everything on its disks?", self.vm))?;
        }
        // Ask for the keys while the VM exists.
        let keys = api.get::<KeyStatus>(&format!("/v1/vms/{}/key-status", segment(&self.vm)))?.keys;
        let options = DeleteVm { leave_to_clones: self.leave_to_clones, with_volumes: self.with_volumes };
        let task = api.delete_with(&format!("/v1/vms/{}", segment(&self.vm)), &options)?;
        if self.wait.no_wait {
            return output.answer(&Begun(task));
        }
        let task = follow(&api, output, "deleting", task)?;
        let (vm, left_to_clones) = (self.vm.clone(), self.leave_to_clones);
        output.answer(&Deleted { task, remaining_keys: keys, vm, left_to_clones })
    }
}

impl RegisterArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let wish = RegisterVm {
            datastore: self.datastore.clone(),
            directory: self.directory.clone(),
            accept_configuration: self.accept_configuration,
        };
        let task = api.post("/v1/vms/register", &wish)?;
        let said = format!("{} is registered", self.directory);
        self.wait.finish(&api, output, "registering", task, said)
    }
}

impl UnregisterArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let path = format!("/v1/vms/{}/unregister", segment(&self.vm));
        let task = api.post(&path, &PowerOptions::default())?;
        let said = format!("{} is registered no longer; its files stay", self.vm);
        self.wait.finish(&api, output, "unregistering", task, said)
    }
}
