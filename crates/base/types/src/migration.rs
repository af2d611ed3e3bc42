//! How the memory of a running VM passes to another host.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What a policy says of the memory of VMs that move while they run. It always passes between two
/// hosts that have admitted each other, and what was changed on the way is never used; this decides
/// whether others can read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum MigrationMode {
    /// It is encrypted.
    #[default]
    Required,
    /// It is encrypted, unless a host says that its processor has no instructions for it.
    Opportunistic,
    /// It passes in plain text.
    Disabled,
}

/// Whether somebody on the wire can read the memory of a VM that moves. It is authenticated either
/// way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Secrecy {
    /// Nobody but the two hosts.
    Encrypted,
    /// Everybody.
    Plain,
}

/// The error of a text that is no [`MigrationMode`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} does not say how memory passes to another host: write required, opportunistic or disabled")]
pub struct MigrationModeError(String);

impl MigrationMode {
    /// As in requests.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::Opportunistic => "opportunistic",
            Self::Disabled => "disabled",
        }
    }
}

impl FromStr for MigrationMode {
    type Err = MigrationModeError;

    fn from_str(text: &str) -> Result<Self, MigrationModeError> {
        let all = [Self::Required, Self::Opportunistic, Self::Disabled];
        all.into_iter().find(|mode| mode.as_str() == text).ok_or_else(|| MigrationModeError(text.to_owned()))
    }
}

impl fmt::Display for MigrationMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_written_as_it_is_read_and_is_encrypted_unless_it_says_otherwise() {
        for mode in [MigrationMode::Required, MigrationMode::Opportunistic, MigrationMode::Disabled] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert_eq!(serde_json::to_string(&mode).unwrap(), format!("{:?}", mode.as_str()));
        }
        assert_eq!(MigrationMode::default(), MigrationMode::Required);
        let refused = "Disabled".parse::<MigrationMode>().unwrap_err().to_string();
        assert!(refused.contains("write required, opportunistic or disabled"), "{refused}");
    }
}
