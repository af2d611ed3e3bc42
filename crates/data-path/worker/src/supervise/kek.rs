//! The volume's KEK, kept here or held under a lease.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use strongroom_datastore::file::Protection;
use strongroom_keys::{
    Absence, Kek, KekSource, KeyError, LeaseState, LeaseStatus, Leases, OnRevocation, ProviderKey, RevokedHow,
};
use strongroom_types::KekId;

use crate::control::KeyStatus;

/// Which of a volume's layers are sealed, as persons have decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeSeal {
    /// All.
    Sealed,
    /// The top; those below are becoming so.
    Encrypting,
    /// Some below the top, until they are rewritten.
    Decrypting,
    /// None.
    Clear,
}

/// Who decides whether a volume is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decides {
    /// Its owner, by commands on the volume.
    Owner,
    /// The configuration of the VM that it belongs to, through [`ServedSeal::allow`].
    Configuration,
}

/// What a volume of a VM may become while it is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealChange {
    /// Encrypted, under this KEK.
    Encrypted(KekId),
    /// Not encrypted.
    Clear,
}

/// The seal of a served volume, shared by its supervisor and that of its VM, which are threads of
/// one process. No command on the volume can allow a change.
#[derive(Clone, Debug)]
pub struct ServedSeal(Arc<Mutex<SealState>>);

#[derive(Debug)]
struct SealState {
    now: VolumeSeal,
    allowed: Option<SealChange>,
}

impl ServedSeal {
    fn new(now: VolumeSeal) -> Self {
        Self(Arc::new(Mutex::new(SealState { now, allowed: None })))
    }

    /// Which of the volume's layers are sealed.
    pub fn now(&self) -> VolumeSeal {
        self.0.lock().now
    }

    /// Allows one change, or with `None` no change, to a volume that belongs to a VM.
    pub fn allow(&self, change: Option<SealChange>) {
        self.0.lock().allowed = change;
    }

    fn becomes(&self, seal: VolumeSeal) {
        self.0.lock().now = seal;
    }

    fn allows(&self, change: SealChange) -> bool {
        self.0.lock().allowed == Some(change)
    }
}

