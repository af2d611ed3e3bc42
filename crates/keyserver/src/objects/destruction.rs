//! Destroying a key that volumes rest upon: asked for, waited for, confirmed by a second person, and only then done.
//!
//! ```text
//! schedule ---> waiting ---(delay over, another admin has confirmed, nothing needs the key)---> sweep: tombstone
//!                  |  cancel
//!                  v
//!               as it was, deactivated: what it protects can still be read
//! ```
//!
//! - A key that is scheduled is deactivated in the same transaction: from then on it opens envelopes and makes none.
//! - Whether something needs the key is asked when it is scheduled, when it is confirmed, and again by the sweep; what does
//!   is named. Between the sweep's question and its transaction no new envelope can come, because a deactivated key makes none.
//! - The tombstone and the end of the waiting are one transaction, so a crash leaves a key that waits or a key that is gone.
//!
//! In the store: `destruction/` identifier (16 bytes) → JSON of [`Waiting`], without anything secret.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strongroom_store::{Is, KeyRange, Outcome, Revision, Store, StoreError, Transaction};

use super::clock::UnixSeconds;
use super::id::ObjectId;
use super::keeping::{KeepingError, Objects};
use super::lifecycle::{LifeCycleError, State};
use crate::access::{ClientId, ClientName, Identity};

const PREFIX: &[u8] = b"destruction/";

/// Shortest time that a destruction waits: long enough for a person to see the alarm, and to come.
pub const DELAY_MIN_SECONDS: i64 = 3600;
/// Longest: a cryptoperiod of a year and a bit. Who wants more wants no destruction.
pub const DELAY_MAX_SECONDS: i64 = 400 * 24 * 3600;
/// What suits most: longer than a long weekend and shorter than backups live.
pub const DELAY_DEFAULT_SECONDS: i64 = 7 * 24 * 3600;

/// How often a change is tried again because another came between.
const COMMIT_ATTEMPTS: usize = 16;

/// Knows what can be opened only with a key.
pub trait Dependents: Send + Sync {
    /// Names of everything known that has an envelope under this key: volumes, snapshots, clones, backups, templates.
    ///
    /// # Errors
    ///
    /// Why that cannot be said. Then nothing is destroyed.
    fn of(&self, key: ObjectId) -> Result<Vec<String>, Box<dyn std::error::Error + Send + Sync>>;
}

/// A destruction that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Who asked for it.
    pub requested_by: Person,
    /// When.
    pub requested_at: UnixSeconds,
    /// Before this it is not done.
    pub due: UnixSeconds,
    /// What was given as the reason.
    pub reason: String,
    /// The second person, once there is one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub confirmed_by: Option<Person>,
}

/// Someone, as the certificate named them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Person {
    /// Who.
    pub client: ClientId,
    /// What people call them.
    pub name: ClientName,
}

impl Person {
    fn of(identity: &Identity) -> Self {
        Self { client: identity.client, name: identity.name.clone() }
    }
}

