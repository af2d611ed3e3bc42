//! What a VM is: its clear configuration, as the control plane decides it and its directory keeps it.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use strongroom_keys::ProviderKey;
use strongroom_types::{KekId, VmId, VolumeId, VolumeSize};
use thiserror::Error;
use uuid::Uuid;

use super::names::{DiskName, VmName};
use super::operation::VolumeFacts;
use super::own_volume::is_reserved;

/// The most disks: each is a worker, a socket and a PCI device, and q35 has slots for some thirty.
const DISKS_MAX: usize = 16;
/// The most network interfaces.
const NICS_MAX: usize = 8;
/// The most processors that q35 boots without an IOMMU for interrupts.
const CPUS_MAX: u32 = 255;
/// The least memory: below it no firmware runs.
const MEMORY_BYTES_MIN: u64 = 16 << 20;
/// The most memory, above any host.
const MEMORY_BYTES_MAX: u64 = 64 << 40;
/// Memory comes in whole mebibytes.
const MEMORY_UNIT_BYTES: u64 = 1 << 20;
/// The longest command line that Linux takes on x86 (`COMMAND_LINE_SIZE`).
const KERNEL_ARGUMENTS_BYTES_MAX: usize = 2048;
/// The longest name of a network interface of the host (`IFNAMSIZ`, with its zero byte).
const INTERFACE_BYTES_MAX: usize = 15;

/// The configuration of a VM. Nothing here is secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmSpec {
    /// The VM, for life.
    pub id: VmId,
    /// What people call it, and its directory in the datastore.
    pub name: VmName,
    /// The datastore's directory: an absolute path that hostd was told of before.
    pub datastore: PathBuf,
    /// The kind of machine.
    #[serde(default)]
    pub machine: MachineType,
    /// Its processors.
    #[serde(default)]
    pub cpus: CpuTopology,
    /// Its memory, in bytes: whole mebibytes from 16 MiB.
    pub memory_bytes: u64,
    /// What it starts with.
    #[serde(default)]
    pub firmware: Firmware,
    /// Its disks, in the order of booting.
    #[serde(default)]
    pub disks: Vec<Disk>,
    /// Its network interfaces.
    #[serde(default)]
    pub nics: Vec<Nic>,
    /// A TPM 2.0 of its own, whose state is sealed under the key of the first disk.
    #[serde(default)]
    pub tpm: bool,
    /// A disk for cloud-init (NoCloud) after all others, `seed`, which its guest can only read. It is filled like a disk
    /// ([`ImportDisk`](super::OperationKind::ImportDisk)).
    #[serde(default)]
    pub seed: bool,
    /// A screen, which is shown by VNC.
    #[serde(default = "yes")]
    pub vnc: bool,
    /// The channel of the guest agent.
    #[serde(default = "yes")]
    pub guest_agent: bool,
    /// Starts a kernel without firmware's boot loader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<DirectKernel>,
    /// What is in its CD-ROM drive, from which it boots before its disks; no drive without. A file of the host's, taken as a kernel's is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cdrom: Option<PathBuf>,
    /// The policy that it is under, which the control plane has. Here only so that it is known again when the VM is
    /// registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Uuid>,
    /// Those of its own volumes that are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own_volumes: Vec<KnownVolume>,
}

fn yes() -> bool {
    true
}

/// The kind of machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MachineType {
    /// PCI Express, as machines are since 2009.
    #[default]
    Q35,
    /// PCI (i440fx), for guests that are older.
    Pc,
}

/// Processors: their product is how many the guest sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuTopology {
    /// Sockets, from 1.
    pub sockets: u32,
    /// Cores of a socket, from 1.
    pub cores: u32,
    /// Threads of a core, from 1.
    pub threads: u32,
}

impl CpuTopology {
    /// How many processors the guest sees.
    pub fn count(self) -> Option<u32> {
        self.sockets.checked_mul(self.cores)?.checked_mul(self.threads)
    }

    /// So many cores in one socket.
    pub const fn of_cores(cores: u32) -> Self {
        Self { sockets: 1, cores, threads: 1 }
    }
}

impl Default for CpuTopology {
    fn default() -> Self {
        Self::of_cores(1)
    }
}

/// What a VM starts with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Firmware {
    /// SeaBIOS.
    #[default]
    Bios,
    /// UEFI, whose variables are a volume of the VM (`nvram`), under the key of the first disk.
    Uefi,
}

