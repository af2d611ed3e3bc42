//! Devices that are plugged in and out. What has to be known of the machine is asked of QEMU.

use std::os::fd::BorrowedFd;

use serde_json::{Value, json};

use super::{Qmp, QmpError};
use crate::machine::{
    DiskAttachment, DiskConnection, Nic, SPARE_PORT_PREFIX, disk_device, netdev, nic_device, reconnect,
};
use crate::network::NetworkState;
use crate::qemu::connection;

/// Where QEMU has the devices that were given an id.
const PERIPHERALS: &str = "/machine/peripheral";

/// What takes a device's connection away.
#[derive(Clone, Copy)]
enum Undo {
    Node,
    Chardev,
    Netdev,
}

impl Qmp {
    /// Plugs a disk in, under this name. Its server listens where QEMU can connect to it.
    ///
    /// # Errors
    /// [`QmpError::NoPort`], and QEMU's.
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

    /// Plugs a network card in, under this name. `file` is what its network is reached by, where
    /// that is one.
    ///
    /// # Errors
    /// [`QmpError::NoPort`], and QEMU's.
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
        let connected = netdev(name, &connection(network, file.map(|_| name.to_owned())));
        self.execute_value("netdev_add", &connected)?;
        self.add(name, &bus, nic_device(nic, name), Undo::Netdev)
    }

    /// Asks the guest to let a device go.
    ///
    /// # Errors
    /// QEMU's, also if it has asked already.
    pub fn unplug(&self, name: &str) -> Result<(), QmpError> {
        self.execute_value("device_del", &json!({ "id": name })).map(drop)
    }

    /// Closes what a device was connected to that the guest has let go. Again, it does nothing.
    pub fn unplugged(&self, name: &str) {
        // Which of them it was is QEMU's to know. One that is silent is asked nothing more: the
        // supervisor waits for one silent command, not for three.
        for undo in [Undo::Node, Undo::Chardev, Undo::Netdev] {
            if let Err(QmpError::Silent { .. }) = self.undo(undo, name) {
                break;
            }
        }
    }

    /// Whether such a device is in the machine.
    ///
    /// # Errors
    /// QEMU's.
    pub fn is_plugged(&self, name: &str) -> Result<bool, QmpError> {
        Ok(self.children(PERIPHERALS)?.iter().any(|child| child == name))
    }

    fn add(&self, name: &str, bus: &str, mut device: Value, undo: Undo) -> Result<(), QmpError> {
        device["id"] = json!(name);
        device["bus"] = json!(bus);
        let added = self.execute_value("device_add", &device).map(drop);
        if let Err(QmpError::Refused { .. } | QmpError::Answer { .. }) = &added {
            // A silent QEMU may still add the device, which needs its connection then.
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

    /// Where the next device can be plugged in: on q35 a spare port without one, on pc the bus.
    fn free_bus(&self) -> Result<String, QmpError> {
        let devices = self.children(PERIPHERALS)?;
        let mut ports = devices.iter().filter(|name| name.starts_with(SPARE_PORT_PREFIX)).peekable();
        if ports.peek().is_none() {
            return Ok("pci.0".to_owned());
        }
        for port in ports {
            // The port's bus is called like the port, and has a link to each device on it.
            let on_it = self.children(&format!("{PERIPHERALS}/{port}/{port}"))?;
            if !on_it.iter().any(|name| name.starts_with("child[")) {
                return Ok(port.clone());
            }
        }
        Err(QmpError::NoPort)
    }

    /// The names of an object's properties.
    fn children(&self, path: &str) -> Result<Vec<String>, QmpError> {
        let answer = self.execute_value("qom-list", &json!({ "path": path }))?;
        let names = answer.as_array().into_iter().flatten().filter_map(|property| property["name"].as_str());
        Ok(names.map(str::to_owned).collect())
    }
}
