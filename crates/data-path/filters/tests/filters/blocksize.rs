//! What partial writes become below, and what is left when a part fails.

use std::sync::Arc;

use strongroom_filters::blocksize::{BlocksizeDisk, BlocksizeError};
use strongroom_filters::error::{ErrorDisk, Fault, Trigger};
use strongroom_io::conformance::{Driver, Setup};
use strongroom_io::{Disk, IoError, Plain, RangeLocks, Request, RequestKind};
use strongroom_types::Extent;

use crate::support::{Seen, SpyDisk, blocksize, crypt, memory};

const SIZE_BYTES: u64 = 1 << 20;

fn driver(disk: &dyn Disk<Plain>) -> Driver<Plain> {
    Driver::open(disk, &Setup::default(), 4, 4 << 20, 0).unwrap()
}

fn seen(kind: RequestKind, start: u64, end: u64, durable: bool) -> Seen {
    Seen { kind, extent: Extent::between(start, end), durable }
}

fn write(driver: &mut Driver<Plain>, start: u64, end: u64, durable: bool) -> Result<(), IoError> {
    let content = vec![9; (end - start) as usize];
    let from = driver.memory.with::<Plain>(&content, &mut driver.random).unwrap();
    driver.run(Request::Write { extent: Extent::between(start, end), from, durable }).unwrap().result
}

#[test]
fn only_the_edges_are_read_and_one_write_goes_down() {
    use RequestKind::{Read, Write};
    let spy = Arc::new(SpyDisk::new(Arc::new(crypt(memory(SIZE_BYTES)))));
    let disk = blocksize(Arc::clone(&spy) as _, SIZE_BYTES, 1);
    let mut driver = driver(&disk);
    for (start, end, expected) in [
        (4096, 12_288, vec![seen(Write, 4096, 12_288, true)]),
        (10, 20, vec![seen(Read, 0, 4096, false), seen(Write, 0, 4096, true)]),
        (0, 20, vec![seen(Read, 0, 4096, false), seen(Write, 0, 4096, true)]),
        (20, 4096, vec![seen(Read, 0, 4096, false), seen(Write, 0, 4096, true)]),
        (20, 16_384, vec![seen(Read, 0, 4096, false), seen(Write, 0, 16_384, true)]),
        (0, 16_000, vec![seen(Read, 12_288, 16_384, false), seen(Write, 0, 16_384, true)]),
        (
            4095,
            4097,
            vec![seen(Read, 0, 4096, false), seen(Read, 4096, 8192, false), seen(Write, 0, 8192, true)],
        ),
    ] {
        write(&mut driver, start, end, true).unwrap();
        assert_eq!(spy.take(), expected, "{start}..{end}");
    }
}

#[test]
fn zeroings_keep_their_middle_and_discards_only_whole_blocks() {
    use RequestKind::{Discard, Read, Write, WriteZeroes};
    let spy = Arc::new(SpyDisk::new(Arc::new(crypt(memory(SIZE_BYTES)))));
    let disk = blocksize(Arc::clone(&spy) as _, SIZE_BYTES, 512);
    let mut driver = driver(&disk);
    let zero = |start, end| Request::WriteZeroes {
        extent: Extent::between(start, end),
        may_unmap: true,
        durable: true,
    };
    driver.succeed(zero(512, SIZE_BYTES - 512)).unwrap();
    let last = SIZE_BYTES - 4096;
    assert_eq!(
        spy.take(),
        [
            seen(Read, 0, 4096, false),
            seen(Read, last, SIZE_BYTES, false),
            seen(Write, 0, 4096, true),
            seen(Write, last, SIZE_BYTES, true),
            seen(WriteZeroes, 4096, last, true),
        ]
    );
    driver.succeed(zero(4096, 12_288)).unwrap();
    assert_eq!(spy.take(), [seen(WriteZeroes, 4096, 12_288, true)]);
    driver.succeed(Request::Discard { extent: Extent::between(512, 12_800) }).unwrap();
    driver.succeed(Request::Discard { extent: Extent::between(512, 8191 & !511) }).unwrap();
    assert_eq!(spy.take(), [seen(Discard, 4096, 12_288, false)]);
}

