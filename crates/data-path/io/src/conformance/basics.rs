//! Checks that need only one request at a time.

use strongroom_types::{BLOCK_BYTES, Extent};

use super::driver::{Driver, POOL_BYTES};
use super::payload::TestPayload;
use super::{Setup, Violation};
use crate::disk::{Allocation, Disk, Limits};
use crate::request::{Request, RequestKind};

/// Checks that the limits are consistent.
pub fn limits<P: TestPayload>(disk: &dyn Disk<P>) -> Result<(), Violation> {
    let limits = disk.limits();
    let checks = [
        (limits.block_bytes.is_power_of_two(), "the block is not a power of two"),
        (u64::from(limits.block_bytes) <= BLOCK_BYTES, "the block is larger than 4096 bytes"),
        (limits.preferred_bytes.is_power_of_two(), "the preferred unit is not a power of two"),
        (limits.preferred_bytes >= limits.block_bytes, "the preferred unit is smaller than the block"),
        (limits.size_bytes > 0, "the disk is empty"),
        (
            limits.size_bytes.is_multiple_of(u64::from(limits.block_bytes)),
            "the last bytes cannot be reached in whole blocks",
        ),
        (limits.transfer_bytes_max >= limits.block_bytes, "no transfer is allowed"),
    ];
    checks.into_iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, what)| Err(Violation::Limits(what)))
}

/// A new disk reads as zeroes, and can be flushed at any time.
pub fn empty<P: TestPayload>(disk: &dyn Disk<P>, setup: &Setup) -> Result<(), Violation> {
    let mut driver = Driver::open(disk, setup, 4, POOL_BYTES, 0)?;
    driver.succeed(Request::Flush)?;
    for extent in [first(disk.limits()), last(disk.limits())] {
        expect(extent, &driver.read(extent)?, &vec![0; extent.length() as usize])?;
    }
    (0..4).for_each(|_| {
        driver.submit(Request::Flush);
    });
    while driver.in_flight() > 0 {
        for done in driver.wait()? {
            if done.result.is_err() {
                let (kind, extent) = (RequestKind::Flush, Extent::default());
                return Err(Violation::Result { kind, extent, result: done.result, expected: "success" });
            }
        }
    }
    Ok(())
}

/// A channel may be opened and dropped at any time while nothing is in flight on it; written data
/// stays.
pub fn channels<P: TestPayload>(disk: &dyn Disk<P>, setup: &Setup) -> Result<(), Violation> {
    let extent = first(disk.limits());
    let content = bytes(extent.length() as usize);
    let mut stays = Driver::open(disk, setup, 1, POOL_BYTES, 1)?;
    drop(Driver::open(disk, setup, 64, POOL_BYTES, 2)?);
    let mut writes = Driver::open(disk, setup, 1, POOL_BYTES, 3)?;
    writes.write(extent.offset(), &content)?;
    writes.succeed(Request::Flush)?;
    drop(writes);
    expect(extent, &stays.read(extent)?, &content)?;
    drop(stays);
    expect(extent, &Driver::open(disk, setup, 1, POOL_BYTES, 4)?.read(extent)?, &content)
}

/// Zeroings and discards have no length limit.
pub fn whole_disk<P: TestPayload>(disk: &dyn Disk<P>, setup: &Setup) -> Result<(), Violation> {
    let limits = disk.limits();
    let mut driver = Driver::open(disk, setup, 1, POOL_BYTES, 0)?;
    let all = Extent::between(0, limits.size_bytes);
    let places = [first(limits), last(limits)];
    for may_unmap in [true, false] {
        for extent in places {
            driver.write(extent.offset(), &bytes(extent.length() as usize))?;
        }
        driver.succeed(Request::WriteZeroes { extent: all, may_unmap, durable: true })?;
        for extent in places {
            expect(extent, &driver.read(extent)?, &vec![0; extent.length() as usize])?;
        }
    }
    let extent = places[0];
    let content = bytes(extent.length() as usize);
    driver.write(extent.offset(), &content)?;
    driver.succeed(Request::Discard { extent: all })?;
    let found = driver.read(extent)?;
    for (block, before) in found.chunks(BLOCK_BYTES as usize).zip(content.chunks(BLOCK_BYTES as usize)) {
        if block != before && block.iter().any(|byte| *byte != 0) {
            return expect(extent, &found, &content);
        }
    }
    for extent in [Extent::between(0, 0), Extent::between(limits.size_bytes, limits.size_bytes)] {
        driver.succeed(Request::Discard { extent })?;
        driver.succeed(Request::WriteZeroes { extent, may_unmap: true, durable: false })?;
    }
    Ok(())
}

