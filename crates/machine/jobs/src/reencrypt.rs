//! A volume with all its snapshots gets other data keys, its first ones, or none: every block is
//! rewritten. The volume itself records how far that is (`datastore/file/reencrypt`), so the same
//! call goes on after a kill.
//!
//! In this order: the wish for a new key-encryption key is noted, durably, if one is wanted; the
//! key is made, noted, and fetched again; then each layer is rewritten under it.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::Serialize;
use strongroom_datastore::file::{
    DatastoreError, Descriptor, KekRecord, NewTags, Protection, ReencryptOptions, cancel_reencryption,
    clear_bytes, describe,
};
use strongroom_keys::{Kek, KekSource, Keyring, ProviderKey};
use strongroom_types::{KekId, KeyEpoch, VolumeId};
use strongroom_worker::control::{Client, Peer};
use strongroom_worker::{
    MergeError, ReencryptProgress, Reencrypted, ServedError, ServedVolume, Throttle, TransferError,
    reencrypt, reencrypt_served,
};

use crate::datastores::{KnownDatastores, provider_key};
use crate::error::JobError;
use crate::present_keys::PresentKeys;
use crate::rekey::{Done, Freshness, Journal, NewKeySource, NewKeys, ReplacedKek};

/// What a volume is re-encrypted to.
#[derive(Clone, Copy)]
pub enum NewSeal<'a> {
    /// New data keys under the KEK that it has.
    SameKek,
    /// New data keys under a new KEK.
    NewKek(&'a NewKeySource<'a>),
    /// Data keys, for a volume that is clear, under a new KEK.
    FirstKek(&'a NewKeySource<'a>),
    /// No encryption.
    Clear,
}

/// What a volume's layers are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Encrypted,
    Clear,
    /// Some of each: a job is under way.
    Mixed,
}

impl State {
    fn of(descriptor: &Descriptor) -> Self {
        let clear = descriptor.layers.iter().filter(|layer| layer.epochs.is_empty()).count();
        match clear {
            0 => Self::Encrypted,
            _ if clear == descriptor.layers.len() => Self::Clear,
            _ => Self::Mixed,
        }
    }
}

/// A job.
pub struct Reencrypt<'a> {
    /// Where jobs are noted.
    pub home: &'a Path,
    /// The volume.
    pub path: &'a Path,
    /// What it will be under.
    pub to: NewSeal<'a>,
    /// How the rewritten layers are tagged.
    pub tags: NewTags,
    /// Whatever reaches the key providers.
    pub keyring: &'a dyn Keyring,
    /// Where its present key comes from.
    pub present: &'a dyn PresentKeys,
    /// What is known of the volume.
    pub freshness: Freshness,
    /// How long to wait for a process that has it.
    pub lock_wait: Duration,
    /// How the job shares the machine with the clients of an exposed volume.
    pub throttle: Throttle,
    /// Set when a person wants the job to stop.
    pub stop: &'a AtomicBool,
}

/// What has become of the volume.
#[derive(Debug, Serialize)]
pub struct ReencryptedVolume {
    /// Where it is.
    pub path: PathBuf,
    /// Its id.
    pub volume_id: String,
    /// The key that it is under; none if it is clear.
    pub kek_id: Option<String>,
    /// What that key comes from.
    pub key: Option<String>,
    /// The least generation of it from now on.
    pub generation: u64,
    /// Whether the job was ended before all layers were done.
    pub cancelled: bool,
    /// Bytes that this call has written.
    pub rewritten_bytes: u64,
    /// Layers that this call has rewritten.
    pub rewritten_layers: usize,
    /// Of these, those that other volumes have too, which keep them under the old data keys.
    pub kept_by_others: usize,
    /// The key that it no longer needs.
    pub replaced_kek: Option<ReplacedKek>,
    /// What a key server is told of the job.
    #[serde(skip)]
    pub facts: RewriteFacts,
}

/// A completed job, for the records of a key server.
#[derive(Debug)]
pub struct RewriteFacts {
    /// The volume.
    pub volume: VolumeId,
    /// The provider's key that it was under.
    pub from: Option<ProviderKey>,
    /// The provider's key that it is under.
    pub to: Option<ProviderKey>,
    /// The first epoch of its data keys; `None` if it is clear.
    pub first_epoch: Option<KeyEpoch>,
    /// Whether an earlier call had begun: what became of its layers is not known.
    pub is_resumed: bool,
    /// Bytes that clear layers had allocated before; `None` if there were none.
    pub clear_bytes: Option<u64>,
}

/// The keys at both ends of the job; none at a clear end.
#[derive(Clone, Copy)]
struct Ends<'a> {
    from: Option<&'a Kek>,
    to: Option<&'a Kek>,
}

