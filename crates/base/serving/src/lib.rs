//! What all listeners of Strongroom have in common, independent of the requests that they serve.
//!
//! | file | holds |
//! |---|---|
//! | `places` | places for connections: strangers displace each other, known peers keep theirs |
//! | `connections` | accepting, the connections that there are, and their end in order |
//! | `handshake` | TLS with a deadline, of either side (feature `tls`) |
//! | `http` | HTTP/1.1 to an [axum] router, within limits (feature `http`) |
//! | `outbound` | clients of other HTTPS servers: whom they trust, and where they do not go (feature `https-client`) |
//! | `relay` | passing bytes on between two streams (feature `tls`) |
//! | `exchange` | HTTP requests over a connection, for clients (feature `http`) |
//!
//! The control plane's API, the key server's enrolment and administration, its KMIP port, and
//! hostd's control socket and port use this crate. Each chooses its limits; none implements
//! accepting, handshakes or draining itself.
#![forbid(unsafe_code)]

mod connections;
#[cfg(feature = "http")]
mod exchange;
#[cfg(feature = "tls")]
mod handshake;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "https-client")]
mod outbound;
mod places;
#[cfg(feature = "tls")]
mod relay;

pub use self::connections::Connections;
#[cfg(feature = "http")]
pub use self::exchange::{Answered, ClientConnection, ExchangeError, ExchangeLimits, exchange};
#[cfg(feature = "tls")]
pub use self::handshake::{HandshakeError, shake_hands, shake_hands_choosing, shake_hands_with};
#[cfg(feature = "http")]
pub use self::http::{BodyError, HttpLimits, read_body, serve_http};
#[cfg(feature = "https-client")]
pub use self::outbound::{
    NoCertificates, client_certificate_of, client_of, client_with_key, machine_roots, roots_of,
};
pub use self::places::{Full, Limits, Place, Places, network_of};
#[cfg(feature = "tls")]
pub use self::relay::relay;
