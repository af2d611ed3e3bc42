//! What a volume's clients ask of it, counted.
//!
//! A worker counts in a [page](Page) of shared memory that its supervisor made: each lane has a
//! block of its own and is its only writer, so that counting takes no lock and no locked
//! instruction. The supervisor reads the page whenever it likes, into a [`Snapshot`], without a
//! word to the worker. It believes nothing in it: every word is a number and no more, no index is
//! taken from it, and a worker that was taken over can lie about its own volume alone.
//!
//! The page outlives a worker's death and an upgrade, so its counters only ever grow;
//! [`Snapshot::since_unix_ms`] says when it was made, and they were zero.
#![forbid(unsafe_code)]

mod histogram;
mod page;
mod recorder;
mod snapshot;
mod summary;

pub use histogram::{BUCKETS, Histogram, bucket_of, upper_bound_ns};
pub use page::{LANES_MAX, LAYOUT, PAGE_WORDS, Page, PageError};
pub use recorder::{Clock, Recorder, Recorders};
pub use snapshot::{Counters, ErrorKind, Errors, Operation, Snapshot};
pub use summary::{Summary, display_latency};
