//! What things are called.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The longest name of a VM or a disk, in bytes: a host name's label has as many.
pub const NAME_BYTES_MAX: usize = 63;

/// Why a text is no name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "'{0}' is no name: write 1 to {NAME_BYTES_MAX} letters, digits and . _ -, beginning with a letter or a digit"
)]
pub struct NameError(String);

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The name.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(name: String) -> Result<Self, NameError> {
                if is_name(&name) { Ok(Self(name)) } else { Err(NameError(name)) }
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                text.to_owned().try_into()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// What people call a VM, and its directory in a datastore: 1 to 63 ASCII letters, digits, `.`, `_` and `-`, of which the
    /// first is a letter or a digit.
    VmName
}
name! {
    /// What a disk of a VM is called, and its volume in the VM's directory; as a [`VmName`]. A guest sees the first 20 bytes as
    /// the disk's serial number (virtio 1.2, 5.2.6).
    DiskName
}

/// Nothing that is hidden, that leaves a directory, or that a shell or a terminal takes for something else.
fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.as_bytes()[0].is_ascii_alphanumeric()
        && name.bytes().all(plain)
}

/// Names one operation, by whoever asks for it: asked again with the same id, it is the same operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OperationId(uuid::Uuid);

impl OperationId {
    /// A new one.
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4())
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OperationId({})", self.0.hyphenated())
    }
}

impl FromStr for OperationId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        uuid::Uuid::parse_str(text).map(Self)
    }
}

/// Which start of a VM this is. The control plane counts them from 1, for life; a host starts none that is not above the
/// last one, so that no order of before starts a VM again. Grants name it too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VmGeneration(pub u64);

impl fmt::Display for VmGeneration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_directory_and_out_of_trouble() {
        for good in ["web1", "a", "0", "db.example.org", "A_b-c", &"x".repeat(NAME_BYTES_MAX)] {
            assert_eq!(good.parse::<VmName>().unwrap().as_str(), good);
        }
        for bad in [
            "",
            ".",
            "..",
            ".web",
            "-web",
            "_x",
            "a/b",
            "a b",
            "a\n",
            "ä",
            "a\0",
            &"x".repeat(NAME_BYTES_MAX + 1),
        ] {
            assert!(bad.parse::<VmName>().is_err(), "{bad:?}");
        }
        assert!(serde_json::from_str::<DiskName>("\"../disk\"").is_err());
    }
}
