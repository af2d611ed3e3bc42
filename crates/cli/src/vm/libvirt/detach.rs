//! `strongroom vm disk detach --libvirt`.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use strongroom_libvirt::{Detach, Detached};

use super::attach::{ConnectArguments, ScopeArguments};
use crate::error::CliError;
use crate::output::Output;

/// The arguments of `detach`.
#[derive(Debug, Args)]
#[command(
    after_help = "Reverts 'attach': removes the disk from the domain, and stops and disables the service \
that was set up for it. A volume that was exposed by hand stays exposed. Unmount the disk in the guest \
first. No key is needed, and the volume is not changed.

Examples:
  strongroom vm disk detach --libvirt web1 /srv/volumes/data1
  strongroom vm disk detach --libvirt web1 /srv/volumes/data1 --config"
)]
pub struct DetachArguments {
    /// Guest: name, id or UUID of a libvirt domain
    #[arg(long, value_name = "DOMAIN", required = true)]
    libvirt: String,

    /// Path of the volume
    volume: PathBuf,

    #[command(flatten)]
    scope: ScopeArguments,

    #[command(flatten)]
    connect: ConnectArguments,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Answer(Detached);

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(detached) = self;
        let (volume, domain) = (detached.volume.display(), &detached.domain);
        match &detached.target {
            Some(target) => {
                let whence = match (detached.live, detached.config) {
                    (true, false) if detached.remains => " as it runs; it is there again at its next start",
                    (false, true) if detached.remains => " at its next start; until it ends, it is there",
                    _ => "",
                };
                write!(f, "{volume} is no longer {target} of {domain}{whence}")?;
            }
            None => write!(f, "{volume} is no disk of {domain}; there was nothing to take out")?,
        }
        if let Some(unit) = &detached.unit_removed {
            write!(f, "\n  {unit} has ended, and does not start with this machine any more")?;
        }
        if let Some(pid) = detached.served_by_pid {
            write!(f, "\n  it is still exposed, by process {pid}; `kill {pid}` ends that in order")?;
        }
        Ok(())
    }
}

impl DetachArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let wish = Detach {
            libvirt: &self.connect.libvirt(),
            domain: &self.libvirt,
            volume: &self.volume,
            scope: self.scope.into(),
        };
        output.answer(&Answer(wish.carry_out()?))
    }
}
