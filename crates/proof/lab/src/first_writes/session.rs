//! One disk, served and written.

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
use super::writer::{Timed, Writer, WriterError};
use crate::processes::Memory;
use crate::service::Service;
use crate::vhost_user::front_end::{FrontEnd, Settings};

/// The unit of random writes, in bytes.
pub const BLOCK_BYTES: u64 = 4096;
/// Reads before anything is timed: each buffer and page of both sides was touched then.
const WARM_UP_READS: usize = 2048;
/// A server that took less than [`QUIET_PROCESSOR`] of processor time in this has nothing left to
/// do.
const QUIET_PERIOD: Duration = Duration::from_millis(200);
const QUIET_PROCESSOR: Duration = Duration::from_millis(1);
/// How often in a row a server may be quiet, though it says that its log holds something.
const QUIET_PERIODS_MAX: u32 = 10;
/// For a server to become quiet.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);
/// How many blocks are read again after a phase.
const SAMPLES: usize = 64;

/// Where sessions take place: what all of them have in common.
#[derive(Clone)]
pub struct Place {
    /// On the file system that is studied.
    pub directory: PathBuf,
    /// The guest.
    pub settings: Settings,
    /// Set when a person wants an end.
    pub stop: Arc<AtomicBool>,
}

impl Place {
    /// The socket of whoever serves; its name tells nothing, for it may have 107 bytes in all.
    fn socket(&self) -> PathBuf {
        self.directory.join("s")
    }

    /// Has everything on the file system brought to its disk.
    pub fn sync(&self) -> Result<(), StudyError> {
        let failed = |error| StudyError::File { action: "sync", path: self.directory.clone(), error };
        let directory = File::open(&self.directory).map_err(failed)?;
        rustix::fs::syncfs(&directory).map_err(|errno| failed(errno.into()))
    }

    /// Waits a while, or until somebody wants an end.
    fn pause(&self, duration: Duration) -> Result<(), StudyError> {
        thread::sleep(duration);
        if self.stop.load(Ordering::Relaxed) { Err(StudyError::Signal) } else { Ok(()) }
    }
}

/// A served disk and its guest.
pub struct Session<'study> {
    place: &'study Place,
    product: &'study dyn Product,
    disk: PathBuf,
    service: Service,
    writer: Writer,
}

impl<'study> Session<'study> {
    /// Has `product` serve `disk`, and a guest connect.
    pub fn open(place: &'study Place, product: &'study dyn Product, disk: &Path) -> Result<Self, StudyError> {
        // One that was killed has left its socket there.
        let socket = place.socket();
        let _ = std::fs::remove_file(&socket);
        let command = product.serve(disk, &socket, place.settings.queues);
        let output = place.directory.join("server.log");
        let mut service = Service::start(product.name(), command, &socket, &output)?;
        let connect = |socket: &Path| match FrontEnd::connect(socket, place.settings) {
            Ok(front_end) => Ok(Some(front_end)),
            Err(error) if error.is_gone() => Ok(None),
            Err(error) => Err(WriterError::from(error)),
        };
        let front_end = service.connect(&place.stop, connect)?;
        let writer = Writer::new(front_end, Arc::clone(&place.stop));
        Ok(Self { place, product, disk: disk.to_owned(), service, writer })
    }

    /// Opens it, and reads one block: how long that took from the start of the server's program on.
    pub fn time_opening(mut self) -> Result<(Duration, Self), StudyError> {
        let block = Extent::between(0, BLOCK_BYTES);
        self.ask(|writer| writer.read(&mut std::iter::once(block)))?;
        Ok((self.service.started().elapsed(), self))
    }

    /// Bytes of the disk.
    pub fn disk_bytes(&self) -> u64 {
        self.writer.disk_bytes()
    }

    /// Reads a little, so that no page is touched for the first time later on.
    pub fn warm_up(&mut self, seed: u64) -> Result<(), StudyError> {
        let blocks = (self.disk_bytes() / BLOCK_BYTES) as u32;
        let mut reads = Shuffled::new(blocks, BLOCK_BYTES, seed).take(WARM_UP_READS);
        self.ask(|writer| writer.read(&mut reads)).map(drop)
    }

    /// From now on writes carry this number.
    pub fn set_pass(&mut self, pass: u64) {
        self.writer.set_pass(pass);
    }

    /// Writes the next `count` of `extents`: how long it took, and how much processor time of the
    /// server.
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

    /// Reads some of `written` again, from all over it, and looks whether they hold what was
    /// written.
    pub fn verify(&mut self, written: impl Iterator<Item = Extent>, count: u64) -> Result<(), StudyError> {
        let step = (count as usize / SAMPLES).max(1);
        let mut samples = written.take(count as usize).step_by(step);
        self.ask(|writer| writer.verify(&mut samples))
    }

    /// Flushes, and waits until the server has nothing left to do.
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

    /// Whether its log holds nothing, as far as anybody says.
    fn log_is_empty(&self) -> Result<bool, StudyError> {
        let log = self.product.log(&self.disk)?;
        Ok(log.and_then(|log| log.used_bytes).is_none_or(|used_bytes| used_bytes == 0))
    }

    /// Memory of the process that serves, and of all.
    pub fn memory(&self) -> Result<(Memory, Memory), StudyError> {
        Ok(self.service.memory()?)
    }

    /// Ends in order: how long the server took for it.
    pub fn close(self) -> Result<Duration, StudyError> {
        let Self { service, writer, .. } = self;
        // The guest goes first: a server may wait for that.
        drop(writer);
        Ok(service.end()?)
    }

    /// Kills the server as it stands.
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
