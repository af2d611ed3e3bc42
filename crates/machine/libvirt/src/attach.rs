//! A volume becomes a disk of a domain.

use std::path::{Path, PathBuf};

use serde::Serialize;
use strongroom_datastore::file::{DescribedVolume, Descriptor, describe};
use strongroom_frontend::listen::Address;
use strongroom_types::shell_word;
use strongroom_vm::DiskFrontend;
use strongroom_worker::control::status_of;

use crate::device::{self, SUGGESTED_QUEUES};
use crate::domain::{Domain, GuestMemory, QemuUser, alias_of, free_target};
use crate::error::LibvirtError;
use crate::service::{NoService, Service};
use crate::virsh::{Libvirt, Scope, Standing, in_the_way};

/// Which volume becomes a disk, of whom, and how.
#[derive(Clone, Copy)]
pub struct Attach<'a> {
    /// The libvirt that has the domain.
    pub libvirt: &'a Libvirt,
    /// The domain, by name, id or UUID.
    pub domain: &'a str,
    /// The volume.
    pub volume: &'a Path,
    /// The definitions of the domain that change; neither means both, as far as there is either.
    pub scope: Scope,
    /// The protocol; nothing means as it is exposed already, or vhost-user.
    pub frontend: Option<DiskFrontend>,
    /// What libvirt calls the disk; nothing means the first name that is free.
    pub target: Option<&'a str>,
    /// Whether somebody says where the volume's key is, and so what a service is to start with.
    pub key_is_given: bool,
    /// Hears what a person is to know beside the answer.
    pub remark: &'a dyn Fn(&str),
}

/// A volume that is a disk of a domain.
#[derive(Debug, Serialize)]
pub struct Attached {
    /// The volume's path.
    pub volume: PathBuf,
    /// Its id.
    pub volume_id: String,
    /// What the guest sees.
    pub size_bytes: u64,
    /// Whether it is encrypted.
    pub encrypted: bool,
    /// The domain's name.
    pub domain: String,
    /// What libvirt calls the disk.
    pub target: String,
    /// The protocol.
    pub frontend: DiskFrontend,
    /// Where QEMU connects.
    pub socket: PathBuf,
    /// systemd's unit, which serves it from each start of the machine on; nothing if a person does.
    pub unit: Option<String>,
    /// Whether the domain has it as it runs.
    pub live: bool,
    /// Whether the domain has it at its next start.
    pub config: bool,
    /// Whether this call changed either.
    pub changed: bool,
    /// Whether the domain runs.
    #[serde(skip)]
    pub runs: bool,
    /// The process that serves the volume, if a person started it.
    #[serde(skip)]
    pub pid: Option<u32>,
}

/// The volume as QEMU reaches it.
struct Served {
    frontend: DiskFrontend,
    socket: PathBuf,
    /// Its unit, if systemd serves it.
    unit: Option<String>,
    /// By which process.
    pid: Option<u32>,
    /// Whether this call set the unit up, which is undone if the rest fails.
    is_begun: bool,
}

/// What there is before anything is changed.
struct Found {
    domain: Standing,
    scope: Scope,
    described: DescribedVolume,
    /// The volume's absolute path.
    path: PathBuf,
    /// Its id.
    id: String,
    /// Its service, or why there can be none.
    service: Result<Service, NoService>,
    exposed: Option<Served>,
    frontend: DiskFrontend,
    /// Where it is, or will be, served.
    sockets: Vec<PathBuf>,
    target: String,
    qemu: QemuUser,
}

/// Gives the arguments of `volume expose` by which a service has the key of the volume at this
/// absolute path, after it has tried the key.
pub type KeyWords<'a, E> = &'a dyn Fn(&Path, &Descriptor) -> Result<Vec<String>, E>;

