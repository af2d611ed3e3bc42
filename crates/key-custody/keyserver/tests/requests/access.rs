//! Permissions of clients on objects.

use strongroom_keyserver::access::Role;
use strongroom_keyserver::objects::id::ObjectId;
use strongroom_keyserver::{Event, EventOutcome};
use strongroom_kmip::message::*;
use strongroom_kmip::protocol::*;
use strongroom_store::{Store, Transaction};

use crate::fixture::{
    Fixture, NOW, assert_done, assert_refused, client, create, get, identity, just, key_in, locate, located,
    name, revoke,
};

#[test]
fn an_object_is_its_owners_alone() {
    let (fixture, owner, stranger) = (Fixture::new(), client("owner"), client("stranger"));
    let id = fixture.create(&owner, vec![name("disk")]);
    assert_eq!(located(&fixture.ask(&owner, locate(vec![name("disk")]))), std::slice::from_ref(&id));
    assert!(located(&fixture.ask(&stranger, locate(vec![name("disk")]))).is_empty());
    assert!(located(&fixture.ask(&stranger, locate(Vec::new()))).is_empty());
    for payload in [
        get(&id),
        RequestPayload::GetAttributeList(just(&id)),
        RequestPayload::Activate(just(&id)),
        RequestPayload::Destroy(just(&id)),
        RequestPayload::ReKey(ReKeyRequest {
            unique_identifier: Some(id.clone()),
            ..ReKeyRequest::default()
        }),
        revoke(&id, RevocationReasonCode::KeyCompromise),
    ] {
        assert_refused(&fixture.ask(&stranger, payload), ResultReason::PermissionDenied);
    }
    assert_refused(&fixture.ask(&stranger, get("no such object")), ResultReason::ItemNotFound);
    // The name is taken for its owner, and free for other clients.
    assert_refused(&fixture.ask(&owner, create(vec![name("disk")])), ResultReason::InvalidField);
    fixture.create(&stranger, vec![name("disk")]);
    key_in(&fixture.ask(&owner, get(&id)));
}

#[test]
fn a_sensitive_key_does_not_leave_plain_and_one_that_may_not_leave_does_not_at_all() {
    let fixture = Fixture::new();
    let (control, owner) = (identity("control", Role::Control), client("owner"));
    let host = identity("host", Role::Host);
    for (attribute, reason) in [
        (AttributeValue::Sensitive(true), ResultReason::Sensitive),
        (AttributeValue::Extractable(false), ResultReason::NotExtractable),
    ] {
        let id = fixture.create(&owner, vec![attribute.clone()]);
        assert_refused(&fixture.ask(&owner, get(&id)), reason);
        let granted = fixture.create(&control, vec![attribute]);
        let grant = fixture.control.grant(&host, &granted, 1);
        assert_refused(&fixture.ask_granted(&host, grant, get(&granted)), reason);
        let is_released = |event: &Event| matches!(event.outcome, EventOutcome::Released { .. });
        assert!(!fixture.events().iter().any(is_released));
    }
}

