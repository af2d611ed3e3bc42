//! A VM's hardware, and its host's support for it, for people.

use strongroom_api::host::{Host, HostPrograms};
use strongroom_api::vm::{
    Boot, BootDevice, BridgePort, DiskKind, Firmware, Link, MachineType, MachineVersion, Nic, NicBackend,
    VmView,
};
use strongroom_types::display_bytes;

use crate::api::Api;

/// The description of one device.
pub struct Line {
    /// Its name.
    pub name: String,
    /// Its description.
    pub text: String,
}

impl Line {
    fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { name: name.into(), text: text.into() }
    }
}

/// The host of a VM, if it can be reached; it only adds information, so an error is ignored.
pub fn host_of(api: &Api, vm: &VmView) -> Option<Host> {
    let id = vm.host_ref.as_ref()?.id?;
    api.get(&format!("/v1/hosts/{id}")).ok()
}

/// Its disks.
pub fn disks(vm: &VmView) -> Vec<Line> {
    let kind = |kind| match kind {
        DiskKind::Data => "",
        DiskKind::Swap => ", swap, empty at each start",
    };
    let line = |disk: &strongroom_api::vm::Disk| {
        let tags = if disk.integrity { ", with integrity" } else { "" };
        let limits = match disk.limits.is_none() {
            true => String::new(),
            false => format!(", at most {}", disk.limits),
        };
        let place = match disk.datastore.is_empty() || disk.datastore == vm.summary.datastore {
            true => String::new(),
            false => format!(", in datastore {}", disk.datastore),
        };
        let size = display_bytes(disk.size_bytes);
        Line::new(&disk.name, format!("{size}{}{tags}{limits}{place}", kind(disk.kind)))
    };
    vm.disks.iter().map(line).collect()
}

/// Its network interfaces, or that it has none, and what they lack on their host.
pub fn network(vm: &VmView, host: Option<&Host>) -> Vec<Line> {
    let name = &vm.summary.name;
    let without_passt = host.filter(|host| lacks(host, |programs| &programs.passt));
    let install = |host: &Host| format!("host {} has no passt; install it there (Debian: passt)", host.name);
    if vm.nics.is_empty() {
        let why = without_passt.map_or_else(String::new, |host| format!(": {}", install(host)));
        let text = format!("no network card{why}; `strongroom vm set {name} --net user` gives it one");
        return vec![Line::new("network", text)];
    }
    let line = |(number, nic): (usize, &Nic)| {
        let backend = match &nic.backend {
            NicBackend::User {} => match without_passt {
                Some(host) => format!("user, which reaches NOTHING: {}", install(host)),
                None => "user, through passt".to_owned(),
            },
            NicBackend::Tap { device } => format!("tap {device}"),
            NicBackend::Bridge { device, vlan: None } => format!("bridge {device}"),
            NicBackend::Bridge { device, vlan: Some(vlan) } => format!("bridge {device}, VLAN {vlan}"),
            NicBackend::Network { network, on: None } => format!("network {network}"),
            NicBackend::Network { network, on: Some(BridgePort { bridge, vlan: None }) } => {
                format!("network {network}, on {bridge}")
            }
            NicBackend::Network { network, on: Some(BridgePort { bridge, vlan: Some(vlan) }) } => {
                format!("network {network}, on {bridge}, VLAN {vlan}")
            }
        };
        let link = match nic.link {
            Link::Up => "",
            Link::Down => "; its link is DOWN",
        };
        let mac = nic.mac.map_or_else(|| "no address yet".to_owned(), |mac| mac.to_string());
        Line::new(format!("nic{number}"), format!("{mac}  {backend}{link}"))
    };
    vm.nics.iter().enumerate().map(line).collect()
}

