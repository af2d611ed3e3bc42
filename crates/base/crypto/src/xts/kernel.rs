//! The interface of XTS implementations for different processors.
//!
//! A kernel is more general than the data path needs: it accepts any unit length and any 128-bit
//! tweak of the standard, so that each kernel can be run against all published vectors.
//! [`XtsSession`] narrows that to plain64 and two unit sizes.
//!
//! [`XtsSession`]: super::XtsSession

use strongroom_memory::secret::SecretBytes;

use super::aws_lc::AwsLc;
#[cfg(all(target_arch = "x86_64", not(feature = "fips")))]
use super::vaes;
use crate::error::CryptoError;

/// One AES block, the least length of a data unit (IEEE 1619-2018, 5.1).
pub const MIN_UNIT_BYTES: usize = 16;

/// Greatest length of a data unit: 2^20 AES blocks (IEEE 1619-2018, 5.1; NIST SP 800-38E, 4).
pub const MAX_UNIT_BYTES: usize = 16 << 20;

/// All kernels of this build, the fastest first. The last one runs on every machine. With the
/// feature `fips` the validated module's is the only one.
static KERNELS: &[&dyn XtsKernel] = &[
    #[cfg(all(target_arch = "x86_64", not(feature = "fips")))]
    &vaes::VAES_512,
    #[cfg(all(target_arch = "x86_64", not(feature = "fips")))]
    &vaes::VAES_256,
    &AwsLc,
];

/// The kernels that this machine can run, the fastest first.
pub fn available() -> impl Iterator<Item = &'static dyn XtsKernel> {
    KERNELS.iter().copied().filter(|kernel| kernel.is_supported())
}

/// The kernel for this machine.
pub fn fastest() -> &'static dyn XtsKernel {
    available().next().unwrap_or(&AwsLc)
}

/// The library's kernel, which runs on every machine, and with which the others are compared.
pub(crate) fn fall_back() -> &'static dyn XtsKernel {
    &AwsLc
}

/// An implementation of AES-256-XTS. Stateless: keys are set up per thread, see
/// [`set_key`](Self::set_key).
pub trait XtsKernel: Send + Sync {
    /// A short name for logs and benchmarks.
    fn name(&self) -> &'static str;

    /// Whether this machine's processor supports the kernel.
    fn is_supported(&self) -> bool;

    /// Expands a 64-byte key with two different halves into round keys in secret memory. Panics on
    /// a machine that does not support the kernel.
    ///
    /// # Errors
    /// [`CryptoError::Secret`] or [`CryptoError::Library`]; for a key that
    /// [`Xts::new`](super::Xts::new) would have refused, its errors or the latter.
    fn set_key(&self, key: &SecretBytes) -> Result<Box<dyn KeyedXts>, CryptoError>;
}

/// A kernel with a key, owned by one thread at a time. Its round keys are wiped on drop.
pub trait KeyedXts: Send {
    /// Encrypts `units` from `source` to `destination`. With no units it does nothing.
    ///
    /// # Errors
    /// [`CryptoError::Library`]; the destination then holds no meaningful bytes.
    ///
    /// # Safety
    /// For [`DataUnits::length_bytes`] and the whole call, `source` must be readable and
    /// `destination` writable, and they must not overlap. Others may change either meanwhile if
    /// there is no Rust reference to it; a kernel must stay within its bounds whatever they
    /// contain, and use each source byte only as data, never for control. No alignment is required.
    unsafe fn encrypt(
        &mut self,
        units: DataUnits,
        source: *const u8,
        destination: *mut u8,
    ) -> Result<(), CryptoError>;

    /// Decrypts `units` from `source` to `destination`. With no units it does nothing.
    ///
    /// # Errors
    /// As [`encrypt`](Self::encrypt).
    ///
    /// # Safety
    /// As [`encrypt`](Self::encrypt).
    unsafe fn decrypt(
        &mut self,
        units: DataUnits,
        source: *const u8,
        destination: *mut u8,
    ) -> Result<(), CryptoError>;
}

