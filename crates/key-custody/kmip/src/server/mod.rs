//! The server's transport: KMIP over mutual TLS 1.2 or 1.3 on tokio (KMIP Profiles 1.4, section 3).
//!
//! ```text
//! accept -> slot -> handshake -> [ header -> length checked -> body -> decode -> Service::handle -> response ]*
//! ```
//! A connection has one request in progress at a time, and each step has a limit
//! ([`ServerLimits`]). A client beyond a limit is refused, on record ([`Observer`]), and others are
//! not affected. The [`Service`] decides what a request means and who may make it; the verifier of
//! the TLS configuration decides which certificates are good.
//!
//! A request that is not KMIP is answered with an error if possible. If its bytes are not TTLV, the
//! connection is then closed, because the start of the next request is unknown.

mod connection;
mod limits;
mod observer;
mod registry;
mod run;
mod service;

#[cfg(test)]
mod tests;

pub use limits::ServerLimits;
pub use observer::{Observer, Refusal, RefusalReason};
pub use run::{Server, ServerHandle};
pub use service::{Fingerprint, Peer, Service};
