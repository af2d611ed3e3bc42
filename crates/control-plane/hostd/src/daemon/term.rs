//! The greatest term that this host has seen (`term.json`). Orders of a lesser one are refused:
//! their control plane has a successor, and does not know what that one has ordered.

use std::io;
use std::path::{Path, PathBuf};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use serde::{Deserialize, Serialize};
use strongroom_host::protocol::{Problem, Term};

/// The format of the file.
const FORMAT: u32 = 1;
/// The longest file, in bytes.
const BYTES_MAX: u64 = 4096;

/// The terms of control planes.
#[derive(Debug)]
pub struct Terms {
    file: PathBuf,
    greatest: RwLock<Term>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: u32,
    term: Term,
}

/// An order's leave to be carried out. No order of a greater term is admitted before it is dropped,
/// so hold it only for a step that waits for nothing.
#[must_use]
pub struct Admitted<'terms> {
    _greatest: RwLockReadGuard<'terms, Term>,
}

impl Terms {
    /// Reads the greatest term in hostd's home; it is 0 if there is none.
    ///
    /// # Errors
    /// If the file cannot be read or parsed.
    pub fn of_home(home: &Path) -> io::Result<Self> {
        let file = home.join("term.json");
        let greatest = match strongroom_files::read(&file, BYTES_MAX) {
            Ok(text) => {
                parsed(&text).map_err(|reason| io::Error::other(format!("{}: {reason}", file.display())))?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Term::default(),
            Err(error) => return Err(error),
        };
        Ok(Self { file, greatest: RwLock::new(greatest) })
    }

    /// Admits an order of this term. A term that is greater than all before it is durable when this
    /// returns.
    ///
    /// # Errors
    /// If the term is less than the greatest one, or a greater one cannot be stored.
    pub fn admit(&self, term: Term) -> Result<Admitted<'_>, Problem> {
        let greatest = self.greatest.read();
        if term == *greatest {
            return Ok(Admitted { _greatest: greatest });
        }
        drop(greatest);
        let mut greatest = self.greatest.write();
        if term < *greatest {
            let message = format!("the order is of term {term}, and this host follows term {}", *greatest);
            return Err(Problem::new("old_term", message).with_next_step(
                "another control plane directs this host since: end this one, or restart it if it is the right one",
            ));
        }
        if term > *greatest {
            self.store(term).map_err(|error| {
                Problem::system(format!(
                    "cannot store the control plane's term in {}: {error}",
                    self.file.display()
                ))
            })?;
            *greatest = term;
        }
        Ok(Admitted { _greatest: RwLockWriteGuard::downgrade(greatest) })
    }

    fn store(&self, term: Term) -> io::Result<()> {
        let text = serde_json::to_vec(&Stored { format: FORMAT, term }).map_err(io::Error::other)?;
        strongroom_files::replace(&self.file, &text)
    }
}

fn parsed(text: &[u8]) -> Result<Term, String> {
    let Stored { format, term } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    match format {
        FORMAT => Ok(term),
        other => Err(format!("it is of format {other}, this program reads {FORMAT}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(terms: &Terms, term: u64) -> String {
        terms.admit(Term(term)).map(drop).unwrap_err().code
    }

    #[test]
    fn a_lesser_term_is_refused_also_by_the_next_hostd() {
        let home = tempfile::tempdir().unwrap();
        let terms = Terms::of_home(home.path()).unwrap();
        drop(terms.admit(Term(0)).unwrap());
        drop(terms.admit(Term(7)).unwrap());
        drop(terms.admit(Term(7)).unwrap());
        assert_eq!(refused(&terms, 6), "old_term");
        let next = Terms::of_home(home.path()).unwrap();
        assert_eq!(refused(&next, 6), "old_term");
        drop(next.admit(Term(8)).unwrap());
        assert_eq!(refused(&next, 7), "old_term");
    }

    #[test]
    fn a_term_that_cannot_be_stored_admits_nothing() {
        let home = tempfile::tempdir().unwrap();
        let terms = Terms::of_home(home.path()).unwrap();
        // A file cannot replace a directory.
        std::fs::create_dir(home.path().join("term.json")).unwrap();
        assert_eq!(refused(&terms, 3), "system");
        std::fs::remove_dir(home.path().join("term.json")).unwrap();
        drop(terms.admit(Term(2)).unwrap());
    }

    #[test]
    fn a_damaged_or_newer_file_is_not_taken_for_none() {
        let home = tempfile::tempdir().unwrap();
        for text in ["", "{}", r#"{"format":2,"term":1}"#, r#"{"format":1,"term":1,"more":1}"#] {
            std::fs::write(home.path().join("term.json"), text).unwrap();
            assert!(Terms::of_home(home.path()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_greater_term_waits_for_the_order_that_was_admitted_before() {
        let home = tempfile::tempdir().unwrap();
        let terms = Terms::of_home(home.path()).unwrap();
        let admitted = terms.admit(Term(0)).unwrap();
        assert!(terms.greatest.try_write().is_none());
        drop(admitted);
        drop(terms.admit(Term(1)).unwrap());
    }
}
