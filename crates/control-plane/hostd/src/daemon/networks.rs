//! Opens networks for the cards of running VMs.
//!
//! A VM's starter opens the networks of the cards that the VM starts with, before anything could
//! have captured its supervisor, and no request makes it open another one. So the network of a card
//! that is plugged in later is opened here, as the control plane's order says, and the open file is
//! all that the supervisor gets: it can have its QEMU use that network, and no other.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use strongroom_confine::cgroup_of;
use strongroom_host::orders::{GrantedNetwork, OpenedNetwork};
use strongroom_host::protocol::{MacAddress, ObservedVm, Problem, VmSpec};
use strongroom_hypervisor::Isolation;
use strongroom_hypervisor::network::{NetworkParts, OpenNetwork};

use super::Hostd;
use super::operations::blocking;

/// The stack of a thread that waits for a network's processes to end, in bytes.
const STACK_BYTES: usize = 64 << 10;

/// Networks for a VM, with their files in the same order.
pub struct Granted {
    pub networks: Vec<GrantedNetwork>,
    pub files: Vec<OwnedFd>,
}

/// Opens the networks of these cards of a running VM. One that cannot be opened is only an error if
/// the VM does not have the card yet, which its supervisor knows.
///
/// # Errors
/// If there is no such card.
pub async fn open(
    hostd: &Arc<Hostd>,
    now: &ObservedVm,
    spec: &VmSpec,
    cards: &[MacAddress],
) -> Result<Granted, Problem> {
    let (hostd, spec, cards) = (Arc::clone(hostd), spec.clone(), cards.to_vec());
    let cgroup = now.qemu_pid.and_then(|qemu| cgroup_of_vm(qemu, &spec));
    blocking(move || {
        let mut granted = Granted { networks: Vec::new(), files: Vec::new() };
        for mac in cards {
            let Some(nic) = spec.nics.iter().find(|nic| nic.mac == mac) else {
                return Err(Problem::new("bad_request", format!("VM {} has no card {mac}", spec.name)));
            };
            let isolation = Isolation::beside_machine(&hostd.launcher, cgroup.as_deref());
            let network = match OpenNetwork::open(&nic.network, &isolation) {
                Ok(open) => keep(open, &mut granted.files)?,
                Err(error) => OpenedNetwork::Failed(Problem::new("network", error.to_string())),
            };
            granted.networks.push(GrantedNetwork { mac, network });
        }
        Ok(granted)
    })
    .await?
}

/// Keeps the file of an open network, and reaps its processes when they end, which they do when
/// QEMU has closed the file.
fn keep(open: OpenNetwork, files: &mut Vec<OwnedFd>) -> Result<OpenedNetwork, Problem> {
    let state = open.state().clone();
    let NetworkParts { file, processes } = open.into_parts();
    if !processes.is_empty() {
        let thread = thread::Builder::new().name("network".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || processes.reap()).map_err(Problem::system)?;
    }
    let has_file = file.is_some();
    files.extend(file);
    Ok(OpenedNetwork::Open { state, has_file })
}

/// The cgroup of a VM's QEMU, which its supervisor named: it must be that of such a VM.
fn cgroup_of_vm(qemu: u32, spec: &VmSpec) -> Option<PathBuf> {
    let is_its = |path: &PathBuf| {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.ends_with(&format!("-vm-{}", spec.name)))
    };
    cgroup_of(qemu).filter(is_its)
}
