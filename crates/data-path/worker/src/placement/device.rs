//! Which NUMA nodes the device of a file is at.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{fstat, major, minor};
use serde::{Deserialize, Serialize};

use super::numbers::Numbers;

/// The greatest depth of devices made of devices: real stacks of device mapper and RAID have fewer.
const LAYERS_MAX: usize = 16;

/// The number of a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNumber {
    /// The driver's number.
    pub major: u32,
    /// The device's number.
    pub minor: u32,
}

impl DeviceNumber {
    /// The number of the device that a file is on, if it is on one.
    pub fn of_file(file: impl AsFd) -> Option<Self> {
        let number = Self::from_raw(fstat(&file).ok()?.st_dev);
        // btrfs uses numbers that belong to no device, but its mount source names one.
        if number.major != 0 { Some(number) } else { source_of_mount(file) }
    }

    fn from_raw(number: u64) -> Self {
        Self { major: major(number), minor: minor(number) }
    }

    /// The nodes that it is at, as far as its drivers report them. A device that is made of several
    /// may be at several. `sysfs` is the path of sysfs.
    pub fn nodes(self, sysfs: &Path) -> Numbers {
        let mut nodes = Numbers::default();
        let link = sysfs.join("dev/block").join(format!("{}:{}", self.major, self.minor));
        if let (Ok(device), Ok(devices)) = (fs::canonicalize(link), fs::canonicalize(sysfs.join("devices"))) {
            gather(&device, &devices, LAYERS_MAX, &mut nodes);
        }
        nodes
    }
}

/// The device that the file system of a file was mounted from.
fn source_of_mount(file: impl AsFd) -> Option<DeviceNumber> {
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_fd().as_raw_fd())).ok()?;
    let mount = facts.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(mount))?;
    let source = line.split_once(" - ")?.1.split(' ').nth(1)?;
    let source = fs::metadata(source).ok().filter(|source| source.file_type().is_block_device())?;
    Some(DeviceNumber::from_raw(source.rdev()))
}

fn gather(device: &Path, devices: &Path, layers: usize, nodes: &mut Numbers) {
    let parents = || device.ancestors().take_while(|directory| *directory != devices);
    // A PCI function or an NVMe controller above it has the node; -1 means that it is at none.
    let node = parents().find_map(|directory| {
        fs::read_to_string(directory.join("numa_node")).ok()?.trim().parse::<u32>().ok()
    });
    if let Some(node) = node {
        return nodes.extend([node]);
    }
    if layers == 0 {
        return;
    }
    // The devices that device mapper and RAID are made of (for a partition, those of its disk), and
    // the paths of an NVMe namespace that has several.
    for directory in parents() {
        let paths = directory
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"nvme-subsys"))
            .then(|| links(directory, "nvme"));
        for below in links(&directory.join("slaves"), "").into_iter().chain(paths.into_iter().flatten()) {
            gather(&below, devices, layers - 1, nodes);
        }
    }
}

/// The targets of the links in a directory whose names begin with `prefix`.
fn links(directory: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()))
        .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(prefix.as_bytes()))
        .filter_map(|entry| fs::canonicalize(entry.path()).ok())
        .collect()
}
