use super::*;
use crate::protocol::*;
use crate::ttlv::{ByteString, Limits};

/// What a vCenter asks first of a new key.
fn create() -> RequestMessage {
    let attributes = [
        AttributeValue::CryptographicAlgorithm(CryptographicAlgorithm::Aes),
        AttributeValue::CryptographicLength(256),
        AttributeValue::CryptographicUsageMask(
            CryptographicUsageMask::ENCRYPT | CryptographicUsageMask::DECRYPT,
        ),
    ];
    RequestMessage {
        header: RequestHeader::new(ProtocolVersion::V1_1),
        items: vec![
            RequestPayload::Create(CreateRequest {
                object_type: ObjectType::SymmetricKey,
                template_attribute: TemplateAttribute {
                    templates: Vec::new(),
                    attributes: attributes.map(Attribute::from).into(),
                },
            })
            .into(),
        ],
    }
}

#[test]
fn a_request_survives_the_wire() {
    let request = create();
    let encoded = request.encode();
    assert_eq!(encoded.capacity(), encoded.len(), "the buffer never grew");
    assert_eq!(RequestMessage::decode(&encoded, &Limits::default()), Ok(request));
}

#[test]
fn a_returned_key_survives_the_wire_and_is_never_shown() {
    let item = RequestItem::from(RequestPayload::Get(GetRequest::default()));
    let object = ManagedObject::SymmetricKey(KeyBlock::raw(
        CryptographicAlgorithm::Aes,
        b"marker-key-marker-key-marker-key",
    ));
    let payload = ResponsePayload::Get(GetResponse { unique_identifier: "42".into(), object });
    let response = ResponseMessage {
        header: ResponseHeader::new(ProtocolVersion::V1_4),
        items: vec![ResponseItem::success(&item, payload)],
    };
    assert!(!format!("{response:?}").contains("marker"));
    let decoded = ResponseMessage::decode(&response.encode(), &Limits::default()).unwrap();
    assert_eq!(decoded, response);
    let Some(ResponsePayload::Get(got)) = &decoded.items[0].payload else { panic!("{decoded:?}") };
    let key = got.object.key_block().and_then(KeyBlock::plain_bytes).map(ByteString::expose);
    assert_eq!(key, Some(b"marker-key-marker-key-marker-key".as_slice()));
}
