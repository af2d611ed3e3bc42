//! Transfers keys from one client to another: one administrator proposes it, and another confirms.
//!
//! | key in the store | value |
//! |---|---|
//! | `hand-over/` id (16 bytes) | JSON of [`Proposal`], until it is done or cancelled |
//!
//! **Why two**: a key's owner can fetch it, and an administrator can enrol an owner.
//!
//! **Order**: check that all keys may be handed over; record the hand-over with each key; move each
//! key, with its names, in a transaction of its own; delete the proposal. An interrupted hand-over
//! continues when it is confirmed again: keys already moved stay moved.

use serde::{Deserialize, Serialize};
use strongroom_audit::{Actor, Outcome, Record};
use strongroom_store::{KeyRange, Transaction};
use uuid::Uuid;

use super::protocol::HandOverAnswer;
use super::questions::ProposeHandOver;
use super::{Management, about, failed, refused, refused_by_server};
use crate::access::{ClientId, Identity, Role};
use crate::authority::enrol::server::Unanswered;
use crate::objects::destruction::Person;
use crate::objects::id::ObjectId;
use crate::objects::keeping::{KeepingError, Work};

pub(crate) const PREFIX: &[u8] = b"hand-over/";

/// Most keys of one hand-over: as many as one record names.
const KEYS_MAX: usize = strongroom_audit::limits::OBJECTS_MAX;

/// Most pending hand-overs.
const WAITING_MAX: usize = 64;

/// How often moving a key is retried because its owner changed it meanwhile.
const ATTEMPTS: usize = 32;

/// A client as the authority knows it.
struct Known {
    person: Person,
    role: Role,
    is_revoked: bool,
}

/// One administrator's proposal.
#[derive(Serialize, Deserialize)]
struct Proposal {
    from: Person,
    to: Person,
    keys: Vec<ObjectId>,
    reason: String,
    by: Person,
}

impl Proposal {
    fn answer(self, id: Uuid) -> HandOverAnswer {
        let Self { from, to, keys, reason, by } = self;
        HandOverAnswer { id, from, to, keys, reason, requested_by: by }
    }
}

impl Management {
    /// Proposes a hand-over.
    pub(super) fn propose_hand_over(
        &self,
        asker: &Identity,
        wish: ProposeHandOver,
    ) -> Result<HandOverAnswer, Unanswered> {
        let ProposeHandOver { from, to, keys, reason } = wish;
        let Known { person: from, role, .. } = self.client(from)?;
        let to = self.heir(to, role)?;
        if from.client == to.client {
            return Err(refused("same-client", format!("{from} has these keys already")));
        }
        let mut work = self.brokering.objects.begin().map_err(|error| unusable(&error))?;
        let keys = match keys.is_empty() {
            true => {
                let all = work.live(Some(from.client)).map_err(|error| unusable(&error))?;
                all.iter().map(|object| object.id).collect()
            }
            false => keys,
        };
        if keys.is_empty() {
            return Err(refused("unknown", format!("{from} has no keys")));
        }
        if keys.len() > KEYS_MAX {
            let message =
                format!("{} keys are more than the {KEYS_MAX} that are handed over at once", keys.len());
            return Err(refused("malformed", message));
        }
        for key in &keys {
            if !stage(&mut work, *key, &from, &to)? {
                return Err(refused("unknown", format!("{from} has no key {key}")));
            }
        }
        let by = Person { client: asker.client, name: asker.name.clone() };
        let proposal = Proposal { from, to, keys, reason, by };
        if self.waiting_hand_overs()?.len() >= WAITING_MAX {
            return Err(refused("too-many", format!("{WAITING_MAX} hand-overs wait; cancel some")));
        }
        let id = Uuid::new_v4();
        let value = serde_json::to_vec(&proposal).map_err(|error| refused_by_server("hand-over", &error))?;
        self.commit(Transaction::new().put(store_key(id), value))?;
        Ok(proposal.answer(id))
    }

    /// Confirms a hand-over by another administrator, and carries it out.
    pub(super) fn confirm_hand_over(
        &self,
        asker: &Identity,
        actor: Actor,
        id: Uuid,
    ) -> Result<HandOverAnswer, Unanswered> {
        let proposal = self.waiting_hand_over(id)?;
        if proposal.by.client == asker.client {
            let message =
                format!("{} asked for this hand-over; another administrator confirms it", proposal.by.name);
            return Err(refused("same-person", message));
        }
        let Known { person: from, role, .. } = self.client(proposal.from.client)?;
        let to = self.heir(proposal.to.client, role)?;
        let mut work = self.brokering.objects.begin().map_err(|error| unusable(&error))?;
        let mut left = Vec::new();
        for key in &proposal.keys {
            if stage(&mut work, *key, &from, &to)? {
                left.push(*key);
            }
        }
        drop(work);
        let record = Record::new(actor, "hand over keys", Outcome::Done)
            .field("from", from.to_string())
            .field("to", to.to_string())
            .field("requested_by", proposal.by.to_string());
        self.on_record(&about(record, left.iter().map(ObjectId::to_string)))?;
        for key in left {
            self.hand_over(key, &from, &to)?;
        }
        self.commit(Transaction::new().delete(store_key(id)))?;
        Ok(proposal.answer(id))
    }

