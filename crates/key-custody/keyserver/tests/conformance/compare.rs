//! Compares a response with a case's, in all points that the standard does not leave to the server.
//!
//! The rules, which `docs/KMIP.md` describes:
//! - Fields must have the same tag, type, number and value; order counts only among fields of one
//!   tag that are not attributes. Result Message, Time Stamp and Server Correlation Value are the
//!   server's own.
//! - A date is compared if it is `$NOW` (to within [`NOW_TOLERANCE_SECONDS`]) or one that the
//!   client had sent.
//! - For bytes from a key that the server made itself (or from its random source), only their
//!   presence is compared.
//! - Lease Time is policy; so is Random Number Generator, unless the client had set it.
//! - Literal identifiers in a file are not compared; Discover Versions may return more versions.
//! - A list of all attributes may have more than the case's. Query answers are the server's own,
//!   but must include the case's operations and object types within scope.

use std::collections::HashSet;

use strongroom_kmip::ttlv::{Item, Tag, Value};

use crate::names;
use crate::variables::{Variables, literal, now_offset_seconds, tag_of};
use crate::xml::Element;

/// The longest time, by the case's clock, between reading the time and comparing it.
pub const NOW_TOLERANCE_SECONDS: i64 = 30;

/// The context of a comparison, beside the file.
pub struct Context<'a> {
    /// The variables so far; a response binds new ones.
    pub variables: &'a mut Variables,
    /// The time that `$NOW` stands for.
    pub now_seconds: i64,
    /// Objects whose keys the server made itself.
    pub server_made: &'a HashSet<String>,
    /// Every value that the requests of this case have sent, in the file's spelling.
    pub sent: &'a HashSet<String>,
    /// The request that is answered.
    pub request: &'a Element,
}

/// Compares a whole response message.
///
/// # Errors
///
/// The first difference, with its place.
pub fn response(expected: &Element, actual: &Item, context: &mut Context<'_>) -> Result<(), String> {
    let header = expected.child("ResponseHeader").ok_or("the case has no response header")?;
    let actual_header = actual.field(Tag::RESPONSE_HEADER).ok_or("no response header")?;
    for tag in ["ProtocolVersion", "BatchCount"] {
        let expected = header.child(tag).ok_or("the case has an incomplete header")?;
        let actual = actual_header.field(tag_of(expected)?).ok_or_else(|| format!("no {tag}"))?;
        Comparison { context, operation: "", bytes_vary: false }.field(expected, actual, None)?;
    }
    if header.child("ServerCorrelationValue").is_some()
        && actual_header.field(Tag::SERVER_CORRELATION_VALUE).is_none()
    {
        return Err("no ServerCorrelationValue".to_owned());
    }
    let expected_items: Vec<_> = expected.children.iter().filter(|child| child.tag == "BatchItem").collect();
    let actual_items: Vec<_> = fields(actual).iter().filter(|field| field.tag == Tag::BATCH_ITEM).collect();
    if expected_items.len() != actual_items.len() {
        return Err(format!("{} batch items, not {}", actual_items.len(), expected_items.len()));
    }
    for (number, (expected, actual)) in expected_items.iter().zip(actual_items).enumerate() {
        item(expected, actual, number, context)
            .map_err(|difference| format!("item {number}: {difference}"))?;
    }
    Ok(())
}

