//! Backups on an administrator's request: made here, downloaded in pieces, and recorded only once
//! safe elsewhere. A backup on the same machine as the server does not protect it.
//!
//! One backup waits at a time, as `waiting.backup` in the state directory, until it is downloaded,
//! another is made, or the server ends.
//!
//! The choice of custodians decides who can open the backup. So it is on record with the digests of
//! their keys, and new custodians, or a lower threshold, need two administrators ([`Custodies`]).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use strongroom_audit::Record;
use strongroom_types::hex;

use super::custody::{Custodies, Named};
use super::protocol::{BackupAnswer, BackupPart, CustodianText, CustodyAnswer, NamedCustody};
use super::{refused, refused_by_server};
use crate::access::Identity;
use crate::authority::enrol::server::Unanswered;
use crate::backup::{
    self, BackupError, BackupId, BackupSource, BackupStatus, CUSTODIANS_MAX, Custodian, CustodianName,
    Custody, LastBackup,
};
use crate::state::State;

const FILE: &str = "waiting.backup";
const FILE_PARTIAL: &str = "waiting.backup.partial";
/// Most bytes of one piece; in hexadecimal it fits an answer.
const PART_BYTES_MAX: u64 = 2 << 20;

/// What backups are made of: the whole state of the server.
pub type Source = Box<dyn BackupSource + Send + Sync>;

/// Makes backups of a running server.
pub(super) struct Backups {
    source: Source,
    custodies: Custodies,
    directory: PathBuf,
    waiting: Mutex<Option<LastBackup>>,
}

impl Backups {
    /// Backups of this state's server. Removes a waiting backup of the previous process.
    pub fn new(state: &State, source: Source) -> Self {
        let backups = Self {
            source,
            custodies: Custodies(Arc::clone(&state.store)),
            directory: state.directory.clone(),
            waiting: Mutex::default(),
        };
        if let Err(error) = backups.remove() {
            tracing::warn!(%error, "a backup that was not fetched could not be removed");
        }
        backups
    }

    /// Makes a backup, which replaces a waiting one.
    pub fn make(&self, threshold: u8, custodians: &[CustodianText]) -> Result<BackupAnswer, Unanswered> {
        let custody = custody_of(threshold, custodians).map_err(not_custodians)?;
        self.custodies.check(&Named::of(&custody), self.last()?)?;
        let mut waiting = self.waiting.lock();
        *waiting = None;
        let made = self.remove().map_err(|error| refused_by_server("backup", &error)).and_then(|()| {
            let path = self.path();
            let last = backup::write(self.source.as_ref(), &custody, &path)
                .map_err(|error| refused_by_server("backup", &error))?;
            let (length_bytes, sha256) =
                backup::digest_of(&path).map_err(|error| refused_by_server("backup", &error))?;
            Ok(BackupAnswer { backup: last, length_bytes, sha256 })
        })?;
        *waiting = Some(made.backup.clone());
        Ok(made)
    }

    /// A piece of the waiting backup.
    pub fn part(&self, id: BackupId, offset: u64) -> Result<BackupPart, Unanswered> {
        let waiting = self.waiting.lock();
        waiting_as(&waiting, id)?;
        self.read(offset).map_err(|error| refused_by_server("backup", &error))
    }

    /// Records the waiting backup as the last one, and removes its file here.
    pub fn keep(&self, id: BackupId) -> Result<(), Unanswered> {
        let mut waiting = self.waiting.lock();
        let last = waiting_as(&waiting, id)?;
        last.remember(&self.directory).map_err(|error| refused_by_server("backup", &error))?;
        *waiting = None;
        self.remove().map_err(|error| refused_by_server("backup", &error))
    }

    /// Proposes other custodians, in one administrator's name.
    pub fn propose(
        &self,
        asker: &Identity,
        threshold: u8,
        custodians: &[CustodianText],
    ) -> Result<NamedCustody, Unanswered> {
        let custody = custody_of(threshold, custodians).map_err(not_custodians)?;
        self.custodies.propose(asker, Named::of(&custody))
    }

    /// The custodians that two administrators agreed on.
    pub fn custodies(&self) -> &Custodies {
        &self.custodies
    }

    /// The current custodians, and the proposed ones.
    pub fn list_custodians(&self) -> Result<CustodyAnswer, Unanswered> {
        self.custodies.list(self.last()?)
    }

    /// The last recorded backup.
    fn last(&self) -> Result<Option<LastBackup>, Unanswered> {
        // With any number of changes: it does not matter here whether the record is from this
        // history of the server.
        let last =
            backup::status(&self.directory, u64::MAX).map_err(|error| refused_by_server("backup", &error))?;
        Ok(match last {
            BackupStatus::Backed { last, .. } => Some(last),
            _ => None,
        })
    }

    fn read(&self, offset: u64) -> io::Result<BackupPart> {
        let file = File::open(self.path())?;
        let left = file.metadata()?.len().saturating_sub(offset);
        let mut bytes = vec![0; left.min(PART_BYTES_MAX) as usize];
        file.read_exact_at(&mut bytes, offset)?;
        Ok(BackupPart { bytes })
    }

    fn path(&self) -> PathBuf {
        self.directory.join(FILE)
    }

