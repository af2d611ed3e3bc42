//! The load itself.

use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::connection::{Connection, Identity, LoadError};
use super::message;
use crate::latency::Latencies;

/// The configuration of a load.
#[derive(Clone, Copy, Debug)]
pub struct LoadConfig {
    /// Connections; each has one request in flight.
    pub connections: u32,
    /// The duration after [`Self::warm_up`].
    pub duration: Duration,
    /// How long requests are sent before they count.
    pub warm_up: Duration,
    /// Requests a second over all connections; `None` for as fast as they are answered.
    pub rate: Option<u32>,
}

/// The result of a load.
#[derive(Clone, Debug, Serialize)]
pub struct LoadResult {
    /// Connections.
    pub connections: u32,
    /// Counted seconds.
    pub seconds: f64,
    /// The target rate of requests a second, if it was set.
    pub rate: Option<u32>,
    /// Keys that were released.
    pub gets: u64,
    /// Keys released per second.
    pub gets_per_second: f64,
    /// Median latency in milliseconds.
    pub p50_ms: f64,
    /// 99th percentile of the latency in milliseconds.
    pub p99_ms: f64,
    /// Longest latency in milliseconds.
    pub longest_ms: f64,
}

/// Creates a key and gets it repeatedly. The first answer without the key ends the load.
///
/// # Errors
/// [`LoadError`].
pub fn run(identity: &Identity, config: &LoadConfig) -> Result<LoadResult, LoadError> {
    let mut first = identity.connect()?;
    let created = first.demand("Create", &message::create(), message::succeeded)?;
    let id = message::unique_identifier(created).unwrap_or_default();
    first.demand("Activate", &message::activate(&id), message::succeeded)?;
    let request = message::get(&id);
    let connections: Result<Vec<_>, _> = (0..config.connections).map(|_| identity.connect()).collect();

    let begin = Instant::now();
    let measured = thread::scope(|scope| {
        let ask = |(index, connection)| {
            let request = &request;
            scope.spawn(move || ask_until_the_end(connection, request, config, begin, index))
        };
        let threads: Vec<_> = (0..).zip(connections?).map(ask).collect();
        let joined = threads.into_iter().map(|thread| match thread.join() {
            Ok(measured) => measured,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.collect::<Result<Vec<_>, LoadError>>()
    })?;

    let mut latencies = Latencies::default();
    measured.iter().for_each(|(_, each)| latencies.add(each));
    let gets = measured.iter().map(|(count, _)| count).sum();
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    Ok(LoadResult {
        connections: config.connections,
        seconds: config.duration.as_secs_f64(),
        rate: config.rate,
        gets,
        gets_per_second: gets as f64 / config.duration.as_secs_f64(),
        p50_ms: ms(latencies.quantile(0.5)),
        p99_ms: ms(latencies.quantile(0.99)),
        longest_ms: ms(latencies.longest()),
    })
}

fn ask_until_the_end(
    mut connection: Connection,
    request: &[u8],
    config: &LoadConfig,
    begin: Instant,
    index: u32,
) -> Result<(u64, Latencies), LoadError> {
    let counts_from = begin + config.warm_up;
    let end = counts_from + config.duration;
    // The connections take turns: each sends every nth request of the rate.
    let pace = config
        .rate
        .map(|rate| Duration::from_secs(1).mul_f64(f64::from(config.connections) / f64::from(rate)));
    let mut due = begin
        + pace.map_or(Duration::ZERO, |pace| pace.mul_f64(f64::from(index) / f64::from(config.connections)));
    let (mut count, mut latencies) = (0, Latencies::default());
    loop {
        let now = Instant::now();
        match pace {
            Some(pace) => {
                thread::sleep(due.saturating_duration_since(now));
                due += pace;
            }
            None => due = now,
        }
        let was_due = pace.map_or(due, |pace| due - pace);
        // If the server cannot keep up, some requests are never sent; the number of released keys
        // shows that.
        if was_due >= end || Instant::now() >= end {
            return Ok((count, latencies));
        }
        connection.demand("Get", request, message::has_key)?;
        let done = Instant::now();
        if was_due >= counts_from && done <= end {
            count += 1;
        }
        if was_due >= counts_from {
            latencies.record(done - was_due);
        }
    }
}