/// A run of equally long data units with consecutive tweaks.
///
/// Invariant, on which kernels rely: the unit length is within the standard's bounds, the length of
/// all units fits an `isize`, and no tweak overflows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataUnits {
    first: u128,
    count: usize,
    unit_bytes: usize,
}

impl DataUnits {
    /// `count` units of `unit_bytes` each, the first with the tweak `first`.
    ///
    /// # Errors
    /// [`CryptoError::DataUnitRange`] if that breaks the invariant of the type.
    pub fn new(first: u128, count: usize, unit_bytes: usize) -> Result<Self, CryptoError> {
        let units = Self { first, count, unit_bytes };
        let length_fits = count.checked_mul(unit_bytes).is_some_and(|length| isize::try_from(length).is_ok());
        let tweaks_fit = first.checked_add(count.saturating_sub(1) as u128).is_some();
        if (MIN_UNIT_BYTES..=MAX_UNIT_BYTES).contains(&unit_bytes) && length_fits && tweaks_fit {
            Ok(units)
        } else {
            Err(units.out_of_range())
        }
    }

    /// The tweak of the first unit.
    pub fn first(&self) -> u128 {
        self.first
    }

    /// The count of units.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Length of one unit.
    pub fn unit_bytes(&self) -> usize {
        self.unit_bytes
    }

    /// Length of all units together.
    pub fn length_bytes(&self) -> usize {
        self.count * self.unit_bytes
    }

    /// The tweak of each unit with the unit's offset from the first, in order.
    pub fn tweaks(&self) -> impl Iterator<Item = (u128, usize)> + use<> {
        let Self { first, count, unit_bytes } = *self;
        (0..count).map(move |index| (first + index as u128, index * unit_bytes))
    }

    /// The tweak of the last unit, if there is any.
    pub fn last(&self) -> Option<u128> {
        self.count.checked_sub(1).map(|further| self.first + further as u128)
    }

    /// Whether the two buffers have no byte in common.
    pub(super) fn are_apart(&self, source: *const u8, destination: *mut u8) -> bool {
        source.addr().abs_diff(destination.addr()) >= self.length_bytes()
    }

    pub(super) fn out_of_range(&self) -> CryptoError {
        CryptoError::DataUnitRange { first: self.first, count: self.count, unit_bytes: self.unit_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_keep_to_the_bounds_of_the_standard() {
        DataUnits::new(0, 0, MIN_UNIT_BYTES).unwrap();
        DataUnits::new(u128::MAX, 1, MAX_UNIT_BYTES).unwrap();
        for (first, count, unit_bytes) in [
            (0, 1, MIN_UNIT_BYTES - 1),
            (0, 1, MAX_UNIT_BYTES + 1),
            (0, 1, 0),
            (u128::MAX, 2, 512),
            (0, usize::MAX / 512 + 1, 512),
            (0, usize::MAX / 512, 512),
        ] {
            let error = DataUnits::new(first, count, unit_bytes).unwrap_err();
            assert!(matches!(error, CryptoError::DataUnitRange { .. }), "{error}");
        }
    }

    #[test]
    fn tweaks_count_up_from_the_first() {
        let units = DataUnits::new(7, 3, 512).unwrap();
        assert_eq!(units.tweaks().collect::<Vec<_>>(), [(7, 0), (8, 512), (9, 1024)]);
        assert_eq!(units.last(), Some(9));
        assert_eq!(DataUnits::new(7, 0, 512).unwrap().last(), None);
    }

    #[test]
    fn overlap_is_seen_on_either_side_and_touching_is_none() {
        let units = DataUnits::new(0, 2, 512).unwrap();
        let mut memory = [0_u8; 3072];
        let base = memory.as_mut_ptr();
        for (source, destination, apart) in
            [(0, 1024, true), (1024, 0, true), (0, 0, false), (0, 1023, false), (1023, 0, false)]
        {
            assert_eq!(units.are_apart(base.wrapping_add(source), base.wrapping_add(destination)), apart);
        }
        assert!(DataUnits::new(0, 0, 512).unwrap().are_apart(base, base));
    }
}
