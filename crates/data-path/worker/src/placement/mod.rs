//! Where a worker runs, and whose memory it has, on a machine with several NUMA nodes.
//!
//! The process that starts a worker knows which file the volume is in, and perhaps where the VM is
//! ([`Placement`]). The worker finds out before it is confined what that means on this machine
//! ([`topology`], [`device`]), decides ([`choice`]), and does it to its one thread: all its lanes
//! are made by that one, and inherit both. Pools take their memory when their threads first need
//! it, so it comes from there too.
//!
//! On a machine with one node nothing is done; it costs the reading of
//! one small file. What cannot be found out or done is left to the kernel, and never keeps a volume
//! from being served.

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

/// Where the kernel shows its devices.
pub const SYSFS: &str = "/sys";

/// What a worker is to be near to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The VM's node, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm_node: Option<u32>,
    /// The device that the volume is on, if it is on one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceNumber>,
}

/// What a person says of it: `auto`, `none`, or the number of the VM's node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NumaNode {
    /// Near the device that the volume is on.
    #[default]
    Auto,
    /// Nowhere.
    None,
    /// Near a VM on this node.
    Vm(u32),
}

/// A node that is not there.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "this machine has no NUMA node {node}: its nodes are {online}; 'lscpu' lists them with their processors"
)]
pub struct NoSuchNode {
    node: u32,
    online: Numbers,
}

impl NumaNode {
    /// What the worker of a volume is told that is in this file or directory: nothing on a machine
    /// with one node.
    ///
    /// # Errors
    /// For a node that is not there.
    pub fn placement(self, volume: impl AsFd) -> Result<Option<Placement>, NoSuchNode> {
        match self {
            Self::None => Ok(None),
            Self::Auto => Ok(Placement::near_device(volume)),
            Self::Vm(node) => match Topology::online(SYSFS.as_ref()) {
                Some(online) if !online.contains(node) => Err(NoSuchNode { node, online }),
                Some(online) if online.len() > 1 => Ok(Some(Placement { vm_node: Some(node), device: None })),
                _ => Ok(None),
            },
        }
    }
}

impl Placement {
    /// Near the device that a volume is on that is in this file or directory; nothing on a machine
    /// with one node.
    pub fn near_device(volume: impl AsFd) -> Option<Self> {
        let nodes = Topology::online(SYSFS.as_ref())?.len();
        (nodes > 1).then(|| Self { vm_node: None, device: DeviceNumber::of_file(volume) })
    }

    /// Moves the calling thread, and those that it makes from now on, to where they are to run, and
    /// says so in the log.
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
            // From the node that a thread runs on, as a rule, which is one of them.
            tracing::info!("memory of the worker comes from where the kernel chooses: {errno}");
        }
    }

    fn situation(self, sysfs: &Path) -> Situation {
        Situation {
            topology: Topology::read(sysfs),
            processors: usable_processors(),
            memory: usable_memory(),
            // Who may not ask may not choose either.
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

/// The processors that this thread may run on, cpusets considered. None on machines with more than
/// can be asked for, which are left to the kernel then.
fn usable_processors() -> Numbers {
    let Ok(set) = sched_getaffinity(None) else { return Numbers::default() };
    (0..CpuSet::MAX_CPU).filter(|number| set.is_set(*number)).map(|number| number as u32).collect()
}

fn set_of(processors: &Numbers) -> CpuSet {
    let mut set = CpuSet::new();
    processors.iter().for_each(|number| set.set(number as usize));
    set
}

/// The nodes that this thread's memory may come from, cpusets considered.
fn usable_memory() -> Option<Numbers> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    Numbers::parse(status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"))?)
}

#[cfg(test)]
mod tests;
