//! What a site costs its control plane: starts, memory, readings, operations, and time in which
//! nothing happens.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use strongroom_lab::latency::Latencies;
use strongroom_lab::processes::{Memory, ProcessId, processor_time};

use crate::api::{Api, ApiConnection};
use crate::error::{EstateError, system};
use crate::load::{Kind, Loaded};
use crate::machines::Machine;
use crate::site::{Role, Site};

/// Timeout of a restarted control plane, until it knows all VMs.
const KNOWS_WITHIN: Duration = Duration::from_secs(300);
/// The interval of looks at a control plane that starts.
const LOOKS_EVERY: Duration = Duration::from_millis(10);

/// Latencies in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Milliseconds {
    p50: f64,
    p99: f64,
    longest: f64,
}

impl From<&Latencies> for Milliseconds {
    fn from(latencies: &Latencies) -> Self {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        Self {
            p50: ms(latencies.quantile(0.5)),
            p99: ms(latencies.quantile(0.99)),
            longest: ms(latencies.longest()),
        }
    }
}

/// A start of the control plane.
#[derive(Debug, Serialize)]
pub struct Started {
    /// From the end of its predecessor to the first answer that it is ready.
    ready_ms: f64,
    /// Until every host answers and the state of every VM is known.
    all_known_ms: f64,
    /// Its processor time until then.
    cpu_ms: f64,
    /// Its memory then.
    resident_mib: f64,
}

/// Readings of the API, one after the other.
#[derive(Debug, Serialize)]
pub struct Readings(BTreeMap<String, Milliseconds>);

/// A mixed load.
#[derive(Debug, Serialize)]
pub struct LoadFigures {
    seconds: f64,
    operations: u64,
    failed: usize,
    operations_per_second: f64,
    latency_ms: Milliseconds,
    latency_of_kind_ms: BTreeMap<Kind, Milliseconds>,
    count_of_kind: BTreeMap<Kind, u64>,
    control_cpu_ms_per_operation: f64,
    control_busy_percent: f64,
    /// Of hosts, driver and key server, which share a processor.
    others_busy_percent: f64,
    commits_per_operation: f64,
    requests_to_hosts_per_operation: f64,
    resident_mib: f64,
    load_average: String,
}

/// A site in which nothing happens.
#[derive(Debug, Serialize)]
pub struct Idle {
    seconds: f64,
    control_cpu_ms_per_minute: f64,
    hosts_cpu_ms_per_minute: f64,
    commits_per_minute: f64,
    change_requests_per_minute: f64,
    other_requests_per_minute: f64,
    /// Entries of the access log.
    pub access_log_entries: u64,
    /// Growth of the key server's audit log.
    pub audit_log_bytes: u64,
    load_average: String,
}

/// The counters of a site at one time.
struct Counters {
    at: Instant,
    control: Duration,
    others: Duration,
    commits: f64,
    changes: u64,
    requests: u64,
    access_entries: u64,
    audit_bytes: u64,
}

/// What is measured.
pub struct Measured<'site> {
    /// The site.
    pub site: &'site Site,
    /// Its API.
    pub api: &'site Api,
    /// Its hosts.
    pub machines: &'site [Machine],
}

