//! Evidence for auditors, and the moves of volumes that it is made of.

use std::collections::{BTreeMap, BTreeSet};

use strongroom_audit::Noted;
use strongroom_audit::limits::OBJECTS_MAX;
use strongroom_crypto::{mac, module};
use strongroom_types::hex;
use time::OffsetDateTime;

use super::protocol::{EvidenceAnswer, HISTORY_MAX};
use super::questions::MakeEvidence;
use super::{Done, Management, done, refused, refused_by_server};
use crate::access::{Identity, OperationClass, Role, Scope, scope};
use crate::authority::enrol::server::Unanswered;
use crate::evidence::{
    CHALLENGE_BYTES_MAX, Conclusion, DataKeyFate, Evidence, EvidenceError, KEYS_MAX, KeyFacts, LEFT_KEYS_MAX,
    LogFacts, MOVE, MOVED_VOLUMES_MAX, Move, Moves, NOT_KNOWN, NeededBy, Records, SEARCHED_KEYS_MAX,
    ServerFacts, Subject,
};
use crate::grant::{VmId, ledger};
use crate::objects::destruction::{Person, Waiting};
use crate::objects::id::ObjectId;
use crate::objects::keeping::KeepingError;

impl Management {
    /// Refuses a move that no evidence could be made of.
    pub(super) fn check_move(&self, moved: &Move) -> Result<(), Unanswered> {
        let (volumes, left) = (moved.volumes.len(), moved.from.len());
        if volumes > MOVED_VOLUMES_MAX || left > LEFT_KEYS_MAX {
            let message = format!(
                "a move is of at most {MOVED_VOLUMES_MAX} volumes and {LEFT_KEYS_MAX} keys, not {volumes} and {left}"
            );
            return Err(refused("malformed", message));
        }
        let work = self.brokering.objects.begin().map_err(unreadable)?;
        moved.from.iter().chain(&moved.to).try_for_each(|key| work.load(*key).map(drop)).map_err(unreadable)
    }

    /// What became of the data keys under a key.
    pub(super) fn data_keys_under(&self, key: ObjectId) -> Result<DataKeyFate, Unanswered> {
        let work = self.brokering.objects.begin().map_err(unreadable)?;
        let created = work.load(key).map_err(unreadable)?.life.initial().0;
        let named = std::iter::once(key.to_string()).chain(self.vm_of(key)?.map(|vm| vm.to_string()));
        Ok(self.moves_of(&named.collect())?.data_keys(key, created).fate)
    }

    pub(super) fn make_evidence(
        &self,
        asker: &Identity,
        MakeEvidence { about, challenge }: MakeEvidence,
    ) -> Result<Done, Unanswered> {
        if let Some(text) = &challenge
            && (text.is_empty() || text.len() > CHALLENGE_BYTES_MAX || text.chars().any(char::is_control))
        {
            let message =
                format!("a challenge has 1 to {CHALLENGE_BYTES_MAX} bytes without control characters");
            return Err(refused("malformed", message));
        }
        // Everything that it says is on record by then.
        let head = self.audit.head().wait().map_err(|error| refused_by_server("audit", &error))?;
        let now = OffsetDateTime::now_utc();
        let status = self.status(now)?;
        let clients = self.clients()?;
        let keys = self.subjects(&about)?;
        let vms = keys.iter().map(|key| self.vm_of(*key)).collect::<Result<Vec<_>, _>>()?;
        let mut named: BTreeSet<String> = keys.iter().map(ToString::to_string).collect();
        named.extend(vms.iter().chain([&about.vm]).flatten().map(VmId::to_string));
        if about.is_all() {
            named.extend(clients.iter().map(|client| client.id.to_string()));
        }
        let mut moves = self.moves_of(&named)?;
        moves.events.retain(|event| event.sequence <= head.sequence);
        let mut records = self.records_of(&named)?;
        // Older moves than the last records are part of it, too.
        let all: BTreeMap<u64, Noted> =
            moves.events.iter().cloned().chain(records.events).map(|event| (event.sequence, event)).collect();
        records.events = all.into_values().filter(|event| event.sequence <= head.sequence).collect();
        let keys = self.facts_of(&keys, &vms, &records, &moves)?;
        let evidence = Evidence {
            made_unix_seconds: now.unix_timestamp(),
            challenge,
            asked_by: Person { client: asker.client, name: asker.name.clone() },
            asked_as: asker.role,
            about,
            server: ServerFacts {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                ciphers: module::name(),
                authority: status.authority,
                root_protection: status.root_protection,
                last_backup_unix_seconds: status.backup.last().map(|last| last.created_unix_seconds),
            },
            log: LogFacts { first_sequence: status.audit_first_sequence, head },
            keys,
            records,
            clients,
            permissions: permissions(),
            not_known: NOT_KNOWN.map(str::to_owned).to_vec(),
        };
        let file = evidence.sign(&*self.signer).map_err(|error| match error {
            EvidenceError::TooLarge { .. } => refused("too-large", error.to_string()),
            error => refused_by_server("evidence", &error),
        })?;
        // The log says later which files were made.
        let sha256 = hex::encode(&mac::sha256(file.as_bytes()));
        let vm = evidence.about.vm.map(|vm| vm.to_string());
        let about = vm.into_iter().chain(evidence.about.keys.iter().map(ToString::to_string));
        let about: Vec<String> = about.take(OBJECTS_MAX).collect();
        let done = done::<MakeEvidence>(&EvidenceAnswer { file }, about)?;
        Ok(done.with_fields(BTreeMap::from([("sha256", sha256)])))
    }

