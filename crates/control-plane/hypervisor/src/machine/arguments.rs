//! The QEMU arguments for a machine.
//!
//! ```text
//! what it must never do    -nodefaults -no-user-config -sandbox
//! processors and memory    -machine -accel -cpu -smp -object
//! what is read first       pflash, -kernel, -boot
//! devices                  ports, disks, network, randomness, agent, TPM, screen
//! how it is spoken to      QMP, serial console, VNC: unix sockets in the run directory
//! ```

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use strongroom_vm::limits::MEMORY_MODULES_MAX;
use strongroom_vm::{MachineVersion, ProcessorModel};

use super::connection::Connection;
use super::options::{Arguments, Options};
use super::{
    Boot, BootFrom, Cpus, DiskAttachment, Firmware, MachineSpec, MachineType, NbdExport, Nic, RunDirectory,
};
use crate::version::Version;

/// How long QEMU lets a guest wait for a lost NBD server before requests fail.
const NBD_RECONNECT_SECONDS: u32 = 60;
/// Before this version, QEMU takes the reconnect interval of a vhost-user server in whole seconds.
const RECONNECT_MILLISECONDS_SINCE: Version = Version { major: 9, minor: 2 };
/// The reconnect interval of a lost vhost-user server, where milliseconds are supported.
const RECONNECT_MILLISECONDS: u32 = 20;
/// The number of q35 ports for devices that are plugged in later.
const SPARE_PORTS: usize = 8;
/// The first PCI Express root slot of the ports, which are eight to a slot. QEMU's own devices are
/// in lower slots.
const FIRST_PORT_SLOT: usize = 0x10;
/// The number of the fd set through which QEMU opens the CD-ROM image, which it inherits open.
const CDROM_FILE_SET: u32 = 1;
/// Everything that QEMU's own system call filter can deny.
const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

/// Properties of the host that a machine's arguments depend on.
#[derive(Clone, Debug)]
pub(crate) struct HostFacts {
    pub version: Version,
    /// Whether the accelerator is KVM; otherwise TCG.
    pub kvm: bool,
    /// The connections of the network cards, in order.
    pub connections: Vec<Connection>,
    /// OVMF's code image, for UEFI machines.
    pub ovmf_code: Option<PathBuf>,
    /// The descriptor number of the open CD-ROM image, if there is one.
    pub cdrom: Option<i32>,
}

/// Returns the arguments for a [valid](MachineSpec::validate) machine. It starts paused.
pub(crate) fn arguments(spec: &MachineSpec, run: &RunDirectory, host: &HostFacts) -> Vec<String> {
    let mut builder = Builder { spec, run, host, arguments: Arguments::default(), ports: 0 };
    builder.identity();
    builder.processors();
    builder.memory();
    builder.firmware();
    builder.boot();
    builder.monitor();
    builder.console();
    builder.devices();
    builder.cdrom();
    builder.spare_ports();
    builder.arguments.into_vec()
}

struct Builder<'a> {
    spec: &'a MachineSpec,
    run: &'a RunDirectory,
    host: &'a HostFacts,
    arguments: Arguments,
    /// The number of q35 ports made so far.
    ports: usize,
}

