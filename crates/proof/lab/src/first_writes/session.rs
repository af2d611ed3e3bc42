//! A session: one served disk and its guest.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use strongroom_types::Extent;

use super::error::StudyError;
use super::figures::Figures;
use super::order::Shuffled;
use super::product::Product;
use super::writer::{Answers, Timed, Writer, WriterError};
use crate::processes::{Memory, ProcessId};
use crate::service::Service;
use crate::vhost_user::front_end::{FrontEnd, Settings};

/// The unit of random writes, in bytes.
pub const BLOCK_BYTES: u64 = 4096;
/// Reads before timing begins, so that both sides have touched all their buffers and pages.
const WARM_UP_READS: usize = 2048;
/// A server that used less than [`QUIET_PROCESSOR`] of processor time in this period is idle.
const QUIET_PERIOD: Duration = Duration::from_millis(200);
const QUIET_PROCESSOR: Duration = Duration::from_millis(1);
/// How many idle periods in a row are allowed while the server reports a non-empty log.
const QUIET_PERIODS_MAX: u32 = 10;
/// The time for a server to become idle.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);
/// The number of blocks read back after a phase.
const SAMPLES: usize = 64;

/// The environment of all sessions.
#[derive(Clone)]
pub struct Place {
    /// A directory on the file system under study.
    pub directory: PathBuf,
    /// The server's socket: a short path, because the limit is 107 bytes.
    pub socket: PathBuf,
    /// The guest.
    pub settings: Settings,
    /// Set to stop.
    pub stop: Arc<AtomicBool>,
}

impl Place {
    /// Syncs the file system.
    pub fn sync(&self) -> Result<(), StudyError> {
        let failed = |error| StudyError::File { action: "sync", path: self.directory.clone(), error };
        let directory = File::open(&self.directory).map_err(failed)?;
        rustix::fs::syncfs(&directory).map_err(|errno| failed(errno.into()))
    }

    /// Waits a while; fails if the study must stop.
    fn pause(&self, duration: Duration) -> Result<(), StudyError> {
        thread::sleep(duration);
        if self.stop.load(Ordering::Relaxed) { Err(StudyError::Signal) } else { Ok(()) }
    }
}

/// A served disk and its guest.
pub struct Session<'study> {
    place: Place,
    product: &'study dyn Product,
    disk: PathBuf,
    service: Service,
    writer: Writer,
}

impl<'study> Session<'study> {
    /// Starts `product` on `disk`, and connects a guest.
    pub fn open(place: &Place, product: &'study dyn Product, disk: &Path) -> Result<Self, StudyError> {
        // A killed server has left its socket there.
        let socket = &place.socket;
        let _ = std::fs::remove_file(socket);
        let command = product.serve(disk, socket, place.settings.queues);
        let output = place.directory.join("server.log");
        let mut service = Service::start(product.name(), command, socket, &output)?;
        let connect = |socket: &Path| match FrontEnd::connect(socket, place.settings) {
            Ok(front_end) => Ok(Some(front_end)),
            Err(error) if error.is_gone() => Ok(None),
            Err(error) => Err(WriterError::from(error)),
        };
        let front_end = service.connect(&place.stop, connect)?;
        let writer = Writer::new(front_end, Arc::clone(&place.stop));
        Ok(Self { place: place.clone(), product, disk: disk.to_owned(), service, writer })
    }

    /// Reads one block; returns the time since the start of the server's program.
    pub fn time_opening(mut self) -> Result<(Duration, Self), StudyError> {
        let block = Extent::between(0, BLOCK_BYTES);
        self.ask(|writer| writer.read(&mut std::iter::once(block)))?;
        Ok((self.service.started().elapsed(), self))
    }

    /// Bytes of the disk.
    pub fn disk_bytes(&self) -> u64 {
        self.writer.disk_bytes()
    }

    /// Reads a little, so that later requests touch no page for the first time.
    pub fn warm_up(&mut self, seed: u64) -> Result<(), StudyError> {
        let blocks = (self.disk_bytes() / BLOCK_BYTES) as u32;
        let mut reads = Shuffled::new(blocks, BLOCK_BYTES, seed).take(WARM_UP_READS);
        self.ask(|writer| writer.read(&mut reads)).map(drop)
    }