/// Why a destruction is not scheduled, cancelled, confirmed or done.
#[derive(Debug, thiserror::Error)]
pub enum DestructionError {
    /// Something needs the key.
    #[error("the key is still needed by {}: {}", .dependents.len(), .dependents.join(", "))]
    Needed {
        /// What does.
        dependents: Vec<String>,
    },
    /// It cannot be said what needs the key.
    #[error("it cannot be said whether anything needs the key: {0}")]
    Unknown(Box<dyn std::error::Error + Send + Sync>),
    /// It is scheduled already.
    #[error("the destruction is scheduled already, for {due}")]
    AlreadyScheduled {
        /// When it is due.
        due: UnixSeconds,
    },
    /// It is not scheduled.
    #[error("no destruction of this key is scheduled")]
    NotScheduled,
    /// The one who asked for it may not confirm it.
    #[error("the second person must be another than the one who asked for the destruction")]
    SamePerson,
    /// Too soon or too late.
    #[error(
        "a destruction waits for {DELAY_MIN_SECONDS} to {DELAY_MAX_SECONDS} seconds, not {delay_seconds}"
    )]
    Delay {
        /// What was asked for.
        delay_seconds: i64,
    },
    /// The object is destroyed, or is none that is deactivated.
    #[error(transparent)]
    LifeCycle(#[from] LifeCycleError),
    /// The object cannot be read or written.
    #[error(transparent)]
    Keeping(#[from] KeepingError),
    /// The record of the destruction cannot be read.
    #[error("the record of a destruction is damaged: {0}")]
    Damaged(#[from] serde_json::Error),
    /// Others keep changing the same key.
    #[error("others keep changing the same key; try again")]
    Contended,
}

impl From<StoreError> for DestructionError {
    fn from(error: StoreError) -> Self {
        Self::Keeping(error.into())
    }
}

/// What the sweep made of a destruction that is due.
#[derive(Debug)]
pub struct Swept {
    /// Which key.
    pub id: ObjectId,
    /// What was waiting.
    pub waiting: Waiting,
    /// Destroyed, or why not; then it goes on waiting.
    pub result: Result<(), DestructionError>,
}

/// The destructions of a server.
pub struct Destructions {
    store: Arc<dyn Store>,
    objects: Arc<Objects>,
    dependents: Arc<dyn Dependents>,
}

impl Destructions {
    /// Of the objects in `store`, as far as `dependents` lets them go.
    pub fn new(store: Arc<dyn Store>, objects: Arc<Objects>, dependents: Arc<dyn Dependents>) -> Self {
        Self { store, objects, dependents }
    }

    /// Schedules a destruction, and deactivates the key at once.
    ///
    /// # Errors
    ///
    /// [`DestructionError::Delay`], [`DestructionError::Needed`], [`DestructionError::AlreadyScheduled`],
    /// [`DestructionError::LifeCycle`] for a key that is destroyed.
    pub async fn schedule(
        &self,
        by: &Identity,
        id: ObjectId,
        delay_seconds: i64,
        reason: &str,
    ) -> Result<Waiting, DestructionError> {
        if !(DELAY_MIN_SECONDS..=DELAY_MAX_SECONDS).contains(&delay_seconds) {
            return Err(DestructionError::Delay { delay_seconds });
        }
        self.check_unneeded(id)?;
        for _ in 0..COMMIT_ATTEMPTS {
            if let Some((waiting, _)) = self.read(id)? {
                return Err(DestructionError::AlreadyScheduled { due: waiting.due });
            }
            let (waiting, transaction) = {
                let mut work = self.objects.begin()?;
                let now = work.now();
                let mut object = work.load(id)?;
                match object.life.state_at(now) {
                    State::Active => object.life.deactivate(now)?,
                    state @ (State::Destroyed | State::DestroyedCompromised) => {
                        return Err(LifeCycleError::NoTransition { state, asked: "destroyed" }.into());
                    }
                    // Nothing was ever protected with it, or nothing can be any more.
                    State::PreActive | State::Deactivated | State::Compromised => {}
                }
                object.touch(now);
                work.replace(object)?;
                let waiting = Waiting {
                    requested_by: Person::of(by),
                    requested_at: now,
                    due: now.plus_seconds(delay_seconds),
                    reason: reason.to_owned(),
                    confirmed_by: None,
                };
                let transaction = work.into_transaction()?;
                let value = serde_json::to_vec(&waiting)?;
                (waiting, transaction.when(key_of(id), Is::Absent).put(key_of(id), value))
            };
            if self.objects.commit(transaction).await? {
                return Ok(waiting);
            }
        }
        Err(DestructionError::Contended)
    }

    /// Takes a destruction back. The key stays deactivated: it opens what it has sealed.
    ///
    /// # Errors
    ///
    /// [`DestructionError::NotScheduled`].
    pub async fn cancel(&self, id: ObjectId) -> Result<Waiting, DestructionError> {
        for _ in 0..COMMIT_ATTEMPTS {
            let (waiting, revision) = self.read(id)?.ok_or(DestructionError::NotScheduled)?;
            let transaction =
                Transaction::new().when(key_of(id), Is::ModifiedAt(revision)).delete(key_of(id));
            if self.commit(transaction).await? {
                return Ok(waiting);
            }
        }
        Err(DestructionError::Contended)
    }

    /// The second person's word.
    ///
    /// # Errors
    ///
    /// [`DestructionError::NotScheduled`], [`DestructionError::SamePerson`], [`DestructionError::Needed`].
    pub async fn confirm(&self, by: &Identity, id: ObjectId) -> Result<Waiting, DestructionError> {
        self.check_unneeded(id)?;
        for _ in 0..COMMIT_ATTEMPTS {
            let (mut waiting, revision) = self.read(id)?.ok_or(DestructionError::NotScheduled)?;
            if waiting.requested_by.client == by.client {
                return Err(DestructionError::SamePerson);
            }
            waiting.confirmed_by = Some(Person::of(by));
            let value = serde_json::to_vec(&waiting)?;
            let transaction =
                Transaction::new().when(key_of(id), Is::ModifiedAt(revision)).put(key_of(id), value);
            if self.commit(transaction).await? {
                return Ok(waiting);
            }
        }
        Err(DestructionError::Contended)
    }

    /// Everything that waits, by identifier.
    ///
    /// # Errors
    ///
    /// [`DestructionError::Keeping`], [`DestructionError::Damaged`].
    pub fn waiting(&self) -> Result<Vec<(ObjectId, Waiting)>, DestructionError> {
        let entries = self.store.snapshot()?.all(&KeyRange::prefix(PREFIX))?;
        let identified = entries.iter().filter_map(|entry| {
            let id = entry.key.strip_prefix(PREFIX)?.try_into().ok().map(ObjectId::from_bytes)?;
            Some((id, &entry.value))
        });
        identified.map(|(id, value)| Ok((id, serde_json::from_slice(value)?))).collect()
    }

    /// Does what is due and confirmed. For a timer; once a minute is plenty, and a missed one does no harm.
    ///
    /// # Errors
    ///
    /// As [`Destructions::waiting`]; what becomes of each key is in the answer.
    pub async fn sweep(&self) -> Result<Vec<Swept>, DestructionError> {
        let now = self.objects.now();
        let mut swept = Vec::new();
        for (id, waiting) in self.waiting()? {
            if waiting.due <= now && waiting.confirmed_by.is_some() {
                let result = self.destroy(id).await;
                swept.push(Swept { id, waiting, result });
            }
        }
        Ok(swept)
    }

    async fn destroy(&self, id: ObjectId) -> Result<(), DestructionError> {
        for _ in 0..COMMIT_ATTEMPTS {
            // It may have been cancelled, and scheduled again, since it was listed.
            let (waiting, revision) = self.read(id)?.ok_or(DestructionError::NotScheduled)?;
            if waiting.due > self.objects.now() || waiting.confirmed_by.is_none() {
                return Err(DestructionError::NotScheduled);
            }
            self.check_unneeded(id)?;
            let transaction = {
                let mut work = self.objects.begin()?;
                let mut object = work.load(id)?;
                if !object.is_destroyed() {
                    object.destroy(work.now())?;
                    work.replace(object)?;
                }
                work.into_transaction()?
            };
            let transaction = transaction.when(key_of(id), Is::ModifiedAt(revision)).delete(key_of(id));
            if self.objects.commit(transaction).await? {
                return Ok(());
            }
        }
        Err(DestructionError::Contended)
    }

    fn check_unneeded(&self, id: ObjectId) -> Result<(), DestructionError> {
        let dependents = self.dependents.of(id).map_err(DestructionError::Unknown)?;
        if dependents.is_empty() { Ok(()) } else { Err(DestructionError::Needed { dependents }) }
    }

    fn read(&self, id: ObjectId) -> Result<Option<(Waiting, Revision)>, DestructionError> {
        let entry = self.store.get(&key_of(id))?;
        entry.map(|entry| Ok((serde_json::from_slice(&entry.value)?, entry.mod_revision))).transpose()
    }

    async fn commit(&self, transaction: Transaction) -> Result<bool, DestructionError> {
        Ok(matches!(self.store.submit(transaction).await?, Outcome::Committed(_)))
    }
}

fn key_of(id: ObjectId) -> Vec<u8> {
    [PREFIX, id.as_bytes()].concat()
}
