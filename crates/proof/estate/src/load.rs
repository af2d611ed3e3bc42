//! Operations on many VMs at once, as people and programs of a large site ask for them, and
//! whether all that was acknowledged is there afterwards.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hyper::Method;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use serde_json::{Value, json};
use strongroom_host::protocol::{ObservedVm, PowerState};
use strongroom_lab::latency::Latencies;
use tokio::task::JoinSet;

use crate::api::{Api, ApiConnection};
use crate::error::EstateError;

const MIB: u64 = 1 << 20;
/// The memory of VMs; a reconfiguration changes it to one of these.
const MEMORY_BYTES: [u64; 3] = [256 * MIB, 512 * MIB, 1024 * MIB];
/// VMs on a page of the list.
const PAGE: usize = 1000;
/// The most failures of a worker before it gives up.
const FAILURES_MAX: usize = 20;

/// A VM as its worker was told that it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownVm {
    /// Its name.
    pub name: String,
    datastore: String,
    is_running: bool,
    memory_bytes: u64,
    snapshots: Vec<String>,
    /// Whether the load made it, and may delete it.
    is_of_load: bool,
}

impl KnownVm {
    /// A VM to make in this datastore.
    pub fn new(name: String, datastore: String) -> Self {
        let (memory_bytes, snapshots) = (MEMORY_BYTES[0], Vec::new());
        Self { name, datastore, is_running: false, memory_bytes, snapshots, is_of_load: false }
    }
}

/// An operation of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A VM is made.
    Create,
    /// A VM is deleted.
    Delete,
    /// A VM is started.
    Start,
    /// A VM is stopped.
    Stop,
    /// A VM that is off gets other hardware.
    Configure,
    /// A snapshot is made.
    Snapshot,
    /// A snapshot is deleted.
    DropSnapshot,
}

/// What a load is to be.
#[derive(Clone, Copy, Debug)]
pub struct LoadConfig {
    /// How long new operations are begun.
    pub duration: Duration,
    /// Operations under way at once.
    pub workers: usize,
    /// Whether new VMs are encrypted, each under a key of its own.
    pub encrypted: bool,
    /// The seed of the operations' order. It is in the names of new VMs: each load has its own.
    pub seed: u64,
}

/// What became of a load.
#[derive(Debug, Default)]
pub struct Loaded {
    /// From the first request to the last task's end.
    pub took: Duration,
    /// The latencies of the operations that succeeded, from the request to the news of the task's
    /// end.
    pub latencies: BTreeMap<Kind, Latencies>,
    /// Their numbers.
    pub counts: BTreeMap<Kind, u64>,
    /// Operations that failed.
    pub failures: Vec<String>,
    /// The VMs that there are now.
    pub vms: Vec<KnownVm>,
}

impl Loaded {
    /// The number of operations that succeeded.
    pub fn count(&self) -> u64 {
        self.counts.values().sum()
    }

    /// The latencies of all of them.
    pub fn all_latencies(&self) -> Latencies {
        let mut all = Latencies::default();
        self.latencies.values().for_each(|of_kind| all.add(of_kind));
        all
    }

    fn record(&mut self, kind: Kind, latency: Duration) {
        self.latencies.entry(kind).or_default().record(latency);
        *self.counts.entry(kind).or_default() += 1;
    }

    fn add(&mut self, other: Self) {
        for (kind, latencies) in &other.latencies {
            self.latencies.entry(*kind).or_default().add(latencies);
        }
        for (kind, count) in other.counts {
            *self.counts.entry(kind).or_default() += count;
        }
        self.failures.extend(other.failures);
        self.vms.extend(other.vms);
    }
}

/// Makes these VMs, with so many requests at once.
///
/// # Errors
/// [`EstateError`] of the first that fails.
pub async fn fill(api: &Api, vms: &[KnownVm], workers: usize, encrypted: bool) -> Result<(), EstateError> {
    each(api, vms, workers, move |mut connection, vm| async move {
        connection.carry_out(Method::POST, "/v1/vms", &wish(&vm, encrypted)).await?;
        Ok(connection)
    })
    .await
}

/// Starts these VMs, with so many requests at once.
///
/// # Errors
/// [`EstateError`] of the first that fails.
pub async fn start(api: &Api, vms: &mut [KnownVm], workers: usize) -> Result<(), EstateError> {
    each(api, vms, workers, |mut connection, vm| async move {
        connection.carry_out(Method::POST, &format!("/v1/vms/{}/start", vm.name), &json!({})).await?;
        Ok(connection)
    })
    .await?;
    vms.iter_mut().for_each(|vm| vm.is_running = true);
    Ok(())
}

