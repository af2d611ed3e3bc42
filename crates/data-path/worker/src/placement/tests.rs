//! Choices on recorded machines, and their effect on this one.
//!
//! A recording has a line for each file of sysfs (`path:content`, as `grep -r` prints it) and each
//! link (`path -> target`). The recording with one node is of this project's machine; that of the
//! EPYCs takes its processors and distances from a published listing; the others are constructed in
//! the same form.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::thread;

use strongroom_memory::policy;
use tempfile::TempDir;

use super::choice::{Choice, Near, Situation, Why};
use super::device::DeviceNumber;
use super::topology::Topology;
use super::*;

const ONE_NODE: &str = include_str!("recorded/one-node.txt");
const TWO_SOCKETS: &str = include_str!("recorded/two-sockets.txt");
const EPYC_NPS4: &str = include_str!("recorded/epyc-nps4.txt");
const MEMORY_ONLY_NODE: &str = include_str!("recorded/memory-only-node.txt");
const NODE_WITHOUT_MEMORY: &str = include_str!("recorded/node-without-memory.txt");
const OFFLINE: &str = include_str!("recorded/offline.txt");

/// The first disk of the recordings.
const DISK: DeviceNumber = DeviceNumber { major: 259, minor: 0 };

fn machine(recording: &str) -> TempDir {
    let sysfs = tempfile::tempdir().unwrap();
    let place = |path: &str| {
        let path = sysfs.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    };
    for line in recording.lines().filter(|line| !line.starts_with('#')) {
        match line.split_once(" -> ") {
            Some((link, target)) => symlink(target, place(link)).unwrap(),
            // Paths of sysfs contain colons themselves.
            None => {
                let (file, content) = line.rsplit_once(':').unwrap();
                fs::write(place(file), format!("{content}\n")).unwrap();
            }
        }
    }
    sysfs
}

fn numbers(list: &str) -> Numbers {
    Numbers::parse(list).unwrap()
}

/// The situation of a process that may use the whole recorded machine.
fn situation(recording: &str) -> Situation {
    let topology = Topology::read(machine(recording).path()).unwrap();
    let processors = topology.nodes().flat_map(|(_, node)| node.processors.iter()).collect();
    Situation { topology: Some(topology), processors, ..Situation::default() }
}

fn of_vm(recording: &str, node: u32) -> Choice {
    Situation { vm_node: Some(node), ..situation(recording) }.choose()
}

fn of_device(recording: &str) -> Choice {
    let device_nodes = DISK.nodes(machine(recording).path());
    assert!(!device_nodes.is_empty());
    Situation { device_nodes, ..situation(recording) }.choose()
}

fn place(near: Near, processors: &str, memory: &str) -> Choice {
    Choice::Place { processors: numbers(processors), memory: numbers(memory), near }
}

#[test]
fn on_a_machine_with_one_node_nothing_is_done() {
    let machine = machine(ONE_NODE);
    assert_eq!(Topology::online(machine.path()), Some(numbers("0")));
    let virtio = DeviceNumber { major: 254, minor: 0 };
    assert!(virtio.nodes(machine.path()).is_empty(), "-1 is no node");
    assert_eq!(of_vm(ONE_NODE, 0), Choice::Leave(Why::OneNode));
    let device_nodes = numbers("0");
    let near_device = Situation { device_nodes, ..situation(ONE_NODE) };
    assert_eq!(near_device.choose(), Choice::Leave(Why::OneNode));
}

#[test]
fn of_two_sockets_it_is_that_of_the_vm_or_of_the_device() {
    assert_eq!(of_vm(TWO_SOCKETS, 1), place(Near::Vm, "8-15,24-31", "1"));
    assert_eq!(of_device(TWO_SOCKETS), place(Near::Device, "0-7,16-23", "0"));
    // The VM's node takes precedence.
    let both = Situation { vm_node: Some(1), device_nodes: numbers("0"), ..situation(TWO_SOCKETS) }.choose();
    assert_eq!(both, place(Near::Vm, "8-15,24-31", "1"));
    assert_eq!(situation(TWO_SOCKETS).choose(), Choice::Leave(Why::NothingKnown));
    assert_eq!(of_vm(TWO_SOCKETS, 7), Choice::Leave(Why::NoSuchNode(7)));
}