    /// The keys that an evidence is about.
    fn subjects(&self, about: &Subject) -> Result<Vec<ObjectId>, Unanswered> {
        let mut keys: BTreeSet<ObjectId> = about.keys.iter().copied().collect();
        if let Some(vm) = about.vm {
            let of_vm =
                ledger::keys_of(&*self.store, vm).map_err(|error| refused_by_server("grants", &error))?;
            if of_vm.is_empty() {
                return Err(refused("unknown", format!("no key was made for VM {vm}")));
            }
            keys.extend(of_vm.iter().filter_map(|key| key.parse::<ObjectId>().ok()));
        }
        if about.is_all() {
            let work = self.brokering.objects.begin().map_err(unreadable)?;
            keys.extend(work.every().map_err(unreadable)?);
        }
        if keys.len() > KEYS_MAX {
            let message = format!(
                "an evidence is of at most {KEYS_MAX} keys, not {}; ask for a VM, or for keys",
                keys.len()
            );
            return Err(refused("too-large", message));
        }
        Ok(keys.into_iter().collect())
    }

    fn records_of(&self, named: &BTreeSet<String>) -> Result<Records, Unanswered> {
        let history = self.audit.history(named, None, HISTORY_MAX as usize);
        let history = history.map_err(|error| refused_by_server("audit", &error))?;
        Ok(Records { is_complete: history.is_complete, events: history.records })
    }

    fn moves_of(&self, named: &BTreeSet<String>) -> Result<Moves, Unanswered> {
        let history = self.audit.history(named, Some(MOVE), HISTORY_MAX as usize);
        let history = history.map_err(|error| refused_by_server("audit", &error))?;
        Ok(Moves { since_unix_seconds: history.since_unix_seconds, events: history.records })
    }

    fn facts_of(
        &self,
        keys: &[ObjectId],
        vms: &[Option<VmId>],
        records: &Records,
        moves: &Moves,
    ) -> Result<Vec<KeyFacts>, Unanswered> {
        let waiting = self.destructions.waiting().map_err(|error| refused_by_server(error.code(), &error))?;
        let waiting: BTreeMap<ObjectId, Waiting> = waiting.into_iter().collect();
        let needed_by = self.needed_by(keys);
        let work = self.brokering.objects.begin().map_err(unreadable)?;
        let facts = keys.iter().zip(vms).zip(needed_by).map(|((key, vm), needed_by)| {
            let object = work.load(*key).map_err(unreadable)?;
            let (life, created) = (&object.life, object.life.initial().0);
            let data_keys = moves.data_keys(*key, created);
            Ok(KeyFacts {
                key: *key,
                state: life.state_at(work.now()),
                owner: object.owner,
                vm: *vm,
                upstream: object.upstream.as_ref().map(|upstream| upstream.provider.clone()),
                created_unix_seconds: created,
                compromised_unix_seconds: life.compromised().map(|at| at.0),
                destroyed_unix_seconds: life.destroyed().map(|at| at.0),
                destruction: waiting.get(key).cloned(),
                conclusion: Conclusion::of(&needed_by, data_keys.fate),
                needed_by,
                data_keys,
                readers: records.readers(*key),
            })
        });
        facts.collect()
    }

    /// What needs each key. Datastores that do not answer are not asked again.
    fn needed_by(&self, keys: &[ObjectId]) -> Vec<NeededBy> {
        if keys.len() > SEARCHED_KEYS_MAX {
            return vec![NeededBy::NotSearched; keys.len()];
        }
        let mut unknown = None;
        let search = |key: &ObjectId| {
            if let Some(reason) = &unknown {
                return NeededBy::Unknown(String::clone(reason));
            }
            match self.wait(self.destructions.dependents(*key)) {
                Ok(names) => NeededBy::Found(names),
                Err(error) => NeededBy::Unknown(unknown.insert(error.to_string()).clone()),
            }
        };
        keys.iter().map(search).collect()
    }

    fn vm_of(&self, key: ObjectId) -> Result<Option<VmId>, Unanswered> {
        let vm = ledger::vm_of(&*self.store, &key.to_string());
        vm.map_err(|error| refused_by_server("grants", &error))
    }
}

/// The table of permissions, as it is in force.
fn permissions() -> BTreeMap<OperationClass, BTreeMap<Role, Scope>> {
    let row = |class| (class, Role::ALL.into_iter().map(|role| (role, scope(role, class))).collect());
    OperationClass::ALL.into_iter().map(row).collect()
}

fn unreadable(error: KeepingError) -> Unanswered {
    match error {
        KeepingError::NotFound { .. } => refused("unknown", error.to_string()),
        error => refused_by_server("objects", &error),
    }
}

#[cfg(test)]
mod tests;
