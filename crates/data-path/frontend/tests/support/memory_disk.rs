//! A disk in memory that tests can inspect, pause and make fail.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use strongroom_io::{
    Allocation, Channel, Disk, Done, Io, IoError, Limits, Plain, Request, RequestKind, Thread, Waker,
};
use strongroom_types::Extent;

const BLOCK: u64 = 4096;

/// How long a test waits for an event that must happen.
pub const DEADLINE: Duration = Duration::from_secs(60);

pub struct MemoryDisk {
    limits: Limits,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    content: Vec<u8>,
    /// Which blocks of 4096 bytes were written.
    written: Vec<bool>,
    /// Whether requests are held in the disk.
    holding: bool,
    held: usize,
    fails: Option<(RequestKind, IoError)>,
    log: Vec<(RequestKind, Extent)>,
    wakers: Vec<Arc<Waker>>,
    most_in_flight: usize,
}

impl MemoryDisk {
    pub fn new(size_bytes: u64) -> Arc<Self> {
        Self::with_limits(Limits {
            size_bytes,
            block_bytes: 1,
            preferred_bytes: 4096,
            transfer_bytes_max: 1 << 20,
            read_only: false,
            discards: true,
        })
    }

    pub fn with_limits(limits: Limits) -> Arc<Self> {
        let state = State {
            content: vec![0; limits.size_bytes as usize],
            written: vec![false; limits.size_bytes.div_ceil(BLOCK) as usize],
            ..State::default()
        };
        Arc::new(Self { limits, state: Mutex::new(state), changed: Condvar::new() })
    }

    pub fn content(&self) -> Vec<u8> {
        self.state.lock().content.clone()
    }

    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        let extent = Extent::new(offset as u64, bytes.len() as u64).unwrap();
        let mut state = self.state.lock();
        state.content[offset..offset + bytes.len()].copy_from_slice(bytes);
        state.mark(extent, true);
    }

    /// The requests to the disk so far, in order.
    pub fn log(&self) -> Vec<(RequestKind, Extent)> {
        self.state.lock().log.clone()
    }

    /// The most requests that were in one channel at once.
    pub fn most_in_flight(&self) -> usize {
        self.state.lock().most_in_flight
    }

    /// From now on requests of this kind fail.
    pub fn fail(&self, kind: RequestKind, error: IoError) {
        self.state.lock().fails = Some((kind, error));
    }

    /// From now on requests stay in the disk.
    pub fn hold(&self) {
        self.state.lock().holding = true;
    }

    /// Ends [`MemoryDisk::hold`].
    pub fn release(&self) {
        let mut state = self.state.lock();
        state.holding = false;
        state.wakers.iter().for_each(|waker| waker.wake());
    }

    /// Waits until `count` requests are held.
    pub fn await_held(&self, count: usize) {
        let until = Instant::now() + DEADLINE;
        let mut state = self.state.lock();
        while state.held < count {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "only {} of {count} requests came", state.held);
            self.changed.wait_for(&mut state, left);
        }
    }
}

impl State {
    fn mark(&mut self, extent: Extent, written: bool) {
        let blocks = if written { extent.widened_to(BLOCK) } else { extent.narrowed_to(BLOCK) };
        let range = (blocks.offset() / BLOCK) as usize..(blocks.end() / BLOCK) as usize;
        let last = self.written.len();
        self.written[range.start.min(last)..range.end.min(last)].fill(written);
    }

    fn execute(&mut self, io: &mut Io<Plain>) -> Result<(), IoError> {
        let kind = io.request.kind();
        if let Some((fails, error)) = self.fails
            && fails == kind
        {
            return Err(error);
        }
        let extent = io.request.extent();
        let range = extent.offset() as usize..extent.end() as usize;
        match &mut io.request {
            Request::Read { into, .. } => into.copy_from(0, &self.content[range]),
            Request::Write { from, .. } => {
                from.copy_to(0, &mut self.content[range]);
                self.mark(extent, true);
            }
            Request::Flush => {}
            Request::Discard { .. } => {
                let blocks = extent.narrowed_to(BLOCK);
                if !blocks.is_empty() {
                    self.content[blocks.offset() as usize..blocks.end() as usize].fill(0);
                    self.mark(extent, false);
                }
            }
            Request::WriteZeroes { may_unmap, .. } => {
                self.content[range].fill(0);
                if *may_unmap {
                    self.mark(extent, false);
                }
            }
        }
        Ok(())
    }
}

/// Lets `Arc<MemoryDisk>` be a `Disk` whose channels outlive the borrow.
pub struct Served(pub Arc<MemoryDisk>);

impl Disk<Plain> for Served {
    fn limits(&self) -> Limits {
        self.0.limits
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Plain>>, IoError> {
        let waker = thread.reactor.waker();
        self.0.state.lock().wakers.push(waker);
        Ok(Box::new(MemoryChannel { disk: Arc::clone(&self.0), depth, held: VecDeque::new(), kicked: true }))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        let state = self.0.state.lock();
        let mut at = extent.offset();
        while at < extent.end() {
            let end = (at / BLOCK + 1) * BLOCK;
            let allocation = match state.written[(at / BLOCK) as usize] {
                true => Allocation::Data,
                false => Allocation::Hole,
            };
            if !report(Extent::between(at, end.min(extent.end())), allocation) {
                break;
            }
            at = end;
        }
        Ok(())
    }
}

struct MemoryChannel {
    disk: Arc<MemoryDisk>,
    depth: usize,
    held: VecDeque<Io<Plain>>,
    kicked: bool,
}

impl Channel<Plain> for MemoryChannel {
    fn submit(&mut self, io: Io<Plain>) {
        let mut state = self.disk.state.lock();
        state.log.push((io.request.kind(), io.request.extent()));
        self.held.push_back(io);
        assert!(self.held.len() <= self.depth, "more in flight than announced");
        state.held += 1;
        state.most_in_flight = state.most_in_flight.max(self.held.len());
        self.kicked = false;
        self.disk.changed.notify_all();
    }

    fn kick(&mut self) {
        self.kicked = true;
    }

    fn poll(&mut self, done: &mut Vec<Done<Plain>>) {
        let mut state = self.disk.state.lock();
        assert!(self.kicked, "polled with requests that were not kicked");
        if state.holding {
            return;
        }
        state.held -= self.held.len();
        // Out of order, as real disks answer.
        while let Some(mut io) = self.held.pop_back() {
            let result = self.disk.limits.check(&io.request);
            let result = result.and_then(|()| state.execute(&mut io));
            done.push(io.end(result));
        }
    }
}

impl Drop for MemoryChannel {
    fn drop(&mut self) {
        assert!(self.held.is_empty() || std::thread::panicking(), "closed with requests in flight");
    }
}
