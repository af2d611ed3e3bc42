//! Readiness of sockets, for frontends.

use std::rc::Rc;

use rustix::event::PollFlags;
use strongroom_io::Slot;

use crate::file::Place;
use crate::uring::{Job, Uring};

/// Names a watched socket. It is never reused, even after the watch has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WatchToken {
    index: u32,
    generation: u32,
}

/// The events to watch for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Bytes can be read, or the peer sends no more.
    pub readable: bool,
    /// Bytes can be written.
    pub writable: bool,
}

impl Interest {
    /// Readable only.
    pub const READABLE: Self = Self { readable: true, writable: false };
    /// Writable only.
    pub const WRITABLE: Self = Self { readable: false, writable: true };
    /// Readable and writable.
    pub const BOTH: Self = Self { readable: true, writable: true };
}

/// The readiness of a watched socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The socket's token.
    pub token: WatchToken,
    /// A read will not block: there are bytes, or an end, or an error.
    pub readable: bool,
    /// A write will not block: there is room, or an error.
    pub writable: bool,
    /// The peer has closed at least its sending side, or the socket has failed. There may still be
    /// bytes to read before the end.
    pub hangup: bool,
}

/// The direction of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Readable,
    Writable,
}

impl Direction {
    fn events(self) -> PollFlags {
        match self {
            Direction::Readable => PollFlags::IN | PollFlags::RDHUP,
            Direction::Writable => PollFlags::OUT,
        }
    }
}

/// The watched sockets of a ring.
///
/// Each direction of a socket has its own poll in the ring, which completes once. So a new request
/// never has to change an existing one, and readiness that was reported is not reported again until
/// it is requested.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    entries: Vec<Entry>,
    free: Vec<u32>,
    ready: Vec<WatchToken>,
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    watch: Option<Watch>,
}

#[derive(Debug)]
struct Watch {
    socket: Rc<Place>,
    read_poll: Option<Slot>,
    write_poll: Option<Slot>,
    /// The events since they were last taken; the token is in `Watches::ready` while there are any.
    happened: Option<Ready>,
}

impl Watches {
    /// Starts to watch a socket.
    pub(crate) fn insert(&mut self, uring: &mut Uring, socket: Place, interest: Interest) -> WatchToken {
        let watch =
            Some(Watch { socket: Rc::new(socket), read_poll: None, write_poll: None, happened: None });
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index as usize].watch = watch;
                index
            }
            None => {
                self.entries.push(Entry { generation: 0, watch });
                (self.entries.len() - 1) as u32
            }
        };
        let generation = self.entries[index as usize].generation;
        let token = WatchToken { index, generation };
        self.rearm(uring, token, interest);
        token
    }

    /// Requests the next readiness in each direction of `interest` that has no request yet.
    pub(crate) fn rearm(&mut self, uring: &mut Uring, token: WatchToken, interest: Interest) {
        let Some(watch) = self.get_mut(token) else { return };
        let socket = &watch.socket;
        let mut poll = |direction: Direction| {
            uring.send(Job::PollSocket {
                socket: Rc::clone(socket),
                events: direction.events(),
                watch: token,
                direction,
            })
        };
        if interest.readable && watch.read_poll.is_none() {
            watch.read_poll = Some(poll(Direction::Readable));
        }
        if interest.writable && watch.write_poll.is_none() {
            watch.write_poll = Some(poll(Direction::Writable));
        }
    }

    /// Ends a watch. The ring releases the socket when the kernel has.
    pub(crate) fn remove(&mut self, uring: &mut Uring, token: WatchToken) {
        let Some(entry) = self.entries.get_mut(token.index as usize) else {
            return;
        };
        let Some(watch) = entry.watch.take_if(|_| entry.generation == token.generation) else {
            return;
        };
        for poll in [watch.read_poll, watch.write_poll].into_iter().flatten() {
            uring.cancel(poll);
        }
        self.ready.retain(|ready| *ready != token);
        // A place whose generations are exhausted is not reused.
        if let Some(next) = entry.generation.checked_add(1) {
            entry.generation = next;
            self.free.push(token.index);
        }
    }

    /// Ends all watches.
    pub(crate) fn clear(&mut self, uring: &mut Uring) {
        for index in 0..self.entries.len() {
            let Entry { generation, watch } = &self.entries[index];
            if watch.is_some() {
                let token = WatchToken { index: index as u32, generation: *generation };
                self.remove(uring, token);
            }
        }
    }

    /// Records the answer of a poll: its events, or a negative error number.
    pub(crate) fn answered(&mut self, token: WatchToken, direction: Direction, answer: i32) {
        // The last answers of an ended watch find no entry.
        let Some(entry) = self.entries.get_mut(token.index as usize) else {
            return;
        };
        let Some(watch) = entry.watch.as_mut().filter(|_| entry.generation == token.generation) else {
            return;
        };
        match direction {
            Direction::Readable => watch.read_poll = None,
            Direction::Writable => watch.write_poll = None,
        }
        let events = u16::try_from(answer).map_or(PollFlags::ERR, PollFlags::from_bits_retain);
        let broken = events.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
        let ready = match &mut watch.happened {
            Some(ready) => ready,
            none => {
                self.ready.push(token);
                none.insert(Ready { token, readable: false, writable: false, hangup: false })
            }
        };
        ready.readable |= broken || events.intersects(PollFlags::IN | PollFlags::RDHUP);
        ready.writable |= broken || events.contains(PollFlags::OUT);
        ready.hangup |= broken || events.contains(PollFlags::RDHUP);
    }

    /// Whether there are events to take.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Appends the events since the last call.
    pub(crate) fn take_ready(&mut self, into: &mut Vec<Ready>) {
        for token in self.ready.drain(..) {
            let entry = self.entries.get_mut(token.index as usize);
            into.extend(entry.and_then(|entry| entry.watch.as_mut()?.happened.take()));
        }
    }

    fn get_mut(&mut self, token: WatchToken) -> Option<&mut Watch> {
        let entry = self.entries.get_mut(token.index as usize)?;
        entry.watch.as_mut().filter(|_| entry.generation == token.generation)
    }
}
