//! The terms of control planes: each run of one has a greater number than all runs before it.
//!
//! A term is an era and a number within it: `era * 2^40 + number`. The number is at least the time
//! of day in seconds. A restore from a backup begins an era, so all runs of the restored inventory
//! have greater terms than any of the former one, which may still run, or be started again: its
//! terms stay below, whatever its clock says.

use serde::{Deserialize, Serialize};
use strongroom_host::protocol::Term;
use strongroom_store::{Is, Outcome, Transaction};

use super::{Failure, Inventory};

/// The key of the [`LastTerm`].
const TERM_KEY: &str = "term";

/// The terms of an era: seconds since 1970 have fewer digits for 30,000 years.
const ERA: u64 = 1 << 40;

/// The term of the last run.
#[derive(Serialize, Deserialize)]
struct LastTerm {
    term: Term,
}

impl Inventory {
    /// Begins a term. It is durable when this returns.
    ///
    /// Its number in its era is at least the time of day: of two inventories that were restored
    /// from one backup, the one that was started last has the greater one.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn begin_term(&self, now_unix_seconds: u64) -> Result<Term, Failure> {
        self.after_last_term(|last| {
            let era = last.0 - last.0 % ERA;
            Term(last.0.saturating_add(1).max(era.saturating_add(now_unix_seconds.min(ERA - 1))))
        })
    }

    /// Begins an era: all terms from now on are greater than those of the eras before it.
    ///
    /// # Errors
    /// [`Failure`].
    pub(super) fn begin_era(&self) -> Result<Term, Failure> {
        self.after_last_term(|last| Term((last.0 - last.0 % ERA).saturating_add(ERA)))
    }

    fn after_last_term(&self, next: impl Fn(Term) -> Term) -> Result<Term, Failure> {
        loop {
            let found = self.store.get(TERM_KEY.as_bytes())?;
            let (last, is) = match &found {
                Some(entry) => (last_of(&entry.value)?, Is::ModifiedAt(entry.mod_revision)),
                None => (Term::default(), Is::Absent),
            };
            let term = next(last);
            let text = serde_json::to_vec(&LastTerm { term }).map_err(damaged)?;
            let begun = Transaction::new().when(TERM_KEY, is).put(TERM_KEY, text);
            match self.store.commit(begun)? {
                Outcome::Committed(_) => return Ok(term),
                // Another control plane has begun a term.
                Outcome::Conflict(_) => {}
            }
        }
    }
}

fn last_of(text: &[u8]) -> Result<Term, Failure> {
    let LastTerm { term } = serde_json::from_slice(text).map_err(damaged)?;
    Ok(term)
}

fn damaged(error: serde_json::Error) -> Failure {
    Failure::Damaged { key: TERM_KEY.to_owned(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use strongroom_store::{Engine, Store};

    use super::*;

    #[test]
    fn each_run_has_a_greater_term_than_those_before_it_whatever_the_clock_says() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("store");
        let store: Arc<dyn Store> = Arc::new(Engine::create(&path).unwrap());
        let begin = |store: &Arc<dyn Store>, now| {
            Inventory::open(Arc::clone(store)).unwrap().begin_term(now).unwrap()
        };
        assert_eq!(begin(&store, 1000), Term(1000));
        assert_eq!(begin(&store, 1000), Term(1001));
        drop(store);
        let store: Arc<dyn Store> = Arc::new(Engine::open(&path).unwrap());
        assert_eq!(begin(&store, 5), Term(1002));
        assert_eq!(begin(&store, 9000), Term(9000));
    }

    #[test]
    fn an_era_is_above_all_terms_before_it_whatever_the_clocks_say() {
        let memory = redb::backends::InMemoryBackend::new();
        let store: Arc<dyn Store> = Arc::new(Engine::with_backend(memory, "inventory").unwrap());
        let inventory = Inventory::open(store).unwrap();
        let former = inventory.begin_term(u64::MAX).unwrap();
        assert!(former < Term(2 * ERA), "a wrong clock does not reach the next era but one");
        let era = inventory.begin_era().unwrap();
        assert!(era > former && era.0.is_multiple_of(ERA));
        assert_eq!(inventory.begin_term(5).unwrap(), Term(era.0 + 5), "the clock was set back");
        assert_eq!(inventory.begin_term(4).unwrap(), Term(era.0 + 6));
        assert_eq!(inventory.begin_era().unwrap(), Term(era.0 + ERA));
    }
}