#[test]
fn a_device_is_at_the_nodes_of_what_it_is_made_of() {
    let machine = machine(TWO_SOCKETS);
    let nodes = |major, minor| DeviceNumber { major, minor }.nodes(machine.path()).to_string();
    assert_eq!(nodes(259, 2), "1", "a partition");
    assert_eq!(nodes(253, 1), "1", "a logical volume on another");
    assert_eq!(nodes(259, 5), "1", "an NVMe namespace with several paths");
    assert_eq!(nodes(9, 1), "0-1", "a partition of a RAID of both");
    assert_eq!(nodes(7, 0), "", "a loop device");
    assert_eq!(nodes(8, 0), "", "one that is not there");
    let of_both = Situation { device_nodes: numbers("0-1"), ..situation(TWO_SOCKETS) };
    assert_eq!(of_both.choose(), Choice::Leave(Why::AllNear));
}

#[test]
fn of_sockets_with_several_nodes_a_vm_takes_its_node_and_a_device_its_socket() {
    assert_eq!(of_vm(EPYC_NPS4, 6), place(Near::Vm, "36-41,84-89", "6"));
    assert_eq!(of_device(EPYC_NPS4), place(Near::Device, "24-47,72-95", "4-7"));
    let topology = situation(EPYC_NPS4).topology.unwrap();
    assert_eq!([(5, 5), (5, 4), (5, 0)].map(|(from, to)| topology.distance(from, to)), [10, 12, 32]);
}

#[test]
fn a_node_of_memory_alone_is_served_from_the_nearest_processors_and_their_memory() {
    assert_eq!(of_vm(MEMORY_ONLY_NODE, 2), place(Near::Vm, "0-7", "0"));
    // The memory-only node is near the device's node, but too slow for buffers.
    assert_eq!(of_device(MEMORY_ONLY_NODE), place(Near::Device, "0-7", "0"));
}

#[test]
fn processors_without_memory_use_the_nearest() {
    assert_eq!(of_vm(NODE_WITHOUT_MEMORY, 1), place(Near::Vm, "4-7", "0"));
    assert_eq!(of_vm(NODE_WITHOUT_MEMORY, 2), place(Near::Vm, "8-11", "2"));
}

#[test]
fn nodes_and_processors_that_are_offline_are_not_counted() {
    assert_eq!(of_vm(OFFLINE, 2), place(Near::Vm, "16-19", "2"));
    assert_eq!(of_vm(OFFLINE, 1), Choice::Leave(Why::NoSuchNode(1)));
    assert_eq!(situation(OFFLINE).topology.unwrap().distance(2, 0), 21);
    // The affinity mask still includes processors that have gone offline.
    let with_offline = Situation { processors: numbers("0-23"), vm_node: Some(2), ..situation(OFFLINE) };
    assert_eq!(with_offline.choose(), place(Near::Vm, "16-19", "2"));
}

#[test]
fn nothing_is_taken_that_a_cpuset_does_not_give() {
    let with = |processors, memory, vm_node| {
        let (processors, memory) = (numbers(processors), Some(numbers(memory)));
        Situation { processors, memory, vm_node: Some(vm_node), ..situation(EPYC_NPS4) }.choose()
    };
    // A part of the VM's node, and more elsewhere.
    assert_eq!(with("3-5,51,90-95", "0,7", 0), place(Near::Vm, "3-5,51", "0"));
    // Only a part of the VM's node: it is there already.
    assert_eq!(with("3-5,51", "0", 0), Choice::Leave(Why::AllNear));
    // Nothing of the VM's node: the nearest processors.
    assert_eq!(with("6-8,90-95", "0-7", 0), place(Near::Vm, "6-8", "1"));
    assert_eq!(with("90-95", "7", 0), Choice::Leave(Why::AllNear));
    // The processors, but not their memory.
    assert_eq!(with("0-11", "1-2", 0), place(Near::Vm, "0-5", "1-2"));
    assert_eq!(with("0-11", "", 0), place(Near::Vm, "0-5", ""));
    // No known processor, as on a machine with more than the call supports.
    assert_eq!(with("", "0-7", 0), Choice::Leave(Why::NoProcessor));
}

#[test]
fn whoever_has_chosen_already_is_not_corrected() {
    let chosen = Situation { memory_is_chosen: true, device_nodes: numbers("5"), ..situation(EPYC_NPS4) };
    assert_eq!(chosen.choose(), Choice::Leave(Why::Chosen));
    // The processors of the VM's node, which a person named; memory stays as it was chosen.
    let of_vm = Situation { vm_node: Some(6), ..chosen };
    assert_eq!(of_vm.choose(), place(Near::Vm, "36-41,84-89", ""));
}

