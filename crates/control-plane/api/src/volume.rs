//! Volumes of VMs: lists, and readings of where they have content and what they take.

use serde::{Deserialize, Serialize};
use strongroom_types::{ChunkSize, SnapshotId, VmId, VolumeId};
use utoipa::{IntoParams, ToSchema};

use crate::Name;
use crate::error::Problem;

/// Selects volumes, and a page of them. They are in the order of their VMs' names and their own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct VolumeListQuery {
    /// The most entries to return.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// The `next` of the previous page.
    #[param(min_length = 1, max_length = 512)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Only volumes of this VM, by name or id.
    #[param(max_length = 64)]
    #[serde(
        default,
        deserialize_with = "crate::vm::no_longer_than::<64, _>",
        skip_serializing_if = "Option::is_none"
    )]
    pub vm: Option<String>,
    /// Only volumes of this datastore, by name or id.
    #[param(max_length = 64)]
    #[serde(
        default,
        deserialize_with = "crate::vm::no_longer_than::<64, _>",
        skip_serializing_if = "Option::is_none"
    )]
    pub datastore: Option<String>,
}

/// A volume: a disk of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// Its id, for life.
    #[schema(value_type = String, format = Uuid)]
    pub id: VolumeId,
    /// The VM that it is bound to.
    #[schema(value_type = String, format = Uuid)]
    pub vm: VmId,
    /// That VM's name.
    pub vm_name: Name,
    /// The disk's name in that VM.
    pub disk: String,
    /// The name of its datastore.
    pub datastore: String,
    /// The size that the guest sees, in bytes.
    pub size_bytes: u64,
    /// Whether all of its space was allocated when it was made.
    pub thick: bool,
    /// Whether it is encrypted.
    pub encrypted: bool,
    /// What it takes, as its host last read it; absent until it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<VolumeSpace>,
}

/// What a volume's files take, in bytes. `committed_bytes` is what `du` says of its directory; it
/// is the sum of `shared_bytes`, `common_bytes`, `other_bytes` and the `unshared_bytes` of all
/// contents. None of it is authenticated: it is what the host finds in the datastore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeSpace {
    /// The size that the guest sees.
    pub logical_bytes: u64,
    /// All of its files.
    pub committed_bytes: u64,
    /// Files that other volumes have too: those of linked clones, and their origins.
    pub shared_bytes: u64,
    /// Files that no other volume has.
    pub unshared_bytes: u64,
    /// Files that several of its contents have, and no other volume.
    pub common_bytes: u64,
    /// Files that belong to no content: the volume's description and its reserve.
    pub other_bytes: u64,
    /// The present content, and each snapshot, oldest first.
    pub contents: Vec<ContentSpace>,
    /// When it was read, in milliseconds since 1970.
    pub read_unix_ms: u64,
}

/// What one content of a volume takes, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ContentSpace {
    /// The snapshot's id; absent for the present content.
    #[schema(value_type = Option<String>, format = Uuid)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotId>,
    /// Its size.
    pub logical_bytes: u64,
    /// All files that it needs.
    pub committed_bytes: u64,
    /// The part of them that nothing else needs.
    pub unshared_bytes: u64,
}

/// The limits of readings. They may grow: ask for them, and stay within them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeLimits {
    /// The most readings of one request.
    pub readings_max: u32,
    /// The smallest chunk, in bytes. A chunk's size is a power of two.
    pub chunk_bytes_min: u64,
    /// The largest chunk, in bytes.
    pub chunk_bytes_max: u64,
    /// The size of a chunk if a request names none, in bytes.
    pub chunk_bytes_default: u64,
    /// The most chunks of a bitmap.
    pub chunks_max: u64,
    /// The most extents of a map.
    pub extents_max: u64,
}

/// A batch of readings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadVolumes {
    /// What to read; each entry has an answer of its own, in the same order.
    #[schema(min_items = 1, max_items = 64)]
    pub readings: Vec<VolumeReading>,
}

/// What to read of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeReading {
    /// The volume.
    #[schema(value_type = String, format = Uuid)]
    pub volume: VolumeId,
    /// What is asked.
    pub kind: ReadingKind,
    /// The content: a snapshot of the VM, by name or id; the present content without.
    #[schema(max_length = 64)]
    #[serde(
        default,
        deserialize_with = "crate::vm::no_longer_than::<64, _>",
        skip_serializing_if = "Option::is_none"
    )]
    pub snapshot: Option<String>,
    /// The snapshot that a map of `changed` starts from, by name or id.
    #[schema(max_length = 64)]
    #[serde(
        default,
        deserialize_with = "crate::vm::no_longer_than::<64, _>",
        skip_serializing_if = "Option::is_none"
    )]
    pub since: Option<String>,
    /// The size of a chunk in bytes, a power of two; the default is 65536.
    #[schema(value_type = Option<u64>, minimum = 4096, maximum = 1073741824)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk_bytes: Option<ChunkSize>,
    /// Where the map begins, in bytes: a multiple of the chunk's size.
    #[schema(maximum = 70368744177664_u64)]
    #[serde(default)]
    pub start_bytes: u64,
    /// Its length in bytes; to the end of the content without.
    #[schema(minimum = 1, maximum = 70368744177664_u64)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length_bytes: Option<u64>,
    /// The form of the map.
    #[serde(default)]
    pub form: MapForm,
    /// Also looks for the next chunk beyond the map.
    #[serde(default)]
    pub next: bool,
}

/// What is asked of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReadingKind {
    /// What its files take.
    Space,
    /// A map of the chunks that have content; all others read as zeroes.
    Allocated,
    /// A map of the chunks with content that no other snapshot or volume has.
    Unshared,
    /// A map of the chunks that were written or discarded since a snapshot; all others are the same
    /// in both contents.
    Changed,
}

/// The form of a map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MapForm {
    /// Runs of chunks.
    #[default]
    Extents,
    /// A bit for each chunk.
    Bitmap,
}

/// The answers to a batch of readings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeReadings {
    /// One answer for each entry of the request, in the same order.
    pub readings: Vec<ReadingAnswer>,
}

/// The answer to one reading: exactly one of its fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReadingAnswer {
    /// What its files take.
    Space(VolumeSpace),
    /// The map.
    Map(VolumeMap),
    /// Why there is no answer.
    Error(Problem),
}

/// A map of a part of a volume. It comes from the datastore and is not authenticated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeMap {
    /// Counts the changes of the volume's layers: two maps with the same generation are of the same
    /// layers.
    pub generation: u64,
    /// The size of the content, in bytes.
    pub size_bytes: u64,
    /// The size of a chunk, in bytes. The last chunk of the content may be shorter.
    pub chunk_bytes: u64,
    /// Where the map begins.
    pub start_bytes: u64,
    /// Its length, which may be shorter than what was asked for: ask for the rest.
    pub length_bytes: u64,
    /// Runs of chunks that are in the map, ascending; absent from a bitmap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extents: Option<Vec<ByteExtent>>,
    /// A bit for each chunk, in base64: bit n % 8 of byte n / 8 is that of chunk n.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bitmap: Option<String>,
    /// If it was asked for: no chunk between the end of the map and this byte is in it. Absent if
    /// none is up to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_bytes: Option<u64>,
}

/// A run of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ByteExtent {
    /// Its first byte.
    pub start_bytes: u64,
    /// Its length.
    pub length_bytes: u64,
}
