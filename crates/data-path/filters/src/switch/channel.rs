//! One queue's way through the stage.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use strongroom_io::{Channel, Disk, Done, Io, IoError, Payload, Thread};
use strongroom_memory::Padded;

use super::{Numbered, Seat, Shared};

pub struct SwitchChannel<P: Payload> {
    shared: Arc<Shared<P>>,
    seat: Arc<Seat>,
    thread: Thread,
    depth: usize,
    /// The step whose state this channel acts on.
    seen: u64,
    is_frozen: bool,
    current: Opened<P>,
    /// The channel to the prepared disk.
    next: Option<Opened<P>>,
    /// The channel to the former disk, which is closed when the held requests are on their way.
    former: Option<Opened<P>>,
    /// Requests below.
    in_flight: usize,
    /// Requests that came while the disk was frozen, in their order.
    held: VecDeque<Io<P>>,
    /// Whether held requests were sent below since the last kick.
    unkicked: bool,
    ended: Vec<Done<P>>,
}

/// A channel to the disk of this number; `None` if it was never opened, and requests fail.
struct Opened<P: Payload> {
    number: u64,
    channel: Option<Box<dyn Channel<P>>>,
}

impl<P: Payload> Opened<P> {
    fn over(disk: &Numbered<P>, thread: &Thread, depth: usize) -> Result<Self, IoError> {
        Ok(Self { number: disk.number, channel: Some(disk.disk.open(thread, depth)?) })
    }
}

impl<P: Payload> SwitchChannel<P> {
    pub(super) fn open(shared: Arc<Shared<P>>, thread: &Thread, depth: usize) -> Result<Self, IoError> {
        loop {
            let (seen, current, next) = {
                let state = shared.state.lock();
                let seen = shared.step.load(Ordering::SeqCst);
                (seen, state.current.clone(), state.stage.next().cloned())
            };
            // Without the lock: it may take a while.
            let current = Opened::over(&current, thread, depth)?;
            let next = next.map(|next| Opened::over(&next, thread, depth)).transpose()?;
            let mut state = shared.state.lock();
            if shared.step.load(Ordering::SeqCst) != seen {
                continue;
            }
            let seat = Arc::new(Seat {
                in_flight: Padded::new(AtomicUsize::new(0)),
                opened: AtomicU64::new(next.as_ref().map_or(current.number, |next| next.number)),
                waker: thread.reactor.waker(),
            });
            state.seats.push(Arc::clone(&seat));
            let is_frozen = state.stage.is_frozen();
            drop(state);
            return Ok(Self {
                shared,
                seat,
                thread: thread.clone(),
                depth,
                seen,
                is_frozen,
                current,
                next,
                former: None,
                in_flight: 0,
                held: VecDeque::with_capacity(depth),
                unkicked: false,
                ended: Vec::new(),
            });
        }
    }

    fn is_up_to_date(&self) -> bool {
        self.shared.step.load(Ordering::SeqCst) == self.seen
    }

    /// Makes the count of requests visible to a freeze. The caller looks at the step afterwards.
    fn publish(&self, in_flight: usize) {
        self.seat.in_flight.store(in_flight, Ordering::SeqCst);
    }

    /// Acts on the present state.
    fn follow(&mut self) {
        let (current, next) = {
            let state = self.shared.state.lock();
            self.seen = self.shared.step.load(Ordering::SeqCst);
            self.is_frozen = state.stage.is_frozen();
            if !self.is_frozen {
                // Under the lock, under which a freeze reads it: the held requests are sent below.
                self.in_flight += self.held.len();
                self.publish(self.in_flight);
            }
            (state.current.number, state.stage.next().cloned())
        };
        if self.current.number != current {
            // A commit needs every channel's.
            let opened = self.next.take().filter(|opened| opened.number == current);
            debug_assert!(opened.is_some(), "the disk was changed under a channel that has not opened it");
            let opened = opened.unwrap_or(Opened { number: current, channel: None });
            self.former = Some(std::mem::replace(&mut self.current, opened));
        }
        if !self.is_frozen {
            self.unkicked |= !self.held.is_empty();
            while let Some(io) = self.held.pop_front() {
                self.send(io);
            }
        }
        self.open_next(next);
    }

    /// Sends a request below that is counted already.
    fn send(&mut self, io: Io<P>) {
        match &mut self.current.channel {
            Some(channel) => channel.submit(io),
            None => self.ended.push(io.end(Err(IoError::Closed))),
        }
    }

    fn open_next(&mut self, next: Option<Numbered<P>>) {
        let Some(next) = next else {
            self.next = None;
            return;
        };
        if self.next.as_ref().is_some_and(|opened| opened.number == next.number) {
            return;
        }
        let opened = Opened::over(&next, &self.thread, self.depth);
        let mut state = self.shared.state.lock();
        match opened {
            Ok(opened) => {
                self.next = Some(opened);
                self.seat.opened.store(next.number, Ordering::SeqCst);
            }
            Err(error) => {
                if state.stage.next().is_some_and(|now| now.number == next.number) {
                    state.failure = Some(error);
                }
            }
        }
        self.shared.changed.notify_all();
    }

    /// Tells a freeze that this channel has nothing in flight.
    fn tell_drained(&self) {
        if self.is_frozen && self.in_flight == 0 {
            // A freeze that has read the count before waits by now.
            drop(self.shared.state.lock());
            self.shared.changed.notify_all();
        }
    }
}

impl<P: Payload> Channel<P> for SwitchChannel<P> {
    fn submit(&mut self, io: Io<P>) {
        loop {
            self.publish(self.in_flight + 1);
            if self.is_up_to_date() {
                break;
            }
            self.follow();
        }
        if self.is_frozen {
            self.publish(self.in_flight);
            self.held.push_back(io);
            return self.tell_drained();
        }
        self.in_flight += 1;
        self.send(io);
    }

    fn kick(&mut self) {
        self.unkicked = false;
        if let Some(channel) = &mut self.current.channel {
            channel.kick();
        }
    }

    fn poll(&mut self, done: &mut Vec<Done<P>>) {
        loop {
            if !self.is_up_to_date() {
                self.follow();
            }
            if self.unkicked {
                self.kick();
            }
            let before = done.len();
            if let Some(channel) = &mut self.current.channel {
                channel.poll(done);
            }
            done.append(&mut self.ended);
            let ended = done.len() - before;
            if ended > 0 {
                self.in_flight -= ended;
                self.publish(self.in_flight);
            }
            // Only now: the held requests are on their way.
            self.former = None;
            if self.is_up_to_date() {
                break;
            }
        }
        self.tell_drained();
    }
}

impl<P: Payload> Drop for SwitchChannel<P> {
    fn drop(&mut self) {
        // What this channel has sent may still be done below, at any time: then the disk can never
        // be frozen again.
        if self.in_flight == 0 {
            self.shared.state.lock().seats.retain(|seat| !Arc::ptr_eq(seat, &self.seat));
        }
        self.shared.changed.notify_all();
    }
}
