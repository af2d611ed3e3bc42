//! Identifiers of managed objects.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A managed object's Unique Identifier: a random UUID (RFC 9562, version 4), shown in lower case
/// with hyphens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ObjectId(Uuid);

/// The text names no object of this server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an object identifier of this server: those are UUIDs")]
pub struct NotAnObjectId;

impl ObjectId {
    /// A new random identifier.
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// Its 16 bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// The identifier with these 16 bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(formatter)
    }
}

impl FromStr for ObjectId {
    type Err = NotAnObjectId;

    /// Accepts only the spelling that the server gives out, so that an object never has two
    /// identifiers.
    fn from_str(text: &str) -> Result<Self, NotAnObjectId> {
        let id = Self(Uuid::try_parse(text).map_err(|_| NotAnObjectId)?);
        let spelling = &mut Uuid::encode_buffer();
        if id.0.hyphenated().encode_lower(spelling) == text { Ok(id) } else { Err(NotAnObjectId) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_has_one_spelling() {
        let id = ObjectId::random();
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(id.to_string().to_uppercase().replace('-', "").parse::<ObjectId>(), Err(NotAnObjectId));
        assert_eq!("DEADBEEFCAFE".parse::<ObjectId>(), Err(NotAnObjectId));
        assert_eq!(ObjectId::from_bytes(*id.as_bytes()), id);
    }
}
