//! Re-encrypts a volume while it is served.
//!
//! Another process reads the layers below the top and rewrites each of them beside itself
//! (`worker/src/reencrypt/served.rs`). The supervisor alone replaces the descriptor:
//!
//! ```text
//! begin    the descriptor has the mark -> a new top takes the writes -> what was the top is complete
//! replace  the new layer is checked and durable -> the descriptor has it
//!              -> a successor of the worker reads it -> the old one's files go
//! finish   all layers are done: the descriptor has no mark
//! cancel   the descriptor has no mark: all layers are under the KEK of the old ones
//! ```
//!
//! A new KEK comes with `begin`. From then on the supervisor holds both, until the end: old DEKs
//! stay under the old one, and all that are made meanwhile are under the new one.
//!
//! Clients wait at `begin`, and at each `replace` of a layer that belongs to the present content,
//! as they do for a snapshot. Both layers have the same content, so it does not matter which of
//! them a worker reads that was started before a replacement.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use strongroom_datastore::file::{DatastoreError, LayerRecord};
use strongroom_keys::KeyError;
use strongroom_types::LayerId;

use super::merge::Failure;
use super::rewrap::handed_over;
use super::snapshot::Refusal;
use super::{Supervisor, refuse};
use crate::control::{Answer, NewKek, ReencryptAct};

impl Supervisor {
    /// Does a step of a re-encryption.
    pub(super) fn reencrypt(
        &mut self,
        act: ReencryptAct,
        least_generation: u64,
        pipe: Option<OwnedFd>,
    ) -> Answer {
        let head = &self.exposure.head;
        if let Err(error) = head.descriptor().expect_generation(head.path(), least_generation) {
            return refuse(&error);
        }
        if self.rewrap.is_some() {
            let message = "the volume is being moved to another key; ask again in a minute".to_owned();
            return Answer::Refused { code: "busy".to_owned(), message };
        }
        let done = match act {
            ReencryptAct::Begin => self.begin_reencryption(),
            ReencryptAct::BeginUnder { to } => self.begin_under(to, pipe),
            ReencryptAct::Replace { old, new } => self.replace_layer(old, &new),
            ReencryptAct::Finish => self.finish_reencryption(),
            ReencryptAct::Cancel => self.cancel_reencryption(),
        };
        done.unwrap_or_else(Answer::from)
    }

    /// As [`Self::begin_reencryption`], under a KEK that came in a pipe. It is held from then on.
    fn begin_under(&mut self, to: NewKek, pipe: Option<OwnedFd>) -> Result<Answer, Refusal> {
        let id = to.id;
        let kek = handed_over(to, pipe).map_err(|error| self.refused_key(error))?;
        let encryption = self.exposure.head.descriptor().encryption.as_ref();
        let next = encryption.and_then(|encryption| encryption.next_kek.as_ref()).map(|next| next.id);
        if next.is_some_and(|next| next != id) {
            let path = PathBuf::from(self.exposure.head.path());
            return Err(Refusal::of(&DatastoreError::Reencrypting { path }));
        }
        if !self.exposure.kek.is(id) {
            self.exposure.kek.begin_next(kek);
        }
        self.begin_reencryption()
    }

    fn refused_key(&self, error: KeyError) -> Refusal {
        let path = PathBuf::from(self.exposure.head.path());
        Refusal::of(&DatastoreError::Key { path, error })
    }

    /// Marks the volume, and puts a new top on it if the present one has an old key. Asked again,
    /// it tells whether the layers can be rewritten.
    fn begin_reencryption(&mut self) -> Result<Answer, Refusal> {
        let kek = self.exposure.kek.now().map_err(|error| Refusal::because(error.to_string()))?;
        let head = &mut self.exposure.head;
        head.mark_reencryption(kek.protection()).map_err(|error| Refusal::of(&error))?;
        let is_closing = head.descriptor().closing().is_some();
        if !is_closing && !head.is_top_reencrypted() {
            drop(kek);
            self.put_top_on().map_err(refusal_of)?;
        }
        let head = &self.exposure.head;
        let descriptor = head.descriptor();
        let is_ready = head.is_top_reencrypted() && descriptor.closing().is_none();
        Ok(Answer::Reencrypting { is_ready, generation: descriptor.generation })
    }

    /// Puts a rewritten layer in the place of the old one.
    fn replace_layer(&mut self, old: LayerId, new: &LayerRecord) -> Result<Answer, Refusal> {
        let kek = self.exposure.kek.now().map_err(|error| Refusal::because(error.to_string()))?;
        let head = &mut self.exposure.head;
        let replaced = head.descriptor().layer(old).cloned();
        let is_read = head.descriptor().chain().any(|layer| layer.id == old);
        head.replace_rewritten(old, new, kek.protection()).map_err(|error| Refusal::of(&error))?;
        drop(kek);
        // From here on the descriptor has the new layer, and every later worker reads it.
        self.reads_replaced |= is_read;
        self.read_rewritten()?;
        if let Some(replaced) = replaced {
            self.exposure.head.remove_replaced(&replaced);
        }
        Ok(Answer::Reencrypting { is_ready: true, generation: self.exposure.head.descriptor().generation })
    }

    /// Has a successor of the worker read the layers that the descriptor has, if the worker reads
    /// others.
    fn read_rewritten(&mut self) -> Result<(), Refusal> {
        if !self.reads_replaced {
            return Ok(());
        }
        let handed = self.hand_over_changed(|exposure, lower| {
            let kek = exposure.kek.now().map_err(|error| Failure::Later(error.to_string()))?;
            let head = &exposure.head;
            for (place, record) in head.descriptor().chain().skip(1).enumerate() {
                let open = lower.get_mut(place).ok_or_else(super::merge::other_layers)?;
                let epoch = record.epochs.last().map(|record| record.epoch);
                if epoch != Some(open.facts.write_epoch) {
                    *open = head.open_lower(record.id, kek.protection())?;
                }
            }
            Ok(())
        });
        let stall = handed.map_err(refusal_of)?;
        tracing::info!("rewritten layers are read from now on; clients waited for {stall:?}");
        self.reads_replaced = false;
        Ok(())
    }

    fn finish_reencryption(&mut self) -> Result<Answer, Refusal> {
        self.read_rewritten()?;
        let kek = self.exposure.kek.now().map_err(|error| Refusal::because(error.to_string()))?;
        let head = &mut self.exposure.head;
        let finished = head.finish_reencryption(kek.protection());
        finished.map_err(|error: DatastoreError| Refusal::of(&error))?;
        drop(kek);
        self.exposure.kek.end_on_next();
        tracing::info!("the volume is re-encrypted");
        Ok(Answer::Reencrypted { generation: self.exposure.head.descriptor().generation })
    }

    fn cancel_reencryption(&mut self) -> Result<Answer, Refusal> {
        self.read_rewritten()?;
        let cancelled = self.change_head(|head, protection| head.cancel_reencryption(protection));
        cancelled.map_err(|error| Refusal::of(&error))?;
        self.exposure.kek.end_without_next();
        tracing::info!("the re-encryption of the volume is cancelled");
        Ok(Answer::Reencrypted { generation: self.exposure.head.descriptor().generation })
    }
}

fn refusal_of(failure: Failure) -> Refusal {
    match failure {
        Failure::Later(reason) | Failure::Final(reason) => Refusal::because(reason),
    }
}
