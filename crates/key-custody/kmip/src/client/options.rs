//! Options of a client.

use std::time::Duration;

use super::address::ServerAddress;
use super::identity::TlsFiles;
use crate::protocol::ProtocolVersion;
use crate::ttlv::MESSAGE_MAX_BYTES;

/// The server, and the limits of calls to it.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The server's address.
    pub server: ServerAddress,
    /// The name in its certificate, if that is not the host's.
    pub server_name: Option<String>,
    /// Our certificate, and the server's authorities.
    pub tls: TlsFiles,
    /// Time for connecting and the handshake; counts towards the request's time.
    pub connect_timeout: Duration,
    /// Time for a whole call: waiting for a connection, connecting, agreeing on a version, sending
    /// and the answer.
    pub request_timeout: Duration,
    /// The most connections at a time. Further calls wait for one.
    pub connections_max: usize,
    /// Time after which an idle connection is closed. Firewalls drop connections after some
    /// minutes.
    pub idle_limit: Duration,
    /// The longest answer accepted, in bytes. It is announced to the server.
    pub response_max_bytes: usize,
    /// The versions to choose from.
    pub versions: Vec<ProtocolVersion>,
}

impl ClientOptions {
    /// Two seconds to connect, five for a call, eight connections, closed after a minute, and every
    /// version.
    pub fn new(server: ServerAddress, tls: TlsFiles) -> Self {
        Self {
            server,
            server_name: None,
            tls,
            connect_timeout: Duration::from_secs(2),
            request_timeout: Duration::from_secs(5),
            connections_max: 8,
            idle_limit: Duration::from_secs(60),
            response_max_bytes: MESSAGE_MAX_BYTES,
            versions: ProtocolVersion::SPOKEN.to_vec(),
        }
    }
}
