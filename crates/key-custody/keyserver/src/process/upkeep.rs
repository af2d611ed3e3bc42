//! Periodic maintenance.

use std::sync::Arc;
use std::time::Duration;

use strongroom_audit::Retention;
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::grant::{holding, ledger};
use crate::state::State;

/// The time between two runs. Certificates are valid for days, grants for up to an hour.
const INTERVAL: Duration = Duration::from_secs(60);

/// Runs the maintenance until `end`.
pub(super) fn start(state: &State, retention: Retention, mut end: watch::Receiver<bool>) -> JoinHandle<()> {
    let (authority, store) = (Arc::clone(&state.authority), Arc::clone(&state.store));
    let (audit, retention) = (Arc::clone(&state.audit), Arc::new(retention));
    tokio::spawn(async move {
        loop {
            let (authority, store) = (Arc::clone(&authority), Arc::clone(&store));
            let (audit, retention) = (Arc::clone(&audit), Arc::clone(&retention));
            let done = tokio::task::spawn_blocking(move || {
                let now = OffsetDateTime::now_utc();
                if let Err(error) = authority.maintain(now) {
                    tracing::warn!(%error, "certificates could not be looked after; trying again in a minute");
                }
                match audit.retain(&retention) {
                    Ok(0) => {}
                    Ok(files) => tracing::info!(files, "older files of the audit log were removed"),
                    Err(error) => {
                        tracing::warn!(%error, "the audit log could not be shortened; trying again in a minute");
                    }
                }
                if let Err(error) = ledger::forget_expired(store.as_ref(), now) {
                    tracing::warn!(%error, "used grants could not be forgotten; trying again in a minute");
                }
                if let Err(error) = holding::forget_superseded(store.as_ref()) {
                    tracing::warn!(%error, "what VMs have left could not be forgotten; trying again in a minute");
                }
            });
            // The panic hook has reported a panic.
            let _ = done.await;
            let ended = tokio::time::timeout(INTERVAL, end.wait_for(|ended| *ended)).await.is_ok();
            if ended {
                return;
            }
        }
    })
}