/// A report covers the requested extent, in order and cut to the disk; runs that it calls zero are
/// zero; it stops when told to.
pub fn allocation<P: TestPayload>(disk: &dyn Disk<P>, setup: &Setup) -> Result<(), Violation> {
    let limits = disk.limits();
    let mut driver = Driver::open(disk, setup, 1, POOL_BYTES, 0)?;
    let piece = (first(limits).length() / 4) & !(u64::from(limits.block_bytes) - 1);
    for (number, extent) in [first(limits), last(limits)].into_iter().enumerate() {
        // Data, a zeroed part, and a part that was never written.
        if piece > 0 && (number == 0 || extent.offset() > 0) {
            driver.write(extent.offset(), &bytes(3 * piece as usize))?;
            let zeroed = Extent::between(extent.offset() + piece, extent.offset() + 2 * piece);
            driver.succeed(Request::WriteZeroes { extent: zeroed, may_unmap: true, durable: false })?;
        }
    }
    driver.succeed(Request::Flush)?;
    let size = limits.size_bytes;
    let asked = [
        Extent::between(0, size),
        Extent::between(0, u64::MAX),
        Extent::between(size, size + BLOCK_BYTES),
        Extent::between(u64::from(limits.block_bytes), first(limits).length()),
        last(limits),
    ];
    for extent in asked {
        let expected = extent.intersection(Extent::between(0, size));
        let runs = runs(disk, extent)?;
        let mut at = expected.offset();
        for (run, allocation) in runs {
            if run.offset() != at || run.is_empty() {
                return Err(Violation::Allocation {
                    extent: run,
                    what: "not where the last run ended, or empty",
                });
            }
            at = run.end();
            if allocation != Allocation::Data {
                check_zero(&mut driver, limits, run)?;
            }
        }
        if !expected.is_empty() && at != expected.end() {
            return Err(Violation::Allocation { extent: expected, what: "not covered to its end" });
        }
    }
    let mut calls = 0;
    disk.allocation(Extent::between(0, size), &mut |_, _| {
        calls += 1;
        false
    })
    .map_err(Violation::Setup)?;
    if calls != 1 {
        return Err(Violation::Allocation {
            extent: Extent::between(0, size),
            what: "not ended when told to",
        });
    }
    Ok(())
}

fn runs<P: TestPayload>(disk: &dyn Disk<P>, extent: Extent) -> Result<Vec<(Extent, Allocation)>, Violation> {
    let mut runs = Vec::new();
    disk.allocation(extent, &mut |run, allocation| {
        runs.push((run, allocation));
        true
    })
    .map_err(Violation::Setup)?;
    Ok(runs)
}

/// Reads the start and the end of a run that is reported as zero, and the rest too unless it is
/// very long.
fn check_zero<P: TestPayload>(driver: &mut Driver<P>, limits: Limits, run: Extent) -> Result<(), Violation> {
    const AT_EACH_END_BYTES: u64 = 4 << 20;
    let unit = u64::from(limits.block_bytes);
    let run_in_units = run.widened_to(unit);
    let (start, end) = (run_in_units.offset(), run_in_units.end().min(limits.size_bytes));
    let step = u64::from(limits.transfer_bytes_max) & !(unit - 1);
    let mut offset = start;
    while offset < end {
        if offset >= start + AT_EACH_END_BYTES && end - offset > AT_EACH_END_BYTES {
            offset = (end - AT_EACH_END_BYTES) & !(unit - 1);
        }
        let extent = Extent::between(offset, end.min(offset + step));
        let content = driver.read(extent)?;
        let within = extent.intersection(run);
        let skip = (within.offset() - extent.offset()) as usize;
        if content[skip..skip + within.length() as usize].iter().any(|byte| *byte != 0) {
            return Err(Violation::Allocation { extent: run, what: "said to be zero and is not" });
        }
        offset = extent.end();
    }
    Ok(())
}

/// The first 256 KiB, or less where the disk or its transfers are smaller.
fn first(limits: Limits) -> Extent {
    let length = limits.size_bytes.min(u64::from(limits.transfer_bytes_max)).min(256 << 10);
    Extent::between(0, length)
}

/// The same number of bytes at the end.
fn last(limits: Limits) -> Extent {
    let start = (limits.size_bytes - first(limits).length()) & !(u64::from(limits.block_bytes) - 1);
    Extent::between(start, limits.size_bytes)
}

/// Some bytes, none of them zero.
pub fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 4096 * 31 + at * 7 % 251) as u8 | 1).collect()
}

/// Compares the content that was read.
pub fn expect(extent: Extent, found: &[u8], expected: &[u8]) -> Result<(), Violation> {
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        None => Ok(()),
        Some(at) => Err(Violation::Content {
            extent,
            offset: extent.offset() + at as u64,
            found: found[at],
            allowed: 1,
        }),
    }
}
