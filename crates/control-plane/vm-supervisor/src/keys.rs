//! The keys of one VM: fetched with its grants, once for all its volumes, and held under leases.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use strongroom_datastore::file::Descriptor;
use strongroom_host::attestation::Attested;
use strongroom_host::protocol::{DiskKey, Grant, VmName, WaitingFor};
use strongroom_keys::{
    Absence, DESCRIPTOR_TAG_BYTES, Kek, KekSource, KeyError, Keyring, LeaseState, LeaseStatus, Leases,
    MissingKey, OnRevocation, ProviderKey, ProviderName,
};
use strongroom_providers::{
    GrantSource, GrantWallet, HolderEvent, KeyGrant, ProviderKeyring, ProviderLeases, SourceConfig,
};

use crate::attestation::tag;

/// The keys of a VM.
pub struct VmKeys {
    keyring: Arc<ProviderKeyring>,
    leases: Arc<ProviderLeases>,
    wallet: Arc<GrantWallet>,
    readers: Arc<Mutex<Vec<Weak<OwnedFd>>>>,
    /// Serialises fetches: a grant can be used once, and a second thread finds the key already
    /// held.
    fetching: Mutex<()>,
    moves: Arc<Mutex<Moves>>,
    /// Why keys are unavailable, of those that are waited for.
    causes: Mutex<HashMap<ProviderKey, Cause>>,
}

/// Why a key is unavailable.
#[derive(Clone, Debug)]
struct Cause {
    reason: String,
    /// The unavailable provider, if the key's own is its broker.
    upstream: Option<ProviderName>,
}

/// Keys that the VM has left, or is leaving.
#[derive(Debug, Default)]
struct Moves {
    /// Each left key with its successor, so that facts about a volume's key from before a move stay
    /// usable.
    successors: Vec<(ProviderKey, ProviderKey)>,
    /// Keys of volumes that have not moved yet, or of other disks than the one that is being
    /// decrypted. They are kept whatever a volume does.
    needed: Vec<ProviderKey>,
}

