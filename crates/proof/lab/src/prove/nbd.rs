//! An NBD server, driven by fio.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::Deserialize;

use super::study::{Known, Load};
use crate::service::Service;
use crate::study::{Metric, Sample, Session, Subject, SubjectError, Watch};

/// A server, started by a command for its socket.
pub(super) struct NbdServer {
    pub name: String,
    /// The directory of sockets and outputs.
    pub directory: PathBuf,
    pub command: Box<dyn Fn(&Path) -> Command>,
    /// The names of its workloads.
    pub workloads: Vec<String>,
    /// Whether its disk must be written before reads, because unwritten blocks are not decrypted.
    pub is_to_be_written: bool,
    /// Whether it listens before all its processes exist; at its first answer, they do.
    pub has_late_processes: bool,
    pub stop: Arc<AtomicBool>,
}

impl Subject<Known> for NbdServer {
    fn name(&self) -> &str {
        &self.name
    }

    fn supports(&self, known: &Known) -> bool {
        self.workloads.contains(&known.name)
    }

    fn open(&mut self, known: &Known) -> Result<Box<dyn Session + '_>, SubjectError> {
        let Load::Nbd { block_bytes, depth } = known.load else {
            return Err("it is no work for a server".into());
        };
        let socket = self.directory.join("socket");
        // A killed server's leftover would block the next one.
        if socket.exists() {
            fs::remove_file(&socket)?;
        }
        let command = (self.command)(&socket);
        let mut service = Service::start(&self.name, command, &socket, &self.directory.join("server.log"))?;
        service.await_socket(&self.stop)?;
        let output = self.directory.join("fio.json");
        let mut loaded = Loaded { service, socket, output, block_bytes, depth };
        if self.is_to_be_written {
            loaded.fio(&["--rw=write", "--bs=1M", "--end_fsync=1"])?;
            self.is_to_be_written = false;
        }
        if self.has_late_processes {
            loaded.fio(&["--rw=randread", "--bs=4k", "--number_ios=1"])?;
            loaded.service.see_processes()?;
        }
        Ok(Box::new(loaded))
    }
}

/// A server and its load. Dropping it ends the server.
struct Loaded {
    service: Service,
    socket: PathBuf,
    output: PathBuf,
    block_bytes: u32,
    depth: u32,
}

impl Session for Loaded {
    fn measure(&mut self, warm_up: Duration, duration: Duration) -> Result<Sample, SubjectError> {
        // A separate run, so that the server's time is counted for the same requests as everything
        // else.
        if !warm_up.is_zero() {
            self.load(warm_up)?;
        }
        // The middle half of the time, because fio takes a moment to begin.
        let watch = Watch::after(duration * 3 / 10, duration / 2, None);
        let before = self.service.processor_time()?;
        let job = self.load(duration)?;
        let server = self.service.processor_time()?.saturating_sub(before);
        let mut sample = Sample::default();
        watch.stop(&mut sample)?;
        let Direction { iops, bw_bytes, total_ios, ref lat_ns, ref clat_ns } = job.read;
        if total_ios == 0 {
            return Err("it answered nothing in all the time; choose a longer duration".into());
        }
        sample.set(Metric::OperationsPerSecond, iops);
        sample.set(Metric::MegabytesPerSecond, bw_bytes / 1e6);
        sample.set(Metric::LatencyMeanUs, lat_ns.mean / 1e3);
        sample.set(Metric::LatencyMaxUs, lat_ns.max / 1e3);
        let percentiles = clat_ns.percentile.iter().flatten();
        for (name, ns) in percentiles {
            match name.as_str() {
                "50.000000" => sample.set(Metric::LatencyP50Us, ns / 1e3),
                "99.000000" => sample.set(Metric::LatencyP99Us, ns / 1e3),
                _ => {}
            }
        }
        sample.set(Metric::ServerCpuUsPerOperation, server.as_secs_f64() * 1e6 / total_ios as f64);
        let client_us = (job.usr_cpu + job.sys_cpu) / 100.0 * job.job_runtime * 1e3;
        sample.set(Metric::ClientCpuUsPerOperation, client_us / total_ios as f64);
        Ok(sample)
    }
}

impl Loaded {
    fn load(&self, duration: Duration) -> Result<Job, SubjectError> {
        let (block, depth) = (format!("--bs={}", self.block_bytes), format!("--iodepth={}", self.depth));
        let runtime = format!("--runtime={}ms", duration.as_millis());
        self.fio(&["--rw=randread", "--randseed=7", "--time_based", &block, &depth, &runtime])
    }

    fn fio(&self, arguments: &[&str]) -> Result<Job, SubjectError> {
        let mut command = Command::new("fio");
        command.args(["--name=load", "--ioengine=nbd", "--size=64M", "--output-format=json"]).args(arguments);
        command.arg(format!("--output={}", self.output.display()));
        command.arg(format!("--uri=nbd+unix:///?socket={}", self.socket.display()));
        let output = command.stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("cannot run fio: {error}; install it"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(format!("fio ended with {}: {said}", output.status).into());
        }
        let told: Told = serde_json::from_slice(&fs::read(&self.output)?)?;
        told.jobs.into_iter().next().ok_or_else(|| "fio tells of no job".into())
    }
}

/// fio's output (fio(1), *JSON output*), as far as it is used.
#[derive(Deserialize)]
struct Told {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    read: Direction,
    /// In milliseconds.
    job_runtime: f64,
    /// Per cent of one processor.
    usr_cpu: f64,
    sys_cpu: f64,
}

#[derive(Deserialize)]
struct Direction {
    iops: f64,
    bw_bytes: f64,
    total_ios: u64,
    lat_ns: Latency,
    clat_ns: Latency,
}

#[derive(Deserialize)]
struct Latency {
    mean: f64,
    max: f64,
    percentile: Option<std::collections::BTreeMap<String, f64>>,
}
