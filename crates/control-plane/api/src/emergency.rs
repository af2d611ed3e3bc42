//! Emergency credentials ("break-glass"): a way in when nobody can sign in as usual. Each is made
//! in advance, works once, and is seen by everyone whom alarms reach.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::access::ShownOnce;
use crate::checked_text::checked_text;
use crate::limits::{EMERGENCY_REASON_BYTES_MAX, EMERGENCY_SECRET_BYTES_MAX};
use crate::name::Name;

/// An emergency credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EmergencyCredential {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: Name,
    /// Whether it can be used: it has not been since it was made or rotated.
    pub usable: bool,
    /// When it was made or rotated, in seconds since 1970.
    pub created_unix_seconds: u64,
    /// Its last use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_use: Option<EmergencyUse>,
}

/// The use of an emergency credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EmergencyUse {
    /// When, in seconds since 1970.
    pub at_unix_seconds: u64,
    /// The address that it was used from.
    pub from: String,
    /// The reason that was given.
    pub reason: String,
    /// Who has acknowledged it; absent while the alarm is raised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged_by: Option<String>,
}

/// A request for an emergency credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateEmergency {
    /// Its name.
    pub name: Name,
}

/// A new secret of an emergency credential. Only this answer has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewEmergency {
    /// What is known of it.
    pub info: EmergencyCredential,
    /// The secret, for paper in a sealed envelope: letters and digits in groups of four.
    pub secret: ShownOnce,
}

/// A request for a session by an emergency credential, which can then not be used again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EmergencySignIn {
    /// The secret. Case, spaces and dashes do not matter.
    pub secret: EmergencySecret,
    /// The reason, which everyone is told.
    pub reason: EmergencyReason,
}

checked_text!(
    /// The secret of an emergency credential, as a person types it. It is not printed.
    EmergencySecret,
    check_secret,
    schema(value_type = String, min_length = 1, max_length = 128, format = Password)
);
checked_text!(
    /// The reason for an emergency sign-in.
    EmergencyReason,
    check_reason,
    schema(value_type = String, min_length = 1, max_length = 500)
);

impl std::fmt::Debug for EmergencySecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EmergencySecret(..)")
    }
}

impl std::fmt::Debug for EmergencyReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EmergencyReason({})", self.0)
    }
}

fn check_secret(text: &str) -> Result<(), String> {
    if text.is_empty() || text.len() > EMERGENCY_SECRET_BYTES_MAX {
        return Err(format!("an emergency credential has 1 to {EMERGENCY_SECRET_BYTES_MAX} bytes"));
    }
    Ok(())
}

fn check_reason(text: &str) -> Result<(), String> {
    if text.trim().is_empty() || text.len() > EMERGENCY_REASON_BYTES_MAX || text.chars().any(char::is_control)
    {
        return Err(format!(
            "a reason has 1 to {EMERGENCY_REASON_BYTES_MAX} bytes, and no control characters"
        ));
    }
    Ok(())
}
