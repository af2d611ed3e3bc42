//! Tests of the holder, with a scripted provider in place of servers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use strongroom_keys::KeyRequestId;
use strongroom_memory::secret::SecretBytes;

use super::*;
use crate::provider::{KeyFacts, KeyState, ListedKey, NewKey, Revocation, ServerHealth, ServerState};

/// The deadline for every event.
const DEADLINE: Duration = Duration::from_secs(60);

const QUICK: LeaseTerms = LeaseTerms {
    lease: Duration::from_secs(3600),
    outage_allowance: Duration::from_secs(3600),
    renew_period: Duration::from_millis(2),
    retry_period: Duration::from_millis(2),
};

/// The provider's answer from now on.
#[derive(Clone, Copy, PartialEq)]
enum Says {
    State(KeyState),
    Expired,
    Nothing,
    No,
}

struct Scripted {
    says: Mutex<Says>,
    asked: AtomicU64,
}

impl Scripted {
    fn facts_now(&self) -> Result<KeyFacts, ProviderError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let deactivates = Some(SystemTime::UNIX_EPOCH);
        let facts = |state, deactivates| KeyFacts { state, created: None, activated: None, deactivates };
        match *self.says.lock() {
            Says::State(KeyState::Compromised) => Err(ProviderError::Compromised),
            Says::State(state) => Ok(facts(state, None)),
            Says::Expired => Ok(facts(KeyState::Deactivated, deactivates)),
            Says::Nothing => Err(ProviderError::Unavailable { reason: "kms1 is silent".to_owned() }),
            Says::No => Err(ProviderError::Refused { reason: "kms1 refuses".to_owned() }),
        }
    }
}

impl KeyProvider for Scripted {
    fn create(&self, _: KeyRequestId) -> Result<NewKey, ProviderError> {
        Err(ProviderError::Unsupported("no"))
    }
    fn fetch(&self, _: &ProviderKey) -> Result<SecretBytes, ProviderError> {
        self.facts_now()?;
        Ok(SecretBytes::from_slice_and_wipe(&mut [7; 32])?)
    }
    fn fetch_for_rekey(&self, key: &ProviderKey) -> Result<SecretBytes, ProviderError> {
        self.fetch(key)
    }
    fn facts(&self, _: &ProviderKey) -> Result<KeyFacts, ProviderError> {
        self.facts_now()
    }
    fn activate(&self, _: &ProviderKey) -> Result<(), ProviderError> {
        Ok(())
    }
    fn revoke(&self, _: &ProviderKey, _: Revocation) -> Result<(), ProviderError> {
        Ok(())
    }
    fn destroy(&self, _: &ProviderKey) -> Result<(), ProviderError> {
        Ok(())
    }
    fn list(&self) -> Result<Vec<ListedKey>, ProviderError> {
        Ok(Vec::new())
    }
    fn health(&self) -> Vec<ServerHealth> {
        let state = if *self.says.lock() == Says::Nothing { ServerState::Down } else { ServerState::Up };
        vec![ServerHealth {
            server: "kms1:5696".to_owned(),
            state,
            requests: 0,
            failures: 0,
            latency_mean_us: 0,
            latency_max_us: 0,
            last_failure: None,
        }]
    }
}

struct Stage {
    provider: Arc<Scripted>,
    holder: Holder,
    events: Receiver<HolderEvent>,
}

impl Stage {
    fn new(terms: LeaseTerms, says: Says) -> Self {
        let provider = Arc::new(Scripted { says: Mutex::new(says), asked: AtomicU64::new(0) });
        let (sender, events) = channel();
        let for_holder: Arc<dyn KeyProvider> = Arc::<Scripted>::clone(&provider);
        let source = move || Ok(Arc::clone(&for_holder));
        let holder = Holder::new(source, terms, move |event| drop(sender.send(event))).unwrap();
        Self { provider, holder, events }
    }

    fn now_says(&self, says: Says) {
        *self.provider.says.lock() = says;
    }

    fn event(&self) -> HolderEvent {
        self.events.recv_timeout(DEADLINE).expect("no event came")
    }

