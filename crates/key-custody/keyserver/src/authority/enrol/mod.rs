//! Enrolment: how a new client gets its first certificate, and any client its next.
//!
//! An administrator makes a token for a client of a given name and role, and carries it to the
//! machine. There it is good once, for a limited time, for that name and role, and optionally for
//! one key only. It holds the authority's fingerprint, so that the machine can verify the server on
//! first contact. The server keeps only a digest of its secret, so that a stolen store contains no
//! token.
//!
//! | file | what |
//! |---|---|
//! | [`token`] | tokens: made, written, listed, cancelled |
//! | [`redeem`] | a token and a signing request become a certificate, in one transaction |
//! | [`protocol`] | requests and answers, JSON |
//! | [`server`] | the port: HTTP/1.1 over TLS, with strict limits |
//! | [`client`] | the other side, blocking |
//! | `failures` | delays for clients that fail often |
//!
//! **Order of a redemption.** Check the proof of possession and the token, and make the certificate
//! in memory; then one transaction that marks the token used and stores the certificate's record;
//! then the audit record; then the answer. A crash before the transaction leaves an unused token.
//! After it, the same token with the same key gets the same certificate again until the token
//! expires. So a lost answer strands no client, and no token yields two certificates.

pub mod client;
mod failures;
mod office;
pub mod protocol;
pub mod redeem;
pub mod server;
pub mod token;

pub use client::{Client, ClientError};
pub use protocol::{CertificateResponse, EnrolRequest, ErrorResponse, RenewRequest};
pub use redeem::EnrolRefusal;
pub use server::{EnrolmentEvent, EnrolmentRecord, NotRecorded};
pub use token::{EnrolmentToken, NewToken, TokenId, TokenState, TokenSummary};

pub(super) use token::forget_expired;

#[cfg(test)]
mod tests;
