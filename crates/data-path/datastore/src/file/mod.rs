//! The `file` datastore: a volume is a directory of a few files.
//!
//! ```text
//! vm1/descriptor        what the volume is: size, layers, keys' envelopes; authenticated, replaced as a whole
//! vm1/layer-<id>        ciphertext block N (4096 bytes) at offset N * 4096, sparse
//! vm1/tags2-<id>        a keyed tag of each block, of volumes that ask for it ([`tags`])
//! vm1/log-<id>          first writes on their way to the top layer
//! vm1/discards-<id>     which of a layer's blocks of zeroes hide the layers below
//! vm1/control           a socket, while the volume is exposed
//! ```
//!
//! It lies in the datastore's directory, or in a VM's directory there ([`VM_FILE`]).
//!
//! `docs/ON_DISK.md` has every byte, the order of every write and the reason. Opening a volume
//! reads only its descriptor, whatever its size. The lock is on the same open file that I/O goes
//! through ([`lock`]).
//!
//! One process can have all of an open volume ([`OpenVolume`]), or two share it: the owning process
//! keeps a [`VolumeHead`] (paths, descriptor), and the process that does the I/O gets an
//! [`OpenLayer`] and keys, but no path.
//!
//! A path leads to the host's file systems, or to a cluster that is mounted ([`storage`]). Each
//! function has a variant `…_on` for another file system, such as a simulated one that loses power.

mod add_layer;
mod bits;
mod blocks;
pub mod chain;
mod channel;
mod check;
mod check_report;
mod closing;
mod create;
mod delete;
mod descriptor;
mod directory;
pub mod discards;
mod disk;
mod error;
mod filesystem;
mod group;
mod head;
mod host;
mod identity;
mod key_needs;
mod known;
mod layer_files;
mod link;
mod list;
pub mod lock;
mod log;
mod maps;
mod merge;
mod mounts;
mod open;
mod open_files;
mod places;
mod reencrypt;
mod relocate;
mod renew_tags;
mod reserve;
mod rewrap;
mod settled;
mod shared;
mod sidecar_pages;
mod small_files;
mod snapshots;
pub mod storage;
mod syncs;
mod tagging;
pub mod tags;
mod turns;

pub use add_layer::{AddLayerOptions, add_layer, add_layer_on};
pub use check::{Finding, Severity, check, check_on};
pub use check_report::{CheckReport, DataFacts, FailedRun};
pub use create::{CreateOptions, create, create_on, move_volume, rename, rename_on};
pub use delete::{delete, delete_on};
pub use descriptor::{
    CHAIN_LAYERS_MAX, Descriptor, EncryptionRecord, EpochRecord, FORMAT_VERSION, Integrity, KekRecord,
    LayerRecord, LogRecord, Merging, Provisioning, SNAPSHOTS_MAX, SnapshotRecord,
};
pub use directory::{CONTROL_SOCKET, DescribedVolume, describe, describe_log, describe_on, is_layer_file};
pub use disk::{FileDisk, LayerBlocks, LayerFacts, LogFacts, OpenLayer};
pub use error::DatastoreError;
pub use filesystem::{FileSystem, FileSystemKind};
pub use group::{
    Decision, DecisionDigest, GROUP_VOLUMES_MAX, GroupMark, GroupPart, GroupPlace, GroupTerms, MadeGroup,
    Verdict, group_verdict, group_verdict_on,
};
pub use head::VolumeHead;
pub use identity::{identify, identify_on, identity, identity_on};
pub use key_needs::{KeyNeeds, VolumeNeeds, key_needs, key_needs_on};
pub use link::{CloneOrigin, link_snapshot, link_snapshot_on};
pub use list::{ListedVolume, list, list_on};
pub use log::destage::Destager;
pub use log::{End, LOG_BYTES_MAX, LOG_BYTES_MIN, LogError, LogUse};
pub use maps::{
    CHUNKS_MAX, ChunkMap, EXTENTS_MAX, MapForm, MapKind, MapRequest, Space, View, ViewSpace, read_map,
    read_map_on, space, space_on,
};
pub use merge::{FinishMerge, MergeKeys, MergeLayers, OpenMerge, open_merge, open_merge_on};
pub use open::{
    Access, Deks, OpenOptions, OpenVolume, Protection, authenticated, authenticated_on, open, open_apart,
    open_apart_on, open_on, open_snapshot, open_snapshot_on,
};
pub use places::{DISKS_PREFIX, TPM_STATE, VM_FILE};
pub use reencrypt::{
    LeftToReencrypt, NewTags, OpenRewrite, ReencryptOptions, Reencrypting, Reencryption, RewriteKeys,
    RewriteLayers, RewrittenLayer, authenticated_between_keks, begin_reencryption, begin_reencryption_on,
    cancel_reencryption, cancel_reencryption_on, clear_bytes, left_to_reencrypt, open_rewrite_beside,
    open_rewrite_beside_on, whole_to_reencrypt,
};
pub use relocate::{
    ArrivingVolume, CopiedVolume, DepartingBeside, DepartingVolume, InUse, LAYER_PIECE_BYTES_MAX,
    LayerDigest, LayerPart, LayerPiece, LayerSource, LeftThere, LeftToRelocate, ReadLayer, RelocateOptions,
    RelocateProgress, Relocation, RelocationBeside, SentVolume, TakePiece, begin_arrival, begin_departure,
    begin_departure_beside, begin_relocation, begin_relocation_beside, begin_relocation_beside_on,
    begin_relocation_on, cancel_relocation, cancel_relocation_on, move_within, remove_former,
    remove_former_on, withdraw, withdraw_on,
};
pub use reserve::Room;
pub use rewrap::{RewrapOptions, rewrap, rewrap_on};
pub use shared::SharedLayers;
pub use snapshots::{
    NewSnapshot, create_snapshot, create_snapshot_on, delete_snapshot, delete_snapshot_on, revert, revert_on,
};
