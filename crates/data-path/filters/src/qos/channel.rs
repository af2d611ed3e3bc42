//! A queue's way through, and what of it waits for its turn.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use strongroom_io::{Channel, Done, Io, Payload, Reactor, Request, Thread};

use super::LOOKS_EVERY;
use super::page::{Cost, Limits, Ticket};

/// A channel whose requests wait for their turn.
pub struct QosChannel<P: Payload, C: Channel<P>> {
    below: C,
    reactor: Rc<dyn Reactor>,
    limits: Limits,
    /// What waits, in the order in which it came.
    waiting: VecDeque<Held<P>>,
    /// The place of the first of them; the others get theirs when they are first.
    place: Option<Ticket>,
    is_hastened: bool,
}

struct Held<P: Payload> {
    io: Io<P>,
    cost: Cost,
    since_ns: u64,
}

/// What a request costs; nothing for a flush, which never waits.
fn cost_of<P: Payload>(request: &Request<P>) -> Option<Cost> {
    match request {
        Request::Read { extent, .. } | Request::Write { extent, .. } => {
            Some(Cost::of_transfer(extent.length()))
        }
        Request::Discard { .. } | Request::WriteZeroes { .. } => Some(Cost::of_operation()),
        Request::Flush => None,
    }
}

impl<P: Payload, C: Channel<P>> QosChannel<P, C> {
    /// Keeps what goes to `below` within `limits`.
    pub fn new(below: C, thread: &Thread, limits: Limits, depth: usize) -> Self {
        let reactor = Rc::clone(&thread.reactor);
        let waiting = VecDeque::with_capacity(depth);
        Self { below, reactor, limits, waiting, place: None, is_hastened: false }
    }

    /// Lets nothing wait any more, now or later. For a queue that ends: those who end it wait for
    /// its requests, a guest's whole machine among them. What goes below before its turn is spent
    /// all the same, and what follows in other queues, or in a successor, waits longer for it.
    pub fn hasten(&mut self) {
        self.is_hastened = true;
    }

    /// The channel below.
    pub fn below_mut(&mut self) -> &mut C {
        &mut self.below
    }

    fn is_hastened(&self) -> bool {
        self.is_hastened || self.limits.is_hastened()
    }

    /// Sends what is due. Whether there was any.
    fn send_due(&mut self) -> bool {
        let now_ns = self.limits.now_ns();
        let before = self.waiting.len();
        while let Some(first) = self.waiting.front() {
            let place = *self.place.get_or_insert_with(|| self.limits.spend(first.cost, now_ns));
            if self.limits.due_at_ns(&place) > now_ns && !self.is_hastened() {
                break;
            }
            self.place = None;
            if let Some(Held { io, since_ns, .. }) = self.waiting.pop_front() {
                self.limits.count(now_ns.saturating_sub(since_ns));
                self.below.submit(io);
            }
        }
        self.waiting.len() < before
    }

    /// Has the thread woken when the first request is due, or may be because of another limit.
    fn wake_in_time(&self) {
        let Some(place) = &self.place else { return };
        let wait_ns = self.limits.due_at_ns(place).saturating_sub(self.limits.now_ns());
        self.reactor.wake_at(Instant::now() + Duration::from_nanos(wait_ns).min(LOOKS_EVERY));
    }
}

impl<P: Payload, C: Channel<P>> Channel<P> for QosChannel<P, C> {
    fn submit(&mut self, io: Io<P>) {
        if self.waiting.is_empty() && !self.limits.is_limited() {
            return self.below.submit(io);
        }
        let Some(cost) = cost_of(&io.request) else { return self.below.submit(io) };
        let now_ns = self.limits.now_ns();
        if self.waiting.is_empty() {
            let place = self.limits.spend(cost, now_ns);
            if self.limits.due_at_ns(&place) <= now_ns || self.is_hastened() {
                return self.below.submit(io);
            }
            self.place = Some(place);
        }
        self.waiting.push_back(Held { io, cost, since_ns: now_ns });
    }

    fn kick(&mut self) {
        self.below.kick();
    }

    fn poll(&mut self, done: &mut Vec<Done<P>>) {
        if self.waiting.is_empty() {
            return self.below.poll(done);
        }
        if self.send_due() {
            self.below.kick();
        }
        self.below.poll(done);
        self.wake_in_time();
    }
}
