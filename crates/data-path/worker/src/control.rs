//! The protocol between other commands and the supervisor of an exposed volume: over a socket in
//! the volume's directory, which its owner and root can use.
//!
//! A client sends one line of JSON and gets one back. No line has a key: the supervisor has the
//! volume's key; a new one is named, to be fetched by the supervisor, or comes in a pipe whose
//! reading end is sent with the line.

mod group;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use serde::{Deserialize, Serialize};
use strongroom_datastore::file::storage::CLUSTERS;
use strongroom_datastore::file::{CONTROL_SOCKET, Decision, GroupTerms, LayerRecord, NewTags};
use strongroom_keys::{KekSource, LeaseStatus, ProviderKeyId, ProviderName};
use strongroom_statistics::Snapshot;
use strongroom_types::{KekId, LayerId, SnapshotId, SnapshotName, VolumeSize};
use strongroom_wire::Formats;
use thiserror::Error;

pub use self::group::{
    FrozenGroup, GroupError, GroupRecord, GroupVolume, GroupedSnapshot, PreparedGroup, SnapshotGroup,
    resolve_exposed,
};
use crate::condition::Condition;
use crate::pace::Throttle;

/// The format of requests and answers. Another format is refused with an error that has both
/// numbers.
const FORMATS: Formats = Formats { oldest: 1, newest: 1 };

/// The longest line, far above any request or answer.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// The deadline of an answer about the volume. It comes at once, unless the volume is being resized
/// or upgraded just now.
const TOLD_WITHIN: Duration = Duration::from_secs(1);

/// The longest that a volume is frozen for a snapshot, whatever lease is requested. Guests give up
/// a request after 30 s at the earliest.
pub const FREEZE_LEASE_MAX: Duration = Duration::from_secs(10);

/// How long the answer to a snapshot, or to its deletion, may take: what was written before is made
/// durable, on a slow disk.
pub const SNAPSHOT_WITHIN: Duration = Duration::from_secs(600);

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Get the status.
    Status,
    /// Get the statistics of client requests.
    Statistics,
    /// Make the volume larger.
    Resize {
        /// The new size.
        size_bytes: VolumeSize,
        /// The least generation that the caller knows to exist.
        least_generation: u64,
    },
    /// Replace the worker by one of the program that is installed now.
    Upgrade,
    /// Create a snapshot. It is answered when the snapshot is durable.
    Snapshot {
        /// Its id.
        id: SnapshotId,
        /// What people call it.
        name: SnapshotName,
        /// The least generation that the caller knows to exist.
        least_generation: u64,
    },
    /// Prepare a snapshot that is made together with those of other volumes. Clients are still
    /// served.
    PrepareSnapshot {
        /// Its id, the same in each of the volumes.
        id: SnapshotId,
        /// Its name.
        name: SnapshotName,
        /// The least generation that the caller knows to exist.
        least_generation: u64,
    },
    /// As `PrepareSnapshot`, for a snapshot that no control plane knows: it exists in all of the
    /// volumes when the first one's descriptor says so. When its layer is durable, the volume has a
    /// part, which the decision makes a snapshot.
    PreparePart {
        /// Its id, the same in each of the volumes.
        id: SnapshotId,
        /// Its name.
        name: SnapshotName,
        /// The least generation that the caller knows to exist.
        least_generation: u64,
        /// The group.
        terms: GroupTerms,
    },
    /// Freeze the volume for a prepared snapshot: from the answer on no write is done, until the
    /// snapshot is committed or abandoned, or the lease is over.
    FreezeForSnapshot {
        /// The snapshot.
        id: SnapshotId,
        /// The lease in milliseconds, at most [`FREEZE_LEASE_MAX`].
        lease_ms: u64,
    },
    /// Make the snapshot for which the volume is frozen. It is answered when the snapshot is
    /// durable, and refused with `not_frozen` when the lease is over.
    CommitSnapshot {
        /// The snapshot.
        id: SnapshotId,
    },
    /// Make the volume's part a snapshot. May be repeated.
    DecideSnapshot {
        /// The snapshot.
        id: SnapshotId,
        /// What proves that it exists.
        decision: Decision,
    },
    /// Remove the record that the snapshot was made: all volumes of the group know it.
    EndSnapshotGroup {
        /// The snapshot.
        id: SnapshotId,
    },
    /// Abandon a prepared snapshot, or a part that is not decided. Clients are served again.
    AbandonSnapshot {
        /// The snapshot.
        id: SnapshotId,
    },
    /// Delete a snapshot.
    DeleteSnapshot {
        /// Its name.
        name: SnapshotName,
        /// The least generation that the caller knows to exist.
        least_generation: u64,
    },
    /// Merge layers that no snapshot needs, in the background, or pause that.
    Merge {
        /// What is to be done.
        act: MergeAct,
        /// The least generation that the caller knows to exist.
        least_generation: u64,
    },
    /// Do a step of a re-encryption, whose layers the caller rewrites.
    Reencrypt {
        /// The step.
        act: ReencryptAct,
        /// The least generation that the caller knows to exist.
        least_generation: u64,
    },
    /// Put a new top on a layer, if that takes the writes, so that it can be copied. Asked again,
    /// it tells whether the layer is complete.
    NewTop {
        /// The layer.
        over: LayerId,
        /// The least generation that the caller knows to exist.
        least_generation: u64,
    },
    /// Move the volume to another KEK. It comes in a pipe, whose reading end is sent with the line;
    /// without a pipe it is fetched from its provider.
    Rewrap {
        /// The new KEK.
        to: NewKek,
        /// The least generation that the caller knows to exist.
        least_generation: u64,
    },
}

