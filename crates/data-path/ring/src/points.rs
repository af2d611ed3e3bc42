//! Static tracing points of the data path (USDT), for bpftrace, perf, SystemTap and gdb.
//!
//! A point is one `nop`, and a note in the executable with its address and the registers of its
//! arguments. A tracer replaces the `nop` by a trap; without a tracer there is no other cost. The
//! points are in this crate because the macro needs `unsafe`, which the crates above forbid.
//! docs/METRICS.md lists them with an example.
//!
//! No argument is guest data, a key, or an address.

use probe::probe;

/// A worker's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerState {
    /// It is confined, and its threads run.
    Ready = 1,
    /// It serves clients.
    Serving = 2,
    /// It has handed its sessions over.
    Suspended = 3,
    /// It has drained and flushed.
    Ended = 4,
}

/// A request was taken from a client. `request` is its number among those of its lane that are in
/// flight; `operation` is 0 for a read, 1 for a write, 2 for a flush, 3 for a discard, 4 for a
/// zeroing.
#[inline]
pub fn request_taken(request: u64, operation: u32, bytes: u64) {
    probe!(strongroom, request_taken, request, operation, bytes);
}

/// A piece of a request was given to the stages below.
#[inline]
pub fn request_submitted(request: u64) {
    probe!(strongroom, request_submitted, request);
}

/// A request is answered. `failed` is 0 or 1.
#[inline]
pub fn request_completed(request: u64, operation: u32, latency_ns: u64, failed: bool) {
    probe!(strongroom, request_completed, request, operation, latency_ns, failed);
}

/// A flush is answered.
#[inline]
pub fn flush_completed(latency_ns: u64, failed: bool) {
    probe!(strongroom, flush_completed, latency_ns, failed);
}

/// The worker's state has changed.
#[inline]
pub fn worker_state(state: WorkerState) {
    probe!(strongroom, worker_state, state);
}
