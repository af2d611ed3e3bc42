//! Providers over real KMIP servers: PyKMIP 0.11.0 and one from kmip-go 0.8.1.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]
#![allow(clippy::print_stdout, reason = "times are printed, never judged")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use strongroom_keys::{Kek, KeyError, KeyRequestId, Keyring, ProviderKey, ProviderName, RevokedHow};
use strongroom_memory::secret::SecretBytes;
use strongroom_providers::{
    Holder, HolderEvent, KeyProvider, KeyState, KmipConfig, LeaseTerms, NewKey, ProviderConfig,
    ProviderError, ProviderKeyring, Registry, Revocation, ServerState, SourceConfig,
};
use strongroom_test_peers::{CertificateFiles, Pki, Server, ServerKind};

/// The deadline for every event.
const DEADLINE: Duration = Duration::from_secs(60);

const TERMS: LeaseTerms = LeaseTerms {
    lease: Duration::from_secs(3600),
    outage_allowance: Duration::from_secs(3600),
    renew_period: Duration::from_millis(100),
    retry_period: Duration::from_millis(100),
};

fn config(pki: &Pki, identity: &CertificateFiles, servers: &[&Server]) -> KmipConfig {
    KmipConfig {
        servers: servers.iter().map(|server| server.address()).collect(),
        ca: pki.authority(),
        certificate: identity.certificate.clone(),
        key: identity.key.clone(),
        server_name: None,
        request_timeout_ms: 8_000,
        named_keys: true,
    }
}

fn name() -> ProviderName {
    "corp".parse().unwrap()
}

fn key_of(new: &NewKey) -> ProviderKey {
    ProviderKey { provider: name(), key: new.key.clone(), wrapped: new.wrapped.clone() }
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < DEADLINE, "not within a minute: {what}");
        std::thread::yield_now();
    }
}

fn next_event(events: &Receiver<HolderEvent>) -> HolderEvent {
    events.recv_timeout(DEADLINE).expect("no event came")
}

#[test]
fn a_key_from_its_creation_to_its_end() {
    for kind in [ServerKind::PyKmip, ServerKind::KmipGo] {
        let (pki, store) = (Pki::new(), tempfile::tempdir().unwrap());
        let server = Server::start(kind, &pki, store.path(), &[]);
        let source = SourceConfig::Kmip(config(&pki, &pki.client("alice"), &[&server]));
        let provider = strongroom_providers::open(&ProviderConfig::new(source)).unwrap();

        let request = KeyRequestId::random();
        let new = provider.create(request).unwrap();
        let again = provider.create(request).unwrap();
        assert_eq!((&again.key, &again.secret), (&new.key, &new.secret), "{kind:?}");
        let (key, other) = (key_of(&new), key_of(&provider.create(KeyRequestId::random()).unwrap()));
        assert_ne!(key, other);
        assert_eq!(provider.fetch(&key).unwrap(), new.secret);
        let facts = provider.facts(&key).unwrap();
        assert_eq!(facts.state, KeyState::Active);
        assert!(facts.expires(Some(Duration::from_secs(86_400))).is_some(), "{facts:?}");

        let mut listed: Vec<_> = provider.list().unwrap().into_iter().map(|listed| listed.key).collect();
        listed.sort();
        let mut made = vec![key.key.clone(), other.key.clone()];
        made.sort();
        assert_eq!(listed, made, "{kind:?}");

        // Out of use: it still opens envelopes.
        provider.revoke(&key, Revocation::Superseded).unwrap();
        // A repeated request, as after a time-out, finds it already done.
        provider.revoke(&key, Revocation::Superseded).unwrap();
        assert_eq!(provider.facts(&key).unwrap().state, KeyState::Deactivated);
        assert_eq!(provider.fetch(&key).unwrap(), new.secret);
        assert!(matches!(provider.fetch_to_seal(&key), Err(ProviderError::Deactivated)), "{kind:?}");
        assert_eq!(provider.fetch_to_seal(&other).unwrap().len(), 32);

        let (sender, events) = channel();
        let held = Arc::clone(&provider);
        let holder =
            Holder::new(move || Ok(Arc::clone(&held)), TERMS, move |event| drop(sender.send(event))).unwrap();
        holder.hold(&key).unwrap();
        assert!(matches!(next_event(&events), HolderEvent::Expired { .. }));
        holder.hold(&other).unwrap();
        provider.revoke(&other, Revocation::Compromised).unwrap();
        let how = RevokedHow::Compromised;
        assert_eq!(next_event(&events), HolderEvent::Revoked { key: other.clone(), how });
        assert!(matches!(provider.fetch(&other), Err(ProviderError::Compromised)), "{kind:?}");
        assert_eq!(provider.fetch_for_rekey(&other).unwrap().len(), 32);

        provider.destroy(&key).unwrap();
        let how = RevokedHow::Destroyed;
        assert_eq!(next_event(&events), HolderEvent::Revoked { key: key.clone(), how });
        let gone = provider.fetch(&key).unwrap_err();
        assert!(matches!(gone, ProviderError::Destroyed | ProviderError::NoSuchKey), "{kind:?}: {gone}");
    }
}

