//! Sources and holders of keys.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use strongroom_keys::{
    Kek, KekSource, KeyError, KeyRequestId, Keyring, LeaseState, LeaseStatus, Leases, OnRevocation,
    ProviderKey, ProviderName,
};
use strongroom_memory::secret::SecretBytes;
use strongroom_worker::control::{NewKek, Request};

use crate::stage::DEADLINE;

/// Keeps one key.
#[derive(Debug)]
pub struct OneKey(pub u8);

impl Keyring for OneKey {
    fn fetch(&self, key: &ProviderKey) -> Result<Kek, KeyError> {
        Kek::from_provider(SecretBytes::from_slice_and_wipe(&mut [self.0; 32])?, key.clone())
    }

    fn create(&self, provider: &ProviderName, _: KeyRequestId) -> Result<Kek, KeyError> {
        Err(KeyError::NotMade { provider: provider.clone(), reason: "it keeps one".to_owned() })
    }
}

pub fn provider_key(id: &str) -> ProviderKey {
    ProviderKey { provider: "corp".parse().unwrap(), key: id.parse().unwrap(), wrapped: None }
}

pub fn key_file_kek(fill: u8) -> Kek {
    KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [fill; 32]).unwrap()).unwrap()
}

pub fn rewrap_request(to: &Kek, least_generation: u64) -> Request {
    Request::Rewrap { to: NewKek { id: to.id(), source: to.source().clone() }, least_generation }
}

/// Holds keys as long as the test allows.
#[derive(Debug)]
pub struct ScriptedLeases {
    pub state: Mutex<Scripted>,
    changed: OwnedFd,
}

#[derive(Debug, Default)]
pub struct Scripted {
    held: Vec<Arc<Kek>>,
    /// Keys that were requested while they were not available.
    asked_for: Vec<ProviderKey>,
    stands: Option<LeaseState>,
    pub on_revocation: OnRevocation,
}

impl Default for ScriptedLeases {
    fn default() -> Self {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Self { state: Mutex::default(), changed: eventfd(0, flags).unwrap() }
    }
}

impl ScriptedLeases {
    /// Sets the state of every key's lease from now on.
    pub fn now(&self, state: LeaseState) {
        let mut scripted = self.state.lock();
        scripted.stands = Some(state);
        if !matches!(state, LeaseState::Held | LeaseState::Outage) {
            scripted.held.clear();
        }
        drop(scripted);
        rustix::io::write(&self.changed, &1_u64.to_ne_bytes()).unwrap();
    }

    /// Makes the key available again.
    pub fn back(&self, kek: Kek) {
        self.hold(kek).unwrap();
        self.now(LeaseState::Held);
    }

    pub fn is_asked_for(&self, key: &ProviderKey) -> bool {
        self.state.lock().asked_for.contains(key)
    }
}

impl Leases for ScriptedLeases {
    fn hold(&self, kek: Kek) -> Result<(), KeyError> {
        let mut scripted = self.state.lock();
        scripted.stands = Some(LeaseState::Held);
        scripted.held.push(Arc::new(kek));
        Ok(())
    }

    fn hold_when_back(&self, key: &ProviderKey) {
        self.state.lock().asked_for.push(key.clone());
    }

    fn kek(&self, key: &ProviderKey) -> Option<Arc<Kek>> {
        let scripted = self.state.lock();
        let source = KekSource::Provider(key.clone());
        scripted.held.iter().find(|kek| *kek.source() == source).cloned()
    }

    fn forget(&self, key: &ProviderKey) {
        let source = KekSource::Provider(key.clone());
        self.state.lock().held.retain(|kek| *kek.source() != source);
    }

    fn status(&self, _: &ProviderKey) -> Option<LeaseStatus> {
        let state = self.state.lock().stands?;
        let reason = (state != LeaseState::Held).then(|| "kms1 rests".to_owned());
        Some(LeaseStatus { state, since_unix_seconds: 7, reason, expired: false, upstream: None })
    }

    fn on_revocation(&self, _: &ProviderKey) -> OnRevocation {
        self.state.lock().on_revocation
    }

    fn changed(&self) -> Option<BorrowedFd<'_>> {
        Some(self.changed.as_fd())
    }

    fn take_changes(&self) -> bool {
        rustix::io::read(&self.changed, &mut [0; 8]).is_ok()
    }
}

/// A key server that does not respond until the test lets it, and signals each request.
#[derive(Debug)]
pub struct Silent {
    asked: Sender<()>,
    silence: Mutex<Receiver<()>>,
}

impl Silent {
    /// The server, the receiver of its signals, and the sender that makes it respond.
    pub fn new() -> (Self, Receiver<()>, Sender<()>) {
        let (asked, heard) = channel();
        let (speak, silence) = channel();
        (Self { asked, silence: Mutex::new(silence) }, heard, speak)
    }
}

impl Keyring for Silent {
    fn fetch(&self, key: &ProviderKey) -> Result<Kek, KeyError> {
        let _ = self.asked.send(());
        let _ = self.silence.lock().recv_timeout(DEADLINE);
        OneKey(8).fetch(key)
    }

    /// Fetches a key that a volume moves away from.
    fn fetch_to_leave(&self, key: &ProviderKey) -> Result<Kek, KeyError> {
        OneKey(7).fetch(key)
    }

    fn create(&self, provider: &ProviderName, request: KeyRequestId) -> Result<Kek, KeyError> {
        OneKey(8).create(provider, request)
    }
}
