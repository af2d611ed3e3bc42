//! A volume is no longer a disk of a domain.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use strongroom_datastore::file::describe;
use strongroom_worker::control::status_of;

use crate::attach::absolute;
use crate::error::LibvirtError;
use crate::service::Service;
use crate::virsh::{Libvirt, Scope, Standing};

/// For a guest to let go of a disk; libvirt itself waits for five seconds.
const LETS_GO_WITHIN: Duration = Duration::from_secs(20);
/// How often libvirt is asked meanwhile.
const ASKED_EVERY: Duration = Duration::from_millis(250);

/// Which volume leaves whom.
#[derive(Clone, Copy, Debug)]
pub struct Detach<'a> {
    /// The libvirt that has the domain.
    pub libvirt: &'a Libvirt,
    /// The domain, by name, id or UUID.
    pub domain: &'a str,
    /// The volume.
    pub volume: &'a Path,
    /// The definitions of the domain that change; neither means both, as far as there is either.
    pub scope: Scope,
}

/// A volume that is no longer a disk of a domain.
#[derive(Debug, Serialize)]
pub struct Detached {
    /// The volume's path.
    pub volume: PathBuf,
    /// The domain's name.
    pub domain: String,
    /// What it was called; nothing if it was no disk of the domain.
    pub target: Option<String>,
    /// Whether it was taken from the domain as it runs.
    pub live: bool,
    /// Whether it was taken from the domain at its next start.
    pub config: bool,
    /// The service that was ended.
    pub unit_removed: Option<String>,
    /// The process that serves it still.
    pub served_by_pid: Option<u32>,
    /// Whether one of the domain's definitions still has it.
    #[serde(skip)]
    pub remains: bool,
}

impl Detach<'_> {
    /// Takes the volume out of the domain, and ends the service that was set up for it.
    ///
    /// # Errors
    /// [`LibvirtError`]; the volume is served on.
    pub fn carry_out(&self) -> Result<Detached, LibvirtError> {
        let domain = self.libvirt.standing(self.domain)?;
        let scope = domain.scope(self.scope)?;
        let path = absolute(self.volume)?;
        let id = describe(&path)?.descriptor.volume.to_string();
        let exposure = status_of(&path);
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
            self.libvirt.detach(&domain.name, &disk.target, one)?;
            taken = Scope { live: taken.live || one.live, config: taken.config || one.config };
            target = Some(disk.target.clone());
        }
        let now = match &target {
            Some(target) if taken.live => self.wait_until_gone(target, &id, &sockets)?,
            _ => self.libvirt.standing(self.domain)?,
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
        Ok(Detached {
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
            let now = self.libvirt.standing(self.domain)?;
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
