//! Holds KEKs for long-term users: in memory only, under a lease.
//!
//! - A held key is good for `lease` after its provider last confirmed it. Every `renew_period` the
//!   holder asks the provider for the key's state, without the key.
//! - While the provider cannot be reached, the key stays held until lease *and* outage allowance
//!   have passed: outages are expected. A provider that answers and refuses gets no allowance.
//! - A key that was revoked as compromised, or destroyed, is wiped at once and reported, at the
//!   latest [`REVOCATION_NOTICE_MAX`] after the provider has recorded it, if the provider can be
//!   reached.
//! - A key that is not available yet can be awaited: [`Holder::hold_when_back`].
//!
//! Time is that of `CLOCK_BOOTTIME`: leases continue to run while a machine sleeps.

mod event;
mod renewal;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::{Condvar, Mutex};
use strongroom_keys::{Kek, KekSource, LeaseState, LeaseStatus, ProviderKey, ProviderName, RevokedHow};

pub use event::HolderEvent;

use crate::config::LeaseConfig;
use crate::error::ProviderError;
use crate::provider::KeyProvider;

/// The default time between two requests for the state of the held keys.
pub const RENEW_PERIOD: Duration = Duration::from_secs(30);

/// The time between two requests for an awaited key.
pub const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// The longest time until a holder learns of a revocation: one [`RENEW_PERIOD`], and one call to a
/// provider whose preferred servers are silent. [`LeaseConfig::revocation_notice_max`] computes it
/// for another period.
pub const REVOCATION_NOTICE_MAX: Duration =
    Duration::from_secs(RENEW_PERIOD.as_secs() + crate::CALL_LIMIT.as_secs());

/// A holder's times.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTerms {
    /// How long a key is good after the provider last confirmed it.
    pub lease: Duration,
    /// How much longer it is good while the provider cannot be reached.
    pub outage_allowance: Duration,
    /// The time between two confirmations.
    pub renew_period: Duration,
    /// The time between two requests for an awaited key.
    pub retry_period: Duration,
}

impl From<LeaseConfig> for LeaseTerms {
    fn from(config: LeaseConfig) -> Self {
        Self {
            lease: Duration::from_secs(config.lease_seconds),
            outage_allowance: Duration::from_secs(config.outage_allowance_seconds),
            renew_period: Duration::from_secs(config.renew_seconds),
            retry_period: RETRY_PERIOD,
        }
    }
}

/// The held keys of one provider. Dropping it wipes them, does not wait for a call in progress, and
/// wipes that call's result.
pub struct Holder {
    shared: Arc<Shared>,
}

struct Shared {
    provider: Box<dyn Fn() -> Result<Arc<dyn KeyProvider>, ProviderError> + Send + Sync>,
    terms: LeaseTerms,
    on_event: Box<dyn Fn(HolderEvent) + Send + Sync>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    keys: HashMap<ProviderKey, Entry>,
    /// The next round of renewals is due at once.
    renews_now: bool,
    ended: bool,
}

enum Entry {
    Waiting(Waiting),
    Held(Held),
    Revoked { how: RevokedHow, since: SystemTime },
}

struct Waiting {
    since: SystemTime,
    /// Why it is not available; `None` before the first request.
    reason: Option<String>,
    /// The provider behind a broker that makes it unavailable.
    upstream: Option<ProviderName>,
}

struct Held {
    kek: Arc<Kek>,
    /// When the provider last confirmed the key, on the clock of [`boot_time`].
    confirmed: Duration,
    /// When the key was first held without an outage or, during one, when it began.
    since: SystemTime,
    /// Set while the provider does not answer, or refuses to.
    outage: Option<Outage>,
    expired: bool,
}

struct Outage {
    refused: bool,
    reason: String,
    /// The provider behind a broker that is unavailable.
    upstream: Option<ProviderName>,
}

