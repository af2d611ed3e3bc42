//! The keys that volumes move to: one in the place of each old one, so that volumes that shared a
//! key share the next.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use strongroom_datastore::file::KekRecord;
use strongroom_keys::{Kek, KekSource, Keyring, ProviderName, read_key_file};
use strongroom_memory::secret::SecretBytes;
use strongroom_types::KekId;

use super::journal::Journal;
use crate::error::CliError;
use crate::keys::{ask_twice, of_new_passphrase, read_passphrase};

/// Keys that are kept at hand; all are let go of then. Each one locks memory, of which a user has
/// little.
const AT_HAND_MAX: usize = 64;

/// Where the new keys come from.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct TargetArguments {
    /// Make the new keys at key provider NAME
    #[arg(long, value_name = "NAME")]
    to_key_provider: Option<ProviderName>,

    /// The new key is in FILE, as --key-file takes it
    #[arg(long, value_name = "FILE")]
    to_key_file: Option<PathBuf>,

    /// The new passphrase is read from file descriptor N
    #[arg(long, value_name = "N")]
    to_passphrase_fd: Option<u32>,

    /// Be asked for the new passphrase, twice
    #[arg(long)]
    to_passphrase: bool,

    /// What was read or typed, once.
    #[arg(skip)]
    secret: OnceCell<SecretBytes>,
}

impl TargetArguments {
    /// New keys of a provider.
    pub fn at_provider(provider: ProviderName) -> Self {
        Self {
            to_key_provider: Some(provider),
            to_key_file: None,
            to_passphrase_fd: None,
            to_passphrase: false,
            secret: OnceCell::new(),
        }
    }

    /// The key of the file, or the passphrase.
    fn secret(&self) -> Result<&SecretBytes, CliError> {
        if let Some(secret) = self.secret.get() {
            return Ok(secret);
        }
        let secret = match (&self.to_key_file, self.to_passphrase_fd) {
            (Some(file), _) => read_key_file(file)?,
            (None, Some(descriptor)) => read_passphrase(descriptor)?,
            (None, None) => ask_twice(Path::new("the volumes"))?,
        };
        Ok(self.secret.get_or_init(|| secret))
    }

    /// What of it tells one job from another.
    pub fn identity(&self) -> Result<String, CliError> {
        Ok(match &self.to_key_file {
            Some(_) => format!("{self}, key {}", KekSource::KeyFile {}.kek(self.secret()?)?.id()),
            None => self.to_string(),
        })
    }
}

/// As it follows "to".
impl fmt::Display for TargetArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.to_key_provider, &self.to_key_file) {
            (Some(provider), _) => write!(f, "key provider {provider}"),
            (None, Some(_)) => f.write_str("a key file"),
            (None, None) => f.write_str("a passphrase"),
        }
    }
}

/// The new keys, as far as they were needed.
#[derive(Debug)]
pub struct NewKeys<'a> {
    target: &'a TargetArguments,
    keyring: Arc<dyn Keyring>,
    keks: HashMap<KekId, Kek>,
}

impl<'a> NewKeys<'a> {
    /// None yet.
    pub fn new(target: &'a TargetArguments, keyring: Arc<dyn Keyring>) -> Self {
        Self { target, keyring, keks: HashMap::new() }
    }

    /// The one new key that is there before the job begins, if it is that of a file.
    pub fn given(&self) -> Result<Option<KekRecord>, CliError> {
        if self.target.to_key_file.is_none() {
            return Ok(None);
        }
        let kek = KekSource::KeyFile {}.kek(self.target.secret()?)?;
        Ok(Some(KekRecord { id: kek.id(), source: kek.source().clone() }))
    }

    /// The key that takes the place of this one; it is made if there is none yet.
    pub fn in_place_of(&mut self, old: KekId, journal: &mut Journal) -> Result<&Kek, CliError> {
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
    pub fn get(&mut self, record: &KekRecord) -> Result<&Kek, CliError> {
        self.make_room();
        let entry = match self.keks.entry(record.id) {
            Entry::Occupied(entry) => return Ok(entry.into_mut()),
            Entry::Vacant(entry) => entry,
        };
        let kek = match &record.source {
            KekSource::Provider(key) => self.keyring.fetch_to_seal(key)?,
            source => source.kek(self.target.secret()?)?,
        };
        if kek.id() != record.id {
            let source = record.source.to_string();
            return Err(CliError::OtherNewKey { given: kek.id(), wanted: record.id, source_name: source });
        }
        Ok(entry.insert(kek))
    }

    fn make(&mut self, old: KekId, journal: &mut Journal) -> Result<KekRecord, CliError> {
        let kek = match &self.target.to_key_provider {
            Some(provider) => {
                let made = self.keyring.create(provider, journal.request(old)?)?;
                return Ok(KekRecord { id: made.id(), source: made.source().clone() });
            }
            None if self.target.to_key_file.is_some() => KekSource::KeyFile {}.kek(self.target.secret()?)?,
            None => of_new_passphrase(self.target.secret()?)?,
        };
        let record = KekRecord { id: kek.id(), source: kek.source().clone() };
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
