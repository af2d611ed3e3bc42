//! Where the volumes of a VM that runs are served, and as what its QEMU has them.
//!
//! QEMU knows a disk by its socket, and has to find it there whoever serves it. So what is plugged
//! in later gets a socket of its own that was never used in this start, and nothing that is there
//! moves.

use serde::{Deserialize, Serialize};
use strongroom_hypervisor::qemu::{DeviceId, HotPlugError};

use crate::protocol::{Disk, DiskName, VmSpec};
use crate::served::served;

/// All of them, in the order in which they came. A state that was written before disks were plugged
/// in says nothing of it, and is [`Layout::of`] what the VM is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Layout(Vec<Place>);

/// Where one is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Which.
    pub disk: DiskName,
    /// The number of its socket.
    pub socket: usize,
    /// Whether it was plugged in after the start.
    #[serde(default)]
    pub plugged: bool,
}

impl Layout {
    /// As a start makes it: in the order of [`served`].
    pub fn of(spec: &VmSpec) -> Self {
        let place = |(socket, disk): (usize, Disk)| Place { disk: disk.name, socket, plugged: false };
        Self(served(spec).into_iter().enumerate().map(place).collect())
    }

    /// This one, or as a start makes it if nothing is said.
    #[must_use]
    pub fn or_of(self, spec: &VmSpec) -> Self {
        if self.0.is_empty() { Self::of(spec) } else { self }
    }

    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each with what is there.
    pub fn disks(&self, spec: &VmSpec) -> Vec<(Place, Disk)> {
        let served = served(spec);
        let there = |place: &Place| {
            let disk = served.iter().find(|disk| disk.name == place.disk)?;
            Some((place.clone(), disk.clone()))
        };
        self.0.iter().filter_map(there).collect()
    }

    /// Where that disk is, if it is served.
    pub fn place(&self, disk: &DiskName) -> Option<&Place> {
        self.0.iter().find(|place| place.disk == *disk)
    }

    /// Where a disk would be that is plugged in now.
    pub fn next(&self, disk: &DiskName) -> Place {
        let socket = self.0.iter().map(|place| place.socket + 1).max().unwrap_or(0);
        Place { disk: disk.clone(), socket, plugged: true }
    }

    /// With this one.
    pub fn add(&mut self, place: Place) {
        self.0.retain(|known| known.disk != place.disk);
        self.0.push(place);
    }

    /// Without that disk.
    pub fn remove(&mut self, disk: &DiskName) {
        self.0.retain(|place| place.disk != *disk);
    }
}

impl Place {
    /// As what QEMU has it, if it is a disk.
    ///
    /// # Errors
    /// If the disk's name is none for a device.
    pub fn device(&self) -> Result<DeviceId, HotPlugError> {
        // The VM's own come after its disks, so a disk's socket has its number among them.
        if self.plugged { self.disk.as_str().parse() } else { Ok(DeviceId::of_first_disk(self.socket)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_moves_when_a_disk_comes_or_goes() {
        let mut spec = VmSpec::for_tests("web1", true);
        spec.seed = true;
        let mut layout = Layout::default().or_of(&spec);
        let begun = layout.clone();
        let name = |name: &str| name.parse::<DiskName>().unwrap();
        layout.add(layout.next(&name("disk1")));
        spec.disks.push(Disk { name: name("disk1"), ..spec.disks[0].clone() });
        let sockets = |layout: &Layout| {
            layout
                .disks(&spec)
                .iter()
                .map(|(place, disk)| (disk.name.to_string(), place.socket))
                .collect::<Vec<_>>()
        };
        let three = [("disk0".to_owned(), 0), ("seed".to_owned(), 1), ("disk1".to_owned(), 2)];
        assert_eq!(sockets(&layout), three);
        let text = serde_json::to_string(&layout).unwrap();
        assert_eq!(serde_json::from_str::<Layout>(&text).unwrap().or_of(&spec), layout);
        let device = |disk: &str| layout.place(&name(disk)).unwrap().device().unwrap();
        assert_eq!(device("disk0"), DeviceId::of_first_disk(0));
        assert_eq!(device("disk1"), "disk1".parse().unwrap());
        layout.add(layout.next(&name("disk2")));
        layout.remove(&name("disk1"));
        assert_eq!(layout.next(&name("disk1")).socket, 4, "a socket that was never used");
        layout.remove(&name("disk2"));
        assert_eq!(layout, begun);
    }
}
