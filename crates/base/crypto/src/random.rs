//! Generates new keys.

use strongroom_memory::secret::SecretBytes;

use crate::error::CryptoError;

/// A new key of `length_bytes` random bytes: from the kernel (`getrandom(2)`), or, in a FIPS build,
/// from the validated module's own generator (CTR_DRBG with AES-256, NIST SP 800-90A), as FIPS
/// 140-3 requires for keys (IG D.H, SP 800-133).
///
/// # Errors
/// [`CryptoError::Secret`] if there is no memory or no randomness, or if the length is beyond the
/// limit of a secret; [`CryptoError::Library`].
pub fn secret(length_bytes: usize) -> Result<SecretBytes, CryptoError> {
    #[cfg(not(feature = "fips"))]
    let secret = SecretBytes::random(length_bytes)?;
    #[cfg(feature = "fips")]
    let secret = {
        use crate::error::Algorithm;
        let mut secret = SecretBytes::zeroed(length_bytes)?;
        aws_lc_rs::rand::fill(secret.expose_mut()).map_err(|_| CryptoError::Library {
            algorithm: Algorithm::CtrDrbg,
            call: "RAND_bytes",
            code: 0,
        })?;
        secret
    };
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_keys_are_never_alike() {
        let (one, other) = (secret(32).unwrap(), secret(32).unwrap());
        assert_eq!((one.len(), other.len()), (32, 32));
        assert_ne!(one, other);
    }
}
