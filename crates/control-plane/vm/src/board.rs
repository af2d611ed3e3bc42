//! The main board and its firmware.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::machine_version::MachineVersion;
use crate::processor_model::ProcessorModel;

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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Board {
    /// The main board.
    #[serde(default)]
    pub machine: MachineType,
    /// The version of the main board, as in `pc-q35-7.2`. In a request for a VM, absent means what
    /// its host's QEMU takes for the present one. A VM without one was made by an earlier version,
    /// and gets one in the same way at its next start.
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>, max_length = 64))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_type: Option<MachineVersion>,
    /// The processor that the guest sees: `host`, a level such as `x86-64-v3`, or a model of QEMU.
    /// In a request for a VM, absent means that of its policy, or `host`.
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>, max_length = 64))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<ProcessorModel>,
    /// Whether it has a screen, which is shown over VNC.
    #[serde(default = "yes")]
    pub vnc: bool,
    /// Whether it has the channel of the guest agent (`org.qemu.guest_agent.0`).
    #[serde(default = "yes")]
    pub guest_agent: bool,
}

/// A version of another main board.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0} is a version of another main board")]
pub struct BoardError(pub MachineVersion);

fn yes() -> bool {
    true
}

impl Default for Board {
    fn default() -> Self {
        Self {
            machine: MachineType::default(),
            machine_type: None,
            processor: None,
            vnc: true,
            guest_agent: true,
        }
    }
}

impl Board {
    /// A board without a screen and without the channel of an agent.
    pub const fn bare(machine: MachineType) -> Self {
        Self { machine, machine_type: None, processor: None, vnc: false, guest_agent: false }
    }

    /// The processor that the guest sees.
    pub fn processor(&self) -> &ProcessorModel {
        self.processor.as_ref().unwrap_or(&ProcessorModel::Host)
    }

    /// Whether it has something that hosts know only since they report
    /// [`Capabilities`](crate::Capabilities).
    pub fn is_pinned(&self) -> bool {
        self.machine_type.is_some() || self.processor.is_some()
    }

    /// Checks that its version is one of its board.
    ///
    /// # Errors
    /// If it is a version of another board.
    pub fn check(&self) -> Result<(), BoardError> {
        match &self.machine_type {
            Some(version) if version.machine() != self.machine => Err(BoardError(version.clone())),
            Some(_) | None => Ok(()),
        }
    }
}
