//! What one request may ask for.

/// Longest text that people write into a description, in bytes.
pub const DESCRIPTION_MAX_BYTES: usize = 1024;

/// Longest label of a dump, in bytes.
pub const DUMP_LABEL_MAX_BYTES: usize = 64;

/// Longest path that an object may name, in bytes: `PATH_MAX` of Linux without its final zero.
pub const PATH_MAX_BYTES: usize = 4095;

/// Most virtual CPUs of a VM: what QEMU's q35 takes without an interrupt remapper, and some headroom below 255.
pub const CPUS_MAX: u32 = 240;

/// Least guest memory, in bytes: a small Linux boots in it.
pub const MEMORY_MIN_BYTES: u64 = 16 << 20;

/// Most guest memory, in bytes: 4 TiB, the largest guests that are run.
pub const MEMORY_MAX_BYTES: u64 = 4 << 40;

/// What guest memory is a multiple of, in bytes: 1 MiB, so that QEMU never rounds it.
pub const MEMORY_STEP_BYTES: u64 = 1 << 20;

/// Most disks of a VM: each is a process and a PCI device, and q35 has slots for some thirty.
pub const DISKS_MAX: usize = 16;

/// Most network interfaces of a VM.
pub const NICS_MAX: usize = 8;

/// Longest kernel command line, in bytes: `COMMAND_LINE_SIZE` of x86 Linux.
pub const KERNEL_ARGUMENTS_MAX_BYTES: usize = 2048;

/// Most entries of one page of a list.
pub const PAGE_MAX: u32 = 1000;

/// Entries of a page if the caller does not say.
pub const PAGE_DEFAULT: u32 = 100;

/// Longest cursor, in bytes: a name and an id.
pub const CURSOR_MAX_BYTES: usize = 512;

/// The greatest number of an event: what a client that counts in signed 64 bits can say.
pub const EVENT_NUMBER_MAX: u64 = i64::MAX as u64;

/// Longest time that a graceful stop waits for the guest, in seconds.
pub const STOP_TIMEOUT_MAX_S: u32 = 3600;

/// Time that a graceful stop waits for the guest if the caller does not say, in seconds.
pub const STOP_TIMEOUT_DEFAULT_S: u32 = 60;

/// Longest body of a request, in bytes: the largest VM that the limits allow is some 20 KiB.
pub const BODY_MAX_BYTES: usize = 256 * 1024;

/// Longest `Idempotency-Key`, in bytes.
pub const IDEMPOTENCY_KEY_MAX_BYTES: usize = 128;
