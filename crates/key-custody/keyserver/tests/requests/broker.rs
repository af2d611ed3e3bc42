//! Keys of an external provider, released under grants.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use strongroom_keys::{KeyRequestId, ProviderKey, ProviderName};
use strongroom_keyserver::access::{Identity, Role};
use strongroom_keyserver::broker::{self, BrokerTimes, CALLS_MAX, Upstream, UpstreamError, UpstreamState};
use strongroom_keyserver::grant::ledger::raise_generation;
use strongroom_keyserver::grant::{VmGeneration, VmId};
use strongroom_keyserver::{Event, EventOutcome, ShownGrant};
use strongroom_kmip::message::*;
use strongroom_kmip::protocol::*;
use strongroom_memory::secret::SecretBytes;

use crate::fixture::{
    Fixture, assert_done, assert_refused, get, granted, identity, just, key_in, locate, located, revoke,
};

/// Timeout of anything that is waited for.
const DEADLINE: Duration = Duration::from_secs(60);

/// A provider in memory.
#[derive(Debug, Default)]
struct Provider {
    keys: Mutex<HashMap<ProviderKey, (UpstreamState, [u8; 32])>>,
    is_away: Mutex<bool>,
    /// Requests for a key, and for a state, so far.
    asked: Mutex<(usize, usize)>,
    /// Whether it holds requests, how many are held now, and the most at any time.
    held: Mutex<(bool, usize, usize)>,
    changed: Condvar,
}

impl Provider {
    fn with_key(name: &str, fill: u8) -> (Arc<Self>, ProviderKey) {
        let provider = Arc::new(Self::default());
        (Arc::clone(&provider), provider.add(name, fill))
    }

    fn add(&self, name: &str, fill: u8) -> ProviderKey {
        let key =
            ProviderKey { provider: "corp".parse().unwrap(), key: name.parse().unwrap(), wrapped: None };
        self.keys.lock().insert(key.clone(), (UpstreamState::Active, [fill; 32]));
        key
    }

    fn becomes(&self, key: &ProviderKey, state: UpstreamState) {
        self.keys.lock().get_mut(key).unwrap().0 = state;
    }

    fn is_away(&self, is_away: bool) {
        *self.is_away.lock() = is_away;
    }

    fn hold(&self, is_held: bool) {
        self.held.lock().0 = is_held;
        self.changed.notify_all();
    }

    /// Waits until it holds so many requests.
    #[track_caller]
    fn await_held(&self, count: usize) {
        let mut held = self.held.lock();
        let waited = self.changed.wait_while_for(&mut held, |held| held.1 < count, DEADLINE);
        assert!(!waited.timed_out(), "{} requests came, not {count}", held.1);
    }

    fn find(&self, key: &ProviderKey) -> Result<(UpstreamState, [u8; 32]), UpstreamError> {
        let mut held = self.held.lock();
        held.1 += 1;
        held.2 = held.2.max(held.1);
        self.changed.notify_all();
        self.changed.wait_while(&mut held, |held| held.0);
        held.1 -= 1;
        drop(held);
        if *self.is_away.lock() {
            return Err(UpstreamError::Unavailable { reason: "kms1:5696: cannot connect".to_owned() });
        }
        let gone = || UpstreamError::Gone { reason: "no server has it".to_owned() };
        self.keys.lock().get(key).copied().ok_or_else(gone)
    }
}

impl Upstream for Provider {
    fn fetch(&self, key: &ProviderKey) -> Result<SecretBytes, UpstreamError> {
        self.asked.lock().0 += 1;
        Ok(SecretBytes::from_slice_and_wipe(&mut self.find(key)?.1).unwrap())
    }

    fn state(&self, key: &ProviderKey) -> Result<UpstreamState, UpstreamError> {
        self.asked.lock().1 += 1;
        Ok(self.find(key)?.0)
    }

    fn create(&self, _: &ProviderName, request: KeyRequestId) -> Result<ProviderKey, UpstreamError> {
        Ok(self.add(&request.to_string(), 7))
    }

    fn providers(&self) -> Vec<ProviderName> {
        vec!["corp".parse().unwrap()]
    }
}

/// A server that has adopted a provider's key, its owner, and a host.
struct Site {
    provider: Arc<Provider>,
    fixture: Fixture,
    control: Identity,
    host: Identity,
    key: ProviderKey,
    /// The key's id at the server.
    id: String,
}

impl Site {
    /// A site with a key of 32 fives.
    fn new() -> Self {
        Self::of(Fixture::before)
    }

    /// The same, before whose provider this puts a server.
    fn of(before: impl FnOnce(Arc<dyn Upstream>) -> Fixture) -> Self {
        let (provider, key) = Provider::with_key("4711", 5);
        let fixture = before(provider.clone());
        let (control, host) = (identity("control", Role::Control), identity("host", Role::Host));
        let id = taken_in(&fixture, &control, &key);
        Self { provider, fixture, control, host, key, id }
    }

