//! The sources of a volume's key: a key provider, a passphrase typed or read from a descriptor, or
//! a key file. It never comes from the command line or the environment, which others can read, and
//! it is always read directly into secret memory.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use strongroom_datastore::file::{DatastoreError, Descriptor, KekRecord, Protection, describe};
use strongroom_files::FileError;
use strongroom_jobs::datastores::{KnownDatastores, vm_of};
use strongroom_jobs::{KeyRefusal, PresentKeys};
use strongroom_keys::{
    Kek, KekSource, KeyError, KeyRequestId, Keyring, PASSPHRASE_BYTES_MAX, ProviderKey, ProviderKeyId,
    ProviderName, check_new_passphrase, read_key_file,
};
use strongroom_memory::secret::SecretBytes;
use strongroom_providers::{HolderEvent, Registry, SourceConfig};
use strongroom_types::KekId;

use crate::error::CliError;
use crate::grants::GrantArguments;
use crate::home::HomeArguments;
use crate::keyring::{self, KeyringAndLeases};
use crate::terminal::{Terminal, TerminalError};

/// How often a person may try to type the passphrase.
const ATTEMPTS_MAX: u32 = 3;

/// The source of the key.
#[derive(Debug, Default, Args)]
#[group(multiple = false)]
pub struct KeyArguments {
    /// Read the key from FILE: 32 bytes, or 64 hexadecimal digits; it must be readable only by its
    /// owner
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,

    /// Read the passphrase from file descriptor N, as in --passphrase-fd 3 3<FILE; one trailing
    /// line end is removed
    #[arg(long, value_name = "N")]
    passphrase_fd: Option<u32>,

    /// Use a key of key provider NAME: a new volume gets a new key there. Not needed for an
    /// existing volume, which records its provider
    #[arg(long, value_name = "NAME")]
    key_provider: Option<ProviderName>,

    /// Do not encrypt: anyone who can read the datastore can read the guest's data
    #[arg(long)]
    unencrypted: bool,

    #[command(flatten)]
    pub home: HomeArguments,

    #[command(flatten)]
    grants: GrantArguments,

    /// The content of the file, or the passphrase.
    #[arg(skip)]
    secret: RefCell<Option<SecretBytes>>,
}

/// The source of the key of a new volume.
#[derive(Debug, Args)]
pub struct NewKeyArguments {
    #[command(flatten)]
    given: KeyArguments,

    /// Use the existing key KEY at the key provider instead of creating one: a host cannot create
    /// keys, its control plane does
    #[arg(long, value_name = "KEY", requires = "key_provider")]
    key_id: Option<ProviderKeyId>,
}

impl NewKeyArguments {
    /// A new key of a key provider, or an existing one.
    pub fn at_provider(home: &HomeArguments, provider: ProviderName, key_id: Option<ProviderKeyId>) -> Self {
        let given = KeyArguments { key_provider: Some(provider), ..KeyArguments::of_providers(home) };
        Self { given, key_id }
    }

    /// The key for a volume that will be created at `path`. A person at a terminal is asked twice.
    pub fn for_new_volume(&self, path: &Path) -> Result<VolumeKey, CliError> {
        let KeyArguments { key_file, passphrase_fd, key_provider, unencrypted, .. } = &self.given;
        if *unencrypted {
            return Ok(VolumeKey::Unencrypted);
        }
        if let Some(key_file) = key_file {
            let source = KekSource::KeyFile {};
            return Ok(VolumeKey::Kek(source.kek(&read_key_file(key_file)?)?));
        }
        if let Some(provider) = key_provider {
            return Ok(VolumeKey::Kek(self.provided(path, provider)?));
        }
        let passphrase = match *passphrase_fd {
            Some(descriptor) => read_passphrase(descriptor)?,
            None => ask_twice(path)?,
        };
        Ok(VolumeKey::Kek(Kek::of_new_passphrase_at_calibrated_cost(&passphrase)?))
    }