    /// Sets the number in the content of later writes.
    pub fn set_pass(&mut self, pass: u64) {
        self.writer.set_pass(pass);
    }

    /// Writes the next `count` of `extents`; returns the times and the server's processor time.
    pub fn write(
        &mut self,
        extents: &mut dyn Iterator<Item = Extent>,
        count: u64,
    ) -> Result<(Timed, Duration), StudyError> {
        let before = self.service.processor_time()?;
        let timed = self.ask(|writer| writer.write(extents, count))?;
        Ok((timed, self.service.processor_time()? - before))
    }

    /// The same, as figures.
    pub fn measure(
        &mut self,
        extents: &mut dyn Iterator<Item = Extent>,
        count: u64,
    ) -> Result<Figures, StudyError> {
        self.write(extents, count).map(|(timed, processor)| Figures::of(&timed, processor))
    }

    /// Writes `extents` to their end, and notes in `answers` when answers came.
    pub fn write_noting(
        &mut self,
        extents: &mut dyn Iterator<Item = Extent>,
        answers: &Answers,
    ) -> Result<Timed, StudyError> {
        self.ask(|writer| writer.write_noting(extents, answers))
    }

    /// Makes a snapshot while the disk is served, by a process that may be another one afterwards.
    pub fn snapshot(&mut self, name: &str) -> Result<(), StudyError> {
        self.product.snapshot(&self.disk, name)?;
        Ok(self.service.see_successors()?)
    }

    /// The server's processes at present, without those that others have replaced.
    pub fn processes(&mut self) -> Result<Vec<ProcessId>, StudyError> {
        self.service.see_successors()?;
        Ok(self.service.process_ids().collect())
    }

    /// Reads samples from all of `written`, and verifies their content.
    pub fn verify(&mut self, written: impl Iterator<Item = Extent>, count: u64) -> Result<(), StudyError> {
        let step = (count as usize / SAMPLES).max(1);
        let mut samples = written.take(count as usize).step_by(step);
        self.ask(|writer| writer.verify(&mut samples))
    }

    /// Flushes, and waits until the server is idle.
    pub fn settle(&mut self) -> Result<(), StudyError> {
        self.ask(Writer::flush)?;
        let start = Instant::now();
        let mut quiet_periods = 0;
        loop {
            let before = self.service.processor_time()?;
            self.place.pause(QUIET_PERIOD)?;
            let is_quiet = self.service.processor_time()? - before < QUIET_PROCESSOR;
            quiet_periods = if is_quiet { quiet_periods + 1 } else { 0 };
            if quiet_periods >= QUIET_PERIODS_MAX || (is_quiet && self.log_is_empty()?) {
                return self.place.sync();
            }
            if start.elapsed() > SETTLE_TIMEOUT {
                return Err(self.service.late("come to rest", SETTLE_TIMEOUT).into());
            }
        }
    }

    /// Whether its log is empty, as far as the product reports.
    fn log_is_empty(&self) -> Result<bool, StudyError> {
        let log = self.product.log(&self.disk)?;
        Ok(log.and_then(|log| log.used_bytes).is_none_or(|used_bytes| used_bytes == 0))
    }

    /// Memory of the serving process, and of all.
    pub fn memory(&self) -> Result<(Memory, Memory), StudyError> {
        Ok(self.service.memory()?)
    }

    /// Ends in order; returns the time that the server took.
    pub fn close(self) -> Result<Duration, StudyError> {
        let Self { service, writer, .. } = self;
        // The guest is dropped first, because a server may wait for that.
        drop(writer);
        Ok(service.end()?)
    }

    /// Kills the server at once.
    pub fn kill(self) -> Result<(), StudyError> {
        Ok(self.service.kill()?)
    }

    fn ask<T>(&mut self, what: impl FnOnce(&mut Writer) -> Result<T, WriterError>) -> Result<T, StudyError> {
        what(&mut self.writer).map_err(|error| match error {
            WriterError::Signal => StudyError::Signal,
            error => StudyError::Server {
                server: self.service.name().to_owned(),
                error,
                said: self.service.said(),
            },
        })
    }
}