async fn each<Work>(
    api: &Api,
    vms: &[KnownVm],
    workers: usize,
    work: impl Fn(ApiConnection, KnownVm) -> Work + Clone + Send + 'static,
) -> Result<(), EstateError>
where
    Work: Future<Output = Result<ApiConnection, EstateError>> + Send + 'static,
{
    let mut working = JoinSet::new();
    for worker in 0..workers {
        let (api, work) = (api.clone(), work.clone());
        let mine: Vec<KnownVm> = vms.iter().skip(worker).step_by(workers).cloned().collect();
        working.spawn(async move {
            let mut connection = api.connect().await?;
            for vm in mine {
                connection = work(connection, vm).await?;
            }
            Ok::<_, EstateError>(())
        });
    }
    while let Some(worked) = working.join_next().await {
        worked.map_err(|error| EstateError::Program(error.to_string()))??;
    }
    Ok(())
}

fn wish(vm: &KnownVm, encrypted: bool) -> Value {
    json!({
        "name": vm.name, "datastore": vm.datastore, "memory_bytes": vm.memory_bytes, "nics": [],
        "disks": [{ "size_bytes": 1 << 30 }], "encryption": { "encrypted": encrypted },
    })
}

/// Has a mixed load carried out on these VMs. Each worker has VMs of its own, one operation at a
/// time, in an order of its own.
///
/// # Errors
/// [`EstateError`] if the API cannot be reached at all.
pub async fn run(api: &Api, vms: Vec<KnownVm>, config: LoadConfig) -> Result<Loaded, EstateError> {
    let began = Instant::now();
    let mut shares = vec![Vec::new(); config.workers];
    for (number, vm) in vms.into_iter().enumerate() {
        shares[number % config.workers].push(vm);
    }
    let mut working = JoinSet::new();
    for (number, vms) in shares.into_iter().enumerate() {
        let connection = api.connect().await?;
        let rng = StdRng::seed_from_u64(config.seed.wrapping_add(number as u64));
        let worker = Worker {
            number,
            seed: config.seed,
            connection,
            rng,
            encrypted: config.encrypted,
            made: 0,
            made_snapshots: 0,
        };
        working.spawn(worker.run(vms, began + config.duration));
    }
    let mut loaded = Loaded::default();
    while let Some(worked) = working.join_next().await {
        loaded.add(worked.map_err(|error| EstateError::Program(error.to_string()))?);
    }
    loaded.took = began.elapsed();
    Ok(loaded)
}

struct Worker {
    number: usize,
    seed: u64,
    connection: ApiConnection,
    rng: StdRng,
    encrypted: bool,
    made: u64,
    made_snapshots: u64,
}

impl Worker {
    async fn run(mut self, vms: Vec<KnownVm>, until: Instant) -> Loaded {
        let mut loaded = Loaded { vms, ..Loaded::default() };
        while Instant::now() < until && loaded.failures.len() < FAILURES_MAX {
            let began = Instant::now();
            match self.step(&mut loaded.vms).await {
                Ok(Some(kind)) => loaded.record(kind, began.elapsed()),
                Ok(None) => {}
                Err(error) => loaded.failures.push(error.to_string()),
            }
        }
        loaded
    }

    /// Two of five operations change power, and one of five each makes or deletes a VM,
    /// reconfigures one, or makes or deletes a snapshot.
    async fn step(&mut self, vms: &mut Vec<KnownVm>) -> Result<Option<Kind>, EstateError> {
        match self.rng.random_range(0..5) {
            0 => self.turn(vms, true).await,
            1 => self.turn(vms, false).await,
            2 => self.make_or_delete(vms).await.map(Some),
            3 => self.configure(vms).await,
            _ => self.snapshot(vms).await,
        }
    }

    fn choose(&mut self, vms: &[KnownVm], is_meant: impl Fn(&KnownVm) -> bool) -> Option<usize> {
        let from = self.rng.random_range(0..vms.len().max(1));
        let places = (from..vms.len()).chain(0..from.min(vms.len()));
        places.into_iter().find(|place| is_meant(&vms[*place]))
    }

    /// Stops a VM that runs, or starts one that is off.
    async fn turn(&mut self, vms: &mut [KnownVm], stops: bool) -> Result<Option<Kind>, EstateError> {
        let Some(place) = self.choose(vms, |vm| vm.is_running == stops) else { return Ok(None) };
        let vm = &mut vms[place];
        let (verb, body) = if stops { ("stop", json!({ "force": true })) } else { ("start", json!({})) };
        let path = format!("/v1/vms/{}/{verb}", vm.name);
        self.connection.carry_out(Method::POST, &path, &body).await?;
        vm.is_running = !stops;
        Ok(Some(if stops { Kind::Stop } else { Kind::Start }))
    }

