//! The connections of a server: the order of each, and when a new one may start.
//!
//! A client that lost its connection connects again and repeats what was not answered. What it had
//! asked for on the old connection may still be under way: an old write could land on a newer one.
//! So a connection enters transmission only after every connection whose client is gone has ended.
//! It does not matter whether the server has noticed that the client is gone: the newcomer looks at
//! the sockets of the others itself, and what a dead client left unread in them is never executed.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use strongroom_io::Waker;

use super::socket::{Peer, Socket};

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// The client has not shown yet that it wants, and may have, the export.
    Negotiating,
    /// It waits for others to end.
    Waiting,
    /// It has a channel to the disk.
    Transmitting,
    /// It takes nothing more from its client, and ends once the disk is done.
    Ending,
}

/// An order to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Order {
    /// Serve.
    Serve,
    /// Answer what is under way, refuse what is new, and end.
    Drain,
    /// Cut the client off, and end once the disk is done.
    Abandon,
}

/// What others know of a connection.
#[derive(Debug)]
pub struct Member {
    /// Counts connections.
    pub id: u64,
    /// Who is at the other end.
    pub peer: Peer,
    /// The client's socket.
    pub socket: Arc<Socket>,
    phase: AtomicU8,
    order: AtomicU8,
    waker: OnceLock<Arc<Waker>>,
}

impl Member {
    /// How far it has come.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::SeqCst) {
            0 => Phase::Negotiating,
            1 => Phase::Waiting,
            2 => Phase::Transmitting,
            _ => Phase::Ending,
        }
    }

    /// Says how far it has come.
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

    /// From now on orders wake the connection's thread. It has to look for earlier ones itself.
    pub fn wake_by(&self, waker: Arc<Waker>) {
        // A thread does this once.
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
    /// The accepting thread's.
    waker: Arc<Waker>,
}

/// A connection's place among the others, until it is dropped.
#[derive(Debug)]
pub struct Membership {
    connections: Arc<Connections>,
    member: Arc<Member>,
}

impl Connections {
    /// No connections; `waker` is woken whenever one ends.
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

    /// Cuts off the connection that has been negotiating longest; `false` if none is.
    pub fn abandon_oldest_negotiation(&self) -> bool {
        let members = self.members.lock();
        let oldest = members.iter().find(|member| member.phase() == Phase::Negotiating);
        oldest.inspect(|member| member.tell(Order::Abandon)).is_some()
    }
}

impl Membership {
    /// What others know of it.
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// Counts the other connections whose clients are gone and whose requests may still be under
    /// way, after telling them to end. This connection's thread is woken when one has.
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