    fn holds(&self, key: &ProviderKey) -> bool {
        self.holder.kek(key).is_some_and(|held| held.id() == kek(key).id())
    }

    fn state(&self, key: &ProviderKey) -> Option<LeaseState> {
        self.holder.status(key).map(|status| status.state)
    }

    /// Waits until the provider was asked some more times.
    fn rounds(&self, count: u64) {
        let goal = self.provider.asked.load(Ordering::SeqCst) + count;
        let begun = Instant::now();
        while self.provider.asked.load(Ordering::SeqCst) < goal {
            assert!(begun.elapsed() < DEADLINE, "the provider is not asked");
            std::thread::yield_now();
        }
    }
}

fn key(id: &str) -> ProviderKey {
    ProviderKey { provider: "corp".parse().unwrap(), key: id.parse().unwrap(), wrapped: None }
}

fn kek(key: &ProviderKey) -> Kek {
    Kek::from_provider(SecretBytes::from_slice_and_wipe(&mut [7; 32]).unwrap(), key.clone()).unwrap()
}

#[test]
fn an_outage_is_an_event_and_the_key_stays() {
    let stage = Stage::new(QUICK, Says::State(KeyState::Active));
    stage.holder.hold(&key("1")).unwrap();
    stage.now_says(Says::Nothing);
    assert_eq!(stage.event(), HolderEvent::Outage { key: key("1"), reason: "kms1 is silent".to_owned() });
    stage.rounds(3);
    assert!(stage.holds(&key("1")));
    let status = stage.holder.status(&key("1")).unwrap();
    assert_eq!((status.state, status.reason.as_deref()), (LeaseState::Outage, Some("kms1 is silent")));
    stage.now_says(Says::State(KeyState::Active));
    // Each event comes once, however many rounds the outage took.
    assert_eq!(stage.event(), HolderEvent::Back { key: key("1") });
    assert!(stage.holds(&key("1")));
}

#[test]
fn a_revoked_or_destroyed_key_is_wiped() {
    for (says, how) in [
        (Says::State(KeyState::Compromised), RevokedHow::Compromised),
        (Says::State(KeyState::Destroyed), RevokedHow::Destroyed),
    ] {
        let stage = Stage::new(QUICK, Says::State(KeyState::Active));
        stage.holder.hold(&key("1")).unwrap();
        stage.now_says(says);
        assert_eq!(stage.event(), HolderEvent::Revoked { key: key("1"), how });
        assert!(!stage.holds(&key("1")));
        assert_eq!(stage.state(&key("1")), Some(LeaseState::Revoked { how }));
        stage.holder.forget(&key("1"));
        assert_eq!(stage.state(&key("1")), None);
        // When the key is awaited, the revocation is found again.
        stage.holder.hold_when_back(&key("2"));
        if how == RevokedHow::Compromised {
            assert_eq!(stage.event(), HolderEvent::Revoked { key: key("2"), how });
        }
    }
}

#[test]
fn an_expired_key_is_told_of_once_and_held_on() {
    let stage = Stage::new(QUICK, Says::State(KeyState::Active));
    stage.holder.hold(&key("1")).unwrap();
    stage.now_says(Says::Expired);
    let since = Some(SystemTime::UNIX_EPOCH);
    assert_eq!(stage.event(), HolderEvent::Expired { key: key("1"), since });
    stage.rounds(3);
    assert!(stage.holds(&key("1")) && stage.holder.status(&key("1")).unwrap().expired);
    assert!(stage.events.try_recv().is_err());
}

#[test]
fn a_key_that_was_just_handed_out_is_confirmed_at_once() {
    let stage =
        Stage::new(LeaseTerms { renew_period: DEADLINE, ..QUICK }, Says::State(KeyState::Compromised));
    stage.holder.adopt(kek(&key("1")));
    let how = RevokedHow::Compromised;
    assert_eq!(stage.event(), HolderEvent::Revoked { key: key("1"), how });
}

