//! Attributes of objects (KMIP 1.4, section 3).
//!
//! An attribute's name decides the type of its value, so the value carries the name: an
//! [`AttributeValue::State`] cannot hold a length.

use std::fmt;

use super::{
    AlternativeName, ApplicationSpecificInformation, CertificateType, CryptographicAlgorithm,
    CryptographicDomainParameters, CryptographicParameters, CryptographicUsageMask, Digest,
    DigitalSignatureAlgorithm, KeyValueLocation, Link, Name, ObjectType, ProtocolVersion, RevocationReason,
    RngParameters, State, UsageLimits, X509CertificateIdentifier, X509CertificateIssuer,
    X509CertificateSubject,
};
use crate::codec::{Codec, DecodeError, Fields, Member, RawStructure, Rules, structure};
use crate::ttlv::{DateTime, Field, Interval, Tag, Value, Writer};

/// Makes names and values from one table.
macro_rules! attributes {
    ($($variant:ident($type:ty) = $tag:ident $text:literal since $since:ident,)*) => {
        /// The name of an attribute.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum AttributeName {
            $(
                #[doc = concat!("`", $text, "`")]
                $variant,
            )*
            /// A custom or unknown attribute. Never the name of a known one.
            Other(String),
        }

        impl AttributeName {
            /// Every attribute that has a type here, in the order of the specification.
            pub const NAMED: &'static [Self] = &[$(Self::$variant,)*];

            /// The name on the wire.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $text,)*
                    Self::Other(name) => name,
                }
            }

            /// The attribute's own tag, which names the enumeration or mask of its value.
            pub fn tag(&self) -> Option<Tag> {
                match self {
                    $(Self::$variant => Some(Tag::$tag),)*
                    Self::Other(_) => None,
                }
            }

            /// The first version that has the attribute; custom attributes are as old as KMIP.
            pub fn since(&self) -> ProtocolVersion {
                match self {
                    $(Self::$variant => ProtocolVersion::$since,)*
                    Self::Other(_) => ProtocolVersion::V1_0,
                }
            }
        }

        impl From<&str> for AttributeName {
            fn from(name: &str) -> Self {
                match name {
                    $($text => Self::$variant,)*
                    other => Self::Other(other.to_owned()),
                }
            }
        }

        /// The value of an attribute, of the type that its name has.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum AttributeValue {
            $(
                #[doc = concat!("`", $text, "`")]
                $variant($type),
            )*
            /// A custom or unknown attribute.
            Other {
                /// Its name; never that of a known attribute.
                name: String,
                /// Its value, of any type.
                value: Value,
            },
        }

        impl AttributeValue {
            /// The name of the attribute.
            pub fn name(&self) -> AttributeName {
                match self {
                    $(Self::$variant(_) => AttributeName::$variant,)*
                    Self::Other { name, .. } => AttributeName::Other(name.clone()),
                }
            }

            /// Reads the value of an attribute of that name.
            ///
            /// # Errors
            /// [`DecodeError`] if the attribute has another type.
            pub fn decode(name: AttributeName, field: Field<'_>, rules: Rules) -> Result<Self, DecodeError> {
                Ok(match name {
                    $(AttributeName::$variant => Self::$variant(Codec::decode(field, rules)?),)*
                    AttributeName::Other(name) => Self::Other { name, value: Value::of(field) },
                })
            }

            fn encode(&self, version: ProtocolVersion, writer: &mut Writer) {
                match self {
                    $(Self::$variant(value) => value.encode(Tag::ATTRIBUTE_VALUE, version, writer),)*
                    Self::Other { value, .. } => value.write(Tag::ATTRIBUTE_VALUE, writer),
                }
            }
        }
    };
}