#[test]
fn a_failed_part_fails_the_request_and_releases_its_lock() {
    let bad = Fault::new(Trigger::Touches(Extent::between(12_288, 12_289)));
    let lower = Arc::new(crypt(memory(SIZE_BYTES)));
    let faulty = Arc::new(ErrorDisk::new(lower, &[bad], 0));
    let spy = Arc::new(SpyDisk::new(faulty));
    let disk = blocksize(Arc::clone(&spy) as _, SIZE_BYTES, 1);
    let mut driver = driver(&disk);
    // The tail cannot be read: nothing is written.
    assert_eq!(write(&mut driver, 100, 12_300, false), Err(IoError::Injected));
    assert!(spy.take().iter().all(|seen| seen.kind == RequestKind::Read));
    let zeroes =
        Request::WriteZeroes { extent: Extent::between(100, 20_000), may_unmap: true, durable: false };
    assert_eq!(driver.run(zeroes).unwrap().result, Err(IoError::Injected), "its middle cannot be zeroed");
    // Had a lock stayed held, these would wait for ever.
    write(&mut driver, 100, 12_288, false).unwrap();
    assert!(driver.read(Extent::between(50, 12_288)).unwrap()[50..] == [9; 12_188]);
    assert_eq!(write(&mut driver, 12_300, 12_400, false), Err(IoError::Injected));
}

#[test]
fn neighbours_in_a_block_never_lose_a_write() {
    const THREADS: u64 = 4;
    const ROUNDS: u8 = 200;
    let disk = blocksize(Arc::new(crypt(memory(8192))), 8192, 1);
    let place = |thread: u64| Extent::between(4000 + thread * 50, 4000 + thread * 50 + 50);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let disk = &disk;
            scope.spawn(move || {
                let mut driver = driver(disk);
                for round in 1..=ROUNDS {
                    driver.write(place(thread).offset(), &[round; 50]).unwrap();
                    assert!(driver.read(place(thread)).unwrap() == [round; 50], "round {round}");
                }
            });
        }
    });
    let all = driver(&disk).read(Extent::between(4000, 4000 + THREADS * 50)).unwrap();
    assert!(all.iter().all(|byte| *byte == ROUNDS));
}

#[test]
fn what_cannot_be_built_or_grown_is_refused() {
    let new = |size_bytes, unit_bytes| {
        BlocksizeDisk::new(Arc::new(crypt(memory(1 << 20))), size_bytes, unit_bytes, RangeLocks::new()).err()
    };
    assert_eq!(new(4096, 0), Some(BlocksizeError::Unit(0)));
    assert_eq!(new(4096, 3), Some(BlocksizeError::Unit(3)));
    assert_eq!(new(8192, 8192), Some(BlocksizeError::Unit(8192)));
    assert_eq!(new(4097, 512), Some(BlocksizeError::Size { size_bytes: 4097, unit_bytes: 512 }));
    let too_large = |size_bytes| Some(BlocksizeError::TooLarge { size_bytes, below_bytes: 1 << 20 });
    assert_eq!(new((1 << 20) + 1, 1), too_large((1 << 20) + 1));
    assert_eq!(new(u64::MAX, 1), too_large(u64::MAX));
    let disk = blocksize(Arc::new(crypt(memory(1 << 20))), 5000, 1);
    assert_eq!(disk.grow(4999), Err(BlocksizeError::Shrinks { from_bytes: 5000, to_bytes: 4999 }));
    assert_eq!(
        disk.grow(2 << 20),
        Err(BlocksizeError::TooLarge { size_bytes: 2 << 20, below_bytes: 1 << 20 })
    );
    assert_eq!(disk.limits().size_bytes, 5000);
}
