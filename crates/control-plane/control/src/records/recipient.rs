//! Recipients of alarms.

use serde::{Deserialize, Serialize};
use strongroom_api::alarm::Severity;
use strongroom_api::recipient::Destination;
use strongroom_api::{Name, ObjectKind, ObjectRef};
use uuid::Uuid;

/// A recipient.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecipientRecord {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: Name,
    /// Where messages are sent.
    pub to: Destination,
    /// The least severe alarms that it is sent.
    pub severity: Severity,
    /// The last event before it was made, which it is not sent.
    pub after: u64,
}

impl RecipientRecord {
    /// Its reference in answers.
    pub fn object(&self) -> ObjectRef {
        ObjectRef { kind: ObjectKind::Recipient, id: Some(self.id), name: self.name.to_string() }
    }
}

/// What a recipient has taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryRecord {
    /// The recipient.
    pub recipient: Uuid,
    /// The last event that it was sent, or that was not for it.
    pub through: u64,
    /// When it last took a message, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_unix_ms: Option<u64>,
}