/// What is asked of the merging of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MergeAct {
    /// Begin, or go on.
    Start {
        /// How it shares the machine with the clients.
        #[serde(flatten)]
        throttle: Throttle,
    },
    /// Wait until it is started again, or the volume is exposed again. What is copied stays.
    Pause,
}

/// A step of a re-encryption.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReencryptAct {
    /// Mark the volume, and put a new top on it. Asked again, it tells whether its layers can be
    /// rewritten.
    Begin,
    /// The same, under another KEK, which comes in a pipe with the line. Old DEKs stay under the
    /// present one alone.
    BeginUnder {
        /// The new KEK.
        to: NewKek,
    },
    /// As `Begin`, with other tags, or for a volume that gets or loses its encryption.
    BeginAs {
        /// What the volume becomes.
        becomes: Becomes,
        /// How the rewritten layers are tagged.
        tags: NewTags,
    },
    /// Put a rewritten layer in the place of the old one.
    Replace {
        /// The old layer.
        old: LayerId,
        /// The new one, with its DEK in an envelope under the KEK of new DEKs.
        new: Box<LayerRecord>,
    },
    /// Remove the mark: all layers are done.
    Finish,
    /// Remove the mark: the volume stays under the KEK of the old DEKs, with the new ones that it
    /// has. No layer is being rewritten any more.
    Cancel,
}

/// What a volume becomes that is re-encrypted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Becomes {
    /// Encrypted under the KEK that it has.
    Kept,
    /// Encrypted under another KEK, which comes in a pipe with the line.
    Under(NewKek),
    /// Encrypted for the first time, under this KEK, which comes in a pipe with the line. A volume
    /// that is being decrypted goes back.
    Encrypted(NewKek),
    /// Clear. A volume that is being encrypted goes back.
    Clear {
        /// The KEK that the caller has: under another one, which the volume has moved to meanwhile,
        /// the caller could not go on.
        under: KekId,
    },
}

