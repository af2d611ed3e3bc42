//! The small structures of attributes and answers.

use super::{
    AlternativeNameType, ClientRegistrationMethod, CryptographicAlgorithm, DestroyAction, DrbgAlgorithm,
    Fips186Variation, HashingAlgorithm, KeyFormatType, KeyValueLocationType, LinkType, NameType, ProfileName,
    RecommendedCurve, RevocationReasonCode, RngAlgorithm, RngMode, ShreddingAlgorithm, UnwrapMode,
    UsageLimitsUnit, ValidationAuthorityType, ValidationType,
};
use crate::codec::{RawStructure, structure};
use crate::ttlv::ByteString;

structure! {
    /// A name of an object, unique at its server (section 3.2).
    pub struct Name {
        /// The name.
        value: String = NAME_VALUE,
        /// The kind of name.
        kind: NameType = NAME_TYPE,
    }
}

structure! {
    /// A name that need not be unique (section 3.40, KMIP 1.2).
    pub struct AlternativeName {
        /// The name.
        value: String = ALTERNATIVE_NAME_VALUE,
        /// The kind of name.
        kind: AlternativeNameType = ALTERNATIVE_NAME_TYPE,
    }
}

structure! {
    /// A relation to another object (section 3.35).
    pub struct Link {
        /// How this object is related to it.
        kind: LinkType = LINK_TYPE,
        /// The unique identifier of the other one.
        object: String = LINKED_OBJECT_IDENTIFIER,
    }
}

structure! {
    /// The hash of an object (section 3.17).
    pub struct Digest {
        /// The hash algorithm.
        hashing_algorithm: HashingAlgorithm = HASHING_ALGORITHM,
        /// The hash.
        value: Option<ByteString> = DIGEST_VALUE,
        /// The encoding of the key that was hashed.
        key_format_type: Option<KeyFormatType> = KEY_FORMAT_TYPE since V1_1,
    }
}

structure! {
    /// A key's usage limits (section 3.21).
    pub struct UsageLimits {
        /// How much in all.
        total: i64 = USAGE_LIMITS_TOTAL,
        /// How much is left.
        count: Option<i64> = USAGE_LIMITS_COUNT,
        /// The unit.
        unit: UsageLimitsUnit = USAGE_LIMITS_UNIT,
    }
}

structure! {
    /// Why an object was revoked (section 3.31).
    pub struct RevocationReason {
        /// The reason.
        code: RevocationReasonCode = REVOCATION_REASON_CODE,
        /// In words.
        message: Option<String> = REVOCATION_MESSAGE,
    }
}

structure! {
    /// An application's data with an object (section 3.36).
    pub struct ApplicationSpecificInformation {
        /// The owner of the data.
        namespace: String = APPLICATION_NAMESPACE,
        /// The data; a server may make some where a client gives none.
        data: Option<String> = APPLICATION_DATA,
    }
}

structure! {
    /// The parameters of a key of a domain (section 3.7).
    pub struct CryptographicDomainParameters {
        /// Length of Q in bits.
        q_length: Option<i32> = QLENGTH,
        /// The curve.
        recommended_curve: Option<RecommendedCurve> = RECOMMENDED_CURVE,
    }
}

structure! {
    /// The location of a key value that the server does not have (section 3.42, KMIP 1.2).
    pub struct KeyValueLocation {
        /// The place.
        value: String = KEY_VALUE_LOCATION_VALUE,
        /// The kind of place.
        kind: KeyValueLocationType = KEY_VALUE_LOCATION_TYPE,
    }
}

structure! {
    /// The identity of a certificate (section 3.10).
    pub struct X509CertificateIdentifier {
        /// Its issuer, DER.
        issuer_distinguished_name: ByteString = ISSUER_DISTINGUISHED_NAME,
        /// Its serial number.
        serial_number: ByteString = CERTIFICATE_SERIAL_NUMBER,
    }
}

structure! {
    /// The subject of a certificate (section 3.11).
    pub struct X509CertificateSubject {
        /// The subject, DER.
        distinguished_name: ByteString = SUBJECT_DISTINGUISHED_NAME,
        /// Other names, DER.
        alternative_names: Vec<ByteString> = SUBJECT_ALTERNATIVE_NAME,
    }
}

structure! {
    /// The issuer of a certificate (section 3.12).
    pub struct X509CertificateIssuer {
        /// The issuer, DER.
        distinguished_name: ByteString = ISSUER_DISTINGUISHED_NAME,
        /// Other names, DER.
        alternative_names: Vec<ByteString> = ISSUER_ALTERNATIVE_NAME,
    }
}

