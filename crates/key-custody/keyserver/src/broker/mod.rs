//! The broker: hands out keys of external providers under the same grants, permissions and records
//! as the server's own.
//!
//! A *brokered* key is an object without material: it names the provider and the key's id there
//! ([`Object::upstream`](crate::objects::object::Object)). So a host needs no credentials of the
//! provider, the control plane sees no key, and one audit log records all releases.
//!
//! - **Get** asks the provider each time. The key goes from the provider's answer into the
//!   response, and is never stored.
//! - **The state** is the stricter of the provider's and the object's own. A host's request for it
//!   goes to the provider, once for all hosts within [`BrokerTimes::state_kept`]. Deactivation and
//!   compromise are recorded in the object, which all other clients see. A missing key is reported
//!   to the requesting host but not recorded: a provider that was just restored may have it again.
//! - **Activate, Revoke, Destroy, attributes** concern only the object. Revoking it here ends its
//!   release by the broker; the key at its provider must be revoked there.
//! - **An outage** of the provider fails the item with a code of its own ([`UNAVAILABLE`]), by
//!   which a host tells it from a refusal and waits. A request with a grant fails as a whole then,
//!   and its grant is not used up.
//!
//! Calls to providers block, so they run on threads of their own, at most [`CALLS_MAX`] at a time.
//!
//! What may not enter: connections to providers. The process that runs the server supplies an
//! [`Upstream`].

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
use tokio::time::timeout_at;

pub(crate) use keeping::follow;
pub use keeping::{BrokerError, list, take_in};
pub use upstream::{Upstream, UpstreamError, UpstreamState};

use crate::failure::Failure;

/// Most calls to providers at a time: each holds a thread, for up to the provider's own limit if
/// the provider hangs. Further calls wait.
pub const CALLS_MAX: usize = 32;
/// The times of a broker.
#[derive(Debug, Clone, Copy)]
pub struct BrokerTimes {
    /// How long a request waits for all answers of providers that it needs. By default 4 s: clients
    /// commonly wait 5 s for an answer, and then do not learn which provider is silent.
    pub answers_within: Duration,
    /// How long a provider's answer about a state is cached. Many hosts ask about the same key; the
    /// default, 5 s, is a fraction of the time in which a revocation must reach them.
    pub state_kept: Duration,
}

impl Default for BrokerTimes {
    fn default() -> Self {
        Self { answers_within: Duration::from_secs(4), state_kept: Duration::from_secs(5) }
    }
}

/// Most cached states; beyond that the cache is cleared.
const STATES_MAX: usize = 16 * 1024;

/// The code for a provider that cannot be reached. A failure's message begins with it, and holders
/// of keys rely on it.
pub const UNAVAILABLE: &str = "upstream-unavailable";
/// The code for a provider's refusal.
pub const REFUSED: &str = "upstream-refused";
/// The code for a key that its provider no longer has.
pub const GONE: &str = "upstream-gone";

/// Asks providers.
pub struct Broker {
    upstream: Arc<dyn Upstream>,
    times: BrokerTimes,
    calls: Arc<Semaphore>,
    states: Mutex<HashMap<ProviderKey, (Instant, UpstreamState)>>,
}

impl Broker {
    /// A broker for these providers.
    pub fn new(upstream: Arc<dyn Upstream>) -> Self {
        Self::with_times(upstream, BrokerTimes::default())
    }

    /// The same, with these times.
    pub fn with_times(upstream: Arc<dyn Upstream>, times: BrokerTimes) -> Self {
        Self { upstream, times, calls: Arc::new(Semaphore::new(CALLS_MAX)), states: Mutex::default() }
    }

    /// The providers, for callers that may block.
    pub fn upstream(&self) -> &dyn Upstream {
        self.upstream.as_ref()
    }

    /// When the providers must have answered a request that begins now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.times.answers_within
    }

    /// The key, from its provider.
    pub(crate) async fn key(&self, key: &ProviderKey, deadline: Instant) -> Result<SecretBytes, Failure> {
        let asked = key.clone();
        self.ask(key, deadline, move |upstream| upstream.fetch(&asked)).await
    }

    /// The key's state at its provider, possibly cached.
    pub(crate) async fn state(&self, key: &ProviderKey, deadline: Instant) -> Result<UpstreamState, Failure> {
        match self.known_state(key) {
            Some(state) => Ok(state),
            None => self.ask_state(key, deadline).await,
        }
    }

    async fn ask_state(&self, key: &ProviderKey, deadline: Instant) -> Result<UpstreamState, Failure> {
        let (asked_at, asked) = (Instant::now(), key.clone());
        let state = self.ask(key, deadline, move |upstream| upstream.state(&asked)).await?;
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

    /// Asks a provider. A call that is not answered in time keeps its place among
    /// [`CALLS_MAX`] until the provider's own limit.
    async fn ask<Answer: Send + 'static>(
        &self,
        key: &ProviderKey,
        deadline: Instant,
        question: impl FnOnce(&dyn Upstream) -> Result<Answer, UpstreamError> + Send + 'static,
    ) -> Result<Answer, Failure> {
        let away = |reason| failure(key, &UpstreamError::Unavailable { reason });
        let turn = timeout_at(deadline.into(), Arc::clone(&self.calls).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else {
            return Err(away(format!("{CALLS_MAX} other calls keep all providers waiting")));
        };
        let upstream = Arc::clone(&self.upstream);
        let asked = tokio::task::spawn_blocking(move || {
            let answer = question(upstream.as_ref());
            drop(turn);
            answer
        });
        match timeout_at(deadline.into(), asked).await {
            Ok(Ok(answer)) => answer.map_err(|error| failure(key, &error)),
            // It panicked; the panic hook has reported that.
            Ok(Err(error)) => Err(Failure::internal(&error)),
            Err(_) => Err(away(format!("no answer within {} ms", self.times.answers_within.as_millis()))),
        }
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Broker({:?})", self.upstream)
    }
}

/// The failure for the client.
fn failure(key: &ProviderKey, error: &UpstreamError) -> Failure {
    let (word, reason) = match error {
        UpstreamError::Unavailable { .. } => (UNAVAILABLE, ResultReason::GeneralFailure),
        UpstreamError::Refused { .. } => (REFUSED, ResultReason::PermissionDenied),
        UpstreamError::Gone { .. } => (GONE, ResultReason::ItemNotFound),
    };
    let provider_is_away = matches!(error, UpstreamError::Unavailable { .. });
    Failure { provider_is_away, ..Failure::new(reason, format!("{word}: {key}: {error}")) }
}

/// The failure without a broker, for example if the server was started without the provider.
pub(crate) fn not_brokered(key: &ProviderKey) -> Failure {
    let reason = format!(
        "the key server is not the broker of this provider now; start it with --broker {}",
        key.provider
    );
    failure(key, &UpstreamError::Unavailable { reason })
}
