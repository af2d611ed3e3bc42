//! Operations that use keys at the server (KMIP 1.2). From 1.3 on they can come in parts: the first
//! has the init indicator, the last the final indicator, and the correlation value ties them
//! together.

use crate::codec::structure;
use crate::protocol::{CryptographicParameters, ValidityIndicator};
use crate::ttlv::ByteString;

structure! {
    /// Encrypt (section 4.29).
    #[derive(Default)]
    pub struct EncryptRequest {
        /// With which key.
        unique_identifier: Option<String> = UNIQUE_IDENTIFIER,
        /// How; as the key's own attribute says where nothing is said here.
        cryptographic_parameters: Option<CryptographicParameters> = CRYPTOGRAPHIC_PARAMETERS,
        /// What.
        data: Option<ByteString> = DATA,
        /// The initialisation vector.
        iv_counter_nonce: Option<ByteString> = IV_COUNTER_NONCE,
        /// To which parts this one belongs.
        correlation_value: Option<ByteString> = CORRELATION_VALUE since V1_3,
        /// The first of several parts.
        init_indicator: Option<bool> = INIT_INDICATOR since V1_3,
        /// The last of several parts.
        final_indicator: Option<bool> = FINAL_INDICATOR since V1_3,
        /// What is authenticated and not encrypted.
        additional_data: Option<ByteString> = AUTHENTICATED_ENCRYPTION_ADDITIONAL_DATA since V1_4,
    }
}

structure! {
    /// What was encrypted.
    pub struct EncryptResponse {
        /// With which key.
        unique_identifier: String = UNIQUE_IDENTIFIER,
        /// The result.
        data: Option<ByteString> = DATA,
        /// The initialisation vector that the server made.
        iv_counter_nonce: Option<ByteString> = IV_COUNTER_NONCE,
        /// For the next part.
        correlation_value: Option<ByteString> = CORRELATION_VALUE since V1_3,
        /// The authentication tag; versions before 1.4 have it at the end of the data.
        authenticated_encryption_tag: Option<ByteString> = AUTHENTICATED_ENCRYPTION_TAG since V1_4,
    }
}

structure! {
    /// Decrypt (section 4.30).
    #[derive(Default)]
    pub struct DecryptRequest {
        /// With which key.
        unique_identifier: Option<String> = UNIQUE_IDENTIFIER,
        /// How; as the key's own attribute says where nothing is said here.
        cryptographic_parameters: Option<CryptographicParameters> = CRYPTOGRAPHIC_PARAMETERS,
        /// What.
        data: Option<ByteString> = DATA,
        /// The initialisation vector.
        iv_counter_nonce: Option<ByteString> = IV_COUNTER_NONCE,
        /// To which parts this one belongs.
        correlation_value: Option<ByteString> = CORRELATION_VALUE since V1_3,
        /// The first of several parts.
        init_indicator: Option<bool> = INIT_INDICATOR since V1_3,
        /// The last of several parts.
        final_indicator: Option<bool> = FINAL_INDICATOR since V1_3,
        /// What was authenticated and not encrypted.
        additional_data: Option<ByteString> = AUTHENTICATED_ENCRYPTION_ADDITIONAL_DATA since V1_4,
        /// The authentication tag.
        authenticated_encryption_tag: Option<ByteString> = AUTHENTICATED_ENCRYPTION_TAG since V1_4,
    }
}

structure! {
    /// What was decrypted.
    pub struct DecryptResponse {
        /// With which key.
        unique_identifier: String = UNIQUE_IDENTIFIER,
        /// The result.
        data: Option<ByteString> = DATA,
        /// For the next part.
        correlation_value: Option<ByteString> = CORRELATION_VALUE since V1_3,
    }
}

structure! {
    /// Make a MAC (section 4.33).
    #[derive(Default)]
    pub struct MacRequest {
        /// With which key.
        unique_identifier: Option<String> = UNIQUE_IDENTIFIER,
        /// How; as the key's own attribute says where nothing is said here.
        cryptographic_parameters: Option<CryptographicParameters> = CRYPTOGRAPHIC_PARAMETERS,
        /// Of what.
        data: Option<ByteString> = DATA,
        /// To which parts this one belongs.
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
        /// With which key.
        unique_identifier: String = UNIQUE_IDENTIFIER,
        /// The MAC.
        mac_data: Option<ByteString> = MAC_DATA,
        /// For the next part.
        correlation_value: Option<ByteString> = CORRELATION_VALUE since V1_3,
    }
}

structure! {
    /// Verify a MAC (section 4.34).
    #[derive(Default)]
    pub struct MacVerifyRequest {
        /// With which key.
        unique_identifier: Option<String> = UNIQUE_IDENTIFIER,
        /// How; as the key's own attribute says where nothing is said here.
        cryptographic_parameters: Option<CryptographicParameters> = CRYPTOGRAPHIC_PARAMETERS,
        /// Of what.
        data: Option<ByteString> = DATA,
        /// The MAC.
        mac_data: Option<ByteString> = MAC_DATA,
        /// To which parts this one belongs.
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
        /// With which key.
        unique_identifier: String = UNIQUE_IDENTIFIER,
        /// Whether it is valid; absent in answers to all parts but the last.
        validity_indicator: Option<ValidityIndicator> = VALIDITY_INDICATOR,
        /// For the next part.
        correlation_value: Option<ByteString> = CORRELATION_VALUE since V1_3,
    }
}

structure! {
    /// Return random bytes (section 4.35).
    pub struct RngRetrieveRequest {
        /// How many.
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
        /// With what.
        data: ByteString = DATA,
    }
}

structure! {
    /// How much of it was used.
    pub struct RngSeedResponse {
        /// So many bytes.
        data_length: i32 = DATA_LENGTH,
    }
}

structure! {
    /// Make a hash (section 4.37).
    pub struct HashRequest {
        /// With which hash.
        cryptographic_parameters: CryptographicParameters = CRYPTOGRAPHIC_PARAMETERS,
        /// Of what.
        data: Option<ByteString> = DATA,
        /// To which parts this one belongs.
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
        /// For the next part.
        correlation_value: Option<ByteString> = CORRELATION_VALUE since V1_3,
    }
}
