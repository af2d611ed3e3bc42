//! Follows the trust records, so that a revocation by another server or command on the same store
//! takes effect here.

use std::sync::{Arc, Weak};
use std::time::Duration;

use strongroom_store::{KeyRange, StoreError, Watch};

use super::Authority;
use super::records::TRUST;

/// How long one wait for changes lasts; bounds how long the thread outlives the authority.
const WAIT: Duration = Duration::from_secs(1);

/// Starts the thread. It ends with the authority, or when the store is closed.
pub(super) fn start(authority: &Arc<Authority>) {
    let watched = Arc::downgrade(authority);
    let thread = std::thread::Builder::new().name("authority-watch".to_owned());
    if let Err(error) = thread.spawn(move || follow(&watched)) {
        tracing::error!(%error, "no thread to watch for revocations by others; those made here still take effect");
    }
}

fn follow(authority: &Weak<Authority>) {
    let mut watch = None;
    // Whether there may be changes that the trust does not contain yet.
    let mut stale = true;
    loop {
        let Some(authority_now) = authority.upgrade() else {
            return;
        };
        let outcome = step(&authority_now, &mut watch, &mut stale);
        drop(authority_now);
        let waited = match (outcome, &mut watch) {
            (Ok(()), Some(watch)) => watch.next(WAIT).map(|events| stale |= !events.is_empty()),
            (outcome, _) => outcome,
        };
        match waited {
            Ok(()) => {}
            // The watch fell too far behind: everything is read again.
            Err(StoreError::Compacted { .. }) => (watch, stale) = (None, true),
            Err(StoreError::Closed) => return,
            Err(error) => {
                tracing::error!(%error, "the watch for revocations by others has ended; restart the key server");
                return;
            }
        }
    }
}

/// Opens the watch if there is none, then reads the changes before or since.
fn step(
    authority: &Authority,
    watch: &mut Option<Box<dyn Watch>>,
    stale: &mut bool,
) -> Result<(), StoreError> {
    if watch.is_none() {
        let from = authority.store.snapshot()?.revision().next();
        *watch = Some(authority.store.watch(KeyRange::prefix(TRUST), from)?);
    }
    if *stale {
        match authority.reload() {
            Ok(()) => *stale = false,
            // Retried after the next wait.
            Err(error) => tracing::error!(%error, "what others have revoked could not be read; trying again"),
        }
    }
    Ok(())
}
