//! The limits of a VM. No other room defines one of these numbers (a test of this crate checks).

/// Most processors. From 255 on, a guest needs an IOMMU that remaps interrupts, which no machine
/// here has.
pub const CPUS_MAX: u32 = 240;

/// The unit of memory sizes, in bytes: a large page of x86-64, which KVM maps as one.
pub const MEMORY_UNIT_BYTES: u64 = 2 << 20;

/// Least memory, in bytes: SeaBIOS and a small kernel start in it.
pub const MEMORY_MIN_BYTES: u64 = 16 << 20;

/// Most memory, in bytes: what QEMU 7.2's machines can address with 40 physical bits, 1 TiB less
/// the hole below 4 GiB and the one at the end.
pub const MEMORY_MAX_BYTES: u64 = 1000 << 30;

/// The step by which memory grows while a VM runs, in bytes: a block of memory of Linux.
pub const MEMORY_STEP_BYTES: u64 = 128 << 20;

/// Most modules of memory that are plugged into a VM until its next start: each is a region that
/// every disk's worker maps, of which it takes 64.
pub const MEMORY_MODULES_MAX: usize = 16;

/// Most disks, including the cloud-init disk: each takes a worker, a socket and a PCI device, and
/// the bus of a pc has 32 slots.
pub const DISKS_MAX: usize = 16;

/// Most network interfaces: with the disks and the machine's own devices they fill the bus of a pc.
pub const NICS_MAX: usize = 8;

/// Most devices in the order of booting: all disks and network cards, and the CD-ROM drive.
pub const BOOT_DEVICES_MAX: usize = DISKS_MAX + NICS_MAX + 1;

/// Longest kernel command line, in bytes: `COMMAND_LINE_SIZE` of x86 Linux less its zero byte.
pub const KERNEL_ARGUMENTS_BYTES_MAX: usize = 2047;

/// Longest path of a host's file, in bytes: `PATH_MAX` of Linux less its zero byte.
pub const HOST_PATH_BYTES_MAX: usize = 4095;

/// Longest name of a network interface of the host, in bytes: `IFNAMSIZ` of Linux less its zero
/// byte.
pub const INTERFACE_NAME_BYTES_MAX: usize = 15;

/// Longest name of a machine type or processor model, in bytes: QEMU's own have up to thirty.
pub const QEMU_NAME_BYTES_MAX: usize = 64;

/// Most dumps at a time: more than anybody looks at, and each report on the VM lists all of them.
pub const DUMPS_MAX: usize = 64;

/// Longest label of a dump, in bytes.
pub const DUMP_LABEL_BYTES_MAX: usize = 64;

/// Most snapshots of a VM: as many as a volume can have below its top, one on the other.
pub const SNAPSHOTS_MAX: usize = 31;

/// Most VMs, and volumes that no VM has, in one snapshot: as many operations as run at once on a
/// host.
pub const GROUP_VMS_MAX: usize = 16;

/// Most volumes in one snapshot of several VMs: each has two workers for some milliseconds, and a
/// freeze lasts as long as the slowest takes to drain.
pub const GROUP_VOLUMES_MAX: usize = 128;

/// Longest time for a guest to freeze its file systems, in seconds: its programs may wait for them
/// as long.
pub const QUIESCE_WITHIN_MAX_S: u32 = 300;

/// Greatest VLAN (IEEE 802.1Q; 4095 is reserved).
pub const VLAN_MAX: u16 = 4094;
