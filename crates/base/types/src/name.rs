//! The names of VMs, disks, datastores and policies: one rule, and one message for violations of
//! it.

use thiserror::Error;
use uuid::Uuid;

/// The longest name, in bytes: that of a label of a host name.
pub const NAME_BYTES_MAX: usize = 63;

/// The error of a text that is not a name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "'{name}' cannot be a name: {fault}; write 1 to {NAME_BYTES_MAX} letters (a-z, A-Z), digits, dots, dashes and underscores, \
     and begin with a letter or a digit"
)]
pub struct NameError {
    /// The text.
    name: String,
    /// The violation.
    fault: NameFault,
}

/// The ways in which a text violates the rule for names.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
enum NameFault {
    #[error("it is empty")]
    Empty,
    #[error("it has {0} characters")]
    TooLong(usize),
    #[error("it begins with '{0}'")]
    Beginning(char),
    #[error("it holds {0:?}")]
    Character(char),
    #[error("it reads as an id")]
    Id,
}

/// Checks a name: 1 to 63 ASCII letters, digits, `.`, `_` and `-`, of which the first is a letter
/// or a digit, and not of the form of an id.
///
/// A name is used as a directory in a datastore and as part of a socket's path. The rule keeps it
/// from being hidden, from leaving its directory, and from having a meaning to a shell or a
/// terminal. Where an object is requested by name or id, the form of the text decides which of them
/// it is.
///
/// # Errors
/// [`NameError`] names the text, the violation, and the rule.
pub fn check_name(name: &str) -> Result<(), NameError> {
    let refused = |fault| Err(NameError { name: name.to_owned(), fault });
    let Some(first) = name.chars().next() else { return refused(NameFault::Empty) };
    let may_follow = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-');
    if let Some(other) = name.chars().find(|letter| !may_follow(*letter)) {
        return refused(NameFault::Character(other));
    }
    if !first.is_ascii_alphanumeric() {
        return refused(NameFault::Beginning(first));
    }
    if name.len() > NAME_BYTES_MAX {
        return refused(NameFault::TooLong(name.chars().count()));
    }
    if Uuid::parse_str(name).is_ok() { refused(NameFault::Id) } else { Ok(()) }
}

/// Defines a type for the names of one kind of object. All obey the rule of [`check_name`], and are
/// strings in JSON.
#[macro_export]
macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::serde::Serialize, ::serde::Deserialize,
        )]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The name.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = $crate::NameError;

            fn try_from(name: String) -> Result<Self, $crate::NameError> {
                $crate::check_name(&name).map(|()| Self(name))
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $crate::NameError;

            fn from_str(text: &str) -> Result<Self, $crate::NameError> {
                text.to_owned().try_into()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

name_type! {
    /// The name of a snapshot of a volume or a VM ([`check_name`]).
    SnapshotName
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(name: &str) -> Option<NameFault> {
        check_name(name).err().map(|error| error.fault)
    }

    #[test]
    fn names_are_directory_names_and_never_ids() {
        for good in ["web1", "a", "0", "0.9_x-y", "db.example.org", "A_b-c", &"n".repeat(NAME_BYTES_MAX)] {
            assert_eq!(fault(good), None, "{good}");
        }
        for (bad, why) in [
            ("", NameFault::Empty),
            ("a/b", NameFault::Character('/')),
            ("a b", NameFault::Character(' ')),
            ("a\n", NameFault::Character('\n')),
            ("a\0", NameFault::Character('\0')),
            ("ä", NameFault::Character('ä')),
            ("../disk", NameFault::Character('/')),
            (".", NameFault::Beginning('.')),
            ("..", NameFault::Beginning('.')),
            (".web", NameFault::Beginning('.')),
            ("-f", NameFault::Beginning('-')),
            ("_x", NameFault::Beginning('_')),
            (&"n".repeat(NAME_BYTES_MAX + 1), NameFault::TooLong(NAME_BYTES_MAX + 1)),
            (&Uuid::nil().to_string(), NameFault::Id),
            (&Uuid::nil().simple().to_string(), NameFault::Id),
        ] {
            assert_eq!(fault(bad), Some(why), "{bad:?}");
        }
    }

    /// The violation and the rule are separate: a misplaced dot is not called forbidden.
    #[test]
    fn the_text_does_not_contradict_itself() {
        let rule = "; write 1 to 63 letters (a-z, A-Z), digits, dots, dashes and underscores, and begin with a letter or a digit";
        for (bad, said) in [
            (".web", "'.web' cannot be a name: it begins with '.'"),
            ("my vm", "'my vm' cannot be a name: it holds ' '"),
            ("", "'' cannot be a name: it is empty"),
        ] {
            let text = check_name(bad).err().map(|error| error.to_string());
            assert_eq!(text, Some(format!("{said}{rule}")));
        }
    }
}
