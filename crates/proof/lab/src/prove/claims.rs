//! Claims about known quantities that the instrument must confirm.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use serde::Serialize;

use super::study::{
    AGAIN, DELAY, DELAYED, DELAYED_AGAIN, FIRST, FIRST_AGAIN, LIMITED, PLAIN, PROGRAM, PROGRAMS, ProofConfig,
    RATE, SAME_SERVER, SLOWER, SLOWER_PROGRAM, WORK,
};
use crate::study::{
    Baseline, Interval, Metric, Report, ReportSettings, Row, Saturated, Store, Verdict, WorkloadReport,
};

/// The relative tolerance of a figure.
const TOLERANCE: f64 = 0.05;

/// A claim that the instrument must confirm.
#[derive(Clone, Debug, Serialize)]
pub struct Claim {
    /// The claim.
    pub claim: String,
    /// The finding.
    pub found: String,
    /// Whether the claim holds.
    pub holds: bool,
}

impl Display for Claim {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let holds = if self.holds { "holds" } else { "DOES NOT HOLD" };
        write!(f, "{}: {}: {holds}", self.claim, self.found)
    }
}

/// The comparisons in the report of such a study.
pub fn report_settings() -> ReportSettings {
    // Each workload has one of these.
    let subjects = [PLAIN, FIRST, PROGRAM].map(str::to_owned).to_vec();
    let again = [DELAYED, FIRST_AGAIN].map(str::to_owned).to_vec();
    let settings = ReportSettings::new(vec![
        Baseline { title: "the first".to_owned(), subjects },
        Baseline { title: "the second".to_owned(), subjects: again },
    ]);
    ReportSettings {
        columns: vec![Metric::OperationsPerSecond, Metric::LatencyMeanUs, Metric::ServerCpuUsPerOperation],
        ..settings
    }
}

/// Judges the results of a study, as far as they were measured.
pub fn claims(store: &Store, report: &Report, config: &ProofConfig) -> Vec<Claim> {
    let mut claims = Vec::new();
    if let Some(workload) = report.workload(DELAY) {
        claims.push(delay(store, config.delay));
        claims.extend(compared(workload, "a delayed server is slower", DELAYED, 0, &[Verdict::Worse]));
        let claim = "two delayed servers are equal";
        claims.extend(compared(workload, claim, DELAYED_AGAIN, 1, &[Verdict::NoDifference]));
    }
    if let Some(workload) = report.workload(RATE) {
        claims.extend(rate(workload, config.rate_bits));
    }
    if let Some(workload) = report.workload(SAME_SERVER) {
        let claim = "the same server twice is equal";
        claims.extend(compared(workload, claim, AGAIN, 0, &[Verdict::NoDifference]));
    }
    if let Some(workload) = report.workload(WORK) {
        let claim = format!("work that takes {:.0} % longer is told apart", config.slower * 100.0);
        claims.extend(compared(workload, &claim, SLOWER, 0, &[Verdict::Worse]));
        claims.extend(slowness(workload, config.slower));
        // Noise may leave it undecided, but must not produce a difference.
        let open = [Verdict::NoDifference, Verdict::Undecided { rounds_more: None }];
        claims.extend(compared(workload, "the same work twice is not told apart", FIRST_AGAIN, 0, &open));
    }
    if let Some(workload) = report.workload(PROGRAMS) {
        claims.extend(compared(
            workload,
            "the slower build is told apart",
            SLOWER_PROGRAM,
            0,
            &[Verdict::Worse],
        ));
    }
    claims
}

/// Claims that the verdict of a comparison with a baseline is one of these.
fn compared(
    workload: &WorkloadReport,
    claim: &str,
    subject: &str,
    baseline: usize,
    expected: &[Verdict],
) -> Option<Claim> {
    let comparison = workload.row(subject)?.comparison(baseline, workload.headline)?;
    let is_it = |verdict: &Verdict| match verdict {
        Verdict::Undecided { .. } => matches!(comparison.verdict, Verdict::Undecided { .. }),
        verdict => *verdict == comparison.verdict,
    };
    let Interval { median, low, high } = comparison.ratio;
    Some(Claim {
        claim: claim.to_owned(),
        found: format!(
            "{}, {median:.3} ({low:.3} to {high:.3}) of it by {}, p {:.4}, {} rounds",
            comparison.verdict,
            workload.headline.title(),
            comparison.p,
            comparison.rounds
        ),
        holds: expected.iter().any(is_it),
    })
}

/// Claims the latency with the delay minus that without, round by round.
fn delay(store: &Store, injected: Duration) -> Claim {
    let found = store.measurements().iter().filter(|found| found.workload == DELAY);
    let of = |subject: &'static str| found.clone().filter(move |found| found.subject == subject);
    let us = |sample: &crate::study::Sample| sample.get(Metric::LatencyMeanUs);
    let difference = |delayed: &crate::study::Measurement| {
        let plain = of(PLAIN).find(|plain| plain.round == delayed.round)?;
        Some(us(&delayed.sample)? - us(&plain.sample)?)
    };
    let differences: Vec<f64> = of(DELAYED).filter_map(difference).collect();
    let injected_us = injected.as_secs_f64() * 1e6;
    near(format!("a delay of {injected_us:.0} us is found"), Interval::of(&differences), injected_us, "us")
}

/// Claims the transfer rate of the limited server, and that its load saturated nothing.
fn rate(workload: &WorkloadReport, injected_bits: u64) -> Vec<Claim> {
    let injected = injected_bits as f64 / 8e6;
    let interval = |row: &Row| row.metrics.get(&Metric::MegabytesPerSecond).map(|figures| figures.interval);
    let found = workload.row(LIMITED).and_then(interval);
    let mut claims = vec![near(format!("a rate of {injected} MB/s is found"), found, injected, "MB/s")];
    if let Some(row) = workload.row(LIMITED) {
        claims.push(Claim {
            claim: "a load that waits for a limited server is seen to saturate nothing of it".to_owned(),
            found: format!("at its limit: {:?}", row.saturated),
            holds: !row.saturated.contains(&Saturated::Server),
        });
    }
    claims
}

/// Claims the injected ratio of the slower work.
fn slowness(workload: &WorkloadReport, slower: f64) -> Option<Claim> {
    let ratio = workload.row(SLOWER)?.comparison(0, workload.headline)?.ratio;
    Some(near(format!("its ratio is {:.2}", 1.0 + slower), Some(ratio), 1.0 + slower, ""))
}

fn near(claim: String, found: Option<Interval>, known: f64, unit: &str) -> Claim {
    let Some(Interval { median, low, high }) = found else {
        return Claim { claim, found: "nothing".to_owned(), holds: false };
    };
    let off = median / known - 1.0;
    let found = format!("{median:.3} ({low:.3} to {high:.3}) {unit}, off by {:.1} %", off * 100.0);
    Claim { claim, found, holds: off.abs() <= TOLERANCE }
}
