//! Tests of the kernels beyond the needs of the data path: any unit length, 128-bit tweaks, the
//! bounds of memory, and comparisons of the kernels. Every kernel of this machine runs every test,
//! not just the fastest one.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::ptr;

use aes::Aes256;
use aes::cipher::KeyInit;
use proptest::prelude::*;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use strongroom_crypto::xts::KEY_BYTES;
use strongroom_crypto::xts::kernel::{self, DataUnits, KeyedXts, MIN_UNIT_BYTES};
use strongroom_memory::secret::SecretBytes;
use xts_mode::Xts128;

const PAGE_BYTES: usize = 4096;

fn encrypt(keyed: &mut dyn KeyedXts, units: DataUnits, source: &[u8]) -> Vec<u8> {
    assert_eq!(source.len(), units.length_bytes());
    let mut destination = vec![0; source.len()];
    // SAFETY: the buffers do not overlap, and are as long as the units.
    unsafe { keyed.encrypt(units, source.as_ptr(), destination.as_mut_ptr()) }.unwrap();
    destination
}

fn decrypt(keyed: &mut dyn KeyedXts, units: DataUnits, source: &[u8]) -> Vec<u8> {
    assert_eq!(source.len(), units.length_bytes());
    let mut destination = vec![0; source.len()];
    // SAFETY: the buffers do not overlap, and are as long as the units.
    unsafe { keyed.decrypt(units, source.as_ptr(), destination.as_mut_ptr()) }.unwrap();
    destination
}

fn text(length_bytes: usize, seed: u8) -> Vec<u8> {
    (0..length_bytes).map(|index| seed.wrapping_add(((index * 31) >> 3) as u8)).collect()
}

/// Encrypts with RustCrypto, unit by unit.
fn oracle_encrypt(key: &SecretBytes, units: DataUnits, data: &mut [u8]) {
    let (data_key, tweak_key) = key.expose().split_at(KEY_BYTES / 2);
    let oracle =
        Xts128::new(Aes256::new_from_slice(data_key).unwrap(), Aes256::new_from_slice(tweak_key).unwrap());
    for (tweak, offset) in units.tweaks() {
        oracle.encrypt_sector(&mut data[offset..offset + units.unit_bytes()], tweak.to_le_bytes().into());
    }
}

/// All lengths of a few blocks, whole strides of either width and lengths close to them, and a
/// page.
fn unit_lengths() -> impl Strategy<Value = usize> {
    let beside_strides = (1..=12_usize, 0..=34_usize).prop_map(|(strides, more)| strides * 128 + more - 17);
    prop_oneof![MIN_UNIT_BYTES..=100, beside_strides, Just(128), Just(512), Just(1024), Just(4096)]
}

/// Tweaks whose lower half carries within a few units, the greatest tweaks, and any others.
fn first_tweaks() -> impl Strategy<Value = u128> {
    let carrying = (any::<u64>(), 0..40_u128)
        .prop_map(|(upper, before)| ((u128::from(upper) << 64) | u128::from(u64::MAX)) - before);
    let last = (UNITS_MAX as u128 - 1..60).prop_map(|before| u128::MAX - before);
    prop_oneof![carrying, last, any::<u128>().prop_map(|tweak| tweak >> 1)]
}

const UNITS_MAX: usize = 40;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_unit_length_and_tweak_agree_with_an_independent_implementation(
        unit_bytes in unit_lengths(),
        first in first_tweaks(),
        count in 1..=UNITS_MAX,
        seed in any::<u8>(),
    ) {
        let first = first.min(u128::MAX - (count as u128 - 1));
        let units = DataUnits::new(first, count, unit_bytes).unwrap();
        let key = SecretBytes::random(KEY_BYTES).unwrap();
        let plain = text(units.length_bytes(), seed);
        let mut expected = plain.clone();
        oracle_encrypt(&key, units, &mut expected);
        for kernel in kernel::available() {
            let mut keyed = kernel.set_key(&key).unwrap();
            prop_assert!(encrypt(keyed.as_mut(), units, &plain) == expected, "{} encrypts", kernel.name());
            prop_assert!(decrypt(keyed.as_mut(), units, &expected) == plain, "{} decrypts", kernel.name());
        }
    }
}

#[test]
fn a_mebibyte_at_random_is_the_same_to_all() {
    const LENGTH_BYTES: usize = 1 << 20;
    let library = kernel::available().last().unwrap();
    assert_eq!(library.name(), "aws-lc");
    let mut plain = vec![0; LENGTH_BYTES];
    for round in 0..8_u64 {
        let key = SecretBytes::random(KEY_BYTES).unwrap();
        for page in plain.chunks_mut(PAGE_BYTES) {
            page.copy_from_slice(SecretBytes::random(PAGE_BYTES).unwrap().expose());
        }
        for unit_bytes in [512, 4096, 1 << 16] {
            let units =
                DataUnits::new(u128::from(round) << 33, LENGTH_BYTES / unit_bytes, unit_bytes).unwrap();
            let expected = encrypt(library.set_key(&key).unwrap().as_mut(), units, &plain);
            for kernel in kernel::available() {
                let mut keyed = kernel.set_key(&key).unwrap();
                let name = kernel.name();
                assert!(encrypt(keyed.as_mut(), units, &plain) == expected, "{name}, units of {unit_bytes}");
                assert!(decrypt(keyed.as_mut(), units, &expected) == plain, "{name}, units of {unit_bytes}");
            }
        }
    }
}

