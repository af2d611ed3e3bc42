//! Operations that use keys at the server (KMIP 1.2). From 1.3 on they can be split into parts: the
//! first has the init indicator, the last the final indicator, and the correlation value ties them
//! together.

use crate::codec::structure;
use crate::protocol::{CryptographicParameters, ValidityIndicator};
use crate::ttlv::ByteString;

structure! {
    /// Encrypt (section 4.29).
    #[derive(Default)]
    pub struct EncryptRequest {
        /// The key's identifier.
        unique_identifier: Option<String> = UNIQUE_IDENTIFIER,
        /// The parameters; by default those of the key's own attribute.
        cryptographic_parameters: Option<CryptographicParameters> = CRYPTOGRAPHIC_PARAMETERS,
        /// The input.
        data: Option<ByteString> = DATA,
        /// The initialisation vector.
        iv_counter_nonce: Option<ByteString> = IV_COUNTER_NONCE,
        /// Ties the parts of one operation together.
        correlation_value: Option<ByteString> = CORRELATION_VALUE since V1_3,
        /// The first of several parts.
        init_indicator: Option<bool> = INIT_INDICATOR since V1_3,
        /// The last of several parts.
        final_indicator: Option<bool> = FINAL_INDICATOR since V1_3,
        /// Data that is authenticated but not encrypted.
        additional_data: Option<ByteString> = AUTHENTICATED_ENCRYPTION_ADDITIONAL_DATA since V1_4,
    }
}

structure! {
    /// The ciphertext.
    pub struct EncryptResponse {
        /// The key's identifier.
        unique_identifier: String = UNIQUE_IDENTIFIER,
        /// The result.
        data: Option<ByteString> = DATA,
        /// The initialisation vector that the server made.
        iv_counter_nonce: Option<ByteString> = IV_COUNTER_NONCE,
        /// The value to send with the next part.
        correlation_value: Option<ByteString> = CORRELATION_VALUE since V1_3,
        /// The authentication tag; versions before 1.4 have it at the end of the data.
        authenticated_encryption_tag: Option<ByteString> = AUTHENTICATED_ENCRYPTION_TAG since V1_4,
    }
}

structure! {
    /// Decrypt (section 4.30).
    #[derive(Default)]
    pub struct DecryptRequest {
        /// The key's identifier.
        unique_identifier: Option<String> = UNIQUE_IDENTIFIER,
        /// The parameters; by default those of the key's own attribute.
        cryptographic_parameters: Option<CryptographicParameters> = CRYPTOGRAPHIC_PARAMETERS,
        /// The input.
        data: Option<ByteString> = DATA,
        /// The initialisation vector.
        iv_counter_nonce: Option<ByteString> = IV_COUNTER_NONCE,
        /// Ties the parts of one operation together.
        correlation_value: Option<ByteString> = CORRELATION_VALUE since V1_3,
        /// The first of several parts.
        init_indicator: Option<bool> = INIT_INDICATOR since V1_3,
        /// The last of several parts.
        final_indicator: Option<bool> = FINAL_INDICATOR since V1_3,
        /// Data that was authenticated but not encrypted.
        additional_data: Option<ByteString> = AUTHENTICATED_ENCRYPTION_ADDITIONAL_DATA since V1_4,
        /// The authentication tag.
        authenticated_encryption_tag: Option<ByteString> = AUTHENTICATED_ENCRYPTION_TAG since V1_4,
    }
}

structure! {
    /// The plaintext.
    pub struct DecryptResponse {
        /// The key's identifier.
        unique_identifier: String = UNIQUE_IDENTIFIER,
        /// The result.
        data: Option<ByteString> = DATA,
        /// The value to send with the next part.
        correlation_value: Option<ByteString> = CORRELATION_VALUE since V1_3,
    }
}

