//! Emergency credentials.

use serde::{Deserialize, Serialize};
use strongroom_api::Name;
use strongroom_api::emergency::EmergencyUse;
use uuid::Uuid;

/// An emergency credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmergencyRecord {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: Name,
    /// SHA-256 of the secret, in hexadecimal; absent once it was used.
    pub sha256: Option<String>,
    /// When it was made or rotated, in seconds since 1970.
    pub created_unix_seconds: u64,
    /// Its last use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_use: Option<EmergencyUse>,
}

impl EmergencyRecord {
    /// Its last use, if nobody has acknowledged it.
    pub fn unacknowledged(&self) -> Option<&EmergencyUse> {
        self.last_use.as_ref().filter(|used| used.acknowledged_by.is_none())
    }
}