#[test]
fn a_host_gets_what_it_was_granted_once() {
    let fixture = Fixture::new();
    let control = identity("control", Role::Control);
    let (host, other) = (identity("host", Role::Host), identity("other", Role::Host));
    let (id, ungranted) = (fixture.create(&control, Vec::new()), fixture.create(&control, Vec::new()));
    fixture.events();

    assert_refused(&fixture.ask(&host, get(&id)), ResultReason::PermissionDenied);
    assert_refused(&fixture.ask(&control, get(&id)), ResultReason::PermissionDenied);
    let grant = fixture.control.grant(&host, &id, 1);
    assert_refused(&fixture.ask_granted(&other, grant.clone(), get(&id)), ResultReason::PermissionDenied);
    assert_eq!(key_in(&fixture.ask_granted(&host, grant.clone(), get(&id))).len(), 32);
    assert_refused(&fixture.ask_granted(&host, grant, get(&id)), ResultReason::PermissionDenied);

    let grant = |generation| fixture.control.grant(&host, &id, generation);
    assert_refused(&fixture.ask_granted(&host, grant(1), get(&ungranted)), ResultReason::PermissionDenied);
    assert_refused(&fixture.ask_granted(&host, grant(1), create(Vec::new())), ResultReason::PermissionDenied);
    key_in(&fixture.ask_granted(&host, grant(2), get(&id)));
    assert_refused(&fixture.ask_granted(&host, grant(1), get(&id)), ResultReason::PermissionDenied);
    let expired = grant(2);
    fixture.clock.0.store(NOW + 3600, std::sync::atomic::Ordering::SeqCst);
    assert_refused(&fixture.ask_granted(&host, expired, get(&id)), ResultReason::PermissionDenied);
    let forged = crate::fixture::Control::new().grant(&host, &id, 3);
    assert_refused(&fixture.ask_granted(&host, forged, get(&id)), ResultReason::PermissionDenied);

    let words: Vec<String> = fixture
        .events()
        .into_iter()
        .map(|event| match event.outcome {
            EventOutcome::Refused { message, .. } => message.split(':').next().unwrap().to_owned(),
            outcome => outcome.to_string(),
        })
        .collect();
    assert_eq!(
        words,
        [
            "grant-needed",
            "the role control may not Get",
            "grant-other-host",
            "released",
            "grant-replayed",
            "grant-other-object",
            "the role host may not Create",
            "released",
            "grant-superseded",
            "grant-expired",
            "grant-signer-unknown",
        ]
    );
}

#[test]
fn a_grant_for_what_its_signer_does_not_own_gives_nothing() {
    let fixture = Fixture::new();
    let (control, owner) = (identity("control", Role::Control), client("owner"));
    let host = identity("host", Role::Host);
    let (own, id) = (fixture.create(&control, Vec::new()), fixture.create(&owner, Vec::new()));
    fixture.events();
    let grant = || fixture.control.grant(&host, &id, 1);
    assert_refused(&fixture.ask_granted(&host, grant(), get(&id)), ResultReason::PermissionDenied);
    // It was not redeemed, so the host gets no holding.
    let attributes = || RequestPayload::GetAttributeList(just(&id));
    assert_refused(&fixture.ask_granted(&host, grant(), attributes()), ResultReason::PermissionDenied);
    assert_refused(&fixture.ask(&host, attributes()), ResultReason::PermissionDenied);
    let refused = |event: &Event| match &event.outcome {
        EventOutcome::Refused { message, .. } => message.starts_with("grant-not-the-signers:"),
        _ => false,
    };
    assert_eq!(fixture.events().iter().filter(|event| refused(event)).count(), 2);
    key_in(&fixture.ask_granted(&host, fixture.control.grant(&host, &own, 1), get(&own)));
}

#[test]
fn a_granted_host_finds_what_it_was_granted() {
    let fixture = Fixture::new();
    let control = identity("control", Role::Control);
    let host = identity("host", Role::Host);
    let (id, _) = (fixture.create(&control, Vec::new()), fixture.create(&control, Vec::new()));
    let found = fixture.ask_granted(&host, fixture.control.grant(&host, &id, 1), locate(Vec::new()));
    assert_eq!(located(&found), [id]);
    assert!(located(&fixture.ask(&host, locate(Vec::new()))).is_empty());
}

#[test]
fn the_control_plane_sees_all_metadata_and_no_key() {
    let fixture = Fixture::new();
    let (control, owner) = (identity("control", Role::Control), client("owner"));
    let id = fixture.create(&owner, Vec::new());
    assert_eq!(located(&fixture.ask(&control, locate(Vec::new()))), std::slice::from_ref(&id));
    assert_done(&fixture.ask(&control, RequestPayload::GetAttributeList(just(&id))));
    assert_refused(&fixture.ask(&control, get(&id)), ResultReason::PermissionDenied);
    assert_refused(
        &fixture.ask(&control, RequestPayload::Destroy(just(&id))),
        ResultReason::PermissionDenied,
    );
}

