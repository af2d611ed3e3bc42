//! Rewrites the layers of a volume beside the process that exposes it, which keeps its descriptor.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use strongroom_datastore::file::{
    DatastoreError, LeftToReencrypt, NewTags, OpenRewrite, Protection, ReencryptOptions, RewrittenLayer,
    describe, left_to_reencrypt, open_rewrite_beside, whole_to_reencrypt,
};
use strongroom_keys::{Kek, KeyError};

use super::{ReencryptProgress, Reencrypted};
use crate::beside::{ANSWER_WITHIN, Beside, Patience, ServedError, ServedVolume};
use crate::control::{Answer, Becomes, Client, ControlError, NewKek, ReencryptAct, Request};
use crate::layers::MergeStages;
use crate::merge::{Copying, MergeError, Stride, copy_all};
use crate::pace::Throttle;
use crate::transfer::TransferError;

/// Small steps: a request of a client waits for one of them at most.
const BESIDE: Stride = Stride { depth: 4, piece_bytes: 256 << 10, step_bytes: 2 << 20 };

/// Begins to re-encrypt a volume that is served: from then on, what is written to it is as the
/// options say. A volume that is being re-encrypted so stays as it is. Returns the generation of
/// its descriptor. It stops when `stop` is set.
///
/// # Errors
/// As [`reencrypt_served`].
pub fn begin_served(
    served: ServedVolume<'_>,
    options: &ReencryptOptions<'_>,
    stop: &AtomicBool,
    report: &mut dyn FnMut(ReencryptProgress),
) -> Result<u64, ServedError> {
    let mut patience = patience_before(served.path, stop, report)?;
    Ok(served.begin_patiently(options, &mut patience)?.generation)
}

/// Re-encrypts a volume that is served, or goes on with that. It stops when `stop` is set.
///
/// If `from` and `to` of the options are different KEKs, the supervisor gets the new one, which it
/// needs from then on; only a supervisor that can have both again after its own death is asked so.
///
/// # Errors
/// [`ServedError::Control`] if no process exposes the volume any more, or it refuses;
/// [`TransferError::Stopped`]; and what keeps a layer from being rewritten. Nothing is lost.
pub fn reencrypt_served(
    served: ServedVolume<'_>,
    options: &ReencryptOptions<'_>,
    throttle: Throttle,
    stop: &AtomicBool,
    report: &mut dyn FnMut(ReencryptProgress),
) -> Result<Reencrypted, ServedError> {
    let path = served.path;
    let mut patience = patience_before(path, stop, report)?;
    let mut options = *options;
    loop {
        let begun = served.begin_patiently(&options, &mut patience)?;
        // An older descriptor would name layers whose content is out of date.
        options.least_generation = options.least_generation.max(begun.generation);
        if begun.is_ready {
            break;
        }
        patience.pause()?;
    }
    let mut done = Reencrypted::of(describe(path)?.descriptor);
    loop {
        let LeftToReencrypt { layers: left_layers, bytes } = left_to_reencrypt(path)?;
        let opened = match open_rewrite_beside(path, &options) {
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
        let mut beside = Beside::new(served, throttle, stop);
        let moved_bytes = copy_all(&stages, size_bytes, BESIDE, &mut |copying: &Copying<'_>| {
            let moved_bytes = copying.moved_bytes();
            let left_bytes = bytes.saturating_sub(moved_bytes);
            patience.tell(ReencryptProgress { done_bytes: before + moved_bytes, left_bytes, left_layers });
            beside.keep(moved_bytes);
            if stop.load(Ordering::Relaxed) { Err(TransferError::Stopped) } else { Ok(()) }
        });
        let moved_bytes = moved_bytes.map_err(MergeError::from)?;
        drop(stages);
        let is_kept = rewritten.is_kept_by_others();
        // The answer may be lost, and the descriptor may name it all the same.
        rewritten.keep();
        if served.replace(&rewritten, &mut patience)? {
            done.rewritten_bytes += moved_bytes;
            done.rewritten_layers += 1;
            done.kept_by_others += usize::from(is_kept);
        } else {
            rewritten.discard();
        }
    }
    while patience.on(served.ask(ReencryptAct::Finish, options.least_generation))?.is_none() {
        patience.pause()?;
    }
    patience.tell(ReencryptProgress { done_bytes: done.rewritten_bytes, left_bytes: 0, left_layers: 0 });
    Ok(Reencrypted { descriptor: describe(path)?.descriptor, ..done })
}

/// Ends the re-encryption of a volume that is served without rewriting anything. Nobody rewrites a
/// layer of it any more. A volume that is not being re-encrypted stays as it is.
///
/// # Errors
/// [`ServedError::Control`] if no process exposes the volume any more, or it refuses.
pub fn cancel_served(served: ServedVolume<'_>) -> Result<(), ServedError> {
    let (goes_on, nothing) = (AtomicBool::new(false), ReencryptProgress::default());
    let mut tell = |_| {};
    let mut patience = Patience::new(served.path, &goes_on, nothing, &mut tell, not_reencrypted);
    while patience.on(served.ask(ReencryptAct::Cancel, 0))?.is_none() {
        patience.pause()?;
    }
    Ok(())
}

