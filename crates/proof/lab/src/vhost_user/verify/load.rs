//! The load itself: keeps queues full, and verifies every answer.

mod confirm;
mod pace;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use strongroom_types::{Extent, SECTOR_BYTES};

use super::config::{LoadConfig, Reconnected, Until};
use super::error::LoadError;
use super::oracle::{Change, Finding, Oracle};
use super::plan::Plan;
use super::report::Report;
use super::stamp::UNTOUCHED;
use crate::vhost_user::front_end::{CONTENT_BYTES_MAX, FrontEnd, Wake};
use crate::vhost_user::protocol::{STATUS_OK, feature};
use crate::vhost_user::queue::{Answered, Operation, Shape};

/// A request in flight.
struct Request {
    operation: Operation,
    /// The number of a change.
    sequence: u64,
    /// The acknowledged changes at a read's start.
    acknowledged: Vec<u64>,
    /// Its position among its queue's requests.
    order: u64,
}

#[derive(Default)]
struct QueueLoad {
    requests: Vec<Option<Request>>,
    free: Vec<usize>,
    orders: BTreeSet<u64>,
    next_order: u64,
}

/// Verified load on a server.
pub struct Load {
    front_end: FrontEnd,
    config: LoadConfig,
    oracle: Oracle,
    plan: Plan,
    queues: Vec<QueueLoad>,
    in_flight: usize,
    report: Report,
    recent_stall: Duration,
    findings: Vec<Finding>,
    serial: Option<Vec<u8>>,
    started: Instant,
    /// The time of the last answer, or of the first request after a pause.
    last_sign: Instant,
    content: Vec<u8>,
    spare: Vec<Vec<u64>>,
}

impl Load {
    /// Prepares load through `front_end`: the area becomes zeroes.
    pub fn new(front_end: FrontEnd, config: LoadConfig) -> Result<Self, LoadError> {
        let sectors = front_end.disk().sectors.min(config.area_bytes / SECTOR_BYTES);
        if sectors == 0 {
            return Err(LoadError::NoArea);
        }
        if front_end.features() & feature::RO != 0 {
            return Err(LoadError::ReadOnly);
        }
        let settings = front_end.settings();
        let queue = || QueueLoad {
            requests: (0..settings.depth).map(|_| None).collect(),
            free: (0..usize::from(settings.depth)).rev().collect(),
            ..QueueLoad::default()
        };
        let now = Instant::now();
        let mut load = Self {
            oracle: Oracle::new(config.seed, sectors),
            plan: Plan::new(config.seed, sectors, front_end.disk(), front_end.features(), settings),
            queues: (0..settings.queues).map(|_| queue()).collect(),
            front_end,
            config,
            in_flight: 0,
            report: Report::default(),
            recent_stall: Duration::ZERO,
            findings: Vec::new(),
            serial: None,
            started: now,
            last_sign: now,
            content: Vec::new(),
            spare: Vec::new(),
        };
        load.zero_area()?;
        (load.report, load.recent_stall) = (Report::default(), Duration::ZERO);
        load.started = Instant::now();
        Ok(load)
    }

    /// The front end.
    pub fn front_end(&mut self) -> &mut FrontEnd {
        &mut self.front_end
    }

    /// The report so far.
    pub fn report(&mut self) -> Report {
        let kicks = self.front_end.queues().iter().map(|queue| queue.kicks()).sum();
        Report { kicks, elapsed: self.started.elapsed(), ..self.report }
    }

    /// The longest time without an answer since the last call, or since the run began.
    pub fn take_longest_stall(&mut self) -> Duration {
        std::mem::take(&mut self.recent_stall)
    }

    /// Requests that are in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Makes load, and leaves the queues full when it pauses.
    pub fn run(&mut self, until: Until) -> Result<(), LoadError> {
        let before = self.report.operations();
        loop {
            let answered = self.collect()?;
            let submitted = self.fill()?;
            match until {
                Until::Operations(count) if self.report.operations() - before >= count => return Ok(()),
                Until::Time(time) if Instant::now() >= time => return Ok(()),
                _ if answered || submitted => {}
                Until::Operations(_) => self.wait(None)?,
                Until::Time(time) => self.wait(Some(time))?,
            }
        }
    }

    /// Waits until everything in flight is answered.
    pub fn drain(&mut self) -> Result<(), LoadError> {
        while self.in_flight > 0 {
            if !self.collect()? {
                self.wait(None)?;
            }
        }
        Ok(())
    }