impl Builder<'_> {
    fn identity(&mut self) {
        for flag in ["-S", "-no-user-config", "-nodefaults"] {
            self.arguments.flag(flag);
        }
        self.arguments.plain("-sandbox", SANDBOX);
        self.arguments
            .list("-name", Options::default().with("guest", &self.spec.name).with("debug-threads", "on"));
        self.arguments.plain("-uuid", self.spec.vm);
        self.arguments.plain("-rtc", "base=utc");
        // A panicked guest is paused, so that it can be inspected before it is stopped.
        self.arguments.plain("-action", "panic=pause");
    }

    fn processors(&mut self) {
        let board = &self.spec.board;
        let version = board.machine_type.as_ref().map(MachineVersion::as_str);
        let machine = match board.machine {
            MachineType::Pc => Options::new(version.unwrap_or("pc")).with("usb", "off"),
            MachineType::Q35 => Options::new(version.unwrap_or("q35")).with("sata", "off"),
        };
        let machine = machine
            .with("hpet", "off")
            .with("vmport", "off")
            .with("dump-guest-core", "off")
            .with("mem-merge", "off")
            .with("memory-backend", "memory0");
        let machine = match &self.spec.firmware {
            Firmware::Bios => machine,
            Firmware::Uefi { nvram: None } => machine.with("pflash0", "firmware"),
            Firmware::Uefi { nvram: Some(_) } => machine.with("pflash0", "firmware").with("pflash1", "nvram"),
        };
        self.arguments.list("-machine", machine);
        self.arguments.plain("-accel", if self.host.kvm { "kvm" } else { "tcg,thread=multi" });
        self.arguments.list("-cpu", self.model());
        let cpus = self.spec.cpus;
        let most = self.spec.growth.cpus_max(cpus);
        let topology = Options::default().with("cpus", cpus.count());
        // What can be plugged in is one socket, with a core for each processor.
        let (topology, all) = match most > cpus.count() {
            true => (topology.with("maxcpus", most), Cpus::of_cores(most)),
            false => (topology, cpus),
        };
        let topology =
            topology.with("sockets", all.sockets).with("cores", all.cores).with("threads", all.threads);
        self.arguments.list("-smp", topology);
    }

    /// A model is all of it, or QEMU does not start: a guest never lacks what its VM is to have.
    fn model(&self) -> Options {
        match self.spec.board.processor() {
            // QEMU's emulator has no host; this is all that it can do.
            ProcessorModel::Host => Options::new(if self.host.kvm { "host" } else { "max" }),
            // AMD's virtualisation, which only the emulator gives to this model.
            ProcessorModel::Level(level) => level
                .features()
                .fold(Options::new("qemu64").with("svm", "off"), |model, feature| model.with(feature, "on"))
                .with("enforce", "on"),
            ProcessorModel::Named(name) => Options::new(name.as_str()).with("enforce", "on"),
        }
    }

    fn memory(&mut self) {
        let (size_bytes, most) = (self.spec.memory.bytes(), self.spec.growth.memory_max(self.spec.memory));
        let size = Options::default().with("size", format_args!("{}M", size_bytes >> 20));
        let size = match most > self.spec.memory {
            true => {
                size.with("slots", MEMORY_MODULES_MAX).with("maxmem", format_args!("{}M", most.bytes() >> 20))
            }
            false => size,
        };
        self.arguments.list("-m", size);
        self.arguments.plain("-overcommit", "mem-lock=off");
        self.arguments.json("-object", &memory_backend("memory0", size_bytes));
    }

    fn firmware(&mut self) {
        let Firmware::Uefi { nvram } = &self.spec.firmware else { return };
        let code = self.host.ovmf_code.as_deref().unwrap_or(Path::new(""));
        let code = json!({ "driver": "file", "node-name": "firmware", "filename": code, "read-only": true });
        self.arguments.json("-blockdev", &code);
        if let Some(server) = nvram {
            self.arguments.json("-blockdev", &nbd("nvram", server, false));
        }
    }

    fn boot(&mut self) {
        self.arguments.plain("-boot", "strict=on");
        if let Boot::DirectKernel { kernel, initrd, arguments } = &self.spec.boot {
            self.arguments.plain("-kernel", kernel.display());
            if let Some(initrd) = initrd {
                self.arguments.plain("-initrd", initrd.display());
            }
            self.arguments.plain("-append", arguments);
        }
    }

    fn monitor(&mut self) {
        self.listen("qmp", &self.run.qmp());
        self.arguments.plain("-mon", "chardev=qmp,mode=control");
    }

    fn console(&mut self) {
        self.listen("console", &self.run.console());
        self.arguments.plain("-serial", "chardev:console");
        if !self.spec.board.vnc {
            self.arguments.plain("-display", "none");
            return;
        }
        let place = format!("unix:{}", self.run.vnc().display());
        self.arguments.list("-vnc", Options::new(&place));
        // The screen is on the root bus, where firmware looks for it.
        self.device("VGA", "screen", None, json!({}));
        let controller = self.place();
        self.device("qemu-xhci", "usb", controller, json!({}));
        self.device("usb-tablet", "tablet", None, json!({ "bus": "usb.0" }));
    }

    fn devices(&mut self) {
        for (index, disk) in self.spec.disks.iter().enumerate() {
            let id = first_disk(index);
            let (connect, properties) = disk_device(disk, &id, self.host.version);
            match connect {
                DiskConnection::Chardev(options) => self.arguments.list("-chardev", options),
                DiskConnection::Node(node) => self.arguments.json("-blockdev", &node),
            }
            let mut properties = properties;
            self.boot_from(BootFrom::Disk(index), &mut properties);
            let bus = self.place();
            self.device_of(&id, bus, properties);
        }
        for (index, (nic, connection)) in self.spec.nics.iter().zip(&self.host.connections).enumerate() {
            let id = first_nic(index);
            self.arguments.json("-netdev", &netdev(&id, connection));
            let mut properties = nic_device(nic, &id);
            if self.boot_from(BootFrom::Nic(index), &mut properties) {
                properties.as_object_mut().map(|all| all.remove(ROM));
            }
            let bus = self.place();
            self.device_of(&id, bus, properties);
        }
        if self.spec.rng {
            self.arguments.json("-object", &json!({ "qom-type": "rng-builtin", "id": "rng" }));
            let bus = self.place();
            self.device("virtio-rng-pci", "rng0", bus, json!({ "rng": "rng" }));
        }
        if self.spec.board.guest_agent {
            self.listen("agent", &self.run.guest_agent());
            let bus = self.place();
            self.device("virtio-serial-pci", "serial", bus, json!({ "max_ports": 2 }));
            let channel = json!({ "bus": "serial.0", "chardev": "agent", "name": "org.qemu.guest_agent.0" });
            self.device("virtserialport", "agent0", None, channel);
        }
        if let Some(socket) = &self.spec.tpm {
            self.arguments
                .list("-chardev", Options::new("socket").with("id", "tpm").with_path("path", &socket.0));
            self.arguments.plain("-tpmdev", "emulator,id=tpm0,chardev=tpm");
            let model = match self.spec.board.machine {
                MachineType::Pc => "tpm-tis",
                MachineType::Q35 => "tpm-crb",
            };
            self.device(model, "tpm", None, json!({ "tpmdev": "tpm0" }));
        }
        self.device("vmgenid", "generation", None, json!({ "guid": self.spec.generation_id }));
        self.device("pvpanic", "panic", None, json!({}));
    }

    /// The drive is on a bus that every installer supports: SATA, or IDE on the older board.
    fn cdrom(&mut self) {
        let Some(file) = self.host.cdrom else { return };
        let set = Options::default().with("fd", file).with("set", CDROM_FILE_SET).with("opaque", "cdrom");
        self.arguments.list("-add-fd", set);
        let image = json!({
            "driver": "file", "node-name": "cdrom", "filename": format!("/dev/fdset/{CDROM_FILE_SET}"),
            "read-only": true, "auto-read-only": false,
        });
        self.arguments.json("-blockdev", &image);
        let bus = match self.spec.board.machine {
            MachineType::Pc => "ide.1",
            MachineType::Q35 => {
                self.device("ich9-ahci", "sata", None, json!({}));
                "sata.0"
            }
        };
        let mut drive = json!({ "drive": "cdrom", "bus": bus });
        self.boot_from(BootFrom::Cdrom, &mut drive);
        self.device("ide-cd", "cdrom0", None, drive);
    }

    /// Gives a device its place in the order of booting. Returns whether it has one.
    fn boot_from(&self, device: BootFrom, properties: &mut Value) -> bool {
        let index = match (self.spec.boot_order.as_slice(), device) {
            // A kernel that QEMU loads has the first boot index to itself.
            ([], BootFrom::Cdrom) => (self.spec.boot == Boot::Disk).then_some(0),
            ([], BootFrom::Disk(index)) => Some(index + 1),
            ([], BootFrom::Nic(_)) => None,
            (order, device) => order.iter().position(|other| *other == device),
        };
        if let Some(index) = index {
            properties["bootindex"] = json!(index);
        }
        index.is_some()
    }

    /// Listens on a unix socket, for one client at a time.
    fn listen(&mut self, id: &'static str, path: &Path) {
        let socket = Options::new("socket").with("id", id).with_path("path", path);
        self.arguments.list("-chardev", socket.with("server", "on").with("wait", "off"));
    }

    /// Returns the bus of the next device. On q35 each device gets a port of its own, so that it
    /// can be unplugged later.
    fn place(&mut self) -> Option<String> {
        match self.spec.board.machine {
            MachineType::Pc => Some("pci.0".to_owned()),
            MachineType::Q35 => Some(self.port("port")),
        }
    }

    fn spare_ports(&mut self) {
        if self.spec.board.machine == MachineType::Q35 {
            for _ in 0..SPARE_PORTS {
                self.port(SPARE_PORT_PREFIX);
            }
        }
    }

    fn port(&mut self, prefix: &str) -> String {
        let number = self.ports;
        self.ports += 1;
        let id = format!("{prefix}{number}");
        let port = json!({
            "driver": "pcie-root-port", "id": id, "bus": "pcie.0", "chassis": number + 1, "multifunction": true,
            "addr": format!("{:x}.{}", FIRST_PORT_SLOT + number / 8, number % 8),
        });
        self.arguments.json("-device", &port);
        id
    }

    fn device(&mut self, driver: &str, id: &str, bus: Option<String>, mut properties: Value) {
        properties["driver"] = json!(driver);
        self.device_of(id, bus, properties);
    }

    fn device_of(&mut self, id: &str, bus: Option<String>, mut properties: Value) {
        properties["id"] = json!(id);
        if let Some(bus) = bus {
            properties["bus"] = json!(bus);
        }
        self.arguments.json("-device", &properties);
    }
}

