//! Where a key and its round keys lie in the memory of the process.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use strongroom_crypto::xts::{KEY_BYTES, UnitSize, Xts};
use strongroom_memory::secret::SecretBytes;

/// The first two round keys of AES-256 are the key itself: an expanded key on the heap would be a plain key in
/// every core dump. Looks for the key in all writable memory, which is what dumps hold.
#[test]
fn round_keys_live_in_undumpable_memory_only_and_go_with_the_session() {
    let key = SecretBytes::random(KEY_BYTES).unwrap();
    let (data_key, tweak_key) = key.expose().split_at(KEY_BYTES / 2);
    let xts = Xts::new(&key, UnitSize::Bytes4096).unwrap();
    // `key` itself and the copy in `xts`.
    let without_session = Occurrences { undumpable: 2, dumpable: 0 };

    let mut session = xts.session().unwrap();
    session.encrypt(0, &[0; 4096], &mut [0; 4096]).unwrap();
    for half in [data_key, tweak_key] {
        let found = occurrences_in_own_memory(half);
        assert_eq!(found.dumpable, 0, "a plain key in memory that dumps take");
        // Software AES stores round keys transformed, so only hardware AES shows that the scan sees them.
        #[cfg(target_arch = "x86_64")]
        if std::is_x86_feature_detected!("aes") {
            assert!(found.undumpable > without_session.undumpable, "{found:?}");
        }
    }
    drop(session);
    assert_eq!(occurrences_in_own_memory(data_key), without_session);
    assert_eq!(occurrences_in_own_memory(tweak_key), without_session);
}

#[derive(Debug, PartialEq, Eq)]
struct Occurrences {
    undumpable: usize,
    dumpable: usize,
}

/// How often `needle` lies in writable memory of this process that core dumps leave out, and that they take.
fn occurrences_in_own_memory(needle: &[u8]) -> Occurrences {
    const PAGE_BYTES: usize = 4096;
    let memory = File::open("/proc/self/mem").unwrap();
    // Read page by page through secret memory that is left out of the scan: a buffer would hold finds again.
    let mut page = SecretBytes::zeroed(PAGE_BYTES).unwrap();
    let page_address = page.expose().as_ptr().addr() as u64;

    let mut found = Occurrences { undumpable: 0, dumpable: 0 };
    for region in writable_regions() {
        for address in region.addresses.step_by(PAGE_BYTES).filter(|&address| address != page_address) {
            if memory.read_exact_at(page.expose_mut(), address).is_err() {
                continue;
            }
            let count = page.expose().windows(needle.len()).filter(|window| *window == needle).count();
            if region.in_dumps {
                found.dumpable += count;
            } else {
                found.undumpable += count;
            }
        }
    }
    found
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
