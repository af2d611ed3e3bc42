//! A volume that gets its name only when it is complete.
//!
//! While a volume is being filled, it is called `NAME.importing`, so that after any interruption,
//! including a power cut, `NAME` never has partial content.

use std::path::{Path, PathBuf};
use std::time::Duration;

use strongroom_datastore::file::{CreateOptions, create, delete, rename};

use crate::error::CliError;

const SUFFIX: &str = ".importing";

/// How long to wait, after a failure, until the kernel has ended the last requests on the volume,
/// before it is deleted.
const LET_GO_WITHIN: Duration = Duration::from_secs(10);

/// A volume under construction. It is deleted unless it is finished.
pub struct StagedVolume<'a> {
    staged: PathBuf,
    place: &'a Path,
    finished: bool,
}

impl<'a> StagedVolume<'a> {
    /// Makes the volume that will be at `place`.
    pub fn create(place: &'a Path, options: &CreateOptions<'_>) -> Result<Self, CliError> {
        let mut staged = place.to_owned().into_os_string();
        staged.push(SUFFIX);
        let staged = PathBuf::from(staged);
        create(&staged, options)?;
        Ok(Self { staged, place, finished: false })
    }

    /// Its path until it is finished.
    pub fn path(&self) -> &Path {
        &self.staged
    }

    /// Gives it its name, durably. Its content must be durable already.
    pub fn finish(mut self) -> Result<(), CliError> {
        rename(&self.staged, self.place)?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for StagedVolume<'_> {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        if let Err(error) = delete(&self.staged, LET_GO_WITHIN) {
            tracing::error!(%error, "an unfinished import is left; delete {}", self.staged.display());
        }
    }
}
