//! How a client goes about its calls.

use std::time::Duration;

use super::address::ServerAddress;
use super::identity::TlsFiles;
use crate::protocol::ProtocolVersion;
use crate::ttlv::MESSAGE_MAX_BYTES;

/// The server, and the limits of calls to it.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Where the server is.
    pub server: ServerAddress,
    /// The name that its certificate must have, where that is not the host's.
    pub server_name: Option<String>,
    /// Who we are, and whom we take for the server.
    pub tls: TlsFiles,
    /// Time to connect and shake hands; part of the request's own time.
    pub connect_timeout: Duration,
    /// Time for a whole call: waiting for a connection, connecting, agreeing on a version, sending
    /// and the answer.
    pub request_timeout: Duration,
    /// The most connections at a time. Calls beyond wait for one.
    pub connections_max: usize,
    /// After which time a connection that nobody used is closed. Firewalls forget connections after
    /// some minutes.
    pub idle_limit: Duration,
    /// The longest answer that is read, in bytes. The server is told.
    pub response_max_bytes: usize,
    /// The versions to agree on one of.
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
