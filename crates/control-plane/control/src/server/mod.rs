//! The REST server: HTTP/1.1 over TLS. Each thing a stranger can take has a limit.
//!
//! - [`routes`]: the operations, each a line of work with the engine. [`document`]: the OpenAPI
//!   document made from them.
//! - [`ask`]: what of a request an operation gets, and what is refused before. [`token`]: who asks.
//! - [`stream`]: events as they happen. [`metrics`]: numbers for Prometheus.

mod ask;
mod document;
mod examples;
mod listen;
mod metrics;
mod problem;
mod query;
mod routes;
mod stream;
mod tls;
mod token;

use std::sync::Arc;

use tokio::sync::watch;

use crate::engine::Control;

pub use listen::serve;
pub use tls::{ApiTls, TlsError};
pub use token::token_sha256;

/// What every operation gets.
#[derive(Clone)]
pub(crate) struct Api {
    control: Arc<Control>,
    counts: Arc<metrics::Counts>,
    /// Becomes true when the server ends.
    ending: watch::Receiver<bool>,
}