/// The answer to a step.
struct Step {
    /// Whether layers can be rewritten now.
    is_ready: bool,
    /// The descriptor's generation.
    generation: u64,
}

impl ServedVolume<'_> {
    /// Begins, after other changes of the volume.
    fn begin_patiently(
        &self,
        options: &ReencryptOptions<'_>,
        patience: &mut Patience<'_, ReencryptProgress>,
    ) -> Result<Step, ServedError> {
        loop {
            if let Some(begun) = patience.on(self.begin(options))? {
                return Ok(begun);
            }
            patience.pause()?;
        }
    }

    fn begin(&self, options: &ReencryptOptions<'_>) -> Result<Step, ServedError> {
        let ReencryptOptions { tags, least_generation, .. } = *options;
        // A supervisor of a former release knows these two alone.
        let is_kept = tags == NewTags::Kept;
        match options.meanwhile() {
            Protection::Between { to, .. } => self.ask_under(
                to,
                |to| match is_kept {
                    true => ReencryptAct::BeginUnder { to },
                    false => ReencryptAct::BeginAs { becomes: Becomes::Under(to), tags },
                },
                least_generation,
            ),
            Protection::Encrypted(_) if is_kept => self.ask(ReencryptAct::Begin, least_generation),
            Protection::Encrypted(_) | Protection::Unencrypted => {
                self.ask(ReencryptAct::BeginAs { becomes: Becomes::Kept, tags }, least_generation)
            }
            Protection::Encrypting(to) => {
                let act = |to| ReencryptAct::BeginAs { becomes: Becomes::Encrypted(to), tags };
                self.ask_under(to, act, least_generation)
            }
            Protection::Decrypting(kek) => {
                let becomes = Becomes::Clear { under: kek.id() };
                self.ask(ReencryptAct::BeginAs { becomes, tags }, least_generation)
            }
        }
    }

    /// Asks for a step that brings in a KEK.
    fn ask_under(
        &self,
        to: &Kek,
        act: impl FnOnce(NewKek) -> ReencryptAct,
        least_generation: u64,
    ) -> Result<Step, ServedError> {
        let pipe = to.to_pipe().map_err(|error| DatastoreError::Key {
            path: self.path.to_owned(),
            error: KeyError::NotHandedOver(error),
        })?;
        let act = act(NewKek { id: to.id(), source: to.source().clone() });
        self.ask_with(act, least_generation, Some(pipe.as_fd()))
    }

    /// Has the new layer put in the place of the old one. Returns `false` if the old one is there
    /// no more, or is to be rewritten again.
    fn replace(
        &self,
        rewritten: &RewrittenLayer,
        patience: &mut Patience<'_, ReencryptProgress>,
    ) -> Result<bool, ServedError> {
        let (old, new) = (rewritten.old(), rewritten.record());
        loop {
            let act = ReencryptAct::Replace { old, new: Box::new(new.clone()) };
            let is_refused = match self.ask(act, 0) {
                Err(ServedError::Control(ControlError::Refused { code, .. })) if code == "not_rewritable" => {
                    true
                }
                answer => match patience.on(answer)? {
                    Some(_) => return Ok(true),
                    None => false,
                },
            };
            let descriptor = describe(self.path)?.descriptor;
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

    /// Asks its supervisor for a step.
    fn ask(&self, act: ReencryptAct, least_generation: u64) -> Result<Step, ServedError> {
        self.ask_with(act, least_generation, None)
    }

    fn ask_with(
        &self,
        act: ReencryptAct,
        least_generation: u64,
        pipe: Option<BorrowedFd<'_>>,
    ) -> Result<Step, ServedError> {
        let path = self.path;
        let Some(client) = Client::connect_to(path, self.supervisor)? else {
            let reason = "the process that exposes it has ended".to_owned();
            return Err(not_reencrypted(path.to_owned(), reason).into());
        };
        match client.ask_with(Request::Reencrypt { act, least_generation }, pipe, ANSWER_WITHIN)? {
            Answer::Reencrypting { is_ready, generation } => Ok(Step { is_ready, generation }),
            Answer::Reencrypted { generation } => Ok(Step { is_ready: true, generation }),
            other => Err(ControlError::of_answer(path, other).into()),
        }
    }
}

/// For a job that has rewritten nothing yet.
fn patience_before<'a>(
    path: &'a Path,
    stop: &'a AtomicBool,
    report: &'a mut dyn FnMut(ReencryptProgress),
) -> Result<Patience<'a, ReencryptProgress>, DatastoreError> {
    let LeftToReencrypt { layers: left_layers, bytes: left_bytes } = whole_to_reencrypt(path)?;
    let before = ReencryptProgress { done_bytes: 0, left_bytes, left_layers };
    Ok(Patience::new(path, stop, before, report, not_reencrypted))
}

fn not_reencrypted(path: PathBuf, reason: String) -> DatastoreError {
    DatastoreError::NotReencrypted { path, reason }
}
