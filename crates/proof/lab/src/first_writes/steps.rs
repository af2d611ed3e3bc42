//! The steps of a round.

use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;
use strongroom_types::Extent;

use super::error::StudyError;
use super::figures::Figures;
use super::order::{Shuffled, sequential};
use super::result::{Phase, SubjectResult};
use super::session::{BLOCK_BYTES, Session};
use super::study::{LOG_TIMES, Study};

/// Requests of the sequential phases, in bytes.
const SEQUENTIAL_BYTES: [u64; 2] = [64 << 10, 512 << 10];

/// The name of the snapshot after which a disk is written.
const SNAPSHOT: &str = "before";

/// What is done with each product in each round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Step {
    /// Random first writes.
    First,
    /// Random overwriting.
    Over,
    /// Sequential first writes.
    SequentialFirst,
    /// Sequential overwriting.
    SequentialOver,
    /// Opening again, with a full log and with an empty one.
    Reopen,
    /// Random writes to a fully written disk, right after a snapshot of it.
    AfterSnapshot,
}

/// Those of a disk without snapshots, first and over next to each other.
pub const STEPS: [Step; 5] =
    [Step::First, Step::Over, Step::SequentialFirst, Step::SequentialOver, Step::Reopen];

impl Step {
    /// Whether it needs a fully written disk.
    pub fn overwrites(self) -> bool {
        matches!(self, Self::Over | Self::SequentialOver | Self::AfterSnapshot)
    }
}