#[test]
fn whoever_uses_a_key_may_finish() {
    let stage = Stage::new(QUICK, Says::State(KeyState::Active));
    stage.holder.adopt(kek(&key("1")));
    let used = stage.holder.kek(&key("1")).unwrap();
    let wiped = Arc::downgrade(&used);
    stage.now_says(Says::State(KeyState::Compromised));
    assert!(matches!(stage.event(), HolderEvent::Revoked { .. }));
    assert_eq!(used.id(), kek(&key("1")).id());
    drop(used);
    assert!(wiped.upgrade().is_none());
}

/// A lease that ends between two renewals ends on time, and the key is requested.
#[test]
fn a_lease_may_end_between_two_renewals() {
    let terms = LeaseTerms { lease: Duration::from_millis(20), renew_period: 10 * DEADLINE, ..QUICK };
    let stage = Stage::new(terms, Says::State(KeyState::Active));
    stage.holder.hold(&key("1")).unwrap();
    stage.rounds(2);
}

#[test]
fn a_lease_ends_after_the_allowance_and_the_key_comes_back_with_the_provider() {
    let terms = LeaseTerms { lease: Duration::ZERO, outage_allowance: Duration::from_millis(20), ..QUICK };
    let stage = Stage::new(terms, Says::State(KeyState::Active));
    // A lease of zero: a held key is good only under the outage allowance.
    stage.holder.hold(&key("1")).unwrap();
    stage.now_says(Says::Nothing);
    // A lease of zero may have ended, and the key been fetched again, before the provider fell
    // silent.
    stage.rounds(2);
    let mut events = std::iter::repeat_with(|| stage.event());
    let ended = |event: &HolderEvent| matches!(event, HolderEvent::LeaseEnded { .. });
    assert!(events.any(|event| ended(&event) && !stage.holds(&key("1"))));
    assert_eq!(stage.state(&key("1")), Some(LeaseState::Waiting));
    stage.now_says(Says::State(KeyState::Active));
    let back = HolderEvent::Back { key: key("1") };
    assert!(events.any(|event| event == back));
}

#[test]
fn a_provider_that_refuses_gets_no_allowance() {
    let terms = LeaseTerms { lease: Duration::from_millis(20), ..QUICK };
    let stage = Stage::new(terms, Says::State(KeyState::Active));
    stage.holder.hold(&key("1")).unwrap();
    stage.now_says(Says::No);
    assert_eq!(stage.event(), HolderEvent::Outage { key: key("1"), reason: "kms1 refuses".to_owned() });
    assert_eq!(stage.event(), HolderEvent::LeaseEnded { key: key("1") });
}

#[test]
fn a_key_that_cannot_be_had_yet_is_waited_for() {
    let stage = Stage::new(QUICK, Says::Nothing);
    assert!(stage.holder.hold(&key("1")).unwrap_err().ends_by_itself());
    assert!(stage.holder.statuses().is_empty());
    stage.holder.hold_when_back(&key("1"));
    stage.holder.hold_when_back(&key("2"));
    for _ in 0..2 {
        assert!(matches!(stage.event(), HolderEvent::Outage { .. }));
    }
    stage.rounds(3);
    assert!(!stage.holds(&key("1")) && stage.events.try_recv().is_err());
    stage.now_says(Says::State(KeyState::Active));
    for _ in 0..2 {
        assert!(matches!(stage.event(), HolderEvent::Back { .. }));
    }
    assert!(stage.holds(&key("1")) && stage.holds(&key("2")));
    // It is already held: no request and no event follows.
    stage.holder.hold_when_back(&key("1"));
    stage.holder.forget(&key("1"));
    assert!(!stage.holds(&key("1")) && stage.holds(&key("2")));
}

#[test]
fn debug_shows_no_key() {
    let stage = Stage::new(QUICK, Says::State(KeyState::Active));
    stage.holder.hold(&key("1")).unwrap();
    let shown = format!("{:?}", stage.holder);
    assert!(shown.contains("corp") && shown.contains("Held") && !shown.contains("7, 7"), "{shown}");
}
