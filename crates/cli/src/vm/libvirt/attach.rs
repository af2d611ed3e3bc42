//! `strongroom vm disk attach --libvirt`.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde::Serialize;
use strongroom_datastore::file::{DescribedVolume, describe};
use strongroom_frontend::listen::Address;
use strongroom_types::{display_bytes, shell_word};

use super::domain::{GuestMemory, QemuUser, alias_of, free_target, is_target};
use super::error::LibvirtError;
use super::service::Service;
use super::virsh::{ConnectArguments, Scope, Standing, in_the_way};
use crate::error::CliError;
use crate::keys::KeyArguments;
use crate::output::Output;
use crate::volume::attach::{libvirt_nbd, libvirt_vhost_user};
use crate::volume::describe::exposure_of;
use crate::volume::expose::SUGGESTED_QUEUES;

/// Which volume, to whom, and how.
#[derive(Debug, Args)]
#[command(
    after_help = "For guests that libvirt runs; neither a VM of Strongroom's nor its API is needed, and the guest stays libvirt's. \
The volume is served by strongroom-volume@.service, from now on and from each start of this machine on, before libvirt starts \
guests; so its key must be had without a person: from a key provider, or in a key file. Where there is no systemd, or without \
root, it is said what to run; a volume that is exposed already is taken as it is.

Over vhost-user the guest's memory has to be shared (<memoryBacking> in the domain); where it is not, it is said how, or --frontend nbd does without.

Called again, it does what is still to be done. After 'volume rekey' to another key file or to a key provider, call it again \
with that, for the next start.

Examples:
  strongroom vm disk attach --libvirt web1 /srv/volumes/data1 --key-file /etc/strongroom/data1.key
  strongroom vm disk attach --libvirt web1 /srv/volumes/data1 --target vdc --config
  strongroom vm disk attach --libvirt web1 /srv/volumes/data1 --frontend nbd --connect qemu:///system"
)]
pub struct AttachArguments {
    /// The guest: a domain of libvirt, by name, id or UUID
    #[arg(long, value_name = "DOMAIN", required = true)]
    libvirt: String,

    /// The volume
    volume: PathBuf,

    /// By which protocol [default: as it is exposed already, or vhost-user]
    #[arg(long, value_enum, value_name = "PROTOCOL")]
    frontend: Option<FrontendArgument>,

    /// What libvirt is to call the disk: vdb, vdc, ... [default: the first that is free]
    #[arg(long, value_name = "NAME", value_parser = parse_target)]
    target: Option<String>,

    #[command(flatten)]
    scope: ScopeArguments,

    #[command(flatten)]
    connect: ConnectArguments,

    #[command(flatten)]
    key: KeyArguments,
}

/// Now, or later, as virsh has it.
#[derive(Clone, Copy, Debug, Args)]
pub struct ScopeArguments {
    /// The guest that runs, and not its next starts [default: both, as far as there is either]
    #[arg(long)]
    live: bool,

    /// The guest's next starts, and not as it runs
    #[arg(long)]
    config: bool,
}

impl ScopeArguments {
    /// What is meant of this domain. With both options it is both, and without either as far as
    /// there is either.
    pub fn of(self, domain: &Standing) -> Result<Scope, LibvirtError> {
        let (live, config) = (domain.live.is_some(), domain.config.is_some());
        if self.live && !live {
            return Err(LibvirtError::NotRunning(domain.name.clone()));
        }
        if self.config && !config {
            return Err(LibvirtError::Transient(domain.name.clone()));
        }
        Ok(if self.live || self.config {
            Scope { live: self.live, config: self.config }
        } else {
            Scope { live, config }
        })
    }
}

/// By which protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FrontendArgument {
    /// A virtio disk in shared memory
    VhostUser,
    /// Over a unix socket, through QEMU
    Nbd,
}

impl FrontendArgument {
    fn name(self) -> &'static str {
        match self {
            Self::VhostUser => "vhost_user",
            Self::Nbd => "nbd",
        }
    }
}

/// The volume as QEMU reaches it.
struct Served {
    frontend: FrontendArgument,
    socket: PathBuf,
    /// Its unit, if systemd serves it.
    unit: Option<String>,
    /// By which process.
    pid: Option<u32>,
    /// Set up by this call, and to be undone if that fails.
    begun: Option<Service>,
}

#[derive(Serialize)]
struct Attached {
    volume: PathBuf,
    volume_id: String,
    size_bytes: u64,
    encrypted: bool,
    domain: String,
    target: String,
    frontend: &'static str,
    socket: PathBuf,
    /// systemd's, which serves it from each start of the machine on; nothing if a person does.
    unit: Option<String>,
    /// Which of the domain's definitions have it now.
    live: bool,
    config: bool,
    /// Whether this call changed any.
    changed: bool,
    #[serde(skip)]
    runs: bool,
    #[serde(skip)]
    pid: Option<u32>,
}

