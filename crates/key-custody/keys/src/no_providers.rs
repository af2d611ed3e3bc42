//! The keyring where there are no key providers.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::{
    Absence, Kek, KekSource, KeyError, KeyRequestId, Keyring, LeaseStatus, Leases, OnRevocation, ProviderKey,
    ProviderName,
};

/// Neither reaches a provider nor holds a key of one, for the reason that it has.
#[derive(Clone, Debug)]
pub struct NoProviders(pub String);

impl NoProviders {
    fn unavailable(&self, key: &ProviderKey) -> KeyError {
        let (key, reason) = (Box::new(key.clone()), self.0.clone());
        KeyError::Unavailable { key, reason, absence: Absence::ForGood }
    }
}

impl Keyring for NoProviders {
    fn fetch(&self, key: &ProviderKey) -> Result<Kek, KeyError> {
        Err(self.unavailable(key))
    }

    fn create(&self, provider: &ProviderName, _: KeyRequestId) -> Result<Kek, KeyError> {
        Err(KeyError::NotMade { provider: provider.clone(), reason: self.0.clone() })
    }
}

impl Leases for NoProviders {
    fn hold(&self, kek: Kek) -> Result<(), KeyError> {
        match kek.source() {
            KekSource::Provider(key) => Err(self.unavailable(key)),
            source => Err(KeyError::WrongSource { given: source.name(), wanted: "key provider" }),
        }
    }

    fn hold_when_back(&self, _: &ProviderKey) {}

    fn kek(&self, _: &ProviderKey) -> Option<Arc<Kek>> {
        None
    }

    fn forget(&self, _: &ProviderKey) {}

    fn status(&self, _: &ProviderKey) -> Option<LeaseStatus> {
        None
    }

    fn on_revocation(&self, _: &ProviderKey) -> OnRevocation {
        OnRevocation::default()
    }

    fn changed(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn take_changes(&self) -> bool {
        false
    }
}