impl VmKeys {
    /// Starts without keys. `name` is the VM's name in log messages about leases.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn new(home: &Path, name: &VmName) -> io::Result<Self> {
        let wallet = Arc::new(GrantWallet::new());
        let grants = Arc::clone(&wallet) as Arc<dyn GrantSource>;
        let keyring = Arc::new(ProviderKeyring::of_home(home).with_grants(Some(grants)));
        let readers: Arc<Mutex<Vec<Weak<OwnedFd>>>> = Arc::default();
        let (told, name) = (Arc::clone(&readers), name.clone());
        let leases = ProviderLeases::new(Arc::clone(&keyring), move |event| {
            tell(&name, event);
            for reader in told.lock().iter().filter_map(Weak::upgrade) {
                // A pipe that is full of unread changes is already readable.
                let _ = rustix::io::write(&reader, &1_u64.to_ne_bytes());
            }
        })?;
        let (leases, fetching, moves) = (Arc::new(leases), Mutex::default(), Arc::default());
        Ok(Self { keyring, leases, wallet, readers, fetching, moves, causes: Mutex::default() })
    }

    /// Adds grants.
    pub fn add_grants(&self, grants: Vec<Grant>) {
        for grant in grants {
            let expires = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(grant.expires_unix_seconds));
            let expires = expires.unwrap_or(SystemTime::UNIX_EPOCH);
            self.wallet.add(KeyGrant::new(grant.bytes.to_vec(), grant.keys, expires));
        }
    }

    /// The keyring that reaches the providers.
    pub fn keyring(&self) -> Arc<dyn Keyring> {
        Arc::clone(&self.keyring) as _
    }

    /// Returns a key, which is held from now on. Fetches it from the provider unless it is already
    /// held.
    ///
    /// # Errors
    /// [`KeyError::Unavailable`] if the key is unavailable.
    pub fn hold(&self, key: &ProviderKey) -> Result<Arc<Kek>, KeyError> {
        let _turn = self.fetching.lock();
        if let Some(kek) = self.leases.kek(key) {
            return Ok(kek);
        }
        self.leases.hold(self.keyring.fetch(key)?)?;
        self.causes.lock().remove(key);
        self.leases.kek(key).ok_or_else(|| revoked(key))
    }

    /// Returns the VM's tag of its configuration under one of its keys, which is held from now on.
    ///
    /// # Errors
    /// As [`hold`](Self::hold).
    pub fn attest(
        &self,
        key: &ProviderKey,
        what: &Attested<'_>,
    ) -> Result<[u8; DESCRIPTOR_TAG_BYTES], KeyError> {
        tag(what, &*self.hold(key)?)
    }

    /// Returns the key that opens a volume, or under which a new one must be made, and holds it
    /// from now on. While a VM moves between keys, the volume's descriptor decides. Returns `None`
    /// for a clear volume.
    ///
    /// # Errors
    /// As [`hold`](Self::hold); also if the key is not the recorded one.
    pub fn hold_for(
        &self,
        wanted: &DiskKey,
        volume: Option<&Descriptor>,
    ) -> Result<Option<Arc<Kek>>, KeyError> {
        let (key, expected, next) = match wanted {
            DiskKey::Provider { key, kek, next } => (key, kek, next.clone()),
            DiskKey::HalfClear { key, kek, .. } => (key, kek, None),
            DiskKey::Unencrypted => return Ok(None),
        };
        let is_under = |key: &ProviderKey| {
            let encryption = volume.and_then(|descriptor| descriptor.encryption.as_ref());
            let is = |source: &KekSource| matches!(source, KekSource::Provider(found) if found == key);
            encryption.is_some_and(|encryption| encryption.keks().any(|record| is(&record.source)))
        };
        match next.or_else(|| self.successor(key)) {
            Some(next) if volume.is_none() || (!is_under(key) && is_under(&next)) => {
                self.hold(&next).map(Some)
            }
            _ => {
                let kek = self.hold(key)?;
                if let Some(expected) = expected {
                    kek.expect_id(*expected)?;
                }
                Ok(Some(kek))
            }
        }
    }

    /// Returns the key that a VM is moving to, for a volume whose data keys are being renewed
    /// under it, and holds it from now on. Returns `None` for other volumes.
    ///
    /// # Errors
    /// As [`hold`](Self::hold).
    pub fn hold_next_for(&self, wanted: &DiskKey, volume: &Descriptor) -> Result<Option<Arc<Kek>>, KeyError> {
        match (wanted, &volume.reencrypting) {
            (DiskKey::Provider { next: Some(next), .. }, Some(_)) => self.hold(next).map(Some),
            _ => Ok(None),
        }
    }

    /// Returns the successor of a key that the VM has left.
    fn successor(&self, key: &ProviderKey) -> Option<ProviderKey> {
        let moves = self.moves.lock();
        moves.successors.iter().find(|(left, _)| left == key).map(|(_, next)| next.clone())
    }

    /// Begins a move of the VM's volumes: the keys `from` are kept, and new volumes are sealed
    /// under `to`. That key is fetched from its provider now, unless it is held, so that nothing is
    /// sealed under a key that cannot be fetched back.
    ///
    /// # Errors
    /// [`KeyError`]: nothing has begun.
    pub fn begin_move(&self, from: &[ProviderKey], to: &ProviderKey) -> Result<Arc<Kek>, KeyError> {
        // A supervisor that has taken over may hold it already, for a volume between the keys.
        let kek = self.hold_to_seal(to)?;
        let mut moves = self.moves.lock();
        moves.needed = from.to_vec();
        // Successors of these keys move on to the new one. A key that the VM uses has no successor
        // itself.
        moves.successors.retain(|(left, _)| left != to && !from.contains(left));
        moves.successors.iter_mut().for_each(|(_, next)| *next = to.clone());
        moves.successors.extend(from.iter().map(|left| (left.clone(), to.clone())));
        drop(moves);
        Ok(kek)
    }

    /// Returns a key under which volumes are about to be sealed, and holds it from now on. It is
    /// fetched from its provider now, unless it is held, so that nothing is sealed under a key that
    /// cannot be fetched back.
    ///
    /// # Errors
    /// Also if the key may not seal new data.
    pub fn hold_to_seal(&self, key: &ProviderKey) -> Result<Arc<Kek>, KeyError> {
        let _turn = self.fetching.lock();
        if self.leases.kek(key).is_none() {
            self.leases.hold(self.keyring.fetch_to_seal(key)?)?;
        }
        self.leases.kek(key).ok_or_else(|| revoked(key))
    }

    /// Returns a key that volumes are leaving, even if it was revoked as compromised.
    ///
    /// # Errors
    /// If it is unavailable.
    pub fn hold_to_leave(&self, key: &ProviderKey) -> Result<Arc<Kek>, KeyError> {
        let _turn = self.fetching.lock();
        match self.leases.kek(key) {
            Some(kek) => Ok(kek),
            None => self.keyring.fetch_to_leave(key).map(Arc::new),
        }
    }

    /// Ends a move. With `done`, no volume needs the old keys, and they are wiped.
    pub fn end_move(&self, done: bool) {
        let left = std::mem::take(&mut self.moves.lock().needed);
        if done {
            left.iter().for_each(|key| self.leases.forget(key));
        }
    }

    /// Keeps a key until the returned value is dropped, whatever a volume does that no longer needs
    /// it.
    pub fn keep(&self, key: &ProviderKey) -> KeptKey<'_> {
        self.moves.lock().needed.push(key.clone());
        KeptKey { keys: self, key: key.clone() }
    }

    /// Wipes a key that none of the VM's volumes needs any more.
    pub fn forget(&self, key: &ProviderKey) {
        self.leases.forget(key);
    }

    /// Fetches the key for a new volume, without holding it.
    ///
    /// # Errors
    /// Also if the key may not seal new data.
    pub fn fetch_to_seal(&self, key: &ProviderKey) -> Result<Kek, KeyError> {
        self.keyring.fetch_to_seal(key)
    }

    /// Returns the leases for one of several users, each of which sees every change.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn leases(&self) -> io::Result<Arc<dyn Leases>> {
        let changed = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        self.readers.lock().push(Arc::downgrade(&changed));
        let (leases, moves) = (Arc::clone(&self.leases), Arc::clone(&self.moves));
        Ok(Arc::new(OneOfSeveral { leases, moves, changed }))
    }

    /// The report of a missing key for the control plane.
    pub fn waiting_for(&self, missing: MissingKey<'_>) -> WaitingFor {
        let MissingKey { key, reason, absence } = missing;
        let found = Cause { reason: reason.to_owned(), upstream: absence.upstream().cloned() };
        let mut causes = self.causes.lock();
        let cause = match absence {
            // That it needs another grant says less than why it was unavailable before.
            Absence::Ungranted => causes.get(key).unwrap_or(&found),
            _ => causes.entry(key.clone()).insert_entry(found).into_mut(),
        };
        self.report(key, cause.clone())
    }

    /// The report of a key that was held before; `None` if it is still held.
    pub fn missing(&self, key: &ProviderKey) -> Option<WaitingFor> {
        let LeaseStatus { state, reason, upstream, .. } = self.leases.status(key)?;
        let reason = reason.unwrap_or_else(|| "it is being asked for".to_owned());
        (state == LeaseState::Waiting).then(|| self.report(key, Cause { reason, upstream }))
    }

    fn report(&self, key: &ProviderKey, cause: Cause) -> WaitingFor {
        let Cause { reason, upstream } = cause;
        WaitingFor { key: key.clone(), reason, upstream, grant_wanted: self.wants_grant(key) }
    }

    /// Whether a grant is needed: the embedded key server gives a host its keys only for grants;
    /// other providers have none.
    fn wants_grant(&self, key: &ProviderKey) -> bool {
        let config = self.keyring.config(&key.provider);
        if !config.is_ok_and(|config| matches!(config.source, SourceConfig::Embedded(_))) {
            return false;
        }
        match self.wallet.take(&key.key) {
            Some(grant) => {
                self.wallet.put_back(grant);
                false
            }
            None => true,
        }
    }
}

