//! Derives keys from other secrets: HKDF-SHA256 (RFC 5869) from a strong key, Argon2id (RFC 9106)
//! from a passphrase.

use std::time::{Duration, Instant};

use argon2::{Argon2, AssociatedData, Block, ParamsBuilder, Version};
use aws_lc_rs::hkdf;
use strongroom_memory::secret::{SECRET_MAX_BYTES, SecretBytes};
use zeroize::Zeroize;

use crate::error::{Algorithm, CryptoError, check_limit};
use crate::module;

/// Derives `length_bytes` from `secret`, which must already be as hard to guess as a key, with
/// HKDF-SHA256.
///
/// `info` names the purpose of the result, so that two purposes never share a key; the caller must
/// make it unambiguous. `salt` may be empty if there is no random value.
///
/// # Errors
/// [`CryptoError::Limit`] for a length of zero or beyond the limit of a secret;
/// [`CryptoError::Secret`]; [`CryptoError::Library`].
pub fn hkdf_sha256(
    secret: &SecretBytes,
    salt: &[u8],
    info: &[u8],
    length_bytes: usize,
) -> Result<SecretBytes, CryptoError> {
    let algorithm = Algorithm::HkdfSha256;
    // RFC 5869 allows 255 digests, 8160 bytes; a secret is shorter than that.
    check_limit(algorithm, "derived length in bytes", length_bytes, 1..=SECRET_MAX_BYTES)?;
    let mut derived = SecretBytes::zeroed(length_bytes)?;
    hkdf::Salt::new(hkdf::HKDF_SHA256, salt)
        .extract(secret.expose())
        .expand(&[info], DerivedLength(length_bytes))
        .and_then(|okm| okm.fill(derived.expose_mut()))
        .map_err(|_| CryptoError::Library { algorithm, call: "HKDF", code: 0 })?;
    Ok(derived)
}

struct DerivedLength(usize);

impl hkdf::KeyType for DerivedLength {
    fn len(&self) -> usize {
        self.0
    }
}

/// The most memory that Argon2id may use. Parameters are read from descriptors, which an attacker
/// may have written: without a limit one file could exhaust a host's memory.
pub const ARGON2ID_MAX_MEMORY_KIB: u32 = 1 << 20;
/// The most passes over the memory; with [`ARGON2ID_MAX_MEMORY_KIB`] about a minute of one
/// processor.
pub const ARGON2ID_MAX_PASSES: u32 = 64;
/// The most lanes. They are computed sequentially here, so more lanes than RFC 9106's 4 gain
/// nothing.
pub const ARGON2ID_MAX_LANES: u32 = 16;
/// The shortest salt: RFC 9106, 3.1 recommends 16 bytes.
pub const ARGON2ID_MIN_SALT_BYTES: usize = 16;
/// The longest salt; a longer one adds no security.
pub const ARGON2ID_MAX_SALT_BYTES: usize = 64;
/// The least memory per lane (RFC 9106, 3.1), in KiB.
const MIN_MEMORY_PER_LANE_KIB: u32 = 8;
/// The least derived length (RFC 9106, 3.1).
const MIN_DERIVED_BYTES: usize = 4;

/// The least length of a new passphrase, in bytes. Argon2id makes a guess cost a second, which does
/// not protect a passphrase that is found in a few guesses. Older, shorter passphrases still open.
pub const NEW_PASSPHRASE_MIN_BYTES: usize = 12;
/// The most memory that [`Argon2idParams::calibrated`] chooses: a host opens its volumes while its
/// guests run.
const CALIBRATED_MAX_MEMORY_KIB: u32 = 256 << 10;
/// The calibrated time of one derivation: a person waits this long once for each volume that is
/// opened.
const CALIBRATED_TIME: Duration = Duration::from_secs(1);

/// The cost of one Argon2id derivation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Argon2idParams {
    /// Memory in KiB, from 8 per lane to [`ARGON2ID_MAX_MEMORY_KIB`].
    pub memory_kib: u32,
    /// Passes over the memory, 1 to [`ARGON2ID_MAX_PASSES`].
    pub passes: u32,
    /// Lanes, 1 to [`ARGON2ID_MAX_LANES`].
    pub lanes: u32,
}