    /// A fresh grant for the key.
    fn grant(&self) -> Vec<u8> {
        self.fixture.control.grant(&self.host, &self.id, 1)
    }

    /// A host's request with a fresh grant for the key.
    fn granted(&self, payloads: Vec<RequestPayload>) -> RequestMessage {
        granted(self.grant(), payloads)
    }

    /// What a host asks when it fetches the key under this grant: its state, and the key.
    fn fetch(&self, grant: &[u8]) -> Vec<ResponseItem> {
        let request = granted(grant.to_vec(), vec![state(&self.id), get(&self.id)]);
        self.fixture.send(&self.host, &request).items
    }

    /// A fetch that goes on beside the test.
    fn begin_fetch(&self, grant: &[u8]) -> tokio::task::JoinHandle<Vec<ResponseItem>> {
        let request = granted(grant.to_vec(), vec![state(&self.id), get(&self.id)]);
        let (server, host) = (Arc::clone(&self.fixture.server), self.host.clone());
        self.fixture.spawn(async move {
            server.handle(strongroom_keyserver::Caller::new(host, None), &request).await.items
        })
    }

    /// Sends a request as the host, with such a grant.
    fn ask_granted(&self, payload: RequestPayload) -> ResponseItem {
        self.fixture.send(&self.host, &self.granted(vec![payload])).items.remove(0)
    }

    fn ask(&self, who: &Identity, payload: RequestPayload) -> ResponseItem {
        self.fixture.ask(who, payload)
    }

    /// The provider's requests for a key, and for a state, so far.
    fn asked(&self) -> (usize, usize) {
        *self.provider.asked.lock()
    }
}

impl Drop for Site {
    /// A test that fails does not wait for the requests that its provider holds.
    fn drop(&mut self) {
        self.provider.hold(false);
    }
}

fn taken_in(fixture: &Fixture, owner: &Identity, key: &ProviderKey) -> String {
    let objects = fixture.server.objects();
    broker::take_in(&objects, owner.client, key, UpstreamState::Active).unwrap().0.to_string()
}

fn state(id: &str) -> RequestPayload {
    RequestPayload::GetAttributes(GetAttributesRequest {
        unique_identifier: Some(id.to_owned()),
        attribute_names: vec![AttributeName::State],
    })
}

#[track_caller]
fn state_in(item: &ResponseItem) -> State {
    match &item.payload {
        Some(ResponsePayload::GetAttributes(answer)) => match answer.attributes[0].value {
            AttributeValue::State(state) => state,
            ref other => panic!("{other:?}"),
        },
        other => panic!("{other:?} {:?}", item.result_message),
    }
}

#[test]
fn a_host_has_an_external_key_under_a_grant_and_nobody_else_has_it() {
    let site = Site::new();
    let Site { provider, fixture, control, host, key, id } = &site;
    assert_eq!(taken_in(fixture, control, key), *id, "once taken in, it stays the same object");
    assert_eq!(located(&site.ask(control, locate(Vec::new()))), std::slice::from_ref(id));
    assert_eq!(state_in(&site.ask(control, state(id))), State::Active);

    assert_refused(&site.ask(control, get(id)), ResultReason::PermissionDenied);
    assert_refused(&site.ask(host, get(id)), ResultReason::PermissionDenied);
    assert_eq!(site.asked(), (0, 0), "who may not have it has nobody asked");
    assert_eq!(key_in(&site.ask_granted(get(id))), [5; 32]);
    assert_eq!(site.asked(), (1, 0));
    let released: Vec<_> = fixture
        .events()
        .into_iter()
        .filter(|event| matches!(event.outcome, EventOutcome::Released { .. }))
        .map(|event| (event.upstream, event.objects.len()))
        .collect();
    assert_eq!(released, [(Some(key.clone()), 1)]);
    // The key was not stored: while its provider is away it is unavailable.
    provider.is_away(true);
    let away = site.ask_granted(get(id));
    assert_refused(&away, ResultReason::GeneralFailure);
    assert_eq!(
        away.result_message.as_deref(),
        Some("upstream-unavailable: key provider corp, key 4711: kms1:5696: cannot connect")
    );
    provider.is_away(false);
    assert_eq!(key_in(&site.ask_granted(get(id))), [5; 32]);
    // Destroying the object here ends its release here.
    assert_done(&site.ask(control, revoke(id, RevocationReasonCode::CessationOfOperation)));
    assert_done(&site.ask(control, RequestPayload::Destroy(just(id))));
    assert_refused(&site.ask_granted(get(id)), ResultReason::ItemNotFound);
}

