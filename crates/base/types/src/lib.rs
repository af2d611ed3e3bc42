//! Strongroom's basic types: ids, names, byte sizes, extents, key epochs and their limits; the
//! names and states of providers' keys; bytes and times as text; and the one way in which a crate
//! promises a later answer. None holds a key.
//!
//! Every crate may use this one; it does no I/O and depends on no other crate of the workspace.
//! Where one of these types exists, no bare integer or string passes between crates.
#![forbid(unsafe_code)]

mod ceph;
mod chunk;
mod count;
mod extent;
pub mod hex;
mod id;
mod io_limits;
mod lease_status;
mod message;
mod migration;
mod name;
mod pending;
mod provider_key;
mod shell;
mod size;
mod text;
mod utc;

/// The greatest count that is read from a datastore: of a volume's descriptors, a VM's starts, a
/// log's superblocks. No real count reaches it, so a greater one was forged, and would overflow
/// when it is incremented.
pub const STORED_COUNT_MAX: u64 = u64::MAX / 2;

/// Bytes of the tag over a volume's descriptor, or a VM's configuration: HMAC-SHA256, or SHA-256
/// for a volume without keys.
pub const DESCRIPTOR_TAG_BYTES: usize = 32;

pub use ceph::{
    CEPH_CONF, CEPH_NAME_BYTES_MAX, CEPH_NAMESPACE, CephClient, CephMount, CephName, CephNameError,
    CephPools, CephUser, Redundancy,
};
pub use chunk::{ChunkSize, ChunkSizeError};
pub use count::counted;
pub use extent::{BLOCK_BYTES, Extent, ExtentError, SECTOR_BYTES};
pub use id::{
    ClientId, DatastoreId, GrantId, IdError, KekId, KeyEpoch, KeyRequestId, LayerId, SnapshotId, VmId,
    VolumeId, parse_id,
};
pub use io_limits::{
    BANDWIDTH_MAX_BYTES, BANDWIDTH_MIN_BYTES, Bandwidth, BandwidthBurst, BandwidthLimit, IOPS_MAX, IOPS_MIN,
    IoLimitError, IoLimits, Iops, IopsBurst, IopsLimit,
};
pub use lease_status::{LeaseState, LeaseStatus, RevokedHow};
pub use message::without_numbers;
pub use migration::{MigrationMode, MigrationModeError, Secrecy};
pub use name::{NAME_BYTES_MAX, NameError, SnapshotName, check_name};
pub use pending::{Abandoned, Answerer, Pending, pending};
pub use provider_key::{
    PROVIDER_KEY_ID_BYTES_MAX, PROVIDER_NAME_BYTES_MAX, ProviderKey, ProviderKeyId, ProviderName,
    ProviderNameError, WRAPPED_KEK_BYTES_MAX, WrappedKek,
};
pub use shell::shell_word;
pub use size::{MAX_VOLUME_BYTES, MIN_VOLUME_BYTES, SizeError, VolumeSize, display_bytes, parse_bytes};
pub use utc::{display_seconds, unix_milliseconds_now, unix_seconds, unix_seconds_now, utc};
