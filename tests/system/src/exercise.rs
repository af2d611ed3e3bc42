//! `scripts/guest/diskexercise.c`, run in a guest.

use std::time::Duration;

use crate::guest::Guest;
use crate::session::{RunningCommand, Session};

/// From one line of progress to the next, a killed server included.
const PROGRESS_DEADLINE: Duration = Duration::from_secs(120);
/// The final read of the whole region, on an emulated processor.
const FINISH_DEADLINE: Duration = Duration::from_secs(180);
/// Operations from one line of progress to the next.
const PROGRESS_OPS: u64 = 20;
/// Requests that are in flight together, where a test does not ask for more.
const DEPTH: usize = 4;

/// Verified I/O of mixed sizes, going on in the guest until it is told to stop.
pub struct Exercise<'session> {
    command: RunningCommand<'session>,
    longest_gap: Duration,
}

impl<'session> Exercise<'session> {
    /// Starts it on the first `length` (e.g. `"64M"`) of `device`, on four threads.
    pub fn start(guest: &'session mut Guest, device: &str, length: &str) -> Self {
        Self::start_in(guest.session(), device, length, DEPTH)
    }

    /// Starts it on that many threads, each with one request in flight.
    pub fn start_in(session: &'session mut Session, device: &str, length: &str, depth: usize) -> Self {
        let command = session.start(&format!(
            "diskexercise --device {device} --length {length} --threads {depth} --progress {PROGRESS_OPS} \
             --until-input </dev/ttyS0"
        ));
        Self { command, longest_gap: Duration::ZERO }
    }

    /// The longest time without any operation's end, in the guest's clock, that it has told since
    /// this was last asked.
    pub fn take_longest_gap(&mut self) -> Duration {
        std::mem::take(&mut self.longest_gap)
    }

    /// Waits until it has done that many more operations than when it was last heard of, and
    /// returns how many in all.
    #[track_caller]
    pub fn wait_for_more(&mut self, operations: u64) -> u64 {
        let mut done = self.wait_for_progress();
        let enough = done + operations;
        while done < enough {
            done = self.wait_for_progress();
        }
        done
    }

    /// Ends it: everything it wrote is read once more and verified.
    #[track_caller]
    pub fn stop(mut self) -> ExerciseReport {
        self.command.send_line("stop");
        let output = self.command.finish(FINISH_DEADLINE);
        ExerciseReport::parse(&output.text)
    }

    #[track_caller]
    fn wait_for_progress(&mut self) -> u64 {
        let is_progress = |line: &str| line.starts_with("progress ");
        let line = self.command.wait_for_line("progress of diskexercise", PROGRESS_DEADLINE, is_progress);
        self.longest_gap = self.longest_gap.max(Duration::from_micros(field(&line, "longest_gap_us")));
        field(&line, "ops")
    }
}

/// What diskexercise found.
#[derive(Debug)]
pub struct ExerciseReport {
    /// Reads, writes and flushes done.
    pub operations: u64,
    /// How many of them the guest's kernel reported as failed.
    pub errors: u64,
    /// Sectors that did not hold what was last written to them.
    pub mismatches: u64,
    /// The longest that one of them took.
    pub longest_stall: Duration,
    /// All that it said, the first of its complaints included.
    pub text: String,
}

impl ExerciseReport {
    /// Reads diskexercise's last line.
    #[track_caller]
    pub fn parse(text: &str) -> Self {
        let report = text.lines().rev().find(|line| line.starts_with("diskexercise "));
        let report = report.unwrap_or_else(|| panic!("diskexercise gave no report: {text}"));
        Self {
            operations: field(report, "ops"),
            errors: field(report, "errors"),
            mismatches: field(report, "mismatches"),
            longest_stall: Duration::from_millis(field(report, "longest_stall_ms")),
            text: text.to_owned(),
        }
    }

    /// Fails the test unless every operation succeeded and everything was found as written.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert_eq!((self.errors, self.mismatches), (0, 0), "{}", self.text);
    }
}

/// The number in `name=number`, one of the words of `line`.
#[track_caller]
fn field(line: &str, name: &str) -> u64 {
    line.split_whitespace()
        .find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
        .unwrap_or_else(|| panic!("there is no {name} in {line:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_report_behind_complaints() {
        let report = ExerciseReport::parse(
            "sector 7: write 2 was acknowledged, but it holds zeroes\n\
             diskexercise ops=400 written_bytes=1 read_bytes=2 errors=0 mismatches=1 longest_stall_ms=9 elapsed_ms=3\n",
        );
        assert_eq!((report.operations, report.errors, report.mismatches), (400, 0, 1));
        assert_eq!(report.longest_stall, Duration::from_millis(9));
    }
}