/// Its CD-ROM drive, if it has one.
pub fn cdrom(vm: &VmView) -> Option<Line> {
    let path = vm.cdrom.image()?;
    let order = match &vm.boot {
        Boot::Disk { order } if order.is_empty() => format!(
            "booted from before the disks, until `strongroom vm set {} --cdrom none`",
            vm.summary.name
        ),
        Boot::Disk { order } if order.contains(&BootDevice::Cdrom) => "in the boot order".to_owned(),
        Boot::Disk { .. } => "not booted from: it is not in the boot order".to_owned(),
        Boot::Kernel { .. } => "not booted from: a kernel is named".to_owned(),
    };
    Some(Line::new("cdrom", format!("{}, {order}", path.display())))
}

/// The settings of its next start: board, firmware, QEMU, TPM, kernel, screen.
pub fn start(vm: &VmView, host: Option<&Host>) -> Vec<Line> {
    let version = vm.board.machine_type.as_ref().map(MachineVersion::as_str);
    let board = version.unwrap_or(match vm.board.machine {
        MachineType::Q35 => "q35, in its host's version from the next start on",
        MachineType::Pc => "pc, in its host's version from the next start on",
    });
    let mut lines = vec![Line::new("machine", board), Line::new("processor", processor(vm, host))];
    let wanted = |what: &str, package: &str, found: &dyn Fn(&HostPrograms) -> &Option<String>| {
        let Some((host, programs)) = host.and_then(|host| Some((host, host.programs.as_ref()?))) else {
            return what.to_owned();
        };
        match found(programs) {
            Some(path) => format!("{what}, {path}"),
            None => {
                format!("{what}, which {} does NOT have; install it there (Debian: {package})", host.name)
            }
        }
    };
    let firmware = match vm.firmware {
        Firmware::Bios => "BIOS, which comes with QEMU".to_owned(),
        Firmware::Uefi => wanted("UEFI", "ovmf", &|programs| &programs.uefi),
    };
    lines.push(Line::new("firmware", firmware));
    if let Some(host) = host.filter(|host| host.programs.is_some()) {
        let version = host.programs.as_ref().and_then(|programs| programs.qemu_version.as_deref());
        let qemu = match version {
            Some(version) => format!("QEMU {version}"),
            None => "QEMU".to_owned(),
        };
        let qemu = wanted(&qemu, "qemu-system-x86", &|programs| &programs.qemu);
        let accelerator =
            host.accelerator.as_deref().map_or_else(String::new, |found| format!(", on {found}"));
        lines.push(Line::new("runs in", format!("{qemu}{accelerator}")));
    }
    if vm.tpm {
        lines.push(Line::new("tpm", wanted("TPM 2.0 of swtpm", "swtpm", &|programs| &programs.swtpm)));
    }
    if !vm.boot.order().is_empty() {
        let order: Vec<String> = vm.boot.order().iter().map(ToString::to_string).collect();
        lines.push(Line::new("boots from", order.join(", ")));
    }
    if let Boot::Kernel { kernel, initrd, arguments } = &vm.boot {
        lines.push(Line::new("kernel", kernel.display().to_string()));
        lines.extend(initrd.iter().map(|initrd| Line::new("initrd", initrd.display().to_string())));
        if !arguments.is_empty() {
            lines.push(Line::new("arguments", arguments));
        }
    }
    let screen =
        if vm.board.vnc { format!("`strongroom vm screen {}`", vm.summary.name) } else { "none".to_owned() };
    lines.push(Line::new("screen", screen));
    lines
}

/// Its processor, and whether the host cannot give it.
fn processor(vm: &VmView, host: Option<&Host>) -> String {
    let model = vm.board.processor();
    let given = host.and_then(|host| Some((host, host.capabilities.as_ref()?)));
    match given {
        Some((host, given)) if !given.has_processor(model) => {
            format!("{model}, which {} can NOT give as a whole", host.name)
        }
        Some(_) | None => match model.is_host() {
            true => "host: all that the processor of its host has".to_owned(),
            false => model.to_string(),
        },
    }
}

/// Whether a host reports its programs, and lacks this one.
fn lacks(host: &Host, program: impl Fn(&HostPrograms) -> &Option<String>) -> bool {
    host.programs.as_ref().is_some_and(|programs| program(programs).is_none())
}
