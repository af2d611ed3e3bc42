//! In what state a VM is, and in which it should be.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What somebody wants of a VM. It stands in the inventory before anything is done for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DesiredPower {
    /// Off.
    #[default]
    Stopped,
    /// On.
    Running,
    /// On, with its CPUs standing still.
    Paused,
}

/// What its host says of a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PowerState {
    /// Off.
    Stopped,
    /// On its way on.
    Starting,
    /// On.
    Running,
    /// Its CPUs stand still.
    Paused,
    /// On its way off.
    Stopping,
    /// It ended without being told to.
    Crashed,
    /// It waits for a key.
    KeyUnavailable,
    /// Off, with its memory sealed: its next start goes on with it.
    Suspended,
    /// Its host cannot be asked, or has not been yet.
    #[default]
    #[serde(other)]
    Unknown,
}

impl PowerState {
    /// Every state.
    pub const ALL: [Self; 9] = [
        Self::Stopped,
        Self::Starting,
        Self::Running,
        Self::Paused,
        Self::Stopping,
        Self::Crashed,
        Self::KeyUnavailable,
        Self::Suspended,
        Self::Unknown,
    ];

    /// Its name as in the JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopping => "stopping",
            Self::Crashed => "crashed",
            Self::KeyUnavailable => "key_unavailable",
            Self::Suspended => "suspended",
            Self::Unknown => "unknown",
        }
    }

    /// Whether a QEMU of it is there, or may be.
    pub const fn is_on(self) -> bool {
        !matches!(self, Self::Stopped | Self::Crashed | Self::Suspended)
    }
}

/// Where a VM is between being wished for and being gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Lifecycle {
    /// Its volumes are being made.
    Creating,
    /// It is there.
    Present,
    /// It is being deleted.
    Deleting,
}

/// How a volume is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VolumeState {
    /// Not in use.
    Idle,
    /// In use.
    Exposed,
    /// Something is wrong with it; its VM's `reason` says what.
    Troubled,
    /// Not known.
    #[default]
    #[serde(other)]
    Unknown,
}