/// Memory of a guest with this `id`: shared with vhost-user servers, excluded from core files, not
/// merged with other memory, and allocated on first use.
pub(crate) fn memory_backend(id: &str, bytes: u64) -> Value {
    json!({
        "qom-type": "memory-backend-memfd", "id": id, "size": bytes,
        "share": true, "merge": false, "dump": false, "prealloc": false,
    })
}

/// The prefix of the ids of spare ports.
pub(crate) const SPARE_PORT_PREFIX: &str = "spare";

/// The id of the machine's initial disk with this number.
pub(crate) fn first_disk(index: usize) -> String {
    format!("disk{index}")
}

/// The id of the machine's initial network card with this number.
pub(crate) fn first_nic(index: usize) -> String {
    format!("nic{index}")
}

/// The backend that connects a disk's device to its server.
pub(crate) enum DiskConnection {
    Chardev(Options),
    Node(Value),
}

/// Returns a disk's backend with this `id`, and the properties of its device without id and bus.
pub(crate) fn disk_device(disk: &DiskAttachment, id: &str, version: Version) -> (DiskConnection, Value) {
    match disk {
        DiskAttachment::VhostUser { socket, queues } => {
            let chardev = Options::new("socket").with("id", id).with_path("path", socket);
            let (key, soon) = reconnect(version);
            let device = json!({ "driver": "vhost-user-blk-pci", "chardev": id, "num-queues": queues });
            (DiskConnection::Chardev(chardev.with(key, soon)), device)
        }
        DiskAttachment::Nbd { server, serial, read_only } => {
            let device = json!({ "driver": "virtio-blk-pci", "drive": id, "serial": serial });
            (DiskConnection::Node(nbd(id, server, *read_only)), device)
        }
    }
}