impl Measured<'_> {
    async fn counters(&self) -> Result<Counters, EstateError> {
        let mut connection = self.api.connect().await?;
        let metrics = connection.text("/metrics").await?;
        let access = connection.get("/v1/access/log/head").await?;
        let time = |id: ProcessId| processor_time(id).map_err(system("read a process's time"));
        let key_server = time(self.site.process(Role::KeyServer)?)?;
        Ok(Counters {
            at: Instant::now(),
            control: time(self.site.process(Role::Control)?)?,
            others: key_server + time(std::process::id())?,
            commits: metric(&metrics, "strongroom_store_commits_total")?,
            changes: self.machines.iter().map(|machine| machine.host.requests().changes()).sum(),
            requests: self.machines.iter().map(|machine| machine.host.requests().others()).sum(),
            access_entries: access["id"].as_u64().unwrap_or_default(),
            audit_bytes: bytes_in(&self.site.home().join("keyserver").join("audit")),
        })
    }

    /// Restarts the control plane, and waits until it knows all of so many VMs.
    ///
    /// # Errors
    /// [`EstateError`].
    pub async fn start(
        &self,
        vms: usize,
        pin: impl Fn(ProcessId) -> Result<(), EstateError>,
    ) -> Result<Started, EstateError> {
        let began = Instant::now();
        let control = self.site.restart_control()?;
        pin(control)?;
        let until = began + KNOWS_WITHIN;
        let mut connection = loop {
            match self.ready().await {
                Ok(connection) => break connection,
                Err(_) if Instant::now() < until => tokio::time::sleep(LOOKS_EVERY).await,
                Err(error) => return Err(error),
            }
        };
        let ready = began.elapsed();
        while !connection.knows_all(vms, self.machines.len()).await? {
            if Instant::now() > until {
                return Err(EstateError::Late("a control plane that knows all VMs".to_owned()));
            }
            tokio::time::sleep(LOOKS_EVERY).await;
        }
        Ok(Started {
            ready_ms: ready.as_secs_f64() * 1e3,
            all_known_ms: began.elapsed().as_secs_f64() * 1e3,
            cpu_ms: processor_time(control).map_err(system("read a process's time"))?.as_secs_f64() * 1e3,
            resident_mib: resident_mib(control)?,
        })
    }

    /// A connection to a control plane that says that it is ready.
    async fn ready(&self) -> Result<ApiConnection, EstateError> {
        let mut connection = self.api.connect().await?;
        connection.text("/readyz").await?;
        Ok(connection)
    }

    /// Times readings, each so many times.
    ///
    /// # Errors
    /// [`EstateError`].
    pub async fn read(&self, name: &str, times: usize) -> Result<Readings, EstateError> {
        let mut connection = self.api.connect().await?;
        let search = format!("/v1/vms?name={}", &name[..name.len() - 1]);
        let one = format!("/v1/vms/{name}");
        let mut figures = BTreeMap::new();
        for (what, path) in [
            ("1 list, first page of 100", "/v1/vms?limit=100"),
            ("2 list, page of 1,000", "/v1/vms?limit=1000"),
            ("3 search by a part of the name", search.as_str()),
            ("4 filter by power", "/v1/vms?power=running&limit=100"),
            ("5 show one VM", one.as_str()),
            ("6 list of hosts", "/v1/hosts"),
            ("7 list of datastores", "/v1/datastores"),
        ] {
            let mut latencies = Latencies::default();
            for _ in 0..times {
                let began = Instant::now();
                connection.get(path).await?;
                latencies.record(began.elapsed());
            }
            figures.insert(what.to_owned(), Milliseconds::from(&latencies));
        }
        Ok(Readings(figures))
    }

    /// Measures what a load costs.
    ///
    /// # Errors
    /// [`EstateError`].
    pub async fn under_load(
        &self,
        load: impl Future<Output = Result<Loaded, EstateError>>,
    ) -> Result<(LoadFigures, Loaded), EstateError> {
        let before = self.counters().await?;
        let loaded = load.await?;
        let after = self.counters().await?;
        let (operations, seconds) = (loaded.count(), loaded.took.as_secs_f64());
        let per_operation = |value: f64| value / operations.max(1) as f64;
        let control = (after.control - before.control).as_secs_f64();
        let requests = (after.requests - before.requests) + (after.changes - before.changes);
        let figures = LoadFigures {
            seconds,
            operations,
            failed: loaded.failures.len(),
            operations_per_second: operations as f64 / seconds,
            latency_ms: Milliseconds::from(&loaded.all_latencies()),
            latency_of_kind_ms: loaded.latencies.iter().map(|(kind, of)| (*kind, of.into())).collect(),
            count_of_kind: loaded.counts.clone(),
            control_cpu_ms_per_operation: per_operation(control * 1e3),
            control_busy_percent: control / seconds * 100.0,
            others_busy_percent: (after.others - before.others).as_secs_f64() / seconds * 100.0,
            commits_per_operation: per_operation(after.commits - before.commits),
            requests_to_hosts_per_operation: per_operation(requests as f64),
            resident_mib: resident_mib(self.site.process(Role::Control)?)?,
            load_average: load_average(),
        };
        Ok((figures, loaded))
    }

    /// Measures what the site does while nobody asks for anything.
    ///
    /// # Errors
    /// [`EstateError`].
    pub async fn idle(&self, time: Duration) -> Result<Idle, EstateError> {
        let before = self.counters().await?;
        tokio::time::sleep(time).await;
        let after = self.counters().await?;
        let seconds = (after.at - before.at).as_secs_f64();
        let per_minute = |value: f64| value * 60.0 / seconds;
        // The reading of the log's head is itself on record, in a transaction.
        let commits = (after.commits - before.commits - 1.0).max(0.0);
        Ok(Idle {
            seconds,
            control_cpu_ms_per_minute: per_minute((after.control - before.control).as_secs_f64() * 1e3),
            hosts_cpu_ms_per_minute: per_minute((after.others - before.others).as_secs_f64() * 1e3),
            commits_per_minute: per_minute(commits),
            change_requests_per_minute: per_minute((after.changes - before.changes) as f64),
            other_requests_per_minute: per_minute((after.requests - before.requests) as f64),
            access_log_entries: (after.access_entries - before.access_entries).saturating_sub(1),
            audit_log_bytes: after.audit_bytes.saturating_sub(before.audit_bytes),
            load_average: load_average(),
        })
    }
}

fn resident_mib(process: ProcessId) -> Result<f64, EstateError> {
    let memory = Memory::of(process).map_err(system("read a process's memory"))?;
    Ok(memory.resident_bytes as f64 / f64::from(1 << 20))
}

fn metric(text: &str, name: &str) -> Result<f64, EstateError> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.ok_or_else(|| EstateError::Unexpected(format!("there is no metric {name}")))
}

fn bytes_in(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|found| found.len()).sum()
}

fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}
