//! Applies the schedule's events to the volumes one by one, and waits after each until the load
//! continues.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::Serialize;

use super::error::SoakError;
use super::guest::{Blow, GuestHandle};
use super::kind::Event;
use super::schedule::Step;
use super::small_disk::SmallDisk;
use super::tools::{LOOK_PERIOD, signal_worker};
use super::volume::Volume;

/// Requests answered after each event before the next one.
const OPERATIONS_AFTER: u64 = 40;

/// The events so far, by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Happened {
    /// The number of each event.
    pub events: BTreeMap<&'static str, u64>,
    /// The longest time without an answer, over each event; `none` is between them.
    pub longest_wait_ms: BTreeMap<&'static str, f64>,
    /// Growths skipped because a volume had its maximum size.
    pub grown_up: u64,
}

/// The conductor of a soak.
pub struct Conductor<'soak> {
    /// The volumes and their guests.
    pub subjects: Vec<(Volume, GuestHandle)>,
    /// The file system of the small volume.
    pub small: Option<SmallDisk>,
    /// Set to stop.
    pub stop: &'soak AtomicBool,
    /// Receives progress messages.
    pub progress: &'soak (dyn Fn(&str) + Sync),
    /// The events so far.
    pub happened: Happened,
    /// When the soak began.
    pub start: Instant,
}

impl Conductor<'_> {
    /// Performs steps until `end`.
    pub fn conduct(&mut self, schedule: impl Iterator<Item = Step>, end: Instant) -> Result<(), SoakError> {
        for (number, step) in (1_u64..).zip(schedule) {
            self.pause(end.min(Instant::now() + step.pause))?;
            if Instant::now() >= end {
                break;
            }
            let Some(index) = self.subjects.iter().position(|(volume, _)| volume.kind() == step.kind) else {
                continue;
            };
            let began = Instant::now();
            self.note_wait(index, "none");
            self.take(index, step)?;
            self.await_more(index)?;
            self.note_wait(index, step.event.name());
            *self.happened.events.entry(step.event.name()).or_default() += 1;
            let meanwhile =
                step.meanwhile.map(|event| format!(", and {} meanwhile", event.name())).unwrap_or_default();
            (self.progress)(&format!(
                "{:.1} s: step {number}: {} {}{meanwhile}, over after {:.1} s",
                self.start.elapsed().as_secs_f64(),
                step.event.name(),
                step.kind.name(),
                began.elapsed().as_secs_f64()
            ));
        }
        for index in 0..self.subjects.len() {
            self.note_wait(index, "none");
        }
        Ok(())
    }

    fn take(&mut self, index: usize, step: Step) -> Result<(), SoakError> {
        if step.event != Event::Full {
            return self.happen(index, step.event, step.lasts);
        }
        let Some(small) = &self.small else { return Ok(()) };
        let (volume, guest) = &mut self.subjects[index];
        // Space that its guest frees is filled too, until none is left.
        volume.wait("that its guest waits for room", |volume| {
            if !guest.goes_on() {
                return Err(SoakError::NoLoad(volume.kind().name().to_owned()));
            }
            small.fill()?;
            Ok(volume.state()? == "parked")
        })?;
        let done = step.meanwhile.map_or(Ok(()), |event| {
            *self.happened.events.entry(event.name()).or_default() += 1;
            self.happen(index, event, step.lasts)
        });
        if let Some(small) = &self.small {
            small.make_room()?;
        }
        done
    }

    fn happen(&mut self, index: usize, event: Event, lasts: Duration) -> Result<(), SoakError> {
        let stop = self.stop;
        let (volume, guest) = &mut self.subjects[index];
        match event {
            Event::Kill => kill(volume, guest).map(drop),
            Event::KillTwice => {
                let killed = kill(volume, guest)?;
                let successor = volume.worker(Some(killed))?;
                signal_worker(volume.supervisor_id(), successor, Signal::KILL)
                    .map(drop)
                    .map_err(|error| SoakError::file("kill a worker of", volume.socket(), error))
            }
            Event::Upgrade => volume.upgrade(),
            Event::Grow => {
                if volume.grow()? {
                    return guest.strike(Blow::Extend(volume.bytes()));
                }
                self.happened.grown_up += 1;
                Ok(())
            }
            Event::Rekey => volume.rekey(),
            Event::Freeze => {
                let worker = volume.worker(None)?;
                let signal = |volume: &Volume, signal| {
                    let sent = signal_worker(volume.supervisor_id(), worker, signal);
                    sent.map_err(|error| SoakError::file("stop a worker of", volume.socket(), error))
                };
                signal(volume, Signal::STOP)?;
                let until = Instant::now() + lasts;
                while Instant::now() < until && !stop.load(Ordering::Relaxed) {
                    thread::sleep(LOOK_PERIOD);
                }
                signal(volume, Signal::CONT).map(drop)
            }
            Event::Disconnect => guest.strike(Blow::Disconnect),
            Event::Requeue => guest.strike(Blow::Requeue),
            Event::Restart => {
                volume.close()?;
                volume.check()?;
                volume.expose()
            }
            Event::Full => Ok(()),
        }
    }

    /// Waits until the load continues.
    fn await_more(&mut self, index: usize) -> Result<(), SoakError> {
        let (volume, guest) = &mut self.subjects[index];
        let enough = guest.operations() + OPERATIONS_AFTER;
        volume.wait("that its load goes on", |volume| {
            if !guest.goes_on() {
                return Err(SoakError::NoLoad(volume.kind().name().to_owned()));
            }
            Ok(guest.operations() >= enough)
        })
    }

    fn note_wait(&mut self, index: usize, over: &'static str) {
        let wait_ms = self.subjects[index].1.take_longest_stall().as_secs_f64() * 1e3;
        let longest = self.happened.longest_wait_ms.entry(over).or_default();
        *longest = longest.max(wait_ms);
    }

    fn pause(&self, until: Instant) -> Result<(), SoakError> {
        while Instant::now() < until {
            if self.stop.load(Ordering::Relaxed) {
                return Err(SoakError::Signal);
            }
            if let Some((volume, _)) = self.subjects.iter().find(|(_, guest)| !guest.goes_on()) {
                return Err(SoakError::NoLoad(volume.kind().name().to_owned()));
            }
            thread::sleep(LOOK_PERIOD);
        }
        Ok(())
    }
}

/// Kills the worker with requests in flight; returns its id.
fn kill(volume: &mut Volume, guest: &GuestHandle) -> Result<u32, SoakError> {
    let worker = volume.worker(None)?;
    guest.strike(Blow::Kill { supervisor: volume.supervisor_id(), worker })?;
    Ok(worker)
}
