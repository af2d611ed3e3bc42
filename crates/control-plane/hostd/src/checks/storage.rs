//! The layers below a directory or a device: mounts (proc_pid_mountinfo(5)) and block devices
//! (sysfs).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::{Root, read};

/// The most layers that are followed: more than real stacks of device mapper, RAID, loop devices
/// and file systems have.
const LAYERS_MAX: usize = 16;

/// The storage below a path or device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// Memory.
    Memory,
    /// A block device of this machine.
    Device(BlockDevice),
    /// Another machine.
    Network {
        /// The protocol: `nfs4`, `iscsi`, ...
        kind: String,
        /// Its name or address.
        address: String,
    },
    /// Storage that cannot be inspected, by its name.
    Other(String),
}

/// A block device, as sysfs shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockDevice {
    /// `sda2`, `dm-0`, `nbd0`.
    pub name: String,
    directory: PathBuf,
}

/// Whether data that is written to some storage can be read from a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sealing {
    /// The data never leaves memory.
    Memory,
    /// dm-crypt encrypts the data first.
    Sealed,
    /// The data is readable, from the device with this name.
    Clear(String),
}

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Its mount point.
    pub point: PathBuf,
    number: String,
    kind: String,
    source: String,
}

impl Mount {
    /// Returns the mount that a path is in. The path must be absolute and without symbolic links.
    pub fn of(root: &Root, path: &Path) -> Option<Self> {
        let mounts = root.read("/proc/self/mountinfo")?;
        // The last of several mounts at one point is the visible one, and the deepest mount point
        // counts.
        mounts
            .lines()
            .filter_map(Self::parse)
            .filter(|mount| path.starts_with(&mount.point))
            .max_by_key(|mount| mount.point.components().count())
    }

    fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ');
        let number = before.nth(2)?.to_owned();
        let point = unescaped(before.nth(1)?);
        let mut after = after.split(' ');
        let kind = after.next()?.to_owned();
        let source = unescaped(after.next()?).to_string_lossy().into_owned();
        Some(Self { point, number, kind, source })
    }

    /// Returns the storage below it.
    pub fn support(&self, root: &Root) -> Support {
        let network =
            |address: &str| Support::Network { kind: self.kind.clone(), address: address.to_owned() };
        match self.kind.as_str() {
            "tmpfs" | "ramfs" | "rootfs" => Support::Memory,
            "nfs" | "nfs4" | "ceph" | "fuse.sshfs" | "fuse.glusterfs" => {
                // `host:/path`, `[fd00::1]:/path`, `user@host:/path`; a Ceph monitor may have a
                // port.
                let host = self.source.rsplit_once(":/").map_or(self.source.as_str(), |(host, _)| host);
                let host = host.rsplit('@').next().unwrap_or(host);
                network(host.trim_start_matches('[').trim_end_matches(']'))
            }
            "cifs" | "smb3" => {
                let host = self.source.trim_start_matches('/').split('/').next().unwrap_or_default();
                network(host)
            }
            _ => self.device(root).map_or_else(|| Support::Other(self.source.clone()), Support::Device),
        }
    }

    fn device(&self, root: &Root) -> Option<BlockDevice> {
        // The device number of btrfs belongs to no device; its source names one.
        let by_number = root.path("/sys/dev/block").join(&self.number);
        BlockDevice::at(&by_number).or_else(|| BlockDevice::of_path(root, Path::new(&self.source)))
    }
}

/// Returns the storage below a path. The path must be absolute and without symbolic links.
pub fn support(root: &Root, path: &Path) -> Support {
    Mount::of(root, path)
        .map_or_else(|| Support::Other(path.display().to_string()), |mount| mount.support(root))
}

impl BlockDevice {
    /// Returns the device behind a special file.
    pub fn of_path(root: &Root, path: &Path) -> Option<Self> {
        let named = |path: &Path| Some(root.path("/sys/class/block").join(path.file_name()?));
        let real = std::fs::canonicalize(root.path(path)).unwrap_or_else(|_| path.to_owned());
        Self::at(&named(&real)?).or_else(|| Self::at(&named(path)?))
    }

    fn at(directory: &Path) -> Option<Self> {
        let directory = std::fs::canonicalize(directory).ok()?;
        let name = directory.file_name()?.to_str()?.to_owned();
        Some(Self { name, directory })
    }

    /// Returns one of its attributes.
    pub fn attribute(&self, name: &str) -> Option<String> {
        read(&self.directory.join(name))
    }

