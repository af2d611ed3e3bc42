//! Destructions that wait, of other providers' keys than the embedded key server's.
//!
//! The embedded key server has its own: it enforces delay and second person itself, and carries
//! them out. For other providers the delay is kept here, in `<home>/destructions`, one file each;
//! nobody but this program holds to it, and the provider's credentials suffice to destroy a key
//! there without it.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use strongroom_crypto::mac;
use strongroom_files::FileError;
use strongroom_keys::ProviderKey;
use strongroom_providers::{FailedProvider, KeyProvider, KeyState, ProviderError, Revocation};
use strongroom_types::{hex, unix_seconds_now};

use crate::error::JobError;
use crate::state_file;

const DIRECTORY: &str = "destructions";
const FORMAT: u32 = 1;

/// The destructions that a home keeps.
pub struct KeptDestructions {
    directory: PathBuf,
}

/// One of them, as it is written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    format: u32,
    /// The key.
    pub key: ProviderKey,
    /// The user of this machine who asked for it, by number.
    pub requested_by_uid: u32,
    /// When.
    pub requested_unix_seconds: u64,
    /// Before this it is not done.
    pub due_unix_seconds: u64,
    /// Why.
    pub reason: String,
}

impl KeptDestructions {
    /// Those of a home.
    pub fn of_home(home: &Path) -> Self {
        Self { directory: home.join(DIRECTORY) }
    }

    /// Takes the key out of use at its provider, and notes that it is to be destroyed.
    ///
    /// # Errors
    /// [`JobError::DestructionWaits`] if it is noted already, and what the provider says.
    pub fn schedule(
        &self,
        provider: &dyn KeyProvider,
        key: &ProviderKey,
        delay_seconds: u64,
        reason: &str,
    ) -> Result<Kept, JobError> {
        if let Some(kept) = self.get(key)? {
            return Err(JobError::DestructionWaits { due_unix_seconds: kept.due_unix_seconds });
        }
        let failed = |error| JobError::Provider(FailedProvider { name: key.provider.clone(), error });
        match provider.facts(key).map_err(failed)?.state {
            KeyState::Destroyed => return Err(failed(ProviderError::Destroyed)),
            KeyState::Active => provider.revoke(key, Revocation::Superseded).map_err(failed)?,
            // Nothing is sealed under them any more, or ever was.
            KeyState::PreActive | KeyState::Deactivated | KeyState::Compromised => {}
        }
        let now = unix_seconds_now();
        let kept = Kept {
            format: FORMAT,
            key: key.clone(),
            requested_by_uid: rustix::process::getuid().as_raw(),
            requested_unix_seconds: now,
            due_unix_seconds: now.saturating_add(delay_seconds),
            reason: reason.to_owned(),
        };
        state_file::replace(&self.file(key), &kept)?;
        Ok(kept)
    }

    /// Takes it back; the key stays out of use.
    ///
    /// # Errors
    /// [`JobError::NoDestruction`] if none is noted.
    pub fn cancel(&self, key: &ProviderKey) -> Result<Kept, JobError> {
        let kept = self.get(key)?.ok_or(JobError::NoDestruction)?;
        state_file::remove(&self.file(key))?;
        Ok(kept)
    }

    /// Destroys a key whose time has come by `now_unix_seconds`, and that nothing needs, as the
    /// caller knows.
    ///
    /// # Errors
    /// [`JobError::NoDestruction`], [`JobError::DestructionWaits`], and what the provider says.
    pub fn carry_out(
        &self,
        provider: &dyn KeyProvider,
        key: &ProviderKey,
        now_unix_seconds: u64,
    ) -> Result<Kept, JobError> {
        let kept = self.get(key)?.ok_or(JobError::NoDestruction)?;
        if now_unix_seconds < kept.due_unix_seconds {
            return Err(JobError::DestructionWaits { due_unix_seconds: kept.due_unix_seconds });
        }
        let failed = |error| JobError::Provider(FailedProvider { name: key.provider.clone(), error });
        // Some servers forget what they destroyed, and an earlier call may have got that far.
        match provider.facts(key).map(|facts| facts.state) {
            Ok(KeyState::Destroyed) | Err(ProviderError::NoSuchKey | ProviderError::Destroyed) => {}
            Ok(KeyState::Active) => {
                let reason =
                    "somebody took the key into use again; cancel its destruction, or schedule it anew";
                return Err(failed(ProviderError::Refused { reason: reason.to_owned() }));
            }
            Ok(_) => provider.destroy(key).map_err(failed)?,
            Err(error) => return Err(failed(error)),
        }
        state_file::remove(&self.file(key))?;
        Ok(kept)
    }