impl Study<'_> {
    /// Performs a step with one of the products.
    pub(super) fn step(
        &self,
        index: usize,
        step: Step,
        log_bytes: u64,
        seed: u64,
        result: &mut SubjectResult,
    ) -> Result<(), StudyError> {
        match step {
            Step::Over => self.overwrite(index, log_bytes, seed, result),
            Step::SequentialOver => {
                let disk = self.written_disk(index);
                self.write_sequentially(index, &disk, [Phase::Over64K, Phase::Over512K], seed, result)
            }
            _ if self.subjects[index].only_overwriting => Ok(()),
            Step::First => self.write_first(index, log_bytes, seed, result),
            Step::SequentialFirst => {
                let disk = self.fresh_disk(index)?;
                let phases = [Phase::First64K, Phase::First512K];
                self.write_sequentially(index, &disk, phases, seed, result)?;
                self.subjects[index].product.delete(&disk)
            }
            Step::Reopen => self.reopen(index, log_bytes, seed, result),
            Step::AfterSnapshot => self.write_after_snapshot(index, log_bytes, seed, result),
        }
    }

    fn order(&self, seed: u64) -> Shuffled {
        Shuffled::new((self.config.volume_bytes / BLOCK_BYTES) as u32, BLOCK_BYTES, seed)
    }

    fn open(&self, index: usize, disk: &Path, seed: u64) -> Result<Session<'_>, StudyError> {
        let mut session = Session::open(&self.place, &*self.subjects[index].product, disk)?;
        session.warm_up(!seed)?;
        session.set_pass(seed);
        Ok(session)
    }

    /// Random first writes until the log is full, and further up to ten times that.
    fn write_first(
        &self,
        index: usize,
        log_bytes: u64,
        seed: u64,
        result: &mut SubjectResult,
    ) -> Result<(), StudyError> {
        let disk = self.fresh_disk(index)?;
        let mut session = self.open(index, &disk, seed)?;
        let mut order = self.order(seed);
        let count = log_bytes / BLOCK_BYTES;
        let (full, full_processor) = session.write(&mut order, count)?;
        let (beyond, beyond_processor) = session.write(&mut order, count * (LOG_TIMES - 1))?;
        result.add(Phase::FirstUntilFull, Figures::of(&full, full_processor));
        result.add(Phase::FirstBeyond, Figures::of(&beyond, beyond_processor));
        result.add(Phase::FirstAll, Figures::of(&full.and(&beyond), full_processor + beyond_processor));
        session.settle()?;
        result.memory_settled.push(session.memory()?.0);
        session.verify(self.order(seed), count * LOG_TIMES)?;
        result.close_ms.push(milliseconds(session.close()?));
        self.subjects[index].product.delete(&disk)
    }

    /// Random writes to a fully allocated disk, as many as the first writes.
    fn overwrite(
        &self,
        index: usize,
        log_bytes: u64,
        seed: u64,
        result: &mut SubjectResult,
    ) -> Result<(), StudyError> {
        let mut session = self.open(index, &self.written_disk(index), seed)?;
        let count = log_bytes / BLOCK_BYTES * LOG_TIMES;
        result.add(Phase::Over, session.measure(&mut self.order(seed), count)?);
        session.settle()?;
        session.verify(self.order(seed), count)?;
        session.close().map(drop)
    }

    /// Random writes right after a snapshot, as many as the first writes to a fresh disk. A product
    /// that makes it while the disk is served does so.
    fn write_after_snapshot(
        &self,
        index: usize,
        log_bytes: u64,
        seed: u64,
        result: &mut SubjectResult,
    ) -> Result<(), StudyError> {
        let product = &*self.subjects[index].product;
        let disk = self.written_disk(index);
        if !product.snapshots_while_served() {
            product.snapshot(&disk, SNAPSHOT)?;
        }
        let mut session = self.open(index, &disk, seed)?;
        if product.snapshots_while_served() {
            session.snapshot(SNAPSHOT)?;
        }
        let mut order = self.order(seed);
        let count = log_bytes / BLOCK_BYTES;
        let (full, full_processor) = session.write(&mut order, count)?;
        let (beyond, beyond_processor) = session.write(&mut order, count * (LOG_TIMES - 1))?;
        result.add(Phase::AfterSnapshotUntilFull, Figures::of(&full, full_processor));
        result.add(Phase::AfterSnapshotBeyond, Figures::of(&beyond, beyond_processor));
        let all = Figures::of(&full.and(&beyond), full_processor + beyond_processor);
        result.add(Phase::AfterSnapshotAll, all);
        session.settle()?;
        session.verify(self.order(seed), count * LOG_TIMES)?;
        session.close()?;
        product.delete_snapshot(&disk, SNAPSHOT)
    }

    /// Sequential writes to the first and second part of the disk.
    fn write_sequentially(
        &self,
        index: usize,
        disk: &Path,
        phases: [Phase; 2],
        seed: u64,
        result: &mut SubjectResult,
    ) -> Result<(), StudyError> {
        let settings = self.place.settings;
        let mut place = self.place.clone();
        place.settings.depth = self.config.sequential_depth.min(settings.depth.max(1));
        let mut session = Session::open(&place, &*self.subjects[index].product, disk)?;
        session.warm_up(!seed)?;
        session.set_pass(seed);
        let part_bytes = self.config.sequential_bytes;
        for (part, (phase, request_bytes)) in phases.into_iter().zip(SEQUENTIAL_BYTES).enumerate() {
            let start = part as u64 * part_bytes;
            let area = Extent::between(start, start + part_bytes);
            let order = || sequential(area, request_bytes);
            result.add(phase, session.measure(&mut order(), u64::MAX)?);
            session.settle()?;
            session.verify(order(), part_bytes / request_bytes)?;
        }
        session.close().map(drop)
    }

    /// Kills the server with a full log, and opens the disk again, and once more after an orderly
    /// end.
    fn reopen(
        &self,
        index: usize,
        log_bytes: u64,
        seed: u64,
        result: &mut SubjectResult,
    ) -> Result<(), StudyError> {
        let product = &*self.subjects[index].product;
        let disk = self.fresh_disk(index)?;
        let mut session = self.open(index, &disk, seed)?;
        result.memory_idle.push(session.memory()?.0);
        let count = log_bytes / BLOCK_BYTES;
        session.write(&mut self.order(seed), count)?;
        let (serving, all) = session.memory()?;
        session.kill()?;
        result.memory_full.push(serving);
        result.memory_full_all.push(all);
        let (full, mut session) = Session::open(&self.place, product, &disk)?.time_opening()?;
        result.reopen_full_ms.push(milliseconds(full));
        session.set_pass(seed);
        if product.outlives_kill() {
            session.verify(self.order(seed), count)?;
        }
        session.settle()?;
        session.close()?;
        let (empty, session) = Session::open(&self.place, product, &disk)?.time_opening()?;
        result.reopen_empty_ms.push(milliseconds(empty));
        session.close()?;
        product.delete(&disk)
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
