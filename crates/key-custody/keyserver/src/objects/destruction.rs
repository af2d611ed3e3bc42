//! Destruction of a key that volumes may depend on: requested, delayed, confirmed by a second
//! person, and only then carried out.
//!
//! ```text
//! schedule ---> waiting ---(delay over, another admin has confirmed, nothing needs the key)---> sweep: tombstone
//!                  |  cancel
//!                  v
//!               as it was, deactivated: what it protects can still be read
//! ```
//!
//! - Scheduling deactivates the key in the same transaction: from then on it opens envelopes and
//!   seals none.
//! - Dependents are checked when the destruction is scheduled, when it is confirmed, and again by
//!   the sweep; a refusal names them. Between the sweep's check and its transaction no new envelope
//!   can appear, because a deactivated key seals none.
//! - The tombstone is written and the pending record deleted in one transaction, so a crash leaves
//!   either a pending or a destroyed key.
//!
//! In the store: `destruction/` identifier (16 bytes) → JSON of [`Waiting`], which holds nothing
//! secret.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strongroom_store::{Is, KeyRange, Outcome, Revision, Store, StoreError, Transaction};
use tokio::sync::{Mutex, MutexGuard, Notify};

use super::clock::UnixSeconds;
use super::dependents::{Inquiry, Unknown};
use super::id::ObjectId;
use super::keeping::{KeepingError, Objects};
use super::lifecycle::{LifeCycleError, State};
use crate::access::{ClientId, ClientName, Identity};
use crate::grant::{RedeemError, ledger};

pub(crate) const PREFIX: &[u8] = b"destruction/";

/// Default of the shortest delay: long enough for a person to notice the alarm and to act.
pub const DELAY_MIN_SECONDS: i64 = 3600;
/// Longest delay: a cryptoperiod of a year and a bit.
pub const DELAY_MAX_SECONDS: i64 = 400 * 24 * 3600;
/// Default delay: longer than a long weekend and shorter than backups are kept.
pub const DELAY_DEFAULT_SECONDS: i64 = 7 * 24 * 3600;

/// Longest reason, in bytes: it goes on record.
pub const REASON_MAX_BYTES: usize = 512;

/// How many dependents a refusal names; a list of thousands is of no use.
const NAMED_MAX: usize = 20;

/// How often a change is retried after a conflict.
const COMMIT_ATTEMPTS: usize = 16;

/// A pending destruction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// The requester.
    pub requested_by: Person,
    /// When it was requested.
    pub requested_at: UnixSeconds,
    /// The earliest time of the destruction.
    pub due: UnixSeconds,
    /// The reason given.
    pub reason: String,
    /// The second person, once there is one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub confirmed_by: Option<Person>,
}

/// A person, as the certificate names them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Person {
    /// The client.
    pub client: ClientId,
    /// The name for people.
    pub name: ClientName,
}

impl std::fmt::Display for Person {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} ({})", self.name, self.client)
    }
}

impl Person {
    fn of(identity: &Identity) -> Self {
        Self { client: identity.client, name: identity.name.clone() }
    }
}

