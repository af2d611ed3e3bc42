//! The connections of a server: the orders to them, and when a new one may start.
//!
//! A client that lost its connection reconnects and repeats unanswered requests. Its requests on
//! the old connection may still be under way: an old write could land on a newer one. So a
//! connection enters transmission only after every connection whose client is gone has ended. The
//! server need not have noticed that the client is gone: the new connection checks the sockets of
//! the others itself, and unread requests of a dead client are never executed.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use strongroom_io::Waker;

use super::socket::{Peer, Socket};

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// The client has not yet shown that it wants the export and may use it.
    Negotiating,
    /// It waits for others to end.
    Waiting,
    /// It has a channel to the disk.
    Transmitting,
    /// It takes no more requests, and ends once the disk is done.
    Ending,
}

/// An order to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Order {
    /// Serve.
    Serve,
    /// Answer the requests under way, refuse new ones, and end.
    Drain,
    /// Cut the client off, and end once the disk is done.
    Abandon,
}

/// The shared state of a connection.
#[derive(Debug)]
pub struct Member {
    /// Counts connections.
    pub id: u64,
    /// The peer at the other end.
    pub peer: Peer,
    /// The client's socket.
    pub socket: Arc<Socket>,
    phase: AtomicU8,
    order: AtomicU8,
    waker: OnceLock<Arc<Waker>>,
}

impl Member {
    /// Its phase.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::SeqCst) {
            0 => Phase::Negotiating,
            1 => Phase::Waiting,
            2 => Phase::Transmitting,
            _ => Phase::Ending,
        }
    }

    /// Sets its phase.
    pub fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::SeqCst);
    }

    /// Its order.
    pub fn order(&self) -> Order {
        match self.order.load(Ordering::SeqCst) {
            0 => Order::Serve,
            1 => Order::Drain,
            _ => Order::Abandon,
        }
    }

    /// Sets the waker of the connection's thread, which orders call from now on. The thread must
    /// check for earlier orders itself.
    pub fn wake_by(&self, waker: Arc<Waker>) {
        // A thread calls this once.
        let _ = self.waker.set(waker);
    }

    fn tell(&self, order: Order) {
        if self.order.fetch_max(order as u8, Ordering::SeqCst) < order as u8 {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }
}

/// The connections of a server.
#[derive(Debug)]
pub struct Connections {
    members: Mutex<Vec<Arc<Member>>>,
    /// The waker of the accepting thread.
    waker: Arc<Waker>,
}

/// A connection's place among the others, until it is dropped.
#[derive(Debug)]
pub struct Membership {
    connections: Arc<Connections>,
    member: Arc<Member>,
}

impl Connections {
    /// An empty list; `waker` is called whenever a connection ends.
    pub fn new(waker: Arc<Waker>) -> Arc<Self> {
        Arc::new(Self { members: Mutex::default(), waker })
    }

    /// Count of connections.
    pub fn len(&self) -> usize {
        self.members.lock().len()
    }

    /// Adds a connection.
    pub fn join(self: &Arc<Self>, id: u64, socket: Arc<Socket>) -> Membership {
        let member = Arc::new(Member {
            id,
            peer: socket.peer(),
            socket,
            phase: AtomicU8::new(Phase::Negotiating as u8),
            order: AtomicU8::new(Order::Serve as u8),
            waker: OnceLock::new(),
        });
        self.members.lock().push(Arc::clone(&member));
        Membership { connections: Arc::clone(self), member }
    }

    /// Gives an order to every connection.
    pub fn tell_all(&self, order: Order) {
        self.members.lock().iter().for_each(|member| member.tell(order));
    }

    /// Cuts off the connection that has been negotiating longest. Returns `false` if none is.
    pub fn abandon_oldest_negotiation(&self) -> bool {
        let members = self.members.lock();
        let oldest = members.iter().find(|member| member.phase() == Phase::Negotiating);
        oldest.inspect(|member| member.tell(Order::Abandon)).is_some()
    }
}

impl Membership {
    /// Its shared state.
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// Orders the other connections whose clients are gone to end, and counts those whose requests
    /// may still be under way. This connection's thread is woken when one has ended.
    pub fn count_predecessors(&self) -> usize {
        let members = self.connections.members.lock();
        let others = members.iter().filter(|other| other.id != self.member.id);
        let gone = others.filter(|other| match other.phase() {
            Phase::Negotiating | Phase::Waiting => false,
            Phase::Transmitting => other.socket.is_hung_up(),
            Phase::Ending => true,
        });
        gone.inspect(|other| other.tell(Order::Abandon)).count()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut members = self.connections.members.lock();
        members.retain(|member| member.id != self.member.id);
        for member in members.iter().filter(|member| member.phase() == Phase::Waiting) {
            member.wake();
        }
        self.connections.waker.wake();
    }
}