fn item(expected: &Element, actual: &Item, number: usize, context: &mut Context<'_>) -> Result<(), String> {
    let operation = expected.child_value("Operation").unwrap_or_default();
    let request = context.request.children.iter().filter(|child| child.tag == "BatchItem").nth(number);
    let payload = request.and_then(|item| item.child("RequestPayload"));
    // The key of an object that the server made is its own, and so are all values derived from it.
    let answered = actual
        .field(Tag::RESPONSE_PAYLOAD)
        .and_then(|payload| payload.field(Tag::UNIQUE_IDENTIFIER))
        .map(|field| &field.value);
    let server_made = matches!(answered, Some(Value::TextString(id)) if context.server_made.contains(id));
    let random_iv =
        expected.child("ResponsePayload").is_some_and(|payload| payload.child("IVCounterNonce").is_some());
    // The file for wrapping with attributes shows the result of wrapping without them.
    let encoded_wrapping = payload
        .and_then(|payload| payload.child("KeyWrappingSpecification"))
        .is_some_and(|specification| specification.child("EncodingOption").is_none());
    let bytes_vary = server_made || random_iv || encoded_wrapping || operation == "RNGRetrieve";

    let mut comparison = Comparison { context, operation, bytes_vary };
    if operation == "GetAttributeList"
        || (operation == "GetAttributes"
            && payload.is_none_or(|payload| payload.child("AttributeName").is_none()))
    {
        comparison.operation = "all attributes";
    }
    comparison.structure(expected, actual)
}

struct Comparison<'a, 'b> {
    context: &'a mut Context<'b>,
    operation: &'a str,
    bytes_vary: bool,
}

impl Comparison<'_, '_> {
    fn structure(&mut self, expected: &Element, actual: &Item) -> Result<(), String> {
        if self.operation == "Query" && expected.tag == "ResponsePayload" {
            return query(expected, actual);
        }
        if self.operation == "DiscoverVersions" && expected.tag == "ResponsePayload" {
            return versions(expected, actual);
        }
        let attribute = expected.child_value("AttributeName");
        let mut left: Vec<&Item> =
            fields(actual).iter().filter(|field| field.tag != Tag::RESULT_MESSAGE).collect();
        for child in expected.children.iter().filter(|child| child.tag != "ResultMessage") {
            let tag = tag_of(child)?;
            let found = left.iter().position(|field| field.tag == tag && same_attribute(child, field));
            let Some(place) = found else { return Err(format!("no {}", show(child))) };
            let field = left.remove(place);
            self.field(child, field, attribute)
                .map_err(|difference| format!("{}: {difference}", child.tag))?;
        }
        let may_have_more = self.operation == "all attributes" && expected.tag == "ResponsePayload";
        match left.first() {
            Some(more) if !may_have_more => Err(format!("{} is one too many", more.tag)),
            _ => Ok(()),
        }
    }

    fn field(&mut self, expected: &Element, actual: &Item, attribute: Option<&str>) -> Result<(), String> {
        if expected.kind.is_empty() {
            return match &actual.value {
                Value::Structure(_) if self.is_own_random_source(expected) => Ok(()),
                Value::Structure(_) => self.structure(expected, actual),
                _ => Err("is no structure".to_owned()),
            };
        }
        if format!("{:?}", actual.value.kind()) != expected.kind {
            return Err(format!("is of type {:?}, not {}", actual.value.kind(), expected.kind));
        }
        if expected.tag == "AttributeValue" && attribute == Some("Lease Time") || expected.tag == "LeaseTime"
        {
            return Ok(());
        }
        if let Value::DateTime(date) = &actual.value {
            return self.date(expected, date.0);
        }
        // Literal identifiers in a file are those of its authors' server.
        if expected.tag == "UniqueIdentifier" && !expected.value.starts_with('$') {
            return Ok(());
        }
        if expected.value.starts_with('$') {
            return match self.context.variables.get(&expected.value) {
                Some(bound) if expected.value.starts_with("$UNIQUE_IDENTIFIER") => {
                    equal(bound, &actual.value)
                }
                _ => {
                    self.context.variables.bind(&expected.value, actual.value.clone());
                    Ok(())
                }
            };
        }
        if self.bytes_vary
            && matches!(actual.value, Value::ByteString(_))
            && expected.tag != "UniqueBatchItemID"
        {
            return Ok(());
        }
        equal(&literal(expected, attribute)?, &actual.value)
    }

