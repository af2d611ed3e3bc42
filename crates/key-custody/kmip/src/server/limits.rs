//! What one server gives to all its clients, and to one of them.

use std::time::Duration;

use crate::ttlv::Limits;

/// The limits of a server. All of them can be set; the defaults suit one that serves some thousand
/// hosts.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// Most connections in their handshake at a time. One more closes the oldest of the address
    /// that has most, so that nobody who has no certificate keeps out those who have one.
    pub handshakes: usize,
    /// Most connections at a time whose handshake is over. Each costs a file descriptor and some 40
    /// KiB.
    pub connections: usize,
    /// Most connections at a time of one certificate, so that no single client takes all of them.
    /// Pools of clients hold some dozens.
    pub connections_of_one_peer: usize,
    /// How long a handshake may take. It takes two round trips and a signature.
    pub handshake_time: Duration,
    /// How long a connection may be without a request. Pools of clients keep theirs for minutes.
    pub idle_time: Duration,
    /// How long a request may take from its first byte to its last, so that a slow client holds no
    /// memory.
    pub request_time: Duration,
    /// How long a client may take to read a response.
    pub response_time: Duration,
    /// Most memory in KiB for the requests of all connections together, while they are read and
    /// decoded. Requests wait for it within their time.
    pub requests_kib: usize,
    /// How long requests that are under way at shutdown have to end, and their responses to be
    /// read.
    pub shutdown_time: Duration,
    /// What a message may be.
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
