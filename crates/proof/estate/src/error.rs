//! Why a site could not be measured.

use std::io;

use strongroom_keyserver::authority::enrol::ClientError;
use strongroom_serving::{ExchangeError, HandshakeError};
use thiserror::Error;

/// Why a site could not be set up, loaded or measured.
#[derive(Debug, Error)]
pub enum EstateError {
    /// A system call failed.
    #[error("cannot {action}: {error}")]
    System {
        /// The action.
        action: &'static str,
        /// The error.
        error: io::Error,
    },
    /// A program failed.
    #[error("{0}")]
    Program(String),
    /// The key server gave a host no certificate.
    #[error("no certificate for a host: {0}")]
    Enrolment(#[from] ClientError),
    /// A certificate, a key or a token cannot be used.
    #[error("{0}")]
    Identity(String),
    /// The API refused a request.
    #[error("{method} {path}: {status}: {body}")]
    Refused {
        /// The request's method.
        method: String,
        /// Its path.
        path: String,
        /// The HTTP status.
        status: u16,
        /// The answer.
        body: String,
    },
    /// The API did not answer.
    #[error("the API does not answer: {0}")]
    Connection(#[from] ExchangeError),
    /// A TLS handshake with the API failed.
    #[error("no TLS with the API: {0}")]
    Handshake(#[from] HandshakeError),
    /// The API answers what was not expected.
    #[error("{0}")]
    Unexpected(String),
    /// Something has not come about in time.
    #[error("{0} has not come about in time")]
    Late(String),
}

/// Names the action of a failed system call.
pub fn system(action: &'static str) -> impl FnOnce(io::Error) -> EstateError {
    move |error| EstateError::System { action, error }
}
