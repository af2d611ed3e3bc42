//! The REST server, and the page's: HTTP/1.1 over TLS. Every resource that a client without a token
//! can use has a limit.
//!
//! - [`routes`]: the operations, each a short call of the engine. [`document`]: the OpenAPI
//!   document that is generated from them.
//! - [`ask`]: extracts and checks an operation's inputs. [`token`]: identifies and admits the
//!   caller. [`sign_in`]: slows guesses at passwords down.
//! - [`browser`]: what a browser sends by itself: cookies, and where a request came from.
//! - [`page`]: the files of the page.
//! - [`stream`]: live events. [`metrics`]: metrics for Prometheus.

mod ask;
mod browser;
mod document;
mod examples;
mod listen;
mod metrics;
mod page;
mod problem;
mod query;
mod relay;
mod routes;
mod sign_in;
mod stream;
mod token;

use std::sync::Arc;

use tokio::sync::watch;

use crate::engine::Control;
use crate::guest_relay::GuestRelay;
use crate::passwords::PasswordHash;

pub use listen::serve;

/// The context of every operation.
#[derive(Clone)]
pub(crate) struct Api {
    control: Arc<Control>,
    counts: Arc<metrics::Counts>,
    passwords: Arc<dyn PasswordHash>,
    sign_ins: Arc<sign_in::SignIns>,
    /// Those by identity providers, which wait for other servers.
    provider_sign_ins: Arc<sign_in::SignIns>,
    /// Carries guest data for browsers.
    relay: Option<Arc<dyn GuestRelay>>,
    /// Becomes true when the server ends.
    ending: watch::Receiver<bool>,
}
