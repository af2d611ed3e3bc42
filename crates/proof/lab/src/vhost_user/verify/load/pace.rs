//! Load with a limited rate, and growing disks, for runs of hours.

use std::time::{Duration, Instant};

use strongroom_types::SECTOR_BYTES;

use super::Load;
use crate::vhost_user::front_end::Wake;
use crate::vhost_user::verify::error::LoadError;

impl Load {
    /// Sends nothing until then, and takes answers; the load's own pauses do not count as stalls.
    pub fn rest(&mut self, until: Instant) -> Result<(), LoadError> {
        while Instant::now() < until {
            if self.collect()? {
                continue;
            }
            if self.in_flight > 0 {
                self.wait(Some(until))?;
                continue;
            }
            match self.front_end.wait(until.saturating_duration_since(Instant::now()))? {
                Wake::Answers | Wake::Nothing => {}
                Wake::Gone => return Err(LoadError::Disconnected),
                Wake::Broken(queue) => return Err(LoadError::BrokenQueue(queue)),
            }
        }
        Ok(())
    }

    /// How long no request has been answered.
    pub fn current_stall(&self) -> Duration {
        if self.in_flight == 0 { Duration::ZERO } else { self.last_sign.elapsed() }
    }

    /// Extends the used area to `area_bytes`. The disk must have that size by now, even if it was
    /// smaller when the load began. The new part must hold zeroes.
    pub fn extend(&mut self, area_bytes: u64) {
        let sectors = area_bytes / SECTOR_BYTES;
        self.oracle.extend(sectors);
        self.plan.extend(sectors);
    }
}
