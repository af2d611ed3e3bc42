//! Random requests, many at a time, from several threads, against the model.

use std::collections::HashMap;
use std::fmt;

use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::StdRng;
use strongroom_memory::CHUNK_BYTES;
use strongroom_types::{BLOCK_BYTES, Extent};

use super::driver::{Driver, POOL_BYTES};
use super::model::{Content, Model, Outcome, ReadId, WriteId};
use super::payload::TestPayload;
use super::{Setup, Violation};
use crate::disk::{Disk, Limits};
use crate::request::{Done, Request, RequestKind};

/// Bytes at the start and at the end of the disk that requests touch: few enough that requests
/// often overlap.
const START_BYTES: u64 = 3 << 20;
const END_BYTES: u64 = 1 << 20;

/// Attempts to find a place without requests in flight, before the thread waits for a completion.
const TRIES: usize = 8;

/// The parameters of a random load.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    threads: usize,
    depth: usize,
    /// Whether requests in flight may overlap.
    overlapping: bool,
    /// Whether most transfers have the greatest length, and the stages' pool has a single chunk.
    exhausting: bool,
    /// Requests of each thread.
    requests: usize,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { threads, depth, .. } = self;
        let overlapping = if self.overlapping { "overlapping" } else { "separate" };
        let exhausting = if self.exhausting { ", exhausting a small pool" } else { "" };
        write!(f, "random requests, {overlapping}, depth {depth}, {threads} threads{exhausting}")
    }
}

impl Workload {
    /// All workloads, each with `requests` requests per thread.
    pub fn matrix(requests: usize) -> Vec<Self> {
        let shapes = [(1, 1), (1, 7), (1, 64), (2, 16), (3, 64)];
        let mut matrix = Vec::new();
        for overlapping in [false, true] {
            for (threads, depth) in shapes {
                matrix.push(Self { threads, depth, overlapping, exhausting: false, requests });
            }
        }
        // The requests are long: a quarter of them moves as many bytes.
        let requests = requests / 4;
        matrix.push(Self { threads: 1, depth: 32, overlapping: true, exhausting: true, requests });
        matrix.push(Self { threads: 2, depth: 32, overlapping: false, exhausting: true, requests });
        matrix
    }
}

/// Runs the workload, and reads everything at the end.
pub fn run<P: TestPayload>(disk: &dyn Disk<P>, setup: &Setup, workload: Workload) -> Result<(), Violation> {
    let shared = Mutex::new(Shared { model: Model::new(setup.seed), busy: Vec::new(), failed: false });
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workload.threads as u64)
            .map(|number| {
                let shared = &shared;
                scope.spawn(move || {
                    let result = Queue::open(disk, setup, workload, shared, number).and_then(Queue::run);
                    shared.lock().failed |= result.is_err();
                    result
                })
            })
            .collect();
        let results = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        // The error of the thread that saw the violation is more useful than that of one that was
        // stopped.
        let failures = results.filter_map(Result::err);
        failures.reduce(|a, b| if matches!(a, Violation::Elsewhere) { b } else { a }).map_or(Ok(()), Err)
    })?;
    read_everything(disk, setup, shared)
}

fn read_everything<P: TestPayload>(
    disk: &dyn Disk<P>,
    setup: &Setup,
    shared: Mutex<Shared>,
) -> Result<(), Violation> {
    let mut model = shared.into_inner().model;
    let mut driver = Driver::open(disk, setup, 1, POOL_BYTES, u64::MAX)?;
    let limits = disk.limits();
    for window in windows(&limits) {
        let mut offset = window.offset();
        while offset < window.end() {
            let end = window.end().min(offset + u64::from(limits.transfer_bytes_max));
            let extent = Extent::between(offset, end);
            let id = model.read_begins(extent);
            let into = driver.memory.blank::<P>(extent.length() as usize, &mut driver.random)?;
            let done = driver.run(Request::Read { extent, into })?;
            let content = succeeded(setup, RequestKind::Read, extent, &done)?
                .then(|| done.memory.as_ref().map(P::content));
            model.read_ends(id, content.flatten().as_deref())?;
            offset = end;
        }
    }
    Ok(())
}

