//! KMIP 1.0 to 1.4: TTLV, messages, client and server.
//!
//! Lowest first:
//! - [`ttlv`]: the binary encoding, with its limits; knows no message.
//! - [`codec`]: which structure has which fields, since which version.
//! - [`protocol`]: enumerations, attributes, managed objects, credentials.
//! - [`message`]: requests and responses with a typed payload for every operation, the same for
//!   client and server.
//! - [`server`]: the server's transport over mutual TLS.
//! - [`client`]: blocking calls to one server, over pooled TLS connections.
//!
//! The room implements the protocol and has no policy: permissions, and the meaning of operations,
//! belong to the key server. No input from a peer makes it panic or use more memory than its limits
//! allow, and no byte string or password can be printed.
#![forbid(unsafe_code)]

#[cfg(feature = "network")]
pub mod client;
pub mod codec;
pub mod message;
pub mod protocol;
#[cfg(feature = "network")]
pub mod server;
#[cfg(feature = "network")]
mod tls_residue;
pub mod ttlv;