#[test]
fn a_host_is_told_the_state_that_the_provider_tells() {
    for (told, shown) in
        [(UpstreamState::Deactivated, State::Deactivated), (UpstreamState::Compromised, State::Compromised)]
    {
        let site = Site::new();
        let Site { provider, fixture, control, host, key, id } = &site;
        provider.becomes(key, told);
        let answer = fixture.send(host, &site.granted(vec![state(id), get(id)]));
        assert_eq!(state_in(&answer.items[0]), shown);
        assert_eq!(key_in(&answer.items[1]), [5; 32], "it decides by the state");
        // The reported state is then visible to all clients, and one request serves many.
        assert_eq!(state_in(&site.ask(control, state(id))), shown);
        for _ in 0..3 {
            assert_eq!(state_in(&site.ask(host, state(id))), shown);
        }
        assert_eq!(site.asked(), (1, 1));
    }
}

#[test]
fn what_a_provider_cannot_say_is_an_outage_and_what_it_has_not_is_gone() {
    let site = Site::new();
    let Site { provider, control, key, id, .. } = &site;
    provider.is_away(true);
    let away = site.ask_granted(state(id));
    assert_refused(&away, ResultReason::GeneralFailure);
    assert!(away.result_message.unwrap().starts_with("upstream-unavailable: key provider corp, key 4711"));
    // Other clients see the last known state.
    assert_eq!(state_in(&site.ask(control, state(id))), State::Active);
    provider.is_away(false);
    provider.keys.lock().clear();
    for payload in [state(id), get(id)] {
        let gone = site.ask_granted(payload);
        assert_refused(&gone, ResultReason::ItemNotFound);
        assert!(gone.result_message.unwrap().starts_with("upstream-gone: key provider corp, key 4711"));
    }
    // After a mistake, or a lagging provider, nothing is lost.
    provider.add("4711", 5);
    assert_eq!(key_in(&site.ask_granted(get(id))), [5; 32]);

    // A server without the broker names the missing provider.
    let plain = Fixture::new();
    let id = taken_in(&plain, control, key);
    let refused = plain.ask_granted(&site.host, plain.control.grant(&site.host, &id, 1), get(&id));
    assert!(refused.result_message.unwrap().contains("start it with --broker corp"));
}

#[track_caller]
fn assert_all_refused_with(items: &[ResponseItem], word: &str) {
    for item in items {
        assert_eq!(item.result_status, ResultStatus::OperationFailed, "{item:?}");
        assert!(item.payload.is_none(), "{item:?}");
        let message = item.result_message.as_deref().unwrap();
        assert!(message.starts_with(word), "{message}");
    }
}

/// A grant that has released nothing because the provider was away is good until it expires, and
/// then still for one release.
#[test]
fn a_grant_outlasts_an_outage_of_the_provider_and_is_good_once_after_it() {
    let site = Site::new();
    let (grant, provider) = (site.grant(), &site.provider);
    provider.is_away(true);
    site.fixture.events();
    for _ in 0..3 {
        let away = site.fetch(&grant);
        assert_eq!(away.len(), 2, "the request is refused as a whole");
        assert_all_refused_with(&away, "upstream-unavailable: key provider corp, key 4711: ");
    }
    // Each is on record, and that the grant was not used.
    let recorded = site.fixture.events();
    assert_eq!(recorded.len(), 3, "{recorded:?}");
    for event in recorded {
        assert!(matches!(event.outcome, EventOutcome::Refused { .. }), "{event:?}");
        assert!(matches!(event.grant, Some(ShownGrant::Accepted { is_used: false, .. })), "{event:?}");
        assert_eq!((event.upstream, event.objects.len()), (Some(site.key.clone()), 1));
    }
    // Nothing began with it, either: the host reads no state without a grant.
    assert_refused(&site.ask(&site.host, state(&site.id)), ResultReason::PermissionDenied);
    site.fixture.events();

    provider.is_away(false);
    let released = site.fetch(&grant);
    assert_eq!((state_in(&released[0]), key_in(&released[1])), (State::Active, vec![5; 32]));
    let used = |event: &Event| matches!(event.grant, Some(ShownGrant::Accepted { is_used: true, .. }));
    assert!(site.fixture.events().iter().all(used));
    // Replayed, it gives nothing, whether the provider is there or not, and nobody is asked.
    let asked = site.asked();
    for is_away in [false, true] {
        provider.is_away(is_away);
        assert_all_refused_with(&site.fetch(&grant), "grant-replayed: ");
    }
    assert_eq!(site.asked(), asked);
}