    /// Returns the storage below it; empty for a physical disk.
    pub fn supports(&self, root: &Root) -> Vec<Support> {
        if let Some(file) = self.attribute("loop/backing_file") {
            return vec![support(root, Path::new(&file))];
        }
        let slaves = std::fs::read_dir(self.directory.join("slaves")).into_iter().flatten().flatten();
        let mut below: Vec<_> =
            slaves.filter_map(|slave| Self::at(&slave.path())).map(Support::Device).collect();
        if self.attribute("partition").is_some() {
            below.extend(self.directory.parent().and_then(Self::at).map(Support::Device));
        }
        below.extend(self.iscsi_target(root));
        below
    }

    /// The address of the iSCSI target behind it, if it is an iSCSI disk.
    fn iscsi_target(&self, root: &Root) -> Option<Support> {
        let mut components = self.directory.components();
        let session = components
            .find_map(|part| part.as_os_str().to_str()?.strip_prefix("session")?.parse::<u32>().ok())?;
        let connection = format!("/sys/class/iscsi_connection/connection{session}:0/persistent_address");
        Some(Support::Network { kind: "iscsi".to_owned(), address: root.read(connection)? })
    }

    /// Whether it is a dm-crypt device. Related targets, which only check data, do not count.
    fn is_crypt(&self) -> bool {
        let made_of = self.attribute("dm/uuid").unwrap_or_default();
        let checks_alone = ["CRYPT-VERITY-", "CRYPT-INTEGRITY-", "CRYPT-SUBDEV-"];
        made_of.starts_with("CRYPT-") && !checks_alone.iter().any(|prefix| made_of.starts_with(prefix))
    }
}

impl Support {
    /// Whether data that is written to it can be read from a disk.
    pub fn sealing(&self, root: &Root) -> Sealing {
        self.sealing_within(root, LAYERS_MAX)
    }

    fn sealing_within(&self, root: &Root, layers: usize) -> Sealing {
        let device = match self {
            Self::Memory => return Sealing::Memory,
            Self::Network { kind, address } => return Sealing::Clear(format!("{address} ({kind})")),
            Self::Other(name) => return Sealing::Clear(name.clone()),
            Self::Device(device) => device,
        };
        if device.name.starts_with("zram") {
            // zram writes incompressible and idle pages to its backing device.
            return match device.attribute("backing_dev").filter(|backing| backing != "none") {
                Some(backing) => match BlockDevice::of_path(root, Path::new(&backing)) {
                    Some(backing) if layers > 0 => Self::Device(backing).sealing_within(root, layers - 1),
                    _ => Sealing::Clear(backing),
                },
                None => Sealing::Memory,
            };
        }
        if device.name.starts_with("ram") {
            return Sealing::Memory;
        }
        if device.is_crypt() {
            return Sealing::Sealed;
        }
        let clear = || Sealing::Clear(device.name.clone());
        let below = device.supports(root);
        if layers == 0 || below.is_empty() {
            return clear();
        }
        let mut sealings = below.iter().map(|support| support.sealing_within(root, layers - 1));
        // One clear part is enough.
        if sealings.all(|sealing| !matches!(sealing, Sealing::Clear(_))) { Sealing::Sealed } else { clear() }
    }

    /// Returns the device and everything below it, nearest first.
    pub fn layers(&self, root: &Root) -> Vec<Self> {
        let mut found = vec![self.clone()];
        let mut next = 0;
        while let Some(layer) = found.get(next).cloned() {
            let below = if let Self::Device(device) = &layer { device.supports(root) } else { Vec::new() };
            for layer in below {
                if !found.contains(&layer) && found.len() < LAYERS_MAX {
                    found.push(layer);
                }
            }
            next += 1;
        }
        found
    }
}

