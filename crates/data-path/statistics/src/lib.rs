//! Counts the requests of a volume's clients.
//!
//! A worker counts in a [page](Page) of shared memory that its supervisor made: each lane is the
//! only writer of its own block, so that counting takes no lock and no locked instruction. The
//! supervisor reads the page at any time into a [`Snapshot`], without contacting the worker. It
//! does not trust the content: every word is only a number, none is used as an index, and a
//! compromised worker can falsify only its own volume's statistics.
//!
//! The page outlives a worker's death and an upgrade, so its counters only ever grow;
//! [`Snapshot::since_unix_ms`] is the time when it was made with all counters at zero.
#![forbid(unsafe_code)]

mod histogram;
mod page;
mod recorder;
mod snapshot;
mod summary;

pub use histogram::{BUCKETS, Histogram, bucket_of, upper_bound_ns};
pub use page::{LANES_MAX, LAYOUT, PAGE_WORDS, Page, PageError};
pub use recorder::{Clock, Recorder, Recorders};
pub use snapshot::{Answered, Counters, ErrorKind, Errors, Operation, Snapshot};
pub use summary::{Summary, display_latency};