    /// Waits for the next answer.
    pub fn await_answer(&mut self) -> Result<(), LoadError> {
        while !self.collect()? {
            self.wait(None)?;
        }
        Ok(())
    }

    /// Waits until the server is gone. Answers stay where they are.
    pub fn await_end(&mut self) -> Result<(), LoadError> {
        match self.front_end.await_end(self.config.stall_timeout)? {
            true => Ok(()),
            false => Err(self.stalled()),
        }
    }

    /// Continues with a server's successor. Nothing is sent again: the successor finds the requests
    /// in flight in the inflight area and the rings.
    pub fn reconnect(&mut self) -> Result<Reconnected, LoadError> {
        let mut taken = 0;
        for index in 0..self.queues.len() {
            let used_index = self.front_end.queues()[index].ring().used_index()?;
            if let Some(area) = self.front_end.inflight() {
                taken += area.queue(index as u16).in_flight(used_index)?.len();
            }
        }
        self.front_end.reconnect()?;
        self.report.reconnects += 1;
        self.report.replayed += taken as u64;
        Ok(Reconnected { in_flight: self.in_flight, taken })
    }

    /// Ends the load: waits for all answers, and reads every sector once more.
    pub fn finish(mut self) -> Result<Report, LoadError> {
        self.read_all()?;
        Ok(self.report())
    }

    /// Waits until everything is answered, and reads every sector.
    pub fn read_all(&mut self) -> Result<(), LoadError> {
        self.drain()?;
        let end = self.oracle.len() * SECTOR_BYTES;
        for start in (0..end).step_by(CONTENT_BYTES_MAX as usize) {
            let extent = Extent::between(start, end.min(start + CONTENT_BYTES_MAX));
            self.run_one(Operation::Read(extent))?;
        }
        Ok(())
    }

    fn zero_area(&mut self) -> Result<(), LoadError> {
        let end = self.oracle.len() * SECTOR_BYTES;
        let zeroes = self.front_end.features() & feature::WRITE_ZEROES != 0;
        let longest = u64::from(self.front_end.disk().zero_sectors_max) * SECTOR_BYTES;
        let step = if zeroes { longest.clamp(SECTOR_BYTES, 1 << 30) } else { CONTENT_BYTES_MAX };
        for start in (0..end).step_by(step as usize) {
            let extent = Extent::between(start, end.min(start + step));
            if zeroes {
                self.run_one(Operation::WriteZeroes(vec![extent], true))?;
                continue;
            }
            let sequence = self.oracle.begin_change(&[extent], Change::Zero);
            self.content.clear();
            self.content.resize(extent.length() as usize, 0);
            self.send(0, Operation::Write(extent), sequence, Vec::new(), &Shape::default())?;
            self.publish()?;
            self.drain()?;
        }
        Ok(())
    }

    /// Performs one request by itself.
    fn run_one(&mut self, operation: Operation) -> Result<(), LoadError> {
        self.submit(0, operation, &Shape::default())?;
        self.publish()?;
        self.drain()
    }

    /// Fills every queue; returns whether any request was sent.
    fn fill(&mut self) -> Result<bool, LoadError> {
        let mut any = false;
        for index in 0..self.queues.len() {
            while !self.queues[index].free.is_empty()
                && let Some(operation) = self.plan.operation(&self.oracle)
            {
                let shape = self.plan.shape(&operation);
                if !self.submit(index, operation, &shape)? {
                    break;
                }
                any = true;
            }
        }
        self.publish()?;
        Ok(any)
    }

    fn publish(&mut self) -> Result<(), LoadError> {
        Ok(self.front_end.queues().iter_mut().try_for_each(|queue| queue.publish())?)
    }

    /// Sends a request; `false` if the queue has no room for it.
    fn submit(&mut self, index: usize, operation: Operation, shape: &Shape) -> Result<bool, LoadError> {
        if self.queues[index].free.is_empty() || !self.front_end.queues()[index].has_room(shape) {
            return Ok(false);
        }
        let mut acknowledged = Vec::new();
        let mut sequence = 0;
        match (&operation, change_of(&operation)) {
            (Operation::Write(extent), _) => {
                let extent = *extent;
                sequence = self.oracle.begin_change(&[extent], Change::Write);
                self.oracle.fill(extent, sequence, &mut self.content);
            }
            (_, Some(change)) => sequence = self.oracle.begin_change(operation.extents(), change),
            _ => {
                self.content.clear();
                self.content.resize(operation.content_bytes() as usize, UNTOUCHED);
                if let Operation::Read(extent) = operation {
                    acknowledged = self.spare.pop().unwrap_or_default();
                    self.oracle.begin_read(extent, &mut acknowledged);
                }
            }
        }
        self.send(index, operation, sequence, acknowledged, shape)?;
        Ok(true)
    }

