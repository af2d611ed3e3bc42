use std::fmt;

use strongroom_memory::secret::{SecretBytes, SecretError};

/// An algorithm of this crate, for errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// AES-256-XTS (IEEE 1619).
    Aes256Xts,
    /// AES-256-GCM (NIST SP 800-38D).
    Aes256Gcm,
    /// AES-GCM with keys and nonces of any length (NIST SP 800-38D).
    AesGcm,
    /// AES-256 key wrap (RFC 3394, KW).
    Aes256Kw,
    /// AES-256 key wrap with padding (RFC 5649, KWP).
    Aes256Kwp,
    /// HMAC-SHA256 (RFC 2104).
    HmacSha256,
    /// AES-256 of POLYVAL (RFC 8452), for tags of blocks.
    PolyvalAes,
    /// HKDF-SHA256 (RFC 5869).
    HkdfSha256,
    /// Argon2id version 0x13 (RFC 9106).
    Argon2id,
    /// SHA-256 (FIPS 180-4).
    Sha256,
    /// CTR_DRBG with AES-256 (NIST SP 800-90A).
    CtrDrbg,
}

impl fmt::Display for Algorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Aes256Xts => "AES-256-XTS",
            Self::Aes256Gcm => "AES-256-GCM",
            Self::AesGcm => "AES-GCM",
            Self::Aes256Kw => "AES-256-KW",
            Self::Aes256Kwp => "AES-256-KWP",
            Self::HmacSha256 => "HMAC-SHA256",
            Self::PolyvalAes => "POLYVAL-AES-256",
            Self::HkdfSha256 => "HKDF-SHA256",
            Self::Argon2id => "Argon2id",
            Self::Sha256 => "SHA-256",
            Self::CtrDrbg => "CTR_DRBG",
        })
    }
}

/// The errors of this crate. No variant carries a secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CryptoError {
    /// A key has a length that the algorithm does not accept.
    #[error("{algorithm} takes a key of {expected_bytes} bytes, not {actual_bytes}")]
    KeyLength {
        /// The algorithm of the key.
        algorithm: Algorithm,
        /// The length that it requires.
        expected_bytes: usize,
        /// The length that was given.
        actual_bytes: usize,
    },
    /// The two halves of an XTS key are equal, which would make it weak (FIPS 140 IG C.I).
    #[error("the two halves of the AES-256-XTS key are equal; such a key is refused as weak")]
    EqualXtsKeyHalves,
    /// A buffer for XTS is not a multiple of the data unit.
    #[error("{length_bytes} bytes are not whole data units of {unit_bytes} bytes")]
    PartialDataUnit {
        /// Length of the buffer.
        length_bytes: usize,
        /// Length of one unit.
        unit_bytes: usize,
    },
    /// Source and destination of a transformation differ in length.
    #[error("source has {source_bytes} bytes but destination has {destination_bytes}")]
    BufferMismatch {
        /// Length of the source.
        source_bytes: usize,
        /// Length of the destination.
        destination_bytes: usize,
    },
    /// The numbers of the data units do not fit the tweak, or XTS does not allow their length.
    #[error("{count} data units of {unit_bytes} bytes from number {first} are outside what XTS can address")]
    DataUnitRange {
        /// Number of the first unit.
        first: u128,
        /// The count of units.
        count: usize,
        /// Length of one unit.
        unit_bytes: usize,
    },
    /// Sealed data did not authenticate: another key, other associated data, or it was changed.
    #[error("{algorithm} authentication failed: wrong key, or the data was changed")]
    Authentication {
        /// The algorithm that failed.
        algorithm: Algorithm,
    },
    /// An input or output is shorter or longer than the algorithm allows.
    #[error("{algorithm}: {what} is {actual}, allowed is {least} to {most}")]
    Limit {
        /// The algorithm with the limit.
        algorithm: Algorithm,
        /// The limited quantity, with its unit.
        what: &'static str,
        /// The value that was refused.
        actual: usize,
        /// Least allowed value.
        least: usize,
        /// Greatest allowed value.
        most: usize,
    },
    /// The input of key wrap without padding is not a multiple of eight bytes.
    #[error("{algorithm} wraps multiples of 8 bytes, not {length_bytes}")]
    NotSemiblocks {
        /// The algorithm, KW.
        algorithm: Algorithm,
        /// The length that was refused.
        length_bytes: usize,
    },
    /// Working memory could not be allocated.
    #[error("{algorithm} needs {bytes} bytes of memory, which the system did not give")]
    OutOfMemory {
        /// The algorithm that needs it.
        algorithm: Algorithm,
        /// The size in bytes.
        bytes: usize,
    },
    /// The cryptographic library refused a call that should not fail.
    #[error("{algorithm}: {call} failed in the cryptographic library (code {code:#x})")]
    Library {
        /// The algorithm in use.
        algorithm: Algorithm,
        /// The call that failed.
        call: &'static str,
        /// The library's packed error code, zero if it gave none.
        code: u32,
    },
    /// A build with the feature `fips` was asked for an algorithm that its validated module does
    /// not have.
    #[error(
        "{algorithm} lies outside the FIPS 140-3 validated module, and this is a FIPS build; take a key from a key \
         provider or a key file instead"
    )]
    OutsideModule {
        /// The algorithm that the module lacks.
        algorithm: Algorithm,
    },
    /// A start-up self-test gave a wrong answer: the program must not use any key.
    #[error(
        "self-test of {algorithm} failed ({what}): this build or machine computes wrongly, no key may be used"
    )]
    SelfTest {
        /// The algorithm with the wrong answer.
        algorithm: Algorithm,
        /// The wrong answer.
        what: &'static str,
    },
    /// Secret memory could not be allocated.
    #[error(transparent)]
    Secret(#[from] SecretError),
}

/// Refuses a key whose length is not the algorithm's.
pub(crate) fn check_key(
    algorithm: Algorithm,
    key: &SecretBytes,
    expected_bytes: usize,
) -> Result<(), CryptoError> {
    if key.len() == expected_bytes {
        Ok(())
    } else {
        Err(CryptoError::KeyLength { algorithm, expected_bytes, actual_bytes: key.len() })
    }
}

/// Refuses a value outside `least..=most`, inclusive.
pub(crate) fn check_limit(
    algorithm: Algorithm,
    what: &'static str,
    actual: usize,
    allowed: std::ops::RangeInclusive<usize>,
) -> Result<(), CryptoError> {
    if allowed.contains(&actual) {
        Ok(())
    } else {
        Err(CryptoError::Limit { algorithm, what, actual, least: *allowed.start(), most: *allowed.end() })
    }
}