impl Argon2idParams {
    /// The second recommended option of RFC 9106, section 4: 64 MiB, 3 passes, 4 lanes.
    pub const RECOMMENDED: Self = Self { memory_kib: 64 << 10, passes: 3, lanes: 4 };

    /// The cost for a new passphrase on this machine: about a second, at least
    /// [`Self::RECOMMENDED`], at most 256 MiB and [`ARGON2ID_MAX_PASSES`] passes. It measures one
    /// derivation at the least cost.
    ///
    /// # Errors
    /// As [`argon2id`].
    pub fn calibrated() -> Result<Self, CryptoError> {
        let passphrase = SecretBytes::zeroed(NEW_PASSPHRASE_MIN_BYTES)?;
        let start = Instant::now();
        argon2id(&passphrase, &[0; ARGON2ID_MIN_SALT_BYTES], Self::RECOMMENDED, MIN_DERIVED_BYTES)?;
        Ok(Self::for_machine(start.elapsed()))
    }

    /// The cost for a machine on which [`Self::RECOMMENDED`] takes `least`. Memory is raised before
    /// passes, because it is the most expensive for an attacker's hardware.
    fn for_machine(least: Duration) -> Self {
        let least_us = least.as_micros().max(1);
        let times = u32::try_from(CALIBRATED_TIME.as_micros() / least_us).unwrap_or(u32::MAX).max(1);
        let memory_times = times.min(CALIBRATED_MAX_MEMORY_KIB / Self::RECOMMENDED.memory_kib);
        let passes = Self::RECOMMENDED.passes.saturating_mul(times / memory_times);
        Self {
            memory_kib: Self::RECOMMENDED.memory_kib * memory_times,
            passes: passes.min(ARGON2ID_MAX_PASSES),
            lanes: Self::RECOMMENDED.lanes,
        }
    }

    /// Checks every limit.
    ///
    /// # Errors
    /// [`CryptoError::Limit`] names the first value that is outside.
    pub fn check(&self) -> Result<(), CryptoError> {
        let limit = |what, actual: u32, least: u32, most: u32| {
            check_limit(Algorithm::Argon2id, what, actual as usize, least as usize..=most as usize)
        };
        limit("number of lanes", self.lanes, 1, ARGON2ID_MAX_LANES)?;
        let least_memory_kib = MIN_MEMORY_PER_LANE_KIB * self.lanes;
        limit("memory in KiB", self.memory_kib, least_memory_kib, ARGON2ID_MAX_MEMORY_KIB)?;
        limit("number of passes", self.passes, 1, ARGON2ID_MAX_PASSES)
    }
}

/// Derives `length_bytes` from a passphrase with Argon2id, version 0x13. The working memory is
/// wiped.
///
/// # Errors
/// [`CryptoError::Limit`] before any memory is allocated, for `params`, a salt outside
/// [`ARGON2ID_MIN_SALT_BYTES`] to [`ARGON2ID_MAX_SALT_BYTES`], or a length under 4 or beyond the
/// limit of a secret; [`CryptoError::OutsideModule`] in a FIPS build, always;
/// [`CryptoError::OutOfMemory`]; [`CryptoError::Secret`].
pub fn argon2id(
    passphrase: &SecretBytes,
    salt: &[u8],
    params: Argon2idParams,
    length_bytes: usize,
) -> Result<SecretBytes, CryptoError> {
    let algorithm = Algorithm::Argon2id;
    params.check()?;
    let salt_lengths = ARGON2ID_MIN_SALT_BYTES..=ARGON2ID_MAX_SALT_BYTES;
    check_limit(algorithm, "salt length in bytes", salt.len(), salt_lengths)?;
    check_limit(algorithm, "derived length in bytes", length_bytes, MIN_DERIVED_BYTES..=SECRET_MAX_BYTES)?;
    module::refuse_in_fips(algorithm)?;

    argon2id_unlimited(passphrase, salt, params, length_bytes, &[], &[])
}

