//! The client of a request, and its permissions on objects.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::access::{ClientId, Identity, OperationClass, Role, Scope, scope};
use crate::failure::Failure;
use crate::grant::{GrantedOperation, Refusal, VerifiedGrant};
use crate::objects::id::ObjectId;
use crate::observer::Who;

/// A client during one of its requests.
#[derive(Debug, Clone)]
pub struct Caller {
    identity: Arc<Identity>,
    address: Option<SocketAddr>,
    grant: Option<VerifiedGrant>,
    grant_is_used: bool,
}

impl Caller {
    /// The client that the certificate names, with no grant.
    pub fn new(identity: impl Into<Arc<Identity>>, address: Option<SocketAddr>) -> Self {
        Self { identity: identity.into(), address, grant: None, grant_is_used: false }
    }

    /// The same with the grant of this request, which is not used up yet: nothing may be released
    /// or changed under it.
    #[must_use]
    pub fn with_grant(mut self, grant: VerifiedGrant) -> Self {
        self.grant = Some(grant);
        self
    }

    /// The same after its grant was redeemed for this request.
    #[must_use]
    pub fn with_used_grant(mut self) -> Self {
        self.grant_is_used = true;
        self
    }

    /// The identity from the certificate.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The client.
    pub fn client(&self) -> ClientId {
        self.identity.client
    }

    /// Its role.
    pub fn role(&self) -> Role {
        self.identity.role
    }

    /// The grant of this request.
    pub fn grant(&self) -> Option<&VerifiedGrant> {
        self.grant.as_ref()
    }

    /// Whether the grant of this request was redeemed for it.
    pub fn grant_is_used(&self) -> bool {
        self.grant_is_used
    }

    /// The identity for the audit record.
    pub fn who(&self) -> Who {
        Who { identity: Arc::clone(&self.identity), address: self.address }
    }

    /// Checks, without reading the object, whether a permission of that class can cover it. For
    /// [`Scope::Own`] the caller must still check the owner.
    ///
    /// # Errors
    ///
    /// `PermissionDenied`; for a grant with the code of its refusal.
    pub fn scope_for(&self, id: ObjectId, class: OperationClass) -> Result<Scope, Failure> {
        let scope = scope(self.role(), class);
        match scope {
            Scope::Nothing => Err(Failure::denied(format!("the role {} may not do that", self.role()))),
            Scope::Granted => {
                let grant = self
                    .grant
                    .as_ref()
                    .ok_or_else(|| Failure::denied("grant-needed: a host needs a grant for that"))?;
                let operation = match class {
                    OperationClass::ReadKey => GrantedOperation::Get,
                    OperationClass::ReadMetadata => GrantedOperation::ReadMetadata,
                    OperationClass::UseKey => GrantedOperation::Use,
                    _ => return Err(Failure::denied("no grant covers that")),
                };
                grant.permits(&id.to_string(), operation).map_err(|refusal| refused(&refusal))?;
                Ok(scope)
            }
            Scope::Own | Scope::All => Ok(scope),
        }
    }
}

/// The failure for a refused grant: its code and its message.
pub(crate) fn refused(refusal: &Refusal) -> Failure {
    Failure::denied(format!("{}: {refusal}", refusal.code()))
}