/// A disk: a volume in the VM's directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Its name, and its volume's.
    pub name: DiskName,
    /// The size that the guest sees, in bytes.
    pub size_bytes: VolumeSize,
    /// Its key, or that it has none.
    pub key: DiskKey,
    /// What it is for.
    #[serde(default)]
    pub kind: DiskKind,
    /// How QEMU reaches it.
    #[serde(default)]
    pub frontend: DiskFrontend,
    /// Takes all its space at once.
    #[serde(default)]
    pub thick: bool,
    /// Keeps a tag of every block, by which damage is noticed; encrypted disks only.
    #[serde(default)]
    pub integrity: bool,
    /// The least generation of the volume's descriptor that the control plane knows of: an older one was put back.
    #[serde(default)]
    pub least_generation: u64,
    /// Its volume, once it was made: no other one is opened in its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeId>,
}

/// A volume of a VM's own that the control plane knows: no other one is opened in its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownVolume {
    /// Its name in the VM's directory.
    pub name: DiskName,
    /// It, for life.
    pub volume: VolumeId,
    /// The least generation of its descriptor.
    pub least_generation: u64,
}

/// What a disk is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskKind {
    /// To keep data.
    #[default]
    Data,
    /// To swap memory out to. It is made anew at each start, under a data key that is new too, with an empty swap area labelled
    /// with its name; there is none while the VM is off.
    Swap,
}

/// Under which key a disk is, which nothing in the datastore decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskKey {
    /// Under a provider's. With `kek`, no other key than the one of this id will do, whatever the descriptor says.
    Provider {
        /// Where its provider has it.
        key: ProviderKey,
        /// The id that it has in descriptors; known once the volume was made ([`VolumeFacts`](super::VolumeFacts)).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kek: Option<KekId>,
        /// The key that the VM is moving to ([`Rekey`](super::OperationKind::Rekey)). While it is said, the volume is under the
        /// one, the other, or both, and what is new is under this one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<ProviderKey>,
    },
    /// Not encrypted, because a person said so.
    Unencrypted,
}

impl DiskKey {
    /// A provider's, which no volume is moving away from.
    pub const fn provider(key: ProviderKey, kek: Option<KekId>) -> Self {
        Self::Provider { key, kek, next: None }
    }

    /// What something new is sealed under.
    pub fn for_new(&self) -> Option<&ProviderKey> {
        match self {
            Self::Provider { key, next, .. } => Some(next.as_ref().unwrap_or(key)),
            Self::Unencrypted => None,
        }
    }

    /// Where the key is, if there is one.
    pub fn provider_key(&self) -> Option<&ProviderKey> {
        match self {
            Self::Provider { key, .. } => Some(key),
            Self::Unencrypted => None,
        }
    }
}

/// How QEMU reaches a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskFrontend {
    /// vhost-user-blk: the guest's rings are served by the worker itself.
    #[default]
    VhostUser,
    /// NBD, through QEMU's block layer.
    Nbd,
}

/// A network interface, of virtio.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// Its address, as `52:54:00:12:34:56`; of a unicast kind.
    pub mac: String,
    /// What it is connected to.
    pub network: Network,
}

/// What a network interface is connected to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Network {
    /// Out to the networks that the host reaches, without rights and without a way to the host itself.
    User,
    /// A tap device that exists.
    Tap {
        /// Its name on the host.
        device: String,
    },
    /// A bridge that exists, on which a tap device is made.
    Bridge {
        /// Its name on the host.
        bridge: String,
        /// The VLAN, 1 to 4094; untagged without.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vlan: Option<u16>,
    },
}

/// A kernel that is started without a boot loader. Its files are the host's, and are taken from the directories alone that
/// its configuration names (`boot_directories`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectKernel {
    /// The kernel.
    pub kernel: PathBuf,
    /// Its first file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initrd: Option<PathBuf>,
    /// Its command line, in which nothing secret may be: every process of the host can read it.
    #[serde(default)]
    pub arguments: String,
}

/// Why a configuration is none.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {reason}")]
pub struct SpecError {
    /// Which part of it.
    pub field: String,
    /// What is wrong, and what would be right.
    pub reason: String,
}

impl VmSpec {
    /// The VM's directory.
    pub fn directory(&self) -> PathBuf {
        self.datastore.join(self.name.as_str())
    }

