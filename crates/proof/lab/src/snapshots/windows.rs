//! Windows of time, in which guests' longest waits for an answer are observed.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::first_writes::writer::Answers;
use crate::study::SubjectError;

/// How often the load is looked at within a window.
const LOOK_PERIOD: Duration = Duration::from_millis(10);
/// How long a window goes on after what was done in it has ended.
const TAIL: Duration = Duration::from_millis(50);

/// What was seen in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The longest gap between two answers of a disk, of all disks.
    pub gap: Duration,
    /// How long the window was.
    pub lasted: Duration,
}

/// Guests under load, each with its answers.
pub struct Watched<'run> {
    /// By disk.
    pub answers: &'run [Answers],
    /// Whether a guest has ended, which only a failure can be the reason of.
    pub has_failed: &'run dyn Fn() -> bool,
    /// Set to stop.
    pub stop: &'run AtomicBool,
}

impl Watched<'_> {
    /// Watches for `least`, and longer if `action`, which begins at once, takes longer.
    pub fn watch(
        &self,
        least: Duration,
        action: &mut dyn FnMut() -> Result<(), SubjectError>,
    ) -> Result<Seen, SubjectError> {
        self.answers.iter().for_each(|answers| drop(answers.take()));
        let start = Instant::now();
        action()?;
        self.wait((start + least).max(Instant::now() + TAIL))?;
        let window = start..Instant::now();
        let gap = self.answers.iter().map(|answers| longest_gap(&answers.take(), &window)).max();
        Ok(Seen { gap: gap.unwrap_or_default(), lasted: window.end - window.start })
    }

    /// Lets the load run until `end`.
    pub fn wait(&self, end: Instant) -> Result<(), SubjectError> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err("a signal asked for the end".into());
            }
            if (self.has_failed)() {
                return Err("a guest's load has ended".into());
            }
            match end.saturating_duration_since(Instant::now()) {
                Duration::ZERO => return Ok(()),
                left => thread::sleep(left.min(LOOK_PERIOD)),
            }
        }
    }
}

/// The longest time without an answer in `window`. A gap that begins before it or ends after it
/// counts with what lies in it.
fn longest_gap(answers: &[Instant], window: &Range<Instant>) -> Duration {
    let inside = answers.iter().copied().filter(|answer| window.contains(answer));
    let mut before = window.start;
    let gaps = inside.chain([window.end]).map(|answer| {
        let gap = answer.saturating_duration_since(before);
        before = answer;
        gap
    });
    gaps.max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_between_answers_or_the_windows_ends() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let gap = |answers: &[u64]| {
            let answers: Vec<Instant> = answers.iter().map(|ms| at(*ms)).collect();
            longest_gap(&answers, &(at(100)..at(200))).as_millis()
        };
        assert_eq!(gap(&[]), 100);
        assert_eq!(gap(&[10, 90, 250]), 100);
        assert_eq!(gap(&[110, 120, 160, 190]), 40);
        assert_eq!(gap(&[50, 105, 110, 115, 300]), 85);
        assert_eq!(gap(&[170, 180, 190]), 70);
    }

    #[test]
    fn a_window_is_as_long_as_what_is_done_in_it_and_ends_with_a_guest() {
        let answers = [Answers::default()];
        let failed = AtomicBool::new(false);
        let has_failed = || failed.load(Ordering::Relaxed);
        let stop = AtomicBool::new(false);
        let watched = Watched { answers: &answers, has_failed: &has_failed, stop: &stop };
        let mut long = || {
            thread::sleep(Duration::from_millis(20));
            Ok(())
        };
        let seen = watched.watch(Duration::ZERO, &mut long).unwrap();
        assert!(seen.lasted >= Duration::from_millis(20) + TAIL && seen.gap == seen.lasted, "{seen:?}");
        failed.store(true, Ordering::Relaxed);
        assert!(watched.watch(Duration::from_secs(3600), &mut || Ok(())).is_err());
        failed.store(false, Ordering::Relaxed);
        stop.store(true, Ordering::Relaxed);
        assert!(watched.watch(Duration::from_secs(3600), &mut || Ok(())).is_err());
    }
}
