//! Pending destructions at any provider, as answers of the commands.

use serde::Serialize;
use strongroom_jobs::destructions::Kept;
use strongroom_keyserver::evidence::DataKeyFate;
use strongroom_keyserver::management::protocol::DestructionAnswer;

use crate::output::utc;

/// A pending destruction, at any provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WaitingDestruction {
    /// Who requested it.
    pub requested_by: String,
    /// When it was requested.
    pub requested_unix_seconds: u64,
    /// The earliest time of the destruction.
    pub due_unix_seconds: u64,
    /// The reason.
    pub reason: String,
    /// The person who confirmed it.
    pub confirmed_by: Option<String>,
    /// Whether the key server itself enforces the delay.
    pub enforced: bool,
    /// What became of the data keys that were under the key, when the embedded key server was asked
    /// to destroy it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_keys: Option<DataKeyFate>,
}

/// As text that follows "destruction".
impl std::fmt::Display for WaitingDestruction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "due {}", utc(self.due_unix_seconds))?;
        match (&self.confirmed_by, self.enforced) {
            (Some(second), _) => write!(f, ", confirmed by {second}"),
            (None, true) => f.write_str(", not confirmed"),
            (None, false) => Ok(()),
        }
    }
}

impl From<&DestructionAnswer> for WaitingDestruction {
    fn from(answer: &DestructionAnswer) -> Self {
        let seconds = |seconds| u64::try_from(seconds).unwrap_or_default();
        Self {
            requested_by: answer.requested_by.name.to_string(),
            requested_unix_seconds: seconds(answer.requested_unix_seconds),
            due_unix_seconds: seconds(answer.due_unix_seconds),
            reason: answer.reason.clone(),
            confirmed_by: answer.confirmed_by.as_ref().map(|person| person.name.to_string()),
            enforced: true,
            data_keys: answer.data_keys,
        }
    }
}

impl From<&Kept> for WaitingDestruction {
    fn from(kept: &Kept) -> Self {
        Self {
            requested_by: format!("user {}", kept.requested_by_uid),
            requested_unix_seconds: kept.requested_unix_seconds,
            due_unix_seconds: kept.due_unix_seconds,
            reason: kept.reason.clone(),
            confirmed_by: None,
            enforced: false,
            data_keys: None,
        }
    }
}
