//! Requests.

use super::*;
use crate::message::*;

/// A batch of two items, as a vCenter would send it.
pub fn batch() -> RequestMessage {
    let attributes = [
        AttributeValue::CryptographicAlgorithm(CryptographicAlgorithm::Aes),
        AttributeValue::CryptographicLength(256),
        AttributeValue::CryptographicUsageMask(
            CryptographicUsageMask::ENCRYPT | CryptographicUsageMask::DECRYPT,
        ),
    ];
    let create = RequestPayload::Create(CreateRequest {
        object_type: ObjectType::SymmetricKey,
        template_attribute: TemplateAttribute {
            templates: Vec::new(),
            attributes: attributes.map(Attribute::from).into(),
        },
    });
    let activate = RequestPayload::Activate(UniqueIdentifierRequest::default());
    let item = |id: u8, payload| RequestItem {
        unique_batch_item_id: Some(ByteString::from(&[id])),
        payload,
        message_extension: None,
    };
    RequestMessage {
        header: RequestHeader::new(ProtocolVersion::V1_1),
        items: vec![item(1, create), item(2, activate)],
    }
}

/// A request with every payload.
pub fn request(version: ProtocolVersion) -> RequestMessage {
    let mut payloads: Vec<RequestPayload> = objects()
        .into_iter()
        .map(|object| RequestPayload::Register(RegisterRequest { template_attribute: template(), object }))
        .collect();
    let by_id = || UniqueIdentifierRequest { unique_identifier: id() };
    let parts = (Some(secret()), Some(true), Some(false));
    payloads.extend([
        RequestPayload::Create(CreateRequest {
            object_type: ObjectType::SymmetricKey,
            template_attribute: template(),
        }),
        RequestPayload::ReKey(ReKeyRequest {
            unique_identifier: id(),
            offset: Some(Interval(60)),
            template_attribute: Some(template()),
        }),
        RequestPayload::Locate(LocateRequest {
            maximum_items: Some(10),
            offset_items: Some(20),
            storage_status_mask: Some(StorageStatusMask::ON_LINE | StorageStatusMask::ARCHIVAL),
            object_group_member: Some(ObjectGroupMember::Fresh),
            attributes: attributes(),
        }),
        RequestPayload::Check(CheckRequest {
            unique_identifier: id(),
            usage_limits_count: Some(5),
            cryptographic_usage_mask: Some(CryptographicUsageMask::ENCRYPT),
            lease_time: Some(Interval(60)),
        }),
        RequestPayload::Get(GetRequest {
            unique_identifier: id(),
            key_format_type: Some(KeyFormatType::Raw),
            key_wrap_type: Some(KeyWrapType::AsRegistered),
            key_compression_type: Some(KeyCompressionType::EcPublicKeyTypeX9_62Hybrid),
            key_wrapping_specification: Some(KeyWrappingSpecification {
                wrapping_method: WrappingMethod::Encrypt,
                encryption_key: Some(encryption_key()),
                mac_signature_key: Some(mac_key()),
                attribute_names: vec![AttributeName::State, AttributeName::Other(text("x-1"))],
                encoding_option: Some(EncodingOption::TtlvEncoding),
            }),
        }),
        RequestPayload::GetAttributes(GetAttributesRequest {
            unique_identifier: id(),
            attribute_names: AttributeName::NAMED.to_vec(),
        }),
        RequestPayload::GetAttributeList(by_id()),
        RequestPayload::AddAttribute(AddAttributeRequest {
            unique_identifier: id(),
            attribute: AttributeValue::State(State::Active).into(),
        }),
        RequestPayload::ModifyAttribute(ModifyAttributeRequest {
            unique_identifier: id(),
            attribute: AttributeValue::State(State::Other(77)).into(),
        }),
        RequestPayload::DeleteAttribute(DeleteAttributeRequest {
            unique_identifier: id(),
            attribute_name: AttributeName::Name,
            attribute_index: Some(AttributeIndex(3)),
        }),
        RequestPayload::ObtainLease(by_id()),
        RequestPayload::GetUsageAllocation(GetUsageAllocationRequest {
            unique_identifier: id(),
            usage_limits_count: 7,
        }),
        RequestPayload::Activate(by_id()),
        RequestPayload::Revoke(RevokeRequest {
            unique_identifier: id(),
            revocation_reason: revocation_reason(),
            compromise_occurrence_date: Some(DateTime(-1)),
        }),
        RequestPayload::Destroy(by_id()),
        RequestPayload::Archive(by_id()),
        RequestPayload::Recover(by_id()),
        RequestPayload::Query(QueryRequest { query_functions: QueryFunction::NAMED.to_vec() }),
        RequestPayload::Cancel(CancelRequest { asynchronous_correlation_value: secret() }),
        RequestPayload::Poll(PollRequest { asynchronous_correlation_value: secret() }),
        RequestPayload::DiscoverVersions(DiscoverVersionsRequest {
            protocol_versions: ProtocolVersion::SPOKEN.into(),
        }),
        RequestPayload::Encrypt(EncryptRequest {
            unique_identifier: id(),
            cryptographic_parameters: Some(cryptographic_parameters()),
            data: Some(secret()),
            iv_counter_nonce: Some(secret()),
            correlation_value: parts.0.clone(),
            init_indicator: parts.1,
            final_indicator: parts.2,
            additional_data: Some(secret()),
        }),
        RequestPayload::Decrypt(DecryptRequest {
            unique_identifier: id(),
            cryptographic_parameters: Some(cryptographic_parameters()),
            data: Some(secret()),
            iv_counter_nonce: Some(secret()),
            correlation_value: parts.0.clone(),
            init_indicator: parts.1,
            final_indicator: parts.2,
            additional_data: Some(secret()),
            authenticated_encryption_tag: Some(secret()),
        }),
        RequestPayload::Mac(MacRequest {
            unique_identifier: id(),
            cryptographic_parameters: Some(cryptographic_parameters()),
            data: Some(secret()),
            correlation_value: parts.0.clone(),
            init_indicator: parts.1,
            final_indicator: parts.2,
        }),
        RequestPayload::MacVerify(MacVerifyRequest {
            unique_identifier: id(),
            cryptographic_parameters: Some(cryptographic_parameters()),
            data: Some(secret()),
            mac_data: Some(secret()),
            correlation_value: parts.0.clone(),
            init_indicator: parts.1,
            final_indicator: parts.2,
        }),
        RequestPayload::RngRetrieve(RngRetrieveRequest { data_length: 32 }),
        RequestPayload::RngSeed(RngSeedRequest { data: secret() }),
        RequestPayload::Hash(HashRequest {
            cryptographic_parameters: cryptographic_parameters(),
            data: Some(secret()),
            correlation_value: parts.0,
            init_indicator: parts.1,
            final_indicator: parts.2,
        }),
    ]);
    let header = RequestHeader {
        protocol_version: version,
        maximum_response_size: Some(4096),
        client_correlation_value: Some(text("client")),
        server_correlation_value: Some(text("server")),
        asynchronous_indicator: Some(false),
        attestation_capable_indicator: Some(true),
        attestation_types: AttestationType::NAMED.to_vec(),
        authentication: Some(authentication()),
        batch_error_continuation_option: Some(BatchErrorContinuationOption::Undo),
        batch_order_option: Some(true),
        time_stamp: Some(DateTime(1_700_000_000)),
    };
    let items = payloads.into_iter().map(|payload| RequestItem {
        unique_batch_item_id: Some(ByteString::from(b"id")),
        payload,
        message_extension: Some(message_extension()),
    });
    RequestMessage { header, items: items.collect() }
}
