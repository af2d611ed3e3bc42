//! A client, as lists show it.

use serde::{Deserialize, Serialize};
use strongroom_types::ClientId;

use super::identity::ClientName;
use super::role::Role;

/// A client in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownClient {
    /// Its id.
    pub id: ClientId,
    /// Its name.
    pub name: ClientName,
    /// Its role.
    pub role: Role,
    /// When it was enrolled.
    pub created_unix_seconds: i64,
    /// Whether it is revoked.
    pub is_revoked: bool,
}
