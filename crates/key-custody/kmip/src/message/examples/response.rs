//! Responses.

use super::*;
use crate::message::*;

fn query() -> QueryResponse {
    QueryResponse {
        operations: Operation::NAMED.to_vec(),
        object_types: ObjectType::NAMED.to_vec(),
        vendor_identification: Some(text("vendor")),
        server_information: Some(Value::Structure(vec![Item::text(Tag::COMMENT, "anything")])),
        application_namespaces: vec![text("ssl"), text("ldap")],
        extension_information: vec![ExtensionInformation {
            name: text("ours"),
            tag: Some(0x54_0001),
            kind: Some(8),
        }],
        attestation_types: AttestationType::NAMED.to_vec(),
        rng_parameters: vec![rng_parameters()],
        profile_information: vec![ProfileInformation {
            name: ProfileName::BaselineServerBasicKmipV1_4,
            server_uri: Some(text("kmip://localhost")),
            server_port: Some(5696),
        }],
        validation_information: vec![ValidationInformation {
            authority_type: ValidationAuthorityType::NistCmvp,
            authority_country: Some(text("US")),
            authority_uri: Some(text("https://nist.gov")),
            version_major: 140,
            version_minor: Some(3),
            kind: ValidationType::Software,
            level: 1,
            certificate_identifier: Some(text("4816")),
            certificate_uri: Some(text("https://csrc.nist.gov")),
            vendor_uri: Some(text("https://example.com")),
            profiles: vec![text("one"), text("two")],
        }],
        capability_information: vec![CapabilityInformation {
            streaming: Some(true),
            asynchronous: Some(false),
            attestation: Some(true),
            batch_undo: Some(true),
            batch_continue: Some(true),
            unwrap_mode: Some(UnwrapMode::NotProcessed),
            destroy_action: Some(DestroyAction::KeyMaterialShredded),
            shredding_algorithm: Some(ShreddingAlgorithm::Cryptographic),
            rng_mode: Some(RngMode::SharedInstantiation),
            client_registration_method: Some(ClientRegistrationMethod::ClientGenerated),
        }],
        client_registration_methods: ClientRegistrationMethod::NAMED.to_vec(),
    }
}

/// A response with every payload, and two failures.
pub fn response(version: ProtocolVersion) -> ResponseMessage {
    let id = || text("42");
    let named = || UniqueIdentifierResponse { unique_identifier: id() };
    let attribute = || AttributeResponse {
        unique_identifier: id(),
        attribute: AttributeValue::State(State::Active).into(),
    };
    let mut payloads: Vec<ResponsePayload> = objects()
        .into_iter()
        .map(|object| ResponsePayload::Get(GetResponse { unique_identifier: id(), object }))
        .collect();
    payloads.extend([
        ResponsePayload::Create(CreateResponse {
            object_type: ObjectType::SymmetricKey,
            unique_identifier: id(),
            template_attribute: Some(template()),
        }),
        ResponsePayload::Register(RegisterResponse {
            unique_identifier: id(),
            template_attribute: Some(template()),
        }),
        ResponsePayload::ReKey(ReKeyResponse {
            unique_identifier: id(),
            template_attribute: Some(template()),
        }),
        ResponsePayload::Locate(LocateResponse {
            located_items: Some(2),
            unique_identifiers: vec![id(), text("43")],
        }),
        ResponsePayload::Check(CheckResponse {
            unique_identifier: id(),
            usage_limits_count: Some(5),
            cryptographic_usage_mask: Some(CryptographicUsageMask::ENCRYPT),
            lease_time: Some(Interval(60)),
        }),
        ResponsePayload::GetAttributes(GetAttributesResponse {
            unique_identifier: id(),
            attributes: attributes(),
        }),
        ResponsePayload::GetAttributeList(GetAttributeListResponse {
            unique_identifier: id(),
            attribute_names: AttributeName::NAMED.to_vec(),
        }),
        ResponsePayload::AddAttribute(attribute()),
        ResponsePayload::ModifyAttribute(attribute()),
        ResponsePayload::DeleteAttribute(attribute()),
        ResponsePayload::ObtainLease(ObtainLeaseResponse {
            unique_identifier: id(),
            lease_time: Interval(60),
            last_change_date: DateTime(1_700_000_000),
        }),
        ResponsePayload::GetUsageAllocation(named()),
        ResponsePayload::Activate(named()),
        ResponsePayload::Revoke(named()),
        ResponsePayload::Destroy(named()),
        ResponsePayload::Archive(named()),
        ResponsePayload::Recover(named()),
        ResponsePayload::Query(query()),
        ResponsePayload::Cancel(CancelResponse {
            asynchronous_correlation_value: secret(),
            cancellation_result: CancellationResult::Completed,
        }),
        ResponsePayload::DiscoverVersions(DiscoverVersionsResponse {
            protocol_versions: ProtocolVersion::SPOKEN.into(),
        }),
        ResponsePayload::Encrypt(EncryptResponse {
            unique_identifier: id(),
            data: Some(secret()),
            iv_counter_nonce: Some(secret()),
            correlation_value: Some(secret()),
            authenticated_encryption_tag: Some(secret()),
        }),
        ResponsePayload::Decrypt(DecryptResponse {
            unique_identifier: id(),
            data: Some(secret()),
            correlation_value: Some(secret()),
        }),
        ResponsePayload::Mac(MacResponse {
            unique_identifier: id(),
            mac_data: Some(secret()),
            correlation_value: Some(secret()),
        }),
        ResponsePayload::MacVerify(MacVerifyResponse {
            unique_identifier: id(),
            validity_indicator: Some(ValidityIndicator::Invalid),
            correlation_value: Some(secret()),
        }),
        ResponsePayload::RngRetrieve(RngRetrieveResponse { data: secret() }),
        ResponsePayload::RngSeed(RngSeedResponse { data_length: 32 }),
        ResponsePayload::Hash(HashResponse { data: Some(secret()), correlation_value: Some(secret()) }),
    ]);
    let mut items: Vec<ResponseItem> = payloads
        .into_iter()
        .map(|payload| ResponseItem {
            operation: Some(payload.operation()),
            unique_batch_item_id: Some(ByteString::from(b"id")),
            result_status: ResultStatus::Success,
            result_reason: None,
            result_message: None,
            asynchronous_correlation_value: Some(ByteString::from(b"poll")),
            payload: Some(payload),
            message_extension: Some(message_extension()),
        })
        .collect();
    let asked = RequestItem::from(RequestPayload::Get(GetRequest::default()));
    items.push(ResponseItem::failure(&asked, ResultReason::ItemNotFound, "there is no object 42"));
    items.push(ResponseItem::failure_of_message(ResultReason::InvalidMessage, "no request"));
    let header = ResponseHeader {
        protocol_version: version,
        time_stamp: DateTime(1_700_000_000),
        nonce: Some(nonce()),
        attestation_types: AttestationType::NAMED.to_vec(),
        client_correlation_value: Some(text("client")),
        server_correlation_value: Some(text("server")),
    };
    ResponseMessage { header, items }
}
