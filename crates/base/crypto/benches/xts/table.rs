//! A table of the least time of each call, by kernel, with the bound measured at the same time,
//! because the processor's clock varies.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Throughput};

use super::bound;

const GIB: f64 = (1_u64 << 30) as f64;

/// The name of the bound's column.
const BOUND: &str = "bound";

/// Rows are calls, in order; columns are kernels.
#[derive(Default)]
pub struct Table {
    rows: Vec<String>,
    columns: Vec<&'static str>,
    /// GiB/s.
    cells: BTreeMap<(String, &'static str), f64>,
}

impl Table {
    /// Measures `call`, which processes `call_bytes`, unless the command line excludes it. Calls
    /// for `together_bytes` are timed together.
    pub fn measure(
        &mut self,
        group: &mut BenchmarkGroup<'_, WallTime>,
        row: &str,
        column: &'static str,
        (call_bytes, together_bytes): (usize, usize),
        mut call: impl FnMut(),
    ) {
        let together = (together_bytes / call_bytes).max(1) as u64;
        let mut least_seconds = f64::INFINITY;
        group.throughput(Throughput::Bytes(call_bytes as u64));
        group.bench_function(column, |bencher| {
            bencher.iter_custom(|calls| time(calls, together, &mut least_seconds, &mut call));
        });
        if least_seconds.is_infinite() {
            return;
        }
        if self.rows.last().is_none_or(|last| last != row) {
            self.rows.push(row.to_owned());
        }
        if !self.columns.contains(&column) {
            self.columns.push(column);
        }
        self.cells.insert((row.to_owned(), column), call_bytes as f64 / least_seconds / GIB);
    }

    /// Measures the bound for a row.
    pub fn measure_bound(&mut self, group: &mut BenchmarkGroup<'_, WallTime>, row: &str) {
        if let Some(bound) = bound::widest() {
            self.measure(group, row, BOUND, (bound.bytes, bound.bytes), bound.run);
        }
    }
}

/// Returns the total time of `calls` calls, of which `together` are timed together. Updates the
/// least time of one call.
fn time(calls: u64, together: u64, least_seconds: &mut f64, call: &mut impl FnMut()) -> Duration {
    let mut total = Duration::ZERO;
    let mut left = calls;
    while left > 0 {
        let now = left.min(together);
        let start = Instant::now();
        (0..now).for_each(|_| call());
        let elapsed = start.elapsed();
        if now == together {
            *least_seconds = least_seconds.min(elapsed.as_secs_f64() / now as f64);
        }
        total += elapsed;
        left -= now;
    }
    total
}

/// A Markdown table; cells are in GiB/s, with their share of the bound.
impl Display for Table {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "\n| GiB/s from the least times | {} |", self.columns.join(" | "))?;
        writeln!(formatter, "|---|{}", "---|".repeat(self.columns.len()))?;
        for row in &self.rows {
            write!(formatter, "| {row} |")?;
            let speed = |column| self.cells.get(&(row.clone(), column));
            for column in &self.columns {
                match (speed(column), speed(BOUND)) {
                    (Some(speed), Some(bound)) if *column != BOUND => {
                        write!(formatter, " {speed:.1} ({:.2}) |", speed / bound)?;
                    }
                    (Some(speed), _) => write!(formatter, " {speed:.1} |")?,
                    (None, _) => write!(formatter, " |")?,
                }
            }
            writeln!(formatter)?;
        }
        Ok(())
    }
}
