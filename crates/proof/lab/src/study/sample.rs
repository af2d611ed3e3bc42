//! The result of one measurement.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A metric, with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Operations answered in a second.
    OperationsPerSecond,
    /// Content transferred in a second, in 10^6 bytes.
    MegabytesPerSecond,
    /// Mean latency, in microseconds.
    LatencyMeanUs,
    /// Median latency, in microseconds.
    LatencyP50Us,
    /// 99th percentile of the latency, in microseconds.
    LatencyP99Us,
    /// 99.9th percentile of the latency, in microseconds.
    LatencyP999Us,
    /// Longest latency, in microseconds.
    LatencyMaxUs,
    /// Processor time that the server took for each operation, in microseconds: all its processes
    /// and threads, including the kernel's work for them.
    ServerCpuUsPerOperation,
    /// Processor time that the load took for each operation, in microseconds.
    ClientCpuUsPerOperation,
    /// Share of the machine's processors that was busy with any work, 0 to 1.
    MachineBusyShare,
    /// Share of the machine's processors that its host gave to others, 0 to 1.
    StolenShare,
    /// Share of the time in which the disk was busy, 0 to 1.
    DiskBusyShare,
    /// Duration of a one-off task, in milliseconds.
    ElapsedMs,
    /// The longest time between two answers in a window in which something happens, in
    /// milliseconds.
    LongestGapMs,
    /// The same in a window in which nothing happens.
    ControlGapMs,
    /// Processor time of all processes that take part, for each GiB that passes, in milliseconds.
    ProcessorMsPerGib,
    /// What a guest does in a second while something happens, as a part of what it does before.
    GuestShare,
}

impl Metric {
    /// Whether more of it is better.
    pub fn more_is_better(self) -> bool {
        matches!(self, Self::OperationsPerSecond | Self::MegabytesPerSecond | Self::GuestShare)
    }

    /// The head of its column, with its unit.
    pub fn title(self) -> &'static str {
        match self {
            Self::OperationsPerSecond => "IOPS",
            Self::MegabytesPerSecond => "MB/s",
            Self::LatencyMeanUs => "mean, us",
            Self::LatencyP50Us => "p50, us",
            Self::LatencyP99Us => "p99, us",
            Self::LatencyP999Us => "p99.9, us",
            Self::LatencyMaxUs => "longest, us",
            Self::ServerCpuUsPerOperation => "server CPU per operation, us",
            Self::ClientCpuUsPerOperation => "client CPU per operation, us",
            Self::MachineBusyShare => "machine busy",
            Self::StolenShare => "stolen",
            Self::DiskBusyShare => "disk busy",
            Self::ElapsedMs => "ms",
            Self::LongestGapMs => "longest gap, ms",
            Self::ControlGapMs => "longest gap, control, ms",
            Self::ProcessorMsPerGib => "CPU per GiB, ms",
            Self::GuestShare => "guest's speed",
        }
    }
}

/// The result of one measurement: its metrics, each finite and not negative.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sample(pub BTreeMap<Metric, f64>);

impl Sample {
    /// A metric's value, if it was measured.
    pub fn get(&self, metric: Metric) -> Option<f64> {
        self.0.get(&metric).copied()
    }

    /// Sets a metric's value.
    pub fn set(&mut self, metric: Metric, value: f64) {
        self.0.insert(metric, value);
    }
}
