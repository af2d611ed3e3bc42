//! Rewrites the volumes of a VM under new data keys, which only its new key wraps.
//!
//! ```text
//! each volume: the mark, between both keys -> layer by layer -> under the new key alone
//! ```
//!
//! A volume that a running VM's guest uses gets a new top first; its layers below are rewritten by
//! a thread of the VM's supervisor, beside the thread that serves it and has both keys meanwhile
//! (`worker/src/reencrypt/served.rs`). All others are rewritten as those of a VM that is off.
//!
//! Between the keys, one key does not open a volume. So a job that fails or is cancelled gives the
//! volume that it is at back to the old key, which rewrites nothing. A job that is killed leaves
//! it, and the repeated request continues with the layer that it was at.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use strongroom_datastore::file::storage::is_gone;
use strongroom_datastore::file::{
    DatastoreError, DescribedVolume, Descriptor, NewTags, Protection, ReencryptOptions,
    authenticated_between_keks, cancel_reencryption, describe, whole_to_reencrypt,
};
use strongroom_host::protocol::{Problem, Progress, ProgressUnit};
use strongroom_keys::Kek;
use strongroom_worker::control::{Answer, Client, MergeAct, Peer, Request};
use strongroom_worker::{
    MergeError, ReencryptProgress, ServedError, ServedVolume, Throttle, cancel_served, reencrypt,
    reencrypt_served,
};

use super::{ANSWER_WITHIN, LeftVolume, Moved, Moving};
use crate::console_log::LogSender;
use crate::guest_client::TELLS_EVERY;
use crate::snapshots::merge_problem;

/// A volume between two keys.
pub(super) struct Rewriting<'a> {
    pub(super) path: &'a Path,
    pub(super) from: &'a Kek,
    pub(super) to: &'a Kek,
    pub(super) lock_wait: Duration,
    pub(super) least_generation: u64,
}

/// Why a job ends early, unless it fails.
enum Halt {
    /// hostd is gone, and the next one repeats the request; or the VM ends.
    HostdGone(Problem),
    /// A person has cancelled it.
    Cancelled,
}

impl Moving<'_> {
    /// Rewrites these volumes. Progress is in bytes that they have allocated.
    pub(super) fn reencrypt_all(
        &self,
        mut left: Vec<LeftVolume<'_>>,
        is_cancelled: &dyn Fn() -> bool,
        log: Option<&LogSender>,
        tell: &mut dyn FnMut(Progress) -> Result<(), Problem>,
    ) -> Result<Vec<Moved>, Problem> {
        // At most one is half done, because volumes are done one after the other. It comes first,
        // so that a job that ends early never leaves it behind.
        left.sort_by_key(|left| left.volume.descriptor.reencrypting.is_none());
        let sizes: Vec<u64> = left.iter().map(|left| size_of(&left.volume)).collect();
        let total = sizes.iter().sum();
        let (mut moved, mut done_bytes) = (Vec::new(), 0_u64);
        for (LeftVolume { volume: DescribedVolume { path, .. }, old }, size_bytes) in
            left.into_iter().zip(sizes)
        {
            let mut tell = |left_bytes: u64| {
                let done = done_bytes + size_bytes.saturating_sub(left_bytes);
                tell(Progress::new(done, total, ProgressUnit::Bytes))
            };
            tell(size_bytes)?;
            let _let_go = self.let_go(&path, log);
            let rewriting = self.rewriting(&path, old)?;
            if is_cancelled() {
                rewriting.give_up()?;
                return Err(cancelled());
            }
            match rewriting.carry_out(is_cancelled, &mut tell) {
                Ok(generation) => moved.push(Moved { path, generation }),
                // A swap disk may disappear at any time.
                Err(_) if is_gone(&path) => {}
                Err(problem) => return Err(problem),
            }
            done_bytes += size_bytes;
        }
        Ok(moved)
    }
}

