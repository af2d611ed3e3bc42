//! The main board and what starts on it.

use serde::{Deserialize, Serialize};

/// The virtual main board.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum MachineType {
    /// PCI Express.
    #[default]
    Q35,
    /// The i440FX of old guests.
    Pc,
}

/// What starts the guest.
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
