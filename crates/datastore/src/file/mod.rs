//! The `file` datastore: a volume is a directory of a few files.
//!
//! ```text
//! vm1/descriptor        what the volume is: size, layers, keys' envelopes; authenticated, replaced as a whole
//! vm1/layer-<id>        ciphertext block N (4096 bytes) at offset N * 4096, sparse
//! ```
//!
//! `docs/ON_DISK.md` has every byte, the order of every write and the reason. Opening a volume reads its descriptor and
//! no more, whatever its size. The lock is on the very open file that I/O goes through ([`lock`]).

mod blocks;
mod channel;
mod check;
mod create;
mod delete;
mod descriptor;
mod directory;
mod disk;
mod error;
mod filesystem;
mod list;
pub mod lock;
mod open;
mod resize;

pub use check::{Finding, Severity, check};
pub use create::{CreateOptions, create, rename};
pub use delete::delete;
pub use descriptor::{
    Descriptor, EncryptionRecord, EpochRecord, FORMAT_VERSION, KekRecord, LayerRecord, Provisioning,
};
pub use directory::{DescribedVolume, describe};
pub use disk::FileDisk;
pub use error::DatastoreError;
pub use filesystem::{FileSystem, FileSystemKind};
pub use list::{ListedVolume, list};
pub use open::{Access, OpenOptions, OpenVolume, Protection, open};
