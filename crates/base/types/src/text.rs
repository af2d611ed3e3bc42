//! What types that are a checked text have in common.

/// Reads a checked text from a string slice, by its `TryFrom<String>`, and shows it as it is.
macro_rules! text_conversions {
    ($name:ident, $error:ty) => {
        impl ::std::str::FromStr for $name {
            type Err = $error;

            fn from_str(text: &str) -> Result<Self, $error> {
                text.to_owned().try_into()
            }
        }

        impl From<$name> for String {
            fn from(text: $name) -> Self {
                text.0
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

pub(crate) use text_conversions;
