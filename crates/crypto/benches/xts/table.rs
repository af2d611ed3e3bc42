//! The least time of each call, by kernel.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

const GIB: f64 = (1_u64 << 30) as f64;

/// The least time of a call. Calls that are short against the clock are timed some at a time.
pub struct Least {
    call_bytes: usize,
    seconds: f64,
}

impl Least {
    pub fn of_calls(call_bytes: usize) -> Self {
        Self { call_bytes, seconds: f64::INFINITY }
    }

    /// Times `calls` calls; returns how long they took together.
    pub fn time(&mut self, calls: u64, mut call: impl FnMut()) -> Duration {
        const TOGETHER_BYTES: usize = 128 << 10;
        let together = (TOGETHER_BYTES / self.call_bytes).max(1) as u64;
        let mut total = Duration::ZERO;
        let mut left = calls;
        while left > 0 {
            let now = left.min(together);
            let start = Instant::now();
            (0..now).for_each(|_| call());
            let elapsed = start.elapsed();
            if now == together {
                self.seconds = self.seconds.min(elapsed.as_secs_f64() / now as f64);
            }
            total += elapsed;
            left -= now;
        }
        total
    }

    pub fn gib_per_second(&self) -> f64 {
        self.call_bytes as f64 / self.seconds / GIB
    }
}

/// Rows are calls, in order; columns are kernels.
#[derive(Default)]
pub struct Table {
    rows: Vec<String>,
    columns: Vec<&'static str>,
    cells: BTreeMap<(String, &'static str), f64>,
}

impl Table {
    pub fn add(&mut self, row: &str, column: &'static str, least: Least) {
        if self.rows.last().is_none_or(|last| last != row) {
            self.rows.push(row.to_owned());
        }
        if !self.columns.contains(&column) {
            self.columns.push(column);
        }
        self.cells.insert((row.to_owned(), column), least.gib_per_second());
    }

    /// The table in Markdown, each cell in GiB/s and, in parentheses, as a part of the greatest bound.
    pub fn beside(&self, bounds: &[(&'static str, f64)]) -> String {
        let mut text = String::from("\nGiB/s, from the least times\n\n");
        for (name, bound) in bounds {
            let _ = writeln!(text, "bound, {name}: {bound:.1}");
        }
        let greatest = bounds.iter().map(|(_, bound)| *bound).fold(f64::NAN, f64::max);
        let _ = writeln!(text, "\n| data, direction, units of a call | {} |", self.columns.join(" | "));
        let _ = writeln!(text, "|---|{}", "---|".repeat(self.columns.len()));
        for row in &self.rows {
            let _ = write!(text, "| {row} |");
            for column in &self.columns {
                if let Some(speed) = self.cells.get(&(row.clone(), column)) {
                    let _ = write!(text, " {speed:.1} ({:.2}) |", speed / greatest);
                }
            }
            text.push('\n');
        }
        text
    }
}