/// The id and source of a new KEK. Nothing here is secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewKek {
    /// Its id: another key is refused.
    pub id: KekId,
    /// Where it comes from.
    pub source: KekSource,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The answer to a request for the status.
    Status(Box<Status>),
    /// The answer to a request for the statistics.
    Statistics(Box<Snapshot>),
    /// The volume has the new size.
    Resized {
        /// The old size.
        old_size_bytes: VolumeSize,
        /// The new size.
        size_bytes: VolumeSize,
        /// The descriptor's generation now.
        generation: u64,
    },
    /// Another worker serves the volume.
    Upgraded {
        /// The worker before.
        old_worker_pid: u32,
        /// The worker now.
        worker_pid: u32,
        /// The version of its program.
        program: String,
        /// How long the volume was not served, in microseconds.
        stall_microseconds: u64,
    },
    /// The snapshot exists and is durable.
    Snapshotted {
        /// Its id.
        snapshot: SnapshotId,
        /// The descriptor's generation now.
        generation: u64,
        /// How long the volume was not served, in microseconds.
        stall_microseconds: u64,
    },
    /// The snapshot is prepared.
    SnapshotPrepared,
    /// The volume is frozen.
    Frozen,
    /// The snapshot exists, or its group has ended.
    SnapshotDecided {
        /// The descriptor's generation now.
        generation: u64,
    },
    /// The snapshot is not, or no longer, prepared.
    SnapshotAbandoned,
    /// The snapshot was deleted.
    SnapshotDeleted {
        /// The descriptor's generation now.
        generation: u64,
        /// Whether layers are left to be merged.
        layers_to_merge: bool,
        /// Whether they are merged now, in the background. A former program only merges layers of
        /// volumes that nobody exposes.
        #[serde(default)]
        is_merging: bool,
    },
    /// Layers are merged from now on, or the merge pauses.
    Merging(MergeStatus),
    /// There are no layers to merge.
    NothingToMerge,
    /// The volume is being re-encrypted.
    Reencrypting {
        /// Whether its layers can be rewritten: the top has a new key, and those below are
        /// complete.
        is_ready: bool,
        /// The descriptor's generation now.
        generation: u64,
    },
    /// The volume is re-encrypted, or that was cancelled.
    Reencrypted {
        /// The descriptor's generation now.
        generation: u64,
    },
    /// Another layer takes the writes.
    NewTop {
        /// Whether the layers below it are complete.
        is_ready: bool,
        /// The descriptor's generation now.
        generation: u64,
    },
    /// The volume is under another KEK.
    Rewrapped {
        /// The KEK before.
        old_kek: KekId,
        /// The KEK now.
        kek: KekId,
        /// The descriptor's generation now.
        generation: u64,
    },
    /// The request was refused or failed.
    Refused {
        /// A stable name for programs.
        code: String,
        /// Why, as a sentence.
        message: String,
    },
}

/// The status of an exposed volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The process that owns the volume.
    pub supervisor_pid: u32,
    /// The process that serves it; `None` while another is being started.
    pub worker_pid: Option<u32>,
    /// The version of the worker's program.
    pub program: Option<String>,
    /// What clients speak: `nbd` or `vhost_user`.
    pub frontend: String,
    /// Where they connect: a socket's path, or an address.
    pub address: String,
    /// How often a worker died and was replaced.
    pub restarts: u64,
    /// How the last worker that died ended, as in `was killed by signal 9`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_end: Option<String>,
    /// The volume's condition.
    #[serde(default)]
    pub condition: Condition,
    /// The status of its KEK; `None` if no provider keeps it.
    #[serde(default)]
    pub key: Option<Box<KeyStatus>>,
    /// The merge of two of its layers; none if none is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merge: Option<Box<MergeStatus>>,
}

/// How far the merge of two layers of an exposed volume has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeStatus {
    /// Whether it goes on.
    pub state: MergeProgress,
    /// How much of the upper layer is behind.
    pub copied_bytes: u64,
    /// The upper layer's size.
    pub total_bytes: u64,
    /// How long it takes at the speed that it has had, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
    /// Why it waits, or has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Whether a merge goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MergeProgress {
    /// It goes on.
    Running,
    /// Somebody has paused it.
    Paused,
    /// It is tried again by itself.
    Waiting,
    /// It does not go on before it is started again, or the volume is exposed again.
    Failed,
}

