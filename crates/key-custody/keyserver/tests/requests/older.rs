//! Clients that speak an older version but send later fields, as seen in the field.

use strongroom_keyserver::access::Identity;
use strongroom_kmip::message::{
    DiscoverVersionsRequest, LocateRequest, RequestMessage, RequestPayload, ResponseMessage, ResponsePayload,
};
use strongroom_kmip::protocol::ProtocolVersion;

use crate::fixture::{Fixture, client, message};

/// Protocol Version Minor with the value 4, and with the value 0, as TTLV.
const MINOR_4: [u8; 16] = [0x42, 0x00, 0x6b, 2, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 0];
const MINOR_0: [u8; 16] = [0x42, 0x00, 0x6b, 2, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0];

/// Sends a request of 1.4 as one of 1.0: our own encoder would leave out what 1.0 does not have.
fn send_as_1_0(fixture: &Fixture, client: &Identity, payload: RequestPayload) -> ResponsePayload {
    let request: RequestMessage = message(vec![payload]);
    let mut bytes = request.encode().to_vec();
    let at = bytes.windows(16).position(|window| window == MINOR_4).unwrap();
    bytes[at..at + 16].copy_from_slice(&MINOR_0);
    let answer: ResponseMessage = fixture.send_bytes(client, &bytes);
    assert_eq!(answer.header.protocol_version, ProtocolVersion::V1_0);
    let [item] = answer.items.as_slice() else { panic!("{answer:?}") };
    item.payload.clone().unwrap_or_else(|| panic!("{item:?}"))
}

/// Percona's keyring pages through its keys with Offset Items, which came with 1.3, under a header
/// of 1.0. A refusal looked to it like a server without keys.
#[test]
fn a_client_of_1_0_pages_with_offset_items() {
    let fixture = Fixture::new();
    let owner = client("keyring");
    let ids: Vec<String> = (0..5).map(|_| fixture.create(&owner, Vec::new())).collect();
    let mut found = Vec::new();
    loop {
        let page = LocateRequest {
            maximum_items: Some(2),
            offset_items: Some(found.len() as i32),
            ..LocateRequest::default()
        };
        let told = send_as_1_0(&fixture, &owner, RequestPayload::Locate(page));
        let ResponsePayload::Locate(told) = told else { panic!("{told:?}") };
        assert!(told.located_items.is_none(), "1.0 does not have it");
        if told.unique_identifiers.is_empty() {
            break;
        }
        found.extend(told.unique_identifiers);
    }
    found.sort();
    let mut wanted = ids;
    wanted.sort();
    assert_eq!(found, wanted);
}

#[test]
fn a_client_of_1_0_learns_which_versions_there_are() {
    let fixture = Fixture::new();
    let question = RequestPayload::DiscoverVersions(DiscoverVersionsRequest::default());
    let told = send_as_1_0(&fixture, &client("old"), question);
    let ResponsePayload::DiscoverVersions(told) = told else { panic!("{told:?}") };
    assert_eq!(told.protocol_versions.first(), Some(&ProtocolVersion::V1_4));
    assert!(told.protocol_versions.contains(&ProtocolVersion::V1_0));
}
