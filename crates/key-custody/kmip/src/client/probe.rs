//! Looking at a server: what it takes to get to it.

use std::time::{Duration, Instant};

use super::Client;
use super::deadline::Deadline;
use super::error::ClientError;

/// How a new connection came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Finding and reaching the server.
    pub tcp: Duration,
    /// Shaking hands.
    pub tls: Duration,
    /// "TLS 1.2" or "TLS 1.3".
    pub tls_version: &'static str,
}

impl Client {
    /// Makes a connection of its own and closes it. In TLS 1.3 a server says whether it takes the
    /// client's certificate only when it is asked something.
    ///
    /// # Errors
    /// Why none comes about.
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