impl Attach<'_> {
    /// Makes the volume a disk of the domain. `key_words` is asked if a service is to be set up, or
    /// a person has to start one.
    ///
    /// # Errors
    /// [`LibvirtError`], or what `key_words` says; then what was begun is undone.
    pub fn carry_out<E: From<LibvirtError>>(&self, key_words: KeyWords<'_, E>) -> Result<Attached, E> {
        let mut found = self.look()?;
        let served = self.serve(&mut found, key_words)?;
        Ok(self.plug_in(found, served)?)
    }

    /// Looks, and refuses what cannot be. A service that has ended since an earlier call is started
    /// again.
    fn look(&self) -> Result<Found, LibvirtError> {
        let domain = self.libvirt.standing(self.domain)?;
        let scope = domain.scope(self.scope)?;
        let described = describe(self.volume)?;
        let path = absolute(self.volume)?;
        let id = described.descriptor.volume.to_string();
        let service = match Service::check_available() {
            Ok(()) => Ok(Service::of(&path)?),
            Err(none) => Err(none),
        };
        let mut exposed = self.exposed(&path)?;
        if let (None, Ok(service)) = (&exposed, &service)
            && service.is_set_up()
            && !self.key_is_given
            && self.frontend.is_none()
        {
            // It was attached before, and its service has ended since.
            service.start()?;
            exposed = self.exposed(&path)?;
        }
        let frontend = exposed
            .as_ref()
            .map(|served| served.frontend)
            .or(self.frontend)
            .unwrap_or(DiskFrontend::VhostUser);
        if frontend == DiskFrontend::VhostUser {
            self.require_shared_memory(&domain, scope)?;
        }
        let sockets: Vec<PathBuf> =
            exposed.iter().map(|served| served.socket.clone()).chain([Service::socket(&id)]).collect();
        self.require_no_other(&domain, &path, &id, &sockets)?;
        let target = self.target_in(&domain, scope, &id, &sockets)?;
        let qemu = self.libvirt.qemu_user();
        Ok(Found { domain, scope, described, path, id, service, exposed, frontend, sockets, target, qemu })
    }

    /// Sees to it that the volume is served, now and later.
    fn serve<E: From<LibvirtError>>(
        &self,
        found: &mut Found,
        key_words: KeyWords<'_, E>,
    ) -> Result<Served, E> {
        let exposed = found.exposed.take();
        let Found { path, described, frontend, qemu, id, service, .. } = found;
        let words = |socket: &Path| {
            let mut words = expose_words(*frontend, socket, qemu);
            words.extend(key_words(path, &described.descriptor)?);
            Ok::<_, E>(words)
        };
        match (exposed, service) {
            (Some(mut served), Ok(service)) => {
                if service.is_set_up() {
                    // A key that has changed since is for the next start.
                    if self.key_is_given {
                        service.set_up(&words(&served.socket)?)?;
                    }
                    served.unit = Some(service.unit().to_owned());
                }
                Ok(served)
            }
            (Some(served), Err(_)) => Ok(served),
            (None, Ok(service)) => {
                let socket = Service::socket(id);
                let words = words(&socket)?;
                let is_begun = !service.is_set_up();
                service.set_up(&words)?;
                (self.remark)(&format!("Starting {}.", service.unit()));
                if let Err(error) = service.start() {
                    if is_begun {
                        self.undo(service);
                    }
                    return Err(error.into());
                }
                let unit = Some(service.unit().to_owned());
                Ok(Served { frontend: *frontend, socket, unit, pid: None, is_begun })
            }
            (None, Err(none)) => {
                let words = words(&path.with_file_name(format!("{id}.sock")))?;
                Err(none.explain(path, &words).into())
            }
        }
    }

    /// Plugs the disk in where it is missing.
    fn plug_in(&self, found: Found, served: Served) -> Result<Attached, LibvirtError> {
        let Found { domain, scope, described, path, id, service, sockets, target, qemu, frontend, .. } =
            found;
        let present = |definition: Option<&Domain>| {
            definition.is_some_and(|definition| definition.disk_of(&id, &sockets).is_some())
        };
        let missing = Scope {
            live: scope.live && !present(domain.live.as_ref()),
            config: scope.config && !present(domain.config.as_ref()),
        };
        if !missing.is_empty() {
            let disk = disk_xml(frontend, &served.socket, &name_of(&path), &target, &id);
            if let Err(error) = self.libvirt.attach(&domain.name, &disk, missing) {
                if let Ok(service) = &service
                    && served.is_begun
                {
                    self.undo(service);
                }
                return Err(explain(error, &served.socket, &qemu));
            }
            if !missing.live
                && let Some(obstacle) = in_the_way(&served.socket, &qemu)
            {
                (self.remark)(&format!("{obstacle}: {} would not start so.", domain.name));
            }
        }
        Ok(Attached {
            volume_id: id.clone(),
            size_bytes: described.descriptor.size_bytes.bytes(),
            encrypted: described.descriptor.encryption.is_some(),
            target,
            frontend: served.frontend,
            socket: served.socket,
            unit: served.unit,
            live: missing.live || present(domain.live.as_ref()),
            config: missing.config || present(domain.config.as_ref()),
            changed: !missing.is_empty(),
            runs: domain.live.is_some(),
            pid: served.pid,
            domain: domain.name,
            volume: path,
        })
    }

    /// Ends what was begun. What goes wrong here is said beside the error that led here.
    fn undo(&self, service: &Service) {
        if let Err(error) = service.remove() {
            (self.remark)(&format!("{} stays: {error}", service.unit()));
        }
    }

    /// The volume as somebody exposes it now.
    fn exposed(&self, volume: &Path) -> Result<Option<Served>, LibvirtError> {
        let Some(status) = status_of(volume) else { return Ok(None) };
        let (volume, pid, address) = (volume.to_owned(), status.supervisor_pid, status.address);
        let frontend = if status.frontend == "nbd" { DiskFrontend::Nbd } else { DiskFrontend::VhostUser };
        if self.frontend.is_some_and(|wanted| wanted != frontend) {
            let found = status.frontend.replace('_', "-");
            return Err(LibvirtError::OtherFrontend { volume, found, address, pid });
        }
        match PathBuf::from(&address) {
            socket if socket.is_absolute() => {
                Ok(Some(Served { frontend, socket, unit: None, pid: Some(pid), is_begun: false }))
            }
            _ => Err(LibvirtError::NoSocket { volume, address, pid }),
        }
    }

    fn require_shared_memory(&self, domain: &Standing, scope: Scope) -> Result<(), LibvirtError> {
        let live = domain.live.as_ref().filter(|_| scope.live).map(|definition| (definition, " as it runs"));
        let config = domain.config.as_ref().filter(|_| scope.config).map(|definition| (definition, ""));
        let mut in_file = false;
        for (definition, when) in config.into_iter().chain(live) {
            match definition.memory {
                GuestMemory::Shared => {}
                GuestMemory::Private => {
                    let (domain, connect) = (shell_word(&domain.name), self.libvirt.for_people());
                    return Err(LibvirtError::MemoryNotShared { domain, when, connect });
                }
                GuestMemory::SharedInFile => in_file = true,
            }
        }
        if in_file {
            (self.remark)(&format!(
                "Beware: the memory of {} is a file in libvirt's memory_backing_dir. On a disk, what the guest reads is written there in the \
                 clear; <source type='memfd'/> in its <memoryBacking> ends that.",
                domain.name
            ));
        }
        Ok(())
    }

    /// No other domain may have the volume: each would write over what the other has in its caches.
    fn require_no_other(
        &self,
        domain: &Standing,
        path: &Path,
        id: &str,
        sockets: &[PathBuf],
    ) -> Result<(), LibvirtError> {
        let own = domain.both().next().map(|definition| definition.uuid.clone()).unwrap_or_default();
        for other in self.libvirt.all_domains()?.into_iter().filter(|other| other.uuid != own) {
            if let Some(disk) = other.disk_of(id, sockets) {
                let (volume, target) = (path.to_owned(), disk.target.clone());
                return Err(LibvirtError::AnothersDisk { volume, target, domain: other.name.clone() });
            }
        }
        Ok(())
    }

    /// What the disk is called, or will be.
    fn target_in(
        &self,
        domain: &Standing,
        scope: Scope,
        id: &str,
        sockets: &[PathBuf],
    ) -> Result<String, LibvirtError> {
        if let Some(present) = domain.both().find_map(|definition| definition.disk_of(id, sockets)) {
            return Ok(present.target.clone());
        }
        let free = free_target(domain.both());
        let Some(wanted) = self.target else { return Ok(free) };
        let meant =
            domain.live.iter().filter(|_| scope.live).chain(domain.config.iter().filter(|_| scope.config));
        for definition in meant {
            if definition.has_target(wanted) {
                let (target, domain) = (wanted.to_owned(), domain.name.clone());
                return Err(LibvirtError::TargetInUse { target, domain, free });
            }
        }
        Ok(wanted.to_owned())
    }
}

