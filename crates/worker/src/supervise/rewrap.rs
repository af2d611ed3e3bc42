//! A volume that is exposed moves to another KEK. The worker notices nothing: its keys are the same.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use strongroom_datastore::file::DatastoreError;
use strongroom_keys::{Kek, KekSource, KeyError};

use super::{Supervisor, refuse};
use crate::control::{Answer, NewKek};

impl Supervisor {
    /// Moves the volume to another KEK. A provider's is fetched from there, by us; any other came with the request, in a
    /// pipe.
    pub(super) fn rewrap(&mut self, new: NewKek, least_generation: u64, pipe: Option<OwnedFd>) -> Answer {
        let found = self.exposure.head.descriptor().generation;
        let path = PathBuf::from(self.exposure.head.path());
        if found < least_generation {
            return refuse(&DatastoreError::RolledBack { path, found, least: least_generation });
        }
        let to = match self.new_kek(new, pipe) {
            Ok(to) => to,
            Err(error) => return refuse(&DatastoreError::Key { path, error }),
        };
        let Some(from) = &self.exposure.kek else { return refuse(&DatastoreError::NotEncrypted { path }) };
        let (head, old_kek, kek) = (&mut self.exposure.head, from.id(), to.id());
        let rewrapped = head.rewrap(from, &to);
        if !head.descriptor().is_under(old_kek) || rewrapped.is_ok() {
            // Also where it failed at the very end: the next worker is started with the key that opens the volume.
            self.exposure.kek = Some(to);
        }
        match rewrapped {
            Ok(()) => {
                let generation = self.exposure.head.descriptor().generation;
                tracing::warn!("the volume is under KEK {kek} now, and not under {old_kek} any more");
                Answer::Rewrapped { old_kek, kek, generation }
            }
            Err(error) => refuse(&error),
        }
    }

    fn new_kek(&self, new: NewKek, pipe: Option<OwnedFd>) -> Result<Kek, KeyError> {
        let kek = match (new.source, pipe) {
            (KekSource::Provider(key), _) => self.exposure.keyring.fetch(&key)?,
            (source, Some(pipe)) => Kek::from_pipe(pipe, source)?,
            (_, None) => {
                let missing = std::io::Error::other("no pipe came with the request");
                return Err(KeyError::NotHandedOver(missing));
            }
        };
        kek.expect_id(new.id)?;
        Ok(kek)
    }
}
