//! The server's transport: KMIP over mutual TLS 1.2 or 1.3 on tokio (KMIP Profiles 1.4, section 3).
//!
//! ```text
//! accept -> slot -> handshake -> [ header -> length checked -> body -> decode -> Service::handle -> response ]*
//! ```
//! A connection has one request under way at a time, each step has a limit ([`ServerLimits`]), and
//! whoever passes one is refused, on record ([`Observer`]), without harm to the others. What a
//! request means and who may ask it is the [`Service`]'s; whose certificates are good is decided by
//! the verifier of the TLS configuration.
//!
//! A request that is no KMIP is answered with an error where that can be done. If its bytes are no
//! TTLV the connection is closed then, since nobody knows where the next request starts.

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
