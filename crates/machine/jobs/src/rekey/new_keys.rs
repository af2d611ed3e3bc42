//! The keys that volumes move to: one in the place of each old one, so that volumes that shared a
//! key share the next.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::path::PathBuf;

use strongroom_datastore::file::KekRecord;
use strongroom_keys::{Kek, KekSource, KeyError, Keyring, ProviderName, read_key_file};
use strongroom_memory::secret::SecretBytes;
use strongroom_types::KekId;

use super::journal::Journal;
use crate::error::JobError;
use crate::present_keys::KeyRefusal;

/// Keys that are kept at hand; all are let go of then. Each one locks memory, of which a user has
/// little.
const AT_HAND_MAX: usize = 64;

/// Where the new keys come from.
pub enum NewKeySource<'a> {
    /// A provider, which makes them.
    Provider(ProviderName),
    /// A key file, which has the one key for all.
    KeyFile(PathBuf),
    /// A passphrase, which the caller gives once it is needed.
    Passphrase(&'a dyn Fn() -> Result<SecretBytes, KeyRefusal>),
}

/// As it follows "to".
impl fmt::Display for NewKeySource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Provider(provider) => write!(f, "key provider {provider}"),
            Self::KeyFile(_) => f.write_str("a key file"),
            Self::Passphrase(_) => f.write_str("a passphrase"),
        }
    }
}

/// The content of the key file, or the passphrase, read once.
struct Secret<'a> {
    source: &'a NewKeySource<'a>,
    content: OnceCell<SecretBytes>,
}

impl Secret<'_> {
    /// The KEK of it, as `record` says what becomes of it.
    fn kek(&self, record: &KekSource) -> Result<Kek, JobError> {
        let read = match self.source {
            NewKeySource::Provider(_) => {
                let (given, wanted) = ("key provider", record.name());
                return Err(KeyError::WrongSource { given, wanted }.into());
            }
            NewKeySource::KeyFile(file) => self.read(|| Ok(read_key_file(file)?))?,
            NewKeySource::Passphrase(ask) => self.read(|| Ok(ask()?))?,
        };
        Ok(record.kek(read)?)
    }

    fn read(&self, read: impl FnOnce() -> Result<SecretBytes, JobError>) -> Result<&SecretBytes, JobError> {
        if let Some(content) = self.content.get() {
            return Ok(content);
        }
        let content = read()?;
        Ok(self.content.get_or_init(|| content))
    }
}

/// The new keys, as far as they were needed.
pub struct NewKeys<'a> {
    source: &'a NewKeySource<'a>,
    keyring: &'a dyn Keyring,
    secret: Secret<'a>,
    keks: HashMap<KekId, Kek>,
}

impl<'a> NewKeys<'a> {
    /// None yet.
    pub fn new(source: &'a NewKeySource<'a>, keyring: &'a dyn Keyring) -> Self {
        let secret = Secret { source, content: OnceCell::new() };
        Self { source, keyring, secret, keks: HashMap::new() }
    }

    /// What of their source tells one job from another.
    pub fn identity(&self) -> Result<String, JobError> {
        Ok(match self.given()? {
            Some(record) => format!("{}, key {}", self.source, record.id),
            None => self.source.to_string(),
        })
    }

    /// The one new key that is there before the job begins, if it is that of a file.
    pub fn given(&self) -> Result<Option<KekRecord>, JobError> {
        Ok(match self.source {
            NewKeySource::KeyFile(_) => Some(record_of(&self.secret.kek(&KekSource::KeyFile {})?)),
            NewKeySource::Provider(_) | NewKeySource::Passphrase(_) => None,
        })
    }

    /// The key that takes the place of this one; it is made if there is none yet.
    pub fn in_place_of(&mut self, old: KekId, journal: &mut Journal) -> Result<&Kek, JobError> {
        let record = match journal.successor(old) {
            Some(record) => record.clone(),
            None => {
                let record = self.make(old, journal)?;
                journal.succeed(old, record.clone())?;
                record
            }
        };
        self.get(&record)
    }

    /// The key that is noted so. A provider's is what the provider hands out for it now, not what
    /// it gave when the key was made: what cannot be had again is no key to wrap anything under.
    pub fn get(&mut self, record: &KekRecord) -> Result<&Kek, JobError> {
        self.make_room();
        let entry = match self.keks.entry(record.id) {
            Entry::Occupied(entry) => return Ok(entry.into_mut()),
            Entry::Vacant(entry) => entry,
        };
        let kek = match &record.source {
            KekSource::Provider(key) => self.keyring.fetch_to_seal(key)?,
            source => self.secret.kek(source)?,
        };
        if kek.id() != record.id {
            let source = record.source.to_string();
            return Err(JobError::OtherNewKey { given: kek.id(), wanted: record.id, source_name: source });
        }
        Ok(entry.insert(kek))
    }

    /// The key that is noted so, for a caller that needs no other.
    pub fn take(mut self, record: &KekRecord) -> Result<Kek, JobError> {
        self.get(record)?;
        self.keks.remove(&record.id).ok_or_else(|| JobError::OtherNewKey {
            given: record.id,
            wanted: record.id,
            source_name: record.source.to_string(),
        })
    }

    fn make(&mut self, old: KekId, journal: &mut Journal) -> Result<KekRecord, JobError> {
        let kek = match self.source {
            NewKeySource::Provider(provider) => {
                return Ok(record_of(&self.keyring.create(provider, journal.request(old)?)?));
            }
            NewKeySource::KeyFile(_) => self.secret.kek(&KekSource::KeyFile {})?,
            NewKeySource::Passphrase(ask) => {
                Kek::of_new_passphrase_at_calibrated_cost(self.secret.read(|| Ok(ask()?))?)?
            }
        };
        let record = record_of(&kek);
        self.make_room();
        self.keks.insert(kek.id(), kek);
        Ok(record)
    }

    fn make_room(&mut self) {
        if self.keks.len() >= AT_HAND_MAX {
            self.keks.clear();
        }
    }
}

fn record_of(kek: &Kek) -> KekRecord {
    KekRecord { id: kek.id(), source: kek.source().clone() }
}
