//! Where the volumes of a running VM are served, and under which names QEMU has them.
//!
//! QEMU identifies a disk by its socket, and must find the disk there whichever worker serves it.
//! So a disk that is plugged in later gets a socket that this start has never used, and no disk
//! moves to another socket.

use serde::{Deserialize, Serialize};
use strongroom_hypervisor::qemu::{DeviceId, HotPlugError};

use crate::protocol::{Disk, DiskName, VmSpec};
use crate::served::served;

/// The served disks, in the order in which they were attached. A state file from before
/// hot-plugging has none; [`Layout::or_of`] then derives them from the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Layout(Vec<Place>);

/// The place of one disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The disk's name.
    pub disk: DiskName,
    /// The number of its socket.
    pub socket: usize,
    /// Whether it was plugged in after the start.
    #[serde(default)]
    pub plugged: bool,
    /// Whether the disk is gone. The machine keeps the place of one that it was started with: the
    /// next start places the devices behind it elsewhere.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    gone: bool,
}

impl Layout {
    /// The layout at a start: in the order of [`served`].
    pub fn of(spec: &VmSpec) -> Self {
        let place =
            |(socket, disk): (usize, Disk)| Place { disk: disk.name, socket, plugged: false, gone: false };
        Self(served(spec).into_iter().enumerate().map(place).collect())
    }

    /// This layout, or that of a start if this one is empty.
    #[must_use]
    pub fn or_of(self, spec: &VmSpec) -> Self {
        if self.0.is_empty() { Self::of(spec) } else { self }
    }

    /// Whether it has no places.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns each place with its disk.
    pub fn disks(&self, spec: &VmSpec) -> Vec<(Place, Disk)> {
        let served = served(spec);
        let there = |place: &Place| {
            let disk = served.iter().find(|disk| disk.name == place.disk)?;
            Some((place.clone(), disk.clone()))
        };
        self.there().filter_map(there).collect()
    }

    /// Returns the place of a disk, if it is served.
    pub fn place(&self, disk: &DiskName) -> Option<&Place> {
        self.there().find(|place| place.disk == *disk)
    }

    fn there(&self) -> impl Iterator<Item = &Place> {
        self.0.iter().filter(|place| !place.gone)
    }

    /// Returns the place that a disk gets if it is plugged in now.
    pub fn next(&self, disk: &DiskName) -> Place {
        let socket = self.0.iter().map(|place| place.socket + 1).max().unwrap_or(0);
        Place { disk: disk.clone(), socket, plugged: true, gone: false }
    }

    /// Adds a place.
    pub fn add(&mut self, place: Place) {
        self.0.retain(|known| known.gone || known.disk != place.disk);
        self.0.push(place);
    }

    /// Removes a disk's place.
    pub fn remove(&mut self, disk: &DiskName) {
        self.0.retain(|place| place.gone || place.disk != *disk || !place.plugged);
        self.0.iter_mut().filter(|place| place.disk == *disk).for_each(|place| place.gone = true);
    }
}

impl Place {
    /// The id of QEMU's device, if this is a disk's place.
    ///
    /// # Errors
    /// If the disk's name is not valid as a device id.
    pub fn device(&self) -> Result<DeviceId, HotPlugError> {
        // The VM's own volumes come after its disks, so the socket number of a disk is also its
        // index among the disks.
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

    #[test]
    fn a_machine_that_has_lost_its_last_disk_is_not_as_a_start_makes_it() {
        let mut spec = VmSpec::for_tests("web1", true);
        let name = |name: &str| name.parse::<DiskName>().unwrap();
        spec.disks.push(Disk { name: name("disk1"), ..spec.disks[0].clone() });
        let mut layout = Layout::of(&spec);
        layout.remove(&name("disk1"));
        let again = spec.disks.pop().unwrap();
        assert_eq!((layout.place(&name("disk1")), layout.disks(&spec).len()), (None, 1));
        assert_ne!(layout, Layout::of(&spec), "the next start has the devices behind it elsewhere");
        let next = layout.next(&name("disk1"));
        assert_eq!((next.socket, next.plugged), (2, true), "its former socket is not used again");
        layout.add(next.clone());
        spec.disks.push(again);
        assert_eq!(layout.place(&name("disk1")), Some(&next));
        let text = serde_json::to_string(&layout).unwrap();
        assert_eq!(serde_json::from_str::<Layout>(&text).unwrap(), layout);
        layout.remove(&name("disk1"));
        assert_eq!(layout.place(&name("disk1")), None);
        assert_ne!(layout, Layout::of(&spec));
    }
}
