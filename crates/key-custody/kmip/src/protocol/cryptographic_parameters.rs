//! How a key is used (KMIP 1.4, section 3.6).

use super::{
    BlockCipherMode, CryptographicAlgorithm, DigitalSignatureAlgorithm, HashingAlgorithm, KeyRoleType,
    MaskGenerator, PaddingMethod,
};
use crate::codec::structure;
use crate::ttlv::ByteString;

structure! {
    /// The mode, padding and lengths with which a key is used.
    #[derive(Default)]
    pub struct CryptographicParameters {
        /// The mode of the cipher.
        block_cipher_mode: Option<BlockCipherMode> = BLOCK_CIPHER_MODE,
        /// How data is padded.
        padding_method: Option<PaddingMethod> = PADDING_METHOD,
        /// The hash.
        hashing_algorithm: Option<HashingAlgorithm> = HASHING_ALGORITHM,
        /// The key's role in payment systems.
        key_role_type: Option<KeyRoleType> = KEY_ROLE_TYPE,
        /// The signature.
        digital_signature_algorithm: Option<DigitalSignatureAlgorithm> = DIGITAL_SIGNATURE_ALGORITHM since V1_2,
        /// The cipher or MAC.
        cryptographic_algorithm: Option<CryptographicAlgorithm> = CRYPTOGRAPHIC_ALGORITHM since V1_2,
        /// Whether the server makes the initialisation vector.
        random_iv: Option<bool> = RANDOM_IV since V1_2,
        /// Length of the initialisation vector in bits.
        iv_length: Option<i32> = IV_LENGTH since V1_2,
        /// Length of the authentication tag in bytes.
        tag_length: Option<i32> = TAG_LENGTH since V1_2,
        /// Length of the fixed field of a nonce in bits.
        fixed_field_length: Option<i32> = FIXED_FIELD_LENGTH since V1_2,
        /// Length of the invocation field of a nonce in bits.
        invocation_field_length: Option<i32> = INVOCATION_FIELD_LENGTH since V1_2,
        /// Length of the counter in bits.
        counter_length: Option<i32> = COUNTER_LENGTH since V1_2,
        /// Where the counter starts.
        initial_counter_value: Option<i32> = INITIAL_COUNTER_VALUE since V1_2,
        /// Length of the salt of PSS in bytes.
        salt_length: Option<i32> = SALT_LENGTH since V1_4,
        /// The mask generator of PSS and OAEP.
        mask_generator: Option<MaskGenerator> = MASK_GENERATOR since V1_4,
        /// Its hash.
        mask_generator_hashing_algorithm: Option<HashingAlgorithm> = MASK_GENERATOR_HASHING_ALGORITHM since V1_4,
        /// The label of OAEP.
        p_source: Option<ByteString> = P_SOURCE since V1_4,
        /// The trailer of PSS.
        trailer_field: Option<i32> = TRAILER_FIELD since V1_4,
    }
}
