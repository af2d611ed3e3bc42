//! A second look at wrong sectors: was a read stale, or is a write lost?

use strongroom_types::{Extent, SECTOR_BYTES};

use super::Load;
use crate::vhost_user::queue::{Operation, Shape};
use crate::vhost_user::verify::error::{FINDINGS_MAX, LoadError};

impl Load {
    /// Reads wrong sectors once more, after everything has ended. What fails meanwhile says no more
    /// than what was found.
    pub(super) fn confirm(&mut self) -> LoadError {
        let mut first = std::mem::take(&mut self.findings);
        first.truncate(FINDINGS_MAX);
        if self.settle().is_ok() {
            for finding in &mut first {
                self.findings.clear();
                let start = finding.sector * SECTOR_BYTES;
                let read = Operation::Read(Extent::between(start, start + SECTOR_BYTES));
                let sent = self.submit(0, read, &Shape::default()).and_then(|_| self.publish());
                let done = sent.and_then(|()| self.settle());
                finding.stays = done.is_ok() && !self.findings.is_empty();
            }
        }
        LoadError::Wrong(first)
    }

    /// Waits until everything is answered, whatever the answers hold.
    fn settle(&mut self) -> Result<(), LoadError> {
        while self.in_flight > 0 {
            if !self.take_answers()? {
                self.wait(None)?;
            }
        }
        Ok(())
    }
}
