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
//! A volume that is encrypted or decrypted has clear and sealed layers meanwhile. Which ones is in
//! the descriptor, under the KEK; that there may be any, and of which sort writes are, is what a
//! person asked of this process ([`VolumeSeal`]), and never read from the datastore. For a volume
//! of a VM, the VM's supervisor in the same process allows one change at a time ([`SealChange`]).
//!
//! Clients wait at `begin`, and at each `replace` of a layer that belongs to the present content,
//! as they do for a snapshot. Both layers have the same content, so it does not matter which of
//! them a worker reads that was started before a replacement.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Instant;

use strongroom_datastore::file::{DatastoreError, Descriptor, LayerRecord, NewTags};
use strongroom_keys::KeyError;
use strongroom_types::{KekId, LayerId};

use super::kek::{SealChange, VolumeKek, VolumeSeal};
use super::merge::Failure;
use super::restart::Outage;
use super::rewrap::handed_over;
use super::snapshot::{NewTop, Refusal};
use super::{Phase, Supervisor, refuse};
use crate::control::{Answer, Becomes, NewKek, ReencryptAct};

/// What a volume was before it was to be encrypted or decrypted.
struct Before {
    seal: VolumeSeal,
    descriptor: Descriptor,
}

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
            ReencryptAct::Begin => self.begin_reencryption(NewTags::Kept),
            ReencryptAct::BeginUnder { to } => self.begin_under(to, NewTags::Kept, pipe),
            ReencryptAct::BeginAs { becomes, tags } => match becomes {
                Becomes::Kept => self.begin_reencryption(tags),
                Becomes::Under(to) => self.begin_under(to, tags, pipe),
                Becomes::Encrypted(to) => self.begin_encrypting(to, tags, pipe),
                Becomes::Clear { under } => self.begin_decrypting(under),
            },
            ReencryptAct::Replace { old, new } => self.replace_layer(old, &new),
            ReencryptAct::Finish => self.finish_reencryption(),
            ReencryptAct::Cancel => self.cancel_reencryption(),
        };
        done.unwrap_or_else(Answer::from)
    }

    /// As [`Self::begin_reencryption`], under a KEK that came in a pipe. It is held from then on.
    fn begin_under(&mut self, to: NewKek, tags: NewTags, pipe: Option<OwnedFd>) -> Result<Answer, Refusal> {
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
        self.begin_reencryption(tags)
    }

    /// Begins to encrypt a clear volume, or one that is being decrypted, under a KEK that came in a
    /// pipe. It is held from then on.
    fn begin_encrypting(
        &mut self,
        to: NewKek,
        tags: NewTags,
        pipe: Option<OwnedFd>,
    ) -> Result<Answer, Refusal> {
        let id = to.id;
        let is_same = self.exposure.kek.is(id);
        match self.exposure.kek.seal() {
            VolumeSeal::Clear => {}
            VolumeSeal::Decrypting if is_same => {}
            // All layers are sealed by now.
            VolumeSeal::Sealed if is_same => return self.begin_reencryption(tags),
            VolumeSeal::Encrypting if is_same => return Ok(self.readiness()),
            VolumeSeal::Sealed | VolumeSeal::Encrypting | VolumeSeal::Decrypting => {
                let path = PathBuf::from(self.exposure.head.path());
                return Err(Refusal::of(&DatastoreError::Reencrypting { path }));
            }
        }
        self.refuse_if_configured(SealChange::Encrypted(id))?;
        let kek = handed_over(to, pipe).map_err(|error| self.refused_key(error))?;
        self.change_seal(tags, |own| own.begin_encrypting(kek))?;
        tracing::info!("the volume is encrypted from now on, under KEK {id}; what it has is rewritten");
        Ok(self.readiness())
    }

    /// Begins to decrypt the volume, or to take its encryption back that is not finished.
    fn begin_decrypting(&mut self, under: KekId) -> Result<Answer, Refusal> {
        let wanted = self.exposure.head.descriptor().encryption.as_ref().map(|encryption| encryption.kek.id);
        if let Some(wanted) = wanted.filter(|wanted| *wanted != under) {
            return Err(self.refused_key(KeyError::WrongKek { given: under, wanted }));
        }
        match self.exposure.kek.seal() {
            VolumeSeal::Sealed | VolumeSeal::Encrypting => {}
            VolumeSeal::Decrypting => return Ok(self.readiness()),
            VolumeSeal::Clear => {
                let path = PathBuf::from(self.exposure.head.path());
                return Err(Refusal::of(&DatastoreError::NotEncrypted { path }));
            }
        }
        self.refuse_if_configured(SealChange::Clear)?;
        self.change_seal(NewTags::None, VolumeKek::begin_decrypting)?;
        tracing::warn!("what is written to the volume is NOT encrypted from now on: it is being decrypted");
        Ok(self.readiness())
    }

    /// A VM would not start with a volume that is not as its configuration says.
    fn refuse_if_configured(&self, change: SealChange) -> Result<(), Refusal> {
        if self.exposure.kek.may_change_seal(change) {
            return Ok(());
        }
        let reason = "it belongs to a VM, whose configuration says whether it is encrypted";
        let path = self.exposure.head.path().display();
        Err(Refusal { code: "volume_of_vm", message: format!("{path} is not changed so: {reason}") })
    }

    /// Puts a new top of another sort on the volume: `begin` says of which. If that fails, the
    /// volume is what it was, unless its worker is replaced: then its layers are opened below the
    /// new top.
    fn change_seal(&mut self, tags: NewTags, begin: impl FnOnce(&mut VolumeKek)) -> Result<(), Refusal> {
        self.worker()?;
        if self.snapshot.is_some() {
            let message = "a snapshot of the volume is being made; ask again in a minute".to_owned();
            return Err(Refusal { code: "busy", message });
        }
        let (seal, descriptor) = (self.exposure.kek.seal(), self.exposure.head.descriptor().clone());
        let before = Before { seal, descriptor };
        begin(&mut self.exposure.kek);
        let prepared = self.prepare_top(NewTop::OfSeal(tags));
        match prepared.and_then(|()| self.change_to_prepared_top()) {
            Ok(stall) => {
                tracing::info!("clients waited for {stall:?}");
                Ok(())
            }
            Err(refusal) => {
                if matches!(self.phase, Phase::Serving(_)) {
                    self.take_back_seal(&before);
                }
                Err(refusal)
            }
        }
    }

    /// Removes the new top, to which nothing was written, and the mark. If that fails, the volume
    /// goes on as what it is, and the job can be repeated.
    fn take_back_seal(&mut self, before: &Before) {
        let withdrawn = self.change_head(|head, protection| {
            if head.descriptor().top != before.descriptor.top {
                head.withdraw_layer(protection)?;
            }
            head.withdraw_mark(&before.descriptor, protection)
        });
        match withdrawn {
            Ok(true) => self.exposure.kek.end_as(before.seal),
            Ok(false) => tracing::warn!("the new top of the volume stays"),
            Err(error) => {
                tracing::error!("the new top of the volume stays, and its worker is replaced: {error}");
                self.phase = Phase::Down(Outage::new(Instant::now()));
            }
        }
    }

    fn refused_key(&self, error: KeyError) -> Refusal {
        let path = PathBuf::from(self.exposure.head.path());
        Refusal::of(&DatastoreError::Key { path, error })
    }

    /// Marks the volume, and puts a new top on it if the present one has an old key. Asked again,
    /// it tells whether the layers can be rewritten.
    fn begin_reencryption(&mut self, tags: NewTags) -> Result<Answer, Refusal> {
        let kek = self.exposure.kek.now().map_err(|error| Refusal::because(error.to_string()))?;
        let head = &mut self.exposure.head;
        head.mark_reencryption(kek.protection(), tags).map_err(|error| Refusal::of(&error))?;
        let is_closing = head.descriptor().closing().is_some();
        if !is_closing && !head.is_top_reencrypted() {
            drop(kek);
            self.put_top_on().map_err(refusal_of)?;
        }
        Ok(self.readiness())
    }

    /// Whether the layers can be rewritten now.
    fn readiness(&self) -> Answer {
        let head = &self.exposure.head;
        let descriptor = head.descriptor();
        let is_ready = head.is_top_reencrypted() && descriptor.closing().is_none();
        Answer::Reencrypting { is_ready, generation: descriptor.generation }
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
                if open.facts.write_epoch != record.write_epoch() {
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
        match self.exposure.kek.seal() {
            VolumeSeal::Sealed | VolumeSeal::Clear => self.exposure.kek.end_on_next(),
            VolumeSeal::Encrypting => self.exposure.kek.end_as(VolumeSeal::Sealed),
            VolumeSeal::Decrypting => self.exposure.kek.end_as(VolumeSeal::Clear),
        }
        tracing::info!("the volume is re-encrypted");
        Ok(Answer::Reencrypted { generation: self.exposure.head.descriptor().generation })
    }

    fn cancel_reencryption(&mut self) -> Result<Answer, Refusal> {
        self.read_rewritten()?;
        let cancelled = self.change_head(|head, protection| head.cancel_reencryption(protection));
        cancelled.map_err(|error| Refusal::of(&error))?;
        self.exposure.kek.end_without_next();
        if self.exposure.kek.seal() == VolumeSeal::Encrypting {
            self.exposure.kek.end_as(VolumeSeal::Sealed);
        }
        tracing::info!("the re-encryption of the volume is cancelled");
        Ok(Answer::Reencrypted { generation: self.exposure.head.descriptor().generation })
    }
}

fn refusal_of(failure: Failure) -> Refusal {
    match failure {
        Failure::Later(reason) | Failure::Final(reason) => Refusal::because(reason),
    }
}
