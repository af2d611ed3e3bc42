//! The descriptor: what a volume is.
//!
//! ```text
//! offset  bytes  content
//!      0      8  "STRGROOM"
//!      8      4  format version, little-endian: the lowest from 4 on that can describe the volume;
//!                1 to 3 are read too
//!     12      4  length L of the body, little-endian, at most 1 MiB
//!     16      L  the body: JSON, UTF-8
//!   16+L     32  tag over bytes 0 .. 16+L: HMAC-SHA256 under the descriptor key; SHA-256 where there are no keys
//!   48+L     32  while a re-wrap is under way: the same under the key of the next KEK
//! ```

use std::path::Path;

use serde::{Deserialize, Serialize};
use strongroom_crypto::block_tag::BlockTagAlgorithm;
use strongroom_keys::{Cipher, DESCRIPTOR_TAG_BYTES, DescriptorKey, Envelope, Kek, KekSource, KeyError};
use strongroom_types::{
    KekId, KeyEpoch, LayerId, STORED_COUNT_MAX, SnapshotId, SnapshotName, VolumeId, VolumeSize,
};

use super::error::DatastoreError;
use super::group::GroupMark;
use super::log::{LOG_BYTES_MAX, LOG_BYTES_MIN, LOG_BYTES_STEP};
use super::reencrypt::Reencrypting;
use super::shared::SharedLayers;

/// The newest format that this program writes and reads.
pub const FORMAT_VERSION: u32 = 9;

/// The format of a volume without a mark of a group of volumes.
const FORMAT_VERSION_WITHOUT_GROUPS: u32 = 8;

/// The format of a volume whose blocks are tagged by HMAC, or not at all.
const FORMAT_VERSION_WITHOUT_POLYVAL: u32 = 7;

/// The format of a volume that is not being re-encrypted.
const FORMAT_VERSION_WITHOUT_REENCRYPTION: u32 = 6;

/// The format of a volume none of whose layers was made by another volume.
const FORMAT_VERSION_WITHOUT_CLONES: u32 = 5;

/// The format of a volume without snapshots, which programs that know none can read.
const FORMAT_VERSION_WITHOUT_SNAPSHOTS: u32 = 4;

const MAGIC: &[u8; 8] = b"STRGROOM";
const HEADER_BYTES: usize = 16;

/// The longest body: a thousand times a new volume's, but not enough to exhaust memory.
const BODY_BYTES_MAX: usize = 1 << 20;

/// The longest descriptor.
pub(super) const DESCRIPTOR_BYTES_MAX: usize = HEADER_BYTES + BODY_BYTES_MAX + 2 * DESCRIPTOR_TAG_BYTES;

/// The most layers of a volume, branches included.
pub(super) const LAYERS_MAX: usize = 256;

/// The most snapshots of a volume: with the top and the layers that wait to be merged they stay
/// within [`LAYERS_MAX`].
pub const SNAPSHOTS_MAX: usize = 128;

/// The most layers of a chain that is opened: up to four files of the top and three of each other
/// layer go to a worker in one message, together with the files of its guest's sessions; a message
/// takes 253 (`SCM_MAX_FD`). A block that no layer has is looked for in each.
pub const CHAIN_LAYERS_MAX: usize = 32;

/// Whether space is allocated at once or when it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Provisioning {
    /// When it is needed; discards free it.
    Thin,
    /// At once and for good.
    Thick,
}

/// The description of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Descriptor {
    /// The volume.
    pub volume: VolumeId,
    /// Counts the descriptors of this volume, from 1.
    pub generation: u64,
    /// The size that the guest sees, in bytes.
    pub size_bytes: VolumeSize,
    /// How space is allocated.
    pub provisioning: Provisioning,
    /// When the volume was made: seconds since 1970-01-01 00:00 UTC.
    pub created_unix_seconds: u64,
    /// How it is encrypted; `None` for a clear volume.
    pub encryption: Option<EncryptionRecord>,
    /// The layer that takes writes.
    pub top: LayerId,
    /// All layers, oldest first.
    pub layers: Vec<LayerRecord>,
    /// The snapshots, oldest first. Format versions 1 to 4 had none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<SnapshotRecord>,
    /// The merge that is under way. Format versions 1 to 4 had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merging: Option<Merging>,
    /// The re-encryption that is under way. Format versions 1 to 6 had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reencrypting: Option<Reencrypting>,
    /// Its part of a snapshot of several volumes, or the record that one was made. Format versions
    /// 1 to 8 had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupMark>,
}

