//! Why the datastore refuses.

use std::path::PathBuf;

use strongroom_io::IoError;
use strongroom_keys::KeyError;
use strongroom_types::{KekId, LayerId, SnapshotName, VolumeId, VolumeSize};
use thiserror::Error;

use super::filesystem::{FileSystemKind, SUPPORTED};
use super::log::LogError;

/// Errors of the datastore. Each names the object, and the next step where it is not obvious.
#[derive(Debug, Error)]
pub enum DatastoreError {
    /// A path that names no volume.
    #[error("{path} is not a volume: it has no descriptor")]
    NotAVolume {
        /// The path.
        path: PathBuf,
    },
    /// A link where a datastore holds a volume or a VM.
    #[error(
        "{path} leads through a symbolic link of its datastore, and none is followed there: a datastore \
         does not decide which other files are opened; name the volume by its own path"
    )]
    Link {
        /// The path.
        path: PathBuf,
    },
    /// A path that nothing can be created at.
    #[error("{path} cannot be the name of a volume: {reason}")]
    BadName {
        /// The path.
        path: PathBuf,
        /// Why not.
        reason: &'static str,
    },
    /// Something is there already.
    #[error("{path} exists already; choose another name, or delete it first")]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// A datastore whose mark is not valid.
    #[error(
        "{mark} does not say which datastore {path} is; if nobody else put it there, remove it and try again"
    )]
    UnknownMark {
        /// The datastore.
        path: PathBuf,
        /// The file.
        mark: PathBuf,
    },
    /// A system call failed.
    #[error("cannot {action} {path}: {errno}")]
    System {
        /// The action that was tried, as in "open".
        action: &'static str,
        /// The object.
        path: PathBuf,
        /// Why not.
        errno: rustix::io::Errno,
    },
    /// A path on a cluster that this process has not mounted.
    #[error(
        "{path} lies on a Ceph cluster that this host is not connected to; `strongroom datastore list` \
         says why"
    )]
    NotMounted {
        /// The path.
        path: PathBuf,
    },
    /// No room.
    #[error(
        "the datastore of {path} is full: {needed} are needed; free some space or choose another datastore"
    )]
    Full {
        /// The object.
        path: PathBuf,
        /// How much was asked for.
        needed: String,
    },
    /// The file system has no files of the volume's size.
    #[error(
        "the file system of {path} has no files as large as that; choose a smaller size, or another \
         file system: ext4 has files of up to 16T, XFS and btrfs of more than the largest volume"
    )]
    FileTooLarge {
        /// The volume.
        path: PathBuf,
    },
    /// A file system that is not tested, or known to break a promise.
    #[error(
        "{path} is on a file system of type {kind}, which cannot hold volumes: {reason}; use {SUPPORTED}"
    )]
    FileSystem {
        /// The path.
        path: PathBuf,
        /// The file system's type.
        kind: String,
        /// Why not.
        reason: &'static str,
    },
    /// A thick volume on a datastore that cannot reserve space.
    #[error("{path} cannot be a thick volume: {kind} reserves no space for it; make it thin")]
    ThinOnly {
        /// The volume.
        path: PathBuf,
        /// The datastore.
        kind: FileSystemKind,
    },
    /// A descriptor that is damaged, or is not a descriptor at all.
    #[error("the descriptor of {path} is damaged: {reason}; restore it from a backup")]
    Damaged {
        /// The volume.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A descriptor that does not bear its key's tag.
    #[error(
        "the descriptor of {path} was changed by someone without its key; do not use the volume: restore the descriptor from a backup"
    )]
    NotAuthentic {
        /// The volume.
        path: PathBuf,
    },
    /// A descriptor of a later program.
    #[error("{path} has format version {found}; this program reads versions up to {known}: use a newer one")]
    NewerFormat {
        /// The volume.
        path: PathBuf,
        /// The version found.
        found: u32,
        /// The newest that is known.
        known: u32,
    },
    /// A descriptor that is older than the caller knows to exist.
    #[error(
        "the descriptor of {path} has generation {found}, but generation {least} is known to exist: it was rolled back"
    )]
    RolledBack {
        /// The volume.
        path: PathBuf,
        /// The generation found.
        found: u64,
        /// The least that the caller accepts.
        least: u64,
    },
    /// Another volume's descriptor in the place of the one in use.
    #[error(
        "{path} was replaced while it was in use: it was volume {expected} and is now {found}; it is not served"
    )]
    Replaced {
        /// The volume.
        path: PathBuf,
        /// The volume that was opened.
        expected: VolumeId,
        /// The volume that is there now.
        found: VolumeId,
    },
    /// Another volume than the one that was meant.
    #[error(
        "{path} holds volume {found}, and volume {expected} was expected: another volume was put in its \
         place; put the right one back"
    )]
    OtherVolume {
        /// Where it lies.
        path: PathBuf,
        /// The volume that was meant.
        expected: VolumeId,
        /// The volume that is there.
        found: VolumeId,
    },
    /// A clear volume where an encrypted one was expected.
    #[error("{path} is not encrypted; if that is meant, say so with --unencrypted")]
    NotEncrypted {
        /// The volume.
        path: PathBuf,
    },
    /// An encrypted volume where a clear one was expected.
    #[error("{path} is encrypted; give its {source_name} instead of --unencrypted")]
    Encrypted {
        /// The volume.
        path: PathBuf,
        /// Where its key comes from.
        source_name: &'static str,
    },
    /// A key does not fit.
    #[error("cannot open {path}: {error}")]
    Key {
        /// The volume.
        path: PathBuf,
        /// Why not.
        error: KeyError,
    },
    /// A re-wrap was begun and not finished, and the caller has only one of the two keys.
    #[error(
        "{path} is between two keys: its re-wrap was interrupted, and KEK {missing} (from a {source_name}) is not at hand; finish it first, with the same 'strongroom volume rekey' again"
    )]
    BetweenKeys {
        /// The volume.
        path: PathBuf,
        /// The key that is not at hand.
        missing: KekId,
        /// Where it comes from.
        source_name: String,
    },
    /// The descriptor written under a new key does not read back correctly.
    #[error(
        "{path} was wrapped under a new key, and does not read back under it: {reason}; the old key stays, and opens it"
    )]
    NotRewrapped {
        /// The volume.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A volume that is being re-encrypted, and of which the key at hand does not open all layers.
    #[error(
        "{path} is being re-encrypted, and can be used again when that is done: repeat the command that began it \
         ('strongroom volume rekey --data', 'volume encrypt', 'volume decrypt', or 'vm key rotate --data' for a VM), \
         or end it with 'strongroom volume rekey --data --cancel'"
    )]
    Reencrypting {
        /// The volume.
        path: PathBuf,
    },
    /// A re-encryption to be cancelled, where there is none.
    #[error("{path} is not being re-encrypted: there is nothing to cancel")]
    NotReencrypting {
        /// The volume.
        path: PathBuf,
    },
    /// A re-encryption that cannot be cancelled by leaving it as it is.
    #[error(
        "some layers of {path} are encrypted and others are not, so it cannot stay as it is: go on with \
         'strongroom volume encrypt', or back with 'strongroom volume decrypt'"
    )]
    HalfClear {
        /// The volume.
        path: PathBuf,
    },
    /// A rewritten layer that does not read back, or a job that is not done.
    #[error("{path} is not re-encrypted yet: {reason}; repeat the command to go on, nothing is lost")]
    NotReencrypted {
        /// The volume.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A layer that cannot be rewritten, or not now.
    #[error("a layer of {path} is not taken in the place of the old one: {reason}")]
    NotRewritable {
        /// The volume.
        path: PathBuf,
        /// Why not.
        reason: &'static str,
    },
    /// A marked merge that has to be finished first.
    #[error(
        "layer {layer} of {path} is being merged into the one below it; finish that first, with 'strongroom volume snapshot merge'"
    )]
    UnfinishedMerge {
        /// The volume.
        path: PathBuf,
        /// The upper layer.
        layer: LayerId,
    },
    /// Another process holds it.
    #[error("{path} is in use{}; stop that first", holder.map(|pid| format!(" by process {pid}")).unwrap_or_default())]
    InUse {
        /// The volume.
        path: PathBuf,
        /// The process that holds the lock, if the kernel reports it.
        holder: Option<u32>,
    },
    /// A layer's file is shorter than the volume.
    #[error(
        "layer {layer} of {path} is truncated: it has {found_bytes} bytes instead of {wanted_bytes}; restore it from a backup"
    )]
    Truncated {
        /// The volume.
        path: PathBuf,
        /// The layer.
        layer: LayerId,
        /// The file's length.
        found_bytes: u64,
        /// What the descriptor asks for.
        wanted_bytes: u64,
    },
    /// A layer's file is missing.
    #[error("layer {layer} of {path} is missing; restore it from a backup")]
    MissingLayer {
        /// The volume.
        path: PathBuf,
        /// The layer.
        layer: LayerId,
    },
    /// The first-write log of a layer is missing.
    #[error(
        "the first-write log of layer {layer} of {path} is missing, and with it what was written last; restore it from a backup"
    )]
    MissingLog {
        /// The volume.
        path: PathBuf,
        /// The layer.
        layer: LayerId,
    },
    /// The file of a layer's tags is missing.
    #[error(
        "the tags of layer {layer} of {path} are missing, and without them nothing tells whether its blocks are damaged; restore the volume from a backup"
    )]
    MissingTags {
        /// The volume.
        path: PathBuf,
        /// The layer.
        layer: LayerId,
    },
    /// The file of a layer's tags is too short.
    #[error(
        "the tags of layer {layer} of {path} are truncated: their file has {found_bytes} bytes instead of {wanted_bytes}; restore the volume from a backup"
    )]
    TruncatedTags {
        /// The volume.
        path: PathBuf,
        /// The layer.
        layer: LayerId,
        /// The file's length.
        found_bytes: u64,
        /// What the descriptor asks for.
        wanted_bytes: u64,
    },
    /// The record of a layer's discards is missing.
    #[error(
        "the record of discards of layer {layer} of {path} is missing, and without it what was discarded would come back from the layers below; restore it from a backup"
    )]
    MissingDiscards {
        /// The volume.
        path: PathBuf,
        /// The layer.
        layer: LayerId,
    },
    /// The record of a layer's discards is too short.
    #[error(
        "the record of discards of layer {layer} of {path} is truncated: its file has {found_bytes} bytes instead of {wanted_bytes}; restore it from a backup"
    )]
    TruncatedDiscards {
        /// The volume.
        path: PathBuf,
        /// The layer.
        layer: LayerId,
        /// The file's length.
        found_bytes: u64,
        /// What the descriptor asks for.
        wanted_bytes: u64,
    },
    /// Tags for a clear volume.
    #[error(
        "{path} cannot have tags: they are made with its key, and a volume that is not encrypted has none"
    )]
    NothingToTagWith {
        /// The volume.
        path: PathBuf,
    },
    /// The first-write log of a layer cannot be used.
    #[error("the first-write log of layer {layer} of {path}: {error}; restore it from a backup")]
    Log {
        /// The volume.
        path: PathBuf,
        /// The layer.
        layer: LayerId,
        /// Why not.
        error: LogError,
    },
    /// More layers on each other than a volume can be used with.
    #[error(
        "{path} would have {count} layers on each other; {most} are the most that can be opened. Delete snapshots \
         first, or make a full clone, which has one"
    )]
    LongChain {
        /// The volume.
        path: PathBuf,
        /// How many there would be.
        count: usize,
        /// The most.
        most: usize,
    },
    /// More layers than a volume can have, on all its branches.
    #[error(
        "{path} would have {count} layers; {most} are the most that a volume can have. Delete snapshots first"
    )]
    ManyLayers {
        /// The volume.
        path: PathBuf,
        /// How many there would be.
        count: usize,
        /// The most.
        most: usize,
    },
    /// More snapshots than a volume can have.
    #[error("{path} has {most} snapshots, which is the most that a volume can have; delete one first")]
    ManySnapshots {
        /// The volume.
        path: PathBuf,
        /// The most.
        most: usize,
    },
    /// A layer's file that other volumes have too, and that would be written to.
    #[error(
        "layer {layer} of {path} has files with {names} names: other volumes, such as linked clones, have them \
         too, so they are not written to. Delete those first; nothing else may link to a volume's files"
    )]
    Shared {
        /// The volume.
        path: PathBuf,
        /// The layer.
        layer: LayerId,
        /// How many names a file of it has.
        names: u64,
    },
    /// A linked clone whose origin is elsewhere, or has no room for another one.
    #[error("{path} cannot be a linked clone of {origin}: {reason}; make a full clone")]
    NotLinkable {
        /// The clone.
        path: PathBuf,
        /// The volume that it would be a clone of.
        origin: PathBuf,
        /// Why not.
        reason: &'static str,
    },
    /// A snapshot that already exists.
    #[error("{path} has a snapshot '{name}' already; choose another name, or delete that one first")]
    SnapshotExists {
        /// The volume.
        path: PathBuf,
        /// The name.
        name: SnapshotName,
    },
    /// A snapshot that the volume does not have.
    #[error("{path} has no snapshot '{snapshot}'")]
    NoSnapshot {
        /// The volume.
        path: PathBuf,
        /// The name or id that was asked for.
        snapshot: String,
    },
    /// A volume with a mark of another snapshot of several volumes.
    #[error(
        "{path} has a part of the snapshot {name} of several volumes, which is not over yet; \
         `strongroom volume snapshot list {path}` says what it waits for"
    )]
    OtherGroup {
        /// The volume.
        path: PathBuf,
        /// That snapshot.
        name: SnapshotName,
    },
    /// A volume with the record of a group that another volume has not read.
    #[error(
        "{path} has the record that the snapshot {name} of several volumes was made, and {reason}: expose that \
         volume once, or run `strongroom volume snapshot merge` on it, and try again"
    )]
    UnreadGroup {
        /// The volume.
        path: PathBuf,
        /// The snapshot.
        name: SnapshotName,
        /// Which volume needs it.
        reason: String,
    },
    /// A layer below the top whose last writes have not reached its file yet.
    #[error(
        "layer {layer} of {path} is not complete yet: a snapshot was made while the volume was in use, and what was written last is still on its \
         way to the layer; expose the volume once and end that in order, then try again"
    )]
    NotClosed {
        /// The volume.
        path: PathBuf,
        /// The layer.
        layer: LayerId,
    },
    /// A snapshot of which layers are being merged.
    #[error(
        "layers of {path} are being merged, and the snapshot cannot be read meanwhile; try again when they are"
    )]
    Merging {
        /// The volume.
        path: PathBuf,
    },
    /// Layers that are not to be merged, or not now.
    #[error("the layers of {path} cannot be merged now: {reason}")]
    NotMergeable {
        /// The volume.
        path: PathBuf,
        /// Why not.
        reason: &'static str,
    },
    /// A layer that needs its log to be complete, so no layer can be put on it.
    #[error(
        "the first-write log of layer {layer} of {path} was not closed empty, so another layer cannot be put on it yet; expose the volume once and end that in order, then try again"
    )]
    LogNotEmpty {
        /// The volume.
        path: PathBuf,
        /// The layer.
        layer: LayerId,
    },
    /// Tags that were not closed in order.
    #[error(
        "the tags of layer {layer} of {path} were not closed in order, so another layer cannot be put on it yet; expose the volume once and end that in order, then try again"
    )]
    TagsNotSettled {
        /// The volume.
        path: PathBuf,
        /// The layer.
        layer: LayerId,
    },
    /// Tags that cannot be read.
    #[error("the tags of layer {layer} of {path} cannot be read: {error}")]
    UnreadableTags {
        /// The volume.
        path: PathBuf,
        /// The layer.
        layer: LayerId,
        /// Why not.
        error: IoError,
    },
    /// A new tags file that cannot be initialised.
    #[error("the tags of layer {layer} of {path} cannot be prepared: {error}")]
    UnwrittenTags {
        /// The volume.
        path: PathBuf,
        /// The layer.
        layer: LayerId,
        /// Why not.
        error: IoError,
    },
    /// A record of discards that cannot be made durable.
    #[error("the record of discards of layer {layer} of {path} cannot be made durable: {error}")]
    UnwrittenDiscards {
        /// The volume.
        path: PathBuf,
        /// The layer.
        layer: LayerId,
        /// Why not.
        error: IoError,
    },
    /// A map of content that cannot be answered.
    #[error("{path} has no map like that: {reason}")]
    BadRange {
        /// The volume.
        path: PathBuf,
        /// Why not, and what is possible.
        reason: String,
    },
    /// The maps of a layer's content cannot be read.
    #[error("where {path} has content cannot be read: {error}")]
    UnreadableMap {
        /// The volume.
        path: PathBuf,
        /// Why not.
        error: IoError,
    },
    /// A volume whose descriptor is replaced again and again.
    #[error("the layers of {path} were changed while they were read; try again in a moment")]
    KeepsChanging {
        /// The volume.
        path: PathBuf,
    },
    /// A size below the present one.
    #[error(
        "{path} has {from} and cannot shrink to {to}: what lies beyond would be lost; name a larger size"
    )]
    Shrink {
        /// The volume.
        path: PathBuf,
        /// Its size.
        from: VolumeSize,
        /// The size asked for.
        to: VolumeSize,
    },
    /// A directory with files that do not belong to a volume.
    #[error("{path} holds '{stranger}', which is not a part of a volume; nothing was deleted")]
    Stranger {
        /// The volume.
        path: PathBuf,
        /// The file's name.
        stranger: String,
    },
    /// A copy that does not read back as what was copied.
    #[error(
        "{path} does not read back as what was written: layer {layer} differs; the volume is where it was: \
         examine the disk of that datastore, or choose another one"
    )]
    NotRelocated {
        /// Where the volume was to be.
        path: PathBuf,
        /// The layer.
        layer: LayerId,
    },
    /// A volume that does not arrive from another host.
    #[error(
        "the volume does not arrive at {path}: {reason}; it is where it was: move it again, which goes on with \
         what has arrived"
    )]
    NotReceived {
        /// Where the volume was to be.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A copy that is not complete.
    #[error("not all layers of the volume are at {path} yet; copy the rest first")]
    NotCopied {
        /// Where the volume is to be.
        path: PathBuf,
    },
    /// A volume that lies at two places.
    #[error(
        "{path} and {other} are both volume {volume}: a move was interrupted when the copy was complete, and \
         nothing says which of them was used since; delete the one that is not needed"
    )]
    TwoPlaces {
        /// Where it was.
        path: PathBuf,
        /// Where it was moved to.
        other: PathBuf,
        /// The volume.
        volume: VolumeId,
    },
    /// A read-only volume that was opened for writing.
    #[error("{path} can only be read: {errno}; make its datastore writable, or open it read-only")]
    ReadOnly {
        /// The volume.
        path: PathBuf,
        /// What the kernel said.
        errno: rustix::io::Errno,
    },
}

