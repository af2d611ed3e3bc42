//! What the head of each request says about its sender: its term, and the format that it writes.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use strongroom_wire::Formats;

/// The header with the sender's [`Term`]. A request without it has the term 0.
pub const TERM_HEADER: &str = "strongroom-term";
/// The header with the number of the sender's format. A request without it has format 1.
pub const FORMAT_HEADER: &str = "strongroom-format";

/// The formats of requests and answers. A client writes the newest one that the host reads, too.
///
/// | format | what is new |
/// |---|---|
/// | 1 | everything else |
/// | 2 | terms, and the release of a host; [`VolumeQuestion::Identity`](super::VolumeQuestion::Identity); `formats` in [`Host`](super::Host) |
/// | 3 | [`OperationKind::Leave`](super::OperationKind::Leave) and [`Arrive`](super::OperationKind::Arrive); [`DatastoreRequest::expected`](super::DatastoreRequest::expected); `cpu_model` in [`Host`](super::Host); the states of several VMs in one answer ([`VmReadings`](super::VmReadings)) |
/// | 4 | [`VmSpec::directory`](super::VmSpec::directory) and [`VmSpec::boot_order`](super::VmSpec::boot_order) |
/// | 5 | [`OperationKind::SetNics`](super::OperationKind::SetNics), [`Nic::link`](super::Nic::link); [`OperationKind::SetSizes`](super::OperationKind::SetSizes), [`VmSpec::growth`](super::VmSpec::growth) |
/// | 6 | [`Board::machine_type`](super::Board::machine_type), [`Board::processor`](super::Board::processor); `capabilities` in [`Host`](super::Host) |
/// | 7 | [`DatastoreRequest::ceph`](super::DatastoreRequest::ceph), [`FencingRequest`](super::FencingRequest); `boot_id` in [`Host`](super::Host) |
/// | 8 | [`OperationKind::Offer`](super::OperationKind::Offer), `Receive`, `Send`, `TakeUp` and `Settle` |
/// | 9 | [`Disk::place`](super::Disk::place), [`DiskChange::Move`](super::DiskChange::Move) |
/// | 10 | [`MoveStep::CopyServed`](super::MoveStep::CopyServed) and [`Switch`](super::MoveStep::Switch); [`OperationKind::Fetch`](super::OperationKind::Fetch) and [`RemoveCopy`](super::OperationKind::RemoveCopy), [`FetchLive`](super::OperationKind::FetchLive), [`TicketRequest::Volumes`](super::TicketRequest::Volumes) |
pub const FORMATS: Formats = Formats { oldest: 1, newest: 10 };

/// The formats of a host that does not state any.
pub const FIRST_FORMATS: Formats = Formats { oldest: 1, newest: 1 };

/// The first format with terms.
pub const FORMAT_WITH_TERMS: u32 = 2;
/// The first format in which one request reads several VMs.
pub const FORMAT_WITH_VM_READINGS: u32 = 3;

/// The first format in which a VM moves between hosts, and a datastore has several.
pub const FORMAT_WITH_MOVES: u32 = 3;

/// The first format in which a VM's directory has another name than the VM, and a VM has an order
/// of booting.
pub const FORMAT_WITH_DIRECTORIES: u32 = 4;

/// The first format in which network cards, processors and memory are plugged into running VMs.
pub const FORMAT_WITH_HOT_PLUG: u32 = 5;

/// The first format in which a VM has a machine type and a processor of its own.
pub const FORMAT_WITH_CAPABILITIES: u32 = 6;

/// The first format with datastores on Ceph clusters.
pub const FORMAT_WITH_CLUSTERS: u32 = 7;

/// The first format in which a VM moves between hosts while it runs.
pub const FORMAT_WITH_LIVE_MOVES: u32 = 8;

/// The first format in which disks of a VM are in several datastores.
pub const FORMAT_WITH_DISK_PLACES: u32 = 9;

/// The first format in which the volumes of a VM move to another host with it.
pub const FORMAT_WITH_FETCHED_VMS: u32 = 10;

/// The first format in which a disk of a running VM moves to another datastore.
pub const FORMAT_WITH_SWITCHES: u32 = 10;

/// The number of a control plane's run. Each run of a control plane has a greater one than all runs
/// before it. A host takes orders of the greatest term that it has seen, and refuses those of a
/// lesser one: their sender has a successor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Term(pub u64);

impl Term {
    /// The term after all others. A host that has been released follows it, and so nobody.
    pub const LAST: Self = Self(u64::MAX);
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Term {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Self)
    }
}
