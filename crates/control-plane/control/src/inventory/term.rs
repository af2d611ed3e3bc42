//! The terms of control planes: each run of one has a greater number than all runs before it.

use serde::{Deserialize, Serialize};
use strongroom_host::protocol::Term;
use strongroom_store::{Is, Outcome, Transaction};

use super::{Failure, Inventory};

/// The key of the [`LastTerm`].
const TERM_KEY: &str = "term";

/// The term of the last run.
#[derive(Serialize, Deserialize)]
struct LastTerm {
    term: Term,
}

impl Inventory {
    /// Begins a term. It is durable when this returns.
    ///
    /// It is at least the time of day: the next run with an inventory that was restored from a
    /// backup has a greater one than the runs that the backup does not know of.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn begin_term(&self, now_unix_seconds: u64) -> Result<Term, Failure> {
        loop {
            let found = self.store.get(TERM_KEY.as_bytes())?;
            let (last, is) = match &found {
                Some(entry) => (last_of(&entry.value)?, Is::ModifiedAt(entry.mod_revision)),
                None => (Term::default(), Is::Absent),
            };
            let term = Term(last.0.saturating_add(1).max(now_unix_seconds));
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
}
