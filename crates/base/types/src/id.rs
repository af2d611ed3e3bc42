//! Ids. Each kind is its own type, so that none can be used in place of another.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::Uuid;

/// The error of a text that is not an id.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{0}' is not an id; an id has 32 hexadecimal digits, such as 019ab0f6-0d52-7c55-8e0a-6e5b3f0a3c11")]
pub struct IdError(String);

/// Reads an id of any kind (RFC 9562), with dashes or without.
///
/// # Errors
/// [`IdError`] names the text.
pub fn parse_id(text: &str) -> Result<Uuid, IdError> {
    Uuid::parse_str(text).map_err(|_| IdError(text.to_owned()))
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// A new random id (UUID version 4).
            pub fn random() -> Self {
                Self(Uuid::new_v4())
            }

            /// Makes an id of these sixteen bytes.
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(Uuid::from_bytes(bytes))
            }

            /// The sixteen bytes of the id, in the order of RFC 9562.
            pub const fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0.hyphenated())
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                parse_id(text).map(Self)
            }
        }
    };
}

uuid_id! {
    /// Names a volume permanently, wherever its files are moved.
    VolumeId
}
uuid_id! {
    /// Names one link of a volume's snapshot tree.
    LayerId
}
uuid_id! {
    /// Names a snapshot; it is the same in every volume that was part of it.
    SnapshotId
}
uuid_id! {
    /// Names a datastore, wherever it is mounted.
    DatastoreId
}
uuid_id! {
    /// Names a key-encryption key at its provider.
    KekId
}
uuid_id! {
    /// Names a virtual machine permanently.
    VmId
}
uuid_id! {
    /// Names a client of the key server permanently: every certificate that it renews has the same
    /// id, and its objects are filed under it.
    ClientId
}
uuid_id! {
    /// Names one grant, which is used once.
    GrantId
}
uuid_id! {
    /// Names one request for a new key, so that it can be repeated: the caller records it first,
    /// and repeats the request with the same id after a crash.
    KeyRequestId
}

/// The number of the DEK that sealed a block, counted from 1 within a volume and never reused.
///
/// `Option<KeyEpoch>` is as large as a `u32`, and is `None` when all its bits are zero: zeroed
/// seals mean that the block is absent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
#[repr(transparent)]
pub struct KeyEpoch(NonZeroU32);

impl KeyEpoch {
    /// The epoch of a new volume's first DEK.
    pub const FIRST: KeyEpoch = KeyEpoch(NonZeroU32::MIN);

    /// The seal of the blocks of a clear layer. No DEK has it: a volume's next epoch is always
    /// above those of its DEKs.
    pub const CLEAR: KeyEpoch = KeyEpoch(NonZeroU32::MAX);

    /// The epoch with this number; `None` for zero.
    pub const fn new(number: u32) -> Option<Self> {
        match NonZeroU32::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The epoch's number, from 1.
    pub const fn number(self) -> u32 {
        self.0.get()
    }

    /// The epoch after this one; `None` after the last (4,294,967,295).
    pub const fn next(self) -> Option<Self> {
        match self.0.checked_add(1) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }
}

impl fmt::Debug for KeyEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyEpoch({})", self.0)
    }
}

impl fmt::Display for KeyEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unset_seal_is_four_zero_bytes() {
        assert_eq!(size_of::<Option<KeyEpoch>>(), 4);
        assert_eq!(KeyEpoch::new(0), None);
    }

    #[test]
    fn ids_survive_their_text() {
        let id = VolumeId::random();
        assert_eq!(id.to_string().parse::<VolumeId>().unwrap(), id);
        let refused = "not an id".parse::<VolumeId>().err().map(|error| error.to_string());
        assert!(refused.is_some_and(|text| text.starts_with("'not an id' is not an id; ")));
    }

    #[test]
    fn epochs_end_instead_of_wrapping() {
        assert_eq!(KeyEpoch::FIRST.next(), KeyEpoch::new(2));
        assert_eq!(KeyEpoch::new(u32::MAX).unwrap().next(), None);
    }
}