    async fn make_or_delete(&mut self, vms: &mut Vec<KnownVm>) -> Result<Kind, EstateError> {
        if let Some(place) = self.choose(vms, |vm| vm.is_of_load && !vm.is_running) {
            let path = format!("/v1/vms/{}", vms[place].name);
            self.connection.carry_out(Method::DELETE, &path, &json!({})).await?;
            vms.swap_remove(place);
            return Ok(Kind::Delete);
        }
        let datastore = self.choose(vms, |_| true).map(|place| vms[place].datastore.clone());
        let name = format!("load{}-{}-{}", self.seed, self.number, self.made);
        self.made += 1;
        let vm = KnownVm { is_of_load: true, ..KnownVm::new(name, datastore.unwrap_or_default()) };
        self.connection.carry_out(Method::POST, "/v1/vms", &wish(&vm, self.encrypted)).await?;
        vms.push(vm);
        Ok(Kind::Create)
    }

    async fn configure(&mut self, vms: &mut [KnownVm]) -> Result<Option<Kind>, EstateError> {
        let Some(place) = self.choose(vms, |vm| !vm.is_running) else { return Ok(None) };
        let memory_bytes = MEMORY_BYTES[self.rng.random_range(0..MEMORY_BYTES.len())];
        let path = format!("/v1/vms/{}", vms[place].name);
        self.connection.carry_out(Method::PATCH, &path, &json!({ "memory_bytes": memory_bytes })).await?;
        vms[place].memory_bytes = memory_bytes;
        Ok(Some(Kind::Configure))
    }

    async fn snapshot(&mut self, vms: &mut [KnownVm]) -> Result<Option<Kind>, EstateError> {
        let has_some = self.rng.random_bool(0.5);
        let Some(place) = self.choose(vms, |vm| vm.snapshots.is_empty() != has_some) else { return Ok(None) };
        let vm = &mut vms[place];
        let path = format!("/v1/vms/{}/snapshots", vm.name);
        if let Some(name) = vm.snapshots.last() {
            self.connection.carry_out(Method::DELETE, &format!("{path}/{name}"), &json!({})).await?;
            vm.snapshots.pop();
            return Ok(Some(Kind::DropSnapshot));
        }
        let name = format!("s{}", self.made_snapshots);
        self.made_snapshots += 1;
        self.connection.carry_out(Method::POST, &path, &json!({ "name": name })).await?;
        vm.snapshots.push(name);
        Ok(Some(Kind::Snapshot))
    }
}

/// Compares what the control plane says of all VMs, and what the hosts have, with what the workers
/// were told. Returns the differences.
///
/// # Errors
/// [`EstateError`].
pub async fn differences(
    api: &Api,
    known: &[KnownVm],
    hosts: &[ObservedVm],
) -> Result<Vec<String>, EstateError> {
    let mut connection = api.connect().await?;
    let mut listed: BTreeMap<String, Value> = BTreeMap::new();
    let mut cursor = String::new();
    loop {
        let page = connection.get(&format!("/v1/vms?limit={PAGE}{cursor}")).await?;
        for vm in page["items"].as_array().into_iter().flatten() {
            listed.insert(vm["name"].as_str().unwrap_or_default().to_owned(), vm.clone());
        }
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    let mut found = Vec::new();
    let on_hosts: BTreeMap<&str, &ObservedVm> = hosts.iter().map(|vm| (vm.name.as_str(), vm)).collect();
    for (what, count) in [("the list", listed.len()), ("the hosts", on_hosts.len())] {
        if count != known.len() {
            found.push(format!("there are {} VMs, and {what} have {count}", known.len()));
        }
    }
    for vm in known {
        let power = if vm.is_running { "running" } else { "stopped" };
        match listed.get(&vm.name) {
            None => found.push(format!("VM {} is not listed", vm.name)),
            Some(shown) if shown["power"] != power || shown["memory_bytes"] != vm.memory_bytes => {
                found.push(format!("VM {} is not as it was acknowledged: {vm:?}: {shown}", vm.name));
            }
            Some(_) => {}
        }
        if !on_hosts.get(vm.name.as_str()).is_some_and(|there| is_as_known(vm, there)) {
            found.push(format!("VM {} is not on its host as it was acknowledged: {vm:?}", vm.name));
        }
    }
    Ok(found)
}

fn is_as_known(known: &KnownVm, there: &ObservedVm) -> bool {
    let snapshots = there.snapshots.iter().flat_map(|all| &all.list);
    let memory_bytes = there.spec.as_ref().map(|spec| spec.memory_bytes.bytes());
    (there.power == PowerState::Running) == known.is_running
        && memory_bytes == Some(known.memory_bytes)
        && snapshots.map(|snapshot| snapshot.name.as_str()).eq(known.snapshots.iter().map(String::as_str))
}