/// Argon2id without the limits above, and with the secret and associated data that only the
/// published vectors use.
pub(crate) fn argon2id_unlimited(
    passphrase: &SecretBytes,
    salt: &[u8],
    params: Argon2idParams,
    length_bytes: usize,
    pepper: &[u8],
    associated_data: &[u8],
) -> Result<SecretBytes, CryptoError> {
    let derived = derive(passphrase, salt, params, length_bytes, pepper, associated_data);
    wipe_stack();
    derived
}

/// Kept out of its caller's frame, which [`wipe_stack`] does not reach.
#[inline(never)]
fn derive(
    passphrase: &SecretBytes,
    salt: &[u8],
    params: Argon2idParams,
    length_bytes: usize,
    pepper: &[u8],
    associated_data: &[u8],
) -> Result<SecretBytes, CryptoError> {
    let refused = |_| CryptoError::Library { algorithm: Algorithm::Argon2id, call: "Argon2id", code: 0 };
    let params = ParamsBuilder::new()
        .m_cost(params.memory_kib)
        .t_cost(params.passes)
        .p_cost(params.lanes)
        .data(AssociatedData::new(associated_data).map_err(refused)?)
        .output_len(length_bytes)
        .build()
        .map_err(refused)?;
    let function = Argon2::new_with_secret(pepper, argon2::Algorithm::Argon2id, Version::V0x13, params)
        .map_err(refused)?;
    let mut derived = SecretBytes::zeroed(length_bytes)?;
    let mut memory = WorkingMemory::new(function.params().block_count())?;
    function
        .hash_password_into_with_memory(passphrase.expose(), salt, derived.expose_mut(), &mut memory.blocks)
        .map_err(refused)?;
    Ok(derived)
}

/// More than the crate `argon2` uses of the stack, where it works on copies of blocks.
const USED_STACK_BYTES: usize = 64 << 10;

/// Overwrites the stack below its caller's frame. The crate `argon2` leaves the block that it
/// computed last there; with one lane, the key is a hash of that block.
#[inline(never)]
fn wipe_stack() {
    [0_u8; USED_STACK_BYTES].zeroize();
}

/// Argon2's memory. The passphrase could be guessed from it faster than Argon2 allows, so it is
/// wiped on drop.
struct WorkingMemory {
    blocks: Vec<Block>,
}

impl WorkingMemory {
    fn new(count: usize) -> Result<Self, CryptoError> {
        let mut blocks = Vec::new();
        blocks.try_reserve_exact(count).map_err(|_| CryptoError::OutOfMemory {
            algorithm: Algorithm::Argon2id,
            bytes: count * Block::SIZE,
        })?;
        blocks.resize(count, Block::new());
        Ok(Self { blocks })
    }
}

