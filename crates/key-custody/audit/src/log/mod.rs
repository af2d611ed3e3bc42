//! The log as its writer's callers see it.
//!
//! - [`queue`]: waiting records. [`writer`]: the one thread that writes. [`opening`]: recovery when
//!   a log is opened. [`follow`]: reading behind the writer. [`cursor`]: how far a collector has
//!   confirmed the log. [`history`]: the records about some objects. [`retention`]: removal
//!   of older files.

mod cursor;
mod follow;
mod history;
mod opening;
mod queue;
mod retention;
mod writer;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use strongroom_types::Pending;

use crate::counters::Counters;
use crate::error::AuditError;
use crate::head::{HeadSigner, SignedHead};
use crate::limits::{FILE_BYTES, FILE_MAX_BYTES, HEAD_INTERVAL, HEAD_RECORDS};
use crate::line::{self, Content};
use crate::record::Record;
use crate::storage::Directory;

pub(crate) use self::cursor::Cursor;
pub(crate) use self::follow::Follower;
pub use self::history::{History, Noted};
use self::queue::Queue;
pub use self::retention::{Retention, Size};

/// An open log. It is closed, with all that waits written and a last head signed, when it is
/// dropped.
pub struct AuditLog {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

/// How a log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes after which a file is followed by the next.
    pub file_bytes: u64,
    /// Age after which the next record begins a new file; `None` for no limit.
    pub file_age: Option<Duration>,
    /// Records after which a head is signed.
    pub head_records: u64,
    /// Time after which a head is signed if there are records without one.
    pub head_interval: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            file_bytes: FILE_BYTES,
            file_age: None,
            head_records: HEAD_RECORDS,
            head_interval: HEAD_INTERVAL,
        }
    }
}

/// Where a record is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The sequence of its line.
    pub sequence: u64,
}

/// State shared by callers, followers and the writer.
struct Shared {
    /// Names the log.
    id: String,
    directory: Arc<dyn Directory>,
    queue: Queue,
    state: Mutex<State>,
    /// Notified after each group, and when the log ends.
    changed: Condvar,
    counters: Mutex<Counters>,
    /// Held while older files are removed.
    retaining: Mutex<()>,
}

#[derive(Debug)]
struct State {
    /// The last line that is durable; 0 for none.
    durable: u64,
    ended: Option<AuditError>,
}

impl AuditLog {
    /// Opens the log in a directory, or begins one if there is none.
    ///
    /// # Errors
    /// [`AuditError::Damaged`] if a durable line is missing, [`AuditError::Io`].
    pub fn open(
        directory: Arc<dyn Directory>,
        signer: Box<dyn HeadSigner>,
        options: Options,
    ) -> Result<Self, AuditError> {
        let options = Options { file_bytes: options.file_bytes.min(FILE_MAX_BYTES), ..options };
        let found = opening::open(&*directory)?;
        let shared = Arc::new(Shared {
            id: found.log.clone(),
            directory,
            queue: Queue::default(),
            state: Mutex::new(State { durable: found.chain.next - 1, ended: None }),
            changed: Condvar::new(),
            counters: Mutex::default(),
            retaining: Mutex::default(),
        });
        let writer = writer::start(Arc::clone(&shared), found, signer, options);
        let writer = writer.map_err(|error| AuditError::opening(&error))?;
        Ok(Self { shared, writer: Some(writer) })
    }

    /// Appends a record. It is durable once the answer arrives; release nothing before that.
    ///
    /// Does not block. Records of one caller are in the order of its calls. The answer's errors:
    /// those of [`Record::check`], [`AuditError::Overloaded`], [`AuditError::Full`],
    /// [`AuditError::Failed`], [`AuditError::Closed`].
    pub fn append(&self, record: &Record) -> PendingAppend {
        PendingAppend(self.shared.queue.append(record))
    }

    /// Signs a head over all lines so far, and returns it once it is durable. A copy kept elsewhere
    /// reveals a log that was cut short or rewritten.
    ///
    /// Does not block. The answer's errors: [`AuditError::Unsigned`] and those of
    /// [`append`](Self::append).
    pub fn head(&self) -> PendingHead {
        PendingHead(self.shared.queue.ask_for_head())
    }

    /// Names the log: 16 random bytes in hexadecimal, drawn when it was begun.
    pub fn id(&self) -> &str {
        &self.shared.id
    }

    /// The sequence of the last line that is durable; 0 for none.
    pub fn durable(&self) -> u64 {
        self.shared.state.lock().durable
    }

    /// Counters since the log was opened.
    pub fn counters(&self) -> Counters {
        *self.shared.counters.lock()
    }

    /// The log's directory.
    pub(crate) fn directory(&self) -> Arc<dyn Directory> {
        Arc::clone(&self.shared.directory)
    }

    /// Follows the writer from a sequence on.
    pub(crate) fn follow(&self, from: u64) -> Follower {
        Follower::new(Arc::clone(&self.shared), from)
    }
}

impl Shared {
    /// Refuses all further records.
    fn end(&self, why: AuditError) {
        self.queue.close(&why);
        self.state.lock().ended.get_or_insert(why);
        self.changed.notify_all();
    }

    fn publish(&self, durable: u64) {
        self.state.lock().durable = durable;
        self.changed.notify_all();
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        self.shared.queue.finish();
        if let Some(writer) = self.writer.take() {
            // The panic hook has reported a panic of the writer, and every waiting caller has its
            // answer.
            let _ = writer.join();
        }
    }
}

impl fmt::Debug for AuditLog {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("AuditLog").field("durable", &self.durable()).finish_non_exhaustive()
    }
}

/// The answer to [`AuditLog::append`]: [`wait`](Self::wait) for a thread, `.await` for a task.
#[derive(Debug)]
#[must_use = "a record is durable only once it has been answered"]
pub struct PendingAppend(Pending<Result<Receipt, AuditError>>);

/// The answer to [`AuditLog::head`]: [`wait`](Self::wait) for a thread, `.await` for a task.
#[derive(Debug)]
#[must_use = "a head is there only once it has been answered"]
pub struct PendingHead(Pending<Result<SignedHead, AuditError>>);

impl PendingAppend {
    /// Blocks the thread until the record is durable or will not be.
    ///
    /// # Errors
    /// As [`AuditLog::append`].
    pub fn wait(self) -> Result<Receipt, AuditError> {
        self.0.wait().unwrap_or_else(|_| Err(unanswered()))
    }
}

impl Future for PendingAppend {
    type Output = Result<Receipt, AuditError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|answer| answer.unwrap_or_else(|_| Err(unanswered())))
    }
}

impl PendingHead {
    /// Blocks the thread until the head is durable or will not be.
    ///
    /// # Errors
    /// As [`AuditLog::head`].
    pub fn wait(self) -> Result<SignedHead, AuditError> {
        self.0.wait().unwrap_or_else(|_| Err(unanswered()))
    }
}

impl Future for PendingHead {
    type Output = Result<SignedHead, AuditError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|answer| answer.unwrap_or_else(|_| Err(unanswered())))
    }
}

fn unanswered() -> AuditError {
    AuditError::Failed { reason: "its writer ended without an answer".into() }
}

/// The body of a line; serialising these types to JSON cannot fail.
fn body(content: &Content) -> Result<Vec<u8>, AuditError> {
    let failed = |error: serde_json::Error| AuditError::Failed { reason: error.to_string().into() };
    line::body(&line::now(), content).map_err(failed)
}
