//! Volumes, of VMs and on their own: lists, readings of where they have content and what they take,
//! and changes.

use serde::{Deserialize, Serialize};
use strongroom_types::{ChunkSize, SnapshotId, SnapshotName, VmId, VolumeId, VolumeSize};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, Type};
use utoipa::{IntoParams, PartialSchema, ToSchema};
use uuid::Uuid;

use crate::Name;
use crate::error::Problem;
use crate::object::Reference;
use crate::task::Task;
use crate::vm::Snapshot;

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

/// A volume: a disk of a VM, or one that no VM has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// Its id, for life.
    #[schema(value_type = String, format = Uuid)]
    pub id: VolumeId,
    /// Its own name, if no VM has it. VMs and volumes do not have the same names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// The VM that has it.
    #[schema(value_type = Option<String>, format = Uuid)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<VmId>,
    /// That VM's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm_name: Option<Name>,
    /// The disk's name in that VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
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

/// A volume with its snapshots. Those of a VM's volume are the VM's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeView {
    /// The volume.
    #[serde(flatten)]
    pub volume: Volume,
    /// Its snapshots, in the order in which they were made.
    pub snapshots: Vec<Snapshot>,
    /// The linked clones that share layers with it, by name.
    pub linked_clones: Vec<Name>,
    /// The task that works on it, or on its VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Uuid>,
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

/// The limits of readings and changes. They may grow: ask for them, and stay within them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeLimits {
    /// The most changes of one request.
    pub changes_max: u32,
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

/// A batch of changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeVolumes {
    /// What to change; each entry has an answer of its own, in the same order. A change does not
    /// wait for the one before: two of the same volume are two requests.
    #[schema(min_items = 1, max_items = 64)]
    pub changes: Vec<VolumeChange>,
}

/// A change of volumes. A volume is named by its id, by its name if no VM has it, or as `VM/DISK`.
/// Where nothing else is said, it must be one that no VM has: VMs change their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum VolumeChange {
    /// Makes an empty volume.
    Create(CreateVolume),
    /// Makes a volume with the content of another one, which a VM may have.
    Clone(CloneVolume),
    /// Makes it larger.
    Resize(ResizeVolume),
    /// Makes a snapshot of it.
    Snapshot(SnapshotVolume),
    /// Reverts it to a snapshot.
    Revert(RevertVolume),
    /// Deletes a snapshot of it.
    DeleteSnapshot(DeleteVolumeSnapshot),
    /// Gives it to a VM, running or off, as its next disk.
    Bind(BindVolume),
    /// Takes a disk from a VM, running or off, and keeps its volume.
    Unbind(UnbindVolume),
    /// Deletes it.
    Delete(DeleteVolume),
}

/// Each variant's own request, with its tag. Derived, it would be the request and the tag in one
/// `allOf`, which nothing satisfies: the request allows no other field.
impl PartialSchema for VolumeChange {
    fn schema() -> RefOr<Schema> {
        let variants = [
            tagged::<CreateVolume>("create"),
            tagged::<CloneVolume>("clone"),
            tagged::<ResizeVolume>("resize"),
            tagged::<SnapshotVolume>("snapshot"),
            tagged::<RevertVolume>("revert"),
            tagged::<DeleteVolumeSnapshot>("delete_snapshot"),
            tagged::<BindVolume>("bind"),
            tagged::<UnbindVolume>("unbind"),
            tagged::<DeleteVolume>("delete"),
        ];
        variants.into_iter().fold(OneOfBuilder::new(), OneOfBuilder::item).into()
    }
}

impl ToSchema for VolumeChange {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        CreateVolume::schemas(schemas);
        CloneVolume::schemas(schemas);
        ResizeVolume::schemas(schemas);
        SnapshotVolume::schemas(schemas);
        RevertVolume::schemas(schemas);
        DeleteVolumeSnapshot::schemas(schemas);
        BindVolume::schemas(schemas);
        UnbindVolume::schemas(schemas);
        DeleteVolume::schemas(schemas);
    }
}

/// The schema of a request that is an object, with the tag of its variant.
fn tagged<Request: PartialSchema>(tag: &str) -> RefOr<Schema> {
    let mut schema = Request::schema();
    if let RefOr::T(Schema::Object(object)) = &mut schema {
        let tags = ObjectBuilder::new().schema_type(Type::String).enum_values(Some([tag]));
        object.properties.insert(TAG.to_owned(), tags.build().into());
        object.required.push(TAG.to_owned());
    }
    schema
}