structure! {
    /// How random numbers are made (section 2.1.18, KMIP 1.3).
    pub struct RngParameters {
        /// The kind of generator.
        rng_algorithm: RngAlgorithm = RNG_ALGORITHM,
        /// Its cipher.
        cryptographic_algorithm: Option<CryptographicAlgorithm> = CRYPTOGRAPHIC_ALGORITHM,
        /// Its key's length in bits.
        cryptographic_length: Option<i32> = CRYPTOGRAPHIC_LENGTH,
        /// Its hash.
        hashing_algorithm: Option<HashingAlgorithm> = HASHING_ALGORITHM,
        /// The kind of deterministic generator.
        drbg_algorithm: Option<DrbgAlgorithm> = DRBG_ALGORITHM,
        /// Its curve.
        recommended_curve: Option<RecommendedCurve> = RECOMMENDED_CURVE,
        /// The variation of FIPS 186.
        fips186_variation: Option<Fips186Variation> = FIPS186_VARIATION,
        /// Whether it is reseeded for every request.
        prediction_resistance: Option<bool> = PREDICTION_RESISTANCE,
    }
}

structure! {
    /// A profile that a server claims (section 2.1.19, KMIP 1.3).
    pub struct ProfileInformation {
        /// The profile.
        name: ProfileName = PROFILE_NAME,
        /// The server's URI.
        server_uri: Option<String> = SERVER_URI,
        /// Its port.
        server_port: Option<i32> = SERVER_PORT,
    }
}

structure! {
    /// A validation of a server (section 2.1.20, KMIP 1.3).
    pub struct ValidationInformation {
        /// The validating authority.
        authority_type: ValidationAuthorityType = VALIDATION_AUTHORITY_TYPE,
        /// The authority's country.
        authority_country: Option<String> = VALIDATION_AUTHORITY_COUNTRY,
        /// The authority's URI.
        authority_uri: Option<String> = VALIDATION_AUTHORITY_URI,
        /// The major version of the authority's rules.
        version_major: i32 = VALIDATION_VERSION_MAJOR,
        /// The minor part of that version.
        version_minor: Option<i32> = VALIDATION_VERSION_MINOR,
        /// The kind of validation.
        kind: ValidationType = VALIDATION_TYPE,
        /// The level.
        level: i32 = VALIDATION_LEVEL,
        /// The certificate of the validation.
        certificate_identifier: Option<String> = VALIDATION_CERTIFICATE_IDENTIFIER,
        /// The certificate's URI.
        certificate_uri: Option<String> = VALIDATION_CERTIFICATE_URI,
        /// The vendor's URI.
        vendor_uri: Option<String> = VALIDATION_VENDOR_URI,
        /// The profiles validated.
        profiles: Vec<String> = VALIDATION_PROFILE,
    }
}

structure! {
    /// A server's capabilities (section 2.1.21, KMIP 1.3).
    #[derive(Default)]
    pub struct CapabilityInformation {
        /// Encrypt and the like in parts.
        streaming: Option<bool> = STREAMING_CAPABILITY,
        /// Asynchronous answers.
        asynchronous: Option<bool> = ASYNCHRONOUS_CAPABILITY,
        /// Attested requests.
        attestation: Option<bool> = ATTESTATION_CAPABILITY,
        /// Undoing a batch.
        batch_undo: Option<bool> = BATCH_UNDO_CAPABILITY since V1_4,
        /// Continuing a batch after an error.
        batch_continue: Option<bool> = BATCH_CONTINUE_CAPABILITY since V1_4,
        /// Whether wrapped keys are unwrapped.
        unwrap_mode: Option<UnwrapMode> = UNWRAP_MODE,
        /// The effect of Destroy.
        destroy_action: Option<DestroyAction> = DESTROY_ACTION,
        /// How Destroy shreds.
        shredding_algorithm: Option<ShreddingAlgorithm> = SHREDDING_ALGORITHM,
        /// How the random number generator is shared.
        rng_mode: Option<RngMode> = RNG_MODE,
        /// Unused by the specification's own text, kept if a peer sends it.
        client_registration_method: Option<ClientRegistrationMethod> = CLIENT_REGISTRATION_METHOD,
    }
}

structure! {
    /// A tag or type that a vendor added (section 2.1.9, KMIP 1.1).
    pub struct ExtensionInformation {
        /// Its name.
        name: String = EXTENSION_NAME,
        /// Its tag.
        tag: Option<i32> = EXTENSION_TAG,
        /// Its type.
        kind: Option<i32> = EXTENSION_TYPE,
    }
}

structure! {
    /// A number that a server issues once (section 2.1.14, KMIP 1.2).
    pub struct Nonce {
        /// Its identifier.
        id: ByteString = NONCE_ID,
        /// The number.
        value: ByteString = NONCE_VALUE,
    }
}

structure! {
    /// A vendor's extension of a batch item (section 6.16).
    pub struct MessageExtension {
        /// The vendor.
        vendor_identification: String = VENDOR_IDENTIFICATION,
        /// Whether the item must be refused if the extension is unknown.
        criticality_indicator: bool = CRITICALITY_INDICATOR,
        /// The extension's content.
        vendor_extension: RawStructure = VENDOR_EXTENSION,
    }
}