/// The arguments of the `volume expose` that serves it, without its key's.
fn expose_words(frontend: DiskFrontend, socket: &Path, qemu: &QemuUser) -> Vec<String> {
    let option = match frontend {
        DiskFrontend::VhostUser => "--vhost-user",
        DiskFrontend::Nbd => "--nbd",
    };
    let mut words = vec![option.to_owned(), format!("unix:{}", socket.display())];
    let ours = rustix::process::geteuid();
    if let Some((user, group)) = qemu.user_and_group
        && user != ours.as_raw()
        && user != 0
    {
        words.extend(["--socket-group".to_owned(), group.to_string()]);
    }
    words
}

fn disk_xml(frontend: DiskFrontend, socket: &Path, name: &str, target: &str, id: &str) -> String {
    let alias = alias_of(id);
    match frontend {
        DiskFrontend::VhostUser => device::vhost_user(socket, SUGGESTED_QUEUES, target, Some(&alias)),
        DiskFrontend::Nbd => {
            device::nbd(&Address::Unix(socket.to_owned()), name, false, target, Some(&alias))
        }
    }
}

/// libvirt's refusal, with what to do where it is known.
fn explain(error: LibvirtError, socket: &Path, qemu: &QemuUser) -> LibvirtError {
    let LibvirtError::Virsh { command, said } = error else { return error };
    let hint = if said.contains("Permission denied") {
        let directory = socket.parent().unwrap_or(socket).display();
        let obstacle = in_the_way(socket, qemu).map(|why| {
            let (_, group) = qemu.user_and_group.unwrap_or_default();
            format!("{why}; expose the volume with `--socket-group {group}`, at a place that it can reach")
        });
        obstacle.unwrap_or_else(|| match qemu.confined_by.as_deref() {
            Some("apparmor") => format!(
                "AppArmor keeps QEMU from the socket: put the line `{directory}/*.sock rw,` into \
                 /etc/apparmor.d/local/abstractions/libvirt-qemu, and start the guest anew"
            ),
            Some(_) => format!(
                "SELinux keeps QEMU from the socket: `semanage fcontext -a -t svirt_image_t '{directory}(/.*)?'`, `restorecon -R {directory}`; \
                 `ausearch -m avc -ts recent` shows what else is missing"
            ),
            None => format!("QEMU's user cannot connect to {}", socket.display()),
        })
    } else if said.contains("No more available PCI slots") {
        "the machine has no free slot for one more disk while it runs: give --config, and it is there at the next start; or add a \
         <controller type='pci' model='pcie-root-port'/> with virsh edit"
            .to_owned()
    } else {
        return LibvirtError::Virsh { command, said };
    };
    LibvirtError::CannotReach { said, hint }
}

/// The export's name, which is the volume's directory.
fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The path that a service finds too, from wherever it starts.
pub fn absolute(path: &Path) -> Result<PathBuf, LibvirtError> {
    let failed = |error| LibvirtError::File { action: "find", path: path.to_owned(), error };
    path.canonicalize().map_err(failed)
}