impl fmt::Display for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { volume, domain, target, socket, .. } = self;
        let when = match (self.live, self.config) {
            (true, true) => "now and at its next starts",
            (true, false) => "now; not at its next start",
            (false, true) if self.runs => "from its next start on",
            (false, _) => "when it starts",
        };
        let already = if self.changed { "" } else { " already" };
        let (size, protection) =
            (display_bytes(self.size_bytes), if self.encrypted { "encrypted" } else { "NOT encrypted" });
        writeln!(f, "{} ({size}, {protection}) is {target} of {domain}{already}, {when}", volume.display())?;
        let protocol = self.frontend.replace('_', "-");
        write!(f, "  served     over {protocol} on {}, ", socket.display())?;
        match (&self.unit, self.pid) {
            (Some(unit), _) => writeln!(f, "by {unit}, also after this machine's next start")?,
            (None, pid) => {
                let process = pid.map(|pid| format!(" {pid}")).unwrap_or_default();
                writeln!(
                    f,
                    "by the process{process} that somebody started: see to it that it runs before {domain} starts again"
                )?;
            }
        }
        writeln!(
            f,
            "  in guest   /dev/{target}, unless it has other disks than virtio's: `lsblk -o NAME,SIZE,SERIAL`"
        )?;
        write!(
            f,
            "  back again strongroom vm disk detach --libvirt {} {}",
            shell_word(domain),
            shell_word(&volume.to_string_lossy())
        )
    }
}

impl AttachArguments {
    /// Makes the volume a disk of the domain.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        strongroom_worker::process::prepare_for_keys()?;
        let domain = self.connect.standing(&self.libvirt)?;
        let scope = self.scope.of(&domain)?;
        let described = describe(&self.volume)?;
        let path = absolute(&self.volume)?;
        let id = described.descriptor.volume.to_string();
        let service = match Service::check_available() {
            Ok(()) => Ok(Service::of(&path)?),
            Err(none) => Err(none),
        };
        let mut exposed = self.exposed(&path)?;
        if let (None, Ok(service)) = (&exposed, &service)
            && service.is_set_up()
            && !self.key.are_given()
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
            .unwrap_or(FrontendArgument::VhostUser);
        if frontend == FrontendArgument::VhostUser {
            self.require_shared_memory(&domain, scope, output)?;
        }
        let sockets: Vec<PathBuf> =
            exposed.iter().map(|served| served.socket.clone()).chain([Service::socket(&id)]).collect();
        self.require_no_other(&domain, &path, &id, &sockets)?;
        let target = self.target_in(&domain, scope, &id, &sockets)?;
        let qemu = self.connect.qemu_user();

        let words = |socket: &Path| self.words(&path, &described, frontend, socket, &qemu);
        let mut served = match (exposed, service) {
            (Some(mut served), Ok(service)) => {
                if service.is_set_up() {
                    // A key that has changed since is for the next start.
                    if self.key.are_given() {
                        let words = words(&served.socket)?;
                        self.try_key(&path, &described)?;
                        service.set_up(&words)?;
                    }
                    served.unit = Some(service.unit().to_owned());
                }
                served
            }
            (Some(served), Err(_)) => served,
            (None, Ok(service)) => {
                let socket = Service::socket(&id);
                let words = words(&socket)?;
                self.try_key(&path, &described)?;
                let was_set_up = service.is_set_up();
                service.set_up(&words)?;
                output.remark(&format!("Starting {}.", service.unit()));
                if let Err(error) = service.start() {
                    undo(Some(&service).filter(|_| !was_set_up), output);
                    return Err(error.into());
                }
                let unit = Some(service.unit().to_owned());
                Served { frontend, socket, unit, pid: None, begun: (!was_set_up).then_some(service) }
            }
            (None, Err(none)) => {
                let words = words(&path.with_file_name(format!("{id}.sock")))?;
                self.try_key(&path, &described)?;
                return Err(none.explain(&path, &words).into());
            }
        };

