//! Plugs disks and network cards in and out while the machine runs.
//!
//! All state is read from QEMU, so that a supervisor that adopted it can continue. The guest
//! decides when a device is released: it is asked, an event reports the release, and only then are
//! the device's backends removed.

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

/// The name of a removable device. A device that was plugged in has a small letter, then up to 30
/// more letters, digits and dashes; it cannot collide with the initial ids, none of which has a
/// dash. Or one of the machine's initial disks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceId {
    name: String,
    plugged: bool,
}

/// Why a device cannot be plugged in or out.
#[derive(Debug, Error)]
pub enum HotPlugError {
    /// The name is invalid.
    #[error(
        "'{0}' is not the name of a device: a small letter, then small letters, digits and dashes, at most 31"
    )]
    Id(String),
    /// A network card cannot be connected.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The server's socket cannot be used.
    #[error(transparent)]
    Qemu(#[from] QemuError),
    /// QEMU refused.
    #[error(transparent)]
    Qmp(#[from] QmpError),
}

impl DeviceId {
    /// The machine's initial disk with this number, from 0.
    pub fn of_first_disk(index: usize) -> Self {
        Self { name: first_disk(index), plugged: false }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// Its id in QEMU, in which plugged-in devices are distinct from initial ones.
    fn in_machine(&self) -> String {
        if self.plugged { format!("plug-{}", self.name) } else { self.name.clone() }
    }

    /// The device in QEMU's event, if it was plugged in.
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
    /// Plugs a disk in. Its server listens in [`RunDirectory::disks`](crate::RunDirectory::disks),
    /// or in the directory of the initial disks.
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

    /// As [`plug_disk`](Self::plug_disk), for a disk whose socket already belongs to QEMU's user.
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
        // The card's processes end with the connection if QEMU refuses it.
        self.companions.extend(ready.processes);
        let file = ready.file.as_ref().map(AsFd::as_fd);
        self.monitor.plug_nic(id.in_machine(), nic.clone(), ready.state.clone(), file)?;
        Ok(ready.state)
    }

    /// Asks the guest to release a device.
    /// [`PowerEvent::DeviceDeleted`](crate::PowerEvent::DeviceDeleted) reports the release, after
    /// which the caller calls [`Self::unplugged`].
    pub fn unplug(&self, id: &DeviceId) -> Result<(), HotPlugError> {
        Ok(self.monitor.unplug(id.in_machine())?)
    }

    /// Removes the backends of a released device. Does nothing if they are already gone.
    pub fn unplugged(&self, id: &DeviceId) {
        if let Err(error) = self.monitor.unplugged(id.in_machine()) {
            tracing::debug!("{error}");
        }
    }

    /// Whether the machine has this device.
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
