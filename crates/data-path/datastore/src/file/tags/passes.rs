//! Flushes of a volume: one pass at a time makes everything durable, for all flushes that wait.
//!
//! A pass covers all requests, on all channels, that had ended before it began, so it answers every
//! flush submitted before it began. Flushes that arrive while it is under way share the next one.

use strongroom_io::IoError;

/// The passes of one volume.
#[derive(Debug)]
pub struct Passes {
    begun: u64,
    ended: u64,
    running: bool,
    last: Result<(), IoError>,
    /// Whether an fsync of the sidecar has failed, or the result of an operation is unknown. Then
    /// no pass succeeds any more.
    failed: bool,
}

/// The pass that a flush waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassNumber(u64);

impl Default for Passes {
    fn default() -> Self {
        Self { begun: 0, ended: 0, running: false, last: Ok(()), failed: false }
    }
}

impl Passes {
    /// The first pass that covers everything up to now.
    pub fn next(&self) -> PassNumber {
        PassNumber(self.begun + 1)
    }

    /// The result of a pass, or of a later one, which covers at least as much; `None` until it has
    /// ended.
    pub fn result(&self, number: PassNumber) -> Option<Result<(), IoError>> {
        (self.ended >= number.0).then_some(self.last)
    }

    /// Begins the next pass, if none is under way.
    pub fn begin(&mut self) -> bool {
        if self.running {
            return false;
        }
        self.running = true;
        self.begun += 1;
        true
    }

    /// Ends the pass under way.
    pub fn end(&mut self, result: Result<(), IoError>) {
        self.running = false;
        self.ended = self.begun;
        self.last = if self.failed { Err(IoError::FlushFailed) } else { result };
    }

    /// Makes all further passes fail.
    pub fn fail(&mut self) {
        self.failed = true;
    }

    /// Whether all further passes fail.
    pub fn have_failed(&self) -> bool {
        self.failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_is_answered_by_a_pass_that_began_after_it() {
        let mut passes = Passes::default();
        let first = passes.next();
        assert!(passes.begin() && !passes.begin());
        let second = passes.next();
        passes.end(Err(IoError::NoSpace));
        assert_eq!((passes.result(first), passes.result(second)), (Some(Err(IoError::NoSpace)), None));
        assert!(passes.begin());
        passes.end(Ok(()));
        assert_eq!(passes.result(second), Some(Ok(())));
        passes.fail();
        let third = passes.next();
        passes.begin();
        passes.end(Ok(()));
        assert_eq!(passes.result(third), Some(Err(IoError::FlushFailed)));
    }
}
