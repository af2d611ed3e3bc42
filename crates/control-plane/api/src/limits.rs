//! Limits of one request. The limits of a VM are in `strongroom_vm::limits`.

/// Longest description, in bytes.
pub const DESCRIPTION_MAX_BYTES: usize = 1024;

/// Highest disk latency that a policy may set, in milliseconds. Guests give up a request after a
/// minute.
pub const DISK_LATENCY_P99_MAX_MS: u32 = 60_000;

/// Most entries of one page of a list.
pub const PAGE_MAX: u32 = 1000;

/// Entries in a page if the caller sets no limit.
pub const PAGE_DEFAULT: u32 = 100;

/// Longest cursor, in bytes: a name and an id.
pub const CURSOR_MAX_BYTES: usize = 512;

/// Greatest event number: the greatest that a client with signed 64-bit integers can send.
pub const EVENT_NUMBER_MAX: u64 = i64::MAX as u64;

/// Longest time that a graceful stop may wait for the guest, in seconds.
pub const STOP_TIMEOUT_MAX_S: u32 = 3600;

/// Time that a graceful stop waits for the guest by default, in seconds.
pub const STOP_TIMEOUT_DEFAULT_S: u32 = 60;

/// Longest request body, in bytes. The largest VM that the limits allow takes about 20 KiB.
pub const BODY_MAX_BYTES: usize = 256 * 1024;

/// Longest `Idempotency-Key`, in bytes.
pub const IDEMPOTENCY_KEY_MAX_BYTES: usize = 128;
