//! Disk counters of VMs, fetched from their supervisors, and their processor time.

use std::sync::Arc;
use std::time::Duration;

use strongroom_host::process::ProcessIdentity;
use strongroom_host::protocol::{DiskStatistics, Problem, ProcessorStatistics, VmStatistics};
use strongroom_host::state_file::StateFile;
use strongroom_types::VmId;
use tokio::task::JoinSet;

use super::vms::no_such_vm;
use super::{Hostd, processor_time};

/// Timeout of a supervisor, which answers this request at once. One that does not is left out.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// The most VMs that are asked at once.
const AT_ONCE: usize = 32;

/// Returns the counters of one VM; without disks if it is off.
///
/// # Errors
/// If the VM does not exist, or its supervisor has no counters or does not answer.
pub async fn of_vm(hostd: &Arc<Hostd>, vm: VmId) -> Result<VmStatistics, Problem> {
    let observed = hostd.vms.get(vm).ok_or_else(|| no_such_vm(vm))?;
    let mut disks = Vec::new();
    if !observed.power.is_off() {
        let link = hostd.vms.link(vm)?;
        for volume in observed.volumes {
            let disk = volume.disk;
            let asked = tokio::time::timeout(ANSWERS_WITHIN, link.ask_statistics(disk.clone())).await;
            let late = || Problem::new("supervisor_away", "the VM's supervisor has not answered in time");
            match asked.map_err(|_| late())? {
                Ok(snapshot) => disks.push(DiskStatistics { disk, snapshot }),
                // The disk is being opened, or was just removed.
                Err(problem) if problem.code == "not_counted" => {}
                Err(problem) => return Err(problem),
            }
        }
    }
    let processors = if observed.power.is_off() { None } else { processors_of(hostd, vm).await };
    Ok(VmStatistics { vm, disks, processors })
}

/// The processor time of a VM that runs, if it is known.
async fn processors_of(hostd: &Arc<Hostd>, vm: VmId) -> Option<ProcessorStatistics> {
    let run = hostd.run.vm(vm);
    let read = tokio::task::spawn_blocking(move || {
        let qemu = StateFile::read(&run).ok()??.qemu?;
        processor_time::of(ProcessIdentity { pid: qemu.pid, start_ticks: qemu.start_time_ticks })
    });
    read.await.ok()?
}

/// Returns the counters of all running VMs whose supervisors answer.
pub async fn of_all(hostd: &Arc<Hostd>) -> Vec<VmStatistics> {
    let mut running = hostd.vms.all().into_iter().filter(|vm| !vm.power.is_off()).map(|vm| vm.vm);
    let (mut asked, mut all) = (JoinSet::new(), Vec::new());
    loop {
        while asked.len() < AT_ONCE
            && let Some(vm) = running.next()
        {
            let hostd = Arc::clone(hostd);
            asked.spawn(async move { of_vm(&hostd, vm).await });
        }
        match asked.join_next().await {
            Some(Ok(Ok(statistics))) => all.push(statistics),
            Some(Ok(Err(problem))) => tracing::debug!("a VM's requests are not counted: {problem}"),
            Some(Err(error)) => tracing::error!("a VM could not be asked: {error}"),
            None => break,
        }
    }
    all.sort_by_key(|statistics| statistics.vm);
    all
}
