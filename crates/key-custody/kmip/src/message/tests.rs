use proptest::prelude::*;

use super::examples;
use super::*;
use crate::codec::{DecodeError, Problem};
use crate::protocol::*;
use crate::ttlv::{ByteString, Item, Limits, Tag, TtlvError, Type, Value};

fn limits() -> Limits {
    Limits::default()
}

/// A request as a tree, for tests that break it.
fn tree(request: &RequestMessage) -> Item {
    Item::parse(&request.encode(), Tag::REQUEST_MESSAGE, &limits()).unwrap()
}

fn field_mut<'i>(item: &'i mut Item, path: &[Tag]) -> &'i mut Item {
    path.iter().fold(item, |item, tag| {
        let Value::Structure(fields) = &mut item.value else { panic!("{} has no fields", item.tag) };
        fields.iter_mut().find(|field| field.tag == *tag).unwrap()
    })
}

fn fields_mut<'i>(item: &'i mut Item, path: &[Tag]) -> &'i mut Vec<Item> {
    match &mut field_mut(item, path).value {
        Value::Structure(fields) => fields,
        other => panic!("no structure: {other:?}"),
    }
}

fn decode(item: &Item) -> Result<RequestMessage, MalformedRequest> {
    RequestMessage::decode(&item.to_bytes(), &limits())
}

/// The error in the only payload of a request.
fn undecodable(item: &Item) -> DecodeError {
    match decode(item).unwrap().items.remove(0).payload {
        RequestPayload::Undecodable { error, .. } => error,
        other => panic!("read after all: {other:?}"),
    }
}

#[test]
fn every_payload_survives_the_wire_in_the_newest_version() {
    let request = examples::request(ProtocolVersion::V1_4);
    let encoded = request.encode();
    assert_eq!(encoded.capacity(), encoded.len(), "the buffer never grew");
    assert_eq!(RequestMessage::decode(&encoded, &limits()), Ok(request));

    let response = examples::response(ProtocolVersion::V1_4);
    let encoded = response.encode();
    assert_eq!(encoded.capacity(), encoded.len(), "the buffer never grew");
    assert_eq!(ResponseMessage::decode(&encoded, &limits()), Ok(response));
}

#[test]
fn every_version_leaves_out_what_came_later() {
    let mut length_bytes = usize::MAX;
    for version in ProtocolVersion::SPOKEN {
        let encoded = examples::request(version).encode();
        assert!(encoded.len() < length_bytes, "KMIP {version} has less than its successor");
        length_bytes = encoded.len();
        let decoded = RequestMessage::decode(&encoded, &limits()).unwrap();
        for item in &decoded.items {
            assert!(!matches!(item.payload, RequestPayload::Undecodable { .. }), "{version}: {item:?}");
        }
        // The decoded message is encoded as it was read.
        assert_eq!(decoded.encode(), encoded);

        let encoded = examples::response(version).encode();
        let decoded = ResponseMessage::decode(&encoded, &limits()).unwrap();
        for item in &decoded.items {
            assert!(
                !matches!(item.payload, Some(ResponsePayload::Undecodable { .. })),
                "{version}: {item:?}"
            );
        }
        assert_eq!(decoded.encode(), encoded);
    }
}

#[test]
fn nothing_secret_is_shown() {
    let request = format!("{:?}", examples::request(ProtocolVersion::V1_4));
    let response = format!("{:#?}", examples::response(ProtocolVersion::V1_4));
    for secret in [examples::KEY_MARKER, examples::PASSWORD_MARKER] {
        assert!(!request.contains(secret) && !response.contains(secret));
        let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
        assert!(!request.contains(&hex) && !response.contains(&hex));
        let list = secret.bytes().map(|byte| byte.to_string()).collect::<Vec<_>>().join(", ");
        assert!(!request.contains(&list) && !response.contains(&list));
    }
}

#[test]
fn the_key_of_a_get_is_taken_out_of_its_block() {
    let response = examples::response(ProtocolVersion::V1_4);
    let key = response.items.iter().find_map(|item| match &item.payload {
        Some(ResponsePayload::Get(get)) => get.object.key_block().and_then(KeyBlock::plain_bytes),
        _ => None,
    });
    assert_eq!(key.map(ByteString::expose), Some(examples::KEY_MARKER.as_bytes()));
}