#[test]
fn what_cannot_be_read_is_left_to_the_kernel() {
    let empty = tempfile::tempdir().unwrap();
    assert_eq!((Topology::online(empty.path()), Topology::read(empty.path())), (None, None));
    assert!(DISK.nodes(empty.path()).is_empty());
    assert_eq!(Situation::default().choose(), Choice::Leave(Why::Unreadable));
    for (file, content) in [("online", "nonsense"), ("node1/cpulist", "x")] {
        let machine = machine(TWO_SOCKETS);
        fs::write(machine.path().join("devices/system/node").join(file), content).unwrap();
        assert_eq!(Topology::read(machine.path()), None, "{file}");
    }
    // Without distances every other node is far.
    let machine = machine(TWO_SOCKETS);
    fs::remove_file(machine.path().join("devices/system/node/node0/distance")).unwrap();
    let topology = Topology::read(machine.path()).unwrap();
    assert_eq!((topology.distance(0, 0), topology.distance(0, 1)), (10, u32::MAX));
    let without =
        Situation { topology: Some(topology), device_nodes: numbers("0"), ..situation(TWO_SOCKETS) };
    assert_eq!(without.choose(), place(Near::Device, "0-7,16-23", "0"));
}

/// The processors that a thread may run on, and whether its memory policy is the default.
fn whereabouts() -> (Numbers, Option<bool>) {
    (usable_processors(), policy::is_default().ok())
}

#[test]
fn a_worker_of_this_machine_is_left_alone_if_it_has_one_node() {
    if Topology::online(SYSFS.as_ref()).is_none_or(|online| online.len() > 1) {
        eprintln!("not shown: this machine has several NUMA nodes, or does not tell");
        return;
    }
    let here = File::open(std::env::current_exe().unwrap()).unwrap();
    for wish in [NumaNode::Auto, NumaNode::None, NumaNode::Vm(0)] {
        assert_eq!(wish.placement(Some(&here)), Ok(None));
    }
    let refused = NumaNode::Vm(3).placement(Some(&here)).unwrap_err().to_string();
    assert!(refused.contains("no NUMA node 3: its nodes are 0;"), "{refused}");
    // Even if it is given a placement that it would never get.
    let before = whereabouts();
    let device = DeviceNumber::of_file(&here);
    let after = thread::spawn(move || {
        Placement { vm_node: Some(0), device }.settle(SYSFS.as_ref());
        whereabouts()
    });
    assert_eq!(after.join().unwrap(), before);
}

/// This machine, split: each of two processors is a separate node, and all memory is at the first.
#[test]
fn a_thread_is_moved_and_takes_those_along_that_it_makes() {
    let mut usable = usable_processors().iter().collect::<Vec<_>>().into_iter();
    let (Some(first), Some(second)) = (usable.next(), usable.next()) else {
        eprintln!("not shown: this process may use one processor only");
        return;
    };
    let recording = format!(
        "devices/system/node/online:0-1\n\
         devices/system/node/has_memory:0\n\
         devices/system/node/node0/cpulist:{first}\n\
         devices/system/node/node0/distance:10 21\n\
         devices/system/node/node1/cpulist:{second}\n\
         devices/system/node/node1/distance:21 10"
    );
    let sysfs = machine(&recording);
    let before = whereabouts();
    let moved = thread::spawn(move || {
        Placement { vm_node: Some(1), device: None }.settle(sysfs.path());
        thread::spawn(whereabouts).join().unwrap()
    });
    let (processors, memory_is_default) = moved.join().unwrap();
    assert_eq!(processors, Numbers::from_iter([second]));
    // If this process may not set its memory policy, or was started with one, the policy is
    // unchanged.
    assert_eq!(memory_is_default, before.1.map(|_| false).or(before.1));
    assert_eq!(whereabouts(), before, "this thread was not meant");
}

#[test]
fn a_file_is_on_the_device_that_its_file_system_is_on() {
    let shared_memory = File::open("/dev/shm").unwrap();
    assert_eq!(DeviceNumber::of_file(&shared_memory), None);
    let proc = File::open(Path::new("/proc/self/status")).unwrap();
    assert_eq!(DeviceNumber::of_file(&proc), None);
}

#[test]
fn wishes_are_read_and_written() {
    for text in ["auto", "none", "0", "12"] {
        assert_eq!(text.parse::<NumaNode>().unwrap().to_string(), text);
    }
    for wrong in ["", "-1", "0-1", "node0"] {
        assert!(wrong.parse::<NumaNode>().is_err(), "{wrong}");
    }
}

#[test]
fn a_choice_is_said_in_words() {
    let near_device = of_device(EPYC_NPS4).to_string();
    assert_eq!(
        near_device,
        "the worker is placed near the volume's device: processors 24-47,72-95, memory of NUMA nodes 4-7"
    );
    let left = Choice::Leave(Why::NothingKnown).to_string();
    assert!(left.starts_with("the worker is placed nowhere: neither the VM's NUMA node"), "{left}");
}
