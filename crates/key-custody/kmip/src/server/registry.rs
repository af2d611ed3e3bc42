//! The registry of open connections, through which they are closed.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use strongroom_serving::{Full, Place};
use tokio::sync::watch;

use super::{Fingerprint, Peer, RefusalReason};

/// An order to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Go on.
    Serve,
    /// End once the request in progress is answered.
    Drain,
    /// End without another answer.
    Close,
}

#[derive(Default)]
pub(super) struct Registry {
    connections: Mutex<Connections>,
}

#[derive(Default)]
struct Connections {
    next: u64,
    open: HashMap<u64, Connection>,
}

struct Connection {
    /// None until the handshake is over.
    peer: Option<Arc<Peer>>,
    order: watch::Sender<Order>,
}

impl Registry {
    /// Adds a connection, which holds this place.
    pub fn enter(self: &Arc<Self>, place: Place<Fingerprint>) -> Slot {
        let mut connections = self.connections.lock();
        let number = connections.next;
        connections.next += 1;
        let (order, told) = watch::channel(Order::Serve);
        connections.open.insert(number, Connection { peer: None, order });
        Slot { registry: Arc::clone(self), number, told, place }
    }

    /// How many connections there are.
    pub fn len(&self) -> usize {
        self.connections.lock().open.len()
    }

    /// Gives an order to the connections of chosen peers and returns their number.
    pub fn order_peers(&self, order: Order, chosen: impl Fn(&Peer) -> bool) -> usize {
        let mut ordered = 0;
        for open in self.connections.lock().open.values() {
            if open.peer.as_deref().is_some_and(&chosen) {
                open.order.send_replace(order);
                ordered += 1;
            }
        }
        ordered
    }

    /// Orders all connections to drain; those with an order to close still close.
    pub fn drain(&self) {
        for open in self.connections.lock().open.values() {
            open.order.send_if_modified(|order| {
                let serving = *order == Order::Serve;
                if serving {
                    *order = Order::Drain;
                }
                serving
            });
        }
    }
}

/// One connection's entry; dropping it removes the connection.
pub(super) struct Slot {
    registry: Arc<Registry>,
    number: u64,
    told: watch::Receiver<Order>,
    place: Place<Fingerprint>,
}

impl Slot {
    /// Records the connection's peer, if the peer may have one more.
    pub fn identify(&self, peer: &Arc<Peer>) -> Result<(), RefusalReason> {
        self.place.known_as(&peer.fingerprint).map_err(|full| match full {
            Full::All(limit) => RefusalReason::Connections(limit),
            Full::OfOne(limit) => RefusalReason::ConnectionsOfOnePeer(limit),
        })?;
        if let Some(open) = self.registry.connections.lock().open.get_mut(&self.number) {
            open.peer = Some(Arc::clone(peer));
        }
        Ok(())
    }

    /// Returns once another connection has taken its place, which happens only before its handshake
    /// ends.
    pub async fn displaced(&self) {
        self.place.displaced().await;
    }

    /// The connection's last order.
    pub fn order(&self) -> Order {
        *self.told.borrow()
    }

    /// Returns once the connection has an order to end, at once or after a request.
    pub async fn told_to_end(&self) {
        let mut told = self.told.clone();
        // The sender is in the registry as long as the slot, so this ends only with an order.
        let _ = told.wait_for(|order| *order != Order::Serve).await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.registry.connections.lock().open.remove(&self.number);
    }
}