/// The content of a volume at one instant: what a layer holds, with the layers below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRecord {
    /// The snapshot; it has the same id in every volume that it covers.
    pub id: SnapshotId,
    /// What people call it.
    pub name: SnapshotName,
    /// The uppermost layer of its content, which takes no writes any more.
    pub layer: LayerId,
    /// Creation time: seconds since 1970-01-01 00:00 UTC.
    pub created_unix_seconds: u64,
}

/// A layer whose blocks are being written into the layer below it. Until that is complete and
/// durable, the upper one answers for everything that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Merging {
    /// The upper layer.
    pub from: LayerId,
    /// The layer below it, which no snapshot and no other layer needs.
    pub into: LayerId,
}

/// How a volume is encrypted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EncryptionRecord {
    /// The KEK that authenticates this descriptor and opens its envelopes.
    pub kek: KekRecord,
    /// The KEK that a re-wrap is bringing in: it authenticates this descriptor and opens the volume
    /// too. During a re-encryption ([`Descriptor::reencrypting`]) it opens only the layers that are
    /// done. Format versions 1 and 2 had none.
    #[serde(default)]
    pub next_kek: Option<KekRecord>,
    /// The epoch that the next DEK gets.
    pub next_epoch: KeyEpoch,
}

impl EncryptionRecord {
    /// The KEKs that open the volume: one, or two while a re-wrap is under way.
    pub fn keks(&self) -> impl Iterator<Item = &KekRecord> {
        std::iter::once(&self.kek).chain(&self.next_kek)
    }
}

/// A KEK's id and source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KekRecord {
    /// Its id.
    pub id: KekId,
    /// Its source.
    pub source: KekSource,
}

impl KekRecord {
    fn missing_from(&self, path: &Path) -> DatastoreError {
        let (path, missing, source_name) = (path.to_owned(), self.id, self.source.to_string());
        DatastoreError::BetweenKeys { path, missing, source_name }
    }
}

/// One layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerRecord {
    /// The layer; its file is `layer-<id>`.
    pub id: LayerId,
    /// The layer below, if any. A layer that has one also has a record of its discards,
    /// `discards-<id>`.
    pub parent: Option<LayerId>,
    /// The size that the volume had when another layer was put on this one; it no longer changes.
    /// `None` for the top, which has the volume's size. Format version 1 had none.
    #[serde(default)]
    pub size_bytes: Option<VolumeSize>,
    /// The DEKs that seal its blocks, oldest first; writes use the last. None in a clear volume.
    pub epochs: Vec<EpochRecord>,
    /// Its first-write log. Format version 1 had none.
    #[serde(default)]
    pub log: Option<LogRecord>,
    /// How its blocks are tagged, if they are. Format version 1 had none.
    #[serde(default)]
    pub integrity: Option<Integrity>,
    /// Whether another layer was put on it while it was the top, and its last writes are not yet
    /// known to be durable and outside its log. Format versions 1 to 4 had none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub closing: bool,
    /// The volume that made the layer, if that is another one: its tags and its record of discards
    /// are bound to that volume. A linked clone has such layers. Format versions 1 to 5 had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeId>,
}

