//! The log messages about a volume's condition: each change once, and lasting trouble again after a
//! while.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use strongroom_datastore::file::VolumeHead;
use strongroom_types::display_bytes;

use crate::condition::{Condition, Parked, State};

/// The interval at which lasting trouble is logged again, and the least time between two lines
/// about recurring trouble.
const REMINDS_EVERY: Duration = Duration::from_secs(60);

/// How often to check that the volume's files still exist.
const LOOKS_EVERY: Duration = Duration::from_secs(10);

/// How long a new worker has to report that requests still wait: clients connect to it within a
/// second, and repeat those requests.
const CONFIRMS_WITHIN: Duration = Duration::from_secs(5);

/// Logs the messages, and remembers which it has logged.
#[derive(Debug)]
pub struct Herald {
    /// The volume.
    path: PathBuf,
    parked: Option<Wait>,
    /// The earliest time of the next line on each topic.
    quiet_until: [Option<Instant>; TOPICS],
    flush_failed: bool,
    refused: u64,
    device_errors: u64,
    /// The time of the next check of the volume's files.
    next_look: Instant,
}

/// A period without room.
#[derive(Debug)]
struct Wait {
    since: Instant,
    /// Whether its begin was logged.
    said: bool,
    /// The latest report.
    latest: Parked,
    /// Set while a new worker has not reported yet whether requests still wait: the deadline for
    /// that report.
    unconfirmed_until: Option<Instant>,
}

/// The topics of log messages.
#[derive(Clone, Copy)]
enum Topic {
    Parked,
    Refused,
    DeviceErrors,
    FilesGone,
}

const TOPICS: usize = 4;

impl Herald {
    /// A herald that has not logged anything yet.
    pub fn new(path: &Path) -> Self {
        let path = path.to_owned();
        let quiet_until = [None; TOPICS];
        let next_look = Instant::now() + LOOKS_EVERY;
        Self { path, parked: None, quiet_until, flush_failed: false, refused: 0, device_errors: 0, next_look }
    }

    /// The time of the next reminder or check.
    pub fn deadline(&self) -> Option<Instant> {
        let lasting = self.parked.as_ref().into_iter().flat_map(|wait| {
            [wait.unconfirmed_until, self.quiet_until[Topic::Parked as usize]].into_iter().flatten()
        });
        lasting.chain([self.next_look]).min()
    }

    /// Starts over with a new worker, which counts from zero.
    pub fn begins_anew(&mut self) {
        let mut parked = self.parked.take();
        if let Some(wait) = &mut parked {
            wait.unconfirmed_until = Some(Instant::now() + CONFIRMS_WITHIN);
        }
        *self = Self { parked, quiet_until: self.quiet_until, ..Self::new(&self.path) };
    }

    /// Logs the news of a condition.
    pub fn hear(&mut self, condition: &Condition, head: &VolumeHead) {
        match (condition.parked, &mut self.parked) {
            (Some(latest), Some(wait)) => (wait.latest, wait.unconfirmed_until) = (latest, None),
            (Some(latest), None) => {
                let since = Instant::now();
                self.parked = Some(Wait { since, said: false, latest, unconfirmed_until: None });
            }
            (None, Some(_)) => self.go_on(),
            (None, None) => {}
        }
        self.remind(head);
        let volume = self.path.display().to_string();
        if condition.state == State::FlushFailed && !self.flush_failed {
            tracing::error!(
                "{volume}: a flush failed. What was written since the last one that succeeded may be lost, and none \
                 succeeds any more. See to the device, then end this and expose the volume again"
            );
            self.flush_failed = true;
        }
        if condition.refused_for_room > self.refused && self.take_turn(Topic::Refused) {
            let (full, refused) = (full(head), condition.refused_for_room);
            tracing::warn!(
                "{volume}: {full}. Its clients have been told so {refused} times. Free some space or make the file \
                 system larger; nothing else is to be done"
            );
            self.refused = refused;
        }
        if condition.device_errors > self.device_errors && self.take_turn(Topic::DeviceErrors) {
            let (errors, last) = (condition.device_errors, condition.last_device_error.as_deref());
            tracing::error!(
                "{volume}: {errors} requests have failed; of the last one it was said: {}. Whoever asked was told so; see to \
                 the device",
                last.unwrap_or("no reason")
            );
            self.device_errors = errors;
        }
    }

    /// Logs lasting trouble again, if it is time to.
    pub fn remind(&mut self, head: &VolumeHead) {
        let unconfirmed_until = self.parked.as_ref().and_then(|wait| wait.unconfirmed_until);
        if unconfirmed_until.is_some_and(|until| Instant::now() >= until) {
            self.go_on();
        }
        self.look_for_files(head);
        if self.parked.is_none() || !self.take_turn(Topic::Parked) {
            return;
        }
        let (volume, full) = (self.path.display(), full(head));
        let Some(wait) = &mut self.parked else { return };
        let Parked { requests, bytes, .. } = wait.latest;
        let after = if wait.said { format!(" after {:.0?}", wait.since.elapsed()) } else { String::new() };
        wait.said = true;
        let bytes = display_bytes(bytes);
        tracing::warn!(
            "{volume}: {full}. {requests} requests of its guest ({bytes}) wait{after}; nothing is lost, and the guest goes on \
             by itself. Free some space or make the file system larger"
        );
    }

    /// Checks that the volume's files still exist. Clients do not notice when they are removed,
    /// because they are kept open.
    fn look_for_files(&mut self, head: &VolumeHead) {
        if Instant::now() < self.next_look {
            return;
        }
        self.next_look = Instant::now() + LOOKS_EVERY;
        if head.are_files_gone() && self.take_turn(Topic::FilesGone) {
            tracing::error!(
                "{}: the volume's files were REMOVED while it is served. Its clients go on, flushes too, with files that are gone \
                 when this ends or its worker is replaced: copy the data away through a client now, before anything is stopped",
                self.path.display()
            );
        }
    }

    /// Logs that there is room again.
    fn go_on(&mut self) {
        if let Some(Wait { since, said: true, .. }) = self.parked.take() {
            let waited = since.elapsed();
            tracing::warn!(
                "{}: there is room again; the guest goes on after {waited:.1?}",
                self.path.display()
            );
        }
    }

    fn take_turn(&mut self, topic: Topic) -> bool {
        let quiet_until = &mut self.quiet_until[topic as usize];
        let now = Instant::now();
        if quiet_until.is_some_and(|until| now < until) {
            return false;
        }
        *quiet_until = Some(now + REMINDS_EVERY);
        true
    }
}

/// A text that the datastore is full, with its remaining room.
fn full(head: &VolumeHead) -> String {
    let datastore = head.path().parent().unwrap_or(head.path()).display();
    match head.room() {
        Ok(room) => format!(
            "its datastore {datastore} is full ({} available; {} are kept for the volume's own descriptor)",
            display_bytes(room.available_bytes),
            display_bytes(room.reserved_bytes)
        ),
        Err(_) => format!("its datastore {datastore} is full"),
    }
}
