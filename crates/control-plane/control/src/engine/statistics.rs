//! Disk counters and processor time of guests: sampled from hosts for metrics and alarms, and read
//! directly when a client looks at a VM.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use strongroom_api::vm::{
    DiskErrors, DiskOperation, DiskStats, LatencyBucket, OperationStats, ProcessorStats, VmStats,
};
use strongroom_api::{ErrorCode, ObjectKind, Problem};
use strongroom_host::protocol::{DiskStatistics, ProcessorStatistics, VmStatistics};
use strongroom_statistics::{Counters, Operation, Snapshot, upper_bound_ns};
use strongroom_types::VmId;
use uuid::Uuid;

use super::slow_disks::{DiskWatch, STALLED_MS};
use super::{Control, HostSeat};
use crate::host::HostError;
use crate::problems;

/// The default latency that 99 of 100 requests to a disk should keep below, in milliseconds. A disk
/// on a busy network keeps below it, and users notice a guest whose disk does not.
const LATENCY_P99_MS: u32 = 500;

/// The last samples, by host.
#[derive(Debug, Default)]
pub(super) struct Samples(Mutex<BTreeMap<Uuid, BTreeMap<VmId, VmSample>>>);

/// The last sample of a VM.
#[derive(Debug)]
struct VmSample {
    disks: Vec<Sample>,
    processors: Option<ProcessorStatistics>,
}

/// The last sample of a disk.
#[derive(Debug)]
pub(crate) struct Sample {
    /// Its name.
    pub disk: String,
    /// Its counters.
    pub snapshot: Snapshot,
    /// Its recent performance.
    pub watch: DiskWatch,
}

impl Sample {
    /// Whether the disk may be worth an alarm.
    fn is_troubled(&self) -> bool {
        self.snapshot.stalled_ms >= STALLED_MS || self.watch.slow_ns().is_some()
    }
}

impl Samples {
    /// Visits each disk of a VM.
    pub(super) fn of_vm(&self, host: Uuid, vm: VmId, mut each: impl FnMut(&Sample)) {
        let all = self.0.lock();
        let samples = all.get(&host).and_then(|vms| vms.get(&vm));
        samples.into_iter().flat_map(|vm| &vm.disks).for_each(&mut each);
    }
}

