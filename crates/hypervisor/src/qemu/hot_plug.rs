//! Disks and network cards that are plugged in and out while the machine runs.
//!
//! Everything that has to be known is asked of QEMU, so that a supervisor that adopted it can go on. Taking a device out
//! is the guest's to allow: it is asked, and when it has let go an event says so, after which the rest is taken away.

use std::fmt;
use std::str::FromStr;

use serde_json::{Value, json};
use thiserror::Error;

use super::start::{connection, give_socket};
use super::{Qemu, QemuError};
use crate::launch::Isolation;
use crate::machine::{
    DiskAttachment, DiskConnection, Nic, SPARE_PORT_PREFIX, disk_device, first_disk, netdev, nic_device,
    reconnect,
};
use crate::network::{self, NetworkError, NetworkState};
use crate::qmp::{Qmp, QmpError};

/// Where QEMU has the devices that were given an id.
const PERIPHERALS: &str = "/machine/peripheral";

/// What a device is called that can be taken out. One that was plugged in: a small letter, then up to 30 more, digits and
/// dashes; it is no id that a machine begins with, none of which has a dash. Or one of the disks that the machine began with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceId {
    name: String,
    plugged: bool,
}

/// Why a device is not plugged in or out.
#[derive(Debug, Error)]
pub enum HotPlugError {
    /// No name.
    #[error(
        "'{0}' is not the name of a device: a small letter, then small letters, digits and dashes, at most 31"
    )]
    Id(String),
    /// No room.
    #[error("all ports of the machine are taken; take a device out first, or stop the machine")]
    NoPort,
    /// A network card cannot be connected.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A server's socket.
    #[error(transparent)]
    Qemu(#[from] QemuError),
    /// QEMU does not.
    #[error(transparent)]
    Qmp(#[from] QmpError),
}

impl DeviceId {
    /// The disk of that number among those that the machine began with, from 0.
    pub fn of_first_disk(index: usize) -> Self {
        Self { name: first_disk(index), plugged: false }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// In the machine: what was plugged in is apart from what it began with.
    fn in_machine(&self) -> String {
        if self.plugged { format!("plug-{}", self.name) } else { self.name.clone() }
    }

    /// The device that QEMU's event names, if it was plugged in.
    pub fn of_event(device: &str) -> Option<Self> {
        device.strip_prefix("plug-")?.parse().ok()
    }
}

impl FromStr for DeviceId {
    type Err = HotPlugError;

    fn from_str(text: &str) -> Result<Self, HotPlugError> {
        let letter = |byte: &u8| byte.is_ascii_lowercase();
        let good = (1..=31).contains(&text.len())
            && text.as_bytes().first().is_some_and(letter)
            && text.bytes().all(|byte| letter(&byte) || byte.is_ascii_digit() || byte == b'-');
        if good {
            Ok(Self { name: text.to_owned(), plugged: true })
        } else {
            Err(HotPlugError::Id(text.to_owned()))
        }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name)
    }
}

impl Qemu {
    /// Plugs a disk in. Its server listens in [`RunDirectory::disks`](super::RunDirectory::disks), or where those of the
    /// machine's first disks do.
    pub fn plug_disk(
        &self,
        id: &DeviceId,
        disk: &DiskAttachment,
        isolation: &Isolation<'_>,
    ) -> Result<(), HotPlugError> {
        disk.validate().map_err(QemuError::from)?;
        give_socket(disk.socket(), isolation)?;
        let bus = free_bus(&self.qmp)?;
        let name = id.in_machine();
        let (connection, properties) = disk_device(disk, &name, self.qmp.version());
        let undo = match (connection, disk) {
            (DiskConnection::Node(node), _) => {
                self.qmp.execute_value("blockdev-add", &node)?;
                Undo::Node
            }
            (DiskConnection::Chardev(_), disk) => {
                let (key, soon) = reconnect(self.qmp.version());
                let address = json!({ "type": "unix", "data": { "path": disk.socket() } });
                let mut socket = json!({ "addr": address, "server": false });
                socket[key] = json!(soon);
                let backend = json!({ "type": "socket", "data": socket });
                self.qmp.execute_value("chardev-add", &json!({ "id": name, "backend": backend }))?;
                Undo::Chardev
            }
        };
        self.add(&name, &bus, properties, undo)
    }

    /// Plugs a network card in.
    pub fn plug_nic(
        &mut self,
        id: &DeviceId,
        nic: &Nic,
        isolation: &Isolation<'_>,
    ) -> Result<NetworkState, HotPlugError> {
        let bus = free_bus(&self.qmp)?;
        let name = id.in_machine();
        let ready = network::prepare(&nic.backend, isolation)?;
        let file = match &ready.file {
            Some(file) => {
                self.qmp.give_file(&name, std::os::fd::AsFd::as_fd(file))?;
                Some(name.clone())
            }
            None => None,
        };
        let connected = netdev(&name, &connection(&ready.state, file));
        // What it was given it has now; what it did not take ends with our copy.
        drop(ready.file);
        self.companions.extend(ready.processes);
        self.qmp.execute_value("netdev_add", &connected)?;
        self.add(&name, &bus, nic_device(nic, &name), Undo::Netdev)?;
        Ok(ready.state)
    }

    /// Asks the guest to let a device go. When it has, [`PowerEvent::DeviceDeleted`](crate::PowerEvent::DeviceDeleted)
    /// comes, and [`Self::unplugged`] does the rest.
    pub fn unplug(&self, id: &DeviceId) -> Result<(), HotPlugError> {
        self.qmp.execute_value("device_del", &json!({ "id": id.in_machine() }))?;
        Ok(())
    }

    /// Closes what a device was connected to that the guest has let go. Again, it does nothing.
    pub fn unplugged(&self, id: &DeviceId) {
        // Which of them it was is QEMU's to know.
        for undo in [Undo::Node, Undo::Chardev, Undo::Netdev] {
            undo.run(&self.qmp, &id.in_machine());
        }
    }

    /// Whether such a device is in the machine.
    pub fn is_plugged(&self, id: &DeviceId) -> Result<bool, HotPlugError> {
        let name = id.in_machine();
        Ok(children(&self.qmp, PERIPHERALS)?.contains(&name))
    }

    fn add(&self, name: &str, bus: &str, mut device: Value, undo: Undo) -> Result<(), HotPlugError> {
        device["id"] = json!(name);
        device["bus"] = json!(bus);
        self.qmp.execute_value("device_add", &device).map(drop).map_err(|error| {
            undo.run(&self.qmp, name);
            error.into()
        })
    }
}

/// What takes a device's connection away.
#[derive(Clone, Copy)]
enum Undo {
    Node,
    Chardev,
    Netdev,
}

impl Undo {
    fn run(self, qmp: &Qmp, name: &str) {
        let (command, arguments) = match self {
            Self::Node => ("blockdev-del", json!({ "node-name": name })),
            Self::Chardev => ("chardev-remove", json!({ "id": name })),
            Self::Netdev => ("netdev_del", json!({ "id": name })),
        };
        if let Err(error) = qmp.execute_value(command, &arguments) {
            tracing::debug!("{error}");
        }
    }
}

/// Where the next device can be plugged in: on q35 a spare port without one, on pc the bus.
fn free_bus(qmp: &Qmp) -> Result<String, HotPlugError> {
    let devices = children(qmp, PERIPHERALS)?;
    let mut ports = devices.iter().filter(|name| name.starts_with(SPARE_PORT_PREFIX)).peekable();
    if ports.peek().is_none() {
        return Ok("pci.0".to_owned());
    }
    for port in ports {
        // The port's bus is called like the port, and has a link to each device on it.
        let on_it = children(qmp, &format!("{PERIPHERALS}/{port}/{port}"))?;
        if !on_it.iter().any(|name| name.starts_with("child[")) {
            return Ok(port.clone());
        }
    }
    Err(HotPlugError::NoPort)
}

/// The names of an object's properties.
fn children(qmp: &Qmp, path: &str) -> Result<Vec<String>, HotPlugError> {
    let answer = qmp.execute_value("qom-list", &json!({ "path": path }))?;
    let names = answer.as_array().into_iter().flatten().filter_map(|property| property["name"].as_str());
    Ok(names.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_come_back_from_events() {
        let id: DeviceId = "backup-2".parse().unwrap();
        assert_eq!(DeviceId::of_event(&id.in_machine()), Some(id));
        assert_eq!(DeviceId::of_event("disk0"), None);
        assert_eq!(DeviceId::of_first_disk(2).in_machine(), "disk2");
        for wrong in ["", "2", "-a", "A", "a,b", "a b", "plug/..", &"a".repeat(32)] {
            assert!(wrong.parse::<DeviceId>().is_err(), "{wrong:?}");
        }
    }
}