impl Holder {
    /// An empty holder. `provider` returns the provider in its current configuration and is called
    /// for each request. The renewal thread calls `on_event` without holding a lock. Both may use
    /// the holder; neither may block for long, because nothing is renewed meanwhile.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn new(
        provider: impl Fn() -> Result<Arc<dyn KeyProvider>, ProviderError> + Send + Sync + 'static,
        terms: LeaseTerms,
        on_event: impl Fn(HolderEvent) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            provider: Box::new(provider),
            terms,
            on_event: Box::new(on_event),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let renewing = Arc::clone(&shared);
        std::thread::Builder::new().name("key-leases".to_owned()).spawn(move || renewal::run(&renewing))?;
        Ok(Self { shared })
    }

    /// Fetches a key and begins to hold it.
    ///
    /// # Errors
    /// The provider's error. The key is then neither held nor awaited.
    pub fn hold(&self, key: &ProviderKey) -> Result<(), ProviderError> {
        let asked_at = boot_time();
        let provider = (self.shared.provider)()?;
        let held = Held::new(fetch_from(&*provider, key)?, asked_at);
        self.shared.state.lock().keys.insert(key.clone(), Entry::Held(held));
        // Its lease may be the first to end.
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Begins to hold a key that the provider has just handed out. It is confirmed at once, in the
    /// background. A key of another source is dropped.
    pub fn adopt(&self, kek: Kek) {
        let KekSource::Provider(key) = kek.source().clone() else { return };
        let mut state = self.shared.state.lock();
        state.keys.insert(key, Entry::Held(Held::new(kek, boot_time())));
        state.renews_now = true;
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Holds a key as soon as it is available, and requests it in the background until then.
    /// [`HolderEvent::Outage`] reports once why it is not available, [`HolderEvent::Back`] that it
    /// is held. Does nothing for a key that is held, or was revoked.
    pub fn hold_when_back(&self, key: &ProviderKey) {
        let mut state = self.shared.state.lock();
        state.keys.entry(key.clone()).or_insert_with(|| Entry::Waiting(Waiting::begins()));
        drop(state);
        self.shared.changed.notify_all();
    }

    /// A key for one use, if it is held. It is wiped once the holder and all callers have dropped
    /// it.
    pub fn kek(&self, key: &ProviderKey) -> Option<Arc<Kek>> {
        match self.shared.state.lock().keys.get(key) {
            // A lease is over from its end on, before the next round detects it.
            Some(Entry::Held(held)) if !held.is_over(&self.shared.terms) => Some(Arc::clone(&held.kek)),
            _ => None,
        }
    }

    /// Wipes a key, or stops waiting for it.
    pub fn forget(&self, key: &ProviderKey) {
        self.shared.state.lock().keys.remove(key);
    }

    /// The status of a key that is held, awaited or revoked.
    pub fn status(&self, key: &ProviderKey) -> Option<LeaseStatus> {
        self.shared.state.lock().keys.get(key).map(Entry::status)
    }

    /// The status of every such key.
    pub fn statuses(&self) -> Vec<(ProviderKey, LeaseStatus)> {
        self.shared.state.lock().keys.iter().map(|(key, entry)| (key.clone(), entry.status())).collect()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.ended = true;
        state.keys.clear();
        drop(state);
        self.shared.changed.notify_all();
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holder").field("keys", &self.statuses()).finish_non_exhaustive()
    }
}

impl Shared {}

fn fetch_from(provider: &dyn KeyProvider, key: &ProviderKey) -> Result<Kek, ProviderError> {
    let secret = provider.fetch(key)?;
    Kek::from_provider(secret, key.clone())
        .map_err(|error| ProviderError::Refused { reason: error.to_string() })
}

impl Entry {
    fn status(&self) -> LeaseStatus {
        let (state, since, reason, expired) = match self {
            Self::Waiting(Waiting { since, reason, .. }) => {
                (LeaseState::Waiting, since, reason.clone(), false)
            }
            Self::Held(Held { outage: None, since, expired, .. }) => {
                (LeaseState::Held, since, None, *expired)
            }
            Self::Held(Held { outage: Some(outage), since, expired, .. }) => {
                (LeaseState::Outage, since, Some(outage.reason.clone()), *expired)
            }
            Self::Revoked { how, since } => {
                (LeaseState::Revoked { how: *how }, since, Some(format!("it was {how}")), false)
            }
        };
        let since = since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let upstream = match self {
            Self::Waiting(Waiting { upstream, .. })
            | Self::Held(Held { outage: Some(Outage { upstream, .. }), .. }) => upstream.clone(),
            Self::Held(_) | Self::Revoked { .. } => None,
        };
        LeaseStatus { state, since_unix_seconds: since.as_secs(), reason, expired, upstream }
    }
}

impl Waiting {
    fn begins() -> Self {
        Self { since: SystemTime::now(), reason: None, upstream: None }
    }
}

impl Held {
    fn new(kek: Kek, confirmed: Duration) -> Self {
        Self { kek: Arc::new(kek), confirmed, since: SystemTime::now(), outage: None, expired: false }
    }

    /// When the lease ends, with the allowance during an outage, on the clock of [`boot_time`].
    fn ends(&self, terms: &LeaseTerms) -> Duration {
        let allowance = match self.outage {
            Some(Outage { refused: false, .. }) => terms.outage_allowance,
            _ => Duration::ZERO,
        };
        self.confirmed.saturating_add(terms.lease).saturating_add(allowance)
    }

    fn is_over(&self, terms: &LeaseTerms) -> bool {
        boot_time() > self.ends(terms)
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
