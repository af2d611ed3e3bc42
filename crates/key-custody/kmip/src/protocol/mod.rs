//! The vocabulary of KMIP 1.0 to 1.4: versions, enumerations, masks, attributes, managed objects,
//! credentials. The versions are the [codec](crate::codec)'s, which needs them for each structure.

mod attributes;
mod credentials;
mod cryptographic_parameters;
mod enumerations;
mod key_block;
mod masks;
mod objects;
mod structures;
mod wrapping;

pub use crate::codec::ProtocolVersion;
pub use attributes::{Attribute, AttributeIndex, AttributeName, AttributeValue, TemplateAttribute};
pub use credentials::{
    AttestationCredential, Authentication, Credential, DeviceCredential, STRONGROOM_GRANT,
    STRONGROOM_GRANT_TAG, UsernameAndPassword,
};
pub use cryptographic_parameters::CryptographicParameters;
pub use enumerations::*;
pub use key_block::{KeyBlock, KeyContent, KeyMaterial, KeyValue};
pub use masks::{CryptographicUsageMask, StorageStatusMask, mask_bits};
pub use objects::{Certificate, ManagedObject, OpaqueObject, RawObject, SecretData};
pub use structures::{
    AlternativeName, ApplicationSpecificInformation, CapabilityInformation, CryptographicDomainParameters,
    Digest, ExtensionInformation, KeyValueLocation, Link, MessageExtension, Name, Nonce, ProfileInformation,
    RevocationReason, RngParameters, UsageLimits, ValidationInformation, X509CertificateIdentifier,
    X509CertificateIssuer, X509CertificateSubject,
};
pub use wrapping::{
    EncryptionKeyInformation, KeyWrappingData, KeyWrappingSpecification, MacSignatureKeyInformation,
};
