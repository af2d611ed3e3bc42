//! Failures of operations, in KMIP's terms.

use strongroom_kmip::codec::DecodeError;
use strongroom_kmip::protocol::ResultReason;
use strongroom_memory::secret::SecretError;

use strongroom_store::StoreError;

use crate::objects::attributes::AttributeError;
use crate::objects::keeping::KeepingError;
use crate::objects::lifecycle::LifeCycleError;
use crate::objects::sealing::SealingError;

/// Longest message of a failure. Some quote the client's text, which may be long, and each goes on
/// record.
const MESSAGE_MAX_BYTES: usize = 512;

/// A failed batch item, which changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct Failure {
    /// The reason for programs.
    pub reason: ResultReason,
    /// The reason for people. It reveals nothing that the client may not know.
    pub message: String,
    /// Whether it is only that an external provider does not answer now. A grant is not used up for
    /// that.
    pub provider_is_away: bool,
}

impl Failure {
    /// A failure for that reason.
    pub fn new(reason: ResultReason, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MESSAGE_MAX_BYTES {
            message.truncate(message.floor_char_boundary(MESSAGE_MAX_BYTES));
            message.push('…');
        }
        Self { reason, message, provider_is_away: false }
    }

    /// The client lacks permission.
    pub fn denied(message: impl Into<String>) -> Self {
        Self::new(ResultReason::PermissionDenied, message)
    }

    /// There is no such object, or it is destroyed.
    pub fn not_found() -> Self {
        Self::new(ResultReason::ItemNotFound, "there is no such object")
    }

    /// A field has an invalid value.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ResultReason::InvalidField, message)
    }

    /// This server does not offer that.
    pub fn not_offered(message: impl Into<String>) -> Self {
        Self::new(ResultReason::FeatureNotSupported, message)
    }

    /// The server failed through no fault of the client. The cause goes to the log, not to the
    /// client.
    pub fn internal(cause: &dyn std::error::Error) -> Self {
        tracing::error!(%cause, "an operation failed");
        Self::new(ResultReason::GeneralFailure, "the server could not do it; its log says why")
    }
}

impl From<KeepingError> for Failure {
    fn from(error: KeepingError) -> Self {
        match error {
            KeepingError::NotFound { .. } => Self::not_found(),
            KeepingError::NameTaken { .. } => Self::invalid(error.to_string()),
            KeepingError::Sealing(SealingError::TooLong { .. }) => Self::invalid(error.to_string()),
            KeepingError::Store(StoreError::TooLarge { .. }) => Self::new(
                ResultReason::InvalidMessage,
                "too much for one transaction; ask for less at a time",
            ),
            KeepingError::Store(StoreError::Uncertain { .. }) => {
                tracing::error!(%error, "an operation may have been done");
                Self::new(
                    ResultReason::GeneralFailure,
                    "it is not known whether it was done; look before you ask again",
                )
            }
            error => Self::internal(&error),
        }
    }
}

impl From<LifeCycleError> for Failure {
    fn from(error: LifeCycleError) -> Self {
        match error {
            LifeCycleError::NoTransition { .. } | LifeCycleError::DateIsFixed { .. } => {
                Self::denied(error.to_string())
            }
            LifeCycleError::DatesOutOfOrder { .. } => Self::invalid(error.to_string()),
            LifeCycleError::Archived { .. } => Self::new(ResultReason::ObjectArchived, error.to_string()),
        }
    }
}

impl From<AttributeError> for Failure {
    fn from(error: AttributeError) -> Self {
        let reason = match error {
            AttributeError::NoSuchInstance { .. } => ResultReason::ItemNotFound,
            AttributeError::Single { .. } => ResultReason::InvalidField,
            AttributeError::TooMany => ResultReason::IndexOutOfBounds,
        };
        Self::new(reason, error.to_string())
    }
}

impl From<DecodeError> for Failure {
    fn from(error: DecodeError) -> Self {
        Self::new(ResultReason::from(&error), error.to_string())
    }
}

impl From<SecretError> for Failure {
    fn from(error: SecretError) -> Self {
        match error {
            SecretError::TooLong { .. } => Self::invalid(error.to_string()),
            error => Self::internal(&error),
        }
    }
}
