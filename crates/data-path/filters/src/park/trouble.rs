//! What a disk's owner should hear of.

use std::sync::Arc;

use parking_lot::Mutex;
use strongroom_io::{IoError, Waker};

/// What a disk's owner should hear of, over all channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trouble {
    /// What waits for room.
    pub waiting: Waiting,
    /// Count of requests that failed for want of room.
    pub refused: u64,
    /// A flush has failed: none succeeds until the volume is opened anew.
    pub flush_failed: bool,
    /// Count of requests that the device failed.
    pub device_errors: u64,
    /// How the last of them failed.
    pub last_device_error: Option<IoError>,
}

/// Requests that wait for room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// How many.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Where channels write trouble down. It is touched only where there is some, so a lock costs
/// nobody anything.
#[derive(Debug, Default)]
pub struct TroubleBook {
    trouble: Mutex<Trouble>,
    reader: Option<Arc<Waker>>,
}

impl TroubleBook {
    /// One that nobody is woken for.
    pub fn new() -> Self {
        Self::default()
    }

    /// One whose every change wakes `reader`.
    pub fn read_by(reader: Arc<Waker>) -> Self {
        Self { trouble: Mutex::default(), reader: Some(reader) }
    }

    /// How it stands.
    pub fn read(&self) -> Trouble {
        *self.trouble.lock()
    }

    /// A request of so many bytes waits for room.
    pub(super) fn begin_to_wait(&self, bytes: u64) {
        self.change(|Trouble { waiting, .. }| {
            waiting.requests += 1;
            waiting.bytes += bytes;
        });
    }

    /// As many requests, of so many bytes together, do not wait any more.
    pub(super) fn end_waiting(&self, ended: Waiting) {
        self.change(|Trouble { waiting, .. }| {
            waiting.requests = waiting.requests.saturating_sub(ended.requests);
            waiting.bytes = waiting.bytes.saturating_sub(ended.bytes);
        });
    }

    /// A request failed.
    pub(super) fn failed(&self, error: IoError) {
        match error {
            IoError::NoSpace => self.change(|trouble| trouble.refused += 1),
            IoError::Device(_) | IoError::Short { .. } | IoError::ReadOnly | IoError::Integrity { .. } => {
                self.change(|trouble| {
                    trouble.device_errors += 1;
                    trouble.last_device_error = Some(error);
                });
            }
            // It goes on failing so; once is enough.
            IoError::FlushFailed if self.read().flush_failed => {}
            IoError::FlushFailed => self.change(|trouble| trouble.flush_failed = true),
            // Only the requester of the impossible operation gets the error.
            IoError::OutOfRange { .. }
            | IoError::Misaligned { .. }
            | IoError::TooLong { .. }
            | IoError::FilesFull { .. }
            | IoError::UnknownEpoch { .. }
            | IoError::Cipher
            | IoError::Injected
            | IoError::Closed => {}
        }
    }

    /// A flush failed, however it did.
    pub(super) fn flush_failed(&self, error: IoError) {
        self.failed(error);
        self.failed(IoError::FlushFailed);
    }

    fn change(&self, change: impl FnOnce(&mut Trouble)) {
        change(&mut self.trouble.lock());
        if let Some(reader) = &self.reader {
            reader.wake();
        }
    }
}
