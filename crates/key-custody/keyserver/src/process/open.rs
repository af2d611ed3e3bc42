//! Opens a server's state, and finishes the restore that it may come from.

use std::path::Path;

use strongroom_audit::Options;

use crate::authority::Settings;
use crate::recovery::restored::{self, RestoredError};
use crate::recovery::target;
use crate::root::RootKey;
use crate::state::{State, StateError};

/// Why a server's state cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenStateError {
    /// The state itself.
    #[error(transparent)]
    State(#[from] StateError),
    /// The server was restored, and the restore cannot be recorded.
    #[error(transparent)]
    Restored(#[from] RestoredError),
}

/// Opens the state in a directory that has a root, and creates missing parts. If the server was
/// restored, that is on record afterwards.
///
/// # Errors
/// [`OpenStateError`].
pub fn open_state(
    directory: &Path,
    root: &RootKey,
    settings: Settings,
    audit: Options,
) -> Result<State, OpenStateError> {
    let state = State::open(directory, root, settings, audit)?;
    // No restore is running, because it would hold the store open.
    target::remove_staged(directory)?;
    restored::finish(directory, state.store.as_ref(), &state.audit)?;
    Ok(state)
}
