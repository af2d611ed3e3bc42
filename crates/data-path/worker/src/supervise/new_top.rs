//! Puts a new top on a volume for a process that copies its layers (`worker/src/relocate`): the
//! layer that took the writes is complete then, and does not change any more.

use strongroom_types::LayerId;

use super::merge::Failure;
use super::{Supervisor, refuse};
use crate::control::Answer;

impl Supervisor {
    /// Puts a new top on the layer `over`, if that takes the writes, and tells whether the layers
    /// below the top are complete.
    pub(super) fn put_new_top(&mut self, over: LayerId, least_generation: u64) -> Answer {
        let head = &self.exposure.head;
        if let Err(error) = head.descriptor().expect_generation(head.path(), least_generation) {
            return refuse(&error);
        }
        let busy = |message: &str| Answer::Refused { code: "busy".to_owned(), message: message.to_owned() };
        if self.rewrap.is_some() {
            return busy("the volume is being moved to another key; ask again in a minute");
        }
        let descriptor = head.descriptor();
        if descriptor.top == over {
            if descriptor.closing().is_some() || self.snapshot.is_some() {
                return busy("the layer below the top is still being completed; ask again in a minute");
            }
            match self.put_top_on() {
                Ok(_) => {}
                Err(Failure::Later(message) | Failure::Final(message)) => {
                    return Answer::Refused { code: "snapshot".to_owned(), message };
                }
            }
        }
        let descriptor = self.exposure.head.descriptor();
        Answer::NewTop { is_ready: descriptor.closing().is_none(), generation: descriptor.generation }
    }
}
