//! The limits of a server, for all its clients and for one.

use std::time::Duration;

use crate::ttlv::Limits;

/// The limits of a server. All of them can be set; the defaults suit one that serves some thousand
/// hosts.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// Most connections in their handshake at a time. A further one closes the oldest handshake of
    /// the address with the most, so that clients without a certificate cannot lock out those with
    /// one.
    pub handshakes: usize,
    /// Most established connections at a time. Each costs a file descriptor and some 40 KiB.
    pub connections: usize,
    /// Most connections at a time of one certificate, so that no single client takes all of them.
    /// Clients' pools hold some dozens.
    pub connections_of_one_peer: usize,
    /// How long a handshake may take. It takes two round trips and a signature.
    pub handshake_time: Duration,
    /// How long a connection may be without a request. Clients' pools keep theirs for minutes.
    pub idle_time: Duration,
    /// How long a request may take from its first byte to its last, so that a slow client holds no
    /// memory.
    pub request_time: Duration,
    /// How long a client may take to read a response.
    pub response_time: Duration,
    /// Most memory in KiB for the requests of all connections together, while they are read and
    /// decoded. Requests wait for it within their time.
    pub requests_kib: usize,
    /// How long a shutdown waits for requests in progress and for clients to read the responses.
    pub shutdown_time: Duration,
    /// The limits of a message.
    pub message: Limits,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            handshakes: 512,
            connections: 4096,
            connections_of_one_peer: 1024,
            handshake_time: Duration::from_secs(10),
            idle_time: Duration::from_secs(600),
            request_time: Duration::from_secs(10),
            response_time: Duration::from_secs(10),
            requests_kib: 128 * 1024,
            shutdown_time: Duration::from_secs(10),
            message: Limits::default(),
        }
    }
}
