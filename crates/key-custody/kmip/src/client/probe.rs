//! Probing a server: the time to connect.

use std::time::{Duration, Instant};

use super::Client;
use super::deadline::Deadline;
use super::error::ClientError;

/// The steps of a new connection, with their times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Time to resolve and reach the server.
    pub tcp: Duration,
    /// Time of the TLS handshake.
    pub tls: Duration,
    /// "TLS 1.2" or "TLS 1.3".
    pub tls_version: &'static str,
}

impl Client {
    /// Opens a separate connection and closes it. In TLS 1.3 a server rejects a client's
    /// certificate only at the first request.
    ///
    /// # Errors
    /// Why the connection failed.
    pub fn probe(&self) -> Result<Probe, ClientError> {
        let begun = Instant::now();
        let connection = self.connect(Deadline::after(self.options.connect_timeout))?;
        let took = begun.elapsed();
        let tls_version = match connection.tls_version() {
            Some(rustls::ProtocolVersion::TLSv1_2) => "TLS 1.2",
            _ => "TLS 1.3",
        };
        let tcp = connection.tcp_took();
        connection.close();
        Ok(Probe { tcp, tls: took.saturating_sub(tcp), tls_version })
    }
}
