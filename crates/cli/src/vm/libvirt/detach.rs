//! `strongroom vm disk detach --libvirt`.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::describe;

use super::attach::{ScopeArguments, absolute};
use super::error::LibvirtError;
use super::service::Service;
use super::virsh::{ConnectArguments, Scope, Standing};
use crate::error::CliError;
use crate::output::Output;
use crate::volume::describe::exposure_of;

/// For a guest to let go of a disk; libvirt itself waits for five seconds.
const LETS_GO_WITHIN: Duration = Duration::from_secs(20);
/// How often libvirt is asked meanwhile.
const ASKED_EVERY: Duration = Duration::from_millis(250);

/// Which volume, and whose.
#[derive(Debug, Args)]
#[command(
    after_help = "Undoes what 'attach' did: the disk leaves the domain, and the service that was set up for it ends and no longer starts with this \
machine. A volume that somebody exposes by hand is exposed on. Unmount the disk in the guest first. It takes no key, and the volume stays as it is.

Examples:
  strongroom vm disk detach --libvirt web1 /srv/volumes/data1
  strongroom vm disk detach --libvirt web1 /srv/volumes/data1 --config"
)]
pub struct DetachArguments {
    /// The guest: a domain of libvirt, by name, id or UUID
    #[arg(long, value_name = "DOMAIN", required = true)]
    libvirt: String,

    /// The volume
    volume: PathBuf,

    #[command(flatten)]
    scope: ScopeArguments,

    #[command(flatten)]
    connect: ConnectArguments,
}

#[derive(Serialize)]
struct Detached {
    volume: PathBuf,
    domain: String,
    /// What it was called; nothing if it was no disk of the domain.
    target: Option<String>,
    /// From which of the domain's definitions it was taken.
    live: bool,
    config: bool,
    /// The service that was ended.
    unit_removed: Option<String>,
    /// The process that serves it still.
    served_by_pid: Option<u32>,
    #[serde(skip)]
    remains: bool,
}

impl fmt::Display for Detached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (volume, domain) = (self.volume.display(), &self.domain);
        match &self.target {
            Some(target) => {
                let whence = match (self.live, self.config) {
                    (true, false) if self.remains => " as it runs; it is there again at its next start",
                    (false, true) if self.remains => " at its next start; until it ends, it is there",
                    _ => "",
                };
                write!(f, "{volume} is no longer {target} of {domain}{whence}")?;
            }
            None => write!(f, "{volume} is no disk of {domain}; there was nothing to take out")?,
        }
        if let Some(unit) = &self.unit_removed {
            write!(f, "\n  {unit} has ended, and does not start with this machine any more")?;
        }
        if let Some(pid) = self.served_by_pid {
            write!(f, "\n  it is still exposed, by process {pid}; `kill {pid}` ends that in order")?;
        }
        Ok(())
    }
}

impl DetachArguments {
    /// Takes the volume out of the domain.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let domain = self.connect.standing(&self.libvirt)?;
        let scope = self.scope.of(&domain)?;
        let path = absolute(&self.volume)?;
        let id = describe(&path)?.descriptor.volume.to_string();
        let exposure = exposure_of(&path);
        let sockets: Vec<PathBuf> = exposure
            .iter()
            .map(|status| status.address.clone().into())
            .chain([Service::socket(&id)])
            .collect();

        let mut target = None;
        let mut taken = Scope::default();
        // The next start first: whatever becomes of the guest meanwhile, the disk does not come
        // back by itself.
        for one in [Scope { live: false, config: scope.config }, Scope { live: scope.live, config: false }] {
            let definition = if one.live { domain.live.as_ref() } else { domain.config.as_ref() };
            let disk = definition
                .filter(|_| !one.is_empty())
                .and_then(|definition| definition.disk_of(&id, &sockets));
            let Some(disk) = disk else { continue };
            self.connect.detach(&domain.name, &disk.target, one)?;
            taken = Scope { live: taken.live || one.live, config: taken.config || one.config };
            target = Some(disk.target.clone());
        }
        let now = match &target {
            Some(target) if taken.live => self.wait_until_gone(target, &id, &sockets)?,
            _ => self.connect.standing(&self.libvirt)?,
        };

        let remains = now.both().any(|definition| definition.disk_of(&id, &sockets).is_some());
        let mut unit_removed = None;
        if !remains
            && Service::check_available().is_ok()
            && let service = Service::of(&path)?
            && service.is_set_up()
        {
            service.remove()?;
            unit_removed = Some(service.unit().to_owned());
        }
        let served = exposure.filter(|_| unit_removed.is_none() && !remains);
        output.answer(&Detached {
            volume: path,
            domain: domain.name,
            target,
            live: taken.live,
            config: taken.config,
            unit_removed,
            served_by_pid: served.map(|status| status.supervisor_pid),
            remains,
        })
    }

    /// The domain once its guest has let go of the disk: without that, its server must not end.
    fn wait_until_gone(&self, target: &str, id: &str, sockets: &[PathBuf]) -> Result<Standing, LibvirtError> {
        let until = Instant::now() + LETS_GO_WITHIN;
        loop {
            let now = self.connect.standing(&self.libvirt)?;
            if now.live.as_ref().is_none_or(|live| live.disk_of(id, sockets).is_none()) {
                return Ok(now);
            }
            if Instant::now() > until {
                let (domain, target, seconds) = (now.name, target.to_owned(), LETS_GO_WITHIN.as_secs());
                return Err(LibvirtError::NotLetGo { domain, target, seconds });
            }
            std::thread::sleep(ASKED_EVERY);
        }
    }
}