/// How a layer's blocks are tagged. The descriptor says so, so that an attacker cannot disable
/// verification by removing the tags file, or by replacing it with one of the former format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Integrity {
    /// HMAC-SHA256 of each block that is there, truncated to 128 bits, in `tags-<id>`. Absent
    /// blocks are not authenticated. Format versions 2 and 3 had no other.
    #[serde(rename = "hmac-sha256-128")]
    HmacSha256,
    /// The same, and a tag of each absent block too, in `tags2-<id>`.
    #[serde(rename = "hmac-sha256-128-absence")]
    HmacSha256Absence,
    /// AES-256 of POLYVAL of each block, and of each absent block, in `tags2-<id>`. Format versions
    /// 1 to 7 did not have it.
    #[serde(rename = "polyval-aes-256-absence")]
    PolyvalAesAbsence,
}

impl Integrity {
    /// That of new volumes.
    pub const NEW: Self = match BlockTagAlgorithm::FASTEST {
        BlockTagAlgorithm::HmacSha256 => Self::HmacSha256Absence,
        BlockTagAlgorithm::PolyvalAes => Self::PolyvalAesAbsence,
    };

    /// The algorithm of its tags.
    pub fn algorithm(self) -> BlockTagAlgorithm {
        match self {
            Self::HmacSha256 | Self::HmacSha256Absence => BlockTagAlgorithm::HmacSha256,
            Self::PolyvalAesAbsence => BlockTagAlgorithm::PolyvalAes,
        }
    }

    /// The same algorithm in the present format.
    #[must_use]
    pub fn renewed(self) -> Self {
        match self {
            Self::HmacSha256 | Self::HmacSha256Absence => Self::HmacSha256Absence,
            Self::PolyvalAesAbsence => Self::PolyvalAesAbsence,
        }
    }
}

/// The first-write log of a layer. The descriptor says that there is one, because a layer whose log
/// is missing has lost writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogRecord {
    /// Bytes for records.
    pub bytes: u64,
}

/// One DEK of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpochRecord {
    /// Its epoch.
    pub epoch: KeyEpoch,
    /// How it is used.
    pub cipher: Cipher,
    /// The DEK, wrapped once for each KEK that may open it.
    pub envelopes: Vec<Envelope>,
}

impl LayerRecord {
    /// The seal of what is written to it: the epoch of its newest DEK, or that of clear blocks.
    pub fn write_epoch(&self) -> KeyEpoch {
        self.epochs.last().map_or(KeyEpoch::CLEAR, |record| record.epoch)
    }

    /// Whether its blocks are not encrypted.
    pub fn is_clear(&self) -> bool {
        self.epochs.is_empty()
    }
}

impl Descriptor {
    /// Checks that it is the descriptor of this volume; `None` accepts any.
    ///
    /// # Errors
    /// [`DatastoreError::OtherVolume`].
    pub fn expect_volume(&self, path: &Path, expected: Option<VolumeId>) -> Result<(), DatastoreError> {
        match expected.filter(|expected| *expected != self.volume) {
            Some(expected) => {
                Err(DatastoreError::OtherVolume { path: path.to_owned(), expected, found: self.volume })
            }
            None => Ok(()),
        }
    }

    /// Checks that it is no older than this generation.
    ///
    /// # Errors
    /// [`DatastoreError::RolledBack`].
    pub fn expect_generation(&self, path: &Path, least: u64) -> Result<(), DatastoreError> {
        match self.generation < least {
            true => Err(DatastoreError::RolledBack { path: path.to_owned(), found: self.generation, least }),
            false => Ok(()),
        }
    }

    /// The layer of this id.
    pub fn layer(&self, id: LayerId) -> Option<&LayerRecord> {
        self.layers.iter().find(|layer| layer.id == id)
    }

    /// The top and what lies below it, nearest first.
    pub fn chain(&self) -> impl Iterator<Item = &LayerRecord> {
        self.chain_from(Some(self.top))
    }

    /// A layer and what lies below it, nearest first.
    pub(super) fn chain_from(&self, layer: Option<LayerId>) -> impl Iterator<Item = &LayerRecord> {
        let start = layer.and_then(|id| self.layer(id));
        std::iter::successors(start, |layer| layer.parent.and_then(|parent| self.layer(parent)))
    }

