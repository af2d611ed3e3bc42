//! Connects the stages of one VM's volumes, and makes their process fit to hold keys.
//!
//! - [`supervise`]: keeps a worker running for an exposed volume; [`control`]: the protocol through
//!   which other commands reach the supervisor.
//! - [`birth`]: the protocol between supervisor and worker; [`condition`]: a volume's condition, as
//!   they report it.
//! - [`process_main`]: the worker itself; `service`: its frontend, to which clients connect.
//! - [`process`]: no dumps, no core files, self-tested ciphers, before the first key is read.
//! - [`placement`]: the processors and memory nodes of a worker, on a machine with several NUMA
//!   nodes.
//! - [`layers`]: combines the layers of an open volume into one disk of plain blocks, and moves the
//!   keys into the ciphers.
//! - [`stack`]: that disk, as a frontend serves it.
//! - `absent`: the disk of a volume that is not open yet.
//! - `destaging`: a thread that empties a layer's first-write log. `closing`: completes the layer
//!   below the top after a snapshot. `merge`: makes one layer of two; `merging`: beside clients.
//!   `reencrypt`: rewrites all layers under other keys. `relocate`: copies a volume to another
//!   datastore. `complete`: empties the log of a volume that nobody serves.
//! - [`access`]: that disk, used like a file, for code that keeps data of its own in a volume.
//! - [`read_through`]: reads all of a volume; [`check`]: reports the result. [`transfer`]: copies a
//!   whole volume from and to a file; [`streamed`]: to another machine and from it.
//!
//! It uses every crate of the data path and adds no format, no client protocol and no cipher.
//! Control plane and command line are above it.
#![forbid(unsafe_code)]

mod absent;
pub mod access;
mod beside;
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
mod merging;
mod pace;
pub mod placement;
pub mod process;
pub mod process_main;
pub mod read_through;
mod reencrypt;
mod relocate;
mod service;
pub mod stack;
pub mod streamed;
pub mod supervise;
pub mod transfer;

pub use access::DiskAccess;
pub use beside::{ServedError, ServedVolume};
pub use complete::complete;
pub use destaging::Destaging;
pub use layers::StackError;
pub use merge::{Copying, MergeError, Merged, Step, Stride, merge_next};
pub use pace::{BadClientShare, ClientShare, Pace, Throttle};
pub use process::{ProcessError, prepare_for_keys};
pub use reencrypt::{
    ReencryptProgress, Reencrypted, begin_served, cancel_served, change_over, reencrypt, reencrypt_served,
};
pub use relocate::{
    ChangedPlace, NotMoved, NotServed, PARKED_MAX, PlaceKeeper, Rounds, ServedCopy, ServedDeparture,
    bytes_per_second, copy_served, copy_volume,
};
pub use stack::{assemble, assemble_destaged, assemble_over};
pub use transfer::{Progress, TransferError, copy_disk, export_file, import_file};