    fn provided(&self, path: &Path, provider: &ProviderName) -> Result<Kek, CliError> {
        // Check the name first: a mistyped one must leave no traces in the datastore.
        Registry::of_home(&self.given.home.path()?).get(provider)?;
        self.given.note_datastore_of(path)?;
        let keyring = self.given.keyring()?;
        Ok(match &self.key_id {
            Some(key) => {
                let (provider, key) = (provider.clone(), key.clone());
                keyring.fetch_to_seal(&ProviderKey { provider, key, wrapped: None })?
            }
            None => keyring.create(provider, KeyRequestId::random())?,
        })
    }
}

/// A function that fetches a key from a provider.
type Fetch = fn(&dyn Keyring, &ProviderKey) -> Result<Kek, KeyError>;

/// A volume's key, or a person's decision that it has none.
#[derive(Debug)]
pub enum VolumeKey {
    /// The key, with its origin for the descriptor.
    Kek(Kek),
    /// Not encrypted, by a person's decision.
    Unencrypted,
}

impl VolumeKey {
    /// The protection, for the datastore.
    pub fn protection(&self) -> Protection<'_> {
        match self {
            Self::Kek(kek) => Protection::Encrypted(kek),
            Self::Unencrypted => Protection::Unencrypted,
        }
    }

    /// The owned key, if there is one.
    pub fn into_kek(self) -> Option<Kek> {
        match self {
            Self::Kek(kek) => Some(kek),
            Self::Unencrypted => None,
        }
    }

    /// The key, if there is one.
    pub fn kek(&self) -> Option<&Kek> {
        match self {
            Self::Kek(kek) => Some(kek),
            Self::Unencrypted => None,
        }
    }
}

impl KeyArguments {
    /// Whether the command line names a source of the key.
    pub fn are_given(&self) -> bool {
        self.key_file.is_some()
            || self.passphrase_fd.is_some()
            || self.key_provider.is_some()
            || self.unencrypted
    }

    /// The arguments with which a service gets the key of this volume; `None` if it needs a person.
    pub fn words_without_a_person(&self, descriptor: &Descriptor) -> Result<Option<Vec<String>>, CliError> {
        let absolute = |path: &Path| -> Result<String, CliError> {
            let failed = |error| CliError::File(FileError { action: "find", path: path.to_owned(), error });
            Ok(std::path::absolute(path).map_err(failed)?.to_string_lossy().into_owned())
        };
        let mut words = Vec::new();
        match descriptor.encryption.as_ref().map(|encryption| &encryption.kek.source) {
            None => words.push("--unencrypted".to_owned()),
            Some(KekSource::Passphrase(_)) => return Ok(None),
            // If it is missing, this is reported when the key is tried.
            Some(KekSource::KeyFile {}) => {
                if let Some(file) = &self.key_file {
                    words.extend(["--key-file".to_owned(), absolute(file)?]);
                }
            }
            Some(KekSource::Provider(_)) if self.home.is_named() => {
                words.extend(["--home".to_owned(), absolute(&self.home.path()?)?]);
            }
            Some(KekSource::Provider(_)) => {}
        }
        if let Some(file) = self.grants.file() {
            words.extend(["--grant".to_owned(), absolute(file)?]);
        }
        Ok(Some(words))
    }

    /// The keys of a home's providers only.
    pub fn of_providers(home: &HomeArguments) -> Self {
        Self { home: home.clone(), ..Self::default() }
    }

    /// Records the datastore of a volume before the volume gets an envelope under a provider's key.
    pub fn note_datastore_of(&self, volume: &Path) -> Result<(), CliError> {
        Ok(KnownDatastores::of_home(&self.home.path()?).note_of_volume(volume)?)
    }

    /// The keyring of the key providers, with the grants that were given.
    pub fn keyring(&self) -> Result<Arc<dyn Keyring>, CliError> {
        Ok(keyring::of(&self.home, self.grants.source()?))
    }

