//! The grants that requests in progress have come with. Each is presented by one request at a time:
//! a grant that is not used up while a provider is away causes one call to the provider at a time.

use std::collections::HashSet;

use parking_lot::Mutex;

use crate::grant::{GrantId, Refusal};

/// The grants of all requests in progress.
#[derive(Debug, Default)]
pub(crate) struct PresentedGrants(Mutex<HashSet<GrantId>>);

impl PresentedGrants {
    /// Notes that a request has come with this grant, until the returned value is dropped.
    ///
    /// # Errors
    /// [`Refusal::InUse`].
    pub(crate) fn present(&self, id: GrantId) -> Result<PresentedGrant<'_>, Refusal> {
        match self.0.lock().insert(id) {
            true => Ok(PresentedGrant { all: self, id }),
            false => Err(Refusal::InUse),
        }
    }
}

/// A grant of a request in progress.
#[derive(Debug)]
pub(crate) struct PresentedGrant<'a> {
    all: &'a PresentedGrants,
    id: GrantId,
}

impl Drop for PresentedGrant<'_> {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.id);
    }
}
