//! fio, as the load of files and NBD servers.
//!
//! fio warms up by itself (`ramp_time`), and does not report when it begins to count. So the
//! processor time of the server, or of fio if there is no server, is sampled in short steps. Its
//! rate is taken from a part of the run that fio certainly counts, because the counted time ends
//! with fio.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::guest_load::{Order, Pattern};
use crate::processes::{ProcessId, processor_time};
use crate::programs::{ProgramError, line_of};
use crate::study::{Metric, Sample};

/// The period of sampling processor time.
const STEP: Duration = Duration::from_millis(5);
/// The longest time from the last counted request to fio's end, in which it prints its results.
const END_MARGIN: Duration = Duration::from_millis(60);
/// The share of the counted time from which the rate is taken.
const SHARE: f64 = 0.8;
/// Extra time for fio to begin and end.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The target of fio.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// A file, with O_DIRECT and io_uring.
    File(&'a Path, Buffers),
    /// A file without O_DIRECT, to be filled.
    CachedFile(&'a Path),
    /// An NBD server's socket.
    Nbd(&'a Path),
}

/// The memory of fio's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffers {
    /// fio's default: pages of 4 KiB.
    Plain,
    /// Huge pages, as far as the buffers fill them.
    Huge,
}

#[derive(Deserialize)]
struct Answer {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    mixed: Mixed,
}

#[derive(Deserialize)]
struct Mixed {
    iops: f64,
    bw_bytes: f64,
    lat_ns: Latency,
}

#[derive(Deserialize)]
struct Latency {
    mean: f64,
    max: f64,
    percentile: std::collections::BTreeMap<String, f64>,
}

impl Target<'_> {
    fn command(&self) -> Command {
        let mut command = Command::new("fio");
        // A thread of fio's own process, whose time can be measured.
        command.args(["--name=load", "--thread", "--output-format=json"]);
        match self {
            Self::File(path, buffers) => {
                command.args(["--ioengine=io_uring", "--direct=1"]).arg(filename(path));
                if *buffers == Buffers::Huge {
                    // fio can only use reserved huge pages. The C library can use any.
                    command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
                    command.arg("--iomem_align=2m");
                }
            }
            Self::CachedFile(path) => {
                command.args(["--ioengine=psync", "--end_fsync=1"]).arg(filename(path));
            }
            Self::Nbd(socket) => {
                let uri = format!("--uri=nbd+unix:///?socket={}", socket.display());
                command.args(["--ioengine=nbd", &uri]);
            }
        }
        command
    }
}

fn filename(path: &Path) -> String {
    // To fio a colon ends a name.
    format!("--filename={}", path.display().to_string().replace(':', "\\:"))
}

/// Writes all of a target once.
pub fn fill(target: Target<'_>, bytes: u64, stop: &AtomicBool) -> Result<(), ProgramError> {
    let mut command = target.command();
    command.args(["--rw=write", "--bs=1m", "--iodepth=8", &format!("--size={bytes}")]);
    run(command, Duration::from_secs(600), stop, &mut |_| {}).map(drop)
}

/// The duration of a load.
#[derive(Clone, Copy, Debug)]
pub struct LoadTime {
    /// The uncounted part.
    pub warm_up: Duration,
    /// The counted part.
    pub duration: Duration,
}

