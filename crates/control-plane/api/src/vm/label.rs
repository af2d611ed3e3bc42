//! What people write on VMs: notes, and tags to find them by. The inventory alone has them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use utoipa::ToSchema;

use crate::limits::{NOTES_CHARACTERS_MAX, TAG_KEY_BYTES_MAX, TAG_VALUE_BYTES_MAX};

/// Notes about a VM: text of at most 4096 characters, in lines. It has no other control characters
/// and nothing that changes the direction of text, so that it shows what it says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, max_length = 4096)]
pub struct Notes(String);

/// Why a text is not notes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotesError {
    /// It is too long.
    #[error("notes have at most {NOTES_CHARACTERS_MAX} characters, and these have {0}")]
    TooLong(usize),
    /// It has a character that is not shown.
    #[error("notes cannot hold {0:?}, which is not shown")]
    Character(char),
}

/// Whether a character has an effect on the text around it, and is not shown itself (Unicode's
/// bidirectional controls, and its line and paragraph separators).
const fn is_unseen(character: char) -> bool {
    matches!(character, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

impl Notes {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl TryFrom<String> for Notes {
    type Error = NotesError;

    fn try_from(text: String) -> Result<Self, NotesError> {
        let count = text.chars().count();
        if count > NOTES_CHARACTERS_MAX {
            return Err(NotesError::TooLong(count));
        }
        let refused = |character: &char| {
            is_unseen(*character) || (character.is_control() && !"\n\t".contains(*character))
        };
        match text.chars().find(refused) {
            Some(character) => Err(NotesError::Character(character)),
            None => Ok(Self(text)),
        }
    }
}

impl FromStr for Notes {
    type Err = NotesError;

    fn from_str(text: &str) -> Result<Self, NotesError> {
        text.to_owned().try_into()
    }
}

impl From<Notes> for String {
    fn from(notes: Notes) -> Self {
        notes.0
    }
}

/// The key of a tag: 1 to 63 letters, digits, `.`, `_`, `-` or `/`, beginning with a letter or
/// digit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, min_length = 1, max_length = 63, pattern = "^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$")]
pub struct TagKey(String);

/// A tag of a VM: a key, or a key and a value (`env=prod`) of 1 to 63 letters, digits, `.`, `_`,
/// `-`, `/`, `:`, `@` or `+`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, min_length = 1, max_length = 127, pattern = "^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}(=[A-Za-z0-9._/:@+-]{1,63})?$")]
pub struct Tag(String);

/// Why a text is not a tag.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TagError {
    /// Its key is no key.
    #[error(
        "{0:?} cannot be a tag's key; write 1 to {TAG_KEY_BYTES_MAX} letters (a-z, A-Z), digits, dots, dashes, underscores and \
         slashes, and begin with a letter or a digit"
    )]
    Key(String),
    /// Its value is no value.
    #[error(
        "{0:?} cannot be a tag's value; write 1 to {TAG_VALUE_BYTES_MAX} letters (a-z, A-Z), digits, dots, dashes, underscores, \
         slashes, colons, at and plus signs"
    )]
    Value(String),
}

impl TagKey {
    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for TagKey {
    type Error = TagError;

    fn try_from(text: String) -> Result<Self, TagError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._/-".contains(&byte);
        let is_key = (1..=TAG_KEY_BYTES_MAX).contains(&text.len())
            && text.bytes().all(allowed)
            && text.as_bytes()[0].is_ascii_alphanumeric();
        if is_key { Ok(Self(text)) } else { Err(TagError::Key(text)) }
    }
}

impl FromStr for TagKey {
    type Err = TagError;

    fn from_str(text: &str) -> Result<Self, TagError> {
        text.to_owned().try_into()
    }
}

impl From<TagKey> for String {
    fn from(key: TagKey) -> Self {
        key.0
    }
}

impl fmt::Display for TagKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Tag {
    /// Its key. A VM has one tag with a key.
    pub fn key(&self) -> &str {
        self.0.split_once('=').map_or(&self.0, |(key, _)| key)
    }

    /// Whether a VM with the tag `has` is looked for with this one: a key alone finds each value.
    pub fn finds(&self, has: &Self) -> bool {
        self == has || self.0 == has.key()
    }
}

impl TryFrom<String> for Tag {
    type Error = TagError;

    fn try_from(text: String) -> Result<Self, TagError> {
        let Some((key, value)) = text.split_once('=') else {
            return TagKey::try_from(text).map(|TagKey(key)| Self(key));
        };
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._/:@+-".contains(&byte);
        if !((1..=TAG_VALUE_BYTES_MAX).contains(&value.len()) && value.bytes().all(allowed)) {
            return Err(TagError::Value(value.to_owned()));
        }
        key.parse::<TagKey>()?;
        Ok(Self(text))
    }
}

impl FromStr for Tag {
    type Err = TagError;

    fn from_str(text: &str) -> Result<Self, TagError> {
        text.to_owned().try_into()
    }
}

impl From<Tag> for String {
    fn from(tag: Tag) -> Self {
        tag.0
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Tags that a VM gets and loses; it keeps its others. So two callers do not undo each other's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TagChanges {
    /// The tags that it gets. A value replaces the one that its key has.
    #[schema(max_items = 32)]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<Tag>,
    /// The keys of the tags that it loses. One that it does not have is no error.
    #[schema(max_items = 32)]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<TagKey>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_a_key_or_a_key_and_a_value() {
        for good in ["env", "env=prod", "a", "team/owner=ops@example.org", "v1=2.0+3:4", "0-._/=-"] {
            let tag: Tag = good.parse().unwrap();
            assert_eq!(tag.to_string(), good);
            assert_eq!(serde_json::to_value(&tag).unwrap(), good);
        }
        let long = "k".repeat(TAG_KEY_BYTES_MAX + 1);
        let value = format!("k={}", "v".repeat(TAG_VALUE_BYTES_MAX + 1));
        for bad in
            ["", "=", "env=", "=prod", "-env", "env=a=b", "en v", "env=a b", "env\u{1b}", "é", &long, &value]
        {
            assert!(bad.parse::<Tag>().is_err(), "{bad:?}");
            assert!(serde_json::from_value::<Tag>(bad.into()).is_err(), "{bad:?}");
        }
        let tag = |text: &str| text.parse::<Tag>().unwrap();
        assert!(tag("env").finds(&tag("env=prod")) && tag("env=prod").finds(&tag("env=prod")));
        assert!(!tag("env=prod").finds(&tag("env")) && !tag("env=prod").finds(&tag("env=test")));
        assert!(!tag("env").finds(&tag("environment")));
    }

    #[test]
    fn notes_show_what_they_say() {
        let longest = "ä".repeat(NOTES_CHARACTERS_MAX);
        for good in ["", "the web server\n\tof the shop", "für müller", &longest] {
            assert_eq!(good.parse::<Notes>().unwrap().as_str(), good);
        }
        assert_eq!(
            format!("{longest}x").parse::<Notes>(),
            Err(NotesError::TooLong(NOTES_CHARACTERS_MAX + 1))
        );
        for bad in ['\u{1b}', '\r', '\0', '\u{7f}', '\u{9b}', '\u{202e}', '\u{2028}', '\u{2067}', '\u{200f}']
        {
            assert_eq!(format!("a{bad}b").parse::<Notes>(), Err(NotesError::Character(bad)), "{bad:?}");
        }
    }
}
