//! Messages for tests: every payload with every field that it can have.

mod request;
mod response;

pub use request::{batch, request};
pub use response::response;

use crate::protocol::*;
use crate::ttlv::{ByteString, DateTime, Interval, Item, SecretText, Tag, Value};

/// The value of every key and data field in the examples.
pub const KEY_MARKER: &str = "marker-of-a-key!marker-of-a-key!";

/// The value of every password field in the examples.
pub const PASSWORD_MARKER: &str = "marker-of-a-password";

fn secret() -> ByteString {
    KEY_MARKER.as_bytes().into()
}

fn text(text: &str) -> String {
    text.to_owned()
}

fn cryptographic_parameters() -> CryptographicParameters {
    CryptographicParameters {
        block_cipher_mode: Some(BlockCipherMode::Gcm),
        padding_method: Some(PaddingMethod::None),
        hashing_algorithm: Some(HashingAlgorithm::Sha256),
        key_role_type: Some(KeyRoleType::Kek),
        digital_signature_algorithm: Some(DigitalSignatureAlgorithm::RsassaPss),
        cryptographic_algorithm: Some(CryptographicAlgorithm::Aes),
        random_iv: Some(true),
        iv_length: Some(96),
        tag_length: Some(16),
        fixed_field_length: Some(32),
        invocation_field_length: Some(64),
        counter_length: Some(32),
        initial_counter_value: Some(1),
        salt_length: Some(32),
        mask_generator: Some(MaskGenerator::Mgf1),
        mask_generator_hashing_algorithm: Some(HashingAlgorithm::Sha384),
        p_source: Some(secret()),
        trailer_field: Some(1),
    }
}

fn encryption_key() -> EncryptionKeyInformation {
    EncryptionKeyInformation {
        unique_identifier: text("kek"),
        cryptographic_parameters: Some(cryptographic_parameters()),
    }
}

fn mac_key() -> MacSignatureKeyInformation {
    MacSignatureKeyInformation { unique_identifier: text("mac"), cryptographic_parameters: None }
}

fn attribute_values() -> Vec<AttributeValue> {
    let raw = |tag| {
        let field = Item::text(Tag::CERTIFICATE_SUBJECT_DISTINGUISHED_NAME, "CN=old");
        let encoded = Item::structure(tag, [field]).to_bytes();
        let structure =
            crate::ttlv::Structure::parse(&encoded, tag, &crate::ttlv::Limits::default()).unwrap();
        crate::codec::RawStructure::of(structure)
    };
    let date = DateTime(1_700_000_000);
    vec![
        AttributeValue::UniqueIdentifier(text("42")),
        AttributeValue::Name(Name { value: text("disk"), kind: NameType::UninterpretedTextString }),
        AttributeValue::ObjectType(ObjectType::SymmetricKey),
        AttributeValue::CryptographicAlgorithm(CryptographicAlgorithm::Aes),
        AttributeValue::CryptographicLength(256),
        AttributeValue::CryptographicParameters(cryptographic_parameters()),
        AttributeValue::CryptographicDomainParameters(CryptographicDomainParameters {
            q_length: Some(256),
            recommended_curve: Some(RecommendedCurve::P256),
        }),
        AttributeValue::CertificateType(CertificateType::X509),
        AttributeValue::CertificateLength(700),
        AttributeValue::X509CertificateIdentifier(X509CertificateIdentifier {
            issuer_distinguished_name: ByteString::from(b"issuer"),
            serial_number: ByteString::from(b"serial"),
        }),
        AttributeValue::X509CertificateSubject(X509CertificateSubject {
            distinguished_name: ByteString::from(b"subject"),
            alternative_names: vec![ByteString::from(b"one"), ByteString::from(b"two")],
        }),
        AttributeValue::X509CertificateIssuer(X509CertificateIssuer {
            distinguished_name: ByteString::from(b"issuer"),
            alternative_names: vec![ByteString::from(b"one")],
        }),
        AttributeValue::CertificateIdentifier(raw(Tag::CERTIFICATE_IDENTIFIER)),
        AttributeValue::CertificateSubject(raw(Tag::CERTIFICATE_SUBJECT)),
        AttributeValue::CertificateIssuer(raw(Tag::CERTIFICATE_ISSUER)),
        AttributeValue::DigitalSignatureAlgorithm(DigitalSignatureAlgorithm::EcdsaWithSha256),
        AttributeValue::Digest(Digest {
            hashing_algorithm: HashingAlgorithm::Sha256,
            value: Some(ByteString::from(&[1; 32])),
            key_format_type: Some(KeyFormatType::Raw),
        }),
        AttributeValue::OperationPolicyName(text("default")),
        AttributeValue::CryptographicUsageMask(CryptographicUsageMask::WRAP_KEY),
        AttributeValue::LeaseTime(Interval(3600)),
        AttributeValue::UsageLimits(UsageLimits { total: 10, count: Some(9), unit: UsageLimitsUnit::Byte }),
        AttributeValue::State(State::Active),
        AttributeValue::InitialDate(date),
        AttributeValue::ActivationDate(date),
        AttributeValue::ProcessStartDate(date),
        AttributeValue::ProtectStopDate(date),
        AttributeValue::DeactivationDate(date),
        AttributeValue::DestroyDate(date),
        AttributeValue::CompromiseOccurrenceDate(date),
        AttributeValue::CompromiseDate(date),
        AttributeValue::RevocationReason(revocation_reason()),
        AttributeValue::ArchiveDate(date),
        AttributeValue::ObjectGroup(text("group")),
        AttributeValue::Fresh(true),
        AttributeValue::Link(Link { kind: LinkType::ReplacedObject, object: text("41") }),
        AttributeValue::ApplicationSpecificInformation(ApplicationSpecificInformation {
            namespace: text("ssl"),
            data: Some(text("www.example.com")),
        }),
        AttributeValue::ContactInformation(text("Joe")),
        AttributeValue::LastChangeDate(date),
        AttributeValue::AlternativeName(AlternativeName {
            value: text("other"),
            kind: AlternativeNameType::Uri,
        }),
        AttributeValue::KeyValuePresent(true),
        AttributeValue::KeyValueLocation(KeyValueLocation {
            value: text("safe"),
            kind: KeyValueLocationType::UninterpretedTextString,
        }),
        AttributeValue::OriginalCreationDate(date),
        AttributeValue::RandomNumberGenerator(rng_parameters()),
        AttributeValue::Pkcs12FriendlyName(text("friend")),
        AttributeValue::Description(text("what it is")),
        AttributeValue::Comment(text("what is said of it")),
        AttributeValue::Sensitive(true),
        AttributeValue::AlwaysSensitive(true),
        AttributeValue::Extractable(false),
        AttributeValue::NeverExtractable(true),
        AttributeValue::Other { name: text("x-Product"), value: Value::TextString(text("vSphere")) },
    ]
}