/// The status of a provider's KEK of an exposed volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyStatus {
    /// The provider.
    pub provider: ProviderName,
    /// Its name for the key.
    pub key: ProviderKeyId,
    /// Whether it is held, and since when.
    #[serde(flatten)]
    pub lease: LeaseStatus,
}

#[derive(Serialize, Deserialize)]
struct Line<T> {
    format: u32,
    #[serde(flatten)]
    content: T,
}

#[derive(Serialize, Deserialize)]
struct Requested {
    request: Request,
}

#[derive(Serialize, Deserialize)]
struct Answered {
    answer: Answer,
}

/// The reasons why a request to a supervisor fails.
#[derive(Debug, Error)]
pub enum ControlError {
    /// The socket cannot be used.
    #[error("cannot reach the process that exposes {path}: {error}")]
    Socket {
        /// The volume.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// The process that listens in the volume's directory is not the volume's supervisor.
    #[error("{path} is served by {found}, which is not its supervisor; nothing was sent to it")]
    Stranger {
        /// The volume.
        path: PathBuf,
        /// The process.
        found: String,
    },
    /// There is no answer, or an invalid one.
    #[error("the process that exposes {path} does not answer as it should: {reason}")]
    Answer {
        /// The volume.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The supervisor refuses.
    #[error("{message}")]
    Refused {
        /// A stable name for programs.
        code: String,
        /// Why, as a sentence.
        message: String,
    },
}

impl ControlError {
    /// The error for an answer that is not the expected one.
    pub fn of_answer(path: &Path, answer: Answer) -> Self {
        match answer {
            Answer::Refused { code, message } => Self::Refused { code, message },
            other => Self::Answer { path: path.to_owned(), reason: format!("{other:?}") },
        }
    }

    /// A stable name for programs.
    pub fn code(&self) -> &str {
        match self {
            Self::Socket { .. } | Self::Answer { .. } => "control",
            Self::Stranger { .. } => "stranger",
            Self::Refused { code, .. } => code,
        }
    }
}

/// The processes that may answer as a volume's supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A process of root, or of this process's user.
    Trusted,
    /// A thread of this process.
    ThisProcess,
}

/// A connection to the supervisor of a volume.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    path: PathBuf,
}

impl Client {
    /// Connects to the process that exposes the volume at `path`; `None` if none does. The socket
    /// of a dead process does not count.
    ///
    /// # Errors
    /// [`ControlError::Stranger`] if it runs as a user other than this process's and root.
    pub fn connect(path: &Path) -> Result<Option<Self>, ControlError> {
        Self::connect_to(path, Peer::Trusted)
    }

    /// As [`connect`](Self::connect), to this supervisor.
    ///
    /// # Errors
    /// [`ControlError::Stranger`] if another process listens in its place.
    pub fn connect_to(path: &Path, wanted: Peer) -> Result<Option<Self>, ControlError> {
        let failed = |errno: Errno| ControlError::Socket { path: path.to_owned(), error: errno.into() };
        let stream = match connect(path) {
            Ok(stream) => stream,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::CONNREFUSED) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        };
        // The process that listens: the directory's owner can put a socket of his own there.
        let peer = sockopt::socket_peercred(&stream).map_err(failed)?;
        let is_meant = match wanted {
            Peer::Trusted => peer.uid.is_root() || peer.uid == rustix::process::geteuid(),
            Peer::ThisProcess => peer.pid == rustix::process::getpid(),
        };
        match is_meant {
            true => Ok(Some(Self { stream: stream.into(), path: path.to_owned() })),
            false => Err(ControlError::Stranger {
                path: path.to_owned(),
                found: format!("process {} of user {}", peer.pid.as_raw_nonzero(), peer.uid.as_raw()),
            }),
        }
    }

    /// Sends a request, and waits at most `deadline` for the answer.
    pub fn ask(self, request: Request, deadline: Duration) -> Result<Answer, ControlError> {
        self.ask_with(request, None, deadline)
    }

    /// As [`Self::ask`], with a file attached to the request.
    pub fn ask_with(
        self,
        request: Request,
        file: Option<BorrowedFd<'_>>,
        deadline: Duration,
    ) -> Result<Answer, ControlError> {
        let Self { mut stream, path } = self;
        let wrong = |reason: String| ControlError::Answer { path: path.clone(), reason };
        let line = write_request(&request);
        let mut answer = String::new();
        let mut talk = || {
            stream.set_read_timeout(Some(deadline))?;
            stream.set_write_timeout(Some(deadline))?;
            let sent = strongroom_wire::send(&stream, &line, file.as_slice(), SendFlags::empty())?;
            stream.write_all(&line[sent..])?;
            BufReader::new((&stream).take(LINE_BYTES_MAX as u64)).read_line(&mut answer)
        };
        match talk() {
            Ok(0) => Err(wrong("it hung up".to_owned())),
            Ok(_) => read_answer(&answer).map_err(wrong),
            Err(error) => Err(ControlError::Socket { path: path.clone(), error }),
        }
    }
}