/// Decodes a field of mountinfo, in which spaces and similar characters are octal numbers after a
/// backslash.
fn unescaped(field: &str) -> PathBuf {
    let bytes = field.as_bytes();
    let (mut plain, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        let escape = bytes.get(at + 1..at + 4).filter(|_| byte == b'\\');
        let number = escape.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        plain.push(number.unwrap_or(byte));
        at += if number.is_some() { 4 } else { 1 };
    }
    PathBuf::from(OsString::from_vec(plain))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{link, tree};
    use super::*;

    const MOUNTS: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 0:44 / /srv/vm\\040store rw - btrfs /dev/mapper/data rw
31 27 0:50 / /srv/far rw shared:1 - nfs4 192.0.2.7:/export rw
32 27 0:51 / /run rw - tmpfs tmpfs rw
33 27 7:3 / /mnt/image rw - ext4 /dev/loop3 rw
";

    fn machine() -> (tempfile::TempDir, Root) {
        let (directory, root) = tree(&[
            ("/proc/self/mountinfo", MOUNTS),
            ("/sys/devices/virtio0/block/vda/size", "1"),
            ("/sys/devices/virtio0/block/vda/vda1/partition", "1"),
            ("/sys/devices/virtual/block/dm-0/dm/uuid", "CRYPT-LUKS2-0123"),
            ("/sys/devices/virtual/block/dm-1/dm/uuid", "LVM-0123"),
            ("/sys/devices/virtual/block/dm-2/dm/uuid", "CRYPT-VERITY-0123"),
            ("/sys/devices/virtual/block/loop3/loop/backing_file", "/srv/far/disk.img"),
            ("/sys/devices/platform/host2/session4/target2:0:0/2:0:0:1/block/sdb/size", "1"),
            ("/sys/class/iscsi_connection/connection4:0/persistent_address", "192.0.2.9"),
            ("/dev/mapper/.keep", ""),
        ]);
        link(
            &root,
            &[
                ("/sys/dev/block/254:0", "/sys/devices/virtio0/block/vda"),
                ("/sys/dev/block/7:3", "/sys/devices/virtual/block/loop3"),
                ("/sys/class/block/vda", "/sys/devices/virtio0/block/vda"),
                ("/sys/class/block/vda1", "/sys/devices/virtio0/block/vda/vda1"),
                ("/sys/class/block/dm-0", "/sys/devices/virtual/block/dm-0"),
                ("/sys/class/block/dm-1", "/sys/devices/virtual/block/dm-1"),
                ("/sys/class/block/dm-2", "/sys/devices/virtual/block/dm-2"),
                (
                    "/sys/class/block/sdb",
                    "/sys/devices/platform/host2/session4/target2:0:0/2:0:0:1/block/sdb",
                ),
                ("/sys/devices/virtual/block/dm-0/slaves/vda1", "/sys/devices/virtio0/block/vda/vda1"),
                ("/sys/devices/virtual/block/dm-1/slaves/dm-0", "/sys/devices/virtual/block/dm-0"),
                ("/sys/devices/virtual/block/dm-2/slaves/vda1", "/sys/devices/virtio0/block/vda/vda1"),
                ("/dev/mapper/data", "/dev/dm-1"),
            ],
        );
        std::fs::write(root.path("/dev/dm-1"), "").unwrap();
        (directory, root)
    }

    #[test]
    fn a_path_is_in_the_deepest_mount() {
        let (_directory, root) = machine();
        let point = |path: &str| Mount::of(&root, Path::new(path)).unwrap().point;
        assert_eq!(point("/srv/vm store/web1"), Path::new("/srv/vm store"));
        assert_eq!(point("/srv/vm"), Path::new("/"));
        assert_eq!(support(&root, Path::new("/run/x")), Support::Memory);
        let far = Support::Network { kind: "nfs4".to_owned(), address: "192.0.2.7".to_owned() };
        assert_eq!(support(&root, Path::new("/srv/far/x")), far);
    }

    #[test]
    fn what_lies_on_dm_crypt_is_sealed_and_what_is_only_checked_is_not() {
        let (_directory, root) = machine();
        let sealing = |device: &str| {
            Support::Device(BlockDevice::of_path(&root, Path::new(device)).unwrap()).sealing(&root)
        };
        assert_eq!(sealing("/dev/dm-0"), Sealing::Sealed);
        // A logical volume on it, under the name that btrfs reports.
        assert_eq!(support(&root, Path::new("/srv/vm store")).sealing(&root), Sealing::Sealed);
        assert_eq!(sealing("/dev/vda1"), Sealing::Clear("vda1".to_owned()));
        assert_eq!(sealing("/dev/dm-2"), Sealing::Clear("dm-2".to_owned()));
    }

    #[test]
    fn layers_go_down_to_other_machines() {
        let (_directory, root) = machine();
        let layers = support(&root, Path::new("/mnt/image/home")).layers(&root);
        assert!(
            matches!(&layers[..], [Support::Device(image), Support::Network { address, .. }]
            if image.name == "loop3" && address == "192.0.2.7"),
            "{layers:?}"
        );
        let disk = Support::Device(BlockDevice::of_path(&root, Path::new("/dev/sdb")).unwrap());
        assert!(
            disk.layers(&root)
                .iter()
                .any(|layer| matches!(layer, Support::Network { address, .. } if address == "192.0.2.9"))
        );
    }
}
