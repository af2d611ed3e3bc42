//! The hardware of a VM in the interface. Limits and validation are those of `strongroom_vm`.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
pub use strongroom_types::{BandwidthLimit, IoLimits, IopsLimit};
pub use strongroom_vm::BootDevice;
pub use strongroom_vm::{
    Board, Capabilities, Cpus, DiskBecomes, DiskFrontend, DiskKind, Firmware, Growth, Link, MachineType,
    MachineVersion, MemorySize, ProcessorModel,
};
use strongroom_vm::{DirectKernel, DiskName, InterfaceName, MacAddress, Network, VlanId, boot_without_disk};
use utoipa::ToSchema;

use crate::object::Reference;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// Its network.
    pub backend: NicBackend,
    /// Its address, as `52:54:00:xx:xx:xx`; chosen automatically if absent.
    #[schema(value_type = Option<String>, pattern = "^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}$")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddress>,
    /// What the guest sees of its cable.
    #[serde(default, skip_serializing_if = "Link::is_up")]
    pub link: Link,
}

impl Nic {
    /// An interface on this network, with an address of its own.
    pub fn on(backend: NicBackend) -> Self {
        Self { backend, mac: None, link: Link::Up }
    }
}

/// The network of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum NicBackend {
    /// Connections of the host, without privileges. The guest cannot reach the host's loopback.
    User {},
    /// An existing tap device.
    Tap {
        /// Its name.
        #[schema(value_type = String, min_length = 1, max_length = 15)]
        device: InterfaceName,
    },
    /// An existing bridge.
    Bridge {
        /// Its name.
        #[schema(value_type = String, min_length = 1, max_length = 15)]
        device: InterfaceName,
        /// The guest's VLAN.
        #[schema(value_type = Option<u16>, minimum = 1, maximum = 4094)]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vlan: Option<VlanId>,
    },
    /// A network of the site.
    Network {
        /// Its name or id.
        network: Reference,
        /// Where the VM's host has it. In requests it is ignored.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        on: Option<BridgePort>,
    },
}

/// A bridge of a host, and a VLAN of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BridgePort {
    /// The bridge's name.
    #[schema(value_type = String, min_length = 1, max_length = 15)]
    pub bridge: InterfaceName,
    /// The VLAN.
    #[schema(value_type = Option<u16>, minimum = 1, maximum = 4094)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanId>,
}

impl NicBackend {
    /// What its host connects it to; `None` for a network that its host does not have.
    pub fn on_host(&self) -> Option<Network> {
        Some(match self {
            Self::User {} => Network::User,
            Self::Tap { device } => Network::Tap { device: device.clone() },
            Self::Bridge { device, vlan } => Network::Bridge { bridge: device.clone(), vlan: *vlan },
            Self::Network { network: _, on } => {
                let BridgePort { bridge, vlan } = on.as_ref()?;
                Network::Bridge { bridge: bridge.clone(), vlan: *vlan }
            }
        })
    }

    /// The network of the site, by name or id.
    pub fn network(&self) -> Option<&Reference> {
        match self {
            Self::User {} | Self::Tap { .. } | Self::Bridge { .. } => None,
            Self::Network { network, on: _ } => Some(network),
        }
    }
}

impl From<&Network> for NicBackend {
    fn from(network: &Network) -> Self {
        match network {
            Network::User => Self::User {},
            Network::Tap { device } => Self::Tap { device: device.clone() },
            Network::Bridge { bridge, vlan } => Self::Bridge { device: bridge.clone(), vlan: *vlan },
        }
    }
}

/// What a VM boots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Boot {
    /// The firmware, from its devices.
    Disk {
        /// The devices, in this order, and no others: `cdrom`, disks by name, network cards as
        /// `nic0` and so on (by PXE). If it is empty: the CD-ROM drive, then all disks.
        #[schema(value_type = Vec<String>, max_items = 25)]
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        order: Vec<BootDevice>,
    },
    /// A kernel from one of the host's boot directories.
    Kernel {
        /// The kernel's file.
        #[schema(value_type = String, min_length = 1, max_length = 4095)]
        kernel: PathBuf,
        /// The initial ram disk's file.
        #[schema(value_type = Option<String>, min_length = 1, max_length = 4095)]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        initrd: Option<PathBuf>,
        /// The kernel's command line. It is shown and logged: nothing secret belongs in it.
        #[schema(max_length = 2047)]
        #[serde(default)]
        arguments: String,
    },
}

