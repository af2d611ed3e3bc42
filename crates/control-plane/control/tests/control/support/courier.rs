//! Messages to recipients, as they arrive.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use parking_lot::Mutex;
use strongroom_api::recipient::{Destination, Message};
use strongroom_control::courier::{Courier, Undelivered};
use uuid::Uuid;

use super::fuse::Fuse;

/// Takes messages, unless it is closed.
pub struct Postbox {
    pub fuse: Arc<Fuse>,
    pub taken: Mutex<Vec<(Uuid, Message)>>,
    pub closed: Mutex<Option<Uuid>>,
    /// Who takes the next message only when the sender of this is dropped.
    pub slow: Mutex<Option<(Uuid, Receiver<()>)>>,
}

impl Postbox {
    pub fn of(fuse: &Arc<Fuse>) -> Arc<Self> {
        let (taken, closed, slow) = (Mutex::default(), Mutex::default(), Mutex::default());
        Arc::new(Self { fuse: Arc::clone(fuse), taken, closed, slow })
    }

    /// The numbers of the events that a recipient was told, in order, once each.
    pub fn events_of(&self, recipient: Uuid) -> Vec<u64> {
        let taken = self.taken.lock();
        let of_it = taken.iter().filter(|(to, _)| *to == recipient);
        let mut events = Vec::new();
        for notice in of_it.flat_map(|(_, message)| &message.notices) {
            // The same can come again.
            if !events.contains(&notice.event) {
                events.push(notice.event);
            }
        }
        events
    }

    pub fn messages_to(&self, recipient: Uuid) -> Vec<Message> {
        let taken = self.taken.lock();
        taken.iter().filter(|(to, _)| *to == recipient).map(|(_, message)| message.clone()).collect()
    }
}

impl Courier for Postbox {
    fn check(&self, to: &Destination) -> Result<(), Undelivered> {
        match to.shown() {
            "https://nowhere" => Err(Undelivered("there is no such place".to_owned())),
            _ => Ok(()),
        }
    }

    fn deliver(&self, recipient: Uuid, _: &Destination, message: &Message) -> Result<(), Undelivered> {
        let slow = self.slow.lock().take_if(|(slow, _)| *slow == recipient);
        if let Some((_, until)) = slow {
            let _ = until.recv();
        }
        let lost = || Undelivered("the connection was cut".to_owned());
        if !self.fuse.passes() || *self.closed.lock() == Some(recipient) {
            return Err(lost());
        }
        self.taken.lock().push((recipient, message.clone()));
        // It has arrived, but the answer is lost.
        if self.fuse.passes() { Ok(()) } else { Err(lost()) }
    }

    fn secret(&self, recipient: Uuid) -> String {
        format!("whsec_{}", recipient.simple())
    }
}
