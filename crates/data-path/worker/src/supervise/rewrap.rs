//! Moves an exposed volume to another KEK. The worker is not involved: its keys stay the same.
//!
//! A provider's key is fetched on a separate thread: its servers may not respond, and the volume
//! must be supervised meanwhile. The client waits.

use std::io::{self, PipeReader};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use strongroom_datastore::file::DatastoreError;
use strongroom_keys::{Kek, KekSource, KeyError, Keyring, ProviderKey};

use super::{Supervisor, VolumeSeal, refuse};
use crate::control::{Answer, NewKek};

/// A move that waits for keys.
#[derive(Debug)]
pub struct PendingRewrap {
    least_generation: u64,
    keys: Receiver<Result<Keys, KeyError>>,
    /// Hung up when the keys, or an error, have arrived.
    done: PipeReader,
}

/// The keys of a move.
#[derive(Debug)]
struct Keys {
    /// The volume's present key, if it had to be fetched.
    from: Option<Kek>,
    to: Kek,
}

impl PendingRewrap {
    /// Readable when the move can go on.
    pub fn done(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }
}

impl Supervisor {
    /// Moves the volume to another KEK, or begins to; then the answer comes later. The KEK comes in
    /// a pipe with the request, or is fetched from its provider.
    pub(super) fn rewrap(
        &mut self,
        new: NewKek,
        least_generation: u64,
        pipe: Option<OwnedFd>,
    ) -> Option<Answer> {
        let path = PathBuf::from(self.exposure.head.path());
        if self.rewrap.is_some() || self.snapshot.is_some() {
            let message = match self.snapshot {
                Some(_) => "a snapshot of the volume is being made; try again when it is there".to_owned(),
                None => "the volume is being moved to another key already".to_owned(),
            };
            return Some(Answer::Refused { code: "rewrap".to_owned(), message });
        }
        if let Err(error) = self.check_rewrap(least_generation) {
            return Some(refuse(&error));
        }
        let from = self.exposure.kek.to_fetch().cloned();
        let fetches = from.is_some() || pipe.is_none();
        if !fetches {
            let to = handed_over(new, pipe);
            return Some(self.finish_rewrap(to.map(|to| Keys { from: None, to })));
        }
        match self.fetch(from, new, pipe) {
            Ok((keys, done)) => {
                self.rewrap = Some(PendingRewrap { least_generation, keys, done });
                None
            }
            Err(error) => {
                let message = format!("{}: no thread can be started: {error}", path.display());
                Some(Answer::Refused { code: "rewrap".to_owned(), message })
            }
        }
    }

    /// Finishes a move whose keys have arrived. Returns the answer.
    pub(super) fn go_on_with_rewrap(&mut self) -> Option<Answer> {
        let pending = self.rewrap.as_ref()?;
        let keys = match pending.keys.try_recv() {
            Ok(keys) => keys,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                Err(KeyError::NotHandedOver(io::Error::other("the thread that fetches it has failed")))
            }
        };
        let least_generation = pending.least_generation;
        self.rewrap = None;
        // The volume may have changed meanwhile.
        Some(match self.check_rewrap(least_generation) {
            Ok(()) => self.finish_rewrap(keys),
            Err(error) => refuse(&error),
        })
    }

    fn check_rewrap(&self, least_generation: u64) -> Result<(), DatastoreError> {
        let path = PathBuf::from(self.exposure.head.path());
        self.exposure.head.descriptor().expect_generation(&path, least_generation)?;
        match self.exposure.kek.seal() {
            VolumeSeal::Sealed => Ok(()),
            VolumeSeal::Clear => Err(DatastoreError::NotEncrypted { path }),
            VolumeSeal::Encrypting | VolumeSeal::Decrypting => Err(DatastoreError::Reencrypting { path }),
        }
    }

    /// Fetches the missing keys in the background. Even a key that was revoked as compromised is
    /// provided for this: moving away from it matters most.
    fn fetch(
        &self,
        from: Option<ProviderKey>,
        new: NewKek,
        pipe: Option<OwnedFd>,
    ) -> io::Result<(Receiver<Result<Keys, KeyError>>, PipeReader)> {
        let keyring: Arc<dyn Keyring> = Arc::clone(&self.exposure.keyring);
        let (sender, keys) = channel();
        let (done, at_end) = io::pipe()?;
        let fetch = move || {
            let to = match &new.source {
                KekSource::Provider(key) if pipe.is_none() => {
                    let to = keyring.fetch_to_seal(key)?;
                    to.expect_id(new.id)?;
                    to
                }
                _ => handed_over(new, pipe)?,
            };
            let from = from.map(|key| keyring.fetch_to_leave(&key)).transpose()?;
            Ok(Keys { from, to })
        };
        std::thread::Builder::new().name("rewrap-keys".to_owned()).spawn(move || {
            // If the receiver is gone, the supervisor has ended.
            let _ = sender.send(fetch());
            drop(at_end);
        })?;
        Ok((keys, done))
    }

    fn finish_rewrap(&mut self, keys: Result<Keys, KeyError>) -> Answer {
        let path = PathBuf::from(self.exposure.head.path());
        let key_error = |error| refuse(&DatastoreError::Key { path: path.clone(), error });
        let Keys { from, to } = match keys {
            Ok(keys) => keys,
            Err(error) => return key_error(error),
        };
        let held = match &from {
            Some(_) => None,
            None => match self.exposure.kek.now() {
                Ok(held) => Some(held),
                Err(error) => return key_error(error),
            },
        };
        let from = from.as_ref().or_else(|| held.as_ref()?.kek());
        let Some(from) = from else { return refuse(&DatastoreError::NotEncrypted { path }) };
        let (head, old_kek, kek) = (&mut self.exposure.head, from.id(), to.id());
        let rewrapped = head.rewrap(from, &to);
        drop(held);
        if !head.descriptor().is_under(old_kek) || rewrapped.is_ok() {
            // Even if the last step failed: the next worker needs the key that opens the volume.
            self.exposure.kek.replace(to);
        }
        match rewrapped {
            Ok(()) => {
                let generation = self.exposure.head.descriptor().generation;
                tracing::info!("the volume is under KEK {kek} now, and not under {old_kek} any more");
                self.look_for_key();
                Answer::Rewrapped { old_kek, kek, generation }
            }
            Err(error) => refuse(&error),
        }
    }
}

/// The key that came in a pipe with the request.
pub(super) fn handed_over(new: NewKek, pipe: Option<OwnedFd>) -> Result<Kek, KeyError> {
    let Some(pipe) = pipe else {
        return Err(KeyError::NotHandedOver(io::Error::other("no pipe came with the request")));
    };
    let kek = Kek::from_pipe(pipe, new.source)?;
    kek.expect_id(new.id)?;
    Ok(kek)
}