    fn date(&self, expected: &Element, actual_seconds: i64) -> Result<(), String> {
        let expected_seconds = match now_offset_seconds(&expected.value) {
            Some(offset_seconds) => self.context.now_seconds + offset_seconds,
            None if self.context.sent.contains(&expected.value) => match literal(expected, None)? {
                Value::DateTime(date) => date.0,
                other => return Err(format!("{other:?} is no date")),
            },
            None => return Ok(()),
        };
        let tolerance_seconds = if expected.value.starts_with('$') { NOW_TOLERANCE_SECONDS } else { 0 };
        if (actual_seconds - expected_seconds).abs() <= tolerance_seconds {
            Ok(())
        } else {
            Err(format!("is {actual_seconds}, not {expected_seconds}"))
        }
    }

    /// Whether a description of the random source is the server's, not the client's.
    fn is_own_random_source(&self, expected: &Element) -> bool {
        expected.child_value("RNGAlgorithm").is_some_and(|algorithm| !self.context.sent.contains(algorithm))
    }
}

/// Compares a Query's answer: every kind of field in the case, and of its lists, all values in
/// scope.
fn query(expected: &Element, actual: &Item) -> Result<(), String> {
    for child in &expected.children {
        let tag = tag_of(child)?;
        let mut same_tag = fields(actual).iter().filter(|field| field.tag == tag);
        if matches!(child.tag.as_str(), "Operation" | "ObjectType") {
            if names::OUT_OF_SCOPE.contains(&child.value.as_str()) {
                continue;
            }
            let value = literal(child, None)?;
            if !same_tag.any(|field| field.value == value) {
                return Err(format!("does not offer {}", child.value));
            }
        } else if same_tag.next().is_none() && !names::OWN_TO_A_SERVER.contains(&child.tag.as_str()) {
            return Err(format!("no {}", child.tag));
        }
    }
    Ok(())
}

/// All of the case's versions, in order; the server may speak more.
fn versions(expected: &Element, actual: &Item) -> Result<(), String> {
    let mut spoken = fields(actual).iter();
    for version in &expected.children {
        let numbers =
            version.children.iter().map(|number| literal(number, None)).collect::<Result<Vec<_>, _>>()?;
        if !spoken.any(|field| fields(field).iter().map(|number| &number.value).eq(&numbers)) {
            return Err(format!("no version {numbers:?} in its place"));
        }
    }
    let asked_for_none = expected.children.is_empty();
    if asked_for_none && spoken.next().is_some() {
        Err("versions that were not asked for".to_owned())
    } else {
        Ok(())
    }
}

fn fields(item: &Item) -> &[Item] {
    match &item.value {
        Value::Structure(fields) => fields,
        _ => &[],
    }
}

/// Attributes (and names in a list of attributes) are matched by name and index.
fn same_attribute(expected: &Element, actual: &Item) -> bool {
    match expected.tag.as_str() {
        "AttributeName" => actual.value == Value::TextString(expected.value.clone()),
        "Attribute" => {
            let name = expected.child_value("AttributeName").unwrap_or_default();
            let index =
                expected.child_value("AttributeIndex").and_then(|index| index.parse().ok()).unwrap_or(0);
            let actual_index = match actual.field(Tag::ATTRIBUTE_INDEX).map(|field| &field.value) {
                Some(Value::Integer(index)) => *index,
                _ => 0,
            };
            actual.field(Tag::ATTRIBUTE_NAME).map(|field| &field.value)
                == Some(&Value::TextString(name.to_owned()))
                && index == actual_index
        }
        _ => true,
    }
}

fn equal(expected: &Value, actual: &Value) -> Result<(), String> {
    if expected == actual { Ok(()) } else { Err(format!("is {}, not {}", shown(actual), shown(expected))) }
}

/// Formats a value, including the bytes of a test's key, which its own type hides.
fn shown(value: &Value) -> String {
    match value {
        Value::ByteString(bytes) => bytes.expose().iter().map(|byte| format!("{byte:02x}")).collect(),
        value => format!("{value:?}"),
    }
}

fn show(element: &Element) -> String {
    match element.child_value("AttributeName") {
        Some(name) => format!("{} {name}", element.tag),
        None => format!("{} {}", element.tag, element.value).trim_end().to_owned(),
    }
}
