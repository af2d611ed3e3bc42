//! A holder for every provider: the leases for long-term users of volumes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use strongroom_keys::{
    Absence, Kek, KekSource, KeyError, LeaseStatus, Leases, OnRevocation, ProviderKey, ProviderName,
};

use crate::config::ProviderConfig;
use crate::holder::{Holder, HolderEvent, LeaseTerms};
use crate::keyring::ProviderKeyring;

/// The leases of one process on keys of any provider of a home. A provider's terms are fixed when
/// the first of its keys is held.
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
    /// Empty leases. Keys are confirmed and requested through the keyring. `on_event` receives
    /// outages, expiry and revocations, on a thread of its own.
    ///
    /// # Errors
    /// If no file descriptor is left.
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

    /// Runs a closure with a provider's holder, which is created on first use.
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
        // A misconfigured provider hands out no keys; keys it handed out before are held on default
        // terms.
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
                // If the counter is full of unread changes, it is readable already.
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
            absence: Absence::ForGood,
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
