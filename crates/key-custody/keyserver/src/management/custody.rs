//! The custodians who may open backups: those of the first backup, until two administrators name
//! others.
//!
//! | key in the store | value |
//! |---|---|
//! | `custody/approved` | JSON of [`Named`]: the last custody that two administrators agreed on |
//! | `custody/proposed` | JSON of [`Proposal`]: the last proposal, and its administrator |
//!
//! Without an approved one, the custody of the last backup applies.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strongroom_crypto::mac::sha256;
use strongroom_store::{Is, Outcome, Store, Transaction};
use strongroom_types::hex;

use super::protocol::{CustodyAnswer, NamedCustody};
use super::{refused, refused_by_server};
use crate::access::Identity;
use crate::authority::enrol::server::Unanswered;
use crate::backup::{Custody, LastBackup, LastCustodian};
use crate::objects::destruction::Person;

pub(crate) const PREFIX: &[u8] = b"custody/";
pub(crate) const APPROVED: &[u8] = b"custody/approved";
const PROPOSED: &[u8] = b"custody/proposed";

/// Some custodians, and their threshold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Named {
    threshold: u8,
    custodians: Vec<LastCustodian>,
}

#[derive(Serialize, Deserialize)]
struct Proposal {
    #[serde(flatten)]
    named: Named,
    by: Person,
}

impl Named {
    pub fn of(custody: &Custody) -> Self {
        let custodians = custody.custodians().iter().map(|custodian| LastCustodian {
            name: custodian.name().clone(),
            key_sha256: custodian.key_sha256(),
        });
        Self { threshold: custody.threshold(), custodians: custodians.collect() }
    }

    fn of_last(last: LastBackup) -> Self {
        Self { threshold: last.threshold, custodians: last.custodians }
    }

    /// Whether every group that may open backups under `other` may also do so under this custody.
    fn allows(&self, other: &Self) -> bool {
        let is_known = |custodian: &LastCustodian| {
            self.custodians.iter().any(|known| known.key_sha256 == custodian.key_sha256)
        };
        other.custodians.iter().all(is_known) && other.threshold >= self.threshold
    }

    /// The id that two people compare: equal only for the same keys and threshold.
    fn id(&self) -> String {
        let mut keys: Vec<_> = self.custodians.iter().map(|custodian| custodian.key_sha256).collect();
        keys.sort_unstable();
        let text = [&[self.threshold][..], &keys.concat()].concat();
        hex::encode(&sha256(&text)[..16])
    }

    fn names(&self) -> String {
        self.custodians.iter().map(|custodian| custodian.name.to_string()).collect::<Vec<_>>().join(", ")
    }

    fn answer(self, by: Option<Person>) -> NamedCustody {
        NamedCustody {
            id: self.id(),
            threshold: self.threshold,
            custodians: self.custodians,
            proposed_by: by,
        }
    }
}

/// The records of custody in the store.
pub(super) struct Custodies(pub Arc<dyn Store>);

impl Custodies {
    /// Refuses custodians whom neither the last backup nor two administrators have named, or a
    /// lower threshold.
    pub fn check(&self, wanted: &Named, last: Option<LastBackup>) -> Result<(), Unanswered> {
        let holds = match self.read::<Named>(APPROVED)? {
            Some((approved, _)) => Some(approved),
            None => last.map(Named::of_last),
        };
        match holds {
            Some(holds) if !holds.allows(wanted) => Err(refused(
                "other-custodians",
                format!(
                    "backups take {} of {} to open, and this one would be opened by others or by fewer; two administrators \
                     change that: ask for it with --change-custodians",
                    holds.threshold,
                    holds.names()
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Records one administrator's proposal, in place of an earlier one.
    pub fn propose(&self, asker: &Identity, named: Named) -> Result<NamedCustody, Unanswered> {
        let by = Person { client: asker.client, name: asker.name.clone() };
        let proposal = Proposal { named: named.clone(), by: by.clone() };
        self.commit(Transaction::new().put(PROPOSED, json(&proposal)?))?;
        Ok(named.answer(Some(by)))
    }

    /// Confirms, by another administrator, exactly the proposal with this id.
    pub fn confirm(&self, asker: &Identity, id: &str) -> Result<NamedCustody, Unanswered> {
        let none =
            || refused("no-custodians", format!("custodians {id} were not asked for, or others were since"));
        let (Proposal { named, by }, is) = self
            .read::<Proposal>(PROPOSED)?
            .filter(|(proposal, _)| proposal.named.id() == id)
            .ok_or_else(none)?;
        if by.client == asker.client {
            let message =
                format!("{} asked for these custodians; another administrator confirms them", by.name);
            return Err(refused("same-person", message));
        }
        let agreed = Transaction::new().when(PROPOSED, is).put(APPROVED, json(&named)?).delete(PROPOSED);
        self.commit(agreed)?;
        Ok(named.answer(Some(by)))
    }

    /// The custody in force, and the proposal.
    pub fn list(&self, last: Option<LastBackup>) -> Result<CustodyAnswer, Unanswered> {
        let approved = self.read::<Named>(APPROVED)?.map(|(named, _)| named);
        let proposed = self.read::<Proposal>(PROPOSED)?;
        Ok(CustodyAnswer {
            present: approved.or(last.map(Named::of_last)).map(|named| named.answer(None)),
            proposed: proposed.map(|(Proposal { named, by }, _)| named.answer(Some(by))),
        })
    }

    fn read<T: serde::de::DeserializeOwned>(&self, key: &[u8]) -> Result<Option<(T, Is)>, Unanswered> {
        let Some(entry) = self.0.get(key).map_err(|error| refused_by_server("store", &error))? else {
            return Ok(None);
        };
        let read =
            serde_json::from_slice(&entry.value).map_err(|error| refused_by_server("custody", &error))?;
        Ok(Some((read, Is::ModifiedAt(entry.mod_revision))))
    }

    fn commit(&self, transaction: Transaction) -> Result<(), Unanswered> {
        match self.0.commit(transaction).map_err(|error| refused_by_server("store", &error))? {
            Outcome::Committed(_) => Ok(()),
            Outcome::Conflict(_) => {
                Err(refused("no-custodians", "others were asked for meanwhile; look again".to_owned()))
            }
        }
    }
}

fn json(value: &impl Serialize) -> Result<Vec<u8>, Unanswered> {
    serde_json::to_vec(value).map_err(|error| refused_by_server("custody", &error))
}