impl fmt::Debug for VmKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VmKeys({:?})", self.leases)
    }
}

/// A key that is kept.
pub struct KeptKey<'a> {
    keys: &'a VmKeys,
    key: ProviderKey,
}

impl Drop for KeptKey<'_> {
    fn drop(&mut self) {
        let needed = &mut self.keys.moves.lock().needed;
        if let Some(at) = needed.iter().position(|needed| *needed == self.key) {
            needed.swap_remove(at);
        }
    }
}

#[derive(Debug)]
struct OneOfSeveral {
    leases: Arc<ProviderLeases>,
    moves: Arc<Mutex<Moves>>,
    changed: Arc<OwnedFd>,
}

impl Leases for OneOfSeveral {
    fn hold(&self, kek: Kek) -> Result<(), KeyError> {
        self.leases.hold(kek)
    }

    fn hold_when_back(&self, key: &ProviderKey) {
        self.leases.hold_when_back(key);
    }

    fn kek(&self, key: &ProviderKey) -> Option<Arc<Kek>> {
        self.leases.kek(key)
    }

    fn forget(&self, key: &ProviderKey) {
        // The moved volume does not need the key, but others may.
        if !self.moves.lock().needed.contains(key) {
            self.leases.forget(key);
        }
    }

    fn status(&self, key: &ProviderKey) -> Option<LeaseStatus> {
        self.leases.status(key)
    }

    fn on_revocation(&self, key: &ProviderKey) -> OnRevocation {
        self.leases.on_revocation(key)
    }

    fn changed(&self) -> Option<BorrowedFd<'_>> {
        Some(self.changed.as_fd())
    }

    fn take_changes(&self) -> bool {
        rustix::io::read(&self.changed, &mut [0; 8]).is_ok()
    }
}

fn revoked(key: &ProviderKey) -> KeyError {
    let reason = "it was revoked as it came".to_owned();
    KeyError::Unavailable { key: Box::new(key.clone()), reason, absence: Absence::ForGood }
}

fn tell(name: &VmName, event: &HolderEvent) {
    match event {
        HolderEvent::Outage { key, reason } => {
            tracing::warn!("VM {name}: the {key}, cannot be confirmed: {reason}. The VM runs on");
        }
        HolderEvent::Back { key } => tracing::warn!("VM {name}: the {key}, is held and confirmed again"),
        HolderEvent::LeaseEnded { key } => tracing::error!(
            "VM {name}: the lease of the {key}, has ended, and the key was wiped. The VM runs on; what needs the key, such as \
             another worker, waits until the provider answers"
        ),
        HolderEvent::Expired { key, .. } => {
            tracing::warn!("VM {name}: the {key}, is out of its time; replace it");
        }
        HolderEvent::Revoked { key, how } => {
            tracing::error!("VM {name}: the {key}, was {how}, and was wiped here");
        }
    }
}
