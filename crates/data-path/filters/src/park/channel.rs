//! A queue's way through, and what of it waits for room.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use strongroom_io::{
    Channel, Done, InFlight, Io, IoError, Plain, Reactor, Request, RequestKind, Slot, Thread,
};
use strongroom_memory::GuestSlice;
use strongroom_types::Extent;

use super::trouble::{TroubleBook, Waiting};
use super::{PROBE_INTERVAL, Patience};

/// A channel whose requests wait for room.
pub struct ParkChannel {
    below: Box<dyn Channel<Plain>>,
    reactor: Rc<dyn Reactor>,
    patience: Patience,
    book: Arc<TroubleBook>,
    /// What is below.
    active: InFlight<Active>,
    /// What waits here, in the order in which it is tried.
    parked: VecDeque<Parked>,
    /// All that waits, here or below on another try.
    waiting: Waiting,
    /// How many of those are below.
    tried: usize,
    /// When the first of [`Self::parked`] is tried.
    next_probe: Instant,
    returned: Vec<Done<Plain>>,
}

/// A request below.
struct Active {
    tag: u64,
    kind: RequestKind,
    /// How it is done again; nothing of one that needs no room.
    again: Option<Again>,
    /// Whether it has met a full disk already.
    waits: bool,
}

/// A request, but for its memory.
#[derive(Clone, Copy)]
enum Again {
    Write { extent: Extent, durable: bool },
    WriteZeroes { extent: Extent, may_unmap: bool, durable: bool },
    Discard { extent: Extent },
}

struct Parked {
    tag: u64,
    again: Again,
    request: Request<Plain>,
}

impl Again {
    /// How the request is done again, if it may need room. Reads need none, and a flush is not done
    /// again.
    fn of(request: &Request<Plain>) -> Option<Self> {
        match *request {
            Request::Read { .. } | Request::Flush => None,
            Request::Write { extent, durable, .. } => Some(Self::Write { extent, durable }),
            Request::WriteZeroes { extent, may_unmap, durable } => {
                Some(Self::WriteZeroes { extent, may_unmap, durable })
            }
            Request::Discard { extent } => Some(Self::Discard { extent }),
        }
    }

    /// The request itself, with its memory; a write without that is none.
    fn request(self, memory: &mut Option<GuestSlice>) -> Option<Request<Plain>> {
        Some(match self {
            Self::Write { extent, durable } => Request::Write { extent, from: memory.take()?, durable },
            Self::WriteZeroes { extent, may_unmap, durable } => {
                Request::WriteZeroes { extent, may_unmap, durable }
            }
            Self::Discard { extent } => Request::Discard { extent },
        })
    }

    fn waiting(self) -> Waiting {
        let (Self::Write { extent, .. } | Self::WriteZeroes { extent, .. } | Self::Discard { extent }) = self;
        Waiting { requests: 1, bytes: extent.length() }
    }
}

impl ParkChannel {
    pub(super) fn new(
        below: Box<dyn Channel<Plain>>,
        thread: &Thread,
        patience: Patience,
        book: Arc<TroubleBook>,
        depth: usize,
    ) -> Self {
        Self {
            below,
            reactor: Rc::clone(&thread.reactor),
            patience,
            book,
            active: InFlight::with_depth(depth),
            parked: VecDeque::with_capacity(depth),
            waiting: Waiting::default(),
            tried: 0,
            next_probe: Instant::now(),
            returned: Vec::with_capacity(depth),
        }
    }

    /// Lets nothing wait any more, now or later: what finds no room comes back with
    /// [`IoError::NoSpace`]. For a queue that ends.
    pub fn give_up(&mut self) {
        self.patience = Patience::None;
    }

    /// Takes an end: passes it on, or keeps the request.
    fn ended(&mut self, mut ended: Done<Plain>, done: &mut Vec<Done<Plain>>) -> bool {
        let active = Slot::from_tag(ended.tag).and_then(|slot| self.active.take(slot));
        let Some(Active { tag, kind, again, waits }) = active else {
            debug_assert!(false, "the disk below returned what was not submitted");
            return false;
        };
        self.tried -= usize::from(waits);
        if let (Err(IoError::NoSpace), Patience::UntilThereIsRoom, Some(again)) =
            (ended.result, self.patience, again)
            && let Some(request) = again.request(&mut ended.memory)
        {
            self.park(Parked { tag, again, request }, waits);
            return false;
        }
        match (ended.result, kind) {
            (Ok(()), _) => {}
            (Err(error), RequestKind::Flush) => self.book.flush_failed(error),
            (Err(error), _) => self.book.failed(error),
        }
        let again = again.filter(|_| waits);
        if let Some(again) = again {
            self.end_waiting(again.waiting());
        }
        let found_room = again.is_some() && ended.result.is_ok();
        ended.tag = tag;
        done.push(ended);
        found_room
    }

    fn park(&mut self, parked: Parked, waited_before: bool) {
        self.next_probe = Instant::now() + PROBE_INTERVAL;
        if !waited_before {
            let Waiting { requests, bytes } = parked.again.waiting();
            self.waiting.requests += requests;
            self.waiting.bytes += bytes;
            self.book.begin_to_wait(bytes);
        }
        // Behind the others, so that each is tried in turn: where a long one does not fit, a short
        // one may.
        self.parked.push_back(parked);
    }

    fn end_waiting(&mut self, ended: Waiting) {
        self.waiting.requests -= ended.requests;
        self.waiting.bytes -= ended.bytes;
        self.book.end_waiting(ended);
    }

    /// Tries again what is due: one request, or all once one of them has found room. Whether
    /// anything was submitted.
    fn try_again(&mut self, found_room: bool, done: &mut Vec<Done<Plain>>) -> bool {
        if self.parked.is_empty() {
            return false;
        }
        if self.patience == Patience::None {
            while let Some(Parked { tag, again, request }) = self.parked.pop_front() {
                self.end_waiting(again.waiting());
                done.push(Io { tag, request }.end(Err(IoError::NoSpace)));
            }
            return false;
        }
        let count = match found_room {
            true => self.parked.len(),
            false if self.tried == 0 && Instant::now() >= self.next_probe => 1,
            false => 0,
        };
        for Parked { tag, again, request } in self.parked.drain(..count) {
            let active = Active { tag, kind: request.kind(), again: Some(again), waits: true };
            let slot = self.active.insert(active);
            self.tried += 1;
            self.below.submit(Io { tag: slot.tag(), request });
        }
        count > 0
    }
}

impl Channel<Plain> for ParkChannel {
    fn submit(&mut self, mut io: Io<Plain>) {
        let (kind, again) = (io.request.kind(), Again::of(&io.request));
        io.tag = self.active.insert(Active { tag: io.tag, kind, again, waits: false }).tag();
        self.below.submit(io);
    }

    fn kick(&mut self) {
        self.below.kick();
    }

    fn poll(&mut self, done: &mut Vec<Done<Plain>>) {
        loop {
            let mut returned = std::mem::take(&mut self.returned);
            self.below.poll(&mut returned);
            let mut found_room = false;
            for ended in returned.drain(..) {
                found_room |= self.ended(ended, done);
            }
            self.returned = returned;
            if !self.try_again(found_room, done) {
                break;
            }
            self.below.kick();
        }
        // While one is tried, its end wakes us.
        if !self.parked.is_empty() && self.tried == 0 {
            self.reactor.wake_at(self.next_probe);
        }
    }
}

impl Drop for ParkChannel {
    fn drop(&mut self) {
        if self.waiting != Waiting::default() {
            self.book.end_waiting(self.waiting);
        }
    }
}
