//! Connections to one server, kept open between requests.

use std::io;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::connection::Connection;
use super::deadline::Deadline;

/// The idle connections, the most recently used last, and the number of all connections.
pub(super) struct Pool {
    state: Mutex<State>,
    returned: Condvar,
    connections_max: usize,
    idle_limit: Duration,
}

#[derive(Default)]
struct State {
    idle: Vec<(Connection, Instant)>,
    in_use: usize,
}

/// The right to use one connection, returned when it is dropped.
pub(super) struct Turn<'a> {
    pool: &'a Pool,
}

impl Pool {
    pub(super) fn new(connections_max: usize, idle_limit: Duration) -> Self {
        Self { state: Mutex::default(), returned: Condvar::new(), connections_max, idle_limit }
    }

    /// Waits until fewer connections than allowed are in use. Also returns an open connection that
    /// passes `fits`, if there is one. Connections that do not pass, or were idle for too long, are
    /// closed.
    ///
    /// # Errors
    /// `TimedOut` at the deadline.
    pub(super) fn take_turn(
        &self,
        deadline: Deadline,
        mut fits: impl FnMut(&mut Connection) -> bool,
    ) -> io::Result<(Turn<'_>, Option<Connection>)> {
        let mut state = self.state.lock();
        while state.in_use >= self.connections_max {
            let left = deadline.left()?;
            self.returned.wait_for(&mut state, left);
        }
        state.in_use += 1;
        let turn = Turn { pool: self };
        let stale = |(_, since): &mut (Connection, Instant)| since.elapsed() >= self.idle_limit;
        let mut closing: Vec<_> =
            state.idle.extract_if(.., stale).map(|(connection, _)| connection).collect();
        let mut found = None;
        while found.is_none() {
            let Some((mut connection, _)) = state.idle.pop() else { break };
            if fits(&mut connection) { found = Some(connection) } else { closing.push(connection) }
        }
        drop(state);
        closing.into_iter().for_each(Connection::close);
        Ok((turn, found))
    }

    /// Closes all idle connections: a failure of one of them likely holds for all.
    pub(super) fn forget(&self) {
        let idle = std::mem::take(&mut self.state.lock().idle);
        idle.into_iter().for_each(|(connection, _)| connection.close());
    }
}

impl Turn<'_> {
    /// Returns a connection that is still good to the pool.
    pub(super) fn keep(self, connection: Connection) {
        let mut state = self.pool.state.lock();
        state.idle.push((connection, Instant::now()));
        drop(state);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.pool.state.lock().in_use -= 1;
        self.pool.returned.notify_one();
    }
}