attributes! {
    UniqueIdentifier(String) = UNIQUE_IDENTIFIER "Unique Identifier" since V1_0,
    Name(Name) = NAME "Name" since V1_0,
    ObjectType(ObjectType) = OBJECT_TYPE "Object Type" since V1_0,
    CryptographicAlgorithm(CryptographicAlgorithm) = CRYPTOGRAPHIC_ALGORITHM "Cryptographic Algorithm" since V1_0,
    CryptographicLength(i32) = CRYPTOGRAPHIC_LENGTH "Cryptographic Length" since V1_0,
    CryptographicParameters(CryptographicParameters) = CRYPTOGRAPHIC_PARAMETERS "Cryptographic Parameters" since V1_0,
    CryptographicDomainParameters(CryptographicDomainParameters) = CRYPTOGRAPHIC_DOMAIN_PARAMETERS "Cryptographic Domain Parameters" since V1_0,
    CertificateType(CertificateType) = CERTIFICATE_TYPE "Certificate Type" since V1_0,
    CertificateLength(i32) = CERTIFICATE_LENGTH "Certificate Length" since V1_1,
    X509CertificateIdentifier(X509CertificateIdentifier) = X509_CERTIFICATE_IDENTIFIER "X.509 Certificate Identifier" since V1_1,
    X509CertificateSubject(X509CertificateSubject) = X509_CERTIFICATE_SUBJECT "X.509 Certificate Subject" since V1_1,
    X509CertificateIssuer(X509CertificateIssuer) = X509_CERTIFICATE_ISSUER "X.509 Certificate Issuer" since V1_1,
    CertificateIdentifier(RawStructure) = CERTIFICATE_IDENTIFIER "Certificate Identifier" since V1_0,
    CertificateSubject(RawStructure) = CERTIFICATE_SUBJECT "Certificate Subject" since V1_0,
    CertificateIssuer(RawStructure) = CERTIFICATE_ISSUER "Certificate Issuer" since V1_0,
    DigitalSignatureAlgorithm(DigitalSignatureAlgorithm) = DIGITAL_SIGNATURE_ALGORITHM "Digital Signature Algorithm" since V1_1,
    Digest(Digest) = DIGEST "Digest" since V1_0,
    OperationPolicyName(String) = OPERATION_POLICY_NAME "Operation Policy Name" since V1_0,
    CryptographicUsageMask(CryptographicUsageMask) = CRYPTOGRAPHIC_USAGE_MASK "Cryptographic Usage Mask" since V1_0,
    LeaseTime(Interval) = LEASE_TIME "Lease Time" since V1_0,
    UsageLimits(UsageLimits) = USAGE_LIMITS "Usage Limits" since V1_0,
    State(State) = STATE "State" since V1_0,
    InitialDate(DateTime) = INITIAL_DATE "Initial Date" since V1_0,
    ActivationDate(DateTime) = ACTIVATION_DATE "Activation Date" since V1_0,
    ProcessStartDate(DateTime) = PROCESS_START_DATE "Process Start Date" since V1_0,
    ProtectStopDate(DateTime) = PROTECT_STOP_DATE "Protect Stop Date" since V1_0,
    DeactivationDate(DateTime) = DEACTIVATION_DATE "Deactivation Date" since V1_0,
    DestroyDate(DateTime) = DESTROY_DATE "Destroy Date" since V1_0,
    CompromiseOccurrenceDate(DateTime) = COMPROMISE_OCCURRENCE_DATE "Compromise Occurrence Date" since V1_0,
    CompromiseDate(DateTime) = COMPROMISE_DATE "Compromise Date" since V1_0,
    RevocationReason(RevocationReason) = REVOCATION_REASON "Revocation Reason" since V1_0,
    ArchiveDate(DateTime) = ARCHIVE_DATE "Archive Date" since V1_0,
    ObjectGroup(String) = OBJECT_GROUP "Object Group" since V1_0,
    Fresh(bool) = FRESH "Fresh" since V1_1,
    Link(Link) = LINK "Link" since V1_0,
    ApplicationSpecificInformation(ApplicationSpecificInformation) = APPLICATION_SPECIFIC_INFORMATION "Application Specific Information" since V1_0,
    ContactInformation(String) = CONTACT_INFORMATION "Contact Information" since V1_0,
    LastChangeDate(DateTime) = LAST_CHANGE_DATE "Last Change Date" since V1_0,
    AlternativeName(AlternativeName) = ALTERNATIVE_NAME "Alternative Name" since V1_2,
    KeyValuePresent(bool) = KEY_VALUE_PRESENT "Key Value Present" since V1_2,
    KeyValueLocation(KeyValueLocation) = KEY_VALUE_LOCATION "Key Value Location" since V1_2,
    OriginalCreationDate(DateTime) = ORIGINAL_CREATION_DATE "Original Creation Date" since V1_2,
    RandomNumberGenerator(RngParameters) = RANDOM_NUMBER_GENERATOR "Random Number Generator" since V1_3,
    Pkcs12FriendlyName(String) = PKCS12_FRIENDLY_NAME "PKCS#12 Friendly Name" since V1_4,
    Description(String) = DESCRIPTION "Description" since V1_4,
    Comment(String) = COMMENT "Comment" since V1_4,
    Sensitive(bool) = SENSITIVE "Sensitive" since V1_4,
    AlwaysSensitive(bool) = ALWAYS_SENSITIVE "Always Sensitive" since V1_4,
    Extractable(bool) = EXTRACTABLE "Extractable" since V1_4,
    NeverExtractable(bool) = NEVER_EXTRACTABLE "Never Extractable" since V1_4,
}

