//! A holder for every provider: the leases that whoever uses a volume for long takes its KEK from.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use strongroom_keys::{
    Kek, KekSource, KeyError, LeaseStatus, Leases, OnRevocation, ProviderKey, ProviderName,
};

use crate::config::ProviderConfig;
use crate::holder::{Holder, HolderEvent, LeaseTerms};
use crate::keyring::ProviderKeyring;

/// The leases of one process, of keys of any provider of a home. A provider's terms are those that
/// it had when the first of its keys was held.
pub struct ProviderLeases {
    keyring: Arc<ProviderKeyring>,
    holders: Mutex<HashMap<ProviderName, Leased>>,
    changed: Arc<OwnedFd>,
    on_event: Arc<dyn Fn(&HolderEvent) + Send + Sync>,
}

struct Leased {
    holder: Holder,
    on_revocation: OnRevocation,
}

impl ProviderLeases {
    /// No keys yet. They are confirmed, and asked for, through the keyring. `on_event` is told of
    /// outages, expiry and revocations, in a thread of its own.
    ///
    /// # Errors
    /// If there is no descriptor left.
    pub fn new(
        keyring: Arc<ProviderKeyring>,
        on_event: impl Fn(&HolderEvent) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let changed = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            keyring,
            holders: Mutex::default(),
            changed: Arc::new(changed),
            on_event: Arc::new(on_event),
        })
    }

    /// Does something with the holder of a provider's keys; there is one from then on.
    fn with_holder<Outcome>(
        &self,
        name: &ProviderName,
        using: impl FnOnce(&Holder) -> Outcome,
    ) -> io::Result<Outcome> {
        let mut holders = self.holders.lock();
        let leased = match holders.entry(name.clone()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(self.begin(name)?),
        };
        Ok(using(&leased.holder))
    }

    fn begin(&self, name: &ProviderName) -> io::Result<Leased> {
        // Set up wrongly, it does not give keys either; what it gave is held on the usual terms.
        let (lease, on_revocation) = match self.keyring.config(name) {
            Ok(ProviderConfig { lease, on_revocation, .. }) => (lease, on_revocation),
            Err(_) => Default::default(),
        };
        let (keyring, asked) = (Arc::clone(&self.keyring), name.clone());
        let (changed, on_event) = (Arc::clone(&self.changed), Arc::clone(&self.on_event));
        let holder = Holder::new(
            move || keyring.provider(&asked),
            LeaseTerms::from(lease),
            move |event| {
                on_event(&event);
                // Full of changes that nobody has looked at, it is readable already.
                let _ = rustix::io::write(&changed, &1_u64.to_ne_bytes());
            },
        )?;
        Ok(Leased { holder, on_revocation })
    }
}

impl Leases for ProviderLeases {
    fn hold(&self, kek: Kek) -> Result<(), KeyError> {
        let KekSource::Provider(key) = kek.source().clone() else {
            return Err(KeyError::WrongSource { given: kek.source().name(), wanted: "key provider" });
        };
        self.with_holder(&key.provider, |holder| holder.adopt(kek)).map_err(|error| KeyError::Unavailable {
            key: Box::new(key.clone()),
            reason: format!("it cannot be held: {error}"),
            may_come_back: false,
        })
    }

    fn hold_when_back(&self, key: &ProviderKey) {
        if let Err(error) = self.with_holder(&key.provider, |holder| holder.hold_when_back(key)) {
            tracing::error!(%key, "cannot be waited for: {error}");
        }
    }

    fn kek(&self, key: &ProviderKey) -> Option<Arc<Kek>> {
        self.holders.lock().get(&key.provider)?.holder.kek(key)
    }

    fn forget(&self, key: &ProviderKey) {
        if let Some(leased) = self.holders.lock().get(&key.provider) {
            leased.holder.forget(key);
        }
    }

    fn status(&self, key: &ProviderKey) -> Option<LeaseStatus> {
        self.holders.lock().get(&key.provider)?.holder.status(key)
    }

    fn on_revocation(&self, key: &ProviderKey) -> OnRevocation {
        self.holders.lock().get(&key.provider).map(|leased| leased.on_revocation).unwrap_or_default()
    }

    fn changed(&self) -> Option<BorrowedFd<'_>> {
        Some(self.changed.as_fd())
    }

    fn take_changes(&self) -> bool {
        rustix::io::read(&self.changed, &mut [0; 8]).is_ok()
    }
}

impl fmt::Debug for ProviderLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let holders = self.holders.lock();
        f.debug_map().entries(holders.iter().map(|(name, leased)| (name, &leased.holder))).finish()
    }
}