    /// The layer below the top, if it is not complete yet.
    pub fn closing(&self) -> Option<&LayerRecord> {
        self.layers.iter().find(|layer| layer.closing)
    }

    /// The volume that the tags and the record of discards of a layer are bound to.
    pub(super) fn maker_of(&self, layer: &LayerRecord) -> VolumeId {
        layer.volume.unwrap_or(self.volume)
    }

    /// The snapshot of this id.
    pub fn snapshot(&self, id: SnapshotId) -> Option<&SnapshotRecord> {
        self.snapshots.iter().find(|snapshot| snapshot.id == id)
    }

    /// The snapshot of this name.
    pub fn snapshot_named(&self, name: &SnapshotName) -> Option<&SnapshotRecord> {
        self.snapshots.iter().find(|snapshot| snapshot.name == *name)
    }

    /// The descriptor of a volume that has the content and the size of a snapshot.
    pub(super) fn as_of(&self, snapshot: SnapshotId) -> Option<Self> {
        let layer = self.layer(self.snapshot(snapshot)?.layer)?;
        Some(Self { top: layer.id, size_bytes: self.layer_size(layer), ..self.clone() })
    }

    /// The nearest snapshot at or below a layer.
    pub fn nearest_snapshot(&self, layer: Option<LayerId>) -> Option<&SnapshotRecord> {
        let of = |layer: &LayerRecord| self.snapshots.iter().find(|snapshot| snapshot.layer == layer.id);
        self.chain_from(layer).find_map(of)
    }

    /// The layers that lie directly on this one.
    pub(super) fn children(&self, of: LayerId) -> impl Iterator<Item = &LayerRecord> {
        self.layers.iter().filter(move |layer| layer.parent == Some(of))
    }

    /// Whether this layer is the uppermost of a snapshot, or of a part that may become one.
    pub(super) fn is_kept(&self, layer: LayerId) -> bool {
        let part = self.part().map(|part| &part.snapshot);
        self.snapshots.iter().chain(part).any(|snapshot| snapshot.layer == layer)
    }

    /// Removes the layers that neither the top nor a snapshot needs, and with them the mark of
    /// their merge. Returns them.
    pub(super) fn prune(&mut self) -> Vec<LayerRecord> {
        let mut pruned = Vec::new();
        loop {
            let is_needed = |layer: &LayerRecord| {
                layer.id == self.top || self.is_kept(layer.id) || self.children(layer.id).next().is_some()
            };
            let Some(at) = self.layers.iter().position(|layer| !is_needed(layer)) else { break };
            pruned.push(self.layers.remove(at));
        }
        if self.merging.is_some_and(|merging| self.layer(merging.from).is_none()) {
            self.merging = None;
        }
        pruned
    }

    /// The next two layers to merge: those of the merge under way, or a pair whose lower layer no
    /// snapshot has and on which no other layer lies. The pairs that a volume can merge while it is
    /// in use come first, and those without its top before the top's. Nothing is merged into a
    /// layer that other volumes have too.
    pub fn next_merge(&self, shared: &SharedLayers) -> Option<Merging> {
        let rank = |merging: &Merging| match self.is_in_chain(*merging) {
            true => u8::from(merging.from == self.top),
            false => 2,
        };
        let next = || self.mergeable().filter(|merging| !shared.has(merging.into)).min_by_key(rank);
        self.merging.map_or_else(next, |merging| (!shared.has(merging.into)).then_some(merging))
    }

    /// The next two layers that a volume can merge while it is in use. The upper one may be its
    /// top, which must get another one on it first.
    pub fn next_merge_in_use(&self, shared: &SharedLayers) -> Option<Merging> {
        let can = |merging: &Merging| self.is_in_chain(*merging) && !shared.has(merging.into);
        let next = || self.mergeable().filter(can);
        self.merge_in_use().or_else(|| next().min_by_key(|merging| merging.from == self.top))
    }

    /// The marked merge, if the volume can do it while it is in use.
    pub fn merge_in_use(&self) -> Option<Merging> {
        self.merging.filter(|merging| self.is_in_chain(*merging))
    }

