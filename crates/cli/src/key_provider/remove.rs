//! `strongroom key-provider remove`.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use clap::Args;
use serde::Serialize;
use strongroom_jobs::datastores::{KnownDatastores, Scan, vm_of};
use strongroom_keys::ProviderName;
use strongroom_providers::{Registry, RegistryError};
use strongroom_types::counted;

use crate::error::CliError;
use crate::home::HomeArguments;
use crate::output::Output;
use crate::terminal::{Terminal, TerminalError};

/// The most VMs and volumes that a question names.
const NAMED_MAX: usize = 20;

/// The arguments of `remove`.
#[derive(Debug, Args)]
#[command(
    after_help = "Removes only this machine's configuration of the provider. Its keys stay there, and \
volumes that need them are key-unavailable until a provider of the same name is added again. If a volume \
in a known datastore needs it, the command asks for confirmation; without a terminal this requires \
--yes. 'strongroom serve' adds the provider 'embedded' again.

Examples:
  strongroom key-provider remove corp
  strongroom key-provider remove corp --yes"
)]
pub struct RemoveArguments {
    /// Name of the key provider
    name: ProviderName,

    /// Do not ask for confirmation, even if volumes need it
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    home: HomeArguments,
}

#[derive(Serialize)]
struct Removed {
    name: ProviderName,
    removed: bool,
}

impl fmt::Display for Removed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "removed {}; its keys stay where they are", self.name)
    }
}

impl RemoveArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let home = self.home.path()?;
        let registry = Registry::of_home(&home);
        if !self.yes {
            // An unknown name is an error before any question.
            registry
                .list()?
                .iter()
                .find(|one| one.name == self.name)
                .ok_or_else(|| RegistryError::Unknown { name: self.name.clone() })?;
            self.ask_if_needed(&home)?;
        }
        registry.remove(&self.name)?;
        output.answer(&Removed { name: self.name.clone(), removed: true })
    }

    /// Fails if volumes need the provider and no person confirms the removal.
    fn ask_if_needed(&self, home: &Path) -> Result<(), CliError> {
        let scan = KnownDatastores::of_home(home).scan(&[])?;
        let Some(by) = needed_by(&scan, &self.name) else { return Ok(()) };
        let needed = CliError::ProviderNeeded { name: self.name.clone(), by };
        match Terminal::open().map(|mut terminal| terminal.confirm(&format!("{needed}.\nRemove it?"))) {
            Some(Ok(true)) => Ok(()),
            Some(Ok(false) | Err(TerminalError::Interrupted)) => Err(CliError::Declined),
            Some(Err(_)) | None => Err(needed),
        }
    }
}

/// The volumes and VMs that need a provider, as text; includes unreadable datastores, which may
/// contain some.
fn needed_by(scan: &Scan, name: &ProviderName) -> Option<String> {
    let volumes = scan.needing(|key| key.provider == *name);
    let vms: BTreeSet<String> = volumes.iter().filter_map(|volume| vm_of(&volume.path)).collect();
    let others = volumes.iter().filter(|volume| vm_of(&volume.path).is_none());
    let others: Vec<String> = others.map(|volume| volume.path.display().to_string()).collect();
    let mut parts = Vec::new();
    let mut say = |what: &str, names: Vec<String>| {
        if !names.is_empty() {
            let shown = names.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
            let more = if names.len() > NAMED_MAX { ", ..." } else { "" };
            parts.push(format!("{} ({shown}{more})", counted(names.len(), what)));
        }
    };
    say("VM", vms.into_iter().collect());
    say("volume beside VMs", others);
    say(
        "datastore that cannot be looked into, perhaps",
        scan.unknown().iter().map(ToString::to_string).collect(),
    );
    (!parts.is_empty()).then(|| parts.join(" and "))
}
