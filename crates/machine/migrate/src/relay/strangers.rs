//! Connections of those who have not proven anything yet. Their number is limited, and the newest
//! displaces the oldest: so strangers cannot keep the other host out.

use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::sync::Weak;

use parking_lot::Mutex;

/// The most at once. A handshake of the other host takes some milliseconds.
const STRANGERS_MAX: usize = 32;

/// Those who are being listened to.
#[derive(Debug, Default)]
pub(super) struct Strangers(Mutex<VecDeque<Weak<TcpStream>>>);

impl Strangers {
    /// Lets one in, for as long as somebody has its connection and it is not displaced.
    pub(super) fn let_in(&self, connection: Weak<TcpStream>) {
        let mut all = self.0.lock();
        all.retain(|known| known.strong_count() > 0);
        if all.len() >= STRANGERS_MAX
            && let Some(oldest) = all.pop_front().and_then(|oldest| oldest.upgrade())
        {
            let _ = oldest.shutdown(Shutdown::Both);
        }
        all.push_back(connection);
    }

    /// Ends the connections of all of them.
    pub(super) fn dismiss(&self) {
        for stranger in self.0.lock().drain(..).filter_map(|stranger| stranger.upgrade()) {
            let _ = stranger.shutdown(Shutdown::Both);
        }
    }

    /// It is none any more.
    pub(super) fn know(&self, connection: &Weak<TcpStream>) {
        self.0.lock().retain(|known| !known.ptr_eq(connection));
    }
}