impl Default for Boot {
    fn default() -> Self {
        Self::Disk { order: Vec::new() }
    }
}

impl Boot {
    /// The order of the devices, if one was chosen.
    pub fn order(&self) -> &[BootDevice] {
        match self {
            Self::Disk { order } => order,
            Self::Kernel { .. } => &[],
        }
    }

    /// The same for a VM without the network card of this number, whose followers' numbers fall by
    /// one.
    pub fn without_nic(&mut self, number: usize) {
        let Self::Disk { order } = self else { return };
        order.retain(|device| *device != BootDevice::Nic(number));
        for device in order {
            if let BootDevice::Nic(other) = device
                && *other > number
            {
                *other -= 1;
            }
        }
    }

    /// The same for a VM without this disk.
    pub fn without_disk(&mut self, disk: &DiskName) {
        if let Self::Disk { order } = self {
            boot_without_disk(order, disk);
        }
    }

    /// The kernel that is booted, if any.
    pub fn kernel(&self) -> Option<DirectKernel> {
        match self {
            Self::Disk { .. } => None,
            Self::Kernel { kernel, initrd, arguments } => Some(DirectKernel {
                kernel: kernel.clone(),
                initrd: initrd.clone(),
                arguments: arguments.clone(),
            }),
        }
    }

    /// Boots this kernel, or from devices in this order without one.
    pub fn of(kernel: Option<DirectKernel>, order: Vec<BootDevice>) -> Self {
        kernel.map_or(Self::Disk { order }, |DirectKernel { kernel, initrd, arguments }| Self::Kernel {
            kernel,
            initrd,
            arguments,
        })
    }
}

/// The CD-ROM drive, which an operating system is installed from. It is read-only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Cdrom {
    /// No drive.
    #[default]
    Absent,
    /// A drive with this image. Without an order of booting it boots before the disks, as long as
    /// it is inserted.
    Image {
        /// The image's file, in one of the host's boot directories.
        #[schema(value_type = String, min_length = 1, max_length = 4095)]
        path: PathBuf,
    },
}

impl Cdrom {
    /// A drive with this image, or none.
    pub fn of(path: Option<PathBuf>) -> Self {
        path.map_or(Self::Absent, |path| Self::Image { path })
    }

    /// The inserted image.
    pub fn image(&self) -> Option<&Path> {
        match self {
            Self::Absent => None,
            Self::Image { path } => Some(path),
        }
    }
}

/// Whether a VM that should run and does not is restarted automatically.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RestartPolicy {
    /// After a crash, and after a power cut of the host, but not after a shutdown by the guest.
    #[default]
    OnFailure,
    /// Only on request.
    Never,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_reads_as_documented() {
        let nic: Nic =
            serde_json::from_str(r#"{"backend":{"type":"bridge","device":"br0","vlan":7}}"#).unwrap();
        assert_eq!(
            nic.backend,
            NicBackend::Bridge { device: "br0".parse().unwrap(), vlan: Some(VlanId::new(7).unwrap()) }
        );
        assert!(serde_json::from_str::<Nic>(r#"{"backend":{"type":"user"},"bogus":1}"#).is_err());
        assert_eq!(NicBackend::from(&nic.backend.on_host().unwrap()), nic.backend);
        let lan: Nic = serde_json::from_str(r#"{"backend":{"type":"network","network":"lan"}}"#).unwrap();
        assert_eq!((lan.backend.network().unwrap().as_str(), lan.backend.on_host()), ("lan", None));
        assert!(serde_json::from_str::<Nic>(r#"{"backend":{"type":"user"},"mac":"no"}"#).is_err());
        assert_eq!(serde_json::from_str::<Boot>(r#"{"type":"disk"}"#).unwrap(), Boot::default());
        let order = r#"{"type":"disk","order":["disk1","cdrom","nic0"]}"#;
        let boot = serde_json::from_str::<Boot>(order).unwrap();
        assert_eq!(serde_json::to_string(&boot).unwrap(), order);
    }
}
