//! Reads queries as the document describes them, and refuses others in our words rather than a
//! parser's.

use axum::extract::Query;
use axum::http::Uri;
use serde::de::DeserializeOwned;
use serde_json::Value;
use strongroom_api::{ErrorCode, Problem};
use utoipa::IntoParams;
use utoipa::openapi::path::ParameterIn;

/// Reads a query.
///
/// # Errors
/// `malformed`, with the invalid part, and what would be valid.
pub(super) fn read<T: DeserializeOwned + IntoParams>(uri: &Uri) -> Result<T, Problem> {
    match Query::<T>::try_from_uri(uri) {
        Ok(Query(query)) => Ok(query),
        Err(_) => Err(misread::<T>(uri.query().unwrap_or_default())),
    }
}

/// Refuses a query, for operations without one.
///
/// # Errors
/// `malformed`.
pub(super) fn refuse(uri: &Uri) -> Result<(), Problem> {
    let Some(query) = uri.query().filter(|query| !query.is_empty()) else { return Ok(()) };
    let message = format!("`?{query}`: this operation takes no query parameters");
    Err(Problem::new(ErrorCode::Malformed, message).next("/openapi.json says what the operation takes"))
}

fn misread<T: DeserializeOwned + IntoParams>(query: &str) -> Problem {
    let known = Parameter::all::<T>();
    let mut seen = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let name = pair.split('=').next().unwrap_or_default();
        let Some(parameter) = known.iter().find(|parameter| parameter.name == name) else {
            let names: Vec<&str> = known.iter().map(|parameter| parameter.name.as_str()).collect();
            return malformed(format!(
                "there is no query parameter `{name}`; this operation takes {}",
                names.join(", ")
            ));
        };
        if seen.contains(&name) {
            return malformed(format!("query parameter `{name}` is there twice"));
        }
        seen.push(name);
        let alone = format!("/?{pair}").parse::<Uri>().ok();
        if alone.is_none_or(|uri| Query::<T>::try_from_uri(&uri).is_err()) {
            return malformed(format!(
                "query parameter `{pair}`: its value is to be {}",
                parameter.described()
            ));
        }
    }
    malformed("the query cannot be read: it is to be NAME=VALUE, joined by &".to_owned())
}

fn malformed(message: String) -> Problem {
    Problem::new(ErrorCode::Malformed, message).next("/openapi.json says what the operation takes")
}

/// A parameter of the document.
struct Parameter {
    name: String,
    schema: Value,
}

impl Parameter {
    fn all<T: IntoParams>() -> Vec<Self> {
        let all = T::into_params(|| Some(ParameterIn::Query)).into_iter();
        let of = |parameter: utoipa::openapi::path::Parameter| Self {
            schema: serde_json::to_value(&parameter.schema).unwrap_or_default(),
            name: parameter.name,
        };
        all.map(of).collect()
    }

    /// A description of its valid values.
    fn described(&self) -> String {
        let schema = &self.schema;
        let number = |name: &str| schema[name].as_u64();
        if let Some(words) = words_of(schema) {
            return format!("one of {}", words.join(", "));
        }
        if schema["format"] == "uuid" {
            return "an id of 32 hexadecimal digits".to_owned();
        }
        match (has_type(schema, "integer"), has_type(schema, "boolean")) {
            (true, _) => {
                let from = number("minimum").unwrap_or(0);
                let to = number("maximum").map(|to| format!(" to {to}")).unwrap_or_default();
                format!("a whole number from {from}{to}")
            }
            (_, true) => "`true` or `false`".to_owned(),
            _ => match number("maxLength") {
                Some(most) => format!("a text of at most {most} characters"),
                None => "a text".to_owned(),
            },
        }
    }
}

/// The words of an enumeration, wherever the schema has them.
fn words_of(schema: &Value) -> Option<Vec<&str>> {
    if let Some(words) = schema["enum"].as_array() {
        return Some(words.iter().filter_map(Value::as_str).collect());
    }
    let mut choices =
        ["oneOf", "anyOf", "allOf"].into_iter().filter_map(|of| schema[of].as_array()).flatten();
    choices.find_map(words_of)
}

fn has_type(schema: &Value, wanted: &str) -> bool {
    match &schema["type"] {
        Value::String(is) => is == wanted,
        Value::Array(any) => any.iter().any(|is| is == wanted),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use strongroom_api::event::EventListQuery;
    use strongroom_api::task::TaskListQuery;
    use strongroom_api::vm::VmListQuery;

    use super::*;

    fn refused<T: DeserializeOwned + IntoParams>(query: &str) -> String {
        let uri = format!("/v1/things?{query}").parse().unwrap();
        read::<T>(&uri).map(drop).unwrap_err().message
    }

    #[test]
    fn what_does_not_belong_in_a_query_is_named_with_what_does() {
        assert_eq!(
            refused::<EventListQuery>("lmit=7"),
            "there is no query parameter `lmit`; this operation takes after, limit, object"
        );
        let bounds = "query parameter `limit=abc`: its value is to be a whole number from 1 to 1000";
        assert_eq!(refused::<EventListQuery>("limit=abc"), bounds);
        assert_eq!(refused::<EventListQuery>("limit=1&limit=2"), "query parameter `limit` is there twice");
        let after = refused::<EventListQuery>("after=9223372036854775808");
        assert!(after.ends_with("a whole number from 0 to 9223372036854775807"), "{after}");
        assert!(refused::<EventListQuery>("object=x").ends_with("an id of 32 hexadecimal digits"));
        let power = refused::<VmListQuery>("power=null");
        assert!(power.contains("`power=null`: its value is to be one of stopped, "), "{power}");
        assert!(refused::<VmListQuery>("encrypted=1").ends_with("`true` or `false`"));
        let name = "n".repeat(64);
        let long = refused::<VmListQuery>(&format!("name={name}"));
        assert!(long.ends_with("a text of at most 63 characters"), "{long}");
        let ids = refused::<VmListQuery>("ids=web1");
        assert!(ids.ends_with("a text of at most 3700 characters"), "{ids}");
        let state = refused::<TaskListQuery>("state=ready");
        assert!(state.contains("one of running, done, failed, cancelled"), "{state}");
        for parsers_words in ["deserialize", "variant", "digit found", "invalid type"] {
            for said in [&power, &long, &state, &after] {
                assert!(!said.contains(parsers_words), "{said}");
            }
        }
    }

    #[test]
    fn a_query_is_read_and_none_is_refused() {
        let query: EventListQuery = read(&"/v1/events?limit=7&after=3".parse().unwrap()).unwrap();
        assert_eq!((query.limit, query.after), (Some(7), Some(3)));
        refuse(&"/healthz?".parse().unwrap()).unwrap();
        assert!(refuse(&"/healthz?x=1".parse().unwrap()).unwrap_err().message.contains("`?x=1`"));
    }
}
