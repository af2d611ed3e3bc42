//! Wires the stages of one VM's volumes, and makes the process that they run in fit for keys.
//!
//! - [`supervise`]: keeps a worker running, for the process that exposes a volume; [`control`]: how
//!   other commands speak to it.
//! - [`birth`]: what supervisor and worker say to each other; [`condition`]: how a volume fares, in
//!   their words.
//! - [`process_main`]: the worker itself; `service`: what clients connect to in it.
//! - [`process`]: no dumps, no core files, ciphers that answer rightly; before the first key.
//! - [`placement`]: on which processors, and in whose memory, of a machine with several NUMA nodes.
//! - [`layers`]: the layers of an open volume become one disk of plain blocks, and the keys go
//!   where only the ciphers find them.
//! - [`stack`]: that disk, as a frontend serves it.
//! - `destaging`: a thread that empties a layer's first-write log. `closing`: completes the layer
//!   below the top after a snapshot. `merge`: makes one layer of two. `complete`: empties the log
//!   of a volume that nobody serves.
//! - [`access`]: that disk, used like a file, for code that keeps data of its own in a volume.
//! - [`read_through`]: whether all of a volume can be read; [`check`]: what that shows.
//!   [`transfer`]: a whole volume's content into a file and out of one.
//!
//! It knows every room of the data path and puts nothing of its own into it: no format, no
//! protocol, no cipher. Control plane and command line stand above.
#![forbid(unsafe_code)]

pub mod access;
pub mod birth;
pub mod check;
mod client;
mod closing;
mod complete;
pub mod condition;
pub mod control;
mod destaging;
mod file_writer;
pub mod layers;
mod merge;
pub mod placement;
pub mod process;
pub mod process_main;
pub mod read_through;
mod service;
pub mod stack;
pub mod supervise;
pub mod transfer;

pub use access::DiskAccess;
pub use complete::complete;
pub use destaging::Destaging;
pub use layers::StackError;
pub use merge::{MergeError, Merged, merge_next};
pub use process::{ProcessError, prepare_for_keys};
pub use stack::{assemble, assemble_destaged, assemble_over};
pub use transfer::{Progress, TransferError, copy_disk, export_file, import_file};
