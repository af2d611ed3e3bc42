//! Runs `scripts/guest/diskexercise.c` in a guest.

use std::time::Duration;

use crate::guest::Guest;
use crate::session::{RunningCommand, Session};

/// Timeout between two lines of progress, including the replacement of a killed server.
const PROGRESS_DEADLINE: Duration = Duration::from_secs(120);
/// Timeout of the final read of the whole region, on an emulated processor.
const FINISH_DEADLINE: Duration = Duration::from_secs(180);
/// Operations between two lines of progress.
const PROGRESS_OPS: u64 = 20;
/// The default number of requests in flight.
const DEPTH: usize = 4;

/// Verified I/O of mixed sizes in the guest, until it is told to stop.
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

    /// Returns the longest time between two completions, by the guest's clock, since the last call.
    pub fn take_longest_gap(&mut self) -> Duration {
        std::mem::take(&mut self.longest_gap)
    }

    /// Waits until it has done this many more operations than at its last report. Returns the
    /// total.
    #[track_caller]
    pub fn wait_for_more(&mut self, operations: u64) -> u64 {
        let mut done = self.wait_for_progress();
        let enough = done + operations;
        while done < enough {
            done = self.wait_for_progress();
        }
        done
    }

    /// Ends it: all that it wrote is read again and verified.
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

/// The result of diskexercise.
#[derive(Debug)]
pub struct ExerciseReport {
    /// Reads, writes and flushes done.
    pub operations: u64,
    /// The number of operations that the guest's kernel reported as failed.
    pub errors: u64,
    /// Sectors that did not hold what was last written to them.
    pub mismatches: u64,
    /// The longest time that an operation took.
    pub longest_stall: Duration,
    /// Its whole output, including its first complaint.
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

    /// Fails the test unless every operation succeeded and all data was as written.
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
