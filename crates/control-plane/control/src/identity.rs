//! The control plane's interface to identity providers outside.

use uuid::Uuid;

use crate::records::IdentityProviderRecord;

/// Why somebody was not identified.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotIdentified {
    /// The provider does not answer, or its settings cannot be used.
    #[error("{0}")]
    Unavailable(String),
    /// The provider, or what it said, does not vouch for anybody.
    #[error("{0}")]
    Refused(String),
}

/// What the address of a provider's page is made of.
#[derive(Clone, Copy)]
pub struct AuthorizationRequest<'request> {
    /// Where the provider sends the browser back to.
    pub redirect: &'request str,
    /// What the browser carries back.
    pub state: &'request str,
    /// What the ID token has to repeat.
    pub nonce: &'request str,
    /// What proves at the token endpoint that the same one began the sign-in (RFC 7636).
    pub verifier: &'request str,
}

/// What a browser brought back, for a request.
#[derive(Clone, Copy)]
pub struct AuthorizationAnswer<'answer> {
    /// The request.
    pub request: AuthorizationRequest<'answer>,
    /// The code.
    pub code: &'answer str,
    /// The issuer that it names itself (RFC 9207).
    pub issuer: Option<&'answer str>,
}

/// Somebody, as a provider knows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The id there, which does not change and is given to nobody else.
    pub subject: String,
    /// The name there.
    pub user: String,
    /// The groups there.
    pub groups: Vec<String>,
}

/// Identity providers. Calls block, with timeouts of their own.
pub trait IdentityProviders: Send + Sync {
    /// Whether a provider answers, and is what it was said to be.
    ///
    /// # Errors
    /// [`NotIdentified`].
    fn check(&self, provider: &IdentityProviderRecord) -> Result<(), NotIdentified>;

    /// Keeps the secret of the client at a provider, in the place of an earlier one. It is durable
    /// when this returns.
    ///
    /// # Errors
    /// The system's.
    fn keep_secret(&self, provider: Uuid, secret: &str) -> std::io::Result<()>;

    /// Removes the secret of the client at a provider, if there is one.
    ///
    /// # Errors
    /// The system's.
    fn forget_secret(&self, provider: Uuid) -> std::io::Result<()>;

    /// The address of the provider's page at which a sign-in begins.
    ///
    /// # Errors
    /// [`NotIdentified`].
    fn authorization_url(
        &self,
        provider: &IdentityProviderRecord,
        request: &AuthorizationRequest<'_>,
    ) -> Result<String, NotIdentified>;

    /// Exchanges a code, and verifies what the provider says for it.
    ///
    /// # Errors
    /// [`NotIdentified`].
    fn identify(
        &self,
        provider: &IdentityProviderRecord,
        answer: &AuthorizationAnswer<'_>,
    ) -> Result<Identity, NotIdentified>;
}