/// The two parts of the disk that requests touch; only one if the disk is small.
fn windows(limits: &Limits) -> Vec<Extent> {
    let size = limits.size_bytes;
    if size <= START_BYTES + END_BYTES {
        return vec![Extent::between(0, size)];
    }
    let end = Extent::between(size - END_BYTES, size).widened_to(BLOCK_BYTES);
    vec![Extent::between(0, START_BYTES), Extent::between(end.offset(), size)]
}

/// Returns whether the request succeeded. It is a violation if it failed and may not.
fn succeeded<P: TestPayload>(
    setup: &Setup,
    kind: RequestKind,
    extent: Extent,
    done: &Done<P>,
) -> Result<bool, Violation> {
    match done.result {
        Ok(()) => Ok(true),
        Err(error) if setup.tolerated == Some(error) => Ok(false),
        result => Err(Violation::Result { kind, extent, result, expected: "success" }),
    }
}

/// The state that all threads of a check share.
struct Shared {
    model: Model,
    /// The extents of requests in flight, and whether each of them writes.
    busy: Vec<(Extent, bool)>,
    failed: bool,
}

struct Queue<'a, P: TestPayload> {
    driver: Driver<P>,
    setup: &'a Setup,
    workload: Workload,
    shared: &'a Mutex<Shared>,
    limits: Limits,
    windows: Vec<Extent>,
    pending: HashMap<u64, Pending>,
}

#[derive(Clone, Copy)]
struct Pending {
    kind: RequestKind,
    extent: Extent,
    known: Known,
}

/// A request's id in the model.
#[derive(Clone, Copy)]
enum Known {
    Read(ReadId),
    Write(WriteId),
    Flush,
}

impl<'a, P: TestPayload> Queue<'a, P> {
    fn open(
        disk: &dyn Disk<P>,
        setup: &'a Setup,
        workload: Workload,
        shared: &'a Mutex<Shared>,
        number: u64,
    ) -> Result<Self, Violation> {
        let limits = disk.limits();
        let pool_bytes = if workload.exhausting { CHUNK_BYTES } else { POOL_BYTES };
        let driver = Driver::open(disk, setup, workload.depth, pool_bytes, number)?;
        let windows = windows(&limits);
        Ok(Self { driver, setup, workload, shared, limits, windows, pending: HashMap::new() })
    }

    fn run(mut self) -> Result<(), Violation> {
        let mut left = self.workload.requests;
        loop {
            // Sometimes the queue runs full, sometimes it runs dry.
            let burst = self.driver.random.random_range(0..=self.workload.depth);
            while left > 0 && self.driver.in_flight() < burst.max(1) && self.submit()? {
                left -= 1;
            }
            if self.shared.lock().failed {
                return Err(Violation::Elsewhere);
            }
            if self.driver.in_flight() > 0 {
                for done in self.driver.wait()? {
                    self.settle(done)?;
                }
            } else if left == 0 {
                return Ok(());
            } else {
                // Every place that was tried is in use by another thread now.
                std::thread::yield_now();
            }
        }
    }

