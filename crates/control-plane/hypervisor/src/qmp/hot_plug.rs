//! Plugs devices in and out. All state of the machine is read from QEMU.

use std::os::fd::BorrowedFd;

use serde_json::{Value, json};

use super::{Qmp, QmpError};
use crate::machine::{
    DiskAttachment, DiskConnection, Link, Nic, SPARE_PORT_PREFIX, disk_device, nic_device, plugged_netdev,
    reconnect,
};
use crate::network::NetworkState;

/// The QOM path of devices with an id.
const PERIPHERALS: &str = "/machine/peripheral";

/// The command that removes a device's backend.
#[derive(Clone, Copy)]
enum Undo {
    Node,
    Chardev,
    Netdev,
}

impl Qmp {
    /// Plugs a disk in under this name. QEMU must be able to connect to its server.
    ///
    /// # Errors
    /// [`QmpError::NoPort`], and QEMU's errors.
    pub fn plug_disk(&self, name: &str, disk: &DiskAttachment) -> Result<(), QmpError> {
        let bus = self.free_bus()?;
        let (connection, properties) = disk_device(disk, name, self.version());
        let undo = match (connection, disk) {
            (DiskConnection::Node(node), _) => {
                self.execute_value("blockdev-add", &node)?;
                Undo::Node
            }
            (DiskConnection::Chardev(_), disk) => {
                let (key, soon) = reconnect(self.version());
                let address = json!({ "type": "unix", "data": { "path": disk.socket() } });
                let mut socket = json!({ "addr": address, "server": false });
                socket[key] = json!(soon);
                let backend = json!({ "type": "socket", "data": socket });
                self.execute_value("chardev-add", &json!({ "id": name, "backend": backend }))?;
                Undo::Chardev
            }
        };
        self.add(name, &bus, properties, undo)
    }

    /// Plugs a network card in under this name. `file` is the file of its network, if it has one.
    ///
    /// # Errors
    /// [`QmpError::NoPort`], and QEMU's errors.
    pub fn plug_nic(
        &self,
        name: &str,
        nic: &Nic,
        network: &NetworkState,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(), QmpError> {
        let bus = self.free_bus()?;
        if let Some(file) = file {
            self.give_file(name, file)?;
        }
        let connected = plugged_netdev(name, &network.connection(file.map(|_| name.to_owned())));
        self.execute_value("netdev_add", &connected)?;
        self.add(name, &bus, nic_device(nic, name), Undo::Netdev)
    }

    /// Sets the link of the network card with this name.
    ///
    /// # Errors
    /// QEMU's error.
    pub fn set_link(&self, name: &str, link: Link) -> Result<(), QmpError> {
        self.execute_value("set_link", &json!({ "name": name, "up": link.is_up() })).map(drop)
    }

    /// Asks the guest to release a device.
    ///
    /// # Errors
    /// QEMU's error, also if the guest was already asked.
    pub fn unplug(&self, name: &str) -> Result<(), QmpError> {
        self.execute_value("device_del", &json!({ "id": name })).map(drop)
    }

    /// Removes the backends of a released device. Does nothing if they are already gone.
    pub fn unplugged(&self, name: &str) {
        // Only QEMU knows which kind of backend it was. A silent QEMU gets no further command: the
        // supervisor waits for one timeout, not for three.
        for undo in [Undo::Node, Undo::Chardev, Undo::Netdev] {
            if let Err(QmpError::Silent { .. }) = self.undo(undo, name) {
                break;
            }
        }
    }

    /// Whether the machine has this device.
    ///
    /// # Errors
    /// QEMU's error.
    pub fn is_plugged(&self, name: &str) -> Result<bool, QmpError> {
        Ok(self.children(PERIPHERALS)?.iter().any(|child| child == name))
    }

    fn add(&self, name: &str, bus: &str, mut device: Value, undo: Undo) -> Result<(), QmpError> {
        device["id"] = json!(name);
        device["bus"] = json!(bus);
        let added = self.execute_value("device_add", &device).map(drop);
        if let Err(QmpError::Refused { .. } | QmpError::Answer { .. }) = &added {
            // A silent QEMU may still add the device, which then needs its backend.
            let _ = self.undo(undo, name);
        }
        added
    }

    fn undo(&self, undo: Undo, name: &str) -> Result<(), QmpError> {
        let (command, arguments) = match undo {
            Undo::Node => ("blockdev-del", json!({ "node-name": name })),
            Undo::Chardev => ("chardev-remove", json!({ "id": name })),
            Undo::Netdev => ("netdev_del", json!({ "id": name })),
        };
        let undone = self.execute_value(command, &arguments).map(drop);
        undone.inspect_err(|error| tracing::debug!("{error}"))
    }

    /// Returns the bus for the next device: on q35 a spare port without a device, on pc the only
    /// bus.
    fn free_bus(&self) -> Result<String, QmpError> {
        let devices = self.children(PERIPHERALS)?;
        let mut ports: Vec<&String> =
            devices.iter().filter(|name| name.starts_with(SPARE_PORT_PREFIX)).collect();
        if ports.is_empty() {
            return Ok("pci.0".to_owned());
        }
        // By number, so that a guest that boots again finds devices in the order in which they
        // came.
        ports.sort_by_key(|port| (port.len(), port.as_str()));
        for port in ports {
            // The port's bus has the port's name, and a link to each device on it.
            let on_it = self.children(&format!("{PERIPHERALS}/{port}/{port}"))?;
            if !on_it.iter().any(|name| name.starts_with("child[")) {
                return Ok(port.clone());
            }
        }
        Err(QmpError::NoPort)
    }

    /// Returns the names of an object's properties.
    fn children(&self, path: &str) -> Result<Vec<String>, QmpError> {
        let answer = self.execute_value("qom-list", &json!({ "path": path }))?;
        let names = answer.as_array().into_iter().flatten().filter_map(|property| property["name"].as_str());
        Ok(names.map(str::to_owned).collect())
    }
}
