//! One queue that drives a disk according to the contract, and checks that the disk keeps it.

use std::collections::HashMap;
use std::time::Instant;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use strongroom_memory::BufferPool;
use strongroom_types::Extent;

use super::payload::{TestMemory, TestPayload};
use super::{Setup, Violation};
use crate::disk::{Channel, Disk};
use crate::error::IoError;
use crate::reactor::EventLoop;
use crate::reactor::Thread;
use crate::request::{Done, Io, Request, RequestKind};

/// Bytes of the pool that a driver's stages get, unless a check sets another size.
pub const POOL_BYTES: usize = 64 << 20;

/// A channel, its thread, and the requests in flight.
pub struct Driver<P: TestPayload> {
    // Fields drop in order: the channel before the loop that it runs on.
    channel: Box<dyn Channel<P>>,
    event_loop: Box<dyn EventLoop>,
    /// The source of transfers' memory.
    pub memory: TestMemory,
    /// The random generator for tags and for the checks.
    pub random: StdRng,
    in_flight: HashMap<u64, Sent>,
    /// Whether something was submitted since the last poll. If not, only a wake-up is a reason to
    /// poll.
    submitted: bool,
    setup: Setup,
}

struct Sent {
    kind: RequestKind,
    extent: Extent,
    address: Option<usize>,
}

impl<P: TestPayload> Driver<P> {
    /// Opens a channel for at most `depth` requests at a time, on its own loop with a pool of
    /// `pool_bytes`. `seed` is combined with the setup's.
    pub fn open(
        disk: &dyn Disk<P>,
        setup: &Setup,
        depth: usize,
        pool_bytes: usize,
        seed: u64,
    ) -> Result<Self, Violation> {
        let no_memory = |_| Violation::Setup(IoError::from(rustix::io::Errno::NOMEM));
        let event_loop = (setup.event_loops)().map_err(Violation::Setup)?;
        let pool = BufferPool::new(pool_bytes).map_err(no_memory)?;
        let thread = Thread { pool, reactor: event_loop.reactor() };
        Ok(Self {
            channel: disk.open(&thread, depth).map_err(Violation::Setup)?,
            event_loop,
            memory: TestMemory::new(setup.epoch)?,
            random: StdRng::seed_from_u64(setup.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed),
            in_flight: HashMap::with_capacity(depth),
            submitted: false,
            setup: setup.clone(),
        })
    }

    /// Count of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Submits a request under a new tag, which it returns.
    pub fn submit(&mut self, request: Request<P>) -> u64 {
        let mut tag = match self.in_flight.len() {
            0 => u64::MAX,
            1 => 0,
            _ => self.random.random(),
        };
        while self.in_flight.contains_key(&tag) {
            tag = self.random.random();
        }
        let address = match &request {
            Request::Read { into: memory, .. } | Request::Write { from: memory, .. } => {
                Some(P::address(memory))
            }
            Request::Flush | Request::Discard { .. } | Request::WriteZeroes { .. } => None,
        };
        self.in_flight.insert(tag, Sent { kind: request.kind(), extent: request.extent(), address });
        self.submitted = true;
        self.channel.submit(Io { tag, request });
        tag
    }

    /// Kicks, and waits until something ends.
    pub fn wait(&mut self) -> Result<Vec<Done<P>>, Violation> {
        let waited = self.setup.deadline;
        let deadline = Instant::now() + waited;
        let mut done = Vec::new();
        if self.submitted {
            self.submitted = false;
            self.channel.kick();
            self.channel.poll(&mut done);
        }
        while done.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            self.event_loop.sleep(left).map_err(Violation::Setup)?;
            self.channel.poll(&mut done);
            if Instant::now() >= deadline {
                return Err(match done.len() {
                    0 => Violation::Stalled { in_flight: self.in_flight.len(), waited },
                    ended => Violation::LostWakeUp { ended, waited },
                });
            }
        }
        done.iter().try_for_each(|done| self.check(done))?;
        Ok(done)
    }

    /// Runs a single request.
    pub fn run(&mut self, request: Request<P>) -> Result<Done<P>, Violation> {
        let tag = self.submit(request);
        let mut done = self.wait()?;
        match done.pop() {
            Some(done) if done.tag == tag => Ok(done),
            other => Err(Violation::UnknownTag(other.map_or(tag, |done| done.tag))),
        }
    }

    /// Runs a single request, which must succeed.
    pub fn succeed(&mut self, request: Request<P>) -> Result<Option<P::Memory>, Violation> {
        let (kind, extent) = (request.kind(), request.extent());
        let done = self.run(request)?;
        match done.result {
            Ok(()) => Ok(done.memory),
            result => Err(Violation::Result { kind, extent, result, expected: "success" }),
        }
    }

    /// Reads the extent, which is one transfer at most.
    pub fn read(&mut self, extent: Extent) -> Result<Vec<u8>, Violation> {
        let into = self.memory.blank::<P>(extent.length() as usize, &mut self.random)?;
        let memory = self.succeed(Request::Read { extent, into })?;
        let memory = memory.ok_or(Violation::Memory(RequestKind::Read))?;
        P::check_seals(&self.memory, extent, &memory)?;
        Ok(P::content(&memory))
    }

    /// Writes the content from `offset` on, which is one transfer at most.
    pub fn write(&mut self, offset: u64, content: &[u8]) -> Result<(), Violation> {
        let extent = Extent::between(offset, offset + content.len() as u64);
        let from = self.memory.with::<P>(content, &mut self.random)?;
        self.succeed(Request::Write { extent, from, durable: false }).map(|_| ())
    }

    /// Checks every completion: its tag was in flight, and its memory is the one that was
    /// submitted.
    fn check(&mut self, done: &Done<P>) -> Result<(), Violation> {
        let sent = self.in_flight.remove(&done.tag).ok_or(Violation::UnknownTag(done.tag))?;
        if done.memory.as_ref().map(P::address) != sent.address {
            return Err(Violation::Memory(sent.kind));
        }
        let Some(memory) = done.memory.as_ref().filter(|_| done.result.is_ok()) else { return Ok(()) };
        match sent.kind {
            RequestKind::Read if P::len(memory) as u64 == sent.extent.length() => {
                P::check_seals(&self.memory, sent.extent, memory)
            }
            _ => Ok(()),
        }
    }
}