/// Pages between two guard pages.
struct Guarded {
    lower_guard: *mut u8,
    pages: usize,
}

impl Guarded {
    fn new(pages: usize) -> Self {
        let length_bytes = (pages + 2) * PAGE_BYTES;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let lower_guard =
            unsafe { mmap_anonymous(ptr::null_mut(), length_bytes, ProtFlags::empty(), MapFlags::PRIVATE) }
                .unwrap()
                .cast::<u8>();
        let guarded = Self { lower_guard, pages };
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the pages between the guards, to which there are no references yet.
        unsafe { mprotect(guarded.start().cast(), pages * PAGE_BYTES, access) }.unwrap();
        guarded
    }

    fn start(&self) -> *mut u8 {
        self.lower_guard.wrapping_add(PAGE_BYTES)
    }

    /// The addresses of the first and the last `length_bytes`.
    fn edges(&self, length_bytes: usize) -> [*mut u8; 2] {
        [self.start(), self.start().wrapping_add(self.pages * PAGE_BYTES - length_bytes)]
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping of `new`.
        unsafe { munmap(self.lower_guard.cast(), (self.pages + 2) * PAGE_BYTES) }.unwrap();
    }
}

/// A read or write before or after source or destination faults.
#[test]
fn no_kernel_leaves_the_bounds_of_source_and_destination() {
    let (source, destination) = (Guarded::new(24), Guarded::new(24));
    let key = SecretBytes::random(KEY_BYTES).unwrap();
    let lengths = [(1, 16), (3, 17), (2, 31), (1, 100), (5, 128), (3, 500), (1, 513), (1, 1000), (5, 4095)];
    let calls = (1..=24).map(|count| (count, 4096)).chain((1..=40).map(|count| (count, 512))).chain(lengths);
    for (count, unit_bytes) in calls {
        let units = DataUnits::new(7, count, unit_bytes).unwrap();
        let length_bytes = units.length_bytes();
        let plain = text(length_bytes, 9);
        let mut expected = plain.clone();
        oracle_encrypt(&key, units, &mut expected);
        for kernel in kernel::available() {
            let mut keyed = kernel.set_key(&key).unwrap();
            for from in source.edges(length_bytes) {
                for to in destination.edges(length_bytes) {
                    let case = format!("{}, {count} units of {unit_bytes}", kernel.name());
                    // SAFETY: both have space for the units, and do not overlap.
                    unsafe {
                        ptr::copy_nonoverlapping(plain.as_ptr(), from, length_bytes);
                        keyed.encrypt(units, from, to).unwrap();
                        assert!(std::slice::from_raw_parts(to, length_bytes) == expected, "{case}");
                        keyed.decrypt(units, to, from).unwrap();
                        assert!(std::slice::from_raw_parts(from, length_bytes) == plain, "{case}");
                    }
                }
            }
        }
    }
}

#[test]
fn no_units_touch_nothing() {
    for kernel in kernel::available() {
        let mut keyed = kernel.set_key(&SecretBytes::random(KEY_BYTES).unwrap()).unwrap();
        let units = DataUnits::new(u128::MAX, 0, 512).unwrap();
        // SAFETY: there are no units, so the pointers need not be valid.
        unsafe {
            keyed.encrypt(units, ptr::dangling(), ptr::dangling_mut()).unwrap();
            keyed.decrypt(units, ptr::dangling(), ptr::dangling_mut()).unwrap();
        }
    }
}

/// Sessions of several kernels for one key are used in turn: none leaves state behind that affects
/// another, or its own next call.
#[test]
fn kernels_by_turns_do_not_disturb_one_another() {
    let key = SecretBytes::random(KEY_BYTES).unwrap();
    let mut all: Vec<_> = kernel::available().map(|kernel| kernel.set_key(&key).unwrap()).collect();
    for count in [1, 20, 3, 17, 2, 16, 40, 4] {
        for unit_bytes in [512, 4096, 520] {
            let units = DataUnits::new(1 << 40, count, unit_bytes).unwrap();
            let plain = text(units.length_bytes(), count as u8);
            let mut expected = plain.clone();
            oracle_encrypt(&key, units, &mut expected);
            for keyed in &mut all {
                assert!(encrypt(keyed.as_mut(), units, &plain) == expected);
                assert!(decrypt(keyed.as_mut(), units, &expected) == plain);
            }
        }
    }
}
