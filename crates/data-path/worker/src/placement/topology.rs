//! The NUMA nodes of this machine, as sysfs shows them
//! (`Documentation/ABI/stable/sysfs-devices-node` of Linux).

use std::collections::BTreeMap;
use std::path::Path;

use super::numbers::Numbers;

/// Where nodes are, below sysfs.
const NODES: &str = "devices/system/node";

/// The nodes of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    nodes: BTreeMap<u32, Node>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its online processors; a node with only memory (CXL, persistent) has none.
    pub processors: Numbers,
    /// Whether it has memory.
    pub has_memory: bool,
    /// The distance of each node: 10 is itself, 20 takes twice as long (ACPI 6.5, 5.2.17).
    distances: BTreeMap<u32, u32>,
}

impl Topology {
    /// The numbers of the online nodes. It reads a single file, which is all that a machine with
    /// one node needs. `None` if the kernel does not report them.
    pub fn online(sysfs: &Path) -> Option<Numbers> {
        Numbers::parse(&read(sysfs, "online")?).filter(|online| !online.is_empty())
    }

    /// All nodes; `None` if the kernel does not report them.
    pub fn read(sysfs: &Path) -> Option<Self> {
        let online = Self::online(sysfs)?;
        let with_memory = read(sysfs, "has_memory").and_then(|list| Numbers::parse(&list));
        let nodes = online.iter().map(|number| {
            let processors = Numbers::parse(&read(sysfs, &format!("node{number}/cpulist"))?)?;
            let has_memory = with_memory.as_ref().is_none_or(|nodes| nodes.contains(number));
            // The distances are in the order of the online nodes.
            let row = read(sysfs, &format!("node{number}/distance")).unwrap_or_default();
            let distances = row.split_whitespace().map_while(|distance| distance.parse().ok());
            let distances = online.iter().zip(distances).collect();
            Some((number, Node { processors, has_memory, distances }))
        });
        Some(Self { nodes: nodes.collect::<Option<_>>()? })
    }

    /// Each node with its number, in order.
    pub fn nodes(&self) -> impl Iterator<Item = (u32, &Node)> {
        self.nodes.iter().map(|(number, node)| (*number, node))
    }

    /// A node.
    pub fn node(&self, number: u32) -> Option<&Node> {
        self.nodes.get(&number)
    }

    /// The distance from one node to another. An unknown distance counts as far.
    pub fn distance(&self, from: u32, to: u32) -> u32 {
        let said = self.nodes.get(&from).and_then(|node| node.distances.get(&to)).copied();
        if from == to { 10 } else { said.unwrap_or(u32::MAX) }
    }
}

fn read(sysfs: &Path, name: &str) -> Option<String> {
    std::fs::read_to_string(sysfs.join(NODES).join(name)).ok()
}