/// The state is known from before, so that only the key is missing: nothing is told all the same.
#[test]
fn what_is_known_of_a_key_uses_no_grant_up_while_the_key_cannot_be_fetched() {
    let site = Site::new();
    assert_eq!(state_in(&site.ask_granted(state(&site.id))), State::Active);
    site.provider.is_away(true);
    let grant = site.grant();
    let both = site.fetch(&grant);
    assert_eq!((both.len(), site.asked()), (2, (1, 1)));
    assert_all_refused_with(&both, "upstream-unavailable: ");
    site.provider.is_away(false);
    assert_eq!(key_in(&site.fetch(&grant)[1]), [5; 32]);
    assert_all_refused_with(&site.fetch(&grant), "grant-replayed: ");
}

#[test]
fn a_grant_is_presented_by_one_request_at_a_time_and_releases_once() {
    let site = Site::new();
    let grant = site.grant();
    site.provider.hold(true);
    let first = site.begin_fetch(&grant);
    site.provider.await_held(1);
    // However often it is presented meanwhile, the provider is asked once.
    for _ in 0..CALLS_MAX {
        let copy = site.begin_fetch(&grant);
        let told = site.fixture.wait(async { tokio::time::timeout(DEADLINE, copy).await });
        let told = told.expect("it waits for nobody").unwrap();
        assert_all_refused_with(&told, "grant-in-use: ");
    }
    // Another grant is another matter.
    let other = site.begin_fetch(&site.grant());
    site.provider.await_held(2);
    site.provider.hold(false);
    for fetched in [first, other] {
        assert_eq!(key_in(&site.fixture.wait(fetched).unwrap()[1]), [5; 32]);
    }
    assert_all_refused_with(&site.fetch(&grant), "grant-replayed: ");
}

/// A key that came from its provider does not leave under a grant that became void meanwhile.
#[test]
fn a_grant_that_becomes_void_while_the_provider_is_asked_gives_nothing() {
    let site = Site::new();
    site.provider.hold(true);
    let fetched = site.begin_fetch(&site.grant());
    site.provider.await_held(1);
    let vm = VmId::from_bytes([7; 16]);
    raise_generation(&*site.fixture.store, vm, VmGeneration(2)).unwrap();
    site.fixture.events();
    site.provider.hold(false);
    assert_all_refused_with(&site.fixture.wait(fetched).unwrap(), "grant-superseded: ");
    assert!(site.asked().0 > 0, "the key was there");
    let is_release = |event: &Event| matches!(event.outcome, EventOutcome::Released { .. });
    assert!(!site.fixture.events().iter().any(is_release));
}

/// The host is told which provider is silent before it gives the key server up.
#[test]
fn a_provider_that_is_silent_is_named_in_time() {
    let soon = BrokerTimes { answers_within: Duration::from_millis(1), ..BrokerTimes::default() };
    let site = Site::of(|provider| Fixture::before_with_times(provider, soon));
    site.provider.hold(true);
    let grant = site.grant();
    for _ in 0..2 {
        let told = "upstream-unavailable: key provider corp, key 4711: no answer within 1 ms";
        assert_all_refused_with(&site.fetch(&grant), told);
    }
    site.provider.hold(false);
}

#[test]
fn a_batch_that_is_to_be_undone_asks_too() {
    let site = Site::new();
    let other = taken_in(&site.fixture, &site.control, &site.provider.add("4712", 6));
    let undone = |payloads| {
        let mut request = site.granted(payloads);
        request.header.batch_error_continuation_option = Some(BatchErrorContinuationOption::Undo);
        site.fixture.send(&site.host, &request).items
    };
    let items = undone(vec![get(&site.id), get(&site.id), get(&other)]);
    assert_eq!(items[2].result_status, ResultStatus::OperationFailed, "the grant names one of them");
    assert!(items.iter().all(|item| item.payload.is_none()));
    let items = undone(vec![get(&site.id), get(&site.id)]);
    assert!(items.iter().all(|item| key_in(item) == [5; 32]));
}

#[test]
fn a_provider_that_hangs_has_so_many_callers_and_no_more() {
    let site = Site::new();
    site.provider.hold(true);
    let ask = || {
        let request = site.granted(vec![get(&site.id)]);
        let (server, host) = (Arc::clone(&site.fixture.server), site.host.clone());
        site.fixture.spawn(async move {
            let caller = strongroom_keyserver::Caller::new(host, None);
            server.handle(caller, &request).await.items.remove(0)
        })
    };
    let asked: Vec<_> = (0..CALLS_MAX + 8).map(|_| ask()).collect();
    site.provider.await_held(CALLS_MAX);
    // Requests that need no provider are answered meanwhile.
    assert_eq!(state_in(&site.ask(&site.control, state(&site.id))), State::Active);
    site.provider.hold(false);
    for answer in asked {
        assert_eq!(key_in(&site.fixture.wait(answer).unwrap()), [5; 32]);
    }
    assert_eq!(site.provider.held.lock().2, CALLS_MAX);
}