/// Loads a target, and returns the result. `servers` are the processes that serve it.
pub fn load(
    target: Target<'_>,
    pattern: Pattern,
    disk_bytes: u64,
    LoadTime { warm_up, duration }: LoadTime,
    servers: &[ProcessId],
    stop: &AtomicBool,
) -> Result<Sample, ProgramError> {
    let mut command = target.command();
    let rw = match (pattern.order, pattern.reads_percent) {
        (Order::Random, 100) => "randread",
        (Order::Random, 0) => "randwrite",
        (Order::Random, _) => "randrw",
        (Order::Sequential, 100) => "read",
        (Order::Sequential, 0) => "write",
        (Order::Sequential, _) => "rw",
    };
    let ms = |duration: Duration| format!("{}ms", duration.as_millis().max(1));
    command.args([
        format!("--rw={rw}"),
        format!("--rwmixread={}", pattern.reads_percent),
        format!("--bs={}", pattern.block_bytes),
        format!("--iodepth={}", pattern.depth),
        format!("--size={disk_bytes}"),
        format!("--runtime={}", ms(duration)),
        format!("--ramp_time={}", ms(warm_up)),
    ]);
    command.args(["--time_based", "--randrepeat=0", "--norandommap", "--unified_rw_reporting=1"]);
    command.args(["--lat_percentiles=1", "--clat_percentiles=0", "--percentile_list=50:99:99.9"]);
    let mut noted = Noted { servers: servers.to_vec(), steps: Vec::new() };
    let output = run(command, warm_up + duration + TIMEOUT, stop, &mut |fio| noted.step(fio))?;
    let end = Instant::now();
    // fio may print other text first.
    let json = output.find('{').map(|start| &output[start..]).unwrap_or_default();
    let answer: Answer = serde_json::from_str(json).map_err(|error| nonsense(&error.to_string()))?;
    let mixed = &answer.jobs.first().ok_or_else(|| nonsense("it has no jobs"))?.mixed;
    let mut sample = Sample::default();
    sample.set(Metric::OperationsPerSecond, mixed.iops);
    sample.set(Metric::MegabytesPerSecond, mixed.bw_bytes / 1e6);
    let latency = &mixed.lat_ns;
    sample.set(Metric::LatencyMeanUs, latency.mean / 1e3);
    sample.set(Metric::LatencyMaxUs, latency.max / 1e3);
    let percentiles = [
        (Metric::LatencyP50Us, "50.000000"),
        (Metric::LatencyP99Us, "99.000000"),
        (Metric::LatencyP999Us, "99.900000"),
    ];
    for (metric, percentile) in percentiles {
        if let Some(ns) = latency.percentile.get(percentile) {
            sample.set(metric, ns / 1e3);
        }
    }
    if let Some([client, server]) = noted.rates(end, duration)
        && mixed.iops > 0.0
    {
        sample.set(Metric::ClientCpuUsPerOperation, client * 1e6 / mixed.iops);
        if !servers.is_empty() {
            sample.set(Metric::ServerCpuUsPerOperation, server * 1e6 / mixed.iops);
        }
    }
    Ok(sample)
}

/// Samples of the processor time of fio and of the servers.
struct Noted {
    servers: Vec<ProcessId>,
    steps: Vec<(Instant, [Duration; 2])>,
}

impl Noted {
    fn step(&mut self, fio: ProcessId) {
        let server = self.servers.iter().map(|id| processor_time(*id)).sum();
        // Ended processes are no longer sampled.
        if let (Ok(fio), Ok(server)) = (processor_time(fio), server) {
            self.steps.push((Instant::now(), [fio, server]));
        }
    }

    /// The processors that fio and the servers used in the middle of the counted time.
    fn rates(&self, end: Instant, duration: Duration) -> Option<[f64; 2]> {
        let to = end.checked_sub(END_MARGIN + duration.mul_f64((1.0 - SHARE) / 2.0))?;
        let from = to.checked_sub(duration.mul_f64(SHARE))?;
        let (first_at, first) = self.steps.iter().find(|(at, _)| *at >= from)?;
        let (last_at, last) = self.steps.iter().rfind(|(at, _)| *at <= to)?;
        let seconds = last_at.checked_duration_since(*first_at)?.as_secs_f64();
        let rate = |index: usize| last[index].saturating_sub(first[index]).as_secs_f64() / seconds;
        (seconds > 0.0).then(|| [rate(0), rate(1)])
    }
}