/// The reconnect option of this version, with its value.
pub(crate) fn reconnect(version: Version) -> (&'static str, u32) {
    if version >= RECONNECT_MILLISECONDS_SINCE {
        ("reconnect-ms", RECONNECT_MILLISECONDS)
    } else {
        ("reconnect", 1)
    }
}

fn nbd(node: &str, server: &NbdExport, read_only: bool) -> Value {
    json!({
        "driver": "nbd", "node-name": node, "server": { "type": "unix", "path": server.socket },
        "export": server.export, "reconnect-delay": NBD_RECONNECT_SECONDS, "discard": "unmap",
        "read-only": read_only,
    })
}

/// The network backend of a card, with this `id`.
pub(crate) fn netdev(id: &str, connection: &Connection) -> Value {
    match connection {
        Connection::Stream(file) => json!({
            "type": "stream", "id": id, "server": false, "addr": { "type": "fd", "str": file },
        }),
        Connection::RestrictedUser => json!({ "type": "user", "id": id, "restrict": true }),
        Connection::Tap(file) => json!({ "type": "tap", "id": id, "fd": file }),
    }
}

/// As [`netdev`], for a card that is plugged in, whose file has a name. QEMU 7.2 connects a
/// `stream` on a thread that does not know names of files, so the older `socket` takes the same
/// frames.
pub(crate) fn plugged_netdev(id: &str, connection: &Connection) -> Value {
    match connection {
        Connection::Stream(file) => json!({ "type": "socket", "id": id, "fd": file }),
        Connection::RestrictedUser | Connection::Tap(_) => netdev(id, connection),
    }
}

/// The property of a network card with its option ROM, which boots from the network: QEMU's own if
/// it is absent, and none if it is empty.
const ROM: &str = "romfile";

/// The properties of a network card's device without id and bus. It is not booted from.
pub(crate) fn nic_device(nic: &Nic, netdev: &str) -> Value {
    json!({ "driver": "virtio-net-pci", "netdev": netdev, "mac": nic.mac, ROM: "" })
}

#[cfg(test)]
#[path = "arguments_tests.rs"]
mod tests;