#[test]
fn a_key_that_another_made_is_active_before_it_is_used() {
    let (pki, store) = (Pki::new(), tempfile::tempdir().unwrap());
    let server = Server::start(ServerKind::KmipGo, &pki, store.path(), &[]);
    let provider =
        strongroom_providers::kmip::KmipProvider::new(&config(&pki, &pki.client("alice"), &[&server]))
            .unwrap();
    let client = provider.cluster().clients().next().unwrap();
    let id = client.create(&strongroom_kmip::client::NewKey::aes_256()).unwrap();
    let key = ProviderKey { provider: name(), key: id.parse().unwrap(), wrapped: None };
    assert!(matches!(provider.fetch(&key), Err(ProviderError::NotActivated)));
    provider.activate(&key).unwrap();
    assert_eq!(provider.fetch(&key).unwrap().len(), 32);
    let unknown = ProviderKey { key: "unknown".parse().unwrap(), ..key };
    assert!(matches!(provider.fetch(&unknown), Err(ProviderError::NoSuchKey)));
}

/// While one server cannot be asked, another's "unknown key" does not prove that the key does not
/// exist.
#[test]
fn a_key_is_missing_only_if_every_server_says_so() {
    let (pki, ours, theirs) = (Pki::new(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut with_key = Server::start(ServerKind::KmipGo, &pki, ours.path(), &[]);
    let behind = Server::start(ServerKind::KmipGo, &pki, theirs.path(), &[]);
    let identity = pki.client("alice");
    let open = |servers: &[&Server]| {
        let source = SourceConfig::Kmip(config(&pki, &identity, servers));
        strongroom_providers::open(&ProviderConfig::new(source)).unwrap()
    };
    let new = open(&[&with_key]).create(KeyRequestId::random()).unwrap();
    let cluster = open(&[&behind, &with_key]);
    assert_eq!(cluster.fetch(&key_of(&new)).unwrap(), new.secret);
    with_key.kill();
    let error = cluster.fetch(&key_of(&new)).unwrap_err();
    assert!(error.ends_by_itself() && error.to_string().contains("does not have the key"), "{error}");
}

/// The results of threads that fetch continuously.
#[derive(Default)]
struct Seen {
    fetches: u64,
    failures: u64,
    slowest: Duration,
}

struct Load {
    seen: Arc<Mutex<Seen>>,
    ended: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn start(home: &Path, keys: &[(ProviderKey, SecretBytes)]) -> (Self, Arc<ProviderKeyring>) {
        let keyring = Arc::new(ProviderKeyring::of_home(home));
        let (seen, ended) = (Arc::<Mutex<Seen>>::default(), Arc::<AtomicBool>::default());
        let threads = (0..2).map(|number| {
            let (keyring, seen, ended) = (Arc::clone(&keyring), Arc::clone(&seen), Arc::clone(&ended));
            let key = keys[number % keys.len()].0.clone();
            std::thread::spawn(move || {
                while !ended.load(Ordering::SeqCst) {
                    let begun = Instant::now();
                    let fetched = keyring.fetch(&key);
                    let mut seen = seen.lock();
                    seen.fetches += 1;
                    seen.slowest = seen.slowest.max(begun.elapsed());
                    match fetched {
                        Ok(kek) => assert_eq!(kek.source().to_string(), key.to_string()),
                        Err(KeyError::Unavailable { .. }) => seen.failures += 1,
                        Err(other) => panic!("{other}"),
                    }
                }
            })
        });
        let threads = threads.collect();
        (Self { seen, ended, threads }, keyring)
    }

    /// Waits for some more fetches and returns their results.
    fn after(&self, what: &str, fetches: u64) -> Seen {
        *self.seen.lock() = Seen::default();
        wait_until(what, || self.seen.lock().fetches >= fetches);
        let seen = std::mem::take(&mut *self.seen.lock());
        println!(
            "{what}: {} fetches, {} failed, the slowest took {} ms",
            seen.fetches,
            seen.failures,
            seen.slowest.as_millis()
        );
        seen
    }

    fn end(self) {
        self.ended.store(true, Ordering::SeqCst);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Two servers of one cluster fail in turn, then both, while keys are fetched and held.
#[test]
fn servers_fail_in_turn_and_together_under_load() {
    let (pki, store) = (Pki::new(), tempfile::tempdir().unwrap());
    let mut first = Server::start(ServerKind::KmipGo, &pki, store.path(), &[]);
    let mut second = Server::start(ServerKind::KmipGo, &pki, store.path(), &[]);
    let home = tempfile::tempdir().unwrap();
    let source = SourceConfig::Kmip(config(&pki, &pki.client("alice"), &[&first, &second]));
    Registry::of_home(home.path()).add(&name(), &ProviderConfig::new(source)).unwrap();
    let setup = ProviderKeyring::of_home(home.path());
    let provider = setup.provider(&name()).unwrap();
    let keys: Vec<_> = (0..3)
        .map(|_| provider.create(KeyRequestId::random()).unwrap())
        .map(|new| (key_of(&new), new.secret))
        .collect();

    let (load, keyring) = Load::start(home.path(), &keys);
    let watched = keyring.provider(&name()).unwrap();
    let (sender, events) = channel();
    let held = Arc::clone(&watched);
    let holder =
        Holder::new(move || Ok(Arc::clone(&held)), TERMS, move |event| drop(sender.send(event))).unwrap();
    for (key, _) in &keys[..2] {
        holder.hold(key).unwrap();
    }
    let holds = |count: usize| keys[..count].iter().all(|(key, secret)| is_held(&holder, key, secret));
    let state = |server: usize| watched.health()[server].state;

    assert_eq!(load.after("both up", 50).failures, 0);
    first.kill();
    assert_eq!(load.after("the first was killed", 50).failures, 0);
    // An answer from before its death may be counted after the first failure: then it seems to come
    // back for a moment.
    wait_until("the first is known to be down", || state(0) == ServerState::Down);
    first.restart();
    let begun = Instant::now();
    wait_until("the first is preferred again", || state(0) == ServerState::Up);
    println!("the first is preferred again {} ms after its restart", begun.elapsed().as_millis());

    first.silence();
    assert_eq!(load.after("the first is silent", 50).failures, 0);
    wait_until("the first is known to be silent", || state(0) != ServerState::Up);
    first.wake();
    wait_until("the first is preferred again", || state(0) == ServerState::Up);

    second.kill();
    assert_eq!(load.after("the second was killed", 50).failures, 0);
    assert!(holds(2) && events.try_recv().is_err(), "one server of two is no outage");

    first.kill();
    let outage = load.after("both were killed", 20);
    assert!(outage.failures > 0);
    for _ in 0..2 {
        assert!(matches!(next_event(&events), HolderEvent::Outage { .. }));
    }
    assert!(holds(2), "an outage took a key away");
    // A volume that is opened now is key-unavailable, and recovers by itself when a server is back.
    let (key, secret) = &keys[2];
    let refused = keyring.fetch(key).unwrap_err();
    assert_eq!(refused.code(), "key_unavailable");
    assert!(refused.to_string().contains("is the server running"), "{refused}");
    holder.hold_when_back(key);
    assert!(matches!(next_event(&events), HolderEvent::Outage { key: waiting, .. } if waiting == *key));

    second.restart();
    let begun = Instant::now();
    for _ in 0..3 {
        assert!(matches!(next_event(&events), HolderEvent::Back { .. }));
    }
    println!("every key was back {} ms after a server was", begun.elapsed().as_millis());
    assert!(holds(3));
    assert!(is_held(&holder, key, secret));
    wait_until("fetches succeed", || keyring.fetch(key).is_ok());
    first.restart();
    wait_until("the first is preferred again", || state(0) == ServerState::Up);
    assert_eq!(load.after("both up again", 50).failures, 0);
    load.end();
    for health in watched.health() {
        println!("{health:?}");
    }
}

fn is_held(holder: &Holder, key: &ProviderKey, secret: &SecretBytes) -> bool {
    let expected = Kek::from_provider(secret.duplicate().unwrap(), key.clone()).unwrap();
    holder.kek(key).is_some_and(|held| held.id() == expected.id())
}
