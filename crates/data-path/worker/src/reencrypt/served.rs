//! Rewrites the layers of a volume beside the process that exposes it, which keeps its descriptor.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use strongroom_datastore::file::{
    DatastoreError, LeftToReencrypt, OpenRewrite, ReencryptOptions, RewrittenLayer, describe,
    left_to_reencrypt, open_rewrite_beside,
};
use strongroom_statistics::Answered;
use thiserror::Error;

use super::{ReencryptProgress, Reencrypted};
use crate::control::{Answer, Client, ControlError, ReencryptAct, Request, statistics_of};
use crate::layers::MergeStages;
use crate::merge::{Copying, MergeError, Stride, copy_all};
use crate::pace::{Pace, Throttle};
use crate::transfer::TransferError;

/// How long the process that exposes the volume may take for a step: it may wait for a key, and
/// syncs a layer.
const ANSWER_WITHIN: Duration = Duration::from_secs(600);

/// The interval at which a step is tried again that another change of the volume holds up.
const RETRY: Duration = Duration::from_millis(200);

/// How long that may last: a merge of large layers takes its time.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// Small steps: a request of a client waits for one of them at most.
const BESIDE: Stride = Stride { depth: 4, piece_bytes: 256 << 10, step_bytes: 2 << 20 };

/// Why a served volume is not re-encrypted.
#[derive(Debug, Error)]
pub enum ServedError {
    /// A layer cannot be rewritten.
    #[error(transparent)]
    Rewrite(#[from] MergeError),
    /// The process that exposes the volume cannot be asked, or refuses.
    #[error(transparent)]
    Control(#[from] ControlError),
}

impl From<DatastoreError> for ServedError {
    fn from(error: DatastoreError) -> Self {
        Self::Rewrite(error.into())
    }
}

/// Re-encrypts the volume at `path`, which another process exposes, or goes on with that. `from`
/// and `to` of the options are the KEK that the volume is under. It stops when `stop` is set.
///
/// # Errors
/// [`ServedError::Control`] if no process exposes the volume any more, or it refuses;
/// [`TransferError::Stopped`]; and what keeps a layer from being rewritten. Nothing is lost.
pub fn reencrypt_served(
    path: &Path,
    options: &ReencryptOptions<'_>,
    throttle: Throttle,
    stop: &AtomicBool,
    report: &mut dyn FnMut(ReencryptProgress),
) -> Result<Reencrypted, ServedError> {
    let mut patience = Patience::new(path, stop);
    while !patience.on(ask(path, ReencryptAct::Begin, options.least_generation))?.unwrap_or(false) {
        patience.pause()?;
    }
    let mut done = Reencrypted::of(describe(path)?.descriptor);
    loop {
        let LeftToReencrypt { layers: left_layers, bytes } = left_to_reencrypt(path)?;
        let opened = match open_rewrite_beside(path, options) {
            Ok(Some(opened)) => opened,
            Ok(None) => break,
            // Another change of the layers comes first.
            Err(DatastoreError::Merging { .. } | DatastoreError::InUse { .. }) => {
                patience.pause()?;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let OpenRewrite { size_bytes, layers, keys, mut rewritten } = opened;
        let stages = MergeStages::rewriting(layers, keys).map_err(MergeError::from)?;
        let before = done.rewritten_bytes;
        let mut beside = Beside::new(path, throttle, stop);
        let moved_bytes = copy_all(&stages, size_bytes, BESIDE, &mut |copying: &Copying<'_>| {
            let moved_bytes = copying.moved_bytes();
            let left_bytes = bytes.saturating_sub(moved_bytes);
            report(ReencryptProgress { done_bytes: before + moved_bytes, left_bytes, left_layers });
            beside.keep(moved_bytes);
            if stop.load(Ordering::Relaxed) { Err(TransferError::Stopped) } else { Ok(()) }
        });
        let moved_bytes = moved_bytes.map_err(MergeError::from)?;
        drop(stages);
        let is_kept = rewritten.is_kept_by_others();
        // The answer may be lost, and the descriptor may name it all the same.
        rewritten.keep();
        if replace(path, &rewritten, &mut patience)? {
            done.rewritten_bytes += moved_bytes;
            done.rewritten_layers += 1;
            done.kept_by_others += usize::from(is_kept);
        } else {
            rewritten.discard();
        }
    }
    while patience.on(ask(path, ReencryptAct::Finish, options.least_generation))?.is_none() {
        patience.pause()?;
    }
    report(ReencryptProgress { done_bytes: done.rewritten_bytes, left_bytes: 0, left_layers: 0 });
    Ok(Reencrypted { descriptor: describe(path)?.descriptor, ..done })
}

/// Has the new layer put in the place of the old one. Returns `false` if the old one is there no
/// more, or is to be rewritten again.
fn replace(
    path: &Path,
    rewritten: &RewrittenLayer,
    patience: &mut Patience<'_>,
) -> Result<bool, ServedError> {
    let (old, new) = (rewritten.old(), rewritten.record());
    loop {
        let act = ReencryptAct::Replace { old, new: Box::new(new.clone()) };
        let is_refused = match ask(path, act, 0) {
            Err(ServedError::Control(ControlError::Refused { code, .. })) if code == "not_rewritable" => true,
            answer => match patience.on(answer)? {
                Some(_) => return Ok(true),
                None => false,
            },
        };
        let descriptor = describe(path)?.descriptor;
        if descriptor.layer(new.id).is_some() {
            // The descriptor has it, and the worker may not read it yet: the end sees to that.
            return Ok(true);
        }
        if is_refused || descriptor.layer(old).is_none() {
            return Ok(false);
        }
        patience.pause()?;
    }
}

/// Asks the process that exposes the volume for a step. Returns whether layers can be rewritten
/// now.
fn ask(path: &Path, act: ReencryptAct, least_generation: u64) -> Result<bool, ServedError> {
    let Some(client) = Client::connect(path)? else {
        let reason = "the process that exposes it has ended".to_owned();
        return Err(DatastoreError::NotReencrypted { path: path.to_owned(), reason }.into());
    };
    match client.ask(Request::Reencrypt { act, least_generation }, ANSWER_WITHIN)? {
        Answer::Reencrypting { is_ready, .. } => Ok(is_ready),
        Answer::Reencrypted { .. } => Ok(true),
        other => Err(ControlError::of_answer(path, other).into()),
    }
}

/// What a step is refused for that passes by itself.
const PASSES: [&str; 3] = ["busy", "snapshot", "not_closed"];

/// Waits for other changes of the volume, but not for ever.
struct Patience<'a> {
    path: &'a Path,
    stop: &'a AtomicBool,
    until: Instant,
    reason: String,
}

impl<'a> Patience<'a> {
    fn new(path: &'a Path, stop: &'a AtomicBool) -> Self {
        let reason = "its layers are being changed".to_owned();
        Self { path, stop, until: Instant::now() + PATIENCE, reason }
    }

    /// The answer to a step, or nothing if it has to be tried again.
    fn on(&mut self, answer: Result<bool, ServedError>) -> Result<Option<bool>, ServedError> {
        match answer {
            Ok(is_ready) => {
                self.until = Instant::now() + PATIENCE;
                Ok(Some(is_ready))
            }
            Err(ServedError::Control(ControlError::Refused { code, message }))
                if PASSES.contains(&code.as_str()) =>
            {
                self.reason = message;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn pause(&mut self) -> Result<(), ServedError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(ServedError::Rewrite(TransferError::Stopped.into()));
        }
        if Instant::now() >= self.until {
            let (path, reason) = (self.path.to_owned(), std::mem::take(&mut self.reason));
            return Err(DatastoreError::NotReencrypted { path, reason }.into());
        }
        std::thread::sleep(RETRY);
        Ok(())
    }
}

/// Keeps to a throttle, between the steps of a copy. What steps cost the clients is read from the
/// statistics of the process that exposes the volume, which contacts no worker for that.
struct Beside<'a> {
    path: &'a Path,
    throttle: Throttle,
    stop: &'a AtomicBool,
    pace: Pace,
    /// What clients had asked for when the step began; nothing before the first one.
    began: Option<Clients>,
    moved_bytes: u64,
}

/// What clients have asked for until now.
#[derive(Clone, Copy)]
struct Clients {
    answered: Option<Answered>,
    are_waiting: bool,
}

impl Clients {
    fn of(path: &Path) -> Self {
        let statistics = statistics_of(path);
        let are_waiting = statistics.as_ref().is_none_or(|read| read.in_flight > 0);
        Self { answered: statistics.map(|read| read.answered()), are_waiting }
    }

    fn have_asked_since(self, before: Self) -> bool {
        self.are_waiting || before.are_waiting || self.answered != before.answered
    }
}

impl<'a> Beside<'a> {
    fn new(path: &'a Path, throttle: Throttle, stop: &'a AtomicBool) -> Self {
        Self { path, throttle, stop, pace: Pace::new(), began: None, moved_bytes: 0 }
    }

    /// Pauses before the next step. `moved_bytes` were written since the beginning.
    fn keep(&mut self, moved_bytes: u64) {
        if let Some(began) = self.began {
            let ended = Clients::of(self.path);
            self.pace.end(moved_bytes - self.moved_bytes, ended.answered);
            let are_busy = ended.have_asked_since(began);
            while !self.stop.load(Ordering::Relaxed) {
                let pause = self.pace.pause(self.throttle, are_busy, Instant::now());
                if pause.is_zero() {
                    break;
                }
                std::thread::sleep(pause.min(RETRY));
            }
        }
        let begins = Clients::of(self.path);
        self.pace.begin(begins.answered);
        (self.began, self.moved_bytes) = (Some(begins), moved_bytes);
    }
}
