//! Chooses where a worker runs, from the known facts: logic only.
//!
//! The VM's node matters more than the device's: a processor reads or writes every byte in the VM's
//! memory, and the device itself copies it.
//!
//! - If the VM's node is known: the processors of that node.
//! - If only the device's is known: the processors of all nodes near it, which is the device's
//!   socket if a socket has several nodes. All VMs of a datastore get the same choice, so it is
//!   kept as wide as possible.
//! - The process may have been started with a memory policy (numactl, `NUMAPolicy=`). Then it is
//!   not moved to a device's node. It is still moved to the VM's node, which a person named, but
//!   its memory policy is kept.
//! - The choice is limited to what the process may use. If it would change nothing, nothing is
//!   done.
//!
//! Memory comes from the nodes of these processors, the nearest first. Threads are not bound to
//! single processors: the scheduler knows which ones are busy.

use std::fmt;

use super::numbers::Numbers;
use super::topology::Topology;

/// Nodes up to this distance count as near: parts of a socket report 11, 12 or 15, another socket
/// 20 and more.
const NEAR_DISTANCE_MAX: u32 = 15;

/// The known facts.
#[derive(Clone, Debug, Default)]
pub struct Situation {
    /// The machine; `None` if the kernel does not report it.
    pub topology: Option<Topology>,
    /// The processors that the process may use.
    pub processors: Numbers,
    /// The nodes that its memory may come from; `None` if the kernel does not report them.
    pub memory: Option<Numbers>,
    /// Whether the process was started with a memory policy.
    pub memory_is_chosen: bool,
    /// The VM's node.
    pub vm_node: Option<u32>,
    /// The nodes that the volume's device is at.
    pub device_nodes: Numbers,
}

/// The choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Leave the worker where it is.
    Leave(Why),
    /// Move the worker.
    Place {
        /// The processors that it may run on.
        processors: Numbers,
        /// The nodes that its memory comes from first; an empty set leaves that to the kernel.
        memory: Numbers,
        /// The reason for the place.
        near: Near,
    },
}

/// What a worker is placed near to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Near {
    /// The VM.
    Vm,
    /// The device that the volume is on.
    Device,
}

/// The reasons why a worker is not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The kernel does not report nodes.
    Unreadable,
    /// The machine has one node.
    OneNode,
    /// Neither the VM's node nor the device's is known.
    NothingKnown,
    /// The process was started with a memory policy.
    Chosen,
    /// The VM's node does not exist.
    NoSuchNode(u32),
    /// None of the processors that it may use belongs to a known node.
    NoProcessor,
    /// All processors that it may use are equally near.
    AllNear,
}

impl Situation {
    /// Makes the choice.
    pub fn choose(&self) -> Choice {
        let Some(topology) = &self.topology else { return Choice::Leave(Why::Unreadable) };
        if topology.nodes().count() < 2 {
            return Choice::Leave(Why::OneNode);
        }
        let (near, homes) = match self.vm_node {
            Some(node) if topology.node(node).is_none() => return Choice::Leave(Why::NoSuchNode(node)),
            Some(node) => (Near::Vm, Numbers::from_iter([node])),
            None if self.memory_is_chosen => return Choice::Leave(Why::Chosen),
            None => (Near::Device, self.device_nodes.clone()),
        };
        if homes.iter().all(|home| topology.node(home).is_none()) {
            return Choice::Leave(Why::NothingKnown);
        }
        let far = |node| homes.iter().map(|home| topology.distance(home, node)).min().unwrap_or(u32::MAX);
        let usable: Vec<_> = topology
            .nodes()
            .map(|(number, node)| (number, node.processors.and(&self.processors)))
            .filter(|(_, processors)| !processors.is_empty())
            .collect();
        let within = match near {
            Near::Vm => 10,
            Near::Device => NEAR_DISTANCE_MAX,
        };
        // If the chosen nodes have no usable processor, the nearest nodes that have some are used.
        let Some(nearest) = usable.iter().map(|(number, _)| far(*number)).min() else {
            return Choice::Leave(Why::NoProcessor);
        };
        let within = within.max(nearest);
        let chosen: Vec<_> = usable.iter().filter(|(number, _)| far(*number) <= within).collect();
        if chosen.len() == usable.len() {
            return Choice::Leave(Why::AllNear);
        }
        let nodes: Numbers = chosen.iter().map(|(number, _)| *number).collect();
        let processors = chosen.iter().flat_map(|(_, processors)| processors.iter()).collect();
        let memory =
            if self.memory_is_chosen { Numbers::default() } else { self.memory_near(topology, &nodes) };
        Choice::Place { processors, memory, near }
    }

    /// Those of these nodes that memory may come from; if there are none, the nearest ones.
    fn memory_near(&self, topology: &Topology, nodes: &Numbers) -> Numbers {
        let may = |number| self.memory.as_ref().is_none_or(|allowed| allowed.contains(number));
        let far = |node| nodes.iter().map(|from| topology.distance(from, node)).min().unwrap_or(u32::MAX);
        let usable = || {
            let nodes = topology.nodes().filter(|(number, node)| node.has_memory && may(*number));
            nodes.map(|(number, _)| (number, far(number)))
        };
        let nearest = usable().map(|(_, distance)| distance).min();
        usable().filter(|(_, distance)| Some(*distance) == nearest).map(|(number, _)| number).collect()
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leave(why) => write!(f, "the worker is placed nowhere: {why}"),
            Self::Place { processors, memory, near } => {
                let near = match near {
                    Near::Vm => "the VM",
                    Near::Device => "the volume's device",
                };
                write!(f, "the worker is placed near {near}: processors {processors}, ")?;
                match memory.is_empty() {
                    true => write!(f, "memory as the kernel chooses"),
                    false => write!(f, "memory of NUMA nodes {memory}"),
                }
            }
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable => f.write_str("the kernel does not tell of NUMA nodes"),
            Self::OneNode => f.write_str("the machine has one NUMA node"),
            Self::NothingKnown => {
                f.write_str("neither the VM's NUMA node nor that of the volume's device is known")
            }
            Self::Chosen => f.write_str("whoever started it has chosen already where its memory comes from"),
            Self::NoSuchNode(node) => write!(f, "the machine has no NUMA node {node}"),
            Self::NoProcessor => f.write_str("the processors that it may use are of no NUMA node"),
            Self::AllNear => f.write_str("of the processors that it may use, none are nearer than others"),
        }
    }
}