    fn send(
        &mut self,
        index: usize,
        operation: Operation,
        sequence: u64,
        acknowledged: Vec<u64>,
        shape: &Shape,
    ) -> Result<(), LoadError> {
        let queue = &mut self.queues[index];
        let Some(slot) = queue.free.pop() else { return Ok(()) };
        self.front_end.queues()[index].submit(slot, &operation, shape, &self.content)?;
        let order = queue.next_order;
        queue.next_order += 1;
        queue.orders.insert(order);
        queue.requests[slot] = Some(Request { operation, sequence, acknowledged, order });
        if self.in_flight == 0 {
            self.last_sign = Instant::now();
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Takes and verifies answers; returns whether there were any.
    fn collect(&mut self) -> Result<bool, LoadError> {
        let any = self.take_answers()?;
        if any {
            let now = Instant::now();
            let stall = now - self.last_sign;
            self.recent_stall = self.recent_stall.max(stall);
            self.report.longest_stall = self.report.longest_stall.max(stall);
            self.last_sign = now;
        }
        if self.findings.is_empty() { Ok(any) } else { Err(self.confirm()) }
    }

    /// Takes answers; adds their errors to the findings.
    fn take_answers(&mut self) -> Result<bool, LoadError> {
        let mut any = false;
        for index in 0..self.queues.len() {
            while let Some(answered) = self.front_end.queues()[index].take_answered()? {
                any = true;
                self.answered(index, answered)?;
            }
        }
        Ok(any)
    }

    fn answered(&mut self, index: usize, answered: Answered) -> Result<(), LoadError> {
        let Answered { slot, status, written_bytes } = answered;
        let queue = &mut self.queues[index];
        let Some(request) = queue.requests[slot].take() else { return Ok(()) };
        let Request { operation, sequence, acknowledged, order } = request;
        queue.free.push(slot);
        if queue.orders.first() != Some(&order) {
            self.report.out_of_order += 1;
        }
        queue.orders.remove(&order);
        self.in_flight -= 1;
        let content_bytes = if operation.device_writes() { operation.content_bytes() } else { 0 };
        if status != STATUS_OK || written_bytes != content_bytes + 1 {
            return Err(LoadError::Answer { queue: index, operation, status, written_bytes });
        }
        self.report.count(&operation);
        self.content.resize(content_bytes as usize, 0);
        self.front_end.queues()[index].content(slot, &mut self.content)?;
        match (&operation, change_of(&operation)) {
            (Operation::Read(extent), _) => {
                let (content, findings) = (&self.content, &mut self.findings);
                self.report.mixed_sectors += self.oracle.end_read(*extent, &acknowledged, content, findings);
                self.spare.push(acknowledged);
            }
            (Operation::Identify, _) => {
                let first = self.serial.get_or_insert_with(|| self.content.clone());
                if *first != self.content {
                    return Err(LoadError::Answer { queue: index, operation, status, written_bytes });
                }
            }
            (_, Some(change)) => self.oracle.end_change(operation.extents(), change, sequence),
            _ => {}
        }
        Ok(())
    }

    /// Waits for an answer, at most until `time`.
    fn wait(&mut self, time: Option<Instant>) -> Result<(), LoadError> {
        let stalled = self.last_sign + self.config.stall_timeout;
        let until = time.map_or(stalled, |time| time.min(stalled));
        match self.front_end.wait(until.saturating_duration_since(Instant::now()))? {
            Wake::Answers => Ok(()),
            Wake::Gone => Err(LoadError::Disconnected),
            Wake::Broken(queue) => Err(LoadError::BrokenQueue(queue)),
            Wake::Nothing if Instant::now() < stalled => Ok(()),
            Wake::Nothing => Err(self.stalled()),
        }
    }

    fn stalled(&self) -> LoadError {
        LoadError::Stalled { after: self.config.stall_timeout, in_flight: self.in_flight }
    }
}

fn change_of(operation: &Operation) -> Option<Change> {
    match operation {
        Operation::Write(_) => Some(Change::Write),
        Operation::WriteZeroes(..) => Some(Change::Zero),
        Operation::Discard(_) => Some(Change::Discard),
        Operation::Read(_) | Operation::Flush | Operation::Identify => None,
    }
}
