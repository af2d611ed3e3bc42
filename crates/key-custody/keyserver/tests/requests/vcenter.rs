//! The requests of a vCenter 7, at KMIP 1.1.

use strongroom_kmip::message::*;
use strongroom_kmip::protocol::*;
use strongroom_kmip::ttlv::Value;

use crate::fixture::{Fixture, assert_done, client, create, get, just, key_in, message};

#[test]
fn a_vcenter_gets_its_key_before_it_is_active_and_tags_it_in_a_batch() {
    let (fixture, vcenter) = (Fixture::new(), client("vcenter"));
    let at_1_1 = |payloads| {
        let mut request = message(payloads);
        request.header = RequestHeader::new(ProtocolVersion::V1_1);
        let numbered = request.items.into_iter().enumerate().map(|(number, item)| RequestItem {
            unique_batch_item_id: Some(vec![number as u8].into()),
            ..item
        });
        request.items = numbered.collect();
        let response = fixture.send(&vcenter, &request);
        assert_eq!(response.header.protocol_version, ProtocolVersion::V1_1);
        response.items.iter().for_each(assert_done);
        response.items
    };

    let versions = at_1_1(vec![RequestPayload::DiscoverVersions(DiscoverVersionsRequest::default())]);
    let Some(ResponsePayload::DiscoverVersions(spoken)) = &versions[0].payload else { panic!() };
    assert!(spoken.protocol_versions.contains(&ProtocolVersion::V1_1));

    let query = QueryRequest { query_functions: vec![QueryFunction::ServerInformation] };
    let server = at_1_1(vec![RequestPayload::Query(query)]);
    let Some(ResponsePayload::Query(server)) = &server[0].payload else { panic!() };
    assert!(server.vendor_identification.is_some() && server.server_information.is_some());

    let created = at_1_1(vec![create(Vec::new())]);
    let Some(ResponsePayload::Create(created)) = &created[0].payload else { panic!() };
    let id = created.unique_identifier.clone();

    let tag = |name: &str, value: &str| {
        let value =
            AttributeValue::Other { name: name.to_owned(), value: Value::TextString(value.to_owned()) };
        RequestPayload::AddAttribute(AddAttributeRequest {
            unique_identifier: Some(id.clone()),
            attribute: value.into(),
        })
    };
    let attributes = |names: &[&str]| {
        RequestPayload::GetAttributes(GetAttributesRequest {
            unique_identifier: Some(id.clone()),
            attribute_names: names.iter().map(|name| AttributeName::from(*name)).collect(),
        })
    };
    let tagged = at_1_1(vec![
        attributes(&[]),
        tag("x-Product_Version", "7.0.3 build-21290409"),
        tag("x-Vendor", "VMware, Inc."),
        tag("x-Product", "VMware vSphere"),
    ]);
    assert_eq!(tagged.len(), 4);
    for (number, item) in tagged.iter().enumerate() {
        assert_eq!(item.unique_batch_item_id.as_ref().unwrap().expose(), [number as u8]);
    }

    let key = key_in(&at_1_1(vec![get(&id)])[0]);
    assert_eq!(key.len(), 32);
    let state = |expected| {
        let answer = at_1_1(vec![attributes(&["State"])]);
        let Some(ResponsePayload::GetAttributes(answer)) = &answer[0].payload else { panic!() };
        assert_eq!(answer.attributes, [Attribute::from(AttributeValue::State(expected))]);
    };
    state(State::PreActive);
    at_1_1(vec![RequestPayload::Activate(just(&id))]);
    state(State::Active);
    assert_eq!(key_in(&at_1_1(vec![get(&id)])[0]), key);
}