    /// The one of a key.
    ///
    /// # Errors
    /// [`JobError::File`] for a note that cannot be read.
    pub fn get(&self, key: &ProviderKey) -> Result<Option<Kept>, JobError> {
        let path = self.file(key);
        match state_file::read(&path, FORMAT) {
            Ok(kept) => Ok(Some(kept)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(JobError::File(FileError { action: "read", path, error })),
        }
    }

    fn file(&self, key: &ProviderKey) -> PathBuf {
        let wrapped = key.wrapped.as_ref().map_or(&[][..], |wrapped| wrapped.as_bytes());
        let name =
            [key.provider.as_str().as_bytes(), b"\n", key.key.as_str().as_bytes(), b"\n", wrapped].concat();
        self.directory.join(format!("{}.json", hex::encode(&mac::sha256(&name)[..16])))
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use strongroom_keys::KeyRequestId;
    use strongroom_memory::secret::SecretBytes;
    use strongroom_providers::{KeyFacts, ListedKey, NewKey, ServerHealth};

    use super::*;

    /// One key.
    struct OneKey(Mutex<KeyState>);

    impl OneKey {
        fn state(&self) -> KeyState {
            *self.0.lock()
        }

        fn become_of_it(&self, from: KeyState, to: KeyState) -> Result<(), ProviderError> {
            let mut state = self.0.lock();
            assert_eq!(*state, from);
            *state = to;
            Ok(())
        }
    }

    impl KeyProvider for OneKey {
        fn create(&self, _: KeyRequestId) -> Result<NewKey, ProviderError> {
            Err(ProviderError::Unsupported("one is enough"))
        }
        fn fetch(&self, _: &ProviderKey) -> Result<SecretBytes, ProviderError> {
            Err(ProviderError::Destroyed)
        }
        fn fetch_for_rekey(&self, key: &ProviderKey) -> Result<SecretBytes, ProviderError> {
            self.fetch(key)
        }
        fn facts(&self, _: &ProviderKey) -> Result<KeyFacts, ProviderError> {
            Ok(KeyFacts { state: self.state(), created: None, activated: None, deactivates: None })
        }
        fn activate(&self, _: &ProviderKey) -> Result<(), ProviderError> {
            Ok(())
        }
        fn revoke(&self, _: &ProviderKey, why: Revocation) -> Result<(), ProviderError> {
            assert_eq!(why, Revocation::Superseded);
            self.become_of_it(KeyState::Active, KeyState::Deactivated)
        }
        fn destroy(&self, _: &ProviderKey) -> Result<(), ProviderError> {
            self.become_of_it(KeyState::Deactivated, KeyState::Destroyed)
        }
        fn list(&self) -> Result<Vec<ListedKey>, ProviderError> {
            Ok(Vec::new())
        }
        fn health(&self) -> Vec<ServerHealth> {
            Vec::new()
        }
    }

    #[test]
    fn another_providers_key_waits_for_its_time_and_is_then_destroyed_once() {
        let home = tempfile::tempdir().unwrap();
        let kept = KeptDestructions::of_home(home.path());
        let key =
            ProviderKey { provider: "corp".parse().unwrap(), key: "4711".parse().unwrap(), wrapped: None };
        let provider = OneKey(Mutex::new(KeyState::Active));
        assert!(matches!(kept.cancel(&key), Err(JobError::NoDestruction)));
        let scheduled = kept.schedule(&provider, &key, 3600, "it is old").unwrap();
        assert_eq!(provider.state(), KeyState::Deactivated);
        assert_eq!(kept.get(&key).unwrap().as_ref(), Some(&scheduled));
        assert!(matches!(kept.schedule(&provider, &key, 1, ""), Err(JobError::DestructionWaits { .. })));
        let due = scheduled.due_unix_seconds;
        assert!(matches!(kept.carry_out(&provider, &key, due - 1), Err(JobError::DestructionWaits { .. })));
        assert_eq!(provider.state(), KeyState::Deactivated);

        kept.cancel(&key).unwrap();
        assert!(matches!(kept.carry_out(&provider, &key, due), Err(JobError::NoDestruction)));
        let scheduled = kept.schedule(&provider, &key, 0, "it is old").unwrap();
        kept.carry_out(&provider, &key, scheduled.due_unix_seconds).unwrap();
        assert_eq!(provider.state(), KeyState::Destroyed);
        assert_eq!(kept.get(&key).unwrap(), None);

        // Killed after the key was gone: the next call ends it.
        state_file::replace(&kept.file(&key), &scheduled).unwrap();
        kept.carry_out(&provider, &key, scheduled.due_unix_seconds).unwrap();
        assert_eq!(kept.get(&key).unwrap(), None);
        let gone = kept.schedule(&provider, &key, 0, "");
        assert!(matches!(
            gone,
            Err(JobError::Provider(FailedProvider { error: ProviderError::Destroyed, .. }))
        ));
    }
}