#[test]
fn an_unknown_operation_spoils_only_its_item() {
    let mut item = tree(&examples::batch());
    *field_mut(&mut item, &[Tag::BATCH_ITEM, Tag::OPERATION]) =
        Item { tag: Tag::OPERATION, value: Value::Enumeration(0x8000_0042) };
    let decoded = decode(&item).unwrap();
    assert_eq!(decoded.items.len(), 2);
    assert!(matches!(
        decoded.items[0].payload,
        RequestPayload::Unknown { operation: Operation::Other(0x8000_0042), .. }
    ));
    assert!(matches!(decoded.items[1].payload, RequestPayload::Activate(_)));
    assert_eq!(*decoded.encode(), *item.to_bytes(), "kept as it came");
}

#[test]
fn an_undecodable_payload_spoils_only_its_item() {
    let payload = [Tag::BATCH_ITEM, Tag::REQUEST_PAYLOAD];
    let within = Tag::REQUEST_PAYLOAD;

    let mut item = tree(&examples::batch());
    fields_mut(&mut item, &payload).retain(|field| field.tag != Tag::OBJECT_TYPE);
    let missing = DecodeError::Field { within, problem: Problem::Missing(Tag::OBJECT_TYPE) };
    assert_eq!(undecodable(&item), missing);
    assert_eq!(ResultReason::from(&missing), ResultReason::MissingData);
    let decoded = decode(&item).unwrap();
    assert!(matches!(decoded.items[1].payload, RequestPayload::Activate(_)));
    assert_eq!(decoded.items[0].operation(), Operation::Create);
    assert_eq!(*decoded.encode(), *item.to_bytes(), "kept as it came");

    let mut item = tree(&examples::batch());
    let twice = field_mut(&mut item, &[Tag::BATCH_ITEM, Tag::REQUEST_PAYLOAD, Tag::OBJECT_TYPE]).clone();
    fields_mut(&mut item, &payload).push(twice);
    let repeated = DecodeError::Field { within, problem: Problem::Repeated(Tag::OBJECT_TYPE) };
    assert_eq!(undecodable(&item), repeated);
    assert_eq!(ResultReason::from(&repeated), ResultReason::InvalidField);

    let mut item = tree(&examples::batch());
    fields_mut(&mut item, &payload).push(Item::text(Tag::COMMENT, "no such field"));
    let unexpected = Problem::Unexpected(Tag::COMMENT, ProtocolVersion::V1_1);
    assert_eq!(undecodable(&item), DecodeError::Field { within, problem: unexpected });

    let mut item = tree(&examples::batch());
    field_mut(&mut item, &[Tag::BATCH_ITEM, Tag::REQUEST_PAYLOAD, Tag::OBJECT_TYPE]).value =
        Value::Integer(2);
    let wrong = undecodable(&item);
    assert_eq!(wrong, DecodeError::wrong_type(Tag::OBJECT_TYPE, Type::Enumeration, Type::Integer));
    assert_eq!(ResultReason::from(&wrong), ResultReason::InvalidMessage);

    let mut item = tree(&examples::batch());
    fields_mut(&mut item, &[Tag::BATCH_ITEM]).retain(|field| field.tag != Tag::REQUEST_PAYLOAD);
    assert_eq!(ResultReason::from(&undecodable(&item)), ResultReason::MissingData);
}

#[test]
fn an_attribute_has_the_type_of_its_name() {
    let path = [Tag::BATCH_ITEM, Tag::REQUEST_PAYLOAD, Tag::TEMPLATE_ATTRIBUTE, Tag::ATTRIBUTE];
    let mut item = tree(&examples::batch());
    let attribute = fields_mut(&mut item, &path);
    attribute[0] = Item::text(Tag::ATTRIBUTE_NAME, "Cryptographic Length");
    assert_eq!(
        undecodable(&item),
        DecodeError::wrong_type(Tag::ATTRIBUTE_VALUE, Type::Integer, Type::Enumeration)
    );

    let mut item = tree(&examples::batch());
    fields_mut(&mut item, &path).push(Item { tag: Tag::ATTRIBUTE_INDEX, value: Value::Integer(-1) });
    assert_eq!(undecodable(&item), DecodeError::value(Tag::ATTRIBUTE_INDEX, "is negative"));

    for name in AttributeName::NAMED {
        assert_eq!(AttributeName::from(name.as_str()), *name);
    }
    assert!(AttributeName::from("x-Product").is_clients_own());
    assert!(!AttributeName::from("y-Product").is_clients_own());
}