impl AttributeName {
    /// Whether a client may define attributes of this name: the specification leaves `x-` to
    /// clients and `y-` to servers.
    pub fn is_clients_own(&self) -> bool {
        matches!(self, Self::Other(name) if name.starts_with("x-"))
    }
}

impl fmt::Display for AttributeName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl Codec for AttributeName {
    fn decode(field: Field<'_>, rules: Rules) -> Result<Self, DecodeError> {
        String::decode(field, rules).map(|name| Self::from(name.as_str()))
    }

    fn encode(&self, tag: Tag, _: ProtocolVersion, writer: &mut Writer) {
        writer.text(tag, self.as_str());
    }
}

/// The index of one of an attribute's values, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttributeIndex(pub u32);

impl Codec for AttributeIndex {
    fn decode(field: Field<'_>, rules: Rules) -> Result<Self, DecodeError> {
        let index = i32::decode(field, rules)?;
        u32::try_from(index).map(Self).map_err(|_| DecodeError::value(field.tag(), "is negative"))
    }

    fn encode(&self, tag: Tag, _: ProtocolVersion, writer: &mut Writer) {
        writer.integer(tag, i32::try_from(self.0).unwrap_or(i32::MAX));
    }
}

/// One attribute of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// The index among several values; by default the first.
    pub index: Option<AttributeIndex>,
    /// Name and value.
    pub value: AttributeValue,
}

impl Attribute {
    /// The name of the attribute.
    pub fn name(&self) -> AttributeName {
        self.value.name()
    }
}

impl From<AttributeValue> for Attribute {
    fn from(value: AttributeValue) -> Self {
        Self { index: None, value }
    }
}

impl Codec for Attribute {
    fn decode(field: Field<'_>, rules: Rules) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(field, rules)?;
        let name = Member::take(Tag::ATTRIBUTE_NAME, &mut fields)?;
        let index = Member::take(Tag::ATTRIBUTE_INDEX, &mut fields)?;
        let value =
            fields.take_one(Tag::ATTRIBUTE_VALUE)?.ok_or_else(|| fields.missing(Tag::ATTRIBUTE_VALUE))?;
        let value = AttributeValue::decode(name, value, rules)?;
        fields.finish()?;
        Ok(Self { index, value })
    }

    fn encode(&self, tag: Tag, version: ProtocolVersion, writer: &mut Writer) {
        writer.structure(tag, |writer| {
            self.name().encode(Tag::ATTRIBUTE_NAME, version, writer);
            self.index.put(Tag::ATTRIBUTE_INDEX, version, writer);
            self.value.encode(version, writer);
        });
    }
}

structure! {
    /// The attributes that an object is made with (section 2.1.8).
    #[derive(Default)]
    pub struct TemplateAttribute {
        /// Templates to start from; deprecated since KMIP 1.3.
        templates: Vec<Name> = NAME,
        /// The attributes.
        attributes: Vec<Attribute> = ATTRIBUTE,
    }
}
