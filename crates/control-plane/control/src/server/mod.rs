//! The REST server: HTTP/1.1 over TLS. Every resource that a client without a token can use has a
//! limit.
//!
//! - [`routes`]: the operations, each a short call of the engine. [`document`]: the OpenAPI
//!   document that is generated from them.
//! - [`ask`]: extracts and checks an operation's inputs. [`token`]: identifies the caller.
//! - [`stream`]: live events. [`metrics`]: metrics for Prometheus.

mod ask;
mod document;
mod examples;
mod listen;
mod metrics;
mod problem;
mod query;
mod routes;
mod stream;
mod token;

use std::sync::Arc;

use tokio::sync::watch;

use crate::engine::Control;

pub use listen::serve;
pub use token::token_sha256;

/// The context of every operation.
#[derive(Clone)]
pub(crate) struct Api {
    control: Arc<Control>,
    counts: Arc<metrics::Counts>,
    /// Becomes true when the server ends.
    ending: watch::Receiver<bool>,
}
