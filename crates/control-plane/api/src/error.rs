//! Errors, for programs and for people.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The body of every error answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: AnsweredProblem,
}

/// A problem as the answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AnsweredProblem {
    /// The problem.
    #[serde(flatten)]
    pub problem: Problem,
    /// The id of the request, by which the server's log names it. Earlier versions had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
}

/// A problem and its next step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, thiserror::Error)]
#[error("{message}")]
pub struct Problem {
    /// The kind, for programs.
    pub code: ErrorCode,
    /// One sentence for people, with the object's name.
    pub message: String,
    /// The next step, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_step: Option<String>,
}

impl Problem {
    /// Makes a problem without a next step.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), next_step: None }
    }

    /// Adds a next step.
    #[must_use]
    pub fn next(self, next_step: impl Into<String>) -> Self {
        Self { next_step: Some(next_step.into()), ..self }
    }
}

/// Kinds of errors. A code never changes its meaning; later versions may add codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request does not have the form that the operation takes.
    Malformed,
    /// The request is well-formed, but a value is outside its limits.
    Invalid,
    /// The request has no token, or an unknown one.
    Unauthorized,
    /// The caller's roles do not permit it.
    Forbidden,
    /// There is no such object, or the caller may not see it.
    NotFound,
    /// There is no such path.
    NoSuchPath,
    /// The path exists, but does not support this method.
    MethodNotAllowed,
    /// The name is taken.
    NameTaken,
    /// The object's state does not allow this operation.
    Conflict,
    /// A task is working on the object.
    Busy,
    /// The object was changed after the caller read it.
    Stale,
    /// Something still uses the object.
    InUse,
    /// A volume with this id is already in the inventory.
    VolumeKnown,
    /// The `Idempotency-Key` was used for a different request.
    KeyReused,
    /// The body or a header is too long.
    TooLarge,
    /// The body is not JSON.
    UnsupportedMediaType,
    /// Too many concurrent requests, tasks or connections.
    TooMany,
    /// The cursor does not belong to this list.
    BadCursor,
    /// A key is unavailable at the moment.
    KeyUnavailable,
    /// A key was destroyed or revoked.
    KeyRevoked,
    /// The host cannot be reached.
    HostUnavailable,
    /// No host can take the VM.
    NoHost,
    /// The datastore is full.
    DatastoreFull,
    /// The datastore cannot be read or written.
    DatastoreUnavailable,
    /// A folder would have more than its quota.
    QuotaExceeded,
    /// The access log is full, so nothing is changed that it could not have.
    AccessLogFull,
    /// A recipient did not take a message.
    RecipientUnreachable,
    /// An identity provider does not answer, or answers what it should not.
    IdentityProviderUnavailable,
    /// The host refused or failed.
    HostFailed,
    /// The task was cancelled.
    Cancelled,
    /// The server cannot serve this request at the moment.
    Unavailable,
    /// The request took too long.
    Timeout,
    /// A defect of the server.
    Internal,
    /// A code that this version of the program does not know.
    #[serde(other)]
    Unknown,
}

impl ErrorCode {
    /// The codes that a server of this version uses.
    pub const ALL: [Self; 33] = [
        Self::Malformed,
        Self::Invalid,
        Self::Unauthorized,
        Self::Forbidden,
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
        Self::QuotaExceeded,
        Self::AccessLogFull,
        Self::RecipientUnreachable,
        Self::IdentityProviderUnavailable,
        Self::HostFailed,
        Self::Cancelled,
        Self::Unavailable,
        Self::Timeout,
        Self::Internal,
    ];

    /// The HTTP status of an answer with this code (RFC 9110).
    pub const fn http_status(self) -> u16 {
        match self {
            Self::Malformed | Self::BadCursor => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
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
            | Self::QuotaExceeded
            | Self::AccessLogFull
            | Self::RecipientUnreachable
            | Self::IdentityProviderUnavailable
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
        assert_eq!(body.error.problem, Problem::new(ErrorCode::Unknown, "m"));
    }

    #[test]
    fn an_error_reads_as_documented() {
        let problem = Problem::new(ErrorCode::NameTaken, "there is a VM web1").next("choose another name");
        let error = AnsweredProblem { problem, request: Some("0123456789abcdef".to_owned()) };
        let json = serde_json::to_string(&ErrorBody { error }).unwrap();
        assert_eq!(
            json,
            r#"{"error":{"code":"name_taken","message":"there is a VM web1","next_step":"choose another name","request":"0123456789abcdef"}}"#
        );
    }
}