impl DatastoreError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotAVolume { .. } => "not_a_volume",
            Self::Link { .. } => "link",
            Self::BadName { .. } => "bad_name",
            Self::Exists { .. } => "exists",
            Self::UnknownMark { .. } => "unknown_mark",
            Self::System { .. } => "system",
            Self::NotMounted { .. } => "not_mounted",
            Self::Full { .. } => "full",
            Self::FileTooLarge { .. } => "file_too_large",
            Self::FileSystem { .. } => "file_system",
            Self::ThinOnly { .. } => "thin_only",
            Self::Damaged { .. } => "damaged",
            Self::NotAuthentic { .. } => "not_authentic",
            Self::NewerFormat { .. } => "newer_format",
            Self::RolledBack { .. } => "rolled_back",
            Self::Replaced { .. } => "replaced",
            Self::OtherVolume { .. } => "other_volume",
            Self::NotEncrypted { .. } => "not_encrypted",
            Self::Encrypted { .. } => "encrypted",
            Self::Key { error, .. } => error.code(),
            Self::BetweenKeys { .. } => "between_keys",
            Self::NotRewrapped { .. } => "not_rewrapped",
            Self::Reencrypting { .. } => "reencrypting",
            Self::NotReencrypting { .. } => "not_reencrypting",
            Self::HalfClear { .. } => "half_clear",
            Self::NotReencrypted { .. } => "not_reencrypted",
            Self::NotRewritable { .. } => "not_rewritable",
            Self::UnfinishedMerge { .. } => "unfinished_merge",
            Self::InUse { .. } => "in_use",
            Self::Truncated { .. } => "truncated",
            Self::MissingLayer { .. } => "missing_layer",
            Self::MissingLog { .. } => "missing_log",
            Self::Log { .. } => "log",
            Self::MissingTags { .. } => "missing_tags",
            Self::TruncatedTags { .. } => "truncated_tags",
            Self::NothingToTagWith { .. } => "nothing_to_tag_with",
            Self::MissingDiscards { .. } => "missing_discards",
            Self::TruncatedDiscards { .. } => "truncated_discards",
            Self::LongChain { .. } => "long_chain",
            Self::ManyLayers { .. } => "many_layers",
            Self::ManySnapshots { .. } => "many_snapshots",
            Self::Shared { .. } => "shared",
            Self::NotLinkable { .. } => "not_linkable",
            Self::SnapshotExists { .. } => "snapshot_exists",
            Self::NoSnapshot { .. } => "no_snapshot",
            Self::OtherGroup { .. } => "other_group",
            Self::UnreadGroup { .. } => "unread_group",
            Self::NotClosed { .. } => "not_closed",
            Self::Merging { .. } => "merging",
            Self::NotMergeable { .. } => "not_mergeable",
            Self::LogNotEmpty { .. } => "log_not_empty",
            Self::TagsNotSettled { .. } => "tags_not_settled",
            Self::UnreadableTags { .. } => "unreadable_tags",
            Self::UnwrittenTags { .. } => "unwritten_tags",
            Self::UnwrittenDiscards { .. } => "unwritten_discards",
            Self::BadRange { .. } => "bad_range",
            Self::UnreadableMap { .. } => "unreadable_map",
            Self::KeepsChanging { .. } => "keeps_changing",
            Self::Shrink { .. } => "shrink",
            Self::Stranger { .. } => "stranger",
            Self::NotRelocated { .. } => "not_relocated",
            Self::NotReceived { .. } => "not_received",
            Self::NotCopied { .. } => "not_copied",
            Self::TwoPlaces { .. } => "two_places",
            Self::ReadOnly { .. } => "read_only",
        }
    }
}
