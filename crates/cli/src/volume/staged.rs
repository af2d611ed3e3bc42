//! A volume that gets its name when it is complete.
//!
//! A volume that is being filled stands beside its place as `NAME.importing`, so that whatever interrupts the work, a
//! power cut included, nothing half-filled is ever called `NAME`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use strongroom_datastore::file::{CreateOptions, DatastoreError, create};

use super::delete::delete_within;
use crate::error::CliError;

const SUFFIX: &str = ".importing";

/// How long to wait, after a failure, for the kernel to end the last requests on the volume before it is deleted.
const LET_GO_WITHIN: Duration = Duration::from_secs(10);

/// A volume under construction; unless it is finished, it is deleted.
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

    /// Where it is until it is finished.
    pub fn path(&self) -> &Path {
        &self.staged
    }

    /// Gives it its name, durably. What it holds was made durable before.
    pub fn finish(mut self) -> Result<(), CliError> {
        renameat_with(CWD, &self.staged, CWD, self.place, RenameFlags::NOREPLACE).map_err(
            |errno| match errno {
                Errno::EXIST => DatastoreError::Exists { path: self.place.to_owned() },
                errno => DatastoreError::System { action: "create", path: self.place.to_owned(), errno },
            },
        )?;
        self.finished = true;
        let parent =
            self.place.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let synced = File::open(parent).and_then(|parent| parent.sync_all());
        synced.map_err(|error| CliError::File { action: "sync", path: parent.to_owned(), error })
    }
}

impl Drop for StagedVolume<'_> {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        if let Err(error) = delete_within(LET_GO_WITHIN, &self.staged) {
            tracing::error!(%error, "an unfinished import is left; delete {}", self.staged.display());
        }
    }
}
