//! Which keys there are: what providers list, and what volumes say that they need.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use strongroom_datastore::file::VolumeNeeds;
use strongroom_files::FileError;
use strongroom_keys::{ProviderKey, ProviderName};
use strongroom_providers::{
    FailedProvider, KeyFacts, KeyProvider, KeyState, KmipConfig, ProviderConfig, ProviderError,
    ProviderKeyring, Registry, SourceConfig,
};
use strongroom_types::{KekId, without_numbers};

use crate::datastores::{KnownDatastores, Scan, provider_key, vm_of};
use crate::error::JobError;

/// A key as people name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyName {
    /// Its id at its provider, or the KEK id that a volume is under.
    pub key: String,
    /// Whose key, if it is said.
    pub provider: Option<ProviderName>,
}

/// An administrator or an auditor: may ask this machine's own key server what is known of every
/// key, and gets none.
#[derive(Clone, Debug)]
pub struct Overseer {
    /// Where the key server serves KMIP.
    pub server: String,
    /// The authorities that it trusts.
    pub ca: PathBuf,
    /// Its certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// The providers of a home, and the volumes that are known.
pub struct Inventory {
    providers: BTreeMap<ProviderName, ProviderConfig>,
    keyring: ProviderKeyring,
    /// The key servers of this machine, as whom their keys are asked about.
    overseers: BTreeMap<ProviderName, Arc<dyn KeyProvider>>,
    scan: Scan,
    /// What cannot be told, and why.
    pub broken: Vec<Broken>,
}

/// A provider that cannot be asked.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Broken {
    /// Its name.
    pub name: ProviderName,
    /// Why, for programs.
    pub code: String,
    /// Why.
    pub reason: String,
}

/// A key, as far as it is known.
#[derive(Clone, Debug)]
pub struct Key {
    /// Where it is.
    pub key: ProviderKey,
    /// The id that volumes have for it; none is known if no volume needs it.
    pub kek: Option<KekId>,
    /// What its provider says, or why that is not known.
    pub facts: Result<KeyFacts, String>,
    /// The volumes that need it.
    pub volumes: Vec<PathBuf>,
    /// When it should be replaced.
    pub expires: Option<SystemTime>,
}

impl Key {
    /// The VMs that have it, by the directories of their volumes. Such a key is rotated by
    /// `vm key rotate`: no other client than a VM's host gets it, and the inventory has to know.
    pub fn vms(&self) -> Vec<String> {
        let mut vms: Vec<String> = self.volumes.iter().filter_map(|volume| vm_of(volume)).collect();
        vms.dedup();
        vms
    }
}

impl Inventory {
    /// Looks through the registry of a home, its known datastores and `more`. No provider is asked
    /// yet.
    ///
    /// What is known of keys in the machine's own key server is asked as `overseer`, its
    /// administrator for one: this machine as a client sees the keys that it owns and no others,
    /// and VMs' keys are the control plane's.
    ///
    /// # Errors
    /// [`JobError::Registry`] and [`JobError::File`] if the home cannot be read.
    pub fn open(home: &Path, more: &[PathBuf], overseer: Option<&Overseer>) -> Result<Self, JobError> {
        let (mut providers, mut broken) = (BTreeMap::new(), Vec::new());
        for registered in Registry::of_home(home).list()? {
            match registered.config {
                Ok(config) => drop(providers.insert(registered.name, config)),
                Err(error) => broken.push(Broken {
                    name: registered.name,
                    code: error.code().to_owned(),
                    reason: without_numbers(&error.to_string()),
                }),
            }
        }
        let scan = KnownDatastores::of_home(home).scan(more)?;
        let overseers = overseer.map(|one| overseers(&providers, one)).unwrap_or_default();
        Ok(Self { providers, keyring: ProviderKeyring::of_home(home), overseers, scan, broken })
    }

    /// What was found in the datastores.
    pub fn scan(&self) -> &Scan {
        &self.scan
    }

    /// How a provider is set up.
    pub fn config(&self, name: &ProviderName) -> Option<&ProviderConfig> {
        self.providers.get(name)
    }

    /// Whether it is the key server that is part of Strongroom, as this machine's own.
    pub fn is_embedded(&self, name: &ProviderName) -> bool {
        self.config(name).is_some_and(|config| matches!(config.source, SourceConfig::Embedded(_)))
    }

    /// A provider, to ask it.
    ///
    /// # Errors
    /// [`JobError::Provider`].
    pub fn provider(&self, name: &ProviderName) -> Result<Arc<dyn KeyProvider>, JobError> {
        self.keyring
            .provider(name)
            .map_err(|error| JobError::Provider(FailedProvider { name: name.clone(), error }))
    }