    /// Whether layers wait to be merged. The top does not count, unless it was asked for: it can
    /// always be merged with a layer below it that no snapshot needs, and takes the next writes.
    pub fn has_layers_to_merge(&self) -> bool {
        self.merging.is_some() || self.mergeable().any(|merging| merging.from != self.top)
    }

    /// Whether a layer of its own waits to be merged into one that other volumes have too. A
    /// clone's top on the layers of its origin does not count: that is how a clone begins.
    pub fn waits_for_others(&self, shared: &SharedLayers) -> bool {
        self.mergeable().any(|Merging { from, into }| {
            let is_own = self.layer(into).is_some_and(|layer| layer.volume.is_none());
            shared.has(into) && !shared.has(from) && (from != self.top || is_own)
        })
    }

    /// Every pair of layers that can be merged.
    fn mergeable(&self) -> impl Iterator<Item = Merging> {
        let lower = self.layers.iter().filter(|layer| {
            let is_alone = self.children(layer.id).count() == 1;
            is_alone && layer.id != self.top && !self.is_kept(layer.id) && !layer.closing
        });
        // A sealed layer's blocks must not end in a clear one.
        lower.filter_map(|into| {
            let from = self.children(into.id).find(|from| !from.closing)?;
            let is_of_one_sort = from.is_clear() == into.is_clear();
            is_of_one_sort.then_some(Merging { from: from.id, into: into.id })
        })
    }

    /// Whether the layers of a merge belong to the volume's present content.
    fn is_in_chain(&self, merging: Merging) -> bool {
        self.chain().any(|layer| layer.id == merging.from)
    }

    /// Whether a process that uses the volume can write the layer above into this one: not if that
    /// is the top, which still changes.
    pub(super) fn takes_merge(&self, layer: LayerId) -> bool {
        self.is_merged_into(layer) && self.merging.is_some_and(|merging| merging.from != self.top)
    }

    /// Whether the layer above is being merged into this one.
    pub(super) fn is_merged_into(&self, layer: LayerId) -> bool {
        self.merging.is_some_and(|merging| merging.into == layer)
    }

    /// The lowest format version that can describe it.
    fn format_version(&self) -> u32 {
        let has_polyval = |integrity: Option<Integrity>| integrity == Some(Integrity::PolyvalAesAbsence);
        if self.group.is_some() {
            return FORMAT_VERSION;
        }
        if self.layers.iter().any(|layer| has_polyval(layer.integrity)) {
            return FORMAT_VERSION_WITHOUT_GROUPS;
        }
        match self.reencrypting {
            Some(Reencrypting::Encrypted { integrity, .. }) if has_polyval(integrity) => {
                return FORMAT_VERSION_WITHOUT_GROUPS;
            }
            Some(_) => return FORMAT_VERSION_WITHOUT_POLYVAL,
            None => {}
        }
        if self.layers.iter().any(|layer| layer.volume.is_some()) {
            return FORMAT_VERSION_WITHOUT_REENCRYPTION;
        }
        let is_line = self.chain().count() == self.layers.len();
        let is_plain = self.snapshots.is_empty() && self.merging.is_none() && self.closing().is_none();
        match is_line && is_plain {
            true => FORMAT_VERSION_WITHOUT_SNAPSHOTS,
            false => FORMAT_VERSION_WITHOUT_CLONES,
        }
    }

    /// The epoch whose key authenticates a layer's absent blocks, if they are authenticated.
    pub(super) fn absence_of(layer: &LayerRecord) -> Option<KeyEpoch> {
        match layer.integrity? {
            Integrity::HmacSha256 => None,
            Integrity::HmacSha256Absence | Integrity::PolyvalAesAbsence => {
                layer.epochs.last().map(|record| record.epoch)
            }
        }
    }

    /// The size of one of its layers.
    pub fn layer_size(&self, layer: &LayerRecord) -> VolumeSize {
        layer.size_bytes.unwrap_or(self.size_bytes)
    }