    /// Submits a request. Returns `false` if no place was found for one.
    fn submit(&mut self) -> Result<bool, Violation> {
        let kind = self.draw_kind();
        let writes = matches!(kind, RequestKind::Write | RequestKind::Discard | RequestKind::WriteZeroes);
        let mut shared = self.shared.lock();
        let place = (0..TRIES).map(|_| match kind {
            RequestKind::Flush => Extent::default(),
            _ => draw_extent(&mut self.driver.random, &self.limits, &self.windows, kind, self.workload),
        });
        let mut free = place.filter(|extent| {
            self.workload.overlapping
                || shared.busy.iter().all(|(busy, writing)| !(writes || *writing) || !busy.overlaps(*extent))
        });
        let Some(extent) = free.next() else { return Ok(false) };
        drop(free);
        shared.busy.push((extent, writes));
        let durable = self.driver.random.random_bool(0.1);
        let may_unmap = self.driver.random.random();
        let (known, request) = match kind {
            RequestKind::Read => {
                let into =
                    self.driver.memory.blank::<P>(extent.length() as usize, &mut self.driver.random)?;
                (Known::Read(shared.model.read_begins(extent)), Request::Read { extent, into })
            }
            RequestKind::Write => {
                let zeroes = self.driver.random.random_bool(0.15);
                let content = if zeroes { Content::Zeroes } else { Content::Pattern };
                let id = shared.model.write_begins(extent, content);
                let mut content = vec![0; extent.length() as usize];
                shared.model.content(id, extent, &mut content);
                let from = self.driver.memory.with::<P>(&content, &mut self.driver.random)?;
                (Known::Write(id), Request::Write { extent, from, durable })
            }
            RequestKind::Flush => (Known::Flush, Request::Flush),
            RequestKind::Discard => (
                Known::Write(shared.model.write_begins(extent, Content::Zeroes)),
                Request::Discard { extent },
            ),
            RequestKind::WriteZeroes => (
                Known::Write(shared.model.write_begins(extent, Content::Zeroes)),
                Request::WriteZeroes { extent, may_unmap, durable },
            ),
        };
        drop(shared);
        let tag = self.driver.submit(request);
        self.pending.insert(tag, Pending { kind, extent, known });
        Ok(true)
    }

    fn settle(&mut self, done: Done<P>) -> Result<(), Violation> {
        let pending = self.pending.remove(&done.tag).ok_or(Violation::UnknownTag(done.tag))?;
        let Pending { kind, extent, known } = pending;
        let succeeded = succeeded(self.setup, kind, extent, &done)?;
        let content = done.memory.as_ref().filter(|_| succeeded && kind == RequestKind::Read).map(P::content);
        let mut shared = self.shared.lock();
        if let Some(index) = shared.busy.iter().position(|(busy, _)| *busy == extent) {
            shared.busy.swap_remove(index);
        }
        match known {
            Known::Read(id) => shared.model.read_ends(id, content.as_deref())?,
            Known::Write(id) if succeeded && kind != RequestKind::Discard => {
                shared.model.write_ends(id, Outcome::Happened);
            }
            Known::Write(id) => shared.model.write_ends(id, Outcome::MayHaveHappened),
            Known::Flush => {}
        }
        Ok(())
    }

    fn draw_kind(&mut self) -> RequestKind {
        let kinds = if self.limits.read_only { 50 } else { 100 };
        match self.driver.random.random_range(0..kinds) {
            0..46 => RequestKind::Read,
            46..50 => RequestKind::Flush,
            50..89 => RequestKind::Write,
            89..95 => RequestKind::WriteZeroes,
            _ => RequestKind::Discard,
        }
    }
}

/// Draws a place and a length: mostly short, often near the start, sometimes of the greatest
/// length.
fn draw_extent(
    random: &mut StdRng,
    limits: &Limits,
    windows: &[Extent],
    kind: RequestKind,
    workload: Workload,
) -> Extent {
    let unit = u64::from(limits.block_bytes);
    let window = windows[random.random_range(0..windows.len())];
    let transfer_max = u64::from(limits.transfer_bytes_max);
    let is_transfer = matches!(kind, RequestKind::Read | RequestKind::Write);
    let (align, longest) = match random.random_range(0..100) {
        _ if workload.exhausting && is_transfer => (unit, transfer_max),
        0..40 => (unit, 8 << 10),
        40..70 => (BLOCK_BYTES.max(unit), 32 << 10),
        70..95 => (unit, 64 << 10),
        _ if is_transfer => (unit, transfer_max),
        _ => (unit, window.length()),
    };
    let longest = longest.max(align).min(window.length());
    let shortest = if workload.exhausting && is_transfer { longest / 2 } else { 0 };
    let length = (random.random_range(shortest..=longest) & !(align - 1)).clamp(unit, longest);
    let room = window.length() - length;
    let room = if random.random_bool(0.5) { room.min(128 << 10) } else { room };
    // Half of the places in the end window touch the very end.
    let offset = if window.offset() > 0 && random.random_bool(0.5) {
        window.end() - length
    } else {
        window.offset() + random.random_range(0..=room)
    };
    let offset = offset & !(align - 1);
    Extent::between(offset, offset + length)
}
