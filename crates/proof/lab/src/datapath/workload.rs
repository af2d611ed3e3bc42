//! The load on all servers: the rows of the report.

use clap::ValueEnum;

use super::guest_load::{Order, Pattern};
use crate::study::{Metric, Workload};

/// What belongs together, and can be measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Group {
    /// On a disk, over vhost-user, beside the file itself
    Disk,
    /// In memory, over vhost-user: what serving and encrypting cost
    Memory,
    /// Over NBD, in memory and on a disk
    Nbd,
    /// Two queues in place of one, and up to eight disks at a time
    Scaling,
    /// What encryption costs: our encrypted disks beside our clear ones
    Encryption,
    /// What is done once: create, open, find out what is written
    Once,
}

/// The medium of the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// In files on the file system that is measured.
    Disk,
    /// In the server's memory; for a server of files, in files on tmpfs.
    Memory,
}

/// The kind of client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// As a guest's disk, through the lab's own front end.
    VhostUser,
    /// Over a unix socket, with fio.
    Nbd,
}

/// The measured task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Load, for a time.
    Load {
        /// The medium of the content.
        medium: Medium,
        /// The kind of client.
        client: Client,
        /// The pattern on each disk.
        pattern: Pattern,
        /// Queues of each disk.
        queues: u16,
        /// The number of concurrent disks, each with its own server.
        disks: u16,
    },
    /// Making an empty disk.
    Create,
    /// From the start of the server's program to the first answered read.
    Open,
    /// Querying a disk's map, with [`MAP_RUNS`] blocks and holes between them, over NBD.
    Map,
}

/// The number of runs of data on the disk for map queries, with as many holes.
pub const MAP_RUNS: u64 = 50_000;

/// A row of the report.
#[derive(Clone, Debug)]
pub struct DiskWorkload {
    name: String,
    /// Its groups.
    pub groups: &'static [Group],
    /// Whether the quick form includes it.
    pub quick: bool,
    /// The measured task.
    pub task: Task,
}

impl Workload for DiskWorkload {
    fn name(&self) -> &str {
        &self.name
    }

    fn headline(&self) -> Metric {
        match self.task {
            Task::Load { pattern, .. } => headline(pattern),
            Task::Create | Task::Open | Task::Map => Metric::ElapsedMs,
        }
    }

    fn must_saturate(&self) -> bool {
        matches!(self.task, Task::Load { pattern, .. } if pattern.depth > 1)
    }
}

/// All rows.
pub fn all() -> Vec<DiskWorkload> {
    use Client::{Nbd, VhostUser};
    use Group::{Disk, Encryption, Memory, Once, Scaling};
    let disk: &[Group] = &[Disk];
    let disk_and_encryption: &[Group] = &[Disk, Encryption];
    let memory_and_encryption: &[Group] = &[Memory, Encryption];
    // The baseline for two queues and several disks.
    let disk_alone: &[Group] = &[Disk, Encryption, Scaling];
    let memory_alone: &[Group] = &[Memory, Encryption, Scaling];
    let nbd: &[Group] = &[Group::Nbd];
    let random = |reads_percent, kib: u32, depth| pattern(Order::Random, reads_percent, kib, depth);
    let sequential = |reads_percent, kib, depth| pattern(Order::Sequential, reads_percent, kib, depth);
    let mut rows = Rows(Vec::new());
    for (groups, quick, pattern) in [
        (disk_alone, true, random(100, 4, 32)),
        (disk_and_encryption, true, random(0, 4, 32)),
        (disk, false, random(70, 4, 32)),
        (disk, true, random(100, 4, 1)),
        (disk, false, random(0, 4, 1)),
        (disk, false, random(100, 64, 16)),
        (disk, true, sequential(100, 512, 8)),
        (disk, true, sequential(0, 512, 8)),
    ] {
        rows.load(groups, quick, Medium::Disk, VhostUser, pattern, 1, 1);
    }
    for (groups, quick, pattern) in [
        (memory_alone, true, random(100, 4, 32)),
        (memory_and_encryption, true, random(0, 4, 32)),
        (memory_and_encryption, true, sequential(100, 512, 8)),
        (memory_and_encryption, false, sequential(0, 512, 8)),
    ] {
        rows.load(groups, quick, Medium::Memory, VhostUser, pattern, 1, 1);
    }
    rows.load(nbd, true, Medium::Memory, Nbd, random(100, 4, 32), 1, 1);
    rows.load(nbd, true, Medium::Memory, Nbd, random(0, 4, 32), 1, 1);
    rows.load(nbd, true, Medium::Disk, Nbd, random(100, 4, 32), 1, 1);
    rows.load(nbd, false, Medium::Disk, Nbd, random(0, 4, 32), 1, 1);
    for (medium, queues, disks) in [
        (Medium::Disk, 2, 1),
        (Medium::Memory, 1, 2),
        (Medium::Memory, 2, 1),
        (Medium::Disk, 1, 2),
        (Medium::Disk, 1, 4),
        (Medium::Disk, 1, 8),
    ] {
        rows.load(&[Scaling], false, medium, VhostUser, random(100, 4, 32), queues, disks);
    }
    rows.once(&[Once], "create", Task::Create);
    rows.once(&[Once], "open, until the first read", Task::Open);
    rows.once(&[Once], "map of 100,000 extents, over NBD", Task::Map);
    rows.0
}

