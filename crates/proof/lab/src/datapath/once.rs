//! Timed one-off tasks: making a disk, opening it, querying its map.

use std::process::Command;
use std::time::{Duration, Instant};

use super::disks::{Use, failed, remove};
use super::guest_load::{Order, Pattern};
use super::peers::{Content, Server, create_luks, create_volume};
use super::subjects::{Running, ServedDisks, greeted, not_supported};
use super::workload::{Client, Task};
use crate::programs::run;
use crate::study::{Metric, Sample, Session, SubjectError};

/// A one-off task.
pub(super) struct OnceSession<'study> {
    served: &'study ServedDisks<'study>,
    task: Task,
}

impl Session for OnceSession<'_> {
    fn measure(&mut self, _: Duration, _: Duration) -> Result<Sample, SubjectError> {
        let elapsed = match self.task {
            Task::Create => self.create()?,
            Task::Open => self.open()?,
            Task::Map => self.map()?,
            Task::Load { .. } => return Err(not_supported(&self.served.name)),
        };
        let mut sample = Sample::default();
        sample.set(Metric::ElapsedMs, elapsed.as_secs_f64() * 1e3);
        Ok(sample)
    }
}

impl<'study> OnceSession<'study> {
    /// A session that performs `task` on `served`.
    pub fn new(served: &'study ServedDisks<'study>, task: Task) -> Self {
        Self { served, task }
    }

    fn create(&self) -> Result<Duration, SubjectError> {
        let disks = self.served.disks;
        let (path, bytes, secret) = (disks.scratch(), disks.sizes.disk, disks.secret());
        remove(&path)?;
        let start = Instant::now();
        match &self.served.server {
            Server::Strongroom(build, content) => {
                let key = (*content == Content::Encrypted).then_some(secret);
                create_volume(&build.program, &path, bytes, key)?;
            }
            _ => create_luks(&path, bytes, secret, None)?,
        }
        let elapsed = start.elapsed();
        remove(&path)?;
        Ok(elapsed)
    }

    fn open(&self) -> Result<Duration, SubjectError> {
        let served = self.served;
        let pattern = Pattern { order: Order::Random, reads_percent: 100, block_bytes: 4096, depth: 1 };
        let service = served.start(Use::Open, Client::VhostUser, 1, 0)?;
        let started = service.started();
        let mut running = Running(vec![service]);
        let mut load = served.connect(&mut running, pattern, served.guests(1))?;
        load.read_first().map_err(|error| failed(&running.0[0], error))?;
        let elapsed = started.elapsed();
        drop(load);
        Ok(elapsed)
    }

    fn map(&self) -> Result<Duration, SubjectError> {
        let served = self.served;
        let service = served.start(Use::Map, Client::Nbd, 1, 0)?;
        let mut running = Running(vec![service]);
        running.0[0].connect(&served.disks.stop, greeted)?;
        let uri = format!("nbd+unix:///?socket={}", served.disks.socket(0).display());
        let start = Instant::now();
        let map = run(Command::new("nbdinfo").args(["--map", &uri]))?;
        let elapsed = start.elapsed();
        let extents = map.iter().filter(|byte| **byte == b'\n').count() as u64;
        let expected = 2 * served.disks.sizes.map_runs;
        if extents + 1 < expected {
            return Err(format!("{} told of {extents} extents, not of {expected}", served.name).into());
        }
        Ok(elapsed)
    }
}
