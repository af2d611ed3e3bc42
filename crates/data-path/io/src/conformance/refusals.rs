//! Requests that the limits forbid are refused with the right error, and change nothing.

use strongroom_types::{BLOCK_BYTES, Extent};

use super::basics::{bytes, expect};
use super::driver::{Driver, POOL_BYTES};
use super::payload::TestPayload;
use super::{Setup, Violation};
use crate::disk::{Disk, Limits};
use crate::error::IoError;
use crate::request::Request;

/// Tries everything that must be refused.
pub fn refusals<P: TestPayload>(disk: &dyn Disk<P>, setup: &Setup) -> Result<(), Violation> {
    let limits = disk.limits();
    let mut driver = Driver::open(disk, setup, 1, POOL_BYTES, 0)?;
    let kept =
        Extent::between(0, limits.size_bytes.min(4 * BLOCK_BYTES).min(u64::from(limits.transfer_bytes_max)));
    let content = if limits.read_only {
        driver.read(kept)?
    } else {
        let content = bytes(kept.length() as usize);
        driver.write(0, &content)?;
        content
    };
    let mut refusals = Refusals { driver, limits };
    refusals.out_of_range()?;
    refusals.misaligned()?;
    refusals.wrong_length()?;
    refusals.too_long()?;
    refusals.read_only()?;
    expect(kept, &refusals.driver.read(kept)?, &content)
}

struct Refusals<P: TestPayload> {
    driver: Driver<P>,
    limits: Limits,
}

impl<P: TestPayload> Refusals<P> {
    fn out_of_range(&mut self) -> Result<(), Violation> {
        let unit = u64::from(self.limits.block_bytes);
        let size = self.limits.size_bytes;
        let far = (u64::MAX - 2 * unit) & !(unit - 1);
        for extent in [
            Extent::between(size, size + unit),
            Extent::between(size - unit, size + unit),
            Extent::between(far, far + unit),
        ] {
            self.refuse(extent, "OutOfRange", |error| matches!(error, IoError::OutOfRange { .. }))?;
        }
        Ok(())
    }

    fn misaligned(&mut self) -> Result<(), Violation> {
        let unit = u64::from(self.limits.block_bytes);
        if unit == 1 || self.limits.size_bytes < 3 * unit {
            return Ok(());
        }
        let half = unit / 2;
        for extent in [
            Extent::between(half, half + unit),
            Extent::between(0, half),
            Extent::between(unit, 2 * unit + 1),
            Extent::between(1, unit),
        ] {
            let is_expected = |error: &IoError| matches!(error, IoError::Misaligned { .. });
            let length = extent.length() as usize;
            self.refuse_read(extent, length, "Misaligned", is_expected)?;
            self.refuse_write(extent, length, "Misaligned", is_expected)?;
            let zeroes = Request::WriteZeroes { extent, may_unmap: true, durable: false };
            self.refuse_change(zeroes, "Misaligned", is_expected)?;
        }
        if !self.limits.read_only {
            // A discard of less than a block is no error, and does nothing.
            self.driver.succeed(Request::Discard { extent: Extent::between(half, half + unit) })?;
            self.driver.succeed(Request::Discard { extent: Extent::between(0, half) })?;
        }
        Ok(())
    }

    fn wrong_length(&mut self) -> Result<(), Violation> {
        let unit = self.limits.block_bytes as usize;
        let is_expected = |error: &IoError| matches!(error, IoError::Misaligned { .. });
        for (units, memory_units) in [(2, 1), (2, 3), (1, 2), (0, 1)] {
            let extent = Extent::between(0, (units * unit) as u64);
            if extent.length() <= self.limits.size_bytes {
                self.refuse_read(extent, memory_units * unit, "Misaligned", is_expected)?;
                self.refuse_write(extent, memory_units * unit, "Misaligned", is_expected)?;
            }
        }
        Ok(())
    }

    fn too_long(&mut self) -> Result<(), Violation> {
        let length = u64::from(self.limits.transfer_bytes_max) + u64::from(self.limits.block_bytes);
        let extent = Extent::between(0, length);
        if length > self.limits.size_bytes || length > strongroom_memory::MAX_BUFFER_BYTES as u64 {
            return Ok(());
        }
        let is_expected = |error: &IoError| matches!(error, IoError::TooLong { .. });
        self.refuse_read(extent, length as usize, "TooLong", is_expected)?;
        self.refuse_write(extent, length as usize, "TooLong", is_expected)
    }

    fn read_only(&mut self) -> Result<(), Violation> {
        if !self.limits.read_only {
            return Ok(());
        }
        let extent = Extent::between(0, u64::from(self.limits.block_bytes));
        let is_expected = |error: &IoError| *error == IoError::ReadOnly;
        let length = extent.length() as usize;
        let from = self.driver.memory.with::<P>(&bytes(length), &mut self.driver.random)?;
        self.refused(Request::Write { extent, from, durable: false }, "ReadOnly", is_expected)?;
        self.refused(Request::Discard { extent }, "ReadOnly", is_expected)?;
        let zeroes = Request::WriteZeroes { extent, may_unmap: false, durable: true };
        self.refused(zeroes, "ReadOnly", is_expected)
    }

    /// Checks all kinds of request for an extent.
    fn refuse(
        &mut self,
        extent: Extent,
        expected: &'static str,
        is_expected: fn(&IoError) -> bool,
    ) -> Result<(), Violation> {
        let length = extent.length() as usize;
        self.refuse_read(extent, length, expected, is_expected)?;
        self.refuse_write(extent, length, expected, is_expected)?;
        self.refuse_change(Request::Discard { extent }, expected, is_expected)?;
        let zeroes = Request::WriteZeroes { extent, may_unmap: true, durable: false };
        self.refuse_change(zeroes, expected, is_expected)
    }

    fn refuse_read(
        &mut self,
        extent: Extent,
        length: usize,
        expected: &'static str,
        is_expected: fn(&IoError) -> bool,
    ) -> Result<(), Violation> {
        let into = self.driver.memory.blank::<P>(length, &mut self.driver.random)?;
        self.refused(Request::Read { extent, into }, expected, is_expected)
    }

    fn refuse_write(
        &mut self,
        extent: Extent,
        length: usize,
        expected: &'static str,
        is_expected: fn(&IoError) -> bool,
    ) -> Result<(), Violation> {
        let from = self.driver.memory.with::<P>(&bytes(length), &mut self.driver.random)?;
        self.refuse_change(Request::Write { extent, from, durable: false }, expected, is_expected)
    }

    /// Checks a request that a read-only disk may also refuse for being read-only.
    fn refuse_change(
        &mut self,
        request: Request<P>,
        expected: &'static str,
        is_expected: fn(&IoError) -> bool,
    ) -> Result<(), Violation> {
        let read_only = self.limits.read_only;
        self.refused(request, expected, |error| {
            is_expected(error) || read_only && *error == IoError::ReadOnly
        })
    }

    fn refused(
        &mut self,
        request: Request<P>,
        expected: &'static str,
        is_expected: impl Fn(&IoError) -> bool,
    ) -> Result<(), Violation> {
        let (kind, extent) = (request.kind(), request.extent());
        match self.driver.run(request)?.result {
            Err(error) if is_expected(&error) => Ok(()),
            result => Err(Violation::Result { kind, extent, result, expected }),
        }
    }
}
