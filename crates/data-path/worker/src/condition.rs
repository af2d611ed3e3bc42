//! The condition of a volume: its worker reports it, and its supervisor shows it.

use std::io::Stdin;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use strongroom_datastore::file::tags::{TagsDisk, TagsWatch};
use strongroom_filters::park::{Trouble, TroubleBook};
use strongroom_io::{IoError, Waker};
use strongroom_types::unix_seconds;

use crate::birth::{BirthError, BirthSocket, Report};
use crate::closing::ClosingWatch;
use crate::merging::MergingWatch;
use crate::supervise::timespec;

/// The least interval between two reports. A guest whose disk keeps filling up and emptying does
/// not warrant more.
const TELLS_EVERY: Duration = Duration::from_secs(1);

/// The first format in which a supervisor understands an unsolicited report.
const FORMAT_TELLING: u32 = 2;

/// The most important fact about a volume's condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It is served.
    #[default]
    Running,
    /// Requests of its guest wait for room in the datastore.
    Parked,
    /// A flush failed, and none succeeds until the volume is exposed again.
    FlushFailed,
    /// It is not served: its worker has died, and the KEK that opens the DEKs for another worker is
    /// not available now.
    KeyUnavailable,
}

/// A volume's condition since its worker began to serve it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Condition {
    /// The most important fact.
    pub state: State,
    /// The requests that wait for room.
    pub parked: Option<Parked>,
    /// How many client requests failed for lack of room.
    pub refused_for_room: u64,
    /// How many requests the device failed.
    pub device_errors: u64,
    /// The error of the last of those.
    pub last_device_error: Option<String>,
    /// How many blocks did not match their tags and were accepted as they are, because they may
    /// have been in flight when power or the process failed. If the volume's last user closed it in
    /// order, any such block is an alarm.
    #[serde(skip_serializing_if = "is_none")]
    pub adopted_blocks: u64,
    /// How many reads of blocks failed because their tags do not match.
    #[serde(skip_serializing_if = "is_none")]
    pub wrong_blocks: u64,
    /// The progress of completing the layer below the top, if it was not complete when the worker
    /// began to serve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion: Option<Completion>,
    /// How far the merge of two of its layers has come, since that was ordered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge: Option<MergeReport>,
}

/// The progress of completing a layer that took writes until a snapshot was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Completion {
    /// Its last writes are being brought to it.
    UnderWay,
    /// Everything is durably in it, and it no longer changes.
    Complete,
    /// It cannot be completed until the volume is reopened.
    Failed {
        /// Why not.
        reason: String,
    },
}

/// How far the merge of two layers has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeReport {
    /// Whether it goes on.
    pub state: MergeState,
    /// How much of the upper layer is behind.
    pub copied_bytes: u64,
    /// The upper layer's size.
    pub total_bytes: u64,
    /// The speed that it has had. A former program does not say.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bytes_per_second: u64,
}

/// Whether a number is left out of a message: programs of former releases do not know it.
pub(crate) fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Whether a merge goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MergeState {
    /// Blocks are copied, or it pauses.
    UnderWay,
    /// The lower layer has everything, durably.
    Complete,
    /// It does not go on by itself.
    Failed {
        /// Why not.
        reason: String,
    },
}

/// Omits a count that an older supervisor does not know, as long as it is zero.
fn is_none(blocks: &u64) -> bool {
    *blocks == 0
}

/// Requests that wait for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parked {
    /// When the first of them began to wait: seconds since 1970-01-01 00:00 UTC.
    pub since_unix_seconds: u64,
    /// How many there are.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Condition {
    fn of(trouble: &Trouble, tags: TagTrouble, parked_since: SystemTime) -> Self {
        let Trouble { waiting, refused, flush_failed, device_errors, last_device_error } = *trouble;
        let parked = (waiting.requests > 0).then(|| Parked {
            since_unix_seconds: unix_seconds(parked_since),
            requests: waiting.requests,
            bytes: waiting.bytes,
        });
        let state = match (flush_failed, &parked) {
            (true, _) => State::FlushFailed,
            (false, Some(_)) => State::Parked,
            (false, None) => State::Running,
        };
        let last_device_error = last_device_error.map(|error: IoError| error.to_string());
        Self {
            state,
            parked,
            refused_for_room: refused,
            device_errors,
            last_device_error,
            adopted_blocks: tags.adopted,
            wrong_blocks: tags.mismatched,
            completion: None,
            merge: None,
        }
    }
}

/// What has ended a wait for an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// There is an order, or the supervisor is gone.
    Order,
    /// The time is over.
    Deadline,
    /// The process that does the volume's I/O is gone.
    StorageEnd,
}

/// The counts of blocks that did not match their tags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TagTrouble {
    adopted: u64,
    mismatched: u64,
}

/// Reports the volume's condition to the supervisor, while the worker's first thread waits for
/// orders.
#[derive(Debug)]
pub(crate) struct Teller {
    waker: Arc<Waker>,
    book: Arc<TroubleBook>,
    /// The tags of the layers that take writes, or took them until a snapshot was made.
    tags: Vec<TagsWatch>,
    closing: Option<ClosingWatch>,
    merging: Option<MergingWatch>,
    told: (Trouble, TagTrouble, Option<Completion>, Option<MergeReport>),
    /// The earliest time of the next report.
    next: Instant,
    parked_since: Option<SystemTime>,
}

