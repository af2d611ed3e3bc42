//! Errors as a program and a person get them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The body of every answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: Problem,
}

/// What is wrong, and what can be done about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, thiserror::Error)]
#[error("{message}")]
pub struct Problem {
    /// For programs.
    pub code: ErrorCode,
    /// For people: one sentence with the object's name.
    pub message: String,
    /// What to do next, if there is something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_step: Option<String>,
}

impl Problem {
    /// A problem without a next step.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), next_step: None }
    }

    /// The same with what to do next.
    #[must_use]
    pub fn next(self, next_step: impl Into<String>) -> Self {
        Self { next_step: Some(next_step.into()), ..self }
    }
}

/// Kinds of errors. Their names never change their meaning; new ones may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request is not of the form that the operation takes.
    Malformed,
    /// Of the right form, and a value is outside of its limits.
    Invalid,
    /// No token, or none that is known.
    Unauthorized,
    /// There is no such object.
    NotFound,
    /// There is no such path.
    NoSuchPath,
    /// The path takes other methods.
    MethodNotAllowed,
    /// The name is taken.
    NameTaken,
    /// The object is not in a state in which this can be done.
    Conflict,
    /// A task works on the object.
    Busy,
    /// The object was changed since the caller read it.
    Stale,
    /// Something still uses the object.
    InUse,
    /// A volume with this id is known already.
    VolumeKnown,
    /// The `Idempotency-Key` was used for another request.
    KeyReused,
    /// The body or a header is too long.
    TooLarge,
    /// The body is not JSON.
    UnsupportedMediaType,
    /// Too many requests, tasks or connections at a time.
    TooMany,
    /// The cursor is not one of this list.
    BadCursor,
    /// A key cannot be had now.
    KeyUnavailable,
    /// A key was destroyed or revoked.
    KeyRevoked,
    /// The host cannot be reached.
    HostUnavailable,
    /// No host can take the VM.
    NoHost,
    /// The datastore has no room.
    DatastoreFull,
    /// The datastore cannot be read or written.
    DatastoreUnavailable,
    /// The host refused or failed.
    HostFailed,
    /// Cancelled.
    Cancelled,
    /// The server cannot do this now.
    Unavailable,
    /// The request took too long.
    Timeout,
    /// A defect of the server.
    Internal,
    /// One that this program does not know yet.
    #[serde(other)]
    Unknown,
}

impl ErrorCode {
    /// Those that a server of this version answers with.
    pub const ALL: [Self; 28] = [
        Self::Malformed,
        Self::Invalid,
        Self::Unauthorized,
        Self::NotFound,
        Self::NoSuchPath,
        Self::MethodNotAllowed,
        Self::NameTaken,
        Self::Conflict,
        Self::Busy,
        Self::Stale,
        Self::InUse,
        Self::VolumeKnown,
        Self::KeyReused,
        Self::TooLarge,
        Self::UnsupportedMediaType,
        Self::TooMany,
        Self::BadCursor,
        Self::KeyUnavailable,
        Self::KeyRevoked,
        Self::HostUnavailable,
        Self::NoHost,
        Self::DatastoreFull,
        Self::DatastoreUnavailable,
        Self::HostFailed,
        Self::Cancelled,
        Self::Unavailable,
        Self::Timeout,
        Self::Internal,
    ];

    /// The status of an answer with it (RFC 9110).
    pub const fn http_status(self) -> u16 {
        match self {
            Self::Malformed | Self::BadCursor => 400,
            Self::Unauthorized => 401,
            Self::NotFound | Self::NoSuchPath => 404,
            Self::MethodNotAllowed => 405,
            Self::Timeout => 408,
            Self::NameTaken
            | Self::Conflict
            | Self::Busy
            | Self::InUse
            | Self::VolumeKnown
            | Self::KeyRevoked
            | Self::Cancelled
            | Self::KeyUnavailable
            | Self::NoHost
            | Self::DatastoreFull
            | Self::DatastoreUnavailable
            | Self::HostFailed => 409,
            Self::Stale => 412,
            Self::TooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::Invalid | Self::KeyReused => 422,
            Self::TooMany => 429,
            Self::Internal | Self::Unknown => 500,
            Self::HostUnavailable | Self::Unavailable => 503,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_of_a_later_version_is_read() {
        let body: ErrorBody =
            serde_json::from_str(r#"{"error":{"code":"phase_of_moon","message":"m","more":1}}"#).unwrap();
        assert_eq!(body.error, Problem::new(ErrorCode::Unknown, "m"));
    }

    #[test]
    fn an_error_reads_as_documented() {
        let problem = Problem::new(ErrorCode::NameTaken, "there is a VM web1").next("choose another name");
        let json = serde_json::to_string(&ErrorBody { error: problem }).unwrap();
        assert_eq!(
            json,
            r#"{"error":{"code":"name_taken","message":"there is a VM web1","next_step":"choose another name"}}"#
        );
    }
}