/// The control plane has a key made for each VM, and looks for its name first: that takes no longer
/// the more keys there are.
#[test]
fn a_search_by_name_opens_no_other_object() {
    let fixture = Fixture::new();
    let (control, owner, other) = (identity("control", Role::Control), client("owner"), client("other"));
    let of_owner = fixture.create(&owner, vec![name("disk")]);
    let of_other = fixture.create(&other, vec![name("disk")]);
    let one_more = fixture.create(&other, vec![name("another")]);
    let one_more: ObjectId = one_more.parse().unwrap();
    let record = [&b"object/"[..], one_more.as_bytes()].concat();
    fixture.store.commit(Transaction::new().put(record, b"damaged".to_vec())).unwrap();
    let mut found = located(&fixture.ask(&control, locate(vec![name("disk")])));
    found.sort();
    let mut expected = [of_owner.clone(), of_other];
    expected.sort();
    assert_eq!(found, expected);
    assert_eq!(located(&fixture.ask(&owner, locate(vec![name("disk")]))), [of_owner]);
    assert!(located(&fixture.ask(&control, locate(vec![name("nobody's")]))).is_empty());
    assert_refused(&fixture.ask(&control, locate(Vec::new())), ResultReason::GeneralFailure);
}

#[test]
fn what_is_switched_off_is_not_offered() {
    let (fixture, owner) = (Fixture::new(), client("owner"));
    for payload in [
        RequestPayload::RngRetrieve(RngRetrieveRequest { data_length: 16 }),
        RequestPayload::Encrypt(EncryptRequest::default()),
        RequestPayload::Mac(MacRequest::default()),
        RequestPayload::Hash(HashRequest {
            cryptographic_parameters: CryptographicParameters::default(),
            data: None,
            correlation_value: None,
            init_indicator: None,
            final_indicator: None,
        }),
    ] {
        assert_refused(&fixture.ask(&owner, payload), ResultReason::OperationNotSupported);
    }
    let query = QueryRequest { query_functions: vec![QueryFunction::Operations] };
    let answer = fixture.ask(&owner, RequestPayload::Query(query));
    let Some(ResponsePayload::Query(answer)) = answer.payload else { panic!() };
    assert!(answer.operations.contains(&Operation::Get));
    assert!(
        !answer.operations.contains(&Operation::Encrypt)
            && !answer.operations.contains(&Operation::RngRetrieve)
    );
}

#[test]
fn a_host_reads_on_what_becomes_of_a_key_that_it_was_granted() {
    let fixture = Fixture::new();
    let control = identity("control", Role::Control);
    let (host, successor) = (identity("host", Role::Host), identity("successor", Role::Host));
    let (id, other) = (fixture.create(&control, Vec::new()), fixture.create(&control, Vec::new()));
    let state = |id: &str| {
        RequestPayload::GetAttributes(GetAttributesRequest {
            unique_identifier: Some(id.to_owned()),
            attribute_names: vec![AttributeName::State],
        })
    };
    let denied = |host, payload| {
        assert_refused(&fixture.ask(host, payload), ResultReason::PermissionDenied);
    };
    denied(&host, state(&id));
    key_in(&fixture.ask_granted(&host, fixture.control.grant(&host, &id, 1), get(&id)));
    // The host may read the state repeatedly, and nothing else.
    for _ in 0..2 {
        assert_done(&fixture.ask(&host, state(&id)));
    }
    denied(&host, get(&id));
    denied(&host, state(&other));
    denied(&host, revoke(&id, RevocationReasonCode::KeyCompromise));
    denied(&successor, state(&id));
    // It learns of a compromise, and of the destruction.
    assert_done(&fixture.ask(&control, revoke(&id, RevocationReasonCode::KeyCompromise)));
    let told = fixture.ask(&host, state(&id));
    let Some(ResponsePayload::GetAttributes(told)) = told.payload else { panic!("{told:?}") };
    assert_eq!(told.attributes[0].value, AttributeValue::State(State::Compromised));
    assert_done(&fixture.ask(&control, RequestPayload::Destroy(just(&id))));
    assert_done(&fixture.ask(&host, state(&id)));
    // The VM moves to another host: earlier holdings end.
    assert_done(&fixture.ask_granted(&successor, fixture.control.grant(&successor, &id, 2), state(&id)));
    denied(&host, state(&id));
    assert_done(&fixture.ask(&successor, state(&id)));
}
