//! Wrapped keys: how one is wrapped, and how one is asked for (KMIP 1.4, sections 2.1.5 and 2.1.6).

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
        /// With which key it is encrypted.
        encryption_key: Option<EncryptionKeyInformation> = ENCRYPTION_KEY_INFORMATION,
        /// With which key it is signed.
        mac_signature_key: Option<MacSignatureKeyInformation> = MAC_SIGNATURE_KEY_INFORMATION,
        /// The signature.
        mac_signature: Option<ByteString> = MAC_SIGNATURE,
        /// The initialisation vector.
        iv_counter_nonce: Option<ByteString> = IV_COUNTER_NONCE,
        /// What was wrapped; the encoded key value where it is not said.
        encoding_option: Option<EncodingOption> = ENCODING_OPTION since V1_1,
    }
}

structure! {
    /// How a client wants to have a key wrapped.
    pub struct KeyWrappingSpecification {
        /// Encrypted, signed, or both.
        wrapping_method: WrappingMethod = WRAPPING_METHOD,
        /// With which key to encrypt.
        encryption_key: Option<EncryptionKeyInformation> = ENCRYPTION_KEY_INFORMATION,
        /// With which key to sign.
        mac_signature_key: Option<MacSignatureKeyInformation> = MAC_SIGNATURE_KEY_INFORMATION,
        /// Attributes to wrap with the key.
        attribute_names: Vec<AttributeName> = ATTRIBUTE_NAME,
        /// What to wrap; the encoded key value where it is not said.
        encoding_option: Option<EncodingOption> = ENCODING_OPTION since V1_1,
    }
}
