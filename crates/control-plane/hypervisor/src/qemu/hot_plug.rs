//! Plugs disks and network cards in and out while the machine runs.
//!
//! All state is read from QEMU, so that a supervisor that adopted it can continue. The guest
//! decides when a device is released: it is asked, an event reports the release, and only then are
//! the device's backends removed.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::str::FromStr;

use thiserror::Error;

use super::start::give_socket;
use super::{Qemu, QemuError};
use crate::launch::Isolation;
use crate::machine::{DiskAttachment, Link, MacAddress, Nic, first_disk, first_nic};
use crate::network::NetworkState;
use crate::qmp::QmpError;

/// The name of a removable device: one of the machine's initial disks or network cards, or one that
/// was plugged in. A disk that was plugged in has a small letter, then up to 30 more letters,
/// digits and dashes. No two sorts have the same id: that of an initial device has no dash.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceId {
    name: String,
    sort: Sort,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Sort {
    Initial,
    PluggedDisk,
    PluggedNic,
}

/// Why a device cannot be plugged in or out.
#[derive(Debug, Error)]
pub enum HotPlugError {
    /// The name is invalid.
    #[error(
        "'{0}' is not the name of a device: a small letter, then small letters, digits and dashes, at most 31"
    )]
    Id(String),
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
        Self { name: first_disk(index), sort: Sort::Initial }
    }

    /// The machine's initial network card with this number, from 0.
    pub fn of_first_nic(index: usize) -> Self {
        Self { name: first_nic(index), sort: Sort::Initial }
    }

    /// The network card with this address that was plugged in.
    pub fn of_nic(mac: MacAddress) -> Self {
        Self { name: mac.to_string().replace(':', ""), sort: Sort::PluggedNic }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// Its id in QEMU, and that of its backend.
    pub fn in_machine(&self) -> String {
        match self.sort {
            Sort::Initial => self.name.clone(),
            Sort::PluggedDisk => format!("plug-{}", self.name),
            Sort::PluggedNic => format!("nic-{}", self.name),
        }
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
            Ok(Self { name: text.to_owned(), sort: Sort::PluggedDisk })
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

    /// Plugs a network card in. `file` is that of its open network, if it has one.
    pub fn plug_nic(
        &self,
        id: &DeviceId,
        nic: &Nic,
        network: &NetworkState,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(), HotPlugError> {
        self.monitor.plug_nic(id.in_machine(), nic.clone(), network.clone(), file)?;
        Ok(())
    }

    /// Plugs a network card's cable in, or pulls it. The guest sees it at once.
    pub fn set_link(&self, id: &DeviceId, link: Link) -> Result<(), HotPlugError> {
        Ok(self.monitor.set_link(id.in_machine(), link)?)
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
    fn no_two_devices_have_the_same_id() {
        let disk: DeviceId = "backup-2".parse().unwrap();
        let mac: MacAddress = "52:54:00:12:34:56".parse().unwrap();
        let ids = [disk, DeviceId::of_first_disk(2), DeviceId::of_first_nic(0), DeviceId::of_nic(mac)];
        assert_eq!(ids.map(|id| id.in_machine()), ["plug-backup-2", "disk2", "nic0", "nic-525400123456"]);
        let like_a_nic: DeviceId = "nic-525400123456".parse().unwrap();
        assert_eq!(like_a_nic.in_machine(), "plug-nic-525400123456");
        for wrong in ["", "2", "-a", "A", "a,b", "a b", "plug/..", &"a".repeat(32)] {
            assert!(wrong.parse::<DeviceId>().is_err(), "{wrong:?}");
        }
    }
}