/// Asks the process that exposes the volume for its status; `None` if there is none, or no answer.
pub fn status_of(path: &Path) -> Option<Status> {
    match Client::connect(path).ok()??.ask(Request::Status, TOLD_WITHIN) {
        Ok(Answer::Status(status)) => Some(*status),
        _ => None,
    }
}

/// Asks the process that exposes the volume for the statistics of its clients; `None` from a
/// program that does not count.
pub fn statistics_of(path: &Path, supervisor: Peer) -> Option<Snapshot> {
    match Client::connect_to(path, supervisor).ok()??.ask(Request::Statistics, TOLD_WITHIN) {
        Ok(Answer::Statistics(snapshot)) => Some(*snapshot),
        _ => None,
    }
}

/// Where this process has the control sockets of volumes on clusters.
static SOCKETS_OF_CLUSTERS: OnceLock<PathBuf> = OnceLock::new();

/// Has the control sockets of volumes on clusters, whose own directories can have none, below this
/// directory of the host. A process has one such directory, and nobody else serves volumes there.
pub fn keep_sockets_of_clusters_in(directory: &Path) {
    // A second call would only repeat the first one.
    let _ = SOCKETS_OF_CLUSTERS.set(directory.to_owned());
}

/// The directory of a volume's control socket: the volume's own, unless it is on a cluster.
pub(crate) fn directory_of_socket(volume: &Path) -> PathBuf {
    match (volume.strip_prefix(CLUSTERS), SOCKETS_OF_CLUSTERS.get()) {
        (Ok(below), Some(sockets)) => sockets.join(below),
        _ => volume.to_owned(),
    }
}

fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(CWD, directory_of_socket(path), flags, Mode::empty())?;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &address_in(&directory)?)?;
    Ok(socket)
}

/// The address of the control socket in an open directory: a volume's own path may be longer than
/// an address can be.
pub(crate) fn address_in(directory: &impl AsFd) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new(format!("/proc/self/fd/{}/{CONTROL_SOCKET}", directory.as_fd().as_raw_fd()))
}

fn write_request(request: &Request) -> Vec<u8> {
    to_line(&Line { format: FORMATS.newest, content: Requested { request: request.clone() } })
}

/// Encodes the line of an answer.
pub(crate) fn write_answer(answer: Answer) -> Vec<u8> {
    to_line(&Line { format: FORMATS.newest, content: Answered { answer } })
}

