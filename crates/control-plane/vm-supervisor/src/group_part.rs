//! The orders to a VM that takes part in a snapshot of several VMs, between the thread that decides
//! over the VM and the one that makes its part.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use strongroom_host::orders::GroupOrder;
use strongroom_host::protocol::Problem;

use crate::vm::Event;

/// How long the next order may take before a freeze: a guest of another VM has to freeze its file
/// systems, or a slow disk to prepare a layer.
const ORDERED_WITHIN: Duration = Duration::from_secs(400);

/// The orders for one attempt. It ends when the sender is dropped.
#[derive(Debug)]
pub struct Orders {
    orders: Receiver<GroupOrder>,
    events: Sender<Event>,
}

impl Orders {
    /// The orders that come from `orders`. Each step that is done is reported to `events`.
    pub fn new(orders: Receiver<GroupOrder>, events: Sender<Event>) -> Self {
        Self { orders, events }
    }

    /// Reports that the part has begun, and waits for the order to prepare it.
    ///
    /// # Errors
    /// If it is abandoned, as for all methods here.
    pub fn await_prepare(&self) -> Result<(), Problem> {
        match self.next(ORDERED_WITHIN)? {
            GroupOrder::Prepare => Ok(()),
            other => Err(out_of_turn(&other)),
        }
    }

    /// Reports that all volumes are prepared, and waits for the order to freeze them. Returns the
    /// lease.
    pub fn await_freeze(&self) -> Result<Duration, Problem> {
        match self.next(ORDERED_WITHIN)? {
            GroupOrder::Freeze { lease_ms } => Ok(Duration::from_millis(lease_ms)),
            other => Err(out_of_turn(&other)),
        }
    }

    /// Reports that all volumes are frozen, and waits for the order to commit, at most for the
    /// lease: then each volume goes on by itself.
    pub fn await_commit(&self, lease: Duration) -> Result<(), Problem> {
        match self.next(lease)? {
            GroupOrder::Commit => Ok(()),
            other => Err(out_of_turn(&other)),
        }
    }

    fn next(&self, within: Duration) -> Result<GroupOrder, Problem> {
        let _ = self.events.send(Event::GroupStepDone);
        match self.orders.recv_timeout(within) {
            Ok(GroupOrder::Abandon) | Err(RecvTimeoutError::Disconnected) => {
                let message = "the snapshot of the group was given up";
                Err(Problem::new("group_void", message).with_next_step("make it again"))
            }
            Ok(order) => Ok(order),
            Err(RecvTimeoutError::Timeout) => {
                let message =
                    format!("no order came within {within:?}, so there is no snapshot of the group");
                Err(Problem::new("group_void", message).with_next_step("make it again"))
            }
        }
    }
}

fn out_of_turn(order: &GroupOrder) -> Problem {
    Problem::new("group_void", format!("the order {order:?} came out of its turn"))
}
