//! AES-256-XTS over whole data units (IEEE 1619-2018, NIST SP 800-38E), as dm-crypt's
//! `aes-xts-plain64` lays them out.
//!
//! The tweak of a unit is its 64-bit number, little-endian, zero-extended to 128 bits. Units of
//! 4096 bytes are numbered consecutively, which dm-crypt calls `iv_large_sectors`.
//!
//! [`Xts`] holds a key and is shared. Each thread that encrypts opens its own [`XtsSession`] from
//! it: the session owns the round keys, so that no call takes a lock or sets a key up. A session
//! uses a [`kernel`], of which there may be several for different processors.
//!
//! XTS provides confidentiality. It does not detect tampering or rollback, and it reveals when the
//! same content is written to the same unit again.

mod aws_lc;
pub mod kernel;
#[cfg(all(target_arch = "x86_64", not(feature = "fips")))]
mod vaes;

use std::fmt;

use strongroom_memory::secret::SecretBytes;
use subtle::ConstantTimeEq;

use crate::error::{Algorithm, CryptoError, check_key};
use kernel::{DataUnits, KeyedXts, XtsKernel};

/// Length of an AES-256-XTS key: the data key and the tweak key, 32 bytes each, in this order.
pub const KEY_BYTES: usize = 64;

/// Length of one data unit. Each unit has one tweak, and is encrypted completely or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UnitSize {
    /// 512 bytes, the sector of dm-crypt without large sectors.
    Bytes512,
    /// 4096 bytes, dm-crypt's `sector_size=4096,iv_large_sectors`.
    Bytes4096,
}

impl UnitSize {
    /// The length in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bytes512 => 512,
            Self::Bytes4096 => 4096,
        }
    }
}

/// An AES-256-XTS key with its unit size and its kernel. Share it, and give each thread its own
/// [`session`](Self::session).
pub struct Xts {
    key: SecretBytes,
    unit: UnitSize,
    kernel: &'static dyn XtsKernel,
}

impl Xts {
    /// Copies a 64-byte key, for use with the fastest kernel of this machine.
    ///
    /// # Errors
    /// [`CryptoError::KeyLength`], [`CryptoError::EqualXtsKeyHalves`], [`CryptoError::Secret`].
    pub fn new(key: &SecretBytes, unit: UnitSize) -> Result<Self, CryptoError> {
        Self::with_kernel(key, unit, kernel::fastest())
    }

    /// As [`new`](Self::new), with a kernel of the caller's choice: for tests and measurements.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_kernel(
        key: &SecretBytes,
        unit: UnitSize,
        kernel: &'static dyn XtsKernel,
    ) -> Result<Self, CryptoError> {
        check_xts_key(key)?;
        Ok(Self { key: key.duplicate()?, unit, kernel })
    }

    /// The unit size of the key.
    pub fn unit_size(&self) -> UnitSize {
        self.unit
    }

    /// Sets the key up for one thread.
    ///
    /// # Errors
    /// [`CryptoError::Secret`] or [`CryptoError::Library`], both only for lack of memory.
    pub fn session(&self) -> Result<XtsSession, CryptoError> {
        Ok(XtsSession { keyed: self.kernel.set_key(&self.key)?, unit: self.unit })
    }
}

/// Splits an AES-256-XTS key into the data key and the tweak key.
///
/// # Errors
/// [`CryptoError::KeyLength`], and [`CryptoError::EqualXtsKeyHalves`] (FIPS 140 IG C.I).
fn check_xts_key(key: &SecretBytes) -> Result<(&[u8; 32], &[u8; 32]), CryptoError> {
    check_key(Algorithm::Aes256Xts, key, KEY_BYTES)?;
    let (halves, _) = key.expose().as_chunks();
    let [data_key, tweak_key] = halves else { unreachable!("64 bytes are two halves") };
    if data_key.ct_eq(tweak_key).into() {
        return Err(CryptoError::EqualXtsKeyHalves);
    }
    Ok((data_key, tweak_key))
}

