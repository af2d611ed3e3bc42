//! The places of the connected front ends, and which of them must wait for which.
//!
//! A front end that lost its connection reconnects and tells each ring to continue where the used
//! ring ended. Requests that the old session has taken and not answered would then be done twice,
//! and an old write might land on a newer one. So a new session begins only when every session
//! whose front end is gone has ended. That session need not have noticed: the new one checks the
//! sockets of the others itself.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The sockets of the sessions, by seat.
pub struct Seats {
    sockets: Mutex<Vec<Option<Arc<OwnedFd>>>>,
    left: Condvar,
}

/// An occupied seat, until it is dropped.
pub struct Seat<'a> {
    seats: &'a Seats,
    number: usize,
}

impl Seats {
    /// Makes `count` free seats.
    pub fn new(count: usize) -> Self {
        Self { sockets: Mutex::new(vec![None; count]), left: Condvar::new() }
    }

    /// Takes a seat for the front end at `socket`, once all that are gone have left theirs; `None`
    /// if `is_ending` becomes true first.
    pub fn take(
        &self,
        number: usize,
        socket: &Arc<OwnedFd>,
        is_ending: impl Fn() -> bool,
    ) -> Option<Seat<'_>> {
        let mut sockets = self.sockets.lock();
        while sockets.iter().flatten().any(|other| is_gone(other)) {
            if is_ending() {
                return None;
            }
            self.left.wait(&mut sockets);
        }
        sockets[number] = Some(Arc::clone(socket));
        Some(Seat { seats: self, number })
    }

    /// Wakes the sessions that wait for a seat.
    pub fn wake(&self) {
        let _sockets = self.sockets.lock();
        self.left.notify_all();
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.seats.sockets.lock()[self.number] = None;
        self.seats.left.notify_all();
    }
}

/// Whether the front end has closed its end.
fn is_gone(socket: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut polled = [PollFd::new(socket, PollFlags::RDHUP)];
    let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    matches!(poll(&mut polled, Some(&now)), Ok(1)) && polled[0].revents().intersects(gone)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_newcomer_waits_for_those_who_are_gone_and_for_nobody_else() {
        let seats = Seats::new(2);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (second, _second_end) = UnixStream::pair().unwrap();
        let (ours, second) = (Arc::new(ours.into()), Arc::new(second.into()));
        let first = seats.take(0, &ours, || false).unwrap();
        drop(seats.take(1, &second, || false).unwrap());
        drop(theirs);
        assert!(seats.take(1, &second, || true).is_none());
        std::thread::scope(|threads| {
            let waiting = threads.spawn(|| seats.take(1, &second, || false).is_some());
            drop(first);
            assert!(waiting.join().unwrap());
        });
    }
}