    /// As [`keyring`](Self::keyring), with leases that hold the keys while this process uses them.
    pub fn keyring_and_leases(
        &self,
        on_event: impl Fn(&HolderEvent) + Send + Sync + 'static,
    ) -> Result<KeyringAndLeases, CliError> {
        keyring::with_leases(&self.home, self.grants.source()?, on_event)
    }

    /// The files and directories that are read when the key providers are asked again.
    pub fn files_of_providers(&self) -> Vec<PathBuf> {
        let registry = self.home.path().map(|home| Registry::of_home(&home).directories());
        // A new file of grants replaces the old one under the same name.
        let grants = self.grants.file().and_then(|file| std::path::absolute(file).ok());
        let grants = grants.as_deref().and_then(Path::parent).map(Path::to_owned);
        registry.unwrap_or_default().into_iter().chain(grants).collect()
    }

    /// The key of the volume at `path`, whose descriptor, not yet authenticated, is `descriptor`. A
    /// person at a terminal is asked if no source was given. During a re-wrap either of two keys is
    /// valid; if one is `expected`, only that one.
    pub fn for_volume(
        &self,
        path: &Path,
        descriptor: &Descriptor,
        expected: Option<KekId>,
    ) -> Result<VolumeKey, CliError> {
        let found = self.found_for(path, descriptor, expected, |keyring, key| keyring.fetch(key));
        // The secret is not needed again, so only one copy of the key remains, with the caller.
        self.secret.borrow_mut().take();
        found
    }

    /// The key of new DEKs of the volume at `path`, if a re-encryption under another key is not
    /// finished: from its provider, or the key file.
    pub fn next_of(&self, path: &Path, key_file: Option<&Path>) -> Result<Option<Kek>, CliError> {
        let descriptor = describe(path)?.descriptor;
        let next = descriptor.encryption.as_ref().and_then(|encryption| encryption.next_kek.as_ref());
        let Some(record) = next.filter(|_| descriptor.reencrypting.is_some()) else { return Ok(None) };
        match (&record.source, key_file) {
            (KekSource::Provider(key), _) => {
                let keyring = self.keyring()?;
                provided_kek(|| keyring.fetch(key), path, key, record.id).map(Some)
            }
            (KekSource::KeyFile {}, Some(key_file)) => {
                let kek = record.source.kek(&read_key_file(key_file)?)?;
                let (path, key_file) = (path.to_owned(), key_file.to_owned());
                kek.expect_id(record.id).map_err(|_| CliError::WrongKeyFile { path, key_file })?;
                Ok(Some(kek))
            }
            (KekSource::KeyFile {}, None) => Err(CliError::NoKey {
                path: path.to_owned(),
                next: "its data keys are being renewed under another key; give that with --next-key-file FILE, or finish \
                       'volume rekey --data' first",
            }),
            (KekSource::Passphrase(_), _) => Err(CliError::NoKey {
                path: path.to_owned(),
                next: "its data keys are being renewed under a passphrase; finish 'volume rekey --data' first",
            }),
        }
    }