impl Drop for WorkingMemory {
    fn drop(&mut self) {
        for block in &mut self.blocks {
            block.zeroize();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Argon2idParams = Argon2idParams { memory_kib: 64, passes: 1, lanes: 1 };

    fn refused_limit(outcome: Result<SecretBytes, CryptoError>) -> &'static str {
        match outcome {
            Err(CryptoError::Limit { what, .. }) => what,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_cost_follows_the_machine_within_its_bounds() {
        let cost = |ms| Argon2idParams::for_machine(Duration::from_millis(ms));
        let (slow, fast) = (cost(900), cost(100));
        assert_eq!(slow, Argon2idParams::RECOMMENDED);
        assert_eq!(cost(60_000), Argon2idParams::RECOMMENDED);
        assert_eq!((fast.memory_kib, fast.passes), (256 << 10, 6));
        assert_eq!((cost(400).memory_kib, cost(400).passes), (128 << 10, 3));
        for least_ms in 0..2000 {
            let cost = cost(least_ms);
            cost.check().unwrap();
            assert!(cost.memory_kib >= Argon2idParams::RECOMMENDED.memory_kib, "{least_ms}: {cost:?}");
            assert!(cost.passes >= Argon2idParams::RECOMMENDED.passes, "{least_ms}: {cost:?}");
        }
    }

    #[test]
    fn argon2id_checks_every_limit_before_it_takes_memory() {
        let passphrase = SecretBytes::random(12).unwrap();
        let derive = |salt: &[u8], params| argon2id(&passphrase, salt, params, 32);
        for memory_kib in [0, 7, ARGON2ID_MAX_MEMORY_KIB + 1, u32::MAX] {
            let outcome = derive(&[0; 16], Argon2idParams { memory_kib, ..SMALL });
            assert_eq!(refused_limit(outcome), "memory in KiB");
        }
        for lanes in [1, 2, ARGON2ID_MAX_LANES] {
            let least = Argon2idParams { memory_kib: 8 * lanes, lanes, ..SMALL };
            least.check().unwrap();
            let less = Argon2idParams { memory_kib: least.memory_kib - 1, ..least };
            assert_eq!(refused_limit(derive(&[0; 16], less)), "memory in KiB");
        }
        for passes in [0, ARGON2ID_MAX_PASSES + 1, u32::MAX] {
            let outcome = derive(&[0; 16], Argon2idParams { passes, ..SMALL });
            assert_eq!(refused_limit(outcome), "number of passes");
        }
        for lanes in [0, ARGON2ID_MAX_LANES + 1, u32::MAX] {
            let outcome = derive(&[0; 16], Argon2idParams { lanes, ..SMALL });
            assert_eq!(refused_limit(outcome), "number of lanes");
        }
        for salt_bytes in [0, 15, 65] {
            assert_eq!(refused_limit(derive(&vec![0; salt_bytes], SMALL)), "salt length in bytes");
        }
        for length_bytes in [0, 3, SECRET_MAX_BYTES + 1] {
            let outcome = argon2id(&passphrase, &[0; 16], SMALL, length_bytes);
            assert_eq!(refused_limit(outcome), "derived length in bytes");
        }
    }

    #[test]
    fn every_input_of_a_derivation_matters() {
        let (one, other) = (SecretBytes::random(32).unwrap(), SecretBytes::random(32).unwrap());
        let reference = hkdf_sha256(&one, b"salt", b"info", 32).unwrap();
        assert_ne!(hkdf_sha256(&other, b"salt", b"info", 32).unwrap(), reference);
        assert_ne!(hkdf_sha256(&one, b"tlas", b"info", 32).unwrap(), reference);
        assert_ne!(hkdf_sha256(&one, b"salt", b"ofni", 32).unwrap(), reference);
        assert_eq!(hkdf_sha256(&one, b"salt", b"info", 32).unwrap(), reference);
    }

    #[test]
    fn every_input_of_argon2id_matters_or_a_fips_build_refuses_it() {
        let (one, other) = (SecretBytes::random(32).unwrap(), SecretBytes::random(32).unwrap());
        if module::IS_FIPS_BUILD {
            let refused = argon2id(&one, &[1; 16], SMALL, 32);
            assert!(matches!(refused, Err(CryptoError::OutsideModule { algorithm: Algorithm::Argon2id })));
            return;
        }
        let reference = argon2id(&one, &[1; 16], SMALL, 32).unwrap();
        assert_ne!(argon2id(&other, &[1; 16], SMALL, 32).unwrap(), reference);
        assert_ne!(argon2id(&one, &[2; 16], SMALL, 32).unwrap(), reference);
        let costlier = Argon2idParams { passes: 2, ..SMALL };
        assert_ne!(argon2id(&one, &[1; 16], costlier, 32).unwrap(), reference);
    }

    #[test]
    fn hkdf_derives_a_secret_of_any_allowed_length() {
        let secret = SecretBytes::random(32).unwrap();
        for length_bytes in [1, 31, 64, SECRET_MAX_BYTES] {
            assert_eq!(hkdf_sha256(&secret, b"", b"", length_bytes).unwrap().len(), length_bytes);
        }
        for length_bytes in [0, SECRET_MAX_BYTES + 1] {
            let outcome = hkdf_sha256(&secret, b"", b"", length_bytes);
            assert_eq!(refused_limit(outcome), "derived length in bytes");
        }
    }
}