impl Control {
    /// Reads a VM's disk counters from its host.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn vm_stats(&self, named: &str) -> Result<VmStats, Problem> {
        let vm = self.inventory.read().find_vm(named).cloned();
        let vm = vm.ok_or_else(|| problems::not_found(ObjectKind::Vm, named))?;
        let none = VmStats { vm: vm.id, disks: Vec::new(), processors: None };
        let Some(seat) = self.seat(vm.host) else { return Ok(none) };
        match seat.host.statistics(vm.id) {
            // A VM that the host does not have yet has no counters.
            Ok(told) => Ok(told.as_ref().map_or(none, told_of_vm)),
            Err(error @ HostError::Unreachable(_)) => {
                Err(Problem::new(ErrorCode::HostUnavailable, format!("host {}: {error}", seat.name)))
            }
            Err(HostError::Refused(problem)) if problem.code == "not_running" => Ok(none),
            Err(HostError::Refused(problem)) => {
                Err(Problem::new(ErrorCode::HostFailed, format!("host {}: {problem}", seat.name)))
            }
        }
    }

    /// Samples the counters of all hosts. Those of a host that does not answer are kept, but not
    /// shown until it answers again.
    pub fn sample(&self) {
        // One that is away would keep the others waiting.
        for seat in self.hosts.iter().filter(|seat| seat.seen().down.is_none()) {
            match seat.host.all_statistics() {
                Ok(told) => self.take_samples(seat, told),
                Err(error) => {
                    tracing::debug!(host = %seat.name, %error, "what guests asked of their disks is not known");
                }
            }
        }
    }

    fn take_samples(&self, seat: &HostSeat, told: Vec<VmStatistics>) {
        let now_ms = self.now_unix_ms();
        let thresholds: BTreeMap<VmId, Option<u64>> =
            told.iter().filter_map(|told| Some((told.vm, self.latency_threshold(told.vm)?))).collect();
        // Readers see either all of the old samples or all of the new ones.
        let mut all = self.samples.0.lock();
        let mut before = all.remove(&seat.id).unwrap_or_default();
        let is_troubled = |vm: &VmSample| vm.disks.iter().any(Sample::is_troubled);
        let mut troubled: BTreeSet<VmId> =
            before.iter().filter(|(_, sample)| is_troubled(sample)).map(|(vm, _)| *vm).collect();
        let mut samples = BTreeMap::new();
        for VmStatistics { vm, disks, processors } in told {
            let Some(threshold_ns) = thresholds.get(&vm) else { continue };
            let known = before.remove(&vm).map(|known| known.disks).unwrap_or_default();
            let mut watches: BTreeMap<_, _> =
                known.into_iter().map(|sample| (sample.disk, sample.watch)).collect();
            let sample = |DiskStatistics { disk, snapshot }| {
                let mut watch: DiskWatch = watches.remove(disk.as_str()).unwrap_or_default();
                watch.see(now_ms, &snapshot, *threshold_ns);
                Sample { disk: disk.to_string(), snapshot, watch }
            };
            let disks = disks.into_iter().map(sample).collect();
            samples.insert(vm, VmSample { disks, processors });
        }
        troubled.extend(samples.iter().filter(|(_, sample)| is_troubled(sample)).map(|(vm, _)| *vm));
        all.insert(seat.id, samples);
        drop(all);
        self.unreviewed.mark(troubled);
    }

    /// The latency threshold of a VM's disks, `Some(None)` if its policy turns the alarm off;
    /// `None` for an unknown VM.
    fn latency_threshold(&self, vm: VmId) -> Option<Option<u64>> {
        let index = self.inventory.read();
        let policy = index.policy_of(index.vm(vm)?);
        let wanted_ms = policy.and_then(|policy| policy.rules.disk_latency_p99_ms).unwrap_or(LATENCY_P99_MS);
        Some((wanted_ms > 0).then(|| u64::from(wanted_ms) * 1_000_000))
    }

    /// Visits each sampled VM of the hosts that answer, with its name, its disks, and the time of
    /// its virtual processors.
    pub(crate) fn each_sample(&self, mut each: impl FnMut(&str, &[Sample], Option<&ProcessorStatistics>)) {
        let index = self.inventory.read();
        let samples = self.samples.0.lock();
        let answers = |host: &Uuid| self.seat(*host).is_some_and(HostSeat::is_up);
        for (id, sample) in samples.iter().filter(|(host, _)| answers(host)).flat_map(|(_, vms)| vms) {
            let Some(vm) = index.vm(*id) else { continue };
            each(vm.name.as_str(), &sample.disks, sample.processors.as_ref());
        }
    }
}

fn told_of_vm(told: &VmStatistics) -> VmStats {
    let processors = told.processors.map(|ProcessorStatistics { read_unix_ms, vcpus, run_ns, wait_ns }| {
        ProcessorStats { read_unix_ms, vcpus, run_ns, wait_ns }
    });
    VmStats { vm: told.vm, disks: told.disks.iter().map(told_of_disk).collect(), processors }
}

fn told_of_disk(told: &DiskStatistics) -> DiskStats {
    let snapshot = &told.snapshot;
    DiskStats {
        disk: told.disk.to_string(),
        since_unix_ms: snapshot.since_unix_ms,
        read_unix_ms: snapshot.read_unix_ms,
        in_flight: snapshot.in_flight,
        stalled_ms: snapshot.stalled_ms,
        throttled_requests: snapshot.throttled_requests,
        throttled_ns: snapshot.throttled_ns,
        operations: Operation::ALL
            .into_iter()
            .map(|operation| told_of(operation, snapshot.of(operation)))
            .collect(),
    }
}

fn told_of(operation: Operation, counters: &Counters) -> OperationStats {
    let errors = &counters.errors;
    let bucket = |(bucket, requests)| LatencyBucket { below_ns: upper_bound_ns(bucket), requests };
    OperationStats {
        operation: match operation {
            Operation::Read => DiskOperation::Read,
            Operation::Write => DiskOperation::Write,
            Operation::Flush => DiskOperation::Flush,
            Operation::Discard => DiskOperation::Discard,
            Operation::WriteZeroes => DiskOperation::WriteZeroes,
        },
        requests: counters.requests(),
        bytes: counters.bytes,
        time_ns: counters.time_ns,
        errors: DiskErrors {
            no_space: errors.no_space,
            device: errors.device,
            integrity: errors.integrity,
            refused: errors.refused,
            other: errors.other,
        },
        latency: counters.latency.counts().map(bucket).collect(),
    }
}