/// Runs fio to its end, and returns its output; calls `each_step` with its process id meanwhile.
fn run(
    mut command: Command,
    within: Duration,
    stop: &AtomicBool,
    each_step: &mut dyn FnMut(ProcessId),
) -> Result<String, ProgramError> {
    let line = line_of(&command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| ProgramError::Program {
        program: "fio".to_owned(),
        error,
        next: "install the package fio",
    })?;
    let id = child.id();
    let mut child = Ended(child);
    // Its answer is a few KiB, and fits into the pipe.
    let start = Instant::now();
    while !child.reap_if_ended() {
        if stop.load(Ordering::Relaxed) {
            return Err(ProgramError::Signal);
        }
        if start.elapsed() > within {
            return Err(ProgramError::Late { server: line, what: "end", within, said: String::new() });
        }
        each_step(id);
        thread::sleep(STEP);
    }
    let (status, stdout, stderr) = child.output();
    if !status.success() {
        let said = format!("{} {}", stderr.trim(), stdout.trim()).trim().to_owned();
        return Err(ProgramError::Command { command: line, status, said });
    }
    Ok(stdout)
}

fn nonsense(why: &str) -> ProgramError {
    ProgramError::File {
        action: "understand",
        path: "fio's answer".into(),
        error: std::io::Error::other(why.to_owned()),
    }
}

/// A child that is killed when this is dropped.
struct Ended(Child);

impl Ended {
    /// Reaps it if it has ended, and returns whether it has.
    fn reap_if_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    fn output(&mut self) -> (std::process::ExitStatus, String, String) {
        use std::io::Read;
        let mut text = [String::new(), String::new()];
        // Unreadable output is treated as missing later.
        let _ = self.0.stdout.take().map(|mut pipe| pipe.read_to_string(&mut text[0]));
        let _ = self.0.stderr.take().map(|mut pipe| pipe.read_to_string(&mut text[1]));
        let [stdout, stderr] = text;
        (self.0.wait().unwrap_or_default(), stdout, stderr)
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_counted_time_alone() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        // fio works for 3 s: a second in which it gets ready, one to warm up, one that is counted.
        // The server is busy from the second one on, and in the last one twice as much.
        let steps = (0..=300_u64).map(|step| {
            let ms = 10 * step;
            let server = ms.saturating_sub(1000) / 4 + ms.saturating_sub(2000) / 4;
            (at(ms), [Duration::from_millis(ms / 5), Duration::from_millis(server)])
        });
        let noted = Noted { servers: Vec::new(), steps: steps.collect() };
        let [fio, server] = noted.rates(at(3050), Duration::from_secs(1)).unwrap();
        assert!((fio - 0.2).abs() < 0.01 && (server - 0.5).abs() < 0.01, "{fio} {server}");
        assert_eq!(noted.rates(at(3000), Duration::ZERO), None);
        let empty = Noted { servers: Vec::new(), steps: Vec::new() };
        assert_eq!(empty.rates(at(3000), Duration::from_secs(1)), None);
    }

    #[test]
    fn what_fio_says_of_a_wrong_option_is_told() {
        let mut command = Target::File(Path::new("/dev/null"), Buffers::Plain).command();
        command.arg("--no-such-option");
        let stop = AtomicBool::new(false);
        let error = run(command, TIMEOUT, &stop, &mut |_| {}).unwrap_err().to_string();
        assert!(error.starts_with("fio --name=load") && error.contains("no-such-option"), "{error}");
    }

    #[test]
    fn a_signal_ends_fio() {
        let mut command = Target::CachedFile(Path::new("/dev/null")).command();
        command.args(["--rw=read", "--size=4096", "--time_based", "--runtime=60"]);
        let mut stopped = 0;
        let stop = AtomicBool::new(false);
        let error = run(command, TIMEOUT, &stop, &mut |fio| {
            stopped = fio;
            stop.store(true, Ordering::Relaxed);
        });
        assert!(matches!(error, Err(ProgramError::Signal)));
        // It was reaped, so no process has its id.
        assert!(processor_time(stopped).is_err());
    }
}
