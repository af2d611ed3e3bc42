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
