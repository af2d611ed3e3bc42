use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use strongroom_memory::GuestRegion;

use super::*;

const SIZE: u16 = 8;
const MEMORY_BYTES: u64 = 64 << 10;
const LAYOUT: Layout = Layout {
    size: SIZE,
    descriptors: GuestAddress(0),
    available: GuestAddress(0x400),
    used: GuestAddress(0x800),
};

/// Two regions side by side, 64 KiB in all.
fn memory() -> GuestMemory {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, MEMORY_BYTES).unwrap();
    let half = MEMORY_BYTES / 2;
    let region = |at| Arc::new(GuestRegion::map(&file, at, GuestAddress(at), half).unwrap());
    GuestMemory::from_shared(vec![region(0), region(half)], None).unwrap()
}

fn put(memory: &GuestMemory, table: u64, index: u64, address: u64, length: u32, flags: u16, next: u16) {
    let word =
        u128::from(address) | u128::from(length) << 64 | u128::from(flags) << 96 | u128::from(next) << 112;
    memory.write(GuestAddress(table + 16 * index), &word.to_le_bytes()).unwrap();
}

fn walk(memory: &GuestMemory, head: u16, indirect: bool) -> Result<Chain, RingError> {
    let mut chain = Chain::default();
    chain.walk(memory, &LAYOUT, head, indirect).map(|()| chain)
}

#[test]
fn a_chain_is_followed_through_its_indirect_table_and_across_regions() {
    let memory = memory();
    put(&memory, 0, 3, 0x2000, 16, flag::NEXT, 5);
    put(&memory, 0, 5, 0x1000, 48, flag::INDIRECT, 0);
    put(&memory, 0x1000, 0, 0x3000, 512, flag::NEXT, 2);
    put(&memory, 0x1000, 2, 0x7F00, 0x200, flag::NEXT | flag::WRITE, 1);
    put(&memory, 0x1000, 1, 0x4000, 1, flag::WRITE, 0);
    let chain = walk(&memory, 3, true).unwrap();
    assert_eq!(chain.readable, [(GuestAddress(0x2000), 16), (GuestAddress(0x3000), 512)]);
    let halves = [(GuestAddress(0x7F00), 0x100), (GuestAddress(0x8000), 0x100), (GuestAddress(0x4000), 1)];
    assert_eq!(chain.writable, halves);
    assert_eq!(walk(&memory, 3, false).unwrap_err(), RingError::Indirect(48));
}

#[test]
fn circles_and_absurd_tables_stop_the_walk() {
    let memory = memory();
    put(&memory, 0, 0, 0x2000, 16, flag::NEXT, 1);
    put(&memory, 0, 1, 0x2000, 16, flag::NEXT, 0);
    assert_eq!(walk(&memory, 0, true).unwrap_err(), RingError::Circle);
    put(&memory, 0, 1, 0x2000, 16, flag::NEXT, 8);
    assert_eq!(walk(&memory, 0, true).unwrap_err(), RingError::Descriptor(8));
    assert_eq!(walk(&memory, 8, true).unwrap_err(), RingError::Descriptor(8));
    for length in [0, 15, 17, u32::MAX, 16 * (INDIRECT_DESCRIPTORS_MAX + 1)] {
        put(&memory, 0, 1, 0x1000, length, flag::INDIRECT, 0);
        assert_eq!(walk(&memory, 0, true).unwrap_err(), RingError::Indirect(length));
    }
    put(&memory, 0, 1, 0x1000, 16, flag::INDIRECT | flag::NEXT, 0);
    assert_eq!(walk(&memory, 0, true).unwrap_err(), RingError::Indirect(16));
    put(&memory, 0, 1, 0x1000, 16, flag::INDIRECT, 0);
    put(&memory, 0x1000, 0, 0x1000, 16, flag::INDIRECT, 0);
    assert_eq!(walk(&memory, 0, true).unwrap_err(), RingError::Indirect(16));
    put(&memory, 0, 1, 0x2000, 1, flag::WRITE | flag::NEXT, 2);
    put(&memory, 0, 2, 0x2000, 1, 0, 0);
    assert_eq!(walk(&memory, 0, true).unwrap_err(), RingError::Order);
}

#[test]
fn addresses_outside_of_the_guest_stop_the_walk() {
    let memory = memory();
    for (address, length) in [(MEMORY_BYTES, 1), (MEMORY_BYTES - 1, 2), (u64::MAX, 1), (0, u32::MAX)] {
        put(&memory, 0, 0, address, length, 0, 0);
        assert!(matches!(walk(&memory, 0, true), Err(RingError::Memory(_))));
        put(&memory, 0, 0, address, 16, flag::INDIRECT, 0);
        assert!(address == 0 || walk(&memory, 0, true).is_err());
    }
}

#[test]
fn header_and_status_are_taken_wherever_their_descriptors_end() {
    let memory = memory();
    memory.write(GuestAddress(0x100), b"abcdefgh").unwrap();
    let mut runs = vec![(GuestAddress(0x100), 1), (GuestAddress(0x101), 2), (GuestAddress(0x103), 5)];
    assert_eq!(take_first::<4>(&memory, &mut runs), Ok(Some(*b"abcd")));
    assert_eq!(runs, [(GuestAddress(0x104), 4)]);
    assert_eq!(take_first::<5>(&memory, &mut runs), Ok(None));
    assert_eq!(take_last(&mut runs), Some(GuestAddress(0x107)));
    assert_eq!(take_first::<3>(&memory, &mut runs), Ok(Some(*b"efg")));
    assert_eq!((take_last(&mut runs), runs.len()), (None, 0));
}

#[test]
fn noise_in_the_tables_is_never_more_than_an_error() {
    let memory = memory();
    let mut random = StdRng::seed_from_u64(7);
    let mut chain = Chain::default();
    let mut whole = 0;
    for _ in 0..20_000 {
        for table in [0, 0x1000] {
            for index in 0..u64::from(SIZE) {
                let address = if random.random_bool(0.95) {
                    random.random_range(0..MEMORY_BYTES)
                } else {
                    random.random()
                };
                let length =
                    if random.random_bool(0.9) { 16 * random.random_range(0..9) } else { random.random() };
                let flags = random.random_range(0..8_u16) & if random.random_bool(0.8) { 3 } else { 7 };
                let address = if flags & flag::INDIRECT != 0 { 0x1000 } else { address };
                put(&memory, table, index, address, length, flags, random.random_range(0..SIZE + 1));
            }
        }
        let head = random.random_range(0..SIZE + 1);
        if chain.walk(&memory, &LAYOUT, head, random.random()).is_ok() {
            whole += 1;
            let runs = chain.readable.iter().chain(&chain.writable);
            assert!(runs.clone().count() <= 2 * (usize::from(SIZE) + INDIRECT_DESCRIPTORS_MAX as usize));
            assert!(runs.clone().all(|run| memory.segment(run.0, run.1).is_ok()));
        }
    }
    assert!(whole > 1000, "{whole}");
}
