//! The volume's KEK, kept here or held under a lease.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use strongroom_datastore::file::Protection;
use strongroom_keys::{
    Kek, KekSource, KeyError, LeaseState, LeaseStatus, Leases, OnRevocation, ProviderKey, RevokedHow,
};
use strongroom_types::KekId;

use crate::control::KeyStatus;

/// The KEK of an exposed volume. A provider's KEK is held under a lease, and may not be available
/// when it is needed.
#[derive(Debug)]
pub struct VolumeKek {
    place: Place,
    leases: Arc<dyn Leases>,
}

#[derive(Debug)]
enum Place {
    /// There is no key: a person chose a clear volume.
    Nowhere,
    /// It is kept here, because it came from a passphrase or a key file and cannot be fetched
    /// again.
    Kept(Arc<Kek>),
    /// It is held elsewhere, under a lease.
    Leased { key: ProviderKey, id: KekId },
}

impl VolumeKek {
    /// Takes the key that has just opened the volume; `None` for a clear one.
    ///
    /// # Errors
    /// If a provider's key cannot be held under a lease.
    pub fn new(kek: Option<Kek>, leases: Arc<dyn Leases>) -> Result<Self, KeyError> {
        let place = match kek {
            None => Place::Nowhere,
            Some(kek) => match kek.source().clone() {
                KekSource::Provider(key) => {
                    let id = kek.id();
                    leases.hold(kek)?;
                    Place::Leased { key, id }
                }
                KekSource::Passphrase(_) | KekSource::KeyFile {} => Place::Kept(Arc::new(kek)),
            },
        };
        Ok(Self { place, leases })
    }

    /// A provider's key of this id that is already held under a lease, for example for another
    /// volume.
    pub fn leased(key: ProviderKey, id: KekId, leases: Arc<dyn Leases>) -> Self {
        Self { place: Place::Leased { key, id }, leases }
    }

    /// Whether the volume is clear.
    pub(super) fn is_clear(&self) -> bool {
        matches!(self.place, Place::Nowhere)
    }

    /// The key for one use, to be dropped right afterwards; empty for a clear volume.
    ///
    /// # Errors
    /// [`KeyError::Unavailable`] if the key is not held now.
    pub(super) fn now(&self) -> Result<KekInUse, KeyError> {
        match &self.place {
            Place::Nowhere => Ok(KekInUse(None)),
            Place::Kept(kek) => Ok(KekInUse(Some(Arc::clone(kek)))),
            Place::Leased { key, id } => {
                let kek = self.leases.kek(key).ok_or_else(|| self.missing(key))?;
                kek.expect_id(*id)?;
                Ok(KekInUse(Some(kek)))
            }
        }
    }

    fn missing(&self, key: &ProviderKey) -> KeyError {
        let status = self.leases.status(key);
        let is_revoked = matches!(status, Some(LeaseStatus { state: LeaseState::Revoked { .. }, .. }));
        let reason = status.and_then(|status| status.reason);
        KeyError::Unavailable {
            key: Box::new(key.clone()),
            reason: reason.unwrap_or_else(|| "it is being asked for".to_owned()),
            may_come_back: !is_revoked,
        }
    }

    /// Requests a missing key, to be held as soon as it is available. A wrong key that the provider
    /// gave instead is released first.
    pub(super) fn ask_for(&self, error: &KeyError) {
        let Place::Leased { key, .. } = &self.place else { return };
        if matches!(error, KeyError::WrongKek { .. }) {
            self.leases.forget(key);
        }
        self.leases.hold_when_back(key);
    }

    /// The provider's name of the key, if it must be fetched before it can be used.
    pub(super) fn to_fetch(&self) -> Option<&ProviderKey> {
        match &self.place {
            Place::Leased { key, .. } if self.now().is_err() => Some(key),
            _ => None,
        }
    }

    /// Replaces the volume's key. The former one is no longer needed.
    pub(super) fn replace(&mut self, kek: Kek) {
        let id = kek.id();
        let place = match kek.source().clone() {
            KekSource::Provider(key) => {
                if let Err(error) = self.leases.hold(kek) {
                    // It is requested when it is needed.
                    tracing::error!("{error}");
                }
                Place::Leased { key, id }
            }
            KekSource::Passphrase(_) | KekSource::KeyFile {} => Place::Kept(Arc::new(kek)),
        };
        let before = std::mem::replace(&mut self.place, place);
        if let Place::Leased { key: before, .. } = before
            && !matches!(&self.place, Place::Leased { key, .. } if *key == before)
        {
            self.leases.forget(&before);
        }
    }

    /// The status of the lease of a provider's key.
    pub(super) fn status(&self) -> Option<Box<KeyStatus>> {
        let Place::Leased { key, .. } = &self.place else { return None };
        let lease = self.leases.status(key)?;
        Some(Box::new(KeyStatus { provider: key.provider.clone(), key: key.key.clone(), lease }))
    }

    /// How the key was revoked, if that ends the exposure.
    pub(super) fn ends_the_exposure(&self) -> Option<RevokedHow> {
        let Place::Leased { key, .. } = &self.place else { return None };
        match self.leases.status(key)?.state {
            LeaseState::Revoked { how } if self.leases.on_revocation(key) == OnRevocation::Stop => Some(how),
            _ => None,
        }
    }

    /// Readable when the state of the lease may have changed.
    pub(super) fn changed(&self) -> Option<BorrowedFd<'_>> {
        self.leases.changed()
    }

    /// Whether it may have changed since the last call.
    pub(super) fn take_changes(&self) -> bool {
        self.leases.take_changes()
    }
}

/// A key while it is used; empty for a clear volume.
pub struct KekInUse(Option<Arc<Kek>>);

impl KekInUse {
    /// The protection for calls of the datastore.
    pub fn protection(&self) -> Protection<'_> {
        self.0.as_deref().map_or(Protection::Unencrypted, Protection::Encrypted)
    }

    /// The key.
    pub fn kek(&self) -> Option<&Kek> {
        self.0.as_deref()
    }
}
