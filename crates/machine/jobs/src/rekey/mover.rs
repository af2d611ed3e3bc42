//! Moving one volume to another key: by this process, or by the one that exposes it.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use strongroom_datastore::file::{
    DatastoreError, Descriptor, EncryptionRecord, KekRecord, RewrapOptions, describe, rewrap,
};
use strongroom_keys::{Kek, KekSource};
use strongroom_types::{KekId, VolumeId};
use strongroom_worker::control::{Answer, Client, ControlError, NewKek, Request};

use super::journal::{Done, Journal};
use super::new_keys::NewKeys;
use crate::datastores::KnownDatastores;
use crate::error::JobError;
use crate::present_keys::PresentKeys;

/// For an exposed volume's supervisor to fetch the key and write two descriptors.
const ANSWER_WITHIN: Duration = Duration::from_secs(180);

/// What is known of a volume's age.
#[derive(Clone, Copy, Debug, Default)]
pub struct Freshness {
    /// The least generation that its descriptor may have; 0 if none is known.
    pub least_generation: u64,
    /// The key that it is under.
    pub expect_kek: Option<KekId>,
    /// Which volume it is.
    pub expect_volume: Option<VolumeId>,
}

/// How volumes are moved.
pub struct Mover<'a> {
    /// Where their present keys come from.
    pub present: &'a dyn PresentKeys,
    /// Where datastores are noted whose volumes come under a provider's key.
    pub datastores: &'a KnownDatastores,
    /// The key that is replaced; of a volume that is between two keys it may be either. Without it,
    /// the one that the volume is under.
    pub in_place_of: Option<KekId>,
    /// What is known of the volume.
    pub freshness: Freshness,
    /// How long to wait for a process that has the volume.
    pub lock_wait: Duration,
}

/// What one volume has become.
pub struct Moved {
    /// As it is noted.
    pub done: Done,
    /// What its key comes from.
    pub key: String,
    /// The key that it no longer needs.
    pub replaced: Option<ReplacedKek>,
}

/// A key that a volume no longer needs.
#[derive(Debug, PartialEq, Serialize)]
pub struct ReplacedKek {
    /// Its id.
    pub kek_id: String,
    /// What it comes from.
    pub key: String,
}

impl Mover<'_> {
    /// Moves one volume, or goes on with that.
    pub fn move_volume(
        &self,
        path: &Path,
        journal: &mut Journal,
        keys: &mut NewKeys<'_>,
    ) -> Result<Moved, JobError> {
        let descriptor = describe(path)?.descriptor;
        descriptor.expect_volume(path, self.freshness.expect_volume)?;
        let Some(encryption) = &descriptor.encryption else {
            return Err(DatastoreError::NotEncrypted { path: path.to_owned() }.into());
        };
        // What an earlier call has made of it, if any: an older one was put back.
        let known = journal.done(path).filter(|done| done.volume == descriptor.volume);
        let least_generation = known.map_or(0, |done| done.generation).max(self.freshness.least_generation);
        let given = keys.given()?.filter(|given| descriptor.is_under(given.id));
        let begun = encryption.keks().find_map(|record| journal.new_key(record.id)).cloned().or(given);
        let client = Client::connect(path)?;
        // An exposed volume's supervisor has its key. Another volume's is had before a new one
        // is made in vain.
        let from = match (&client, &begun) {
            (None, Some(begun)) if begun.id == encryption.kek.id => None,
            (None, begun) => match self.present.to_leave(path, &descriptor, self.freshness.expect_kek) {
                Ok(key) => key,
                // The new key alone can finish.
                Err(_) if begun.is_some() => None,
                Err(refusal) => return Err(refusal.into()),
            },
            (Some(_), _) => None,
        };
        let to = match &begun {
            Some(record) => keys.get(record)?,
            None => keys.in_place_of(self.in_place_of.unwrap_or(encryption.kek.id), journal)?,
        };
        if matches!(to.source(), KekSource::Provider(_)) {
            self.datastores.note_of_volume(path)?;
        }
        let generation = match client {
            Some(client) => move_exposed(client, path, to, least_generation)?,
            None => {
                let (from, lock_wait) = (from.as_ref().unwrap_or(to), self.lock_wait);
                rewrap(path, &RewrapOptions { from, to, lock_wait, least_generation })?.generation
            }
        };
        Ok(moved(path, &descriptor, encryption, to, generation))
    }
}

/// Has the process that exposes the volume do it; says the generation then. A key that no provider
/// keeps goes there in a pipe.
fn move_exposed(client: Client, path: &Path, to: &Kek, least_generation: u64) -> Result<u64, JobError> {
    let pipe = match to.source() {
        KekSource::Provider(_) => None,
        KekSource::Passphrase(_) | KekSource::KeyFile {} => Some(to.to_pipe().map_err(JobError::Handover)?),
    };
    let new = NewKek { id: to.id(), source: to.source().clone() };
    let request = Request::Rewrap { to: new, least_generation };
    match client.ask_with(request, pipe.as_ref().map(AsFd::as_fd), ANSWER_WITHIN)? {
        Answer::Rewrapped { generation, .. } => Ok(generation),
        other => Err(ControlError::of_answer(path, other).into()),
    }
}

fn moved(
    path: &Path,
    before: &Descriptor,
    encryption: &EncryptionRecord,
    to: &Kek,
    generation: u64,
) -> Moved {
    let (volume, kek): (VolumeId, KekId) = (before.volume, to.id());
    let old: Option<&KekRecord> = encryption.keks().find(|record| record.id != kek);
    let replaced = old.map(|old| ReplacedKek { kek_id: old.id.to_string(), key: old.source.to_string() });
    Moved {
        done: Done { path: path.to_owned(), volume, generation, kek },
        key: to.source().to_string(),
        replaced,
    }
}
