//! Connections to hostd that stay open between requests, so that most requests need no handshake.
//!
//! A connection proves who is at its other end when it is opened. So one is used again only while
//! that proof would still be asked for and be the same: under the present TLS configuration, which
//! a renewed certificate replaces, and for a minute at most. None is left after [`Kept::end`], when
//! the host leaves the site.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustls::ClientConfig;

/// The most idle connections to a host: the requests that a busy control plane has under way there.
const IDLE_CONNECTIONS_MAX: usize = 16;
/// How long an idle connection is kept. hostd closes one that has been idle for 10 s, and a request
/// must not meet that.
const IDLE_MAX: Duration = Duration::from_secs(5);
/// How long a connection is used. After that, certificates are verified anew.
const AGE_MAX: Duration = Duration::from_secs(60);

/// A connection, and what it was opened under.
#[derive(Debug)]
pub struct Opened<Connection> {
    /// The connection.
    pub connection: Connection,
    /// The TLS configuration; `None` for a socket of this machine.
    config: Option<Arc<ClientConfig>>,
    at: Instant,
}

impl<Connection> Opened<Connection> {
    /// A connection that was opened under this configuration now.
    pub fn new(connection: Connection, config: Option<Arc<ClientConfig>>) -> Self {
        Self { connection, config, at: Instant::now() }
    }

    fn is_under(&self, config: Option<&Arc<ClientConfig>>) -> bool {
        match (&self.config, config) {
            (None, None) => true,
            (Some(opened), Some(present)) => Arc::ptr_eq(opened, present),
            (None, Some(_)) | (Some(_), None) => false,
        }
    }
}

/// The idle connections to one host, the last used ones last.
#[derive(Debug)]
pub struct Kept<Connection> {
    idle: Mutex<Idle<Connection>>,
}

#[derive(Debug)]
struct Idle<Connection> {
    connections: Vec<(Instant, Opened<Connection>)>,
    has_ended: bool,
}

impl<Connection> Default for Kept<Connection> {
    fn default() -> Self {
        Self { idle: Mutex::new(Idle { connections: Vec::new(), has_ended: false }) }
    }
}

impl<Connection> Kept<Connection> {
    /// Takes a connection that was opened under this configuration and is not too old. Closes those
    /// that are of no use any more.
    pub fn take(&self, config: Option<&Arc<ClientConfig>>, now: Instant) -> Option<Opened<Connection>> {
        let mut idle = self.idle.lock();
        idle.connections.retain(|(used, opened)| {
            now.saturating_duration_since(*used) < IDLE_MAX
                && now.saturating_duration_since(opened.at) < AGE_MAX
                && opened.is_under(config)
        });
        idle.connections.pop().map(|(_, opened)| opened)
    }

    /// Whether one under this configuration will still be of use after this time.
    pub fn has_for(&self, time: Duration, config: Option<&Arc<ClientConfig>>, now: Instant) -> bool {
        let idle = self.idle.lock();
        idle.connections.iter().any(|(used, opened)| {
            now.saturating_duration_since(*used) + time < IDLE_MAX
                && now.saturating_duration_since(opened.at) + time < AGE_MAX
                && opened.is_under(config)
        })
    }

    /// Keeps a connection whose last request was answered.
    pub fn put(&self, opened: Opened<Connection>, now: Instant) {
        let mut idle = self.idle.lock();
        if !idle.has_ended && idle.connections.len() < IDLE_CONNECTIONS_MAX {
            idle.connections.push((now, opened));
        }
    }

    /// Closes all idle connections, and keeps none from now on.
    pub fn end(&self) {
        let mut idle = self.idle.lock();
        idle.has_ended = true;
        idle.connections.clear();
    }
}

#[cfg(test)]
mod tests {
    use rustls::RootCertStore;

    use super::*;

    fn config() -> Option<Arc<ClientConfig>> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.unwrap().with_root_certificates(RootCertStore::empty());
        Some(Arc::new(config.with_no_client_auth()))
    }

    #[test]
    fn a_connection_is_used_again_under_the_same_certificate_only() {
        let (kept, before, renewed) = (Kept::default(), config(), config());
        let now = Instant::now();
        kept.put(Opened::new(1, before.clone()), now);
        assert_eq!(kept.take(before.as_ref(), now).unwrap().connection, 1);
        assert!(kept.take(before.as_ref(), now).is_none(), "it is in use");
        kept.put(Opened::new(1, before.clone()), now);
        assert!(kept.take(renewed.as_ref(), now).is_none(), "the certificate was renewed");
        assert!(kept.take(before.as_ref(), now).is_none(), "it was closed then");
        kept.put(Opened::new(3, renewed.clone()), now);
        assert!(kept.has_for(Duration::from_secs(2), renewed.as_ref(), now));
        assert!(!kept.has_for(Duration::from_secs(2), before.as_ref(), now));
        assert!(!kept.has_for(IDLE_MAX, renewed.as_ref(), now), "it will have been closed by then");
        assert_eq!(kept.take(renewed.as_ref(), now).unwrap().connection, 3);
        kept.put(Opened::new(2, None), now);
        assert!(kept.take(renewed.as_ref(), now).is_none(), "it is to be TLS");
    }

    #[test]
    fn an_idle_and_an_old_connection_are_closed() {
        let (kept, config) = (Kept::default(), config());
        let now = Instant::now();
        kept.put(Opened::new(1, config.clone()), now);
        assert!(kept.take(config.as_ref(), now + IDLE_MAX).is_none());
        let later = now + AGE_MAX;
        kept.put(Opened::new(2, config.clone()), later);
        assert!(kept.take(config.as_ref(), later + Duration::from_secs(1)).is_none(), "its proof is old");
    }

    #[test]
    fn a_host_that_left_the_site_has_no_connection() {
        let (kept, now) = (Kept::default(), Instant::now());
        kept.put(Opened::new(1, None), now);
        kept.end();
        assert!(kept.take(None, now).is_none());
        kept.put(Opened::new(2, None), now);
        assert!(kept.take(None, now).is_none(), "a request was under way when it left");
        for number in 0..100 {
            kept.put(Opened::new(number, None), now);
        }
        assert!(kept.take(None, now).is_none());
    }
}
