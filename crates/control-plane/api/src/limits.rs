//! What one request may ask for. What a VM may have is in `strongroom_vm::limits`.

/// Longest text that people write into a description, in bytes.
pub const DESCRIPTION_MAX_BYTES: usize = 1024;

/// Highest latency that a policy may ask of disks, in milliseconds: a minute, after which guests
/// have given up.
pub const DISK_LATENCY_P99_MAX_MS: u32 = 60_000;

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