/// Why a destruction was not scheduled, cancelled, confirmed or carried out.
#[derive(Debug, thiserror::Error)]
pub enum DestructionError {
    /// The key has dependents.
    #[error("the key is still needed by {}: {}", .dependents.len(), named(.dependents))]
    Needed {
        /// Their names.
        dependents: Vec<String>,
    },
    /// Linked clones have content that was under the key.
    #[error(
        "linked clones have what they share with its VM under their own keys, so it is not gone with this one: {}; delete them \
         first, or destroy the key with --leave-to-clones",
        named(.clones)
    )]
    LeftToClones {
        /// Their names.
        clones: Vec<String>,
    },
    /// The VM of the key cannot be read.
    #[error(transparent)]
    Ledger(#[from] RedeemError),
    /// The key's dependents are unknown.
    #[error("it cannot be said whether anything needs the key: {0}")]
    Unknown(#[from] Unknown),
    /// It is scheduled already.
    #[error("the destruction is scheduled already, for {due}")]
    AlreadyScheduled {
        /// When it is due.
        due: UnixSeconds,
    },
    /// It is not scheduled.
    #[error("no destruction of this key is scheduled")]
    NotScheduled,
    /// The requester may not confirm it.
    #[error("the second person must be another than the one who asked for the destruction")]
    SamePerson,
    /// The delay is too short or too long.
    #[error("a destruction waits for {least_seconds} to {DELAY_MAX_SECONDS} seconds, not {delay_seconds}")]
    Delay {
        /// The requested delay.
        delay_seconds: i64,
        /// The least at this server.
        least_seconds: i64,
    },
    /// The reason is too long for the record.
    #[error("a reason has at most {REASON_MAX_BYTES} bytes, not {0}")]
    Reason(usize),
    /// The object is destroyed, or of a type that cannot be deactivated.
    #[error(transparent)]
    LifeCycle(#[from] LifeCycleError),
    /// The object cannot be read or written.
    #[error(transparent)]
    Keeping(#[from] KeepingError),
    /// The record of the destruction cannot be read.
    #[error("the record of a destruction is damaged: {0}")]
    Damaged(#[from] serde_json::Error),
    /// Every attempt conflicted with a concurrent change.
    #[error("others keep changing the same key; try again")]
    Contended,
}

impl DestructionError {
    /// A code for programs, which never changes.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Needed { .. } => "needed",
            Self::LeftToClones { .. } => "left-to-clones",
            Self::Unknown(_) => "needs-unknown",
            Self::AlreadyScheduled { .. } => "already-scheduled",
            Self::NotScheduled => "not-scheduled",
            Self::SamePerson => "same-person",
            Self::Delay { .. } => "delay",
            Self::Reason(_) => "reason",
            Self::LifeCycle(_) => "life-cycle",
            Self::Keeping(KeepingError::NotFound { .. }) => "no-such-object",
            Self::Keeping(_) | Self::Ledger(_) => "store",
            Self::Damaged(_) => "damaged",
            Self::Contended => "contended",
        }
    }
}

/// The first few dependents, for a message.
pub(crate) fn named(dependents: &[String]) -> String {
    let first = dependents.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match dependents.len().saturating_sub(NAMED_MAX) {
        0 => first,
        more => format!("{first}, and {more} more"),
    }
}

impl From<StoreError> for DestructionError {
    fn from(error: StoreError) -> Self {
        Self::Keeping(error.into())
    }
}

/// The destructions of a server.
pub struct Destructions {
    store: Arc<dyn Store>,
    objects: Arc<Objects>,
    inquiry: Arc<Inquiry>,
    delay_min_seconds: i64,
    /// Notified of each confirmation.
    confirmed: Notify,
    /// Held while a confirmation may be in the store and not on record yet.
    confirming: Mutex<()>,
}

impl Destructions {
    /// The destructions of objects in `store`, subject to the dependents that `inquiry` finds.
    pub fn new(store: Arc<dyn Store>, objects: Arc<Objects>, inquiry: Arc<Inquiry>) -> Self {
        let delay_min_seconds = DELAY_MIN_SECONDS;
        Self {
            store,
            objects,
            inquiry,
            delay_min_seconds,
            confirmed: Notify::new(),
            confirming: Mutex::default(),
        }
    }

    /// The same with a minimum delay other than [`DELAY_MIN_SECONDS`]; at least 1 second.
    #[must_use]
    pub fn with_delay_min(self, seconds: i64) -> Self {
        Self { delay_min_seconds: seconds.clamp(1, DELAY_MAX_SECONDS), ..self }
    }

    /// A warning for a server with a minimum delay below [`DELAY_MIN_SECONDS`].
    pub fn delay_warning(&self) -> Option<String> {
        let Self { delay_min_seconds, .. } = self;
        (*delay_min_seconds < DELAY_MIN_SECONDS).then(|| {
            format!(
                "destructions may wait for {delay_min_seconds} s only; that is for trying them, \
                 start the server without --destroy-delay-min"
            )
        })
    }

    /// Schedules a destruction, and deactivates the key at once.
    ///
    /// # Errors
    ///
    /// [`DestructionError::Delay`], [`DestructionError::Needed`],
    /// [`DestructionError::AlreadyScheduled`], [`DestructionError::LifeCycle`] for a key that is
    /// destroyed.
    pub async fn schedule(
        &self,
        by: &Identity,
        id: ObjectId,
        delay_seconds: i64,
        reason: &str,
    ) -> Result<Waiting, DestructionError> {
        let least_seconds = self.delay_min_seconds;
        if !(least_seconds..=DELAY_MAX_SECONDS).contains(&delay_seconds) {
            return Err(DestructionError::Delay { delay_seconds, least_seconds });
        }
        if reason.len() > REASON_MAX_BYTES {
            return Err(DestructionError::Reason(reason.len()));
        }
        // A missing key is reported before its dependents are searched.
        self.objects.begin()?.load(id)?;
        self.check_unneeded(id).await?;
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
                    // The key never protected anything, or no longer can.
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

    /// Cancels a destruction. The key stays deactivated: it still opens envelopes.
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

    /// Blocks [due](Self::due) destructions while the guard is held: from before a confirmation
    /// until it is on record, so that no key is destroyed on an unrecorded confirmation.
    pub async fn begin_confirming(&self) -> MutexGuard<'_, ()> {
        self.confirming.lock().await
    }

    /// Records the second person's confirmation.
    ///
    /// # Errors
    ///
    /// [`DestructionError::NotScheduled`], [`DestructionError::SamePerson`],
    /// [`DestructionError::Needed`].
    pub async fn confirm(&self, by: &Identity, id: ObjectId) -> Result<Waiting, DestructionError> {
        self.check_unneeded(id).await?;
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
                self.confirmed.notify_one();
                return Ok(waiting);
            }
        }
        Err(DestructionError::Contended)
    }

    /// All pending destructions, by identifier.
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

    /// The destructions that are due and confirmed, with each confirmation on record.
    ///
    /// # Errors
    ///
    /// As [`Destructions::waiting`].
    pub async fn due(&self) -> Result<Vec<(ObjectId, Waiting)>, DestructionError> {
        let _all_on_record = self.confirming.lock().await;
        let now = self.objects.now();
        let mut waiting = self.waiting()?;
        waiting.retain(|(_, waiting)| waiting.due <= now && waiting.confirmed_by.is_some());
        Ok(waiting)
    }

    /// Seconds until the next confirmed destruction falls due; `None` if there is none.
    ///
    /// # Errors
    ///
    /// As [`Destructions::waiting`].
    pub fn next_due_in_seconds(&self) -> Result<Option<u64>, DestructionError> {
        let now = self.objects.now();
        let confirmed = self.waiting()?.into_iter().filter(|(_, waiting)| waiting.confirmed_by.is_some());
        let left = confirmed.map(|(_, waiting)| waiting.due.seconds_since(now)).filter(|left| *left > 0);
        Ok(left.map(i64::unsigned_abs).min())
    }

    /// Waits until a destruction is confirmed.
    pub async fn confirmed(&self) {
        self.confirmed.notified().await;
    }

    /// Destroys a key whose destruction is due and confirmed. On failure the destruction stays
    /// pending.
    ///
    /// # Errors
    ///
    /// [`DestructionError::NotScheduled`] if it was cancelled, or rescheduled;
    /// [`DestructionError::Needed`], [`DestructionError::Unknown`].
    pub async fn carry_out(&self, id: ObjectId) -> Result<(), DestructionError> {
        for _ in 0..COMMIT_ATTEMPTS {
            // It may have been cancelled, and scheduled again, since it was listed.
            let (waiting, revision) = self.read(id)?.ok_or(DestructionError::NotScheduled)?;
            if waiting.due > self.objects.now() || waiting.confirmed_by.is_none() {
                return Err(DestructionError::NotScheduled);
            }
            self.check_unneeded(id).await?;
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

    /// Refuses if the key has dependents, or they are unknown.
    ///
    /// # Errors
    ///
    /// [`DestructionError::Needed`], [`DestructionError::Unknown`].
    pub async fn check_unneeded(&self, id: ObjectId) -> Result<(), DestructionError> {
        let dependents = self.dependents(id).await?;
        if dependents.is_empty() { Ok(()) } else { Err(DestructionError::Needed { dependents }) }
    }

    /// Names of all known dependents of the key.
    ///
    /// # Errors
    ///
    /// [`Unknown`].
    pub async fn dependents(&self, id: ObjectId) -> Result<Vec<String>, Unknown> {
        self.inquiry.of(id).await
    }

    /// Refuses if linked clones have content of the VM that the key was made for.
    ///
    /// # Errors
    ///
    /// [`DestructionError::LeftToClones`], [`DestructionError::Unknown`].
    pub async fn check_clones(&self, id: ObjectId) -> Result<(), DestructionError> {
        let Some(vm) = ledger::vm_of(&*self.store, &id.to_string())? else { return Ok(()) };
        let clones = self.inquiry.clones_of(vm).await?;
        if clones.is_empty() { Ok(()) } else { Err(DestructionError::LeftToClones { clones }) }
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
