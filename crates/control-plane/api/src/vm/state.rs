//! The states of a VM, actual and desired.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The state that a user wants for a VM. The inventory records it before anything is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DesiredPower {
    /// Off.
    #[default]
    Stopped,
    /// On.
    Running,
    /// On, with paused CPUs.
    Paused,
}

/// The state of a VM as its host reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PowerState {
    /// Off.
    Stopped,
    /// Starting.
    Starting,
    /// On.
    Running,
    /// Its CPUs are paused.
    Paused,
    /// Stopping.
    Stopping,
    /// It ended unexpectedly.
    Crashed,
    /// It waits for a key.
    KeyUnavailable,
    /// Off, with its memory encrypted on disk; its next start resumes it.
    Suspended,
    /// Its host cannot be reached, or was not asked yet.
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

    /// Its name in the JSON.
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

    /// Whether it has a QEMU process, or may have one.
    pub const fn is_on(self) -> bool {
        !matches!(self, Self::Stopped | Self::Crashed | Self::Suspended)
    }
}

/// The stage of a VM's life in the inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Lifecycle {
    /// Its volumes are being made.
    Creating,
    /// It exists.
    Present,
    /// It is being deleted.
    Deleting,
}

/// The state of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VolumeState {
    /// Not in use.
    Idle,
    /// In use.
    Exposed,
    /// It has a problem, which its VM's `reason` describes.
    Troubled,
    /// Its state is not known.
    #[default]
    #[serde(other)]
    Unknown,
}