/// The field that says which change it is.
const TAG: &str = "change";

/// A request for an empty volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// Its name.
    pub name: Name,
    /// Its size in bytes: a multiple of 512 from 4096 to 64 TiB.
    #[schema(value_type = u64, minimum = 4096, maximum = 70368744177664u64, multiple_of = 512)]
    pub size_bytes: VolumeSize,
    /// The datastore, by name or id; not needed if there is only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datastore: Option<Reference>,
    /// The folder, by name or id; none without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<Reference>,
    /// Whether all of its space is allocated at once.
    #[serde(default)]
    pub thick: bool,
    /// Whether each block has a keyed tag, as for a VM's disk.
    #[serde(default)]
    pub integrity: bool,
    /// Whether it is encrypted, under a key of its own. If not, it is stored in plain text.
    #[serde(default = "yes")]
    pub encrypted: bool,
    /// The key provider; optional if there is only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_provider: Option<Name>,
}

const fn yes() -> bool {
    true
}

/// A request for a volume with the content of another one, under a key of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CloneVolume {
    /// The origin.
    pub volume: Reference,
    /// The name of the new volume.
    pub name: Name,
    /// The snapshot whose content it gets, by name or id. Without one, it gets the present content:
    /// of a VM that runs, the task makes a snapshot, which it deletes when everything is copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Reference>,
    /// A datastore of the same host, by name or id; the default is that of the origin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datastore: Option<Reference>,
    /// Whether it shares the layers of the snapshot, so that nothing is copied. Without a snapshot,
    /// the origin first gets one that is named after the clone, which takes `snapshot` there.
    #[serde(default)]
    pub linked: bool,
    /// Whether it is encrypted; as its origin without. Only for a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypted: Option<bool>,
    /// Whether each block has a keyed tag; as in its origin without. Only for a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub integrity: Option<bool>,
    /// The provider of its key; that of its origin without. Only for a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_provider: Option<Name>,
}

/// A request to make a volume larger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeVolume {
    /// The volume.
    pub volume: Reference,
    /// Its new size in bytes: a multiple of 512 up to 64 TiB.
    #[schema(value_type = u64, minimum = 4096, maximum = 70368744177664u64, multiple_of = 512)]
    pub size_bytes: VolumeSize,
}

/// A request for a snapshot of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotVolume {
    /// The volume.
    pub volume: Reference,
    /// The snapshot's name.
    #[schema(value_type = Name)]
    pub name: SnapshotName,
    /// Other volumes that no VM has, and VMs, by name or id: all get the snapshot, of one instant,
    /// or none does. At most 15, with at most 128 disks together, on one host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub with: Vec<Reference>,
}

/// A request to revert a volume to a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RevertVolume {
    /// The volume.
    pub volume: Reference,
    /// The snapshot, by name or id.
    pub snapshot: Reference,
    /// The name of the snapshot that keeps the present content; the default is `before-revert-N`.
    #[schema(value_type = Option<Name>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_as: Option<SnapshotName>,
    /// Does not keep the present content.
    #[serde(default)]
    pub discard: bool,
}

/// A request to delete a snapshot of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteVolumeSnapshot {
    /// The volume.
    pub volume: Reference,
    /// The snapshot, by name or id.
    pub snapshot: Reference,
}

/// A request to give a volume to a VM of the same datastore. Both are encrypted, or neither is. A
/// volume with snapshots stays on its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BindVolume {
    /// The volume.
    pub volume: Reference,
    /// The VM, by name or id.
    pub vm: Reference,
}

/// A request to take a disk from a VM and keep its volume. The volume has a key of its own, and no
/// snapshot of the VM needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UnbindVolume {
    /// The volume, by id or as `VM/DISK`.
    pub volume: Reference,
    /// Its name from then on; without one, the name that it had before it was bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
}

/// A request to delete a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteVolume {
    /// The volume.
    pub volume: Reference,
    /// Deletes it although linked clones share its layers. They keep reading these.
    #[serde(default)]
    pub leave_to_clones: bool,
}

/// The answers to a batch of changes, in its order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeChanges {
    /// An answer for each change.
    pub changes: Vec<ChangeAnswer>,
}

/// The answer to one change: exactly one of its fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeAnswer {
    /// The task that does it.
    Task(Box<Task>),
    /// Why nothing is done.
    Error(Problem),
}
