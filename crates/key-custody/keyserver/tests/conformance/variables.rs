//! The `$VARIABLES` of the cases, and the conversion of a file's fields to a message's fields.

use std::collections::HashMap;

use strongroom_kmip::ttlv::{BigInteger, DateTime, Interval, Item, Tag, Value};

use crate::names;
use crate::xml::Element;

/// The values of one case's variables so far.
#[derive(Debug, Default)]
pub struct Variables {
    values: HashMap<String, Value>,
}

impl Variables {
    /// The value of `name` (with its `$`).
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    /// Sets `name` to `value`.
    pub fn bind(&mut self, name: &str, value: Value) {
        self.values.insert(name.to_owned(), value);
    }

    /// The request of a file as a message.
    ///
    /// # Errors
    ///
    /// A variable that no response has bound, or a name that KMIP 1.4 does not have.
    pub fn message(&self, element: &Element, now_seconds: i64) -> Result<Item, String> {
        self.item(element, None, now_seconds)
    }

    fn item(&self, element: &Element, attribute: Option<&str>, now_seconds: i64) -> Result<Item, String> {
        let tag = tag_of(element)?;
        if element.kind.is_empty() {
            let attribute = element.child_value("AttributeName");
            let fields = element.children.iter().map(|child| self.item(child, attribute, now_seconds));
            return Ok(Item { tag, value: Value::Structure(fields.collect::<Result<_, _>>()?) });
        }
        Ok(Item { tag, value: self.value(element, attribute, now_seconds)? })
    }

    fn value(&self, element: &Element, attribute: Option<&str>, now_seconds: i64) -> Result<Value, String> {
        let text = element.value.as_str();
        if let Some(offset_seconds) = now_offset_seconds(text) {
            return Ok(Value::DateTime(DateTime(now_seconds + offset_seconds)));
        }
        if text.starts_with('$') {
            return self.get(text).cloned().ok_or_else(|| format!("no response has given {text}"));
        }
        literal(element, attribute)
    }
}

/// The value of a field without a variable.
pub fn literal(element: &Element, attribute: Option<&str>) -> Result<Value, String> {
    let text = element.value.as_str();
    let unreadable = || format!("{} cannot be {text:?}", element.tag);
    Ok(match element.kind.as_str() {
        "Integer" => Value::Integer(match text.parse() {
            Ok(number) => number,
            Err(_) => names::mask(&named(element, attribute), text).ok_or_else(unreadable)?,
        }),
        "LongInteger" => Value::LongInteger(text.parse().map_err(|_| unreadable())?),
        "BigInteger" => {
            Value::BigInteger(BigInteger::from_twos_complement(&from_hex(text).ok_or_else(unreadable)?))
        }
        "Enumeration" => {
            Value::Enumeration(names::enumeration(&named(element, attribute), text).ok_or_else(unreadable)?)
        }
        "Boolean" => Value::Boolean(text.parse().map_err(|_| unreadable())?),
        "TextString" => Value::TextString(text.to_owned()),
        "ByteString" => Value::ByteString(from_hex(text).ok_or_else(unreadable)?.into()),
        "DateTime" => Value::DateTime(DateTime(
            time::OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339)
                .map_err(|_| unreadable())?
                .unix_timestamp(),
        )),
        "Interval" => Value::Interval(Interval(text.parse().map_err(|_| unreadable())?)),
        kind => return Err(format!("there is no type {kind}")),
    })
}

/// The tag of a field.
pub fn tag_of(element: &Element) -> Result<Tag, String> {
    let number = element.tag.strip_prefix("0x").and_then(|digits| u32::from_str_radix(digits, 16).ok());
    number
        .and_then(Tag::from_number)
        .or_else(|| Tag::from_name(&element.tag))
        .ok_or_else(|| format!("there is no tag {}", element.tag))
}

/// Seconds from now that `$NOW`, `$NOW+600` or `$NOW-3600` stand for.
pub fn now_offset_seconds(text: &str) -> Option<i64> {
    match text.strip_prefix("$NOW")? {
        "" => Some(0),
        offset => offset.parse().ok(),
    }
}

/// The name that determines a field's values: its tag or, for an attribute's value, the attribute.
fn named(element: &Element, attribute: Option<&str>) -> String {
    let name = if element.tag == "AttributeValue" { attribute.unwrap_or_default() } else { &element.tag };
    name.replace(' ', "")
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    pairs.iter().map(|&[high, low]| Some((digit(high)? << 4 | digit(low)?) as u8)).collect()
}
