//! Disks and network cards that are plugged in and out while the machine runs.
//!
//! Everything that has to be known is asked of QEMU, so that a supervisor that adopted it can go
//! on. Taking a device out is the guest's to allow: it is asked, and when it has let go an event
//! says so, after which the rest is taken away.

use std::fmt;
use std::os::fd::AsFd;
use std::str::FromStr;

use thiserror::Error;

use super::start::give_socket;
use super::{Qemu, QemuError};
use crate::launch::Isolation;
use crate::machine::{DiskAttachment, Nic, first_disk};
use crate::network::{self, NetworkError, NetworkState};
use crate::qmp::QmpError;

/// What a device is called that can be taken out. One that was plugged in: a small letter, then up
/// to 30 more, digits and dashes; it is no id that a machine begins with, none of which has a dash.
/// Or one of the disks that the machine began with.
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
    /// Plugs a disk in. Its server listens in [`RunDirectory::disks`](super::RunDirectory::disks),
    /// or where those of the machine's first disks do.
    pub fn plug_disk(
        &self,
        id: &DeviceId,
        disk: &DiskAttachment,
        isolation: &Isolation<'_>,
    ) -> Result<(), HotPlugError> {
        disk.validate().map_err(QemuError::from)?;
        give_socket(disk.socket(), isolation)?;
        self.plug_served_disk(id, disk)
    }

    /// The same of a disk whose socket QEMU's user has.
    pub fn plug_served_disk(&self, id: &DeviceId, disk: &DiskAttachment) -> Result<(), HotPlugError> {
        disk.validate().map_err(QemuError::from)?;
        self.monitor.plug_disk(id.in_machine(), disk.clone())?;
        Ok(())
    }

    /// Plugs a network card in.
    pub fn plug_nic(
        &mut self,
        id: &DeviceId,
        nic: &Nic,
        isolation: &Isolation<'_>,
    ) -> Result<NetworkState, HotPlugError> {
        let ready = network::prepare(&nic.network, isolation)?;
        // What serves it ends with it, if QEMU does not take it.
        self.companions.extend(ready.processes);
        let file = ready.file.as_ref().map(AsFd::as_fd);
        self.monitor.plug_nic(id.in_machine(), nic.clone(), ready.state.clone(), file)?;
        Ok(ready.state)
    }

    /// Asks the guest to let a device go. When it has,
    /// [`PowerEvent::DeviceDeleted`](crate::PowerEvent::DeviceDeleted) comes, and
    /// [`Self::unplugged`] does the rest.
    pub fn unplug(&self, id: &DeviceId) -> Result<(), HotPlugError> {
        Ok(self.monitor.unplug(id.in_machine())?)
    }

    /// Closes what a device was connected to that the guest has let go. Again, it does nothing.
    pub fn unplugged(&self, id: &DeviceId) {
        if let Err(error) = self.monitor.unplugged(id.in_machine()) {
            tracing::debug!("{error}");
        }
    }

    /// Whether such a device is in the machine.
    pub fn is_plugged(&self, id: &DeviceId) -> Result<bool, HotPlugError> {
        Ok(self.monitor.is_plugged(id.in_machine())?)
    }
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
