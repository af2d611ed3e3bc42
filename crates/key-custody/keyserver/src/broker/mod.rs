//! The broker: keys of external providers, given out under the same grants, permissions and records
//! as the server's own.
//!
//! A *brokered* key is an object without material: it says which provider has the key, and what the
//! provider calls it ([`Object::upstream`](crate::objects::object::Object)). So a host needs no
//! credentials of the provider, the control plane sees no key, and who got which key is on one
//! record.
//!
//! - **Get** asks the provider each time. The key goes from the provider's answer into the
//!   response; it is written nowhere.
//! - **The state** is the stricter one of the provider's and the object's own. A host that asks for
//!   it has the provider asked, within [`BrokerTimes::state_kept`] once for all hosts; deactivation
//!   and compromise are written down in the object, which is what everyone else is shown. That a
//!   key is gone is told to who asks, and not written down: a provider that was just restored may
//!   know it again.
//! - **Activate, Revoke, Destroy, attributes** concern the object alone. Who ends it here ends what
//!   the broker gives out; the key at its provider is ended there, by those who may.
//! - **An outage** of the provider fails the item, under a word of its own ([`UNAVAILABLE`]), by
//!   which a host tells it from a refusal and rides it out.
//!
//! Calls to providers block, so they run on threads of their own, at most [`CALLS_MAX`] at a time.
//!
//! What may not enter: how providers are reached. Whoever runs the server brings an [`Upstream`].

mod keeping;
mod upstream;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use strongroom_keys::ProviderKey;
use strongroom_kmip::protocol::ResultReason;
use strongroom_memory::secret::SecretBytes;
use tokio::sync::Semaphore;

pub(crate) use keeping::follow;
pub use keeping::{BrokerError, list, take_in};
pub use upstream::{Upstream, UpstreamError, UpstreamState};

use crate::operations::failure::Failure;

/// Most calls to providers at a time: each holds a thread, and a provider that hangs holds it for
/// the provider's own limit. More wait.
pub const CALLS_MAX: usize = 32;
/// How long a broker waits, and remembers.
#[derive(Debug, Clone, Copy)]
pub struct BrokerTimes {
    /// How long a request waits for its turn to ask. By default 4 s: clients wait as long for an
    /// answer by custom.
    pub turn_within: Duration,
    /// For how long a state that a provider told is told on. Many hosts ask for the same key's; the
    /// default, 5 s, is a fraction of the time in which a revocation must reach them.
    pub state_kept: Duration,
}

impl Default for BrokerTimes {
    fn default() -> Self {
        Self { turn_within: Duration::from_secs(4), state_kept: Duration::from_secs(5) }
    }
}

/// Most states that are kept; then all are asked for anew.
const STATES_MAX: usize = 16 * 1024;

/// The word for a provider that cannot be reached. The message of a failure begins with it, and
/// holders of keys go by it.
pub const UNAVAILABLE: &str = "upstream-unavailable";
/// The word for a provider that says no.
pub const REFUSED: &str = "upstream-refused";
/// The word for a key that its provider does not have any more.
pub const GONE: &str = "upstream-gone";

/// Asks providers.
pub struct Broker {
    upstream: Arc<dyn Upstream>,
    times: BrokerTimes,
    calls: Arc<Semaphore>,
    states: Mutex<HashMap<ProviderKey, (Instant, UpstreamState)>>,
}

impl Broker {
    /// Before these providers.
    pub fn new(upstream: Arc<dyn Upstream>) -> Self {
        Self::with_times(upstream, BrokerTimes::default())
    }

    /// The same, which waits and remembers as long as it is told.
    pub fn with_times(upstream: Arc<dyn Upstream>, times: BrokerTimes) -> Self {
        Self { upstream, times, calls: Arc::new(Semaphore::new(CALLS_MAX)), states: Mutex::default() }
    }

    /// The providers, for who may block.
    pub fn upstream(&self) -> &dyn Upstream {
        self.upstream.as_ref()
    }

    /// The key, from its provider.
    pub(crate) async fn key(&self, key: &ProviderKey) -> Result<SecretBytes, Failure> {
        let asked = key.clone();
        self.ask(key, move |upstream| upstream.fetch(&asked)).await
    }

    /// Where the key is in its life, as its provider says now or said just before.
    pub(crate) async fn state(&self, key: &ProviderKey) -> Result<UpstreamState, Failure> {
        match self.known_state(key) {
            Some(state) => Ok(state),
            None => self.ask_state(key).await,
        }
    }

    async fn ask_state(&self, key: &ProviderKey) -> Result<UpstreamState, Failure> {
        let (asked_at, asked) = (Instant::now(), key.clone());
        let state = self.ask(key, move |upstream| upstream.state(&asked)).await?;
        let mut states = self.states.lock();
        if states.len() >= STATES_MAX {
            states.clear();
        }
        states.insert(key.clone(), (asked_at, state));
        Ok(state)
    }

    fn known_state(&self, key: &ProviderKey) -> Option<UpstreamState> {
        let states = self.states.lock();
        states
            .get(key)
            .filter(|(asked_at, _)| asked_at.elapsed() < self.times.state_kept)
            .map(|(_, state)| *state)
    }

    async fn ask<Answer: Send + 'static>(
        &self,
        key: &ProviderKey,
        question: impl FnOnce(&dyn Upstream) -> Result<Answer, UpstreamError> + Send + 'static,
    ) -> Result<Answer, Failure> {
        let turn =
            tokio::time::timeout(self.times.turn_within, Arc::clone(&self.calls).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else {
            let reason = format!("{CALLS_MAX} other calls keep all providers waiting");
            return Err(failure(key, &UpstreamError::Unavailable { reason }));
        };
        let upstream = Arc::clone(&self.upstream);
        let asked = tokio::task::spawn_blocking(move || {
            let answer = question(upstream.as_ref());
            drop(turn);
            answer
        });
        match asked.await {
            Ok(answer) => answer.map_err(|error| failure(key, &error)),
            // It panicked, which has been told.
            Err(error) => Err(Failure::internal(&error)),
        }
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Broker({:?})", self.upstream)
    }
}

/// What a client is told.
fn failure(key: &ProviderKey, error: &UpstreamError) -> Failure {
    let (word, reason) = match error {
        UpstreamError::Unavailable { .. } => (UNAVAILABLE, ResultReason::GeneralFailure),
        UpstreamError::Refused { .. } => (REFUSED, ResultReason::PermissionDenied),
        UpstreamError::Gone { .. } => (GONE, ResultReason::ItemNotFound),
    };
    Failure::new(reason, format!("{word}: {key}: {error}"))
}

/// Without a broker, as when the server was started without the provider.
pub(crate) fn not_brokered(key: &ProviderKey) -> Failure {
    let reason = format!(
        "the key server is not the broker of this provider now; start it with --broker {}",
        key.provider
    );
    failure(key, &UpstreamError::Unavailable { reason })
}
