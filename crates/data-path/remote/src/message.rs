//! The requests over a socket, and their answers. Data of a read or write follows the message in
//! its packet.

use std::path::PathBuf;

use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use strongroom_datastore::file::{FileSystem, FileSystemKind};
use strongroom_types::Redundancy;
use strongroom_wire::Formats;
use uuid::Uuid;

/// Format 1 is the first.
pub(crate) const FORMATS: Formats = Formats { oldest: 1, newest: 1 };

/// The most bytes of a packet: below a socket's default limit (`net.core.wmem_default`).
pub(crate) const PACKET_BYTES_MAX: usize = 128 << 10;

/// The most bytes of data of a packet.
pub(crate) const DATA_BYTES_MAX: usize = 64 << 10;

/// The most bytes of names in an answer.
pub(crate) const NAMES_BYTES_MAX: usize = 32 << 10;

/// The flags with which a file may be opened.
pub(crate) const OPEN_FLAGS: OFlags = OFlags::RDWR
    .union(OFlags::WRONLY)
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::TRUNC)
    .union(OFlags::DIRECT);

/// A request. Each kind of object answers its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ask {
    // The storage.
    OpenDirectory {
        path: PathBuf,
    },
    OpenVolume {
        path: PathBuf,
    },
    MakeDirectory {
        path: PathBuf,
    },
    RemoveDirectory {
        path: PathBuf,
    },
    RenamePath {
        from: PathBuf,
        to: PathBuf,
    },
    Exists {
        path: PathBuf,
    },
    IsDirectory {
        path: PathBuf,
    },
    // A directory.
    FileSystem,
    Open {
        name: String,
        flags: u32,
    },
    /// The names after this one, as many as fit.
    Names {
        after: Option<String>,
    },
    Rename {
        from: String,
        to: String,
    },
    Remove {
        name: String,
    },
    /// Gives an open file of another directory its name here. It is named by its token, which only
    /// somebody who has its socket knows.
    Link {
        name: String,
        file: Uuid,
    },
    AllocatedBytes {
        name: String,
    },
    LinkCountOf {
        name: String,
    },
    SyncNames,
    SyncFileSystem,
    // A directory or file.
    TryLock {
        exclusive: bool,
    },
    LockHolder,
    // A file.
    Identify,
    Length,
    LinkCount,
    SetLength {
        bytes: u64,
    },
    Allocate {
        offset: u64,
        bytes: u64,
    },
    ReadAt {
        offset: u64,
        bytes: usize,
    },
    /// The data follows.
    WriteAt {
        offset: u64,
    },
    BeginSync {
        offset: u64,
        bytes: u64,
    },
    Sync,
    NextData {
        at: u64,
    },
    NextHole {
        at: u64,
    },
    /// Another socket of the same open file.
    Share,
    /// A lane for a thread of the client. Files: the ring's words, the pool's chunks, and the
    /// eventfd that wakes the thread.
    OpenLane {
        layout: u32,
    },
    /// Makes the file usable on a lane.
    Attach {
        lane: Uuid,
    },
    // A lane.
    Detach {
        file: u32,
    },
}

impl Ask {
    /// Whether it can be repeated if it is unknown whether it was done.
    pub(crate) fn is_repeatable(&self) -> bool {
        match self {
            Self::OpenDirectory { .. }
            | Self::OpenVolume { .. }
            | Self::Exists { .. }
            | Self::IsDirectory { .. }
            | Self::FileSystem
            | Self::Names { .. }
            | Self::AllocatedBytes { .. }
            | Self::LinkCountOf { .. }
            | Self::SyncNames
            | Self::SyncFileSystem
            | Self::TryLock { .. }
            | Self::LockHolder
            | Self::Identify
            | Self::Length
            | Self::LinkCount
            | Self::ReadAt { .. }
            | Self::BeginSync { .. }
            | Self::NextData { .. }
            | Self::NextHole { .. } => true,
            Self::Open { flags, .. } => !OFlags::from_bits_retain(*flags).contains(OFlags::EXCL),
            Self::MakeDirectory { .. }
            | Self::RemoveDirectory { .. }
            | Self::RenamePath { .. }
            | Self::Rename { .. }
            | Self::Remove { .. }
            | Self::Link { .. }
            | Self::SetLength { .. }
            | Self::Allocate { .. }
            | Self::WriteAt { .. }
            | Self::Sync
            | Self::Share
            | Self::OpenLane { .. }
            | Self::Attach { .. }
            | Self::Detach { .. } => false,
        }
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Done,
    /// The number of the error.
    Failed(i32),
    Number(u64),
    Truth(bool),
    Holder(Option<u32>),
    Names {
        names: Vec<String>,
        is_all: bool,
    },
    FileSystem(FileSystemFacts),
    /// A directory, file or lane was opened. Its socket is attached; of a lane also the eventfd
    /// that wakes the server.
    Opened {
        token: Uuid,
    },
    Identity {
        server: Uuid,
        token: Uuid,
    },
    /// The file's number on the lane.
    Attached {
        file: u32,
    },
    /// The data follows.
    Data,
}

impl Answer {
    pub(crate) fn failed(errno: Errno) -> Self {
        Self::Failed(errno.raw_os_error())
    }