        let present = |definition: Option<&super::domain::Domain>| {
            definition.is_some_and(|definition| definition.disk_of(&id, &sockets).is_some())
        };
        let missing = Scope {
            live: scope.live && !present(domain.live.as_ref()),
            config: scope.config && !present(domain.config.as_ref()),
        };
        if !missing.is_empty() {
            let disk = disk_xml(frontend, &served.socket, &name_of(&path), &target, &id);
            if let Err(error) = self.connect.attach(&domain.name, &disk, missing) {
                undo(served.begun.take().as_ref(), output);
                return Err(explain(error, &served.socket, &qemu).into());
            }
            if !missing.live
                && let Some(obstacle) = in_the_way(&served.socket, &qemu)
            {
                output.remark(&format!("{obstacle}: {} would not start so.", domain.name));
            }
        }
        output.answer(&Attached {
            volume: path,
            volume_id: id.clone(),
            size_bytes: described.descriptor.size_bytes.bytes(),
            encrypted: described.descriptor.encryption.is_some(),
            target,
            frontend: served.frontend.name(),
            socket: served.socket,
            unit: served.unit,
            live: missing.live || present(domain.live.as_ref()),
            config: missing.config || present(domain.config.as_ref()),
            changed: !missing.is_empty(),
            runs: domain.live.is_some(),
            pid: served.pid,
            domain: domain.name,
        })
    }

    /// The volume as somebody exposes it now.
    fn exposed(&self, volume: &Path) -> Result<Option<Served>, LibvirtError> {
        let Some(status) = exposure_of(volume) else { return Ok(None) };
        let (volume, pid, address) = (volume.to_owned(), status.supervisor_pid, status.address);
        let frontend =
            if status.frontend == "nbd" { FrontendArgument::Nbd } else { FrontendArgument::VhostUser };
        if self.frontend.is_some_and(|wanted| wanted != frontend) {
            let found = status.frontend.replace('_', "-");
            return Err(LibvirtError::OtherFrontend { volume, found, address, pid });
        }
        match PathBuf::from(&address) {
            socket if socket.is_absolute() => {
                Ok(Some(Served { frontend, socket, unit: None, pid: Some(pid), begun: None }))
            }
            _ => Err(LibvirtError::NoSocket { volume, address, pid }),
        }
    }

    fn require_shared_memory(
        &self,
        domain: &Standing,
        scope: Scope,
        output: &Output,
    ) -> Result<(), LibvirtError> {
        let live = domain.live.as_ref().filter(|_| scope.live).map(|definition| (definition, " as it runs"));
        let config = domain.config.as_ref().filter(|_| scope.config).map(|definition| (definition, ""));
        let mut in_file = false;
        for (definition, when) in config.into_iter().chain(live) {
            match definition.memory {
                GuestMemory::Shared => {}
                GuestMemory::Private => {
                    let (domain, connect) = (shell_word(&domain.name), self.connect.for_people());
                    return Err(LibvirtError::MemoryNotShared { domain, when, connect });
                }
                GuestMemory::SharedInFile => in_file = true,
            }
        }
        if in_file {
            output.remark(&format!(
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
        for other in self.connect.all_domains()?.into_iter().filter(|other| other.uuid != own) {
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
        let Some(wanted) = &self.target else { return Ok(free) };
        let meant =
            domain.live.iter().filter(|_| scope.live).chain(domain.config.iter().filter(|_| scope.config));
        for definition in meant {
            if definition.has_target(wanted) {
                let (target, domain) = (wanted.clone(), domain.name.clone());
                return Err(LibvirtError::TargetInUse { target, domain, free });
            }
        }
        Ok(wanted.clone())
    }

    /// Whether the key that the service will have is there, and is the volume's: a person learns it
    /// here, and not from a log.
    fn try_key(&self, path: &Path, described: &DescribedVolume) -> Result<(), CliError> {
        self.key.for_volume(path, &described.descriptor, None).map(drop)
    }

    /// The arguments of the `volume expose` that serves it.
    fn words(
        &self,
        path: &Path,
        described: &DescribedVolume,
        frontend: FrontendArgument,
        socket: &Path,
        qemu: &QemuUser,
    ) -> Result<Vec<String>, CliError> {
        let option = match frontend {
            FrontendArgument::VhostUser => "--vhost-user",
            FrontendArgument::Nbd => "--nbd",
        };
        let mut words = vec![option.to_owned(), format!("unix:{}", socket.display())];
        let ours = rustix::process::geteuid();
        if let Some((user, group)) = qemu.user_and_group
            && user != ours.as_raw()
            && user != 0
        {
            words.extend(["--socket-group".to_owned(), group.to_string()]);
        }
        let key = self.key.words_without_a_person(&described.descriptor)?;
        words.extend(key.ok_or_else(|| LibvirtError::Passphrase(path.to_owned()))?);
        Ok(words)
    }
}

/// Ends what was begun. What goes wrong here is told beside the error that led here.
fn undo(service: Option<&Service>, output: &Output) {
    if let Some(service) = service
        && let Err(error) = service.remove()
    {
        output.remark(&format!("{} stays: {error}", service.unit()));
    }
}

fn disk_xml(frontend: FrontendArgument, socket: &Path, name: &str, target: &str, id: &str) -> String {
    let alias = alias_of(id);
    match frontend {
        FrontendArgument::VhostUser => libvirt_vhost_user(socket, SUGGESTED_QUEUES, target, Some(&alias)),
        FrontendArgument::Nbd => {
            libvirt_nbd(&Address::Unix(socket.to_owned()), name, false, target, Some(&alias))
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
pub fn absolute(path: &Path) -> Result<PathBuf, CliError> {
    let failed = |error| CliError::File { action: "find", path: path.to_owned(), error };
    path.canonicalize().map_err(failed)
}

fn parse_target(text: &str) -> Result<String, String> {
    if is_target(text) {
        Ok(text.to_owned())
    } else {
        Err(format!("'{text}' is no virtio disk's name: vda, vdb, ..."))
    }
}
