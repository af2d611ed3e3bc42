//! Identity providers.

use serde::{Deserialize, Serialize};
use strongroom_api::Name;
use strongroom_api::identity::{IssuerUrl, PageUrl, ProviderText};
use strongroom_api::recipient::Authorities;
use uuid::Uuid;

/// An identity provider. Its secret is not here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityProviderRecord {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: Name,
    /// Its issuer.
    pub issuer: IssuerUrl,
    /// The client that this site is there.
    pub client_id: ProviderText,
    /// Whether the client has a secret.
    pub has_secret: bool,
    /// What it is asked for besides `openid`.
    pub scopes: Vec<ProviderText>,
    /// The claim with the name of the user.
    pub user_claim: ProviderText,
    /// The claim with the groups of the user.
    pub groups_claim: ProviderText,
    /// The certificates of its authorities; those of the machine by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorities: Option<Authorities>,
    /// The pages that it may send browsers back to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pages: Vec<PageUrl>,
    /// The length of a session, in seconds.
    pub session_s: u32,
    /// When it was made, in seconds since 1970.
    pub created_unix_seconds: u64,
}
