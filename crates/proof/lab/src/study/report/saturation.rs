//! The resources that the load saturated, and other use of the machine.

use serde::Serialize;

use super::super::{Interval, Measurement, Metric, Sample};

/// The share from which on a resource counts as saturated.
pub(super) const SATURATED_SHARE: f64 = 0.9;
/// The share of other use above which a round is reported.
const FOREIGN_SHARE_MAX: f64 = 0.1;

/// A saturated resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Saturated {
    /// The disk was always busy.
    Disk,
    /// The server used at least one processor.
    Server,
    /// The load used at least one processor: a faster load might measure more.
    Client,
    /// All processors were busy, with the server and the load.
    Machine,
}

impl Saturated {
    /// Its name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Server => "server",
            Self::Client => "client",
            Self::Machine => "machine",
        }
    }
}

/// The use of the machine's processors: medians of the rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Usage {
    /// How many processors the server used.
    pub server_processors: Option<f64>,
    /// How many the load used.
    pub client_processors: Option<f64>,
    /// The share of the machine that was busy or stolen without them: other processes, and
    /// unattributed work of the kernel such as interrupts.
    pub foreign_share: f64,
    /// The same, round by round.
    pub foreign_shares: Vec<f64>,
    /// The number of rounds in which it was above 10 %.
    pub foreign_rounds: usize,
}

impl Usage {
    /// The usage in these rounds, if the machine was watched in any.
    pub fn of(rounds: &[&Measurement], processors: usize) -> Option<Self> {
        let foreign: Vec<f64> =
            rounds.iter().filter_map(|found| foreign_share(&found.sample, processors)).collect();
        Some(Self {
            server_processors: median(rounds, |sample| used(sample, Metric::ServerCpuUsPerOperation)),
            client_processors: median(rounds, |sample| used(sample, Metric::ClientCpuUsPerOperation)),
            foreign_share: Interval::of(&foreign)?.median,
            foreign_rounds: foreign.iter().filter(|share| **share > FOREIGN_SHARE_MAX).count(),
            foreign_shares: foreign,
        })
    }
}

/// The processors used, by this metric.
fn used(sample: &Sample, metric: Metric) -> Option<f64> {
    Some(sample.get(metric)? * sample.get(Metric::OperationsPerSecond)? / 1e6)
}

/// The share of the machine that the server and the load used.
fn own_share(sample: &Sample, processors: usize) -> Option<f64> {
    let used = |metric| used(sample, metric).unwrap_or(0.0);
    let own = used(Metric::ServerCpuUsPerOperation) + used(Metric::ClientCpuUsPerOperation);
    Some((own / processors.max(1) as f64).min(sample.get(Metric::MachineBusyShare)?))
}

fn foreign_share(sample: &Sample, processors: usize) -> Option<f64> {
    let stolen = sample.get(Metric::StolenShare).unwrap_or(0.0);
    Some(sample.get(Metric::MachineBusyShare)? - own_share(sample, processors)? + stolen)
}

fn median(rounds: &[&Measurement], of: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = rounds.iter().filter_map(|found| of(&found.sample)).collect();
    Interval::of(&values).map(|interval| interval.median)
}

/// The resources saturated in at least half of the rounds.
pub(super) fn saturated(rounds: &[&Measurement], processors: usize) -> Vec<Saturated> {
    let shares = [
        (Saturated::Disk, median(rounds, |sample| sample.get(Metric::DiskBusyShare))),
        (Saturated::Server, median(rounds, |sample| used(sample, Metric::ServerCpuUsPerOperation))),
        (Saturated::Client, median(rounds, |sample| used(sample, Metric::ClientCpuUsPerOperation))),
        (Saturated::Machine, median(rounds, |sample| own_share(sample, processors))),
    ];
    let limit = |(what, share): (Saturated, Option<f64>)| (share? >= SATURATED_SHARE).then_some(what);
    shares.into_iter().filter_map(limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(metrics: &[(Metric, f64)]) -> Measurement {
        Measurement {
            round: 0,
            workload: "read".to_owned(),
            subject: "a".to_owned(),
            position: 0,
            started: String::new(),
            load_averages: String::new(),
            open_ms: 0.0,
            failed_before: None,
            sample: Sample(metrics.iter().copied().collect()),
        }
    }

    #[test]
    fn what_is_at_its_limit_is_named_and_others_are_not_taken_for_it() {
        use Metric::{
            ClientCpuUsPerOperation, DiskBusyShare, MachineBusyShare, OperationsPerSecond,
            ServerCpuUsPerOperation,
        };
        let of = |metrics: &[(Metric, f64)]| {
            let measured = measured(metrics);
            (saturated(&[&measured], 2), Usage::of(&[&measured], 2))
        };
        let rate = (OperationsPerSecond, 100_000.0);
        let (limits, usage) = of(&[rate, (ServerCpuUsPerOperation, 9.5), (MachineBusyShare, 0.5)]);
        assert_eq!(limits, [Saturated::Server]);
        let usage = usage.unwrap();
        assert!((usage.foreign_share - 0.025).abs() < 1e-9 && usage.foreign_rounds == 0, "{usage:?}");
        let both =
            [rate, (ServerCpuUsPerOperation, 10.0), (ClientCpuUsPerOperation, 9.0), (MachineBusyShare, 1.0)];
        assert_eq!(of(&both).0, [Saturated::Server, Saturated::Client, Saturated::Machine]);
        // Everything is busy, but not with this load.
        let (limits, usage) = of(&[rate, (ServerCpuUsPerOperation, 1.0), (MachineBusyShare, 1.0)]);
        assert!(limits.is_empty() && usage.unwrap().foreign_rounds == 1);
        assert_eq!(of(&[rate, (DiskBusyShare, 0.97)]), (vec![Saturated::Disk], None));
    }

    #[test]
    fn what_others_take_is_told_with_what_the_host_took() {
        let sample = measured(&[(Metric::MachineBusyShare, 0.25), (Metric::StolenShare, 0.5)]);
        assert_eq!(Usage::of(&[&sample], 2).unwrap().foreign_share, 0.75);
    }
}