    /// The same, to ask what is known of keys.
    fn asked_about_keys(&self, name: &ProviderName) -> Result<Arc<dyn KeyProvider>, JobError> {
        self.overseers.get(name).map_or_else(|| self.provider(name), |overseer| Ok(Arc::clone(overseer)))
    }

    /// The volumes that need exactly this key, each with its id for it.
    pub fn needing(&self, key: &ProviderKey) -> Vec<&VolumeNeeds> {
        self.scan.needing(|other| other == key)
    }

    /// All keys of all providers, or of one; what cannot be asked is in `broken`.
    pub fn keys(&mut self, only: Option<&ProviderName>) -> Vec<Key> {
        let mut keys: BTreeMap<(ProviderName, String), Key> = BTreeMap::new();
        let is_wanted = |name: &ProviderName| only.is_none_or(|only| only == name);
        for name in self.providers.keys().filter(|name| is_wanted(name)).cloned().collect::<Vec<_>>() {
            let listed = self.asked_about_keys(&name).and_then(|provider| {
                provider
                    .list()
                    .map_err(|error| JobError::Provider(FailedProvider { name: name.clone(), error }))
            });
            match listed {
                Ok(listed) => keys.extend(listed.into_iter().map(|listed| {
                    let key = ProviderKey { provider: name.clone(), key: listed.key, wrapped: None };
                    (order_of(&key), self.key(key, Ok(listed.facts)))
                })),
                // Of such a provider only those are known that volumes name.
                Err(JobError::Provider(FailedProvider { error: ProviderError::Unsupported(_), .. })) => {}
                Err(error) => self.broken.push(broken(&name, &error)),
            }
        }
        for key in self.needed_keys(|key| is_wanted(&key.provider)) {
            keys.entry(order_of(&key)).or_insert_with(|| self.look_up(key));
        }
        keys.into_values().collect()
    }

    /// The one key that is meant.
    ///
    /// # Errors
    /// [`JobError::NoSuchKey`] and [`JobError::AmbiguousKey`]; [`JobError::Provider`] if it may be
    /// at one that does not answer.
    pub fn find(&self, name: &KeyName) -> Result<Key, JobError> {
        let is_wanted =
            |key: &ProviderKey| name.provider.as_ref().is_none_or(|provider| *provider == key.provider);
        let is_named = |key: &ProviderKey| {
            let kek = self.kek_of(key).map(|kek| kek.to_string());
            key.key.as_str() == name.key || kek.is_some_and(|kek| kek == name.key)
        };
        let mut found = self.needed_keys(|key| is_wanted(key) && is_named(key));
        if found.is_empty() {
            found = self.ask_for(name)?;
        }
        match found.as_slice() {
            [key] => Ok(self.look_up(key.clone())),
            [] => Err(JobError::NoSuchKey { key: name.key.clone() }),
            several => Err(JobError::AmbiguousKey {
                key: name.key.clone(),
                found: several
                    .iter()
                    .map(|key| match self.kek_of(key) {
                        Some(kek) => format!("{key} (KEK {kek})"),
                        None => key.to_string(),
                    })
                    .collect(),
            }),
        }
    }

