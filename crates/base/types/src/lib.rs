//! The words of the house as types: ids, names, byte sizes, extents, key epochs and the limits they obey; bytes as text; and the one way
//! in which a room promises an answer for later.
//!
//! Every room may use this one; it does no I/O and depends on no other room. A bare integer or string
//! does not cross a room's door where one of these types says what it is.
#![forbid(unsafe_code)]

mod count;
mod extent;
pub mod hex;
mod id;
mod name;
mod pending;
mod shell;
mod size;

/// The greatest count that is read from a datastore: of a volume's descriptors, a VM's starts, a log's superblocks. No counting
/// gets there, so a greater one was written by somebody else, and would overflow as it is counted on.
pub const STORED_COUNT_MAX: u64 = u64::MAX / 2;

pub use count::counted;
pub use extent::{BLOCK_BYTES, Extent, ExtentError, SECTOR_BYTES};
pub use id::{
    ClientId, DatastoreId, GrantId, IdError, KekId, KeyEpoch, KeyRequestId, LayerId, VmId, VolumeId, parse_id,
};
pub use name::{NAME_BYTES_MAX, NameError, check_name};
pub use pending::{Abandoned, Answerer, Pending, pending};
pub use shell::shell_word;
pub use size::{MAX_VOLUME_BYTES, MIN_VOLUME_BYTES, SizeError, VolumeSize, display_bytes, parse_bytes};