    /// The source of its key; `None` for a clear volume.
    pub fn key_source(&self) -> Option<&KekSource> {
        self.encryption.as_ref().map(|encryption| &encryption.kek.source)
    }

    /// Whether this KEK opens the volume.
    pub fn is_under(&self, kek: KekId) -> bool {
        self.encryption.as_ref().is_some_and(|encryption| encryption.keks().any(|record| record.id == kek))
    }

    /// The bytes of the descriptor with a tag under each KEK that it names, all of which must be in
    /// `keks`. A clear volume's has a checksum instead.
    pub(super) fn encode(&self, path: &Path, keks: &[&Kek]) -> Result<Vec<u8>, DatastoreError> {
        let body = serde_json::to_vec(self).map_err(|error| damaged(path, error))?;
        if body.len() > BODY_BYTES_MAX {
            return Err(damaged(
                path,
                format!("it would need {} bytes; the limit is {BODY_BYTES_MAX}", body.len()),
            ));
        }
        let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len() + DESCRIPTOR_TAG_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.format_version().to_le_bytes());
        bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&body);
        let tags = match &self.encryption {
            None => DescriptorKey::checksum(&bytes).to_vec(),
            Some(encryption) => self.tags(path, encryption, keks, &bytes)?,
        };
        bytes.extend_from_slice(&tags);
        Ok(bytes)
    }

    /// A tag under each KEK, one after the other.
    fn tags(
        &self,
        path: &Path,
        encryption: &EncryptionRecord,
        keks: &[&Kek],
        bytes: &[u8],
    ) -> Result<Vec<u8>, DatastoreError> {
        let mut tags = Vec::with_capacity(2 * DESCRIPTOR_TAG_BYTES);
        for record in encryption.keks() {
            let kek = keks.iter().find(|kek| kek.id() == record.id);
            let kek = kek.ok_or_else(|| record.missing_from(path))?;
            let tag = DescriptorKey::derive(kek, self.volume).and_then(|key| key.tag(bytes));
            let tag = tag.map_err(|error| DatastoreError::Key { path: path.to_owned(), error })?;
            tags.extend_from_slice(&tag);
        }
        Ok(tags)
    }

    /// Refuses a descriptor that no Strongroom program writes.
    fn validate(&self) -> Result<(), String> {
        if self.generation > STORED_COUNT_MAX {
            return Err(format!("no volume has a descriptor of generation {}", self.generation));
        }
        if self.layers.is_empty() || self.layers.len() > LAYERS_MAX {
            return Err(format!("it names {} layers; 1 to {LAYERS_MAX} are possible", self.layers.len()));
        }
        if self.layer(self.top).is_none() {
            return Err(format!("its top layer {} is not among its layers", self.top));
        }
        let mut last_epoch = None;
        for (index, layer) in self.layers.iter().enumerate() {
            let earlier = &self.layers[..index];
            if earlier.iter().any(|other| other.id == layer.id) {
                return Err(format!("it names layer {} twice", layer.id));
            }
            if layer.parent.is_some_and(|parent| earlier.iter().all(|other| other.id != parent)) {
                return Err(format!("the parent of layer {} is not among the layers before it", layer.id));
            }
            if let Some(parent) = layer.parent.and_then(|parent| self.layer(parent)) {
                self.validate_pair(layer, parent)?;
            }
            match (layer.size_bytes, layer.id == self.top) {
                (Some(_), true) => {
                    return Err(format!("the top layer {} has a size beside the volume's", layer.id));
                }
                (None, false) => return Err(format!("layer {} below the top has no size", layer.id)),
                _ => {}
            }
            if layer.log.is_some() && layer.id != self.top && !layer.closing {
                return Err(format!("layer {} has a log, and takes no writes", layer.id));
            }
            let is_below_top = self.layer(self.top).is_some_and(|top| top.parent == Some(layer.id));
            if layer.closing && !is_below_top {
                return Err(format!("layer {} is being closed, and does not lie below the top", layer.id));
            }
            let is_leaf = self.children(layer.id).next().is_none();
            if is_leaf && layer.id != self.top && !self.is_kept(layer.id) {
                return Err(format!("neither the top nor a snapshot needs layer {}", layer.id));
            }
            // A re-encryption from or to a clear volume has layers of both sorts on its way.
            let is_mixed = self.encryption.is_some() && self.reencrypting.is_some();
            if layer.is_clear() == self.encryption.is_some() && !is_mixed {
                return Err(format!(
                    "layer {} has keys where the volume has none, or the other way round",
                    layer.id
                ));
            }
            if let Some(LogRecord { bytes }) = layer.log
                && (!(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&bytes) || bytes % LOG_BYTES_STEP != 0)
            {
                return Err(format!("the log of layer {} cannot have {bytes} bytes", layer.id));
            }
            if layer.volume == Some(self.volume) {
                return Err(format!(
                    "layer {} says that another volume made it, and names this one",
                    layer.id
                ));
            }
            if layer.integrity.is_some() && layer.is_clear() {
                return Err(format!("layer {} has tags, and no key that could have made them", layer.id));
            }
            for record in &layer.epochs {
                if last_epoch.is_some_and(|last| last >= record.epoch) {
                    return Err(format!("key epoch {} is not after the one before it", record.epoch));
                }
                last_epoch = Some(record.epoch);
            }
        }
        self.validate_snapshots()?;
        if self.reencrypting.is_some() && self.encryption.is_none() {
            return Err("it is being re-encrypted, and has no key".to_owned());
        }
        if let Some(EncryptionRecord { kek, next_kek: Some(next), .. }) = &self.encryption
            && kek.id == next.id
        {
            return Err(format!("it names KEK {} twice", kek.id));
        }
        match &self.encryption {
            Some(encryption) if last_epoch.is_some_and(|last| last >= encryption.next_epoch) => {
                Err(format!("the next key epoch {} was used already", encryption.next_epoch))
            }
            _ => Ok(()),
        }
    }

    fn validate_snapshots(&self) -> Result<(), String> {
        for (index, snapshot) in self.snapshots.iter().enumerate() {
            let SnapshotRecord { id, name, layer, .. } = snapshot;
            if self.snapshots[..index].iter().any(|other| other.id == *id || other.name == *name) {
                return Err(format!("it names snapshot {name} ({id}) twice"));
            }
            match self.layer(*layer) {
                Some(record) if *layer != self.top && !record.closing => {}
                Some(_) => return Err(format!("layer {layer} of snapshot {name} still takes writes")),
                None => return Err(format!("layer {layer} of snapshot {name} is not among its layers")),
            }
        }
        if let Some(mark) = &self.group {
            mark.validate(self)?;
        }
        let Some(Merging { from, into }) = self.merging else { return Ok(()) };
        let is_clear = |layer: LayerId| self.layer(layer).map(LayerRecord::is_clear);
        let is_pair = self.layer(from).is_some_and(|layer| layer.parent == Some(into));
        if !is_pair
            || is_clear(from) != is_clear(into)
            || self.children(into).count() != 1
            || self.is_kept(into)
        {
            return Err(format!("layer {from} cannot be merged into layer {into}"));
        }
        Ok(())
    }

    /// Refuses two layers that cannot lie on each other. A volume only grows, so a layer has at
    /// least its parent's size.
    fn validate_pair(&self, layer: &LayerRecord, parent: &LayerRecord) -> Result<(), String> {
        if parent.id == self.top {
            return Err(format!("layer {} lies on the top layer", layer.id));
        }
        if self.layer_size(parent) > self.layer_size(layer) {
            return Err(format!("layer {} is smaller than layer {} below it", layer.id, parent.id));
        }
        Ok(())
    }
}

