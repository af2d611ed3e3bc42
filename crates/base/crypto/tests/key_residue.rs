//! Checks where a key and its round keys are in the memory of the process.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use argon2::{Argon2, Block, Params, Version};
use strongroom_crypto::block_tag::{BlockTagAlgorithm, BlockTagKey};
use strongroom_crypto::kdf::{Argon2idParams, argon2id};
use strongroom_crypto::module;
use strongroom_crypto::xts::kernel::{self, DataUnits};
use strongroom_crypto::xts::{KEY_BYTES, UnitSize, Xts};
use strongroom_memory::secret::SecretBytes;
use zeroize::Zeroize;

/// Any two consecutive round keys of AES-256 reveal the key: on the heap or the stack they would be
/// a plaintext key in every core dump. This searches for each of them, because a kernel may store
/// them separately, in all writable memory, which is what dumps contain.
#[test]
fn round_keys_live_in_undumpable_memory_only_and_go_with_the_session() {
    for kernel in kernel::available() {
        let name = kernel.name();
        let key = SecretBytes::random(KEY_BYTES).unwrap();
        let round_keys = RoundKeys::of(&key);
        let xts = Xts::with_kernel(&key, UnitSize::Bytes4096, kernel).unwrap();
        let without_session = round_keys.occurrences_in_own_memory();
        let in_key_and_its_copy = 2 * 4;
        assert_eq!(
            without_session,
            Occurrences { undumpable: ROUND_KEYS + in_key_and_its_copy, dumpable: 0 },
            "{name}: the list itself, and each half of a key, which is two round keys"
        );

        let mut session = xts.session().unwrap();
        session.encrypt(0, &[0; 3 * 4096], &mut [0; 3 * 4096]).unwrap();
        session.decrypt(0, &[0; 4096], &mut [0; 4096]).unwrap();
        let mut other_lengths = kernel.set_key(&key).unwrap();
        let units = DataUnits::new(0, 2, 555).unwrap();
        // SAFETY: both arrays have the length of the units.
        unsafe { other_lengths.encrypt(units, [0; 1110].as_ptr(), [0; 1110].as_mut_ptr()) }.unwrap();
        let found = round_keys.occurrences_in_own_memory();
        assert_eq!(found.dumpable, 0, "{name}: a round key in memory that dumps take");
        // Software AES stores round keys transformed, so only hardware AES proves that the search
        // finds them.
        #[cfg(target_arch = "x86_64")]
        if std::is_x86_feature_detected!("aes") {
            assert!(found.undumpable >= without_session.undumpable + 2 * ROUND_KEYS, "{name}: {found:?}");
        }

        drop((session, other_lengths));
        assert_eq!(round_keys.occurrences_in_own_memory(), without_session, "{name}");
    }
}

/// The key of POLYVAL, with which tags can be forged, and the round keys of the cipher.
#[test]
fn keys_of_tags_live_in_undumpable_memory_only() {
    if module::IS_FIPS_BUILD {
        return;
    }
    let algorithm = BlockTagAlgorithm::PolyvalAes;
    let key = SecretBytes::random(algorithm.key_bytes()).unwrap();
    let (hash_key, cipher_key) = key.expose().split_at(16);
    let mut twice = SecretBytes::zeroed(KEY_BYTES).unwrap();
    twice.expose_mut().chunks_mut(32).for_each(|half| half.copy_from_slice(cipher_key));
    let round_keys = RoundKeys::of(&twice);
    let occurrences = || occurrences_in_own_memory(|window| window == hash_key || round_keys.has(window));
    let before = occurrences();
    assert_eq!(before.dumpable, 0);
    let tags = BlockTagKey::new(algorithm, &key).unwrap();
    for length in [0, 496, 4096] {
        tags.tag(&[1; 64], &[2; 4096][..length]).unwrap();
    }
    let found = occurrences();
    assert_eq!(found.dumpable, 0, "in memory that dumps take");
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("aes") {
        assert!(found.undumpable > before.undumpable + ROUND_KEYS / 2, "{found:?}");
    }
    drop(tags);
    assert_eq!(occurrences(), before);
}

/// The count of round keys of both halves of a key, 15 each.
const ROUND_KEYS: usize = 2 * 15;

/// All round keys of a key, in secret memory, computed there byte by byte (FIPS 197, 5.2).
struct RoundKeys(SecretBytes);

impl RoundKeys {
    const BYTES: usize = 16;

    fn of(key: &SecretBytes) -> Self {
        let mut secret = SecretBytes::zeroed(ROUND_KEYS * Self::BYTES).unwrap();
        let halves = key.expose().chunks(KEY_BYTES / 2);
        for (expanded, half) in secret.expose_mut().chunks_mut(15 * Self::BYTES).zip(halves) {
            expanded[..32].copy_from_slice(half);
            let mut constant = 1;
            for word in 8..expanded.len() / 4 {
                for at in 4 * word..4 * word + 4 {
                    let before = match word % 8 {
                        0 => s_box(expanded[4 * (word - 1) + (at + 1) % 4]),
                        4 => s_box(expanded[at - 4]),
                        _ => expanded[at - 4],
                    };
                    let constant = if word % 8 == 0 && at % 4 == 0 { constant } else { 0 };
                    expanded[at] = expanded[at - 32] ^ before ^ constant;
                }
                if word % 8 == 0 {
                    constant <<= 1;
                }
            }
        }
        Self(secret)
    }

    fn occurrences_in_own_memory(&self) -> Occurrences {
        occurrences_in_own_memory(|window| self.has(window))
    }

