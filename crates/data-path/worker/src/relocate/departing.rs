//! Reads a volume for another host beside the process that exposes it. The other host asks for its
//! layers, in [rounds](super::Rounds), and for the last ones when the volume is closed.

use std::sync::atomic::AtomicBool;

use strongroom_datastore::file::{
    DatastoreError, DepartingBeside, DepartingVolume, LayerPiece, ReadLayer, RelocateOptions, SentVolume,
    TakePiece, begin_departure_beside, describe,
};
use strongroom_types::LayerId;

use super::rounds::{has_grown, has_layers_free, keeps_changing, put_new_top};
use super::settle;
use crate::beside::{Beside, Patience, ServedError, ServedVolume};
use crate::merge::MergeError;
use crate::pace::Throttle;

/// A volume in use that is read for another host. It leaves clients what its throttle says of their
/// speed.
pub struct ServedDeparture<'a> {
    served: ServedVolume<'a>,
    options: RelocateOptions<'a>,
    stop: &'a AtomicBool,
    beside: DepartingBeside<'a>,
    pace: Beside<'a>,
    read_bytes: u64,
    /// What the last round has left to read.
    told_bytes: u64,
}

impl<'a> ServedDeparture<'a> {
    /// Begins to read a volume. Waiting for its other changes ends when `stop` is set.
    ///
    /// # Errors
    /// If its descriptor is not authentic.
    pub fn begin(
        served: ServedVolume<'a>,
        options: &RelocateOptions<'a>,
        throttle: Throttle,
        stop: &'a AtomicBool,
    ) -> Result<Self, DatastoreError> {
        let beside = begin_departure_beside(served.path, options)?;
        let told_bytes = beside.left()?.bytes;
        let pace = Beside::new(served, throttle, stop);
        Ok(Self { served, options: *options, stop, beside, pace, read_bytes: 0, told_bytes })
    }

    /// The volume as it is now, for the other host.
    ///
    /// # Errors
    /// If its descriptor is not authentic.
    pub fn sent(&self) -> Result<SentVolume, DatastoreError> {
        self.beside.sent()
    }

    /// Puts a new top on, if there is room for one in the chain, and waits for merges: then only
    /// the top takes writes.
    ///
    /// # Errors
    /// [`ServedError::Control`] if no process exposes the volume any more, or it refuses;
    /// [`TransferError::Stopped`](crate::TransferError::Stopped).
    pub fn round(&mut self) -> Result<(), ServedError> {
        let mut untold = |()| {};
        let mut patience = Patience::new(self.served.path, self.stop, (), &mut untold, keeps_changing);
        if has_layers_free(self.served.path)? {
            put_new_top(self.served, self.options.least_generation, &mut patience)?;
        }
        while self.beside.is_unsettled()? {
            patience.pause()?;
        }
        self.told_bytes = self.left_bytes()?;
        Ok(())
    }

    /// The bytes that were read until now.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// The bytes that were not read yet, with those that still change.
    ///
    /// # Errors
    /// If the descriptor is not authentic.
    pub fn left_bytes(&self) -> Result<u64, DatastoreError> {
        Ok(self.beside.left()?.bytes)
    }

    /// Whether clients have written so much since the last round that another one is due.
    ///
    /// # Errors
    /// If the descriptor is not authentic.
    pub fn has_grown(&self) -> Result<bool, DatastoreError> {
        Ok(has_grown(self.told_bytes, self.left_bytes()?) && has_layers_free(self.served.path)?)
    }

    /// Reads a layer, gives its pieces to `take`, and keeps it locked.
    ///
    /// # Errors
    /// If it cannot be read; those of `take`.
    pub fn read(&mut self, layer: LayerId, take: &mut TakePiece<'_>) -> Result<ReadLayer, DatastoreError> {
        let Self { beside, pace, read_bytes, .. } = self;
        let read = beside.read(layer, &mut |piece: &LayerPiece<'_>| {
            pace.keep(*read_bytes);
            *read_bytes += piece.content.len() as u64;
            take(piece)
        })?;
        self.told_bytes = self.told_bytes.min(self.left_bytes()?);
        Ok(read)
    }

    /// Goes on with the volume, which was closed in order. No merge may be marked.
    ///
    /// # Errors
    /// [`DatastoreError::UnfinishedMerge`]; [`DatastoreError::InUse`] if it is exposed again.
    pub fn closed(self) -> Result<DepartingVolume<'a>, MergeError> {
        let path = self.served.path;
        if let Some(merging) = describe(path)?.descriptor.merging {
            return Err(DatastoreError::UnfinishedMerge { path: path.to_owned(), layer: merging.from }.into());
        }
        settle(path, &self.options, self.stop)?;
        Ok(self.beside.closed()?)
    }
}
