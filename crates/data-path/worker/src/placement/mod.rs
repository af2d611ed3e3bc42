//! Where a worker runs, and which nodes its memory comes from, on a machine with several NUMA
//! nodes.
//!
//! The process that starts a worker knows the volume's file, and perhaps the VM's node
//! ([`Placement`]). Before it is confined, the worker looks up the machine's nodes ([`topology`],
//! [`device`]), decides ([`choice`]), and moves its only thread. All its lanes are started by that
//! thread, and inherit the processors and the memory policy. Pools allocate memory when their
//! threads first need it, so it comes from the same nodes.
//!
//! On a machine with one node nothing is done, at the cost of reading one small file. If anything
//! fails, the kernel decides; it never prevents a volume from being served.

pub mod choice;
pub mod device;
mod numbers;
pub mod topology;

use std::fmt;
use std::os::fd::AsFd;
use std::path::Path;
use std::str::FromStr;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};
use strongroom_memory::policy;
use thiserror::Error;

pub use self::numbers::Numbers;

use self::choice::{Choice, Situation};
use self::device::DeviceNumber;
use self::topology::Topology;

/// The directory in which the kernel shows its devices.
pub const SYSFS: &str = "/sys";

/// What a worker should be near to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The VM's node, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm_node: Option<u32>,
    /// The device that the volume is on, if it is on one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceNumber>,
}

/// A person's choice: `auto`, `none`, or the number of the VM's node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NumaNode {
    /// Near the device that the volume is on.
    #[default]
    Auto,
    /// Wherever the kernel chooses.
    None,
    /// Near a VM on this node.
    Vm(u32),
}

/// A node that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "this machine has no NUMA node {node}: its nodes are {online}; 'lscpu' lists them with their processors"
)]
pub struct NoSuchNode {
    node: u32,
    online: Numbers,
}

impl NumaNode {
    /// The placement of a worker whose volume is in this file or directory, if the kernel has it;
    /// `None` on a machine with one node.
    ///
    /// # Errors
    /// If the node does not exist.
    pub fn placement(self, volume: Option<impl AsFd>) -> Result<Option<Placement>, NoSuchNode> {
        match self {
            Self::None => Ok(None),
            Self::Auto => Ok(volume.and_then(Placement::near_device)),
            Self::Vm(node) => match Topology::online(SYSFS.as_ref()) {
                Some(online) if !online.contains(node) => Err(NoSuchNode { node, online }),
                Some(online) if online.len() > 1 => Ok(Some(Placement { vm_node: Some(node), device: None })),
                _ => Ok(None),
            },
        }
    }
}

impl Placement {
    /// The placement near the device of a volume in this file or directory; `None` on a machine
    /// with one node.
    pub fn near_device(volume: impl AsFd) -> Option<Self> {
        let nodes = Topology::online(SYSFS.as_ref())?.len();
        (nodes > 1).then(|| Self { vm_node: None, device: DeviceNumber::of_file(volume) })
    }

    /// Moves the calling thread, and the threads that it starts from now on, to the chosen place,
    /// and logs that.
    pub fn settle(self, sysfs: &Path) {
        let choice = self.situation(sysfs).choose();
        tracing::info!("{choice}");
        let Choice::Place { processors, memory, .. } = choice else { return };
        if let Err(errno) = sched_setaffinity(None, &set_of(&processors)) {
            tracing::warn!(
                "the worker stays where it is: it cannot be moved to processors {processors}: {errno}"
            );
            return;
        }
        if !memory.is_empty()
            && let Err(errno) = policy::prefer(memory.iter())
        {
            // Usually that is the node that a thread runs on, which is one of them.
            tracing::info!("memory of the worker comes from where the kernel chooses: {errno}");
        }
    }

    fn situation(self, sysfs: &Path) -> Situation {
        Situation {
            topology: Topology::read(sysfs),
            processors: usable_processors(),
            memory: usable_memory(),
            // A process that may not query its memory policy may not set it either.
            memory_is_chosen: policy::is_default() == Ok(false),
            vm_node: self.vm_node,
            device_nodes: self.device.map(|device| device.nodes(sysfs)).unwrap_or_default(),
        }
    }
}

impl FromStr for NumaNode {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            number => {
                number.parse().map(Self::Vm).map_err(|_| "write auto, none, or a node's number, as in 1")
            }
        }
    }
}

impl fmt::Display for NumaNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::None => f.write_str("none"),
            Self::Vm(node) => write!(f, "{node}"),
        }
    }
}

/// The processors that this thread may run on, with cpusets. Empty on machines with more processors
/// than the call supports; then the kernel decides.
fn usable_processors() -> Numbers {
    let Ok(set) = sched_getaffinity(None) else { return Numbers::default() };
    (0..CpuSet::MAX_CPU).filter(|number| set.is_set(*number)).map(|number| number as u32).collect()
}

fn set_of(processors: &Numbers) -> CpuSet {
    let mut set = CpuSet::new();
    processors.iter().for_each(|number| set.set(number as usize));
    set
}

/// The nodes that this thread's memory may come from, with cpusets.
fn usable_memory() -> Option<Numbers> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    Numbers::parse(status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"))?)
}

#[cfg(test)]
mod tests;