structure! {
    /// Make a MAC (section 4.33).
    #[derive(Default)]
    pub struct MacRequest {
        /// The key's identifier.
        unique_identifier: Option<String> = UNIQUE_IDENTIFIER,
        /// The parameters; by default those of the key's own attribute.
        cryptographic_parameters: Option<CryptographicParameters> = CRYPTOGRAPHIC_PARAMETERS,
        /// The input.
        data: Option<ByteString> = DATA,
        /// Ties the parts of one operation together.
        correlation_value: Option<ByteString> = CORRELATION_VALUE since V1_3,
        /// The first of several parts.
        init_indicator: Option<bool> = INIT_INDICATOR since V1_3,
        /// The last of several parts.
        final_indicator: Option<bool> = FINAL_INDICATOR since V1_3,
    }
}

structure! {
    /// The MAC.
    pub struct MacResponse {
        /// The key's identifier.
        unique_identifier: String = UNIQUE_IDENTIFIER,
        /// The MAC.
        mac_data: Option<ByteString> = MAC_DATA,
        /// The value to send with the next part.
        correlation_value: Option<ByteString> = CORRELATION_VALUE since V1_3,
    }
}

structure! {
    /// Verify a MAC (section 4.34).
    #[derive(Default)]
    pub struct MacVerifyRequest {
        /// The key's identifier.
        unique_identifier: Option<String> = UNIQUE_IDENTIFIER,
        /// The parameters; by default those of the key's own attribute.
        cryptographic_parameters: Option<CryptographicParameters> = CRYPTOGRAPHIC_PARAMETERS,
        /// The input.
        data: Option<ByteString> = DATA,
        /// The MAC.
        mac_data: Option<ByteString> = MAC_DATA,
        /// Ties the parts of one operation together.
        correlation_value: Option<ByteString> = CORRELATION_VALUE since V1_3,
        /// The first of several parts.
        init_indicator: Option<bool> = INIT_INDICATOR since V1_3,
        /// The last of several parts.
        final_indicator: Option<bool> = FINAL_INDICATOR since V1_3,
    }
}

structure! {
    /// Whether it is valid.
    pub struct MacVerifyResponse {
        /// The key's identifier.
        unique_identifier: String = UNIQUE_IDENTIFIER,
        /// Whether it is valid; absent in answers to all parts but the last.
        validity_indicator: Option<ValidityIndicator> = VALIDITY_INDICATOR,
        /// The value to send with the next part.
        correlation_value: Option<ByteString> = CORRELATION_VALUE since V1_3,
    }
}

structure! {
    /// Return random bytes (section 4.35).
    pub struct RngRetrieveRequest {
        /// The number of bytes.
        data_length: i32 = DATA_LENGTH,
    }
}

structure! {
    /// The random bytes.
    pub struct RngRetrieveResponse {
        /// The bytes.
        data: ByteString = DATA,
    }
}

structure! {
    /// Add to the generator's seed (section 4.36).
    pub struct RngSeedRequest {
        /// The seed data.
        data: ByteString = DATA,
    }
}

structure! {
    /// How much of the seed was used.
    pub struct RngSeedResponse {
        /// The number of bytes.
        data_length: i32 = DATA_LENGTH,
    }
}

structure! {
    /// Make a hash (section 4.37).
    pub struct HashRequest {
        /// The hash algorithm.
        cryptographic_parameters: CryptographicParameters = CRYPTOGRAPHIC_PARAMETERS,
        /// The input.
        data: Option<ByteString> = DATA,
        /// Ties the parts of one operation together.
        correlation_value: Option<ByteString> = CORRELATION_VALUE since V1_3,
        /// The first of several parts.
        init_indicator: Option<bool> = INIT_INDICATOR since V1_3,
        /// The last of several parts.
        final_indicator: Option<bool> = FINAL_INDICATOR since V1_3,
    }
}

structure! {
    /// The hash.
    #[derive(Default)]
    pub struct HashResponse {
        /// The hash.
        data: Option<ByteString> = DATA,
        /// The value to send with the next part.
        correlation_value: Option<ByteString> = CORRELATION_VALUE since V1_3,
    }
}
