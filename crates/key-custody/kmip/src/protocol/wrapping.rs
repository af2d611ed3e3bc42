//! Wrapped keys: how a key is wrapped, and how a client requests it (KMIP 1.4, sections 2.1.5 and
//! 2.1.6).

use super::{AttributeName, CryptographicParameters, EncodingOption, WrappingMethod};
use crate::codec::structure;
use crate::ttlv::ByteString;

structure! {
    /// The key that encrypts.
    pub struct EncryptionKeyInformation {
        /// Its unique identifier.
        unique_identifier: String = UNIQUE_IDENTIFIER,
        /// How it is used.
        cryptographic_parameters: Option<CryptographicParameters> = CRYPTOGRAPHIC_PARAMETERS,
    }
}

structure! {
    /// The key that signs.
    pub struct MacSignatureKeyInformation {
        /// Its unique identifier.
        unique_identifier: String = UNIQUE_IDENTIFIER,
        /// How it is used.
        cryptographic_parameters: Option<CryptographicParameters> = CRYPTOGRAPHIC_PARAMETERS,
    }
}

structure! {
    /// How the key in a key block is wrapped.
    pub struct KeyWrappingData {
        /// Encrypted, signed, or both.
        wrapping_method: WrappingMethod = WRAPPING_METHOD,
        /// The encrypting key.
        encryption_key: Option<EncryptionKeyInformation> = ENCRYPTION_KEY_INFORMATION,
        /// The signing key.
        mac_signature_key: Option<MacSignatureKeyInformation> = MAC_SIGNATURE_KEY_INFORMATION,
        /// The signature.
        mac_signature: Option<ByteString> = MAC_SIGNATURE,
        /// The initialisation vector.
        iv_counter_nonce: Option<ByteString> = IV_COUNTER_NONCE,
        /// The wrapped part; by default the encoded Key Value.
        encoding_option: Option<EncodingOption> = ENCODING_OPTION since V1_1,
    }
}

structure! {
    /// How the server must wrap a key.
    pub struct KeyWrappingSpecification {
        /// Encrypted, signed, or both.
        wrapping_method: WrappingMethod = WRAPPING_METHOD,
        /// The encrypting key.
        encryption_key: Option<EncryptionKeyInformation> = ENCRYPTION_KEY_INFORMATION,
        /// The signing key.
        mac_signature_key: Option<MacSignatureKeyInformation> = MAC_SIGNATURE_KEY_INFORMATION,
        /// Attributes to wrap with the key.
        attribute_names: Vec<AttributeName> = ATTRIBUTE_NAME,
        /// The part to wrap; by default the encoded Key Value.
        encoding_option: Option<EncodingOption> = ENCODING_OPTION since V1_1,
    }
}