/// The KEK of an exposed volume. A provider's KEK is held under a lease, and may not be available
/// when it is needed.
#[derive(Debug)]
pub struct VolumeKek {
    place: Place,
    /// The KEK of new DEKs, while data keys are renewed under another one.
    next: Option<Place>,
    seal: ServedSeal,
    decides: Decides,
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
        let is_clear = kek.is_none();
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
        let seal = ServedSeal::new(if is_clear { VolumeSeal::Clear } else { VolumeSeal::Sealed });
        Ok(Self { place, next: None, seal, decides: Decides::Owner, leases })
    }

    /// A provider's key of this id that is already held under a lease, for a volume of a VM.
    pub fn leased(key: ProviderKey, id: KekId, leases: Arc<dyn Leases>) -> Self {
        let (seal, decides) = (ServedSeal::new(VolumeSeal::Sealed), Decides::Configuration);
        Self { place: Place::Leased { key, id }, next: None, seal, decides, leases }
    }

    /// No key, for a volume that a VM's configuration says is clear.
    pub fn none_of_a_vm(leases: Arc<dyn Leases>) -> Self {
        let (seal, decides) = (ServedSeal::new(VolumeSeal::Clear), Decides::Configuration);
        Self { place: Place::Nowhere, next: None, seal, decides, leases }
    }

    /// Adds the KEK of new DEKs, of a volume whose data keys are being renewed under another one.
    #[must_use]
    pub fn and_next_kek(mut self, next: Kek) -> Self {
        self.begin_next(next);
        self
    }

    /// The same for a volume whose encryption or decryption is not finished.
    #[must_use]
    pub fn unfinished(self, seal: VolumeSeal) -> Self {
        self.seal.becomes(seal);
        self
    }

    /// Adds the provider's key of new DEKs, of a volume whose data keys are being renewed. It is
    /// held as the other one is.
    #[must_use]
    pub fn and_next(self, key: ProviderKey, id: KekId) -> Self {
        Self { next: Some(Place::Leased { key, id }), ..self }
    }

    /// Which of the volume's layers are sealed.
    pub(super) fn seal(&self) -> VolumeSeal {
        self.seal.now()
    }

    /// The same, for the supervisor of the VM that the volume belongs to.
    pub(super) fn served_seal(&self) -> &ServedSeal {
        &self.seal
    }

    /// Whether a request may encrypt or decrypt the volume.
    pub(super) fn may_change_seal(&self, change: SealChange) -> bool {
        match self.decides {
            Decides::Owner => true,
            Decides::Configuration => self.seal.allows(change),
        }
    }

    /// Begins to encrypt the volume under this KEK, or the one that it has.
    pub(super) fn begin_encrypting(&mut self, kek: Kek) {
        if !self.is(kek.id()) {
            self.place = self.take(kek);
        }
        self.seal.becomes(VolumeSeal::Encrypting);
    }

    /// Begins to decrypt the volume.
    pub(super) fn begin_decrypting(&mut self) {
        self.seal.becomes(VolumeSeal::Decrypting);
    }

    /// Goes back to what the volume was before it was to be encrypted or decrypted.
    pub(super) fn end_as(&mut self, seal: VolumeSeal) {
        self.seal.becomes(seal);
        if seal == VolumeSeal::Clear {
            self.settle_in(Place::Nowhere);
        }
    }

    /// The key for one use, to be dropped right afterwards; empty for a clear volume.
    ///
    /// # Errors
    /// [`KeyError::Unavailable`] if the key is not held now.
    pub(super) fn now(&self) -> Result<KekInUse, KeyError> {
        let next = self.next.as_ref().map(|next| self.kek_at(next)).transpose()?.flatten();
        Ok(KekInUse { kek: self.kek_at(&self.place)?, next, seal: self.seal() })
    }

    fn kek_at(&self, place: &Place) -> Result<Option<Arc<Kek>>, KeyError> {
        match place {
            Place::Nowhere => Ok(None),
            Place::Kept(kek) => Ok(Some(Arc::clone(kek))),
            Place::Leased { key, id } => {
                let kek = self.leases.kek(key).ok_or_else(|| self.missing(key))?;
                kek.expect_id(*id)?;
                Ok(Some(kek))
            }
        }
    }

    /// The providers' keys that it is under.
    fn leased_keys(&self) -> impl Iterator<Item = &ProviderKey> {
        std::iter::once(&self.place).chain(&self.next).filter_map(|place| match place {
            Place::Leased { key, .. } => Some(key),
            Place::Nowhere | Place::Kept(_) => None,
        })
    }

    fn missing(&self, key: &ProviderKey) -> KeyError {
        let status = self.leases.status(key);
        let is_revoked = matches!(status, Some(LeaseStatus { state: LeaseState::Revoked { .. }, .. }));
        let reason = status.and_then(|status| status.reason);
        KeyError::Unavailable {
            key: Box::new(key.clone()),
            reason: reason.unwrap_or_else(|| "it is being asked for".to_owned()),
            absence: if is_revoked { Absence::ForGood } else { Absence::ForNow },
        }
    }

    /// Requests a missing key, to be held as soon as it is available. A wrong key that the provider
    /// gave instead is released first.
    pub(super) fn ask_for(&self, error: &KeyError) {
        for place in std::iter::once(&self.place).chain(&self.next) {
            let Place::Leased { key, .. } = place else { continue };
            if self.kek_at(place).is_ok() {
                continue;
            }
            if matches!(error, KeyError::WrongKek { .. }) {
                self.leases.forget(key);
            }
            self.leases.hold_when_back(key);
        }
    }

    /// The provider's name of the key, if it must be fetched before it can be used.
    pub(super) fn to_fetch(&self) -> Option<&ProviderKey> {
        match &self.place {
            Place::Leased { key, .. } if self.kek_at(&self.place).is_err() => Some(key),
            _ => None,
        }
    }

    /// Replaces the volume's key. The former one is no longer needed.
    pub(super) fn replace(&mut self, kek: Kek) {
        let place = self.take(kek);
        self.settle_in(place);
    }

    /// Takes the key of new DEKs. The present one opens the old ones.
    pub(super) fn begin_next(&mut self, kek: Kek) {
        self.next = Some(self.take(kek));
    }

    /// The key of new DEKs alone is left.
    pub(super) fn end_on_next(&mut self) {
        if let Some(next) = self.next.take() {
            self.settle_in(next);
        }
    }

    /// The present key alone is left. Another volume of the VM may need the other one, so it stays
    /// held.
    pub(super) fn end_without_next(&mut self) {
        self.next = None;
    }

    /// Whether this is the present key.
    pub(super) fn is(&self, kek: KekId) -> bool {
        match &self.place {
            Place::Nowhere => false,
            Place::Kept(kept) => kept.id() == kek,
            Place::Leased { id, .. } => *id == kek,
        }
    }

    fn take(&self, kek: Kek) -> Place {
        let id = kek.id();
        match kek.source().clone() {
            KekSource::Provider(key) => {
                if let Err(error) = self.leases.hold(kek) {
                    // It is requested when it is needed.
                    tracing::error!("{error}");
                }
                Place::Leased { key, id }
            }
            KekSource::Passphrase(_) | KekSource::KeyFile {} => Place::Kept(Arc::new(kek)),
        }
    }

    fn settle_in(&mut self, place: Place) {
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
        self.leased_keys().find_map(|key| match self.leases.status(key)?.state {
            LeaseState::Revoked { how } if self.leases.on_revocation(key) == OnRevocation::Stop => Some(how),
            _ => None,
        })
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
pub struct KekInUse {
    kek: Option<Arc<Kek>>,
    next: Option<Arc<Kek>>,
    seal: VolumeSeal,
}

impl KekInUse {
    /// The protection for calls of the datastore.
    pub fn protection(&self) -> Protection<'_> {
        match (self.kek.as_deref(), self.seal, self.next.as_deref()) {
            (Some(kek), VolumeSeal::Encrypting, _) => Protection::Encrypting(kek),
            (Some(kek), VolumeSeal::Decrypting, _) => Protection::Decrypting(kek),
            (Some(from), VolumeSeal::Sealed | VolumeSeal::Clear, Some(to)) => {
                Protection::Between { from, to }
            }
            (Some(kek), VolumeSeal::Sealed | VolumeSeal::Clear, None) => Protection::Encrypted(kek),
            (None, _, _) => Protection::Unencrypted,
        }
    }

    /// The present key.
    pub fn kek(&self) -> Option<&Kek> {
        self.kek.as_deref()
    }
}
