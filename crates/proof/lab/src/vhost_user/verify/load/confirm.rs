//! Rereads wrong sectors, to distinguish a stale read from a lost write.

use strongroom_types::{Extent, SECTOR_BYTES};

use super::Load;
use crate::vhost_user::queue::{Operation, Shape};
use crate::vhost_user::verify::error::{FINDINGS_MAX, LoadError};

impl Load {
    /// Reads wrong sectors again after all requests have completed. Failures meanwhile are ignored,
    /// because the first findings are more specific.
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

    /// Waits until everything is answered, ignoring the content of the answers.
    fn settle(&mut self) -> Result<(), LoadError> {
        while self.in_flight > 0 {
            if !self.take_answers()? {
                self.wait(None)?;
            }
        }
        Ok(())
    }
}
