//! A client of one KMIP server: blocking calls, each with a deadline.
//!
//! - Connections are TLS 1.2 or 1.3 with a client certificate, kept open between calls and shared
//!   by threads. A connection that the server closed meanwhile is detected before a request is lost
//!   on it. A connection on which a request failed is dropped.
//! - A request is sent once. It is sent again, over a new connection, only if it used a connection
//!   that was already open, changes nothing at the server, and no byte of an answer arrived.
//! - The protocol version is agreed on at the first call and remembered.
//! - Keys go from the answer, whose buffer is wiped, straight into
//!   [`SecretBytes`](strongroom_memory::secret::SecretBytes).
//! - Errors name the server and what to do. A server's message is quoted; a client's data never is.
//!
//! The choice among several servers is made elsewhere.

mod address;
mod call;
mod connection;
mod create;
mod deadline;
mod error;
mod granted;
mod identity;
mod operations;
mod options;
mod pool;
mod probe;
mod version;

use std::fmt;

use parking_lot::Mutex;
use rustls::pki_types::ServerName;

pub use address::{KMIP_PORT, ServerAddress, ServerAddressError};
pub use call::{Answer, Refusal};
pub use create::NewKey;
pub use error::{ClientError, Phase};
pub use granted::GrantedKey;
pub use identity::{PEM_FILE_BYTES_MAX, TlsFiles, TlsFilesError};
pub use operations::{GotKey, WrappedKey};
pub use options::ClientOptions;
pub use probe::Probe;

use crate::protocol::ProtocolVersion;

/// A client of one server. Threads share it by reference.
pub struct Client {
    options: ClientOptions,
    name: ServerName<'static>,
    identity: identity::Identity,
    pool: pool::Pool,
    /// The version agreed with the server.
    version: Mutex<Option<ProtocolVersion>>,
}

impl Client {
    /// Creates a client. It reads the TLS files and does not connect yet.
    ///
    /// # Errors
    /// [`ClientError::TlsFiles`], [`ClientError::ServerName`].
    pub fn new(options: ClientOptions) -> Result<Self, ClientError> {
        let identity = identity::Identity::new(options.tls.clone()).map_err(ClientError::TlsFiles)?;
        let name = options.server_name.as_deref().unwrap_or(options.server.host());
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| ClientError::ServerName { name: name.to_owned() })?;
        let pool = pool::Pool::new(options.connections_max, options.idle_limit);
        Ok(Self { options, name, identity, pool, version: Mutex::default() })
    }

    /// The server.
    pub fn server(&self) -> &ServerAddress {
        &self.options.server
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.options.server)
    }
}
