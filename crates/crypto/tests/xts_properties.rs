//! AES-256-XTS against an independent implementation (RustCrypto), and its behaviour at the edges.

use aes::Aes256;
use aes::cipher::KeyInit;
use proptest::prelude::*;
use strongroom_crypto::CryptoError;
use strongroom_crypto::xts::{KEY_BYTES, UnitSize, Xts, kernel};
use strongroom_memory::secret::SecretBytes;
use xts_mode::Xts128;

fn secret(bytes: &[u8]) -> SecretBytes {
    SecretBytes::from_slice_and_wipe(&mut bytes.to_vec()).unwrap()
}

/// The slow and obvious oracle: unit by unit, with the tweak of plain64.
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

/// Small numbers, numbers beyond 32 bits, and the last ones there are.
fn first_units() -> impl Strategy<Value = u64> {
    prop_oneof![0..1000_u64, any::<u64>().prop_map(|unit| unit >> 1), u64::MAX - 40..=u64::MAX - 16]
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

/// Guest memory changes while it is encrypted: each 16-byte block of the result must still be the encryption
/// of one of the values that the block had, or of a mixture of their bytes.
#[test]
fn a_source_that_changes_meanwhile_gives_ciphertext_of_what_it_held() {
    use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

    let key = SecretBytes::random(KEY_BYTES).unwrap();
    let xts = Xts::new(&key, UnitSize::Bytes4096).unwrap();
    let (mut encrypting, mut decrypting) = (xts.session().unwrap(), xts.session().unwrap());
    let shared: Vec<AtomicU8> = (0..8 * 4096).map(|_| AtomicU8::new(0x11)).collect();
    let mut cipher = vec![0; shared.len()];
    let mut plain = vec![0; shared.len()];
    let stop = AtomicBool::new(false);

    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0x22;
            while !stop.load(Ordering::Relaxed) {
                shared.iter().for_each(|byte| byte.store(value, Ordering::Relaxed));
                value ^= 0x33;
            }
        });
        for _ in 0..200 {
            // SAFETY: `shared` is readable for 8 units and only reached through atomics; `cipher` is ours.
            unsafe { encrypting.encrypt_raw(3, shared.as_ptr().cast(), cipher.as_mut_ptr(), 8) }.unwrap();
            decrypting.decrypt(3, &cipher, &mut plain).unwrap();
            assert!(plain.iter().all(|byte| [0x11, 0x22].contains(byte)));
        }
        stop.store(true, Ordering::Relaxed);
    });
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

#[test]
fn keys_that_are_short_or_weak_are_refused() {
    for length_bytes in [0, 32, 63, 65] {
        let error = Xts::new(&SecretBytes::random(length_bytes).unwrap(), UnitSize::Bytes4096).unwrap_err();
        assert!(matches!(error, CryptoError::KeyLength { expected_bytes: 64, .. }), "{error}");
    }
    let equal_halves = secret(&[SecretBytes::random(32).unwrap().expose(); 2].concat());
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
    assert!(matches!(error, CryptoError::PartialDataUnit { length_bytes: 512, unit_bytes: 4096 }), "{error}");
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
    let xts = Xts::new(&secret(&std::array::from_fn::<u8, 64, _>(|i| i as u8)), UnitSize::Bytes512).unwrap();
    let text = format!("{xts:?} {:?}", xts.session().unwrap());
    assert!(text.contains("SecretBytes(64 bytes, redacted)"), "{text}");
    assert!(!text.contains("1, 2, 3"), "{text}");
}

/// The first two round keys of AES-256 are the key itself: an expanded key on the heap would be a plain key in
/// every core dump. Looks for the key in all writable memory that dumps include.
#[test]
fn round_keys_live_in_undumpable_memory_only() {
    let key = SecretBytes::random(KEY_BYTES).unwrap();
    let xts = Xts::new(&key, UnitSize::Bytes4096).unwrap();
    let mut session = xts.session().unwrap();
    session.encrypt(0, &[0; 4096], &mut [0; 4096]).unwrap();

    let (undumpable, dumpable) = occurrences_in_own_memory(&key.expose()[..32]);
    // `key`, the copy in `xts`, and the encryption schedule; the decryption schedule holds it transformed.
    assert_eq!((undumpable, dumpable), (3, 0));
    let (undumpable, dumpable) = occurrences_in_own_memory(&key.expose()[32..]);
    // As above, and the tweak's key is expanded for encryption in both contexts.
    assert_eq!((undumpable, dumpable), (4, 0));
    drop(session);
    assert_eq!(occurrences_in_own_memory(&key.expose()[32..]), (2, 0));
}

/// How often `needle` lies in writable memory of this process that core dumps leave out, and that they take.
fn occurrences_in_own_memory(needle: &[u8]) -> (usize, usize) {
    use std::os::unix::fs::FileExt;

    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    let (mut undumpable, mut dumpable) = (0, 0);
    let mut range = 0..0;
    let mut writable = false;
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| writable) {
            // Read through a page that no scan sees twice: the buffer itself would hold the key again.
            let found = count_in(&memory, range.clone(), needle);
            if flags.split_whitespace().any(|flag| flag == "dd") {
                undumpable += found;
            } else {
                dumpable += found;
            }
        } else if let Some((addresses, rest)) = line.split_once(' ')
            && let Some((start, end)) = addresses.split_once('-')
            && let (Ok(start), Ok(end)) = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16))
        {
            range = start..end;
            writable = rest.starts_with("rw");
        }
    }
    return (undumpable, dumpable);

    /// Counts page by page through secret memory, so that what is found here is not found again.
    fn count_in(memory: &std::fs::File, range: std::ops::Range<u64>, needle: &[u8]) -> usize {
        const PAGE_BYTES: u64 = 4096;
        let mut page = SecretBytes::zeroed(PAGE_BYTES as usize).unwrap();
        let mut found = 0;
        for address in range.step_by(PAGE_BYTES as usize) {
            if memory.read_exact_at(page.expose_mut(), address).is_ok() {
                found += page.expose().windows(needle.len()).filter(|window| *window == needle).count();
            }
        }
        found
    }
}