#[test]
fn a_field_of_a_later_version_is_understood_and_not_sent() {
    let mut request = examples::request(ProtocolVersion::V1_4);
    let locate = LocateRequest { offset_items: Some(1), ..LocateRequest::default() };
    request.items = vec![RequestPayload::Locate(locate).into()];
    let mut item = tree(&request);
    let minor = [Tag::REQUEST_HEADER, Tag::PROTOCOL_VERSION, Tag::PROTOCOL_VERSION_MINOR];
    field_mut(&mut item, &minor).value = Value::Integer(2);
    // The header's own fields of 1.4 too.
    let decoded = decode(&item).unwrap();
    assert_eq!(decoded.header.client_correlation_value, request.header.client_correlation_value);
    let RequestPayload::Locate(locate) = &decoded.items[0].payload else { panic!("{decoded:?}") };
    assert_eq!(locate.offset_items, Some(1));
    let sent = Item::parse(&decoded.encode(), Tag::REQUEST_MESSAGE, &limits()).unwrap();
    let sent = format!("{sent:?}");
    assert!(!sent.contains("OffsetItems") && !sent.contains("ClientCorrelationValue"), "{sent}");
    // A field that no version has stays unknown.
    fields_mut(&mut item, &[Tag::BATCH_ITEM, Tag::REQUEST_PAYLOAD]).push(Item::text(Tag::COMMENT, "?"));
    let unexpected = Problem::Unexpected(Tag::COMMENT, ProtocolVersion::V1_2);
    assert_eq!(undecodable(&item), DecodeError::Field { within: Tag::REQUEST_PAYLOAD, problem: unexpected });
}

#[test]
fn a_response_may_say_more_than_was_asked() {
    let response = examples::response(ProtocolVersion::V1_0);
    let mut item = Item::parse(&response.encode(), Tag::RESPONSE_MESSAGE, &limits()).unwrap();
    for path in
        [&[][..], &[Tag::RESPONSE_HEADER], &[Tag::BATCH_ITEM], &[Tag::BATCH_ITEM, Tag::RESPONSE_PAYLOAD]]
    {
        fields_mut(&mut item, path).insert(0, Item::text(Tag::COMMENT, "by the way"));
    }
    let decoded = ResponseMessage::decode(&item.to_bytes(), &limits()).unwrap();
    assert_eq!(decoded.encode(), response.encode());
}

#[test]
fn what_spoils_the_whole_message_is_answered_in_the_nearest_version() {
    let version = [Tag::REQUEST_HEADER, Tag::PROTOCOL_VERSION];
    for ((major, minor), answer_in) in
        [((2, 0), ProtocolVersion::V1_4), ((1, 5), ProtocolVersion::V1_4), ((0, 9), ProtocolVersion::V1_0)]
    {
        let mut item = tree(&examples::batch());
        *fields_mut(&mut item, &version) = vec![
            Item { tag: Tag::PROTOCOL_VERSION_MAJOR, value: Value::Integer(major) },
            Item { tag: Tag::PROTOCOL_VERSION_MINOR, value: Value::Integer(minor) },
        ];
        let refused = decode(&item).unwrap_err();
        assert_eq!(refused.version, answer_in);
        assert_eq!(refused.error, DecodeError::Version(ProtocolVersion { major, minor }));
        assert_eq!(ResultReason::from(&refused.error), ResultReason::InvalidMessage);
    }

    let mut item = tree(&examples::batch());
    field_mut(&mut item, &[Tag::REQUEST_HEADER, Tag::BATCH_COUNT]).value = Value::Integer(3);
    let refused = decode(&item).unwrap_err();
    assert_eq!(refused.version, ProtocolVersion::V1_1);
    assert_eq!(refused.error, DecodeError::BatchCount { announced: 3, found: 2 });

    for (path, tag) in [
        (&[][..], Tag::REQUEST_HEADER),
        (&[Tag::REQUEST_HEADER], Tag::PROTOCOL_VERSION),
        (&[Tag::REQUEST_HEADER], Tag::BATCH_COUNT),
        (&[Tag::BATCH_ITEM], Tag::OPERATION),
    ] {
        let mut item = tree(&examples::batch());
        fields_mut(&mut item, path).retain(|field| field.tag != tag);
        let refused = decode(&item).unwrap_err();
        assert!(
            matches!(refused.error, DecodeError::Field { problem: Problem::Missing(missing), .. } if missing == tag),
            "{refused:?}"
        );
    }

    let refused = RequestMessage::decode(b"GET / HTTP/1.1\r\n\r\n", &limits()).unwrap_err();
    assert!(matches!(refused.error, DecodeError::Ttlv(TtlvError::UnknownType { .. })), "{refused:?}");
    assert_eq!(refused.version, ProtocolVersion::V1_0);
}

