//! The parts of a virtual machine, defined once: its limits, its names, its hardware, and the
//! checks that a machine can be built from them.
//!
//! Four rooms describe a VM: the REST interface (`api`), the inventory (`control`), the order to a
//! host and `vm.json` (`hostd`), and the machine that QEMU is started with (`hypervisor`). Each
//! keeps an envelope of its own, because each is a contract with other versions of the program.
//! Their types come from here, so that a VM that one of them accepts is accepted by the others.
//!
//! What may not enter: keys, volumes, and anything that inspects a host.
#![forbid(unsafe_code)]

mod board;
mod boot;
mod capabilities;
mod disk;
mod growth;
pub mod limits;
mod machine_version;
mod memory;
mod name;
mod network;
mod processor_model;
mod processors;
mod quiesce;

pub use board::{Board, BoardError, Firmware, MachineType};
pub use boot::{
    BootDevice, BootError, Bootable, DirectKernel, boot_without_disk, check_host_path,
    check_initrd_beside_tpm,
};
pub use capabilities::{Capabilities, Lack};
pub use disk::{DiskBecomes, DiskFrontend, DiskKind};
pub use growth::{Growth, GrowthError, steps as check_memory_steps};
pub use machine_version::{MachineVersion, MachineVersionError};
pub use memory::{MemorySize, MemorySizeError, rounded_memory};
pub use name::{DiskName, VmName};
pub use network::{InterfaceName, Link, MacAddress, Network, NetworkError, Nic, VlanId};
pub use processor_model::{Level, ProcessorModel, QemuName, QemuNameError};
pub use processors::{CpuError, Cpus};
pub use quiesce::{QuiesceError, QuiesceWithin};
