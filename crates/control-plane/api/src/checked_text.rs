//! Texts of requests that are checked when they are read.

/// A type for a text that a function checks.
macro_rules! checked_text {
    ($(#[$doc:meta])* $name:ident, $check:path, $schema:meta) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
        #[serde(try_from = "String")]
        #[$schema]
        pub struct $name(String);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                $check(&text).map(|()| Self(text))
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                text.to_owned().try_into()
            }
        }
    };
}

pub(crate) use checked_text;