fn attributes() -> Vec<Attribute> {
    let values = attribute_values();
    for name in AttributeName::NAMED {
        assert!(values.iter().any(|value| value.name() == *name), "an example of {name}");
    }
    values.into_iter().map(|value| Attribute { index: Some(AttributeIndex(1)), value }).collect()
}

fn template() -> TemplateAttribute {
    let name = Name { value: text("template"), kind: NameType::UninterpretedTextString };
    TemplateAttribute { templates: vec![name], attributes: attributes() }
}

fn revocation_reason() -> RevocationReason {
    RevocationReason { code: RevocationReasonCode::KeyCompromise, message: Some(text("lost")) }
}

fn rng_parameters() -> RngParameters {
    RngParameters {
        rng_algorithm: RngAlgorithm::Drbg,
        cryptographic_algorithm: Some(CryptographicAlgorithm::Aes),
        cryptographic_length: Some(256),
        hashing_algorithm: Some(HashingAlgorithm::Sha512),
        drbg_algorithm: Some(DrbgAlgorithm::Ctr),
        recommended_curve: Some(RecommendedCurve::P384),
        fips186_variation: Some(Fips186Variation::GpXOriginal),
        prediction_resistance: Some(true),
    }
}

/// Every kind of object, plain and wrapped.
fn objects() -> Vec<ManagedObject> {
    let plain = KeyBlock::raw(CryptographicAlgorithm::Aes, secret());
    let transparent = KeyBlock {
        key_format_type: KeyFormatType::TransparentSymmetricKey,
        key_value: Some(KeyValue::Content(KeyContent {
            material: KeyMaterial::TransparentSymmetricKey(secret()),
            attributes: attributes(),
        })),
        ..plain.clone()
    };
    let wrapped = KeyBlock {
        key_compression_type: Some(KeyCompressionType::EcPublicKeyTypeUncompressed),
        key_value: Some(KeyValue::WrappedContent(secret())),
        key_wrapping_data: Some(KeyWrappingData {
            wrapping_method: WrappingMethod::EncryptThenMacSign,
            encryption_key: Some(encryption_key()),
            mac_signature_key: Some(mac_key()),
            mac_signature: Some(secret()),
            iv_counter_nonce: Some(secret()),
            encoding_option: Some(EncodingOption::NoEncoding),
        }),
        ..plain.clone()
    };
    let password = SecretData { secret_data_type: SecretDataType::Password, key_block: plain.clone() };
    vec![
        ManagedObject::SymmetricKey(plain),
        ManagedObject::SymmetricKey(transparent),
        ManagedObject::PublicKey(wrapped.clone()),
        ManagedObject::PrivateKey(wrapped),
        ManagedObject::SecretData(password),
        ManagedObject::Certificate(Certificate { certificate_type: CertificateType::X509, value: secret() }),
        ManagedObject::OpaqueObject(OpaqueObject {
            opaque_data_type: OpaqueDataType::Other(0x8000_0001),
            value: secret(),
        }),
    ]
}

fn authentication() -> Authentication {
    let password = || Some(SecretText::from(PASSWORD_MARKER));
    Authentication {
        credentials: vec![
            Credential::UsernameAndPassword(UsernameAndPassword {
                username: text("Fred"),
                password: password(),
            }),
            Credential::Device(DeviceCredential {
                device_serial_number: Some(text("serial")),
                password: password(),
                device_identifier: Some(text("device")),
                network_identifier: Some(text("network")),
                machine_identifier: Some(text("machine")),
                media_identifier: Some(text("medium")),
            }),
            Credential::Attestation(AttestationCredential {
                nonce: nonce(),
                attestation_type: AttestationType::TpmQuote,
                measurement: Some(secret()),
                assertion: Some(secret()),
            }),
            Credential::StrongroomGrant(secret()),
            Credential::Other {
                credential_type: CredentialType::Other(0x8000_0002),
                value: Value::ByteString(secret()),
            },
        ],
    }
}

fn nonce() -> Nonce {
    Nonce { id: ByteString::from(b"id"), value: ByteString::from(b"value") }
}

fn message_extension() -> MessageExtension {
    MessageExtension {
        vendor_identification: text("vendor"),
        criticality_indicator: true,
        vendor_extension: crate::codec::RawStructure::default(),
    }
}

fn id() -> Option<String> {
    Some(text("42"))
}
