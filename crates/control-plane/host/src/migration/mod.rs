//! Who runs a VM that moves to another host while it runs: what the inventory decides, and what
//! each host records and obeys.
//!
//! ```text
//! inventory   Prepared --released--> HandedOver --ready--> Committed        the target runs
//!                 |                      |
//!              abandon                abandon
//!                 v                      v
//!              Aborted <--target over-- Aborting                            the source runs
//!
//! source      (its) --> Leaving --> Left     upon Committed
//!                          +-----> Here      upon Aborted
//! target      Coming --> Here                upon Committed
//!                +-----> Left                upon Aborting, Aborted
//! ```
//!
//! An attempt is known by the generation that it prepares, which no other attempt of the VM has. A
//! message may be lost, come late or come twice, and each process may end between any two steps:
//! - *The inventory decides*, in one transaction that is durable before anybody is told.
//! - *The source* records [`Place::Leaving`] before it closes the volumes and says so. From then on
//!   the guest continues there only upon [`Decision::Aborted`].
//! - *The target* opens the volumes from [`Decision::HandedOver`] on, and its guest continues upon
//!   [`Decision::Committed`].
//! - A target that may have opened the volumes is heard, or fenced, before the source goes on:
//!   therefore [`Decision::Aborting`].
//!
//! `tests` walks through all states that can be reached.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::protocol::VmGeneration;

/// What the inventory has decided about an attempt. It never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// The source runs. The target loads the memory, and has opened nothing.
    Prepared,
    /// The source has closed the volumes. The target may open them; neither runs.
    HandedOver,
    /// The target runs.
    Committed,
    /// The target is to close the volumes; neither runs.
    Aborting,
    /// The source runs.
    Aborted,
}

/// What a decision follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Heard {
    /// The source has recorded that the VM is leaving, and closed the volumes.
    Released,
    /// The target has loaded the memory and opened the volumes.
    Ready,
    /// Somebody cancels, or a step has failed.
    Abandon,
    /// The target has closed the volumes and refuses the attempt from now on, or none of its writes
    /// can land any more.
    TargetOver,
}

impl Decision {
    /// The decision after this, or the present one if this comes too late or twice.
    #[must_use]
    pub fn after(self, heard: Heard) -> Self {
        match (self, heard) {
            (Self::Prepared, Heard::Released) => Self::HandedOver,
            (Self::HandedOver, Heard::Ready) => Self::Committed,
            // The target was never let open the volumes.
            (Self::Prepared, Heard::Abandon) | (Self::Aborting, Heard::TargetOver) => Self::Aborted,
            (Self::HandedOver, Heard::Abandon) => Self::Aborting,
            (Self::Prepared | Self::HandedOver, Heard::TargetOver)
            | (Self::Prepared, Heard::Ready)
            | (Self::HandedOver | Self::Aborting, Heard::Released)
            | (Self::Aborting, Heard::Ready | Heard::Abandon)
            | (Self::Committed | Self::Aborted, _) => self,
        }
    }

    /// Whether it is settled who runs the VM.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Committed | Self::Aborted)
    }

    /// Whether the target may have opened the volumes.
    pub fn lets_target_open(self) -> bool {
        !matches!(self, Self::Prepared | Self::Aborted)
    }
}

/// Where a VM is, as far as a host knows that VMs move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// It has left.
    Left,
    /// It was given up by another host, or has come back, and is here.
    Here,
    /// Its guest has stopped here to go on elsewhere. Nothing of it goes on.
    Leaving,
    /// It is loaded here, and runs elsewhere.
    Coming,
}

impl Place {
    /// Whether it is not settled yet where the VM goes on.
    pub fn is_between(self) -> bool {
        matches!(self, Self::Leaving | Self::Coming)
    }
}

/// What a host records of a VM that moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stay {
    /// The generation of the order: that of the attempt, if the VM runs meanwhile.
    pub generation: VmGeneration,
    /// Where the VM is.
    pub place: Place,
}

/// Why a host does not record something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotRecorded {
    /// It is from before something that the host knows.
    #[error("the move was ordered after start {ordered}, and this host knows start {known}")]
    Late {
        /// The order's generation.
        ordered: VmGeneration,
        /// The generation that the host knows.
        known: VmGeneration,
    },
    /// Another attempt is not over.
    #[error("attempt {known} to move it while it runs is not over here")]
    Unsettled {
        /// That attempt.
        known: VmGeneration,
    },
}

impl Stay {
    /// Checks that a host which knows `known` records this next.
    ///
    /// # Errors
    /// [`NotRecorded`]. What is recorded already may be recorded again.
    pub fn follows(self, known: Option<Self>) -> Result<(), NotRecorded> {
        let Some(known) = known else { return Ok(()) };
        if known == self {
            return Ok(());
        }
        let (begins, is_open) = (self.place.is_between(), known.place.is_between());
        if self.generation < known.generation {
            return Err(NotRecorded::Late { ordered: self.generation, known: known.generation });
        }
        if self.generation == known.generation {
            // An attempt ends once.
            return match is_open && !begins {
                true => Ok(()),
                false => Err(NotRecorded::Late { ordered: self.generation, known: known.generation }),
            };
        }
        // The inventory has moved a VM on, perhaps after a fence. It begins no attempt before the
        // last one is over.
        match is_open && begins {
            true => Err(NotRecorded::Unsettled { known: known.generation }),
            false => Ok(()),
        }
    }
}
