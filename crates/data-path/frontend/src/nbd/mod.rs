//! An NBD server.
//!
//! One server serves one disk, as one export, on a unix socket or over TCP with mutual TLS. Each
//! connection has a lane with its own event loop, memory and channel to the disk; a failure on one
//! affects only that one.
//!
//! Layout, from the wire up:
//! - pure protocol, bytes in and bytes out: [`protocol`] (numbers and limits), [`option`],
//!   [`handshake`], [`request`], [`reply`];
//! - transmission without sockets: [`inbox`], [`outbox`], [`transfers`] (requests in the disk),
//!   [`session`];
//! - sockets: [`socket`], [`transport`] and [`tls`];
//! - lanes: [`connection`], [`connections`] (who may start when), [`acceptor`] and [`server`].

mod acceptor;
mod connection;
mod connections;
mod export;
mod handshake;
mod inbox;
mod option;
mod outbox;
pub mod protocol;
mod reply;
mod request;
mod server;
mod session;
mod socket;
mod tls;
mod transfers;
mod transport;
mod uri;

pub use export::Export;
pub use protocol::{CONNECTIONS_MAX, DRAIN_TIMEOUT, HANDSHAKE_TIMEOUT, LANE_DEPTH};
pub use server::{NbdConfig, NbdServer, StartError, StopError};
pub use tls::{Identity, IdentityError, TlsConfig, TlsError};
pub use uri::uri;
