//! What the load drove to its limit, and who else used the machine.

use serde::Serialize;

use super::super::{Interval, Measurement, Metric, Sample};

/// From this share on, something is at its limit.
const SATURATED_SHARE: f64 = 0.9;
/// A round in which others used more of the machine is told of.
const FOREIGN_SHARE_MAX: f64 = 0.1;

/// Something that was at its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Saturated {
    /// The disk always had something to do.
    Disk,
    /// The server used a processor, or more.
    Server,
    /// The load used a processor, or more: a faster load might find more.
    Client,
    /// All processors were busy.
    Machine,
}

impl Saturated {
    /// As a table says it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Server => "server",
            Self::Client => "client",
            Self::Machine => "machine",
        }
    }
}

/// Who used the machine's processors: medians of the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Usage {
    /// How many processors the server used.
    pub server_processors: Option<f64>,
    /// How many the load used.
    pub client_processors: Option<f64>,
    /// The share of the machine that neither of them used and that was busy or stolen: others, and work of the kernel
    /// that it does in nobody's name, such as interrupts.
    pub foreign_share: f64,
    /// In how many rounds that was more than 10 %.
    pub foreign_rounds: usize,
}

impl Usage {
    /// Of these rounds, if the machine was watched in any.
    pub fn of(rounds: &[&Measurement], processors: usize) -> Option<Self> {
        let foreign: Vec<f64> =
            rounds.iter().filter_map(|found| foreign_share(&found.sample, processors)).collect();
        Some(Self {
            server_processors: median(rounds, |sample| used(sample, Metric::ServerCpuUsPerOperation)),
            client_processors: median(rounds, |sample| used(sample, Metric::ClientCpuUsPerOperation)),
            foreign_share: Interval::of(&foreign)?.median,
            foreign_rounds: foreign.iter().filter(|share| **share > FOREIGN_SHARE_MAX).count(),
        })
    }
}

/// How many processors someone used.
fn used(sample: &Sample, metric: Metric) -> Option<f64> {
    Some(sample.get(metric)? * sample.get(Metric::OperationsPerSecond)? / 1e6)
}

fn foreign_share(sample: &Sample, processors: usize) -> Option<f64> {
    let used = |metric| used(sample, metric).unwrap_or(0.0);
    let own = used(Metric::ServerCpuUsPerOperation) + used(Metric::ClientCpuUsPerOperation);
    let busy = sample.get(Metric::MachineBusyShare)?;
    let stolen = sample.get(Metric::StolenShare).unwrap_or(0.0);
    Some((busy - own / processors.max(1) as f64).max(0.0) + stolen)
}

fn median(rounds: &[&Measurement], of: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = rounds.iter().filter_map(|found| of(&found.sample)).collect();
    Interval::of(&values).map(|interval| interval.median)
}

/// What was at its limit in half of the rounds or more.
pub(super) fn saturated(rounds: &[&Measurement]) -> Vec<Saturated> {
    let shares = [
        (Saturated::Disk, median(rounds, |sample| sample.get(Metric::DiskBusyShare))),
        (Saturated::Server, median(rounds, |sample| used(sample, Metric::ServerCpuUsPerOperation))),
        (Saturated::Client, median(rounds, |sample| used(sample, Metric::ClientCpuUsPerOperation))),
        (Saturated::Machine, median(rounds, |sample| sample.get(Metric::MachineBusyShare))),
    ];
    let limit = |(what, share): (Saturated, Option<f64>)| (share? >= SATURATED_SHARE).then_some(what);
    shares.into_iter().filter_map(limit).collect()
}