    /// The directory of a disk's volume.
    pub fn volume_path(&self, disk: &DiskName) -> PathBuf {
        self.directory().join(disk.as_str())
    }

    /// The files of the host that it starts from.
    pub fn boot_files(&self) -> impl Iterator<Item = &Path> {
        let kernel = self.kernel.iter().flat_map(|kernel| [Some(&kernel.kernel), kernel.initrd.as_ref()]);
        kernel.flatten().chain(&self.cdrom).map(PathBuf::as_path)
    }

    /// The disk of that name.
    pub fn disk(&self, name: &DiskName) -> Option<&Disk> {
        self.disks.iter().find(|disk| disk.name == *name)
    }

    /// Says of each sealed disk that it is moving to this key, unless it is under it.
    pub fn move_to(&mut self, to: &ProviderKey) {
        for disk in &mut self.disks {
            if let DiskKey::Provider { key, next, .. } = &mut disk.key {
                *next = (key != to).then(|| to.clone());
            }
        }
    }

    /// The key that its volumes are moving to, and those that they come from; nothing if they stay.
    pub fn moving(&self) -> Option<(&ProviderKey, Vec<&ProviderKey>)> {
        let mut to = None;
        let mut from: Vec<&ProviderKey> = Vec::new();
        for disk in &self.disks {
            if let DiskKey::Provider { key, next: Some(next), .. } = &disk.key {
                to = Some(next);
                if !from.contains(&key) {
                    from.push(key);
                }
            }
        }
        Some((to?, from))
    }

    /// Whether something of it is sealed.
    pub fn is_encrypted(&self) -> bool {
        self.disks.iter().any(|disk| disk.key.provider_key().is_some())
    }

    /// With what is known of its volumes now, as the control plane keeps it.
    #[must_use]
    pub fn with_facts(mut self, facts: &[VolumeFacts]) -> Self {
        for facts in facts {
            let VolumeFacts { disk: name, volume, kek, generation } = facts.clone();
            match self.disks.iter_mut().find(|disk| disk.name == name) {
                Some(disk) => {
                    (disk.volume, disk.least_generation) =
                        (Some(volume), disk.least_generation.max(generation));
                    // While it moves, which of its keys it is under is not to be relied on.
                    if let DiskKey::Provider { kek: known, next: None, .. } = &mut disk.key {
                        *known = kek.or(*known);
                    }
                }
                None => {
                    let before = self.own_volumes.iter().find(|own| own.name == name);
                    let least_generation = before.map_or(0, |own| own.least_generation).max(generation);
                    self.own_volumes.retain(|own| own.name != name);
                    self.own_volumes.push(KnownVolume { name, volume, least_generation });
                }
            }
        }
        self
    }

    /// Whether a VM can be made of it, as far as that can be told without looking at a host.
    ///
    /// # Errors
    /// The first part that is wrong.
    pub fn check(&self) -> Result<(), SpecError> {
        absolute("datastore", &self.datastore)?;
        match self.cpus.count() {
            Some(1..=CPUS_MAX) => {}
            _ => return wrong("cpus", format!("a VM has 1 to {CPUS_MAX} processors")),
        }
        let memory = MEMORY_BYTES_MIN..=MEMORY_BYTES_MAX;
        if !memory.contains(&self.memory_bytes) || !self.memory_bytes.is_multiple_of(MEMORY_UNIT_BYTES) {
            return wrong("memory_bytes", "memory is whole mebibytes, from 16 MiB to 64 TiB".to_owned());
        }
        self.check_disks()?;
        if self.disks.is_empty() && (self.tpm || self.seed || self.firmware == Firmware::Uefi) {
            let reason = "a VM without a disk has no key for what its firmware, TPM or seed keeps";
            return wrong("disks", reason.to_owned());
        }
        if self.nics.len() > NICS_MAX {
            return wrong("nics", format!("a VM has at most {NICS_MAX} network interfaces"));
        }
        self.nics.iter().try_for_each(Nic::check)?;
        self.cdrom.as_deref().map_or(Ok(()), |image| absolute("cdrom", image))?;
        if let Some(kernel) = &self.kernel {
            kernel.check()?;
            // QEMU would put the one where the other is: see the machine of crates/hypervisor.
            if self.tpm && self.firmware == Firmware::Bios && kernel.initrd.is_some() {
                let reason = "a VM with a TPM that starts a kernel with an initial ram disk takes UEFI";
                return wrong("firmware", reason.to_owned());
            }
        }
        Ok(())
    }