impl fmt::Debug for Xts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Xts")
            .field("key", &self.key)
            .field("unit", &self.unit)
            .field("kernel", &self.kernel.name())
            .finish()
    }
}

/// One thread's session with an [`Xts`] key. It owns the round keys in secret memory, and can be
/// moved but not shared.
///
/// Source and destination never overlap. After an error the destination holds no meaningful bytes.
pub struct XtsSession {
    keyed: Box<dyn KeyedXts>,
    unit: UnitSize,
}

impl XtsSession {
    /// The unit size of the key.
    pub fn unit_size(&self) -> UnitSize {
        self.unit
    }

    /// Encrypts whole units from `source` to `destination`; the first has the number `first_unit`.
    ///
    /// # Errors
    /// [`CryptoError::BufferMismatch`] or [`CryptoError::PartialDataUnit`] for lengths,
    /// [`CryptoError::DataUnitRange`] if a unit's number passes 2^64 - 1, [`CryptoError::Library`].
    pub fn encrypt(
        &mut self,
        first_unit: u64,
        source: &[u8],
        destination: &mut [u8],
    ) -> Result<(), CryptoError> {
        let units = self.whole_units(source, destination)?;
        // SAFETY: both slices are `units` whole units long and, one being `&mut`, do not overlap.
        unsafe { self.encrypt_raw(first_unit, source.as_ptr(), destination.as_mut_ptr(), units) }
    }

    /// Decrypts whole units from `source` to `destination`; the first has the number `first_unit`.
    ///
    /// # Errors
    /// As [`encrypt`](Self::encrypt). A wrong key is not an error, because XTS cannot detect it.
    pub fn decrypt(
        &mut self,
        first_unit: u64,
        source: &[u8],
        destination: &mut [u8],
    ) -> Result<(), CryptoError> {
        let units = self.whole_units(source, destination)?;
        // SAFETY: as in `encrypt`.
        unsafe { self.decrypt_raw(first_unit, source.as_ptr(), destination.as_mut_ptr(), units) }
    }

    /// Encrypts `units` units from memory that may change meanwhile, such as a guest's.
    ///
    /// Each destination block is then the ciphertext of a mixture of the source's contents during
    /// the call. A guest that changes memory during its own write cannot expect more.
    ///
    /// # Errors
    /// [`CryptoError::DataUnitRange`], [`CryptoError::Library`].
    ///
    /// # Safety
    /// For `units * self.unit_size().bytes()` bytes and the whole call, `source` must be readable
    /// and may be written by others; `destination` must be writable and accessed only by this call;
    /// the two must not overlap. No alignment is required. With zero units the pointers are not
    /// used.
    pub unsafe fn encrypt_raw(
        &mut self,
        first_unit: u64,
        source: *const u8,
        destination: *mut u8,
        units: usize,
    ) -> Result<(), CryptoError> {
        let units = self.data_units(first_unit, units)?;
        debug_assert!(units.are_apart(source, destination), "source and destination overlap");
        // SAFETY: the caller guarantees what the kernel requires.
        unsafe { self.keyed.encrypt(units, source, destination) }
    }

    /// Decrypts `units` units into memory that others may read or write meanwhile, such as a
    /// guest's.
    ///
    /// # Errors
    /// As [`encrypt_raw`](Self::encrypt_raw).
    ///
    /// # Safety
    /// For `units * self.unit_size().bytes()` bytes and the whole call, `source` must be readable
    /// and not written by anyone; `destination` must be writable without any Rust reference to it,
    /// and may be accessed only from outside this program; the two must not overlap. No alignment
    /// is required. With zero units the pointers are not used.
    pub unsafe fn decrypt_raw(
        &mut self,
        first_unit: u64,
        source: *const u8,
        destination: *mut u8,
        units: usize,
    ) -> Result<(), CryptoError> {
        let units = self.data_units(first_unit, units)?;
        debug_assert!(units.are_apart(source, destination), "source and destination overlap");
        // SAFETY: the caller guarantees what the kernel requires.
        unsafe { self.keyed.decrypt(units, source, destination) }
    }

