//! The main board and its firmware.

use serde::{Deserialize, Serialize};

/// The virtual main board.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum MachineType {
    /// PCI Express.
    #[default]
    Q35,
    /// i440FX, for old guests.
    Pc,
}

/// The guest's firmware.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Firmware {
    /// Legacy BIOS.
    #[default]
    Bios,
    /// UEFI, with its variables in a sealed volume.
    Uefi,
}

/// The parts of a machine that take no volume and no file of the host. Each contract that shows a
/// VM (interface, inventory, wire, `vm.json`) has these fields among its own, so a part that is
/// added here is in all of them: it takes its argument to QEMU, and its option of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Board {
    /// The main board.
    #[serde(default)]
    pub machine: MachineType,
    /// Whether it has a screen, which is shown over VNC.
    #[serde(default = "yes")]
    pub vnc: bool,
    /// Whether it has the channel of the guest agent (`org.qemu.guest_agent.0`).
    #[serde(default = "yes")]
    pub guest_agent: bool,
}

fn yes() -> bool {
    true
}

impl Default for Board {
    fn default() -> Self {
        Self { machine: MachineType::default(), vnc: true, guest_agent: true }
    }
}

impl Board {
    /// A board without a screen and without the channel of an agent.
    pub const fn bare(machine: MachineType) -> Self {
        Self { machine, vnc: false, guest_agent: false }
    }
}