    fn has(&self, block: &[u8]) -> bool {
        block.iter().any(|&byte| byte != 0)
            && self.0.expose().chunks(Self::BYTES).any(|round_key| round_key == block)
    }
}

/// FIPS 197, 5.1.1: the inverse in GF(2^8), which is the power of 254, and an affine map.
fn s_box(byte: u8) -> u8 {
    fn product(mut one: u8, mut other: u8) -> u8 {
        let mut product = 0;
        while other != 0 {
            product ^= one * (other & 1);
            one = (one << 1) ^ (0x1b * (one >> 7));
            other >>= 1;
        }
        product
    }
    let inverse = (0..254).fold(1, |power, _| product(power, byte));
    (1..5).fold(inverse ^ 0x63, |sum, turns| sum ^ inverse.rotate_left(turns))
}

#[test]
fn the_round_keys_looked_for_are_those_of_the_standard() {
    // FIPS 197, A.3, and the same key for the other half.
    let half: [u8; 32] = [
        0x60, 0x3d, 0xeb, 0x10, 0x15, 0xca, 0x71, 0xbe, 0x2b, 0x73, 0xae, 0xf0, 0x85, 0x7d, 0x77, 0x81, 0x1f,
        0x35, 0x2c, 0x07, 0x3b, 0x61, 0x08, 0xd7, 0x2d, 0x98, 0x10, 0xa3, 0x09, 0x14, 0xdf, 0xf4,
    ];
    let key = SecretBytes::from_slice_and_wipe(&mut [half; 2].concat()).unwrap();
    let round_keys = RoundKeys::of(&key);
    for half in round_keys.0.expose().chunks(15 * 16) {
        assert_eq!(half[59 * 4..], [0x70, 0x6c, 0x63, 0x1e]);
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Occurrences {
    undumpable: usize,
    dumpable: usize,
}

/// How often 16 bytes of this kind occur in writable memory of this process, counted separately for
/// memory that core dumps exclude and that they include.
fn occurrences_in_own_memory(are_sought: impl Fn(&[u8]) -> bool) -> Occurrences {
    const PAGE_BYTES: usize = 4096;
    let memory = File::open("/proc/self/mem").unwrap();
    // Read page by page through secret memory that is excluded from the search: an ordinary buffer
    // would contain matches itself.
    let mut page = SecretBytes::zeroed(PAGE_BYTES).unwrap();
    let page_address = page.expose().as_ptr().addr() as u64;

    let mut found = Occurrences { undumpable: 0, dumpable: 0 };
    for region in writable_regions() {
        for address in region.addresses.step_by(PAGE_BYTES).filter(|&address| address != page_address) {
            if memory.read_exact_at(page.expose_mut(), address).is_err() {
                continue;
            }
            let count = page.expose().windows(RoundKeys::BYTES).filter(|window| are_sought(window)).count();
            if region.in_dumps {
                found.dumpable += count;
            } else {
                found.undumpable += count;
            }
        }
    }
    found
}

/// The crate `argon2` leaves copies of blocks on the stack.
#[inline(never)]
fn overwrite_stack() {
    [0_u8; 128 << 10].zeroize();
}

/// From Argon2's memory a passphrase could be guessed without Argon2's cost.
#[test]
fn nothing_is_left_of_the_memory_in_which_a_key_was_derived_from_a_passphrase() {
    if module::IS_FIPS_BUILD {
        return;
    }
    let cost = Argon2idParams { memory_kib: 64, passes: 1, lanes: 1 };
    let (passphrase, salt) = (SecretBytes::random(32).unwrap(), [7; 16]);
    let parameters = Params::new(cost.memory_kib, cost.passes, cost.lanes, Some(32)).unwrap();
    let mut blocks = vec![Block::new(); parameters.block_count()];
    Argon2::new(argon2::Algorithm::Argon2id, Version::V0x13, parameters)
        .hash_password_into_with_memory(passphrase.expose(), &salt, &mut [0; 32], &mut blocks)
        .unwrap();
    // The beginnings of some blocks, the last among them: what is freed is soon overwritten in
    // part.
    let some = || blocks.iter().rev().step_by(8);
    let mut beginnings = SecretBytes::zeroed(some().count() * RoundKeys::BYTES).unwrap();
    let words = some().flat_map(|block| &block.as_ref()[..2]);
    for (bytes, word) in beginnings.expose_mut().as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = word.to_ne_bytes();
    }
    let occurrences = || {
        occurrences_in_own_memory(|window| {
            beginnings.expose().chunks(RoundKeys::BYTES).any(|beginning| beginning == window)
        })
    };
    let all = some().count();
    let found = occurrences();
    assert!(found.undumpable == all && found.dumpable >= all, "the search finds our own: {found:?}");
    blocks.iter_mut().for_each(Zeroize::zeroize);
    overwrite_stack();
    assert_eq!(occurrences(), Occurrences { undumpable: all, dumpable: 0 }, "and then they are gone");
    argon2id(&passphrase, &salt, cost, 32).unwrap();
    assert_eq!(occurrences(), Occurrences { undumpable: all, dumpable: 0 });
}

struct Region {
    addresses: Range<u64>,
    in_dumps: bool,
}

fn writable_regions() -> Vec<Region> {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut regions = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let in_dumps = !flags.split_whitespace().any(|flag| flag == "dd");
            regions.extend(current.take().map(|addresses| Region { addresses, in_dumps }));
        } else if let Some((addresses, rest)) = line.split_once(' ')
            && let Some((start, end)) = addresses.split_once('-')
            && let (Ok(start), Ok(end)) = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16))
        {
            current = rest.starts_with("rw").then_some(start..end);
        }
    }
    regions
}
