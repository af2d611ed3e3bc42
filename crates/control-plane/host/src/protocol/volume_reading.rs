//! Readings of volumes: where they have content, and what they take. No key is needed.

use base64ct::{Base64, Encoding};
use serde::{Deserialize, Serialize};
use strongroom_datastore::file::{ChunkMap, MapForm, MapRequest, Provisioning, Space, View, ViewSpace};
use strongroom_types::{ChunkSize, Extent, SnapshotId, VmId, VolumeId, VolumeSize};
use strongroom_vm::DiskName;

use super::problem::Problem;

/// The most readings of one request. Their answers together take some MiB.
pub const READINGS_MAX: usize = 64;

/// A request for readings. Each has an answer of its own, in the same order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadingsRequest {
    /// At most [`READINGS_MAX`].
    pub readings: Vec<ReadingRequest>,
}

/// A request for one reading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadingRequest {
    /// The VM.
    pub vm: VmId,
    /// The name of the volume in the VM's directory.
    pub disk: DiskName,
    /// What is asked about it.
    pub question: VolumeQuestion,
}

/// What is asked about a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum VolumeQuestion {
    /// What it takes.
    Space {
        /// Refuses another volume than this one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        volume: Option<VolumeId>,
    },
    /// A map of its content.
    Map(MapRequest),
    /// Which volume it is, according to its descriptor, which is not verified.
    Identity,
}

/// The answers, in the order of the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readings {
    /// One for each request.
    pub readings: Vec<Reading>,
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading {
    /// What the volume takes.
    Space(SpaceReport),
    /// A map of its content.
    Map(MapReport),
    /// Which volume it is.
    Identity(VolumeId),
    /// Why there is no answer.
    Problem(Problem),
}

/// What a volume takes, in bytes; see [`Space`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceReport {
    /// The size that the guest sees.
    pub logical: VolumeSize,
    /// How space is allocated.
    pub provisioning: Provisioning,
    /// All of its files.
    pub committed_bytes: u64,
    /// Files that other volumes have too.
    pub shared_bytes: u64,
    /// Files that several of its views have.
    pub common_bytes: u64,
    /// Files of no layer.
    pub other_bytes: u64,
    /// The present content, and each snapshot.
    pub views: Vec<ViewSpaceReport>,
}

/// The space of one content of a volume, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewSpaceReport {
    /// The snapshot; absent for the present content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotId>,
    /// Its size.
    pub logical: VolumeSize,
    /// The files of all of its layers.
    pub committed_bytes: u64,
    /// The files of those that nothing else has.
    pub unshared_bytes: u64,
}

impl SpaceReport {
    /// The report of a volume's space.
    pub fn of(space: &Space) -> Self {
        let view = |view: &ViewSpace| ViewSpaceReport {
            snapshot: match view.view {
                View::Present => None,
                View::Snapshot(snapshot) => Some(snapshot),
            },
            logical: view.logical,
            committed_bytes: view.committed_bytes,
            unshared_bytes: view.unshared_bytes,
        };
        Self {
            logical: space.logical,
            provisioning: space.provisioning,
            committed_bytes: space.committed_bytes,
            shared_bytes: space.shared_bytes,
            common_bytes: space.common_bytes,
            other_bytes: space.other_bytes,
            views: space.views.iter().map(view).collect(),
        }
    }
}

/// A map of a part of a volume; see [`ChunkMap`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapReport {
    /// The generation of the volume's descriptor.
    pub generation: u64,
    /// The size of the content.
    pub size: VolumeSize,
    /// The size of a chunk.
    pub chunk: ChunkSize,
    /// The part that is covered.
    pub covers: ExtentReport,
    /// The chunks in the map.
    pub chunks: ChunksReport,
    /// Where to go on, if it was asked for: no chunk before it is in the map.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_bytes: Option<u64>,
}

/// The chunks of a map, in the form that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChunksReport {
    /// Runs of chunks.
    Extents(Vec<ExtentReport>),
    /// A bit for each chunk, as [`ChunkMap::bitmap`] has them, in base64.
    Bitmap(String),
}

/// A run of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtentReport {
    /// Its first byte.
    pub start_bytes: u64,
    /// Its length.
    pub length_bytes: u64,
}

impl From<Extent> for ExtentReport {
    fn from(extent: Extent) -> Self {
        Self { start_bytes: extent.offset(), length_bytes: extent.length() }
    }
}

impl MapReport {
    /// The report of a map that was asked for in this form.
    pub fn of(map: &ChunkMap, form: MapForm) -> Self {
        Self {
            generation: map.generation,
            size: map.size,
            chunk: map.chunk,
            covers: map.covers.into(),
            chunks: match form {
                MapForm::Extents => ChunksReport::Extents(map.runs.iter().map(|run| (*run).into()).collect()),
                MapForm::Bitmap => ChunksReport::Bitmap(Base64::encode_string(&map.bitmap())),
            },
            next_bytes: map.next_bytes,
        }
    }
}