    fn remove(&self) -> io::Result<()> {
        for name in [FILE, FILE_PARTIAL] {
            match fs::remove_file(self.directory.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The requested backup must be the waiting one.
fn waiting_as(waiting: &Option<LastBackup>, id: BackupId) -> Result<&LastBackup, Unanswered> {
    waiting.as_ref().filter(|last| last.id == id).ok_or_else(|| {
        refused("no-backup", format!("backup {id} does not wait here any more; make another one"))
    })
}

fn not_custodians(error: BackupError) -> Unanswered {
    refused("custodians", error.to_string())
}

fn custody_of(threshold: u8, custodians: &[CustodianText]) -> Result<Custody, BackupError> {
    let threshold = usize::from(threshold);
    if custodians.len() > CUSTODIANS_MAX {
        return Err(BackupError::Threshold { threshold, custodians: custodians.len() });
    }
    Custody::new(threshold, custodians.iter().map(custodian_of).collect::<Result<_, _>>()?)
}

fn custodian_of(text: &CustodianText) -> Result<Custodian, BackupError> {
    Custodian::new(CustodianName::new(text.name.as_str())?, text.public_key.as_bytes())
}

/// Adds a backup's custodians, by their keys, to an audit record.
pub(super) fn custody_on_record(record: Record, threshold: u8, custodians: &[CustodianText]) -> Record {
    let record = record.field("threshold", threshold.to_string());
    custodians.iter().take(CUSTODIANS_MAX).fold(record, |record, text| match custodian_of(text) {
        Ok(custodian) => {
            record.field(format!("custodian {}", custodian.name()), hex::encode(&custodian.key_sha256()))
        }
        // The request is refused, and the text may be anything.
        Err(_) => record,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::Arrival;
    use crate::backup::tests::people;
    use crate::recovery::tests::{Machine, owner};

    fn texts(count: usize) -> Vec<CustodianText> {
        let text = |custodian: Custodian| CustodianText {
            name: custodian.name().to_string(),
            public_key: custodian.public_key_pem(),
        };
        people()[..count].iter().map(|person| text(person.custodian())).collect()
    }

    #[test]
    fn a_backup_counts_once_it_was_carried_away_and_nothing_of_it_stays_here() {
        let machine = Machine::new();
        let server = machine.start();
        server.create(&owner(), "one");
        let backups = Backups::new(&server.state, Box::new(server.source()));
        let status = || backup::status(&machine.directory, u64::MAX).unwrap();
        let lost = backups.make(2, &texts(3)).unwrap();
        let made = backups.make(2, &texts(3)).unwrap();
        assert_eq!(status(), BackupStatus::Unbacked);
        assert_eq!(backups.part(lost.backup.id, 0).unwrap_err().code, "no-backup");
        assert_eq!(backups.keep(lost.backup.id).unwrap_err().code, "no-backup");

        let elsewhere = tempfile::TempDir::new().unwrap();
        let mut arrival = Arrival::at(&elsewhere.path().join("backup")).unwrap();
        let BackupPart { bytes } = backups.part(made.backup.id, 0).unwrap();
        let (first, _) = bytes.split_at(100);
        arrival.write(first).unwrap();
        arrival.write(&backups.part(made.backup.id, 100).unwrap().bytes).unwrap();
        assert!(backups.part(made.backup.id, made.length_bytes).unwrap().bytes.is_empty());
        assert!(backups.part(made.backup.id, u64::MAX).unwrap().bytes.is_empty());
        arrival.finish(made.length_bytes, &made.sha256).unwrap();
        backups.keep(made.backup.id).unwrap();
        assert!(matches!(status(), BackupStatus::Backed { last, .. } if last == made.backup));
        assert!(!backups.path().exists());

        // A subset of the custodians is allowed. Others, or a lower threshold, need two
        // administrators.
        let fewer = backups.make(2, &texts(2)).unwrap();
        backups.keep(fewer.backup.id).unwrap();
        assert_eq!(backups.make(2, &texts(3)).unwrap_err().code, "other-custodians");
        let [ada, bob] =
            [crate::recovery::tests::administrator("ada"), crate::recovery::tests::administrator("bob")];
        let proposed = backups.propose(&ada, 3, &texts(3)).unwrap();
        assert_eq!(backups.make(3, &texts(3)).unwrap_err().code, "other-custodians");
        let confirm = |who, id: &str| backups.custodies().confirm(who, id).map_err(|error| error.code);
        assert_eq!(confirm(&ada, &proposed.id).unwrap_err(), "same-person");
        assert_eq!(confirm(&bob, "00").unwrap_err(), "no-custodians");
        // A confirmation names what was seen: another proposal has another id.
        let other = backups.propose(&ada, 2, &texts(3)).unwrap();
        assert_eq!(confirm(&bob, &proposed.id).unwrap_err(), "no-custodians");
        assert_ne!(proposed.id, other.id);
        let proposed = backups.propose(&bob, 3, &texts(3)).unwrap();
        confirm(&ada, &proposed.id).unwrap();
        let three = backups.make(3, &texts(3)).unwrap();
        backups.keep(three.backup.id).unwrap();
        let listed = backups.list_custodians().unwrap();
        assert_eq!((listed.present.unwrap().id, listed.proposed), (proposed.id, None));
        assert_eq!(backups.make(2, &texts(3)).unwrap_err().code, "other-custodians");
        assert_eq!(backups.make(2, &texts(1)).unwrap_err().code, "custodians");

        // A backup that waits when the server ends is gone when it starts again.
        backups.make(3, &texts(3)).unwrap();
        fs::write(machine.directory.join(FILE_PARTIAL), "cut short").unwrap();
        drop(Backups::new(&server.state, Box::new(server.source())));
        assert!(!backups.path().exists() && !machine.directory.join(FILE_PARTIAL).exists());
    }
}