    /// The keys of that id at the providers that keep keys.
    fn ask_for(&self, name: &KeyName) -> Result<Vec<ProviderKey>, JobError> {
        let Ok(id) = name.key.parse() else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        let mut failed = None;
        for (provider, config) in &self.providers {
            let is_wanted = name.provider.as_ref().is_none_or(|wanted| wanted == provider);
            if !is_wanted || matches!(config.source, SourceConfig::Vault(_)) {
                continue;
            }
            let key = ProviderKey { provider: provider.clone(), key: Clone::clone(&id), wrapped: None };
            match self.facts(&key) {
                Ok(_) => found.push(key),
                Err(JobError::Provider(FailedProvider { error: ProviderError::NoSuchKey, .. })) => {}
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            // It may be there.
            Some(error) if found.is_empty() => Err(error),
            _ => Ok(found),
        }
    }

    /// The key that a volume is under, as its descriptor says; of two, the old one.
    ///
    /// # Errors
    /// [`JobError::NoProvidersKey`], and what keeps the volume from being read.
    pub fn key_of_volume(&self, path: &Path) -> Result<Key, JobError> {
        let found = |error| JobError::File(FileError { action: "find", path: path.to_owned(), error });
        let canonical = path.canonicalize().map_err(found)?;
        let described = strongroom_datastore::file::describe(&canonical)?;
        let source = described.descriptor.key_source().cloned();
        let key = source
            .as_ref()
            .and_then(provider_key)
            .ok_or_else(|| JobError::NoProvidersKey { path: path.to_owned() })?;
        Ok(self.look_up(key.clone()))
    }

    /// What is known of a key.
    pub fn look_up(&self, key: ProviderKey) -> Key {
        let facts = self.facts(&key).map_err(|error| without_numbers(&error.to_string()));
        self.key(key, facts)
    }

    /// Whether two names may be of one key: ids are a provider's own, and a provider may be set up
    /// under two names, or not any more.
    pub fn may_be_same(&self, one: &ProviderKey, other: &ProviderKey) -> bool {
        let servers = |key: &ProviderKey| self.config(&key.provider).map(|config| config.source.servers());
        let at_one_place = match (servers(one), servers(other)) {
            (Some(one), Some(other)) => one.iter().any(|server| other.contains(server)),
            _ => true,
        };
        one.key == other.key && (one.provider == other.provider || at_one_place)
    }

    /// What its provider says of a key.
    ///
    /// # Errors
    /// [`JobError::Provider`].
    pub fn facts(&self, key: &ProviderKey) -> Result<KeyFacts, JobError> {
        let failed = |error| JobError::Provider(FailedProvider { name: key.provider.clone(), error });
        match self.asked_about_keys(&key.provider)?.facts(key) {
            // Some servers forget what they destroyed; others let nobody see it.
            Err(ProviderError::Destroyed) => {
                Ok(KeyFacts { state: KeyState::Destroyed, created: None, activated: None, deactivates: None })
            }
            facts => facts.map_err(failed),
        }
    }

    fn key(&self, key: ProviderKey, facts: Result<KeyFacts, String>) -> Key {
        let volumes = self.needing(&key).into_iter().map(|volume| volume.path.clone()).collect();
        let cryptoperiod = self.config(&key.provider).and_then(ProviderConfig::cryptoperiod);
        let expires = facts.as_ref().ok().and_then(|facts| facts.expires(cryptoperiod));
        Key { kek: self.kek_of(&key), key, facts, volumes, expires }
    }

    fn kek_of(&self, key: &ProviderKey) -> Option<KekId> {
        let keks = self.scan.volumes().flat_map(|volume| &volume.keks);
        keks.filter(|kek| provider_key(&kek.source) == Some(key)).map(|kek| kek.id).next()
    }

    /// The keys that volumes need, each once.
    fn needed_keys(&self, is_wanted: impl Fn(&ProviderKey) -> bool) -> Vec<ProviderKey> {
        let keks = self.scan.volumes().flat_map(|volume| &volume.keks);
        let keys = keks.filter_map(|kek| provider_key(&kek.source)).filter(|key| is_wanted(key));
        let each_once: BTreeMap<_, _> = keys.map(|key| (order_of(key), key.clone())).collect();
        each_once.into_values().collect()
    }
}

/// The embedded key servers, under another certificate than this machine's own. One that cannot be
/// used, as when it is another user's, leaves what this machine may ask as a client.
fn overseers(
    providers: &BTreeMap<ProviderName, ProviderConfig>,
    overseer: &Overseer,
) -> BTreeMap<ProviderName, Arc<dyn KeyProvider>> {
    let mut overseers = BTreeMap::new();
    for (name, config) in providers {
        let SourceConfig::Embedded(own) = &config.source else { continue };
        if own.servers != [overseer.server.as_str()] {
            continue;
        }
        let Overseer { ca, certificate, key, .. } = overseer.clone();
        let kmip = KmipConfig { ca, certificate, key, ..own.clone() };
        let config = ProviderConfig { source: SourceConfig::Embedded(kmip), ..config.clone() };
        match strongroom_providers::open(&config) {
            Ok(provider) => drop(overseers.insert(name.clone(), provider)),
            Err(error) => {
                tracing::info!("{name} is not asked as {}: {error}", overseer.certificate.display())
            }
        }
    }
    overseers
}

/// By provider and id; a transit engine's keys differ by what is wrapped.
fn order_of(key: &ProviderKey) -> (ProviderName, String) {
    let wrapped = key.wrapped.clone().map(String::from).unwrap_or_default();
    (key.provider.clone(), format!("{}\n{wrapped}", key.key))
}

fn broken(name: &ProviderName, error: &JobError) -> Broken {
    Broken { name: name.clone(), code: error.code().to_owned(), reason: without_numbers(&error.to_string()) }
}

/// What people call a state.
pub fn state_name(state: KeyState) -> &'static str {
    match state {
        KeyState::PreActive => "pre-active",
        KeyState::Active => "active",
        KeyState::Deactivated => "deactivated",
        KeyState::Compromised => "COMPROMISED",
        KeyState::Destroyed => "destroyed",
    }
}
