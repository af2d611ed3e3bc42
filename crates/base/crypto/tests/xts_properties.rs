//! Compares AES-256-XTS with an independent implementation (RustCrypto), and checks edge cases.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use aes::Aes256;
use aes::cipher::KeyInit;
use proptest::prelude::*;
use strongroom_crypto::xts::kernel::XtsKernel;
use strongroom_crypto::xts::{KEY_BYTES, UnitSize, Xts, kernel};
use strongroom_memory::secret::SecretBytes;
use xts_mode::Xts128;

fn secret(bytes: &[u8]) -> SecretBytes {
    SecretBytes::from_slice_and_wipe(&mut bytes.to_vec()).unwrap()
}

/// More than two batches of any kernel.
const UNITS_MAX: usize = 40;

/// The slow, obvious oracle: unit by unit, with the tweak of plain64.
fn oracle_encrypt(key: &[u8], first_unit: u64, unit: UnitSize, data: &mut [u8]) {
    let (data_key, tweak_key) = key.split_at(KEY_BYTES / 2);
    let oracle =
        Xts128::new(Aes256::new_from_slice(data_key).unwrap(), Aes256::new_from_slice(tweak_key).unwrap());
    for (index, unit) in data.chunks_exact_mut(unit.bytes()).enumerate() {
        let mut tweak = [0; 16];
        tweak[..8].copy_from_slice(&(first_unit + index as u64).to_le_bytes());
        oracle.encrypt_sector(unit, tweak.into());
    }
}

fn unit_sizes() -> impl Strategy<Value = UnitSize> {
    prop_oneof![Just(UnitSize::Bytes512), Just(UnitSize::Bytes4096)]
}

/// Small numbers, numbers beyond 32 bits, and the greatest ones.
fn first_units() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..1000_u64,
        any::<u64>().prop_map(|unit| unit >> 1),
        u64::MAX - 80..=u64::MAX - UNITS_MAX as u64
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn agrees_with_an_independent_implementation(
        key in prop::collection::vec(any::<u8>(), KEY_BYTES),
        unit in unit_sizes(),
        first_unit in first_units(),
        units in 0..=UNITS_MAX,
        seed in any::<u8>(),
        source_offset in 0..64_usize,
        destination_offset in 0..64_usize,
    ) {
        let length_bytes = units * unit.bytes();
        let plain: Vec<u8> = (0..length_bytes).map(|index| seed.wrapping_add(((index * 31) >> 3) as u8)).collect();
        let mut expected = plain.clone();
        oracle_encrypt(&key, first_unit, unit, &mut expected);

        for kernel in kernel::available() {
            let xts = Xts::with_kernel(&secret(&key), unit, kernel).unwrap();
            let mut session = xts.session().unwrap();

            // Any alignment of either side; no byte around the destination is written.
            let mut source = vec![0xee; source_offset];
            source.extend_from_slice(&plain);
            let mut destination = vec![0xdd; destination_offset + length_bytes + 64];
            let within = destination_offset..destination_offset + length_bytes;
            session.encrypt(first_unit, &source[source_offset..], &mut destination[within.clone()]).unwrap();
            prop_assert_eq!(&destination[within.clone()], &expected[..]);
            prop_assert!(destination[..within.start].iter().all(|&byte| byte == 0xdd));
            prop_assert!(destination[within.end..].iter().all(|&byte| byte == 0xdd));
            prop_assert_eq!(&source[source_offset..], &plain[..]);

            let mut decrypted = vec![0xcc; source_offset + length_bytes];
            session.decrypt(first_unit, &destination[within], &mut decrypted[source_offset..]).unwrap();
            prop_assert_eq!(&decrypted[source_offset..], &plain[..]);
        }
    }
}

/// Guest memory changes while it is encrypted: each 16-byte block of the result must be the
/// encryption of one of the block's values, or of a mixture of their bytes.
#[test]
fn a_source_that_changes_meanwhile_gives_ciphertext_of_what_it_held() {
    for kernel in kernel::available() {
        for unit in [UnitSize::Bytes512, UnitSize::Bytes4096] {
            assert!(only_held_values(kernel, unit), "{} with {unit:?}", kernel.name());
        }
    }
}

fn only_held_values(kernel: &'static dyn XtsKernel, unit: UnitSize) -> bool {
    use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

    const LENGTH_BYTES: usize = 8 * 4096;
    let key = SecretBytes::random(KEY_BYTES).unwrap();
    let xts = Xts::with_kernel(&key, unit, kernel).unwrap();
    let (mut encrypting, mut decrypting) = (xts.session().unwrap(), xts.session().unwrap());
    let shared: Vec<AtomicU8> = (0..LENGTH_BYTES).map(|_| AtomicU8::new(0x11)).collect();
    let mut cipher = vec![0; shared.len()];
    let mut plain = vec![0; shared.len()];
    let units = LENGTH_BYTES / unit.bytes();
    let stop = AtomicBool::new(false);

    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0x22;
            while !stop.load(Ordering::Relaxed) {
                shared.iter().for_each(|byte| byte.store(value, Ordering::Relaxed));
                value ^= 0x33;
            }
        });
        let only_held_values = (0..100).all(|_| {
            // SAFETY: `shared` is readable for these units and accessed only through atomics;
            // `cipher` is ours.
            let encrypted =
                unsafe { encrypting.encrypt_raw(3, shared.as_ptr().cast(), cipher.as_mut_ptr(), units) };
            let decrypted = decrypting.decrypt(3, &cipher, &mut plain);
            encrypted.is_ok() && decrypted.is_ok() && plain.iter().all(|byte| [0x11, 0x22].contains(byte))
        });
        // Stop the writer before any assertion: a failed one would leave it running, and the scope
        // would wait for it.
        stop.store(true, Ordering::Relaxed);
        only_held_values
    })
}

#[test]
fn sessions_of_one_key_work_on_many_threads_and_alike() {
    let key = SecretBytes::random(KEY_BYTES).unwrap();
    let xts = Xts::new(&key, UnitSize::Bytes512).unwrap();
    let plain = vec![0x42; 64 * 512];
    let mut expected = plain.clone();
    oracle_encrypt(key.expose(), 99, UnitSize::Bytes512, &mut expected);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mut session = xts.session().unwrap();
            let (plain, expected) = (&plain, &expected);
            scope.spawn(move || {
                let mut output = vec![0; plain.len()];
                for _ in 0..100 {
                    output.fill(0);
                    session.encrypt(99, plain, &mut output).unwrap();
                    assert_eq!(&output, expected);
                }
            });
        }
    });
}
