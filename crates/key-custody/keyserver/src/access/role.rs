//! The six roles.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A certificate's role. A client has one role for life: another role means another client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Enrols, revokes, pins, and administers the server. Never sees a key.
    Admin,
    /// The control plane: makes keys without seeing them, lists metadata, signs grants. Never sees
    /// a key.
    Control,
    /// A host that runs VMs: has a key only while a grant allows it.
    Host,
    /// A KMIP client that owns the objects it makes, such as a vCenter or a user's own program.
    Client,
    /// Holds a share of the backup's key.
    Custodian,
    /// Reads metadata and the audit log.
    Auditor,
}

impl Role {
    /// All of them, in the order of the [permission table](super::permission).
    pub const ALL: [Role; 6] =
        [Role::Admin, Role::Control, Role::Host, Role::Client, Role::Custodian, Role::Auditor];

    /// The role's name in certificates, records and commands.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Admin => "admin",
            Role::Control => "control",
            Role::Host => "host",
            Role::Client => "client",
            Role::Custodian => "custodian",
            Role::Auditor => "auditor",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A text that names no role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no such role; the roles are admin, control, host, client, custodian and auditor")]
pub struct RoleError;

impl FromStr for Role {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<Self, RoleError> {
        Role::ALL.into_iter().find(|role| role.name() == text).ok_or(RoleError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_is_read_back_by_its_name() {
        for role in Role::ALL {
            assert_eq!(role.name().parse(), Ok(role));
            assert_eq!(serde_json::to_string(&role).unwrap(), format!("\"{role}\""));
        }
        for text in ["", "Admin", "root", "host "] {
            assert_eq!(text.parse::<Role>(), Err(RoleError));
        }
    }
}