    /// The answer, or the error that it is.
    pub(crate) fn into_result(self) -> Result<Self, Errno> {
        match self {
            // An error number of another process may be anything.
            Self::Failed(number) if (1..4096).contains(&number) => Err(Errno::from_raw_os_error(number)),
            Self::Failed(_) => Err(Errno::IO),
            answer => Ok(answer),
        }
    }
}

/// [`FileSystem`] in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileSystemFacts {
    kind: Kind,
    fill_bytes_min: Option<u64>,
    writes_whole_blocks: bool,
    reserves_space: bool,
    syncs_in_turn: bool,
    total_bytes: u64,
    available_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    redundancy: Option<Redundancy>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Ext4,
    Xfs,
    Btrfs,
    Tmpfs,
    Ceph,
}

impl From<FileSystem> for FileSystemFacts {
    fn from(file_system: FileSystem) -> Self {
        Self {
            kind: match file_system.kind {
                FileSystemKind::Ext4 => Kind::Ext4,
                FileSystemKind::Xfs => Kind::Xfs,
                FileSystemKind::Btrfs => Kind::Btrfs,
                FileSystemKind::Tmpfs => Kind::Tmpfs,
                FileSystemKind::Ceph => Kind::Ceph,
            },
            fill_bytes_min: file_system.fill_bytes_min,
            writes_whole_blocks: file_system.writes_whole_blocks,
            reserves_space: file_system.reserves_space,
            syncs_in_turn: file_system.syncs_in_turn,
            total_bytes: file_system.total_bytes,
            available_bytes: file_system.available_bytes,
            redundancy: file_system.redundancy,
        }
    }
}

impl From<FileSystemFacts> for FileSystem {
    fn from(facts: FileSystemFacts) -> Self {
        Self {
            kind: match facts.kind {
                Kind::Ext4 => FileSystemKind::Ext4,
                Kind::Xfs => FileSystemKind::Xfs,
                Kind::Btrfs => FileSystemKind::Btrfs,
                Kind::Tmpfs => FileSystemKind::Tmpfs,
                Kind::Ceph => FileSystemKind::Ceph,
            },
            fill_bytes_min: facts.fill_bytes_min,
            writes_whole_blocks: facts.writes_whole_blocks,
            reserves_space: facts.reserves_space,
            syncs_in_turn: facts.syncs_in_turn,
            total_bytes: facts.total_bytes,
            available_bytes: facts.available_bytes,
            redundancy: facts.redundancy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<M: for<'de> Deserialize<'de>>(text: &str) -> M {
        serde_json::from_str(text).unwrap()
    }

    /// What a worker of the next release may send to a server of this one must stay readable.
    #[test]
    fn messages_of_format_1_are_read() {
        let token = "00000000-0000-4000-8000-000000000001";
        let id: Uuid = token.parse().unwrap();
        for (text, ask) in [
            (r#"{"open_directory":{"path":"vm1"}}"#, Ask::OpenDirectory { path: "vm1".into() }),
            (r#"{"open":{"name":"layer","flags":2}}"#, Ask::Open { name: "layer".to_owned(), flags: 2 }),
            (r#""length""#, Ask::Length),
            (r#"{"read_at":{"offset":4096,"bytes":512}}"#, Ask::ReadAt { offset: 4096, bytes: 512 }),
            (r#"{"write_at":{"offset":4096}}"#, Ask::WriteAt { offset: 4096 }),
            (r#"{"try_lock":{"exclusive":true}}"#, Ask::TryLock { exclusive: true }),
            (r#""share""#, Ask::Share),
            (r#""identify""#, Ask::Identify),
            (r#"{"open_lane":{"layout":1}}"#, Ask::OpenLane { layout: 1 }),
            (r#"{"detach":{"file":3}}"#, Ask::Detach { file: 3 }),
        ] {
            assert_eq!(read::<Ask>(text), ask);
        }
        assert_eq!(read::<Ask>(&format!(r#"{{"attach":{{"lane":"{token}"}}}}"#)), Ask::Attach { lane: id });
        for (text, answer) in [
            (r#""done""#, Answer::Done),
            (r#"{"failed":2}"#, Answer::Failed(2)),
            (r#"{"number":4096}"#, Answer::Number(4096)),
            (r#""data""#, Answer::Data),
            (r#"{"attached":{"file":3}}"#, Answer::Attached { file: 3 }),
        ] {
            assert_eq!(read::<Answer>(text), answer);
        }
        let identity = format!(r#"{{"identity":{{"server":"{token}","token":"{token}"}}}}"#);
        assert_eq!(read::<Answer>(&identity), Answer::Identity { server: id, token: id });
    }

    #[test]
    fn an_error_of_another_process_is_an_error_whatever_its_number() {
        assert_eq!(Answer::Failed(2).into_result(), Err(Errno::NOENT));
        for number in [0, -2, i32::MIN, i32::MAX, 4096] {
            assert_eq!(Answer::Failed(number).into_result(), Err(Errno::IO), "{number}");
        }
    }
}
