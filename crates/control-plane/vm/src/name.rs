//! What VMs and their disks are called.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use strongroom_types::{NameError, check_name};

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
                check_name(&name).map(|()| Self(name))
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
                f.pad(&self.0)
            }
        }
    };
}

name! {
    /// What people call a VM, and its directory in a datastore ([`check_name`]).
    VmName
}
name! {
    /// What a disk of a VM is called, and its volume in the VM's directory ([`check_name`]). A guest
    /// sees the first 20 bytes as the disk's serial number (virtio 1.2, 5.2.6).
    DiskName
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_directory() {
        assert_eq!("web1".parse::<VmName>().unwrap().as_str(), "web1");
        assert!("../web1".parse::<VmName>().is_err());
        assert!(serde_json::from_str::<DiskName>("\"../disk\"").is_err());
    }
}
