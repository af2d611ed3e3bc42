//! Carries out due destructions, with each outcome on record.
//!
//! A destruction is recorded before it happens; without that record the key stays. An obstacle is
//! recorded when it changes, not every minute.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use strongroom_audit::Outcome;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::record::AuditRecord;
use crate::objects::destruction::{DestructionError, Destructions, Waiting};
use crate::objects::id::ObjectId;

/// The longest time between two sweeps, because an obstacle may have gone.
const INTERVAL: Duration = Duration::from_secs(60);

/// Carries out due destructions until `end`.
pub(super) fn start(
    destructions: Arc<Destructions>,
    record: Arc<AuditRecord>,
    mut end: watch::Receiver<bool>,
) -> JoinHandle<()> {
    let mut sweep = Sweep { destructions: Arc::clone(&destructions), record, in_the_way: HashMap::new() };
    tokio::spawn(async move {
        loop {
            sweep.once().await;
            tokio::select! {
                _ = end.wait_for(|ended| *ended) => return,
                () = tokio::time::sleep(sweep.pause()) => {}
                () = destructions.confirmed() => {}
            }
        }
    })
}

struct Sweep {
    destructions: Arc<Destructions>,
    record: Arc<AuditRecord>,
    /// The last recorded obstacle of each due destruction.
    in_the_way: HashMap<ObjectId, String>,
}

impl Sweep {
    async fn once(&mut self) {
        let due = match self.destructions.due().await {
            Ok(due) => due,
            Err(error) => {
                tracing::error!(%error, "destructions cannot be read; trying again in a minute");
                return;
            }
        };
        self.in_the_way.retain(|id, _| due.iter().any(|(other, _)| other == id));
        for (id, waiting) in due {
            if let Err(error) = self.carry_out(id, &waiting).await {
                self.tell(id, &waiting, &error).await;
            }
        }
    }

    async fn carry_out(&mut self, id: ObjectId, waiting: &Waiting) -> Result<(), DestructionError> {
        self.destructions.check_unneeded(id).await?;
        let reason = "the delay is over, a second person has confirmed it, and nothing needs the key";
        if self.record.destruction(id, waiting, Outcome::Done, reason).await.is_ok() {
            self.destructions.carry_out(id).await?;
            tracing::info!(key = %id, "destroyed");
        }
        Ok(())
    }

    /// Records why a due destruction could not be carried out.
    async fn tell(&mut self, id: ObjectId, waiting: &Waiting, error: &DestructionError) {
        let reason = error.to_string();
        if self.in_the_way.get(&id) == Some(&reason) {
            return;
        }
        tracing::warn!(key = %id, %reason, "a destruction is due and cannot be done; trying again each minute");
        if self.record.destruction(id, waiting, Outcome::Failed, &reason).await.is_ok() {
            self.in_the_way.insert(id, reason);
        }
    }

    fn pause(&self) -> Duration {
        match self.destructions.next_due_in_seconds() {
            Ok(Some(seconds)) => INTERVAL.min(Duration::from_secs(seconds)),
            _ => INTERVAL,
        }
    }
}
