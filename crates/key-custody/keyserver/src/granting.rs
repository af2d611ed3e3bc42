//! Grants in the server: verified against the permitted signers, and used up in the ledger.

use std::sync::Arc;

use strongroom_store::Store;
use time::OffsetDateTime;

use crate::access::Identity;
use crate::grant::ledger::{redeem, redemption};
use crate::grant::{GrantVerifier, RedeemError, Signers, VerifiedGrant};
use crate::objects::clock::Clock;
use crate::server::{GrantFailure, Grants, Redeeming};

/// Grants by `signers`, each usable once.
pub struct LedgeredGrants<S> {
    store: Arc<dyn Store>,
    verifier: GrantVerifier<S>,
    clock: Arc<dyn Clock>,
}

impl<S: Signers> LedgeredGrants<S> {
    /// Accepts signatures of `signers`, and records uses in `store`.
    pub fn new(store: Arc<dyn Store>, signers: S, clock: Arc<dyn Clock>) -> Self {
        Self { store, verifier: GrantVerifier::new(signers), clock }
    }
}

impl<S: Signers> Grants for LedgeredGrants<S> {
    fn verify(&self, bytes: &[u8], host: &Identity) -> Result<VerifiedGrant, GrantFailure> {
        // A clock beyond the year 9999 is wrong; no grant is valid then.
        let now = OffsetDateTime::from_unix_timestamp(self.clock.now().0).map_err(unavailable)?;
        let verified = self.verifier.verify(bytes, host, now)?;
        let snapshot = self.store.snapshot().map_err(unavailable)?;
        // One that was used is refused before anything is done for it.
        redemption(snapshot.as_ref(), &verified).map_err(of_ledger)?;
        Ok(verified)
    }

    fn redeem<'a>(&'a self, grant: &'a VerifiedGrant) -> Redeeming<'a> {
        Box::pin(async move { redeem(self.store.as_ref(), grant).await.map_err(of_ledger) })
    }
}

fn of_ledger(error: RedeemError) -> GrantFailure {
    match error {
        RedeemError::Refused(refusal) => GrantFailure::Refused(refusal),
        error => unavailable(error),
    }
}

fn unavailable(error: impl std::error::Error + Send + Sync + 'static) -> GrantFailure {
    GrantFailure::Unavailable(Box::new(error))
}
