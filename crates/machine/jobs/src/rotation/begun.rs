//! Rotations that were begun and not finished, by the key that they replace: `<home>/rotations`,
//! one file each.
//!
//! A rotation's journal says what it has done, and is found by the old key's name. Its volumes name
//! the new key as soon as they have moved; these files lead from a volume, and from all that is
//! due, to the same rotation.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use strongroom_crypto::mac;
use strongroom_files::FileError;
use strongroom_keys::{ProviderKey, ProviderName};
use strongroom_types::{KekId, hex};

use crate::error::JobError;
use crate::state_file;

const DIRECTORY: &str = "rotations";
const ENDING: &str = ".json";
const FORMAT: u32 = 1;

/// The rotations of a home.
pub struct BegunRotations {
    directory: PathBuf,
}

/// One that was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BegunRotation {
    format: u32,
    /// The old key.
    pub key: ProviderKey,
    /// The id that volumes have for it.
    pub kek: Option<KekId>,
    /// Where the new key is made.
    pub to: ProviderName,
}

impl BegunRotation {
    /// From a key to a provider.
    pub fn new(key: ProviderKey, kek: Option<KekId>, to: ProviderName) -> Self {
        Self { format: FORMAT, key, kek, to }
    }

    /// What tells its job from others.
    pub fn job(&self) -> String {
        // The keys of a transit engine differ by what is wrapped.
        match (&self.key.wrapped, self.kek) {
            (Some(_), Some(kek)) => {
                format!("rotation of {}, KEK {kek}, to key provider {}", self.key, self.to)
            }
            _ => format!("rotation of {} to key provider {}", self.key, self.to),
        }
    }
}

impl BegunRotations {
    /// Those of a home.
    pub fn of_home(home: &Path) -> Self {
        Self { directory: home.join(DIRECTORY) }
    }

    /// Notes one before anything of it is done.
    pub fn begin(&self, rotation: &BegunRotation) -> Result<(), JobError> {
        state_file::replace(&self.file(rotation), rotation)
    }

    /// Nothing of it is left to be done.
    pub fn end(&self, rotation: &BegunRotation) -> Result<(), JobError> {
        state_file::remove(&self.file(rotation)).map(drop)
    }

    /// All that are left.
    pub fn list(&self) -> Result<Vec<BegunRotation>, JobError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| JobError::File(FileError { action: "read", path, error })
        };
        let files = strongroom_files::list(&self.directory, ENDING).map_err(failed(&self.directory))?;
        let read = |file: PathBuf| state_file::read(&file, FORMAT).map_err(failed(&file));
        let mut begun = files.into_iter().map(read).collect::<Result<Vec<BegunRotation>, _>>()?;
        begun.sort_by_key(BegunRotation::job);
        Ok(begun)
    }

    fn file(&self, rotation: &BegunRotation) -> PathBuf {
        let digest = mac::sha256(rotation.job().as_bytes());
        self.directory.join(format!("{}{ENDING}", hex::encode(&digest[..16])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_begun_is_listed_until_it_is_ended() {
        let home = tempfile::tempdir().unwrap();
        let rotations = BegunRotations::of_home(home.path());
        assert!(rotations.list().unwrap().is_empty());
        let rotation = |id: &str| {
            let key =
                ProviderKey { provider: "corp".parse().unwrap(), key: id.parse().unwrap(), wrapped: None };
            BegunRotation::new(key, None, "other".parse().unwrap())
        };
        let (first, second) = (rotation("1"), rotation("2"));
        rotations.begin(&second).unwrap();
        rotations.begin(&first).unwrap();
        rotations.begin(&first).unwrap();
        assert_eq!(rotations.list().unwrap(), [first.clone(), second.clone()]);
        rotations.end(&first).unwrap();
        rotations.end(&first).unwrap();
        assert_eq!(rotations.list().unwrap(), [second]);
    }
}
