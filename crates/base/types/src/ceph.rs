//! Where a datastore lies on a Ceph cluster, and how a host reaches it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::text::text_conversions;

/// The longest name of a pool, a namespace or a user, in bytes.
pub const CEPH_NAME_BYTES_MAX: usize = 128;
/// The namespace of a datastore in its pools, unless another one is named.
pub const CEPH_NAMESPACE: &str = "strongroom";
/// Where Ceph's programs look for a cluster's configuration.
pub const CEPH_CONF: &str = "/etc/ceph/ceph.conf";

/// The error of a text that cannot name something on a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CephNameError {
    /// Not a pool or namespace.
    #[error(
        "{0:?} cannot name a pool or a namespace of a Ceph cluster: write 1 to {CEPH_NAME_BYTES_MAX} letters (a-z, A-Z), digits, \
         dots, dashes and underscores"
    )]
    Name(String),
    /// Not a user.
    #[error(
        "{0:?} is no Ceph user: write `client.` and 1 to {CEPH_NAME_BYTES_MAX} letters (a-z, A-Z), digits, dots, dashes and \
         underscores, as in client.host1"
    )]
    User(String),
}

/// How many losses the data of a datastore outlives. A loss is of a storage device, or of whatever
/// else the pools' rule keeps copies apart in, such as a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Redundancy {
    /// The losses at one time after which all data is still there.
    pub losses_survived: u8,
    /// The losses at one time after which it is still read and written.
    pub losses_served: u8,
}

impl Redundancy {
    /// The lesser of two, in each respect.
    #[must_use]
    pub fn least(self, other: Self) -> Self {
        Self {
            losses_survived: self.losses_survived.min(other.losses_survived),
            losses_served: self.losses_served.min(other.losses_served),
        }
    }
}

fn is_plain(text: &str) -> bool {
    let may_be = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    !text.is_empty() && text.len() <= CEPH_NAME_BYTES_MAX && text.bytes().all(may_be)
}

macro_rules! text_type {
    ($(#[$doc:meta])* $name:ident, $fault:ident, $is_valid:expr, $schema:meta) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
        #[serde(try_from = "String", into = "String")]
        #[cfg_attr(feature = "schema", $schema)]
        pub struct $name(String);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = CephNameError;

            fn try_from(text: String) -> Result<Self, CephNameError> {
                if $is_valid(text.as_str()) { Ok(Self(text)) } else { Err(CephNameError::$fault(text)) }
            }
        }

        text_conversions!($name, CephNameError);
    };
}

text_type!(
    /// The name of a pool, or of a namespace in one.
    CephName,
    Name,
    is_plain,
    schema(value_type = String, min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9._-]+$")
);
text_type!(
    /// A cephx user, with its type: `client.host1`.
    CephUser,
    User,
    |text: &str| text.strip_prefix("client.").is_some_and(is_plain),
    schema(value_type = String, min_length = 8, max_length = 135, pattern = "^client[.][A-Za-z0-9._-]+$")
);

/// The pools of a datastore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CephPools {
    /// The replicated pool of its names, locks and small files.
    pub pool: CephName,
    /// The pool of the blocks, if another, such as an erasure-coded one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_pool: Option<CephName>,
    /// The namespace in the pools.
    pub namespace: CephName,
}

/// How a host is a client of a cluster. Each host has a user of its own: a host that is lost is
/// fenced by its user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CephClient {
    /// The user.
    pub user: CephUser,
    /// The file on the host that says how the cluster is reached.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub conf: PathBuf,
    /// The file on the host with the user's key.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub keyring: PathBuf,
}

impl CephClient {
    /// Where Ceph's programs look for a user's key.
    pub fn usual_keyring(user: &CephUser) -> PathBuf {
        Path::new("/etc/ceph").join(format!("ceph.{user}.keyring"))
    }
}

/// A datastore on a cluster, as a host uses it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CephMount {
    /// Where it lies.
    pub pools: CephPools,
    /// How the host reaches it.
    pub client: CephClient,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_a_cluster_have_no_meaning_to_anything_else() {
        for good in ["rbd", ".rgw.root", "vm-images_2", &"x".repeat(128)] {
            assert_eq!(good.parse::<CephName>().unwrap().as_str(), good);
            assert!(format!("client.{good}").parse::<CephUser>().is_ok());
            assert!(good.parse::<CephUser>().is_err());
        }
        for bad in ["", "a b", "a/b", "a\nb", "pool:x", "é", &"x".repeat(129)] {
            assert!(bad.parse::<CephName>().is_err(), "{bad:?}");
            assert!(format!("client.{bad}").parse::<CephUser>().is_err(), "{bad:?}");
        }
        assert!(serde_json::from_str::<CephName>(r#""a b""#).is_err());
    }
}
