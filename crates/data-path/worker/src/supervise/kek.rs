//! The volume's KEK, wherever it is.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use strongroom_datastore::file::Protection;
use strongroom_keys::{
    Kek, KekSource, KeyError, LeaseState, LeaseStatus, Leases, OnRevocation, ProviderKey, RevokedHow,
};
use strongroom_types::KekId;

use crate::control::KeyStatus;

/// The KEK of a volume, for as long as that is exposed. One that a provider keeps is under a lease,
/// and may not be at hand when it is wanted.
#[derive(Debug)]
pub struct VolumeKek {
    place: Place,
    leases: Arc<dyn Leases>,
}

#[derive(Debug)]
enum Place {
    /// There is none: a clear volume, which a person has chosen.
    Nowhere,
    /// Here. It came from a passphrase or a key file, and nobody could give it again.
    Kept(Arc<Kek>),
    /// Held elsewhere, under a lease.
    Leased { key: ProviderKey, id: KekId },
}

impl VolumeKek {
    /// The key that has just opened the volume; none for a clear one.
    ///
    /// # Errors
    /// If a provider's cannot be held.
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

    /// A provider's key of this id, which is held under a lease already, as where several volumes
    /// have the same one.
    pub fn leased(key: ProviderKey, id: KekId, leases: Arc<dyn Leases>) -> Self {
        Self { place: Place::Leased { key, id }, leases }
    }

    /// Whether there is none.
    pub(super) fn is_clear(&self) -> bool {
        matches!(self.place, Place::Nowhere)
    }

    /// The key for one use, to be let go of at once; none for a clear volume.
    ///
    /// # Errors
    /// [`KeyError::Unavailable`] for one that is not held now.
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

    /// Has a key that is missing held as soon as it can be had. Another one that the provider gave
    /// in its place is let go of first.
    pub(super) fn ask_for(&self, error: &KeyError) {
        let Place::Leased { key, .. } = &self.place else { return };
        if matches!(error, KeyError::WrongKek { .. }) {
            self.leases.forget(key);
        }
        self.leases.hold_when_back(key);
    }

    /// Where its provider has it, if it has to be fetched before it can be used.
    pub(super) fn to_fetch(&self) -> Option<&ProviderKey> {
        match &self.place {
            Place::Leased { key, .. } if self.now().is_err() => Some(key),
            _ => None,
        }
    }

    /// Another key is the volume's now. The one before is not needed any more.
    pub(super) fn replace(&mut self, kek: Kek) {
        let id = kek.id();
        let place = match kek.source().clone() {
            KekSource::Provider(key) => {
                if let Err(error) = self.leases.hold(kek) {
                    // It is asked for when it is wanted.
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

    /// How the lease stands, of a provider's key.
    pub(super) fn status(&self) -> Option<Box<KeyStatus>> {
        let Place::Leased { key, .. } = &self.place else { return None };
        let lease = self.leases.status(key)?;
        Some(Box::new(KeyStatus { provider: key.provider.clone(), key: key.key.clone(), lease }))
    }

    /// Whether the volume is to be closed because its key was revoked, and how that was.
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

    /// Whether it may, since this was last asked.
    pub(super) fn take_changes(&self) -> bool {
        self.leases.take_changes()
    }
}

/// A key while it is used; none for a clear volume.
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
