//! Numbers of the names in the cases, and the names that are out of this server's scope.

use strongroom_kmip::protocol::{enumeration_number, mask_bits};
use strongroom_kmip::ttlv::Tag;

/// Operations and object types of public keys, certificates and split keys, and operations that a
/// server initiates.
pub const OUT_OF_SCOPE: &[&str] = &[
    "CreateKeyPair",
    "ReKeyKeyPair",
    "Certify",
    "ReCertify",
    "Sign",
    "SignatureVerify",
    "CreateSplitKey",
    "JoinSplitKey",
    "Notify",
    "Put",
    "Certificate",
    "PublicKey",
    "PrivateKey",
    "SplitKey",
    "PGPKey",
];

/// Fields that a server may omit in answer to a Query; for example, it has no profile of tape
/// libraries.
pub const OWN_TO_A_SERVER: &[&str] = &["ProfileInformation", "ServerInformation", "ApplicationNamespace"];

/// The number of an enumeration's value: its name, or the number itself as `0x80000001`.
pub fn enumeration(field: &str, name: &str) -> Option<u32> {
    if let Some(digits) = name.strip_prefix("0x") {
        return u32::from_str_radix(digits, 16).ok();
    }
    enumeration_number(Tag::from_name(field)?, name)
}

/// The bits of a mask from their names, separated by spaces.
pub fn mask(field: &str, names: &str) -> Option<i32> {
    mask_bits(Tag::from_name(field)?, names)
}