    fn whole_units(&self, source: &[u8], destination: &[u8]) -> Result<usize, CryptoError> {
        let (length_bytes, unit_bytes) = (source.len(), self.unit.bytes());
        if length_bytes != destination.len() {
            return Err(CryptoError::BufferMismatch {
                source_bytes: length_bytes,
                destination_bytes: destination.len(),
            });
        }
        if !length_bytes.is_multiple_of(unit_bytes) {
            return Err(CryptoError::PartialDataUnit { length_bytes, unit_bytes });
        }
        Ok(length_bytes / unit_bytes)
    }

    /// Narrows the kernel's 128-bit tweaks to the 64-bit unit numbers of plain64.
    fn data_units(&self, first_unit: u64, count: usize) -> Result<DataUnits, CryptoError> {
        let units = DataUnits::new(first_unit.into(), count, self.unit.bytes())?;
        if units.last().is_some_and(|last| last > u64::MAX.into()) {
            return Err(units.out_of_range());
        }
        Ok(units)
    }
}

impl fmt::Debug for XtsSession {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("XtsSession").field("unit", &self.unit).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(mut bytes: Vec<u8>) -> SecretBytes {
        SecretBytes::from_slice_and_wipe(&mut bytes).unwrap()
    }

    #[test]
    fn keys_that_are_short_or_weak_are_refused() {
        for length_bytes in [0, 32, 63, 65] {
            let error =
                Xts::new(&SecretBytes::random(length_bytes).unwrap(), UnitSize::Bytes4096).unwrap_err();
            assert!(matches!(error, CryptoError::KeyLength { expected_bytes: 64, .. }), "{error}");
        }
        let equal_halves = secret([SecretBytes::random(32).unwrap().expose(); 2].concat());
        let error = Xts::new(&equal_halves, UnitSize::Bytes4096).unwrap_err();
        assert!(matches!(error, CryptoError::EqualXtsKeyHalves), "{error}");
        for kernel in kernel::available() {
            assert!(kernel.set_key(&equal_halves).is_err(), "{} took equal halves", kernel.name());
        }
    }

    #[test]
    fn lengths_and_numbers_out_of_range_are_refused() {
        let xts = Xts::new(&SecretBytes::random(KEY_BYTES).unwrap(), UnitSize::Bytes4096).unwrap();
        let mut session = xts.session().unwrap();
        let mut output = vec![0; 8192];

        let error = session.encrypt(0, &[0; 512], &mut output[..512]).unwrap_err();
        assert!(
            matches!(error, CryptoError::PartialDataUnit { length_bytes: 512, unit_bytes: 4096 }),
            "{error}"
        );
        let error = session.decrypt(0, &[0; 4096], &mut output).unwrap_err();
        let expected = (4096, 8192);
        assert!(
            matches!(error, CryptoError::BufferMismatch { source_bytes, destination_bytes }
                if (source_bytes, destination_bytes) == expected),
            "{error}"
        );
        let error = session.encrypt(u64::MAX, &[0; 8192], &mut output).unwrap_err();
        assert!(matches!(error, CryptoError::DataUnitRange { count: 2, .. }), "{error}");
        assert!(output.iter().all(|&byte| byte == 0));

        session.encrypt(u64::MAX, &[0; 4096], &mut output[..4096]).unwrap();
        session.encrypt(u64::MAX, &[], &mut []).unwrap();
    }

    #[test]
    fn debug_shows_no_key() {
        let xts = Xts::new(&secret((0..64).collect()), UnitSize::Bytes512).unwrap();
        let text = format!("{xts:?} {:?}", xts.session().unwrap());
        assert!(text.contains("SecretBytes(64 bytes, redacted)"), "{text}");
        assert!(!text.contains("1, 2, 3"), "{text}");
    }

    #[test]
    fn a_session_can_be_sent_and_a_key_shared() {
        fn assert_send<T: Send>() {}
        fn assert_sync<T: Sync>() {}
        assert_send::<XtsSession>();
        assert_send::<Xts>();
        assert_sync::<Xts>();
    }
}