/// A descriptor as it was read: parsed and consistent, not yet authenticated.
#[derive(Debug)]
pub(super) struct EncodedDescriptor {
    bytes: Vec<u8>,
    /// The count of bytes that the tags cover: header and body.
    signed_bytes: usize,
    descriptor: Descriptor,
}

impl EncodedDescriptor {
    pub(super) fn parse(path: &Path, bytes: Vec<u8>) -> Result<Self, DatastoreError> {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(damaged(path, format!("it has {} bytes and no header", bytes.len())));
        };
        let word =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        if header[..8] != *MAGIC {
            return Err(damaged(path, "it does not start as one"));
        }
        match word(8) {
            0 => return Err(damaged(path, "there is no format version 0")),
            found if found > FORMAT_VERSION => {
                return Err(DatastoreError::NewerFormat {
                    path: path.to_owned(),
                    found,
                    known: FORMAT_VERSION,
                });
            }
            _ => {}
        }
        let length = word(12) as usize;
        let wrong_length =
            || damaged(path, format!("it has {} bytes, which is not what its header says", bytes.len()));
        if length > BODY_BYTES_MAX || rest.len() < length {
            return Err(wrong_length());
        }
        let (body, tags) = rest.split_at(length);
        if tags.len() != DESCRIPTOR_TAG_BYTES && tags.len() != 2 * DESCRIPTOR_TAG_BYTES {
            return Err(wrong_length());
        }
        let descriptor: Descriptor = serde_json::from_slice(body).map_err(|error| damaged(path, error))?;
        descriptor.validate().map_err(|reason| damaged(path, reason))?;
        let keks = descriptor.encryption.as_ref().map_or(1, |encryption| encryption.keks().count());
        if tags.len() != keks * DESCRIPTOR_TAG_BYTES {
            return Err(wrong_length());
        }
        let signed_bytes = HEADER_BYTES + length;
        if descriptor.encryption.is_none() && DescriptorKey::checksum(&bytes[..signed_bytes]) != *tags {
            return Err(damaged(path, "its checksum does not match"));
        }
        Ok(Self { bytes, signed_bytes, descriptor })
    }

    /// The content, without authentication.
    pub(super) fn unverified(&self) -> &Descriptor {
        &self.descriptor
    }

    /// The whole content.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Authenticates the content with this KEK.
    pub(super) fn verify(&self, path: &Path, kek: &Kek) -> Result<Descriptor, DatastoreError> {
        let key_error = |error| DatastoreError::Key { path: path.to_owned(), error };
        let Some(encryption) = &self.descriptor.encryption else {
            return Err(DatastoreError::NotEncrypted { path: path.to_owned() });
        };
        let (signed, tags) = self.bytes.split_at(self.signed_bytes);
        let tags = tags.as_chunks::<DESCRIPTOR_TAG_BYTES>().0;
        let tag = encryption.keks().zip(tags).find(|(record, _)| record.id == kek.id());
        let Some((_, tag)) = tag else {
            return Err(key_error(KeyError::WrongKek { given: kek.id(), wanted: encryption.kek.id }));
        };
        let key = DescriptorKey::derive(kek, self.descriptor.volume).map_err(key_error)?;
        if !key.verify(signed, tag) {
            return Err(DatastoreError::NotAuthentic { path: path.to_owned() });
        }
        Ok(self.descriptor.clone())
    }

    /// Authenticates the content under every KEK that it names, all of which must be in `keks`.
    ///
    /// # Errors
    /// [`DatastoreError::BetweenKeys`] if one is missing.
    pub(super) fn verify_under_all(&self, path: &Path, keks: &[&Kek]) -> Result<Descriptor, DatastoreError> {
        for record in self.descriptor.encryption.iter().flat_map(EncryptionRecord::keks) {
            let kek = keks.iter().find(|kek| kek.id() == record.id);
            self.verify(path, kek.ok_or_else(|| record.missing_from(path))?)?;
        }
        Ok(self.descriptor.clone())
    }
}

fn damaged(path: &Path, reason: impl ToString) -> DatastoreError {
    DatastoreError::Damaged { path: path.to_owned(), reason: reason.to_string() }
}
