//! The log messages about the state of a volume: each change once, and what lasts again
//! after a while.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use strongroom_datastore::file::VolumeHead;
use strongroom_types::display_bytes;

use crate::condition::{Condition, Parked, State};

/// After how long something that lasts is said again, and the least time between two lines on what
/// comes and goes.
const REMINDS_EVERY: Duration = Duration::from_secs(60);

/// How often it is looked whether the volume's files are still where they were.
const LOOKS_EVERY: Duration = Duration::from_secs(10);

/// How long a new worker has to say that requests still wait: clients connect to it within a
/// second, and do again what waited.
const CONFIRMS_WITHIN: Duration = Duration::from_secs(5);

/// Says it, and remembers what it has said.
#[derive(Debug)]
pub struct Herald {
    /// The volume.
    path: PathBuf,
    parked: Option<Wait>,
    /// When a line on the same may come again.
    quiet_until: [Option<Instant>; TOPICS],
    flush_failed: bool,
    refused: u64,
    device_errors: u64,
    /// When it is looked for the volume's files again.
    next_look: Instant,
}

/// A time without room.
#[derive(Debug)]
struct Wait {
    since: Instant,
    /// Whether a line was logged that it began.
    said: bool,
    /// The last that was heard.
    latest: Parked,
    /// Set when another worker serves, which has not said yet whether it is so still: by when it
    /// would have.
    unconfirmed_until: Option<Instant>,
}

/// What there is to be said.
#[derive(Clone, Copy)]
enum Topic {
    Parked,
    Refused,
    DeviceErrors,
    FilesGone,
}

const TOPICS: usize = 4;

impl Herald {
    /// One that has said nothing yet.
    pub fn new(path: &Path) -> Self {
        let path = path.to_owned();
        let quiet_until = [None; TOPICS];
        let next_look = Instant::now() + LOOKS_EVERY;
        Self { path, parked: None, quiet_until, flush_failed: false, refused: 0, device_errors: 0, next_look }
    }

    /// When something is to be said again, or looked for.
    pub fn deadline(&self) -> Option<Instant> {
        let lasting = self.parked.as_ref().into_iter().flat_map(|wait| {
            [wait.unconfirmed_until, self.quiet_until[Topic::Parked as usize]].into_iter().flatten()
        });
        lasting.chain([self.next_look]).min()
    }

    /// Another worker serves, and counts from nothing.
    pub fn begins_anew(&mut self) {
        let mut parked = self.parked.take();
        if let Some(wait) = &mut parked {
            wait.unconfirmed_until = Some(Instant::now() + CONFIRMS_WITHIN);
        }
        *self = Self { parked, quiet_until: self.quiet_until, ..Self::new(&self.path) };
    }

    /// Says what is new.
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

    /// Says once more what lasts, if it is time to.
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

    /// Clients notice nothing when the files that they use are removed: they are kept open until
    /// this ends.
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

    /// There is room again.
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

/// That the datastore is full, and what is left of it.
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
