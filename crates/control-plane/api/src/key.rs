//! Keys and their providers: names and states, never a key.

use serde::{Deserialize, Serialize};
use strongroom_types::VmId;
use utoipa::ToSchema;

/// A key provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyProvider {
    /// Its name.
    pub name: String,
    /// `embedded`, `kmip` or `vault`.
    pub kind: String,
    /// Whether it answers.
    pub healthy: bool,
    /// Why not, or what should be looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Until when its certificate is good, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_expires_unix_seconds: Option<u64>,
    /// When its server was backed up last, in seconds since 1970; 0: never. None where that is not
    /// ours to know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_backup_unix_seconds: Option<u64>,
}

/// How the keys of a VM stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyStatus {
    /// The VM.
    #[schema(value_type = String, format = Uuid)]
    pub vm: VmId,
    /// Whether it is sealed.
    pub encrypted: bool,
    /// Its keys.
    pub keys: Vec<KeyStanding>,
}

/// How one key stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyStanding {
    /// The provider's name.
    pub provider: String,
    /// Its id there.
    pub key: String,
    /// How it stands.
    pub state: KeyState,
    /// Why, if there is something to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it should be replaced, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_unix_seconds: Option<u64>,
}

/// How a key stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeyState {
    /// It seals and opens.
    Active,
    /// It opens what it has sealed.
    Deactivated,
    /// It was revoked as compromised.
    Compromised,
    /// It is gone.
    Destroyed,
    /// Its provider cannot be asked.
    Unavailable,
    /// It has been asked for and is not there yet.
    Pending,
    /// The provider does not say.
    #[serde(other)]
    Unknown,
}
