//! The keys that volumes are under now, which the job's caller is asked for.

use std::path::Path;

use strongroom_datastore::file::Descriptor;
use strongroom_keys::Kek;
use strongroom_types::KekId;
use thiserror::Error;

/// Gives the present keys of volumes, from where the caller has them.
pub trait PresentKeys {
    /// The key of the volume at `path`, which leaves it, also if the key was revoked as
    /// compromised. The descriptor is not yet authenticated. While a re-wrap is under way, either
    /// of two keys is good; if one is `expected`, only that. `None` if the caller says that the
    /// volume has no key.
    ///
    /// # Errors
    /// [`KeyRefusal`].
    fn to_leave(
        &self,
        path: &Path,
        descriptor: &Descriptor,
        expected: Option<KekId>,
    ) -> Result<Option<Kek>, KeyRefusal>;
}

/// Why a key is not had, in the caller's words.
#[derive(Debug, Error)]
#[error("{message}")]
pub struct KeyRefusal {
    /// A stable name for programs.
    pub code: String,
    /// Why, and what to do next.
    pub message: String,
}
