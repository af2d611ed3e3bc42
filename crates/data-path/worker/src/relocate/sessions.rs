//! Takes the clients of a volume to its new place.
//!
//! ```text
//! little is left to copy -> the volume is closed, and its worker keeps the clients (`Standby`)
//!     -> the rest is copied -> the copy has the volume's name -> the caller's record says so
//!     -> the worker gets the volume at its new place, and the clients go on
//! ```
//!
//! Clients wait from the closing on. If the rest cannot be copied in time, or the caller does not
//! record the move, the worker gets the volume where it was.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use strongroom_datastore::file::{DatastoreError, Descriptor, Relocation, describe, withdraw};
use thiserror::Error;

use super::ServedCopy;
use crate::merge::MergeError;
use crate::supervise::{AwaitedVolume, Standby, SuperviseError, Supervisor};

/// The longest that clients wait for the rest to be copied: a guest notices, and none gives up.
pub const PARKED_MAX: Duration = Duration::from_secs(5);

/// What the caller of a move does between its steps.
pub trait PlaceKeeper {
    /// Why it does not.
    type Error: fmt::Debug + fmt::Display;

    /// Durably records that the volume is at its new place. An error means that nothing of that is
    /// recorded.
    ///
    /// # Errors
    /// The caller's own.
    fn commit(&mut self, moved: &Descriptor) -> Result<(), Self::Error>;

    /// Opens the volume at a place, to be served.
    ///
    /// # Errors
    /// The caller's own.
    fn open(&mut self, path: &Path) -> Result<AwaitedVolume, Self::Error>;
}

/// A volume whose clients go on.
#[derive(Debug)]
pub struct ChangedPlace<E> {
    /// Serves it.
    pub supervisor: Supervisor,
    /// Its descriptor at the new place, where it is from now on; or why it is where it was.
    pub moved: Result<Descriptor, NotMoved<E>>,
    /// How long clients waited after the volume was closed.
    pub pause: Duration,
}

/// Why a volume is where it was.
#[derive(Debug, Error)]
pub enum NotMoved<E> {
    /// The rest was not copied, or not in time.
    #[error(transparent)]
    Copy(MergeError),
    /// The caller has not recorded that it is elsewhere.
    #[error("{0}")]
    Commit(E),
}

/// Why the clients of a volume do not go on. It is closed in order, where the caller's record says.
#[derive(Debug, Error)]
pub enum NotServed<E> {
    /// It cannot be opened. Its worker waits for it.
    #[error("{error}")]
    Open {
        /// The worker.
        standby: Box<Standby>,
        /// Why not.
        error: E,
    },
    /// Its worker does not go on.
    #[error(transparent)]
    Serve(#[from] SuperviseError),
}

impl<E> From<DatastoreError> for NotMoved<E> {
    fn from(error: DatastoreError) -> Self {
        Self::Copy(error.into())
    }
}

impl ServedCopy<'_> {
    /// Moves the volume, which its supervisor has closed in order, and whose clients its worker
    /// keeps. They wait at most `within` for the copy of the rest. No merge may be marked: pause it
    /// before. Whoever calls this removes the former volume then (`remove_former`).
    ///
    /// # Errors
    /// If the clients do not go on. A volume that has not moved is no error.
    pub fn change_place<K: PlaceKeeper>(
        self,
        standby: Standby,
        keeper: &mut K,
        within: Duration,
    ) -> Result<ChangedPlace<K::Error>, NotServed<K::Error>> {
        let began = Instant::now();
        let (from, to) = (self.served.path.to_owned(), self.beside.to().to_owned());
        let moved = self.move_within(keeper, within.min(PARKED_MAX));
        let place = if moved.is_ok() { &to } else { &from };
        let volume = match keeper.open(place) {
            Ok(volume) => volume,
            Err(error) => return Err(NotServed::Open { standby: Box::new(standby), error }),
        };
        let supervisor = standby.serve(volume)?;
        Ok(ChangedPlace { supervisor, moved, pause: began.elapsed() })
    }

    fn move_within<K: PlaceKeeper>(
        self,
        keeper: &mut K,
        within: Duration,
    ) -> Result<Descriptor, NotMoved<K::Error>> {
        let (to, options) = (self.beside.to().to_owned(), self.options);
        let mut moving = self.finish_within(within).map_err(NotMoved::Copy)?;
        let arrived = moving.take_place()?;
        // Until the record decides, the former volume is locked.
        let committed = keeper.commit(&arrived);
        drop(moving);
        match committed {
            Ok(()) => Ok(arrived),
            Err(error) => {
                withdraw(&to, arrived.volume, &options)?;
                Err(NotMoved::Commit(error))
            }
        }
    }
}

impl<'a> ServedCopy<'a> {
    /// Copies the rest, unless that takes longer.
    fn finish_within(self, within: Duration) -> Result<Relocation<'a>, MergeError> {
        let path = self.served.path;
        if let Some(merging) = describe(path)?.descriptor.merging {
            let path = path.to_owned();
            return Err(DatastoreError::UnfinishedMerge { path, layer: merging.from }.into());
        }
        let (until, stop) = (Instant::now() + within, AtomicBool::new(false));
        let (moving, _) = self.finish(&stop, &mut |_| {
            if Instant::now() >= until {
                stop.store(true, Ordering::Relaxed);
            }
        })?;
        Ok(moving)
    }
}