fn to_line(content: &impl Serialize) -> Vec<u8> {
    // Numbers, strings and lists of them: JSON can express all of them.
    let mut line = serde_json::to_vec(content).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Decodes the request of a line, or explains why it is invalid.
pub(crate) fn read_request(line: &[u8]) -> Result<Request, String> {
    FORMATS.of(line).map_err(|error| error.to_string())?;
    let line: Line<Requested> = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    Ok(line.content.request)
}

fn read_answer(line: &str) -> Result<Answer, String> {
    FORMATS.of(line.as_bytes()).map_err(|error| error.to_string())?;
    let line: Line<Answered> = serde_json::from_str(line).map_err(|error| error.to_string())?;
    Ok(line.content.answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_as_documented() {
        assert_eq!(write_request(&Request::Status), b"{\"format\":1,\"request\":\"status\"}\n");
        let resize = Request::Resize { size_bytes: VolumeSize::new(8192).unwrap(), least_generation: 2 };
        let line = write_request(&resize);
        let text = r#"{"format":1,"request":{"resize":{"size_bytes":8192,"least_generation":2}}}"#;
        assert_eq!(line.trim_ascii_end(), text.as_bytes());
        assert_eq!(read_request(&line), Ok(resize));
        let refused = Answer::Refused { code: "shrink".to_owned(), message: "no".to_owned() };
        let line = String::from_utf8(write_answer(refused.clone())).unwrap();
        assert_eq!(read_answer(&line), Ok(refused));
    }

    #[test]
    fn a_status_says_how_the_key_stands() {
        let text = r#"{"provider":"corp","key":"4711","state":"outage","since_unix_seconds":7,"reason":"kms1 is silent","expired":false}"#;
        let key: KeyStatus = serde_json::from_str(text).unwrap();
        assert_eq!(key.lease.state, strongroom_keys::LeaseState::Outage);
        assert_eq!(serde_json::to_string(&key).unwrap(), text);
    }

    #[test]
    fn what_is_no_request_is_refused() {
        for line in ["", "{}", "[1]", r#"{"format":1,"request":"dance"}"#, r#"{"format":1}"#, "\u{0}"] {
            assert!(read_request(line.as_bytes()).is_err(), "{line}");
        }
        let newer = read_request(br#"{"format":2,"request":"status"}"#).unwrap_err();
        assert!(newer.contains("format 2"), "{newer}");
        // Sizes that no volume has are refused by their type.
        let line = br#"{"format":1,"request":{"resize":{"size_bytes":1,"least_generation":0}}}"#;
        assert!(read_request(line).is_err());
    }

    const LISTENS_IN: &str = "STRONGROOM_TEST_LISTENS_IN";

    /// The other process of the next test: listens in a directory until its stdin is closed.
    #[test]
    #[ignore = "another test starts it"]
    fn listens() {
        let Some(directory) = std::env::var_os(LISTENS_IN) else { return };
        let _listener =
            std::os::unix::net::UnixListener::bind(Path::new(&directory).join(CONTROL_SOCKET)).unwrap();
        println!("listens");
        std::io::stdin().read_line(&mut String::new()).unwrap();
    }

    #[test]
    fn another_process_is_no_supervisor_within_this_one() {
        let directory = tempfile::tempdir().unwrap();
        let own = std::os::unix::net::UnixListener::bind(directory.path().join(CONTROL_SOCKET)).unwrap();
        assert!(Client::connect_to(directory.path(), Peer::ThisProcess).unwrap().is_some());
        drop(own);
        std::fs::remove_file(directory.path().join(CONTROL_SOCKET)).unwrap();
        let mut other = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "control::tests::listens", "--ignored", "--nocapture"])
            .env(LISTENS_IN, directory.path())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(other.stdout.take().unwrap()).lines();
        assert!(said.any(|line| line.unwrap().ends_with("listens")));
        assert!(Client::connect_to(directory.path(), Peer::Trusted).unwrap().is_some());
        let refused = Client::connect_to(directory.path(), Peer::ThisProcess).unwrap_err();
        assert!(
            matches!(&refused, ControlError::Stranger { found, .. } if found.contains(&other.id().to_string()))
        );
        drop(other.stdin.take());
        other.wait().unwrap();
    }

    #[test]
    fn nobody_is_reached_where_nobody_listens() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Client::connect(directory.path()).unwrap().is_none());
        assert!(Client::connect(&directory.path().join("none")).unwrap().is_none());
        drop(std::os::unix::net::UnixListener::bind(directory.path().join(CONTROL_SOCKET)).unwrap());
        assert!(Client::connect(directory.path()).unwrap().is_none(), "a dead one's socket");
    }
}