#[test]
fn every_truncation_of_a_message_is_refused() {
    let encoded = examples::request(ProtocolVersion::V1_4).encode();
    for length in 0..encoded.len() {
        assert!(RequestMessage::decode(&encoded[..length], &limits()).is_err());
    }
}

#[test]
fn an_object_must_be_of_the_type_that_is_said() {
    let mut request = examples::request(ProtocolVersion::V1_4);
    request.items.retain(|item| item.operation() == Operation::Register);
    request.items.truncate(1);
    let mut item = tree(&request);
    let object_type = [Tag::BATCH_ITEM, Tag::REQUEST_PAYLOAD, Tag::OBJECT_TYPE];
    field_mut(&mut item, &object_type).value = Value::Enumeration(ObjectType::Certificate.number());
    assert_eq!(ResultReason::from(&undecodable(&item)), ResultReason::MissingData);

    // An unknown type is kept, so that it can be refused by name.
    field_mut(&mut item, &object_type).value = Value::Enumeration(0x8000_0001);
    let decoded = decode(&item).unwrap();
    let RequestPayload::Register(register) = &decoded.items[0].payload else { panic!("{decoded:?}") };
    assert_eq!(register.object.object_type(), ObjectType::Other(0x8000_0001));
    assert_eq!(*decoded.encode(), *item.to_bytes());
}

#[test]
fn a_wrapped_content_is_opened_with_the_right_key_only() {
    let content = KeyContent {
        material: KeyMaterial::Bytes(ByteString::from(&[7; 32])),
        attributes: vec![AttributeValue::CryptographicLength(256).into()],
    };
    let rules = crate::codec::Rules {
        version: ProtocolVersion::V1_2,
        unknown_fields: crate::codec::UnknownFields::Refuse,
    };
    let mut encoded = content.to_ttlv(ProtocolVersion::V1_2);
    assert_eq!(KeyContent::from_ttlv(&encoded, KeyFormatType::Raw, rules), Ok(content));
    encoded[0] ^= 1;
    assert!(KeyContent::from_ttlv(&encoded, KeyFormatType::Raw, rules).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Every decoded message can be encoded, and decodes to the same.
    #[test]
    fn damage_is_refused_or_understood_the_same_again(
        newest in any::<bool>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let version = if newest { ProtocolVersion::V1_4 } else { ProtocolVersion::V1_0 };
        let mut request = examples::request(version).encode();
        let mut response = examples::response(version).encode();
        for (position, byte) in &damage {
            let at = position.index(request.len());
            request[at] = *byte;
            let at = position.index(response.len());
            response[at] = *byte;
        }
        if let Ok(read) = RequestMessage::decode(&request, &limits()) {
            prop_assert_eq!(RequestMessage::decode(&read.encode(), &limits()), Ok(read));
        }
        if let Ok(read) = ResponseMessage::decode(&response, &limits()) {
            prop_assert_eq!(ResponseMessage::decode(&read.encode(), &limits()), Ok(read));
        }
    }
}
