//! Keys and their providers: names and states, but never a key.

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
    /// Why it does not answer, or what an operator should check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When its certificate expires, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_expires_unix_seconds: Option<u64>,
    /// When its server was last backed up, in seconds since 1970; 0 means never. Absent for a
    /// server that Strongroom does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_backup_unix_seconds: Option<u64>,
}

/// The state of a VM's keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyStatus {
    /// The VM.
    #[schema(value_type = String, format = Uuid)]
    pub vm: VmId,
    /// Whether it is encrypted.
    pub encrypted: bool,
    /// Its keys.
    pub keys: Vec<KeyStanding>,
}

/// The state of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyStanding {
    /// The provider's name.
    pub provider: String,
    /// Its id at the provider.
    pub key: String,
    /// Its state.
    pub state: KeyState,
    /// The reason for that state, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it should be replaced, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_unix_seconds: Option<u64>,
}

/// The state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeyState {
    /// It encrypts and decrypts.
    Active,
    /// It only decrypts data that it has encrypted.
    Deactivated,
    /// It was revoked as compromised.
    Compromised,
    /// It was destroyed.
    Destroyed,
    /// Its provider cannot be reached.
    Unavailable,
    /// It was requested and is not available yet.
    Pending,
    /// The provider does not report a state.
    #[serde(other)]
    Unknown,
}
