//! Records of requests and their outcomes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::AuditError;
use crate::limits::{FIELDS_MAX, OBJECTS_MAX, TEXT_MAX_BYTES};

/// One request and its outcome. The log adds the time and the place in the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The actor.
    pub actor: Actor,
    /// The action: a KMIP operation's name, or a word for one of the server's own tasks.
    pub action: String,
    /// The ids of the objects concerned, in the order of the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<String>,
    /// The outcome.
    pub outcome: Outcome,
    /// Why it was denied or failed, or its purpose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The request's id, as other logs name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// Further facts, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, String>,
}

/// The actor of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Actor {
    /// SHA-256 of the certificate's DER, in hexadecimal; `None` for an actor without a certificate,
    /// and for the server itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// The actor's role.
    pub role: String,
    /// The name in the certificate, or of the server's own task.
    pub name: String,
    /// Where the request came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It was allowed, and takes effect once this record is durable.
    Done,
    /// The actor is not permitted.
    Denied,
    /// The actor is permitted, but the action was not possible.
    Failed,
}

impl Record {
    /// A record without the optional parts.
    pub fn new(actor: Actor, action: impl Into<String>, outcome: Outcome) -> Self {
        Self {
            actor,
            action: action.into(),
            objects: Vec::new(),
            outcome,
            reason: None,
            request: None,
            fields: BTreeMap::new(),
        }
    }

    /// Adds the id of an object.
    #[must_use]
    pub fn object(mut self, id: impl Into<String>) -> Self {
        self.objects.push(id.into());
        self
    }

    /// Adds the reason.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Adds the request's id.
    #[must_use]
    pub fn request(mut self, request: impl Into<String>) -> Self {
        self.request = Some(request.into());
        self
    }

    /// Adds a free field.
    #[must_use]
    pub fn field(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.fields.insert(name.into(), value.into());
        self
    }

    /// Whether the log accepts the record. Long texts are refused and never shortened, because a
    /// reader of the log could not tell.
    ///
    /// # Errors
    /// [`AuditError::TooLarge`] beyond one of the [limits](crate::limits).
    pub fn check(&self) -> Result<(), AuditError> {
        within("objects", self.objects.len(), OBJECTS_MAX)?;
        within("free fields", self.fields.len(), FIELDS_MAX)?;
        let actor = [Some(&self.actor.role), Some(&self.actor.name), self.actor.fingerprint.as_ref()];
        let about =
            [Some(&self.action), self.reason.as_ref(), self.request.as_ref(), self.actor.address.as_ref()];
        let fields = self.fields.iter().flat_map(|(name, value)| [name, value]);
        let texts = actor.into_iter().chain(about).flatten().chain(&self.objects).chain(fields);
        texts.into_iter().try_for_each(|text| within("bytes in a text", text.len(), TEXT_MAX_BYTES))
    }
}

fn within(what: &'static str, asked: usize, most: usize) -> Result<(), AuditError> {
    if asked > most { Err(AuditError::TooLarge { what, asked, most }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record::new(
            Actor { role: "host".into(), name: "h1".into(), ..Actor::default() },
            "Get",
            Outcome::Denied,
        )
    }

    #[test]
    fn a_record_at_the_limits_passes_and_one_beyond_does_not() {
        let text = "x".repeat(TEXT_MAX_BYTES);
        assert!(record().object(&text).reason(&text).field("f", &text).check().is_ok());
        let longer = format!("{text}x");
        let beyond = [
            record().object(&longer),
            record().reason(&longer),
            record().request(&longer),
            record().field(&longer, ""),
            record().field("", &longer),
            Record { action: longer.clone(), ..record() },
            Record { actor: Actor { name: longer.clone(), ..Actor::default() }, ..record() },
        ];
        for record in beyond {
            assert!(matches!(record.check(), Err(AuditError::TooLarge { asked: 1025, .. })));
        }
        let many = (0..=OBJECTS_MAX).fold(record(), |record, n| record.object(n.to_string()));
        assert!(many.check().is_err());
        let many = (0..=FIELDS_MAX).fold(record(), |record, n| record.field(n.to_string(), ""));
        assert!(many.check().is_err());
    }
}