    fn check_disks(&self) -> Result<(), SpecError> {
        if self.disks.len() + usize::from(self.seed) > DISKS_MAX {
            return wrong("disks", format!("a VM has at most {DISKS_MAX} disks"));
        }
        let names: BTreeSet<_> = self.disks.iter().map(|disk| disk.name.as_str()).collect();
        if names.len() != self.disks.len() {
            return wrong("disks", "two have the same name".to_owned());
        }
        if let Some(taken) = self.disks.iter().map(|disk| &disk.name).find(|name| is_reserved(name)) {
            return wrong("disks", format!("the name {taken} is a VM's own; choose another one"));
        }
        let next = |disk: &'_ Disk| match &disk.key {
            DiskKey::Provider { next, .. } => next.clone(),
            DiskKey::Unencrypted => None,
        };
        let moving: Vec<ProviderKey> = self.disks.iter().filter_map(next).collect();
        if moving.windows(2).any(|pair| pair[0] != pair[1]) {
            return wrong("disks", "they are moving to different keys; a VM moves to one".to_owned());
        }
        match self.disks.iter().find(|disk| disk.integrity && disk.key == DiskKey::Unencrypted) {
            Some(disk) => wrong("disks", format!("{} has no key that tags could be made with", disk.name)),
            None => Ok(()),
        }
    }
}

impl Nic {
    fn check(&self) -> Result<(), SpecError> {
        let digits = |pair: &str| pair.len() == 2 && pair.bytes().all(|byte| byte.is_ascii_hexdigit());
        let pairs: Vec<&str> = self.mac.split(':').collect();
        let first = pairs.first().and_then(|pair| u8::from_str_radix(pair, 16).ok());
        let unicast = first.is_some_and(|first| first & 1 == 0);
        if pairs.len() != 6 || !pairs.iter().all(|pair| digits(pair)) || !unicast {
            return wrong("nics", format!("'{}' is no address; write one as 52:54:00:12:34:56", self.mac));
        }
        match &self.network {
            Network::User => Ok(()),
            Network::Tap { device } => interface(device),
            Network::Bridge { bridge, vlan } => match vlan {
                Some(0 | 4095..) => wrong("nics", "a VLAN is a number from 1 to 4094".to_owned()),
                _ => interface(bridge),
            },
        }
    }
}

impl DirectKernel {
    fn check(&self) -> Result<(), SpecError> {
        absolute("kernel", &self.kernel)?;
        self.initrd.as_deref().map_or(Ok(()), |initrd| absolute("kernel", initrd))?;
        let arguments = &self.arguments;
        if arguments.len() >= KERNEL_ARGUMENTS_BYTES_MAX || arguments.contains(char::is_control) {
            return wrong(
                "kernel",
                format!("arguments are less than {KERNEL_ARGUMENTS_BYTES_MAX} bytes in one line"),
            );
        }
        Ok(())
    }
}

/// A name that a kernel could have given, and nothing that QEMU takes for another option.
fn interface(name: &str) -> Result<(), SpecError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
    if (1..=INTERFACE_BYTES_MAX).contains(&name.len()) && name.bytes().all(plain) && !name.starts_with('.') {
        return Ok(());
    }
    wrong("nics", format!("'{name}' is no name of a network interface"))
}

/// An absolute path without a way up, and without a comma or a line end, which QEMU and people read otherwise.
fn absolute(field: &str, path: &Path) -> Result<(), SpecError> {
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let text = path.to_str().is_some_and(|text| !text.contains(|c: char| c.is_control() || c == ','));
    if path.is_absolute() && plain && text {
        return Ok(());
    }
    wrong(field, format!("'{}' is not an absolute path, or holds .. or a comma", path.display()))
}

fn wrong(field: &str, reason: String) -> Result<(), SpecError> {
    Err(SpecError { field: field.to_owned(), reason })
}