impl Rewriting<'_> {
    /// The volume's descriptor, authenticated under every key that it names.
    pub(super) fn authenticated(&self) -> Result<Descriptor, DatastoreError> {
        authenticated_between_keks(self.path, &self.options())
    }

    /// Rewrites the volume, or continues with that. `tell` takes the bytes that are left. Returns
    /// the generation of its descriptor.
    fn carry_out(
        &self,
        is_cancelled: &dyn Fn() -> bool,
        tell: &mut dyn FnMut(u64) -> Result<(), Problem>,
    ) -> Result<u64, Problem> {
        let stop = AtomicBool::new(false);
        let mut watch = Watch::new(&stop);
        let mut left_bytes = 0;
        let mut report = |progress: ReencryptProgress| {
            left_bytes = progress.left_bytes;
            watch.look(|| match tell(progress.left_bytes) {
                Err(problem) => Some(Halt::HostdGone(problem)),
                Ok(()) => is_cancelled().then_some(Halt::Cancelled),
            });
        };
        let options = self.options();
        let done = match self.served()? {
            Some(served) => reencrypt_served(served, &options, Throttle::default(), &stop, &mut report)
                .inspect(|_| merge_new_top(self.path, self.least_generation))
                .map_err(|error| self.problem_of_served(error)),
            None => {
                reencrypt(self.path, &options, &stop, &mut report).map_err(|error| self.problem_of(error))
            }
        };
        match (done, watch.halted) {
            (Ok(done), _) => Ok(done.descriptor.generation),
            (Err(_), Some(Halt::HostdGone(problem))) => Err(problem),
            (Err(_), Some(Halt::Cancelled)) => self.give_up().and_then(|()| Err(cancelled())),
            (Err(problem), None) => {
                // A VM that ends is continued when it is off.
                tell(left_bytes)?;
                if let Err(kept) = self.give_up() {
                    tracing::warn!("{} stays between two keys: {kept}", self.path.display());
                }
                Err(problem)
            }
        }
    }

    /// Puts a volume that is not done under its old key, with the data keys that it has.
    pub(super) fn give_up(&self) -> Result<(), Problem> {
        match self.served()? {
            // Its supervisor knows whether it is marked, whatever lies on the datastore.
            Some(served) => cancel_served(served).map_err(|error| self.problem_of_served(error)),
            None if describe(self.path)?.descriptor.reencrypting.is_some() => {
                Ok(cancel_reencryption(self.path, &self.options()).map(drop)?)
            }
            None => Ok(()),
        }
    }

    /// The volume as a thread of this process serves it, if one does.
    fn served(&self) -> Result<Option<ServedVolume<'_>>, Problem> {
        let supervisor = Peer::ThisProcess;
        let served = Client::connect_to(self.path, supervisor)
            .map_err(|error| Problem::new("rekey", error.to_string()))?;
        Ok(served.map(|_| ServedVolume { path: self.path, supervisor }))
    }

    fn options(&self) -> ReencryptOptions<'_> {
        let Self { from, to, lock_wait, least_generation, .. } = *self;
        let (from, to) = (Protection::Encrypted(from), Protection::Encrypted(to));
        ReencryptOptions { from, to, tags: NewTags::Kept, lock_wait, least_generation }
    }

    fn problem_of_served(&self, error: ServedError) -> Problem {
        match error {
            ServedError::Rewrite(error) => self.problem_of(error),
            ServedError::Control(error) => Problem::new(error.code(), error.to_string()),
        }
    }

    fn problem_of(&self, error: MergeError) -> Problem {
        not_rewritten(self.path, error)
    }
}

/// Has the top that a job has put on a served volume merged with the layer below, in the
/// background: otherwise each job would leave one layer more.
pub fn merge_new_top(path: &Path, least_generation: u64) {
    let act = MergeAct::Start { throttle: Throttle::default() };
    let asked = Client::connect_to(path, Peer::ThisProcess).and_then(|client| {
        let request = Request::Merge { act, least_generation };
        client.map(|client| client.ask(request, ANSWER_WITHIN)).transpose()
    });
    match asked {
        Ok(None | Some(Answer::Merging(_) | Answer::NothingToMerge)) => {}
        Ok(Some(other)) => tracing::warn!("{} keeps a layer more: {other:?}", path.display()),
        Err(error) => tracing::warn!("{} keeps a layer more: {error}", path.display()),
    }
}

/// Looks now and then whether there is a reason to halt a job, and then stops it.
pub struct Watch<'job, Halt> {
    /// The reason, once there is one.
    pub halted: Option<Halt>,
    stop: &'job AtomicBool,
    looked: Instant,
}

impl<'job, Halt> Watch<'job, Halt> {
    pub fn new(stop: &'job AtomicBool) -> Self {
        Self { halted: None, stop, looked: Instant::now() }
    }

    /// Looks, if it is time.
    pub fn look(&mut self, reason: impl FnOnce() -> Option<Halt>) {
        if self.halted.is_some() || self.looked.elapsed() < TELLS_EVERY {
            return;
        }
        self.looked = Instant::now();
        self.halted = reason();
        self.stop.store(self.halted.is_some(), Ordering::Relaxed);
    }
}

/// The problem of a volume whose layers are not rewritten.
pub fn not_rewritten(path: &Path, error: MergeError) -> Problem {
    match error {
        MergeError::Datastore(error) => error.into(),
        error => {
            let problem = merge_problem(error);
            let message = format!("{} was not re-encrypted: {problem}", path.display());
            Problem::new("not_reencrypted", message)
        }
    }
}

/// The bytes to rewrite of a volume, for progress.
pub fn size_of(volume: &DescribedVolume) -> u64 {
    whole_to_reencrypt(&volume.path).map_or(0, |whole| whole.bytes)
}

fn cancelled() -> Problem {
    Problem::new("cancelled", "the re-encryption was cancelled")
}
