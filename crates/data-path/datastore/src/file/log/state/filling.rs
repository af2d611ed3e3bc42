//! Which segments were never written, and are filled with zeroes ahead of the records.

use super::{Segment, State, Use};

/// Segments that are kept ready ahead of the records. While one is being filled, writers take the
/// other.
const READY: usize = 2;

impl State {
    /// Notes where the log's file was never written: from this offset on.
    pub fn note_written_until(&mut self, hole: u64) {
        for number in 0..self.segments.len() {
            self.segments[number].is_written = self.offset(number, self.segment_blocks) <= hole;
        }
    }

    /// Whether fewer free segments are ready than writers may need soon, and there are others to
    /// fill.
    pub fn lacks_filled_segments(&self) -> bool {
        self.next_to_fill().is_some()
    }

    fn next_to_fill(&self) -> Option<usize> {
        let is_free = |segment: &&Segment| segment.state == Use::Free;
        let ready = self.segments.iter().filter(is_free).filter(|segment| segment.is_written).count();
        // A log that is not appended to needs none.
        if ready >= READY || self.in_use.is_empty() || self.is_held {
            return None;
        }
        self.segments.iter().position(|segment| segment.state == Use::Free && !segment.is_written)
    }

    /// Takes the next segment that should be filled, so that no record gets space in it meanwhile.
    pub fn begin_filling(&mut self) -> Option<usize> {
        let number = self.next_to_fill()?;
        self.segments[number].state = Use::Filling;
        Some(number)
    }

    /// Frees a segment that was being filled, when nothing is being written to it any more.
    pub fn end_filling(&mut self, number: usize, end: FillingEnd) {
        debug_assert_eq!(self.segments[number].state, Use::Filling);
        self.segments[number].state = Use::Free;
        match end {
            FillingEnd::Filled => self.segments[number].is_written = true,
            FillingEnd::Halted => {}
            // Records are appended to all segments as they are.
            FillingEnd::Failed => self.segments.iter_mut().for_each(|segment| segment.is_written = true),
        }
        self.wake_waiting();
    }
}

/// How the filling of a segment ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillingEnd {
    /// All of it is written.
    Filled,
    /// It was halted, and can be done again.
    Halted,
    /// A write failed.
    Failed,
}