#[cfg(test)]
impl VmSpec {
    /// One with one disk.
    pub(crate) fn for_tests(name: &str, sealed: bool) -> Self {
        let key = r#"{"provider":{"key":{"provider":"local","key":"4711","wrapped":null}}}"#;
        let key = if sealed { key } else { r#""unencrypted""# };
        let text = format!(
            r#"{{"id":"6f1c5bde-8d09-4b4c-9f5f-3f0f8f0f0001","name":"{name}","datastore":"/srv/ds","memory_bytes":268435456,
            "disks":[{{"name":"disk0","size_bytes":1048576,"key":{key}}}]}}"#
        );
        serde_json::from_str(&text).expect("it is a configuration")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> VmSpec {
        let text = r#"{"id":"6f1c5bde-8d09-4b4c-9f5f-3f0f8f0f0001","name":"web1","datastore":"/srv/ds","memory_bytes":268435456,
            "disks":[{"name":"disk0","size_bytes":1048576,"key":"unencrypted"},
                     {"name":"disk1","size_bytes":1048576,"key":{"provider":{"key":{"provider":"local","key":"4711","wrapped":null}}}}],
            "nics":[{"mac":"52:54:00:12:34:56","network":"user"}]}"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_small_configuration_is_completed_and_survives_its_text() {
        let spec = spec();
        spec.check().unwrap();
        assert_eq!((spec.machine, spec.cpus.count(), spec.vnc), (MachineType::Q35, Some(1), true));
        assert_eq!(spec.volume_path(&spec.disks[0].name), Path::new("/srv/ds/web1/disk0"));
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<VmSpec>(&text).unwrap(), spec);
    }

    #[test]
    fn what_makes_no_vm_is_refused() {
        let refused = |change: &dyn Fn(&mut VmSpec)| {
            let mut spec = spec();
            change(&mut spec);
            spec.check().unwrap_err().field
        };
        assert_eq!(refused(&|spec| spec.datastore = "ds".into()), "datastore");
        assert_eq!(refused(&|spec| spec.datastore = "/srv/../etc".into()), "datastore");
        assert_eq!(refused(&|spec| spec.datastore = "/srv/a,b".into()), "datastore");
        assert_eq!(refused(&|spec| spec.cpus.threads = 0), "cpus");
        assert_eq!(
            refused(&|spec| spec.cpus = CpuTopology { sockets: 65536, cores: 65536, threads: 1 }),
            "cpus"
        );
        assert_eq!(refused(&|spec| spec.memory_bytes += 1), "memory_bytes");
        assert_eq!(refused(&|spec| spec.disks[1].name = spec.disks[0].name.clone()), "disks");
        for own in ["nvram", "dump-1"] {
            assert_eq!(refused(&|spec| spec.disks[0].name = own.parse().unwrap()), "disks", "{own}");
        }
        assert_eq!(refused(&|spec| spec.disks[0].integrity = true), "disks");
        let keyless = |spec: &mut VmSpec| (spec.disks, spec.firmware) = (Vec::new(), Firmware::Uefi);
        assert_eq!(refused(&keyless), "disks");
        for mac in ["", "52:54:00:12:34", "53:54:00:12:34:56", "52:54:00:12:34:5g", "52:54:00:12:34:56:78"] {
            assert_eq!(refused(&|spec| spec.nics[0].mac = mac.to_owned()), "nics", "{mac}");
        }
        let tap = |device: &str| Network::Tap { device: device.to_owned() };
        assert_eq!(refused(&|spec| spec.nics[0].network = tap("tap0,script=/tmp/x")), "nics");
        let bridge = Network::Bridge { bridge: "br0".to_owned(), vlan: Some(4095) };
        assert_eq!(refused(&|spec| spec.nics[0].network = bridge.clone()), "nics");
        let kernel = |arguments: &str| {
            let kernel = "/boot/vmlinuz".into();
            Some(DirectKernel { kernel, initrd: None, arguments: arguments.to_owned() })
        };
        assert_eq!(refused(&|spec| spec.cdrom = Some("../debian.iso".into())), "cdrom");
        assert_eq!(refused(&|spec| spec.kernel = kernel("quiet\n")), "kernel");
        assert_eq!(refused(&|spec| spec.kernel = kernel(&"x".repeat(4096))), "kernel");
    }

    #[test]
    fn a_word_that_is_not_known_is_refused() {
        let text =
            serde_json::to_string(&spec()).unwrap().replace("\"name\":\"web1\"", "\"name\":\"web1\",\"x\":1");
        assert!(serde_json::from_str::<VmSpec>(&text).is_err());
    }
}
