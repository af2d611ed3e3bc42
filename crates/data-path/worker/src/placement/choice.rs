//! Where a worker is to run, given what is known: logic alone.
//!
//! Where the VM is, is worth more than where the device is: every byte is read or written by a
//! processor in the VM's memory, and copied to or from the device by the device itself.
//!
//! - The VM's node is known: the processors of that node.
//! - Only the device's is: the processors of all nodes that are near it, which is the device's
//!   socket where a socket has several nodes. All VMs of a datastore come to the same place, so it
//!   is made no narrower than it must be.
//! - Whoever started the process may have chosen already where memory comes from (numactl,
//!   `NUMAPolicy=`). Then nothing is done for a device's sake, and for the VM's, which a person
//!   named, nothing about memory.
//! - Never more than the process may use anyway, and nothing at all where that would change
//!   nothing.
//!
//! Memory comes from the nodes of these processors, and from the nearest of those first. Threads
//! are bound to none of the processors by itself: the scheduler knows which of them are busy.

use std::fmt;

use super::numbers::Numbers;
use super::topology::Topology;

/// Nodes this near are one place: parts of a socket say 11, 12 or 15, another socket 20 and more.
const NEAR_DISTANCE_MAX: u32 = 15;

/// What is known.
#[derive(Clone, Debug, Default)]
pub struct Situation {
    /// The machine; nothing if the kernel does not tell.
    pub topology: Option<Topology>,
    /// The processors that the process may use.
    pub processors: Numbers,
    /// The nodes that its memory may come from; nothing if the kernel does not tell.
    pub memory: Option<Numbers>,
    /// Whether somebody has chosen already where its memory comes from.
    pub memory_is_chosen: bool,
    /// The VM's node.
    pub vm_node: Option<u32>,
    /// The nodes that the volume's device is at.
    pub device_nodes: Numbers,
}

/// What is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Nothing.
    Leave(Why),
    /// It is moved.
    Place {
        /// To these processors.
        processors: Numbers,
        /// Its memory comes from these nodes first; none leaves that to the kernel.
        memory: Numbers,
        /// Near what.
        near: Near,
    },
}

/// What a worker is to be near to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Near {
    /// The VM.
    Vm,
    /// The device that the volume is on.
    Device,
}

/// Why nothing is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The kernel does not tell of nodes.
    Unreadable,
    /// The machine has one.
    OneNode,
    /// Neither the VM's node nor the device's is known.
    NothingKnown,
    /// Somebody has chosen already where its memory comes from.
    Chosen,
    /// The VM's node is not there.
    NoSuchNode(u32),
    /// None of the processors that it may use is of a node that is there.
    NoProcessor,
    /// Of the processors that it may use, none are nearer than others.
    AllNear,
}

impl Situation {
    /// What is to be done.
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
        // A home without a processor is served from the nearest nodes that have some.
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

    /// The nodes of these that memory may come from; if it is none, the nearest to them.
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
