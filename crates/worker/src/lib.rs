//! Wires the stages of one VM's volumes, and makes the process that they run in fit for keys.
//!
//! - [`process`]: no dumps, no core files, ciphers that answer rightly; before the first key.
//! - [`sandbox`]: what a worker that obeys an attacker cannot do.
//! - [`stack`]: an open volume becomes a disk of plain bytes, and its keys go where only the cipher finds them.
//! - [`transfer`]: a whole volume's content into a file and out of one.
//!
//! It knows every room of the data path and puts nothing of its own into it: no format, no protocol, no cipher. Control
//! plane and command line stand above.
#![forbid(unsafe_code)]

pub mod process;
pub mod sandbox;
pub mod stack;
pub mod transfer;

pub use process::{ProcessError, prepare_for_keys};
pub use stack::{StackError, assemble, assemble_over};
pub use transfer::{Progress, TransferError, export_file, import_file};