impl Teller {
    pub(crate) fn new() -> Result<Self, IoError> {
        let waker = Arc::new(Waker::new()?);
        let book = Arc::new(TroubleBook::read_by(Arc::clone(&waker)));
        Ok(Self {
            waker,
            book,
            tags: Vec::new(),
            closing: None,
            merging: None,
            told: Default::default(),
            next: Instant::now(),
            parked_since: None,
        })
    }

    /// The book in which the volume's stages record trouble.
    pub(crate) fn book(&self) -> &Arc<TroubleBook> {
        &self.book
    }

    /// Includes in reports the counts of these tags, and the progress of completing the layer below
    /// the top.
    pub(crate) fn watch(&mut self, tags: Option<&TagsDisk>, closing: Option<ClosingWatch>) {
        let below = closing.as_ref().and_then(ClosingWatch::tags);
        self.tags.extend(below.map(|tags| tags.watch(Arc::clone(&self.waker))));
        self.watch_new_top(tags, closing);
    }

    /// As [`Self::watch`], where the layer below the new top is watched already.
    pub(crate) fn watch_new_top(&mut self, tags: Option<&TagsDisk>, closing: Option<ClosingWatch>) {
        self.tags.extend(tags.map(|tags| tags.watch(Arc::clone(&self.waker))));
        self.closing = closing;
        // What was told is of another layer, which may have been as far.
        self.told.2 = None;
    }

    /// Tells from now on how far a merge of two layers has come.
    pub(crate) fn watch_merge(&mut self, merging: Option<MergingWatch>) {
        self.merging = merging;
    }

    /// The waker of the thread that reports.
    pub(crate) fn waker(&self) -> &Arc<Waker> {
        &self.waker
    }

    /// Returns when an order has arrived, the supervisor is gone, `until` has come, or the process
    /// that does the volume's I/O, if there is one, has ended. Sends reports meanwhile.
    pub(crate) fn await_order(
        &mut self,
        socket: &BirthSocket<Stdin>,
        until: Option<Instant>,
        lifeline: Option<BorrowedFd<'_>>,
    ) -> Result<Awaited, BirthError> {
        loop {
            let pending = [self.tell(socket), until].into_iter().flatten().min();
            let left = pending.map(|at| timespec(at.saturating_duration_since(Instant::now())));
            let event = self.waker.event();
            let mut watched = [
                PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(event, PollFlags::IN),
                // Without one, the event once more.
                PollFd::from_borrowed_fd(lifeline.unwrap_or(event), PollFlags::RDHUP),
            ];
            match poll(&mut watched, left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let [order, woken, ended] = watched.map(|file| !file.revents().is_empty());
            if woken {
                self.waker.reset();
            }
            if ended {
                return Ok(Awaited::StorageEnd);
            }
            if order {
                return Ok(Awaited::Order);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(Awaited::Deadline);
            }
        }
    }

    /// Reports changes. Returns when to try again, if something is left to report.
    fn tell(&mut self, socket: &BirthSocket<Stdin>) -> Option<Instant> {
        let trouble = self.book.read();
        let mut tags = TagTrouble::default();
        for (adopted, mismatched) in self.tags.iter().map(TagsWatch::adopted_and_mismatched) {
            tags.adopted += adopted;
            tags.mismatched += mismatched;
        }
        let completion = self.closing.as_ref().map(ClosingWatch::outcome);
        if trouble.waiting.requests == 0 {
            self.parked_since = None;
        }
        let merge = self.merging.as_ref().map(MergingWatch::report);
        let now = Instant::now();
        let news = (trouble, tags, completion.clone(), merge.clone());
        if news == self.told || socket.format() < FORMAT_TELLING {
            return None;
        }
        // A snapshot waits for the one, the next step of a merge for the other, and each comes
        // once.
        let state = |merge: &Option<MergeReport>| merge.as_ref().map(|merge| merge.state.clone());
        let is_urgent = completion != self.told.2 || state(&merge) != state(&self.told.3);
        let parked_since = match trouble.waiting.requests {
            0 => SystemTime::now(),
            _ => *self.parked_since.get_or_insert_with(SystemTime::now),
        };
        if now < self.next && !is_urgent {
            return Some(self.next);
        }
        self.next = now + TELLS_EVERY;
        let condition = Condition { completion, merge, ..Condition::of(&trouble, tags, parked_since) };
        match socket.send(&Report::Condition(condition), &[]) {
            Ok(()) => {
                self.told = news;
                None
            }
            // The supervisor is busy with a long operation. Try again later.
            Err(_) => Some(self.next),
        }
    }
}

#[cfg(test)]
mod tests {
    use strongroom_filters::park::Waiting;

    use super::*;

    #[test]
    fn a_failed_flush_is_more_important_than_want_of_room() {
        let since = SystemTime::UNIX_EPOCH + Duration::from_secs(7);
        let mut trouble = Trouble::default();
        assert_eq!(Condition::of(&trouble, TagTrouble::default(), since), Condition::default());
        trouble.waiting = Waiting { requests: 2, bytes: 8192 };
        let parked = Condition::of(&trouble, TagTrouble::default(), since);
        assert_eq!((parked.state, parked.parked.unwrap().since_unix_seconds), (State::Parked, 7));
        trouble.flush_failed = true;
        assert_eq!(Condition::of(&trouble, TagTrouble::default(), since).state, State::FlushFailed);
    }
}
