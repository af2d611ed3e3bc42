//! Numbers of the names that the cases use, and what of theirs is not this server's business.

use strongroom_kmip::protocol::{enumeration_number, mask_bits};
use strongroom_kmip::ttlv::Tag;

/// Operations and object types of public keys, certificates and split keys, and what a server does
/// to a client of its own accord.
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

/// What a server need not say in answer to a Query: it has no profile of tape libraries, say.
pub const OWN_TO_A_SERVER: &[&str] = &["ProfileInformation", "ServerInformation", "ApplicationNamespace"];

/// The number of an enumeration's value: its name, or the number itself as `0x80000001`.
pub fn enumeration(field: &str, name: &str) -> Option<u32> {
    if let Some(digits) = name.strip_prefix("0x") {
        return u32::from_str_radix(digits, 16).ok();
    }
    enumeration_number(Tag::from_name(field)?, name)
}

/// The bits of a mask, given by their names with spaces between.
pub fn mask(field: &str, names: &str) -> Option<i32> {
    mask_bits(Tag::from_name(field)?, names)
}
