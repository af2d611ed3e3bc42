//! Enrolment: how a new client gets its first certificate, and any client its next.
//!
//! Someone with the role `admin` makes a token for a client of a given name and role, and carries
//! it to the machine. There it is good once, for a while, for that name and role, and, if it was
//! made so, for one key alone. It holds the fingerprint of the authority, so that the machine knows
//! on the first contact that it speaks with the right server; and the server keeps only a digest of
//! its secret, so that a stolen store has no token.
//!
//! | file | what |
//! |---|---|
//! | [`token`] | tokens: made, written, listed, cancelled |
//! | [`redeem`] | a token and a signing request become a certificate, in one transaction |
//! | [`protocol`] | requests and answers, JSON |
//! | [`server`] | the port: HTTP/1.1 over TLS, with strict limits |
//! | [`client`] | the other side, blocking |
//! | `failures` | those who fail often wait |
//!
//! **Order of a redemption.** Proof of possession, token, certificate made in memory; then one
//! transaction that marks the token used and holds the certificate's record; then the audit record;
//! then the answer. A crash before the transaction leaves an unused token; after it, the same token
//! with the same key is answered with the same certificate again until the token expires, so an
//! answer that got lost strands nobody, and no token makes two certificates.

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
