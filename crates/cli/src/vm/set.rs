//! `strongroom vm set`.

use std::fmt;

use clap::Args;
use serde::Serialize;
use strongroom_api::task::Task;
use strongroom_api::vm::{Cdrom, MemorySize, PatchVm};

use super::options::{BootArguments, NetworkArguments, RestartArgument, cpus, parse_cdrom, parse_memory};
use crate::api::{ApiArguments, Begun, WaitArguments, follow, segment};
use crate::error::CliError;
use crate::output::Output;

/// The arguments of `set`.
#[derive(Debug, Args)]
#[command(after_help = "Only the given settings change. --net replaces all network interfaces.

Examples:
  strongroom vm set web1 --cpus 4 --memory 8G
  strongroom vm set web1 --net bridge=br0
  strongroom vm set web1 --cdrom none
  strongroom vm set web1 --restart never")]
pub struct SetArguments {
    /// Name or id of the VM
    vm: String,

    /// Number of virtual processors
    #[arg(long, value_name = "N")]
    cpus: Option<u32>,

    /// Guest memory, such as 512M or 2G
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    memory: Option<MemorySize>,

    #[command(flatten)]
    network: NetworkArguments,

    /// Image in its CD-ROM drive, a file in one of the host's boot directories; `none` removes the
    /// drive
    #[arg(long, value_name = "FILE", value_parser = parse_cdrom)]
    cdrom: Option<Cdrom>,

    #[command(flatten)]
    boot: BootArguments,

    /// When to restart it automatically
    #[arg(long, value_enum)]
    restart: Option<RestartArgument>,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

#[derive(Serialize)]
struct Changed {
    #[serde(flatten)]
    task: Task,
    #[serde(skip)]
    vm: String,
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is changed, from its next start on", self.vm)
    }
}

impl SetArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let wish = PatchVm {
            cpus: self.cpus.map(cpus).transpose()?,
            memory_bytes: self.memory,
            nics: self.network.nics()?,
            boot: self.boot.boot()?,
            cdrom: self.cdrom.clone(),
            vnc: None,
            restart: self.restart.map(Into::into),
        };
        if wish == PatchVm::default() {
            return Err(CliError::Usage("say what to change, as in --memory 8G".to_owned()));
        }
        let api = self.api.connect()?;
        let task = api.patch(&format!("/v1/vms/{}", segment(&self.vm)), &wish)?;
        if self.wait.no_wait {
            return output.answer(&Begun(task));
        }
        let task = follow(&api, output, "changing", task)?;
        output.answer(&Changed { task, vm: self.vm.clone() })
    }
}
