//! The versions of main boards.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::board::MachineType;
use crate::processor_model::{QemuName, QemuNameError};

/// What the names of a board's versions begin with.
const PREFIXES: [(MachineType, &str); 2] = [(MachineType::Q35, "pc-q35-"), (MachineType::Pc, "pc-i440fx-")];

/// A version of a main board, by QEMU's name: `pc-q35-7.2`. A guest that was started with it finds
/// the same devices in every later QEMU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MachineVersion(QemuName);

/// A text that is no version of a main board.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MachineVersionError {
    /// A name of another form.
    #[error(transparent)]
    Name(#[from] QemuNameError),
    /// A name of something else.
    #[error("'{0}' is no machine type: it begins with pc-q35- or pc-i440fx-, as in pc-q35-7.2")]
    Other(String),
}

impl MachineVersion {
    /// Its name.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The board of which it is a version.
    pub fn machine(&self) -> MachineType {
        self.kind().0
    }

    /// What the names of its board's versions begin with.
    pub fn prefix(&self) -> &'static str {
        self.kind().1
    }

    /// The numbers in its version, by which versions are in order.
    pub fn numbers(&self) -> Vec<u32> {
        let version = self.as_str().strip_prefix(self.prefix()).unwrap_or_default();
        let parts = version.split(|letter: char| !letter.is_ascii_digit());
        parts.filter_map(|number| number.parse().ok()).collect()
    }

    fn kind(&self) -> (MachineType, &'static str) {
        // It was made with one of them.
        PREFIXES.into_iter().find(|(_, prefix)| self.as_str().starts_with(prefix)).unwrap_or(PREFIXES[0])
    }
}

impl fmt::Display for MachineVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl TryFrom<String> for MachineVersion {
    type Error = MachineVersionError;

    fn try_from(text: String) -> Result<Self, MachineVersionError> {
        let is_version = |(_, prefix): &(MachineType, &str)| {
            text.strip_prefix(prefix).is_some_and(|version| !version.is_empty())
        };
        if !PREFIXES.iter().any(is_version) {
            return Err(MachineVersionError::Other(text));
        }
        Ok(Self(text.try_into()?))
    }
}

impl FromStr for MachineVersion {
    type Err = MachineVersionError;

    fn from_str(text: &str) -> Result<Self, MachineVersionError> {
        text.to_owned().try_into()
    }
}

impl From<MachineVersion> for String {
    fn from(version: MachineVersion) -> Self {
        version.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_type_is_a_version_and_no_option() {
        let version: MachineVersion = "pc-q35-7.2".parse().unwrap();
        assert_eq!((version.machine(), version.numbers()), (MachineType::Q35, vec![7, 2]));
        let version: MachineVersion = "pc-i440fx-rhel9.6.0".parse().unwrap();
        assert_eq!((version.machine(), version.numbers()), (MachineType::Pc, vec![9, 6, 0]));
        for bad in ["q35", "pc", "pc-q35-", "microvm", "pc-q35-7.2,smm=on", "none", "pc-q35-7 2"] {
            assert!(bad.parse::<MachineVersion>().is_err(), "{bad}");
        }
    }
}