    fn found_for(
        &self,
        path: &Path,
        descriptor: &Descriptor,
        expected: Option<KekId>,
        fetch: Fetch,
    ) -> Result<VolumeKey, CliError> {
        let Some(encryption) = &descriptor.encryption else {
            let refused = DatastoreError::NotEncrypted { path: path.to_owned() };
            return if self.unencrypted { Ok(VolumeKey::Unencrypted) } else { Err(refused.into()) };
        };
        if self.unencrypted {
            let source_name = encryption.kek.source.name();
            return Err(DatastoreError::Encrypted { path: path.to_owned(), source_name }.into());
        }
        let mut refused = None;
        for record in encryption.keks().filter(|record| expected.is_none_or(|expected| record.id == expected))
        {
            match self.for_kek(path, record, fetch) {
                Ok(kek) => return Ok(VolumeKey::Kek(kek)),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        let (path, found) = (path.to_owned(), encryption.kek.id);
        Err(refused.unwrap_or(CliError::UnexpectedKek { path, found, expected: expected.unwrap_or(found) }))
    }

    /// The key for this record.
    fn for_kek(&self, path: &Path, record: &KekRecord, fetch: Fetch) -> Result<Kek, CliError> {
        let (source, path) = (&record.source, path.to_owned());
        let refuse_other_source = |given| {
            let error = KeyError::WrongSource { given, wanted: source.name() };
            Err(DatastoreError::Key { path: path.clone(), error }.into())
        };
        if self.key_provider.is_some() && !matches!(source, KekSource::Provider(_)) {
            return refuse_other_source("key provider");
        }
        match (source, &self.key_file, self.passphrase_fd) {
            (KekSource::Provider(key), None, None) => {
                self.refuse_another_provider(&path, key)?;
                self.refuse_key_of_vm(&path, key)?;
                let keyring = self.keyring()?;
                provided_kek(|| fetch(&*keyring, key), &path, key, record.id)
            }
            (KekSource::Provider(_), Some(_), _) => refuse_other_source("key file"),
            (KekSource::Provider(_), None, Some(_)) => refuse_other_source("passphrase"),
            (KekSource::KeyFile {}, Some(key_file), _) => {
                let kek = self.with_secret(|| Ok(read_key_file(key_file)?), |secret| source.kek(secret))?;
                let wrong = |_| CliError::WrongKeyFile { path, key_file: key_file.clone() };
                kek.expect_id(record.id).map_err(wrong)?;
                Ok(kek)
            }
            (KekSource::KeyFile {}, None, None) => {
                Err(CliError::NoKey { path, next: "give --key-file FILE" })
            }
            (KekSource::KeyFile {}, None, Some(_)) => refuse_other_source("passphrase"),
            (KekSource::Passphrase(_), Some(_), _) => refuse_other_source("key file"),
            (KekSource::Passphrase(_), None, Some(number)) => {
                let kek = self.with_secret(|| read_passphrase(number), |secret| source.kek(secret))?;
                kek.expect_id(record.id).map_err(|_| CliError::WrongPassphrase { path })?;
                Ok(kek)
            }
            (KekSource::Passphrase(_), None, None) => ask_until_right(&path, record),
        }
    }

    /// The secret that was given. It is read once: a descriptor may provide it only once, and many
    /// volumes may need it.
    fn with_secret(
        &self,
        read: impl FnOnce() -> Result<SecretBytes, CliError>,
        using: impl FnOnce(&SecretBytes) -> Result<Kek, KeyError>,
    ) -> Result<Kek, CliError> {
        let mut given = self.secret.borrow_mut();
        let secret = match given.take() {
            Some(secret) => secret,
            None => read()?,
        };
        let kek = using(&secret);
        *given = Some(secret);
        Ok(kek?)
    }

    /// Refuses a VM's key in the embedded key server without a grant: only the VM's host gets it.
    /// The server would refuse too, and record the refusal.
    fn refuse_key_of_vm(&self, path: &Path, key: &ProviderKey) -> Result<(), CliError> {
        let Some(vm) = vm_of(path).filter(|_| self.grants.file().is_none()) else { return Ok(()) };
        let config = Registry::of_home(&self.home.path()?).get(&key.provider);
        match config.map(|config| config.source) {
            Ok(SourceConfig::Embedded(_)) => Err(CliError::VmVolume { path: path.to_owned(), vm }),
            Ok(SourceConfig::Kmip(_) | SourceConfig::Vault(_)) | Err(_) => Ok(()),
        }
    }

    fn refuse_another_provider(&self, path: &Path, key: &ProviderKey) -> Result<(), CliError> {
        match &self.key_provider {
            Some(given) if *given != key.provider => Err(CliError::Usage(format!(
                "the key of {} is kept by key provider {}, not by {given}",
                path.display(),
                key.provider
            ))),
            _ => Ok(()),
        }
    }
}

impl PresentKeys for KeyArguments {
    fn to_leave(
        &self,
        path: &Path,
        descriptor: &Descriptor,
        expected: Option<KekId>,
    ) -> Result<Option<Kek>, KeyRefusal> {
        let found = self.found_for(path, descriptor, expected, |keyring, key| keyring.fetch_to_leave(key));
        Ok(found?.into_kek())
    }
}

/// Fetches the KEK of the volume at `path` from its provider.
fn provided_kek(
    fetch: impl FnOnce() -> Result<Kek, KeyError>,
    path: &Path,
    key: &ProviderKey,
    wanted: KekId,
) -> Result<Kek, CliError> {
    let error = |error| DatastoreError::Key { path: path.to_owned(), error };
    let kek = fetch().map_err(error)?;
    kek.expect_id(wanted)
        .map_err(|_| CliError::WrongProviderKey { path: path.to_owned(), key: Box::new(key.clone()) })?;
    Ok(kek)
}

fn ask_until_right(path: &Path, record: &KekRecord) -> Result<Kek, CliError> {
    let next = "give --passphrase-fd N, or run in a terminal to be asked for its passphrase";
    let mut terminal = terminal_for(path, next)?;
    for attempt in 1..=ATTEMPTS_MAX {
        let prompt = match attempt {
            1 => format!("Passphrase of {}", path.display()),
            _ => "Wrong. Once more".to_owned(),
        };
        let kek = record.source.kek(&asked(terminal.ask_passphrase(&prompt))?)?;
        if kek.id() == record.id {
            return Ok(kek);
        }
    }
    Err(CliError::WrongPassphrase { path: path.to_owned() })
}

/// Asks a person at the terminal twice for a new passphrase for the object at `path`.
pub fn ask_twice(path: &Path) -> Result<SecretBytes, CliError> {
    let next = "give --key-file FILE or --passphrase-fd N, or run in a terminal to be asked for a passphrase";
    let mut terminal = terminal_for(path, next)?;
    let passphrase = asked(terminal.ask_passphrase(&format!("New passphrase for {}", path.display())))?;
    // Refuse a weak one before it is repeated.
    check_new_passphrase(&passphrase)?;
    let repeated = asked(terminal.ask_passphrase("The same again"))?;
    if passphrase == repeated { Ok(passphrase) } else { Err(CliError::PassphrasesDiffer) }
}

/// Asks a person at the terminal for a passphrase or PIN for the object at `path`.
pub fn ask_once(path: &Path, prompt: &str) -> Result<SecretBytes, CliError> {
    let next = "give it by a file descriptor, or run in a terminal to be asked for it";
    asked(terminal_for(path, next)?.ask_passphrase(prompt))
}

fn terminal_for(path: &Path, next: &'static str) -> Result<Terminal, CliError> {
    Terminal::open().ok_or_else(|| CliError::NoKey { path: path.to_owned(), next })
}

/// The error for a question without an answer.
pub fn asked(answer: Result<SecretBytes, TerminalError>) -> Result<SecretBytes, CliError> {
    answer.map_err(|error| match error {
        // All questions come before the first change.
        TerminalError::Interrupted => CliError::Declined,
        TerminalError::Secret(error) => error.into(),
        TerminalError::Io(error) => {
            CliError::File(FileError { action: "read", path: "/dev/tty".into(), error })
        }
    })
}

/// Reads the passphrase from a descriptor that the caller opened for us, directly into secret
/// memory.
pub fn read_passphrase(descriptor: u32) -> Result<SecretBytes, CliError> {
    read_secret(descriptor, "--passphrase-fd")
}

/// Reads a secret of one line from the descriptor that an option names.
pub fn read_secret(descriptor: u32, option: &str) -> Result<SecretBytes, CliError> {
    let path = PathBuf::from(format!("/proc/self/fd/{descriptor}"));
    let failed = |path: PathBuf, error| CliError::File(FileError { action: "read", path, error });
    let file = File::open(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => CliError::Usage(format!(
            "file descriptor {descriptor} is not open; open it as in: {option} {descriptor} {descriptor}<FILE"
        )),
        _ => failed(path.clone(), error),
    })?;
    read_line_of(file).map_err(|error| match error {
        TerminalError::Io(error) => failed(path, error),
        error => asked(Err(error)).err().unwrap_or(CliError::Declined),
    })
}

/// The whole content without one line end.
fn read_line_of(mut from: impl Read) -> Result<SecretBytes, TerminalError> {
    // One more byte for the line end, and one that reveals a longer passphrase.
    let mut content = SecretBytes::zeroed(PASSPHRASE_BYTES_MAX + 2)?;
    let mut length = 0;
    while length < content.len() {
        match from.read(&mut content.expose_mut()[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    let content = &content.expose()[..length];
    let line = content.strip_suffix(b"\n").unwrap_or(content);
    let mut passphrase = SecretBytes::zeroed(line.len())?;
    passphrase.expose_mut().copy_from_slice(line);
    Ok(passphrase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_end_is_left_out() {
        let read = |content: &[u8]| read_line_of(content).unwrap().expose().to_vec();
        assert_eq!(read(b"correct horse\n"), b"correct horse");
        assert_eq!(read(b"correct horse\n\n"), b"correct horse\n");
        assert_eq!(read(b" spaces \t"), b" spaces \t");
        assert_eq!(read(b""), b"");
        assert_eq!(read(&[b'x'; 4000]).len(), PASSPHRASE_BYTES_MAX + 2);
    }

    /// One key, or none.
    #[derive(Debug)]
    struct OneKey(Option<u8>);

    impl Keyring for OneKey {
        fn fetch(&self, key: &ProviderKey) -> Result<Kek, KeyError> {
            let unavailable = || KeyError::Unavailable {
                key: Box::new(key.clone()),
                reason: "it rests".to_owned(),
                absence: strongroom_keys::Absence::ForNow,
            };
            let fill = self.0.ok_or_else(unavailable)?;
            Kek::from_provider(SecretBytes::from_slice_and_wipe(&mut [fill; 32])?, key.clone())
        }

        fn create(&self, provider: &ProviderName, _: KeyRequestId) -> Result<Kek, KeyError> {
            let key = "4711".parse().unwrap();
            self.fetch(&ProviderKey { provider: provider.clone(), key, wrapped: None })
        }
    }

    #[test]
    fn a_key_that_cannot_be_had_is_named_and_a_wrong_one_told() {
        let made = OneKey(Some(1)).create(&"corp".parse().unwrap(), KeyRequestId::random()).unwrap();
        let KekSource::Provider(key) = made.source() else { panic!("{made:?}") };
        let fetch =
            |keyring: OneKey| provided_kek(|| keyring.fetch(key), Path::new("ds/vm1"), key, made.id());
        assert_eq!(fetch(OneKey(Some(1))).unwrap().id(), made.id());
        let error = fetch(OneKey(None)).unwrap_err();
        assert_eq!(error.code(), "key_unavailable");
        assert_eq!(
            error.to_string(),
            "cannot open ds/vm1: key-unavailable: key provider corp, key 4711: it rests"
        );
        assert_eq!(fetch(OneKey(Some(2))).unwrap_err().code(), "wrong_key");
    }

    #[test]
    fn a_descriptor_that_is_not_open_is_explained() {
        let error = read_passphrase(987_654).unwrap_err();
        assert_eq!(
            error.to_string(),
            "file descriptor 987654 is not open; open it as in: --passphrase-fd 987654 987654<FILE"
        );
        assert_eq!(error.status(), 2);
    }
}
