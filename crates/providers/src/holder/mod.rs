//! Whoever uses a KEK for longer than a moment holds it here: in memory only, under a lease.
//!
//! - A key that is held is good for `lease` after its provider last said so. Every [`RENEW_PERIOD`] the provider is asked
//!   for the key's state, without the key.
//! - While the provider cannot be reached, the key is held on until lease *and* outage allowance have passed: an outage
//!   is an event, not an accident. A provider that answers and refuses to say gets no allowance.
//! - A key that was revoked as compromised, or destroyed, is wiped at once and told of: at the latest
//!   [`REVOCATION_NOTICE_MAX`] after the provider has it on record, if it can be reached.
//! - A key that cannot be had yet can be waited for: [`Holder::hold_when_back`].
//!
//! Time is that of `CLOCK_BOOTTIME`: leases go on while a machine sleeps.

mod event;
mod renewal;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;
use strongroom_keys::ProviderKey;
use strongroom_memory::secret::SecretBytes;

pub use event::{HolderEvent, RevokedHow};

use crate::config::LeaseConfig;
use crate::error::ProviderError;
use crate::provider::KeyProvider;

/// How often a provider is asked for the state of the keys that are held.
pub const RENEW_PERIOD: Duration = Duration::from_secs(30);

/// How often a provider is asked for a key that is waited for.
pub const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// Within which time a revocation reaches whoever holds the key: one period, and one call to a provider whose preferred
/// servers are silent.
pub const REVOCATION_NOTICE_MAX: Duration =
    Duration::from_secs(RENEW_PERIOD.as_secs() + crate::CALL_LIMIT.as_secs());

/// The times that a holder goes by.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTerms {
    /// For how long a key is good after the provider last said so.
    pub lease: Duration,
    /// How much longer while the provider cannot be reached.
    pub outage_allowance: Duration,
    /// How often it is asked.
    pub renew_period: Duration,
    /// How often it is asked for a key that is waited for.
    pub retry_period: Duration,
}

impl From<LeaseConfig> for LeaseTerms {
    fn from(config: LeaseConfig) -> Self {
        Self {
            lease: Duration::from_secs(config.lease_seconds),
            outage_allowance: Duration::from_secs(config.outage_allowance_seconds),
            renew_period: RENEW_PERIOD,
            retry_period: RETRY_PERIOD,
        }
    }
}

/// How a key that is held, or waited for, is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// Held, and the provider said so at the last renewal.
    Held,
    /// Held while the provider cannot be reached.
    Outage,
    /// Not held: it cannot be had, and is asked for until it can.
    Waiting,
}

/// The keys of one provider that are held. Dropped, it wipes them.
pub struct Holder {
    shared: Arc<Shared>,
    renewal: Option<JoinHandle<()>>,
}

struct Shared {
    provider: Arc<dyn KeyProvider>,
    terms: LeaseTerms,
    on_event: Box<dyn Fn(HolderEvent) + Send + Sync>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    keys: HashMap<ProviderKey, Entry>,
    ended: bool,
}

enum Entry {
    Waiting { told: bool },
    Held(Held),
}

struct Held {
    secret: SecretBytes,
    /// When the provider last said that the key is good, on the clock of [`boot_time`].
    confirmed: Duration,
    /// Whether the provider did not answer since, or refused to.
    outage: Option<Outage>,
    expiry_told: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outage {
    Unreachable,
    Refused,
}

impl Holder {
    /// A holder of nothing yet. `on_event` is called by the thread that renews, without any lock held; it may use the
    /// holder, and must not block for long, for nothing is renewed meanwhile.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn new(
        provider: Arc<dyn KeyProvider>,
        terms: LeaseTerms,
        on_event: impl Fn(HolderEvent) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            provider,
            terms,
            on_event: Box::new(on_event),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let renewing = Arc::clone(&shared);
        let renewal = std::thread::Builder::new()
            .name("key-leases".to_owned())
            .spawn(move || renewal::run(&renewing))?;
        Ok(Self { shared, renewal: Some(renewal) })
    }

    /// Fetches a key and holds it from now on.
    ///
    /// # Errors
    /// Why the provider does not give it. It is not held or waited for then.
    pub fn hold(&self, key: &ProviderKey) -> Result<(), ProviderError> {
        let asked_at = boot_time();
        let secret = self.shared.provider.fetch(key)?;
        let held = Held { secret, confirmed: asked_at, outage: None, expiry_told: false };
        self.shared.lock().keys.insert(key.clone(), Entry::Held(held));
        Ok(())
    }

    /// Holds a key as soon as it can be had: asks for it in the background until then. [`HolderEvent::Outage`] says once
    /// why it cannot be had, [`HolderEvent::Back`] that it is held. Does nothing for a key that is held.
    pub fn hold_when_back(&self, key: &ProviderKey) {
        let mut state = self.shared.lock();
        state.keys.entry(key.clone()).or_insert(Entry::Waiting { told: false });
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Uses a key, if it is held.
    pub fn with_key<Outcome>(
        &self,
        key: &ProviderKey,
        using: impl FnOnce(&SecretBytes) -> Outcome,
    ) -> Option<Outcome> {
        match self.shared.lock().keys.get(key) {
            // Between two renewals a lease may have ended.
            Some(Entry::Held(held)) if !held.is_over(&self.shared.terms) => Some(using(&held.secret)),
            _ => None,
        }
    }

    /// Wipes a key, or stops waiting for it.
    pub fn forget(&self, key: &ProviderKey) {
        self.shared.lock().keys.remove(key);
    }

    /// All that is held or waited for.
    pub fn conditions(&self) -> Vec<(ProviderKey, Condition)> {
        let condition = |entry: &Entry| match entry {
            Entry::Waiting { .. } => Condition::Waiting,
            Entry::Held(Held { outage: None, .. }) => Condition::Held,
            Entry::Held(_) => Condition::Outage,
        };
        self.shared.lock().keys.iter().map(|(key, entry)| (key.clone(), condition(entry))).collect()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.ended = true;
        state.keys.clear();
        drop(state);
        self.shared.changed.notify_all();
        // The thread may be the one that drops us, from within an event.
        if let Some(renewal) = self.renewal.take()
            && renewal.thread().id() != std::thread::current().id()
        {
            let _ = renewal.join();
        }
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holder").field("keys", &self.conditions()).finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn is_over(&self, terms: &LeaseTerms) -> bool {
        let allowance = match self.outage {
            Some(Outage::Unreachable) => terms.outage_allowance,
            _ => Duration::ZERO,
        };
        boot_time().saturating_sub(self.confirmed) > terms.lease.saturating_add(allowance)
    }
}

/// Time since the machine started, sleep included.
fn boot_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}
