//! Keys of an external provider, released under grants.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use strongroom_keys::{KeyRequestId, ProviderKey, ProviderName};
use strongroom_keyserver::EventOutcome;
use strongroom_keyserver::access::{Identity, Role};
use strongroom_keyserver::broker::{self, CALLS_MAX, Upstream, UpstreamError, UpstreamState};
use strongroom_kmip::message::*;
use strongroom_kmip::protocol::*;
use strongroom_memory::secret::SecretBytes;

use crate::fixture::{
    Fixture, assert_done, assert_refused, get, granted, identity, just, key_in, locate, located, revoke,
};

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
        let (provider, key) = Provider::with_key("4711", 5);
        let fixture = Fixture::before(provider.clone());
        let (control, host) = (identity("control", Role::Control), identity("host", Role::Host));
        let id = taken_in(&fixture, &control, &key);
        Self { provider, fixture, control, host, key, id }
    }

    /// A host's request with a fresh grant for the key.
    fn granted(&self, payloads: Vec<RequestPayload>) -> RequestMessage {
        granted(self.fixture.control.grant(&self.host, &self.id, 1), payloads)
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
    let mut held = site.provider.held.lock();
    site.provider.changed.wait_while(&mut held, |held| held.1 < CALLS_MAX);
    drop(held);
    // Requests that need no provider are answered meanwhile.
    assert_eq!(state_in(&site.ask(&site.control, state(&site.id))), State::Active);
    site.provider.hold(false);
    for answer in asked {
        assert_eq!(key_in(&site.fixture.wait(answer).unwrap()), [5; 32]);
    }
    assert_eq!(site.provider.held.lock().2, CALLS_MAX);
}