struct Rows(Vec<DiskWorkload>);

impl Rows {
    #[allow(clippy::too_many_arguments)]
    fn load(
        &mut self,
        groups: &'static [Group],
        quick: bool,
        medium: Medium,
        client: Client,
        pattern: Pattern,
        queues: u16,
        disks: u16,
    ) {
        let task = Task::Load { medium, client, pattern, queues, disks };
        let place = match (client, medium) {
            (Client::VhostUser, Medium::Disk) => "disk",
            (Client::VhostUser, Medium::Memory) => "memory",
            (Client::Nbd, Medium::Disk) => "NBD, disk",
            (Client::Nbd, Medium::Memory) => "NBD, memory or tmpfs",
        };
        let mut name = format!("{place}: {}", told(pattern));
        if queues > 1 {
            name += &format!(", {queues} queues");
        }
        if disks > 1 {
            name += &format!(", {disks} disks");
        }
        self.0.push(DiskWorkload { name, groups, quick, task });
    }

    fn once(&mut self, groups: &'static [Group], name: &str, task: Task) {
        self.0.push(DiskWorkload { name: name.to_owned(), groups, quick: false, task });
    }
}

fn pattern(order: Order, reads_percent: u8, kib: u32, depth: u16) -> Pattern {
    Pattern { order, reads_percent, block_bytes: kib << 10, depth }
}

/// The metric by which servers are compared first at a pattern.
pub(crate) fn headline(pattern: Pattern) -> Metric {
    match pattern {
        Pattern { depth: 1, .. } => Metric::LatencyP50Us,
        Pattern { block_bytes, .. } if block_bytes > 4096 => Metric::MegabytesPerSecond,
        _ => Metric::OperationsPerSecond,
    }
}

/// A pattern in words, such as `4 KiB random read, depth 32`.
pub(crate) fn told(pattern: Pattern) -> String {
    let order = match pattern.order {
        Order::Random => "random",
        Order::Sequential => "sequential",
    };
    let kind = match pattern.reads_percent {
        100 => "read".to_owned(),
        0 => "write".to_owned(),
        percent => format!("{percent}/{} read and write", 100 - percent),
    };
    format!("{} KiB {order} {kind}, depth {}", pattern.block_bytes >> 10, pattern.depth)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rows_have_names_of_their_own_that_say_what_they_are() {
        let rows = all();
        let names: BTreeSet<&str> = rows.iter().map(Workload::name).collect();
        assert_eq!(names.len(), rows.len());
        for name in [
            "disk: 4 KiB random read, depth 32",
            "disk: 4 KiB random 70/30 read and write, depth 32",
            "memory: 512 KiB sequential read, depth 8",
            "disk: 4 KiB random read, depth 32, 8 disks",
        ] {
            assert!(names.contains(name), "{name} is not in {names:?}");
        }
    }

    #[test]
    fn what_is_compared_first_follows_from_the_load() {
        let rows = all();
        let headline = |name| rows.iter().find(|row| row.name == name).map(Workload::headline);
        assert_eq!(headline("disk: 4 KiB random read, depth 1"), Some(Metric::LatencyP50Us));
        assert_eq!(headline("disk: 64 KiB random read, depth 16"), Some(Metric::MegabytesPerSecond));
        assert_eq!(headline("create"), Some(Metric::ElapsedMs));
    }
}
