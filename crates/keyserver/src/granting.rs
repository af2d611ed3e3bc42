//! Grants as the server takes them: verified against those who may sign them, and used up in the ledger.

use std::sync::Arc;

use strongroom_store::{Outcome, Store, Transaction};
use time::OffsetDateTime;

use crate::access::Identity;
use crate::grant::ledger::redemption;
use crate::grant::{GrantVerifier, RedeemError, Signers, VerifiedGrant};
use crate::objects::clock::Clock;
use crate::server::{GrantFailure, Grants, Redeeming};

/// How often a redemption is tried again because another one of the same VM came between.
const REDEEM_ATTEMPTS: usize = 16;

/// Grants signed by those that `signers` names, used once each.
pub struct LedgeredGrants<S> {
    store: Arc<dyn Store>,
    verifier: GrantVerifier<S>,
    clock: Arc<dyn Clock>,
}

impl<S: Signers> LedgeredGrants<S> {
    /// Believes the signatures of `signers`, and writes uses down in `store`.
    pub fn new(store: Arc<dyn Store>, signers: S, clock: Arc<dyn Clock>) -> Self {
        Self { store, verifier: GrantVerifier::new(signers), clock }
    }

    async fn use_up(&self, grant: &VerifiedGrant) -> Result<(), GrantFailure> {
        for _ in 0..REDEEM_ATTEMPTS {
            let redemption = {
                let snapshot = self.store.snapshot().map_err(unavailable)?;
                redemption(snapshot.as_ref(), grant)
            };
            let redemption = redemption.map_err(|error| match error {
                RedeemError::Refused(refusal) => GrantFailure::Refused(refusal),
                error => unavailable(error),
            })?;
            match self.store.submit(redemption.join(Transaction::new())).await.map_err(unavailable)? {
                Outcome::Committed(_) => return Ok(()),
                Outcome::Conflict(_) => {}
            }
        }
        Err(unavailable(RedeemError::Contended))
    }
}

impl<S: Signers> Grants for LedgeredGrants<S> {
    fn redeem<'a>(&'a self, bytes: &'a [u8], host: &'a Identity) -> Redeeming<'a> {
        Box::pin(async move {
            // A clock beyond the year 9999 is one that nobody set; no grant is good then.
            let now = OffsetDateTime::from_unix_timestamp(self.clock.now().0).map_err(unavailable)?;
            let grant = self.verifier.verify(bytes, host, now)?;
            self.use_up(&grant).await?;
            Ok(grant)
        })
    }
}

fn unavailable(error: impl std::error::Error + Send + Sync + 'static) -> GrantFailure {
    GrantFailure::Unavailable(Box::new(error))
}
