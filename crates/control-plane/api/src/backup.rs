//! Backups of the inventory.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// A backup of the inventory: a file in the directory for them, which custodians open together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InventoryBackup {
    /// Its id, which is in its header.
    pub id: Uuid,
    /// The file, on the control plane's machine.
    pub file: String,
    /// Its length in bytes.
    pub length_bytes: u64,
    /// When it was made, in seconds since 1970.
    pub created_unix_seconds: u64,
    /// How many custodians are needed to open it.
    pub threshold: u8,
    /// The custodians.
    pub custodians: Vec<String>,
    /// The number of entries of the inventory.
    pub entries: u64,
}

/// A request for a backup of the inventory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MakeInventoryBackup {
    /// Whether the access log is left out. After a restore it begins anew.
    #[serde(default)]
    pub without_access_log: bool,
}