impl Reencrypt<'_> {
    /// Re-encrypts the volume, or goes on with that.
    ///
    /// # Errors
    /// [`JobError::NothingToDo`]; [`JobError::Interrupted`], after which the same call goes on; and
    /// what keeps the volume from being rewritten.
    pub fn carry_out(
        &self,
        report: &mut dyn FnMut(ReencryptProgress),
    ) -> Result<ReencryptedVolume, JobError> {
        let descriptor = self.described()?;
        match (self.to, State::of(&descriptor)) {
            (NewSeal::SameKek | NewSeal::NewKek(_), State::Clear) => {
                Err(DatastoreError::NotEncrypted { path: self.path.to_owned() }.into())
            }
            (NewSeal::SameKek | NewSeal::NewKek(_), State::Mixed) => {
                Err(DatastoreError::HalfClear { path: self.path.to_owned() }.into())
            }
            (NewSeal::FirstKek(_), State::Encrypted) if descriptor.reencrypting.is_none() => {
                Err(self.nothing_to_do("encrypted"))
            }
            (NewSeal::Clear, State::Clear) if descriptor.encryption.is_none() => {
                Err(self.nothing_to_do("not encrypted"))
            }
            (NewSeal::SameKek, State::Encrypted) => {
                let kek = self.present_key(&descriptor)?;
                self.run(&descriptor, Ends { from: kek.as_ref(), to: kek.as_ref() }, report)
            }
            (NewSeal::Clear, _) => {
                let kek = self.present_key(&descriptor)?;
                self.run(&descriptor, Ends { from: kek.as_ref(), to: None }, report)
            }
            (NewSeal::NewKek(source) | NewSeal::FirstKek(source), _) => {
                self.to_new_key(source, &descriptor, report)
            }
        }
    }

    /// Re-encrypts the volume under a new KEK, which is made if the job has not begun.
    fn to_new_key(
        &self,
        source: &NewKeySource<'_>,
        descriptor: &Descriptor,
        report: &mut dyn FnMut(ReencryptProgress),
    ) -> Result<ReencryptedVolume, JobError> {
        let mut keys = NewKeys::new(source, self.keyring);
        let scope = format!("data of {} to {}", self.path.display(), keys.identity()?);
        let mut journal = Journal::open(self.home, &scope)?;
        let (encryption, is_begun) = (descriptor.encryption.as_ref(), descriptor.reencrypting.is_some());
        let known = journal.done(self.path).filter(|done| done.volume == descriptor.volume);
        if !is_begun && known.is_some_and(|done| descriptor.is_under(done.kek)) {
            // An earlier call was killed after the volume was done.
            journal.finish()?;
            return Ok(self.answer(descriptor, Reencrypted::of(descriptor.clone())));
        }
        // A job that a former release began has moved a served volume to its new KEK first.
        let is_moved = encryption.is_some_and(|encryption| journal.new_key(encryption.kek.id).is_some());
        let begun = encryption.filter(|_| is_begun || is_moved).and_then(|encryption| match self.to {
            // A volume that was clear is under its new key from the beginning.
            NewSeal::FirstKek(_) => Some(&encryption.kek),
            _ if is_moved && encryption.next_kek.is_none() => Some(&encryption.kek),
            _ => encryption.next_kek.as_ref(),
        });
        let needs_none = matches!(self.to, NewSeal::FirstKek(_)) || is_moved;
        let from = if needs_none { None } else { self.present_key(descriptor)? };
        let to = match begun {
            Some(record) => keys.get(record)?,
            // A clear volume has no key whose place the new one takes; its own id stands for that.
            None => {
                let old = encryption.map(|encryption| encryption.kek.id);
                let place = old.unwrap_or_else(|| KekId::from_bytes(*descriptor.volume.as_bytes()));
                keys.in_place_of(place, &mut journal)?
            }
        };
        if matches!(to.source(), KekSource::Provider(_)) {
            KnownDatastores::of_home(self.home).note_of_volume(self.path)?;
        }
        let from = match self.to {
            NewSeal::FirstKek(_) => None,
            _ => Some(from.as_ref().unwrap_or(to)),
        };
        let kek = to.id();
        let done = self.run(descriptor, Ends { from, to: Some(to) }, report)?;
        journal.set_done(Done {
            path: self.path.to_owned(),
            volume: descriptor.volume,
            generation: done.generation,
            kek,
        })?;
        journal.finish()?;
        Ok(done)
    }

    /// Ends a job that is not finished: the volume stays under the key that it had.
    ///
    /// # Errors
    /// Those of [`cancel_reencryption`], and what keeps the keys from being had.
    pub fn cancel(&self) -> Result<ReencryptedVolume, JobError> {
        let descriptor = self.described()?;
        let present = self.present_key(&descriptor)?;
        let next = descriptor.encryption.as_ref().and_then(|encryption| encryption.next_kek.clone());
        let next = next.map(|record| self.new_key(&record)).transpose()?;
        let ends = match (State::of(&descriptor), &next) {
            (State::Clear, _) => Ends { from: None, to: present.as_ref() },
            (_, Some(next)) => Ends { from: present.as_ref(), to: Some(next) },
            (_, None) => Ends { from: present.as_ref(), to: present.as_ref() },
        };
        let cancelled = cancel_reencryption(self.path, &self.options(ends))?;
        let kept = Reencrypted::of(cancelled);
        Ok(ReencryptedVolume { cancelled: true, ..self.answer(&descriptor, kept) })
    }

    fn described(&self) -> Result<Descriptor, JobError> {
        let descriptor = describe(self.path)?.descriptor;
        descriptor.expect_volume(self.path, self.freshness.expect_volume)?;
        Ok(descriptor)
    }

    /// The key that the volume is under; none of a clear one.
    fn present_key(&self, descriptor: &Descriptor) -> Result<Option<Kek>, JobError> {
        let Some(encryption) = &descriptor.encryption else { return Ok(None) };
        let expected = self.freshness.expect_kek.or(Some(encryption.kek.id));
        Ok(self.present.to_leave(self.path, descriptor, expected)?)
    }

    /// The new key of a job that was begun.
    fn new_key(&self, record: &KekRecord) -> Result<Kek, JobError> {
        if let KekSource::Provider(key) = &record.source {
            return Ok(self.keyring.fetch_to_seal(key)?);
        }
        let (NewSeal::NewKek(source) | NewSeal::FirstKek(source)) = self.to else {
            let (missing, source_name) = (record.id, record.source.to_string());
            return Err(
                DatastoreError::BetweenKeys { path: self.path.to_owned(), missing, source_name }.into()
            );
        };
        NewKeys::new(source, self.keyring).take(record)
    }

    fn options<'k>(&self, ends: Ends<'k>) -> ReencryptOptions<'k> {
        let protection = |kek: Option<&'k Kek>| kek.map_or(Protection::Unencrypted, Protection::Encrypted);
        ReencryptOptions {
            from: protection(ends.from),
            to: protection(ends.to),
            tags: self.tags,
            lock_wait: self.lock_wait,
            least_generation: self.freshness.least_generation,
        }
    }

    fn run(
        &self,
        before: &Descriptor,
        ends: Ends<'_>,
        report: &mut dyn FnMut(ReencryptProgress),
    ) -> Result<ReencryptedVolume, JobError> {
        let options = self.options(ends);
        let not_rewritten = |error: MergeError| match error {
            MergeError::Datastore(error) => JobError::Datastore(error),
            MergeError::Transfer(TransferError::Stopped) => JobError::Interrupted,
            error => JobError::NotRewritten { path: self.path.to_owned(), error: Box::new(error) },
        };
        let is_exposed = Client::connect(self.path)?.is_some();
        let clear_bytes = clear_bytes(self.path)?;
        let done = match is_exposed {
            false => reencrypt(self.path, &options, self.stop, report).map_err(not_rewritten)?,
            true => {
                let served = ServedVolume { path: self.path, supervisor: Peer::Trusted };
                let done = reencrypt_served(served, &options, self.throttle, self.stop, report);
                done.map_err(|error| match error {
                    ServedError::Rewrite(error) => not_rewritten(error),
                    ServedError::Control(error) => JobError::Control(error),
                })?
            }
        };
        let mut answer = self.answer(before, done);
        answer.facts.clear_bytes = clear_bytes;
        Ok(answer)
    }

    fn answer(&self, before: &Descriptor, done: Reencrypted) -> ReencryptedVolume {
        let Reencrypted { descriptor, rewritten_bytes, rewritten_layers, kept_by_others } = done;
        let now = descriptor.encryption.as_ref().map(|encryption| &encryption.kek);
        let old = before.encryption.as_ref().map(|encryption| &encryption.kek);
        let replaced = old.filter(|old| now.is_none_or(|now| now.id != old.id));
        ReencryptedVolume {
            path: self.path.to_owned(),
            volume_id: descriptor.volume.to_string(),
            kek_id: now.map(|record| record.id.to_string()),
            key: now.map(|record| record.source.to_string()),
            generation: descriptor.generation,
            cancelled: false,
            rewritten_bytes,
            rewritten_layers,
            kept_by_others,
            facts: RewriteFacts {
                volume: descriptor.volume,
                from: old.and_then(|old| provider_key(&old.source)).cloned(),
                to: now.and_then(|now| provider_key(&now.source)).cloned(),
                first_epoch: descriptor
                    .layers
                    .iter()
                    .flat_map(|layer| &layer.epochs)
                    .map(|of| of.epoch)
                    .min(),
                is_resumed: before.reencrypting.is_some(),
                clear_bytes: None,
            },
            replaced_kek: replaced
                .map(|old| ReplacedKek { kek_id: old.id.to_string(), key: old.source.to_string() }),
        }
    }

    fn nothing_to_do(&self, state: &'static str) -> JobError {
        JobError::NothingToDo { path: self.path.to_owned(), state }
    }
}