    /// Cancels a hand-over.
    pub(super) fn cancel_hand_over(&self, id: Uuid) -> Result<HandOverAnswer, Unanswered> {
        let proposal = self.waiting_hand_over(id)?;
        self.commit(Transaction::new().delete(store_key(id)))?;
        Ok(proposal.answer(id))
    }

    /// The pending hand-overs.
    pub(super) fn waiting_hand_overs(&self) -> Result<Vec<HandOverAnswer>, Unanswered> {
        let entries = self.store.snapshot().and_then(|snapshot| snapshot.all(&KeyRange::prefix(PREFIX)));
        let entries = entries.map_err(|error| refused_by_server("store", &error))?;
        let read = entries.into_iter().map(|entry| {
            let id =
                entry.key.strip_prefix(PREFIX).and_then(|id| Uuid::from_slice(id).ok()).unwrap_or_default();
            Ok(read(&entry.value)?.answer(id))
        });
        read.collect()
    }

    fn waiting_hand_over(&self, id: Uuid) -> Result<Proposal, Unanswered> {
        let entry = self.store.get(&store_key(id)).map_err(|error| refused_by_server("store", &error))?;
        let entry = entry.ok_or_else(|| refused("unknown", format!("no hand-over {id} waits")))?;
        read(&entry.value)
    }

    /// A present or former client.
    fn client(&self, client: ClientId) -> Result<Known, Unanswered> {
        let clients = self.authority.clients().map_err(failed)?;
        let found = clients.into_iter().find(|(id, ..)| *id == client);
        let unknown = || refused("unknown", format!("there is no client {client}"));
        let (client, record, is_revoked) = found.ok_or_else(unknown)?;
        Ok(Known { person: Person { client, name: record.name }, role: record.role, is_revoked })
    }

    /// A client that is not revoked and may receive keys of a client with that role.
    fn heir(&self, client: ClientId, role: Role) -> Result<Person, Unanswered> {
        let Known { person, role: own_role, is_revoked } = self.client(client)?;
        if own_role != role || !matches!(role, Role::Client | Role::Control) {
            let message = format!(
                "{person} has the role {own_role}: keys of a client of role {role} go to no other role"
            );
            return Err(refused("other-role", message));
        }
        if is_revoked {
            return Err(refused("revoked", format!("{person} is revoked")));
        }
        Ok(person)
    }

    fn hand_over(&self, key: ObjectId, from: &Person, to: &Person) -> Result<(), Unanswered> {
        for _ in 0..ATTEMPTS {
            let mut work = self.brokering.objects.begin().map_err(|error| unusable(&error))?;
            if !stage(&mut work, key, from, to)? {
                return Ok(());
            }
            let transaction = work.into_transaction().map_err(|error| unusable(&error))?;
            if self.brokering.objects.commit_blocking(transaction).map_err(|error| unusable(&error))? {
                return Ok(());
            }
        }
        Err(refused("contended", format!("key {key} keeps changing; confirm again")))
    }

    fn commit(&self, transaction: Transaction) -> Result<(), Unanswered> {
        self.store.commit(transaction).map(drop).map_err(|error| refused_by_server("store", &error))
    }
}

/// Stages a key's change of owner; returns `false` if `from` does not, or no longer, own it.
fn stage(work: &mut Work<'_>, key: ObjectId, from: &Person, to: &Person) -> Result<bool, Unanswered> {
    let mut object = match work.load(key) {
        Ok(object) if object.owner == from.client && !object.is_destroyed() => object,
        Ok(_) | Err(KeepingError::NotFound { .. }) => return Ok(false),
        Err(error) => return Err(unusable(&error)),
    };
    object.owner = to.client;
    object.touch(work.now());
    match work.replace(object) {
        Ok(()) => Ok(true),
        Err(KeepingError::NameTaken { name }) => {
            let message =
                format!("key {key} bears the name {name:?}, and so does another key of {to}; rename one");
            Err(refused("name-taken", message))
        }
        Err(error) => Err(unusable(&error)),
    }
}

fn unusable(error: &KeepingError) -> Unanswered {
    refused_by_server("objects", error)
}

fn store_key(id: Uuid) -> Vec<u8> {
    [PREFIX, id.as_bytes()].concat()
}

fn read(value: &[u8]) -> Result<Proposal, Unanswered> {
    serde_json::from_slice(value).map_err(|error| refused_by_server("hand-over", &error))
}
