//! AES-256-XTS against an independent implementation (RustCrypto), and its behaviour at the edges.

use aes::Aes256;
use aes::cipher::KeyInit;
use proptest::prelude::*;
use strongroom_crypto::xts::{KEY_BYTES, UnitSize, Xts, kernel};
use strongroom_memory::secret::SecretBytes;
use xts_mode::Xts128;

fn secret(bytes: &[u8]) -> SecretBytes {
    SecretBytes::from_slice_and_wipe(&mut bytes.to_vec()).unwrap()
}

/// The slow and obvious oracle: unit by unit, with the tweak of plain64.
fn oracle_encrypt(key: &[u8], first_unit: u64, unit: UnitSize, data: &mut [u8]) {
    let (data_key, tweak_key) = key.split_at(KEY_BYTES / 2);
    let oracle = Xts128::new(
        Aes256::new_from_slice(data_key).unwrap(),
        Aes256::new_from_slice(tweak_key).unwrap(),
    );
    for (index, unit) in data.chunks_exact_mut(unit.bytes()).enumerate() {
        let mut tweak = [0; 16];
        tweak[..8].copy_from_slice(&(first_unit + index as u64).to_le_bytes());
        oracle.encrypt_sector(unit, tweak.into());
    }
}

fn unit_sizes() -> impl Strategy<Value = UnitSize> {
    prop_oneof![Just(UnitSize::Bytes512), Just(UnitSize::Bytes4096)]
}

/// Small numbers, numbers beyond 32 bits, and the last ones there are.
fn first_units() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..1000_u64,
        any::<u64>().prop_map(|unit| unit >> 1),
        u64::MAX - 40..=u64::MAX - 16
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn agrees_with_an_independent_implementation(
        key in prop::collection::vec(any::<u8>(), KEY_BYTES),
        unit in unit_sizes(),
        first_unit in first_units(),
        units in 0..=16_usize,
        seed in any::<u8>(),
        source_offset in 0..64_usize,
        destination_offset in 0..64_usize,
    ) {
        let length_bytes = units * unit.bytes();
        let plain: Vec<u8> = (0..length_bytes).map(|index| seed.wrapping_add((index * 31 >> 3) as u8)).collect();
        let mut expected = plain.clone();
        oracle_encrypt(&key, first_unit, unit, &mut expected);

        for kernel in kernel::available() {
            let xts = Xts::with_kernel(&secret(&key), unit, kernel).unwrap();
            let mut session = xts.session().unwrap();

            // Any alignment of either side, and not a byte written around the destination.
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
